"""GPT-2 from Hugging Face ``transformers``, untrained and small, as a list of layers.

The model's own modules are used as they are; only embedding and head need a wrapper. The head's
weight is the embedding's, as in GPT-2, though the two end up in different stages.
"""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded

import torch
from torch import Tensor, nn
from torch.optim import AdamW
from transformers import GPT2Config, GPT2LMHeadModel

from holdfast import Job
from holdfast.models.text import VOCABULARY, CharText, next_token_loss

CONTEXT = 64


class Embedding(nn.Module):
    def __init__(self, model: GPT2LMHeadModel) -> None:
        super().__init__()
        self.wte, self.wpe = model.transformer.wte, model.transformer.wpe
        self.drop = model.transformer.drop

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.drop(self.wte(tokens) + self.wpe(positions))


class Head(nn.Module):
    def __init__(self, model: GPT2LMHeadModel) -> None:
        super().__init__()
        self.ln_f, self.lm_head = model.transformer.ln_f, model.lm_head

    def forward(self, x: Tensor) -> Tensor:
        return self.lm_head(self.ln_f(x))


def gpt2() -> GPT2LMHeadModel:
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=CONTEXT,
        n_embd=64,
        n_layer=4,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
        # A block called without a mask is causal with this kernel, and is not with "eager".
        attn_implementation="sdpa",
    )
    return GPT2LMHeadModel(config)


def layers_of(model: GPT2LMHeadModel) -> list[nn.Module]:
    return [Embedding(model), *model.transformer.h, Head(model)]


def job() -> Job:
    return Job(
        layers=layers_of(gpt2()),
        loss=next_token_loss,
        optimizer=lambda parameters: AdamW(parameters, lr=1e-3),
        data=CharText(CONTEXT),
        microbatch_size=8,
        clip_norm=1.0,
    )
