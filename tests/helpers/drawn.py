"""Of the long tests with real processes ``make test-all`` runs some, drawn from the seed.

Each tree of files has a seed of its own in CI, so that all of them run within a few trees. All of
them at once: ``make test-everything``.
"""

import os
import random

import pytest

from helpers.seed import SEED
from helpers.tally import WIDE, folder_of, kind_of

ASKED = "HOLDFAST_DRAW"  # set by make test-all
SHARE = 0.6
FOLDERS = ("multiprocess", "bench")


def is_drawn(name: str, seed: str = SEED) -> bool:
    return random.Random(f"{seed} {name}").random() < SHARE


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    if ASKED not in os.environ:
        return
    left_out = {item for item in items if _may_wait(item) and not is_drawn(item.nodeid)}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def _may_wait(item: pytest.Item) -> bool:
    return kind_of(item) == WIDE and folder_of(item.path) in FOLDERS
