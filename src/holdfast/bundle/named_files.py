"""Data files of a job: those that it declares, and those that it seems to have forgotten.

``HOLDFAST_FILES = ["data/text.txt", "vocabulary/*.json"]`` at the top level of the job file. Read
from the source, so it must be written out.
"""

import ast
from collections.abc import Iterable
from pathlib import Path

from holdfast.bundle.manifest import path_fault
from holdfast.errors import ConfigError

NAME = "HOLDFAST_FILES"
_CURE = f'write it out, e.g. {NAME} = ["data/text.txt", "data/*.json"]'
_PATTERN = frozenset("*?[")


def parsed(job: Path, source: bytes) -> ast.Module:
    try:
        return ast.parse(source)
    except SyntaxError as why:
        raise ConfigError(f"{job}:{why.lineno}: SyntaxError: {why.msg}") from why
    except (ValueError, RecursionError) as why:
        raise ConfigError(f"{job}: is no Python source ({why})") from why


def declared_files(job: Path, tree: ast.Module) -> list[Path]:
    """Files and folders, each of which is there; ConfigError for what matches nothing."""
    found: set[Path] = set()
    for line, pattern in _patterns(job, tree):
        where = f"{job}:{line}: {NAME}: {pattern!r}"
        if why := path_fault(pattern.rstrip("/")):
            raise ConfigError(
                f"{where} cannot be sent to other machines ({why}); name a path below the folder "
                "of the job file"
            )
        matches = set(_matches(job.parent, pattern.rstrip("/")))
        if not matches:
            raise ConfigError(f"{where}: no such file beside or below the job file")
        found |= matches
    return sorted(found)


def _matches(folder: Path, pattern: str) -> Iterable[Path]:
    if not _PATTERN & set(pattern):
        place = folder / pattern
        return [place] if place.exists() or place.is_symlink() else []
    return folder.glob(pattern)


def _patterns(job: Path, tree: ast.Module) -> list[tuple[int, str]]:
    """With the lines on which they stand."""
    found: list[tuple[int, str]] = []
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign | ast.AugAssign) else targets
        if not any(isinstance(target, ast.Name) and target.id == NAME for target in targets):
            continue
        value = getattr(node, "value", None)
        if not isinstance(value, ast.List | ast.Tuple):
            raise ConfigError(f"{job}:{node.lineno}: {NAME} is read without running it; {_CURE}")
        for item in value.elts:
            if not isinstance(item, ast.Constant) or not isinstance(item.value, str):
                raise ConfigError(
                    f"{job}:{item.lineno}: {NAME} is read without running it; {_CURE}"
                )
            found.append((item.lineno, item.value))
    return found


def files_in_texts(folder: Path, tree: ast.Module) -> list[Path]:
    """That stand as a text anywhere in the source: it may be about to open them."""
    texts = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return sorted(
        folder / text for text in texts if not path_fault(text) and _is_file(folder, text)
    )


def _is_file(folder: Path, text: str) -> bool:
    try:
        return (folder / text).is_file()
    except OSError:  # a sentence that is too long for a name
        return False
