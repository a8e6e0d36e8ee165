"""What the coordinator knows of a run: settings, members, stages, epoch. Shared by its parts.

Holds facts and answers simple questions about them; decides nothing.
"""

import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from holdfast.cluster import WorkerId
from holdfast.config import RunConfig
from holdfast.control.checks import NOTHING, Accepted
from holdfast.control.clock import Clock
from holdfast.control.effects import ClearLogs, Effect, Send, TrimLogs
from holdfast.control.membership import Membership
from holdfast.detection.diagnosis import Health
from holdfast.errors import HoldfastError
from holdfast.faults.fault import Fault, FaultKind
from holdfast.protocol import messages
from holdfast.protocol.records import Address, HalfDone, LogOrder, SaveRule, Verdict
from holdfast.recovery.manifest import Checkpoint, part_directory, partial_directory
from holdfast.recovery.places import state_name
from holdfast.schedule.costs import Costs
from holdfast.schedule.operation import Shape
from holdfast.schedule.schedule import Schedule


def resume_command(directory: str) -> str:
    return f"holdfast train --resume {shlex.quote(directory)}"


class RunPhase(Enum):
    STARTING = auto()  # waiting for every worker's hello
    MEASURING = auto()  # one worker times the layers
    BUILDING = auto()  # workers build their stages
    TRAINING = auto()
    RETURNING = auto()  # a stage was lost: all build anew, from a checkpoint
    FINISHED = auto()
    FAILED = auto()


BEFORE_TRAINING = (RunPhase.STARTING, RunPhase.MEASURING, RunPhase.BUILDING)


HEALTHY = Health({}, {})


class Steady(NamedTuple):
    """What every whole step runs. ``period_s`` 0: unknown."""

    schedule: Schedule
    period_s: float
    reason: str


class Setting(NamedTuple):
    """What a run is given and never changes."""

    config: RunConfig
    run_dir: str
    resume: Checkpoint | None
    faults: Sequence[Fault]
    address: str  # HOST:PORT for those who want to join
    schedule: Schedule | None  # lanes of the user's own; only the workers in it are started
    now: Callable[[], float] | None  # for times that an answer takes; None: those of stimuli
    run_id: str = ""  # no other run has the same
    join_with: str = ""  # what else they have to say on the command line
    accepted: Accepted = NOTHING


@dataclass
class Run:
    setting: Setting
    shape: Shape
    membership: Membership
    first_stages: Mapping[WorkerId, int]  # of the workers that are started with the run
    phase: RunPhase = RunPhase.STARTING
    hellos: dict[WorkerId, messages.Hello] = field(default_factory=dict)
    stages: dict[WorkerId, int] = field(default_factory=dict)  # of the members
    builds: Counter[WorkerId] = field(default_factory=Counter)  # stages it has not built yet
    rebuilding: dict[WorkerId, int] = field(default_factory=dict)  # of those who go back
    epoch: int = 0
    cut: tuple[int, ...] = ()
    costs: Costs | None = None
    guessed: bool = False  # the costs are numbers of layers, not seconds
    reason: str = ""  # of the cut
    first: Steady | None = None  # for a run in which nobody is missing
    steady: Steady | None = None  # the one in use
    steady_from: int = 0  # the first whole step that runs it
    planned_for: dict[WorkerId, int] = field(default_factory=dict)  # the stages it counts on
    end_step: int = 0
    interrupted_s: float | None = None  # it is to end early, with a checkpoint
    end_reason: str = "interrupted"  # if so
    end_decided: bool = False  # the last step of an interrupted run
    gives_up_step: bool = False  # if so, before the running step where that is possible
    fired: set[str] = field(default_factory=set)  # faults, in text form
    steps_s: list[float] = field(default_factory=list)
    sealed: int | None = None  # step of the newest whole checkpoint of this run
    parts: dict[str, tuple[WorkerId, int]] = field(default_factory=dict)
    """Directories that workers write parts of checkpoints to: whose each is, and of which stage."""
    saving: set[WorkerId] = field(default_factory=set)  # those who write a part now
    stop_s: float = 0.1  # how long the last change held everyone up
    copy_s: float = 1.0  # how long the last joiner took for its copy
    saves: list[SaveRule] = field(default_factory=list)  # as in messages.SaveAt
    borders: tuple[int, ...] = ()  # that are logged; border b is the one after stage b
    log_limits: dict[int, int] = field(default_factory=dict)  # bytes, by stage
    num_assigned: int = 0
    num_histories: int = 0  # how often all went back: what was logged before is of no use then
    began: int = 0  # the step that this history starts with
    untold_seal: int | None = None  # a checkpoint of which nobody who logs has heard yet
    health: Health = HEALTHY  # who and what is slow; all others are as they should be
    rebuilds: bool = False  # a stage that nobody holds is being computed again
    _clock: tuple[int, Clock | None] = (0, None)  # the last one, and of how many steps

    @classmethod
    def of(cls, setting: Setting) -> "Run":
        parallel = setting.config.parallel
        shape = Shape(parallel.pipelines, parallel.stages, parallel.microbatches)
        known = [WorkerId(d, s) for d in range(shape.pipelines) for s in range(shape.stages)]
        first = {worker: worker.stage for worker in known}
        if setting.schedule is not None:
            first = {w: lane[-1].stage for w, lane in setting.schedule.lanes.items() if lane}
        run = cls(setting, shape, Membership(known, first), first)
        run.end_step = setting.config.train.steps
        run.began = run.start[1]
        if setting.config.recovery.log == "boundary":
            run.borders = tuple(range(shape.stages - 1))
        return run

    @property
    def config(self) -> RunConfig:
        return self.setting.config

    @property
    def staggered(self) -> bool:
        return self.config.optimizer.mode == "staggered"

    @property
    def over(self) -> bool:
        return self.phase in (RunPhase.FINISHED, RunPhase.FAILED)

    @property
    def clock(self) -> Clock:
        """Asked for many times a second; steps are few."""
        num_measured, clock = self._clock
        if clock is None or num_measured != len(self.steps_s):
            workers = self.config.workers
            clock = Clock.of(workers.silence_limit_s, workers.start_limit_s, self.steps_s)
            self._clock = (len(self.steps_s), clock)
        return clock

    def now(self, at_s: float) -> float:
        """After some work was done since ``at_s``."""
        return at_s if self.setting.now is None else self.setting.now()

    def holders(self, stage: int) -> list[WorkerId]:
        return sorted(worker for worker, held in self.stages.items() if held == stage)

    @property
    def lost_stages(self) -> list[int]:
        held = set(self.stages.values())
        return [stage for stage in range(self.shape.stages) if stage not in held]

    @property
    def start(self) -> tuple[str, int]:
        """Directory and step of the state to begin from, or to go back to."""
        if self.sealed is not None:
            directory = partial_directory(self.setting.run_dir, self.sealed).with_suffix("")
            return str(directory), self.sealed
        resume = self.setting.resume
        return (resume.directory, resume.step) if resume else ("", 0)

    def name_of(self, directory: str) -> str:
        """Of a state, as the workers are told of it."""
        return state_name(self.setting.run_dir, directory)

    @property
    def advice(self) -> str:
        """How to go on after a run that was stopped."""
        if self.sealed is not None:
            return f"Go on from the last checkpoint with: {resume_command(self.setting.run_dir)}"
        if self.setting.resume:
            command = resume_command(self.setting.resume.directory)
            return f"Go on from the same checkpoint with: {command}"
        return "No checkpoint was written yet: start again (checkpoint.every_steps sets how often)"

    def with_advice(self, why: str) -> str:
        """And how to go on, if there is a checkpoint to go on from."""
        has_trained = self.phase not in BEFORE_TRAINING
        return self._stopped(why) if has_trained and self.start[0] else why

    def _stopped(self, why: str) -> str:
        return f"{why}; all workers were stopped. {self.advice}"

    def end_early(self, why: str, at_s: float) -> None:
        """At the next step, with a checkpoint. What came first stays the reason."""
        if self.interrupted_s is None:
            self.interrupted_s, self.end_reason = at_s, why

    def ended_early(self) -> HoldfastError:
        return HoldfastError(self._stopped(self.end_reason))

    def log(self, stage: int | None = None) -> LogOrder | None:
        """As the workers are told of it; None: nothing is logged."""
        if self.config.recovery.log == "none":
            return None
        return LogOrder(
            run=f"{self.setting.run_id}.{self.num_histories}",
            began=self.began,
            workers=[str(worker) for worker in sorted(self.hellos)],
            borders=list(self.borders),
            limit_bytes=0 if stage is None else self.log_limits.get(stage, 0),
        )

    def assign(
        self, worker: WorkerId, stage: int, *, state: tuple[str, int] | None = None
    ) -> Effect:
        """``state``: where it is, and of which version; empty: it copies it, so it has none."""
        checkpoint, step = self.start if state is None else state
        self.builds[worker] += 1
        self.num_assigned += 1
        part = part_directory(stage, f"{self.setting.run_id} {self.num_assigned}")
        self.parts[part] = worker, stage
        clock = self.clock
        faults = self.setting.faults
        mine = (f for f in faults if f.concerns(worker) and f.kind is not FaultKind.JOIN)
        message = messages.Assign(
            stage=stage,
            cut=list(self.cut),
            checkpoint=self.name_of(checkpoint),
            first_step=step,
            beat_s=clock.beat_s,
            wait_s=clock.wait_s,
            faults=[str(f) for f in mine if f.lasting or str(f) not in self.fired],
            part=part,
            log=self.log(stage),
        )
        return Send(worker, message)

    def address(self, worker: WorkerId) -> Address:
        return Address(self.hellos[worker].host, self.hellos[worker].port)

    def begin_anew(self) -> list[Effect]:
        """All go back to ``start``: steps will be logged again that are in the logs already."""
        self.num_histories, self.began = self.num_histories + 1, self.start[1]
        self.parts.clear()  # what somebody still writes is of steps that will run again
        return [] if self.config.recovery.log == "none" else [ClearLogs()]

    def tell_sealed(self, step: int) -> list[Effect]:
        """Whoever logs need not keep what was before it."""
        log = self.log()
        if log is None:
            return []
        if self.rebuilds:  # somebody reads the logs from an earlier one on
            self.untold_seal = step
            return []
        gone = TrimLogs(tuple(self.membership.missing), log.run, step)
        return [gone, *(Send(w, messages.Sealed(step=step)) for w in self.membership.live)]

    def proceed(
        self,
        *,
        first_step: int,
        running: Sequence[HalfDone] = (),
        verdicts: Mapping[int, Verdict] | None = None,
        saved: Mapping[int, int] | None = None,
    ) -> list[Effect]:
        assert self.steady is not None
        message = messages.Proceed(
            epoch=self.epoch,
            stages={str(worker): stage for worker, stage in sorted(self.stages.items())},
            addresses={str(worker): self.address(worker) for worker in self.stages},
            running=list(running),
            schedule=self.steady.schedule.dumps(),
            first_step=first_step,
            end_step=self.end_step,
            verdicts=dict(verdicts or {}),
            saved=dict(sorted((saved or {}).items())),
            saves=list(self.saves),
        )
        return [Send(worker, message) for worker in sorted(self.stages)]
