"""Which other machines a replay reads logs from, and whom it asks there."""

import socket
from collections.abc import Sequence
from dataclasses import replace

from holdfast.auth.handshake import WORKER_ROLE
from holdfast.files.courier import Courier
from holdfast.protocol import messages
from holdfast.protocol.records import Address
from holdfast.storage.log.far_logs import FarLogs
from holdfast.storage.places import Places

READ_LIMIT_S = 60.0  # of one frame


def far_logs(places: Places, order: messages.Replay, own_host: str, *, tls: bool) -> list[FarLogs]:
    """Those of this machine are read from its disk. ``tls``: spoken where tensors go."""
    courier = places.courier
    if courier is None:  # all workers are threads of one process
        return []
    return [
        FarLogs(host, couriers_to(courier, addresses, limit_s=READ_LIMIT_S, tls=tls))
        for host, addresses in order.keepers.items()
        if host != own_host
    ]


def couriers_to(
    courier: Courier, addresses: Sequence[Address], *, limit_s: float, tls: bool
) -> list[Courier]:
    """To workers, who serve logs where they take tensors."""
    return [
        replace(
            courier,
            host=address.host,
            port=address.port,
            to_role=WORKER_ROLE,
            limit_s=limit_s,
            tls=tls,
            certificate="",
            dial=socket.create_connection,
        )
        for address in addresses
    ]
