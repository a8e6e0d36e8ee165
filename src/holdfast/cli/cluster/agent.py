"""``holdfast agent``: starts and watches the workers of one machine for a run."""

import argparse
import itertools
import os
import shlex
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import holdfast
from holdfast.addresses import HOST, is_host, parse_host_port
from holdfast.auth.handshake import AGENT
from holdfast.auth.secret import hand_over, taken_over
from holdfast.auth.ticket import Ticket, encoded, parse_ticket, read_ticket
from holdfast.bundle.fetching import fetch
from holdfast.bundle.locating import job_here
from holdfast.bundle.unpacking import cached, default_cache
from holdfast.cli import help_text
from holdfast.cli.cluster.departure import Departures, end_when_told
from holdfast.cli.terminal import signals
from holdfast.cli.terminal.complaints import complain, say
from holdfast.cli.worker import come_again, own_network
from holdfast.config import RunConfig
from holdfast.control.io.agents.agent import Agent
from holdfast.errors import ConfigError, HandshakeBroken, HandshakeFailed, HoldfastError
from holdfast.host import instruction_set, resources
from holdfast.names import CACHE_VARIABLE, MACHINE, MOST_SLOTS
from holdfast.protocol import messages
from holdfast.protocol.connection import Connection, connect
from holdfast.protocol.spec import Access, WorkerSpec, worker_environment
from holdfast.storage.home import scratch_name
from holdfast.storage.scratch import clear_left, scratch_at, scratch_base

_EXAMPLES = (
    "holdfast agent --ticket ticket.json --slots 4",
    "holdfast agent --ticket ticket.json --name node-7 --advertise 10.0.0.7",
)
_CODES = {
    "0": "the run is over",
    "1": "the run could not be reached any more",
    "2": "bad input, or there is no place for this machine in the run",
}
TRY_S, DRAIN_LIMIT_S = 600.0, 60.0
_TRY_PAUSE_S = 1.0
_CALL_S = 10.0  # of one try: who calls anew notices sooner that a network is healed
_ANSWER_LIMIT_S, _BUNDLE_LIMIT_S = 30.0, 600.0
_TICKET_FD, _KNOWS = "HOLDFAST_TICKET_FD", "HOLDFAST_AGENT"
_WAS_THERE = "HOLDFAST_AGENT_WAS_THERE"  # this machine has been part of the run


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "agent",
        help="let a run use this machine",
        description="Start and watch workers on this machine for a run on another one.\n"
        "'holdfast train --machines N' writes the ticket, RUN_DIR.ticket: bring it here\n"
        "by a safe way, readable for you only.",
        **help_text.parts(_EXAMPLES, codes=_CODES),
    )
    parser.add_argument("--ticket", metavar="FILE", help="of the run; - for standard input")
    parser.add_argument(
        "--slots", type=int, metavar="N", help="workers at one time (default: one a core)"
    )
    parser.add_argument("--name", metavar="NAME", help="of this machine (default: its host name)")
    parser.add_argument(
        "--listen", default="", metavar="HOST", help="where its workers are reached by others"
    )
    parser.add_argument(
        "--advertise", default="", metavar="HOST", help="what others are told instead, e.g. a name"
    )
    parser.add_argument(
        "--work-dir", metavar="DIR", help="for files of its workers (default: a temporary one)"
    )
    parser.add_argument(
        "--try-for",
        type=float,
        default=TRY_S,
        metavar="S",
        help=f"how long it tries to reach the run (default: {TRY_S:g})",
    )
    _add_leaving(parser)
    # What 'holdfast train' says to the agent of its own machine.
    parser.add_argument("--connect", help=argparse.SUPPRESS)
    parser.add_argument("--generation", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--certificate", default="", help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def _add_leaving(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--drain-limit",
        type=float,
        default=DRAIN_LIMIT_S,
        metavar="S",
        help="when this machine is to go (SIGTERM, Ctrl-C, or the two below): time to hand over "
        f"what its workers hold (default: {DRAIN_LIMIT_S:g}); a second signal ends it at once",
    )
    parser.add_argument("--drain-file", metavar="FILE", help="it is to go when this file is there")
    parser.add_argument(
        "--drain-command",
        metavar="COMMAND",
        help="run every 5 s; it is to go when that ends with code 0, e.g. a preemption notice",
    )


def run(args: argparse.Namespace) -> int:
    if args.connect:
        return _run_local(args)
    if not args.ticket:
        raise ConfigError("agent: expected --ticket FILE, which 'holdfast train --machines' writes")
    _check(args)
    end_when_told()
    ticket = _ticket(args.ticket)
    with _scratch(args.name, ticket.secret) as folder:
        if not os.environ.pop(_KNOWS, ""):
            _ask(args, ticket)
        return _run_for(args, ticket, folder)


@contextmanager
def _scratch(machine: str, secret: bytes) -> Iterator[Path]:
    """For files of this run on this machine. What others who were killed have left is removed."""
    base = scratch_base(os.environ)
    scratch = scratch_at(base / scratch_name(secret))
    try:
        folder = scratch.hold()
    except OSError as why:
        raise ConfigError(
            f"machine {machine}: no directory for files of the run in {base} "
            f"({why.strerror}); make room there, or set {CACHE_VARIABLE} to a directory of your own"
        ) from why
    clear_left(base)
    try:
        yield folder
    finally:
        scratch.remove()


def _check(args: argparse.Namespace) -> None:
    args.name = args.name or resources.machine_name()
    if not MACHINE.fits(args.name):
        raise ConfigError(f"--name {args.name}: expected {MACHINE.what}")
    args.slots = resources.usable_cores() if args.slots is None else args.slots
    if not 1 <= args.slots <= MOST_SLOTS:
        raise ConfigError(f"--slots {args.slots}: expected 1 to {MOST_SLOTS}")
    for flag, host in (("--listen", args.listen), ("--advertise", args.advertise)):
        if host and not is_host(host):
            raise ConfigError(f"{flag} {host}: expected {HOST}")
    for flag, seconds in (("--try-for", args.try_for), ("--drain-limit", args.drain_limit)):
        if not 0 <= seconds < float("inf"):
            raise ConfigError(f"{flag} {seconds}: expected seconds, 0 or more")
    if args.drain_command and not shlex.split(args.drain_command):
        raise ConfigError("--drain-command: is empty; expected a program")


def _ticket(given: str) -> Ticket:
    handed = os.environ.pop(_TICKET_FD, "")
    if handed.isdecimal():
        with open(int(handed), "rb") as file:
            return parse_ticket(file.read(), "ticket")
    if given == "-":
        return parse_ticket(sys.stdin.buffer.read(), "ticket from standard input")
    return read_ticket(Path(given))


# --- a run on another machine ---


def _reached(args: argparse.Namespace, ticket: Ticket) -> tuple[Connection, Access]:
    """As soon as it is there. ConfigError: it is another run, or nobody is there for too long."""
    places = Access.by(ticket).places()
    deadline_s = time.monotonic() + args.try_for
    for access in itertools.cycle(places):
        left_s = deadline_s - time.monotonic()
        try:
            limit_s = min(max(left_s, _TRY_PAUSE_S), _CALL_S / len(places))
            connection, generation = connect(access, AGENT, "", limit_s)
            return connection, replace(access, generation=generation)
        except HoldfastError as why:
            is_other = isinstance(why, HandshakeFailed) and not isinstance(why, HandshakeBroken)
            if is_other and len(places) == 1:
                raise ConfigError(
                    f"machine {args.name}: --ticket {args.ticket}: no run with this secret is at "
                    f"{access} ({why}); the ticket is old, or of another run: bring the one that "
                    "the run has written at its start"
                ) from why
            if left_s < _TRY_PAUSE_S:
                kind = HoldfastError if os.environ.get(_WAS_THERE) else ConfigError
                raise kind(
                    f"machine {args.name}: --ticket {args.ticket}: {_unreached(ticket, why)}"
                ) from why
        time.sleep(_TRY_PAUSE_S / len(places))
    raise AssertionError("it goes round and round")


def _unreached(ticket: Ticket, why: HoldfastError) -> str:
    if isinstance(why.__cause__, socket.gaierror):
        return (
            f"the name {ticket.host} does not resolve here ({why.__cause__.strerror}); add it to "
            "the name service, or have the run advertise an address (network.advertise)"
        )
    return f"nobody answers at {ticket.address} ({why}); is the run there, and its port open?"


def _ask(args: argparse.Namespace, ticket: Ticket) -> NoReturn:
    """What is to be run, and then anew, with memory and threads set up before torch is loaded."""
    say(f"holdfast agent: {args.name} with {args.slots} slots, for the run at {ticket.address}")
    connection, _ = _reached(args, ticket)
    try:
        connection.send(messages.AgentAsk())
        answers = connection.read_within(min(_ANSWER_LIMIT_S, args.try_for + 1))
        for answer in answers:
            if isinstance(answer, messages.RunTold):
                _fetch_job(args.name, connection, answer)
    finally:
        connection.close()
    for answer in answers:
        if isinstance(answer, messages.RunTold):
            _begin_again(ticket, worker_environment(answer.config) | {_KNOWS: "1"})
        if isinstance(answer, messages.Stop):
            raise ConfigError(f"machine {args.name}: --ticket {args.ticket}: {answer.reason}")
    raise ConfigError(
        f"machine {args.name}: --ticket {args.ticket}: no answer from the run at {ticket.address}; "
        "is it busy? Start this agent again"
    )


def _fetch_job(machine: str, connection: Connection, told: messages.RunTold) -> None:
    """Before any worker waits for it. ConfigError: it cannot be had on this machine."""
    try:
        if told.bundle:
            fetch(connection, told.bundle, default_cache(os.environ), _BUNDLE_LIMIT_S)
    except HoldfastError as why:
        raise ConfigError(f"machine {machine}: {why}") from why
    _job_of(told, machine)


def _job_of(order: messages.RunTold | messages.StartWorkers, machine: str) -> str:
    root = cached(default_cache(os.environ), order.bundle) if order.bundle else None
    return job_here(order.job, order.job_sha256, machine, root)


def _begin_again(ticket: Ticket, environment: dict[str, str]) -> NoReturn:
    descriptor = hand_over(encoded(ticket))
    os.set_inheritable(descriptor, True)
    words = [sys.executable, "-m", "holdfast", *sys.argv[1:]]
    os.execve(sys.executable, words, {**environment, _TICKET_FD: str(descriptor)})


def _run_for(args: argparse.Namespace, ticket: Ticket, folder: Path) -> int:
    os.umask(0o077)
    run_worker, prepare = _worker_parts(comes_again=False)  # this agent is told to start another
    connection, access = _reached(args, ticket)
    own_host = connection.own_host
    work_dir = Path(args.work_dir or folder / f"work-{args.name}").absolute()

    def adapted(order: messages.StartWorkers) -> messages.StartWorkers:
        work_dir.mkdir(parents=True, exist_ok=True)
        network = own_network(order.config.network, own_host, args.listen, args.advertise)
        config = replace(order.config, network=network)
        job = _job_of(order, args.name)
        return replace(order, job=job, run_dir=str(work_dir), config=config)

    hello = _hello(args.name, args.slots)
    leaves = Departures(args.drain_limit, args.drain_file, args.drain_command)
    leaves.listen()
    agent = Agent(connection, access, hello, prepare, run_worker, say, adapted, leaves)
    code = agent.run()
    if code:
        say(f"holdfast agent: the run at {ticket.address} is not heard any more; trying again")
        _begin_again(ticket, os.environ | {_WAS_THERE: "1"})
    say(f"holdfast agent: {agent.ended_for}")
    return code


def _hello(machine: str, slots: int) -> messages.AgentHello:
    return messages.AgentHello(
        machine=machine,
        slots=slots,
        memory_bytes=resources.memory_bytes(),
        devices=resources.devices(),
        pid=os.getpid(),
        fingerprint={"holdfast": holdfast.__version__},
    )


# --- a run on this machine ---


def _run_local(args: argparse.Namespace) -> int:
    host, port = parse_host_port(args.connect, "agent --connect")
    secret = taken_over(os.environ)
    if secret is None:
        raise ConfigError(
            f"agent --connect {args.connect}: expected the run's secret through a pipe; it is "
            "started by 'holdfast train', not by hand"
        )
    os.umask(0o077)  # its workers write into the run directory
    access = Access(host, port, secret, args.generation, args.certificate)
    signals.ignore()
    run_worker, prepare = _worker_parts(comes_again=True)
    try:
        connection, _ = connect(access, AGENT, "", args.try_for)
    except HoldfastError:
        return 1  # the launcher has ended meanwhile and needs no word from here
    hello = _hello(resources.machine_name(), MOST_SLOTS)
    return Agent(connection, access, hello, prepare, run_worker, say).run()


def _worker_parts(
    *, comes_again: bool
) -> tuple[Callable[[WorkerSpec], int], Callable[[RunConfig], None]]:
    """Loads torch: a second that only this process pays."""
    instruction_set.prepare(complain)
    from holdfast.baselines.worker_registry import keeping_of
    from holdfast.runtime.worker import process, warm

    def run_worker(spec: WorkerSpec) -> int:
        signals.leave_to_launcher()
        code = process.run_process(spec, keeping_of)
        if comes_again and code == process.CUT_OFF:
            come_again(spec)
        return code

    return run_worker, warm.prepare
