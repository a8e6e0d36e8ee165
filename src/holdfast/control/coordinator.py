"""What the run does next. Pure: messages in, effects out; ``server.py`` does the talking.

The door to all parts of it: what goes wrong behind it ends the run in good order.
"""

import traceback
from collections.abc import Callable, Sequence

from holdfast.cluster import WorkerId, parse_worker
from holdfast.config import RunConfig
from holdfast.control.agenda import Agenda
from holdfast.control.checks import NOTHING, Accepted
from holdfast.control.effects import Effect, Emit, SealCheckpoint, SealFailed, SealResult
from holdfast.control.finish import Finish
from holdfast.control.handlers import Handler, Handlers
from holdfast.control.machine_door import MachineDoor
from holdfast.control.parts import CoordinatorParts
from holdfast.control.plans import SomePlanner
from holdfast.control.plausible import Plausible
from holdfast.control.reconfigure.policies import OURS, Policies
from holdfast.control.state.lifecycle import BEFORE_TRAINING, RunPhase
from holdfast.control.state.run import Run
from holdfast.control.state.settings import Settings, resume_call
from holdfast.control.state.workers import membership as m
from holdfast.control.takeover.notes import Notes
from holdfast.control.takeover.regaining import Regaining
from holdfast.control.takeover.remembering import Former
from holdfast.errors import HoldfastError, Implausible
from holdfast.faults.fault import Fault
from holdfast.observability import events
from holdfast.protocol import messages
from holdfast.protocol.gathering import Beat
from holdfast.schedule.schedule import Schedule
from holdfast.storage.manifest import Checkpoint

_BULK = (messages.Heartbeat, messages.StepReport)  # nearly all that a coordinator hears
_PAUSE_S = 0.01  # in which the agents of a large run say more than one thing


class Coordinator:
    """Change it only through its public methods; each returns what is to be done."""

    def __init__(
        self,
        config: RunConfig,
        run_dir: str,
        resume: Checkpoint | None,
        *,
        policies: Policies = OURS,
        planner: SomePlanner | None = None,
        faults: Sequence[Fault] = (),
        address: str = "",
        join_with: str = "",
        resume_with: Callable[[str], str] = resume_call,
        schedule: Schedule | None = None,
        now: Callable[[], float] | None = None,
        run_id: str = "",
        accepted: Accepted = NOTHING,
        num_cores: int = 0,
        journalled: bool = False,
        former: Former | None = None,
    ) -> None:
        """``journalled``: what a successor must know is written down, as an effect.

        ``former``: take over from another coordinator, as far as it had come.
        """
        told = (join_with, accepted, resume_with, num_cores)
        given = (config, run_dir, resume, faults, address, schedule, now, run_id, *told)
        self.run = Run.of(Settings(*given))
        self.parts = CoordinatorParts(self.run, planner, policies)
        self._finish = Finish(self.run, self.parts)
        self.agenda = Agenda(self.run, self.parts, self._finish)
        self.regaining = Regaining(self.run, self.parts)
        handlers = Handlers(self.run, self.parts, self.agenda, self._finish, self.regaining)
        self._handlers, self._heartbeats = handlers.table(), handlers.heartbeats
        self.machines = MachineDoor(self.run, self.parts, self._guarded)
        self._plausible = Plausible(self.run)
        self._broken_by: dict[type, str] = {}  # kind of message -> worker
        self._notes = Notes(self.run, self.parts) if journalled else None
        if former is not None:
            self.regaining.begin(former)

    # --- what the server asks ---

    @property
    def workers(self) -> list[WorkerId]:
        """Those to be started with the run."""
        return sorted(self.run.first_stages)

    @property
    def phase(self) -> RunPhase:
        return self.run.phase

    @property
    def failure(self) -> HoldfastError | None:
        return self.run.ending.failure

    @property
    def details(self) -> str:
        return self.run.ending.details

    @property
    def over(self) -> bool:
        return self.run.lifecycle.over

    @property
    def starting(self) -> bool:
        return self.run.phase in BEFORE_TRAINING

    @property
    def pause_s(self) -> float:
        """What comes may wait so long: in a large run, while nothing is under way."""
        return _PAUSE_S if self.run.is_large and self.agenda.is_quiet else 0.0

    @property
    def understands(self) -> frozenset[type[messages.Message]]:
        """Kinds of messages that may be handed to it."""
        return frozenset(self._handlers)

    @property
    def is_gathering(self) -> bool:
        """Machines are waited for: nobody has been started."""
        wants = self.run.config.machines.count > 0
        return wants and self.starting and not self.parts.coming_machines.is_over

    def waiting_for(self) -> str:
        return self.parts.starting.waiting_for()

    def grant(self, request: messages.JoinRequest, job_sha256: str, at_s: float) -> WorkerId:
        """The place of somebody who wants to join; ConfigError if there is none for it."""
        return self.parts.joining.admission.grant(request, job_sha256, at_s)

    def accepts(self, name: str) -> bool:
        """Whether a hello under this name is welcome: nobody takes the place of the living."""
        worker, membership = parse_worker(name), self.run.membership
        free = (m.WorkerPhase.STARTING, *(() if self.starting else m.MISSING))
        return membership.knows(worker) and membership.phase(worker) in free

    def close(self) -> None:
        """Leave no thread behind."""
        self.parts.plans.close()

    # --- what happens ---

    def handle(self, message: messages.Message, at_s: float) -> list[Effect]:
        """Implausible: whoever has said this is not to be listened to any more."""
        handler = self._handlers.get(type(message))
        if handler is None:
            why = HoldfastError(f"unexpected {type(message).__name__} while {self.phase.name}")
            return self.fail(why, at_s)
        if self.over:
            return []
        self._plausible.check(message)
        # In a large run the next tick looks what is due.
        looks = not (isinstance(message, _BULK) and self.run.is_large)
        return self._guarded(lambda: self._heard(message, handler, at_s), at_s, looks=looks)

    def hear_beats(
        self, beats: Sequence[Beat], alive: Sequence[WorkerId], at_s: float
    ) -> tuple[list[Effect], list[Beat]]:
        """Those of a machine at once. Also those that are to be heard one by one, as they may be
        implausible. ``alive``: have told nothing new."""
        rest: list[Beat] = []

        def hear() -> list[Effect]:
            self._heartbeats.are_alive(alive, at_s)
            rest.extend(self._heartbeats.hear(beats, self._plausible, at_s))
            return []

        return self._guarded(hear, at_s, looks=not self.run.is_large), rest

    def _heard(self, message: messages.Message, handler: Handler, at_s: float) -> list[Effect]:
        if not self.parts.notices.hear(message, at_s):
            return []
        try:
            return handler(message, at_s)
        except HoldfastError:
            raise
        except Exception as why:
            # If others say the like and it breaks again, it is no lie of theirs but our mistake.
            kind, worker = type(message), str(getattr(message, "worker", ""))
            if self._broken_by.setdefault(kind, worker) != worker:
                raise
            raise Implausible(f"{kind.__name__} cannot be acted on: {why!r}") from why

    def lost_connection(self, worker: str, at_s: float) -> list[Effect]:
        return self._guarded(lambda: self.parts.notices.closed(parse_worker(worker), at_s), at_s)

    def tick(self, at_s: float) -> list[Effect]:
        return self._guarded(lambda: self._on_tick(at_s), at_s)

    def _on_tick(self, at_s: float) -> list[Effect]:
        self.parts.failure_detector.forgive(at_s)
        if self.starting:
            self.parts.coming_machines.tick(at_s)
            self.parts.starting.tick(at_s)
            return self.parts.leases.tick(at_s)
        if self.regaining.under_way:
            return [*self.regaining.tick(at_s), *self.parts.leases.tick(at_s)]
        if self.parts.deadline.is_over(at_s):
            raise self.run.ended_early()
        is_calm = self.agenda.is_quiet and not self.agenda.is_ending
        looked = self._look(at_s)
        return looked + self.agenda.when_quiet(at_s) if is_calm else looked

    def _look(self, at_s: float) -> list[Effect]:
        parts = self.parts
        return [
            *parts.leases.tick(at_s),
            *parts.reports.checkpoints.tick(at_s),
            *parts.lost_machines.tick(at_s),
            *parts.failure_detector.tick(at_s),
            *parts.joining.admission.seating.due(at_s),
            *parts.complaints.mend_links(at_s),
            *parts.left_out.tick(at_s),
            *parts.reconfigurations.tick(at_s),
            *parts.losses.show(at_s),
        ]

    def heard_of_seal(self, told: SealResult, at_s: float) -> list[Effect]:
        if isinstance(told, SealFailed):
            return self._seal_failed(told.seal, str(told), at_s)
        return self._sealed(told.step, at_s)

    def _sealed(self, step: int, at_s: float) -> list[Effect]:
        """A checkpoint is on disk, whole."""

        def done() -> list[Effect]:
            sealed = self.parts.reports.checkpoints.on_sealed(step)
            return [*sealed, *self.parts.recovery_policy.on_sealed(step, at_s)]

        return self._guarded(done, at_s)

    def _seal_failed(self, seal: SealCheckpoint, reason: str, at_s: float) -> list[Effect]:
        checkpoints = self.parts.reports.checkpoints
        return self._guarded(lambda: checkpoints.on_seal_failed(seal, reason, at_s), at_s)

    def interrupt(self, at_s: float) -> list[Effect]:
        """The first one ends the run at the next step, with a checkpoint; the second at once."""
        run = self.run
        if run.phase is RunPhase.TRAINING and not run.ending.is_early:
            run.ending.ask("interrupted", at_s)
            return self._guarded(lambda: [Emit(events.Interrupted(at_s=at_s))], at_s)
        return self.fail(run.ended_early(), at_s)

    def fail(self, why: HoldfastError, at_s: float, details: str = "") -> list[Effect]:
        """End the run: tell everyone, once."""
        return self._noted(self._finish.fail(why, at_s, details))

    def _guarded(
        self, act: Callable[[], list[Effect]], at_s: float, *, looks: bool = True
    ) -> list[Effect]:
        """What goes wrong ends the run; whatever happened, the next change may be due."""
        if self.over:
            return []
        effects: list[Effect] = []
        try:
            effects += act()
            if looks:
                effects += self.parts.reports.checkpoints.whole(at_s)
                effects += self.agenda.next(at_s)
        except Implausible:
            raise
        except HoldfastError as why:
            effects += self._finish.fail(why, at_s)
        except Exception as why:  # a mistake of ours must not leave workers behind
            broken = HoldfastError(f"the coordinator failed: {why!r}. {self.run.advice}")
            effects += self._finish.fail(broken, at_s, traceback.format_exc())
        return self._noted(effects)

    def _noted(self, effects: list[Effect]) -> list[Effect]:
        return effects if self._notes is None else self._notes.noted(effects)
