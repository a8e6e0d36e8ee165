"""What a user gives as a job (a file, a module's function, a function) as a run can name it."""

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from holdfast.errors import ConfigError
from holdfast.job_reference import JobSource, Reference, is_dotted, keep_here
from holdfast.storage.manifest import file_digest

if TYPE_CHECKING:  # it loads torch, which whoever only starts processes does not need
    from holdfast.job import Job

JobLike: TypeAlias = str | Path | Callable[[], "Job"]
"""A path (``job.py``, or ``job.py:make``), ``"module:function"``, or a function that returns a
:class:`Job`."""

_CURE = (
    "write it to a file and give its name, or train with workers.kind=threads, where it is called "
    "in this process"
)


def job_source(job: JobLike, *, in_threads: bool) -> JobSource:
    """A function is called in this process by workers that are threads; processes load its file.

    ConfigError, in one line, for what no other process could load.
    """
    if not callable(job):
        return source_of(_reference(job))
    reference = _reference_of(job)
    if not in_threads:
        if reference is None:
            raise ConfigError(
                f"job {_name(job)} is defined in a notebook, a session or another function: other "
                f"processes cannot load it; {_CURE}"
            )
        return source_of(reference)
    known = None if reference is None else source_of(reference)
    return JobSource(
        keep_here(job, _name(job)),
        known.sha256 if known else _own_sha256(job),
        known.origin if known else "",
        _name(job),
    )


def source_of(reference: Reference) -> JobSource:
    if not reference.path.is_file():
        raise ConfigError(f"{reference.path}: no such job file")
    text = str(reference)
    return JobSource(text, file_digest(reference.path), text, reference.path.stem)


def _reference(job: str | Path) -> Reference:
    text = str(job)
    if Path(text).is_file():
        return Reference.script(_absolute(Path(text)))
    module, _, function = text.rpartition(":")
    if is_dotted(module) and is_dotted(function) and not module.endswith(".py"):
        return _of_module(module, function)
    found = Reference.parse(text)
    return found if found.module else Reference.script(_absolute(found.path), found.function)


def _of_module(module: str, function: str) -> Reference:
    """Without importing it: its parents are, as Python has to."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError) as why:
        raise ConfigError(f"job {module}:{function}: {why}") from why
    if spec is None or not spec.has_location or spec.origin is None:
        raise ConfigError(
            f"job {module}:{function}: no such module with a Python file; expected a path, or "
            "module:function with a module that can be imported here"
        )
    found = _below_its_root(module, Path(spec.origin), function)
    return found or Reference.script(_absolute(Path(spec.origin)), function)


def _below_its_root(module: str, file: Path, function: str) -> Reference | None:
    """None: the file does not lie where its name says."""
    file = _absolute(file)
    depth = module.count(".") + (file.name == "__init__.py")
    root = file.parents[depth]
    found = Reference.of_module(root, module, function)
    return found if found.path == file else None


def _reference_of(make: Callable[[], Any]) -> Reference | None:
    """Of a function at the top level of a module with a file; None: it is not."""
    module = sys.modules.get(getattr(make, "__module__", None) or "")
    file = getattr(module, "__file__", None)
    name = None if module is None else _name_in(module, make)
    if module is None or name is None or not isinstance(file, str) or not Path(file).is_file():
        return None
    known = module.__spec__.name if module.__spec__ is not None else module.__name__
    found = None if known == "__main__" else _below_its_root(known, Path(file), name)
    return found or Reference.script(_absolute(Path(file)), name)


def _name_in(module: ModuleType, make: Callable[[], Any]) -> str | None:
    for name, value in vars(module).items():
        if value is make:
            return name
    found: Any = module
    name = getattr(make, "__qualname__", "")
    for part in name.split("."):
        found = getattr(found, part, None)
    return name if found is make or getattr(found, "__func__", None) is make else None


def _absolute(path: Path) -> Path:
    """Without '..' and links, in the one form that workers take: '//a' and '/a' are two."""
    return Path("/" + str(path.resolve()).lstrip("/"))


def _name(make: Callable[[], Any]) -> str:
    return str(getattr(make, "__name__", type(make).__name__)).strip("<>")


def _own_sha256(make: Callable[[], Any]) -> str:
    """Of its source, or of its code if there is none: for a resume in the same way."""
    try:
        text = inspect.getsource(make)
    except (OSError, TypeError):
        code = getattr(make, "__code__", None)
        text = repr((type(make).__name__, code and (code.co_code, code.co_consts, code.co_names)))
    return hashlib.sha256(text.encode()).hexdigest()
