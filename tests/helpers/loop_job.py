"""A small job with all that a training loop may have: groups by name, schedules of groups, tied
ends, dropout, a clip that comes and goes, a validation set. For runs in threads."""

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from helpers.validated_job import Waves
from holdfast import Job

WIDTH = 6


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(self.linear(self.norm(x)))


def grouped(named_parameters: list[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    """No decay for norms and biases; the ends have a group, which most stages have nothing of."""
    ends = [p for name, p in named_parameters if name == "0.weight"]
    plain = [p for name, p in named_parameters if "norm" in name or name.endswith("bias")]
    rest = [p for name, p in named_parameters if not any(p is one for one in (*ends, *plain))]
    groups = [
        {"params": rest, "weight_decay": 0.3},
        {"params": plain, "weight_decay": 0.0, "lr": 1e-2},
        {"params": ends, "weight_decay": 0.1, "lr": 5e-2},
    ]
    return torch.optim.AdamW(groups, lr=3e-2)


def schedule(optimizer: torch.optim.Optimizer) -> LambdaLR:
    return LambdaLR(optimizer, [lambda t: 1.0, lambda t: 0.9**t, lambda t: 1 / (1 + t)])


def job() -> Job:
    first, last = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
    last.weight = first.weight
    return Job(
        layers=[first, nn.Tanh(), Block(), Block(), last],
        loss=nn.functional.mse_loss,
        optimizer=grouped,
        lr_schedule=schedule,
        data=Waves(50, 1, WIDTH),
        microbatch_size=2,
        clip_norm=1.0,
        validation=Waves(9, 100, WIDTH),
    )


def ungrouped() -> Job:
    return replace(job(), optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=3e-2),
                   lr_schedule=None)  # fmt: skip


def unfrozen() -> Job:
    """The tied ends thaw after three steps, a block's linear after five: whole stages and parts."""
    return replace(job(), unfreeze={3: ["0.*", "2.norm.*"], 5: ["2.*", "3.linear.weight"]})
