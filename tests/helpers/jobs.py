"""Job files for the tests. Each is written where a test wants it."""

from pathlib import Path

# All that is hard: dropout, batch norm, tied ends, a clip that comes and goes.
_HARD = """
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from holdfast.job import Job

WIDTH = {width}


class Numbers:
    def __len__(self):
        return {samples}

    def __getitem__(self, index):
        phase = torch.arange(WIDTH) * (index + 1) * 0.37
        return phase.sin() * (1 + index % 3), phase.cos()


{residual}

class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x):
        return torch.tanh(self.norm(self.linear(x)))


def job():
    first, last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    last.weight = first.weight
    return Job(
        layers=[first, {layers}, last],
        loss=nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr={lr}),
        data=Numbers(),
        microbatch_size={microbatch_size},
        lr_schedule=lambda optimizer: LambdaLR(optimizer, lambda step: 1 / (1 + 0.1 * step)),
        clip_norm=CLIP_NORM,
    )
"""
MIXED = _HARD.format(
    width=12,
    samples=90,
    layers="Residual(), Normed(), Residual(), Normed(), Residual()",
    lr="3e-3",
    microbatch_size=4,
    residual="""
class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.inner = nn.Sequential(nn.Linear(WIDTH, 24), nn.GELU(), nn.Dropout(0.2))
        self.outer = nn.Linear(24, WIDTH)

    def forward(self, x):
        return x + self.outer(self.inner(self.norm(x)))
""",
)
TINY = _HARD.format(
    width=6,
    samples=50,
    layers="Residual(), Normed()",
    lr="3e-2",
    microbatch_size=2,
    residual="""
class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2))

    def forward(self, x):
        return x + self.inner(x)
""",
)

VALIDATED = TINY.replace(
    "        clip_norm=CLIP_NORM,\n",
    """        clip_norm=CLIP_NORM,
        validation=[Numbers()[index] for index in range(13)],
        metrics={"far": lambda output, target: (output - target).abs().mean()},
""",
)

TIED_GPT = """
from torch.optim import AdamW

from holdfast.job import Job
from holdfast.models.gpt import gpt_layers
from holdfast.models.text import VOCABULARY, CharText, next_token_loss


def job():
    layers = gpt_layers(
        vocabulary=VOCABULARY, context=16, width=16, heads=2, depth=2, dropout=0.1, tied=True
    )
    return Job(
        layers=layers,
        loss=next_token_loss,
        optimizer=lambda parameters: AdamW(parameters, lr=1e-3),
        data=CharText(16, num_bytes=20_000),
        clip_norm=0.5,
    )
"""

SMALL = """
import torch
from torch import nn

from holdfast.job import Job


class Numbers:
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        return torch.full((4,), float(index)), torch.zeros(4)


def job():
    return Job(
        layers=[nn.Linear(4, 4) for _ in range(NUM_LAYERS)],
        loss=nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-6),
        data=Numbers(),
        microbatch_size=1,
    )
"""


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.py"
    path.write_text(text)
    return path


def mixed(folder: Path, clip_norm: float = 1.3) -> Path:
    """A few thousand parameters."""
    return write(folder, "mixed", MIXED.replace("CLIP_NORM", repr(clip_norm)))


def tied_gpt(folder: Path) -> Path:
    return write(folder, "tied_gpt", TIED_GPT)


def small(folder: Path, *, num_layers: int = 2, name: str = "small") -> Path:
    return write(folder, name, SMALL.replace("NUM_LAYERS", str(num_layers)))
