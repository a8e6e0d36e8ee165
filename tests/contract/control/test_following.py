"""What is copied while one stands by: events and checkpoints, each as soon as it can be had."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from helpers.file_door import GENERATION, SECRET, Door, file_door
from helpers.left_behind import JOB_SHA256, RUN_ID, a_snapshot
from helpers.live import wait_until
from holdfast.api.following import Following
from holdfast.auth.ticket import Ticket
from holdfast.control.io.succession import far_copies
from holdfast.control.io.succession.copies import EventCopies
from holdfast.control.io.succession.run_journal import LeftBehind, RunFacts
from holdfast.errors import ProtocolError
from holdfast.observability.events import CheckpointSaved, Event, StepFinished
from holdfast.storage.contents import Part
from holdfast.storage.copied_states import copies_of
from holdfast.storage.local_store import LocalStore
from holdfast.storage.manifest import checkpoints, file_digest, has_checkpoint
from holdfast.storage.run_shelf import RunShelf

LIMIT_S = 60.0


class Leader:
    """A coordinator, as far as files go."""

    def __init__(self, folder: Path) -> None:
        self.events: list[Event] = []
        self._shelf = RunShelf(folder, "")
        self._folder = folder
        self.num_asked = 0  # for files
        self.refuses = False  # these questions
        self.goes_on = threading.Event()
        self.goes_on.set()

    def answer(self, ask, link):
        EventCopies(self.events, self._files).answer(ask, link)

    def _files(self, ask, link):
        self.num_asked += 1
        if self.refuses:
            raise ProtocolError("not now")
        self.goes_on.wait(LIMIT_S)
        self._shelf.answer(ask, link)

    def save(self, step: int) -> None:
        folder = self._folder / f"checkpoints/step-{step:08d}.partial/stage-0"
        folder.mkdir(parents=True)
        (folder / "a.safetensors").write_bytes(b"x")
        files = {"a.safetensors": file_digest(folder / "a.safetensors")}
        parts = [Part("stage-0", (0,), files, {}, {"a.safetensors": 1})]
        LocalStore(self._folder).seal(step, parts, seed=0, microbatches=1)
        self.events.append(CheckpointSaved(at_s=1.0, step=step, path="", took_s=0.1))

    def finish(self, step: int) -> None:
        self.events.append(
            StepFinished(at_s=1.0, step=step, loss=0.5, gradient_norm=1.0, tokens=2, took_s=0.1)
        )


@contextmanager
def followed(
    door: Door, run_dir: Path, before: Following | None = None, bundle: str = ""
) -> Iterator[Following]:
    facts = RunFacts(GENERATION, {}, "/job.py", JOB_SHA256, "job.py", [], bundle)
    left = LeftBehind(facts, a_snapshot(f"127.0.0.1:{door.port}"))
    ticket = Ticket("127.0.0.1", door.port, SECRET, "")
    following = Following(left, ticket, run_dir, far_checkpoints=True, before=before)
    following.start()
    try:
        yield following
    finally:
        following.stop()
        following.wait(LIMIT_S)


def test_a_checkpoint_that_could_not_be_had_is_asked_for_again(tmp_path):
    leader = Leader(tmp_path / "theirs")
    leader.refuses = True
    leader.save(4)
    with file_door(leader.answer) as door, followed(door, tmp_path / "ours") as following:
        wait_until(lambda: "not now" in following.trouble, "the refusal", LIMIT_S)
        leader.refuses = False
        copies = copies_of(tmp_path / "ours", RUN_ID)
        wait_until(lambda: has_checkpoint(copies), "the checkpoint", LIMIT_S)
        wait_until(lambda: not following.trouble, "no more trouble", LIMIT_S)


def test_events_are_copied_while_a_checkpoint_is_on_its_way_which_is_broken_off_at_the_end(
    tmp_path,
):
    leader = Leader(tmp_path / "theirs")
    leader.goes_on.clear()
    leader.save(4)
    with file_door(leader.answer) as door:
        with followed(door, tmp_path / "ours") as following:
            wait_until(lambda: leader.num_asked, "the checkpoint to be asked for", LIMIT_S)
            leader.finish(7)
            wait_until(lambda: following.step == 8, "the event", LIMIT_S)
            following.stop()
            following.wait(LIMIT_S / 2)
            assert [each.name for each in threading.enumerate() if each.name == "copy"] == []
        leader.goes_on.set()
    assert not has_checkpoint(copies_of(tmp_path / "ours", RUN_ID))


def test_events_of_who_led_before_stay_until_its_successor_tells_some(tmp_path):
    first, second = Leader(tmp_path / "first"), Leader(tmp_path / "second")
    for step in range(3):
        first.finish(step)
    with file_door(first.answer) as door, followed(door, tmp_path / "ours") as before:
        wait_until(lambda: before.step == 3, "the events", LIMIT_S)
    (tmp_path / "ours").mkdir()
    with (
        file_door(second.answer) as door,
        followed(door, tmp_path / "ours", before) as following,
    ):
        assert (len(following.events), following.step) == (3, 3)
        following.write_down()
        assert (tmp_path / "ours" / "events.jsonl").read_text().count("\n") == 3
        for step in range(5):
            second.finish(step)
        wait_until(lambda: following.step == 5, "the events of the second", LIMIT_S)
        assert len(following.events) == 5


def test_the_job_is_verified_once_and_not_at_each_poll(tmp_path, monkeypatch):
    asked = []

    def cached(cache: Path, sha256: str) -> Path:
        asked.append(sha256)
        return tmp_path

    monkeypatch.setattr(far_copies, "cached", cached)
    leader = Leader(tmp_path / "theirs")
    with file_door(leader.answer) as door, followed(door, tmp_path / "ours", bundle="5a" * 32):
        copies = checkpoints(copies_of(tmp_path / "ours", RUN_ID))
        leader.save(4)
        wait_until((copies / "step-00000004").exists, "a checkpoint", LIMIT_S)
        leader.save(5)  # it is polled meanwhile
        wait_until((copies / "step-00000005").exists, "the next one", LIMIT_S)
    assert asked == ["5a" * 32]
