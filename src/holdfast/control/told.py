"""What the members have told, step by step: Tells turned into the facts that lineage works on.

Decides nothing: who runs what is left to the planner. Knows no lanes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isnan

from holdfast.cluster import WorkerId
from holdfast.errors import ProtocolError
from holdfast.planner.lineage import Facts, Place, Progress
from holdfast.protocol.messages import Tell

Verdict = tuple[float, float | None, bool]  # norm, scale, skip


@dataclass(frozen=True)
class Kept:
    """Boundary tensors of one step that their sender still has, by micro-batch."""

    activations: frozenset[int] = frozenset()
    gradients: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Told:
    """A Tell that was read, with the stage that its worker holds."""

    worker: WorkerId
    stage: int
    reduced: int
    oldest: int
    attempt: int
    progress: Mapping[int, Progress]
    kept: Mapping[int, Kept]  # by step
    verdicts: Mapping[int, Verdict]

    @classmethod
    def read(cls, worker: WorkerId, stage: int, tell: Tell) -> "Told":
        try:
            progress = {int(m): Progress(state) for m, state in tell.progress.items()}
            verdicts = {int(step): _verdict(*told) for step, told in tell.verdicts.items()}
            return cls(
                worker,
                stage,
                tell.reduced,
                tell.oldest,
                tell.attempt,
                progress,
                _kept(tell),
                verdicts,
            )
        except (TypeError, ValueError) as error:
            raise ProtocolError(f"worker {worker} tells what cannot be read: {error}") from error

    def can_run(self, step: int) -> bool:
        """Whether it has, or will have, the weights for operations of ``step``."""
        return self.reduced <= step or self.oldest <= step

    def facts(self, step: int, attempt: int) -> Facts:
        """What it has of ``step``. What was made in an attempt that is void is nothing."""
        if self.reduced < step or (self.reduced == step and self.attempt != attempt):
            return Facts()
        stepped, kept = self.reduced > step, self.kept.get(step, Kept())
        return Facts(
            progress={} if stepped else {self._at(m): state for m, state in self.progress.items()},
            activations=frozenset(map(self._at, kept.activations)),
            gradients=frozenset(map(self._at, kept.gradients)),
            stepped=frozenset({self.stage} if stepped else ()),
        )

    def _at(self, microbatch: int) -> Place:
        return self.stage, microbatch


def _kept(tell: Tell) -> dict[int, Kept]:
    return {
        int(step): Kept(frozenset(map(int, activations)), frozenset(map(int, gradients)))
        for step, activations, gradients in tell.kept
    }


def _verdict(norm: float, scale: float | None, skip: bool) -> Verdict:
    return float(norm), None if scale is None else float(scale), bool(skip)


def verdicts_of(everyone: Iterable[Told]) -> dict[int, Verdict]:
    """All that anyone has heard. A step's verdict is the same everywhere, or bits differ."""
    verdicts: dict[int, Verdict] = {}
    heard_by: dict[int, WorkerId] = {}
    for told in everyone:
        for step, verdict in told.verdicts.items():
            known = verdicts.setdefault(step, verdict)
            first = heard_by.setdefault(step, told.worker)
            if not _same(known, verdict):
                raise ProtocolError(
                    f"workers {first} and {told.worker} tell of different verdicts of step "
                    f"{step}: {known} and {verdict}; expected the same bits everywhere"
                )
    return dict(sorted(verdicts.items()))


def _same(one: Verdict, other: Verdict) -> bool:
    """A step may be skipped because its norm is not a number; that is the same verdict too."""
    both_nan = isnan(one[0]) and isnan(other[0])
    return one[1:] == other[1:] and (both_nan or one[0] == other[0])


def attempt_of(
    step: int, everyone: Iterable[Told], verdicts: Mapping[int, Verdict], *, staggered: bool
) -> int:
    """1 if somebody knows that the step before was taken back: then all redo ``step``."""
    told = max((one.attempt for one in everyone if one.reduced == step), default=0)
    _, scale, skip = verdicts.get(step - 1, (0.0, None, False))
    return max(told, int(staggered and (scale is not None or skip)))
