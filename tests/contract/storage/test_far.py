"""Parts and states over the network: what arrives is what was sent, or nothing does."""

import errno
import hashlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from helpers.certificates import LIMIT_S, tls_key
from helpers.file_door import GENERATION, SECRET, Door, file_door
from helpers.live import wait_until
from holdfast.errors import CheckpointError, TransferFailed
from holdfast.files import file_link
from holdfast.files.file_link import PIECE_BYTES
from holdfast.names import CACHE_VARIABLE
from holdfast.storage import far
from holdfast.storage.checkpoint import read_layers, write_part
from holdfast.storage.contents import Checkpoint, Part
from holdfast.storage.home import Home
from holdfast.storage.manifest import (
    checkpoints,
    load_manifest,
    partial_directory,
    seal,
    write_manifest,
)
from holdfast.storage.places import Places
from holdfast.storage.run_paths import rebuilt_states
from holdfast.storage.run_shelf import RunShelf

STEP, STATE, PART, FILE = 4, "step-00000004", "stage-1.0a1b2c3d", "model.safetensors"
REBUILT = "step-00000006-from-stage-1-2"
ASK = {"do": "put", "state": STATE, "part": PART, "file": FILE}
DATA = bytes(range(256)) * (3 * PIECE_BYTES // 256) + b"and a bit more"
SHA256 = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """On the launcher's machine."""
    folder = tmp_path / "launcher" / "run"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture(params=["plain", "tls"])
def door(run_dir: Path, request: pytest.FixtureRequest) -> Iterator[Door]:
    key = tls_key() if request.param == "tls" else None
    with file_door(RunShelf(run_dir, "").answer, key=key) as found:
        yield found


@pytest.fixture
def places(door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    """Of a worker on another machine, whose path of the run leads nowhere."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "worker"))
    (tmp_path / "worker").mkdir()
    path = str(tmp_path / "worker" / "no" / "run")
    home = Home.of(path, SECRET, GENERATION)
    return Places(path, "", "", "", home=home, courier=door.courier())


def tensors_of(layer: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(layer)
    return {f"{layer}.weight": torch.randn(300, 7, generator=generator)}


def files_below(folder: Path) -> list[str]:
    """All but the lock of who uses it."""
    found = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return sorted(str(path.relative_to(folder)) for path in found)


def left_behind(run_dir: Path) -> list[str]:
    return sorted(path.name for path in checkpoints(run_dir).glob("*"))


def send(door: Door, ask: dict[str, object], *pieces: bytes) -> None:
    """As one who may lie."""
    with door.courier().link() as link:
        link.say(ask)
        link.hear()
        link.send_pieces(pieces)
        link.hear()


# --- parts ---


def test_a_part_lies_where_the_launcher_seals_it(places, run_dir):
    store, tensors = places.store(), tensors_of(0)
    digests = write_part(store.staging(STEP, PART), tensors)
    sizes = {name: (store.staging(STEP, PART) / name).stat().st_size for name in digests}
    store.put_part(STEP, PART, digests)
    assert not store.staging(STEP, PART).exists()
    part = Part(PART, (0,), digests, {}, sizes)
    checkpoint = load_manifest(seal(run_dir, STEP, [part], seed=0, microbatches=4))
    assert torch.equal(read_layers(checkpoint, [0])["0.weight"], tensors["0.weight"])
    assert left_behind(run_dir) == [STATE]


def test_a_worker_that_sees_the_mark_writes_to_the_run_directory_itself(places, run_dir):
    at_home = replace(places, run_dir=str(run_dir), home=Home.of(str(run_dir), SECRET, GENERATION))
    Home.of(str(run_dir), SECRET, GENERATION - 1).leave_mark()
    assert not at_home.home.is_here  # an earlier launch has left it
    Home.of(str(run_dir), SECRET, GENERATION).leave_mark()
    store = at_home.store()
    assert store.staging(STEP, PART) == partial_directory(run_dir, STEP) / PART


def test_pieces_make_the_file(door, run_dir):
    size = {"size": len(DATA), "sha256": SHA256}
    pieces = [DATA[at : at + PIECE_BYTES] for at in range(0, len(DATA), PIECE_BYTES)]
    send(door, {**ASK, **size}, *pieces)
    assert (partial_directory(run_dir, STEP) / PART / FILE).read_bytes() == DATA
    assert left_behind(run_dir) == [f"{STATE}.partial"]


@pytest.mark.parametrize(
    ("said", "pieces", "reason"),
    [
        ({"size": 8, "sha256": SHA256}, [b"12345678"], "SHA-256 differs"),
        ({"size": 8, "sha256": SHA256}, [b"1234", b"56789"], "5 bytes where 4 were left"),
        ({"size": -1, "sha256": SHA256}, [], "size=-1"),
        ({"size": 1 << 60, "sha256": SHA256}, [], "size="),
        ({"size": 8, "sha256": "../" * 20}, [], "sha256="),
        ({"size": 8}, [], "sha256=None"),
    ],
)
def test_a_liar_is_refused_and_leaves_nothing(door, run_dir, said, pieces, reason):
    with pytest.raises(TransferFailed, match=reason) as caught:
        send(door, {**ASK, **said}, *pieces)
    assert caught.value.refused
    assert files_below(run_dir) == []


@pytest.mark.parametrize(
    "names",
    [
        {"state": "../../etc"},
        {"state": "resumed"},
        {"state": ""},
        {"state": None},
        {"part": "../stage-1"},
        {"part": "/tmp/stage-1"},
        {"part": ["stage-1"]},
        {"file": "../../secret"},
        {"file": ".hidden"},
        {"file": "a/b"},
        {"file": "manifest.json"},
        {"do": "delete"},
        {"do": None},
    ],
)
def test_names_that_are_none_are_refused(door, run_dir, names):
    ask = {**ASK, "size": 0, "sha256": hashlib.sha256().hexdigest(), **names}
    with pytest.raises(TransferFailed) as caught:
        send(door, ask)
    assert caught.value.refused
    assert files_below(run_dir) == []


def test_a_sender_that_is_cut_off_leaves_nothing(door, run_dir):
    with door.courier().link() as link:
        link.say({**ASK, "size": len(DATA), "sha256": SHA256})
        link.hear()
        link.send_pieces([DATA[:PIECE_BYTES]])
    wait_until(lambda: door.service.num_couriers == 0, "the end of its thread")
    assert left_behind(run_dir) == []


def test_a_launcher_that_ends_leaves_nothing(door, run_dir):
    with door.courier().link() as link:
        link.say({**ASK, "size": len(DATA), "sha256": SHA256})
        link.hear()
        link.send_pieces([DATA[:PIECE_BYTES]])
        door.service.close(LIMIT_S)
        assert left_behind(run_dir) == []
    assert door.service.num_couriers == 0


def test_a_piece_that_is_too_large_is_not_even_read(door, run_dir):
    said = {**ASK, "size": len(DATA), "sha256": SHA256}
    with pytest.raises(TransferFailed, match=r"where at most 1048576 are expected|broke|closed"):
        send(door, said, DATA)
    assert files_below(run_dir) == []


def test_a_full_disk_is_told_in_one_line(places, run_dir, monkeypatch):
    store = places.store()
    digests = write_part(store.staging(STEP, PART), tensors_of(0))

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(CheckpointError) as caught:
            store.put_part(STEP, PART, digests)
    assert str(caught.value) == f"{places.courier}: No space left on device"
    assert files_below(run_dir) == []
    store.put_part(STEP, PART, digests)  # it can be tried again
    assert files_below(run_dir) == [
        f"checkpoints/{STATE}.partial/{PART}/{name}" for name in digests
    ]


def test_a_refusal_in_the_middle_is_heard_by_who_still_sends(door):
    said = {**ASK, "size": 8, "sha256": SHA256}
    with pytest.raises(TransferFailed, match="1048576 bytes where 8 were left"):
        send(door, said, *[DATA[:PIECE_BYTES]] * 24)


def test_a_launcher_of_another_launch_is_not_spoken_to(door):
    link = door.courier(generation=GENERATION + 1).link()
    with pytest.raises(TransferFailed, match="launch 3 of the run is there"):
        link.__enter__()


def test_a_limit_holds_for_the_whole_file(door):
    def wait() -> None:
        with door.courier(limit_s=0.2).link() as link:
            link.say({**ASK, "size": len(DATA), "sha256": SHA256})
            link.hear()
            link.hear()  # nothing comes: the launcher waits for the file

    with pytest.raises(TransferFailed, match=r"no answer in time|took longer than its limit"):
        wait()


# --- states ---


def sealed(run_dir: Path) -> Checkpoint:
    parts = []
    for stage in range(2):
        folder = partial_directory(run_dir, STEP) / f"stage-{stage}"
        parts.append(Part(folder.name, (stage,), write_part(folder, tensors_of(stage)), {}))
    return load_manifest(seal(run_dir, STEP, parts, seed=0, microbatches=4))


def read(places: Places, state: str, layer: int) -> Tensor:
    checkpoint, open_part = places.open_state(state)
    return read_layers(checkpoint, [layer], open_part)[f"{layer}.weight"]


def test_a_checkpoint_is_fetched_part_by_part(places, run_dir, tmp_path):
    sealed(run_dir)
    for layer in range(2):
        assert torch.equal(read(places, STATE, layer), tensors_of(layer)[f"{layer}.weight"])
    assert files_below(tmp_path / "worker") == []


def test_a_checkpoint_that_lies_here_too_is_read_here(places, run_dir, tmp_path, monkeypatch):
    """A shared file system, or the launcher's machine before the training begins."""
    sealed(run_dir)
    near = replace(places, run_dir=str(run_dir), home=Home.of(str(run_dir), SECRET, GENERATION))
    monkeypatch.setattr(far.FarStates, "fetched", None)
    assert torch.equal(read(near, STATE, 1), tensors_of(1)["1.weight"])


def test_another_checkpoint_at_the_same_path_is_not_read(places, run_dir, tmp_path):
    sealed(run_dir)
    other = tmp_path / "worker" / "run"
    folder = partial_directory(other, STEP) / "stage-0"
    part = Part("stage-0", (0,), write_part(folder, {"0.weight": torch.zeros(1)}), {})
    seal(other, STEP, [part], seed=0, microbatches=4)
    here = replace(places, run_dir=str(other), home=Home.of(str(other), SECRET, GENERATION))
    assert torch.equal(read(here, STATE, 0), tensors_of(0)["0.weight"])


def test_the_checkpoint_that_the_run_went_on_from_is_fetched(places, run_dir):
    directory = sealed(run_dir).directory
    with file_door(RunShelf(run_dir.parent / "next", directory).answer) as door:
        resumed = replace(places, resumed="/nowhere/at/all", courier=door.courier())
        assert torch.equal(read(resumed, "resumed", 0), tensors_of(0)["0.weight"])


def test_a_changed_part_is_refused(places, run_dir):
    checkpoint = sealed(run_dir)
    [path] = (Path(checkpoint.directory) / "stage-1").glob("*.safetensors")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"stage-1/.* was changed .* \(SHA-256 differs\)"):
        read(places, STATE, 1)


def test_a_checkpoint_that_is_not_there_is_said_in_one_line(places):
    with pytest.raises(CheckpointError) as caught:
        places.open_state(STATE)
    assert str(caught.value) == f"{places.courier}: No such file or directory"


def test_a_broken_connection_is_tried_again(places, run_dir, monkeypatch):
    sealed(run_dir)
    monkeypatch.setattr(far, "PAUSES_S", (0.01,))
    whole, cut = file_link.FileLink.pieces, []

    def broken(link, num_bytes):
        for piece in whole(link, num_bytes):
            if not cut:
                cut.append(True)
                raise TransferFailed("the connection broke")
            yield piece

    monkeypatch.setattr(file_link.FileLink, "pieces", broken)
    assert torch.equal(read(places, STATE, 0), tensors_of(0)["0.weight"])
    assert cut


def test_a_rebuilt_state_goes_there_and_back(places, run_dir, tmp_path):
    folder = places.new_state(REBUILT)
    digests = write_part(folder / "stage-1", tensors_of(1))
    write_manifest(Checkpoint(str(folder), 6, 0, 4, (Part("stage-1", (1,), digests, {}),)))
    places.put_state(REBUILT, {"stage-1": digests})
    assert not folder.exists()
    assert (rebuilt_states(run_dir) / REBUILT / "manifest.json").exists()
    assert torch.equal(read(places, REBUILT, 1), tensors_of(1)["1.weight"])


# --- this machine ---


def test_the_directory_of_a_machine_is_private_and_goes_with_the_run(places, tmp_path):
    own = places.own_dir()
    assert own.is_dir()
    assert own.parent.stat().st_mode & 0o777 == 0o700
    newer = replace(places, courier=replace(places.courier, generation=GENERATION + 1))
    assert newer.own_dir().parent == own.parent
    assert not own.exists()  # of a launch that is past
    newer.leave()
    assert files_below(tmp_path / "worker") == []
    assert list((tmp_path / "worker").iterdir()) == []


def test_a_directory_that_others_may_enter_is_not_used(places):
    places.own_dir().parent.chmod(0o755)
    with pytest.raises(PermissionError, match="not a private directory"):
        places.own_dir()
