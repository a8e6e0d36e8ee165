"""A whole run in this process whose coordinator dies at a given stimulus; its workers do not.

Workers are threads, connected by real sockets. Of what the last stimulus led to only a part is
done. Then another launcher takes over, as one of another process would.
"""

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from helpers import jobs
from helpers.harness.coordinator_world import SomePlan
from helpers.sweeps.chaos import LAYOUTS, Executions, Ran
from holdfast.api.job_source import job_source
from holdfast.auth.secret import SECRET_FILE, read_secret
from holdfast.baselines.registry import policies_of
from holdfast.baselines.worker_registry import keeping_of
from holdfast.config import config_from
from holdfast.control import coordinator as core
from holdfast.control.effects import Discard, Effect
from holdfast.control.io import launcher as launching
from holdfast.control.io.launcher import Launcher, RunRequest
from holdfast.control.io.recorder import RunRecorder
from holdfast.control.io.succession.run_journal import left_behind
from holdfast.control.journal.base import Claim
from holdfast.errors import CheckpointError, Deposed
from holdfast.faults.fault import parse_fault
from holdfast.observability import events
from holdfast.observability.summary import Summary
from holdfast.protocol.spec import ADDRESS_FILE
from holdfast.runtime.worker.threads import WorkerThreads
from holdfast.schedule.operation import Kind, Op
from holdfast.storage.stores import find

STEPS = 14
LAYOUT = LAYOUTS["2x2"]
FAULTS = ("kill 1.0 @ 3.B1", "join 1.0 @ 4")
LIMIT_S = 60.0


class CoordinatorDied(BaseException):
    pass


class Died(Discard):
    """An effect that nobody survives."""


@dataclass
class MemoryJournal:
    """Survives who writes to it. ``generation``: of who leads."""

    kept: list[str] = field(default_factory=list)
    generation: int = 0
    own: int = 0

    def for_another(self) -> "MemoryJournal":
        return _Shared(self)

    def claim(self, *, above: int = 0, limit_s: float = 5.0) -> Claim:
        self.generation = self.own = max(self.generation, above) + 1
        return Claim(self.generation, "")

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(text) for text in self.kept]

    def append(self, record: Any, *, limit_s: float = 5.0) -> None:
        if self.own != self.generation:
            raise Deposed("another coordinator leads")
        self.kept.append(json.dumps(record))

    def append_all(self, records: Any, *, limit_s: float = 5.0) -> None:
        for record in records:
            self.append(record)

    def compact(self, snapshot: Any, *, limit_s: float = 5.0) -> None:
        self.append(snapshot)
        del self.kept[:-1]

    def renew(self) -> None:
        pass

    def leads(self, now_s: float) -> bool:
        return self.own == self.generation

    def close(self) -> None:
        pass


class _Shared(MemoryJournal):
    """The same records, for another process."""

    def __init__(self, first: MemoryJournal) -> None:
        super().__init__(first.kept)
        self._first = first

    @property  # type: ignore[override]
    def generation(self) -> int:
        return self._first.generation

    @generation.setter
    def generation(self, number: int) -> None:
        if hasattr(self, "_first"):
            self._first.generation = number


class Survivors(WorkerThreads):
    """Threads that outlive a launcher."""

    def stop(self) -> None:
        pass

    def end(self) -> None:
        super().stop()


def mortal(dies_at: int, seed: int, switch_at: int) -> type[core.Coordinator]:
    """``dies_at``: number of the stimulus, from the beginning of training on; 0: it lives."""
    dice = random.Random(f"{dies_at}-{seed}")

    class MortalCoordinator(core.Coordinator):
        num_stimuli, has_switched = 0, False

        def __init__(self, *given: Any, **more: Any) -> None:
            super().__init__(*given, **more)
            usual = self.parts.plans.better
            self.parts.plans.better = lambda left: self._better() or usual(left)

        def _better(self) -> Any:
            """Once: other lanes for the members of now."""
            run = self.run
            if MortalCoordinator.has_switched or self.parts.reports.next_step < switch_at:
                return None
            MortalCoordinator.has_switched = True
            problem = self.parts.plans.problem(run.stages)
            turned = SomePlan(problem, 0.5, "cleverer", 1).schedule()
            return run.plan.steady._replace(schedule=turned)

        def _noted(self, effects: list[Effect]) -> list[Effect]:
            effects = super()._noted(effects)
            if self.starting:
                return effects
            MortalCoordinator.num_stimuli += 1
            if MortalCoordinator.num_stimuli != dies_at:
                return effects
            return [*effects[: dice.randint(0, len(effects))], Died("")]

    return MortalCoordinator


@dataclass
class Twin:
    folder: Path
    patch: Any
    executions: Executions
    _asleep: threading.Event = field(default_factory=threading.Event)
    _woken: threading.Event | None = None  # it does not die, but sleeps until then

    def __post_init__(self) -> None:
        perform = RunRecorder.perform

        def mortal_perform(recorder: RunRecorder, effect: Effect) -> None:
            if isinstance(effect, Died) and self._woken is not None:
                self._asleep.set()
                self._woken.wait(LIMIT_S)
                return
            if isinstance(effect, Died):
                raise CoordinatorDied
            perform(recorder, effect)

        self.patch.setattr(RunRecorder, "perform", mortal_perform)

    def run(self, dies_at: int = 0, *, seed: int = 0, **more: Any) -> "TwinStory":
        """With one take-over, if it dies."""
        journal, starter, count = MemoryJournal(), Survivors(keeping_of), len(self._runs())
        cls = mortal(dies_at, seed, more.pop("switch_at", 6))
        self.patch.setattr(launching, "Coordinator", cls)
        request = self._request(self.folder / f"twin-{count}", **more)
        self.executions.ran = ran = []
        seen: list[events.Event] = []
        warned: list[str] = []
        began_s = time.monotonic()
        try:
            summary = self._launch(request, starter, journal, seen, warned)
            if summary is None:
                self.patch.setattr(launching, "Coordinator", mortal(0, 0, 10_000))
                summary = self._launch(
                    self._taken_over(request, journal), starter, journal.for_another(), seen, warned
                )
        finally:
            starter.end()
        took_s = time.monotonic() - began_s
        return TwinStory(summary, seen, ran, cls.num_stimuli, took_s, warned)

    def run_suspended(self, sleeps_at: int) -> "SuspendedStory":
        """It stands still in the midst of something, while another one takes over, and wakes when
        that one has ended the run."""
        journal, starter, woken = MemoryJournal(), Survivors(keeping_of), threading.Event()
        self.patch.setattr(launching, "Coordinator", mortal(sleeps_at, 0, 10_000))
        folder = self.folder / f"twin-{len(self._runs())}"
        unsaved = {"every_steps": 0, "first_step": 0, "at_end": False}
        request = self._request(folder, steps=400, checkpoint=unsaved)
        seen: list[events.Event] = []
        failed: list[BaseException] = []
        self._asleep, self._woken = threading.Event(), woken

        def lead() -> None:
            try:
                self._launch(request, starter, journal, seen, [])
            except BaseException as why:
                failed.append(why)

        sleeper = threading.Thread(target=lead)
        sleeper.start()
        try:
            assert self._asleep.wait(LIMIT_S)
            num_seen = len(seen)
            summary, later = self._lead_elsewhere(request, starter, journal)
            woken.set()
            sleeper.join(LIMIT_S)
        finally:
            woken.set()
            starter.end()
        return SuspendedStory(summary, later, seen[num_seen:], failed)

    def _lead_elsewhere(
        self, request: RunRequest, starter: Survivors, journal: MemoryJournal
    ) -> tuple[Summary | None, list[events.Event]]:
        """As on another machine: with a directory and a port of its own."""
        self.patch.setattr(launching, "Coordinator", mortal(0, 0, 10_000))
        own = request.run_dir.parent / "elsewhere"
        own.mkdir()
        left = left_behind(journal)
        secret = read_secret(request.run_dir / SECRET_FILE, "the secret")
        taken = replace(request, run_dir=own, left_behind=left, secret=secret)
        later: list[events.Event] = []
        launcher = Launcher(
            taken, starter, handle=later.append, warn=print, journal=journal.for_another()
        )
        address = (own / ADDRESS_FILE).read_text()
        (request.run_dir / ADDRESS_FILE).write_text(address)
        return launcher.run(), later

    def _runs(self) -> list[Path]:
        return list(self.folder.glob("twin-*"))

    def _request(self, run_dir: Path, **settings: Any) -> RunRequest:
        text = jobs.TINY.replace("CLIP_NORM", repr(LAYOUT.clip_norm))
        job = jobs.write(self.folder, "twin_job", text)
        config = config_from(
            {
                "parallel": {"pipelines": 2, "stages": 2, "microbatches": 8, "cut": [2]},
                "train": {"steps": settings.pop("steps", STEPS)},
                "workers": {"kind": "threads", "replace": 0},
                "checkpoint": {"every_steps": 4},
                **settings,
            }
        )
        run_dir.mkdir()
        return RunRequest(
            config=config,
            policies=policies_of(config),
            job=job_source(str(job), in_threads=True),
            run_dir=run_dir / "run",
            faults=[parse_fault(text) for text in FAULTS],
        )

    def _launch(
        self,
        request: RunRequest,
        starter: Survivors,
        journal: MemoryJournal,
        seen: list[events.Event],
        warned: list[str],
    ) -> Summary | None:
        """None: the coordinator has died."""
        launcher = Launcher(
            request, starter, handle=seen.append, warn=warned.append, journal=journal
        )
        try:
            return launcher.run()
        except CoordinatorDied:
            return None

    def _taken_over(self, request: RunRequest, journal: MemoryJournal) -> RunRequest:
        left = left_behind(journal)
        assert left is not None
        try:
            newest = find(request.run_dir)
        except CheckpointError:
            newest = None
        return replace(request, left_behind=left, resume=newest)


@dataclass
class SuspendedStory:
    summary: Summary | None
    events: list[events.Event]  # of the successor
    after: list[events.Event]  # of the one that slept, since then
    failed: list[BaseException]


@dataclass
class TwinStory:
    summary: Summary
    events: list[events.Event]
    ran: list[Ran]
    num_stimuli: int
    took_s: float
    warned: list[str]

    def __str__(self) -> str:
        return "\n".join(str(e) for e in self.events if not isinstance(e, events.WorkerStep))

    @property
    def took_over(self) -> bool:
        return any(isinstance(event, events.TookOver) for event in self.events)

    def done_again(self) -> list[tuple[int, int, Op]]:
        """Operations that were computed more than once, and not because their worker was killed."""
        keys = [
            ((one.step, one.attempt, part), one.worker)
            for one in self.ran
            if not one.is_again and one.op.kind is not Kind.R
            for part in _parts(one.op)
        ]
        counts = Counter(key for key, _ in keys)
        lost = {key for key, worker in keys if worker == "1.0"}
        return sorted(str(key) for key, number in counts.items() if number > 1 and key not in lost)


def _parts(op: Op) -> Iterable[Op]:
    kinds = (Kind.B, Kind.W) if op.kind is Kind.BW else (op.kind,)
    return [Op(op.stage, kind, op.microbatch) for kind in kinds]
