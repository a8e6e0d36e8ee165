"""``holdfast agent``: started by ``holdfast train``; starts and watches the workers."""

import argparse
import os

from holdfast.addresses import parse_host_port
from holdfast.auth.handshake import AGENT
from holdfast.auth.secret import taken_over
from holdfast.cli.terminal import signals
from holdfast.cli.terminal.complaints import complain, say
from holdfast.cli.worker import come_again
from holdfast.control.io.agent import Agent
from holdfast.errors import ConfigError, HoldfastError
from holdfast.host import instruction_set
from holdfast.protocol.connection import connect
from holdfast.protocol.spec import Access, WorkerSpec


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "agent",
        help="(internal) starts and watches workers for train",
        description="Started by 'holdfast train'; not for use by hand.",
    )
    parser.add_argument("--connect", metavar="HOST:PORT", required=True, help="the launcher")
    parser.add_argument("--generation", type=int, required=True, help="which launch of the run")
    parser.add_argument(
        "--limit", type=float, required=True, metavar="S", help="how long it tries to get in"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    host, port = parse_host_port(args.connect, "agent --connect")
    secret = taken_over(os.environ)
    if secret is None:
        raise ConfigError(
            f"agent --connect {args.connect}: expected the run's secret through a pipe; it is "
            "started by 'holdfast train', not by hand"
        )
    os.umask(0o077)  # its workers write into the run directory
    access = Access(host, port, secret, args.generation)
    signals.ignore()
    instruction_set.prepare(complain)
    from holdfast.baselines.worker_registry import keeping_of
    from holdfast.runtime.worker import process, warm  # torch: a second that only this process pays

    try:
        connection, _ = connect(access, AGENT, "", args.limit)
    except HoldfastError:
        return 1  # the launcher has ended meanwhile and needs no word from here

    def run_worker(spec: WorkerSpec) -> int:
        signals.leave_to_launcher()
        code = process.run_process(spec, keeping_of)
        if code == process.CUT_OFF:
            come_again(spec)
        return code

    return Agent(connection, access, warm.prepare, run_worker, say).run()
