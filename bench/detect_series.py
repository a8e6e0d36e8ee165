"""Change detection on synthetic series: ours and the published ones, on the very same series.

A series with a slowdown is positive. It is found if each of its slow stretches has an onset told
at or after its begin and before its end (plus GRACE iterations). An onset told anywhere else
makes the series a false positive, whether it has a slowdown or not. Rates: false positives over
negative series, missed over positive series; a series is right if it is neither.

Series for tuning and for testing never share a seed: see TUNING_SEED and TEST_SEED.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from detect_published import FalconBocdV, SlidingWindow
from holdfast.detection.change.changepoint import ChangeDetector
from slow_series import HEALTHY, SLOW, Series, SlowStretch, slow_series

TUNING_SEED = 0  # the settings of the detectors were chosen on series of seeds from here on ...
TEST_SEED = 1_000_000  # ... and are judged on series of seeds from here on
GRACE = 5
RELIEF_WITHIN = 40  # iterations after the end
CLEAR_LOSS = 0.2  # drops for which the delay is stated
NOISES = (0.01, 0.03, 0.10, 0.20)
NOISE_LENGTH = 1000

Figures = dict[str, Any]


class Told(Protocol):
    @property
    def onset(self) -> bool: ...


class Detector(Protocol):
    def update(self, value: float, /) -> Told | None: ...


class Candidate(NamedTuple):
    make: Callable[[], Detector]
    view: Callable[[Series], Sequence[float]]  # what of a series it is fed


def raw(series: Series) -> Sequence[float]:
    return series.times_s


def given_work(series: Series) -> Sequence[float]:
    return [math.exp(value) for value in series.residuals]


CANDIDATES = {
    "holdfast": Candidate(ChangeDetector, lambda series: series.residuals),
    "falcon_bocd_v": Candidate(FalconBocdV, raw),
    "sliding_window": Candidate(SlidingWindow, raw),
    # Not as published: with our prediction of the work divided out.
    "falcon_bocd_v_given_work": Candidate(FalconBocdV, given_work),
    "sliding_window_given_work": Candidate(SlidingWindow, given_work),
}


class Verdict(NamedTuple):
    false_onsets: tuple[int, ...]  # iterations at which they were told
    missed: tuple[SlowStretch, ...]
    delays: tuple[int, ...]  # iterations from the first slow one to the telling, both counted
    clear_delays: tuple[int, ...]  # of these, drops of CLEAR_LOSS and more
    num_reliefs: int
    num_reliefs_found: int
    relief_delays: tuple[int, ...]


def judge(detector: Detector, values: Iterable[float], slow: Sequence[SlowStretch]) -> Verdict:
    told = [(at, shift.onset) for at, v in enumerate(values) if (shift := detector.update(v))]
    onsets = [at for at, onset in told if onset]
    reliefs = [at for at, onset in told if not onset]
    found: dict[SlowStretch, int] = {}
    for stretch in slow:
        at = first_in(onsets, stretch.begin, stretch.end + GRACE, taken=found.values())
        if at is not None:
            found[stretch] = at
    ended = [stretch for stretch in slow if stretch.relieved and stretch in found]
    relief_at = {s: first_in(reliefs, s.end, s.end + RELIEF_WITHIN) for s in ended}
    delays = {stretch: at - stretch.begin + 1 for stretch, at in found.items()}
    return Verdict(
        tuple(a for a in onsets if not any(s.begin <= a < s.end + GRACE for s in slow)),
        tuple(stretch for stretch in slow if stretch not in found),
        tuple(delays.values()),
        tuple(d for s, d in delays.items() if s.loss >= CLEAR_LOSS),
        len(ended),
        sum(at is not None for at in relief_at.values()),
        tuple(at - s.end + 1 for s, at in relief_at.items() if at is not None),
    )


def first_in(times: Sequence[int], begin: int, end: int, taken: Iterable[int] = ()) -> int | None:
    taken = set(taken)
    return next((at for at in times if begin <= at < end and at not in taken), None)


@dataclass
class Score:
    num: Counter[str] = field(default_factory=Counter)  # by kind of series
    false: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    delays: list[int] = field(default_factory=list)
    clear_delays: list[int] = field(default_factory=list)
    relief_delays: list[int] = field(default_factory=list)
    num_reliefs: int = 0

    def add(self, kind: str, verdict: Verdict) -> None:
        self.num[kind] += 1
        self.false[kind] += bool(verdict.false_onsets)
        self.missed[kind] += bool(verdict.missed)
        self.wrong[kind] += bool(verdict.false_onsets or verdict.missed)
        self.delays += verdict.delays
        self.clear_delays += verdict.clear_delays
        self.relief_delays += verdict.relief_delays
        self.num_reliefs += verdict.num_reliefs

    def figures(self) -> Figures:
        num_negative = sum(self.num[kind] for kind in HEALTHY)
        num_positive = sum(self.num[kind] for kind in SLOW)
        total = num_negative + num_positive
        return {
            "accuracy": round(1 - self.wrong.total() / total, 5),
            "false_positive_rate": round(self.false.total() / max(1, num_negative), 5),
            "false_negative_rate": round(self.missed.total() / max(1, num_positive), 5),
            "median_iterations": percentile(self.clear_delays, 50),
            "p99_iterations": percentile(self.clear_delays, 99),
            "median_iterations_any_loss": percentile(self.delays, 50),
            "relief_rate": round(len(self.relief_delays) / max(1, self.num_reliefs), 5),
            "median_relief_iterations": percentile(self.relief_delays, 50),
            "series": total,
            "negatives": num_negative,
        }


def percentile(values: Sequence[float], share: float) -> float | None:
    return round(float(np.percentile(values, share)), 2) if values else None


def cell(value: float | None) -> str:
    return f"{'-' if value is None else f'{value:.4g}':>10}"


def sample(num: int, first_seed: int) -> Iterable[Series]:
    """Half of them healthy, the kinds of each half in turn."""
    kinds = list(HEALTHY), list(SLOW)
    for number in range(num):
        half = kinds[number % 2]
        yield slow_series(half[number // 2 % len(half)], first_seed + number)


def scores(num: int, first_seed: int) -> dict[str, Score]:
    found = {name: Score() for name in CANDIDATES}
    for series in sample(num, first_seed):
        for name, candidate in CANDIDATES.items():
            verdict = judge(candidate.make(), candidate.view(series), series.slow)
            found[name].add(series.kind, verdict)
    return found


# --- pure noise, and the price of an update ---


def noise_values(shape: str, noise: float, num: int, rng: np.random.Generator) -> list[float]:
    """Logs of ratios: healthy, with this coefficient of variation of the times."""
    if shape == "normal":
        times = np.maximum(0.05, 1 + rng.normal(0, noise, num))
    else:  # Student t with 3 degrees of freedom, whose deviation is the square root of 3
        times = np.maximum(0.05, 1 + rng.standard_t(3, num) * noise / math.sqrt(3))
    return [float(value) for value in np.log(times)]


def false_alarms(num_series: int, seed: int) -> Figures:
    """Onsets per 1,000 iterations of pure noise."""
    found = {}
    for shape in ("normal", "student_t3"):
        for noise in NOISES:
            rng = np.random.default_rng([seed, round(noise * 1000), shape == "normal"])
            num = 0
            for _ in range(num_series):
                values = noise_values(shape, noise, NOISE_LENGTH, rng)
                num += len(judge(ChangeDetector(), values, ()).false_onsets)
            found[f"{shape}_{noise:g}"] = round(num / num_series / NOISE_LENGTH * 1000, 4)
    return found


def update_us(num: int = 20_000) -> float:
    """Of processor time: others on the machine do not count."""
    values = noise_values("normal", 0.02, num, np.random.default_rng(0))
    detector = ChangeDetector()
    begin_s = time.process_time()
    for value in values:
        detector.update(value)
    return (time.process_time() - begin_s) / num * 1e6


# --- tables ---


def print_scores(found: dict[str, Score]) -> None:
    names = ("accuracy", "FP rate", "FN rate", "delay", "p99", "relief", "its delay")
    keys = ("accuracy", "false_positive_rate", "false_negative_rate", "median_iterations",
            "p99_iterations", "relief_rate", "median_relief_iterations")  # fmt: skip
    print(f"{'':28}" + "".join(f"{name:>10}" for name in names))
    for name, score in found.items():
        figures = score.figures()
        print(f"{name:28}" + "".join(cell(figures[key]) for key in keys))
    print(f"(delay: iterations, drops of {CLEAR_LOSS:.0%} and more)\n")
    print("Wrong series by kind (false onset / missed of how many)")
    print(f"{'':14}" + "".join(f"{name:>27}" for name in found))
    for kind in [*HEALTHY, *SLOW]:
        cells = [f"{s.false[kind]} / {s.missed[kind]} of {s.num[kind]}" for s in found.values()]
        print(f"{kind:14}" + "".join(f"{cell:>27}" for cell in cells))


def run(num: int, first_seed: int) -> Figures:
    print(f"Change detection on {num} synthetic series, seeds from {first_seed}")
    found = scores(num, first_seed)
    print_scores(found)
    alarms = false_alarms(max(2, num // 40), first_seed)
    print("\nFalse alarms per 1,000 iterations of pure noise, by coefficient of variation")
    for name, rate in alarms.items():
        print(f"  {name:18}{rate:8.4f}")
    price_us = round(update_us(), 1)
    print(f"\nAn update: {price_us} us")
    others = {name: score.figures() for name, score in found.items() if name != "holdfast"}
    return (
        found["holdfast"].figures()
        | others
        | {
            "false_alarms_per_1000": alarms,
            "update_us": price_us,
            "first_seed": first_seed,
        }
    )
