"""The Python file of a job: what was read is what is compared, and what runs."""

import hashlib
import importlib.util
import re
import sys
import sysconfig
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

from holdfast.errors import ConfigError
from holdfast.job_reference import Reference

_PREFIX = "holdfast_job_"  # of the modules that job files become
_this_thread = threading.local()


def read_source(path: Path, sha256: str = "") -> bytes:
    """All of the file, read once. ``sha256``: as it was when the run began; empty: any will do."""
    try:
        source = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as why:
        raise ConfigError(
            f"{path}: no such file; expected a Python file with job() -> Job"
        ) from why
    except OSError as why:
        raise ConfigError(f"{path}: cannot be read ({why.strerror}); expected a job file") from why
    if sha256 and hashlib.sha256(source).hexdigest() != sha256:
        raise ConfigError(
            f"job file {path}: was changed since the run began; "
            "put it back as it was, or start a new run"
        )
    return source


def run_source(reference: Reference, source: bytes) -> ModuleType:
    """Import it under a name of its own, with its folder importable as for any script.

    The loader would read the file again, or take what __pycache__ has of it: it only compiles.
    """
    path = reference.path.resolve()
    root = str(reference.root.resolve())
    if root not in sys.path:
        sys.path.insert(0, root)
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:8]
    name = f"{_PREFIX}{re.sub(r'[^0-9A-Za-z]', '_', path.stem)}_{digest}"
    if reference.package:  # relative imports start from there
        name = f"{reference.package}.{name}"
    loader = SourceFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)  # sets __file__
    assert spec is not None  # a loader was given
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look classes up there
    with one_line_errors(path), _until_it_trains():
        exec(loader.source_to_code(source, str(path)), module.__dict__)
    return module


class _TrainsError(BaseException):
    """The file that is being loaded as a job has come to the line that trains."""


@contextmanager
def _until_it_trains() -> Iterator[None]:
    """A script without ``if __name__ == "__main__"`` is run up to there: the job is defined by
    then. No ``except Exception`` of the script holds it up."""
    before = getattr(_this_thread, "loading", False)
    _this_thread.loading = True
    try:
        yield
    except _TrainsError:
        return
    finally:
        _this_thread.loading = before


def stop_if_loading() -> None:
    """To be called before a training is started: not if a worker is only loading the script."""
    if getattr(_this_thread, "loading", False):
        raise _TrainsError


@contextmanager
def one_line_errors(path: Path) -> Iterator[None]:
    try:
        yield
    # The user's code may raise anything, sys.exit() included; only Ctrl-C passes.
    except (Exception, SystemExit) as why:
        message = " ".join(str(why).split())
        kind = "" if isinstance(why, ConfigError) else f"{type(why).__name__}: "
        raise ConfigError(f"{path}{_user_line(why, path)}: {kind}{message}") from why


def _user_line(why: BaseException, path: Path) -> str:
    """``:12`` for the innermost line of the job file that was running, if any was."""
    resolved = str(path.resolve())
    if isinstance(why, SyntaxError) and why.filename == resolved and why.lineno:
        return f":{why.lineno}"
    frames = traceback.extract_tb(why.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == resolved]
    return f":{lines[-1]}" if lines else ""


# --- what a job file imports ---


def imports(reference: Reference, sha256: str) -> dict[str, str]:
    """Files of modules below the job's folder, by their path from there -> SHA-256, cut short.

    To be asked after the job was loaded. Once a process: a module that is loaded stays as it is,
    whatever becomes of its file, and what is imported while training would not be on all workers.
    """
    return known_imports(reference.path.resolve(), reference.root.resolve(), sha256)


@cache
def known_imports(job: Path, root: Path, sha256: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, module in list(sys.modules.items()):
        place = getattr(module, "__file__", None)
        if not isinstance(place, str) or name == "__main__" or name.startswith(_PREFIX):
            continue
        if not Path(place).is_absolute():
            continue  # such as torch.classes: a name that was made up, and no file
        file = Path(place).resolve()
        if file.is_relative_to(root) and file != job and not is_installed(file):
            found[file.relative_to(root).as_posix()] = _digest(file)
    return dict(sorted(found.items()))


def is_installed(file: Path) -> bool:
    """The standard library, a package, or Holdfast: known by version."""
    if any(folder in file.parts for folder in ("site-packages", "dist-packages")):
        return True
    paths = sysconfig.get_paths()
    roots = [Path(paths[key]).resolve() for key in ("stdlib", "platstdlib")]
    return any(file.is_relative_to(root) for root in (*roots, Path(__file__).resolve().parent))


def _digest(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    except OSError as why:
        return f"cannot be read ({why.strerror})"
