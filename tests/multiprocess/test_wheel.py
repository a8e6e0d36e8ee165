"""The package as a stranger gets it: built, installed into a fresh environment, run elsewhere."""

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

import holdfast

ROOT = Path(__file__).parents[2]
NEEDED = ("pyproject.toml", "README.md", "LICENSE", "src")
LIMIT_S = 800.0

pytestmark = [pytest.mark.wide, pytest.mark.multiprocess, pytest.mark.timeout(1200)]


def run(words, **more):
    """As a user's shell would, whatever the test run itself was started with."""
    hidden = ("PYTEST", "PYTHONPATH", "HOLDFAST")
    env = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    text = {"capture_output": True, "text": True, "timeout": LIMIT_S}
    return subprocess.run(list(map(str, words)), env=env, **text, **more)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy: building leaves folders behind."""
    copy = tmp_path_factory.mktemp("source")
    for name in NEEDED:
        if (ROOT / name).is_dir():
            unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(ROOT / name, copy / name, ignore=unwanted)
        else:
            shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory):
    """By ``python -m build``, from the sources that it packs first; without a network."""
    for needed in ("build", "setuptools"):
        if find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed here: it is part of the extra 'dev'")
    folder = tmp_path_factory.mktemp("dist")
    done = run([sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, source])
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(folder.glob("*.tar.gz"))) == 1
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture
def fresh(tmp_path):
    """An environment that sees the packages of this one, but not this Holdfast."""
    venv.create(tmp_path / "venv", symlinks=True)
    [packages] = (tmp_path / "venv").glob("lib/python*/site-packages")
    # Folders that a .pth names have no .pth of their own read: the editable install is not seen.
    shared = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "shared.pth").write_text("\n".join(shared) + "\n")
    return tmp_path / "venv" / "bin" / "python"


def install(python, what, *more):
    words = [python, "-m", "pip", "install", "--no-deps", "--no-index", "--ignore-installed"]
    done = run([*words, *more, what])
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_wheel_has_the_job_of_the_demo_and_says_that_it_is_typed(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"holdfast/models/tiny_gpt.py", "holdfast/py.typed"} <= names
    assert wheel.name.startswith(f"holdfast-{holdfast.__version__}-")
    assert not [name for name in names if name.startswith(("tests", "examples", "bench"))]


def test_the_demo_of_an_installed_wheel_runs_in_an_empty_directory(wheel, fresh, tmp_path):
    install(fresh, wheel)
    empty = tmp_path / "empty"
    empty.mkdir()
    where = run([fresh, "-c", "import holdfast; print(holdfast.__file__)"], cwd=empty)
    assert Path(where.stdout.strip()).is_relative_to(fresh.parents[1]), where
    command = fresh.parent / "holdfast"
    said = run([command, "--version"], cwd=empty)
    assert said.stdout == f"holdfast {holdfast.__version__}\n"
    done = run([command, "demo"], cwd=empty)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The parameters are the same, bit for bit." in done.stdout
    assert "3 of 3 faults fired" in done.stdout
    made = {path.name for path in (empty / "runs" / "demo").iterdir()}
    assert made == {"tiny_gpt.py", "undisturbed", "disturbed", "report.md"}


def test_pip_installs_it_from_the_sources(source, fresh, tmp_path):
    if find_spec("setuptools") is None:
        pytest.skip("setuptools is not installed here: it is part of the extra 'dev'")
    install(fresh, source, "--no-build-isolation")
    said = run([fresh.parent / "holdfast", "--version"], cwd=tmp_path)
    assert said.stdout == f"holdfast {holdfast.__version__}\n"
