"""fp32 masters of parameters that a job holds in bf16 or fp16: what its optimizer updates.

An update that is small beside a parameter is lost when it is rounded to the parameter's own type;
a master adds such updates up. The parameter is always its master, rounded. Masters are state.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from holdfast.errors import CheckpointError

MASTER = "holdfast.master"  # beside a parameter's optimizer state, in checkpoints and copies
_ROUNDED = (torch.bfloat16, torch.float16)


class Masters:
    """``trained``: for each parameter its master, or itself if it needs none."""

    def __init__(self, parameters: Sequence[nn.Parameter], *, wanted: bool) -> None:
        self._places = [i for i, p in enumerate(parameters) if wanted and p.dtype in _ROUNDED]
        self._parameters = tuple(parameters)
        trained = list(parameters)
        for i in self._places:
            trained[i] = nn.Parameter(parameters[i].detach().to(torch.float32))
        self.trained: tuple[nn.Parameter, ...] = tuple(trained)

    def round_off(self) -> None:
        """The masters have changed."""
        with torch.no_grad():
            for i in self._places:
                self._parameters[i].copy_(self.trained[i])

    def live_tensors(self, keys: Sequence[str]) -> dict[str, Tensor]:
        return {f"{keys[i]}/{MASTER}": self.trained[i].detach() for i in self._places}

    def load(self, tensors: Mapping[str, Tensor], keys: Sequence[str]) -> None:
        """A parameter without a stored master, as it is after training without, is its own."""
        with torch.no_grad():
            for i in self._places:
                key, master = f"{keys[i]}/{MASTER}", self.trained[i]
                stored = tensors.get(key, self._parameters[i])
                if stored.shape != master.shape:
                    raise CheckpointError(
                        f"checkpoint has {key} of shape {tuple(stored.shape)}, the job's parameter "
                        f"has {tuple(master.shape)}; resume with the same job"
                    )
                master.copy_(stored)
        self.round_off()
