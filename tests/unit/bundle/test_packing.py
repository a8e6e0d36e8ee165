"""Which files of a job are sent, and what is said of those that cannot be."""

import errno
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.api.job_source import job_source
from holdfast.bundle.packing import JobBundle, pack
from holdfast.errors import ConfigError
from holdfast.job_reference import JobSource


def tree(root: Path, **files: str) -> Path:
    """``a__b`` is ``a/b.py``; what has a dot is a path."""
    for name, text in files.items():
        path = root / (name if "." in name else f"{name.replace('__', '/')}.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def packed(root: Path, job: str = "job.py") -> JobBundle:
    made = pack(job_source(str(root / job) if job.endswith(".py") else job, in_threads=False))
    assert made is not None
    return made


def paths(bundle: JobBundle) -> list[str]:
    return [file.path for file in bundle.manifest.files]


def test_a_job_alone_is_one_file_with_its_sha256(tmp_path: Path) -> None:
    bundle = packed(tree(tmp_path, job="import torch, os\n", other=""))
    [file] = bundle.manifest.files
    source = job_source(tmp_path / "job.py", in_threads=False)
    assert (file.path, file.sha256, file.size) == ("job.py", source.sha256, 17)


def test_modules_beside_and_below_it_are_sent_also_those_imported_in_functions(tmp_path) -> None:
    root = tree(
        tmp_path,
        job="import beside\ndef f():\n    from below.deep import thing\n",
        beside="try:\n    import further\nexcept ImportError: pass\n",
        further="import importlib\nx = importlib.import_module('by_name')\n",
        by_name="",
        below__deep="",
        below__unused="",
        unused="",
    )
    assert paths(packed(root)) == [
        "below/deep.py",
        "beside.py",
        "by_name.py",
        "further.py",
        "job.py",
    ]


def test_a_package_is_sent_whole_but_not_what_is_hidden_or_compiled(tmp_path: Path) -> None:
    root = tree(tmp_path, job="import pkg.a\n", pkg__a="", pkg__sub__b="from ..c import d\n")
    more = ["pkg/__init__.py", "pkg/words.json", "pkg/c.py", "pkg/.git/x.py"]
    for name in [*more, "pkg/__pycache__/a.pyc", "pkg/x.pyc"]:
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).touch()
    found = ["job.py", "pkg/__init__.py", "pkg/a.py", "pkg/c.py", "pkg/sub/b.py", "pkg/words.json"]
    assert paths(packed(root)) == found


def test_relative_imports_of_a_folder_without_init_are_followed(tmp_path: Path) -> None:
    root = tree(tmp_path, job="import ns.a\n", ns__a="from .b import x\nfrom . import c\n")
    tree(root, ns__b="from ...far import away\n", ns__c="", ns__d="")
    assert paths(packed(root)) == ["job.py", "ns/a.py", "ns/b.py", "ns/c.py"]


def test_a_folder_with_the_name_of_an_installed_package_is_not_it(tmp_path: Path) -> None:
    root = tree(tmp_path, job="import hypothesis.strategies\n", hypothesis__strategies="")
    assert paths(packed(root)) == ["job.py"]


def test_what_lies_in_another_folder_of_the_path_below_the_job_is_sent_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree(
        tmp_path, job="import srcpkg_of_bundle\n", **{"src/srcpkg_of_bundle/__init__.py": ""}
    )
    monkeypatch.syspath_prepend(root / "src")
    bundle = packed(root)
    assert paths(bundle) == ["job.py", "src/srcpkg_of_bundle/__init__.py"]
    assert bundle.manifest.folders == ("src",)


def test_a_module_above_the_job_is_not_sent(tmp_path: Path, monkeypatch) -> None:
    root = tree(tmp_path, above_of_bundle="", low__job="import above_of_bundle\n")
    monkeypatch.syspath_prepend(root)
    assert paths(packed(root, "low/job.py")) == ["job.py"]


def test_a_module_of_a_package_takes_its_package_along(tmp_path: Path, monkeypatch) -> None:
    root = tree(
        tmp_path, proj_b__jobs__gpt="from ..model import x\n", proj_b__model="import side_b\n"
    )
    tree(root, side_b="", **{"proj_b/__init__.py": "", "proj_b/jobs/__init__.py": ""})
    monkeypatch.syspath_prepend(root)
    bundle = packed(root, "proj_b.jobs.gpt:job")
    assert paths(bundle)[1:] == [
        "proj_b/jobs/__init__.py",
        "proj_b/jobs/gpt.py",
        "proj_b/model.py",
        "side_b.py",
    ]
    for name in [name for name in sys.modules if name.startswith("proj_b")]:
        monkeypatch.delitem(sys.modules, name)


def test_an_installed_module_needs_no_bundle() -> None:
    assert pack(job_source("holdfast.models.tiny_gpt:job", in_threads=False)) is None


def test_a_function_of_this_process_has_none() -> None:
    assert pack(job_source(lambda: None, in_threads=True)) is None  # type: ignore[arg-type,return-value]


# --- data files ---


def test_files_that_a_job_declares_are_sent(tmp_path: Path) -> None:
    names = '["data/a.txt", "more", "x*.json", "deep/**/*.bin"]'
    root = tree(tmp_path, job=f"HOLDFAST_FILES = {names}\n", **{"data/a.txt": "", "data/b.txt": ""})
    tree(root, **{"more/c.txt": "", "more/d/e.txt": "", "x1.json": "", "deep/er/y.bin": ""})
    found = ["data/a.txt", "deep/er/y.bin", "job.py", "more/c.txt", "more/d/e.txt", "x1.json"]
    assert paths(packed(root)) == found


def test_a_file_that_is_only_named_is_not_sent_but_known(tmp_path: Path) -> None:
    job = (
        'HOLDFAST_FILES = ["a.txt"]\nTEXTS = [open("a.txt"), open("data/b.txt"), "no such", "."]\n'
    )
    root = tree(tmp_path, job=job, **{"a.txt": "", "data/b.txt": ""})
    bundle = packed(root)
    assert paths(bundle) == ["a.txt", "job.py"]
    assert bundle.unsent == ("data/b.txt",)


WRONG = {
    'HOLDFAST_FILES = ["no.txt"]': r"job.py:1: HOLDFAST_FILES: 'no.txt': no such file",
    'HOLDFAST_FILES = ["no*"]': r"'no\*': no such file",
    '\nHOLDFAST_FILES = ["a.txt",\n "../a.txt"]': r"job.py:3: .*'../a.txt' cannot be sent",
    'HOLDFAST_FILES = ["/etc/passwd"]': "cannot be sent .*a relative path without",
    "HOLDFAST_FILES = list('ab')": "read without running it; write it out",
    "HOLDFAST_FILES: list[str] = [NAME]": "read without running it; write it out",
    "HOLDFAST_FILES = [": "job.py:1: SyntaxError",
}


@pytest.mark.parametrize("source", WRONG, ids=range(len(WRONG)))
def test_what_cannot_be_declared_is_refused_with_its_line(tmp_path: Path, source: str) -> None:
    tree(tmp_path, job=f"{source}\n", **{"a.txt": ""})
    with pytest.raises(ConfigError, match=WRONG[source]) as refused:
        packed(tmp_path)
    assert "\n" not in str(refused.value)


# --- what is refused ---


def test_too_much_is_refused_by_the_name_of_the_largest_file(tmp_path: Path) -> None:
    root = tree(tmp_path, job='HOLDFAST_FILES = ["data"]\n')
    (root / "data").mkdir()
    (root / "data" / "large.bin").write_bytes(bytes(3 << 20))
    (root / "data" / "z.bin").write_bytes(bytes(1 << 20))
    source = job_source(root / "job.py", in_threads=False)
    with pytest.raises(ConfigError) as refused:
        pack(source, limit_bytes=2 << 20)
    line = str(refused.value)
    assert line.startswith(
        f"{root}/data/large.bin: 3.0 MiB of the job's 4.0 MiB, of which at most 2"
    )
    assert "\n" not in line


@pytest.mark.parametrize("link", ["pkg/x.py", "data/x.txt", "data/folder", "beside.py"])
def test_links_are_refused_by_name(tmp_path: Path, link: str) -> None:
    job = 'HOLDFAST_FILES = ["data"]\nimport pkg, beside\n'
    root = tree(tmp_path, job=job, beside="", **{"pkg/__init__.py": "", "data/a.txt": ""})
    (root / link).unlink(missing_ok=True)
    (root / link).symlink_to("/usr" if link.endswith("folder") else "/etc/hostname")
    with pytest.raises(ConfigError, match=f"{link}: is a symbolic link"):
        packed(root)


def test_a_pipe_in_a_folder_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    root = tree(tmp_path, job='HOLDFAST_FILES = ["data"]\n', **{"data/a.txt": ""})
    os.mkfifo(root / "data" / "pipe")
    with pytest.raises(ConfigError, match="data/pipe: is no plain file"):
        packed(root)


def test_a_name_that_cannot_be_printed_is_refused(tmp_path: Path) -> None:
    root = tree(tmp_path, job='HOLDFAST_FILES = ["data"]\n', **{"data/a\nb.txt": ""})
    with pytest.raises(ConfigError, match=r"data/a\\nb.txt'.*rename it"):
        packed(root)


def test_a_job_that_was_changed_since_the_run_began_is_refused(tmp_path: Path) -> None:
    source = job_source(tree(tmp_path, job="") / "job.py", in_threads=False)
    tree(tmp_path, job="x = 1\n")
    with pytest.raises(ConfigError, match="was changed since the run began"):
        pack(source)


def test_the_name_of_a_bundle_depends_on_content_alone(tmp_path: Path) -> None:
    names = set()
    for place in ("one", "two"):
        names.add(packed(tree(tmp_path / place, job="import b\n", b="")).sha256)
        os.utime(tmp_path / place / "b.py", (1, 1))
    assert len(names) == 1
    assert packed(tree(tmp_path / "two", b="x = 1\n")).sha256 not in names


def test_a_source_that_no_file_belongs_to_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        pack(JobSource(str(tmp_path / "no.py"), "", "", ""))


def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path, monkeypatch) -> None:
    root = tree(tmp_path, job='HOLDFAST_FILES = ["a.txt"]\n', **{"a.txt": ""})
    usual = Path.open

    def refuse(path: Path, *how: Any, **more: Any) -> Any:
        if path.name == "a.txt":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return usual(path, *how, **more)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ConfigError, match=r"/a.txt: cannot be read \(Permission denied\)"):
        packed(root)
