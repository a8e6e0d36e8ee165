"""Times that workers tell, translated to the coordinator's own clock.

Whoever is not on this machine is asked now and then what its clock says: soon at first, then
rarely. One that has not answered yet is taken to have spoken of the moment in which it is heard.
"""

from collections.abc import Collection
from dataclasses import replace
from heapq import heappop, heappush
from ipaddress import ip_address

from holdfast.clocks import ClockEstimate, Exchange
from holdfast.cluster import WorkerId, parse_worker
from holdfast.control.effects import Effect, Send
from holdfast.protocol import messages
from holdfast.protocol.records import OperationTime

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 30.0  # doubled each time


class _Clock:
    def __init__(self, now_s: float) -> None:
        self.estimate = ClockEstimate()
        self.ask_s = now_s
        self.pause_s = _FIRST_PAUSE_S


class WorkerClocks:
    def __init__(self) -> None:
        self._clocks: dict[WorkerId, _Clock] = {}  # of those on other machines
        self._agenda: list[tuple[float, WorkerId]] = []  # a heap: when each is to be asked

    def due(self, connected: Collection[WorkerId], now_s: float) -> list[Effect]:
        """What to ask now."""
        asked: list[WorkerId] = []
        while self._agenda and self._agenda[0][0] <= now_s:
            ask_s, worker = heappop(self._agenda)
            clock = self._clocks.get(worker)
            if clock is None or clock.ask_s != ask_s:
                continue  # of one that was here before, under the same name
            clock.ask_s = now_s + clock.pause_s
            heappush(self._agenda, (clock.ask_s, worker))
            if worker in connected:
                clock.pause_s = min(2 * clock.pause_s, _LONGEST_PAUSE_S)
                asked.append(worker)
        return [Send(worker, messages.ClockAsk(asked_s=now_s)) for worker in asked]

    def heard(self, message: messages.Message, now_s: float) -> messages.Message | None:
        """The same, by the coordinator's clock; None: it was only about clocks.

        Nobody speaks of what is to come: no time is later than ``now_s``.
        """
        match message:
            case messages.Hello() | messages.Reattach():
                self._came(message, now_s)
            case messages.ClockTold():
                self._answered(message, now_s)
                return None
            case messages.Resumed() | messages.FaultReport():
                shift_s = self._shift_s(message.worker, message.at_s, now_s)
                return replace(message, at_s=message.at_s + shift_s)
            case messages.StepReport(operations=operations) if operations:
                last_s = max(one.end_s for one in operations)
                shift_s = self._shift_s(message.worker, last_s, now_s)
                if shift_s != 0.0:
                    return replace(message, operations=_shifted(operations, shift_s))
        return message

    def _came(self, hello: messages.Hello | messages.Reattach, now_s: float) -> None:
        worker = parse_worker(hello.worker)
        self._clocks.pop(worker, None)
        if not _is_here(hello.host):
            self._clocks[worker] = _Clock(now_s)
            heappush(self._agenda, (now_s, worker))

    def _answered(self, told: messages.ClockTold, now_s: float) -> None:
        clock = self._clocks.get(parse_worker(told.worker))
        if clock is not None and told.asked_s <= now_s and told.heard_s <= told.sent_s:
            least_s, most_s = told.sent_s - now_s, told.heard_s - told.asked_s
            clock.estimate.add(Exchange(now_s, least_s, most_s))

    def _shift_s(self, worker: str, last_s: float, now_s: float) -> float:
        """``last_s``: the latest time that it tells. One of this machine has the same clock."""
        clock = self._clocks.get(parse_worker(worker))
        if clock is None:
            return 0.0
        offset, latest_s = clock.estimate.at(now_s), now_s - last_s
        return latest_s if offset is None else min(-offset.offset_s, latest_s)


def _shifted(operations: list[OperationTime], shift_s: float) -> list[OperationTime]:
    return [
        OperationTime(op, start_s + shift_s, end_s + shift_s, cpu_s, elements)
        for op, start_s, end_s, cpu_s, elements in operations
    ]


def _is_here(host: str) -> bool:
    try:
        return host in ("", "localhost") or ip_address(host).is_loopback
    except ValueError:
        return False
