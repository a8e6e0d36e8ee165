"""A whole run in this process whose coordinator dies at a given stimulus; its workers do not.

Workers are threads, connected by real sockets. Then another launcher takes over, as one of another
process would: it knows the run directory and the journal, which is a file there or in etcd.
"""

import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from helpers import jobs
from helpers.etcd_fake import REFUSED, FakeEtcd
from helpers.live import wait_until
from helpers.sweeps.chaos import LAYOUTS, Executions, Ran
from helpers.sweeps.mortal import CoordinatorDied, LastEffect, Life, Switch, mortal
from holdfast.api.job_source import job_source
from holdfast.auth.secret import SECRET_FILE, read_secret
from holdfast.baselines.registry import policies_of
from holdfast.baselines.worker_registry import keeping_of
from holdfast.config import config_from
from holdfast.control.effects import Effect
from holdfast.control.io import launcher as launching
from holdfast.control.io.launcher import Launcher, RunRequest
from holdfast.control.io.recorder import RunRecorder
from holdfast.control.io.succession.run_journal import left_behind
from holdfast.control.journal.base import Journal
from holdfast.control.journal.opening import open_journal
from holdfast.control.takeover import regaining
from holdfast.errors import CheckpointError
from holdfast.faults.fault import Fault, parse_fault
from holdfast.faults.injection import ThreadActions
from holdfast.observability import events
from holdfast.observability.summary import Summary
from holdfast.protocol.spec import ADDRESS_FILE
from holdfast.runtime.worker.threads import WorkerThreads
from holdfast.schedule.operation import Kind, Op
from holdfast.storage.stores import find

STEPS = 14
LAYOUT = LAYOUTS["2x2"]
KILLED = {"1.0": 2}  # worker -> step, counted from 0; faults count from 1
FAULTS = ("kill 1.0 @ 3.B1", "join 1.0 @ 4")
SWITCH_FROM = 6  # step
LIMIT_S, END_LIMIT_S = 150.0, 60.0
REGAIN_LIMIT_S = 5.0  # for threads that have died nobody speaks, as an agent would
LEASE_S = 20.0  # it never runs out by itself
SHORT_LEASE_S = 2.0  # it does
LONG: dict[str, Any] = {  # at least 18 s
    "steps": 110,
    "device": {"emulate": "F=12ms,B=12ms,W=12ms"},
}


class Survivors(WorkerThreads):
    """Threads that outlive a launcher."""

    def stop(self) -> None:
        pass

    def stayed(self) -> list[str]:
        """Who does not end by itself, soon after the run."""
        for thread in self._threads:
            thread.join(END_LIMIT_S)
        return [thread.name for thread in self._threads if thread.is_alive()]

    def end(self) -> None:
        super().stop()


@dataclass(frozen=True)
class Fate:
    """What is to happen in a run. ``lives``: of its coordinators, in turn; the last one lives."""

    lives: tuple[Life, ...] = ()
    away_s: float = 0.0  # until somebody takes over
    more_faults: Mapping[str, str] = field(default_factory=dict)  # worker -> where it is killed


UNDISTURBED = Fate()


@dataclass
class Twin:
    """``etcd``: where the journals of its runs are kept; empty: in their directories.

    ``fake``: the stand-in that is there, if it is one. Then whoever dies leaves its lease behind.
    """

    folder: Path
    patch: Any
    executions: Executions
    etcd: str = ""
    fake: FakeEtcd | None = None
    text: str = jobs.TINY  # of its job
    _killed_s: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        perform, act = RunRecorder.perform, ThreadActions.act

        def mortal_perform(recorder: RunRecorder, effect: Effect) -> None:
            if isinstance(effect, LastEffect):
                effect.end()
            else:
                perform(recorder, effect)

        def noted_act(actions: ThreadActions, fault: Fault, *more: Any) -> None:
            self._killed_s[str(fault.worker)] = time.monotonic()
            act(actions, fault, *more)

        self.patch.setattr(regaining, "REGAIN_LIMIT_S", REGAIN_LIMIT_S)
        self.patch.setattr(RunRecorder, "perform", mortal_perform)
        self.patch.setattr(ThreadActions, "act", noted_act)

    def run(self, fate: Fate = UNDISTURBED, **settings: Any) -> "TwinStory":
        """With a take-over after each death."""
        starter, switch = Survivors(keeping_of), Switch(SWITCH_FROM)
        request = self._request(fate, **settings)
        story = TwinStory([*fate.lives], {**KILLED, **_killed_by(fate)})
        self.executions.ran, self._killed_s = story.ran, {}
        began_s = time.monotonic()
        try:
            for life in (*fate.lives, Life(0, "")):
                self._lead_by(life, switch)
                story.summary = self._launch(request, starter, story)
                if story.summary is not None:
                    story.stayed = starter.stayed()
                    break
                story.died_s.append(time.monotonic())
                self._let_all_speak()
                if not story.ran and not self._records(request):
                    break  # it had not begun: nobody has done anything
                time.sleep(fate.away_s)
                request = self._taken_over(request)
        finally:
            starter.end()
        story.killed_s, story.took_s = self._killed_s, time.monotonic() - began_s
        return story

    def _lead_by(self, life: Life, switch: Switch) -> None:
        end = life.end

        def end_cut_off() -> None:
            self._cut_off()
            end()

        life.end = end_cut_off
        self.patch.setattr(launching, "Coordinator", mortal(life, switch))

    def _launch(
        self, request: RunRequest, starter: Survivors, story: "TwinStory"
    ) -> Summary | None:
        """None: the coordinator has died."""
        try:
            launcher = Launcher(
                request, starter, handle=story.seen.append, warn=story.warned.append
            )
            return launcher.run()
        except CoordinatorDied:
            return None

    def _taken_over(self, request: RunRequest) -> RunRequest:
        self._let_leases_run_out()
        with self._journal(request) as journal:
            left = left_behind(journal)
        assert left is not None
        try:
            newest = find(request.run_dir)
        except CheckpointError:
            newest = None
        return replace(request, left_behind=left, resume=newest)

    def _records(self, request: RunRequest) -> list[Any]:
        with self._journal(request) as journal:
            return journal.records()

    def _journal(self, request: RunRequest) -> AbstractContextManager[Journal]:
        return closing(open_journal(request.config.control.journal, request.run_dir, LEASE_S))

    # --- cut off from etcd alone ---

    def run_cut_off(self, way: "Way") -> "SuspendedStory":
        """The first coordinator reaches its workers as ever, and has nothing to write down. Another
        one takes over when its lease has run out."""
        starter, switch = Survivors(keeping_of), Switch(LONG["steps"])
        self._lead_by(Life(0, ""), switch)
        control = {"journal": f"{way.address}/cut-off", "lease_s": SHORT_LEASE_S}
        checkpoint = {"every_steps": 0, "first_step": 0, "at_end": False}
        request = self._request(UNDISTURBED, (), control=control, checkpoint=checkpoint, **LONG)
        first = TwinStory([], {})
        failed: list[BaseException] = []
        leading = threading.Thread(target=self._lead_on, args=(request, starter, first, failed))
        leading.start()
        try:
            wait_until(lambda: _has_trained(first.seen), "a step is finished")
            way.is_cut = True
            time.sleep(2 * SHORT_LEASE_S)
            num_seen = len(first.seen)
            config = request.config
            there = replace(config.control, journal=f"{self.etcd}/cut-off")
            elsewhere = replace(request, config=replace(config, control=there))
            later = self._lead_elsewhere(elsewhere, starter, switch)
            way.is_cut = False
            leading.join(LIMIT_S)
        finally:
            way.is_cut = False
            starter.end()
        stays = not leading.is_alive()
        life = Life(0, "")
        return SuspendedStory(later.summary, life, later.seen, first.seen[num_seen:], failed, stays)

    def _lead_on(
        self,
        request: RunRequest,
        starter: Survivors,
        story: "TwinStory",
        failed: list[BaseException],
    ) -> None:
        try:
            self._launch(request, starter, story)
        except BaseException as why:
            failed.append(why)

    # --- asleep ---

    def run_suspended(self, sleeps_at: int, seed: str) -> "SuspendedStory":
        """It stands still in the midst of something, while another one takes over, and wakes when
        that one has ended the run."""
        starter, switch = Survivors(keeping_of), Switch(SWITCH_FROM)
        asleep, woken = threading.Event(), threading.Event()

        def sleep() -> None:
            asleep.set()
            woken.wait(LIMIT_S)

        life = Life(sleeps_at, seed, end=sleep)
        self._lead_by(life, switch)
        request = self._request(UNDISTURBED)
        slept = TwinStory([life], KILLED)
        failed: list[BaseException] = []

        sleeper = threading.Thread(target=self._lead_on, args=(request, starter, slept, failed))
        sleeper.start()
        try:
            assert asleep.wait(LIMIT_S), (life, failed, slept.seen)
            self._put_to_sleep()
            num_seen = len(slept.seen)
            later = self._lead_elsewhere(request, starter, switch)
            kept = self._kept(request)
            woken.set()
            sleeper.join(LIMIT_S)
            stays = kept == self._kept(request) and not sleeper.is_alive()
        finally:
            woken.set()
            starter.end()
            self._let_all_speak()
        return SuspendedStory(later.summary, life, later.seen, slept.seen[num_seen:], failed, stays)

    def _lead_elsewhere(
        self, request: RunRequest, starter: Survivors, switch: Switch
    ) -> "TwinStory":
        """As on another machine: with a directory and a port of its own."""
        self._lead_by(Life(0, ""), switch)
        own = request.run_dir.parent / "elsewhere"
        own.mkdir()
        taken = self._taken_over(request)
        secret = read_secret(request.run_dir / SECRET_FILE, "the secret")
        taken, later = replace(taken, run_dir=own, secret=secret), TwinStory([], KILLED)
        launcher = Launcher(taken, starter, handle=later.seen.append, warn=print)
        address = (own / ADDRESS_FILE).read_text()
        (request.run_dir / ADDRESS_FILE).write_text(address)
        later.summary = launcher.run()
        return later

    def _kept(self, request: RunRequest) -> tuple[list[Any], list[Path]]:
        """What counts for whoever comes next: records, and whole checkpoints."""
        manifests = request.run_dir.parent.rglob("manifest.json")
        return self._records(request), sorted(manifests)

    # --- the stand-in for etcd ---

    def _cut_off(self) -> None:
        """A process that is gone asks nothing."""
        if self.fake is not None:
            self.fake.fault = lambda *_: REFUSED

    def _put_to_sleep(self) -> None:
        """It renews nothing; who comes after it does."""
        if self.fake is not None:
            self.fake.put_to_sleep()
            self.fake.fault = lambda *_: ""

    def _let_all_speak(self) -> None:
        if self.fake is not None:
            self.fake.asleep, self.fake.fault = frozenset(), lambda *_: ""

    def _let_leases_run_out(self) -> None:
        if self.fake is not None:
            self.fake.ahead_s += 2 * LEASE_S

    def _request(self, fate: Fate, faults: Sequence[str] = FAULTS, **settings: Any) -> RunRequest:
        text = self.text.replace("CLIP_NORM", repr(LAYOUT.clip_norm))
        job = jobs.write(self.folder, "twin_job", text)
        number = len(list(self.folder.glob("twin-*")))
        run_dir = self.folder / f"twin-{number}"
        run_dir.mkdir()
        journal = f"{self.etcd}/{self.folder.name}-{number}" if self.etcd else ""
        config = config_from(
            {
                "parallel": {"pipelines": 2, "stages": 2, "microbatches": 8, "cut": [2]},
                "train": {"steps": settings.pop("steps", STEPS)},
                "workers": {"kind": "threads", "replace": 0},
                "checkpoint": {"every_steps": 4},
                "control": {"journal": journal, "lease_s": LEASE_S},
                **settings,
            }
        )
        more = [f"kill {worker} @ {where}" for worker, where in fate.more_faults.items()]
        return RunRequest(
            config=config,
            policies=policies_of(config),
            job=job_source(str(job), in_threads=True),
            run_dir=run_dir / "run",
            faults=[parse_fault(text) for text in (*faults, *more)],
        )


def _has_trained(seen: Iterable[events.Event]) -> bool:
    return any(isinstance(event, events.StepFinished) for event in list(seen))


def _killed_by(fate: Fate) -> dict[str, int]:
    return {worker: int(where.split(".")[0]) - 1 for worker, where in fate.more_faults.items()}


@dataclass
class Way:
    """To the stand-in for etcd, for one who may lose it."""

    address: str = ""
    is_cut: bool = False


@dataclass
class SuspendedStory:
    summary: Summary | None
    life: Life
    seen: list[events.Event]  # of the successor
    after: list[events.Event]  # of the one that slept, since then
    failed: list[BaseException]
    stays: bool  # journal and checkpoints are as the successor has left them


@dataclass
class TwinStory:
    lives: list[Life]
    killed: Mapping[str, int]  # worker -> step
    summary: Summary | None = None
    seen: list[events.Event] = field(default_factory=list)
    ran: list[Ran] = field(default_factory=list)
    warned: list[str] = field(default_factory=list)
    stayed: list[str] = field(default_factory=list)  # workers, after the run
    died_s: list[float] = field(default_factory=list)  # coordinators
    killed_s: Mapping[str, float] = field(default_factory=dict)  # workers
    took_s: float = 0.0

    def __str__(self) -> str:
        shown = [e for e in self.seen if not isinstance(e, events.WorkerStep)]
        return "\n".join(map(str, [*self.lives, *self.warned, *shown]))

    @property
    def taken_over_s(self) -> list[float]:
        return [event.at_s for event in self.seen if isinstance(event, events.TookOver)]

    def done_again(self) -> list[str]:
        """Operations that were computed more than once, and not because their worker was killed."""
        keys = [
            ((one.step, one.attempt, part), one.worker)
            for one in self.ran
            if not one.is_again and one.op.kind is not Kind.R
            for part in _parts(one.op)
        ]
        counts = Counter(key for key, _ in keys)
        lost = {key for key, worker in keys if key[0] <= self.killed.get(worker, -1)}
        return sorted(str(key) for key, number in counts.items() if number > 1 and key not in lost)


def _parts(op: Op) -> Iterable[Op]:
    kinds = (Kind.B, Kind.W) if op.kind is Kind.BW else (op.kind,)
    return [Op(op.stage, kind, op.microbatch) for kind in kinds]
