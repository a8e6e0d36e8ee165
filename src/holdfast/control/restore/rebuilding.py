"""A stage that nobody holds is rebuilt: who replays it, to which version, and who holds it then.

Asked again and again while all members stand still; does whatever can be done next. Whether the
log reaches so far is found out by those who replay; if it does not, all go back instead.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.cluster import WorkerId
from holdfast.control.decide.decision import LogFacts, Rebuild, newest_version
from holdfast.control.decide.reconfiguration import Reconfiguration
from holdfast.control.decide.situation import Situations
from holdfast.control.effects import Discard, Effect, Emit
from holdfast.control.join.joiner import Joiner
from holdfast.control.join.joining import Joining
from holdfast.control.join.restarting import Restarting
from holdfast.control.progress.reports import Reports
from holdfast.control.recovery_rules import RecoveryRules
from holdfast.control.restore.replaying import Replaying, from_checkpoint, rebuilt
from holdfast.control.state.run import Run
from holdfast.control.state.workers import membership as m
from holdfast.protocol import messages
from holdfast.storage.run_paths import rebuilt_states


@dataclass(frozen=True, slots=True)
class Waits:
    """Somebody is on the way, or a replay is under way: asked again when that has changed."""

    effects: list[Effect]


@dataclass(frozen=True, slots=True)
class HostsReady:
    """Every lost stage has a host with its state: they can become members."""

    effects: list[Effect]
    hosts: tuple[WorkerId, ...]


@dataclass(frozen=True, slots=True)
class CannotRebuild:
    effects: list[Effect]
    reason: str


RebuildStep = Waits | HostsReady | CannotRebuild


class Rebuilding:
    def __init__(
        self,
        run: Run,
        situations: Situations,
        reports: Reports,
        joining: Joining,
        restarting: Restarting,
        policy: RecoveryRules,
    ) -> None:
        self._run, self._situations, self._reports = run, situations, reports
        self._joining, self._restarting, self._policy = joining, restarting, policy
        self._replaying = Replaying(run)
        self._version: tuple[int, int] | None = None  # epoch, version to rebuild
        self._states: dict[tuple[int, int], str] = {}  # stage, version -> directory
        self._given: dict[WorkerId, int] = {}  # version of the state that a host was given
        self._reached: int | None = None  # the log ends before this step
        self._gap = ""  # why
        self._num_stuck = 0

    def facts(self) -> LogFacts | None:
        """For the decision whether to rebuild what is lost; None: nothing is logged."""
        run = self._run
        if not run.logs.is_on:
            return None
        groups = [self._replaying.together(stage) for stage in run.placement.lost_stages]
        chosen = self._version if self._version and self._version[0] == run.epoch else None
        return LogFacts(
            start=run.start[1],
            has_boundary=not max(map(len, groups), default=0) == run.shape.stages > 1,
            num_stuck=self._num_stuck,
            reached=self._reached,
            gap=self._gap,
            chosen=None if chosen is None else chosen[1],
        )

    def forget(self) -> list[Effect]:
        """Training goes on, or all go back: what was rebuilt is of no use any more."""
        self._replaying.forget()
        self._version, self._reached, self._gap = None, None, ""
        ours = rebuilt_states(self._run.settings.run_dir)  # and no checkpoint
        folders = sorted({f for f in self._states.values() if Path(f).parent == ours})
        self._states.clear()
        self._given.clear()
        self._num_stuck = 0
        self._run.logs.replay_ends()
        sealed = self._run.logs.take_held_seal()
        trimmed = [] if sealed is None else self._run.tell_sealed(sealed)
        return [*(Discard(folder) for folder in folders), *trimmed]

    def free_hosts(self, at_s: float) -> list[Effect]:
        """It cannot be done: those who wait for a state are given an empty stage, as any joiner."""
        self._run.logs.replay_ends()
        return self._joining.free_hosts(at_s)

    # --- what can be done next ---

    def go_on(self, change: Reconfiguration, decision: Rebuild, at_s: float) -> RebuildStep:
        """Call it whenever something may have changed. All members have told."""
        self._run.logs.replay_begins()
        self._version = (self._run.epoch, decision.version)
        effects, nobody = self._find_hosts(change, at_s)
        if nobody:
            return CannotRebuild(effects, nobody)
        version = self._target(change)
        if version is None:
            return Waits(effects)
        effects += self._bring_to(version, at_s)
        hosts = self._ready_hosts(version)
        return HostsReady(effects, hosts) if hosts else Waits(effects)

    def _bring_to(self, version: int, at_s: float) -> list[Effect]:
        """A replay of what is missing; if nothing is, the hosts are given their states."""
        lost = self._run.placement.lost_stages
        missing = [stage for stage in lost if (stage, version) not in self._states]
        if missing and version != self._run.start[1]:
            return self._replaying.begin(missing, version, self._crew(missing[0]), at_s)
        taken = self._take_checkpoint(missing, at_s) if missing else []
        return taken + self._give_states(version, at_s)

    def _take_checkpoint(self, stages: list[int], at_s: float) -> list[Effect]:
        """No step was committed since the last one: there is nothing to replay."""
        directory, version = self._run.start
        self._states |= {(stage, version): directory for stage in stages}
        return [Emit(from_checkpoint(stages, version, at_s))]

    def _ready_hosts(self, version: int) -> tuple[WorkerId, ...]:
        """Hosts that have the state of every lost stage; empty: not all are there."""
        hosts = self._hosts()
        if hosts.keys() != set(self._run.placement.lost_stages):
            return ()
        phase = self._run.membership.phase
        ready = [
            worker
            for worker in hosts.values()
            if phase(worker) is m.WorkerPhase.READY and self._given.get(worker) == version
        ]
        return tuple(sorted(ready)) if len(ready) == len(hosts) else ()

    def _target(self, change: Reconfiguration) -> int | None:
        """The version of the decision, unless somebody has changed sides since."""
        logs = self.facts()
        assert logs is not None, "without a log nothing is rebuilt"
        found = newest_version(change.inventories, self._situations.of(change, logs), logs)
        if found is not None:
            self._version = (self._run.epoch, found)
        return found

    # --- who will hold it? ---

    def _hosts(self) -> dict[int, WorkerId]:
        """For each lost stage whoever is to hold it, if there is somebody."""
        hosts: dict[int, WorkerId] = {}
        lost = self._run.placement.lost_stages
        for worker, joiner in sorted(self._joining.joiners.items(), reverse=True):
            if joiner.stage in lost:
                hosts[joiner.stage] = worker
        return hosts

    def _find_hosts(self, change: Reconfiguration, at_s: float) -> tuple[list[Effect], str]:
        """What is done to find some, and for which stage there is nobody; empty: for none."""
        run = self._run
        hosts, effects, nobody = self._hosts(), list[Effect](), ""
        coming = run.membership.all_in(m.WorkerPhase.STARTING)
        for worker in hosts.values():
            if self._joining.joiners[worker].awaits_state and not self.replays(worker):
                self._joining.admission.waits(worker, at_s)
        for stage in [stage for stage in run.placement.lost_stages if stage not in hosts]:
            if self._lacks_room(coming, at_s) and self._take_from_others(change, stage, at_s):
                continue
            if coming:
                coming = coming[1:]
                continue
            own = [w for w in run.membership.missing if w.stage == stage]
            restarted = self._restarting.ask(at_s, min(own, default=None))
            effects += restarted
            if not restarted and not self._take_from_others(change, stage, at_s):
                nobody = f"nobody is left to hold stage {stage}"
        return effects, nobody

    def _lacks_room(self, coming: Sequence[WorkerId], at_s: float) -> bool:
        """No machine has room for one more, and whoever is to come waits for one."""
        seating = self._joining.admission.seating
        if not all(seating.waits(worker, at_s) for worker in coming):
            return False
        return not any(map(seating.has_room, self._run.membership.missing))

    def _take_from_others(self, change: Reconfiguration, stage: int, at_s: float) -> bool:
        """A member of a stage that others hold too changes sides: they run its work again."""
        run = self._run
        counts = {held: len(run.placement.holders(held)) for held in run.stages.values()}
        rich = [worker for worker, held in run.stages.items() if counts[held] > 1]
        if not rich:
            return False
        worker = max(rich, key=lambda w: (counts[run.stages[w]], w))
        from_stage = run.placement.release(worker)
        change.give_up_stage(worker, from_stage)
        run.membership.handle(m.Left(worker, at_s))
        self._joining.hosts(worker, Joiner(stage, from_stage, f"nobody holds stage {stage}"))
        self._version = None  # what it had told counts no more
        return True

    def _give_states(self, version: int, at_s: float) -> list[Effect]:
        effects: list[Effect] = []
        for stage, worker in sorted(self._hosts().items()):
            if self._run.membership.phase(worker) is m.WorkerPhase.STARTING:
                continue
            if self._given.get(worker) != version:
                self._given[worker] = version
                self._joining.admission.waits(worker, at_s)
                effects += self._joining.stands_by(worker)
                self._run.membership.handle(m.Assigned(worker, at_s))
                state = (self._states[stage, version], version)
                effects.append(self._run.assign(worker, stage, state=state))
        return effects

    def lost(self, worker: WorkerId) -> bool:
        """A host is gone. Whether it was one of a crew: then a replay must begin anew."""
        self._given.pop(worker, None)
        return self._replaying.lost(worker)

    @property
    def crew(self) -> tuple[WorkerId, ...]:
        """Those who replay."""
        replay = self._replaying.current
        return () if replay is None else replay.crew

    def guests(self) -> list[WorkerId]:
        """Those who replay and are no members."""
        live = set(self._run.membership.live) - self._run.stages.keys()
        return [worker for worker in self.crew if worker in live]

    # --- the replay ---

    def _crew(self, stage: int) -> tuple[WorkerId, ...]:
        run, most = self._run, self._run.config.recovery.helpers
        members = sorted(run.stages)
        if self._policy.replays_alone or most == 0 or not members:
            host = self._hosts().get(stage)
            here = host is not None and run.membership.phase(host) is not m.WorkerPhase.STARTING
            return (host,) if host is not None and here else ()
        return tuple(members if most < 0 else members[:most])

    def replays(self, worker: WorkerId) -> bool:
        return self._replaying.takes_part(worker)

    def on_replayed(self, replayed: messages.Replayed, at_s: float) -> list[Effect]:
        self._reports.note_losses(replayed.losses)
        replay = self._replaying.note(replayed)
        if replay is None:
            return []
        for stage in replay.lost:
            self._states[stage, replay.version] = replay.into
        return [Emit(rebuilt(replay, at_s))]

    def on_failed(self, failed: messages.ReplayFailed) -> bool:
        """Whether it is news: then all must be asked anew what they have."""
        if not self._replaying.failed(failed):
            return False
        self._version = None
        known = failed.reached if self._reached is None else self._reached
        self._reached, self._gap = min(known, failed.reached), failed.reason
        return True

    def note_stuck(self) -> bool:
        """A wait ran out. Whether it was in a replay."""
        self._num_stuck += self._replaying.current is not None
        return self._replaying.current is not None
