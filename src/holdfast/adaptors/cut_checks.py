"""What cannot be cut, though it can be traced: told before anything runs."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from holdfast.errors import ConfigError

_BATCH_NORM = torch.ops.aten.batch_norm.default
_BATCH_NORM_TRAINING = 5  # which of its arguments says that it writes to its statistics


def check_output(model: nn.Module, module: GraphModule) -> None:
    returned: Any = module._out_spec
    one = returned.is_leaf()
    flat = returned.type in (tuple, list) and all(part.is_leaf() for part in returned.children())
    values: Any = module.graph.output_node().args[0]
    tensors = all(isinstance(v, Node) and isinstance(v.meta.get("val"), Tensor) for v in values)
    if not (one or flat) or not tensors:
        what = "something else" if one or flat else f"a {returned.type.__name__}"
        raise ConfigError(
            f"Job.model ({_kind(model)}) returns {what}: expected a tensor or a flat tuple of "
            "tensors, which Job.loss is given; wrap the model in a module that returns one"
        )


def check_cuts(model: nn.Module, pieces: Sequence[Sequence[Node]]) -> None:
    piece_of = {node: number for number, piece in enumerate(pieces) for node in piece}
    _check_crossing(model, piece_of)
    _check_buffers(model, piece_of)


def _check_crossing(model: nn.Module, piece_of: dict[Node, int]) -> None:
    for node, piece in piece_of.items():
        crosses = any(piece_of.get(user, piece) > piece for user in node.users)
        if crosses and not isinstance(node.meta.get("val"), Tensor):
            where = " ".join(str(node.meta.get("stack_trace")).split("\n")[-3:])
            raise ConfigError(
                f"Job.model ({_kind(model)}) is cut between where a number is made and where it is "
                f"used, and only tensors cross a cut: {' '.join(where.split())}; keep it a tensor, "
                "or cut elsewhere with Job.split_points"
            )


def _check_buffers(model: nn.Module, piece_of: dict[Node, int]) -> None:
    """Each layer would have a copy of its own, and each would write to it something else."""
    pieces: dict[str, set[int]] = defaultdict(set)
    written: set[str] = set()
    for operation, piece in piece_of.items():
        for used in operation.all_input_nodes:
            if used.op == "get_attr":
                pieces[str(used.target)].add(piece)
                if _writes(operation, used):
                    written.add(str(used.target))
    for name in sorted(written):
        if len(pieces[name]) > 1:
            raise ConfigError(
                f"Job.model ({_kind(model)}) writes to its buffer {name} in more than one layer: "
                "give each call a module of its own, or cut elsewhere with Job.split_points"
            )


def _writes(operation: Node, buffer: Node) -> bool:
    if operation.target is _BATCH_NORM:
        return bool(operation.args[_BATCH_NORM_TRAINING]) and buffer in operation.args[3:5]
    schema = getattr(operation.target, "_schema", None)
    return bool(schema and schema.is_mutable and operation.args and operation.args[0] is buffer)


def _kind(value: object) -> str:
    return type(value).__name__
