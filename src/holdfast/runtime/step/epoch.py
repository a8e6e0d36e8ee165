"""One epoch as one worker sees it: who holds which stage, and with whom its sums are reduced.

A reduction that somebody already has the result of is not run again: the result is copied, of
the whole stage or of a parameter that is tied to another stage. Knows no order of operations.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from holdfast.cluster import WorkerId
from holdfast.runtime.reduce.buckets import Bucket, ParameterName, plan_buckets
from holdfast.runtime.reduce.gradients import Gradients
from holdfast.runtime.reduce.reduction import Given, is_alone, reduce_gradients
from holdfast.runtime.reduce.step_sums import StepSums
from holdfast.runtime.state.results import (
    Arrivals,
    StageForm,
    receive_result,
    receive_tied,
    result_messages,
    send_tied,
)
from holdfast.runtime.update.commit import StepResult
from holdfast.schedule.running import RunningStep
from holdfast.transport.base import Channel, Tag, Transport


@dataclass(frozen=True)
class Parts:
    """What does not change with the epoch: the model's parameters and this worker's sums."""

    slots: Mapping[int, Sequence[ParameterName]]  # of every stage
    ties: Sequence[Sequence[ParameterName]]
    gradients: Gradients
    sums: StepSums
    form: StageForm


class TiedSums(Protocol):
    """Sums of tied parameters that are known already."""

    def given(self, bucket: Bucket, routes: RunningStep, tag: Tag) -> Given | None:
        """None: the bucket is to be reduced. ``tag``: channel, step and attempt of the result."""
        ...


@dataclass(frozen=True)
class Epoch:
    me: WorkerId
    stage: int
    stages: Mapping[WorkerId, int]  # of every member
    transport: Transport
    parts: Parts
    timeout_s: float
    tied: TiedSums | None = None  # None: from the members that have them

    @cached_property
    def holders(self) -> dict[int, list[WorkerId]]:
        """Of every stage, in an order that is the same everywhere."""
        return {
            stage: sorted(worker for worker, held in self.stages.items() if held == stage)
            for stage in self.parts.slots
        }

    @property
    def is_first_holder(self) -> bool:
        return self.holders[self.stage][0] == self.me

    @cached_property
    def is_alone(self) -> bool:
        """Nobody else has a share in the sums here."""
        slots, ties = self.parts.slots, self.parts.ties
        buckets = plan_buckets(self.stage, slots=slots, ties=ties, holders=self.holders)
        return is_alone(buckets, self.me)

    def _buckets(self, routes: RunningStep) -> tuple[Bucket, ...]:
        """Of those who reduce; a stage that is done with the step counts with all its holders."""
        members = {s: routes.reducers(s) or tuple(all_) for s, all_ in self.holders.items()}
        key = tuple(members.values())
        if key not in self._planned:
            self._planned[key] = plan_buckets(
                self.stage, slots=self.parts.slots, ties=self.parts.ties, holders=members
            )
        return self._planned[key]

    @cached_property
    def _planned(self) -> dict[tuple[tuple[WorkerId, ...], ...], tuple[Bucket, ...]]:
        return {}

    # --- as a holder that has a step's result, at the start of an epoch ---

    def serve(self, routes: RunningStep, result: StepResult | None) -> None:
        """Send what this worker is named for as the one who has it."""
        if result is None or result.step != routes.step:
            return
        if routes.copies.get(self.stage) == self.me:
            messages = result_messages(Channel.RESULT, result, self.parts.form)
            for other in routes.reducers(self.stage):
                for tag, tensor in messages:
                    self.transport.send(other, tag, tensor)
        for bucket in self._buckets(routes):
            if self._sender(bucket, routes) == self.me:
                for other in self._takers(bucket, routes):
                    slot = bucket.groups[0][0]
                    send_tied(self.transport, other, result, bucket.number, slot)

    # --- as a holder that has not ---

    def reduce(
        self, routes: RunningStep, step: int, attempt: int, on_sent: Callable[[], None]
    ) -> StepResult:
        """The stage's result of a step, from all its holders or from one that has it."""
        tag = Tag(Channel.RESULT, step, attempt)
        source = routes.copies.get(self.stage)
        if source is not None:
            arrivals = Arrivals(self.transport, source)
            return receive_result(arrivals, tag, self.parts.form, self.timeout_s)[0]
        buckets, tied = self._buckets(routes), self.tied or self
        given = {bucket.number: tied.given(bucket, routes, tag) for bucket in buckets}
        reduced = reduce_gradients(
            self.parts.gradients,
            [bucket for bucket in buckets if given[bucket.number] is None],
            me=self.me,
            transport=self.transport,
            step=step,
            attempt=attempt,
            timeout_s=self.timeout_s,
            given=[one for one in given.values() if one is not None],
            on_sent=on_sent,
        )
        members = routes.reducers(self.stage)
        totals = self.parts.sums.totals(members, self.me, self.transport, tag, self.timeout_s)
        return StepResult(step, attempt, reduced, totals)

    def given(self, bucket: Bucket, routes: RunningStep, tag: Tag) -> Given | None:
        """From whoever has it."""
        sender = self._sender(bucket, routes)
        if sender is None:
            return None
        values, touched = receive_tied(self.transport, sender, tag, bucket.number, self.timeout_s)
        return bucket, values, touched

    # --- ties between a stage that is done with the step and one that is not ---

    def _tied_stages(self, bucket: Bucket) -> list[int]:
        tie = set(self.parts.ties[bucket.number - 1])
        return [stage for stage, names in self.parts.slots.items() if not tie.isdisjoint(names)]

    def _sender(self, bucket: Bucket, routes: RunningStep) -> WorkerId | None:
        """Who has the sum of a tied parameter already; None: nobody, or it is no tie."""
        if bucket.number == 0:
            return None
        for stage in self._tied_stages(bucket):
            if stage in routes.copies:
                return routes.copies[stage]
            if not routes.reducers(stage):
                return self.holders[stage][0]
        return None

    def _takers(self, bucket: Bucket, routes: RunningStep) -> list[WorkerId]:
        """Holders of stages that still have to reduce it."""
        return [
            worker
            for stage in self._tied_stages(bucket)
            if stage not in routes.copies
            for worker in routes.reducers(stage)
        ]
