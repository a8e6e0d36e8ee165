"""Seed after seed: a world is drawn, run and judged. The first that fails is made small."""

import gc
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from holdfast.simulator.hunt.drawing import draw
from holdfast.simulator.hunt.invariants import Invariants
from holdfast.simulator.hunt.verdicts import unlawful
from holdfast.simulator.messages.deeds import schedule_deeds
from holdfast.simulator.messages.scenario import Scenario
from holdfast.simulator.messages.virtual_run import Violation, VirtualRun

_MUCH_GARBAGE = 100_000  # objects
LIMIT_S = 1500.0  # virtual: nothing in a drawn world takes so long


@dataclass(frozen=True, slots=True)
class WorldOutcome:
    scenario: Scenario
    wrong: str  # empty: all is well
    num_events: int
    took_s: float  # virtual
    fingerprint: str
    ended: str  # "finished", or the error it ended with

    @property
    def kind(self) -> str:
        """Of what is wrong, without its numbers."""
        return "".join(letter for letter in self.wrong if not letter.isdigit())[:40]


def judge(scenario: Scenario, watch: Invariants | None = None) -> WorldOutcome:
    """Run a world to its end."""
    world, wrong = VirtualRun(scenario, watch or Invariants()), ""
    schedule_deeds(world)
    try:
        world.run(LIMIT_S)
        wrong = _end(world)
    except Violation as why:
        wrong = str(why)
    except Exception as why:  # a mistake of ours, or of the simulated workers
        frame = traceback.extract_tb(why.__traceback__)[-1]
        wrong = f"{type(why).__name__}: {why} ({frame.filename.rpartition('/')[2]}:{frame.lineno})"
    failure = world.failure
    ended = "finished" if failure is None else str(failure)
    return WorldOutcome(
        scenario, wrong, world.time.num_events, world.time.now_s, world.fingerprint, ended
    )


def _end(world: VirtualRun) -> str:
    scenario, failure = world.scenario, world.failure
    if not world.is_over:
        if not any(host.is_alive for host in world.hosts):
            return ""  # nobody takes over a run that has failed, or was never written down
        coordinator = world.leader.coordinator
        return f"no end after {world.time.now_s:.0f} s: {coordinator.phase.name}"
    return "" if failure is None else unlawful(failure, scenario)


@dataclass(frozen=True, slots=True)
class SomeSeeds:
    """What came of them, up to the first that went wrong."""

    num_seeds: int
    num_events: int
    failing: WorldOutcome | None


def hunted(first_seed: int, seeds: int) -> SomeSeeds:
    num_events = 0
    with _seldom_collected():
        for number in range(seeds):
            found = judge(draw(first_seed + number))
            num_events += found.num_events
            if found.wrong:
                return SomeSeeds(number + 1, num_events, found)
    return SomeSeeds(seeds, num_events, None)


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """Of what a world makes nearly all lives to its end: looking for garbage finds none."""
    before = gc.get_threshold()
    gc.set_threshold(_MUCH_GARBAGE, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
