"""Small decoders of ``transformers``, and a job for each: ``job([name])``."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedModel

from holdfast import Job

VOCABULARY, CONTEXT, WINDOW = 40, 12, 4
_SHARED = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "attention_dropout": 0.1,
}
_GPT2 = {"vocab_size": VOCABULARY, "n_positions": 64, "n_embd": 16, "n_layer": 3, "n_head": 4}
_SOME_SLIDE = {
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
# name -> class, class of its configuration, what is special
CASES = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", _SHARED),
    "llama-tied": ("LlamaForCausalLM", "LlamaConfig", _SHARED | {"tie_word_embeddings": True}),
    "mistral": ("MistralForCausalLM", "MistralConfig", _SHARED | {"sliding_window": WINDOW}),
    "mistral-full": ("MistralForCausalLM", "MistralConfig", _SHARED | {"sliding_window": None}),
    "qwen2": (
        "Qwen2ForCausalLM",
        "Qwen2Config",
        _SHARED | _SOME_SLIDE | {"use_sliding_window": True},
    ),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", _SHARED),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", _GPT2),
    "gpt2-eager": ("GPT2LMHeadModel", "GPT2Config", _GPT2 | {"attn_implementation": "eager"}),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", _SHARED),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", _SHARED | _SOME_SLIDE),
    "gemma3": (
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        _SHARED | _SOME_SLIDE | {"final_logit_softcapping": 5.0},
    ),
}


def decoder(name: str) -> PreTrainedModel:
    model, config, fields = CASES[name]
    made = getattr(transformers, model)(getattr(transformers, config)(**fields))
    return made.train()


class Padded:
    """Texts of several lengths, padded on the right: ((input_ids, attention_mask), target)."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
        tokens = 3 + (torch.arange(CONTEXT + 1) * (index + 3)) % (VOCABULARY - 3)
        mask = (torch.arange(CONTEXT) < CONTEXT - index % 5).long()
        return (tokens[:-1] * mask, mask), tokens[1:]


def loss(logits: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def job(args: list[str]) -> Job:
    return Job(
        model=decoder(args[0]),
        loss=loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        data=Padded(),
        microbatch_size=4,
        clip_norm=1.0,
    )
