"""Is the right one named? Whole runs with injected slowness, which is told but left as it is.

Coordinator, executor, detection, injection and benchmarks are the real ones; devices are emulated
(operations sleep), workers are threads of one process, the transport is in memory, and noise is
what this machine adds. No ragged work: an emulated operation takes its time whatever its input.
Threads share one interpreter: operations are longer the more workers there are.

Must be told: a worker slower by 15 % or a link by half an operation, 8 steps in a row. May be told:
who is less slow, or for 2 to 7 steps, or in every other one of at least 5. Nobody else may, so
also no single slow steps ("dips").
Right: all are told that must be, before they are healthy again (plus GRACE steps), and nobody is
who may not. Imbalance of model or data is no slowness; "slow machine" is wrong, as none is.
Somebody who is told again before it was told to be over is not accused anew.
A run that fails is neither right nor localised; the other rates are of those that ended well.

    .venv/bin/python bench/detect_runs.py [--runs 300] [--processes 2] [--op-ms 4] [--tuning]
"""

import argparse
import io
import json
import math
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from itertools import groupby
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.detection.diagnosis import Cause
from holdfast.faults.fault import Fault, parse_fault
from holdfast.faults.slowdowns import Mix, slowdowns
from holdfast.host import instruction_set
from holdfast.observability.events import Diagnosed, Event, FaultFired, SlownessOver, WorkerStep
from holdfast.observability.log import EVENTS_FILE, read_events

TEST_SEED = 2_000_000  # nothing was tuned on runs of seeds from here on ...
TUNING_SEED = 4_000_000  # ... and whoever looks for a better detector uses these
SEEDS_A_RUN = 1000
NUM_RUNS, NUM_QUICK, NUM_PROCESSES = 300, 6, 2
STEPS, FIRST_FAULT, WARM_UP_STEPS = 60, 16, 2  # healthy times are learnt before the first fault
STUDY_S = 36.0  # of the published study, for which a step stands
RATE = 0.03  # chance a step that something becomes slow
OP_MS, PER_PIPELINE = 8.0, 4  # of four workers
LEAST_FACTOR, LEAST_DELAY, LEAST_STEPS = 1.15, 0.5, 8  # delay: of an operation
GRACE, RELIEF_WITHIN = 5, 12  # steps
LATE = 1.1  # times an operation's set time
MOST = 10_000  # of anything that is asked for
TELL_EVERY = 20  # runs
LIMIT_S = 150.0  # a run takes some seconds
EXAMPLE = Path(__file__).parents[1] / "examples" / "tiny_gpt.py"  # its layers are not used
SETTINGS = (
    *("workers.kind=threads", "mitigation.mode=observe"),
    *("checkpoint.every_steps=0", "checkpoint.at_end=false"),
)
LAYOUTS = ("2x2", "3x2", "2x2", "2x3", "4x2")
MIXES = {
    "quiet": None,
    "dips": Mix(compute=0, link=0, ladder=0, burst=0, dips=1),
    "compute": Mix(link=0, ladder=0, burst=0, dips=0),
    "link": Mix(compute=0, ladder=0, burst=0, dips=0, compound=0),
    "ladder": Mix(compute=0, link=0, burst=0, dips=0),
    "compound": Mix(compute=0, ladder=0, burst=0, dips=0, compound=1),
    "mixed": Mix(ladder=1, burst=1, dips=1),
}
HEALTHY = ("quiet", "dips")
IN_TURN = (
    *("quiet", "compute", "link", "dips", "ladder", "compound"),
    *("quiet", "compute", "link", "quiet", "mixed", "compute"),
)
SLOWNESS = (Cause.COMPUTE, Cause.LINK, Cause.MACHINE)

Figures = dict[str, Any]
Served = Callable[[Connection, str], None]  # asked by it; a folder for the runs

# --- what is injected, and what of it must be told ---


class Stretch(NamedTuple):
    """Steps in a row in which somebody is slow."""

    subject: str  # as diagnoses name it
    begin: int
    end: int  # the first step after it
    clear: int | None  # from here on it is slow enough, and for long enough; None: it may be told


class Case(NamedTuple):
    kind: str
    layout: str
    seed: int
    faults: tuple[str, ...]
    op_ms: float

    def __str__(self) -> str:
        return f"{self.kind} {self.layout}, seed {self.seed} ({'; '.join(self.faults) or '-'})"

    @property
    def is_healthy(self) -> bool:
        return self.kind in HEALTHY

    @property
    def slow(self) -> list[Stretch]:
        return stretches(map(parse_fault, self.faults), self.op_ms)


def stretches(faults: Iterable[Fault], op_ms: float) -> list[Stretch]:
    """Without single slow steps, of which nothing may be told."""
    of_subject: dict[str, list[Fault]] = {}
    for fault in faults:
        subject = f"{fault.worker}" if fault.peer is None else f"{fault.worker}-{fault.peer}"
        of_subject.setdefault(subject, []).append(fault)
    found = []
    for subject, own in of_subject.items():
        slow = [any(fault.covers(step) for fault in own) for step in range(STEPS)]
        for begin, end in _in_a_row(_without_single_gaps(slow)):
            clear = [_is_clear(own, step, op_ms) for step in range(begin, end)]
            long = (begin + one for one, other in _in_a_row(clear) if other - one >= LEAST_STEPS)
            if all(slow[begin : begin + 2]) or sum(slow[begin:end]) > 2:
                found.append(Stretch(subject, begin, end, next(long, None)))
    return found


def _without_single_gaps(slow: Sequence[bool]) -> list[bool]:
    """Who is slow in every other step is slow."""
    around = zip([False, *slow], slow, [*slow[1:], False], strict=False)
    return [now or (before and after) for before, now, after in around]


def _in_a_row(flags: Sequence[bool]) -> Iterator[tuple[int, int]]:
    at = 0
    for flag, same in groupby(flags):
        begin, at = at, at + len(list(same))
        if flag:
            yield begin, at


def _is_clear(own: Iterable[Fault], step: int, op_ms: float) -> bool:
    """All that last count; a delay is of a link only."""
    lasting = [f.lasting for f in own if f.lasting is not None and f.covers(step)]
    factor = math.prod(one.factor for one in lasting)
    delay_ms = 1e3 * sum(one.delay_s for one in lasting)
    return factor >= LEAST_FACTOR or delay_ms >= LEAST_DELAY * op_ms


def case_of(number: int, op_ms: float, first_seed: int = TEST_SEED) -> Case:
    """The first seed of its own whose faults are what the kind is about."""
    kind, layout = IN_TURN[number % len(IN_TURN)], LAYOUTS[number % len(LAYOUTS)]
    pipelines, stages = map(int, layout.split("x"))
    op_ms *= pipelines * stages / 4
    first = first_seed + number * SEEDS_A_RUN
    for seed in range(first, first + SEEDS_A_RUN):
        faults = _faults(MIXES[kind], seed, pipelines, stages, op_ms)
        case = Case(kind, layout, seed, tuple(map(str, faults)), op_ms)
        if _is_about(case):
            return case
    raise AssertionError(f"no seed from {first} on gives a run of kind {kind}")


def _faults(
    mix: Mix | None, seed: int, pipelines: int, stages: int, op_ms: float
) -> tuple[Fault, ...]:
    if mix is None:
        return ()
    return slowdowns(
        *(seed, pipelines, stages, STEPS, STUDY_S),
        rate=RATE,
        mix=mix,
        transfer_s=op_ms / 1e3,
        first_step=FIRST_FAULT,
    )


def _is_about(case: Case) -> bool:
    if case.is_healthy:
        return not case.slow and bool(case.faults) == (case.kind == "dips")
    subjects = {stretch.subject for stretch in case.slow if stretch.clear is not None}
    return len(subjects) >= (2 if case.kind == "compound" else 1)


# --- what a run tells ---


class Named(NamedTuple):
    subject: str
    cause: str
    step: int
    until: float  # the step in which it was told to be over


class Ran(NamedTuple):
    named: tuple[Named, ...] = ()
    late: float = 0.0  # share of the operations before the first fault that took far too long
    took_s: float = 0.0
    error: str = ""


def names(events: Iterable[Event]) -> tuple[Named, ...]:
    found: list[Named] = []
    standing: dict[tuple[str, str], int] = {}  # (subject, cause) -> where in found
    for event in events:
        if not isinstance(event, Diagnosed | SlownessOver) or event.cause not in SLOWNESS:
            continue
        key = event.subject, event.cause
        if isinstance(event, SlownessOver):
            if (at := standing.pop(key, None)) is not None:
                found[at] = found[at]._replace(until=event.step)
        elif key not in standing:
            standing[key] = len(found)
            found.append(Named(*key, event.step, math.inf))
    return tuple(found)


def late_share(events: Iterable[Event], op_ms: float) -> float:
    steps, limit_s = range(WARM_UP_STEPS, FIRST_FAULT), LATE * op_ms / 1e3
    reports = [e for e in events if isinstance(e, WorkerStep) and e.step in steps]
    ops = [op for report in reports for op in report.ops if not op[0].endswith("R")]
    # A whole backward is two operations in one.
    late = [end_s - start_s > limit_s * (2 if "BW" in text else 1) for text, start_s, end_s in ops]
    return sum(late) / max(1, len(late))


def run_case(case: Case, place: str) -> Ran:
    from holdfast.cli.main import main  # torch: only where runs are

    pipelines, stages = case.layout.split("x")
    microbatches, op = PER_PIPELINE * int(pipelines), f"{case.op_ms:g}ms"
    settings = (*SETTINGS, f"device.emulate=F={op},B={op},W={op}")
    start_s = time.monotonic()
    with tempfile.TemporaryDirectory(dir=place) as folder:
        words = ["train", str(EXAMPLE), "--run-dir", folder, "--steps", str(STEPS)]
        words += ["--pipelines", pipelines, "--stages", stages, "--microbatches", str(microbatches)]
        words += [word for setting in settings for word in ("--set", setting)]
        words += [word for fault in case.faults for word in ("--fault", fault)]
        output = io.StringIO()
        with redirect_stdout(io.StringIO()), redirect_stderr(output):
            code = main(words)
        if code != 0:
            return Ran(error=f"ended with code {code}: {output.getvalue().strip()[-300:]}")
        events = read_events(Path(folder) / EVENTS_FILE)
    fired = {event.fault for event in events if isinstance(event, FaultFired)}
    if missing := set(case.faults) - fired:
        return Ran(error=f"never fired: {'; '.join(sorted(missing))}")
    return Ran(names(events), late_share(events, case.op_ms), time.monotonic() - start_s)


# --- many runs, side by side ---


def serve(pipe: Connection, place: str) -> None:
    """Until nobody asks any more."""
    try:
        while True:
            case = pipe.recv()
            try:
                ran = run_case(case, place)
            except Exception as why:  # whatever it was, the others go on
                ran = Ran(error=f"{type(why).__name__}: {why}")
            pipe.send(ran)
    except (EOFError, KeyboardInterrupt):
        return


class Lane:
    """A process that does one run after the other; a run that hangs ends with its process."""

    def __init__(self, served: Served) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, there = context.Pipe()
        self._folder = tempfile.TemporaryDirectory(prefix="detect-runs-")
        self._process = context.Process(target=served, args=(there, self._folder.name), daemon=True)
        self._process.start()
        there.close()

    def begin(self, case: Case) -> None:
        self.case, self._until_s = case, time.monotonic() + LIMIT_S
        self.pipe.send(case)

    def result(self) -> Ran | None:
        """None: it is still running. With an error of the process, the lane is at its end."""
        try:
            if self.pipe.poll():
                ran: Ran = self.pipe.recv()
                return ran
        except (EOFError, OSError):
            self.end()
            return Ran(error="its process died")
        if time.monotonic() < self._until_s:
            return None
        self.end()
        return Ran(error=f"not over after {LIMIT_S:g} s")

    @property
    def is_usable(self) -> bool:
        return not self.pipe.closed

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self.pipe.close()
        self._folder.cleanup()


def run_all(
    cases: Iterable[Case], num_processes: int, served: Served = serve
) -> Iterator[tuple[Case, Ran]]:
    left, idle, busy = list(cases)[::-1], list[Lane](), list[Lane]()
    try:
        while left or busy:
            while left and len(busy) < num_processes:
                busy.append(idle.pop() if idle else Lane(served))
                busy[-1].begin(left.pop())
            wait([lane.pipe for lane in busy], timeout=1.0)
            for lane in list(busy):
                if (ran := lane.result()) is not None:
                    busy.remove(lane)
                    idle += [lane] if lane.is_usable else []
                    yield lane.case, ran
    finally:
        for lane in idle + busy:
            lane.end()


# --- how good it is ---


class Verdict(NamedTuple):
    case: Case
    ran: Ran
    wrong: tuple[Named, ...]  # who was healthy
    missed: tuple[Stretch, ...]
    delays: tuple[int, ...]  # steps from the first clearly slow one to the telling, both counted
    reliefs: tuple[bool, ...]  # of those told rightly that had time for it: told to be over

    @property
    def is_right(self) -> bool:
        return not (self.ran.error or self.wrong or self.missed)

    def story(self) -> str:
        wrong = ", ".join(f"{n.subject} ({n.cause}, step {n.step + 1})" for n in self.wrong)
        missed = ", ".join(stretch.subject for stretch in self.missed)
        parts = {"failed": self.ran.error, "wrong": wrong, "missed": missed}
        return "; ".join(f"{word}: {text}" for word, text in parts.items() if text)


def judge(case: Case, ran: Ran) -> Verdict:
    """Of a run that failed nothing is known. Who was told before it was clear has delay 0."""
    if ran.error:
        return Verdict(case, ran, (), (), (), ())
    right = [n for n in ran.named if any(_allows(stretch, n) for stretch in case.slow)]
    missed, delays, reliefs = [], [], []
    for stretch in case.slow:
        told = [name for name in right if _stands(name, stretch)]
        if stretch.clear is None:
            continue
        if not told:
            missed.append(stretch)
            continue
        delays.append(max(0, told[0].step - stretch.clear + 1))
        if stretch.end + RELIEF_WITHIN <= STEPS:
            reliefs.append(told[-1].until < stretch.end + RELIEF_WITHIN)
    wrong = tuple(name for name in ran.named if name not in right)
    return Verdict(case, ran, wrong, tuple(missed), tuple(delays), tuple(reliefs))


def _allows(stretch: Stretch, name: Named) -> bool:
    is_in_it = stretch.begin <= name.step < stretch.end + GRACE
    return stretch.subject == name.subject and is_in_it


def _stands(name: Named, stretch: Stretch) -> bool:
    """Told in it, or just before and not yet told to be over."""
    is_before_end = name.step < stretch.end + GRACE
    return name.subject == stretch.subject and is_before_end and name.until > stretch.begin


def figures(verdicts: Sequence[Verdict]) -> Figures:
    ended = [v for v in verdicts if not v.ran.error]
    healthy = [v for v in ended if v.case.is_healthy]
    disturbed = [v for v in ended if not v.case.is_healthy]
    slow = [v for v in verdicts if not v.case.is_healthy]
    machines = [v for v in ended if any(n.cause == Cause.MACHINE for n in v.wrong)]
    return {
        "runs": len(verdicts),
        "runs_with_faults": len(slow),
        "failed": len(verdicts) - len(ended),
        "accuracy": _share([v.is_right for v in verdicts]),
        "false_positive_rate": _share([bool(v.wrong) for v in healthy]),
        "false_negative_rate": _share([bool(v.missed) for v in disturbed]),
        "localised": _share([v.is_right for v in slow]),
        "wrong_beside_a_fault": _share([bool(v.wrong) for v in disturbed]),
        "slow_machine_told": len(machines),
        "relief_rate": _share([relief for v in ended for relief in v.reliefs]),
        "median_steps": _median([delay for v in ended for delay in v.delays]),
        "late_operations": _median([v.ran.late for v in ended]),
        "run_s": _median([v.ran.took_s for v in ended]),
        "emulated": True,
    }


def _share(flags: Sequence[bool]) -> float | None:
    return round(sum(flags) / len(flags), 5) if flags else None


def _median(values: Sequence[float]) -> float | None:
    return round(statistics.median(values), 4) if values else None


def print_table(verdicts: Sequence[Verdict]) -> None:
    heads = ("runs", "right", "wrong name", "missed", "failed", "steps")
    print(f"{'':12}" + "".join(f"{head:>12}" for head in heads))
    for kind in (*MIXES, "all"):
        of_kind = [v for v in verdicts if kind in (v.case.kind, "all")]
        flags = [(v.is_right, bool(v.wrong), bool(v.missed), bool(v.ran.error)) for v in of_kind]
        steps = _median([delay for v in of_kind for delay in v.delays])
        cells = [len(of_kind), *map(sum, zip(*flags, strict=True)), "-" if steps is None else steps]
        if of_kind:
            print(f"{kind:12}" + "".join(f"{cell:>12}" for cell in cells))
    print("(steps: median from the first clearly slow one to the telling, both counted)")
    for verdict in verdicts:
        if not verdict.is_right:
            print(f"  {verdict.case}: {verdict.story()}")


def run(
    num_runs: int = NUM_RUNS,
    num_processes: int = NUM_PROCESSES,
    op_ms: float = OP_MS,
    first_seed: int = TEST_SEED,
    *,
    quick: bool = False,
) -> Figures:
    num_runs = NUM_QUICK if quick else num_runs
    print(f"{num_runs} runs of {STEPS} steps, {num_processes} at a time: emulated devices, threads")
    print(f"Seeds from {first_seed}; operations of {op_ms:g} ms and more; slowness is only told")
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as every worker process has it
    instruction_set.prepare_script()
    loads, verdicts = [os.getloadavg()[0]], []
    cases = [case_of(number, op_ms, first_seed) for number in range(num_runs)]
    for case, ran in run_all(cases, num_processes):
        verdicts.append(judge(case, ran))
        if len(verdicts) % TELL_EVERY == 0:
            num_right = sum(verdict.is_right for verdict in verdicts)
            print(f"{len(verdicts)} of {num_runs} done, {num_right} right", flush=True)
        loads.append(os.getloadavg()[0])
    verdicts.sort(key=lambda verdict: verdict.case.seed)
    print_table(verdicts)
    found = figures(verdicts)
    load = {"least": min(loads), "median": statistics.median(loads), "most": max(loads)}
    late = found["late_operations"]
    print("Load average (1 minute): " + ", ".join(f"{k} {v:.1f}" for k, v in load.items()))
    if late is not None:
        print(f"Healthy operations over {LATE} x their set time: {late:.1%}, median of the runs")
    found |= {"load": load, "first_seed": first_seed}
    return {"localised": found["localised"], "num_runs": num_runs, "runs": found}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=NUM_RUNS, help=f"how many ({NUM_RUNS})")
    parser.add_argument(
        "--processes", type=int, default=NUM_PROCESSES, help=f"at a time ({NUM_PROCESSES})"
    )
    parser.add_argument(
        "--op-ms", type=float, default=OP_MS, help=f"of an operation, with 4 workers ({OP_MS:g})"
    )
    parser.add_argument("--tuning", action="store_true", help="other seeds, to look into")
    args = parser.parse_args()
    for name in ("runs", "processes", "op_ms"):
        if not 1 <= getattr(args, name) <= MOST:
            flag = f"--{name.replace('_', '-')} {getattr(args, name)}"
            parser.error(f"{flag}: expected a number from 1 to {MOST}")
    seed = TUNING_SEED if args.tuning else TEST_SEED
    print(json.dumps(run(args.runs, args.processes, args.op_ms, seed)))


if __name__ == "__main__":
    main()
