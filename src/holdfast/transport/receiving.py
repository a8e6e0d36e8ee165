"""What all transports share: whatever has come waits in one mailbox, and is taken from there."""

from collections.abc import Callable, Sequence

from torch import Tensor

from holdfast.cluster import WorkerId
from holdfast.transport.base import ALONE, Bundle, Channel, Limits, Tag, TransferTime
from holdfast.transport.mailbox import Mailbox
from holdfast.transport.outbox import OutboxRules


class MailboxTransport:
    """All but how a message gets into the mailbox of another worker."""

    def __init__(self, me: WorkerId, *, epoch: int, limits: Limits | None) -> None:
        self.me = me
        self._limits = limits or Limits()
        self._mailbox = Mailbox(
            me,
            epoch=epoch,
            inbox_bytes=self._limits.inbox_bytes,
            reconnect_limit_s=self._limits.reconnect_limit_s,
        )
        self._tell_unreached: Callable[[WorkerId], None] = lambda peer: None
        mailbox = self._mailbox
        self._rules = OutboxRules(mailbox.may_wait_in, mailbox.room.held_up, self._limits)

    def tell_unreached(self, tell: Callable[[WorkerId], None]) -> None:
        self._tell_unreached = tell

    def send(self, to: WorkerId, tag: Tag, tensor: Tensor, bundle: Bundle = ALONE) -> None:
        raise NotImplementedError

    def send_all(self, to: WorkerId, tag: Tag, tensors: Sequence[Tensor]) -> None:
        keeps = tag.channel is Channel.ACTIVATION
        for part, tensor in enumerate(tensors):
            bundle = Bundle(len(tensors), keeps and tensor.requires_grad)
            self.send(to, tag._replace(part=part), tensor, bundle)

    def receive(self, source: WorkerId, tag: Tag, timeout_s: float) -> Tensor:
        return self._mailbox.receive(source, tag, timeout_s)

    def receive_all(self, source: WorkerId, tag: Tag, timeout_s: float) -> tuple[Tensor, ...]:
        size = self._mailbox.bundle_size(source, tag, timeout_s)
        parts = (tag._replace(part=part) for part in range(size))
        return tuple(self.receive(source, part, timeout_s) for part in parts)

    def wait_any(self, wanted: Sequence[tuple[WorkerId, Tag]], timeout_s: float) -> int:
        return self._mailbox.wait_any(wanted, timeout_s)

    def has(self, source: WorkerId, tag: Tag) -> bool:
        return self._mailbox.has(source, tag)

    def forget(self, step: int, attempt: int) -> None:
        self._mailbox.forget(step, attempt)

    def drop_copies(self, keep: WorkerId | None = None) -> None:
        self._mailbox.drop_copies(keep)

    def expect_copies(self, expected: bool) -> None:
        self._mailbox.expect_copies(expected)

    def take_transfers(self) -> list[TransferTime]:
        return self._mailbox.take_transfers()
