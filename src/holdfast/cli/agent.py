"""``holdfast agent``: started by ``holdfast train``; starts and watches the workers."""

import argparse
import os
import signal

from holdfast import instruction_set
from holdfast.control.agent import Agent
from holdfast.control.launcher import TOKEN_VARIABLE
from holdfast.errors import ConfigError, HoldfastError
from holdfast.protocol.connection import connect

_CONNECT_LIMIT_S = 10.0


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser("agent", help="(internal) starts and watches workers for train")
    parser.add_argument("--connect", metavar="HOST:PORT", required=True, help="the launcher")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    host, _, port = args.connect.rpartition(":")
    token = os.environ.pop(TOKEN_VARIABLE, "")
    if not host or not port.isdigit() or not token:
        raise ConfigError(
            f"agent --connect {args.connect}: expected HOST:PORT and {TOKEN_VARIABLE} in the "
            "environment; it is started by 'holdfast train', not by hand"
        )
    # Ctrl-C reaches the whole process group: the launcher decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    instruction_set.prepare()
    from holdfast.runtime import process, warm  # torch: a second that only this process pays

    try:
        connection = connect(host, int(port), _CONNECT_LIMIT_S)
    except HoldfastError:
        return 1  # the launcher has ended meanwhile and needs no word from here
    return Agent(connection, (host, int(port)), token, warm.prepare, process.run_process).run()
