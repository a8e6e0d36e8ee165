"""The operations of a stage on one worker: a neighbour's tensors in, tensors for a neighbour out.

Loads data where the stage needs it and adds up what a step adds up. Where tensors come from, where
they go to and in which order operations run is decided elsewhere.
"""

from collections.abc import Mapping

from torch import Tensor

from holdfast.data.batches import num_tokens
from holdfast.host.heap import Gaps
from holdfast.runtime.job.job_code import JobCode
from holdfast.runtime.job.loading import Loading
from holdfast.runtime.link.activity import LOAD
from holdfast.runtime.stage.stage import Stage
from holdfast.runtime.step.attempt import Attempt
from holdfast.runtime.step.builder import StageParts
from holdfast.runtime.step.crossings import Crossings, Tensors
from holdfast.schedule.operation import Kind, Op


class StageOperations:
    def __init__(
        self, built: StageParts, loading: Loading, code: JobCode, gaps: Gaps | None = None
    ) -> None:
        self._built, self._loading, self._code = built, loading, code
        self._gaps = gaps or Gaps()
        self.crossings = Crossings()
        self._newest = 0  # step
        if loading.is_stream and built.fed:
            built.state.with_stream(self, built.fed)

    def foresee(self, at: Attempt, end_step: int) -> None:
        """The next step mostly is like this one."""
        self._newest = at.step
        if self._built.is_first or self._built.is_last:
            steps = range(at.step, min(at.step + 2, end_step))
            forwards = [op.microbatch for op in at.lane if op.kind is Kind.F]
            self._loading.expect([(t, m) for t in steps for m in forwards if m is not None])

    def begin_step(self) -> None:
        """From nothing: what an abandoned attempt left behind is void."""
        self._built.stage.drop_all()
        self._built.state.begin_step()
        self._built.parts.sums.clear()

    def run(self, op: Op, at: Attempt, incoming: Tensors) -> Tensors:
        """What the job's code raises leaves the state as it was."""
        assert op.microbatch is not None
        with self._code.guarded(at.step, str(op)):
            with self._code.activity.doing(op.kind.name, op.microbatch):
                made = self._run(op, at, op.microbatch, incoming)
            if op.kind in (Kind.B, Kind.BW):  # in a forward each layer is told of by itself
                self._code.ran(f"a backward ({op})")
            return made

    def run_again(self, op: Op, at: Attempt, incoming: Tensors) -> Tensors:
        """For others who lost its result: of a step that is over here and stays as it is."""
        assert op.microbatch is not None
        stage = self._built.again
        with self._code.guarded(at.step, str(op)):
            if op.kind is Kind.F:
                return self._forward(stage, at, op.microbatch, incoming, counts=False)
            given = self.crossings.placed(at.step, op.microbatch, incoming)
            gradients = _present(stage.backward_input(op.microbatch, given))
            stage.drop(op.microbatch)  # its weight gradient is in a sum already
            return gradients

    def position(self) -> Tensor | None:
        """Of a stream, at the start of the newest step or before."""
        return self._loading.position(self._newest)

    def go_on_from(self, position: Tensor) -> None:
        self._loading.go_on_from(position)

    def close(self) -> None:
        self._loading.close()

    def end_run_again(self) -> None:
        self._built.again.drop_all()

    def _run(self, op: Op, at: Attempt, microbatch: int, incoming: Tensors) -> Tensors:
        stage = self._built.stage
        if op.kind is not Kind.F:
            self._built.state.begin_sums()
        match op.kind:
            case Kind.F:
                made = self._forward(stage, at, microbatch, incoming, counts=True)
                self._gaps.look()
                return made
            case Kind.B:
                given = self.crossings.placed(at.step, microbatch, incoming)
                return _present(stage.backward_input(microbatch, given))
            case Kind.BW:
                given = self.crossings.placed(at.step, microbatch, incoming)
                return _present(stage.backward(microbatch, given))
            case _:
                stage.backward_weight(microbatch)
                return ()

    def _forward(
        self, stage: Stage, at: Attempt, microbatch: int, inputs: Tensors, *, counts: bool
    ) -> Tensors:
        """``counts``: its loss and its changes of buffers are part of the step."""
        is_first, is_last = self._built.is_first, self._built.is_last
        sums, target = self._built.parts.sums, None
        if is_first or is_last:
            with self._code.activity.doing(LOAD, microbatch):
                loaded, target = self._loading.load(at.step, microbatch)
            inputs = loaded if is_first else inputs
        self.crossings.came_in(at.step, microbatch, inputs)
        outputs = stage.forward(
            at.step,
            microbatch,
            inputs,
            target,
            split=not counts or microbatch in at.split,
            constants=[i for i, tensor in enumerate(inputs) if not tensor.requires_grad],
        )
        loss = stage.take_loss(microbatch) if is_last else None
        changes: Mapping[str, Tensor] = stage.take_buffer_changes(microbatch)
        if counts:
            sums.add(changes)
            if loss is not None:
                sums.add_loss(microbatch, loss.value, num_tokens(target), loss.weight)
        self.crossings.went_out(at.step, microbatch, outputs)
        return outputs


def _present(gradients: tuple[Tensor | None, ...]) -> Tensors:
    return tuple(gradient for gradient in gradients if gradient is not None)
