"""A stage that nobody holds is rebuilt: who replays it, to which version, and who holds it then.

Asked again and again while all members stand still; does whatever can be done next. Whether the
log reaches so far is found out by those who replay; if it does not, all go back instead.
"""

from collections.abc import Iterator
from pathlib import Path

from holdfast.cluster import WorkerId
from holdfast.control import membership as m
from holdfast.control.effects import Discard, Effect, Emit
from holdfast.control.joiner import Joiner
from holdfast.control.joining import Joining
from holdfast.control.plans import Plans
from holdfast.control.recovery import rests
from holdfast.control.replaying import Replaying, from_checkpoint, rebuilt
from holdfast.control.reports import Reports
from holdfast.control.restarting import Restarting
from holdfast.control.run import Run
from holdfast.control.wish import Change
from holdfast.errors import ScheduleError
from holdfast.protocol import messages
from holdfast.recovery.places import rebuilt_states

_MOST_STUCK = 2  # replays in which a wait ran out


class Rebuilding:
    def __init__(
        self,
        run: Run,
        plans: Plans,
        reports: Reports,
        joining: Joining,
        restarting: Restarting,
    ) -> None:
        self._run, self._plans, self._reports = run, plans, reports
        self._joining, self._restarting = joining, restarting
        self._replaying = Replaying(run)
        self._version: tuple[int, int] | None = None  # epoch, version to rebuild
        self._states: dict[tuple[int, int], str] = {}  # stage, version -> directory
        self._given: dict[WorkerId, int] = {}  # version of the state that a host was given
        self._reached: int | None = None  # the log ends before this step
        self._gap = ""  # why
        self._num_stuck = 0
        self.why_not = ""

    # --- may it be done? ---

    def possible(self, change: Change) -> bool:
        """Whether to rebuild what is lost; ``why_not`` says why not."""
        run = self._run
        self.why_not = ""
        if run.config.recovery.log == "none":
            return False
        groups = [self._replaying.together(stage) for stage in run.placement.lost_stages]
        if max(map(len, groups)) == run.shape.stages > 1:
            self.why_not = "no border of the lost stage is logged"
        elif self._num_stuck >= _MOST_STUCK:
            self.why_not = "the replay did not come to an end"
        elif self._target(change) is None:
            self.why_not = self._gap or "the others cannot go on from any version of the lost stage"
        return not self.why_not

    def forget(self) -> list[Effect]:
        """Training goes on, or all go back: what was rebuilt is of no use any more."""
        self._replaying.current = self._version = self._reached = None
        self._gap = ""
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

    def go_on(self, change: Change, at_s: float) -> list[Effect]:
        """Call it whenever something may have changed. All members have told."""
        self._run.logs.replay_begins()
        effects = self._find_hosts(change, at_s)
        version = self._target(change)
        if version is None or self.why_not:
            return effects
        missing = [s for s in self._run.placement.lost_stages if (s, version) not in self._states]
        if missing and version == self._run.start[1]:
            effects += self._take_checkpoint(missing, at_s)
        elif missing:
            crew = self._crew(missing[0])
            return effects + self._replaying.begin(missing, version, crew, at_s)
        return effects + self._give_states(version, at_s)

    def _take_checkpoint(self, stages: list[int], at_s: float) -> list[Effect]:
        """No step was settled since the last one: there is nothing to replay."""
        directory, version = self._run.start
        self._states |= {(stage, version): directory for stage in stages}
        return [Emit(from_checkpoint(stages, version, at_s))]

    def entering(self, change: Change) -> list[WorkerId]:
        """Hosts that have the state of every lost stage; empty: not all are there."""
        version, hosts = self._target(change), self._hosts()
        if version is None or hosts.keys() != set(self._run.placement.lost_stages):
            return []
        phase = self._run.membership.phase
        ready = [
            worker
            for worker in hosts.values()
            if phase(worker) is m.Phase.READY and self._given.get(worker) == version
        ]
        return sorted(ready) if len(ready) == len(hosts) else []

    # --- to which version? ---

    def _target(self, change: Change) -> int | None:
        """The newest from which the members can go on. Found once for each stop."""
        epoch = self._run.epoch
        if self._version is None or self._version[0] != epoch:
            found = next(self._versions(change), None)
            if found is None:
                return None
            self._version = (epoch, found)
        return self._version[1]

    def _versions(self, change: Change) -> Iterator[int]:
        _, first = self._run.start
        settled = [step for tell in change.tells.values() for step in tell.verdicts]
        newest = max(settled, default=first - 1) + 1
        for version in sorted({newest, max(first, newest - 1)}, reverse=True):
            too_far = self._reached is not None and version > self._reached
            if not too_far and version >= first and self._fits(change, version):
                yield version

    def _fits(self, change: Change, version: int) -> bool:
        """Whether the steps can be ended with the lost stages at this version."""
        run = self._run
        free = [w for w in run.membership.all_in(*m.Phase) if w not in run.stages]
        hosts = dict(zip(free, run.placement.lost_stages, strict=False))
        stages = {**run.stages, **hosts}
        tells = {worker: change.tells[worker] for worker in run.stages}
        tells |= {worker: _empty_tell(worker, run.epoch, version) for worker in hosts}
        try:
            rests(
                self._plans.problem(stages),
                stages,
                tells,
                staggered=run.settings.staggered,
                end_step=run.ending.end_step,
            )
        except ScheduleError:
            return False
        return True

    # --- who will hold it? ---

    def _hosts(self) -> dict[int, WorkerId]:
        """For each lost stage whoever is to hold it, if there is somebody."""
        hosts: dict[int, WorkerId] = {}
        lost = self._run.placement.lost_stages
        for worker, joiner in sorted(self._joining.joiners.items(), reverse=True):
            if joiner.stage in lost:
                hosts[joiner.stage] = worker
        return hosts

    def _find_hosts(self, change: Change, at_s: float) -> list[Effect]:
        run = self._run
        hosts, effects = self._hosts(), []
        coming = len(run.membership.all_in(m.Phase.STARTING))
        for worker in hosts.values():
            if self._joining.joiners[worker].awaits_state and not self.replays(worker):
                self._joining.admission.waits(worker, at_s)
        for stage in [stage for stage in run.placement.lost_stages if stage not in hosts]:
            if coming:
                coming -= 1
                continue
            own = [w for w in run.membership.missing if w.stage == stage]
            restarted = self._restarting.ask(at_s, min(own, default=None))
            effects += restarted
            if not restarted and not self._take_from_others(change, stage, at_s):
                self.why_not = f"nobody is left to hold stage {stage}"
        return effects

    def _take_from_others(self, change: Change, stage: int, at_s: float) -> bool:
        """A member of a stage that others hold too changes sides: they run its work again."""
        run = self._run
        counts = {held: len(run.placement.holders(held)) for held in run.stages.values()}
        rich = [worker for worker, held in run.stages.items() if counts[held] > 1]
        if not rich:
            return False
        worker = max(rich, key=lambda w: (counts[run.stages[w]], w))
        from_stage = run.placement.release(worker)
        change.left.append((worker, from_stage))
        change.add("move", worker)
        run.membership.handle(m.Left(worker, at_s))
        self._joining.hosts(worker, Joiner(stage, from_stage, f"nobody holds stage {stage}"))
        self._version = None  # what it had told counts no more
        return True

    def _give_states(self, version: int, at_s: float) -> list[Effect]:
        effects: list[Effect] = []
        for stage, worker in sorted(self._hosts().items()):
            if self._run.membership.phase(worker) is m.Phase.STARTING:
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
        if run.config.recovery.mode == "swift" or most == 0 or not members:
            host = self._hosts().get(stage)
            here = host is not None and run.membership.phase(host) is not m.Phase.STARTING
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


def _empty_tell(worker: WorkerId, epoch: int, version: int) -> messages.Tell:
    """What a worker tells that holds a stage at ``version`` and has done nothing since."""
    return messages.Tell(
        worker=str(worker),
        epoch=epoch,
        reduced=version,
        oldest=version,
        attempt=0,
        progress={},
        kept=[],
        verdicts={},
        kept_bytes=0,
        done=0,
        saving=0,
        commits=[],
    )
