"""Runs that several tests compare with, each made once; threads are the quick way."""

import fcntl
import os
import sys

import pytest

from helpers import runs


@pytest.fixture(autouse=True)
def _an_import_path_of_its_own(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))  # loading a job adds its folder


@pytest.fixture(scope="session")
def once(tmp_path_factory):
    """(name, make) -> a finished run, made by the test process that needs it first."""
    basetemp = tmp_path_factory.getbasetemp()
    folder = basetemp.parent if "PYTEST_XDIST_WORKER" in os.environ else basetemp

    def finished_run(name, make):
        run_dir = folder / name
        with open(folder / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not run_dir.exists():
                return runs.finished(make(run_dir))
        return runs.finished(runs.Outcome(run_dir, 0, "", ""))

    return finished_run


@pytest.fixture(scope="session")
def reference(once):
    """The tiny GPT on one worker: what every other layout has to reproduce."""
    return once("reference", lambda run_dir: runs.threads(runs.TINY_GPT, run_dir))


@pytest.fixture(scope="session")
def two_by_two(once):
    """The same on 2 x 2 real processes, with checkpoints after 5, 10, 15 and 20 steps."""
    words = runs.layout("2x2") + runs.settings("checkpoint.every_steps=5", "checkpoint.keep=4")
    return once("two_by_two", lambda run_dir: runs.processes(runs.TINY_GPT, run_dir, *words))
