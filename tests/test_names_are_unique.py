"""One class name, one meaning, in the whole package: whoever reads a name knows which one it is.

Public classes at the top of a module count, and so do aliases of types: one that has the name of
a class elsewhere would be taken for it.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

SRC = Path(__file__).parents[1] / "src" / "holdfast"


def top_of_modules() -> Iterator[tuple[str, ast.stmt]]:
    for path in sorted(SRC.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            yield str(path.relative_to(SRC)), node


def classes() -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for path, node in top_of_modules():
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            found[node.name].append(path)
    return found


def aliases() -> Iterator[tuple[str, str]]:
    """Names in capitals and small letters that are assigned, with their module."""
    for path, node in top_of_modules():
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        for target in targets:
            if isinstance(target, ast.Name) and target.id[0].isupper() and not target.id.isupper():
                yield target.id, path


def test_a_public_class_name_is_used_once() -> None:
    assert {name: paths for name, paths in classes().items() if len(paths) > 1} == {}


def test_no_alias_has_the_name_of_a_class() -> None:
    known = classes()
    assert [(name, path, known[name]) for name, path in aliases() if name in known] == []
