"""Outcomes as tables on the terminal."""

from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE
from rich.table import Table

from holdfast.simulator.intervals.optimising import LayoutChoice, shown
from holdfast.simulator.intervals.outcome import PolicyOutcome, TimeKind
from holdfast.simulator.worlds.world import World

_MOST_ROWS = 16
_LOST = {
    TimeKind.REDONE: "redone",
    TimeKind.ROLLED_BACK: "back",
    TimeKind.STALLED: "stalled",
    TimeKind.IDLE: "idle",
    TimeKind.SAVING: "saving",
}


def outcomes_table(
    values: dict[str, Any], outcomes: Sequence[PolicyOutcome], price: float
) -> Table:
    world, job = values["world"], values["job"]
    head = (
        f"{job['name']}, {job['pipelines']} x {job['stages']}, {job['gpus']:,} GPUs; "
        f"{world['name']}: {world['losses']} failures in {world['hours']:.1f} h, "
        f"{world['mean_machines']:.1f} of {world['machines']:,} machines on average"
    )
    table = Table(title=head, title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("policy", no_wrap=True)
    for name in ("samples/s", "goodput", *map(str, _LOST.values()), "for 1"):
        table.add_column(name, justify="right", no_wrap=True)
    for outcome in sorted(outcomes, key=lambda outcome: -outcome.rate):
        table.add_row(
            "messages" if outcome.resolution == "messages" else outcome.policy,
            f"{outcome.rate:.4g}" if outcome.samples else "cannot run",
            f"{outcome.goodput:.3f}",
            *(f"{100 * outcome.share(kind):.1f}" for kind in _LOST),
            f"{outcome.samples_for(price):.4g}",
        )
    scaled, plain = outcomes[0].fault_scaled_rate, outcomes[0].plain_rate
    table.caption = (
        f"1F1B with nobody missing: {plain:.4g} samples/s; fault-scaled: {scaled:.4g}. "
        f"Lost time in %. All cost {outcomes[0].cost_a_day(price):,.0f} a day; for 1: samples for 1"
    )
    table.caption_justify = "left"
    return table


def candidates_table(world: World, found: Sequence[LayoutChoice], price: float) -> Table:
    table = Table(
        title=f"Holdfast in {world.name}, the best first", title_justify="left", box=SIMPLE
    )
    for name in ("D x S", "spares", "log", "checkpoint every", "samples/s", "cost a day"):
        table.add_column(name, justify="right")
    table.add_column("samples for 1", justify="right")
    for candidate in shown(found)[:_MOST_ROWS]:
        table.add_row(
            f"{candidate.pipelines} x {candidate.stages}",
            str(candidate.spares),
            "on" if candidate.logs else "off",
            f"{candidate.checkpoint_steps} steps",
            f"{candidate.outcome.rate:.4g}",
            f"{candidate.outcome.cost_a_day(price):,.0f}",
            f"{candidate.outcome.samples_for(price):.4g}",
        )
    return table
