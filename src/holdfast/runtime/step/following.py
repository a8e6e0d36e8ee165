"""A joiner: takes a stage's state from a member and keeps up with it until it is one itself."""

from collections.abc import Callable

from holdfast.cluster import WorkerId
from holdfast.protocol import messages
from holdfast.runtime.state.copying import HEADER, receive_state
from holdfast.runtime.state.results import Arrivals, BegunAnew, receive_result
from holdfast.runtime.state.state_keeping import StateCopies
from holdfast.runtime.step.builder import StageParts
from holdfast.transport.base import Channel, Tag, Transport


class Follower:
    def __init__(
        self,
        me: WorkerId,
        built: StageParts,
        copies: StateCopies,
        transport: Transport,
        *,
        reach: Callable[[int, str], None],
        tell: Callable[[messages.Message], None],
        wait_s: float,
    ) -> None:
        self._me, self._built, self._copies, self._transport = me, built, copies, transport
        self._reach, self._tell, self._wait_s = reach, tell, wait_s
        self._arrivals: Arrivals | None = None
        self._has_state, self._copied_bytes = False, 0
        self.is_fresh = False  # it has not followed a step by itself yet

    def follow(self, source: WorkerId) -> None:
        """Take the state from ``source`` and keep up with it. Only EpochPast or a loss ends it."""
        if self._arrivals is None or self._arrivals.source != source:
            self._transport.drop_copies(keep=source)
            self._arrivals = Arrivals(self._transport, source, HEADER)
            self._has_state = False
        while True:
            try:
                self._keep_up_with(self._arrivals)
            except BegunAnew:  # a connection broke: updates may be missing
                self._arrivals.use_up()
                self._has_state = False

    def stop(self) -> None:
        """It follows nobody any more."""
        self._arrivals = None

    def _keep_up_with(self, arrivals: Arrivals) -> None:
        if not self._has_state:
            self._take_state(arrivals)
        state, commit = self._built.state, self._built.commit
        while True:
            tag = Tag(Channel.UPDATE, commit.reduced)
            form = self._built.parts.form
            result, verdict = receive_result(arrivals, tag, form, self._wait_s)
            assert verdict is not None, "an update is sent when it is settled"
            state.begin_step()
            state.choose_exponents(result.reduced.maxima)
            commit.follow(result, verdict)
            self._copies.committed(commit.reduced)
            self.is_fresh = False
            copied = messages.Copied(
                worker=str(self._me),
                source=str(arrivals.source),
                version=commit.reduced,
                num_bytes=self._copied_bytes,
            )
            self._tell(copied)

    def _take_state(self, arrivals: Arrivals) -> None:
        self.is_fresh = True
        state = receive_state(arrivals, self._wait_s, lambda version: self._reach(version, "copy"))
        self._built.state.load(state.tensors, f"the state of worker {arrivals.source}")
        self._built.commit.restart(state.version)
        self._copies.restart(state.version)
        self._has_state, self._copied_bytes = True, state.num_bytes
