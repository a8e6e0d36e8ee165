"""Random small clusters, settings, faults and timings. A seed draws the same on any machine."""

import random

from holdfast.schedule.operation import Shape
from holdfast.simulator.messages.scenario import Deed, OperationCosts, Scenario

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
    shape, steps = Shape(pipelines, stages, microbatches), dice.randint(4, 14)
    if pipelines * stages <= 4 and dice.random() < 0.2:
        steps = dice.randint(25, 40)  # time enough to find who is slow, and better lanes
    machines = _machines(shape, dice) if dice.random() < 0.5 else ()
    home = dice.choice(("m0", "c")) if machines else "m0"
    forward_s = dice.choice((0.02, 0.05, 0.1))
    costs = OperationCosts(
        forward_s,
        round(forward_s * dice.choice((1, 1.5)), 4),
        round(forward_s * dice.choice((0.5, 1)), 4),
        dice.choice((0.0, 0.005)),
        dice.choice((0.0005, 0.005, 0.03)),
        dice.choice((0.02, 0.2, 0.8)),
    )
    often = dice.choice((0.0, 0.1, 0.3))
    bad = tuple(
        (step, dice.choice(("clip", "skip"))) for step in range(steps - 1) if dice.random() < often
    )
    step_s = (microbatches // pipelines + stages - 1) * 3 * forward_s
    span_s = 1.5 * steps * step_s
    return Scenario(
        seed=str(seed),
        shape=shape,
        steps=steps,
        settings=_settings(shape, dice, bool(machines)),
        machines=machines,
        home=home,
        bad=bad,
        faults=_faults(shape, steps, dice),
        deeds=_deeds(shape, machines, home, span_s, dice),
        refined_s=dice.choice((-1.0, -1.0, 0.3, 1.0)),
        costs=costs,
    )


def _machines(shape: Shape, dice: random.Random) -> tuple[int, ...]:
    """With some slots to spare, more or less."""
    number, workers = dice.randint(2, 4), shape.pipelines * shape.stages
    slots = -(-(workers + dice.choice((0, 0, 1, 2))) // number)
    return (slots,) * number


def _settings(shape: Shape, dice: random.Random, spread: bool) -> tuple[str, ...]:
    found = [
        f"checkpoint.every_steps={dice.choice((0, 2, 3, 5))}",
        f"checkpoint.first_step={dice.choice((0, 1, 1))}",
        f"checkpoint.at_end={dice.choice(('true', 'false'))}",
        "workers.start_limit_s=20",
        f"workers.replace={dice.choice((0, 1, 3, 3))}",
        f"workers.restarts={dice.choice((1, 3, 3))}",
        f"optimizer.mode={dice.choice(('staggered', 'staggered', 'global'))}",
        f"schedule.name={dice.choice(('zero-bubble', '1f1b', 'gpipe'))}",
    ]
    if dice.random() < 0.3:
        found.append(f"workers.heartbeat_timeout_s={dice.choice((1, 2, 5))}")
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


def _worker(shape: Shape, dice: random.Random) -> str:
    return f"{dice.randrange(shape.pipelines)}.{dice.randrange(shape.stages)}"


def _faults(shape: Shape, steps: int, dice: random.Random) -> tuple[str, ...]:
    """Of the kind that real runs are given."""
    found: dict[tuple[str, ...], str] = {}
    step = dice.randint(1, steps)
    for _ in range(dice.choice((0, 1, 2, 3, 4, 5))):
        worker = _worker(shape, dice)
        step = dice.randint(1, steps) if dice.random() < 0.5 else min(steps, step + 1)
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


def _deeds(
    shape: Shape, machines: tuple[int, ...], home: str, span_s: float, dice: random.Random
) -> tuple[Deed, ...]:
    """Most of them close to each other: one interrupts what another has begun."""
    found, at_s = list[Deed](), 1.0
    for _ in range(dice.choice((0, 1, 1, 2, 3, 4))):
        if not found or dice.random() < 0.4:
            at_s = 1.0 + span_s * dice.random()
        at_s = round(at_s + dice.choice((0.0, 0.02, 0.1, 0.5, 1.5)) * dice.random(), 3)
        found += _deed(at_s, shape, machines, home, dice)
    return tuple(sorted(found, key=lambda deed: (deed.of_stimuli, deed.at)))


def _deed(
    at_s: float, shape: Shape, machines: tuple[int, ...], home: str, dice: random.Random
) -> list[Deed]:
    worker, seconds = _worker(shape, dice), f"{dice.choice((0.3, 1.0, 3.0, 8.0, 15.0)):g}"
    kinds = ["kill", "kill", "stop", "hang-up", "crash", "crash", "stimulus", "stimulus", "full"]
    kinds += ["pause", "interrupt"]
    if machines:
        kinds += ["dies", "power", "cut", "cut", "alone", "alone", "drain", "comes"]
    after_s = f"{dice.choice((0.2, 1.0, 4.0)):g}"
    match kind := dice.choice(kinds):
        case "kill" | "hang-up":
            return [Deed(at_s, kind, (worker,))]
        case "stop":
            return [Deed(at_s, kind, (worker, seconds))]
        case "full":
            return [Deed(at_s, kind, (seconds,))]
        case "crash":
            return [Deed(at_s, kind, (after_s,))]
        case "stimulus":
            number = int(20 * at_s + 4 * shape.pipelines * shape.stages + dice.randrange(40))
            return [Deed(number, "crash", (after_s,), of_stimuli=True)]
        case "pause":
            return [Deed(at_s, kind, (f"{dice.choice((3.0, 8.0, 15.0)):g}", "2.5"))]
        case "interrupt":
            return [Deed(at_s, kind)] if dice.random() < 0.5 else []
    return _of_machines(kind, at_s, machines, home, seconds, dice)


def _of_machines(
    kind: str, at_s: float, machines: tuple[int, ...], home: str, seconds: str, dice: random.Random
) -> list[Deed]:
    names = list(dict.fromkeys([home, *(f"m{number}" for number in range(len(machines)))]))
    name = dice.choice(names)
    others = [other for other in names if other != name]
    if kind == "cut":
        return [Deed(at_s, kind, (name, dice.choice(others), seconds))]
    if kind == "alone":  # cut off from all, e.g. the coordinator
        name = dice.choice((home, home, name))
        return [Deed(at_s, "cut", (name, other, seconds)) for other in names if other != name]
    name = dice.choice([each for each in names if each != home])
    back_s = round(at_s + dice.choice((1.0, 4.0, 12.0)), 3)
    back = [Deed(back_s, "comes", (name,))] if dice.random() < 0.6 else []
    return [Deed(at_s, kind, (name,)), *(back if kind in ("dies", "power") else [])]
