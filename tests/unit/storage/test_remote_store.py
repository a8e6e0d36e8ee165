"""Checkpoints at an address: put once, found whole or not at all, kept as long as they are read."""

import json
from pathlib import Path

import pytest

from holdfast.checkpoint_address import checkpoint_at, is_address, parse_address
from holdfast.config import config_from
from holdfast.errors import CheckpointError, ConfigError, ProtocolError
from holdfast.storage.contents import Part
from holdfast.storage.manifest import file_digest
from holdfast.storage.remote import reading, remote_store
from holdfast.storage.remote.bucket import FolderBucket
from holdfast.storage.remote.object_bucket import open_bucket
from holdfast.storage.remote.remote_store import RemoteStore
from holdfast.storage.stores import all_checkpoints, find, load, note_address, part_folder

PART = "stage-0.0a1b2c3d"


@pytest.fixture
def address(tmp_path):
    return f"file://{tmp_path}/shared/run"


@pytest.fixture
def opened(address, tmp_path):
    store = RemoteStore(address, tmp_path / "run")
    store.open(None)
    return store


def put(store: RemoteStore, step: int, text: bytes = b"tensors", name: str = PART) -> list[Part]:
    folder = store.staging(step, name)
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(text)
    files = {path.name: file_digest(path) for path in folder.iterdir()}
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    store.put_part(step, name, files)
    assert not folder.exists()  # what is safe elsewhere takes no room here
    return [Part(name, (0,), files, {}, sizes)]


def seal(store: RemoteStore, step: int, parts: list[Part] | None = None) -> str:
    return store.seal(step, parts or put(store, step), seed=3, microbatches=8)


def steps_at(address: str) -> list[int]:
    return [checkpoint.step for checkpoint in reading.all_at(address)]


def keys_at(address: str) -> set[str]:
    return set(FolderBucket(address).sizes("checkpoints/"))


# --- addresses ---


@pytest.mark.parametrize("text", ["s3://bucket", "s3://b/run-1/a.b", "gs://b/x", "file:///a/b"])
def test_an_address_is_taken_as_it_is(text):
    assert parse_address(text) == (text, "")
    assert parse_address(f"{text}/") == (text, "")
    assert parse_address(checkpoint_at(text, 20)) == (text, "step-00000020")
    assert config_from({"checkpoint": {"dir": text}}).checkpoint.dir == text


BAD = ["s3:/b", "s3://", "s3://b//a", "s3://b/../a", "s3://key:secret@b/a", "file://a", "ftp://b"]
BAD += ["s3://b/.a", "s3://b/a\n", "s3://b/a b", "s3://b/a?x=1", "/plain", "runs/a"]


@pytest.mark.parametrize("text", BAD)
def test_s3_no_other_address_is_taken(text):
    with pytest.raises(ConfigError, match=r"expected an address, e\.g\. s3://bucket/run"):
        config_from({"checkpoint": {"dir": text}})
    if is_address(text):
        with pytest.raises(ConfigError, match="expected an address"):
            find(text)


def test_what_an_address_needs_and_is_not_installed_is_said_in_one_line(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "obstore", None)
    with pytest.raises(ConfigError) as why:
        open_bucket("s3://bucket/run")
    assert str(why.value) == (
        "s3://bucket/run: needs the package obstore; install it with: pip install 'holdfast[s3]'"
    )


# --- put, seal, find ---


def test_a_sealed_checkpoint_is_found_by_address_by_its_own_and_by_the_run_directory(
    opened, address, tmp_path
):
    place = seal(opened, 20)
    assert place == f"{address}/checkpoints/step-00000020"
    found = find(address)
    assert (found.step, found.seed, found.address, found.run_dir) == (20, 3, address, None)
    assert load(place) == found == find(place)
    with part_folder(found, found.parts[0]) as folder:
        assert (folder / "model.safetensors").read_bytes() == b"tensors"
    assert not folder.exists()
    note_address(tmp_path / "run", address)
    assert find(tmp_path / "run").is_in(tmp_path / "run")
    assert [one.step for one in all_checkpoints(tmp_path / "run")] == [20]


def test_parts_without_a_manifest_are_no_checkpoint(opened, address):
    put(opened, 20)
    with pytest.raises(CheckpointError, match="no checkpoint below it"):
        find(address)
    with pytest.raises(CheckpointError, match="it has no manifest; start the run anew"):
        find(checkpoint_at(address, 20))


def test_what_is_not_there_as_its_writer_said_is_not_sealed(opened, address):
    [part] = put(opened, 20)
    longer = Part(part.directory, part.layers, part.files, {}, {"model.safetensors": 99})
    with pytest.raises(CheckpointError, match="has 7 bytes, its writer said 99"):
        seal(opened, 20, [longer])
    missing = Part("stage-0.ffffffff", part.layers, part.files, {}, part.sizes)
    with pytest.raises(CheckpointError, match="is not there"):
        seal(opened, 20, [missing])
    assert steps_at(address) == []


@pytest.mark.parametrize("name", ["../x", "/etc", "stage-0/..", ".", ""])
def test_s3_no_name_of_a_part_leads_elsewhere(opened, name):
    with pytest.raises(ProtocolError, match="expected"):
        seal(opened, 20, [Part(name, (0,), {"a": "0" * 64}, {})])
    with pytest.raises(ProtocolError, match="expected"):
        seal(opened, 20, [Part(PART, (0,), {f"{name}": "0" * 64}, {})])


def test_a_file_that_was_changed_in_the_store_is_refused(opened, address, tmp_path, monkeypatch):
    seal(opened, 10)
    seal(opened, 20)
    [path] = (tmp_path / "shared/run/checkpoints/step-00000020" / PART).iterdir()
    path.write_bytes(b"Tensors")
    found = find(address)
    with (
        pytest.raises(CheckpointError, match=r"SHA-256 differs.*resume an older one: .*-00000010"),
        part_folder(found, found.parts[0]),
    ):
        pass


@pytest.mark.parametrize("change", [{"seed": 4}, {"step": 30}, {"parts": "x"}])
def test_a_manifest_that_was_changed_is_refused(opened, address, tmp_path, change):
    seal(opened, 20)
    path = tmp_path / "shared/run/checkpoints/step-00000020/manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CheckpointError, match="its manifest was changed or cut off"):
        find(address)


def test_a_seal_whose_answer_was_lost_is_the_same_seal(opened, address):
    parts = put(opened, 20)
    assert seal(opened, 20, parts) == seal(opened, 20, parts)
    again = put(opened, 20, b"tensors", "stage-0.00000002")  # trained again by this launch
    seal(opened, 20, again)
    assert find(address).parts == tuple(again)


# --- two writers ---


def test_of_two_who_seal_a_step_one_wins_and_the_other_says_so(opened, address, tmp_path):
    other = RemoteStore(address, tmp_path / "other")
    other.open(None)  # nothing was sealed yet: it takes over
    with pytest.raises(CheckpointError, match="launch 2 of the run has taken over"):
        seal(opened, 20)
    seal(other, 20, put(other, 20, b"other", "stage-0.00000002"))
    FolderBucket(address).delete(["launches/00000002.json"])  # as if both had asked just before
    with pytest.raises(CheckpointError, match="was sealed by launch 2 of the run, and stays"):
        seal(opened, 20, put(opened, 20))
    assert find(address).parts[0].directory == "stage-0.00000002"


def test_only_one_gets_a_launch(address, tmp_path, monkeypatch):
    one, two = (RemoteStore(address, tmp_path / name) for name in "ab")
    sizes = FolderBucket.sizes

    def both_look_first(self, prefix):
        found = sizes(self, prefix)
        if prefix == "launches/" and not found:
            monkeypatch.setattr(FolderBucket, "sizes", sizes)
            two.open(None)
        return found

    monkeypatch.setattr(FolderBucket, "sizes", both_look_first)
    with pytest.raises(ConfigError, match="another run is starting there"):
        one.open(None)


def test_who_takes_over_gets_the_next_number_though_the_list_is_old(
    opened, address, tmp_path, monkeypatch
):
    old = FolderBucket(address).sizes("launches/")
    for name in "ab":
        RemoteStore(address, tmp_path / name).open(None)  # launches 2 and 3
    with monkeypatch.context() as patch:
        patch.setattr(FolderBucket, "sizes", lambda self, prefix: old)
        patch.setattr(remote_store.time, "sleep", lambda _s: None)
        opened.take_over()
    assert max(FolderBucket(address).sizes("launches/")) == "launches/00000004.json"


def test_who_never_gets_a_number_says_so(opened, monkeypatch):
    pauses = []
    monkeypatch.setattr(remote_store.time, "sleep", pauses.append)
    monkeypatch.setattr(FolderBucket, "put_if_absent", lambda self, key, data: False)
    with pytest.raises(CheckpointError, match="20 numbers of launches in a row were taken"):
        opened.take_over()
    assert len(pauses) == 20


def test_another_run_is_not_mixed_with_the_one_that_is_there(opened, address, tmp_path):
    seal(opened, 20)
    other = RemoteStore(address, tmp_path / "other")
    with pytest.raises(ConfigError, match="already holds a run; choose another address, or go on"):
        other.check(None)
    other.open(find(address))
    assert steps_at(address) == [20]


# --- retention ---


@pytest.mark.parametrize(("keep", "left"), [(1, [30, 40]), (2, [30, 40]), (3, [20, 30, 40])])
def test_the_newest_stay_and_always_the_one_before_which_somebody_may_read(
    opened, address, keep, left
):
    for step in (10, 20, 30, 40):
        seal(opened, step)
    opened.tidy(keep, 40)
    assert steps_at(address) == left
    assert {key.split("/")[1] for key in keys_at(address)} == {f"step-{n:08d}" for n in left}


def test_parts_that_will_never_be_whole_go_and_those_to_come_stay(opened, address):
    put(opened, 10)
    seal(opened, 20)
    put(opened, 30)
    opened.tidy(2, 20)
    assert {key.split("/")[1] for key in keys_at(address)} == {"step-00000020", "step-00000030"}


def test_later_checkpoints_of_a_history_that_is_left_are_set_aside_and_kept(
    opened, address, tmp_path
):
    for step in (10, 20, 30):
        seal(opened, step)
    again = RemoteStore(address, tmp_path / "again")
    again.open(find(checkpoint_at(address, 10)))
    assert steps_at(address) == [10]
    for step in (20, 40, 50):
        seal(again, step, put(again, step, b"again", "stage-0.00000002"))
    again.tidy(1, 50)
    assert steps_at(address) == [40, 50]
    kept = {"/".join(key.split("/")[1:3]) for key in keys_at(address)}
    assert {f"step-00000020/{PART}", f"step-00000030/{PART}"} <= kept
    assert "step-00000020/stage-0.00000002" not in kept


def test_room_that_cannot_be_made_fails_no_checkpoint(opened, monkeypatch):
    def refuse(self, keys):
        raise CheckpointError("not now")

    for step in (10, 20, 30):
        seal(opened, step)
    monkeypatch.setattr(FolderBucket, "delete", refuse)
    opened.tidy(1, 30)


# --- the folder ---


def test_no_link_is_followed_and_nothing_hidden_is_listed(tmp_path):
    bucket = FolderBucket(f"file://{tmp_path}/b")
    assert bucket.put_if_absent("checkpoints/a", b"1")
    assert not bucket.put_if_absent("checkpoints/a", b"2")
    assert bucket.read("checkpoints/a") == b"1"
    Path(tmp_path, "b/checkpoints/link").symlink_to("/etc/passwd")
    Path(tmp_path, "b/checkpoints/.half").write_bytes(b"")
    assert bucket.sizes("checkpoints/") == {"checkpoints/a": 1}
    with pytest.raises(CheckpointError):
        bucket.read("checkpoints/link")
    assert bucket.read("checkpoints/none") is None
