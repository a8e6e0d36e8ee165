"""A process that loads micro-batches for the worker that has forked it."""

import os
import signal
import stat
from contextlib import suppress
from multiprocessing.connection import Connection

import torch

from holdfast.data.batches import Batches
from holdfast.data.parcel import Parcel
from holdfast.errors import ConfigError, DataError
from holdfast.host.parentage import Forker, end_with


def run_loader(batches: Batches, connection: Connection, parent: Forker) -> None:
    """Until the worker closes the connection, or is gone."""
    end_with(parent)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # it is the worker that is meant
        signal.signal(number, signal.SIG_IGN)
    _let_go_of_sockets(connection.fileno())
    torch.set_num_threads(1)  # the threads of the worker were not forked
    with suppress(EOFError, OSError):
        while True:
            step, microbatch = connection.recv()
            _parcel(batches, step, microbatch).send(connection)


def _parcel(batches: Batches, step: int, microbatch: int) -> Parcel:
    try:
        return Parcel((batches.load(step, microbatch), batches.position(step)))
    except ConfigError as why:  # DataError among them
        said = type(why)(str(why))
        for note in getattr(why, "__notes__", ()):
            said.add_note(note)
        return Parcel(said)
    except Exception as why:
        return Parcel(
            DataError(
                f"step {step + 1}, micro-batch {microbatch} cannot be sent from the process that "
                f"has loaded it: {type(why).__name__}: {why}; let Job.collate return tensors, "
                "numbers and text, or set data.workers=0"
            )
        )


def _let_go_of_sockets(own: int) -> None:
    """A connection that the worker closes must not stay open here. The numbers stay taken: objects
    that were forked may close them later."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        with suppress(OSError):  # of the listing itself
            if number != own and stat.S_ISSOCK(os.fstat(number).st_mode):
                os.dup2(nothing, number)
    os.close(nothing)
