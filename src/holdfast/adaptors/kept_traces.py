"""Traces that the workers of a run share if they are threads of one process.

To trace replaces ``max``, ``math.pow`` and switches of torch for the whole process: it must not
happen while others train or plan. So the first worker of a run traces, while nobody else has begun,
and those that load the same job later are given copies.
"""

import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy

from holdfast.adaptors.traced_layer import TracedLayer

_this_thread = threading.local()


class KeptTraces:
    """Of one run: what is loaded in it is always the same job."""

    def __init__(self) -> None:
        self._layers: dict[Hashable, Sequence[TracedLayer]] = {}

    @contextmanager
    def used_here(self) -> Iterator[None]:
        """By this thread."""
        _this_thread.kept = self
        try:
            yield
        finally:
            del _this_thread.kept

    def layers(
        self, key: Hashable, trace: Callable[[], Sequence[TracedLayer]]
    ) -> Sequence[TracedLayer]:
        if key not in self._layers:
            self._layers[key] = trace()
        return [_copy(layer) for layer in self._layers[key]]


def kept_or_traced(
    key: Hashable, trace: Callable[[], Sequence[TracedLayer]]
) -> Sequence[TracedLayer]:
    """Layers; their parameters may be of another model of the same kind."""
    kept: KeptTraces | None = getattr(_this_thread, "kept", None)
    return kept.layers(key, trace) if kept is not None else trace()


def _copy(layer: TracedLayer) -> TracedLayer:
    memo: dict[int, object] = {id(parameter): parameter for parameter in layer.parameters()}
    return deepcopy(layer, memo)
