"""What makes a directory a checkpoint, and every way in which it can fail to be one."""

import hashlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.api.resuming import remembered
from holdfast.config import config_from
from holdfast.errors import CheckpointError, ConfigError, ProtocolError
from holdfast.storage.manifest import (
    FORMAT,
    Checkpoint,
    Origin,
    Part,
    clear_abandoned,
    file_digest,
    find,
    load_manifest,
    partial_directory,
    seal,
    trim,
    verify,
)

MANIFEST = "manifest.json"


def write_parts(run_dir: Path, step: int) -> list[Part]:
    """Two stages' folders, as workers would leave them: not yet a checkpoint."""
    parts = []
    for stage, layers in enumerate([(0, 1), (2,)]):
        folder = partial_directory(run_dir, step) / f"stage-{stage}"
        folder.mkdir(parents=True)
        (folder / "tensors").write_bytes(b"step %d stage %d" % (step, stage))
        (folder / "index").write_bytes(b"index")
        files = {path.name: file_digest(path) for path in sorted(folder.iterdir())}
        parts.append(Part(folder.name, layers, files, {}))
    return parts


def sealed(run_dir: Path, step: int) -> Path:
    return seal(run_dir, step, write_parts(run_dir, step), seed=3, microbatches=8)


def change_manifest(path: Path, **changes) -> None:
    values = json.loads((path / MANIFEST).read_text())
    (path / MANIFEST).write_text(json.dumps(values | changes))


def test_a_sealed_checkpoint_is_read_back_as_it_was_written(tmp_path):
    parts = write_parts(tmp_path, 20)
    path = seal(tmp_path, 20, parts, seed=3, microbatches=8)
    assert path == tmp_path / "checkpoints" / "step-00000020"
    found = load_manifest(path)
    assert found == Checkpoint(str(path), 20, 3, 8, tuple(parts))
    assert found.run_dir == tmp_path
    assert found.num_layers == 3
    assert [found.part_of(layer).directory for layer in range(3)] == ["stage-0"] * 2 + ["stage-1"]
    for part in found.parts:
        assert verify(found, part) == path / part.directory


def test_a_run_directory_stands_for_its_newest_checkpoint(tmp_path):
    for step in (100, 20, 3):
        sealed(tmp_path, step)
    assert find(tmp_path).step == 100
    assert find(tmp_path / "checkpoints" / "step-00000020").step == 20


def test_what_is_not_sealed_is_never_found_even_if_newer(tmp_path):
    sealed(tmp_path, 20)
    write_parts(tmp_path, 40)
    assert find(tmp_path).step == 20


def test_a_seal_that_was_cut_short_before_its_rename_is_not_a_checkpoint(tmp_path, monkeypatch):
    def power_cut(self, target):
        raise InterruptedError(str(self))

    parts = write_parts(tmp_path, 40)
    monkeypatch.setattr(Path, "rename", power_cut)
    with pytest.raises(InterruptedError):
        seal(tmp_path, 40, parts, seed=3, microbatches=8)
    monkeypatch.undo()
    assert (partial_directory(tmp_path, 40) / MANIFEST).exists()  # it came as far as that
    with pytest.raises(CheckpointError, match="no checkpoint below it"):
        find(tmp_path)
    assert seal(tmp_path, 40, parts, seed=3, microbatches=8).exists()
    assert find(tmp_path).step == 40


def test_sealing_leaves_no_partial_directory_behind(tmp_path):
    path = sealed(tmp_path, 20)
    assert [p.name for p in path.parent.iterdir()] == ["step-00000020"]


def test_a_step_sealed_again_replaces_the_old_one(tmp_path):
    sealed(tmp_path, 20)
    parts = write_parts(tmp_path, 20)
    seal(tmp_path, 20, parts[:1], seed=9, microbatches=8)
    assert (find(tmp_path).seed, find(tmp_path).num_layers) == (9, 2)


@pytest.mark.parametrize(("keep", "left"), [(1, [50]), (2, [40, 50]), (9, [10, 20, 40, 50])])
def test_trim_keeps_the_newest(tmp_path, keep, left):
    for step in (40, 10, 50, 20):
        sealed(tmp_path, step)
    write_parts(tmp_path, 60)  # being written: not counted, not touched
    trim(tmp_path, keep)
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == [f"step-{step:08d}" for step in left] + ["step-00000060.partial"]


def test_trimming_a_run_without_checkpoints_does_nothing(tmp_path):
    trim(tmp_path, 2)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_directory_is_named(tmp_path):
    place = tmp_path / "nowhere"
    with pytest.raises(CheckpointError) as why:
        find(place)
    assert str(why.value) == f"{place}: no such directory; give a run directory"
    assert why.value.exit_code == 2


def test_a_directory_without_checkpoint_is_named_with_what_was_expected(tmp_path):
    with pytest.raises(CheckpointError) as why:
        find(tmp_path)
    assert str(tmp_path) in str(why.value)
    assert "expected checkpoints/step-*/manifest.json there" in str(why.value)


def test_every_layer_that_is_not_there_is_refused_by_number(tmp_path):
    path = sealed(tmp_path, 20)
    with pytest.raises(CheckpointError, match="has no layer 3: it holds 3 layers") as why:
        load_manifest(path).part_of(3)
    assert str(path) in str(why.value)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.95, 0.999])
def test_a_manifest_cut_off_anywhere_is_refused(tmp_path, share):
    path = sealed(tmp_path, 20)
    text = (path / MANIFEST).read_text()
    (path / MANIFEST).write_text(text[: int(share * len(text))])
    with pytest.raises(CheckpointError, match="its manifest cannot be read") as why:
        find(tmp_path)
    assert str(path) in str(why.value)


def test_a_changed_byte_anywhere_in_the_manifest_is_found_or_harmless(tmp_path):
    path = sealed(tmp_path, 20)
    data, good = (path / MANIFEST).read_bytes(), load_manifest(path)
    refused = 0
    for place in range(0, len(data), 3):
        (path / MANIFEST).write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        try:
            assert load_manifest(path) == good  # white space may change
        except CheckpointError:
            refused += 1
    assert refused > len(data) / 6


@pytest.mark.parametrize(
    "changes", [{"step": 21}, {"seed": 4}, {"microbatches": 4}, {"parts": []}, {"extra": 1}]
)
def test_a_manifest_changed_by_hand_is_refused(tmp_path, changes):
    path = sealed(tmp_path, 20)
    change_manifest(path, **changes)
    with pytest.raises(CheckpointError, match="its manifest was changed or cut off"):
        find(tmp_path)


@pytest.mark.parametrize("text", ["[]", "3", "null", '"x"', "{}", '{"sha256": ""}', "\x00\xff"])
def test_a_manifest_that_is_something_else_is_refused(tmp_path, text):
    path = sealed(tmp_path, 20)
    (path / MANIFEST).write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError, match="its manifest"):
        load_manifest(path)


def test_an_unknown_format_is_refused_with_the_one_expected(tmp_path, monkeypatch):
    monkeypatch.setattr("holdfast.storage.contents.FORMAT", FORMAT + 1)
    path = sealed(tmp_path, 20)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match=f"format {FORMAT + 1}, expected {FORMAT}"):
        load_manifest(path)


def test_a_flipped_bit_in_any_file_is_found_and_the_file_named(tmp_path):
    path = sealed(tmp_path, 20)
    checkpoint = load_manifest(path)
    for part in checkpoint.parts:
        for name in part.files:
            file = path / part.directory / name
            data = file.read_bytes()
            file.write_bytes(data[:-1] + bytes([data[-1] ^ 128]))
            with pytest.raises(CheckpointError, match=f"{part.directory}/{name} was changed"):
                verify(checkpoint, part)
            file.write_bytes(data)
            verify(checkpoint, part)


def test_a_missing_file_is_found_and_named(tmp_path):
    path = sealed(tmp_path, 20)
    (path / "stage-1" / "tensors").unlink()
    checkpoint = load_manifest(path)
    verify(checkpoint, checkpoint.parts[0])
    with pytest.raises(CheckpointError, match=r"stage-1/tensors cannot be read \(No such file"):
        verify(checkpoint, checkpoint.parts[1])


def test_a_missing_folder_is_found_and_named(tmp_path):
    path = sealed(tmp_path, 20)
    shutil.rmtree(path / "stage-0")
    checkpoint = load_manifest(path)
    with pytest.raises(CheckpointError, match="stage-0/index cannot be read"):
        verify(checkpoint, checkpoint.parts[0])


def verify_first(path: Path) -> None:
    checkpoint = load_manifest(path)
    verify(checkpoint, checkpoint.parts[0])


@pytest.mark.parametrize("spoil", ["manifest", "file"])
def test_a_spoilt_checkpoint_is_named_and_the_newest_older_one_proposed(tmp_path, spoil):
    for step in (10, 20, 30, 40):
        sealed(tmp_path, step)
    bad = tmp_path / "checkpoints" / "step-00000030"
    (bad / (MANIFEST if spoil == "manifest" else "stage-0/tensors")).write_text("{}")
    with pytest.raises(CheckpointError) as why:
        verify_first(bad)
    assert str(why.value).startswith(f"checkpoint {bad}: ")
    older = tmp_path / "checkpoints" / "step-00000020"
    assert str(why.value).endswith(f"; resume an older one: {older}")
    assert find(older).step == 20


def test_without_an_older_checkpoint_the_run_has_to_start_anew(tmp_path):
    path = sealed(tmp_path, 20)
    change_manifest(path, step=1)
    with pytest.raises(CheckpointError, match=r"; start the run anew$"):
        find(tmp_path)


def test_a_part_gets_the_name_of_its_stage_and_what_a_lost_writer_left_goes(tmp_path) -> None:
    folder = partial_directory(tmp_path, 7)
    for name in ("stage-0.aaaa0000", "stage-0.bbbb0000", "stage-1.cccc0000"):
        (folder / name).mkdir(parents=True)
        (folder / name / "tensors").write_text(name)
    parts = [
        Part(name, (stage,), {"tensors": file_digest(folder / name / "tensors")}, {})
        for stage, name in enumerate(("stage-0.bbbb0000", "stage-1.cccc0000"))
    ]
    sealed = seal(tmp_path, 7, parts, seed=0, microbatches=4)
    assert sorted(path.name for path in sealed.iterdir() if path.is_dir()) == ["stage-0", "stage-1"]
    checkpoint = load_manifest(sealed)
    assert (verify(checkpoint, checkpoint.parts[0]) / "tensors").read_text() == "stage-0.bbbb0000"


def test_parts_that_will_never_be_whole_go_when_a_later_checkpoint_is_sealed(tmp_path) -> None:
    for step in (3, 5, 8):
        partial_directory(tmp_path, step).mkdir(parents=True)
    clear_abandoned(tmp_path, 5)
    left = sorted(path.name for path in partial_directory(tmp_path, 5).parent.iterdir())
    assert left == ["step-00000005.partial", "step-00000008.partial"]


# --- nothing in a manifest is a path ---

SHA = "0" * 64


def forge(path: Path, change) -> None:
    """A manifest that somebody has changed and signed anew: its own digest is right."""
    values = json.loads((path / MANIFEST).read_text())
    del values["sha256"]
    change(values)
    digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
    (path / MANIFEST).write_text(json.dumps({**values, "sha256": digest}))


FORGED = {
    "an absolute directory": lambda v: v["parts"][0].update(directory="/etc"),
    "a directory above": lambda v: v["parts"][0].update(directory="../step-00000010/stage-0"),
    "a directory of dots": lambda v: v["parts"][0].update(directory=".."),
    "an empty directory": lambda v: v["parts"][0].update(directory=""),
    "a directory that is a number": lambda v: v["parts"][0].update(directory=7),
    "an absolute file": lambda v: v["parts"][0]["files"].update({"/etc/passwd": SHA}),
    "a file above": lambda v: v["parts"][0]["files"].update({"../manifest.json": SHA}),
    "a hidden file": lambda v: v["parts"][0]["files"].update({".x": SHA}),
    "a digest that is none": lambda v: v["parts"][0]["files"].update({"tensors": "abc"}),
    "a negative step": lambda v: v.update(step=-1),
    "a job that is none": lambda v: v.update(job_sha256="../x"),
}


@pytest.mark.parametrize("what", FORGED)
def test_s3_a_forged_manifest_is_refused_whatever_its_own_digest_says(tmp_path, what):
    path = sealed(tmp_path, 20)
    forge(path, lambda values: None)
    assert find(tmp_path).step == 20
    forge(path, FORGED[what])
    with pytest.raises(CheckpointError, match=r"in its manifest .* expected") as why:
        find(tmp_path)
    assert len(str(why.value).splitlines()) == 1
    assert why.value.exit_code == 2


def link_folder(path: Path) -> None:
    (path / "stage-0").rename(path.parent / "elsewhere")
    (path / "stage-0").symlink_to(path.parent / "elsewhere")


def link_file(path: Path) -> None:
    (path / "stage-0" / "tensors").rename(path.parent / "elsewhere")
    (path / "stage-0" / "tensors").symlink_to(path.parent / "elsewhere")


LINKS = {
    "a folder that is a link": (link_folder, "stage-0 is no directory"),
    "a file that is a link": (link_file, "stage-0/tensors is no plain file"),
    "a file too many": (
        lambda path: (path / "stage-0" / "more").write_text("x"),
        "stage-0/more is not in its manifest",
    ),
}


@pytest.mark.parametrize("what", LINKS)
def test_s3_what_leads_out_of_a_checkpoint_is_refused_when_it_is_loaded(tmp_path, what):
    path = sealed(tmp_path, 20)
    spoil, words = LINKS[what]
    spoil(path)
    with pytest.raises(CheckpointError, match=words):
        verify_first(path)


@pytest.mark.parametrize("directory", ["/tmp/x", "../stage-0", "stage-0/../..", "", "."])
def test_s3_a_part_outside_of_its_checkpoint_is_never_sealed(tmp_path, directory):
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_text("mine")
    parts = write_parts(tmp_path, 20)
    spoilt = replace(parts[0], directory=directory.replace("/tmp/x", str(victim)))
    with pytest.raises(ProtocolError, match=r"expected e\.g\. 'stage-1'"):
        seal(tmp_path, 20, [spoilt, parts[1]], seed=3, microbatches=8)
    assert (victim / "file").read_text() == "mine"
    assert not (tmp_path / "checkpoints" / "step-00000020").exists()


UNTRUE = {
    "its digest": (lambda p: replace(p, files={**p.files, "index": SHA}), "SHA-256 differs"),
    "its size": (lambda p: replace(p, sizes={"index": 999}), "has 5 bytes, its writer said 999"),
    "its files": (lambda p: replace(p, files={"index": p.files["index"]}), "is not in its manif"),
}


@pytest.mark.parametrize("what", UNTRUE)
def test_s3_a_part_that_is_not_what_its_writer_says_is_not_sealed(tmp_path, what):
    parts = write_parts(tmp_path, 20)
    change, words = UNTRUE[what]
    with pytest.raises(CheckpointError, match=words):
        seal(tmp_path, 20, [change(parts[0]), parts[1]], seed=3, microbatches=8)
    with pytest.raises(CheckpointError, match="no checkpoint below it"):
        find(tmp_path)


# --- on disk before it counts ---


def test_r9_all_is_on_disk_before_the_rename_and_the_rename_before_the_seal_returns(
    tmp_path, monkeypatch
):
    done: list[str] = []
    sync, rename = os.fsync, Path.rename
    names = lambda number: Path(os.readlink(f"/proc/self/fd/{number}")).name  # noqa: E731
    monkeypatch.setattr(os, "fsync", lambda number: done.append(names(number)) or sync(number))
    monkeypatch.setattr(
        Path, "rename", lambda self, to: done.append(f"-> {to.name}") or rename(self, to)
    )
    sealed(tmp_path, 20)
    assert done == [MANIFEST, "step-00000020.partial", "-> step-00000020", "checkpoints"]


@pytest.mark.parametrize("at", range(4))
def test_r6_a_seal_that_failed_anywhere_can_be_tried_again(tmp_path, monkeypatch, at):
    tried = []
    rename, sync = Path.rename, os.fsync

    def fails(act):
        def acts(*words):
            tried.append(act)
            if len(tried) == at + 1:
                raise OSError(28, "No space left on device")
            return act(*words)

        return acts

    monkeypatch.setattr(Path, "rename", fails(rename))
    monkeypatch.setattr(os, "fsync", fails(sync))
    parts = [replace(p, directory=f"{p.directory}.0a1b2c3d") for p in write_parts(tmp_path, 20)]
    for part in parts:
        folder = partial_directory(tmp_path, 20)
        rename(folder / part.directory.split(".")[0], folder / part.directory)
    with pytest.raises(OSError, match="No space left"):
        seal(tmp_path, 20, parts, seed=3, microbatches=8)
    path = seal(tmp_path, 20, parts, seed=3, microbatches=8)
    checkpoint = find(tmp_path)
    assert [verify(checkpoint, part).parent for part in checkpoint.parts] == [path, path]


def test_what_a_run_is_made_of_is_read_back(tmp_path):
    traits, fingerprint = {"len(Job.data)": "9"}, {"torch": "2"}
    origin = Origin({"train": {"steps": 7}}, "/somewhere/job.py", SHA, traits, fingerprint)
    parts = write_parts(tmp_path, 20)
    seal(tmp_path, 20, parts, seed=3, microbatches=8, origin=origin)
    assert find(tmp_path).origin == origin


def test_a_checkpoint_from_before_has_no_origin_and_is_read_all_the_same(tmp_path):
    def older(values):
        for key in ("settings", "job", "job_sha256", "traits", "fingerprint"):
            del values[key]
        for part in values["parts"]:
            del part["sizes"]

    forge(sealed(tmp_path, 20), older)
    assert find(tmp_path).origin == Origin()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"settings": {"train": 3}}, "settings.train=3: expected a section of settings"),
        ({"settings": [1]}, "settings=[1]: expected names and values"),
        ({"job": 5}, "job=5: expected the path of a job file"),
        ({"job_sha256": 5}, "job_sha256=5: expected 64 hexadecimal digits"),
        ({"job_sha256": None}, "job_sha256=None: expected 64 hexadecimal digits"),
        ({"traits": {"Job.clip_norm": 1.0}}, "traits.Job.clip_norm=1.0: expected text"),
        ({"fingerprint": "torch 2"}, "fingerprint='torch 2': expected names and values"),
    ],
)
def test_an_origin_of_another_form_is_refused_by_name_and_value(tmp_path, changes, words):
    forge(sealed(tmp_path, 20), lambda values: values.update(changes))
    with pytest.raises(CheckpointError) as error:
        find(tmp_path)
    assert f"in its manifest {words}; start the run anew" in str(error.value)


def test_settings_of_a_newer_version_are_left_out_and_the_others_remembered():
    settings = {"train": {"steps": 7, "speed": 3}, "telepathy": {"range": 9}}
    checkpoint = Checkpoint("x", 20, 3, 8, (), Origin(settings))
    assert remembered(checkpoint, {}) == {"train": {"steps": 7}}
    assert config_from(remembered(checkpoint, {})).train.steps == 7
    with pytest.raises(ConfigError, match="telepathy: unknown section"):
        config_from(remembered(checkpoint, {"telepathy": {"range": 9}}))


def test_a_setting_under_its_old_name_is_remembered_under_the_new_one():
    settings = {"workers": {"silence_limit_s": 3.0, "replace": 1}}
    checkpoint = Checkpoint("x", 20, 3, 8, (), Origin(settings))
    assert config_from(remembered(checkpoint, {})).workers.heartbeat_timeout_s == 3.0
    given = remembered(checkpoint, {"workers": {"heartbeat_timeout_s": 4.0}})
    assert given == {"workers": {"replace": 1, "heartbeat_timeout_s": 4.0}}
