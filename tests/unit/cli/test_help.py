"""The help of every command: examples that can be typed, exit codes, lines that fit."""

import re
import shlex

import pytest

from holdfast.cli import (
    demo,
    diagnose,
    export,
    main,
    plan,
    recovery_plan,
    train,
    watch,
    worker,
)
from holdfast.cli.launching import k8s, preflight, slurm
from holdfast.cli.looking import events, trace
from holdfast.cli.simulating import simulate
from holdfast.errors import ConfigError

COMMANDS = {
    "demo": demo,
    "train": train,
    "worker": worker,
    "plan": plan,
    "recovery-plan": recovery_plan,
    "trace": trace,
    "diagnose": diagnose,
    "events": events,
    "export": export,
    "watch": watch,
    "preflight": preflight,
    "slurm": slurm,
    "k8s": k8s,
    "simulate": simulate,
}


def shown(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        main.main([*words, "--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


def section(text, name):
    return text.partition(f"\n{name}:\n")[2].partition("\n\n")[0]


def examples(text):
    whole = section(text, "examples").replace("\\\n", " ")
    return [" ".join(line.split()) for line in whole.splitlines()]


@pytest.mark.parametrize("words", [[], *([name] for name in COMMANDS)], ids=str)
def test_no_line_of_the_help_is_wider_than_100_columns(capsys, monkeypatch, words):
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, shown(capsys, *words).splitlines())) <= 100


@pytest.mark.parametrize("words", [[], *([name] for name in COMMANDS)], ids=str)
def test_the_examples_of_the_help_parse(capsys, monkeypatch, words):
    parsed = []
    for module in COMMANDS.values():
        monkeypatch.setattr(module, "run", lambda args: parsed.append(args) or 0)
    typed = examples(shown(capsys, *words))
    assert typed
    for example in typed:
        assert example.startswith(" ".join(["holdfast", *words])), example
        assert main.main(shlex.split(example)[1:]) == 0, example
    assert len(parsed) == len(typed)


@pytest.mark.parametrize("words", [[], *([name] for name in COMMANDS)], ids=str)
def test_the_help_names_the_exit_codes(capsys, words):
    codes = section(shown(capsys, *words), "exit codes")
    first = ["COMMAND's own"] if words == ["watch"] else ["0"]
    found = re.findall(r"^  (\S+(?: \S+)*)  +\S", codes, re.MULTILINE)
    assert found[:1] == first
    assert "2" in found


@pytest.mark.parametrize(("words", "code"), [(["train"], 2), (["fly"], 2), (["trace", "none"], 2)])
def test_bad_input_ends_with_the_exit_code_that_the_help_names(capsys, words, code):
    assert main.main(words) == code
    assert capsys.readouterr().err.count("\n") == 1


def test_a_long_error_is_one_line_in_a_log_and_folded_on_a_terminal(capsys, monkeypatch, tmp_path):
    words = ["trace", str(tmp_path / "none"), "--out", "x"]
    monkeypatch.setattr(trace, "run", fails)
    assert main.main(words) == 2
    whole = capsys.readouterr().err
    assert whole.count("\n") == 1
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert main.main(words) == 2
    lines = capsys.readouterr().err.splitlines()
    assert max(map(len, lines)) <= 100
    assert " ".join(line.strip() for line in lines) == whole.strip()


def fails(args):
    raise ConfigError("words of an error " * 20)


def test_the_help_of_train_and_watch_has_verbose(capsys):
    for name in ("train", "watch"):
        assert "-v, --verbose" in shown(capsys, name)
