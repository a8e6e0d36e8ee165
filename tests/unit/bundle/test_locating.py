"""Where a machine finds the job: in its bundle, at the run's path, or installed."""

import sys
from pathlib import Path

import pytest

from holdfast.api.job_source import job_source
from holdfast.bundle.locating import job_here
from holdfast.bundle.packing import pack
from holdfast.bundle.serving import keep
from holdfast.errors import ConfigError

TEXT = "def job(): ...\n"
SHA = "5a" * 32


def write(path: Path, text: str = TEXT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_bundle_goes_before_all_else(tmp_path: Path) -> None:
    source = job_source(write(tmp_path / "job.py"), in_threads=False)
    assert job_here(source.reference, source.sha256, "m", Path("/c")) == "/c/job.py"
    assert job_here(f"{source.reference}:make", SHA, "m", Path("/c")) == "/c/job.py:make"
    assert job_here("/proj:pkg.jobs:make", SHA, "m", Path("/c")) == "/c:pkg.jobs:make"


def test_a_bundle_of_which_all_is_at_the_path_of_the_run_is_used_there(tmp_path: Path) -> None:
    write(tmp_path / "run" / "beside.py")
    file = write(tmp_path / "run" / "job.py", "import beside\n")
    source = job_source(file, in_threads=False)
    bundle = pack(source)
    assert bundle is not None
    root = keep(bundle, tmp_path / "cache").root
    assert job_here(source.reference, source.sha256, "m", root) == str(file)
    write(tmp_path / "run" / "beside.py", "x = 1\n")
    assert job_here(source.reference, source.sha256, "m", root) == str(root / "job.py")


def test_the_same_file_at_the_same_path_is_used(tmp_path: Path) -> None:
    source = job_source(write(tmp_path / "job.py"), in_threads=False)
    assert job_here(source.reference, source.sha256, "node-1") == source.reference
    write(tmp_path / "job.py", "x = 1\n")
    with pytest.raises(ConfigError, match=r"machine node-1: job file .*put the same file there"):
        job_here(source.reference, source.sha256, "node-1")


@pytest.mark.parametrize("module", ["lone_b", "pack_b", "pack_b.sub.gpt", "space_b.gpt"])
def test_an_installed_module_is_found_where_it_is_here_and_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    here = tmp_path / "here" / "site-packages"
    for name in (
        "lone_b",
        "pack_b/__init__",
        "pack_b/sub/__init__",
        "pack_b/sub/gpt",
        "space_b/gpt",
    ):
        write(here / f"{name}.py")
    monkeypatch.syspath_prepend(here)
    file = here.joinpath(*module.split("."))
    text = str(file / "__init__.py" if file.is_dir() else f"{file}.py")
    sha256 = job_source(Path(text), in_threads=False).sha256
    there = f"/there/site-packages:{module}:job"
    assert job_here(there, sha256, "node-1") == f"{here}:{module}:job"
    assert module.partition(".")[0] not in sys.modules
    says = f"machine node-1: job {module}:job: .* differs .*install the same version"
    with pytest.raises(ConfigError, match=says):
        job_here(there, SHA, "node-1")


@pytest.mark.parametrize("module", ["no_such_module_b", "json.no_such", "lone.x", "sys"])
def test_a_module_that_is_not_installed_is_told_with_the_machine(module: str) -> None:
    says = f"machine node-1: job {module}:job: no such module is installed there; install"
    with pytest.raises(ConfigError, match=says):
        job_here(f"/there/site-packages:{module}:job", SHA, "node-1")
