"""``holdfast drain``: let a machine of a run go, without losing anything."""

import argparse
import sys
from pathlib import Path

from holdfast.auth.handshake import OPERATOR
from holdfast.auth.ticket import read_ticket
from holdfast.cli import help_text
from holdfast.errors import ConfigError, HandshakeFailed, HoldfastError
from holdfast.protocol import messages
from holdfast.protocol.connection import Connection, connect
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
    connection = _reached(Access.by(ticket), f"--ticket {args.ticket}")
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
    raise ConfigError(
        f"--ticket {args.ticket}: no answer from the run at {ticket.address}; try again"
    )


def _reached(access: Access, where: str) -> Connection:
    """Whoever leads the run. ConfigError: nobody is to be found; why not where it began."""
    places, failures = access.places(), []
    for place in places:
        try:
            return connect(place, OPERATOR, "", _LIMIT_S / len(places))[0]
        except HandshakeFailed as why:
            failures.append(
                f"{where}: no such run is at {place} ({why}); take the ticket that the run has "
                "written at its start"
            )
        except HoldfastError as why:
            failures.append(
                f"{where}: nobody answers at {place} ({why}); is the run there, and its port open?"
            )
    raise ConfigError(failures[0])
