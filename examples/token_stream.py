"""A stream of tokens from a file that is mapped into memory: its position is an offset."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import AdamW

from holdfast import Job
from holdfast.models.gpt import gpt_layers
from holdfast.models.text import VOCABULARY, CharText, next_token_loss

CONTEXT = 32


class TokenStream:
    """Windows of 16-bit tokens, one after the other. Nothing is read before it is needed."""

    def __init__(self, path: Path) -> None:
        self.tokens, self.offset = np.memmap(path, dtype=np.uint16, mode="r"), 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        while self.offset + CONTEXT < len(self.tokens):
            window = self.tokens[self.offset : self.offset + CONTEXT + 1].astype(np.int64)
            self.offset += CONTEXT
            yield torch.from_numpy(window[:-1]), torch.from_numpy(window[1:])
        self.offset = 0  # the next epoch

    def state_dict(self) -> dict[str, Any]:
        return {"offset": self.offset}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.offset = state["offset"]


def written() -> Path:
    """The tokens of some text; a real job has them from its tokenizer. Every worker may come."""
    path = Path(tempfile.gettempdir()) / f"holdfast-tokens-{os.getuid()}.bin"
    if not path.exists():
        text = torch.cat([window for window, _ in CharText(CONTEXT, num_bytes=200_000)])
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(text.numpy().astype(np.uint16).tobytes())
        os.replace(file.name, path)
    return path


def job() -> Job:
    return Job(
        layers=gpt_layers(vocabulary=VOCABULARY, context=CONTEXT, width=64, heads=4, depth=4),
        loss=next_token_loss,
        optimizer=lambda parameters: AdamW(parameters, lr=3e-3),
        data=TokenStream(written()),
    )
