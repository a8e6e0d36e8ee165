"""A simulated joiner takes the state from a member and keeps up with it; the member's side of that.

Follows ``runtime/step/following.py`` and ``runtime/state/copying.py``.
"""

from collections.abc import Iterable
from typing import Any, Protocol

from holdfast.cluster import parse_worker
from holdfast.faults.injection import Injector
from holdfast.protocol import messages
from holdfast.protocol.records import Address, VerdictRow
from holdfast.simulator.messages.reference import StepTotal
from holdfast.simulator.messages.worker import tensor_box as t
from holdfast.simulator.messages.worker.stage_model import StageModel
from holdfast.simulator.messages.worker.tensor_box import TensorBox, Wanted
from holdfast.simulator.messages.worker.waiting import ANY, SLEEP, WaitsOf

_STATE_BYTES = 64
_LOAD_S = 0.02


class CopyHost(Protocol):
    name: str
    box: TensorBox
    injector: Injector
    model: StageModel | None
    link: Any
    saves: Any

    def send_tensor(self, to: Any, name: Wanted, value: Any) -> None: ...

    def connect(self, addresses: dict[str, Any]) -> None: ...


class Feeding:
    """Joiners that a member sends its state to, and then every update."""

    def __init__(self, host: CopyHost) -> None:
        self._host = host
        self._asked: dict[str, Address] = {}
        self._fed: list[str] = []

    @property
    def joiners(self) -> list[str]:
        return [*self._asked, *self._fed]

    def ask(self, order: messages.ShareState) -> None:
        self.forget([order.to])
        self._asked[order.to] = Address(order.host, order.port)

    def forget(self, joiners: Iterable[str]) -> None:
        gone = set(joiners)
        self._asked = {name: at for name, at in self._asked.items() if name not in gone}
        self._fed = [name for name in self._fed if name not in gone]

    def forget_all(self) -> None:
        self._asked, self._fed = {}, []

    def send_update(self, done: StepTotal, verdict: VerdictRow) -> None:
        for joiner in self._fed:
            update = Wanted(self._host.name, t.UPDATE, done.step)
            self._host.send_tensor(parse_worker(joiner), update, (done, verdict))

    def send_state(self, model: StageModel) -> None:
        asked, self._asked = self._asked, {}
        for joiner, at in sorted(asked.items()):
            self._host.connect({joiner: at})
            header = Wanted(self._host.name, t.STATE, 0)
            self._host.send_tensor(parse_worker(joiner), header, (model.reduced, model.state))
            self._fed.append(joiner)


class CopyFollowing:
    def __init__(self, host: CopyHost) -> None:
        self._host = host
        self.begin()

    def begin(self) -> None:
        """Another stage is built."""
        self._source: str | None = None
        self._has_state = self.is_fresh = False

    def stop(self) -> None:
        self._source = None

    def follow(self, source: str) -> WaitsOf[None]:
        """Until it is told to stop."""
        if self._source != source:
            self._host.box.drop_copies(keep=source)
            self._source, self._has_state = source, False
        while True:
            yield from self._keep_up_with(source)

    def _keep_up_with(self, source: str) -> WaitsOf[None]:
        host, model = self._host, self._host.model
        assert model is not None, "told to copy before a stage was assigned"
        header = Wanted(source, t.STATE, 0)
        if not self._has_state or header in host.box:
            yield from self._take_state(header, model)
        update = Wanted(source, t.UPDATE, model.reduced)
        found = yield ANY, [update, header]
        if found == 1 and update not in host.box:
            self._has_state = False
            return
        done, verdict = host.box.take(update)
        model.follow(done, verdict)
        host.saves.committed(model)
        self.is_fresh = False
        host.link.send(
            messages.Copied(
                worker=host.name, source=source, version=model.reduced, num_bytes=_STATE_BYTES
            )
        )

    def _take_state(self, header: Wanted, model: StageModel) -> WaitsOf[None]:
        self.is_fresh = True
        yield ANY, [header]
        version, state = self._host.box.take(header)
        self._host.injector.reach(version, "copy")
        model.restart(version, state)
        model.ledger.clear()
        self._host.saves.restart(model)
        self._has_state = True
        yield SLEEP, _LOAD_S
