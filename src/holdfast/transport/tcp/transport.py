"""Tensors over TCP, for CPU tensors: connections to and from every peer, and one mailbox.

Connections carry tensors one way and are made by the sender at its first send. Both ends prove
that they know the run's secret, and who they are. Every wait, in the kernel or not, ends at
``close``.
"""

import math
import socket
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from time import monotonic, monotonic_ns

from torch import Tensor

from holdfast.addresses import LOOPBACK
from holdfast.auth.certificate import new_key
from holdfast.auth.handshake import SECRET_BYTES, WORKER_ROLE, Identity, call
from holdfast.auth.stamps import Stamps
from holdfast.auth.tls import TlsServer, greet
from holdfast.auth.tls_socket import TlsSocket
from holdfast.cluster import WorkerId
from holdfast.errors import ConfigError, EpochPast, HandshakeFailed, PeerLost, TransportClosed
from holdfast.host.network import told_host
from holdfast.transport.base import ALONE, Bundle, Limits, SocketAddress, Statistics, Tag
from holdfast.transport.frame import checksum_of, encode_frame, payload_view, wire_form
from holdfast.transport.link_shaping import UNSHAPED, LinkShaping
from holdfast.transport.receiving import MailboxTransport
from holdfast.transport.tcp.dialing import Dialer
from holdfast.transport.tcp.gate import Gate, TakeCourier, Visitor
from holdfast.transport.tcp.greeting import SessionHello
from holdfast.transport.tcp.incoming import Incoming
from holdfast.transport.tcp.outgoing import Outgoing

_JOIN_LIMIT_S = 5.0
_PAUSE_S = 0.05  # when the process is out of descriptors or threads


class TcpTransport(MailboxTransport):
    def __init__(
        self,
        me: WorkerId,
        secret: bytes,
        listen_host: str = LOOPBACK,
        *,
        advertise_host: str = "",
        listen_port: int = 0,
        generation: int = 0,
        epoch: int = 0,
        limits: Limits | None = None,
        encrypts: bool = False,
    ) -> None:
        if len(secret) != SECRET_BYTES:
            raise ConfigError(f"secret of the run has {len(secret)} bytes: must be {SECRET_BYTES}")
        super().__init__(me, epoch=epoch, limits=limits)
        self._secret, self._identity = secret, Identity(WORKER_ROLE, str(me), generation)
        self._listen_address, self._advertise_host = (listen_host, listen_port), advertise_host
        self._lock = threading.Lock()  # for all below
        self._addresses: dict[WorkerId, SocketAddress] = {}
        self._outgoing: dict[WorkerId, Outgoing] = {}
        self._shapings: dict[WorkerId, LinkShaping] = {}  # of links now and to come
        self._abandoned: list[Outgoing] = []  # kept until their threads have ended
        self._sent_before = (0, 0, 0)  # messages, bytes, reconnections of links no longer kept
        self._incoming: set[Incoming] = set()
        self._encrypts, self._binding = encrypts, b""
        self._gate = Gate(
            f"holdfast-{me}-accept",
            lambda: Visitor(secret, self._identity, self._binding),
            limit_s=self._limits.connect_limit_s,
            admit=self._admit,
            refused=self._count_refused,
            take_courier=lambda *courier: self._take_courier(*courier),
        )
        self._take_courier: TakeCourier = lambda peer, connection, stamps: connection.close()
        self._closing = threading.Event()
        self._refused_connections = self._damaged_messages = 0

    def serve_couriers(self, take: TakeCourier) -> None:
        """Who gets the connections of those who come for files; nobody: they are hung up on."""
        self._take_courier = take

    def listen(self) -> SocketAddress:
        with self._lock:
            self._check_open()
            bound, port = self._gate.open(self._listen_address, self._own_tls())
            return told_host(bound, self._advertise_host), port

    def _own_tls(self) -> TlsServer | None:
        """With a key that nobody else has: the proofs take in its certificate, whichever it is."""
        if not self._encrypts:
            return None
        key = new_key("network.tensor_tls=true")
        self._binding = key.binding
        return TlsServer(key)

    def connect(self, addresses: Mapping[WorkerId, SocketAddress]) -> None:
        with self._lock:
            self._check_open()
            news = {peer: (host, port) for peer, (host, port) in addresses.items()}
            moved = {p for p, address in news.items() if self._addresses.get(p, address) != address}
            self._addresses |= news
            links = [link for peer, link in self._outgoing.items() if peer in addresses]
            self._abandon(link for link in links if link.peer in moved or link.is_broken)
        # The new process may have called already, but not in an epoch before ours.
        epoch = self._mailbox.epoch
        self._hang_up(self._mailbox.drop(lambda peer, since: peer in moved and since < epoch))
        for peer in addresses:
            self._mailbox.expect(peer)

    def disconnect(self, keep: Collection[WorkerId]) -> None:
        with self._lock:
            self._addresses = {p: a for p, a in self._addresses.items() if p in keep}
            self._abandon([link for peer, link in self._outgoing.items() if peer not in keep])
        self._hang_up(self._mailbox.drop(lambda peer, _: peer not in keep))

    def send(self, to: WorkerId, tag: Tag, tensor: Tensor, bundle: Bundle = ALONE) -> None:
        sent_ns, epoch = monotonic_ns(), self._mailbox.epoch
        tensor = wire_form(tensor)
        payload = payload_view(tensor)
        header = encode_frame(
            epoch,
            tag,
            tensor,
            self._limits.payload_bytes,
            bundle=bundle,
            sent_ns=sent_ns,
            checksum=checksum_of(payload),
        )
        link = self._outgoing.get(to) or self._open(to, epoch)
        link.send(epoch, header, payload, is_timeless=tag.channel.is_timeless)

    def advance(self, epoch: int) -> None:
        self._mailbox.advance(epoch)
        with self._lock:
            links = list(self._outgoing.values())
        for link in links:
            link.drop_before(epoch)

    def interrupt(self, before_epoch: int) -> None:
        self._mailbox.interrupt(before_epoch)
        with self._lock:
            links = list(self._outgoing.values())
        for link in links:
            link.wake()

    def shape_link(self, peer: WorkerId, delay_s: float = 0.0, bytes_s: float = math.inf) -> None:
        shaping = LinkShaping.checked(peer, delay_s, bytes_s)
        with self._lock:
            self._shapings[peer] = shaping
            if peer in self._outgoing:
                self._outgoing[peer].shape_link(shaping)

    def flush(self, timeout_s: float) -> None:
        deadline_s = monotonic() + timeout_s
        with self._lock:
            self._check_open()
            links = list(self._outgoing.values())
        for link in links:
            link.flush(deadline_s)

    def close(self) -> None:
        self._mailbox.close()
        with self._lock:
            self._closing.set()
            outgoing = [*self._outgoing.values(), *self._abandoned]
        self._gate.close()
        for link in outgoing:
            link.close()
        # No connection is added once the gate has ended, and all that are here get shut.
        deadline_s = monotonic() + _JOIN_LIMIT_S
        _join(self._gate, deadline_s)
        with self._lock:
            incoming = list(self._incoming)
        for connection in incoming:
            connection.shut()
        parts: list[Outgoing | Incoming] = [*outgoing, *incoming]
        for part in parts:
            _join(part, deadline_s)

    @property
    def statistics(self) -> Statistics:
        received = self._mailbox.statistics()
        with self._lock:
            links = [*self._outgoing.values(), *self._abandoned]
            messages, num_bytes, reconnections = self._sent_with(links)
            return replace(
                received,
                sent_messages=messages,
                sent_bytes=num_bytes,
                reconnections=reconnections,
                refused_connections=self._refused_connections,
                damaged_messages=self._damaged_messages,
            )

    def _sent_with(self, links: Iterable[Outgoing]) -> tuple[int, int, int]:
        messages, num_bytes, reconnections = self._sent_before
        for link in links:
            messages += link.sent_messages
            num_bytes += link.sent_bytes
            reconnections += link.reconnections
        return messages, num_bytes, reconnections

    def _open(self, peer: WorkerId, epoch: int) -> Outgoing:
        """Out of descriptors or threads, it waits as for a connection that broke: that passes."""
        try:
            return self._opened(peer)
        except (OSError, RuntimeError):  # no new thread is a RuntimeError
            deadline_s = monotonic() + self._limits.reconnect_limit_s
        with self._mailbox.room.held_up():
            while self._mailbox.may_wait_in(epoch):
                time.sleep(_PAUSE_S)
                try:
                    return self._opened(peer)
                except (OSError, RuntimeError) as why:
                    if monotonic() > deadline_s:
                        text = f"worker {self.me} cannot send to worker {peer}: {why}"
                        raise PeerLost(text, str(peer)) from why
        raise EpochPast(f"worker {self.me} had no link to {peer} in epoch {epoch}, which ended")

    def _opened(self, peer: WorkerId) -> Outgoing:
        with self._lock:
            self._check_open()
            if peer in self._outgoing:  # another thread was first
                return self._outgoing[peer]
            if peer not in self._addresses:
                raise PeerLost(f"worker {self.me} has no address of worker {peer}", str(peer))
            link = Outgoing(
                self.me,
                peer,
                Dialer(
                    self._addresses[peer],
                    partial(self._introduce, peer),
                    self._limits,
                    encrypts=self._encrypts,
                ),
                epoch=lambda: self._mailbox.epoch,
                rules=self._rules,
                shaping=self._shapings.get(peer, UNSHAPED),
                on_lost=lambda peer: self._tell_unreached(peer),
            )
            link.start()
            self._outgoing[peer] = link
            return link

    def _introduce(self, peer: WorkerId, connection: socket.socket) -> Stamps:
        limit_s = self._limits.connect_limit_s
        binding = greet(connection, "", limit_s) if isinstance(connection, TlsSocket) else b""
        found, stamps = call(
            connection, self._secret, self._identity, WORKER_ROLE, limit_s, binding
        )
        if found.name != str(peer):
            raise HandshakeFailed(f"worker {found.name} answers where worker {peer} should be")
        if found.generation != self._identity.generation:
            raise HandshakeFailed(f"worker {peer} is of another launch of this run")
        return stamps

    def _abandon(self, links: Iterable[Outgoing]) -> None:
        """With the lock held. Also lets go of those abandoned earlier that have ended."""
        for link in links:
            link.abandon("it was disconnected, or its address or connection has changed")
            self._abandoned.append(self._outgoing.pop(link.peer))
        ended = [link for link in self._abandoned if not link.is_alive]
        self._abandoned = [link for link in self._abandoned if link not in ended]
        self._sent_before = self._sent_with(ended)

    def _hang_up(self, connections: Iterable[object]) -> None:
        for connection in connections:
            assert isinstance(connection, Incoming)
            connection.shut()

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise TransportClosed(f"the transport of worker {self.me} is closed")

    # --- called by the gate, and by the readers ---

    def _admit(
        self, connection: socket.socket, source: WorkerId, hello: SessionHello, stamps: Stamps
    ) -> None:
        incoming = Incoming(
            connection,
            self._mailbox,
            source,
            hello,
            stamps,
            limits=self._limits,
            on_end=self._connection_ended,
        )
        with self._lock:
            self._incoming.add(incoming)
        try:
            incoming.start()
        except RuntimeError:  # no thread to be had; whoever calls calls again
            connection.close()
            self._connection_ended(incoming, is_refused=True)

    def _count_refused(self) -> None:
        with self._lock:
            self._refused_connections += 1

    def _connection_ended(self, incoming: Incoming, is_refused: bool) -> None:
        with self._lock:
            self._incoming.discard(incoming)
            self._refused_connections += is_refused
            self._damaged_messages += incoming.num_damaged


def _join(part: Gate | Outgoing | Incoming, deadline_s: float) -> None:
    part.join(max(0.0, deadline_s - monotonic()))
