"""A Llama as a list of layers, in the style of torchtitan: rotary embedding, RMSNorm, GQA."""

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu
from torch.optim import AdamW

from holdfast import Job
from holdfast.models.text import VOCABULARY, CharText, next_token_loss

CONTEXT, WIDTH, DEPTH = 64, 64, 4
HEADS, KV_HEADS, SIZE = 8, 2, 8  # heads of queries, of keys and values, and how wide one is


def turns() -> Tensor:
    """Of each position, for each pair of elements: a complex number of length 1."""
    rates = 10_000.0 ** (-torch.arange(0, SIZE, 2) / SIZE)
    angles = torch.outer(torch.arange(CONTEXT), rates)
    return torch.polar(torch.ones_like(angles), angles)


def rotated(x: Tensor, by: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * by[: x.shape[-2]]).flatten(-2).type_as(x)


class TransformerBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.wq = nn.Linear(WIDTH, HEADS * SIZE, bias=False)
        self.wk, self.wv = (nn.Linear(WIDTH, KV_HEADS * SIZE, bias=False) for _ in range(2))
        self.wo = nn.Linear(HEADS * SIZE, WIDTH, bias=False)
        self.w1, self.w3 = (nn.Linear(WIDTH, 3 * WIDTH, bias=False) for _ in range(2))
        self.w2 = nn.Linear(3 * WIDTH, WIDTH, bias=False)
        self.register_buffer("turns", turns(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        inner = self.ffn_norm(x)
        return x + self.w2(silu(self.w1(inner)) * self.w3(inner))

    def attention(self, x: Tensor) -> Tensor:
        weights = (self.wq, self.wk, self.wv)
        q, k, v = (w(x).unflatten(-1, (-1, SIZE)).transpose(1, 2) for w in weights)
        q, k = rotated(q, self.turns), rotated(k, self.turns)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.wo(mixed.transpose(1, 2).flatten(-2))


def job() -> Job:
    head = nn.Sequential(nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False))
    return Job(
        layers=[nn.Embedding(VOCABULARY, WIDTH), *(TransformerBlock() for _ in range(DEPTH)), head],
        loss=next_token_loss,
        optimizer=lambda parameters: AdamW(parameters, lr=3e-3),
        data=CharText(CONTEXT),
    )
