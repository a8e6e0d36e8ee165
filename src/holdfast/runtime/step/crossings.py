"""What is known of a micro-batch's tensors at both ends of a stage while it is under way.

Outlives an epoch: whoever has run a forward may run its backward in the next one.
"""

from torch import Tensor

Tensors = tuple[Tensor, ...]
_Key = tuple[int, int]  # step, micro-batch


class Crossings:
    def __init__(self) -> None:
        self._carries: dict[_Key, list[bool]] = {}  # which outputs get a gradient back
        self._sizes: dict[_Key, int] = {}  # elements of the input

    def came_in(self, step: int, microbatch: int, inputs: Tensors) -> None:
        self._sizes[step, microbatch] = sum(tensor.numel() for tensor in inputs)

    def went_out(self, step: int, microbatch: int, outputs: Tensors) -> None:
        self._carries[step, microbatch] = [tensor.requires_grad for tensor in outputs]

    def size_of(self, step: int, microbatch: int | None) -> int:
        """How much work a micro-batch is, next to others; 0: unknown."""
        return 0 if microbatch is None else self._sizes.get((step, microbatch), 0)

    def num_gradients(self, step: int, microbatch: int) -> int:
        """How many tensors come back for what went out."""
        return sum(self._carries[step, microbatch])

    def placed(self, step: int, microbatch: int, gradients: Tensors) -> tuple[Tensor | None, ...]:
        """Gradients as the stage wants them: None for each output that gets none back."""
        arrived = iter(gradients)
        carries = self._carries[step, microbatch]
        return tuple(next(arrived) if carried else None for carried in carries)

    def release_before(self, step: int) -> None:
        self._carries = {key: value for key, value in self._carries.items() if key[0] >= step}
        self._sizes = {key: value for key, value in self._sizes.items() if key[0] >= step}
