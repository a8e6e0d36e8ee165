"""One that waits beside a run: what it refuses, what it copies, what it leaves."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from helpers.file_door import GENERATION, SECRET, file_door
from helpers.left_behind import JOB_SHA256, RUN_ID, a_record
from helpers.live import LIMIT_S, wait_until
from helpers.ports import held_port
from holdfast.api.settings import own_place
from holdfast.api.standing_by import Standby
from holdfast.api.taking_over import Heir, heir_at
from holdfast.auth.secret import write_secret
from holdfast.auth.ticket import Ticket, write_ticket
from holdfast.config import config_from
from holdfast.control.io.succession.copies import EventCopies
from holdfast.control.io.succession.run_journal import Led, left_behind
from holdfast.control.journal.base import Journal
from holdfast.control.journal.file_journal import FileJournal
from holdfast.errors import ConfigError
from holdfast.observability.events import StepFinished
from holdfast.storage.contents import Origin, Part
from holdfast.storage.copied_states import copies_of
from holdfast.storage.local_store import LocalStore
from holdfast.storage.manifest import file_digest

PORT = held_port()
HERE = f"127.0.0.1:{PORT}"  # nobody answers there
FAR = {
    "machines": {"count": 2},
    "control": {"journal": "etcd://e:2379/run", "standbys": HERE, "port": PORT, "lease_s": 7.0},
    "network": {"tls": "off"},
    "train": {"seed": 3},
}


@dataclass(frozen=True)
class FarHeir(Heir):
    """Its journal is a directory, as if that were etcd."""

    shared: Path = Path()
    leases_s: list[float] = field(default_factory=list)
    opened: list["Opened"] = field(default_factory=list)

    def open(self, lease_s: float) -> Journal:
        self.leases_s.append(lease_s)
        self.opened.append(Opened(self.shared, "a standby"))
        return self.opened[-1]


class Opened(FileJournal):
    """Knows whether it was closed, by who has opened it."""

    num_closed = 0

    def claim(self, **more):
        self.num_closed -= 1  # it closes what there was before
        return super().claim(**more)

    def close(self) -> None:
        self.num_closed += 1
        super().close()


def far_heir(tmp_path: Path) -> FarHeir:
    ticket, shared = tmp_path / "a.ticket", tmp_path / "shared"
    shared.mkdir(exist_ok=True)
    write_ticket(ticket, Ticket("127.0.0.1", PORT, SECRET, "", (HERE,)))
    asked = own_place({"control.journal": "etcd://e:2379/run"})
    return FarHeir(tmp_path / "stands", asked, None, ticket, shared=shared)


def a_run(shared: Path, **more: object) -> FileJournal:
    """That is led; close it: nobody leads it any more."""
    shared.mkdir(exist_ok=True)
    journal = FileJournal(shared, "the coordinator")
    journal.claim()
    journal.append(a_record(config_from({**FAR, **more}), HERE))
    return journal


def put(run_dir: Path, step: int, *, seed: int = 3, job: str = JOB_SHA256) -> None:
    """A checkpoint, into its directory."""
    folder = run_dir / f"checkpoints/step-{step:08d}.partial/stage-0"
    folder.mkdir(parents=True)
    (folder / "a.safetensors").write_bytes(b"x")
    files = {"a.safetensors": file_digest(folder / "a.safetensors")}
    parts = [Part("stage-0", (0,), files, {}, {"a.safetensors": 1})]
    LocalStore(run_dir).seal(
        step, parts, seed=seed, microbatches=4, origin=Origin({}, "job.py", job)
    )


@contextmanager
def waiting(standby: Standby) -> Iterator[list[object]]:
    """In a thread; what came of it is in the list at the end."""
    found: list[object] = []

    def wait() -> None:
        try:
            found.append(standby.wait())
        except BaseException as why:
            found.append(why)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    yield found
    thread.join(LIMIT_S)
    assert not thread.is_alive()


# --- what lies in its directory ---


@pytest.mark.parametrize("what", ["events.jsonl", "checkpoints.json", "checkpoint"])
def test_a_directory_with_a_run_is_refused(tmp_path, what):
    heir = far_heir(tmp_path)
    heir.run_dir.mkdir()
    if what == "checkpoint":
        put(heir.run_dir, 5)
    else:
        (heir.run_dir / what).write_text('{"address": "s3://bucket/run"}')
    with pytest.raises(ConfigError, match="already holds a run"):
        Standby(heir, warn=print, show=print)


def test_copies_of_another_run_go_at_the_beginning_and_its_own_when_the_run_has_ended(
    tmp_path,
):
    heir = far_heir(tmp_path)
    other, own = (copies_of(heir.run_dir, each) for each in ("another", RUN_ID))
    put(other, 90)
    put(own, 5)
    note = heir.run_dir / "copied" / "note.txt"
    note.write_text("the user's")
    journal, shown = a_run(heir.shared), []
    with waiting(Standby(heir, warn=print, show=shown.append)) as found:
        wait_until(lambda: shown and "launch 1" in shown[-1].leader, "the standby")
        assert not other.exists()
        assert own.exists()
        journal.append({"ended": True})
        journal.close()
    assert found == [None]
    assert [path.name for path in note.parent.iterdir()] == ["note.txt"]


def request(heir: FarHeir, told: list[str], **more: object):
    a_run(heir.shared, **more).close()
    journal = heir.open(1.0)
    led = Led(journal, journal.claim().generation)
    left = left_behind(journal)
    try:
        return heir.request(heir.config(left), left, led, told.append)
    finally:
        journal.close()


def test_whoever_takes_over_has_the_copies_of_that_run_and_of_no_other(tmp_path):
    heir, told = far_heir(tmp_path), []
    put(copies_of(heir.run_dir, "another"), 90)
    for step in (5, 7):
        put(copies_of(heir.run_dir, RUN_ID), step)
    resume = request(heir, told).resume
    assert resume.directory == str(heir.run_dir / "checkpoints" / "step-00000007")
    assert resume.is_in(heir.run_dir)
    assert [path.name for path in heir.run_dir.iterdir()] == ["checkpoints"]
    assert told == []


@pytest.mark.parametrize("other", [{"seed": 4}, {"job": "6b" * 32}])
def test_nobody_goes_back_to_a_checkpoint_of_another_run(tmp_path, other):
    heir, told = far_heir(tmp_path), []
    put(heir.run_dir, 90, **other)
    assert request(heir, told).resume is None
    assert "step-00000090 is a checkpoint of another run" in told[0]


def test_the_secret_in_the_run_directory_counts_more_than_that_of_a_ticket(tmp_path):
    heir = far_heir(tmp_path)
    assert heir.find_secret() == SECRET  # of the ticket
    heir.run_dir.mkdir()
    write_secret(heir.run_dir, bytes(32))
    assert heir.find_secret() == bytes(32)
    assert replace(heir, secret=bytes(range(1, 33))).find_secret() == bytes(range(1, 33))


# --- where it would listen ---


def test_a_standby_in_the_run_directory_leaves_a_fixed_port_to_who_leads(tmp_path):
    heir, shown = Heir(tmp_path / "run", own_place(None)), []
    with socket.create_server(("127.0.0.1", PORT)):  # the coordinator's
        journal = a_run(heir.run_dir, machines={}, control={"port": PORT})
        with waiting(Standby(heir, warn=print, show=shown.append)) as found:
            wait_until(lambda: shown or found, "the standby")
            journal.append({"ended": True})
            journal.close()
    assert found == [None]


def test_one_that_leads_and_has_not_said_where_it_is_is_looked_for_again(tmp_path):
    heir, shown = far_heir(tmp_path), []
    journal = a_run(heir.shared)  # its address is that of the one before
    step = StepFinished(at_s=1.0, step=6, loss=0.5, gradient_norm=1.0, tokens=2, took_s=0.1)
    with (
        file_door(EventCopies([step], no_files).answer) as door,
        waiting(Standby(heir, warn=print, show=shown.append)),
    ):
        wait_until(lambda: shown and "refused" in shown[-1].trouble, "its trouble")
        journal.append(a_record(config_from(FAR), f"127.0.0.1:{door.port}", launch=GENERATION))
        wait_until(lambda: shown[-1].step == 7, "the event")
        journal.append({"ended": True})
        journal.close()


def no_files(ask, link):
    raise AssertionError(ask)


def test_a_standby_that_workers_do_not_know_of_is_refused_by_who_takes_over(tmp_path):
    config = config_from(FAR)
    asked = {"control": {"journal": "etcd://e:2379/run", "standbys": f"{HERE},10.0.0.9:1"}}
    heir = heir_at(tmp_path, asked, None, None)
    with pytest.raises(ConfigError, match=f"standby=10.0.0.9:1: .* know of {HERE}. Leave it out"):
        heir.check_standbys(config)
    heir_at(tmp_path, {"control.standbys": HERE}, None, None).check_standbys(config)
    heir_at(tmp_path, None, None, None).check_standbys(config)


# --- who leads ---


def test_it_leads_by_the_lease_of_the_run_also_of_one_that_begins_later(tmp_path):
    heir, shown = far_heir(tmp_path), []
    journal = FileJournal(heir.shared, "the coordinator")
    journal.claim()
    journal.append({"ended": True})  # an earlier run of the same name
    with waiting(Standby(heir, warn=print, show=shown.append)):
        wait_until(lambda: shown, "the standby")
        assert heir.leases_s == [2.0]
        journal.append(a_record(config_from(FAR), HERE))
        wait_until(lambda: len(heir.opened) == 2, "the run to be known")
        journal.append({"ended": True})
        journal.close()
    assert heir.leases_s == [2.0, 7.0]
    assert [each.num_closed > 0 for each in heir.opened] == [True, True]
