"""What a way to recover costs while nothing happens: step times beside each other, and bytes.

All variants of a job are started and warmed up, then take turns: one runs some steps while the
others are stopped (SIGSTOP), so that drifts of the machine hit all alike. They must end with the
same parameters, bit by bit.
"""

import signal
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from failstop_run import START_LIMIT_S, Run, RunError
from groups import signal_all
from holdfast.observability.events import CheckpointSaved, RunFinished, StepFinished
from recovery_cases import PLAIN, VARIANTS, Race, Task
from recovery_run import LIMIT_S

WARM_UP_STEPS = 15  # also: until checkfreq has its profile
LAST_STEPS = 3  # after the last turn, so that it does not end by itself
SPANNING_STEPS = 2  # at the begin of a turn: part of their time was before the stop
# A stopped run must not take its own stop for a loss.
PATIENT = "workers.heartbeat_timeout_s=300"


class Cost(NamedTuple):
    """Of one variant. Bytes are sums over all workers."""

    ratios: list[float]  # its step over the plain one's, one a round
    step_s: float
    sha256: str | None
    peak_bytes: int  # resident memory
    kept_bytes: int  # boundary tensors
    log_bytes: int
    saved_bytes: int  # checkpoints
    num_steps: int

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)


class Racer(Run):
    """A run that can be stopped and continued as a whole."""

    def __init__(self, task: Task, folder: Path) -> None:
        super().__init__(task, folder)
        # What is stopped does not see that this bench is gone, even if its launcher does.
        self._guard = subprocess.Popen(
            ["sh", "-c", 'read _; kill -s KILL -- "-$0"', str(self._process.pid)],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def end(self) -> None:
        super().end()
        self._guard.kill()
        self._guard.communicate()

    def signal_all(self, number: signal.Signals) -> None:
        signal_all(self._process.pid, number)

    def stop_at(self, step: int) -> None:
        limit_s = START_LIMIT_S if self.next_step == 0 else LIMIT_S
        self.wait_for_step(step, limit_s)
        self.signal_all(signal.SIGSTOP)

    def turn_s(self, first: int, last: int) -> float:
        """Mean time of the steps first..last: what is done once in many steps counts too."""
        ends_s = {step.step: step.at_s for step in self.of(StepFinished)}
        return (ends_s[last] - ends_s[first - 1]) / (last - first + 1)


def race(which: Race, rounds: int, folder: Path) -> dict[str, Cost]:
    num_steps = WARM_UP_STEPS + rounds * which.turn_steps + LAST_STEPS
    with ExitStack() as stack:
        racers: dict[str, Racer] = {}
        for name in which.variants:
            settings = (*which.task.settings, PATIENT, "checkpoint.at_end=false", *VARIANTS[name])
            task = replace(which.task, settings=settings, steps=num_steps)
            (folder / name).mkdir()
            racer = racers[name] = Racer(task, folder / name)
            stack.callback(racer.end)
            racer.stop_at(WARM_UP_STEPS)
        turns_s = [take_turns(racers, number, which.turn_steps) for number in range(rounds)]
        ends = {name: _end(racer) for name, racer in racers.items()}
        costs = {
            name: cost_of(
                racer, ends[name], [t[name] for t in turns_s], [t[PLAIN] for t in turns_s]
            )
            for name, racer in racers.items()
        }
    for name, cost in costs.items():
        if cost.sha256 is None or cost.sha256 != costs[PLAIN].sha256:
            raise RunError(f"{which.name}, {name}: the parameters differ from the plain run's")
    return costs


def take_turns(racers: Mapping[str, Racer], number: int, turn_steps: int) -> dict[str, float]:
    """Their step times in this round, for which every second one is in reverse order."""
    begin, turns_s = WARM_UP_STEPS + number * turn_steps, {}
    for name in list(racers)[:: 1 if number % 2 == 0 else -1]:
        racers[name].signal_all(signal.SIGCONT)
        racers[name].stop_at(begin + turn_steps)
        turns_s[name] = racers[name].turn_s(begin + SPANNING_STEPS, begin + turn_steps - 1)
    return turns_s


def _end(racer: Racer) -> RunFinished:
    racer.signal_all(signal.SIGCONT)
    return racer.wait("its end", lambda: next(iter(racer.of(RunFinished)), None), LIMIT_S)


def cost_of(
    racer: Racer, end: RunFinished, turns_s: Sequence[float], plain_s: Sequence[float]
) -> Cost:
    return Cost(
        ratios=[mine / plain for mine, plain in zip(turns_s, plain_s, strict=True)],
        step_s=statistics.median(turns_s),
        sha256=end.parameters_sha256,
        peak_bytes=sum(end.peak_memory_bytes.values()),
        kept_bytes=sum(end.kept_bytes.values()),
        log_bytes=sum(end.log_bytes.values()),
        saved_bytes=_saved_bytes(racer.of(CheckpointSaved)),
        num_steps=racer.next_step,
    )


def _saved_bytes(saves: Sequence[CheckpointSaved]) -> int:
    """All are as large as one that is still there: older ones were deleted."""
    there = [Path(save.path) for save in saves if Path(save.path).exists()]
    if not there:
        return 0
    sizes = (path.stat().st_size for path in there[-1].rglob("*") if path.is_file())
    return len(saves) * sum(sizes)
