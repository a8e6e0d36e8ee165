"""Decoders of Hugging Face ``transformers`` as layers: embedding, one for each block, head.

Their own modules are used as they are. Every block makes positions and causal mask for itself, so
that only the hidden states cross a boundary, and the padding mask if there is one. Holdfast never
imports ``transformers``: whoever made the model has.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.adaptors.layered import LayeredModel, with_own_modules
from holdfast.errors import ConfigError

_LIBRARY = "transformers.models."
_OLDEST = 5  # major version; before, masks and positions were made otherwise
_FULL, _SLIDING = "create_causal_mask", "create_sliding_window_causal_mask"


@dataclass(frozen=True, slots=True)
class CausalMask:
    """Made as the model's own forward makes it. None: the attention kernel knows by itself."""

    function: Callable[..., Any]
    config: Any

    def __call__(self, hidden: Tensor, padding: Tensor | None, positions: Tensor) -> Any:
        return self.function(
            config=self.config,
            inputs_embeds=hidden,
            attention_mask=padding,
            past_key_values=None,
            position_ids=positions,
        )


class DecoderEmbedding(nn.Module):
    """(input_ids[, attention_mask]) -> hidden states, and the mask handed on."""

    def __init__(
        self, tokens: nn.Module, positions: nn.Module | None = None, drop: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.tokens, self.positions, self.drop = tokens, positions, drop

    def forward(self, input_ids: Tensor, *padding: Tensor) -> Tensor | tuple[Tensor, ...]:
        hidden: Tensor = self.tokens(input_ids)
        if self.positions is not None:
            hidden = hidden + self.positions(_positions(hidden))
        if self.drop is not None:
            hidden = self.drop(hidden)
        return (hidden, *padding) if padding else hidden


class DecoderBlock(nn.Module):
    def __init__(
        self,
        block: nn.Module,
        mask: CausalMask,
        rotary: nn.Module | None = None,
        rotary_kind: tuple[str, ...] = (),
    ) -> None:
        """``rotary_kind``: of this block, if the model has several kinds of positions."""
        super().__init__()
        self.block, self.rotary = block, rotary
        self._mask, self._rotary_kind = mask, rotary_kind

    def forward(self, hidden: Tensor, *padding: Tensor) -> Tensor | tuple[Tensor, ...]:
        positions = _positions(hidden)
        given: dict[str, Any] = {"position_ids": positions, "use_cache": False}
        if self.rotary is not None:
            given["position_embeddings"] = self.rotary(hidden, positions, *self._rotary_kind)
        mask = self._mask(hidden, padding[0] if padding else None, positions)
        hidden = self.block(hidden, attention_mask=mask, **given)
        return (hidden, *padding) if padding else hidden


class DecoderHead(nn.Module):
    """Final norm and head: hidden states -> logits."""

    def __init__(self, norm: nn.Module, lm_head: nn.Module, softcap: float | None = None) -> None:
        super().__init__()
        self.norm, self.lm_head, self._softcap = norm, lm_head, softcap

    def forward(self, hidden: Tensor, *padding: Tensor) -> Tensor:
        logits: Tensor = self.lm_head(self.norm(hidden))
        if self._softcap is not None:
            logits = torch.tanh(logits / self._softcap) * self._softcap
        return logits


def adapted(model: nn.Module) -> LayeredModel | None:
    """None: no adaptor is known for it, or its forward is not the library's."""
    for kind in type(model).__mro__:
        layers_of = _ADAPTORS.get(kind.__name__)
        if layers_of is None or not kind.__module__.startswith(_LIBRARY):
            continue
        if type(model).forward is not vars(kind)["forward"]:
            return None
        _check_version()
        return with_own_modules(model, layers_of(model, vars(sys.modules[kind.__module__])))
    return None


_Names = dict[str, Any]  # of the module that has the model's class


def _rotary(
    model: Any, library: _Names, mask_of: Callable[[Any, int], str], kinds: bool = False
) -> list[nn.Module]:
    """``mask_of(config, number of a block)``: the name of the function that makes its mask.
    ``kinds``: blocks with a sliding window have positions of their own kind."""
    inner, config = model.model, model.config
    blocks = [
        DecoderBlock(
            block,
            CausalMask(library[mask_of(config, at)], config),
            inner.rotary_emb,
            (config.layer_types[at],) if kinds else (),
        )
        for at, block in enumerate(inner.layers)
    ]
    softcap = getattr(config, "final_logit_softcapping", None)
    head = DecoderHead(inner.norm, model.lm_head, softcap)
    return [DecoderEmbedding(inner.embed_tokens), *blocks, head]


def _gemma3(model: Any, library: _Names) -> list[nn.Module]:
    if model.config.use_bidirectional_attention:
        raise ConfigError(
            f"Job.model ({type(model).__name__}) has config.use_bidirectional_attention=True: "
            "expected a decoder; set it to False, or write the model as Job.layers"
        )
    return _rotary(model, library, _by_type, kinds=True)


def _gpt2(model: Any, library: _Names) -> list[nn.Module]:
    inner = model.transformer
    mask = CausalMask(library[_FULL], model.config)
    embedding = DecoderEmbedding(inner.wte, inner.wpe, inner.drop)
    head = DecoderHead(inner.ln_f, model.lm_head)
    return [embedding, *(DecoderBlock(block, mask) for block in inner.h), head]


def _always_full(config: Any, block: int) -> str:
    return _FULL


def _by_type(config: Any, block: int) -> str:
    return _SLIDING if config.layer_types[block] == "sliding_attention" else _FULL


def _by_window(config: Any, block: int) -> str:
    return _FULL if config.sliding_window is None else _SLIDING


_ADAPTORS: dict[str, Callable[[Any, _Names], list[nn.Module]]] = {
    "GPT2LMHeadModel": _gpt2,
    "LlamaForCausalLM": partial(_rotary, mask_of=_always_full),
    "MistralForCausalLM": partial(_rotary, mask_of=_by_window),
    "Qwen2ForCausalLM": partial(_rotary, mask_of=_by_type),
    "Qwen3ForCausalLM": partial(_rotary, mask_of=_by_type),
    "GemmaForCausalLM": partial(_rotary, mask_of=_always_full),
    "Gemma2ForCausalLM": partial(_rotary, mask_of=_by_type),
    "Gemma3ForCausalLM": _gemma3,
}


def _positions(hidden: Tensor) -> Tensor:
    return torch.arange(hidden.shape[1], device=hidden.device).unsqueeze(0)


def _check_version() -> None:
    version = str(sys.modules["transformers"].__version__)
    if int(version.partition(".")[0]) < _OLDEST:
        raise ConfigError(
            f"transformers {version}: expected {_OLDEST}.0 or newer, whose models Holdfast knows "
            "how to cut; install that, or write the model as Job.layers"
        )
