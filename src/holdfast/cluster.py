"""Who is where: the name of a worker. Pure vocabulary."""

import re
from functools import lru_cache
from typing import NamedTuple


class WorkerId(NamedTuple):
    """One process that holds one stage. Prints and parses as ``1.0``: pipeline 1, stage 0."""

    pipeline: int
    stage: int

    def __str__(self) -> str:
        return f"{self.pipeline}.{self.stage}"


@lru_cache(maxsize=1 << 16)
def parse_worker(text: str) -> WorkerId:
    found = re.fullmatch(r"(\d+)\.(\d+)", text)
    if found is None:
        raise ValueError(f"not a worker: {text!r}; expected pipeline.stage, e.g. '1.0'")
    return WorkerId(int(found[1]), int(found[2]))
