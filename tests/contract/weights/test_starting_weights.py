"""Weights of others: found in every kind of file, fitted by name, or refused in one line."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from holdfast.errors import ConfigError
from holdfast.runtime.stage.named_tensors import live_tensors, names_of_each
from holdfast.storage.checkpoint import write_part
from holdfast.storage.manifest import Part, partial_directory, seal
from holdfast.weights.files import open_weights
from holdfast.weights.place import as_setting, on_this_machine
from holdfast.weights.starting import StartingWeights


def layers(seed: int) -> dict[int, nn.Module]:
    torch.manual_seed(seed)
    first, last = nn.Linear(4, 4, bias=False), nn.Linear(4, 4)
    last.weight = first.weight
    return {0: first, 1: nn.BatchNorm1d(4), 2: last}


GIVEN = {key: tensor.clone() for key, tensor in live_tensors(layers(1)).items()}


def started(path: Path, names=None, *, strict: bool = True) -> tuple[dict[str, Tensor], str]:
    model = layers(2)
    weights, twins = StartingWeights(path, names, strict=strict), names_of_each(model)
    told = weights.check(live_tensors(model), twins)
    for number in model:  # as stages do, one by one
        weights.fill(live_tensors({number: model[number]}), twins)
    return live_tensors(model), told


def assert_given(found: dict[str, Tensor]) -> None:
    assert found.keys() == GIVEN.keys()
    for key, tensor in GIVEN.items():
        assert torch.equal(found[key], tensor), key


def one_file(folder: Path) -> Path:
    save_file(GIVEN, folder / "model.safetensors")
    return folder / "model.safetensors"


def hf_folder(folder: Path) -> Path:
    weight_map = {}
    for number, (key, tensor) in enumerate(GIVEN.items()):
        weight_map[key] = f"model-{number}.safetensors"
        save_file({key: tensor}, folder / weight_map[key])
    save_file({"stranger": torch.ones(1)}, folder / "not-in-the-index.safetensors")
    index = json.dumps({"weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(index)
    return folder


def plain_folder(folder: Path) -> Path:
    one_file(folder)
    return folder


def state_dict(folder: Path) -> Path:
    torch.save(GIVEN, folder / "model.pt")
    return folder / "model.pt"


def old_state_dict(folder: Path) -> Path:
    torch.save(GIVEN, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    return folder


def run_directory(folder: Path) -> Path:
    part = partial_directory(folder, 3) / "stage-0"
    tensors = {**GIVEN, "0.weight/exp_avg": torch.ones(4)}
    sealed = [Part("stage-0", (0, 1, 2), write_part(part, tensors), {})]
    seal(folder, 3, sealed, seed=0, microbatches=1)
    return folder


def checkpoint(folder: Path) -> Path:
    return run_directory(folder) / "checkpoints" / "step-00000003"


KINDS = [
    *(one_file, hf_folder, plain_folder, state_dict, old_state_dict, run_directory, checkpoint),
]


@pytest.mark.parametrize("make", KINDS)
def test_weights_are_read_from(make, tmp_path):
    found, told = started(make(tmp_path))
    assert_given(found)
    assert told == ""


@pytest.mark.parametrize(
    "names",
    [lambda key: f"model.{key}", {key: f"model.{key}" for key in GIVEN}],
    ids=["function", "mapping"],
)
def test_names_of_the_file_may_be_others(names, tmp_path):
    save_file({f"model.{key}": t for key, t in GIVEN.items()}, tmp_path / "w.safetensors")
    assert_given(started(tmp_path / "w.safetensors", names)[0])


def test_of_tied_parameters_the_file_needs_only_one(tmp_path):
    for absent in ("0.weight", "2.weight"):
        held = {key: tensor for key, tensor in GIVEN.items() if key != absent}
        save_file(held, tmp_path / "w.safetensors")
        assert_given(started(tmp_path / "w.safetensors")[0])


def test_floating_types_are_turned_into_the_models(tmp_path):
    half = {k: t.bfloat16() if t.is_floating_point() else t for k, t in GIVEN.items()}
    save_file(half, tmp_path / "w.safetensors")
    found, _ = started(tmp_path / "w.safetensors")
    assert torch.equal(found["2.bias"], half["2.bias"].float())
    assert not torch.equal(found["2.bias"], GIVEN["2.bias"])


def test_only_what_is_asked_for_is_read(tmp_path):
    weights = StartingWeights(checkpoint(tmp_path), None, strict=True)
    [file] = tmp_path.glob("checkpoints/*/stage-0/*.safetensors")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    weights.fill({}, {})
    with pytest.raises(ConfigError, match="SHA-256 differs"):
        weights.fill(live_tensors(layers(2)), {})


# --- what does not fit ---


def test_weights_that_do_not_fit_are_one_line_with_the_first_names_and_how_many(tmp_path):
    other = {f"old.{number}": torch.ones(1) for number in range(5)}
    save_file({**other, "2.bias": torch.ones(7)}, tmp_path / "w.safetensors")
    with pytest.raises(ConfigError) as why:
        started(tmp_path / "w.safetensors", lambda key: "2.bias" if key == "2.bias" else key)
    assert str(why.value) == (
        f"job.weights={tmp_path}/w.safetensors: does not fit the job: tensors 7 missing (0.weight, "
        "1.weight, 1.bias and 4 more), 5 without a place in the job (old.0, old.1, old.2 and 2 "
        "more), 1 of another shape (2.bias: [7] there, [4] in the job); map the names with "
        "Job.weight_names"
    )


def test_what_does_not_fit_may_stay_as_the_job_makes_it(tmp_path):
    held = {key: tensor for key, tensor in GIVEN.items() if key != "1.bias"}
    save_file({**held, "2.bias": torch.ones(7), "old": torch.ones(1)}, tmp_path / "w.safetensors")
    with pytest.raises(ConfigError, match=r"or accept it with job\.weights_strict=false"):
        started(tmp_path / "w.safetensors")
    found, told = started(tmp_path / "w.safetensors", strict=False)
    for key, tensor in live_tensors(layers(2)).items():
        kept = key in ("1.bias", "2.bias")
        assert torch.equal(found[key], tensor if kept else GIVEN[key]), key
    assert "tensors 1 missing (1.bias), 1 without a place in the job (old), 1 of another" in told
    assert told.endswith(f"; {len(GIVEN) - 2} of {len(GIVEN)} tensors are taken")


def test_weights_of_which_nothing_fits_are_refused_anyway(tmp_path):
    save_file({"other": torch.ones(1)}, tmp_path / "w.safetensors")
    with pytest.raises(ConfigError, match="does not fit the job"):
        started(tmp_path / "w.safetensors", strict=False)


def test_whole_numbers_are_not_taken_for_floating_ones(tmp_path):
    save_file({**GIVEN, "2.bias": torch.ones(4, dtype=torch.int64)}, tmp_path / "w.safetensors")
    with pytest.raises(ConfigError, match=r"2\.bias: not of the job's type, torch\.float32"):
        started(tmp_path / "w.safetensors")


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (lambda key: {}[key], r"Job\.weight_names\('0\.weight'\): KeyError"),
        (lambda key: 3, "gives 3 for '0.weight': expected a name"),
    ],
)
def test_a_map_of_names_that_fails_is_one_line(names, said, tmp_path):
    with pytest.raises(ConfigError, match=said):
        started(one_file(tmp_path), names)


# --- what is no weights ---


def test_what_is_no_weights_is_one_line(tmp_path):
    def refused(name: str) -> str:
        with pytest.raises(ConfigError) as why:
            open_weights(tmp_path / name)
        assert "\n" not in str(why.value)
        return str(why.value).removeprefix(f"{tmp_path}/")

    for name in ("cut.safetensors", "cut.pt", "notes.txt"):
        (tmp_path / name).write_bytes(b"PK\3\4no such thing")
    (tmp_path / "empty").mkdir()
    assert refused("cut.safetensors").startswith("cut.safetensors: cannot be read as safetensors")
    assert refused("cut.pt").startswith("cut.pt: cannot be read as a state dict (")
    assert refused("notes.txt").startswith("notes.txt: expected a .safetensors file, a .pt file")
    assert refused("empty").startswith("empty: holds no weights; expected")
    torch.save({"model": GIVEN}, tmp_path / "nested.pt")
    assert refused("nested.pt").startswith("nested.pt: 'model' is a dict: expected a state dict")
    torch.save(nn.Linear(2, 2), tmp_path / "module.pt")
    assert refused("module.pt").startswith("module.pt: cannot be read as a state dict (")
    index = tmp_path / "empty" / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "../cut.safetensors"}}')
    assert "names files elsewhere, or none" in refused("empty")
    index.write_text('{"weight_map": {"a": "b.safetensors"}}')
    assert "names b.safetensors, which is not beside it" in refused("empty")


# --- where, and whether they are the same ---


def test_a_file_in_the_folder_of_the_job_is_named_from_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job" / "w").mkdir(parents=True)
    path = one_file(tmp_path / "job" / "w")
    setting = as_setting("job/w/model.safetensors", tmp_path / "job", is_here=True)
    assert setting == "w/model.safetensors"
    assert on_this_machine(setting, tmp_path / "job") == path
    assert as_setting(str(path), tmp_path / "other", is_here=True) == str(path)
    assert as_setting(str(path), None, is_here=True) == str(path)
    with pytest.raises(ConfigError, match=r"HOLDFAST_FILES = \[\"w/model.safetensors\"\]"):
        on_this_machine(setting, tmp_path / "unpacked")
    with pytest.raises(ConfigError, match=r"no /there/w\.pt on this machine; put it there on ev"):
        on_this_machine("/there/w.pt", tmp_path)
    with pytest.raises(ConfigError, match="weights=gone: no such file"):
        as_setting("gone", None, is_here=True)
    assert as_setting("gone", None, is_here=False) == str(tmp_path / "gone")
    with pytest.raises(ConfigError, match="on a disk; export it to one first"):
        as_setting("s3://bucket/run", None, is_here=True)


@pytest.mark.parametrize("num_bytes", [1000, (64 << 20) + 5])
def test_other_content_of_the_same_size_has_another_digest(num_bytes, tmp_path):
    path = tmp_path / "w.safetensors"
    digests = []
    for value in (0, 0, 1):
        save_file({"a": torch.full((num_bytes,), value, dtype=torch.uint8)}, path)
        digests.append(StartingWeights(path, None, strict=True).digest())
    assert digests[0] == digests[1] != digests[2]
