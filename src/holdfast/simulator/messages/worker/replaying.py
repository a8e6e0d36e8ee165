"""A stage that nobody holds is computed again by simulated workers, from a checkpoint and the logs.

Follows ``runtime/replay/replay.py``: micro-batches go to the crew in turn, the first of it writes.
"""

from typing import Any, Protocol

from holdfast.cluster import parse_worker
from holdfast.faults.injection import Injector
from holdfast.protocol import messages
from holdfast.protocol.records import MicrobatchLoss, StepLosses
from holdfast.schedule.operation import Kind, Op
from holdfast.simulator.messages import reference as r
from holdfast.simulator.messages.shelf import Crossing
from holdfast.simulator.messages.worker import tensor_box as t
from holdfast.simulator.messages.worker.tensor_box import TensorBox, Wanted
from holdfast.simulator.messages.worker.waiting import ANY, LEASE, SLEEP, WaitsOf

_NUM_LOSSES = 2  # steps: what nobody may have told before


class ReplayHost(Protocol):
    name: str
    box: TensorBox
    injector: Injector
    around: Any
    link: Any

    def check(self) -> None: ...

    def send_tensor(self, to: Any, name: Wanted, value: Any) -> None: ...

    def operation_s(self, op: Op) -> float: ...


class _Gap(Exception):
    """The logs end before a step."""


def replayed(host: ReplayHost, order: messages.Replay) -> WaitsOf[None]:
    try:
        states, losses = yield from _computed(host, order)
    except _Gap as why:
        reached, reason = int(str(why)), f"the log ends before step {why}"
        host.link.send(
            messages.ReplayFailed(
                worker=host.name, epoch=order.epoch, reached=reached, reason=reason
            )
        )
        return
    if beside_s := host.around.measured_s("replay"):
        yield SLEEP, beside_s
    yield from _gathered(host, order)
    if order.crew[0] == host.name:
        yield LEASE, None
        lost = {stage: states[stage] for stage in order.lost}
        host.around.shelf.put_rebuilt(order.into, lost)
    host.link.send(
        messages.Replayed(
            worker=host.name,
            epoch=order.epoch,
            num_operations=6,
            num_bytes=100,
            took_s=0.5,
            losses=losses,
        )
    )


def _gathered(host: ReplayHost, order: messages.Replay) -> WaitsOf[None]:
    """The first has what the others have made."""
    first = order.crew[0]
    if host.name != first:
        done = Wanted(host.name, t.REPLAYING, order.version)
        host.send_tensor(parse_worker(first), done, True)
        return
    for other in order.crew[1:]:
        wanted = Wanted(other, t.REPLAYING, order.version)
        yield ANY, [wanted]
        host.box.take(wanted)


def _computed(
    host: ReplayHost, order: messages.Replay
) -> WaitsOf[tuple[dict[int, int], list[StepLosses]]]:
    shelf = host.around.shelf
    states = {stage: r.first_state(stage) for stage in order.stages}
    if order.checkpoint:
        known = shelf.open_state(order.checkpoint)
        states = {stage: known[stage] for stage in order.stages}
    losses: list[StepLosses] = []
    share = -(-host.around.reference.shape.microbatches // len(order.crew))
    for step in range(order.first_step, order.version):
        host.check()
        host.injector.reach(step, "replay")
        outputs = _step(host, order, step, states)
        if outputs:
            rows = [MicrobatchLoss(m, r.loss_of(out)) for m, out in enumerate(outputs)]
            losses.append(StepLosses(step, rows, len(rows)))
        yield SLEEP, sum(_own_s(host, order) for _ in range(share))
    return states, losses[-_NUM_LOSSES:]


def _own_s(host: ReplayHost, order: messages.Replay) -> float:
    """Forward and backward of a micro-batch, stage after stage."""
    kinds = (Kind.F, Kind.BW)
    times_s = (host.operation_s(Op(stage, kind, 0)) for stage in order.stages for kind in kinds)
    return sum(times_s)


def _step(host: ReplayHost, order: messages.Replay, step: int, states: dict[int, int]) -> list[int]:
    """Changes ``states``. Outputs of the last stage of the run, if it is among them."""
    reference = host.around.reference
    before = reference.verdict(step - 1) if step else r.GOOD
    staggered = host.around.config.optimizer.mode == "staggered"
    attempt = int(staggered and before != r.GOOD)
    totals, outputs = dict.fromkeys(order.stages, 0), list[int]()
    first, last = order.stages[0], order.stages[-1]
    is_last = last == reference.shape.last_stage
    for microbatch in range(reference.shape.microbatches):
        given = [r.loaded(step, microbatch)]
        if first > 0:
            given = [_logged(host, order, Crossing(step, attempt, first - 1, True, microbatch))]
        for stage in order.stages:
            given.append(r.forward(given[-1], states[stage]))
        if is_last:
            outputs.append(given[-1])
            gradient = r.of_loss(given[-1])
        else:
            gradient = _logged(host, order, Crossing(step, attempt, last + 1, False, microbatch))
        for number, stage in reversed(list(enumerate(order.stages))):
            put = r.weight_gradient(gradient, given[number], states[stage])
            totals[stage] = r.summed(totals[stage], put)
            gradient = r.backward(gradient, given[number], states[stage])
    for stage in order.stages:
        states[stage] = r.updated(states[stage], totals[stage], reference.verdict(step))
    return outputs


def _logged(host: ReplayHost, order: messages.Replay, name: Crossing) -> int:
    found: int | None = host.around.shelf.find_crossing(order.log.run, name)
    if found is None:
        raise _Gap(str(name.step))
    return found
