"""How many micro-batches may be in flight on a worker, by the memory of its device. Pure.

An estimate: what the optimizer keeps is taken to be AdamW's, and what kernels work with is left to
the share of the memory that is not counted on.
"""

from collections import Counter
from collections.abc import Collection, Sequence

from holdfast.config import RunConfig
from holdfast.protocol.messages import Hello
from holdfast.protocol.records import LayerSize
from holdfast.schedule.generate import default_memory

_COUNTED_ON = 0.9  # of the memory: the rest is for kernels, and for gaps between tensors

# Bytes for each number that is trained, besides the parameter: docs/guides/memory.md.
_FP32 = 4
_OPTIMIZER = 2 * _FP32
_SUMS = {"fast": _FP32, "exact": 3 * _FP32}  # of gradients; exact: and those of one micro-batch
_STEP_BACK = {"keep-old": 3 * _FP32, "undo": 2}
_OLD_WEIGHTS = 2 * _FP32  # keep-old, where a stage has several holders


def device_room(hellos: Collection[Hello]) -> float:
    """Bytes that each worker can count on, with the least that any has; 0: none has a device.

    Workers that have the same device share it.
    """
    devices = [hello for hello in hellos if hello.device_bytes]
    sharing = Counter((hello.host, hello.device_index) for hello in devices)
    rooms = [one.device_bytes / sharing[one.host, one.device_index] for one in devices]
    return _COUNTED_ON * min(rooms, default=0.0)


def most_in_flight(
    room_bytes: float, sizes: Sequence[LayerSize], stages: Sequence[range], config: RunConfig
) -> int:
    """Of what every stage has room for, the least; one at least, twice the stages at most."""
    again = config.stage.checkpoint_activations
    found = [default_memory(len(stages))]
    for stage in stages:
        own = [sizes[number] for number in stage]
        output_bytes = sum(size.input_bytes for size in sizes[stage.stop : stage.stop + 1])
        inner = [size.inner_bytes for size in own]
        fixed = sum(_state_bytes(size, config) for size in own) + (max(inner) if again else 0)
        each = sum(size.input_bytes for size in own) + output_bytes + (0 if again else sum(inner))
        found.append(int((room_bytes - fixed) // max(each, 1)))
    return max(1, min(found))


def _state_bytes(size: LayerSize, config: RunConfig) -> int:
    consistency = config.recovery.consistency
    each = _OPTIMIZER + _SUMS[config.gradients.mode] + _STEP_BACK[consistency]
    if consistency == "keep-old" and config.parallel.pipelines > 1:
        each += _OLD_WEIGHTS
    each += _FP32 if config.train.ema else 0
    masters = _FP32 * size.trained_low if config.optimizer.masters else 0
    return size.held_bytes + each * size.trained + masters


def limited_by_device(in_flight: int, config: RunConfig) -> int:
    """For who is told of it: the limit, if more memory would mean more in flight; else 0."""
    if config.schedule.memory or config.schedule.file:
        return 0
    most = min(default_memory(config.parallel.stages), config.parallel.microbatches)
    return in_flight if in_flight < most else 0
