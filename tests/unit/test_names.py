"""Names from a wire: only their closed forms, and none of them leads out of a directory."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import names
from holdfast.cluster import WorkerId
from holdfast.errors import ProtocolError
from holdfast.storage.log.segment import segment_path
from holdfast.storage.manifest import partial_directory
from holdfast.storage.places import Places
from holdfast.storage.run_paths import rebuilt_directory, state_name

FORMS = [value for value in vars(names).values() if isinstance(value, names.Form)]
GOOD = {
    names.WORKER: ["0.0", "10.3", "9999.9999", str(WorkerId(3, 2))],
    names.MACHINE: ["m0", "node-1", "gpu_07.rack2.example", "10.0.0.1", "a" * 63],
    names.SHA256: ["0" * 64, "af" * 32],
    names.HASH: ["0" * 32, "af" * 16],
    names.LAYER: ["0", "31"],
    names.OPERATION: ["0F0", "12BW345", "2R"],
    names.RUN_ID: ["0123456789abcdef.0", ".0", "00.12"],
    names.CHECKPOINT: [partial_directory("x", 20).with_suffix("").name],
    names.PART: ["stage-0", "stage-12.0a1b2c3d"],
    names.PART_FILE: [
        "model.safetensors.index.json",
        "shard-00001-model-00001-of-00001.safetensors",
    ],
    names.REBUILT: [rebuilt_directory("x", 20, 1, 3).name],
    names.RESUMED: ["resumed"],
    names.SEGMENT: [segment_path(Path("x"), 7).name],
}
LEADS_ELSEWHERE = ["", ".", "..", "/", "/etc/passwd", "../0.0", "0.0/..", "a/b", "\\", ".hidden"]
LEADS_ELSEWHERE += ["0.0\n", "0.0\0", "0.0 ", " 0.0", "-1.0"]
ARABIC = "\u0663.\u0660"  # digits, to str.isdigit
BAD_WORKERS = [ARABIC, "00.0", "10000.0", "0", "0.0.0", "stage-0"]
BAD_PARTS = ["stage-", "stage-0.", "stage-0.0A1B2C3D", "stage-0.0a1b2c3", "stage-00"]


def test_every_form_has_examples():
    assert set(GOOD) == set(FORMS)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.what)
def test_a_form_takes_what_we_write_and_nothing_that_leads_elsewhere(form):
    for text in GOOD[form]:
        assert form.check(text, "x") == text
    for text in [*LEADS_ELSEWHERE, ARABIC, 7, None, b"0.0", ["0.0"]]:
        with pytest.raises(ProtocolError, match="expected"):
            form.check(text, "x")


def test_a_worker_and_a_part_have_one_spelling():
    assert not any(names.WORKER.fits(text) for text in BAD_WORKERS)
    assert not any(names.PART.fits(text) for text in BAD_PARTS)


@given(st.text(st.characters(codec="utf-8"), max_size=40))
def test_s5_whatever_fits_stays_below_its_directory(text):
    for form in FORMS:
        if form.fits(text):
            assert Path("a", text).parent == Path("a")
            assert not text.startswith(".") or form is names.RUN_ID


@pytest.mark.parametrize("value", [-1, 10000, True, 1.0, "1", None, 1 << 70])
def test_a_number_out_of_bounds_is_refused(value):
    with pytest.raises(ProtocolError, match="expected 0 to 9999"):
        names.check_number(value, "stage", 0, names.MOST_STAGE)


# --- from names to places, and back ---

PLACES = Places("/runs/x", "/runs/w/checkpoints/step-00000004", "/runs/x/log", "")


@pytest.mark.parametrize(
    ("name", "directory"),
    [
        ("step-00000020", "/runs/x/checkpoints/step-00000020"),
        ("step-00000020-from-stage-1-3", "/runs/x/rebuilt/step-00000020-from-stage-1-3"),
        ("resumed", "/runs/w/checkpoints/step-00000004"),
    ],
)
def test_s5_a_name_leads_below_the_run_directory_or_to_what_was_told_at_the_start(name, directory):
    assert str(PLACES.state(name)) == directory
    assert state_name("/runs/x", directory) == name


@pytest.mark.parametrize("name", [*LEADS_ELSEWHERE, "checkpoints", "step-00000020/.."])
def test_s5_no_other_name_leads_anywhere(name):
    with pytest.raises(ProtocolError, match="expected"):
        PLACES.state(name)


def test_the_beginning_has_no_name():
    assert state_name("/runs/x", "") == ""
