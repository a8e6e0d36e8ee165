"""GPT-2 from Hugging Face ``transformers``, untrained and small."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded

from torch.optim import AdamW
from transformers import GPT2Config, GPT2LMHeadModel

from holdfast import Job
from holdfast.models.text import VOCABULARY, CharText, next_token_loss

CONTEXT = 64


def gpt2() -> GPT2LMHeadModel:
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=CONTEXT,
        n_embd=64,
        n_layer=4,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config)


def job() -> Job:
    return Job(
        model=gpt2(),  # Holdfast knows how to cut it
        loss=next_token_loss,
        optimizer=lambda parameters: AdamW(parameters, lr=1e-3),
        data=CharText(CONTEXT),
        microbatch_size=8,
        clip_norm=1.0,
    )
