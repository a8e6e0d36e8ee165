"""The pages: commands parse, plans and help texts are what is printed, links lead somewhere.

HOLDFAST_REWRITE=1 writes plans and help texts anew.
"""

import argparse
import re
import shlex
import tomllib

import pytest

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
    transcripts,
)
from holdfast.cli import main
from holdfast.config import config_from, parse_assignment, set_value

USED = [README, *DOCS.glob("[iqt]*.md"), *DOCS.glob("guides/*.md"), *DOCS.glob("reference/*.md")]
SHOWN = [(page, command) for page in USED for command in commands(page)]
HELP_WIDTH = 100
INTERNAL = {"agent"}


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


def help_of(words, capsys):
    with pytest.raises(SystemExit, match="0"):
        main.main([*words, "--help"])
    return capsys.readouterr().out


def test_the_reference_shows_the_help_of_every_command(capsys):
    page = DOCS / "reference" / "cli.md"
    listed = re.findall(r"^    ([a-z-]+)(?: |$)", help_of([], capsys), re.MULTILINE)
    shown = {block.command[1] for block in transcripts(page)}
    missing = [name for name in listed if name not in shown and name not in INTERNAL]
    if REWRITES:
        for name in missing:
            block = f"```console\n$ holdfast {name} --help\n{help_of([name], capsys)}```\n"
            page.write_text(f"{page.read_text()}\n## holdfast {name}\n\n{block}")
        return
    assert missing == []


def names_a_command_only(command):
    return len(shlex.split(command)) == 2


def given_settings(args):
    values = {}
    for section, flags in {
        "parallel": ("pipelines", "stages", "microbatches"),
        "train": ("steps", "seed"),
    }.items():
        given = {flag: getattr(args, flag) for flag in flags if getattr(args, flag) is not None}
        values[section] = given
    for text in args.set:
        set_value(values, *parse_assignment(text))
    return values


@pytest.mark.parametrize(("page", "command"), SHOWN, ids=lambda value: str(value)[-50:])
def test_a_command_that_is_shown_parses(page, command, parsed):
    if names_a_command_only(command) or "--help" in command or "COMMAND" in command:
        return
    args = parsed(command)
    if command.split()[1] == "train":
        shown_there = {block.title for block in blocks(page)}
        known = args.job is None or args.job in shown_there or (ROOT / args.job).is_file()
        assert args.resume if args.job is None else known
        config_from(given_settings(args))


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
        printed = help_of(block.command[1:-1], capsys)
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


# --- links ---


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_relative_link_leads_somewhere(page):
    for target, anchor in links(page):
        assert target.exists(), f"{page.name} links to {target}"
        inside = DOCS if page.is_relative_to(DOCS) else ROOT  # the site has only what is in docs
        assert target.is_relative_to(inside), f"{page.name} links out of {inside.name}: {target}"
        if anchor:
            assert anchor in anchors(target), f"{page.name} links to {target.name}#{anchor}"
