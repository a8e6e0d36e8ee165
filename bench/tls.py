"""What TLS costs: control connections and tensors, with it and without, turn by turn.

    .venv/bin/python bench/tls.py [--rounds 5] [--messages 2000] [--connections 100] [--tensors 8]

Both ends are processes of their own on loopback. Figures are medians over the rounds; processor
time is that of both ends together, from /proc/PID/schedstat. The last line is JSON.
"""

import argparse
import json
import multiprocessing
import selectors
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import torch

from holdfast.auth.certificate import TlsKey, new_key
from holdfast.auth.handshake import AGENT, COORDINATOR, Identity
from holdfast.auth.tls import TlsListener
from holdfast.cluster import WorkerId
from holdfast.control.io.entry.strangers import Stranger, Strangers
from holdfast.errors import HoldfastError
from holdfast.protocol.connection import Connection, connect
from holdfast.protocol.messages import Halt
from holdfast.protocol.spec import Access
from holdfast.transport.base import Channel, Tag
from holdfast.transport.tcp.transport import TcpTransport

SECRET = bytes(range(32))
GENERATION = 1
LIMIT_S = 60.0
TENSOR_BYTES = 64 << 20
SMALL_BYTES = 8 << 10
SENDER, RECEIVER = WorkerId(0, 0), WorkerId(0, 1)
WAYS = {"plain": False, "tls": True}
SPAWN = multiprocessing.get_context("spawn")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=2000, help="round trips a round")
    parser.add_argument("--connections", type=int, default=100, help="set up in a round")
    parser.add_argument("--tensors", type=int, default=8, help="of 64 MB, sent in a round")
    args = parser.parse_args()
    found: dict[str, list[float]] = {}
    key = new_key("bench/tls.py")
    for number in range(args.rounds):
        for way, encrypts in WAYS.items():
            figures = control(key if encrypts else None, args.messages, args.connections)
            figures |= tensors(args.tensors, args.messages, encrypts=encrypts)
            for name, value in figures.items():
                found.setdefault(f"{way}_{name}", []).append(value)
        print(f"round {number + 1} of {args.rounds} is done", flush=True)
    medians = {name: round(statistics.median(values), 4) for name, values in found.items()}
    for name in [name.removeprefix("plain_") for name in medians if name.startswith("plain_")]:
        plain, tls = medians[f"plain_{name}"], medians[f"tls_{name}"]
        print(f"{name:28} plain {plain:10.4f}   TLS {tls:10.4f}   x{tls / plain:.2f}")
    print(json.dumps(medians))


# --- control connections ---


def control(key: TlsKey | None, num_messages: int, num_connections: int) -> dict[str, float]:
    with other_process(serve_control, key) as (pipe, pid):
        certificate = "" if key is None else key.fingerprint
        access = Access(*pipe.recv(), SECRET, GENERATION, certificate)
        connection, _ = connect(access, AGENT, "", LIMIT_S)
        trips = [timed(lambda: round_trip(connection)) for _ in range(num_messages)]
        before_s = cpu_s(pid)
        opened = [timed(lambda: connect(access, AGENT, "", LIMIT_S)[0].close())]
        for _ in range(num_connections - 1):
            opened.append(timed(lambda: connect(access, AGENT, "", LIMIT_S)[0].close()))
        server_s = cpu_s(pid) - before_s
        connection.close()
    return {
        "round_trip_us": 1e6 * statistics.median(trips),
        "set_up_ms": 1e3 * statistics.median(opened),
        "set_up_server_cpu_ms": 1e3 * server_s / num_connections,
    }


def round_trip(connection: Connection) -> None:
    connection.send(Halt(epoch=7))
    assert connection.read_within(LIMIT_S) == [Halt(epoch=7)]


def serve_control(pipe: Pipe, key: TlsKey | None) -> None:
    """As the launcher's server takes strangers and reads; every message is sent back."""
    listener: socket.socket = socket.create_server(("127.0.0.1", 0), backlog=256)
    listener = listener if key is None else TlsListener.of(listener, key)
    selector = selectors.DefaultSelector()
    me = Identity(COORDINATOR, "", GENERATION)
    strangers = Strangers(selector, listener, SECRET, me, 64)
    strangers.open()
    selector.register(pipe, selectors.EVENT_READ)
    pipe.send(listener.getsockname()[:2])
    while True:
        for ready, _ in selector.select():
            if ready.fileobj is pipe:
                return
            if ready.fileobj is listener:
                strangers.accept()
            elif isinstance(ready.fileobj, Stranger):
                if proven := strangers.read(ready.fileobj):
                    _, sock, stamps = proven
                    selector.register(Connection(sock, stamps), selectors.EVENT_READ)
            elif isinstance(ready.fileobj, Connection):
                echo(selector, ready.fileobj)


def echo(selector: selectors.BaseSelector, connection: Connection) -> None:
    try:
        for message in connection.read():
            connection.send(message)
    except HoldfastError:  # it has hung up
        selector.unregister(connection)
        connection.close()


# --- tensors ---


def tensors(num_large: int, num_small: int, *, encrypts: bool) -> dict[str, float]:
    transport = TcpTransport(SENDER, SECRET, encrypts=encrypts)
    with other_process(serve_tensors, transport.listen(), num_large, num_small, encrypts) as (
        pipe,
        pid,
    ):
        transport.connect({RECEIVER: pipe.recv()})
        small, large = torch.zeros(SMALL_BYTES // 4), torch.rand(TENSOR_BYTES // 4)

        def there_and_back(step: int) -> None:
            transport.send(RECEIVER, tag(step), small)
            transport.receive(RECEIVER, tag(step), LIMIT_S)

        trips = [timed(lambda step=step: there_and_back(step)) for step in range(num_small)]
        before_s = cpu_s(pid) + time.process_time()

        def stream() -> None:
            for step in range(num_small, num_small + num_large):
                transport.send(RECEIVER, tag(step), large)
            transport.receive(RECEIVER, tag(num_small), LIMIT_S)

        took_s = timed(stream)
        spent_s = cpu_s(pid) + time.process_time() - before_s
        gigabytes = num_large * TENSOR_BYTES / 1e9
    transport.close()
    return {
        "tensor_round_trip_us": 1e6 * statistics.median(trips),
        "tensor_gb_s": gigabytes / took_s,
        "tensor_cpu_s_gb": spent_s / gigabytes,
    }


def tag(step: int) -> Tag:
    return Tag(Channel.ACTIVATION, step)


def serve_tensors(
    pipe: Pipe, sender: tuple[str, int], num_large: int, num_small: int, encrypts: bool
) -> None:
    transport = TcpTransport(RECEIVER, SECRET, encrypts=encrypts)
    pipe.send(transport.listen())
    transport.connect({SENDER: sender})
    for step in range(num_small):
        transport.send(SENDER, tag(step), transport.receive(SENDER, tag(step), LIMIT_S))
    for step in range(num_small, num_small + num_large):
        transport.receive(SENDER, tag(step), LIMIT_S)
    transport.send(SENDER, tag(num_small), torch.zeros(1))
    pipe.recv()  # until all is measured
    transport.close()


# --- the other process, and clocks ---


@contextmanager
def other_process(target: Callable[..., None], *arguments: object) -> Iterator[tuple[Pipe, int]]:
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=target, args=(theirs, *arguments), daemon=True)
    process.start()
    try:
        yield ours, process.pid
    finally:
        ours.send("over")
        process.join(LIMIT_S)


def timed(call: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    call()
    return time.perf_counter() - started_s


def cpu_s(pid: int) -> float:
    """Of all its threads that live."""
    paths = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(path.read_text().split()[0]) for path in paths) / 1e9


if __name__ == "__main__":
    main()
