"""A small GPT as a plain list of layers: pre-norm blocks, causal attention, GELU."""

import math

from torch import Tensor, arange, nn
from torch.nn import functional


class Embedding(nn.Module):
    """Token numbers -> vectors that know token and position."""

    def __init__(self, *, vocabulary: int, context: int, width: int, dropout: float) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = arange(tokens.shape[1], device=tokens.device)
        return self.dropout(self.token(tokens) + self.position(positions))  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Every position looks at itself and at those before it."""

    def __init__(self, *, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.query_key_value(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        # No dropout on the attention weights: on CPU it would cost the fused kernel.
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.project(mixed.transpose(1, 2).reshape(batch, length, width))  # type: ignore[no-any-return]


class Block(nn.Module):
    def __init__(self, *, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(width)
        self.attention = Attention(width=width, heads=heads)
        self.norm_2 = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm_1(x)))
        hidden = functional.gelu(self.widen(self.norm_2(x)))
        return x + self.dropout(self.narrow(hidden))  # type: ignore[no-any-return]


class Head(nn.Module):
    """Vectors -> a score for each token of the vocabulary."""

    def __init__(self, *, width: int, vocabulary: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.scores(self.norm(x))  # type: ignore[no-any-return]


def gpt_layers(
    *,
    vocabulary: int,
    context: int,
    width: int,
    heads: int,
    depth: int,
    dropout: float = 0.0,
    tied: bool = False,
) -> list[nn.Module]:
    """[Embedding, Block x ``depth``, Head]; ``tied``: the head's weight is the embedding's."""
    if width % heads:
        raise ValueError(f"width {width} cannot be split evenly over {heads} heads")
    embedding = Embedding(vocabulary=vocabulary, context=context, width=width, dropout=dropout)
    blocks = [Block(width=width, heads=heads, dropout=dropout) for _ in range(depth)]
    head = Head(width=width, vocabulary=vocabulary)
    layers = [embedding, *blocks, head]
    for layer in layers:
        layer.apply(_initialise)
    for block in blocks:
        # The residual stream sums 2 x depth of these: smaller steps keep its size at 1.
        for last in (block.attention.project, block.narrow):
            nn.init.normal_(last.weight, std=0.02 / math.sqrt(2 * depth))
    if tied:
        head.scores.weight = embedding.token.weight
    return layers


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
