"""What the runs of the kill tests share: where they run, and the table of how they ended."""

import sys

import pytest

from helpers.sweeps.chaos import LAYOUTS, Arena
from holdfast.planner.warm_up import warm_up

WORDS = ("points", "pairs", "others", "equal", "fast", "went back", "hung")


class Table:
    """Runs by layout. Points, pairs and others must all be equal; fast ones need only end well."""

    def __init__(self, counts):
        self._counts = counts
        for layout in LAYOUTS:
            counts[layout].update(dict.fromkeys(WORDS, 0))

    def add(self, kind, story):
        self._counts[story.layout.text].update({kind: 1, "hung": bool(story.stacks)})

    def well(self, story):
        self._counts[story.layout.text].update({"equal": 1, "went back": story.went_back})


@pytest.fixture(scope="session", autouse=True)
def compiled_planner():
    """The first time on a machine it takes longer than a run may."""
    warm_up()


@pytest.fixture(scope="session")
def table(tally):
    """Shown at the end of the test run."""
    return Table(tally.counts)


@pytest.fixture(scope="module")
def arena(tmp_path_factory):
    arena = Arena(tmp_path_factory.mktemp("chaos"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", list(sys.path))  # loading a job adds its folder
        arena.executions.watch(patch)
        yield arena
