"""A GPT of 0.3 million parameters that learns to write Python, character by character."""

import math

from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from holdfast import Job
from holdfast.models.gpt import gpt_layers
from holdfast.models.text import VOCABULARY, CharText, next_token_loss

CONTEXT, WARM_UP, DECAY = 64, 20, 2000  # characters, steps, steps


def learning_rate(step: int) -> float:
    """Up in a line, then down in half a cosine to a tenth."""
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    done = min(1.0, (step - WARM_UP) / (DECAY - WARM_UP))
    return 0.55 + 0.45 * math.cos(math.pi * done)


def job() -> Job:
    return Job(
        layers=gpt_layers(
            vocabulary=VOCABULARY, context=CONTEXT, width=64, heads=4, depth=6, dropout=0.1
        ),
        loss=next_token_loss,
        optimizer=lambda parameters: AdamW(parameters, lr=3e-3),
        data=CharText(CONTEXT),
        lr_schedule=lambda optimizer: LambdaLR(optimizer, learning_rate),
        clip_norm=1.0,
    )
