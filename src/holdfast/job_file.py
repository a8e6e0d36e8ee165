"""The Python file of a job: what was read is what is compared, and what runs."""

import hashlib
import importlib.util
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

from holdfast.errors import ConfigError

_PREFIX = "holdfast_job_"  # of the modules that job files become


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


def run_source(path: Path, source: bytes) -> ModuleType:
    """Import it under a name of its own, with its folder importable as for any script.

    The loader would read the file again, or take what __pycache__ has of it: it only compiles.
    """
    path = path.resolve()
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:8]
    name = f"{_PREFIX}{re.sub(r'[^0-9A-Za-z]', '_', path.stem)}_{digest}"
    loader = SourceFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)  # sets __file__
    assert spec is not None  # a loader was given
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look classes up there
    with one_line_errors(path):
        exec(loader.source_to_code(source, str(path)), module.__dict__)
    return module


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


def imports(path: Path, sha256: str) -> dict[str, str]:
    """Files of modules below the job file's folder, by their path from there -> SHA-256, cut short.

    To be asked after the job was loaded. Once a process: a module that is loaded stays as it is,
    whatever becomes of its file, and what is imported while training would not be on all workers.
    """
    return known_imports(path.resolve(), sha256)


@cache
def known_imports(job: Path, sha256: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, module in list(sys.modules.items()):
        place = getattr(module, "__file__", None)
        if not isinstance(place, str) or name == "__main__" or name.startswith(_PREFIX):
            continue
        file = Path(place).resolve()
        if file.is_relative_to(job.parent) and file != job and not _is_installed(file):
            found[file.relative_to(job.parent).as_posix()] = _digest(file)
    return dict(sorted(found.items()))


def _is_installed(file: Path) -> bool:
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
