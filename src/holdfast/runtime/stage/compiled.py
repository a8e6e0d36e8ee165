"""A layer as ``torch.compile`` makes it: its bits do not depend on what a worker ran before.

What is compiled is a function of the layer and of the shapes and types it is given: sizes are
never generalised, however many kinds of them there are, and no mode that splits backwards is seen.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn, overrides

from holdfast.errors import ConfigError

_MODES: Any = overrides  # those of torch functions
_MANY = 1 << 20


def settle() -> None:
    """For the whole process, before anything is compiled."""
    dynamo: Any = torch._dynamo.config
    dynamo.automatic_dynamic_shapes = False
    dynamo.recompile_limit = dynamo.accumulated_recompile_limit = _MANY


def can_compile() -> bool:
    """ConfigError: not on this machine."""
    from torch._inductor import cpp_builder, exc  # slow, and only for those who compile

    try:
        cpp_builder.get_cpp_compiler()
    except exc.InvalidCxxCompiler as why:
        raise ConfigError(
            "stage.compile=true: torch finds no C++ compiler on this machine; install g++, name "
            "one in the environment variable CXX, or set stage.compile=false"
        ) from why
    return True


class Compiled:
    def __init__(self, layer: nn.Module) -> None:
        settle()
        self._call = torch.compile(layer, dynamic=False)

    def __call__(self, *values: Any) -> Any:
        with _without_modes():
            return self._call(*values)


def uncompiled() -> AbstractContextManager[None]:
    """Code of the job that is not ours to compile, but may be compiled somewhere inside."""
    stance: AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
    return stance


@contextmanager
def _without_modes() -> Iterator[None]:
    if not _MODES._get_current_function_mode_stack():
        yield
        return
    with _MODES._pop_mode_temporarily():
        yield
