"""Runs one simulated worker's lanes in one epoch: what is half done first, then step after step.

Follows ``runtime/step/executor.py``: the same waits in the same order, so that a death at any point
leaves behind what a real one would.
"""

from collections.abc import Callable

from holdfast.schedule.operation import Kind, Op
from holdfast.schedule.running import RunningStep
from holdfast.simulator.messages.worker import tensor_box as t
from holdfast.simulator.messages.worker.lane_operations import LaneOperations, StepAttempt
from holdfast.simulator.messages.worker.tensor_box import Wanted
from holdfast.simulator.messages.worker.waiting import ANY, LANES, LEASE, SLEEP, WaitsOf


class _Redo(Exception):
    """What was computed on trust is void."""


class LaneRunner(LaneOperations):
    def run(self, lanes: Callable[[int], RunningStep | None]) -> WaitsOf[None]:
        """``lanes``: of a whole step; None: it is not known yet."""
        model = self._model
        self._tell()
        for routes in self._running:
            self._serve(routes)
        self._host.injector.reach(model.reduced, "proceed", self._ledger.num_done)
        if model.pending is not None and not self._missing():
            yield from self._settle_last()
        for routes in self._running:
            self._send_again(routes)
        step = min(self._half_done, default=self._proceed.first_step)
        while step < self._proceed.end_step:
            try:
                yield from self._run_step(step, lanes)
            except _Redo:
                continue
            step += 1
        if model.pending is not None:
            yield from self._settle_last()

    def _attempt(
        self, step: int, number: int, lanes: Callable[[int], RunningStep | None]
    ) -> WaitsOf[StepAttempt]:
        half_done = self._half_done.get(step)
        if half_done is not None and half_done.attempt >= number:
            return StepAttempt(self._me, step, number, half_done)
        while (routes := lanes(step)) is None:
            yield LANES, step
        return StepAttempt(self._me, step, number, routes)

    def _run_step(self, step: int, lanes: Callable[[int], RunningStep | None]) -> WaitsOf[None]:
        model, host = self._model, self._host
        at = yield from self._attempt(step, model.attempt_at(step), lanes)
        if step < model.reduced:
            at.number = at.routes.attempt
            yield from self._run_again(at)
            return
        if not self._ledger.has_begun(step, at.number):
            model.begin_step(step, at.number)
            if benchmark_s := host.begins(step):
                yield SLEEP, benchmark_s
            host.injector.begin(step)
        for op in at.lane:
            host.check()
            if model.pending is not None:
                yield from self._finish_step_before(op, at)
            incoming = yield from self._receive(op, at)
            host.injector.before(step, op, self._ledger.num_done)
            self._tell_first()
            if op.kind is Kind.R:
                yield from self._reduce(at)
            else:
                yield from self._run(op, at, incoming)

    # --- the step before ---

    def _finish_step_before(self, op: Op, at: StepAttempt) -> WaitsOf[None]:
        model = self._model
        assert model.pending is not None
        if not model.pending.is_applied:
            if model.speculates and (yield from self._input_comes_first(op, at)):
                self._host.injector.reach(at.step - 1, "apply", self._ledger.num_done)
                model.apply_speculatively()
                self._host.injector.reach(at.step - 1, "applied", self._ledger.num_done)
            else:
                yield from self._settle()
        elif not (yield from self._input_comes_first(op, at)):
            yield from self._settle()

    def _input_comes_first(self, op: Op, at: StepAttempt) -> WaitsOf[bool]:
        if op.kind is Kind.R or (op.kind is not Kind.F and self._model.is_alone):
            return False
        while missing := self._missing():
            wanted = self._input(op, at)
            if wanted is None or wanted in self._host.box:
                return True
            found = yield ANY, [*missing, wanted]
            if found == len(missing):
                return True
        return False

    def _settle(self) -> WaitsOf[None]:
        model, host = self._model, self._host
        assert model.pending is not None
        step, attempt = model.pending.result.step, model.pending.result.attempt
        host.injector.reach(step, "check", self._ledger.num_done)
        if step not in self._known:
            for source in self._sources:
                wanted = Wanted(str(source), t.VERDICT, step, attempt)
                yield ANY, [wanted]
                host.box.take(wanted)
        verdict = self._known.get(step) or host.verdict_of(step)
        yield LEASE, None
        host.commits(step)
        done, taken_back = model.commit(verdict)
        host.injector.reach(step, "settled", self._ledger.num_done)
        self._ledger.release_before(step)
        yield from host.settled(done, verdict, taken_back, self)
        if model.voids_the_next(verdict):
            host.box.forget(step + 1, 0)
            raise _Redo

    def _settle_last(self) -> WaitsOf[None]:
        try:
            yield from self._settle()
        except _Redo:
            return
