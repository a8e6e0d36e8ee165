"""``holdfast train``: settings from file, flags and --set; a run; a summary."""

import argparse
import os
import shlex
import sys
import textwrap
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO, cast

from holdfast import instruction_set
from holdfast.cli import help_text
from holdfast.cli.resuming import check_continues, job_file, remembered
from holdfast.config import RunConfig, config_from, known_keys, parse_assignment, set_value
from holdfast.control.checks import Accepted
from holdfast.control.launcher import AgentProcess, Starter, launch
from holdfast.errors import ConfigError, HoldfastError
from holdfast.faults.chaos import chaos_faults, parse_chaos
from holdfast.faults.fault import PHASES, Fault, FaultKind, check_faults, parse_fault
from holdfast.observability.events import Event, FaultFired, RunStarted
from holdfast.observability.screen import Screen
from holdfast.observability.summary import Summary
from holdfast.observability.text import count, folded
from holdfast.observability.view import View, make_view
from holdfast.protocol.secret import SECRET_FILE_VARIABLE, SECRET_VARIABLE, given_secret
from holdfast.recovery.manifest import Checkpoint, find

_SHOW_LIMIT_S = 2.0  # at the end, for a reader that is slow
_TRANSFER_S = 0.01  # assumed for random slow links, if operations are not emulated
_FLAGS = {  # flag -> setting
    "pipelines": "parallel.pipelines",
    "stages": "parallel.stages",
    "microbatches": "parallel.microbatches",
    "steps": "train.steps",
    "seed": "train.seed",
}
_FLAG_HELP = {
    "pipelines": "copies of the pipeline (data parallel)",
    "stages": "parts the layers are cut into (pipeline parallel)",
    "microbatches": "micro-batches in one step, over all pipelines",
    "steps": "optimizer steps of the whole run",
    "seed": "of parameters, random numbers and data order",
}
_EXAMPLES = (
    "holdfast train job.py --pipelines 2 --stages 2 --steps 100",
    "holdfast train job.py --config run.toml --set checkpoint.every_steps=50",
    "holdfast train --resume runs/a",
    "holdfast train job.py --pipelines 2 --fault 'kill 1.0 @ 5' -v",
)
_CODES = {
    "0": "trained to the end",
    "1": "failed, or interrupted; the last line says why, and how to go on",
    "2": "bad input: arguments, settings, job, data or checkpoint",
    "130": "interrupted before anything was started",
}
_FAULTS = """\
a fault is one of:
  kill W @ WHERE             the process of worker W is killed (SIGKILL)
  hang W @ WHERE             it stands still (SIGSTOP)
  slow W=SPEED @ WHERE       it works at this fraction of its speed from here on
  slow W @ STEPS xF          its operations take F times as long; several multiply
  cpu W @ STEPS xF           its process gets 1/F of the CPU time (at most x10)
  link V-W @ STEPS +15ms     messages between V and W arrive later (ms, s)
  link V-W @ STEPS 10MB/s    ... at most at this rate (kB/s, MB/s, GB/s)
  join @ STEP, join W @ STEP   a missing worker is started
W is a worker: 1.0 is pipeline 1, stage 0. STEP counts from 1. STEPS is
FIRST-LAST, both included, or FIRST (until the end). WHERE is STEP or STEP.POINT.
A point is the worker's own n-th operation of a kind in that step, from 0: F0, B3,
W1 (just before it), B3.done (just after it), or one of these (halt, proceed, copy
and replay: the first time from STEP on):"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "train",
        help="train a job on local worker processes",
        description="Train the job that a Python file describes (a function job() -> Job) on\n"
        "pipelines x stages local workers. Lost workers are recovered from; the result\n"
        "is the same, bit for bit. Ctrl-C finishes the step and saves a checkpoint.",
        **help_text.parts(_EXAMPLES, *_sections(), codes=_CODES),
    )
    parser.add_argument(
        "job", metavar="JOB.py", nargs="?", help="the job file; with --resume that of the run"
    )
    for flag, key in _FLAGS.items():
        parser.add_argument(
            f"--{flag}", type=int, metavar="N", help=f"{_FLAG_HELP[flag]} (= --set {key}=N)"
        )
    parser.add_argument(
        "--run-dir", metavar="DIR", help="where results go (default: runs/JOB-TIME)"
    )
    parser.add_argument("--config", metavar="FILE", help="settings as TOML")
    parser.add_argument(
        "--secret-file",
        metavar="FILE",
        help="the run's secret, 64 hexadecimal digits, mode 0600 (default: a new one in the run "
        f"directory; also {SECRET_VARIABLE} or {SECRET_FILE_VARIABLE} in the environment)",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="one setting; may be repeated",
    )
    parser.add_argument(
        "--resume",
        metavar="DIR",
        help="go on from the newest checkpoint of a run directory, with its job and settings",
    )
    parser.add_argument(
        "--changed-job",
        action="store_true",
        help="with --resume: accept that the job file, or what it imports, is not as it was; the "
        "result differs",
    )
    parser.add_argument(
        "--changed-data",
        action="store_true",
        help="with --resume: accept that there are more or fewer samples; their order changes",
    )
    parser.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="TEXT",
        help="something to go wrong, e.g. 'kill 1.0 @ 5', 'join @ 8' or 'slow 1.0 @ 5-8 x2.0'; "
        "may be repeated; see below",
    )
    parser.add_argument(
        "--chaos",
        metavar="TEXT",
        help="random kills and joins, e.g. seed=1,rate=0.05 (a worker's chance to die in a step), "
        "and slowness, e.g. seed=1,slow=0.01 (the chance that something becomes slow in a step)",
    )
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="show why and how as well: plans, evidence, timings (events.jsonl has all of it)",
    )
    parser.set_defaults(run=run)


def _sections() -> list[str]:
    phases = "\n".join(f"  {name:<9} {meaning}" for name, meaning in PHASES.items())
    keys = textwrap.fill(
        "settings for --set and TOML files: " + ", ".join(known_keys()), 80, break_on_hyphens=False
    )
    return [f"{_FAULTS}\n{phases}", keys]


def run(args: argparse.Namespace) -> int:
    instruction_set.prepare()  # the agent and its workers inherit it
    resume = find(args.resume) if args.resume else None
    config = resolve(args, resume)
    job = job_file(args.job, resume, may_differ=args.changed_job)
    if resume is not None:
        check_continues(resume, config)
    faults = armed_faults(args, config, 0 if resume is None else resume.step)
    run_dir = _run_dir(args.run_dir, job, resume)
    join_with = _join_with(args.secret_file)  # before the secret is taken from the environment
    secret = given_secret(args.secret_file, os.environ)
    num_workers = config.parallel.pipelines * config.parallel.stages
    emulated = f" on emulated devices ({config.device.emulate})" if config.device.emulate else ""
    screen = Screen(sys.stdout)
    screen.write(f"starting {num_workers} worker {config.workers.kind}{emulated} ...\n")
    if faults:
        screen.write(f"{count(len(faults), 'fault')} will be injected\n")
    view = _Fired(make_view(cast(TextIO, screen), verbose=args.verbose))
    try:
        summary = launch(
            config,
            job,
            run_dir,
            resume=resume,
            starter=_starter(config),
            view=view,
            faults=faults,
            secret=secret,
            join_with=join_with,
            accepted=Accepted(job=args.changed_job, data=args.changed_data),
        )
        view.close()
        screen.write(view.missed(faults) + _closing_lines(summary, run_dir))
    except HoldfastError:
        view.close()
        screen.write(view.missed(faults))
        raise
    finally:
        view.close()
        screen.close(_SHOW_LIMIT_S)
    return 0


class _Fired:
    """A view that also remembers which faults have fired, however the run ends."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._fired: set[str] = set()
        self._has_begun = False

    def handle(self, event: Event) -> None:
        self._has_begun = self._has_begun or isinstance(event, RunStarted)
        if isinstance(event, FaultFired):
            self._fired.add(event.fault)
        self._view.handle(event)

    def close(self) -> None:
        self._view.close()

    def missed(self, faults: Sequence[Fault]) -> str:
        """The line of those that did not; empty if there are none, or nothing was trained."""
        missed = [str(fault) for fault in faults if str(fault) not in self._fired]
        if not missed or not self._has_begun:
            return ""
        lines = folded(f"not injected, as no worker came to that point: {'; '.join(missed)}")
        return "\n".join(lines) + "\n"


def resolve(args: argparse.Namespace, resume: Checkpoint | None = None) -> RunConfig:
    """The run that is resumed, then file, flags and --set: the later wins."""
    values: dict[str, Any] = _read_toml(args.config) if args.config else {}
    for flag, key in _FLAGS.items():
        if getattr(args, flag) is not None:
            set_value(values, key, getattr(args, flag))
    for text in args.set:
        set_value(values, *parse_assignment(text))
    return config_from(values if resume is None else remembered(resume, values))


def armed_faults(args: argparse.Namespace, config: RunConfig, first_step: int) -> tuple[Fault, ...]:
    """Those of --fault as they were given, then those of --chaos."""
    parallel, steps = config.parallel, config.train.steps
    faults = tuple(parse_fault(text) for text in args.fault)
    if args.chaos is not None:
        faults += _random_faults(args.chaos, config, first_step)
    check_faults(faults, parallel.pipelines, parallel.stages, steps, first_step=first_step)
    for fault in faults:
        if fault.kind is FaultKind.CPU and config.workers.kind == "threads":
            raise ConfigError(
                f"--fault '{fault}': workers.kind=threads has all workers in one process, and only "
                "a whole process can be kept from the CPU; use slow, or workers.kind=processes"
            )
    return faults


def _random_faults(text: str, config: RunConfig, first_step: int) -> tuple[Fault, ...]:
    chaos, parallel = parse_chaos(text), config.parallel
    if parallel.pipelines == 1 and chaos.rate:
        raise ConfigError(
            f"--chaos {text!r}: with one pipeline each stage has only one worker, and "
            "none may be killed; give --pipelines 2 or more, or no rate"
        )
    return chaos_faults(
        chaos,
        parallel.pipelines,
        parallel.stages,
        config.train.steps,
        operations=parallel.microbatches // parallel.pipelines,
        first_step=first_step,
        # As long as an operation: a slow link is one that is felt.
        transfer_s=config.device.durations_s().get("F", _TRANSFER_S),
    )


def _read_toml(path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as why:
        raise ConfigError(f"--config {path}: {why}") from why


def _run_dir(given: str | None, job: Path, resume: Checkpoint | None) -> Path:
    if given:
        return Path(given)
    if resume is not None:
        return resume.run_dir
    return Path("runs") / f"{job.stem}-{time.strftime('%Y%m%d-%H%M%S')}"


def _starter(config: RunConfig) -> Starter:
    if config.workers.kind == "processes":
        return AgentProcess(config)
    from holdfast.runtime.threads import WorkerThreads  # torch: only if asked for

    return WorkerThreads()


def _join_with(secret_file: str | None) -> str:
    """For those who join a run whose secret is not in its directory; empty: it is there.

    They may be in another working directory.
    """
    if not secret_file and os.environ.get(SECRET_VARIABLE):
        return f"(with {SECRET_VARIABLE} set)"
    path = secret_file or os.environ.get(SECRET_FILE_VARIABLE)
    return f"--secret-file {shlex.quote(str(Path(path).absolute()))}" if path else ""


def _closing_lines(summary: Summary, run_dir: Path) -> str:
    rate = f"{summary.tokens_per_s:,.0f} tokens/s" if summary.tokens_per_s else "too short to time"
    rate += " (emulated)" if summary.config["device"]["emulate"] else ""
    return (
        f"speed: {rate}\n"
        f"parameters sha256 {summary.parameters_sha256}\n"
        f"results: {run_dir}\n"
        f"see the pipeline with: holdfast trace {run_dir}\n"
    )
