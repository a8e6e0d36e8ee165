"""Random small clusters, settings, faults and timings. A seed draws the same on any machine."""

import random
from dataclasses import replace

from holdfast.schedule.operation import Shape
from holdfast.simulator.hunt.happenings import (
    DrawnCluster,
    aimed,
    deeds_at,
    drawn_absence,
    drawn_worker,
    thin_stage,
)
from holdfast.simulator.messages.scenario import Deed, OperationCosts, Scenario

_QUICK_S = 0.01
_THIN = 0.3  # of the worlds that are large enough for it
_POINTS = (
    *("begin", "F0", "F0.done", "B0", "B0.done", "W0.done", "F1", "B1.done", "W1"),
    *("reduce", "partials", "reduced", "told", "apply", "applied", "check", "settled"),
    *("save", "halt", "proceed", "copy", "replay"),
)


def draw(seed: int | str) -> Scenario:
    dice = random.Random(f"hunt-{seed}")
    pipelines, stages = dice.choice((1, 2, 2, 2, 3, 4)), dice.choice((1, 2, 2, 3, 4))
    while pipelines * stages > 9:
        pipelines, stages = dice.choice((1, 2, 3, 4)), dice.choice((1, 2, 3, 4))
    microbatches = pipelines * dice.choice((1, 2, 2, 3, 4))
    shape, costs = Shape(pipelines, stages, microbatches), _costs(dice)
    step_s = (microbatches // pipelines + stages - 1) * 3 * costs.forward_s
    copy_steps = dice.choice((0.05, 0.05, 0.5, 2.0, 6.0))
    costs = replace(costs, copy_s=round(copy_steps * step_s, 4))
    steps = dice.randint(4, 14) + (10 if copy_steps > 1 else 0)
    if pipelines * stages <= 4 and dice.random() < 0.2:
        steps = dice.randint(25, 40)  # time enough to find who is slow, and better lanes
    machines = _machines(shape, dice) if dice.random() < 0.5 else ()
    home = dice.choice(("m0", "c")) if machines else "m0"
    often = dice.choice((0.0, 0.1, 0.3))
    bad = tuple(
        (step, dice.choice(("clip", "skip"))) for step in range(steps - 1) if dice.random() < often
    )
    cluster = DrawnCluster(shape, machines, home)
    span_s = 1.5 * steps * step_s
    drawn = Scenario(
        seed=str(seed),
        shape=shape,
        steps=steps,
        settings=_settings(shape, dice, bool(machines), costs.link_s),
        machines=machines,
        home=home,
        bad=bad,
        faults=_faults(shape, steps, bad, dice),
        deeds=tuple(_deeds(cluster, span_s, dice) + aimed(cluster, steps, costs.link_s, dice)),
        refined_s=dice.choice((-1.0, -1.0, 0.3, 1.0)),
        costs=costs,
    )
    if pipelines > 1 and stages > 2 and dice.random() < _THIN:
        return _with_a_thin_stage(drawn, cluster, dice)
    return drawn


def _with_a_thin_stage(drawn: Scenario, cluster: DrawnCluster, dice: random.Random) -> Scenario:
    """Words that come late leave some of its neighbours a step behind when it is lost."""
    others = ("recovery.", "workers.replace", "workers.heartbeat_timeout_s")
    kept = [text for text in drawn.settings if not text.startswith(others)]
    return replace(
        drawn,
        settings=(*kept, "workers.replace=0", "recovery.log=boundary"),
        faults=(),
        deeds=tuple(thin_stage(cluster, drawn.steps, dice)),
        costs=replace(drawn.costs, link_s=0.03, slow_words=0.3),
    )


def _costs(dice: random.Random) -> OperationCosts:
    forward_s = dice.choice((0.02, 0.05, 0.1))
    return OperationCosts(
        forward_s,
        round(forward_s * dice.choice((1, 1.5)), 4),
        round(forward_s * dice.choice((0.5, 1)), 4),
        reduce_s=dice.choice((0.0, 0.005)),
        link_s=dice.choice((0.0005, 0.005, 0.03)),
        spread=dice.choice((0.02, 0.2, 0.8)),
        slow_words=dice.choice((0.02, 0.02, 0.02, 0.2)),
    )


def _machines(shape: Shape, dice: random.Random) -> tuple[int, ...]:
    """With some slots to spare, more or less."""
    number, workers = dice.randint(2, 4), shape.pipelines * shape.stages
    slots = -(-(workers + dice.choice((0, 0, 1, 2))) // number)
    return (slots,) * number


def _settings(shape: Shape, dice: random.Random, spread: bool, link_s: float) -> tuple[str, ...]:
    found = [
        f"checkpoint.every_steps={dice.choice((0, 2, 3, 5))}",
        f"checkpoint.first_step={dice.choice((0, 1, 1))}",
        f"checkpoint.at_end={dice.choice(('true', 'false'))}",
        "workers.start_limit_s=20",
        f"workers.replace={dice.choice((0, 1, 3, 3))}",
        f"workers.restarts={dice.choice((1, 3, 3, 6))}",
        f"optimizer.mode={dice.choice(('staggered', 'staggered', 'global'))}",
        f"schedule.name={dice.choice(('zero-bubble', '1f1b', 'gpipe'))}",
    ]
    if dice.random() < 0.3:
        slow = link_s > _QUICK_S  # a slow word takes nearly two seconds
        found.append(f"workers.heartbeat_timeout_s={dice.choice((3, 5) if slow else (1, 2, 5))}")
    if dice.random() < 0.1:
        found.append("workers.orphan_limit_s=5")
    if dice.random() < 0.3:
        found.append("checkpoint.dir=s3://bucket/run")
    if spread:
        found.append("machines.wait_s=60")
    if shape.stages > 1 and dice.random() < 0.35:
        found.append("recovery.log=boundary")
        found.append(f"recovery.helpers={dice.choice((-1, -1, 0, 1))}")
    elif dice.random() < 0.25:
        mode = dice.choice(("commit", "global", "checkfreq"))
        found.append(f"recovery.mode={mode}")
    return tuple(found)


def _faults(
    shape: Shape, steps: int, bad: tuple[tuple[int, str], ...], dice: random.Random
) -> tuple[str, ...]:
    """Of the kind that real runs are given."""
    found: dict[tuple[str, ...], str] = {}
    step = dice.randint(1, steps)
    for _ in range(dice.choice((0, 1, 2, 3, 4, 5))):
        worker = drawn_worker(shape, dice)
        step = dice.randint(1, steps) if dice.random() < 0.5 else min(steps, step + 1)
        if bad and dice.random() < 0.5:  # what is done on trust is taken back then
            step = dice.choice(bad)[0] + dice.choice((1, 2))
        kind = dice.choice(("kill", "kill", "kill", "hang", "slow", "join"))
        where = f"{step}.{dice.choice(_POINTS)}"
        if kind == "slow":
            text = f"slow {worker} @ {step}-{min(steps, step + 4)} x{dice.choice((2.0, 6.0))}"
        elif kind == "join":
            text = f"join {worker} @ {step}"
        else:
            text = f"{kind} {worker} @ {where.removesuffix('.begin')}"
        found.setdefault((kind, worker, where), text)
    return tuple(dict.fromkeys(found.values()))


def _deeds(cluster: DrawnCluster, span_s: float, dice: random.Random) -> list[Deed]:
    """Most of them close to each other: one interrupts what another has begun."""
    found, at_s = list[Deed](), 1.0
    for _ in range(dice.choice((0, 1, 1, 2, 3, 4))):
        if not found or dice.random() < 0.4:
            at_s = 1.0 + span_s * dice.random()
        at_s = round(at_s + dice.choice((0.0, 0.02, 0.1, 0.5, 1.5)) * dice.random(), 3)
        if dice.random() < 0.15:
            number = int(20 * at_s + 4 * cluster.num_workers + dice.randrange(40))
            found.append(Deed(number, "crash", (drawn_absence(dice),), of_stimuli=True))
        else:
            found += deeds_at(at_s, cluster, dice)
    return sorted(found, key=lambda deed: (deed.of_stimuli, deed.at))
