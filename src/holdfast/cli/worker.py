"""``holdfast worker``: takes the place of a missing worker of a run, while it runs."""

import argparse
import hashlib
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, NoReturn

import holdfast
from holdfast.addresses import HOST, is_host, is_loopback, is_wildcard, parse_host_port
from holdfast.auth.certificate import kept_key, parse_fingerprint
from holdfast.auth.handshake import JOINER, WORKER_ROLE
from holdfast.auth.secret import (
    FD_VARIABLE,
    SECRET_FILE,
    SECRET_FILE_VARIABLE,
    SECRET_VARIABLE,
    given_secret,
    hand_over,
    read_secret,
    taken_over,
)
from holdfast.bundle.fetching import fetch
from holdfast.bundle.locating import job_here
from holdfast.bundle.unpacking import default_cache
from holdfast.cli import help_text
from holdfast.cli.terminal import signals
from holdfast.cli.terminal.complaints import complain
from holdfast.cluster import parse_worker
from holdfast.config import NetworkConfig
from holdfast.errors import ConfigError, HandshakeFailed, HoldfastError
from holdfast.host import instruction_set
from holdfast.host.resources import machine_name
from holdfast.job_reference import Reference
from holdfast.names import WORKER
from holdfast.protocol import messages
from holdfast.protocol.connection import connect
from holdfast.protocol.signals import hold_back
from holdfast.protocol.spec import (
    BY_HAND_VARIABLE,
    REJOIN_VARIABLE,
    SPEC_VARIABLE,
    Access,
    WorkerSpec,
    spec_from,
    worker_environment,
)

_EXAMPLES = (
    "holdfast worker --join 127.0.0.1:40123 --run-dir runs/a",
    "holdfast worker --join 127.0.0.1:40123 --secret-file secret --as 1.0",
)
CONNECT_LIMIT_S = 5.0
_ANSWER_LIMIT_S = 30.0
NUM_TRIES, PAUSE_S = 10, 0.5


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "worker",
        help="join a run that lacks a worker",
        description="Take the place of a missing worker: copies the state of its stage from\n"
        "another worker while training goes on, then takes part from the next step on.\n"
        "'holdfast train' shows the whole command at its start.",
        **help_text.parts(_EXAMPLES),
    )
    parser.add_argument("--join", metavar="HOST:PORT", required=True, help="where the run listens")
    parser.add_argument("--run-dir", metavar="DIR", help="the run's directory: its secret is there")
    parser.add_argument(
        "--secret-file",
        metavar="FILE",
        help=f"the run's secret, instead (also {SECRET_VARIABLE} or {SECRET_FILE_VARIABLE} in the "
        "environment)",
    )
    parser.add_argument(
        "--certificate",
        default="",
        metavar="SHA256",
        help="fingerprint of the run's certificate, if it speaks TLS and --run-dir is not given",
    )
    parser.add_argument(
        "--as", dest="name", default="", metavar="WORKER", help="the place to take, such as 1.0"
    )
    parser.add_argument(
        "--job", metavar="JOB.py", help="this machine's copy of the job file (default: the run's)"
    )
    parser.add_argument(
        "--listen",
        default="",
        metavar="HOST",
        help="where other workers reach this one (default: the address that leads to the run)",
    )
    parser.add_argument(
        "--advertise", default="", metavar="HOST", help="what they are told instead, e.g. a name"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    instruction_set.prepare(complain)
    text, rejoins = os.environ.pop(SPEC_VARIABLE, ""), os.environ.pop(REJOIN_VARIABLE, "")
    secret = taken_over(os.environ)
    if text and secret is not None:
        spec = spec_from(text, secret)
        return _come_back(spec) if rejoins else _work(spec)
    access = _access(args)
    if args.name and not WORKER.fits(args.name):
        raise ConfigError(f"--as {args.name}: not a worker: {args.name!r}; expected {WORKER.what}")
    job = Path(args.job).resolve() if args.job else None
    if job is not None and not job.is_file():
        raise ConfigError(f"--job {args.job}: no such job file")
    for flag, host in (("--listen", args.listen), ("--advertise", args.advertise)):
        if host and not is_host(host):
            raise ConfigError(f"{flag} {host}: expected {HOST}")
    spec = _asked_by_hand(access, args, job)
    os.environ[BY_HAND_VARIABLE] = "1"
    sys.stdout.write(f"joining as worker {spec.worker} (pid {os.getpid()})\n")
    sys.stdout.flush()
    return become_worker(spec)


def _access(args: argparse.Namespace) -> Access:
    host, port = parse_host_port(args.join, "--join")
    if args.run_dir and not args.secret_file:
        secret = read_secret(Path(args.run_dir) / SECRET_FILE, "--run-dir: the run's secret")
    else:
        found = given_secret(args.secret_file, os.environ)
        if found is None:
            raise ConfigError(
                f"--join {args.join}: the run's secret is missing; add --run-dir DIR or "
                f"--secret-file FILE, or set {SECRET_VARIABLE}"
            )
        secret = found
    return Access(host, port, secret, 0, _certificate(args))


def _certificate(args: argparse.Namespace) -> str:
    """Empty: the run speaks without TLS."""
    if args.certificate:
        return parse_fingerprint(args.certificate, "--certificate")
    key = kept_key(Path(args.run_dir)) if args.run_dir else None
    return "" if key is None else key.fingerprint


# --- asking for a place ---


class _Answer(NamedTuple):
    granted: messages.JoinGranted
    generation: int  # which launch of the run this is
    own_host: str  # this machine's address on the way there


def _asked_by_hand(access: Access, args: argparse.Namespace, job: Path | None) -> WorkerSpec:
    """Which code is run is said by the run, which has proven that it is one, or by the user."""
    answer = _ask(access, args.name, _sha256(job) if job else "")
    granted, access = answer.granted, replace(access, generation=answer.generation)
    try:
        reference = _job_here(access, granted, job)
    except HoldfastError as why:
        _give_back(access, granted.worker, str(why))
        if isinstance(why, ConfigError):
            raise
        raise ConfigError(f"--join {access}: the job could not be fetched ({why})") from why
    network = own_network(granted.config.network, answer.own_host, args.listen, args.advertise)
    config = replace(granted.config, network=network)
    return WorkerSpec(
        parse_worker(granted.worker),
        access,
        reference,
        granted.job_sha256,
        config,
        granted.run_dir,
        granted.resumed,
        granted.launch,
    )


def _job_here(access: Access, granted: messages.JoinGranted, copy: Path | None) -> str:
    """The user's copy, the run's bundle, what is installed, or the run's own file."""
    reference = Reference.parse(granted.job)
    if copy is None and granted.bundle:
        limit_s = granted.config.workers.start_limit_s  # then the place is somebody else's
        connection, _ = connect(access, JOINER, "", CONNECT_LIMIT_S)
        try:
            root = fetch(connection, granted.bundle, default_cache(os.environ), limit_s)
        finally:
            connection.close()
        return job_here(granted.job, granted.job_sha256, machine_name(), root)
    if copy is None and reference.module:
        return job_here(granted.job, granted.job_sha256, machine_name())
    reference = reference.copied_to(copy) if copy else reference
    path = reference.path
    if not path.is_file() or _sha256(path) != granted.job_sha256:
        raise ConfigError(
            f"job file {path}: is not the one that the run was started with; "
            "put it back, or name a copy of it with --job"
        )
    return str(reference)


def own_network(of_run: NetworkConfig, own_host: str, listen: str, advertise: str) -> NetworkConfig:
    """Where this worker listens: its machine has other addresses than the launcher's.

    Whoever comes over loopback is on the same machine, and does as the run's own workers do.
    """
    if is_loopback(own_host) and not listen and not advertise:
        return of_run
    listen = listen or own_host
    told = advertise or (own_host if is_wildcard(listen) else "")
    return replace(of_run, listen=listen, advertise=told)


def _come_back(spec: WorkerSpec) -> int:
    """After a hang: the run may be busy with something else for a while.

    Nobody has asked for it by hand, so nobody wants to hear why it does not work. It runs the
    code that it ran before, whoever answers.
    """
    for _ in range(NUM_TRIES):
        try:
            granted = _ask(spec.access, str(spec.worker), spec.job_sha256).granted
        except HoldfastError:
            time.sleep(PAUSE_S)
            continue
        if granted.job_sha256 != spec.job_sha256:
            return 1
        return become_worker(replace(spec, worker=parse_worker(granted.worker)))
    return 1


def _ask(access: Access, name: str, job_sha256: str) -> _Answer:
    try:
        connection, generation = connect(access, JOINER, name, CONNECT_LIMIT_S)
    except HandshakeFailed as why:
        raise ConfigError(f"--join {access}: no run with this secret is there ({why})") from why
    except HoldfastError as why:
        raise ConfigError(
            f"--join {access}: nobody answers there ({why}); "
            "the address is in the first lines of 'holdfast train'"
        ) from why
    try:
        request = messages.JoinRequest(
            worker=name,
            pid=os.getpid(),
            fingerprint={"holdfast": holdfast.__version__},
            job_sha256=job_sha256,
        )
        own_host = connection.own_host
        connection.send(request)
        answers = connection.read_within(_ANSWER_LIMIT_S)
    except HoldfastError as why:
        raise ConfigError(f"--join {access}: no answer from the run ({why})") from why
    finally:
        connection.close()
    for answer in answers:
        if isinstance(answer, messages.JoinGranted):
            return _Answer(answer, generation, own_host)
        if isinstance(answer, messages.Stop):
            raise ConfigError(f"--join {access}: {answer.reason}")
    raise ConfigError(f"--join {access}: no answer within {_ANSWER_LIMIT_S:g} s")


def _give_back(access: Access, worker: str, reason: str) -> None:
    """The place that was granted: others may have it at once."""
    failed = messages.Failed(
        worker=worker, lost="", exit_code=ConfigError.exit_code, reason=reason, details=""
    )
    with suppress(HoldfastError):  # it is free after a while in any case
        connection, _ = connect(access, WORKER_ROLE, worker, CONNECT_LIMIT_S)
        connection.send(failed)
        connection.close()


# --- being a worker ---


def become_worker(spec: WorkerSpec) -> NoReturn:
    """Start over as the worker: threads and memory are set up before torch is loaded."""
    _start_over(spec, worker_environment(spec.config))


def come_again(spec: WorkerSpec) -> NoReturn:
    """The run has given this worker up, as one that hung. All its tensors are past: begin anew.

    It keeps what it was told when it was started: whose run it is, and which code it runs.
    """
    _start_over(spec, os.environ | {REJOIN_VARIABLE: "1"})


def _start_over(spec: WorkerSpec, environment: Mapping[str, str]) -> NoReturn:
    descriptor = hand_over(spec.access.secret)
    os.set_inheritable(descriptor, True)
    more = {SPEC_VARIABLE: spec.to_text(), FD_VARIABLE: str(descriptor)}
    words = [sys.executable, "-m", "holdfast", "worker", "--join", str(spec.access)]
    hold_back()
    os.execve(sys.executable, words, {**environment, **more})


def _work(spec: WorkerSpec) -> int:
    os.umask(0o077)  # it writes into the run directory
    from holdfast.baselines.worker_registry import keeping_of
    from holdfast.runtime.worker import process, warm  # torch: a second that only this process pays

    warm.prepare(spec.config)
    by_hand = bool(os.environ.get(BY_HAND_VARIABLE))
    (signals.defer if by_hand else signals.leave_to_launcher)()
    code = process.run_process(spec, keeping_of)
    if code == process.CUT_OFF:
        come_again(spec)
    if by_hand:
        sys.stdout.write(f"worker {spec.worker}: the run is over, or has no place for it\n")
    return code


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
