"""A training job as policies see it: its layout, seconds of its operations, bytes of its state."""

from dataclasses import dataclass, replace
from math import floor, inf

from holdfast.errors import ConfigError
from holdfast.planner.problem import LinkCosts, Member, Memory, Problem
from holdfast.schedule.costs import Costs
from holdfast.schedule.operation import Shape


@dataclass(frozen=True, kw_only=True)
class JobCosts:
    """A worker is one GPU, or several that hold a stage together (``gpus_a_worker``)."""

    name: str
    shape: Shape
    costs: Costs
    samples_a_microbatch: float = 1.0
    layers: int = 0  # of the whole model; 0: four a stage
    state_bytes: tuple[float, ...] = ()  # a stage: parameters, gradients, optimizer; empty: 0
    activation_bytes: tuple[float, ...] = ()  # a stage: of a micro-batch in flight; empty: 0
    boundary_bytes: int = 0  # of a micro-batch, between two stages
    link_bytes_s: float = inf  # of a worker
    disk_bytes_s: float = 1e9  # of a GPU, to where checkpoints are kept
    memory_bytes: float = inf  # of a worker
    microbatches_held: int | None = None  # in flight a worker; None: as memory admits
    gpus_a_worker: int = 1

    def __post_init__(self) -> None:
        self.costs.require_stages(self.shape.stages)
        for name in ("state_bytes", "activation_bytes"):
            row = getattr(self, name) or (0.0,) * self.shape.stages
            object.__setattr__(self, name, row)
            if len(row) != self.shape.stages or min(row) < 0:
                raise ConfigError(f"{name} {row}: expected {self.shape.stages} numbers >= 0")
        for name in ("samples_a_microbatch", "link_bytes_s", "disk_bytes_s", "memory_bytes"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} {getattr(self, name)}: expected a number above 0")
        if self.gpus_a_worker < 1 or self.boundary_bytes < 0 or self.layers < 0:
            raise ConfigError(
                f"{self.gpus_a_worker} GPUs a worker, {self.boundary_bytes} bytes a boundary, "
                f"{self.layers} layers: expected at least 1, 0 and 0"
            )
        object.__setattr__(self, "layers", self.layers or 4 * self.shape.stages)
        if self.layers < self.shape.stages:
            raise ConfigError(
                f"{self.shape.stages} stages for {self.layers} layers: expected a layer a stage "
                "at least; ask for fewer stages"
            )
        if self.room < 1:
            raise ConfigError(
                f"{self.name} on {self.shape.stages} stages needs "
                f"{max(self.state_bytes) / 1e9:.0f} GB a worker for its state and has "
                f"{self.memory_bytes / 1e9:.0f} GB: expected room for a micro-batch; ask for more "
                "stages"
            )

    @property
    def num_workers(self) -> int:
        return self.shape.pipelines * self.shape.stages

    @property
    def samples_a_step(self) -> float:
        return self.shape.microbatches * self.samples_a_microbatch

    @property
    def room(self) -> int:
        """Micro-batches in flight that fit, at most 2 S: more bring nothing."""
        most = 2 * self.shape.stages
        if self.microbatches_held is not None:
            return min(self.microbatches_held, most)
        rows = zip(self.state_bytes, self.activation_bytes, strict=True)
        fits = [
            floor((self.memory_bytes - state) / each)
            if each
            else most * (state <= self.memory_bytes)
            for state, each in rows
        ]
        return min([most, *fits])

    @property
    def state_a_gpu(self) -> float:
        """Bytes of the largest stage."""
        return max(self.state_bytes) / self.gpus_a_worker

    @property
    def copy_s(self) -> float:
        """Of a stage's state from another worker."""
        return max(self.state_bytes) / self.link_bytes_s

    def problem(self, members: tuple[Member, ...], *, room: int | None = None) -> Problem:
        boundaries = (self.boundary_bytes,) * (self.shape.stages - 1)
        return Problem(
            shape=self.shape,
            costs=self.costs,
            memory=Memory(limit=float(room or self.room)),
            members=members,
            links=LinkCosts(bytes_s=self.link_bytes_s, boundary_bytes=boundaries),
        )

    def laid_out(self, pipelines: int, stages: int) -> "JobCosts":
        """The same model and batch on another layout; layers are shared out evenly."""
        if stages > self.layers:
            raise ConfigError(f"{stages} stages for {self.layers} layers: expected at most that")
        each = -(-self.shape.microbatches // pipelines)
        share = self.shape.stages / stages

        def spread(row: tuple[float, ...]) -> tuple[float, ...]:
            return (sum(row) / stages,) * stages

        costs = self.costs
        return replace(
            self,
            shape=Shape(pipelines, stages, each * pipelines),
            samples_a_microbatch=self.samples_a_step / (each * pipelines),
            costs=Costs(
                forward_s=spread(costs.forward_s),
                input_s=spread(costs.input_s),
                weight_s=spread(costs.weight_s),
                fused_s=spread(costs.fused_s),
                step_s=tuple(one * share for one in (max(costs.step_s),) * stages),
                link_s=costs.link_s,
            ),
            state_bytes=spread(self.state_bytes),
            activation_bytes=spread(self.activation_bytes),
        )
