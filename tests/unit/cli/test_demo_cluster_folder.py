"""The demo of several machines removes nothing that is not its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# Its training is left out.
PROGRAM = """
import sys
from importlib import import_module
sys.path.insert(0, sys.argv.pop(1))
demo = import_module("demo_cluster")
def train(folder, layout):
    raise demo.DemoFailed("no training")
demo.undisturbed = train
sys.exit(demo.main())
"""


@pytest.fixture
def demo(tmp_path):
    """Without the tests on the path."""

    def run():
        words = [sys.executable, "-c", PROGRAM, str(ROOT / "tools"), "--folder", str(tmp_path)]
        env = os.environ | {"PYTHONPATH": str(ROOT / "src")}
        return subprocess.run(words, env=env, capture_output=True, text=True, timeout=100)

    return run


def test_a_folder_with_other_files_is_refused_in_one_line(demo, tmp_path):
    (tmp_path / "thesis.txt").write_text("all of it")
    done = demo()
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"--folder {tmp_path}: is there already" in done.stderr
    assert (tmp_path / "thesis.txt").read_text() == "all of it"


def test_an_empty_one_and_that_of_an_earlier_demo_are_used(demo, tmp_path):
    assert demo().returncode == 1
    (tmp_path / "of-an-earlier-demo").touch()
    done = demo()
    assert (done.returncode, done.stderr) == (1, "")
    assert [path.name for path in tmp_path.iterdir()] == [".demo-cluster"]
