"""What in a job would change bits without a word: found as soon as the job is loaded.

``gradients.mode=exact`` refuses it by name; ``fast`` only says so. What cannot be seen from
outside, e.g. a compiled function that a layer calls, is made to run as if it were not compiled.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from types import FunctionType

import torch
from torch import nn
from torch._dynamo.eval_frame import OptimizedModule

from holdfast.config import RunConfig
from holdfast.errors import ConfigError
from holdfast.job import Job
from holdfast.runtime.job.job_walk import JOB_FILE, MODULE_NAMES, JobWalk

_COMPILED = "_torchdynamo_orig_callable"  # what torch.compile leaves on a function
_SCRIPTED = (torch.jit.ScriptModule, torch.jit.ScriptFunction)
_JIT_IS_ON = bool(torch.jit._state._enabled)  # the user may have switched it off: PYTORCH_JIT=0


def set_stance(config: RunConfig) -> None:
    """Whether compiled code runs as compiled. After the job is loaded: it may have set its own."""
    eager = config.gradients.mode == "exact" and not config.stage.compile
    torch.compiler.set_stance("force_eager" if eager else "default")


def before_loading(config: RunConfig) -> None:
    """In exact mode ``torch.jit.script`` and ``trace`` leave what they are given as it is.

    TorchScript's first runs of a function use other kernels than its later ones, so bits would
    depend on what a worker ran before.
    """
    if config.gradients.mode == "exact" or not _JIT_IS_ON:
        torch.jit._state.disable()
    else:
        torch.jit._state.enable()


def check_bits(job: Job, config: RunConfig) -> list[str]:
    """Lines to warn with; ConfigError if the promise could not be kept."""
    set_stance(config)
    exact = config.gradients.mode == "exact"
    found = next(_found(job), None)
    if found and exact:
        raise ConfigError(found.refusal)
    if exact:
        _check_threads(config)
    return [*([found.warning] if found else []), *_own_generators(job)]


@dataclass(frozen=True)
class _Found:
    """Something that changes bits."""

    who: str
    how: str  # it is compiled; empty: by TorchScript

    @property
    def refusal(self) -> str:
        if self.how:
            return (
                f"{self.who} is compiled by {self.how}: the bits would depend on the layout; "
                "remove torch.compile and set stage.compile=true, or set gradients.mode=fast"
            )
        return (
            f"{self.who} is TorchScript: the bits would depend on what a worker ran before; use "
            "the Python code that it was made from, or set gradients.mode=fast"
        )

    @property
    def warning(self) -> str:
        what = f"is compiled by {self.how}" if self.how else "is TorchScript"
        return f"{self.who} {what}: the result's bits depend on the layout"


def _check_threads(config: RunConfig) -> None:
    wanted, found = config.workers.compute_threads, torch.get_num_threads()
    if found != wanted:
        raise ConfigError(
            f"the job calls torch.set_num_threads({found}), but workers.compute_threads={wanted}: "
            f"set workers.compute_threads={found} instead, so that every worker has the same"
        )


def _found(job: Job) -> Iterator[_Found]:
    """Who is compiled, and how."""
    for who, module in _modules(job):
        yield from _found_in(who, module)
    loss = job.loss
    if isinstance(loss, nn.Module):
        for path, module in loss.named_modules():
            yield from _found_in(f"Job.loss{', ' + path if path else ''}", module)
    elif isinstance(loss, _SCRIPTED):
        yield _Found("Job.loss", "")
    elif hasattr(loss, _COMPILED):
        yield _Found("Job.loss", "torch.compile")
    elif isinstance(loss, FunctionType):
        yield from _used_by("Job.loss", loss)


def _modules(job: Job) -> Iterator[tuple[str, nn.Module]]:
    """Layers and their parts, each with what to call it."""
    for number, layer in enumerate(job.layers):
        for path, module in layer.named_modules():
            where = f"layer {number}" + (f", {path}" if path else "")
            yield f"{where} ({type(module).__name__})", module


def _found_in(who: str, module: nn.Module) -> Iterator[_Found]:
    if isinstance(module, torch.jit.ScriptModule):
        yield _Found(who, "")
        return
    if isinstance(module, OptimizedModule):
        yield _Found(who, "torch.compile")
        return
    if module._compiled_call_impl is not None:
        yield _Found(who, "its compile()")
    classes = [c for c in type(module).__mro__ if not c.__module__.startswith("torch.")]
    for names in (vars(module), *map(vars, classes)):
        for name, value in names.items():
            if isinstance(value, _SCRIPTED):
                yield _Found(f"{who}: {name}", "")
            elif hasattr(value, _COMPILED):
                yield _Found(who, f"torch.compile ({name})")
            elif isinstance(value, FunctionType):
                yield from _used_by(who, value)


def _used_by(who: str, function: FunctionType) -> Iterator[_Found]:
    """TorchScript among the names of its file, e.g. from a file of ``torch.jit.save``."""
    for name in function.__code__.co_names:
        if isinstance(function.__globals__.get(name), _SCRIPTED):
            yield _Found(f"{who}: {name}", "")


def _own_generators(job: Job) -> Iterator[str]:
    for name in ("data", "collate", "loss", "lr_schedule"):
        value, walk = getattr(job, name), JobWalk()
        walk.field("", value)
        yield from _lines(f"Job.{name} ({type(value).__name__})", walk)
    for who, module in _modules(job):
        walk = JobWalk()
        walk.names("", vars(module), MODULE_NAMES)
        yield from _lines(who, walk)


def _lines(owner: str, walk: JobWalk) -> Iterator[str]:
    for path in walk.generators:
        if not path.startswith(JOB_FILE):  # of a job file that drew from it once: too common
            name = path.replace("[", ".").replace("]", "")
            yield (
                f"{owner} has a random generator of its own, {name}: if it draws from it while "
                "training, bits depend on who does; draw from torch's global one"
            )
