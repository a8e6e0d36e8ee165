"""What contributors are promised: one version, hooks without downloads, a template that asks."""

import re
import tomllib
from pathlib import Path

import pytest

import holdfast
from holdfast.cli.main import main

ROOT = Path(__file__).parents[2]
HEADING = re.compile(r"^## \[(.+?)\](?: - (\d{4}-\d\d-\d\d))?$", re.MULTILINE)


def test_the_version_is_written_in_one_place():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in project["project"]
    where = project["tool"]["setuptools"]["dynamic"]["version"]
    assert where == {"attr": "holdfast.__version__"}


def test_the_command_says_the_version(capsys):
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["--version"])
    assert capsys.readouterr().out == f"holdfast {holdfast.__version__}\n"


def test_the_changelog_has_a_dated_section_for_each_version_and_one_for_what_is_to_come():
    (first, undated), *released = HEADING.findall((ROOT / "CHANGELOG.md").read_text())
    assert (first, undated) == ("Unreleased", "")
    assert released[0][0] == holdfast.__version__
    assert all(date for _, date in released)
    assert [date for _, date in released] == sorted((date for _, date in released), reverse=True)


def test_the_hooks_run_what_make_check_runs_and_download_nothing():
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    assert re.findall(r"repo: (.+)", hooks) == ["local"]
    entries = re.findall(r"entry: \.venv/bin/(.+)", hooks)
    recipe = re.search(r"^check:.*\n((?:\t.+\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    checks = re.findall(r"\$\(BIN\)/(.+)", recipe.group(1))
    assert [entry.removesuffix(" --force-exclude") for entry in entries] == [
        check.removesuffix(" .") for check in checks
    ]


def test_the_template_asks_for_the_proof():
    text = (ROOT / ".github" / "pull_request_template.md").read_text()
    for asked in ("Test that failed before", "SHA-256 compared", "Benchmark"):
        assert f"**{asked}:**" in text


def test_contributing_fits_on_a_page():
    lines = (ROOT / "CONTRIBUTING.md").read_text().splitlines()
    assert len(lines) <= 80
