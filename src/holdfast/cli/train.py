"""``holdfast train``: settings from file, flags and --set; a run; a summary."""

import argparse
import os
import shlex
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.addresses import parse_host_port
from holdfast.api.live_run import LiveRun
from holdfast.api.settings import read_toml
from holdfast.api.training import prepare
from holdfast.auth.secret import SECRET_FILE_VARIABLE, SECRET_VARIABLE
from holdfast.cli import help_text
from holdfast.cli.flags import resume_command
from holdfast.cli.passed_on import passes_on
from holdfast.cli.terminal.complaints import complain, say
from holdfast.cli.terminal.showing import shown_to_the_end
from holdfast.config import known_keys, parse_assignment, set_value
from holdfast.faults.fault import PHASES
from holdfast.launch.kinds import KINDS
from holdfast.observability.text import count

_FLAGS = {  # flag -> setting
    "pipelines": "parallel.pipelines",
    "stages": "parallel.stages",
    "microbatches": "parallel.microbatches",
    "steps": "train.steps",
    "seed": "train.seed",
    "precision": "train.precision",
    "machines": "machines.count",
    "start_with": "machines.start_with",
}
_FLAG_HELP = {
    "pipelines": "copies of the pipeline (data parallel)",
    "stages": "parts the layers are cut into (pipeline parallel)",
    "microbatches": "micro-batches in one step, over all pipelines",
    "steps": "optimizer steps of the whole run",
    "seed": "of parameters, random numbers and data order",
    "precision": "what layers and loss compute in: fp32, bf16 or fp16",
    "machines": "spread the workers over so many machines, each with a 'holdfast agent'",
    "start_with": "begin when so many machines are here; others fill in as they come",
}
_EXAMPLES = (
    "holdfast train job.py --pipelines 2 --stages 2 --steps 100",
    "holdfast train job.py --config run.toml --set checkpoint.every_steps=50",
    "holdfast train --resume runs/a",
    "holdfast train job.py --stages 4 -- --lr 3e-4  # job(['--lr', '3e-4'])",
    "holdfast train job.py --pipelines 2 --fault 'kill 1.0 @ 5' -v",
    "holdfast train job.py --pipelines 4 --stages 2 --machines 4 --listen 10.0.0.1:40123",
)
_CODES = {
    "0": "trained to the end",
    "1": "failed, or interrupted; the last line says why, and how to go on",
    "2": "bad input: arguments, settings, job, data or checkpoint",
    "3": "another coordinator has taken over, and goes on with the run",
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
        help="train a job",
        description="Train the job that a Python file describes (a function job() -> Job) on\n"
        "pipelines x stages workers. Lost workers are recovered from; the result\n"
        "is the same, bit for bit. Ctrl-C finishes the step and saves a checkpoint.\n"
        "What stands after -- is for the job: job(args) gets it as a list of texts.",
        **help_text.parts(_EXAMPLES, *_sections(), codes=_CODES),
    )
    parser.add_argument(
        "job",
        metavar="JOB.py",
        nargs="?",
        help="the job file, JOB.py:FUNCTION or MODULE:FUNCTION; with --resume that of the run",
    )
    _add_short(parser)
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
    _add_machines(parser)
    _add_resume(parser)
    _add_faults(parser)
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="show why and how as well: plans, evidence, timings (events.jsonl has all of it)",
    )
    passes_on(parser, "job_args")
    parser.set_defaults(run=run)


def _add_short(parser: argparse.ArgumentParser) -> None:
    """Flags for settings that are given often."""
    for flag, key in _FLAGS.items():
        parser.add_argument(
            f"--{flag.replace('_', '-')}",
            type=str if flag == "precision" else int,
            metavar=(value := "TYPE" if flag == "precision" else "N"),
            help=f"{_FLAG_HELP[flag]} (= --set {key}={value})",
        )
    parser.add_argument(
        "--weights",
        metavar="PATH",
        help="start from these: a .safetensors or .pt file, a folder of Hugging Face, a run or "
        "checkpoint of Holdfast (= --set job.weights=PATH)",
    )


def _add_machines(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help="with --machines: where agents reach the run (= --set network.listen=HOST and "
        "control.port=PORT)",
    )
    parser.add_argument(
        "--control",
        metavar="ADDRESS",
        help="where the coordinator writes down what it decides, for one on another machine that "
        "takes over: etcd://HOST:2379,.../PREFIX (= --set control.journal=ADDRESS; default: the "
        "run directory)",
    )
    parser.add_argument(
        "--standby",
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="with --machines and --control: where a 'holdfast standby' waits; may be repeated",
    )
    parser.add_argument(
        "--ticket",
        metavar="FILE",
        help="with --machines: written there (default: RUN_DIR.ticket); with --resume and "
        "--control on another machine: the run's, read there first",
    )
    parser.add_argument(
        "--cluster",
        metavar="KIND[:MORE]",
        help=f"with --machines: what starts their agents: {KINDS} (default: you do)",
    )


def _add_resume(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--resume",
        metavar="DIR",
        help="go on from the newest checkpoint of a run directory or address (s3://bucket/run), "
        "with its job and settings",
    )
    parser.add_argument(
        "--changed-job",
        action="store_true",
        help="with --resume: accept that the job file, its arguments, or what it imports, are not "
        "as they were; the result differs",
    )
    parser.add_argument(
        "--changed-data",
        action="store_true",
        help="with --resume: accept that there are more or fewer samples; their order changes",
    )


def _add_faults(parser: argparse.ArgumentParser) -> None:
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


def _sections() -> list[str]:
    phases = "\n".join(f"  {name:<9} {meaning}" for name, meaning in PHASES.items())
    keys = textwrap.fill(
        "settings for --set and TOML files: " + ", ".join(known_keys()), 80, break_on_hyphens=False
    )
    return [f"{_FAULTS}\n{phases}", keys]


def run(args: argparse.Namespace) -> int:
    run = prepared(args)
    first = _first_lines(run, args.cluster)
    return shown_to_the_end(run, first, args.run_dir, verbose=args.verbose)


def prepared(args: argparse.Namespace) -> LiveRun:
    """A run that has yet to begin."""
    return prepare(
        args.job,
        warn=complain,
        join_with=_join_with(args.secret_file),
        resume_with=resume_command,
        config=given_settings(args),
        run_dir=args.run_dir,
        faults=args.fault,
        chaos=args.chaos,
        secret_file=args.secret_file,
        resume=args.resume,
        changed_job=args.changed_job,
        changed_data=args.changed_data,
        ticket=args.ticket,
        cluster=args.cluster,
        show=say,
    )


def given_settings(args: argparse.Namespace) -> dict[str, Any]:
    """File, flags and --set: the later wins."""
    values: dict[str, Any] = read_toml(args.config) if args.config else {}
    for flag, key in _FLAGS.items():
        if getattr(args, flag) is not None:
            set_value(values, key, getattr(args, flag))
    if args.weights is not None:
        set_value(values, "job.weights", args.weights)
    if args.job_args:
        set_value(values, "job.args", args.job_args)
    if args.control is not None:
        set_value(values, "control.journal", args.control)
    if args.standby:
        set_value(values, "control.standbys", ",".join(args.standby))
    if args.listen is not None:
        host, port = parse_host_port(args.listen, "--listen")
        set_value(values, "network.listen", host)
        set_value(values, "control.port", port)
    for text in args.set:
        set_value(values, *parse_assignment(text))
    return values


def _first_lines(run: LiveRun, cluster: str | None) -> str:
    config, faults = run.config, run.faults
    num_workers = config.parallel.pipelines * config.parallel.stages
    emulated = f" on emulated devices ({config.device.emulate})" if config.device.emulate else ""
    armed = f"{count(len(faults), 'fault')} will be injected\n" if faults else ""
    if run.takes_over:
        return f"taking over from a coordinator that is gone: {num_workers} workers{emulated} ...\n"
    if config.machines.count:
        by_hand = f"on each run:\n  holdfast agent --ticket {shlex.quote(str(run.ticket))}"
        return (
            f"waiting for {count(config.machines.needed, 'machine')} for {num_workers} workers"
            f"{emulated}; {f'agents are started by {cluster}' if cluster else by_hand}\n{armed}"
        )
    return f"starting {num_workers} worker {config.workers.kind}{emulated} ...\n{armed}"


def _join_with(secret_file: str | None) -> Callable[[Path, str], str]:
    """How those who join are told of the run's secret and of its certificate, if it has one.

    They may be in another working directory. Asked before the secret is taken from the environment.
    """
    path = secret_file or os.environ.get(SECRET_FILE_VARIABLE)
    own = shlex.quote(str(Path(path).absolute())) if path else ""
    is_set = not secret_file and os.environ.get(SECRET_VARIABLE)

    def words(run_dir: Path, certificate: str) -> str:
        shown = f"--certificate {certificate}" if certificate else ""
        if is_set:
            return f"{shown} (with {SECRET_VARIABLE} set)".strip()
        secret = f"--secret-file {own}" if own else f"--run-dir {shlex.quote(str(run_dir))}"
        return f"{secret} {shown}".strip()

    return words
