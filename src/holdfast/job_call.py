"""The job that a file's function makes: found, seeded, called with its arguments."""

import inspect
import io
import random
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy
import torch

from holdfast.errors import ConfigError
from holdfast.job import Job
from holdfast.job_file import one_line_errors, read_source, run_source
from holdfast.job_reference import Reference, found_here


def load_job(reference: str | Path, seed: int, sha256: str = "", args: Sequence[str] = ()) -> Job:
    """The job that a file's function returns; its initial parameters follow from ``seed`` alone.

    Whatever goes wrong is one line of :class:`ConfigError`. ``reference``: a path, or as in
    ``job_reference``; ``sha256``: of the file as it has to be; empty: it may be any. ``args``: the
    function gets them as a list, if it takes one.
    """
    made_here = found_here(str(reference))
    if made_here is not None:
        return _made(made_here, _written_in(made_here), seed, args)
    found = Reference.parse(str(reference))
    path, function = found.path, found.function
    source = read_source(path, sha256)
    _seed_all(seed)
    make: Any = run_source(found, source)
    for name in function.split("."):
        make = getattr(make, name, None)
    if make is None:
        raise ConfigError(
            f"{path}: defines no function {function}(); add one that returns a holdfast Job"
        )
    if not callable(make):
        raise ConfigError(
            f"{path}: {function} is a {_kind(make)}: expected a function {function}() that returns "
            "a holdfast Job"
        )
    return _made(make, path, seed, args)


def _made(make: Callable[..., Any], path: Path, seed: int, args: Sequence[str]) -> Job:
    name = getattr(make, "__name__", _kind(make))
    takes_args = _takes_args(make)
    if args and not takes_args:
        raise ConfigError(
            f"{path}: {name}() takes no arguments, and was given {shlex.join(args)}; define "
            f"{name}(args), which gets them as a list, or leave them out"
        )
    _seed_all(seed)
    with one_line_errors(path):
        made = _called_with(make, args) if takes_args else make()
    if not isinstance(made, Job):
        raise ConfigError(f"{path}: {name}() returned a {_kind(made)}: expected a holdfast Job")
    return made


def _called_with(make: Callable[[list[str]], Any], args: Sequence[str]) -> Any:
    """What a parser of arguments has to say it prints, before it leaves the process."""
    printed = io.StringIO()
    try:
        with redirect_stdout(printed), redirect_stderr(printed):
            made = make(list(args))
    except SystemExit as why:
        said = printed.getvalue().strip()
        reason = said.rpartition("\n")[2] if why.code else said  # else it was asked for help
        raise ConfigError(
            f"arguments of the job ({shlex.join(args) or 'none'}): {reason or why.code}"
        ) from why
    sys.stdout.write(printed.getvalue())
    return made


def _takes_args(make: Callable[..., Any]) -> bool:
    """Whether there is a place for one without a default of its own, or named ``args``."""
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):  # of a function that is not written in Python
        return False
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    for parameter in parameters:
        if parameter.kind in places:
            return parameter.default is parameter.empty or parameter.name == "args"
    return False


def _written_in(make: Callable[[], Any]) -> Path:
    code = getattr(make, "__code__", None)
    return Path(code.co_filename if code else _kind(make))


def _seed_all(seed: int) -> None:
    """Initial parameters may be drawn from any of the three global generators."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed % 2**32)


def _kind(value: object) -> str:
    return type(value).__name__
