"""What ``import holdfast`` offers, and what it costs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.cli.flags import in_flags
from holdfast.errors import Argument, ConfigError, ResumeFrom
from holdfast.observability.log import EVENTS_FILE
from holdfast.observability.summary import SUMMARY_FILE, summarize, write_summary

INIT = Path(hf.__file__)


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_it_loads_neither_torch_nor_numba_nor_most_of_itself():
    code = "import sys, holdfast as hf; dir(hf); hf.__version__, hf.errors; print(*sys.modules)"
    modules = run(code).split()
    assert not {"torch", "numba", "numpy", "rich"} & set(modules)
    assert {name for name in modules if name.startswith("holdfast")} == {
        "holdfast",
        "holdfast.errors",
    }


@pytest.mark.parametrize(
    "name", ["Config", "Fault", "events", "open_run", "train", "resume", "start", "diagnose"]
)
def test_what_needs_no_torch_loads_none(name):
    assert run(f"import sys, holdfast as hf; hf.{name}; print('torch' in sys.modules)") == "False\n"


def test_every_name_is_there_and_nothing_else():
    assert set(dir(hf)) == set(hf.__all__)
    for name in hf.__all__:
        assert getattr(hf, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = hf.trian  # type: ignore[attr-defined]


def test_type_checkers_are_told_of_every_name():
    """They read the first branch, Python the second."""
    [branch] = [node for node in ast.parse(INIT.read_text()).body if isinstance(node, ast.If)]
    told = {
        name.asname or name.name
        for node in branch.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    eager = {"CheckpointError", "ConfigError", "DataError", "HoldfastError", "JobError"}
    eager |= {"MetricError", "RunInterrupted", "errors", "__version__"}
    assert told | eager == set(hf.__all__)
    assert INIT.with_name("py.typed").exists()


def test_errors_say_what_a_call_gives_and_the_command_says_flags():
    error = ConfigError(Argument("run_dir", "runs/a b"), ": or ", ResumeFrom("runs/a b"))
    assert str(error) == "run_dir=runs/a b: or holdfast.resume('runs/a b')"
    assert in_flags(error) == "--run-dir runs/a b: or holdfast train --resume 'runs/a b'"
    accepted = ConfigError("add ", Argument("changed_job", True))
    assert (str(accepted), in_flags(accepted)) == ("add changed_job=True", "add --changed-job")


def test_a_run_whose_settings_have_other_names_now_can_be_opened(tmp_path):
    (tmp_path / EVENTS_FILE).touch()
    old = {"workers": {"silence_limit_s": 3.0, "replace": 1}, "telepathy": {"range": 9}}
    write_summary(tmp_path / SUMMARY_FILE, summarize([], config=old))
    record = hf.open_run(tmp_path)
    workers = record.config.workers
    assert (workers.heartbeat_timeout_s, workers.replace) == (3.0, 1)
    assert record.summary.config == old
