"""What in a job would change bits without a word: found as soon as the job is loaded.

``gradients.mode=exact`` refuses it by name; ``fast`` only says so. What cannot be seen from
outside, e.g. a compiled function that a layer calls, is made to run as if it were not compiled.
"""

import random
from collections.abc import Iterator

import numpy
import torch
from torch import nn
from torch._dynamo.eval_frame import OptimizedModule

from holdfast.config import RunConfig
from holdfast.errors import ConfigError
from holdfast.job import Job

_COMPILED = "_torchdynamo_orig_callable"  # what torch.compile leaves on a function
_GENERATORS = (torch.Generator, random.Random, numpy.random.Generator, numpy.random.RandomState)


def set_stance(config: RunConfig) -> None:
    """Whether compiled code runs as compiled. After the job is loaded: it may have set its own."""
    torch.compiler.set_stance("force_eager" if config.gradients.mode == "exact" else "default")


def check_bits(job: Job, config: RunConfig) -> list[str]:
    """Lines to warn with; ConfigError if the promise could not be kept."""
    set_stance(config)
    exact = config.gradients.mode == "exact"
    found = next(_compiled(job), None)
    if found and exact:
        raise ConfigError(
            f"{found}: the bits would depend on the layout; remove torch.compile, "
            "or set gradients.mode=fast"
        )
    lines = [f"{found}: the result's bits depend on the layout"] if found else []
    if exact:
        _check_threads(config)
    return [*lines, *_own_generators(job)]


def _check_threads(config: RunConfig) -> None:
    wanted, found = config.workers.compute_threads, torch.get_num_threads()
    if found != wanted:
        raise ConfigError(
            f"the job calls torch.set_num_threads({found}), but workers.compute_threads={wanted}: "
            f"set workers.compute_threads={found} instead, so that every worker has the same"
        )


def _compiled(job: Job) -> Iterator[str]:
    """Who is compiled, and how, in words."""
    for number, layer in enumerate(job.layers):
        for path, module in layer.named_modules():
            where = f"layer {number}" + (f", {path}" if path else "")
            if how := _how_compiled(module):
                yield f"{where} ({type(module).__name__}) is compiled by {how}"
    loss = job.loss
    if hasattr(loss, _COMPILED) or (isinstance(loss, nn.Module) and _how_compiled(loss)):
        yield "Job.loss is compiled by torch.compile"


def _how_compiled(module: nn.Module) -> str:
    if isinstance(module, OptimizedModule):
        return "torch.compile"
    if module._compiled_call_impl is not None:
        return "its compile()"
    classes = [c for c in type(module).__mro__ if not c.__module__.startswith("torch.")]
    for names in (vars(module), *map(vars, classes)):
        for name, value in names.items():
            if hasattr(value, _COMPILED):
                return f"torch.compile ({name})"
    return ""


def _own_generators(job: Job) -> Iterator[str]:
    owners: list[tuple[str, object]] = [(f"Job.data ({type(job.data).__name__})", job.data)]
    for number, layer in enumerate(job.layers):
        for path, module in layer.named_modules():
            where = f"layer {number}" + (f", {path}" if path else "")
            owners.append((f"{where} ({type(module).__name__})", module))
    for owner, value in owners:
        for name, held in getattr(value, "__dict__", {}).items():
            if isinstance(held, _GENERATORS):
                yield (
                    f"{owner} has a random generator of its own, {name}: if it draws from it "
                    "while training, bits depend on who does; draw from torch's global one"
                )
