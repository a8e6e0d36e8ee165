"""What the pages say of the code, compared with it: names, tables, the code map, decisions.

HOLDFAST_REWRITE=1 writes the tree of errors and the code map anew.
"""

import ast
import re
import tomllib
from dataclasses import fields
from typing import get_args

import pytest

import holdfast
from helpers.pages import DOCS, PAGES, README, REWRITES, ROOT, blocks, links, name_of, prose, rows
from holdfast import errors
from holdfast.config import RunConfig, known_keys
from holdfast.faults.fault import PHASES, FaultKind, parse_fault
from holdfast.observability.events import Event
from holdfast.observability.summary import Summary
from holdfast.protocol.messages import Message

SRC = ROOT / "src" / "holdfast"
REFERENCE = re.compile(r"`([a-z_/]+\.py)::([\w.]+)`")

# --- names ---


def defined(path):
    """Names of a module's classes and functions, and of methods as ``Class.method``."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
            inside = node.body if isinstance(node, ast.ClassDef) else []
            names |= {f"{node.name}.{f.name}" for f in inside if isinstance(f, ast.FunctionDef)}
    return names


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_function_that_is_named_exists(page):
    for path, name in REFERENCE.findall(page.read_text()):
        assert name in defined(SRC / path), f"{page.name} names {path}::{name}"


JOURNEYS = {
    "step": {"cli", "control", "runtime", "transport", "storage", "observability", "schedule"},
    "lost-stage": {"control", "runtime", "storage", "planner"},
    "slow-worker": {
        *("faults", "runtime", "transport", "control", "detection", "mitigation", "planner"),
        *("observability",),
    },
}


@pytest.mark.parametrize("journey", JOURNEYS)
def test_the_journey_names_functions_of_all_that_it_passes(journey):
    page = DOCS / "how-it-works" / f"journey-of-a-{journey}.md"
    named = REFERENCE.findall(page.read_text())
    assert JOURNEYS[journey] <= {path.partition("/")[0] for path, _ in named}


# --- tables ---


def page_of(name):
    return (DOCS / "reference" / f"{name}.md").read_text()


def test_the_tables_of_settings_have_every_setting_with_its_default():
    config = RunConfig()
    shown = {row[0].strip("`"): row[1].strip("`") for row in rows(page_of("settings"), 3)}
    assert list(shown) == known_keys()
    for key, text in shown.items():
        section, name = key.split(".")
        default = getattr(getattr(config, section), name)
        read = tomllib.loads(f"value = {text}")["value"]
        assert (tuple(read) if isinstance(default, tuple) else read) == default, key


def test_the_table_of_the_summary_has_every_field():
    page = page_of("results")
    after = page[page.index("| Field of `summary.json`") :]
    shown = [row[0].strip("`") for row in rows(after[: after.index("\n\n")], 2)]
    assert shown == [field.name for field in fields(Summary)]


def test_the_table_of_events_has_every_event():
    shown = {name for row in rows(page_of("events"), 2) for name in re.findall(r"\w+", row[0])}
    assert shown == {event.__name__ for event in get_args(Event)}


def test_the_tables_of_faults_have_every_kind_and_every_point():
    page = page_of("faults")
    first_cells = [row[0] for row in rows(page, 2)]
    kinds = [cell.strip("`").split()[0] for cell in first_cells]
    assert {kind for kind in kinds if kind in list(FaultKind)} == set(FaultKind)
    points = {cell.strip("`") for cell in first_cells}
    assert set(PHASES) <= points
    for phase, meaning in PHASES.items():
        assert f"| `{phase}` | {meaning}" in page


@pytest.mark.parametrize("page", [README, *(DOCS / "guides").glob("*.md")], ids=name_of)
def test_faults_that_are_shown_can_be_read(page):
    for fault in re.findall(r'--fault "([^"]+)"', page.read_text()):
        assert str(parse_fault(fault))


def test_the_page_on_errors_has_the_tree():
    tree = (errors.__doc__ or "").partition("\n\n")[2].rstrip()
    block = blocks(DOCS / "reference" / "errors.md", "text")[0]
    if REWRITES:
        page = block.page
        page.write_text(page.read_text().replace(block.body, tree + "\n"))
        return
    assert block.body.rstrip() == tree


def test_the_page_on_the_protocol_has_every_message_and_every_channel():
    shown = [row[0].strip("`") for row in rows(page_of("protocol"), 3)]
    channels = (SRC / "transport" / "base.py").read_text()
    body = channels[channels.index("class Channel") : channels.index("class Tag")]
    expected = [message.__name__ for message in get_args(Message)]
    expected += re.findall(r"^    ([A-Z]+) = \d", body, re.MULTILINE)
    assert sorted(shown) == sorted(expected)


def test_the_page_on_the_api_has_every_public_name():
    listed = re.findall(r"^        - (\w+)$", page_of("api"), re.MULTILINE)
    # These have pages or paragraphs of their own.
    apart = {"__version__", "callbacks", "errors", "events", "testing"}
    assert sorted(listed) == sorted(set(holdfast.__all__) - apart)


# --- version, code map, decisions ---


def test_the_top_of_the_changelog_is_the_version_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = project.get("version") or holdfast.__version__
    headings = re.findall(r"^## \[(\d[^\]]*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == version


def first_line(path):
    head = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(head.split("\n\n")[0].split())


def code_map(folder=SRC, level=0):
    """Every file of the package with the first sentence of its head; a folder has its own."""
    indent = "  " * level
    for path in sorted(folder.iterdir(), key=lambda path: (path.is_dir(), path.name)):
        if path.is_dir() and (path / "__init__.py").exists():
            head = first_line(path / "__init__.py")
            yield f"{indent}{path.name}/".ljust(28) + head
            yield from code_map(path, level + 1)
        elif path.suffix == ".py" and path.name != "__init__.py":
            yield f"{indent}{path.name}".ljust(28) + first_line(path)


def test_the_code_map_has_every_file_with_its_first_sentence():
    expected = "\n".join(["src/holdfast/", *(line.rstrip() for line in code_map(level=1))]) + "\n"
    block = next(
        block
        for block in blocks(DOCS / "how-it-works" / "code-map.md", "text")
        if block.body.startswith("src/holdfast/")
    )
    if REWRITES:
        page = block.page
        page.write_text(page.read_text().replace(block.body, expected))
        return
    assert block.body == expected


def test_decisions_have_a_number_each_and_the_three_parts():
    pages = sorted((DOCS / "decisions").glob("[0-9]*.md"))
    numbers = [int(page.name[:4]) for page in pages]
    assert len(set(numbers)) == len(numbers)
    listed = [target for target, _ in links(DOCS / "decisions" / "index.md")]
    assert listed == pages
    for page in pages:
        text = page.read_text()
        assert text.startswith(f"# {page.name[:4]}: ")
        headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
        assert headings == ["Context", "Choice", "Price paid"], page.name


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_figure_is_left_to_be_filled_in(page):
    assert "TODO" not in prose(page.read_text())
