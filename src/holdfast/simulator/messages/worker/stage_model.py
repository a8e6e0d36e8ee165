"""A stage on a simulated worker: sums, kept tensors, and the life of an update.

Follows ``runtime/update/commit.py`` and ``runtime/step/ledger.py``, with numbers for tensors. Every
total and every committed state is held against an undisturbed run.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.planner.remainder.facts import PROGRESS_AFTER, MicrobatchProgress
from holdfast.protocol.records import OperationTime, VerdictRow
from holdfast.schedule.operation import Kind, Op
from holdfast.simulator.messages.reference import GOOD, StepTotal, UndisturbedRun, updated


@dataclass
class KeptNumbers:
    """Boundary tensors of one step that were sent, by micro-batch."""

    activations: dict[int, int] = field(default_factory=dict)
    gradients: dict[int, int] = field(default_factory=dict)


@dataclass
class WorkLedger:
    """What there is of the step that the sums are of, and of those before it."""

    step: int = -1
    attempt: int = 0
    num_done: int = 0
    progress: dict[int, MicrobatchProgress] = field(default_factory=dict)
    kept: dict[int, KeptNumbers] = field(default_factory=dict)
    times: dict[int, list[OperationTime]] = field(default_factory=dict)

    def begin(self, step: int, attempt: int) -> None:
        self.step, self.attempt, self.num_done = step, attempt, 0
        self.progress = {}
        self.kept.pop(step, None)

    def clear(self) -> None:
        self.begin(-1, 0)
        self.kept.clear()

    def has_begun(self, step: int, attempt: int) -> bool:
        return (self.step, self.attempt) == (step, attempt)

    def ran(self, op: Op) -> None:
        self.num_done += 1
        if op.microbatch is not None:
            self.progress[op.microbatch] = PROGRESS_AFTER[op.kind]

    def keep(self, step: int, op: Op, number: int) -> None:
        assert op.microbatch is not None
        kept = self.kept.setdefault(step, KeptNumbers())
        place = kept.activations if op.kind is Kind.F else kept.gradients
        place[op.microbatch] = number

    def release_before(self, step: int) -> None:
        for old in [kept for kept in self.kept if kept < step]:
            del self.kept[old]


@dataclass
class StepSumsModel:
    """What a step has added up here, and what it still needs for that."""

    total: int = 0
    forwards: list[int] = field(default_factory=list)  # micro-batches that count, in order
    weights: list[int] = field(default_factory=list)
    losses: dict[int, float] = field(default_factory=dict)
    inputs: dict[int, int] = field(default_factory=dict)  # of forwards that are in flight
    outputs: dict[int, int] = field(default_factory=dict)  # of the last stage
    gradients: dict[int, int] = field(default_factory=dict)  # between B and W


@dataclass(frozen=True, slots=True)
class PendingTotal:
    result: StepTotal
    is_applied: bool = False


class StageModel:
    """``violated`` is told of whatever an undisturbed run has otherwise."""

    def __init__(
        self,
        stage: int,
        version: int,
        state: int,
        reference: UndisturbedRun,
        violated: Callable[[str], None],
        *,
        keeps_old: bool,
        staggered: bool,
    ) -> None:
        self.stage, self.reduced, self.state = stage, version, state
        self._reference, self._violated = reference, violated
        self._may_keep_old, self._keeps_old, self._staggered = keeps_old, keeps_old, staggered
        self.speculates, self.is_alone = staggered, False
        self.pending: PendingTotal | None = None
        self.result: StepTotal | None = None
        self.verdicts: dict[int, VerdictRow] = {}
        self.ledger, self.sums = WorkLedger(), StepSumsModel()
        self._old: dict[int, int] = {}
        self._before: int | None = None
        self.check()

    def complain(self, what: str) -> None:
        self._violated(what)

    def check(self) -> None:
        """The state is that of an undisturbed run; of one that is being copied nothing is known."""
        if self.state and self.state != self._reference.state(self.stage, self.reduced):
            self._violated(f"stage {self.stage}: the state after {self.reduced} steps is another")

    @property
    def oldest(self) -> int:
        is_applied = self.pending is None or self.pending.is_applied
        return min([*self._old, self.reduced if is_applied else self.reduced - 1])

    @property
    def version(self) -> int:
        """Committed steps."""
        return self.reduced if self.pending is None else self.reduced - 1

    def attempt_at(self, step: int) -> int:
        before = self.verdicts.get(step - 1)
        return int(before is not None and self.voids_the_next(before))

    def voids_the_next(self, verdict: VerdictRow) -> bool:
        return self._staggered and (verdict.skip or verdict.scale is not None)

    def be_alone(self, is_alone: bool) -> None:
        self.is_alone = is_alone
        self._keeps_old = self._may_keep_old and not is_alone

    def begin_step(self, step: int, attempt: int) -> None:
        self.sums = StepSumsModel()
        self.ledger.begin(step, attempt)

    def accept(self, result: StepTotal) -> None:
        if result.step != self.reduced or self.pending is not None:
            self._violated(f"stage {self.stage}: step {result.step} is reduced in {self.reduced}")
        if result.total != self._reference.total(self.stage, result.step):
            self._violated(f"stage {self.stage}: the sum of step {result.step} is another")
        self.pending, self.result = PendingTotal(result), result
        self.reduced = result.step + 1

    def apply_speculatively(self) -> None:
        assert self.pending is not None
        result = self.pending.result
        self._before = self.state
        self._keep_old(result.step)
        self.pending = PendingTotal(result, is_applied=True)
        if not result.is_nonfinite:
            self.state = updated(self.state, result.total, GOOD)

    def commit(self, verdict: VerdictRow) -> tuple[StepTotal, bool]:
        """The step is final; also whether what was done on trust had to be taken back."""
        pending = self.pending
        assert pending is not None
        is_good = verdict.scale is None and not verdict.skip
        if pending.is_applied and not is_good:
            assert self._before is not None
            self.state = self._before
        if not (pending.is_applied and is_good):
            self._keep_old(pending.result.step)
            self.state = updated(self.state, pending.result.total, verdict)
        self.pending = None
        self.speculates = self._staggered and is_good
        self._settled(pending.result.step, verdict)
        return pending.result, pending.is_applied and not is_good

    def follow(self, result: StepTotal, verdict: VerdictRow) -> None:
        """Apply a step that others have committed."""
        if result.step != self.reduced or self.pending is not None:
            self._violated(f"stage {self.stage}: step {result.step} is followed in {self.reduced}")
        self._keep_old(result.step)
        self.state = updated(self.state, result.total, verdict)
        self.result, self.reduced = result, result.step + 1
        self._settled(result.step, verdict)

    def restart(self, version: int, state: int) -> None:
        self.pending = self.result = self._before = None
        self.reduced, self.state, self.verdicts, self._old = version, state, {}, {}
        self.check()

    def old_state(self, step: int) -> int:
        """As it was before the step."""
        found = self._old.get(step, self.state)
        if found != self._reference.state(self.stage, step):
            self._violated(f"stage {self.stage}: step {step} is run again with other weights")
        return found

    def _keep_old(self, step: int) -> None:
        if self._keeps_old:
            self._old.setdefault(step, self.state)

    def _settled(self, step: int, verdict: VerdictRow) -> None:
        self.verdicts[step] = verdict
        self.verdicts = {s: v for s, v in self.verdicts.items() if s > step - 2}
        self._before = None
        self._old = {s: old for s, old in self._old.items() if s >= step}
        if self.is_alone:
            self.result = None
        self.check()
