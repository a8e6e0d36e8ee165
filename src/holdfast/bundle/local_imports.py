"""Modules that a job imports from its own folder, found in the source. Runs none of it.

As Python would look for them: from the job's root, or from another folder below it that is on the
path of this process (PYTHONPATH, an editable install). What is installed does not count.
"""

import ast
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES
from pathlib import Path

from holdfast.job_file import is_installed

_SUFFIXES = (*SOURCE_SUFFIXES, *EXTENSION_SUFFIXES)


@dataclass
class LocalImports:
    """What was found. A package is taken whole: what it imports of itself may depend on anything.

    Of a folder without ``__init__.py``, which may hold whatever, only the modules that are named.
    """

    root: Path
    files: set[Path] = field(default_factory=set)
    packages: set[Path] = field(default_factory=set)
    folders: set[Path] = field(default_factory=set)  # that imports begin at, besides the root

    def add(self, source: bytes, package: str) -> None:
        """All that this source imports, and what that imports. ``package``: that it is in."""
        waiting = [(source, package)]
        while waiting:
            source, package = waiting.pop()
            for name in imported_names(source, package):
                waiting += self._found(name)

    def _found(self, name: str) -> list[tuple[bytes, str]]:
        """Sources that are new with it, each with its package."""
        top, *rest = name.split(".")
        start = self._start_of(top)
        if start is None:
            return []
        place, parts = start / top, [top]
        while not _is_package(place) and (module := _module(place)) is None:
            if not rest or not place.is_dir():
                return []
            parts.append(rest.pop(0))
            place /= parts[-1]
        if start != self.root:
            self.folders.add(start)
        if _is_package(place):
            return self._take_package(place, parts)
        assert module is not None  # the loop ends with one of both
        return self._take_file(module, parts[:-1])

    def _start_of(self, top: str) -> Path | None:
        """The folder that an import of this name begins at; None: it is not the job's own."""
        own = self.root / top
        if not is_installed(own) and (_is_package(own) or _module(own) is not None):
            return self.root
        elsewhere = _start_on_path(top)
        if elsewhere is not None:  # comes before a folder without __init__.py
            is_own = elsewhere.is_relative_to(self.root) and not is_installed(elsewhere / top)
            return elsewhere if is_own else None
        return self.root if own.is_dir() else None

    def _take_package(self, place: Path, parts: list[str]) -> list[tuple[bytes, str]]:
        if place in self.packages:
            return []
        self.packages.add(place)
        found = []
        for file in sorted(place.rglob("*.py")):
            inside = [*parts, *file.relative_to(place).parts[:-1]]
            found.append((_read(file), ".".join(inside)))
        return found

    def _take_file(self, file: Path, inside: list[str]) -> list[tuple[bytes, str]]:
        if file in self.files:
            return []
        self.files.add(file)
        return [(_read(file), ".".join(inside))] if file.suffix == ".py" else []


def imported_names(source: bytes, package: str) -> set[str]:
    """Dotted names of modules that it imports, also in functions; some are names in a module.

    None if it is no Python of this version: a package may carry templates.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return set()
    return {name for node in ast.walk(tree) for name in _names(node, package) if name}


def _names(node: ast.AST, package: str) -> Iterator[str]:
    match node:
        case ast.Import():
            yield from (alias.name for alias in node.names)
        case ast.ImportFrom():
            base = _base(node, package)
            if base is not None:
                yield base
                yield from (f"{base}.{alias.name}".lstrip(".") for alias in node.names)
        case ast.Call(
            func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
            args=[ast.Constant(value=str(name)), *_],
        ) if not name.startswith("."):
            yield name


def _base(node: ast.ImportFrom, package: str) -> str | None:
    """Of a relative import too; None: it leads nowhere."""
    if not node.level:
        return node.module
    parts = package.split(".") if package else []
    if node.level > len(parts):
        return None
    return ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [node.module])])


def _start_on_path(top: str) -> Path | None:
    """Where this process would import it from, if it has a file; imports nothing."""
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.has_location or spec.origin is None:
        return None
    file = Path(spec.origin).resolve()
    return file.parents[1] if file.name == "__init__.py" else file.parent


def _is_package(place: Path) -> bool:
    return (place / "__init__.py").is_file()


def _module(place: Path) -> Path | None:
    files = (place.with_name(f"{place.name}{suffix}") for suffix in _SUFFIXES)
    return next((file for file in files if file.is_file()), None)


def _read(file: Path) -> bytes:
    """Nothing, if it cannot be read: whoever packs it says so."""
    try:
        return file.read_bytes()
    except OSError:
        return b""
