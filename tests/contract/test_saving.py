"""A part of a checkpoint that cannot be written ends the run, whatever kind of error it was."""

import pytest

from holdfast.errors import HoldfastError
from holdfast.runtime import saving
from holdfast.runtime.saving import StageSaver


class NotAnException(BaseException):
    """As torch's own error of a checkpoint is."""


@pytest.mark.parametrize("kind", [OSError, NotAnException])
def test_a_write_that_fails_is_told_to_the_training_thread(tmp_path, monkeypatch, kind) -> None:
    def write_part(*_: object) -> None:
        raise kind("no room")

    monkeypatch.setattr(saving, "write_part", write_part)
    saver = StageSaver(tmp_path, 0, limit_s=20.0)
    saver.write(3, {}, lambda *_: None)
    with pytest.raises(HoldfastError, match=r"step 3 in .* cannot be written: no room"):
        saver.wait()
