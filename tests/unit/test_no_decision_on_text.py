"""No decision hangs on the words of an error, a reason or a fault: words are for people.

Checked in the source: texts of caught errors, and fields that hold words, are never compared with
a text, searched or matched. What must be told apart gets a type, a kind or a field of its own.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src" / "holdfast"
WORDS = {"reason", "why", "evidence", "details", "fault", "explanation", "strerror"}
SEARCHES = {
    "startswith",
    "endswith",
    "find",
    "index",
    "count",
    "split",
    "partition",
    "removeprefix",
}
PATTERNS = {"match", "search", "fullmatch", "findall"}  # of re, or of a compiled pattern


def caught(tree: ast.AST) -> set[str]:
    return {n.name for n in ast.walk(tree) if isinstance(n, ast.ExceptHandler) and n.name}


def is_words(node: ast.AST, errors: set[str]) -> bool:
    """``str(why)``, ``why.args[0]``, ``event.reason``, or one of these through a method."""
    match node:
        case ast.Call(func=ast.Name(id="str" | "repr"), args=[ast.Name(id=name)]):
            return name in errors
        case ast.Attribute(value=ast.Name(id=name), attr="args"):
            return name in errors
        case ast.Attribute(attr=attribute):
            return attribute in WORDS
        case ast.Subscript(value=value) | ast.Call(func=ast.Attribute(value=value)):
            return is_words(value, errors)
        case ast.JoinedStr(values=values):
            names = {n.id for value in values for n in ast.walk(value) if isinstance(n, ast.Name)}
            return bool(names & errors)
    return False


def is_text(node: ast.AST) -> bool:
    """A text that is written there; the empty one only asks whether there are words at all."""
    texts = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)]
    return any(isinstance(text, str) and text for text in texts)


def decisions(source: str) -> Iterator[int]:
    tree = ast.parse(source)
    errors = caught(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=left, comparators=others):
                sides = [left, *others]
                words = [side for side in sides if is_words(side, errors)]
                if words and any(is_text(side) for side in sides if side not in words):
                    yield node.lineno
            case ast.Call(func=ast.Attribute(value=value, attr=attribute), args=args):
                if attribute in SEARCHES and args and is_words(value, errors):
                    yield node.lineno
                if attribute in PATTERNS and any(is_words(each, errors) for each in args):
                    yield node.lineno


@pytest.mark.parametrize(
    "source",
    [
        "try: pass\nexcept E as why:\n  if 'memory' in str(why): raise",
        "try: pass\nexcept E as why:\n  if why.args[0] == 'x': raise",
        "try: pass\nexcept E as why:\n  if f'{why}'.startswith('x'): raise",
        "try: pass\nexcept E as why:\n  if str(why).lower().endswith('x'): raise",
        "try: pass\nexcept E as why:\n  if re.search('x', str(why)): raise",
        "if fired.fault.startswith(('kill ', 'hang ')): pass",
        "if 'died' in event.reason: pass",
        "if event.reason != 'died': pass",
        "if pattern.fullmatch(event.reason): pass",
    ],
)
def test_decisions_on_text_are_seen(source):
    assert len(list(decisions(source))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "try: pass\nexcept E as why:\n  raise F(f'{why} in x') from why",
        "if event.reason: pass",
        "if event.reason != '': pass",
        "if event.reason == other.reason: pass",
        "if event.fault in run.fired: pass",
        "if 'x' in text: pass",
    ],
)
def test_words_that_are_only_passed_on_are_not(source):
    assert list(decisions(source)) == []


def test_no_decision_hangs_on_words():
    found = [
        f"{path.relative_to(SRC)}:{line}"
        for path in sorted(SRC.rglob("*.py"))
        for line in decisions(path.read_text())
    ]
    assert found == []
