"""Who is where: the name of a worker. Pure vocabulary."""

from typing import NamedTuple

from holdfast.names import WORKER


class WorkerId(NamedTuple):
    """One process that holds one stage. Prints and parses as ``1.0``: pipeline 1, stage 0."""

    pipeline: int
    stage: int

    def __str__(self) -> str:
        return f"{self.pipeline}.{self.stage}"


def parse_worker(text: str) -> WorkerId:
    if not WORKER.fits(text):
        raise ValueError(f"not a worker: {text!r}; expected {WORKER.what}")
    pipeline, stage = text.split(".")
    return WorkerId(int(pipeline), int(stage))
