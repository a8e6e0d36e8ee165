"""What a standby on another machine rests on: who is asked, who may still write, what is copied."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.file_door import SECRET, file_door
from holdfast.api.settings import own_place
from holdfast.api.standing_by import Standby
from holdfast.api.taking_over import Heir
from holdfast.auth.secret import write_generation
from holdfast.auth.ticket import Ticket, encoded, parse_ticket, write_ticket
from holdfast.cluster import WorkerId
from holdfast.config import config_from
from holdfast.control.effects import CheckLead, Send, TellAgents
from holdfast.control.io.succession.copies import EventCopies, copied
from holdfast.control.io.succession.run_journal import LeftBehind, RunFacts, RunJournal
from holdfast.control.io.succession.signs import NUM_LATE, OWN_SIGNS, SIGN_S, Signs
from holdfast.control.journal.file_journal import FileJournal
from holdfast.control.journal.opening import note_journal, noted_journal
from holdfast.errors import CheckpointError, ConfigError, Deposed, JournalDamaged, TransferFailed
from holdfast.launch.orders import outlives
from holdfast.observability.events import StepFinished, Warned
from holdfast.protocol.spec import Access
from holdfast.storage.contents import Part
from holdfast.storage.copied_states import copy_checkpoint
from holdfast.storage.local_store import LocalStore
from holdfast.storage.manifest import checkpoints, file_digest, verify
from holdfast.storage.remote.remote_store import RemoteStore
from holdfast.storage.run_shelf import RunShelf
from holdfast.storage.stores import find

TICKET = Ticket("10.0.0.1", 40123, SECRET, "ab" * 32, ("10.0.0.2:40124", "[fd00::3]:40125"))
FAR = {
    "machines.count": 2,
    "control.journal": "etcd://e:2379/run",
    "control.standbys": "10.0.0.2:40124",
    "network.listen": "10.0.0.1",
    "control.port": 40123,
}


def far(**more: object):
    values: dict[str, dict[str, object]] = {}
    for key, value in {**FAR, **more}.items():
        section, _, name = key.partition(".")
        values.setdefault(section, {})[name] = value
    return config_from(values)


# --- where it is looked for ---


def test_a_ticket_says_where_others_may_take_over_and_agents_then_outlive_their_launcher():
    assert parse_ticket(encoded(TICKET), "ticket") == TICKET
    assert outlives(encoded(TICKET).decode())
    alone = replace(TICKET, more=())
    assert not outlives(encoded(alone).decode())
    assert parse_ticket(encoded(alone), "ticket") == alone


def test_a_ticket_with_an_address_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="more nowhere: expected HOST:PORT"):
        parse_ticket(encoded(replace(TICKET, more=("nowhere",))), "ticket")


def test_the_certificate_of_the_first_is_known_that_of_a_standby_is_vouched_for():
    first, second, third = Access.by(TICKET).places()
    assert (str(first), first.expected_certificate) == ("10.0.0.1:40123", "ab" * 32)
    assert [str(second), str(third)] == list(TICKET.more)
    for standby in (second, third):
        assert standby.certificate  # TLS is spoken
        assert standby.expected_certificate == ""
        assert standby.secret == SECRET
        assert standby.more == (*TICKET.more, str(first))  # another may stand by there later


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"machines.count": 0}, "control.standbys"),
        ({"control.journal": ""}, "needs control.journal"),
        ({"control.standbys": "10.0.0.2"}, "control.standbys 10.0.0.2: expected HOST:PORT"),
        ({"control.standbys": "h:1,,h:2"}, "expected HOST:PORT"),
    ],
)
def test_standbys_that_could_not_take_over_are_refused(more, said):
    with pytest.raises(ConfigError, match=said):
        far(**more)


# --- who takes over, with what ---


def left_by(config, address="10.0.0.1:40123", snapshot=None):
    facts = RunFacts(1, config.to_dict(), "/job.py", "5a" * 32, "job.py", [])
    return LeftBehind(facts, snapshot or type("S", (), {"address": address})())


def test_a_successor_has_the_settings_of_the_run_and_its_own_address(tmp_path):
    asked = own_place({"network.listen": "10.0.0.2", "control.port": 40124})
    config = Heir(tmp_path, asked).config(left_by(far()))
    assert (config.network.listen, config.control.port) == ("10.0.0.2", 40124)
    assert config.network.encrypts_control
    assert config.machines.count == 2
    # Where the first one has died another may stand by later.
    assert config.control.standby_addresses == ("10.0.0.2:40124", "10.0.0.1:40123")


def test_tls_is_spoken_by_a_successor_if_it_was_before(tmp_path):
    asked = own_place({"network.listen": "127.0.0.1", "control.port": 40124})
    assert Heir(tmp_path, asked).config(left_by(far())).network.encrypts_control
    plain = far(**{"network.tls": "off"})
    assert not Heir(tmp_path, asked).config(left_by(plain)).network.encrypts_control


def test_a_run_directory_says_where_its_journal_is(tmp_path):
    assert noted_journal(tmp_path) == ""
    note_journal(tmp_path, "etcd://e:2379/run")
    assert noted_journal(tmp_path) == "etcd://e:2379/run"
    note_journal(tmp_path, "")
    assert noted_journal(tmp_path) == ""


def test_a_standby_without_a_ticket_or_in_the_directory_of_another_run_is_refused(tmp_path):
    asked = own_place({"control.journal": "etcd://e:2379/run"})
    with pytest.raises(ConfigError, match="expected ticket=FILE"):
        Standby(Heir(tmp_path, asked), warn=print, show=print)
    write_ticket(tmp_path / "ticket", TICKET)
    (tmp_path / "events.jsonl").write_text("")
    with pytest.raises(ConfigError, match="already holds a run"):
        Standby(Heir(tmp_path, asked, None, tmp_path / "ticket"), warn=print, show=print)


def test_a_standby_does_not_take_over_what_has_not_begun_or_has_ended(tmp_path):
    seen = []

    def show(vigil):
        seen.append(vigil)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Standby(Heir(tmp_path, own_place(None)), warn=print, show=show).wait()
    assert seen[0].trouble == "the run has not begun"
    journal = FileJournal(tmp_path, "a test")
    journal.claim()
    journal.append({"run": {}, "snapshot": {}})  # of another version, perhaps
    with pytest.raises(JournalDamaged, match="another version of Holdfast"):
        Standby(Heir(tmp_path, own_place(None)), warn=print, show=print).wait()
    journal.append({"ended": True})
    journal.close()
    assert Standby(Heir(tmp_path, own_place(None)), warn=print, show=print).wait() is None
    assert FileJournal(tmp_path, "another").claim().generation == 3  # it has given up the lead


# --- one that was taken over from ---


class Reached:
    """A coordinator, as far as signs go."""

    starting = False

    def __init__(self) -> None:
        self.parts = self.reports = self.leases = self
        self.next_step = self.noted = 0
        self.by_agents: set[WorkerId] = set()

    def note_sign(self, next_step: int, *, leads: bool) -> None:
        self.noted, self.leads = next_step, leads


def test_signs_come_from_who_leads_and_acknowledge_what_a_standby_has_copied():
    coordinator, worker = Reached(), WorkerId(0, 0)
    signs, told = Signs(coordinator), []  # type: ignore[arg-type]
    for number in range(NUM_LATE + 5):
        coordinator.next_step = number * 10
        lead, agents, worker_sign = signs.due([worker], (number + 1) * SIGN_S)
        assert lead == CheckLead()  # before anything is said
        assert isinstance(agents, TellAgents)
        assert worker_sign == Send(worker, agents.message)
        assert agents.message.heard == coordinator.next_step
        told.append(agents.message.next_step)
        assert coordinator.noted == told[-1]
    assert told[:NUM_LATE] == [0] * NUM_LATE
    assert told[NUM_LATE:] == [10, 20, 30, 40, 50]
    coordinator.next_step = 7  # all have gone back
    assert signs.due([], 100.0)[1].message.next_step == 7


def test_whoever_hears_of_it_by_its_agent_hears_it_rarely_on_its_own_connection():
    coordinator, ours, other = Reached(), WorkerId(0, 0), WorkerId(0, 1)
    coordinator.by_agents = {ours}
    signs, told = Signs(coordinator), {ours: 0, other: 0}  # type: ignore[arg-type]
    for number in range(2 * OWN_SIGNS):
        for effect in signs.due([ours, other], (number + 1) * SIGN_S)[2:]:
            told[effect.to] += 1
    assert told == {ours: 2, other: 2 * OWN_SIGNS}


def test_one_that_does_not_know_whether_it_leads_gives_no_sign():
    coordinator, known = Reached(), [True, False, True]
    signs = Signs(coordinator, lambda now_s: known.pop(0))  # type: ignore[arg-type]
    given = [signs.due([WorkerId(0, 0)], number * SIGN_S) for number in (1, 2, 3)]
    assert [len(effects) for effects in given] == [3, 1, 3]
    assert given[1] == [CheckLead()]  # it may be known by then that another one does
    assert coordinator.leads


class Lease:
    """A journal whose lease has run out."""

    def __init__(self, *renewals: bool) -> None:
        self.renewals, self.led = list(renewals), False

    def leads(self, now_s: float) -> bool:
        return self.led

    def renew(self) -> None:
        if not self.renewals:
            raise Deposed("launch 2 leads the run")
        self.led = self.renewals.pop(0)


def test_one_that_has_lost_its_lease_for_good_hears_of_it_before_it_seals():
    facts = RunFacts(1, {}, "", "", "", [])
    for ask in (RunJournal.check, RunJournal.confirm):
        kept = RunJournal(Lease(), facts, print, waits=True)  # type: ignore[arg-type]
        ask(kept)  # it has not begun to lead
        kept.leads_already()
        with pytest.raises(Deposed):
            ask(kept)
    lease = Lease(False, False, True)
    kept = RunJournal(lease, facts, print, waits=True)  # type: ignore[arg-type]
    kept.leads_already()
    kept.confirm()
    assert lease.led


def parts_in(folder: Path, content: bytes = b"x") -> list[Part]:
    folder.mkdir(parents=True)
    (folder / "a.safetensors").write_bytes(content)
    files = {"a.safetensors": file_digest(folder / "a.safetensors")}
    return [Part(folder.name, (0,), files, {}, {"a.safetensors": len(content)})]


def test_in_a_run_directory_only_the_newest_launch_seals(tmp_path):
    write_generation(tmp_path, 1)
    store = LocalStore(tmp_path)
    store.open(None)
    parts = parts_in(tmp_path / "checkpoints/step-00000001.partial/stage-0")
    store.seal(1, parts, seed=0, microbatches=1)
    manifest = json.loads((Path(find(tmp_path).directory) / "manifest.json").read_text())
    assert manifest["launch"] == 1
    write_generation(tmp_path, 2)  # another one has taken over
    parts = parts_in(tmp_path / "checkpoints/step-00000002.partial/stage-0")
    with pytest.raises(CheckpointError, match="launch 2 of the run has taken over"):
        store.seal(2, parts, seed=0, microbatches=1)
    assert find(tmp_path).step == 1


def put(store: RemoteStore, step: int, content: bytes = b"x") -> list[Part]:
    parts = parts_in(store.staging(step, "stage-0.0a1b2c3d"), content)
    named = [replace(part, directory="stage-0.0a1b2c3d") for part in parts]
    store.put_part(step, named[0].directory, named[0].files)
    return named


def test_at_an_address_one_that_was_taken_over_from_seals_nothing_more(tmp_path):
    address = f"file://{tmp_path}/bucket"
    before, after = (RemoteStore(address, tmp_path / name) for name in ("a", "b"))
    before.open(None)
    parts = put(before, 1)
    before.seal(1, parts, seed=0, microbatches=1)
    after.take_over()
    # It had sealed this one before it could say so.
    after.seal(1, parts, seed=0, microbatches=1)
    parts = put(before, 2)
    with pytest.raises(CheckpointError, match="launch 2 of the run has taken over"):
        before.seal(2, parts, seed=0, microbatches=1)
    after.seal(2, parts, seed=0, microbatches=1)
    assert find(address).step == 2
    with pytest.raises(CheckpointError, match="was sealed by launch 1"):
        after.seal(1, put(after, 1, b"other"), seed=0, microbatches=1)


# --- what is copied ---


def no_other(ask, link):
    raise AssertionError(ask)


def test_events_are_copied_from_where_it_stopped_and_by_the_clock_of_who_copies():
    def step(number: int, at_s: float) -> StepFinished:
        return StepFinished(
            at_s=at_s, step=number, loss=0.5, gradient_norm=1.0, tokens=2, took_s=0.1
        )

    kept = [Warned(at_s=1.0, reason="x"), *(step(number, 1.0) for number in range(5000))]
    with file_door(EventCopies(kept, no_other).answer) as door:
        found = copied(door.courier(), 0)
        assert [replace(e, at_s=0.0) for e in found] == [replace(e, at_s=0.0) for e in kept]
        assert copied(door.courier(), len(kept)) == []
        kept.append(step(5000, 1.0))
        assert [event.step for event in copied(door.courier(), 5001)] == [5000]
    ahead = EventCopies([step(0, 8000.0)], no_other, clock=lambda: 8010.0)  # it was 10 s ago
    before_s = time.monotonic()
    with file_door(ahead.answer) as door:
        [moved] = copied(door.courier(), 0)
    assert before_s <= moved.at_s + 10.0 <= time.monotonic()


def test_what_is_no_event_is_told_in_one_line():
    def answer(ask, link):
        link.say({"size": 9})
        link.send_pieces([b"1.0\n{bad}"])

    with file_door(answer) as door, pytest.raises(TransferFailed, match="no events of this"):
        copied(door.courier(), 0)


def test_a_checkpoint_is_copied_whole_or_not_at_all(tmp_path):
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    for step in (1, 2, 3):
        parts = parts_in(theirs / f"checkpoints/step-{step:08d}.partial/stage-0", bytes([step]))
        LocalStore(theirs).seal(step, parts, seed=0, microbatches=1)
    with file_door(RunShelf(theirs, "").answer) as door:
        for step in (1, 2, 3, 3):
            copy_checkpoint(door.courier(), ours, step)
        found = find(ours)
        assert (found.step, found.parts) == (3, find(theirs).parts)
        verify(found, found.parts[0])
        assert sorted(path.name for path in checkpoints(ours).iterdir()) == [
            "step-00000002",
            "step-00000003",
        ]
        LocalStore(theirs).seal(
            4,
            parts_in(theirs / "checkpoints/step-00000004.partial/stage-0"),
            seed=0,
            microbatches=1,
        )
        [file] = (theirs / "checkpoints/step-00000004/stage-0").iterdir()
        file.write_bytes(b"y")  # is not what the manifest says
        with pytest.raises(CheckpointError, match="SHA-256 differs"):
            copy_checkpoint(door.courier(), ours, 4)
    assert find(ours).step == 3


def test_a_copy_of_another_history_is_replaced_and_what_came_after_it_is_found_no_more(tmp_path):
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    for run_dir, content in ((theirs, b"new"), (ours, b"old")):
        parts = parts_in(run_dir / "checkpoints/step-00000004.partial/stage-0", content)
        LocalStore(run_dir).seal(4, parts, seed=0, microbatches=1)
    later = parts_in(ours / "checkpoints/step-00000009.partial/stage-0")
    LocalStore(ours).seal(9, later, seed=0, microbatches=1)
    with file_door(RunShelf(theirs, "").answer) as door:
        copy_checkpoint(door.courier(), ours, 4)
    found = find(ours)
    assert (found.step, found.parts) == (4, find(theirs).parts)
    verify(found, found.parts[0])


def test_a_copy_is_on_disk_before_it_has_its_name_and_a_killed_one_leaves_what_is_cleared(
    tmp_path, monkeypatch
):
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    parts = parts_in(theirs / "checkpoints/step-00000004.partial/stage-0")
    LocalStore(theirs).seal(4, parts, seed=0, microbatches=1)
    done = []  # files that were synced, and names that were given

    def sync(descriptor: int) -> None:
        if not done:
            left.extend(path.name for path in checkpoints(ours).iterdir())
        done.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)

    def rename(path: Path, to: Path) -> Path:
        done.append(f"{path.name} -> {to.name}")
        os.rename(path, to)
        return to

    left: list[str] = []
    monkeypatch.setattr("os.fsync", sync)
    monkeypatch.setattr(Path, "rename", rename)
    with file_door(RunShelf(theirs, "").answer) as door:
        copy_checkpoint(door.courier(), ours, 4)
    partial = "step-00000004.partial"
    assert done == [
        *("a.safetensors", "stage-0", "manifest.json", partial),
        *(f"{partial} -> step-00000004", "checkpoints"),
    ]
    assert left == [partial]  # if it had been killed then
