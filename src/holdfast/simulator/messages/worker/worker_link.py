"""A simulated worker's connection to the coordinator, and to the one that takes over from it.

Follows ``runtime/link/control_link.py``: what is told once more, what is heard aside, and when
another coordinator is looked for.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from holdfast.protocol import messages
from holdfast.protocol.successors import PAUSE_S, SILENCE_S
from holdfast.runtime.link.retained import Retained
from holdfast.simulator.messages.network import ControlLine
from holdfast.simulator.messages.virtual_time import VirtualTime

CUT_OFF = 75  # exit code
_ASIDE = (
    messages.ShareState,
    messages.SaveAt,
    messages.SaveOnce,
    messages.LogBoundaries,
    messages.Sealed,
    messages.TidyLogs,
    messages.CopyLogs,
    messages.Probe,
    messages.ClockAsk,
    messages.Renewal,
    messages.ShowStack,
    messages.Offer,
    messages.Adopt,
    messages.SaveHere,
    messages.GoOn,
)


class LinkOwner(Protocol):
    """The worker behind a link."""

    name: str

    def connected(self, above: int) -> tuple[ControlLine | None, int]:
        """To a coordinator of a later generation than ``above``, and the generation that answers;
        0: nobody does."""
        ...

    def aside(self, message: messages.Message) -> None: ...

    def look_again(self) -> None:
        """WaitsOf of an epoch that is over end."""
        ...

    def has_word(self) -> None:
        """There is something in the inbox."""
        ...

    def end(self, code: int) -> None: ...


class WorkerLink:
    def __init__(
        self,
        owner: LinkOwner,
        time: VirtualTime,
        limit_s: float,
        defer: Callable[..., bool],
        attached: Callable[[str, int], None],
    ) -> None:
        """``limit_s``: how long a successor is looked for. ``defer``: whether the process stands
        still; then it does what it is given later. ``attached``: told of each generation."""
        self._owner, self._time, self._limit_s, self._defer = owner, time, limit_s, defer
        self._attached = attached
        self.inbox: deque[messages.Message] = deque()
        self.halted_before = self.proceeded = 0
        self._retained, self._line = Retained(), None
        self._generation = self._newest_epoch = self._num_builds = 0
        self._was_assigned = False
        self._sign_s: float | None = None
        self._lost_s = 0.0
        self.is_over = False  # nobody is listened to any more

    @property
    def line(self) -> ControlLine | None:
        return self._line

    _line: ControlLine | None

    def open(self) -> bool:
        line, generation = self._owner.connected(0)
        if line is None:
            return False
        self._line, self._generation = line, generation
        self._attached(self._owner.name, generation)
        return True

    def close(self) -> None:
        self.is_over = True
        if self._line is not None:
            self._line.leave()

    def lose_power(self) -> None:
        self.is_over = True
        if self._line is not None:
            self._line.lose_power()

    def send(self, message: messages.Message) -> None:
        if self.is_over or self._defer(self.send, message):
            return
        self._num_builds -= isinstance(message, messages.Ready)
        self._retained.note(message)
        if self._line is not None:
            self._line.say(message)

    # --- what comes ---

    def hear(self, line: ControlLine, message: messages.Message) -> None:
        if line is not self._line or self.is_over or self._defer(self.hear, line, message):
            return
        self._newest_epoch = max(self._newest_epoch, getattr(message, "epoch", 0))
        match message:
            case messages.Stop():
                self.is_over = True
                self._owner.end(0)
            case messages.Begone():
                self.is_over = True
                self._owner.end(CUT_OFF)
            case messages.StillHere():
                self._sign_s = self._time.now_s
                self._retained.acknowledged(message.next_step, message.heard)
            case messages.SayHello():
                if self._retained.hello is not None:
                    line.say(self._retained.hello)
            case messages.Halt():
                self.halted_before = max(self.halted_before, message.epoch)
                self.inbox.append(message)
                self._owner.look_again()
                self._owner.has_word()
            case _ if isinstance(message, _ASIDE):
                self._owner.aside(message)
            case _:
                is_assign = isinstance(message, messages.Assign)
                self._num_builds += is_assign
                self._was_assigned = self._was_assigned or is_assign
                if isinstance(message, messages.Proceed):
                    self.proceeded = message.epoch
                self.inbox.append(message)
                self._owner.has_word()

    # --- another coordinator ---

    def hung_up(self, line: ControlLine) -> None:
        if line is not self._line or self.is_over or self._defer(self.hung_up, line):
            return
        self._line, self._lost_s = None, self._time.now_s
        if not self._limit_s:
            self._give_up()
        else:
            self._time.after(PAUSE_S, self._look)

    def _give_up(self) -> None:
        self.is_over = True
        self._owner.end(CUT_OFF)

    def _look(self) -> None:
        if self._line is not None or self.is_over or self._defer(self._look):
            return
        if self._time.now_s - self._lost_s > self._limit_s:
            self._give_up()
            return
        line, generation = self._owner.connected(self._generation)
        if line is not None:
            self._reattach(line, generation)
        elif generation == self._generation:
            self._give_up()  # it lives, and does not talk to this one any more
        else:
            self._time.after(PAUSE_S, self._look)

    def look_if_silent(self) -> None:
        """Now and then: one that gives no sign may have been taken over from."""
        if self._line is None or self._sign_s is None:
            return
        if self._time.now_s - self._sign_s > SILENCE_S:
            line, generation = self._owner.connected(self._generation)
            if line is not None:
                self._line.leave()
                self._reattach(line, generation)

    def _reattach(self, line: ControlLine, generation: int) -> None:
        self._line, self._generation, self._sign_s = line, generation, None
        self._attached(self._owner.name, generation)
        hello = self._retained.hello
        if hello is None:
            return
        told = messages.Reattach(
            worker=hello.worker,
            pid=hello.pid,
            host=hello.host,
            port=hello.port,
            epoch=self._newest_epoch,
            building=self._num_builds,
        )
        line.say(told)
        for message in self._retained.all() if self._was_assigned else ():
            line.say(message)
