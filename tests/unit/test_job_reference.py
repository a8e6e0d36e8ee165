"""Where a job comes from: what users give, what workers are told, what cannot be told."""

import sys

import pytest

from helpers import api_jobs
from holdfast.api.job_source import job_source
from holdfast.errors import ConfigError
from holdfast.job_reference import Reference, forget_here, found_here


@pytest.mark.parametrize(
    ("text", "path", "function", "package"),
    [
        ("/a/job.py", "/a/job.py", "job", ""),
        ("/a/job.py:make", "/a/job.py", "make", ""),
        ("/a/job.py:Jobs.make", "/a/job.py", "Jobs.make", ""),
        ("/a:b/job.py", "/a:b/job.py", "job", ""),
        ("/a:b/job.py:make", "/a:b/job.py", "make", ""),
        ("/root:package.job:make", "/root/package/job.py", "make", "package"),
        ("/root:job:make", "/root/job.py", "make", ""),
        ("/a/job", "/a/job", "job", ""),
    ],
)
def test_a_reference_reads_and_prints_as_one_line(text, path, function, package):
    found = Reference.parse(text)
    assert (str(found.path), found.function, found.package) == (path, function, package)
    assert str(found) == text


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "jobs_of_a_test"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "one.py").write_text("from . import other\n\ndef make():\n    return other.made\n")
    (folder / "other.py").write_text("made = 5\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_module_is_named_by_the_folder_that_imports_begin_at(package):
    source = job_source("jobs_of_a_test.one:make", in_threads=False)
    assert source.reference == f"{package}:jobs_of_a_test.one:make"
    assert job_source(source.origin, in_threads=False) == source  # as a resume finds it
    assert "jobs_of_a_test.one" not in sys.modules  # only workers run it


def test_a_function_of_a_module_is_named_like_the_module():
    source = job_source(api_jobs.small, in_threads=False)
    assert source == job_source("helpers.api_jobs:small", in_threads=False)


def test_in_threads_a_function_of_any_kind_is_called_where_it_is():
    made = []
    source = job_source(lambda: made.append(1), in_threads=True)
    make = found_here(source.reference)
    make()
    assert made == [1]
    assert source.origin == ""
    forget_here(source.reference)
    assert found_here(source.reference) is None


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (lambda: None, "cannot load it; write it to a file"),
        ("no_such_module:make", "no such module"),
        ("no_such.module:make", "No module named 'no_such'"),
        ("missing.py", "missing.py: no such job file"),
        ("missing.py:make", "missing.py: no such job file"),
    ],
)
def test_what_no_worker_could_load_is_refused_in_one_line(job, words):
    with pytest.raises(ConfigError) as why:
        job_source(job, in_threads=False)
    assert words in str(why.value)
    assert "\n" not in str(why.value)
