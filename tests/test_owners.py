"""State has owners: what a class of state holds is changed in its own module and nowhere else.

Checked in the source of ``control``. Classes of state are all that a ``Run`` consists of, and those
named below; others ask them by a method. Nothing else is needed but names: whoever is so called,
and is no attribute of the asking object itself, is taken for the state.
"""

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "holdfast"
CONTROL, BASELINES = SRC / "control", SRC / "baselines"
MORE_STATE = {"Joiner", "Joiners", "Reconfiguration"}
MUTATORS = {
    *("add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove"),
    *("setdefault", "sort", "update", "difference_update", "intersection_update", "appendleft"),
}


def modules(folder: Path) -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sorted(folder.rglob("*.py"))}


def classes(tree: ast.Module) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def names_in(node: ast.AST | None) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} if node else set()


def state_classes(trees: dict[Path, ast.Module]) -> dict[str, Path]:
    """Of ``Run`` and of ``MORE_STATE``, with the module of each."""
    homes = {name: path for path, tree in trees.items() for name in classes(tree)}
    fields = classes(trees[homes["Run"]])["Run"].body
    parts = {
        name for f in fields if isinstance(f, ast.AnnAssign) for name in names_in(f.annotation)
    }
    return {name: homes[name] for name in sorted(parts | (MORE_STATE & homes.keys()))}


def of_self(node: ast.AST) -> str | None:
    match node:
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return name
    return None


def stored_on_self(tree: ast.AST) -> set[str]:
    """``self.x = ...`` anywhere in it."""
    found = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return {n.attr for n in found if of_self(n) and isinstance(n.ctx, ast.Store)}


def fields_of(kind: ast.ClassDef) -> set[str]:
    """Its attributes, and the names under which others read them."""
    declared = {
        node.target.id
        for node in kind.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    read = {
        node.name
        for node in kind.body
        if isinstance(node, ast.FunctionDef)
        and "property" in set().union(*(names_in(decorator) for decorator in node.decorator_list))
    }
    return declared | read | stored_on_self(kind)


def imports(trees: dict[Path, ast.Module], path: Path) -> set[Path]:
    """Modules of the folder that this one imports."""
    stems = {other.stem: other for other in trees}
    found = set()
    for node in ast.walk(trees[path]):
        if isinstance(node, ast.ImportFrom) and node.module:
            words = [node.module.rsplit(".", 1)[-1], *(name.name for name in node.names)]
            found |= {stems[word] for word in words if word in stems}
    return found


def reached(trees: dict[Path, ast.Module]) -> dict[Path, set[Path]]:
    """What each imports, what that imports, and so on.

    Whoever cannot reach a class has none of its objects.
    """
    direct = {path: imports(trees, path) for path in trees}
    found = {}
    for path in trees:
        seen, left = {path}, [path]
        while left:
            new = direct[left.pop()] - seen
            seen |= new
            left += new
        found[path] = seen
    return found


def aliases(function: ast.AST) -> dict[str, str]:
    """Local names for the very object that a field of somebody else holds."""
    found = {}
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Attribute(attr=field) as value):
                found |= {} if of_self(value) else {name: field}
    return found


def foreign(node: ast.AST, known: dict[str, str]) -> str | None:
    """The field of somebody else that it is, perhaps under a local name."""
    match node:
        case ast.Attribute(attr=field):
            return None if of_self(node) else field
        case ast.Name(id=name):
            return known.get(name)
    return None


def changed(node: ast.AST, known: dict[str, str]) -> str | None:
    """The field of somebody else that is set here, deleted, changed in place or pried open."""
    match node:
        case ast.Attribute(ctx=ast.Store() | ast.Del()):
            return foreign(node, {})
        case ast.Subscript(value=value, ctx=ast.Store() | ast.Del()):
            return foreign(value, known)
        case ast.AugAssign(target=ast.Name(id=name)):
            return known.get(name)
        case ast.Attribute(value=value, attr=method) if method in MUTATORS:
            return foreign(value, known)
        case ast.Attribute(attr=field) if field.startswith("_"):
            return foreign(node, {})
    return None


def writes(tree: ast.Module) -> set[tuple[int, str]]:
    """Lines, and the names of fields of somebody else that they change."""
    found = set()
    for function in [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]:
        known = aliases(function)
        for node in ast.walk(function):
            field = changed(node, known)
            if field is not None:
                found.add((node.lineno, field))
    return found


def intruders(*folders: Path) -> list[str]:
    trees = {path: tree for folder in folders for path, tree in modules(folder).items()}
    return intrusions(trees, state_classes(trees))


def intrusions(trees: dict[Path, ast.Module], homes: dict[str, Path]) -> list[str]:
    reach, written = reached(trees), {path: writes(tree) for path, tree in trees.items()}
    found = set()
    for name, home in homes.items():
        fields = fields_of(classes(trees[home])[name])
        users = [path for path in trees if path != home and home in reach[path]]
        found |= {
            f"{path.name}:{line} changes {name}.{field}"
            for path in users
            for line, field in written[path]
            if field in fields
        }
    return sorted(found)


def late_fields(tree: ast.Module) -> list[str]:
    """Attributes that exist only after another call than ``__init__``."""
    found = []
    for name, kind in classes(tree).items():
        begins = [n for n in kind.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
        declared = {
            node.target.id
            for node in kind.body
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        }
        known = declared.union(*(stored_on_self(function) for function in begins))
        found += [f"{name}.{late}" for late in sorted(stored_on_self(kind) - known)]
    return found


def test_no_state_of_the_coordinator_is_changed_outside_its_owner() -> None:
    assert intruders(CONTROL, BASELINES) == []


def test_nor_is_a_field_of_any_other_class_unless_it_is_named_as_one_of_its_own() -> None:
    trees = modules(CONTROL)
    homes = {name: path for path, tree in trees.items() for name in classes(tree)}
    own = {
        path.name: set().union(*map(fields_of, classes(tree).values()))
        for path, tree in trees.items()
    }
    found = [
        line
        for line in intrusions(trees, homes)
        if line.rpartition(".")[2] not in own[line.partition(":")[0]]
    ]
    assert found == []


def test_every_part_of_a_run_is_looked_at() -> None:
    known = state_classes(modules(CONTROL))
    assert {"Placement", "CurrentPlan", "Saved", "BoundaryLogs", "Ending", *MORE_STATE} <= set(
        known
    )
    assert len(known) >= 12


def test_no_class_of_the_coordinator_has_fields_that_come_later() -> None:
    found = {path.name: late_fields(tree) for path, tree in modules(CONTROL).items()}
    assert {name: late for name, late in found.items() if late} == {}


# --- it can fail ---

OWNER = """
class Run:
    placement: Placement

class Placement:
    def __init__(self):
        self._stages = {}

    @property
    def stages(self):
        return self._stages

    def hold(self, worker, stage):
        self._stages[worker] = stage
"""
WRONG = [
    "run.placement.stages = {}",
    "run.placement._stages = {}",
    "run.stages = {}",
    "run.placement.stages[worker] = 1",
    "del run.placement.stages[worker]",
    "run.placement.stages |= {}",
    "self._run.placement.stages.pop(worker)",
    "(run.stages.add if yes else run.stages.discard)(worker)",
    "run.epoch, run.placement.stages = 1, {}",
    "stages = run.placement.stages\n    stages.clear()",
    "stages = run.placement.stages\n    stages[worker] = 1",
    "print(run.placement._stages)",
]
RIGHT = [
    "run.placement.hold(worker, 1)",
    "stages = dict(run.placement.stages)\n    stages[worker] = 1",
    "self.stages = {}",
    "self.stages.pop(worker)",
    "stages = self.stages\n    stages.clear()",
    "print(run.placement.stages[worker])",
    "run.placement.others.pop(worker)",
]


def with_user(folder: Path, line: str, *, head: str = "from holdfast.owner import Run") -> Path:
    (folder / "owner.py").write_text(OWNER)
    (folder / "user.py").write_text(f"{head}\n\n\ndef use(self, run, worker, yes):\n    {line}\n")
    return folder


@pytest.mark.parametrize("line", WRONG)
def test_a_write_by_somebody_else_is_seen(tmp_path, line) -> None:
    assert len(intruders(with_user(tmp_path, line))) == 1


@pytest.mark.parametrize("line", RIGHT)
def test_what_changes_nothing_of_others_is_not(tmp_path, line) -> None:
    assert intruders(with_user(tmp_path, line)) == []


def test_who_has_never_heard_of_the_state_may_use_its_words(tmp_path) -> None:
    assert intruders(with_user(tmp_path, WRONG[0], head="import math")) == []


def test_a_field_that_comes_later_is_seen() -> None:
    late = (
        "class A:\n  x: int\n  def __init__(self):\n    self.y = 1\n  def go(self):\n    self.z = 1"
    )
    assert late_fields(ast.parse(late)) == ["A.z"]
