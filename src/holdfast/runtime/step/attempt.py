"""One attempt at a step, as one worker runs it: its lane, and where tensors come from and go to."""

from dataclasses import dataclass
from functools import cached_property

from holdfast.cluster import WorkerId
from holdfast.schedule.operation import Kind
from holdfast.schedule.running import RunningStep
from holdfast.schedule.schedule import Lane


@dataclass(frozen=True)
class Attempt:
    me: WorkerId
    step: int
    number: int
    routes: RunningStep  # of whole steps: its own step and attempt mean nothing

    @cached_property
    def lane(self) -> Lane:
        return self.routes.schedule.lanes.get(self.me, ())

    @cached_property
    def split(self) -> frozenset[int | None]:
        """Micro-batches whose backward is run in two parts."""
        return frozenset(op.microbatch for op in self.lane if op.kind is Kind.B)
