"""What came in since the last report, summed up a source and purpose. Knows no baseline."""

from collections.abc import Iterable
from statistics import median
from typing import Any

from holdfast.transport.base import Channel, TransferTime

_PURPOSES = {
    Channel.ACTIVATION: "pipeline",
    Channel.GRADIENT: "pipeline",
    Channel.PARTIAL: "reduction",
    Channel.REDUCED: "reduction",
    Channel.PROBE: "probe",
}


def transfer_rows(transfers: Iterable[TransferTime]) -> list[list[Any]]:
    """As in messages.StepReport."""
    of_kind: dict[tuple[str, str], list[TransferTime]] = {}
    for one in transfers:
        if one.channel in _PURPOSES:
            of_kind.setdefault((str(one.source), _PURPOSES[one.channel]), []).append(one)
    return [
        [
            source,
            purpose,
            len(found),
            sum(one.num_bytes for one in found),
            median(one.took_s for one in found),
        ]
        for (source, purpose), found in sorted(of_kind.items())
    ]
