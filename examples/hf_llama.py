"""Fine-tunes a Llama of ``transformers``, here a random one: low-rank weights, the rest frozen."""

import os
import textwrap

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.optim import AdamW
from transformers import LlamaConfig, LlamaForCausalLM

from holdfast import Job, real_tokens
from holdfast.models.text import next_token_loss

CONTEXT, RANK = 64, 4


def sample(line: bytes) -> tuple[Tensor, Tensor]:
    """Byte by byte; the loss leaves out what is behind the end of the line."""
    tokens = torch.tensor(list(line[: CONTEXT + 1]))
    missing = (0, CONTEXT + 1 - len(tokens))
    return pad(tokens[:-1], missing), pad(tokens[1:], missing, value=-100)


class LowRank(nn.Module):
    def __init__(self, frozen: nn.Linear) -> None:
        super().__init__()
        self.frozen, self.down = frozen, nn.Linear(frozen.in_features, RANK, bias=False)
        self.up = nn.Linear(RANK, frozen.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + self.up(self.down(x))


def llama() -> LlamaForCausalLM:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=256, **sizes, **heads)).requires_grad_(False)
    for block in model.model.layers:
        block.self_attn.q_proj = LowRank(block.self_attn.q_proj)
        block.self_attn.v_proj = LowRank(block.self_attn.v_proj)
    return model


def job() -> Job:
    with open(textwrap.__file__, "rb") as file:
        samples = [sample(line) for line in file.read().splitlines() if len(line) > 1]
    return Job(
        model=llama(),
        loss=next_token_loss,
        weight=real_tokens,  # a token counts the same in a short line and in a long one
        optimizer=lambda parameters: AdamW(parameters, lr=1e-2),
        data=samples[40:],
        validation=samples[:40],
    )
