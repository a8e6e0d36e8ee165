"""Kinds of module a user may train, each small: what the split backward must get right."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from helpers.harness.where import DEVICE

WIDTH = 32
VOCABULARY = 64


class Sums:
    """A sink that adds in order of arrival and counts."""

    native = False

    def __init__(self) -> None:
        self.sums: dict[int, Tensor] = {}
        self.num_added: Counter[int] = Counter()

    def add(self, slot: int, gradient: Tensor) -> None:
        assert not gradient.requires_grad
        gradient = DEVICE.to_host(gradient)
        known = slot in self.sums
        self.sums[slot] = self.sums[slot] + gradient if known else gradient.clone()
        self.num_added[slot] += 1


def same(left: Tensor | None, right: Tensor | None) -> bool:
    if left is None or right is None:
        return left is right
    return left.dtype == right.dtype and left.shape == right.shape and torch.equal(left, right)


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[], nn.Module]
    shapes: tuple[tuple[int, ...], ...] = ((2, 8, WIDTH),)
    tokens: bool = False  # integer input, so no input gradient

    def inputs(self, microbatch: int) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(1000 + microbatch)
        if self.tokens:
            return (torch.randint(VOCABULARY, self.shapes[0], generator=generator),)
        return tuple(torch.randn(shape, generator=generator) for shape in self.shapes)


class Calls(nn.Module):
    """A module from its children and a function of them."""

    def __init__(self, function: Callable[..., Any], **children: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.function = function
        for name, child in children.items():
            setattr(self, name, child)

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(self, *inputs)


class Block(nn.Module):
    """A GPT block."""

    def __init__(
        self, width: int = WIDTH, heads: int = 4, dropout: float = 0.0, fused: bool = True
    ) -> None:
        super().__init__()
        self.heads, self.dropout, self.fused = heads, dropout, fused
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        names = ("qkv",) if fused else ("q", "k", "v")
        for name in names:
            setattr(self, name, nn.Linear(width, 3 * width // len(names)))
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        y = self.norm1(x)
        qkv = self.qkv(y).chunk(3, -1) if self.fused else (self.q(y), self.k(y), self.v(y))
        heads = [t.view(batch, length, self.heads, -1).transpose(1, 2) for t in qkv]
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True, dropout_p=self.dropout)
        joined = mixed.transpose(1, 2).reshape(batch, length, width)
        x = x + F.dropout(self.out(joined), self.dropout)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), self.dropout)


class Embed(nn.Module):
    def __init__(self, width: int = WIDTH, length: int = 8) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.token(tokens) + self.position(places)


class OwnProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return gradient @ weight.t(), x.flatten(0, -2).t() @ gradient.flatten(0, -2)


def linear(out: int = WIDTH, bias: bool = True) -> nn.Linear:
    return nn.Linear(WIDTH, out, bias=bias)


def linears(number: int) -> dict[str, nn.Module]:
    return {name: linear() for name in "abcde"[:number]}


def frozen(module: nn.Module, *names: str) -> nn.Module:
    for name in names:
        module.get_parameter(name).requires_grad_(False)
    return module


def vector(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape))


def convolution(norm: nn.Module) -> nn.Module:
    parts = (
        nn.Conv2d(3, 8, 3, padding=1),
        norm,
        nn.ReLU(inplace=True),
        nn.Conv2d(8, 4, 3, stride=2),
    )
    return nn.Sequential(*parts, nn.ReLU(), nn.Flatten(), nn.Linear(4 * 3 * 3, 10))


def _reuse(m: Any, x: Tensor) -> Tensor:
    for _ in range(4):
        x = x + torch.tanh(m.a(x))
    return x


def _reuse_natively(m: Any, x: Tensor) -> Tensor:
    y = torch.tanh(m.a(x) @ m.a.weight)
    return m.a(y) + m.a.weight.sum() * y + m.a(x)


def _write_in_place(m: Any, x: Tensor) -> Tensor:
    y = m.a(x)
    y.add_(1).relu_()
    z = m.b(y)
    z += x
    return z.mul_(0.5)


def _experts(m: Any, x: Tensor) -> Tensor:
    gates = m.a(x).softmax(-1)
    chosen, out = gates.argmax(-1) % 3, torch.zeros_like(x)
    for index, expert in enumerate((m.b, m.c, m.d)):
        mask = chosen == index
        if mask.any():
            out = out.index_put((mask,), expert(x[mask]) * gates[mask][:, index : index + 1])
    return out


def _with_keywords(m: Any, x: Tensor) -> Tensor:
    return F.layer_norm(F.linear(input=x, weight=m.a.weight, bias=m.a.bias), x.shape[-1:])


def _bf16(m: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return m.block(x)


def _bf16_reuse(m: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return m.a(torch.tanh(m.a(x))) + m.a(x) + m.b(m.p)


def _checkpointed(reentrant: bool) -> Callable[[Any, Tensor], Tensor]:
    return lambda m, x: checkpoint(
        m.b, checkpoint(m.a, x, use_reentrant=reentrant), use_reentrant=reentrant
    )


def _attention(dropout: float = 0.0) -> nn.Module:
    inner = nn.MultiheadAttention(WIDTH, 4, dropout=dropout, batch_first=True)
    return Calls(lambda m, x: x + m.inner(x, x, x, need_weights=False)[0], inner=inner)


def _normed(module: nn.Module) -> nn.Module:
    return nn.utils.parametrizations.weight_norm(module)


def _spectral(module: nn.Module) -> nn.Module:
    return nn.utils.parametrizations.spectral_norm(module)


_IMAGE = ((4, 3, 8, 8),)
_TWO = ((2, 8, WIDTH), (2, 8, WIDTH))

CASES = (
    Case("mlp", lambda: nn.Sequential(linear(64), nn.ReLU(), nn.Linear(64, WIDTH)), ((16, WIDTH),)),
    Case("gpt block", Block),
    Case("gpt block with dropout", lambda: Block(dropout=0.1)),
    Case("gpt blocks, q k v apart", lambda: nn.Sequential(*(Block(fused=False) for _ in range(3)))),
    Case(
        "gpt block and head", lambda: nn.Sequential(Block(), nn.LayerNorm(WIDTH), linear(50, False))
    ),
    Case("wide gpt blocks", lambda: nn.Sequential(Block(128), Block(128)), ((2, 32, 128),)),
    Case("embedding and block", lambda: nn.Sequential(Embed(), Block()), ((2, 8),), tokens=True),
    Case("convolution and batch norm", lambda: convolution(nn.BatchNorm2d(8)), _IMAGE),
    Case("convolution and group norm", lambda: convolution(nn.GroupNorm(4, 8)), _IMAGE),
    Case("convolution 1d", lambda: nn.Conv1d(8, 6, 3, dilation=2, groups=2), ((2, 8, WIDTH),)),
    Case("convolution 3d", lambda: nn.Conv3d(2, 3, 2, bias=False), ((2, 2, 4, 4, 4),)),
    Case("convolution, padding by name", lambda: nn.Conv1d(8, 8, 3, padding="same")),
    Case("convolution of one sample", lambda: nn.Conv1d(8, 8, 3), ((8, WIDTH),)),
    Case("attention module", _attention),
    Case("attention module with dropout", lambda: _attention(0.1)),
    Case("encoder layer", lambda: nn.TransformerEncoderLayer(WIDTH, 4, 64, batch_first=True)),
    Case("rms norm", lambda: nn.Sequential(nn.RMSNorm(WIDTH), linear())),
    Case("layer norm without bias", lambda: nn.LayerNorm(WIDTH, bias=False)),
    Case(
        "weight used twice",
        lambda: Calls(lambda m, x: m.a(m.b(m.a(x).tanh()).tanh()), **linears(2)),
    ),
    Case("weight used four times", lambda: Calls(_reuse, **linears(1))),
    Case("weight also used as a plain tensor", lambda: Calls(_reuse_natively, **linears(1))),
    Case(
        "diamond",
        lambda: Calls(
            lambda m, x: m.e(m.b(m.a(x)).tanh() * m.c(m.a(x)).sigmoid() + m.d(x)) + x, **linears(5)
        ),
    ),
    Case(
        "two in, two out",
        lambda: Calls(lambda m, x, y: (m.a(x) + y, m.b(y) * x), **linears(2)),
        _TWO,
    ),
    Case(
        "output without input",
        lambda: Calls(lambda m, x: (m.a(x), m.b(m.p)), **linears(2), p=vector(WIDTH)),
    ),
    Case("bool output", lambda: Calls(lambda m, x: (m.a(x), x > 0), **linears(1))),
    Case("constant output", lambda: Calls(lambda m, x: (m.a(x), torch.ones(3)), **linears(1))),
    Case(
        "positions added inside",
        lambda: Calls(
            lambda m, x: m.a(x + m.p(torch.arange(8))), **linears(1), p=nn.Embedding(8, WIDTH)
        ),
    ),
    Case(
        "subgraph of parameters only",
        lambda: Calls(lambda m, x: m.a(x) + m.b(m.c(m.p).tanh()), **linears(3), p=vector(8, WIDTH)),
    ),
    Case("input passed through", lambda: Calls(lambda m, x, y: (m.a(x), y), **linears(1)), _TWO),
    Case("views as outputs", lambda: Calls(lambda m, x: m.a(x).chunk(2, -1), **linears(1))),
    Case("unused parameters", lambda: Calls(lambda m, x: m.a(x), **linears(2))),
    Case("unused input", lambda: Calls(lambda m, x, y: (m.a(x), m.b(x)), **linears(2)), _TWO),
    Case("frozen layer", lambda: frozen(nn.Sequential(linear(), linear()), "0.weight", "0.bias")),
    Case(
        "frozen weight", lambda: frozen(nn.Sequential(linear(), linear()), "0.weight", "1.weight")
    ),
    Case("frozen bias", lambda: frozen(nn.Sequential(linear(), linear()), "0.bias", "1.bias")),
    Case("frozen norm bias", lambda: frozen(nn.Sequential(nn.LayerNorm(WIDTH)), "0.bias")),
    Case("in-place operations", lambda: Calls(_write_in_place, **linears(2))),
    Case("input written in place", lambda: nn.Sequential(nn.ReLU(inplace=True), linear())),
    Case("keyword arguments", lambda: Calls(_with_keywords, **linears(1))),
    Case("own checkpoints", lambda: Calls(_checkpointed(False), a=Block(dropout=0.1), b=Block())),
    Case(
        "reentrant checkpoints", lambda: Calls(_checkpointed(True), a=Block(dropout=0.1), b=Block())
    ),
    Case("lstm", lambda: Calls(lambda m, x: m.r(x)[0], r=nn.LSTM(WIDTH, WIDTH, batch_first=True))),
    Case("gru", lambda: Calls(lambda m, x: m.r(x)[0], r=nn.GRU(WIDTH, WIDTH, batch_first=True))),
    Case("mixture of experts", lambda: Calls(_experts, **linears(4)), ((24, WIDTH),)),
    Case(
        "own autograd function",
        lambda: Calls(
            lambda m, x: m.a(OwnProduct.apply(x, m.p)), **linears(1), p=vector(WIDTH, WIDTH)
        ),
    ),
    Case(
        "weight and spectral norm",
        lambda: nn.Sequential(_normed(linear()), nn.Tanh(), _spectral(linear())),
    ),
    Case("bf16 block", lambda: Calls(_bf16, block=Block())),
    Case("bf16 convolution", lambda: Calls(_bf16, block=nn.Conv1d(8, 8, 3))),
    Case(
        "bf16 weight used three times", lambda: Calls(_bf16_reuse, **linears(2), p=vector(8, WIDTH))
    ),
    Case(
        "product with a plain tensor too",
        lambda: Calls(lambda m, x: m.a(x) + x @ m.a.weight + m.a(x[0, 0]), **linears(1)),
    ),
    Case("transposed input", lambda: Calls(lambda m, x: m.a(x.transpose(0, 1)), **linears(1))),
    Case("one row", linear, ((WIDTH,),)),
    Case("four dimensions", linear, ((2, 3, 4, WIDTH),)),
    Case(
        "sparse embedding",
        lambda: nn.Embedding(VOCABULARY, WIDTH, sparse=True),
        ((2, 8),),
        tokens=True,
    ),
    Case(
        "padded embedding",
        lambda: nn.Embedding(VOCABULARY, WIDTH, padding_idx=-3),
        ((2, 8),),
        tokens=True,
    ),
    Case(
        "embedding scaled by frequency",
        lambda: nn.Embedding(4 * VOCABULARY, WIDTH, scale_grad_by_freq=True),
        ((2, 8),),
        tokens=True,
    ),
    Case(
        "double precision", lambda: Calls(lambda m, x: m.a(x.double()).float(), a=linear().double())
    ),
)
