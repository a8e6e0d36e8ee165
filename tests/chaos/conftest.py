"""What the runs of the kill tests share: where they run, and the table of how they ended."""

import sys
from collections import Counter, defaultdict

import pytest

from helpers.chaos import LAYOUTS, PER_CENT, SEED, Arena
from holdfast.planner.service import warm_up


class Table:
    """Runs by layout. Points, pairs and others must all be equal; fast ones need only end well."""

    def __init__(self):
        self.counts = defaultdict(Counter, {layout: Counter() for layout in LAYOUTS})

    def add(self, kind, story):
        self.counts[story.layout.text].update({kind: 1, "hung": bool(story.stacks)})

    def well(self, story):
        self.counts[story.layout.text].update({"equal": 1, "went back": story.went_back})

    def lines(self):
        words = ["points", "pairs", "others", "equal", "fast", "went back", "hung"]
        yield f"HOLDFAST_SEED={SEED} HOLDFAST_SWEEP={PER_CENT}"
        yield "layout" + "".join(f"{word:>11}" for word in words)
        for layout, counts in self.counts.items():
            yield f"{layout:6}" + "".join(f"{counts[word]:11}" for word in words)


@pytest.fixture(scope="session", autouse=True)
def compiled_planner():
    """The first time on a machine it takes longer than a run may."""
    warm_up()


@pytest.fixture(scope="session")
def table(request):
    table = Table()
    yield table
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print("", *table.lines(), sep="\n")  # noqa: T201


@pytest.fixture(scope="module")
def arena(tmp_path_factory):
    arena = Arena(tmp_path_factory.mktemp("chaos"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", list(sys.path))  # loading a job adds its folder
        arena.executions.watch(patch)
        yield arena
