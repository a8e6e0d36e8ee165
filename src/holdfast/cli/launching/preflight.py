"""``holdfast preflight``: each pair of machines looks at each other before anything is trained."""

import argparse
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.addresses import HOST, is_host, is_wildcard, parse_host_port
from holdfast.auth.secret import new_secret
from holdfast.auth.ticket import Ticket, read_ticket, write_ticket
from holdfast.cli import help_text
from holdfast.cli.report.preflight import report
from holdfast.cli.terminal.complaints import say
from holdfast.errors import ConfigError
from holdfast.host import resources
from holdfast.host.network import open_listener, own_address
from holdfast.launch.clusters import Cluster
from holdfast.launch.kinds import KINDS, open_cluster
from holdfast.launch.preflight.findings import Surveyed
from holdfast.launch.preflight.prober import MachineProber
from holdfast.launch.preflight.survey import Survey
from holdfast.names import MACHINE
from holdfast.observability.text import WIDTH, count

_EXAMPLES = (
    "holdfast preflight --machines 4 --listen 10.0.0.1:40123 --cluster ssh:hosts.toml",
    "holdfast preflight --machines 4 --listen 10.0.0.1:40123 --ticket preflight.ticket",
    "holdfast preflight --ticket preflight.ticket",
)
_CODES = {
    "0": "nothing is wrong; there may be something to check",
    "1": "something is wrong; the lines say what, and what to do",
    "2": "bad input; the last line says what to change",
    "130": "interrupted",
}
_WAIT_S = 120.0


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "preflight",
        help="look at machines before a run",
        description="Each pair of machines looks at each other: ports, versions, rate, latency\n"
        "and clocks. With --machines it coordinates and prints a table; without, it\n"
        "is one of the machines.",
        **help_text.parts(_EXAMPLES, codes=_CODES),
    )
    parser.add_argument("--machines", type=int, metavar="N", help="coordinate, wait for so many")
    parser.add_argument(
        "--listen", metavar="HOST:PORT", help="with --machines: where the others reach this one"
    )
    parser.add_argument(
        "--cluster",
        metavar="KIND[:MORE]",
        help=f"with --machines: what starts it on the others: {KINDS} (default: you do)",
    )
    parser.add_argument(
        "--ticket", metavar="FILE", help="with --machines: written there; without: read from there"
    )
    parser.add_argument(
        "--wait", type=float, default=_WAIT_S, metavar="S", help=f"at most (default: {_WAIT_S:g})"
    )
    parser.add_argument("--name", default="", help="of this machine (default: its host name)")
    parser.add_argument(
        "--advertise", default="", metavar="HOST", help="where others reach this machine"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if not args.wait > 0:
        raise ConfigError(f"--wait {args.wait:g}: expected more than 0 s")
    return _take_part(args) if args.machines is None else _coordinate(args)


def _take_part(args: argparse.Namespace) -> int:
    if not args.ticket:
        raise ConfigError("preflight: expected --machines N, or the --ticket of one that has it")
    name = args.name or resources.machine_name()
    if not MACHINE.fits(name):
        raise ConfigError(f"--name {name}: expected {MACHINE.what}")
    if args.advertise and not is_host(args.advertise):
        raise ConfigError(f"--advertise {args.advertise}: expected {HOST}")
    ticket = read_ticket(Path(args.ticket))
    prober = MachineProber(name, ticket.secret)
    prober.run(ticket.host, ticket.port, advertise=args.advertise, try_s=args.wait)
    return 0


def _coordinate(args: argparse.Namespace) -> int:
    if args.machines < 2:
        raise ConfigError(f"--machines {args.machines}: expected at least 2")
    if not args.listen:
        raise ConfigError("--machines: expected with --listen HOST:PORT, where the others call")
    if not (args.ticket or args.cluster):
        raise ConfigError("--machines: expected with --cluster, or --ticket FILE to be written")
    host, port = parse_host_port(args.listen, "--listen")
    told = args.advertise or (own_address() if is_wildcard(host) else host)
    secret = new_secret()
    with (
        _listener(host, port) as listener,
        _written(args.ticket, Ticket(told, port, secret)) as ticket,
    ):
        survey = Survey(listener, secret, args.machines, say)
        found = _surveyed(args, survey, ticket)
    sys.stdout.write("\n".join(report(found, WIDTH)) + "\n")
    return int(any(finding.is_fatal for finding in found.findings()))


def _surveyed(args: argparse.Namespace, survey: Survey, ticket: Path) -> Surveyed:
    cluster: Cluster | None = None
    missing: set[str] = set()
    asked: int = args.machines

    def is_vain() -> bool:
        for ended in cluster.poll() if cluster is not None else ():
            survey.miss(ended.machine, ended.reason)
            missing.add(ended.machine)
        return len(missing) + survey.num_here >= asked

    try:
        if args.cluster:
            cluster = open_cluster(args.cluster, say, command="preflight")
            asked = cluster.start(ticket, args.machines)
            survey.expect(asked)
        else:
            say(
                f"waiting for {count(asked, 'machine')}; on each run:\n"
                f"  holdfast preflight --ticket {args.ticket}"
            )
        survey.gather(args.wait, is_vain)
        return survey.look()
    finally:
        survey.close()
        if cluster is not None:
            cluster.stop()


@contextmanager
def _listener(host: str, port: int) -> Iterator[socket.socket]:
    try:
        listener = open_listener(host, port, backlog=64)
    except OSError as why:
        raise ConfigError(f"--listen {host}: cannot listen there ({why.strerror})") from why
    with listener:
        yield listener


@contextmanager
def _written(given: str | None, ticket: Ticket) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="holdfast-preflight-") as folder:
        path = Path(given or f"{folder}/ticket")
        write_ticket(path, ticket)
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)
