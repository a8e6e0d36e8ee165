"""No test reaches into a private attribute of another module.

Private is what begins with one underscore, unless the file itself defines it, or its owner is
``self``, ``cls`` or ``super()``. What named tuples and a few modules of Python and torch call so is
public all the same.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
PUBLIC = {"_replace", "_asdict", "_fields", "_exit", "_current_frames"}
FOREIGN = {"os", "sys", "torch"}  # no module of ours
BY_NAME = {"setattr", "getattr", "delattr", "hasattr", "patch"}  # given names as text


def pokes(source: str) -> Iterator[str]:
    """``x._y`` as it stands there, once for each time."""
    tree = ast.parse(source)
    own = set(defined(tree))
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=value, attr=name):
                owner = ast.unparse(value)
                if is_of_ours(owner) and is_private(name) and name not in own:
                    yield f"{owner}.{name}"
            case ast.ImportFrom(module=str(module)) if module.startswith("holdfast"):
                yield from (f"import {n.name}" for n in node.names if is_private(n.name))
            case ast.Call(args=[first, *_]) if ast.unparse(node.func).split(".")[-1] in BY_NAME:
                yield from (text for text in names_in(node) if is_of_ours(ast.unparse(first)))


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in PUBLIC


def is_of_ours(owner: str) -> bool:
    return owner not in ("self", "cls", "super()") and owner.split(".")[0] not in FOREIGN


def names_in(call: ast.Call) -> Iterator[str]:
    """``"_y"`` after its owner, or ``"holdfast.x._y"`` alone."""
    texts = [a.value for a in call.args[:2] if isinstance(a, ast.Constant)]
    yield from (repr(text) for text in texts[:1] if is_private(str(text).split(".")[-1]))


def defined(tree: ast.AST) -> Iterator[str]:
    """Methods, functions, and attributes that are set on ``self`` or named in a class."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name


def test_no_file_reaches_into_a_private_attribute_of_another():
    paths = {str(path.relative_to(TESTS)): path for path in sorted(TESTS.rglob("*.py"))}
    found = {name: list(pokes(path.read_text())) for name, path in paths.items()}
    bad = [f"{name}: {', '.join(some)}" for name, some in found.items() if some]
    assert not bad, "use, or make, something public instead\n" + "\n".join(bad)


def test_a_poke_is_found_and_what_a_file_has_itself_is_not():
    source = """
import os
from holdfast.control.io.entry.rights import _MAY_SAY, MAY_NOT

class Own:
    def __init__(self):
        self._mine = other._theirs._deep

    def _method(self):
        return super()._method() + self._inherited + row._replace(a=1)

Own()._mine, Own()._method(), os._exit(0), thing.__class__
monkeypatch.setattr(module, "_limit_s", 0)
monkeypatch.setattr("holdfast.job._limit_s", "_value")
monkeypatch.setattr(os, "_exit", "holdfast")
"""
    assert sorted(pokes(source)) == [
        "'_limit_s'",
        "'holdfast.job._limit_s'",
        "import _MAY_SAY",
        "other._theirs",
        "other._theirs._deep",
    ]
