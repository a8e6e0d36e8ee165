"""What must hold in every run, looked at after each event. Says what is wrong, never why."""

import json
import re

from holdfast.baselines.registry import policies_of
from holdfast.control import effects as e
from holdfast.control.coordinator import Coordinator
from holdfast.control.state.workers.membership import JOINING, MISSING, WorkerPhase
from holdfast.control.takeover.remembering import Former, Writer
from holdfast.control.takeover.snapshot import RunSnapshot, from_record
from holdfast.faults.fault import parse_fault
from holdfast.observability import events
from holdfast.protocol import messages
from holdfast.simulator.hunt.verdicts import may_be_lost
from holdfast.simulator.messages.coordinator_host import CoordinatorHost
from holdfast.simulator.messages.prompt_planner import PromptPlanner
from holdfast.simulator.messages.virtual_run import Violation, VirtualRun, Watch
from holdfast.simulator.messages.worker.simulated_worker import SimulatedWorker

_EVERY = 5  # records: of these one is read again by a successor of its own
# Of a snapshot, what a successor must know as it was.
_SAME = (
    *("run_id", "resumed", "cut", "first", "steady", "steady_from", "planned_for", "stages"),
    *("hello_kinds", "hellos", "parts", "num_given", "fired", "joins_used", "seats", "by_hand"),
    *("left_out", "draining", "rules", "compared_from", "log", "nonfinite", "validations"),
)
_TOO_SLOW, _ENDED = "too slow", re.compile("exit code|signal|closed")
_MOVES = ("commit", "deed", "ended")
_MOST_STILL_S = 100.0  # if nobody is waited for
_HAVE_SPOKEN = ("BUILDING", "READY", "COPYING")


class Invariants(Watch):
    def __init__(self) -> None:
        self._epoch = 0
        self._generations: dict[int, int] = {}  # process -> the newest it belongs to
        self._acting = 0  # generation
        self._num_records = self._written = 0  # records, and the epoch of the newest
        self._finished: set[int] = set()
        self._has_lost = self._knows_victims = False
        self._victims: set[str] | None = None
        self._most_still_s = 0.0
        self._moved_s = 0.0  # when training went on, or something happened, for the last time
        self._looked_at: object = None
        self._here: object = None

    # --- one coordinator ---

    def leads(self, world: VirtualRun, host: CoordinatorHost) -> None:
        self._acting = host.generation
        config = world.config
        wait_s = config.workers.start_limit_s + config.machines.wait_s
        self._most_still_s = _MOST_STILL_S + (config.workers.restarts + 1) * wait_s

    def attached(self, pid: int, generation: int) -> None:
        if generation < self._generations.get(pid, 0):
            raise Violation(f"process {pid} goes back to coordinator {generation}")
        self._generations[pid] = generation

    def done(self, world: VirtualRun, host: CoordinatorHost, effect: e.Effect) -> None:
        match effect:
            case e.Send():
                self._sent(world, host, effect)
            case e.WriteDown():
                self._only_leader(host, "writes in the journal")
                self._written = effect.record["epoch"]
                self._num_records += 1
                if self._num_records % _EVERY == 0:
                    self._replays(world, from_record(effect.record))
            case e.SealCheckpoint():
                self._only_leader(host, "seals a checkpoint")

    def _only_leader(self, host: CoordinatorHost, what: str) -> None:
        if host.generation != self._acting:
            raise Violation(f"coordinator {host.generation} {what}, but {self._acting} leads")

    def _sent(self, world: VirtualRun, host: CoordinatorHost, effect: e.Send) -> None:
        line = host.here.get(effect.to)
        epoch = getattr(effect.message, "epoch", None)
        if line is None or epoch is None or host.generation != self._acting:
            return
        if epoch < self._epoch:
            raise Violation(f"{type(effect.message).__name__} of epoch {epoch} after {self._epoch}")
        self._epoch = epoch
        if epoch > self._written:
            raise Violation(f"epoch {epoch} is told before it is written down")
        if isinstance(effect.message, messages.Proceed):
            self._proceeds(host, effect.message)

    def _proceeds(self, host: CoordinatorHost, told: messages.Proceed) -> None:
        held = set(told.stages.values())
        if held != set(range(host.coordinator.run.shape.stages)):
            raise Violation(f"epoch {told.epoch} begins without a holder of each stage: {held}")
        if told.addresses.keys() != told.stages.keys():
            raise Violation(f"epoch {told.epoch}: addresses are not those of the members")

    # --- the table of members ---

    def stimulated(self, world: VirtualRun, host: CoordinatorHost) -> None:
        run = host.coordinator.run
        membership = run.membership
        looks_at = membership, membership.num_changes, len(run.stages), run.epoch
        if looks_at == self._looked_at or host.coordinator.over:
            return
        self._looked_at = looks_at
        parts = [membership.members, membership.all_in(*JOINING), membership.all_in(*MISSING)]
        everyone = [worker for part in parts for worker in part]
        if len(everyone) != run.shape.pipelines * run.shape.stages:
            raise Violation(f"members, joiners and missing are not all: {everyone}")
        if sorted(run.stages) != membership.members:
            raise Violation(f"members {membership.members} hold {sorted(run.stages)}")
        if rolling := [w for w in run.placement.rolling_back if w in membership.members]:
            raise Violation(f"{rolling} are members and go back")

    def settled(self, world: VirtualRun, host: CoordinatorHost) -> None:
        """Who is lost has no connection any more."""
        membership = host.coordinator.run.membership
        here = membership, membership.num_changes, len(host.here)
        if here == self._here or host.coordinator.over:
            return
        self._here, phase = here, membership.phase
        for worker, line in host.here.items():
            if phase(worker) in MISSING:
                raise Violation(f"worker {worker} is {phase(worker).name} and can still speak")
            hello = host.coordinator.run.hellos.get(worker)
            process = world.process_behind(line)
            if hello is not None and process is not None and process.pid != hello.pid:
                raise Violation(f"process {process.pid} speaks for {worker}, not {hello.pid}")

    # --- steps ---

    def emitted(self, world: VirtualRun, event: events.Event) -> None:
        match event:
            case events.StepFinished():
                if event.step in self._finished:
                    raise Violation(f"step {event.step} is finished twice")
                self._finished.add(event.step)
            case events.WentBack():
                self._finished = {step for step in self._finished if step < event.to_step}
            case events.WorkerLost():
                self._has_lost = True
                self._loses(world, event.worker, event.cause)
            case events.JoinFailed():
                self._fails_to_join(world, event.worker, event.reason)
            case events.MachineLost():
                self._has_lost = True
            case events.RunFinished():
                self._ended(world)

    def _fails_to_join(self, world: VirtualRun, worker: str, why: str) -> None:
        """Because its process has ended, and not because it was refused: only the words tell."""
        if _ENDED.match(why):
            self._loses(world, worker, why)

    def _loses(self, world: VirtualRun, worker: str, cause: str) -> None:
        """Whoever is well is not given up."""
        if _TOO_SLOW in cause:
            return
        if not self._knows_victims:
            self._victims, self._knows_victims = may_be_lost(world.scenario, world.config), True
        if self._victims is not None and worker not in self._victims:
            raise Violation(f"nothing has happened to {worker}, which is lost: {cause}")

    def _ended(self, world: VirtualRun) -> None:
        """Of a step that nobody told of, those who ran it are gone."""
        end = world.leader.coordinator.run.ending.end_step
        missing = sorted(set(range(end)) - self._finished)
        if missing and not self._has_lost:
            raise Violation(f"nobody was lost, and steps {missing} were never told of")

    def noted(self, at_s: float, words: tuple[str, ...]) -> None:
        if words[0] in _MOVES:
            self._moved_s = at_s
        elif at_s - self._moved_s > self._most_still_s:
            raise Violation(f"nothing has gone on for {at_s - self._moved_s:.0f} s")

    def committed(self, world: VirtualRun, worker: SimulatedWorker, step: int) -> None:
        if worker.cut_off_s is not None:
            raise Violation(
                f"worker {worker.name} commits step {step} although it was given up at "
                f"{worker.cut_off_s:.2f} s, when its lease must have been over"
            )

    # --- the journal ---

    def _replays(self, world: VirtualRun, written: RunSnapshot) -> None:
        """A successor that begins with a record would write the same."""
        if written.phase in ("FINISHED", "FAILED"):
            return
        now_s, config = world.time.now_s, world.config
        heir = Coordinator(
            config,
            "runs/x",
            None,
            policies=policies_of(config),
            planner=PromptPlanner(world.time),
            faults=[parse_fault(text) for text in world.scenario.faults],
            address="m0:1",
            run_id=written.run_id,
            former=Former(written, written.next_step, world.shelf.newest, now_s),
        )
        again = Writer(heir.run, heir.parts).snapshot()
        for name in _SAME:
            one, other = getattr(written, name), getattr(again, name)
            if json.dumps(one) != json.dumps(other):
                raise Violation(f"the journal says {name}={one}, a successor knows {other}")
        for worker, phase in written.workers.items():
            known = again.workers[worker]
            wanted = ("BUILDING", "READY") if phase in _HAVE_SPOKEN else (phase,)
            if known not in wanted:
                raise Violation(f"the journal says {worker} is {phase}, a successor: {known}")
        if again.epoch <= written.epoch:
            raise Violation(f"a successor of epoch {written.epoch} begins in {again.epoch}")


def phases_of(world: VirtualRun) -> dict[str, str]:
    """For people."""
    membership = world.leader.coordinator.run.membership
    return {str(w): membership.phase(w).name for w in membership.all_in(*WorkerPhase)}
