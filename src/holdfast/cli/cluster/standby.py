"""``holdfast standby``: waits beside a run, and takes over when its coordinator dies."""

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

from holdfast.addresses import parse_host_port
from holdfast.api.settings import own_place
from holdfast.api.standing_by import Standby, Vigil
from holdfast.api.taking_over import Heir
from holdfast.auth.secret import given_secret
from holdfast.cli import help_text
from holdfast.cli.flags import resume_command
from holdfast.cli.terminal.complaints import complain
from holdfast.cli.terminal.showing import shown_to_the_end
from holdfast.errors import ConfigError
from holdfast.host import instruction_set
from holdfast.journal_address import parse_journal_address

_EXAMPLES = (
    "holdfast standby runs/a",
    "holdfast standby --control etcd://10.0.0.7:2379/run-a --ticket runs/a.ticket "
    "--listen 10.0.0.2:40123",
)
_CODES = {
    "0": "the run has ended: without this one, or after it has taken over",
    "1": "it has taken over, and the run failed or was interrupted",
    "2": "bad input",
    "3": "another one has taken over from this one",
    "130": "interrupted while it waited; the run goes on",
}
_REDRAW_S = 1.0


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "standby",
        help="take over a run when its coordinator dies",
        description="Wait beside a run until its coordinator leads no more, then go on with it in\n"
        "the same step: as 'holdfast train' does from there. On the same machine name\n"
        "the run directory; on another one the journal in etcd, the run's ticket, and\n"
        "the address that the run was told with --standby.",
        **help_text.parts(_EXAMPLES, codes=_CODES),
    )
    parser.add_argument("directory", metavar="DIR", nargs="?", help="of a run on this machine")
    parser.add_argument("--control", metavar="ADDRESS", help="its journal: etcd://HOST:2379/PREFIX")
    parser.add_argument("--ticket", metavar="FILE", help="of the run; it is written anew later")
    parser.add_argument(
        "--listen", metavar="HOST:PORT", help="where workers and agents will look for this one"
    )
    parser.add_argument(
        "--advertise", metavar="HOST", default="", help="what they were told instead, e.g. a name"
    )
    parser.add_argument(
        "--run-dir",
        metavar="DIR",
        help="with --control: where results go from there on (default: runs/PREFIX)",
    )
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="once it has taken over: show why and how"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    instruction_set.prepare(complain)
    heir, line = _heir(args), _Line()
    standby = Standby(heir, warn=complain, show=line.show, resume_with=resume_command)
    try:
        taken = standby.wait()
    finally:
        line.end()
    if taken is None:
        sys.stdout.write("the run has ended; nobody has to take over\n")
        return 0
    parallel = taken.config.parallel
    first = f"taking over: {parallel.pipelines * parallel.stages} workers ...\n"
    return shown_to_the_end(taken, first, str(heir.run_dir), verbose=args.verbose)


def _heir(args: argparse.Namespace) -> Heir:
    secret = given_secret(None, os.environ)
    ticket = Path(args.ticket) if args.ticket else None
    if args.control is None:
        if args.directory is None:
            raise ConfigError(
                "standby: expected DIR, of a run on this machine, or --control with the journal of "
                "one on another machine"
            )
        if args.run_dir is not None:
            raise ConfigError(
                f"--run-dir {args.run_dir}: expected with --control only; {args.directory} is "
                "where results go"
            )
        place = Path(args.directory).absolute()
        if not place.is_dir():
            raise ConfigError(f"{args.directory}: no such directory; expected that of a run")
        return Heir(place, own_place(_settings(args)), secret, ticket)
    if args.directory is not None:
        raise ConfigError("standby: expected DIR or --control, not both")
    prefix = parse_journal_address(args.control, "--control").prefix
    if args.listen is None:
        raise ConfigError("standby: expected --listen HOST:PORT, as 'holdfast train --standby' had")
    run_dir = Path(args.run_dir or f"runs/{prefix.rpartition('/')[2]}").absolute()
    return Heir(run_dir, own_place(_settings(args)), secret, ticket)


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if args.control is not None:
        values["control.journal"] = args.control
    if args.listen is not None:
        values["network.listen"], values["control.port"] = parse_host_port(args.listen, "--listen")
    if args.advertise:
        values["network.advertise"] = args.advertise
    return values


class _Line:
    """One that is drawn anew on a terminal; else one whenever there is news."""

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._shown, self._drawn_s = "", 0.0

    def show(self, standing: Vigil) -> None:
        words = _words(standing, with_numbers=self._is_terminal)
        is_due = time.monotonic() - self._drawn_s > _REDRAW_S
        if words == self._shown or (self._is_terminal and not is_due and self._shown):
            return
        self._shown, self._drawn_s = words, time.monotonic()
        before, after = ("\r\033[K", "") if self._is_terminal else ("", "\n")
        sys.stdout.write(f"{before}{words}{after}")
        sys.stdout.flush()

    def end(self) -> None:
        if self._is_terminal and self._shown:
            sys.stdout.write("\n")


def _words(standing: Vigil, *, with_numbers: bool) -> str:
    told = f"{standing.leader} leads the run" if standing.leader else "nobody is known to lead"
    if with_numbers and standing.num_events:
        told += f"; step {standing.step}, {standing.num_events} events copied"
    return f"standing by: {told}{f'; {standing.trouble}' if standing.trouble else ''}"
