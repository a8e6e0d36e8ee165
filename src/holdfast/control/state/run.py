"""A run as the coordinator's parts share it: its settings, and who owns which state.

Holds no state of its own. Each part of it is changed only through its methods, in its own module;
what concerns several of them, such as a Proceed, is put together here. Decides nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.cluster import WorkerId
from holdfast.config import RunConfig
from holdfast.control.effects import ClearLogs, Effect, Send, TrimLogs
from holdfast.control.state.boundary_logs import BoundaryLogs, copiers
from holdfast.control.state.current_plan import CurrentPlan
from holdfast.control.state.ending import Ending
from holdfast.control.state.lifecycle import BEFORE_TRAINING, Lifecycle, RunPhase
from holdfast.control.state.machines import Machines
from holdfast.control.state.measured_times import MeasuredTimes
from holdfast.control.state.saved import Saved
from holdfast.control.state.settings import Settings
from holdfast.control.state.timeouts import Timeouts
from holdfast.control.state.validations import Validations, num_validated
from holdfast.control.state.workers.assignments import Assignments
from holdfast.control.state.workers.known_health import KnownHealth
from holdfast.control.state.workers.membership import Membership
from holdfast.control.state.workers.placement import Placement
from holdfast.control.state.workers.roster import Roster
from holdfast.errors import HoldfastError
from holdfast.protocol import messages
from holdfast.protocol.records import HalfDone, VerdictRow
from holdfast.schedule.operation import Shape

_LARGE = 64  # members


@dataclass(frozen=True)
class Run:
    settings: Settings
    membership: Membership
    lifecycle: Lifecycle
    machines: Machines
    placement: Placement
    roster: Roster
    assignments: Assignments
    plan: CurrentPlan
    times: MeasuredTimes
    saved: Saved
    logs: BoundaryLogs
    health: KnownHealth
    ending: Ending
    validations: Validations

    @classmethod
    def of(cls, settings: Settings) -> "Run":
        roster, saved = Roster(), Saved(settings)
        return cls(
            settings=settings,
            membership=Membership(settings.known, settings.first_stages),
            lifecycle=Lifecycle(),
            machines=Machines(settings.shape),
            placement=Placement(settings.shape.stages),
            roster=roster,
            assignments=Assignments(settings.run_id),
            plan=CurrentPlan(),
            times=MeasuredTimes(settings.config),
            saved=saved,
            logs=BoundaryLogs(settings, roster, saved.start[1]),
            health=KnownHealth(),
            ending=Ending(settings.config.train.steps),
            validations=Validations(settings),
        )

    # --- what is asked most often ---

    @property
    def config(self) -> RunConfig:
        return self.settings.config

    @property
    def shape(self) -> Shape:
        return self.settings.shape

    @property
    def first_stages(self) -> Mapping[WorkerId, int]:
        return self.settings.first_stages

    @property
    def phase(self) -> RunPhase:
        return self.lifecycle.phase

    @property
    def epoch(self) -> int:
        return self.placement.epoch

    @property
    def stages(self) -> Mapping[WorkerId, int]:
        return self.placement.stages

    @property
    def is_large(self) -> bool:
        """What is looked for at each message in a small run is looked for now and then."""
        return len(self.stages) > _LARGE

    @property
    def hellos(self) -> Mapping[WorkerId, messages.Hello]:
        return self.roster.hellos

    @property
    def timeouts(self) -> Timeouts:
        return self.times.timeouts

    @property
    def start(self) -> tuple[str, int]:
        return self.saved.start

    @property
    def advice(self) -> str:
        return self.saved.advice

    # --- the run stops ---

    def how_to_resume(self, directory: str) -> str:
        return self.settings.resume_with(directory)

    def with_advice(self, why: str) -> str:
        """And how to go on, if there is a checkpoint to go on from."""
        has_trained = self.phase not in BEFORE_TRAINING
        return self._stopped(why) if has_trained and self.start[0] else why

    def _stopped(self, why: str) -> str:
        return f"{why}; all workers were stopped. {self.advice}"

    def ended_early(self) -> HoldfastError:
        return HoldfastError(self._stopped(self.ending.reason))

    # --- what workers are told ---

    def assign(
        self, worker: WorkerId, stage: int, *, state: tuple[str, int] | None = None
    ) -> Effect:
        """``state``: where it is, and of which version; empty: it copies it, so it has none."""
        checkpoint, step = self.start if state is None else state
        message = messages.Assign(
            stage=stage,
            cut=list(self.plan.cut.layers),
            checkpoint=self.settings.name_of(checkpoint),
            first_step=step,
            beat_s=self.timeouts.beat_s,
            wait_s=self.timeouts.wait_s,
            faults=self.assignments.faults_for(worker, self.settings.faults),
            part=self.assignments.give(worker, stage),
            log=self.logs.order(stage),
        )
        return Send(worker, message)

    def begin_anew(self) -> list[Effect]:
        """All go back to ``start``: steps will be logged again that are in the logs already."""
        self.saved.begin_anew()
        self.logs.begin_anew(self.start[1])
        self.assignments.drop_parts()
        return [ClearLogs(), *self._tidy_logs(0)] if self.logs.is_on else []

    def tell_sealed(self, step: int) -> list[Effect]:
        """Whoever logs need not keep what was before it."""
        log = self.logs.order()
        if log is None:
            return []
        if self.logs.is_replaying:  # somebody reads the logs from an earlier one on
            self.logs.hold_seal(step)
            return []
        missing = tuple(self.membership.missing)
        told = [Send(w, messages.Sealed(step=step)) for w in self.membership.live]
        tidied = self._tidy_logs(step) if missing or len(self.roster.hosts) > 1 else []
        return [TrimLogs(missing, log.run, step), *told, *tidied]

    def log_keepers(self) -> dict[str, list[WorkerId]]:
        """Of each machine that may have logs: those who are there now."""
        found: dict[str, list[WorkerId]] = {host: [] for host in self.roster.hosts}
        for worker in sorted(self.membership.live):
            if worker in self.hellos:
                found[self.hellos[worker].host].append(worker)
        return found

    def _tidy_logs(self, step: int) -> list[Effect]:
        """On machines that do not see the run directory somebody there has to do it."""
        log = self.logs.order()
        assert log is not None, "without a log nothing is tidied"
        effects: list[Effect] = []
        for here in [keepers for keepers in self.log_keepers().values() if keepers]:
            gone = [str(worker) for worker in sorted(self.hellos) if worker not in here]
            tidy = messages.TidyLogs(run=log.run, step=step, gone=gone)
            effects.append(Send(here[0], tidy))
        return effects

    def proceed(
        self,
        *,
        first_step: int,
        running: Sequence[HalfDone] = (),
        verdicts: Mapping[int, VerdictRow] | None = None,
        saved: Mapping[int, int] | None = None,
    ) -> list[Effect]:
        stages = self.stages
        message = messages.Proceed(
            epoch=self.epoch,
            stages={str(worker): stage for worker, stage in sorted(stages.items())},
            addresses={str(worker): self.roster.address(worker) for worker in stages},
            running=list(running),
            schedule=self.plan.steady.schedule.dumps_relative(),
            first_step=first_step,
            end_step=self.ending.end_step,
            verdicts=dict(verdicts or {}),
            saved=dict(sorted((saved or {}).items())),
            saves=list(self.saved.rules),
            validated=self.ending.end_step if self.ending.is_early else self.validations.over,
            scored=self.validations.scored(num_validated(self.roster.traits, self.config)),
        )
        return [*self._copy_logs(), *(Send(worker, message) for worker in sorted(stages))]

    def _copy_logs(self) -> list[Effect]:
        """All hear of it: whoever did it before may not be the one any more."""
        if not self.logs.are_copied or len(self.roster.hosts) < 2:
            return []
        keepers = self.log_keepers()
        chosen = copiers(keepers)
        effects: list[Effect] = []
        for worker in sorted(self.membership.live):
            machines = [chosen[worker]] if worker in chosen else []
            copied = {
                host: [self.roster.address(one) for one in keepers[host]] for host in machines
            }
            effects.append(Send(worker, messages.CopyLogs(keepers=copied)))
        return effects
