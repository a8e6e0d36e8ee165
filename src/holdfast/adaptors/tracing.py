"""Any module as layers: traced by ``torch.export``, and the traced graph cut into pieces.

It is cut where its forward says ``pipe_split()``, before the submodules that the user names, or
before each block of its lists. What a later layer needs of an earlier one is handed through.
"""

import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node

from holdfast.adaptors.cut_checks import check_cuts, check_output
from holdfast.adaptors.cutting import pieces_of
from holdfast.adaptors.kept_traces import kept_or_traced
from holdfast.adaptors.layered import LayeredModel
from holdfast.adaptors.source_line import own_line
from holdfast.adaptors.traced_layer import FirstTracedLayer, TracedLayer
from holdfast.errors import ConfigError

_TALKATIVE = ("torch.export", "torch.export._trace", "torch.fx.experimental.symbolic_shapes")


def traced(
    model: nn.Module, examples: tuple[Tensor, ...], split_points: Sequence[str]
) -> LayeredModel:
    """``split_points``: paths of submodules before which it is cut; none: chosen here."""

    def trace() -> list[TracedLayer]:
        module = _exported(model, examples)
        check_output(model, module)
        pieces = pieces_of(model, module.graph, split_points)
        check_cuts(model, pieces)
        return _layers(module, pieces, examples)

    shapes = [(name, tensor.shape) for name, tensor in _tensors(model).items()]
    layers = kept_or_traced((type(model).__qualname__, *split_points, *shapes), trace)
    for layer in layers:
        _use_own_tensors(layer.piece, model)
    first_names: dict[int, str] = {}  # of tied tensors, which have several
    for name, tensor in _tensors(model).items():
        first_names.setdefault(id(tensor), name)
    names = {
        f"{number}.piece.{name}": first_names.get(id(tensor), name)
        for number, layer in enumerate(layers)
        for name, tensor in _tensors(layer.piece).items()
    }
    return LayeredModel(layers, names)


def _exported(model: nn.Module, examples: tuple[Tensor, ...]) -> GraphModule:
    """What cannot be traced is said with the line of the user's code."""
    with _quiet():
        try:
            program = torch.export.export(model, examples)
            module: Any = program.module(check_guards=False)  # sizes are checked by the layers
        except Exception as why:
            reason = (str(why).strip() or type(why).__name__).splitlines()[0]
            raise ConfigError(
                f"Job.model ({type(model).__name__}) cannot be traced{own_line(why)}: "
                f"{type(why).__name__}: {reason}; change that line, or write the model as "
                "Job.layers"
            ) from why
    assert isinstance(module, GraphModule)
    return module


@contextmanager
def _quiet() -> Iterator[None]:
    """Of what cannot be traced torch prints pages, and warns."""
    before = {log: log.level for log in map(logging.getLogger, _TALKATIVE)}
    for log in before:
        log.setLevel(logging.CRITICAL)
    nowhere = io.StringIO()
    try:
        with warnings.catch_warnings(), redirect_stdout(nowhere), redirect_stderr(nowhere):
            warnings.simplefilter("ignore", FutureWarning)  # of torch about itself
            yield
    finally:
        for log, level in before.items():
            log.setLevel(level)


def _layers(
    module: GraphModule, pieces: Sequence[Sequence[Node]], examples: Sequence[Tensor]
) -> list[TracedLayer]:
    live = [node for node in module.graph.nodes if node.op == "placeholder"]
    result = list(module.graph.output_node().args[0])  # type: ignore[arg-type]
    layers: list[TracedLayer] = []
    for number, nodes in enumerate(pieces):
        later = {user for piece in pieces[number + 1 :] for user in piece}
        wanted = {node for node in (*live, *nodes) if node in result or later & node.users.keys()}
        taken = _taken(nodes)
        made = [node for node in nodes if node in wanted]
        known = [*live, *made]
        live = [node for node in known if node in wanted] if later else result
        places = [known.index(node) for node in taken], [known.index(node) for node in live]
        piece = GraphModule(module, _graph(nodes, taken, made))
        if number:
            layers.append(TracedLayer(piece, *places))
        else:
            layers.append(FirstTracedLayer(piece, *places, examples))
    return layers


def _taken(nodes: Sequence[Node]) -> list[Node]:
    """What a piece uses that earlier ones, or the data, have made."""
    inside = set(nodes)
    used = dict.fromkeys(one for node in nodes for one in node.all_input_nodes)
    return [node for node in used if node not in inside and node.op != "get_attr"]


def _graph(nodes: Sequence[Node], taken: Sequence[Node], made: Sequence[Node]) -> Graph:
    """Of one piece: with the model's own parameters and buffers, under their own names."""
    graph = Graph()
    copies = {node: graph.placeholder(node.name) for node in taken}
    for node in nodes:
        for used in node.all_input_nodes:
            if used not in copies:  # else it would be in the piece, or taken
                copies[used] = graph.get_attr(str(used.target))
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in made))
    return graph


def _use_own_tensors(piece: GraphModule, model: nn.Module) -> None:
    """In the place of those of a model of the same kind."""
    own = _tensors(model)
    for path, module in piece.named_modules():
        for tensors in (module._parameters, module._buffers):
            for name in tensors:
                full = f"{path}.{name}" if path else name
                if full in own:
                    tensors[name] = own[full]


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    parameters = dict(module.named_parameters(remove_duplicate=False))
    return {**parameters, **dict(module.named_buffers(remove_duplicate=False))}
