"""What the documents say, checked against the code: commands, links, names, tables, the tree."""

import ast
import re
import shlex
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

import holdfast
from holdfast.cli import (
    agent,
    demo,
    diagnose,
    main,
    plan,
    recovery_plan,
    trace,
    train,
    watch,
    worker,
)
from holdfast.config import RunConfig, config_from, known_keys
from holdfast.observability.events import Event
from holdfast.observability.summary import Summary
from holdfast.protocol.messages import Message

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "holdfast"
README = (ROOT / "README.md").read_text()
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
REFERENCE = re.compile(r"`([a-z_/]+\.py)::([\w.]+)`")
KINDS = {"demo", "train", "plan", "recovery-plan", "trace", "worker", "watch", "diagnose"}


def by_name(path):
    return str(path.relative_to(ROOT))


def blocks(text, *languages):
    return [body for language, body in FENCE.findall(text) if language in languages]


def commands(text):
    """Every ``holdfast ...`` that is shown in a shell block or in the running text."""
    lines = [line for body in blocks(text, "sh", "console") for line in body.splitlines()]
    shown = [line.removeprefix("$ ").partition(" #")[0].strip() for line in lines]
    shown += re.findall(r"`(holdfast [^`\n]+)`", FENCE.sub("", text))
    return [line for line in shown if re.match(r"(\.venv/bin/)?holdfast ", line)]


def understood(command, monkeypatch):
    """The parsed arguments of a command that is not run."""
    parsed = []
    for module in (demo, train, plan, recovery_plan, trace, agent, worker, watch, diagnose):
        monkeypatch.setattr(module, "run", lambda args: parsed.append(args) or 0)
    assert main.main(shlex.split(command)[1:]) == 0, f"does not parse: {command}"
    return parsed[0]


# --- commands ---


def test_the_readme_shows_commands_of_every_kind():
    kinds = {command.split()[1] for command in commands(README)}
    assert kinds == KINDS


@pytest.mark.parametrize("command", commands(README))
def test_a_command_of_the_readme_parses(command, monkeypatch):
    if command.split()[1:] in [[kind] for kind in KINDS]:
        return  # only its name
    args = understood(command, monkeypatch)
    if command.split()[1] == "train":
        assert args.resume if args.job is None else (ROOT / args.job).is_file()
        args.config = None  # a file of the reader's
        train.resolve(args)


@pytest.mark.parametrize(
    "wrong", ["holdfast train --steps", "holdfast plan --stages", "holdfast fly"]
)
def test_a_wrong_command_would_be_noticed(wrong, monkeypatch, capsys):
    with pytest.raises(AssertionError, match="does not parse"):
        understood(wrong, monkeypatch)
    assert capsys.readouterr().err.startswith("holdfast: ")


@pytest.mark.parametrize("kind", ["plan", "recovery-plan"])
def test_the_plan_in_the_readme_is_what_the_command_prints(kind, capsys):
    shown = [body for body in blocks(README, "console") if body.startswith(f"$ holdfast {kind} ")]
    assert len(shown) == 1
    command, _, output = shown[0].partition("\n")
    assert main.main(shlex.split(command)[2:]) == 0
    assert capsys.readouterr().out == output


def test_the_picture_in_the_readme_is_what_the_command_draws(tmp_path, capsys):
    command = next(c for c in commands(README) if "--svg docs/zero-bubble.svg" in c)
    drawn = tmp_path / "again.svg"
    assert main.main([*shlex.split(command)[1:-1], str(drawn)]) == 0
    assert drawn.read_text() == (ROOT / "docs" / "zero-bubble.svg").read_text()


def test_the_toml_in_the_readme_is_a_valid_configuration():
    shown = blocks(README, "toml")
    assert len(shown) == 1
    assert config_from(tomllib.loads(shown[0])).parallel.pipelines == 2


def test_the_job_in_the_readme_is_the_example():
    assert blocks(README, "python")[0] in (ROOT / "examples" / "tiny_gpt.py").read_text()


# --- links and names ---


def anchors(page):
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_every_relative_link_leads_somewhere(page):
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        found = (page.parent / target).resolve() if target else page
        assert found.exists(), f"{page.name} links to {link}"
        assert found.is_relative_to(ROOT), f"{page.name} links out of the repository: {link}"
        if anchor:
            assert anchor in anchors(found), f"{page.name} links to {link}"


def defined(path):
    """Names of a module's classes and functions, and of methods as ``Class.method``."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
            inside = node.body if isinstance(node, ast.ClassDef) else []
            names |= {f"{node.name}.{f.name}" for f in inside if isinstance(f, ast.FunctionDef)}
    return names


@pytest.mark.parametrize("page", PAGES, ids=by_name)
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
    named = REFERENCE.findall((ROOT / "docs" / f"journey-of-a-{journey}.md").read_text())
    assert JOURNEYS[journey] <= {path.partition("/")[0] for path, _ in named}


# --- tables ---


def rows(text, num_columns):
    """Cells of every table row of that width; a first cell in back quotes."""
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if len(row) == num_columns]


def test_the_table_of_settings_has_every_setting_with_its_default():
    config = RunConfig()
    shown = {row[0].strip("`"): row[1].strip("`") for row in rows(README, 3) if "." in row[0]}
    assert list(shown) == known_keys()
    for key, text in shown.items():
        section, name = key.split(".")
        default = getattr(getattr(config, section), name)
        read = tomllib.loads(f"value = {text}")["value"]
        assert (tuple(read) if isinstance(default, tuple) else read) == default, key


def test_the_table_of_the_summary_has_every_field():
    after = README[README.index("| Field of `summary.json`") :]
    shown = [row[0].strip("`") for row in rows(after[: after.index("\n\n")], 2)]
    assert shown == [field.name for field in fields(Summary)]


def test_the_readme_names_every_event():
    assert [e.__name__ for e in get_args(Event) if f"`{e.__name__}`" not in README] == []


def test_the_page_on_the_protocol_has_every_message_and_every_channel():
    page = (ROOT / "docs" / "protocol.md").read_text()
    shown = [row[0].strip("`") for row in rows(page, 3)]
    channels = (SRC / "transport" / "base.py").read_text()
    body = channels[channels.index("class Channel") : channels.index("class Tag")]
    expected = [message.__name__ for message in get_args(Message)]
    expected += re.findall(r"^    ([A-Z]+) = \d", body, re.MULTILINE)
    assert sorted(shown) == sorted(expected)


# --- version, tree, decisions ---


def test_the_top_of_the_changelog_is_the_version_of_the_package():
    headings = re.findall(r"^## \[(\d[^\]]*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == holdfast.__version__


def tree():
    """Paths of the annotated tree: two spaces of indentation a level, a folder ends in a slash."""
    body = next(b for b in blocks(README, "text") if b.startswith("Makefile"))
    folders: list[str] = []
    for line in body.splitlines():
        level = (len(line) - len(line.lstrip())) // 2
        name = line.split()[0]
        yield "".join(folders[:level]) + name
        folders[level:] = [name]


def test_the_tree_names_only_what_exists():
    missing = [path for path in tree() if not (ROOT / path).exists()]
    assert missing == []
    assert [path for path in tree() if (ROOT / path).is_dir() != path.endswith("/")] == []


def test_the_tree_names_every_package_and_every_module_beside_them():
    packages = [f"src/holdfast/{p.parent.name}/" for p in SRC.glob("*/__init__.py")]
    modules = [f"src/holdfast/{p.name}" for p in SRC.glob("*.py") if not p.stem.startswith("__")]
    assert sorted({*packages, *modules} - set(tree())) == []


def test_decisions_have_a_number_each_and_the_three_parts():
    pages = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    numbers = [int(page.name[:4]) for page in pages]
    assert len(set(numbers)) == len(numbers)
    for page in pages:
        text = page.read_text()
        assert text.startswith(f"# {page.name[:4]}: ")
        headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
        assert headings == ["Context", "Choice", "Price paid"], page.name


def test_no_figure_is_left_to_be_filled_in() -> None:
    assert "TODO-FIGURE" not in (ROOT / "README.md").read_text()
