"""Validations of the run: those that are over, what is known of the next, and what follows of it.

Sums are exactly rounded, so they do not depend on who ran which micro-batch, or when it was told.
"""

from collections.abc import Iterable, Mapping, Sequence

from holdfast.config import RunConfig
from holdfast.control.state.settings import Settings
from holdfast.protocol import messages
from holdfast.protocol.records import MicrobatchScore
from holdfast.validation import BestSoFar, Validation, judged, weighted_mean, why_stopped

NONE = -1  # before the first one


class Validations:
    def __init__(self, settings: Settings) -> None:
        self._config = settings.config.validation
        self._found: list[Validation] = []
        self._so_far = judged((), self._config)
        self._over = NONE  # the newest version whose validation nobody stands still for any more
        self._version = NONE  # that is validated now
        self._scores: dict[int, MicrobatchScore] = {}
        if settings.resume is not None:
            self.recall(settings.resume.origin.validations)

    def recall(self, found: Sequence[Validation], over: int | None = None) -> None:
        """As a checkpoint, or another coordinator, has left it."""
        self._keep(found)
        newest = found[-1].step if found else NONE
        self._over = newest if over is None else over
        self._version = newest if newest > self._over else NONE

    @property
    def found(self) -> Sequence[Validation]:
        """The oldest first."""
        return self._found

    @property
    def over(self) -> int:
        return self._over

    @property
    def version(self) -> int:
        """That is validated now, or about which all wait to be told; NONE: there is none."""
        return self._version

    def up_to(self, version: int) -> tuple[Validation, ...]:
        return tuple(one for one in self._found if one.step <= version)

    @property
    def so_far(self) -> BestSoFar:
        return self._so_far

    @property
    def best(self) -> int | None:
        """The version to keep."""
        best = self.so_far.best
        return best.step if best is not None and self._config.keep_best else None

    @property
    def why_stopped(self) -> str:
        """Empty: there is still patience."""
        return why_stopped(self._found, self._config)

    # --- the one that runs ---

    def scored(self, num_microbatches: int) -> list[int]:
        """Micro-batches of it that need not be run."""
        is_found = bool(self._found) and self._found[-1].step == self._version != NONE
        return list(range(num_microbatches)) if is_found else sorted(self._scores)

    def note(self, version: int, scores: Iterable[MicrobatchScore]) -> None:
        """Also what was told before: it is the same."""
        if version <= self._over or (self._found and version <= self._found[-1].step):
            return
        if version != self._version:
            self._version, self._scores = version, {}
        self._scores |= {one.microbatch: one for one in scores}

    def conclude(self, names: Sequence[str], num_microbatches: int) -> Validation | None:
        """As soon as all micro-batches are known; once."""
        if self._version == NONE or len(self._scores) < num_microbatches:
            return None
        scores = self._scores.values()
        one = Validation(
            self._version,
            weighted_mean([(score.loss, score.weight) for score in scores]),
            {
                name: weighted_mean([(score.metrics[place], score.weight) for score in scores])
                for place, name in enumerate(names)
            },
        )
        self._keep([*self._found, one])
        self._scores = {}
        return one

    def _keep(self, found: Sequence[Validation]) -> None:
        self._found = list(found)
        self._so_far = judged(self._found, self._config)

    def release(self) -> None:
        """Nobody need wait any more."""
        self._over, self._version = self._version, NONE

    def go_back(self, version: int) -> None:
        """What came after it will be found again."""
        self._keep(self.up_to(version))
        newest = self._found[-1].step if self._found else NONE
        self._over = min(self._over, newest)
        self._version = newest if newest > self._over else NONE
        self._scores = {}


def num_validated(traits: Mapping[str, str], config: RunConfig) -> int:
    """Micro-batches of a validation; 0: the job has none."""
    num_samples = int(traits.get(messages.VALIDATION_SAMPLES, "0"))
    number = -(-num_samples // int(traits.get(messages.MICROBATCH_SIZE, "1")))
    return min(number, config.validation.microbatches or number)


def metric_names(traits: Mapping[str, str]) -> list[str]:
    return traits.get(messages.METRICS, "").split()
