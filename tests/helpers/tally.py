"""What each folder of tests takes, beside what it may take.

Counted is CPU time, of this process and of the children that have ended: a busy machine makes
tests wait, which costs none. Slow cores do cost more, so a fixed piece of work is timed every now
and then, and all is given in seconds of the machine on which the budgets were set. What is left of
the noise is far below the margins. With several test processes each counts its own.

The budgets are what the promised minutes leave: see ``predicted_s``.
"""

import os
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

# CPU seconds on the machine below, by folder: every time, and what make test-all adds.
BUDGETS = {
    "unit": (190, 60),
    "contract": (125, 100),
    "multiprocess": (215, 1250),
    "chaos": (115, 340),
    "bench": (10, 400),
}
MARGIN = 2.0  # above this multiple of its budget a folder fails the run
TOTAL_MARGIN = 1.2  # of all folders together, where the noise of each evens out
USUAL, WIDE, CLUSTER = "usual", "wide", "cluster"  # what make test-cluster runs has no budget
PROMISED_S = {USUAL: 8 * 60, WIDE: 35 * 60}  # on two quiet cores: make test, and then all
CHECK_S = 35  # make check, with nothing remembered from before
CORES = 2
USED = 0.75  # of their time is counted; the rest is waiting, collecting tests and loading torch
PROBE_S = 0.0026  # what a probe takes on the machine of the budgets
_EVERY = 40  # tests
_TESTS = Path(__file__).parents[1]


def cpu_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def probe_s() -> float:
    """A fixed piece of work; the better of two, since the first may find cold caches."""
    return min(_work_s() for _ in range(2))


def _work_s() -> float:
    start_s = time.thread_time()
    table = {number: str(number) for number in range(20_000)}
    sum(len(text) for text in table.values())
    return time.thread_time() - start_s


def predicted_s(cpu_seconds: float) -> float:
    """How long ``make test`` takes for so many CPU seconds of tests, on two quiet cores."""
    return CHECK_S + cpu_seconds / (CORES * USED)


def budget_of(kind: str, folders: Iterable[str] = BUDGETS) -> int:
    """0: there is none."""
    if kind == CLUSTER:
        return 0
    return sum(BUDGETS.get(folder, (0, 0))[kind == WIDE] for folder in folders)


def kind_of(item: pytest.Item) -> str:
    return next((kind for kind in (CLUSTER, WIDE) if item.get_closest_marker(kind)), USUAL)


class Tally:
    """A plugin. The counts of test processes are added up by the one that started them."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.tests: Counter[tuple[str, str]] = Counter()
        self.seconds: Counter[tuple[str, str]] = Counter()
        self.counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.lines: list[str] = []
        self.probes: list[float] = []
        self._start_s = time.monotonic()

    # --- counting ---

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item):
        if sum(self.tests.values()) % _EVERY == 0:
            self.probes.append(probe_s())
        before_s = cpu_s()
        try:
            return (yield)
        finally:
            key = folder_of(item.path), kind_of(item)
            self.tests[key] += 1
            self.seconds[key] += cpu_s() - before_s

    def pytest_sessionfinish(self, session):
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["tally"] = {
                "rows": [[*key, num, self.seconds[key]] for key, num in self.tests.items()],
                "counts": {name: dict(counts) for name, counts in self.counts.items()},
                "lines": self.lines,
                "probes": self.probes,
            }
        elif self.too_long():
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        """A test process has ended, or died: then nothing is known of it."""
        told = getattr(node, "workeroutput", {}).get("tally")
        if told is not None:
            for folder, kind, num, seconds in told["rows"]:
                self.tests[folder, kind] += num
                self.seconds[folder, kind] += seconds
            for name, counts in told["counts"].items():
                self.counts[name].update(counts)
            self.lines += told["lines"]
            self.probes += told["probes"]

    # --- telling ---

    @property
    def slowness(self) -> float:
        """How much longer the same work takes here than on the machine of the budgets."""
        return statistics.median(self.probes) / PROBE_S if self.probes else 1.0

    def rows(self):
        """(folder, kind, tests, seconds, budget)"""
        for key in sorted(self.tests):
            folder, kind = key
            seconds = self.seconds[key] / self.slowness
            yield folder, kind, self.tests[key], seconds, budget_of(kind, [folder])

    def totals(self):
        """(kind, tests, seconds, budget): of all folders, also of those that were not run."""
        for kind in sorted({kind for _, kind in self.tests}):
            own = [key for key in self.tests if key[1] == kind]
            seconds = sum(self.seconds[key] for key in own) / self.slowness
            yield kind, sum(self.tests[key] for key in own), seconds, budget_of(kind)

    def too_long(self) -> list[str]:
        """Sweeps take as long as they were asked to."""
        if "HOLDFAST_SWEEP" in os.environ or "HOLDFAST_SOAK" in os.environ:
            return []
        parts = [(f"tests/{row[0]} ({row[1]})", *row[3:], MARGIN) for row in self.rows()]
        parts += [(f"all tests ({row[0]})", *row[2:], TOTAL_MARGIN) for row in self.totals()]
        return [
            f"{name}: {seconds:.0f} CPU-s, more than {margin:g} x {budget} s"
            for name, seconds, budget, margin in parts
            if budget and seconds > margin * budget
        ]

    def pytest_terminal_summary(self, terminalreporter):
        write = terminalreporter.write_line
        for line in [*self.lines, *_table(self.counts)]:
            write(line)
        if sum(self.seconds.values()) > 1:
            for line in ["", *self.table()]:
                write(line)
        for line in self.too_long():
            write(f"OVER BUDGET {line}", red=True)
        if "HOLDFAST_SEED" in os.environ:
            write(f"HOLDFAST_SEED={os.environ['HOLDFAST_SEED']}")

    def table(self):
        yield f"{'folder':14}{'which':>7}{'tests':>7}{'CPU-s':>8}{'budget':>8}{'limit':>8}"
        for folder, kind, num, seconds, budget in self.rows():
            yield _line(folder, kind, num, seconds, budget, MARGIN)
        for kind, num, seconds, budget in self.totals():
            yield _line("all", kind, num, seconds, budget, TOTAL_MARGIN)
        took_s = time.monotonic() - self._start_s
        yield f"{took_s:.0f} s; this machine takes {self.slowness:.2f} s for one CPU-s"
        if {folder for folder, kind in self.tests if kind == USUAL} >= BUDGETS.keys():
            usual_s = next(seconds for kind, _, seconds, _ in self.totals() if kind == USUAL)
            yield (
                f"make test on two quiet cores: {predicted_s(usual_s):.0f} s, "
                f"promised are {PROMISED_S[USUAL]} s"
            )


def folder_of(path: Path) -> str:
    parts = path.relative_to(_TESTS).parts
    return parts[0] if len(parts) > 1 else "unit"


def _line(name, kind, num, seconds, budget, margin):
    limit = f"{margin * budget:.0f}" if budget else ""
    return f"{name:14}{kind:>7}{num:7}{seconds:8.1f}{budget or '':>8}{limit:>8}"


def _table(counts):
    words = list(dict.fromkeys(word for each in counts.values() for word in each))
    if words:
        yield f"{'':8}" + "".join(f"{word:>11}" for word in words)
    for name, each in counts.items():
        yield f"{name:8}" + "".join(f"{each[word]:11}" for word in words)
