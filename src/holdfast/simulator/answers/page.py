"""One page with all answers, in a single file: pictures are inside."""

import base64
from collections.abc import Sequence
from html import escape
from typing import Any

from holdfast.simulator.intervals.outcome import PolicyOutcome, TimeKind

_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root {{ color-scheme: light dark; --text: #1c1c1c; --faint: #555; --line: #ddd; --ours: #f3f6fb;
 --mark: #1f4e9c; --back: #fff; }}
@media (prefers-color-scheme: dark) {{ :root {{ --text: #e6e6e6; --faint: #a8a8a8; --line: #444;
 --ours: #1d2a40; --mark: #7ba3e6; --back: #16181c; }} }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto;
 padding: 0 1rem; color: var(--text); background: var(--back); }}
h1 {{ font-size: 1.6rem; margin-bottom: .2rem; }} h2 {{ font-size: 1.15rem; margin-top: 2rem; }}
.facts {{ color: var(--faint); margin-top: 0; }}
.lead {{ font-size: 1.15rem; border-left: 4px solid var(--mark); padding: .4rem 1rem;
 background: var(--ours); }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; width: 100%; font-size: .88rem;
 font-variant-numeric: tabular-nums; }}
th, td {{ padding: .3rem .5rem; border-bottom: 1px solid var(--line); text-align: right;
 vertical-align: top; }}
th {{ vertical-align: bottom; }}
th:first-child, td:first-child, td.text, th.text {{ text-align: left; }}
tr.ours {{ font-weight: 600; background: var(--ours); }}
img {{ width: 100%; background: #fff; padding: .5rem; box-sizing: border-box;
 border-radius: 6px; }}
details {{ margin-top: .5rem; }}
</style></head><body>
"""

_EXPLAINED = (
    "Goodput: of what the same policy does with nobody missing. Effective: steps that count. "
    "Saving: all wait for a checkpoint. Redone: work of a step in flight, or replayed. Rolled "
    "back: steps since a checkpoint that are lost. Stalled: a change is made. Idle: too few "
    "workers. % of the time. Samples for 1: for one unit of money."
)


def page(values: dict[str, Any], outcomes: Sequence[PolicyOutcome], picture: bytes) -> str:
    """``values``: those of the JSON answer; ``picture``: an SVG."""
    world, job = values["world"], values["job"]
    title = f"{job['name']} on {job['gpus']:,} GPUs: {world['name']}"
    image = base64.b64encode(picture).decode("ascii")
    parts = [
        _HEAD.format(title=escape(title)),
        f"<h1>{escape(title)}</h1>",
        f'<p class="facts">{escape(_facts(values))}</p>',
        f'<p class="lead">{escape(_lead(outcomes, values["price_gpu_h"]))}</p>',
        f'<img alt="Throughput" src="data:image/svg+xml;base64,{image}">',
        "<h2>Policies</h2>",
        _table(outcomes, values["price_gpu_h"]),
        f'<p class="facts">{escape(_EXPLAINED)}</p>',
        "<h2>What the models leave out, and their constants</h2>",
        *map(_policy, values["policies"]),
        '<p class="facts">Simulated: nothing was trained. Made by holdfast simulate.</p>',
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _facts(values: dict[str, Any]) -> str:
    world, job = values["world"], values["job"]
    return (
        f"{job['pipelines']} pipelines x {job['stages']} stages, {job['microbatches']:,} "
        f"micro-batches a step; {world['machines']:,} machines, {world['mean_machines']:,.1f} on "
        f"average; {world['losses']:,} failures in {world['hours']:,.1f} h; a GPU costs "
        f"{values['price_gpu_h']:g} an hour"
    )


def _lead(outcomes: Sequence[PolicyOutcome], price: float) -> str:
    best = max(outcomes, key=lambda outcome: outcome.rate)
    words = f"{best.title} trains {best.rate:,.4g} samples a second on average"
    if price:
        words += f", for {best.cost_a_day(price):,.0f} a day"
    others = [outcome for outcome in outcomes if outcome is not best and outcome.samples]
    if others:
        second = max(others, key=lambda outcome: outcome.rate)
        words += f"; {second.title}, the next, {second.rate:,.4g} ({best.rate / second.rate:.2f}x)"
    return words + "."


def _table(outcomes: Sequence[PolicyOutcome], price: float) -> str:
    kinds = [kind.value for kind in TimeKind]
    head = ["policy", "samples/s", "goodput", *(f"{kind} %" for kind in kinds), "cost a day"]
    head.append("samples for 1")
    rows = [
        '<div class="wide"><table><tr>'
        + "".join(f"<th>{escape(word)}</th>" for word in head)
        + "</tr>"
    ]
    for outcome in sorted(outcomes, key=lambda outcome: -outcome.rate):
        cells = [
            escape(outcome.title),
            f"{outcome.rate:,.4g}" if outcome.samples else "does not run",
            f"{outcome.goodput:.3f}",
            *(f"{100 * outcome.share(kind):.1f}" for kind in TimeKind),
            f"{outcome.cost_a_day(price):,.0f}",
            f"{outcome.samples_for(price):,.4g}",
        ]
        style = ' class="ours"' if outcome.policy == "holdfast" else ""
        rows.append(f"<tr{style}>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return "\n".join([*rows, "</table></div>"])


def _policy(values: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{row['value']:g}</td>"
        f'<td class="text">{escape(row["source"])}</td></tr>'
        for name, row in values["constants"].items()
    )
    return (
        f"<details><summary>{escape(values['policy'])}: left out: "
        f"{escape(values['leaves_out'])}</summary><table>{rows}</table></details>"
    )
