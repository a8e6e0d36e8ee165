"""How large things may be, and where an import may stand. What is too large is split by idea.

An import inside a function, or for the type checker alone, hides a cycle, unless it puts off a
library that takes long to load or need not be there: those are listed with the reason.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

SRC = Path(__file__).parents[1] / "src" / "holdfast"
MOST_LINES, MOST_FUNCTION_LINES, MOST_METHODS = 350, 50, 20


class Finding(NamedTuple):
    path: str  # below src/holdfast
    what: str


# --- what is allowed, and why ---

_WAYS = "imports holdfast.baselines.worker_registry"
LATE_IMPORTS = {
    Finding("cli/cluster/agent.py", f"{_WAYS} in _worker_parts"): "torch: the launcher needs none",
    Finding("cli/worker.py", f"{_WAYS} in _work"): "torch: the launcher needs none",
    Finding(
        "cli/cluster/agent.py", "imports holdfast.runtime.worker in _worker_parts"
    ): "torch: the launcher needs none",
    Finding("cli/worker.py", "imports holdfast.runtime.worker in _work"): "torch, as above",
    Finding("__init__.py", "imports for the type checker"): "names that are loaded when used",
    Finding("api/diagnosing.py", "imports pyarrow in read_trace"): "optional, for traces only",
    Finding(
        "observability/log/exporting.py", "imports pyarrow in _parquet"
    ): "optional, for Parquet only",
    Finding("auth/certificate.py", "imports cryptography in new_key"): "optional",
    Finding("auth/certificate.py", "imports cryptography.hazmat.primitives in new_key"): "optional",
    Finding(
        "auth/certificate.py", "imports cryptography.hazmat.primitives.asymmetric in new_key"
    ): "optional",
    Finding("storage/remote/object_bucket.py", "imports obstore in open_bucket"): "optional",
    Finding("storage/remote/object_bucket.py", "imports obstore.store in open_bucket"): "optional",
    Finding("api/job_source.py", "imports for the type checker"): "torch: the launcher needs none",
    Finding("api/live_run.py", "imports holdfast.api in _starter"): "torch, if workers are threads",
    Finding("api/training.py", "imports holdfast.api.model in _weights_at"): "torch",
    Finding(
        "callbacks/tensorboard_logger.py", "imports torch.utils.tensorboard in _writer_class"
    ): "optional, and torch",
    Finding("api/record.py", "imports for the type checker"): "torch: who reads events needs none",
    Finding("runtime/stage/compiled.py", "imports torch._inductor in can_compile"): "slow to load",
    Finding("api/record.py", "imports holdfast.api.model in model"): "torch",
    Finding("api/record.py", "imports holdfast.weights.exporting in export"): "torch",
    Finding("cli/export.py", "imports holdfast.weights.exporting in run"): "torch",
    Finding("api/record.py", "imports holdfast.api.model in _model"): "torch",
    Finding(
        "planner/kernel/compiled.py", "imports numba in has_numba"
    ): "takes a second; may be missing",
    Finding(
        "planner/kernel/compiled.py", "imports numba in _made"
    ): "takes a second; may be missing",
    Finding(
        "planner/prove/certificate.py", "imports ortools.sat.python in _solver_library"
    ): "optional",
    Finding("planner/prove/solver_model.py", "imports for the type checker"): "OR-Tools, optional",
    Finding(
        "runtime/update/commit.py",
        "imports holdfast.runtime.update.inverse_rollback in _rollback",
    ): "Numba",
    Finding("runtime/reduce/gradients.py", "imports holdfast.runtime.reduce in __init__"): "Numba",
    **{
        Finding("launch/ray/ray_cluster.py", f"imports {name} in open_ray"): "optional"
        for name in ("ray", "ray.exceptions", "ray.util.scheduling_strategies")
    },
    **{
        Finding("simulator/answers/pictures.py", f"imports {name} in _library"): "optional"
        for name in ("matplotlib", "matplotlib.figure")
    },
    Finding("watch/startup.py", "imports holdfast_watch_hooks in start"): "copied beside it",
    Finding("watch/startup.py", "imports traceback in keep_fault"): "slows every watched process",
}

# --- what is looked for ---


def findings(path: str, source: str) -> Iterator[Finding]:
    tree = ast.parse(source)
    whats = [*_sizes(tree), *_late_imports(tree)]
    if len(source.splitlines()) > MOST_LINES:
        whats.append("the file is long")
    yield from (Finding(path, what) for what in dict.fromkeys(whats))


def _sizes(node: ast.AST, within: str = "") -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        name = within
        if isinstance(child, ast.ClassDef):
            name = f"{within}{child.name}."
            methods = [each for each in child.body if _is_function(each)]
            if sum(not each.name.startswith("_") for each in methods) > MOST_METHODS:
                yield f"{within}{child.name} has many methods"
        if _is_function(child):
            name = f"{within}{child.name}."
            if child.end_lineno - child.lineno >= MOST_FUNCTION_LINES:
                yield f"{within}{child.name} is long"
        yield from _sizes(child, name)


def _late_imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and "TYPE_CHECKING" in ast.unparse(node):
            yield "imports for the type checker"
        if _is_function(node):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Import):
                    yield from (f"imports {each.name} in {node.name}" for each in inner.names)
                if isinstance(inner, ast.ImportFrom):
                    yield f"imports {inner.module} in {node.name}"


def _is_function(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


@pytest.fixture(scope="module")
def found() -> set[Finding]:
    paths = sorted(SRC.rglob("*.py"))
    assert len(paths) > 100
    texts = {path.relative_to(SRC).as_posix(): path.read_text() for path in paths}
    return {finding for path, text in texts.items() for finding in findings(path, text)}


def test_nothing_is_too_large_and_no_import_hides_a_cycle(found: set[Finding]) -> None:
    assert sorted(found - LATE_IMPORTS.keys()) == []


def test_what_is_listed_is_still_so(found: set[Finding]) -> None:
    assert sorted(LATE_IMPORTS.keys() - found) == [], "mended: take it off the list"


# --- can it fail at all? ---

LINE, METHOD = "    pass\n", "    def m{}(self): ...\n"
FITS, LONG = LINE * (MOST_FUNCTION_LINES - 1), LINE * MOST_FUNCTION_LINES
FEW = "".join(METHOD.format(number) for number in range(MOST_METHODS))
MANY = FEW + METHOD.format("ore")


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("\n" * (MOST_LINES + 1), "the file is long"),
        (f"def f():\n{LONG}", "f is long"),
        (f"class C:\n  async def f(self):\n{LONG}", "C.f is long"),
        (f"def f():\n  def g():\n{LONG}", "f.g is long"),
        (f"class C:\n{MANY}", "C has many methods"),
        ("def f():\n  import a.b", "imports a.b in f"),
        ("class C:\n  def f(self):\n    if 1:\n      from a.b import c", "imports a.b in f"),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING: ...", "imports for the type checker"),
        ("import typing\nif typing.TYPE_CHECKING: ...", "imports for the type checker"),
    ],
)
def test_it_finds(source: str, what: str) -> None:
    assert Finding("some.py", what) in findings("some.py", source)


@pytest.mark.parametrize(
    "source",
    [
        "\n" * MOST_LINES,
        f"def f():\n{FITS}",
        f"class C:\n    def _hidden(self): ...\n{FEW}",
        "import a.b\nfrom a import c",
    ],
)
def test_it_leaves_alone_what_is_just_small_enough(source: str) -> None:
    assert list(findings("some.py", source)) == []
