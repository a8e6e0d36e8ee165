"""What happens to a random cluster: at any time, or aimed at what is under way just then."""

import random
from dataclasses import replace
from typing import NamedTuple

from holdfast.schedule.operation import Shape
from holdfast.simulator.messages.scenario import Deed

_KINDS = ("kill", "kill", "stop", "hang-up", "crash", "crash", "full", "pause", "interrupt")
_OF_MACHINES = (
    *("dies", "power", "cut", "cut", "alone", "alone", "drain", "drain", "drain", "comes"),
)

# What deeds are aimed at: words of a change, and what has come of it. Each worker is told alone.
_TOLD = (
    *("Halt", "Proceed", "Assign", "CopyState", "ShareState", "Offer", "Adopt"),
    *("Replay", "Restore", "SaveOnce"),
)
_DONE = (
    *("WorkerLost", "WorkerJoined", "TookOver", "WentBack", "Recovered", "WorkerMoved", "Fence"),
    *("SealCheckpoint", "MachineDrains", "MachineLost"),
)


class DrawnCluster(NamedTuple):
    shape: Shape
    machines: tuple[int, ...]  # slots; empty: one machine
    home: str

    @property
    def num_workers(self) -> int:
        return self.shape.pipelines * self.shape.stages

    @property
    def workers(self) -> list[str]:
        shape = self.shape
        return [f"{p}.{s}" for p in range(shape.pipelines) for s in range(shape.stages)]

    @property
    def names(self) -> list[str]:
        """Of machines, the coordinator's own first."""
        others = (f"m{number}" for number in range(len(self.machines)))
        return list(dict.fromkeys([self.home, *others]))


def drawn_worker(shape: Shape, dice: random.Random) -> str:
    return f"{dice.randrange(shape.pipelines)}.{dice.randrange(shape.stages)}"


def drawn_absence(dice: random.Random) -> str:
    """Until another coordinator is there."""
    return f"{dice.choice((0.2, 1.0, 4.0)):g}"


def deeds_at(at_s: float, cluster: DrawnCluster, dice: random.Random) -> list[Deed]:
    """One, or those that belong together."""
    worker = drawn_worker(cluster.shape, dice)
    seconds = f"{dice.choice((0.3, 1.0, 3.0, 8.0, 15.0)):g}"
    match kind := dice.choice(_KINDS + (_OF_MACHINES if cluster.machines else ())):
        case "kill" | "hang-up":
            return [Deed(at_s, kind, (worker,))]
        case "stop":
            return [Deed(at_s, kind, (worker, seconds))]
        case "full":
            return [Deed(at_s, kind, (seconds,))]
        case "crash":
            return [Deed(at_s, kind, (drawn_absence(dice),))]
        case "pause":
            return [Deed(at_s, kind, (f"{dice.choice((3.0, 8.0, 15.0)):g}", "2.5"))]
        case "interrupt":
            return [Deed(at_s, kind)] if dice.random() < 0.3 else []
    return _of_machines(kind, at_s, cluster, seconds, dice)


def _of_machines(
    kind: str, at_s: float, cluster: DrawnCluster, seconds: str, dice: random.Random
) -> list[Deed]:
    names, home = cluster.names, cluster.home
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


# --- aimed ---


def aimed(cluster: DrawnCluster, steps: int, link_s: float, dice: random.Random) -> list[Deed]:
    found: list[Deed] = []
    for _ in range(dice.choice((0, 0, 1, 1, 2, 3))):
        kind = dice.choice(("together", "change", "change", "earlier life"))
        if kind == "together":
            found += _together(cluster, steps, link_s, dice)
        elif kind == "change":
            found += _at_a_change(cluster, link_s, dice)
        elif len(cluster.names) > 1:
            found += _earlier_life(cluster, dice)
    return found


def _together(cluster: DrawnCluster, steps: int, link_s: float, dice: random.Random) -> list[Deed]:
    """Some are killed while a step ends: others have committed it, or have not."""
    upon, count = "commit", dice.randint(1, steps * cluster.num_workers)
    if dice.random() < 0.5:
        upon, count = f"commit:{drawn_worker(cluster.shape, dice)}", dice.randint(1, steps)
    workers = dice.sample(cluster.workers, min(cluster.num_workers, dice.choice((1, 2, 2, 3))))
    delays_s = [round(dice.choice((0, 1, 1, 3)) * link_s * dice.random(), 5) for _ in workers]
    return [
        Deed(delay_s, "kill", (worker,), upon=upon, count=count)
        for worker, delay_s in zip(workers, delays_s, strict=True)
    ]


def _at_a_change(cluster: DrawnCluster, link_s: float, dice: random.Random) -> list[Deed]:
    is_told = dice.random() < 0.6
    upon = dice.choice(_TOLD if is_told else _DONE)
    count = dice.randint(1, 3 * cluster.num_workers if is_told else 3)
    after_s = round(dice.choice((0.0, link_s, 3 * link_s, 0.1, 0.6)) * 2 * dice.random(), 5)
    return [replace(d, upon=upon, count=count) for d in deeds_at(after_s, cluster, dice)]


def _earlier_life(cluster: DrawnCluster, dice: random.Random) -> list[Deed]:
    """Cut off and given up, and the coordinator dies: who comes back is not the one waited for."""
    cut = dice.choice([name for name in cluster.names if name != cluster.home])
    at_s, seconds = round(1.0 + 3 * dice.random(), 3), f"{dice.choice((5.0, 6.0, 8.0, 10.0)):g}"
    given_up = "Fence", dice.randint(1, 2)
    replaced = "WorkerReady", cluster.num_workers + dice.randint(1, 2)
    upon, count = dice.choice((given_up, replaced, replaced))
    after_s = round(dice.choice((0.1, 0.5, 2.0)) * dice.random(), 3)
    crash = Deed(after_s, "crash", (dice.choice(("1", "4")),), upon=upon, count=count)
    return [Deed(at_s, "cut", (cluster.home, cut, seconds)), crash]


def thin_stage(cluster: DrawnCluster, steps: int, dice: random.Random) -> list[Deed]:
    """One holder of a stage is left; then it dies with one of another stage, just when somebody
    commits a step that not all have ended."""
    shape = cluster.shape
    thin, other, third = dice.sample(range(shape.stages), 3)
    left = dice.randrange(shape.pipelines)
    early = [f"{p}.{thin}" for p in range(shape.pipelines) if p != left]
    hears = dice.randrange(shape.pipelines)  # mostly from the holder of the same pipeline
    tells = hears if dice.random() < 0.75 else dice.randrange(shape.pipelines)
    upon, count = f"commit:{hears}.{third}", dice.randint(2, max(2, steps - 1))
    gone = [f"{left}.{thin}", f"{tells}.{other}"]
    return [
        *(Deed(0.0, "kill", (worker,), upon="commit", count=1) for worker in early),
        *(Deed(0.0, "kill", (worker,), upon=upon, count=count) for worker in gone),
    ]
