"""Deliberate bugs of the control code: each is one patch, and the hunt has to find it.

A mutant that no seed finds shows that an invariant is missing, or a kind of fault.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple
from unittest.mock import patch

from holdfast.control.decide import decision, reconfiguration
from holdfast.control.effects import Fence, WriteDown
from holdfast.control.inventory import inventory, losses, remainder
from holdfast.control.join import copies as join_copies
from holdfast.control.join import joining, starting, switching
from holdfast.control.liveness import losing
from holdfast.control.progress import checkpoints, reports
from holdfast.control.reconfigure import proceeding
from holdfast.control.restore import rollback
from holdfast.control.state import run as run_state
from holdfast.control.state import saved, timeouts
from holdfast.control.state.workers import assignments, membership, placement
from holdfast.control.takeover import notes, regaining, remembering
from holdfast.planner.remainder.facts import MicrobatchProgress
from holdfast.protocol import messages

Change = tuple[Any, str, Any]  # owner, attribute, what is there instead


class Mutant(NamedTuple):
    name: str
    kind: str  # of fencing, lineage, join, takeover or rollback
    broken: str
    changes: Callable[[], list[Change]]


@contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    with ExitStack() as stack:
        for owner, name, new in mutant.changes():
            stack.enter_context(patch.object(owner, name, new))
        yield


# --- fencing ---


def _no_fence() -> list[Change]:
    usual = losing.Losing.fenced

    def fenced(self: Any, effects: list[Any]) -> list[Any]:
        return [one for one in usual(self, effects) if not isinstance(one, Fence)]

    return [(losing.Losing, "fenced", fenced)]


def _long_lease() -> list[Change]:
    return [(timeouts.Timeouts, "lease_s", property(lambda self: 40 * self.beat_s))]


def _same_epoch() -> list[Change]:
    def next_epoch(self: Any) -> int:
        self._epoch = max(1, self._epoch)
        return int(self._epoch)

    return [(placement.Placement, "next_epoch", next_epoch)]


# --- lineage ---


def _any_weights() -> list[Change]:
    return [(remainder, "_check_weights", lambda running, everyone: None)]


def _first_attempt() -> list[Change]:
    return [(remainder, "attempt_of", lambda *given, **more: 0)]


def _no_verdicts() -> list[Change]:
    return [(remainder, "verdicts_of", lambda everyone, heard=None: {})]


def _forwarded_counts_as_summed() -> list[Change]:
    usual = inventory._state

    def state(number: int) -> MicrobatchProgress:
        found = usual(number)
        is_graded = found is MicrobatchProgress.GRADED
        return MicrobatchProgress.SUMMED if is_graded else found

    return [(inventory, "_state", state)]


def _void_work_counts() -> list[Change]:
    usual = inventory.MemberInventory.facts

    def facts(self: Any, step: int, attempt: int) -> Any:
        same = self.attempt if self.reduced == step else attempt
        return usual(self, step, same)

    return [(inventory.MemberInventory, "facts", facts)]


def _old_inventories() -> list[Change]:
    usual = reconfiguration.Reconfiguration.halt

    def halt(self: Any, at_s: float) -> None:
        kept = dict(self.inventories)
        usual(self, at_s)
        self.inventories |= kept

    return [(reconfiguration.Reconfiguration, "halt", halt)]


# --- joining ---


def _enters_far_behind() -> list[Change]:
    def members_after(inventories: Any, situation: Any) -> Any:
        return {**situation.stages, **situation.entering}

    def caught_up(self: Any, at_s: float) -> Any:
        found = sorted(self.joiners.items())
        return [worker for worker, joiner in found if joiner.version is not None]

    return [(decision, "members_after", members_after), (joining.Joining, "caught_up", caught_up)]


def _enters_with_nothing() -> list[Change]:
    usual = decision.members_after

    def members_after(inventories: Any, situation: Any) -> Any:
        ahead = {w: replace(one, reduced=10**6) for w, one in inventories.items()}
        told = {w: ahead[w] if w in situation.entering else one for w, one in inventories.items()}
        return usual(told, situation)

    return [(decision, "members_after", members_after)]


def _wrong_source() -> list[Change]:
    usual = placement.Placement.holders

    def holders(self: Any, stage: int) -> Any:
        return usual(self, (stage + 1) % self._num_stages)

    def copy(self: Any, *given: Any) -> Any:
        with patch.object(placement.Placement, "holders", holders):
            return copied(self, *given)

    copied = join_copies.Copies._copy
    return [(join_copies.Copies, "_copy", copy)]


def _adopts_apart() -> list[Change]:
    usual = switching.Switching.on_offered

    def later(number: int, effect: Any) -> Any:
        if not isinstance(getattr(effect, "message", None), messages.Adopt) or number % 2:
            return effect
        adopt = effect.message
        return replace(effect, message=replace(adopt, first_step=adopt.first_step + 1))

    def on_offered(self: Any, offered: Any, at_s: float) -> Any:
        return [later(n, one) for n, one in enumerate(usual(self, offered, at_s))]

    return [(switching.Switching, "on_offered", on_offered)]


# --- take-over ---


def _epoch_again() -> list[Change]:
    usual = placement.Placement.recall

    def recall(self: Any, epoch: int, stages: Any) -> None:
        usual(self, epoch - 1, stages)

    return [(placement.Placement, "recall", recall)]


def _writes_late() -> list[Change]:
    usual = notes.Notes.noted

    def noted(self: Any, effects: Any) -> Any:
        found = usual(self, effects)
        records = [one for one in found if isinstance(one, WriteDown)]
        return [*(one for one in found if not isinstance(one, WriteDown)), *records]

    return [(notes.Notes, "noted", noted)]


def _forgets_epochs() -> list[Change]:
    usual = remembering.Writer.key

    def key(self: Any) -> Any:
        found = usual(self)
        return (found[0], *found[2:])

    return [(remembering.Writer, "key", key)]


def _anybody_of_the_name() -> list[Change]:
    def awaits(self: Any, told: messages.Reattach) -> bool:
        from holdfast.cluster import parse_worker

        return parse_worker(told.worker) in self._away

    return [(regaining.Regaining, "awaits", awaits)]


def _does_not_wait_for_all() -> list[Change]:
    usual = regaining.Regaining._go_if_all_are_back

    def go(self: Any, at_s: float) -> Any:
        self._away = set()
        return usual(self, at_s)

    return [(regaining.Regaining, "_go_if_all_are_back", go)]


def _parts_again() -> list[Change]:
    def recall(self: Any, parts: Any, num_given: int, fired: Any) -> None:
        self._fired = set(fired)

    return [(assignments.Assignments, "recall", recall)]


def _skips_a_step() -> list[Change]:
    usual = reports.Reports.take_over

    def take_over(self: Any, first_step: int, at_s: float) -> None:
        usual(self, first_step + 1, at_s)

    return [(reports.Reports, "take_over", take_over)]


# --- going back ---


def _goes_before_all_have_built() -> list[Change]:
    usual = rollback.RollingBack._go

    def go(self: Any, at_s: float) -> Any:
        for worker in self._run.placement.rolling_back:
            if self._run.membership.phase(worker) is membership.WorkerPhase.BUILDING:
                self._run.membership.handle(membership.IsReady(worker, at_s))
            self._run.assignments._builds[worker] = 0
        return usual(self, at_s)

    return [(rollback.RollingBack, "_go", go)]


def _seals_half() -> list[Change]:
    usual = checkpoints.Checkpoints.whole

    def whole(self: Any, at_s: float, **more: Any) -> Any:
        for parts in self._parts.values():
            known = next(iter(parts.values()), None)
            for stage in range(self._run.shape.stages if known else 0):
                parts.setdefault(stage, known)
        return usual(self, at_s, **more)

    return [(checkpoints.Checkpoints, "whole", whole)]


def _unsealed_counts() -> list[Change]:
    return [
        (saved.Saved, "seals_at_once", property(lambda self: True)),
        (saved.Saved, "unseal", lambda self, step: True),
    ]


def _goes_back_in_the_same_history() -> list[Change]:
    def begin(self: Any, first_step: int, at_s: float) -> None:
        self._since_epoch = self._run.epoch
        self._last_end_s = at_s
        self.next_step = max(first_step, self.next_step)

    return [(reports.Reports, "begin", begin)]


def _keeps_work_of_the_state_before() -> list[Change]:
    usual = run_state.Run.assign

    def assign(self: Any, worker: Any, stage: int, *, state: Any = None) -> Any:
        found: Any = usual(self, worker, stage, state=state)
        is_back = state is None and found.message.first_step > 0
        step = found.message.first_step + 1 if is_back else found.message.first_step
        return replace(found, message=replace(found.message, first_step=step))

    return [(run_state.Run, "assign", assign)]


def _proceeds_without_a_stage() -> list[Change]:
    return [(placement.Placement, "lost_stages", property(lambda self: []))]


def _forgets_who_was_entered() -> list[Change]:
    usual = proceeding.Proceeding.go_on

    def go_on(self: Any, change: Any, decided: Any, at_s: float) -> Any:
        rest = replace(decided.remainder, running=decided.remainder.running[1:])
        return usual(self, change, replace(decided, remainder=rest), at_s)

    return [(proceeding.Proceeding, "go_on", go_on)]


def _tracker_counts_twice() -> list[Change]:
    def dead(self: Any, worker: Any, stage: int) -> Mapping[str, Any]:
        raise KeyError(worker)

    return [(losses.ProgressTracker, "dead", dead)]


def _starts_before_all_are_ready() -> list[Change]:
    usual = starting.Starting.on_ready

    def on_ready(self: Any, worker: Any, at_s: float) -> Any:
        run = self._run
        for other in run.membership.all_in(membership.WorkerPhase.BUILDING):
            if other != worker:
                run.membership.handle(membership.IsReady(other, at_s))
        return usual(self, worker, at_s)

    return [(starting.Starting, "on_ready", on_ready)]


MUTANTS = (
    Mutant("no-fence", "fencing", "lost workers keep their connection", _no_fence),
    Mutant("long-lease", "fencing", "a lease lasts longer than silence", _long_lease),
    Mutant("same-epoch", "fencing", "changes do not begin a new epoch", _same_epoch),
    Mutant("first-attempt", "lineage", "a step taken back is not done again", _first_attempt),
    Mutant("no-verdicts", "lineage", "verdicts heard before are forgotten", _no_verdicts),
    Mutant("graded-is-summed", "lineage", "W is left out", _forwarded_counts_as_summed),
    Mutant("any-weights", "lineage", "old operations run on new weights", _any_weights),
    Mutant("void-work", "lineage", "work of a void attempt counts", _void_work_counts),
    Mutant("inventories-kept", "lineage", "answers to an earlier stop count", _old_inventories),
    Mutant("first-rest-lost", "lineage", "a half-done step is skipped", _forgets_who_was_entered),
    Mutant("lost-work-unknown", "lineage", "nobody knows what the dead did", _tracker_counts_twice),
    Mutant("wrong-source", "join", "a joiner copies another stage", _wrong_source),
    Mutant("enters-behind", "join", "a joiner enters far behind", _enters_far_behind),
    Mutant("enters-empty", "join", "a joiner enters without a state", _enters_with_nothing),
    Mutant("adopts-apart", "join", "not all change lanes in the same step", _adopts_apart),
    Mutant(
        "starts-early", "join", "training begins before all are ready", _starts_before_all_are_ready
    ),
    Mutant("epoch-again", "takeover", "a successor uses an epoch again", _epoch_again),
    Mutant("writes-late", "takeover", "the journal is written after the deed", _writes_late),
    Mutant("epochs-unwritten", "takeover", "a new epoch is not written down", _forgets_epochs),
    Mutant("no-wait", "takeover", "a successor does not wait for workers", _does_not_wait_for_all),
    Mutant(
        "anybody", "takeover", "another process of the name is taken back", _anybody_of_the_name
    ),
    Mutant("parts-again", "takeover", "directories are given twice", _parts_again),
    Mutant("skips-a-step", "takeover", "a successor leaves out a step", _skips_a_step),
    Mutant(
        "goes-unbuilt",
        "rollback",
        "training goes on before all have built",
        _goes_before_all_have_built,
    ),
    Mutant("half-sealed", "rollback", "a checkpoint is sealed without all parts", _seals_half),
    Mutant("unsealed", "rollback", "all go back to what was never sealed", _unsealed_counts),
    Mutant(
        "same-history",
        "rollback",
        "steps that run again count as told",
        _goes_back_in_the_same_history,
    ),
    Mutant(
        "wrong-step",
        "rollback",
        "all go on one step after the checkpoint",
        _keeps_work_of_the_state_before,
    ),
    Mutant(
        "stage-forgotten",
        "rollback",
        "nobody holds a stage, and all go on",
        _proceeds_without_a_stage,
    ),
)
