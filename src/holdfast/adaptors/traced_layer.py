"""A piece of a traced model as a layer."""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.fx import GraphModule

from holdfast.errors import ConfigError


class TracedLayer(nn.Module):
    """It is given all values that anyone from here on needs, and hands on what is needed later."""

    def __init__(self, piece: GraphModule, takes: Sequence[int], gives: Sequence[int]) -> None:
        """``takes``: which of the values the piece wants; ``gives``: which of the values and of
        the piece's results, counted on, the next layer is given."""
        super().__init__()
        self.piece = piece
        self._takes, self._gives = tuple(takes), tuple(gives)

    def forward(self, *values: Tensor) -> Tensor | tuple[Tensor, ...]:
        known = (*values, *self.piece(*(values[place] for place in self._takes)))
        given = tuple(known[place] for place in self._gives)
        return given[0] if len(given) == 1 else given


class FirstTracedLayer(TracedLayer):
    """Sizes are plain numbers in a traced graph: on inputs of other sizes it may compute nonsense.

    The ``examples`` are what the model was traced with.
    """

    def __init__(
        self,
        piece: GraphModule,
        takes: Sequence[int],
        gives: Sequence[int],
        examples: Sequence[Tensor],
    ) -> None:
        super().__init__(piece, takes, gives)
        self._expected = _kinds(examples)

    def forward(self, *values: Tensor) -> Tensor | tuple[Tensor, ...]:
        if _kinds(values) != self._expected:
            raise ConfigError(
                f"Job.model was traced with {_shown(self._expected)}, and a micro-batch has "
                f"{_shown(_kinds(values))}: a traced model has fixed sizes; pad in Job.collate, "
                "or write the model as Job.layers"
            )
        return super().forward(*values)


def _kinds(tensors: Sequence[Tensor]) -> list[tuple[str, tuple[int, ...]]]:
    return [(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)) for tensor in tensors]


def _shown(kinds: list[tuple[str, tuple[int, ...]]]) -> str:
    return ", ".join(f"{dtype} {list(shape)}" for dtype, shape in kinds)
