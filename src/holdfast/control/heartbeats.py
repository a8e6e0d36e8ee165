"""What heartbeats tell, and to which parts. Decides nothing itself.

Nearly all that a coordinator of a large run hears are heartbeats that agents pass on, many at once:
their rows are noted as they are. Whatever is not surely good is left to be heard one by one.
"""

from collections.abc import Iterable

from holdfast.cluster import WorkerId, parse_worker
from holdfast.control.effects import Effect
from holdfast.control.parts import CoordinatorParts
from holdfast.control.plausible import Plausible
from holdfast.control.state.run import Run
from holdfast.control.state.workers import membership as m
from holdfast.protocol import messages
from holdfast.protocol.gathering import Beat
from holdfast.protocol.records import BeatRow


class Heartbeats:
    def __init__(self, run: Run, parts: CoordinatorParts) -> None:
        self._run, self._parts = run, parts

    def on_heartbeat(self, beat: messages.Heartbeat, at_s: float) -> list[Effect]:
        self._note(parse_worker(beat.worker), beat, beat.longest.items(), by_agent=False)
        return []

    def are_alive(self, workers: Iterable[WorkerId], at_s: float) -> None:
        """They have beaten, and told nothing new."""
        knows, has_beaten = self._run.membership.knows, self._parts.failure_detector.has_beaten
        for worker in workers:
            if knows(worker):
                has_beaten(worker, at_s)

    def hear(self, beats: Iterable[Beat], plausible: Plausible, at_s: float) -> list[Beat]:
        """Those that have to be heard one by one, which finds out what is wrong with each."""
        run, detector = self._run, self._parts.failure_detector
        last_step, epoch = plausible.most("step"), plausible.most("epoch")
        rest: list[Beat] = []
        for beat in beats:
            row = beat.row
            worker = parse_worker(row.worker)
            if row.step > last_step or row.epoch > epoch or not run.membership.knows(worker):
                rest.append(beat)
                continue
            try:
                detector.has_beaten(worker, at_s)
                if run.membership.phase(worker) not in m.MISSING:
                    self._note(worker, row, beat.longest, by_agent=True)
            except Exception:  # whose fault that is, and what follows, is found out once more
                rest.append(beat)
        return rest

    def _note(
        self,
        worker: WorkerId,
        beat: messages.Heartbeat | BeatRow,
        longest: Iterable[tuple[str, float]],
        *,
        by_agent: bool,
    ) -> None:
        parts = self._parts
        parts.tracker.note(worker, beat.epoch, beat.step, beat.done, beat.attempt)
        self._run.saved.note_saving(worker, is_saving=beat.saving)
        parts.leases.heard(worker, beat.renewed, by_agent=by_agent)
        stage = self._run.stages.get(worker)
        if stage is not None:
            parts.stuck_detector.note(worker, stage, beat, longest)
