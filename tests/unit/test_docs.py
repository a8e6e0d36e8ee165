"""What the pages say, checked against the code: commands, links, names, tables, the code map.

HOLDFAST_REWRITE=1 writes what is generated anew: plans, help texts, the code map.
"""

import argparse
import ast
import re
import shlex
import tomllib
from dataclasses import fields
from typing import get_args

import pytest

import holdfast
from helpers.pages import (
    DOCS,
    PAGES,
    README,
    REWRITES,
    ROOT,
    anchors,
    blocks,
    commands,
    links,
    name_of,
    prose,
    rows,
    transcripts,
)
from holdfast import errors
from holdfast.cli import main, train
from holdfast.config import RunConfig, config_from, known_keys
from holdfast.faults.fault import PHASES, FaultKind, parse_fault
from holdfast.observability.events import Event
from holdfast.observability.summary import Summary
from holdfast.protocol.messages import Message

SRC = ROOT / "src" / "holdfast"
REFERENCE = re.compile(r"`([a-z_/]+\.py)::([\w.]+)`")
USED = [README, *DOCS.glob("[iqt]*.md"), *DOCS.glob("guides/*.md"), *DOCS.glob("reference/*.md")]
SHOWN = [(page, command) for page in USED for command in commands(page)]
HELP_WIDTH = 100


class _Parsed(Exception):
    """Carries what was parsed out of the command that would run."""


@pytest.fixture
def parsed(monkeypatch):
    """Command -> its parsed arguments; it is not run. SystemExit and errors pass."""
    real = argparse.ArgumentParser.parse_args

    def parse_only(self, *args):
        raise _Parsed(real(self, *args))

    def understood(command):
        words = shlex.split(command)[1:]
        with monkeypatch.context() as patch:
            patch.setattr(argparse.ArgumentParser, "parse_args", parse_only)
            try:
                main.main(words)
            except _Parsed as found:
                return found.args[0]
        raise AssertionError(f"does not parse: {command}")

    return understood


# --- commands ---


def test_the_reference_shows_the_help_of_every_command(capsys):
    with pytest.raises(SystemExit):
        main.main(["--help"])
    listed = re.findall(r"^    ([a-z-]+) ", capsys.readouterr().out, re.MULTILINE)
    shown = {block.command[1] for block in transcripts(DOCS / "reference" / "cli.md")}
    assert {name for name in listed if name != "agent"} <= shown


def names_a_command_only(command):
    return len(shlex.split(command)) == 2


@pytest.mark.parametrize(("page", "command"), SHOWN, ids=lambda value: str(value)[-50:])
def test_a_command_that_is_shown_parses(page, command, parsed):
    if names_a_command_only(command) or "--help" in command or "COMMAND" in command:
        return
    args = parsed(command)
    if command.split()[1] == "train":
        shown_there = {block.title for block in blocks(page)}
        known = args.job is None or args.job in shown_there or (ROOT / args.job).is_file()
        assert args.resume if args.job is None else known
        args.config = None  # a file of the reader's
        train.resolve(args)


@pytest.mark.parametrize(
    "wrong", ["holdfast train --steps", "holdfast plan --stages", "holdfast fly"]
)
def test_a_wrong_command_would_be_noticed(wrong, parsed, capsys):
    with pytest.raises(AssertionError, match="does not parse"):
        parsed(wrong)
    assert capsys.readouterr().err.startswith("holdfast: ")


def is_exact(block):
    """Runs nothing, so that its output is the same everywhere."""
    return block.command[1] in ("plan", "recovery-plan") or block.command[-1] == "--help"


EXACT = [block for block in transcripts(*PAGES) if block.command[0] == "holdfast"]
EXACT = [block for block in EXACT if is_exact(block)]


@pytest.mark.parametrize("block", EXACT, ids=lambda block: "-".join(block.command[1:4]))
def test_a_plan_and_a_help_text_are_what_the_command_prints(block, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(HELP_WIDTH))
    if block.command[-1] == "--help":
        with pytest.raises(SystemExit, match="0"):
            main.main(block.command[1:])
    else:
        assert main.main(block.command[1:]) == 0
    printed = capsys.readouterr().out
    if REWRITES:
        block.rewrite(printed)
        return
    if block.command[-1] == "--help":  # how lines are broken differs between versions of Python
        assert block.output.split() == printed.split()
    else:
        assert block.output == printed


def test_plans_are_shown():
    assert {block.command[1] for block in EXACT} >= {"plan", "recovery-plan", "train"}


def test_the_picture_of_a_plan_is_what_the_command_draws(tmp_path, capsys):
    picture = "docs/pictures/zero-bubble.svg"
    command = next(command for _, command in SHOWN if f"--svg {picture}" in command)
    drawn = tmp_path / "again.svg"
    assert main.main([*shlex.split(command)[1:-1], str(drawn)]) == 0
    assert drawn.read_text() == (ROOT / picture).read_text()


def test_the_toml_that_is_shown_is_a_valid_configuration():
    shown = [block for page in PAGES for block in blocks(page, "toml")]
    assert shown
    for block in shown:
        assert config_from(tomllib.loads(block.body)).parallel.pipelines == 2


def test_the_job_of_the_guide_is_the_example():
    shown = blocks(DOCS / "guides" / "write-a-job.md", "python")[0]
    assert shown.body in (ROOT / "examples" / "tiny_gpt.py").read_text()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_that_is_shown_compiles(page):
    for block in blocks(page, "python"):
        compile(block.body, f"{page.name} {block.title}", "exec")


# --- the front door ---


def test_the_readme_is_short():
    text = README.read_text()
    assert len(text.splitlines()) <= 200
    assert len(text.split()) <= 1500


def test_the_job_of_the_readme_is_twenty_lines():
    job = next(block for block in blocks(README, "python") if block.title == "job.py")
    assert sum(bool(line.strip()) for line in job.body.splitlines()) <= 20


def test_every_page_is_in_the_navigation():
    nav = (ROOT / "mkdocs.yml").read_text()
    named = re.findall(r"[\w/-]+\.md", nav)
    assert sorted(named) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


# --- links and names ---


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_relative_link_leads_somewhere(page):
    for target, anchor in links(page):
        assert target.exists(), f"{page.name} links to {target}"
        inside = DOCS if page.is_relative_to(DOCS) else ROOT  # the site has only what is in docs
        assert target.is_relative_to(inside), f"{page.name} links out of {inside.name}: {target}"
        if anchor:
            assert anchor in anchors(target), f"{page.name} links to {target.name}#{anchor}"


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
    "step": {"cli", "control", "runtime", "transport", "recovery", "observability", "schedule"},
    "lost-stage": {"control", "runtime", "recovery", "planner"},
    "slow-worker": {
        *("faults", "runtime", "transport", "control", "detection", "mitigation", "planner"),
        *("observability", "cli"),
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


# --- version, code map, decisions ---


def test_the_top_of_the_changelog_is_the_version_of_the_package():
    headings = re.findall(r"^## \[(\d[^\]]*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == holdfast.__version__


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
