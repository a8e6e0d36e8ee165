"""The operations of a simulated worker's lane, and the end of a step: what is computed and sent.

Follows ``runtime/step/operations.py``, ``boundary.py``, ``ending.py`` and ``epoch.py``.
"""

from typing import Any, Protocol

from holdfast.cluster import WorkerId, parse_worker
from holdfast.faults.injection import Injector
from holdfast.protocol import messages
from holdfast.protocol.half_done import from_record
from holdfast.protocol.records import OperationTime, VerdictRow
from holdfast.schedule.operation import Kind, Op
from holdfast.schedule.running import RunningStep
from holdfast.simulator.messages import reference as r
from holdfast.simulator.messages.worker import tensor_box as t
from holdfast.simulator.messages.worker.stage_model import StageModel, StepSumsModel
from holdfast.simulator.messages.worker.tensor_box import TensorBox, Wanted
from holdfast.simulator.messages.worker.waiting import ANY, SLEEP, WaitsOf


class LaneHost(Protocol):
    """The worker that runs the lanes, as far as they need it."""

    name: str
    box: TensorBox
    injector: Injector

    @property
    def now_s(self) -> float: ...

    def check(self) -> None:
        """Raises if it is to stop."""
        ...

    def send_tensor(self, to: WorkerId, name: Wanted, value: Any) -> None: ...

    def operation_s(self, op: Op) -> float: ...

    def measured_s(self, name: str) -> float: ...

    def verdict_of(self, step: int) -> VerdictRow: ...

    def is_nonfinite(self, stage: int, step: int) -> bool: ...

    def log(self, step: int, attempt: int, op: Op, number: int) -> None: ...

    def resumed(self, epoch: int) -> None: ...

    def begins(self, step: int) -> float:
        """Seconds that a benchmark takes."""
        ...

    def commits(self, step: int) -> None:
        """A step is about to become final."""
        ...

    def settled(
        self, done: r.StepTotal, verdict: VerdictRow, taken_back: bool, lane: "LaneOperations"
    ) -> WaitsOf[None]: ...


class StepAttempt:
    """One attempt at a step: its lane, and the routes of it."""

    __slots__ = ("lane", "number", "routes", "step")

    def __init__(self, me: WorkerId, step: int, number: int, routes: RunningStep) -> None:
        self.step, self.number, self.routes = step, number, routes
        self.lane = routes.schedule.lanes.get(me, ())


class LaneOperations:
    def __init__(self, host: LaneHost, model: StageModel, proceed: messages.Proceed) -> None:
        self._host, self._model, self._ledger = host, model, model.ledger
        self._me, self._proceed = parse_worker(host.name), proceed
        stages = {parse_worker(name): stage for name, stage in proceed.stages.items()}
        self.holders = [
            sorted(worker for worker, held in stages.items() if held == stage)
            for stage in range(max(stages.values()) + 1)
        ]
        self._running = [from_record(one) for one in proceed.running]
        self._half_done = {one.step: one for one in self._running}
        self._known = dict(proceed.verdicts)
        model.verdicts = {**self._known, **model.verdicts}
        self._has_begun = False
        self._again: dict[int, int] = {}  # inputs of forwards that are run again
        self._sources, self._listeners = self._exchange()

    @property
    def is_first_holder(self) -> bool:
        return self.holders[self._model.stage][0] == self._me

    @property
    def is_alone(self) -> bool:
        return self.holders[self._model.stage] == [self._me]

    @property
    def is_last_stage(self) -> bool:
        return self._model.stage == len(self.holders) - 1

    @property
    def num_members(self) -> int:
        return sum(map(len, self.holders))

    def _exchange(self) -> tuple[list[WorkerId], list[WorkerId]]:
        """From whom it hears the verdict of each other stage, and whom it tells its own."""
        own, stage = self.holders[self._model.stage], self._model.stage
        place = own.index(self._me)
        others = [held for number, held in enumerate(self.holders) if number != stage]
        sources = [held[place % len(held)] for held in others]
        listeners = [w for held in others for j, w in enumerate(held) if j % len(own) == place]
        return sources, listeners

    def _wanted(
        self, source: WorkerId, channel: int, at: StepAttempt, microbatch: int = 0
    ) -> Wanted:
        return Wanted(str(source), channel, at.step, at.number, microbatch)

    def _send(self, to: WorkerId, channel: int, step: int, attempt: int, mb: int, v: Any) -> None:
        self._host.send_tensor(to, Wanted(self._host.name, channel, step, attempt, mb), v)

    def _tell_first(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._host.resumed(self._proceed.epoch)

    # --- operations ---

    def _input(self, op: Op, at: StepAttempt) -> Wanted | None:
        if op.microbatch is None or op.kind is Kind.W:
            return None
        origin = at.routes.origin(op)
        if origin is None:
            return None
        channel = t.ACTIVATION if op.kind is Kind.F else t.GRADIENT
        return self._wanted(origin, channel, at, op.microbatch)

    def _receive(self, op: Op, at: StepAttempt) -> WaitsOf[int]:
        wanted = self._input(op, at)
        if wanted is None:
            return 0
        if wanted not in self._host.box:
            yield ANY, [wanted]
        return int(self._host.box.take(wanted))

    def _run(self, op: Op, at: StepAttempt, incoming: int) -> WaitsOf[None]:
        host, ledger = self._host, self._ledger
        start_s = host.now_s
        yield SLEEP, host.operation_s(op)
        made = self._compute(op, at.step, incoming, self._model.sums, self._model.state)
        took_s = host.now_s - start_s
        ledger.times.setdefault(at.step, []).append(
            OperationTime(str(op), start_s, host.now_s, took_s, 64)
        )
        self._keep(op, at, made)
        ledger.ran(op)
        host.injector.after(at.step, op, ledger.num_done)
        self._pass_on(op, at, made)
        if gap_s := host.measured_s("gap"):
            yield SLEEP, gap_s

    def _compute(self, op: Op, step: int, incoming: int, sums: StepSumsModel, state: int) -> int:
        microbatch = op.microbatch
        assert microbatch is not None
        made = 0
        if op.kind is Kind.F:
            given = r.loaded(step, microbatch) if op.stage == 0 else incoming
            sums.inputs[microbatch] = given
            made = sums.outputs[microbatch] = r.forward(given, state)
            sums.forwards.append(microbatch)
            if self.is_last_stage:
                sums.losses[microbatch] = r.loss_of(made)
            return made
        given = sums.inputs[microbatch]
        if op.kind in (Kind.B, Kind.BW):
            own = r.of_loss(sums.outputs[microbatch]) if self.is_last_stage else incoming
            sums.gradients[microbatch] = own
            made = r.backward(own, given, state)
        if op.kind in (Kind.W, Kind.BW):
            put = r.weight_gradient(sums.gradients[microbatch], given, state)
            sums.total = r.summed(sums.total, put)
            sums.weights.append(microbatch)
        return made

    def _travels(self, op: Op) -> bool:
        if op.kind is Kind.F:
            return not self.is_last_stage
        return op.stage > 0 and op.kind is not Kind.W

    def _keep(self, op: Op, at: StepAttempt, made: int) -> None:
        if self._travels(op):
            self._ledger.keep(at.step, op, made)
            self._host.log(at.step, at.number, op, made)

    def _pass_on(self, op: Op, at: StepAttempt, made: int) -> None:
        channel = t.ACTIVATION if op.kind is Kind.F else t.GRADIENT
        for to in at.routes.receivers(op):
            assert op.microbatch is not None
            self._send(to, channel, at.step, at.number, op.microbatch, made)

    def _run_again(self, at: StepAttempt) -> WaitsOf[None]:
        """Of a step that is over here, for others who lost its results."""
        for op in at.lane:
            self._host.check()
            incoming = yield from self._receive(op, at)
            self._tell_first()
            yield SLEEP, self._host.operation_s(op)
            scratch = StepSumsModel(inputs=self._again)
            if op.kind is not Kind.F and self.is_last_stage:
                assert op.microbatch is not None
                state = self._model.old_state(at.step)
                scratch.outputs[op.microbatch] = r.forward(self._again[op.microbatch], state)
            made = self._compute(op, at.step, incoming, scratch, self._model.old_state(at.step))
            self._keep(op, at, made)
            self._pass_on(op, at, made)
        self._again = {}

    # --- the verdict of a step ---

    def _tell(self) -> None:
        pending = self._model.pending
        if pending is not None and pending.result.step not in self._known:
            for other in self._listeners:
                self._send(other, t.VERDICT, pending.result.step, pending.result.attempt, 0, True)

    def _missing(self) -> list[Wanted]:
        pending = self._model.pending
        if pending is None or pending.result.step in self._known:
            return []
        step, attempt, box = pending.result.step, pending.result.attempt, self._host.box
        wanted = (Wanted(str(source), t.VERDICT, step, attempt) for source in self._sources)
        return [one for one in wanted if one not in box]

    # --- half-done steps of others ---

    def _send_again(self, routes: RunningStep) -> None:
        for fact, to in routes.resend(self._me):
            kept = self._ledger.kept[routes.step]
            is_forward = fact.what == "activation"
            assert fact.microbatch is not None
            number = (kept.activations if is_forward else kept.gradients)[fact.microbatch]
            channel = t.ACTIVATION if is_forward else t.GRADIENT
            self._send(to, channel, routes.step, routes.attempt, fact.microbatch, number)

    def _serve(self, routes: RunningStep) -> None:
        result, stage = self._model.result, self._model.stage
        if result is None or result.step != routes.step:
            return
        if routes.copies.get(stage) == self._me:
            for other in routes.reducers(stage):
                self._send(other, t.RESULT, result.step, result.attempt, 0, result)

    # --- the end of a step ---

    def _reduce(self, at: StepAttempt) -> WaitsOf[None]:
        host, model, step = self._host, self._model, at.step
        reach, start_s = host.injector.reach, host.now_s
        reach(step, "reduce", self._ledger.num_done)
        source = at.routes.copies.get(model.stage)
        if source is not None:
            wanted = self._wanted(source, t.RESULT, at)
            yield ANY, [wanted]
            result = host.box.take(wanted)
        else:
            result = yield from self._reduce_with(at.routes.reducers(model.stage), at)
        yield SLEEP, host.operation_s(Op(model.stage, Kind.R))
        model.accept(result)
        self._ledger.times.setdefault(step, []).append(
            OperationTime(str(Op(model.stage, Kind.R)), start_s, host.now_s, 0.0, 0)
        )
        reach(step, "reduced", self._ledger.num_done)
        self._tell()
        reach(step, "told", self._ledger.num_done)
        if turn_s := host.measured_s("turn"):
            yield SLEEP, turn_s

    def _reduce_with(self, members: tuple[WorkerId, ...], at: StepAttempt) -> WaitsOf[r.StepTotal]:
        """Everyone sends its share to all, and then what it has made of theirs."""
        host, sums = self._host, self._model.sums
        others = [member for member in members if member != self._me]
        mine = (sums.total, tuple(sums.forwards), tuple(sums.weights), dict(sums.losses))
        for other in others:
            self._send(other, t.PARTIAL, at.step, at.number, 0, mine)
        host.injector.reach(at.step, "partials", self._ledger.num_done)
        shares = [mine]
        shares += yield from self._all_of(others, t.PARTIAL, at)
        for other in others:
            self._send(other, t.REDUCED, at.step, at.number, 0, True)
        yield from self._all_of(others, t.REDUCED, at)
        return self._added_up(shares, at)

    def _all_of(self, others: list[WorkerId], channel: int, at: StepAttempt) -> WaitsOf[list[Any]]:
        found = []
        for other in others:
            wanted = self._wanted(other, channel, at)
            if wanted not in self._host.box:
                yield ANY, [wanted]
            found.append(self._host.box.take(wanted))
        return found

    def _added_up(self, shares: list[Any], at: StepAttempt) -> r.StepTotal:
        total, losses = 0, dict[int, float]()
        for share in shares:
            total = r.summed(total, share[0])
            losses |= share[3]
        self._check_each_once("F", [m for share in shares for m in share[1]], at)
        self._check_each_once("W", [m for share in shares for m in share[2]], at)
        is_nonfinite = self._host.is_nonfinite(self._model.stage, at.step)
        told = tuple(sorted(losses.items()))
        return r.StepTotal(at.step, at.number, total, told, is_nonfinite)

    def _check_each_once(self, kind: str, counted: list[int], at: StepAttempt) -> None:
        wanted = list(range(at.routes.schedule.shape.microbatches))
        if sorted(counted) != wanted:
            self._model.complain(
                f"{kind} of step {at.step} attempt {at.number} at stage {self._model.stage} counts "
                f"micro-batches {sorted(counted)}"
            )
