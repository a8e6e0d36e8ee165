"""Where the micro-batches of a step come from: loaded when they are needed, or ahead of it."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from holdfast.config import DataConfig
from holdfast.data.ahead import Key, LoadingAhead
from holdfast.data.batches import Batch, Batches
from holdfast.runtime.job.job_code import JobCode
from holdfast.runtime.stage.seeding import DRAWING


class Loading(Protocol):
    @property
    def is_stream(self) -> bool: ...

    def expect(self, keys: Sequence[Key]) -> None:
        """What will be asked for next, in this order, as far as it is known."""
        ...

    def load(self, step: int, microbatch: int) -> Batch: ...

    def position(self, step: int) -> Tensor | None:
        """Of a stream, not after the start of ``step``, if it has been read so far here."""
        ...

    def go_on_from(self, position: Tensor) -> None:
        """What another one has told of the stream. Before anything after it is loaded."""
        ...

    def close(self) -> None: ...


class LoadingNow:
    """By the thread that computes."""

    def __init__(self, batches: Batches, code: JobCode) -> None:
        self._batches, self._code = batches, code

    @property
    def is_stream(self) -> bool:
        return self._batches.is_stream

    def expect(self, keys: Sequence[Key]) -> None:
        pass

    def load(self, step: int, microbatch: int) -> Batch:
        with DRAWING:
            loaded = self._batches.load(step, microbatch, self._code.pause)
        self._code.ran("Job.data or Job.collate")
        return loaded

    def position(self, step: int) -> Tensor | None:
        return self._batches.position(step)

    def go_on_from(self, position: Tensor) -> None:
        self._batches.go_on_from(position)

    def close(self) -> None:
        pass


def loading(batches: Batches, config: DataConfig, code: JobCode) -> Loading:
    if not config.workers:
        return LoadingNow(batches, code)
    return LoadingAhead(
        batches,
        processes=config.workers,
        ahead=config.ahead or 2 * config.workers,
        check=code.check,
        quiet=DRAWING,
    )
