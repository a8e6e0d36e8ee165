"""Text of a Hugging Face data set, as ``datasets`` keeps it: made here, nothing is downloaded."""

import os
import textwrap

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from datasets import Dataset
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.optim import AdamW

from holdfast import Job, real_tokens
from holdfast.models.gpt import gpt_layers
from holdfast.models.text import next_token_loss

CONTEXT = 64


def encoded(rows: dict[str, list[str]]) -> dict[str, list[Tensor]]:
    """By bytes, when a row is asked for; a real job calls its tokenizer here."""
    return {"tokens": [torch.tensor(list(text.encode()[: CONTEXT + 1])) for text in rows["text"]]}


def collate(rows: list[dict[str, Tensor]]) -> tuple[Tensor, Tensor]:
    """As long as the longest row; the loss leaves out what is behind the end of a shorter one."""
    inputs, targets = [row["tokens"][:-1] for row in rows], [row["tokens"][1:] for row in rows]
    padded = pad_sequence(targets, batch_first=True, padding_value=-100)
    return pad_sequence(inputs, batch_first=True), padded


def job() -> Job:
    with open(textwrap.__file__) as file:
        lines = [line for line in file.read().splitlines() if len(line) > 1]
    return Job(
        layers=gpt_layers(vocabulary=256, context=CONTEXT, width=64, heads=4, depth=4),
        loss=next_token_loss,
        weight=real_tokens,
        optimizer=lambda parameters: AdamW(parameters, lr=3e-3),
        data=Dataset.from_dict({"text": lines}).with_transform(encoded),
        collate=collate,
    )
