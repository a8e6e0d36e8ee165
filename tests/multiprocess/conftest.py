"""Runs that several tests compare with, each made once; threads are the quick way."""

import sys

import pytest

from helpers import runs


@pytest.fixture(autouse=True)
def _an_import_path_of_its_own(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))  # loading a job adds its folder


@pytest.fixture(scope="session")
def reference(tmp_path_factory):
    """The tiny GPT on one worker: what every other layout has to reproduce."""
    run_dir = tmp_path_factory.mktemp("reference") / "run"
    return runs.finished(runs.threads(runs.TINY_GPT, run_dir))


@pytest.fixture(scope="session")
def two_by_two(tmp_path_factory):
    """The same on 2 x 2 real processes, with checkpoints after 5, 10, 15 and 20 steps."""
    run_dir = tmp_path_factory.mktemp("two_by_two") / "run"
    checkpoints = runs.settings("checkpoint.every_steps=5", "checkpoint.keep=4")
    return runs.finished(runs.processes(runs.TINY_GPT, run_dir, *runs.layout("2x2"), *checkpoints))
