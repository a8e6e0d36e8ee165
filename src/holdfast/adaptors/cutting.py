"""Where a traced graph is cut."""

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.fx import Graph, Node

from holdfast.adaptors.blocks import blocks_of
from holdfast.errors import ConfigError

_SPLIT = "pippy._pipe_split.default"  # what torch.distributed.pipelining.pipe_split() leaves


def pieces_of(model: nn.Module, graph: Graph, split_points: Sequence[str]) -> list[list[Node]]:
    """The operations of the graph in their order, in one or more pieces."""
    nodes = [node for node in graph.nodes if node.op == "call_function"]
    marks = {node for node in nodes if str(node.target) == _SPLIT}
    if split_points:
        marks |= _starts(model, nodes, split_points)
    elif not marks:
        marks = _around_blocks(nodes, set(blocks_of(model)))
    pieces: list[list[Node]] = [[]]
    for node in nodes:
        if node in marks and pieces[-1]:
            pieces.append([])
        if str(node.target) != _SPLIT:
            pieces[-1].append(node)
    return [piece for piece in pieces if piece]


def _starts(model: nn.Module, nodes: Sequence[Node], split_points: Sequence[str]) -> set[Node]:
    firsts = _first_of_calls(nodes, set(split_points))
    called = {path for node in nodes for path in _calls(node).values()}
    for path in split_points:
        if path not in called:
            raise ConfigError(
                f"Job.split_points: {path!r} computes nothing in the forward of Job.model "
                f"({type(model).__name__}); name a submodule that does"
            )
    return firsts


def _around_blocks(nodes: Sequence[Node], blocks: set[str]) -> set[Node]:
    """Before each call of a block, and after the last of them."""
    inside = [bool(blocks & set(_calls(node).values())) for node in nodes]
    after_last = len(nodes) - inside[::-1].index(True) if any(inside) else len(nodes)
    return _first_of_calls(nodes, blocks) | set(nodes[after_last : after_last + 1])


def _first_of_calls(nodes: Sequence[Node], paths: set[str]) -> set[Node]:
    firsts: dict[str, Node] = {}
    for node in nodes:
        for call, path in _calls(node).items():
            if path in paths:
                firsts.setdefault(call, node)
    return set(firsts.values())


def _calls(node: Node) -> dict[str, str]:
    """Submodules that an operation is part of: a name that each call has for itself -> path."""
    stack: dict[str, tuple[str, Any]] = node.meta.get("nn_module_stack") or {}
    return {call: path for call, (path, _) in stack.items()}
