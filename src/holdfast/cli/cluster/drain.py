"""``holdfast drain``: let a machine of a run go, without losing anything."""

import argparse
import sys
from pathlib import Path

from holdfast.auth.handshake import OPERATOR
from holdfast.auth.ticket import read_ticket
from holdfast.cli import help_text
from holdfast.errors import ConfigError, HandshakeFailed, HoldfastError
from holdfast.protocol import messages
from holdfast.protocol.connection import connect
from holdfast.protocol.spec import Access

_EXAMPLES = ("holdfast drain node-7 --ticket runs/a.ticket",)
_LIMIT_S = 10.0


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "drain",
        help="let a machine of a run go, e.g. for repair",
        description="Its workers get no more work, their stages are held by others, then they and\n"
        "the agent end: nothing is lost, nothing is computed again.",
        **help_text.parts(_EXAMPLES),
    )
    parser.add_argument("machine", metavar="MACHINE", help="its name, as the run shows it")
    parser.add_argument("--ticket", metavar="FILE", required=True, help="of the run")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    ticket = read_ticket(Path(args.ticket))
    access = Access(ticket.host, ticket.port, ticket.secret, 0, ticket.certificate)
    try:
        connection, _ = connect(access, OPERATOR, "", _LIMIT_S)
    except HandshakeFailed as why:
        raise ConfigError(f"--ticket {args.ticket}: no such run is at {access} ({why})") from why
    except HoldfastError as why:
        raise ConfigError(f"--ticket {args.ticket}: nobody answers at {access} ({why})") from why
    try:
        connection.send(messages.DrainMachine(machine=args.machine))
        answers = connection.read_within(_LIMIT_S)
    finally:
        connection.close()
    for answer in answers:
        if isinstance(answer, messages.DrainAnswer) and answer.refused:
            raise ConfigError(answer.refused)
        if isinstance(answer, messages.DrainAnswer):
            sys.stdout.write(f"{args.machine} is being drained; the run says when it has left\n")
            return 0
    raise ConfigError(f"--ticket {args.ticket}: no answer from the run at {access}")
