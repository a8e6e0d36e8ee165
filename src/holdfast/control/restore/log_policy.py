"""Which boundaries are logged: all, or as many as the budget holds. Knows what became of the logs.

The workers tell what a step takes when they have logged one; then it is decided once.
"""

from collections.abc import Callable, Sequence

from holdfast.cluster import parse_worker
from holdfast.control.effects import Effect, Emit, Send
from holdfast.control.progress.reports import Reports
from holdfast.control.state.run import Run
from holdfast.observability import events
from holdfast.observability.text import size
from holdfast.planner.logs.boundaries import boundaries_for
from holdfast.protocol import messages

_STEPS_TO_SEAL = 2
_VERDICT_BYTES = 200


class LogPolicy:
    def __init__(self, run: Run, reports: Reports) -> None:
        self._run, self._reports = run, reports
        self._volumes: dict[str, tuple[int, messages.LogVolume]] = {}  # stage of the worker
        self._decided = False

    def on_state(self, state: messages.LogState, at_s: float) -> list[Effect]:
        self._reports.note_log(state.worker, state.num_bytes)
        changed = events.LogChanged(
            at_s=at_s,
            worker=state.worker,
            step=state.step,
            logging=state.logging,
            reason=state.reason,
        )
        return [Emit(changed)]

    def on_volume(self, volume: messages.LogVolume, at_s: float) -> list[Effect]:
        run = self._run
        stage = run.stages.get(parse_worker(volume.worker))
        if stage is None or self._decided:
            return []
        self._volumes[volume.worker] = (stage, volume)
        if {str(worker) for worker in run.stages} - self._volumes.keys():
            return []
        self._decided = True
        if run.config.recovery.log_budget_bytes() is None:
            return []
        return self._decide(volume.step, at_s)

    def _decide(self, step: int, at_s: float) -> list[Effect]:
        run = self._run
        config, costs = run.config, run.plan.cut.costs
        activations = self._sums(lambda volume: volume.activation_bytes)
        gradients = self._sums(lambda volume: volume.gradient_bytes)
        ties = self._sums(lambda volume: volume.tied_bytes)
        choice = boundaries_for(
            budget_bytes=config.recovery.log_budget_bytes(),
            # A checkpoint is whole a little after it was taken; only then is anything trimmed.
            interval_steps=(config.checkpoint.every_steps or config.train.steps) + _STEPS_TO_SEAL,
            activation_bytes=activations[:-1],
            gradient_bytes=gradients[1:],
            forward_s=costs.forward_s,
            backward_s=costs.fused_s,
            num_microbatches=run.shape.microbatches,
            num_helpers=max(1, len(run.stages) - 1),
            # Whoever of a stage is left writes what the others would have: each may write it all.
            other_bytes=[tied + _VERDICT_BYTES for tied in ties],
        )
        run.logs.choose(choice.boundaries, dict(enumerate(choice.limit_bytes)))
        changed = events.LogChanged(
            at_s=at_s,
            worker="",
            step=step,
            logging=bool(choice.boundaries),
            reason=self._reason(choice.boundaries, activations, gradients),
        )
        orders = [
            Send(worker, messages.LogBoundaries(boundaries=choice.boundaries, limit_bytes=limit))
            for worker, stage in sorted(run.stages.items())
            for limit in [choice.limit_bytes[stage]]
        ]
        return [Emit(changed), *orders]

    def _reason(
        self, boundaries: Sequence[int], activations: Sequence[int], gradients: Sequence[int]
    ) -> str:
        budget, num_boundaries = self._run.config.recovery.log_budget, self._run.shape.stages - 1
        if boundaries:
            chosen = ", ".join(f"{boundary}-{boundary + 1}" for boundary in boundaries)
            return (
                f"recovery.log_budget={budget} holds {len(boundaries)} of {num_boundaries} "
                "boundaries, "
                f"between stages {chosen}"
            )
        least = min(a + g for a, g in zip(activations[:-1], gradients[1:], strict=True))
        every = self._run.config.checkpoint.every_steps or self._run.config.train.steps
        needed = size(least * (every + _STEPS_TO_SEAL))
        return (
            f"recovery.log_budget={budget} holds no boundary: the smallest takes {size(least)} a "
            f"step, {needed} for the {every} steps to the next checkpoint and {_STEPS_TO_SEAL} "
            "until it is whole; who loses a stage sends everyone back"
        )

    def _sums(self, num_bytes: Callable[[messages.LogVolume], int]) -> list[int]:
        """Of each stage, over its holders."""
        sums = [0] * self._run.shape.stages
        for stage, volume in self._volumes.values():
            sums[stage] += num_bytes(volume)
        return sums
