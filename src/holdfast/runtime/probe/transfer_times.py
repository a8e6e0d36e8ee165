"""What came in since the last report, summed up a source and purpose. Knows no baseline."""

from collections.abc import Iterable
from statistics import median

from holdfast.protocol.records import Purpose, Transfers
from holdfast.transport.base import Channel, TransferTime

_PURPOSES: dict[Channel, Purpose] = {
    Channel.ACTIVATION: "pipeline",
    Channel.GRADIENT: "pipeline",
    Channel.PARTIAL: "reduction",
    Channel.REDUCED: "reduction",
    Channel.PROBE: "probe",
}


def summed_up(transfers: Iterable[TransferTime]) -> list[Transfers]:
    """As in messages.StepReport."""
    found: dict[tuple[str, Purpose], list[TransferTime]] = {}
    for one in transfers:
        if one.channel in _PURPOSES:
            found.setdefault((str(one.source), _PURPOSES[one.channel]), []).append(one)
    return [
        Transfers(
            source,
            purpose,
            len(some),
            sum(one.num_bytes for one in some),
            median(one.took_s for one in some),
        )
        for (source, purpose), some in sorted(found.items())
    ]
