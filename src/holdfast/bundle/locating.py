"""Where the job is on this machine: unpacked from its bundle, at the run's own path, or installed.

Imports nothing of the job.
"""

import hashlib
import importlib.util
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from holdfast.bundle.unpacking import is_whole, manifest_of_unpacked
from holdfast.errors import ConfigError
from holdfast.job_reference import Reference


def job_here(job: str, sha256: str, machine: str, root: Path | None = None) -> str:
    """The reference under which a worker of this machine loads it.

    ``root``: where its bundle was unpacked; None: there is none. ``machine``: for the one line
    that says what is missing there.
    """
    reference = Reference.parse(job)
    if root is not None:
        in_place = _is_all_here(root, reference.root)
        return job if in_place else str(reference.moved_to(root))
    if _digest(reference.path) == sha256:
        return job
    if not reference.module:
        raise ConfigError(
            f"machine {machine}: job file {reference.path}: is not the one that the run was "
            "started with; put the same file there"
        )
    found = _installed(reference)
    what = f"job {reference.module}:{reference.function}"
    if found is None:
        raise ConfigError(
            f"machine {machine}: {what}: no such module is installed there; install the package "
            "that the run was started with"
        )
    if _digest(found.path) != sha256:
        raise ConfigError(
            f"machine {machine}: {what}: {found.path} differs from the file that the run was "
            "started with; install the same version"
        )
    return str(found)


def _is_all_here(unpacked: Path, root: Path) -> bool:
    """Whether all that was sent is at the run's own path too, as on a shared disk: then files that
    lie beside it can be read as well. Not if the launcher had more folders on its path."""
    manifest = manifest_of_unpacked(unpacked)
    return manifest is not None and not manifest.folders and is_whole(manifest, root)


def _installed(reference: Reference) -> Reference | None:
    top, *rest = reference.module.split(".")
    spec = _spec_of(top)
    for number in range(1, len(rest) + 1):
        if spec is None or spec.submodule_search_locations is None:
            return None
        name = ".".join([top, *rest[:number]])
        spec = PathFinder.find_spec(name, list(spec.submodule_search_locations))
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin).absolute()
    root = file.parents[len(rest) + (file.name == "__init__.py")]
    found = Reference.of_module(root, reference.module, reference.function)
    return found if found.path == file else None


def _spec_of(top: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None


def _digest(path: Path) -> str:
    """Empty: it cannot be read."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError:
        return ""
