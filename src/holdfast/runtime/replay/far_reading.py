"""Which other machines a replay reads logs from, and whom it asks there."""

from dataclasses import replace

from holdfast.auth.handshake import WORKER_ROLE
from holdfast.protocol import messages
from holdfast.storage.log.far_logs import FarLogs
from holdfast.storage.places import Places

READ_LIMIT_S = 60.0  # of one frame


def far_logs(places: Places, order: messages.Replay, own_host: str, *, tls: bool) -> list[FarLogs]:
    """Those of this machine are read from its disk. ``tls``: spoken where tensors go."""
    courier = places.courier
    if courier is None:  # all workers are threads of one process
        return []
    found = []
    for host, addresses in order.keepers.items():
        if host != own_host:
            couriers = [
                replace(
                    courier,
                    host=address.host,
                    port=address.port,
                    to_role=WORKER_ROLE,
                    limit_s=READ_LIMIT_S,
                    tls=tls,
                    certificate="",
                )
                for address in addresses
            ]
            found.append(FarLogs(host, couriers))
    return found
