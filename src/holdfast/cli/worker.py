"""``holdfast worker``: takes the place of a missing worker of a run, while it runs."""

import argparse
import hashlib
import json
import os
import re
import sys
import time
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

from holdfast import instruction_set
from holdfast.cluster import parse_worker
from holdfast.config import config_from
from holdfast.errors import ConfigError, HoldfastError
from holdfast.protocol import messages
from holdfast.protocol.connection import connect
from holdfast.protocol.spec import (
    BY_HAND_VARIABLE,
    REJOIN_VARIABLE,
    SPEC_VARIABLE,
    WorkerSpec,
    worker_environment,
)

_PORT = re.compile("[0-9]{1,5}")
_CONNECT_LIMIT_S = 5.0
_ANSWER_LIMIT_S = 30.0
_NUM_TRIES, _PAUSE_S = 10, 0.5


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "worker",
        help="join a run that lacks a worker",
        description="Take the place of a missing worker: copies the state of its stage from "
        "another worker while training goes on, and is planned in at the next step boundary. "
        "'holdfast train' shows the address at its start.",
    )
    parser.add_argument("--join", metavar="HOST:PORT", required=True, help="where the run listens")
    parser.add_argument(
        "--as", dest="name", default="", metavar="WORKER", help="the place to take, such as 1.0"
    )
    parser.add_argument(
        "--job", metavar="JOB.py", help="this machine's copy of the job file (default: the run's)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    instruction_set.prepare()
    spec = os.environ.pop(SPEC_VARIABLE, "")
    if spec:
        return _work(spec)
    host, _, port = args.join.rpartition(":")
    if not host or not _PORT.fullmatch(port) or not 0 < int(port) < 65536:
        raise ConfigError(f"--join {args.join}: expected HOST:PORT, such as 127.0.0.1:40123")
    if args.name:
        _check_name(args.name)
    job = Path(args.job).resolve() if args.job else None
    if job is not None and not job.is_file():
        raise ConfigError(f"--job {args.job}: no such job file")
    if os.environ.get(REJOIN_VARIABLE):
        again = _ask_again(host, int(port), args.name)
        if again is None:
            return 1  # nobody has asked for it by hand, so nobody wants to hear why
        granted = again
    else:
        granted = _ask(host, int(port), args.name, _sha256(job) if job else "")
    _become_worker(host, int(port), granted, job or Path(granted.job))


def _check_name(name: str) -> None:
    try:
        parse_worker(name)
    except ValueError as why:
        raise ConfigError(f"--as {name}: {why}") from why


def _ask_again(host: str, port: int, name: str) -> messages.JoinGranted | None:
    """After a hang: the run may be busy with something else for a while."""
    for _ in range(_NUM_TRIES):
        try:
            return _ask(host, port, name, "")
        except HoldfastError:
            time.sleep(_PAUSE_S)
    return None


def _ask(host: str, port: int, name: str, job_sha256: str) -> messages.JoinGranted:
    try:
        connection = connect(host, port, _CONNECT_LIMIT_S)
    except (HoldfastError, UnicodeError) as why:  # the latter: what no host name can be
        raise ConfigError(
            f"--join {host}:{port}: nobody answers there ({why}); "
            "the address is in the first lines of 'holdfast train'"
        ) from why
    try:
        request = messages.JoinRequest(
            worker=name,
            pid=os.getpid(),
            fingerprint={"holdfast": version("holdfast")},
            job_sha256=job_sha256,
        )
        connection.send(request)
        answers = connection.read_within(_ANSWER_LIMIT_S)
    except HoldfastError as why:
        raise ConfigError(
            f"--join {host}:{port}: no run of this version of Holdfast answers there ({why})"
        ) from why
    finally:
        connection.close()
    for answer in answers:
        if isinstance(answer, messages.JoinGranted):
            return answer
        if isinstance(answer, messages.Stop):
            raise ConfigError(f"--join {host}:{port}: {answer.reason}")
    raise ConfigError(f"--join {host}:{port}: no answer within {_ANSWER_LIMIT_S:g} s")


def _become_worker(host: str, port: int, granted: messages.JoinGranted, job: Path) -> NoReturn:
    """Start over as the worker: threads and memory are set up before torch is loaded."""
    if not job.is_file() or _sha256(job) != granted.job_sha256:
        reason = (
            f"job file {job}: is not the one that the run was started with; "
            "put it back, or name a copy of it with --job"
        )
        _give_back(host, port, granted, reason)
        raise ConfigError(reason)
    spec = {
        "worker": granted.worker,
        "host": host,
        "port": port,
        "token": granted.token,
        "job": str(job),
        "job_sha256": granted.job_sha256,
        "config": granted.config,
    }
    config = config_from(granted.config)
    environment = worker_environment(config) | {SPEC_VARIABLE: json.dumps(spec)}
    if not os.environ.get(REJOIN_VARIABLE):
        environment[BY_HAND_VARIABLE] = "1"
        sys.stdout.write(f"joining as worker {granted.worker} (pid {os.getpid()})\n")
        sys.stdout.flush()
    words = [sys.executable, "-m", "holdfast", "worker", "--join", f"{host}:{port}"]
    os.execve(sys.executable, words, environment)


def _give_back(host: str, port: int, granted: messages.JoinGranted, reason: str) -> None:
    """The place that was granted: others may have it at once."""
    failed = messages.Failed(
        token=granted.token,
        worker=granted.worker,
        lost="",
        exit_code=ConfigError.exit_code,
        reason=reason,
        details="",
    )
    with suppress(HoldfastError):  # it is free after a while in any case
        connection = connect(host, port, _CONNECT_LIMIT_S)
        connection.send(failed)
        connection.close()


def _work(text: str) -> int:
    values = json.loads(text)
    config = config_from(values["config"])
    spec = WorkerSpec(
        parse_worker(values["worker"]),
        values["host"],
        values["port"],
        values["token"],
        values["job"],
        values["job_sha256"],
        config,
    )
    from holdfast.runtime import process, warm  # torch: a second that only this process pays

    warm.prepare(config)
    by_hand = bool(os.environ.get(BY_HAND_VARIABLE))
    code = process.run_process(spec, by_hand=by_hand)
    if by_hand:
        sys.stdout.write(f"worker {spec.worker}: the run is over, or has no place for it\n")
    return code


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
