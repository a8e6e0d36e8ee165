"""The architecture, as a test. Imports may only point down; parts on one row never meet."""

import ast
import subprocess
import sys
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from holdfast.baselines.registry import RECOVERY, STRAGGLERS
from holdfast.baselines.worker_registry import KEEPING
from holdfast.config import MitigationConfig, RecoveryConfig

SRC = Path(__file__).parents[1] / "src" / "holdfast"
LAYERS = [
    "cli | testing",
    "api",
    "simulator",
    "baselines",
    "runtime | control",
    "weights",
    "storage | faults | watch | bundle | launch",
    "models | job_call | data | planner | detection | mitigation | callbacks",
    "observability | protocol | transport | files | job",
    "schedule | adaptors | validation",
    "config | cluster | auth | host | job_file",
    "checkpoint_address | journal_address",
    "names | job_reference | addresses | device",
    "errors | arrays | clocks",
]
PURE = [
    "auth",
    "host",
    "planner",
    "detection",
    "mitigation",
    "watch",
    "launch",
    "schedule",
    "validation",
    "protocol",
    "control",
    "observability",
    "faults",
    "files",
    "config",
    "cluster",
    "addresses",
    "names",
    "checkpoint_address",
    "journal_address",
    "errors",
    "job_file",
    "arrays",
    "clocks",
    "job_reference",
    "baselines",
    "bundle",
    "simulator",
]
ON_WORKERS = {"memory_commit", "two_phase", "worker_registry"}  # of the baselines
# Inside of a package: again from the top down, parts on one row never meet. A part is a sub-package
# or a module beside it; modules that are not named here are above all that are.
INNER: dict[str, list[str]] = {
    "baselines": [
        "policies",
        "published",
    ],
    "planner": [
        "baselines",
        "service",
        "schedules | place",
        "planning",
        "reason | plan",
        "remainder",
        "order",
        "prove",
        "assign",
        "route",
        "kernel | logs",
        "problem",
    ],
    "detection": [
        "live | trace",
        "change | diagnosis | observation",
    ],
    "transport": [
        "tcp | local",
        "receiving",
        "mailbox | outbox",
        "frame | link_shaping | room | senders",
        "base | timed_wait",
    ],
    "storage": [
        "places | run_shelf",
        "run_paths | checkpoint | far",
        "stores",
        "local_store | remote",
        "store",
        "manifest | log",
        "contents | home | scratch",
    ],
    "runtime": [
        "worker",
        "replay",
        "step",
        "state | validation",
        "update",
        "reduce | job | probe",
        "stage",
        "link",
    ],
    "control": [
        "io",
        "coordinator",
        "handlers | machine_door",
        "agenda | heartbeats",
        "finish | takeover",
        "parts",
        "liveness",
        "reconfigure",
        "restore | straggler",
        "decide",
        "join",
        "progress",
        "plans | inventory | plausible",
        "state",
        "effects | checks | recovery_rules | journal | device_room",
    ],
    "cli": [
        "cluster | launching | looking | simulating",
        "worker",
        "report | terminal | help_text | flags | passed_on",
        "plan_problem",
    ],
    "simulator": [
        "hunt | answers | by_messages",
        "messages | intervals",
        "worlds | costs",
    ],
    "observability": [
        "log",
        "events",
        "jsonfile",
    ],
    "launch": [
        "kinds",
        "ssh | slurm | k8s | ray | preflight",
        "starting | programs | keeping",
        "clusters | orders | again",
    ],
    "protocol": [
        "messages",
        "records",
        "fields",
    ],
}
RANK = {part: -row for row, parts in enumerate(LAYERS) for part in parts.split(" | ")}
INNER_RANK = {
    (package, part): -row
    for package, rows in INNER.items()
    for row, parts in enumerate(rows)
    for part in parts.split(" | ")
}
DEMO_JOB = SRC / "models" / "tiny_gpt.py"  # as a user writes one: it imports what users import
FILES = sorted(
    path
    for path in SRC.rglob("*.py")
    if (path.parent != SRC or path.stem in RANK) and path != DEMO_JOB
)


def imported(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    plain = {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
    from_names = {
        f"{node.module}.{name.name}"
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module
        for name in node.names
    }
    return plain | from_names


def part_of(path: Path) -> str:
    first = path.relative_to(SRC).parts[0]
    return first.removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SRC)))
def test_imports_point_down(path: Path) -> None:
    here = part_of(path)
    for module in imported(path):
        top, *rest = module.split(".")
        if top == "holdfast" and rest and rest[0] != here:
            assert RANK[rest[0]] < RANK[here], f"{here} may not import {rest[0]}"


def inner_part_of(module: str) -> tuple[str, str] | None:
    """Package and part of ``holdfast.package.part...``, if there is such a file or folder."""
    top, *inside = module.split(".")
    if top != "holdfast" or len(inside) < 2:
        return None
    place = SRC / inside[0] / inside[1]
    found = place.is_dir() or place.with_suffix(".py").is_file()
    return (inside[0], inside[1]) if found else None


def sub_packages() -> set[tuple[str, str]]:
    return {(path.parts[-3], path.parts[-2]) for path in SRC.glob("*/*/__init__.py")}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SRC)))
def test_imports_point_down_inside_of_a_package_too(path: Path) -> None:
    here = inner_part_of(".".join(["holdfast", *path.relative_to(SRC).with_suffix("").parts]))
    if here not in INNER_RANK:
        return
    for module in imported(path):
        there = inner_part_of(module)
        if there is not None and there[0] == here[0] and there != here:
            above = f"{'.'.join(here)} may not import {'.'.join(there)}"
            assert there in INNER_RANK, f"{above}, which is above all that have a row"
            assert INNER_RANK[there] < INNER_RANK[here], above


def test_every_sub_package_has_a_place_in_its_package() -> None:
    assert sorted(sub_packages() - INNER_RANK.keys()) == []


def test_every_part_has_a_place_in_the_layers() -> None:
    parts = {part_of(path) for path in SRC.rglob("*.py")} - {"__init__", "__main__"}
    assert parts == set(RANK)


def test_the_pure_parts_load_without_torch() -> None:
    modules = [
        ".".join(["holdfast", *path.relative_to(SRC).with_suffix("").parts])
        for path in FILES
        if part_of(path) in PURE and path.stem not in {"__init__", *ON_WORKERS}
    ]
    code = f"import sys, importlib\nfor m in {modules!r}: importlib.import_module(m)\n"
    code += "sys.exit('torch was imported' if 'torch' in sys.modules else 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


# --- the published ways are behind one seam ---

CORE = [path for path in FILES if RANK[part_of(path)] < RANK["baselines"]]


def published() -> set[str]:
    """Names of settings that something in ``baselines`` stands behind."""
    known = [*RECOVERY.items(), *STRAGGLERS.items(), *KEEPING.items()]
    return {mode for mode, way in known if way.__module__.startswith("holdfast.baselines.")}


def told_apart(source: str) -> set[str]:
    """Texts that something is compared with."""
    compared = (n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Compare))
    parts = (part for node in compared for part in ast.walk(node))
    return {part.value for part in parts if isinstance(part, ast.Constant) and part.value}


def test_the_core_imports_none_of_the_published_ways() -> None:
    assert {part_of(path) for path in CORE} >= {"control", "runtime", "planner", "mitigation"}
    users = [path for path in CORE for name in imported(path) if "holdfast.baselines" in name]
    assert users == []


def test_coordinator_and_workers_know_no_published_way_by_its_name() -> None:
    assert published() == {"swift", "checkfreq", "commit", "global", "falcon"}
    names = published() - {"global"}  # an optimizer is called so, too
    found = {
        str(path.relative_to(SRC)): told_apart(path.read_text()) & names
        for path in CORE
        if part_of(path) != "config"  # which settings fit together is its own matter
    }
    assert {path: name for path, name in found.items() if name} == {}


def test_a_branch_on_the_name_of_a_published_way_is_seen() -> None:
    assert "swift" in told_apart("if config.recovery.mode == 'swift': pass")
    assert "falcon" in told_apart("x = mode in ('holdfast', 'falcon')")


def test_every_way_that_can_be_set_is_there_for_coordinator_and_workers() -> None:
    recovery, mitigation = get_type_hints(RecoveryConfig), get_type_hints(MitigationConfig)
    assert set(get_args(recovery["mode"])) == RECOVERY.keys() == KEEPING.keys()
    assert set(get_args(mitigation["mode"])) == STRAGGLERS.keys()
