"""Costs of training a transformer, from its size, the GPU and the links. A model, not measured.

Forward is 2 operations a parameter and token, and attention; backward is twice that. State is 16
bytes a parameter (fp16 weights and gradients, fp32 weights and two moments).
"""

from dataclasses import dataclass
from math import ceil

from holdfast.baselines.policies.job_costs import JobCosts
from holdfast.errors import ConfigError
from holdfast.schedule.costs import Costs
from holdfast.schedule.operation import Shape

_STATE_BYTES = 16  # a parameter
_GRADIENT_BYTES = 2
_ACTIVATION_BYTES = 34  # a token, layer and hidden unit, with flash attention


@dataclass(frozen=True, kw_only=True)
class Transformer:
    name: str
    parameters: float
    layers: int
    hidden: int
    sequence: int = 2048
    microbatch: int = 1  # sequences
    gpus_a_worker: int = 1  # that hold a stage together, by tensor parallelism


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Of one GPU."""

    flops: float = 312e12  # A100, bf16
    utilisation: float = 0.45
    memory_bytes: float = 80e9
    link_bytes_s: float = 12.5e9  # 100 Gbit/s
    link_s: float = 50e-6  # until the first byte is there
    disk_bytes_s: float = 1e9

    def __post_init__(self) -> None:
        for name in ("flops", "utilisation", "memory_bytes", "link_bytes_s", "disk_bytes_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} {getattr(self, name)}: expected a number above 0")
        if self.utilisation > 1 or self.link_s < 0:
            raise ConfigError(
                f"utilisation {self.utilisation}, link delay {self.link_s} s: expected at most 1 "
                "and at least 0"
            )


def transformer_costs(
    model: Transformer, hardware: Hardware, *, pipelines: int, stages: int, microbatches: int
) -> JobCosts:
    """``microbatches``: a pipeline and step."""
    if not 1 <= stages <= model.layers:
        raise ConfigError(
            f"{stages} stages for the {model.layers} layers of {model.name}: expected 1 to "
            f"{model.layers}"
        )
    gpus, tokens = model.gpus_a_worker, model.sequence * model.microbatch
    share = ceil(model.layers / stages) / model.layers  # the longest stage sets the pace
    attention = 2 * 2 * model.layers * model.sequence * model.hidden / 2  # causal: half of it
    flops = tokens * (2 * model.parameters + attention) * share
    forward_s = flops / (hardware.flops * hardware.utilisation * gpus)
    own = model.parameters * share / gpus
    reduce_s = 0.0
    if pipelines > 1:
        reduce_s = 2 * own * _GRADIENT_BYTES / hardware.link_bytes_s
    activation = _ACTIVATION_BYTES * tokens * model.hidden * model.layers * share
    return JobCosts(
        name=model.name,
        shape=Shape(pipelines, stages, pipelines * microbatches),
        costs=Costs.uniform(
            stages,
            forward_s=forward_s,
            input_s=forward_s,
            weight_s=forward_s,
            step_s=reduce_s,
            link_s=hardware.link_s,
        ),
        samples_a_microbatch=model.microbatch,
        layers=model.layers,
        state_bytes=(model.parameters * share * _STATE_BYTES,) * stages,
        activation_bytes=(activation,) * stages,
        boundary_bytes=2 * tokens * model.hidden,
        link_bytes_s=hardware.link_bytes_s * gpus,
        disk_bytes_s=hardware.disk_bytes_s,
        memory_bytes=hardware.memory_bytes * gpus,
        gpus_a_worker=gpus,
    )
