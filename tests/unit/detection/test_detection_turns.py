"""Large runs: each worker tells in its turn, and then of typical operations only."""

import pytest

from helpers.slow_worlds import Slow, Story, World
from holdfast.cluster import WorkerId
from holdfast.control.straggler.monitor import watch_settings
from holdfast.detection.diagnosis import Suspicion
from holdfast.detection.live.settings import WatchSettings
from holdfast.detection.live.watcher import Watcher
from holdfast.detection.observation import StepObservation, Transfer
from holdfast.protocol.report_limits import num_turns

ONSET, LEARNT = 40, 16  # steps
SLOW = (
    Slow("1.0", ONSET, factor=1.4),
    Slow("2.1-3.1", ONSET, delay_s=0.006),
    Slow("5.0-5.1", ONSET, delay_s=0.006),
)


class InTurns(World):
    """As workers in a run of ``num_members`` report."""

    num_members = 1024

    def run(self, watcher: Watcher, num_steps: int, first: int = 0) -> Story:
        story = Story()
        for worker in self.workers:
            self.benchmark(watcher, worker, 0)
        self.probes: dict[WorkerId, list[Transfer]] = {worker: [] for worker in self.workers}
        for step in range(first, first + num_steps):
            self._do_what_was_asked(watcher, step)
            for worker in self.workers:
                if (
                    step < LEARNT
                    or (worker.pipeline // 2 + step) % num_turns(self.num_members) == 0
                ):
                    watcher.observe(self._told(worker, step))
            for outcome in watcher.conclude(step):
                story.append((step, outcome))
                if isinstance(outcome, Suspicion):
                    self.asked = outcome
        return story

    def _do_what_was_asked(self, watcher: Watcher, step: int) -> None:
        for worker in self.asked.workers:
            self.benchmark(watcher, worker, step)
        for one, other in self.asked.links:
            self.probes[one].append(self.transfer(other, one, "probe", 3, step))
            self.probes[other].append(self.transfer(one, other, "probe", 3, step))
        self.asked = Suspicion((), ())

    def _told(self, worker: WorkerId, step: int) -> StepObservation:
        """Also of the links that were measured since its last turn."""
        told = self.report(worker, step, 0.0)
        probes, self.probes[worker] = self.probes[worker], []
        ops = told.ops
        if step >= LEARNT:  # of each kind the typical one
            by_kind = [[op for op in ops if op.kind == kind] for kind in ("F", "B", "W")]
            ops = tuple(sorted(of, key=lambda op: op.took_s)[len(of) // 2] for of in by_kind)
        return told._replace(ops=ops, transfers=(*told.transfers, *probes))


def found(num_members: int, settings: WatchSettings, seed: int) -> dict[str, int]:
    """Who is named, and how many steps after the onset."""
    world = InTurns(8, 2, 4, slow=SLOW, seed=seed)
    world.num_members = num_members
    story = world.run(world.watcher(settings), ONSET + 8 * num_turns(num_members))
    return {diagnosis.subject: step - ONSET for step, diagnosis in story.faults()}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("num_members", [1024, 4096])
def test_slow_workers_and_links_are_found_within_some_turns(num_members, seed):
    named = found(num_members, watch_settings(num_members), seed)
    assert named.keys() == {"1.0", "2.1-3.1", "5.0-5.1"}
    assert max(named.values()) <= 4 * num_turns(num_members)


def test_without_patience_for_a_turn_links_would_be_acquitted():
    assert found(4096, WatchSettings(), seed=0).keys() == {"1.0"}
