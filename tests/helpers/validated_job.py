"""A small job with a validation set whose last micro-batch is smaller, for runs in threads."""

import torch
from torch import Tensor, nn

from holdfast import Job

WIDTH = 5
NUM_VALIDATED = 13


class Waves:
    def __init__(self, number: int, first: int, width: int = WIDTH) -> None:
        self._number, self._first, self._width = number, first, width

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        phase = torch.arange(self._width) * (index + self._first) * 0.37
        return phase.sin(), phase.cos()


class Normed(nn.Module):
    """All that is another thing in a validation; ``seen`` is written to even there."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)
        self.drop = nn.Dropout(0.3)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        return self.drop(torch.tanh(self.norm(self.linear(x)))) + self.seen * 1e-4


def near(output: Tensor, target: Tensor) -> Tensor:
    return ((output - target).abs() < 0.5).float().mean()


def plain() -> Job:
    """The same training without a validation."""
    return Job(**_parts())


def validated() -> Job:
    metrics = {"near": near, "largest": lambda output, target: float(output.max())}
    return Job(**_parts(), validation=Waves(NUM_VALIDATED, 100), metrics=metrics)


def _raising(output: Tensor, target: Tensor) -> float:
    if len(output) == 1:  # the smaller one
        raise ValueError("too few samples")
    return 0.0


def with_a_metric_that_raises() -> Job:
    return Job(**_parts(), validation=Waves(NUM_VALIDATED, 100), metrics={"fragile": _raising})


def _parts() -> dict:
    return {
        "layers": [nn.Linear(WIDTH, WIDTH), Normed(), Normed(), nn.Linear(WIDTH, WIDTH)],
        "loss": nn.functional.mse_loss,
        "optimizer": lambda parameters: torch.optim.AdamW(parameters, lr=3e-2),
        "data": Waves(50, 1),
        "microbatch_size": 2,
        "clip_norm": 0.5,
    }
