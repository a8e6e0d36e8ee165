"""The model of a checkpoint in formats of others: every bit, the model's names, or nothing."""

import json
import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

import holdfast as hf
from holdfast.cli.main import main
from holdfast.errors import CheckpointError, ConfigError
from holdfast.storage.checkpoint import write_part
from holdfast.storage.manifest import Origin, Part, find, partial_directory, seal
from holdfast.weights import writing
from holdfast.weights.exporting import export_checkpoint
from holdfast.weights.naming import OwnNames

FORMATS = ["safetensors", "dcp"]
Usage = namedtuple("Usage", "total used free")


def of_layer(layer: int) -> dict[str, Tensor]:
    weight = torch.randn(3, 5, generator=torch.Generator().manual_seed(layer))
    return {
        f"{layer}.weight": weight,
        f"{layer}.half": weight.to(torch.bfloat16),
        f"{layer}.special": torch.tensor([torch.nan, torch.inf, -0.0, 1e-45]),
        f"{layer}.count": torch.tensor(2**40 + layer),
        f"{layer}.mask": torch.tensor([True, False]),
        f"{layer}.nothing": torch.zeros(0, 4),
    }


MODEL = {key: value for layer in (0, 1, 2, 10) for key, value in of_layer(layer).items()}


def written(
    run_dir: Path, tensors: dict[str, Tensor], *, step: int = 4, origin: Origin | None = None
) -> Path:
    """A run with a checkpoint of two parts, in which every tensor has optimizer state, too."""
    layers = sorted({int(key.partition(".")[0]) for key in tensors})
    parts = []
    for stage, own in enumerate((layers[: len(layers) // 2], layers[len(layers) // 2 :])):
        kept = {k: v for k, v in tensors.items() if int(k.partition(".")[0]) in own}
        kept |= {f"{key}/exp_avg": torch.ones(2) for key in kept}
        kept |= {f"{own[0]}.table/not persistent": torch.ones(3)}
        folder = partial_directory(run_dir, step) / f"stage-{stage}"
        parts.append(Part(folder.name, tuple(own), write_part(folder, kept), {}))
    seal(run_dir, step, parts, seed=0, microbatches=4, origin=origin)
    return run_dir


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return written(tmp_path / "run", MODEL)


def read_back(folder: Path, to: str) -> dict[str, Tensor]:
    if to == "dcp":
        dcp_to_torch_save(folder, folder.with_suffix(".pt"))
        return torch.load(folder.with_suffix(".pt"), weights_only=True)
    found: dict[str, Tensor] = {}
    for file in folder.glob("*.safetensors"):
        found |= load_file(file)
    return found


def bits(tensors: dict[str, Tensor]) -> dict[str, tuple[object, ...]]:
    raw = {k: t.contiguous().reshape(-1).view(torch.uint8).tolist() for k, t in tensors.items()}
    return {key: (str(t.dtype), tuple(t.shape), raw[key]) for key, t in tensors.items()}


# --- what is written ---


@pytest.mark.parametrize("to", FORMATS)
def test_an_export_has_the_weights_with_all_their_bits_and_nothing_else(run, to):
    folder = hf.export(run, to)
    assert folder == run / "exports" / f"step-00000004-{to}"
    assert os.listdir(folder.parent) == [folder.name]
    assert bits(read_back(folder, to)) == bits(MODEL)


def test_others_load_an_export_for_torch_distributed_in_their_own_way(run, tmp_path):
    folder = hf.export(run, "dcp", tmp_path / "out")
    found = {key: torch.zeros_like(tensor) for key, tensor in MODEL.items()}
    with pytest.warns(UserWarning, match="torch.distributed is"):
        dcp.load(found, checkpoint_id=folder)
    assert bits(found) == bits(MODEL)


def test_large_models_are_written_as_several_files_with_an_index(run, monkeypatch, tmp_path):
    monkeypatch.setattr(writing, "SHARD_BYTES", 150)
    said: list[str] = []
    folder = hf.export(run, out=tmp_path / "out", say=said.append)
    files = sorted(path.name for path in folder.glob("*.safetensors"))
    assert len(files) > 2
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    total = sum(tensor.nbytes for tensor in MODEL.values())
    assert index["metadata"] == {"total_size": total}
    for key, file in index["weight_map"].items():
        assert bits({key: load_file(folder / file)[key]}) == bits({key: MODEL[key]})
    assert index["weight_map"].keys() == MODEL.keys()
    assert said[-1] == f"{total} B of {total} B written"
    assert len(said) == len(files)


def test_names_are_the_models_own_and_twins_of_one_name_are_written_once(run, tmp_path):
    names = OwnNames(lambda key: f"model.{key.partition('.')[2]}" if "weight" in key else key)
    folder = export_checkpoint(find(run), "safetensors", tmp_path / "out", names)
    found = read_back(folder, "safetensors")
    assert bits({"w": found["model.weight"]}) == bits({"w": MODEL["0.weight"]})
    assert len(found) == len(MODEL) - 3


def test_the_step_and_the_run_can_be_named_in_several_ways(run, tmp_path):
    other = {key: torch.zeros_like(tensor) for key, tensor in MODEL.items()}
    written(run, other, step=7)
    for number, (place, step, expected) in enumerate(
        [
            (run, None, other),
            (str(run), 4, MODEL),
            (run / "checkpoints" / "step-00000004", None, MODEL),
        ]
    ):
        folder = hf.export(place, out=tmp_path / str(number), step=step)
        assert bits(read_back(folder, "safetensors")) == bits(expected)


@pytest.mark.wide
def test_a_folder_for_transformers_is_loaded_by_it(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=16,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    whole = {k: v.clone() for k, v in model.state_dict().items()}
    heads = {"model.embed_tokens.": "0.", "model.norm.": "3.", "lm_head.": "4."}
    heads |= {f"model.layers.{number}.": f"{number + 1}." for number in range(2)}
    own = {
        key.replace(head, short): key
        for key in whole
        for head, short in heads.items()
        if key.startswith(head)
    }
    run = written(tmp_path / "run", {key: whole[name] for key, name in own.items()})
    names = OwnNames(own.__getitem__, config)
    folder = export_checkpoint(find(run), "hf", tmp_path / "out", names)
    loaded, told = transformers.LlamaForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(told.values()), told
    assert bits(loaded.state_dict()) == bits(whole)
    tokens = torch.arange(8)[None]
    assert torch.equal(loaded.eval()(tokens).logits, model(tokens).logits)


# --- what is refused ---


def refused(capsys, *words: object) -> str:
    assert main(["export", *map(str, words)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    return line


def test_bad_input_is_one_line(run, tmp_path, capsys):
    assert "nowhere: no such directory" in refused(capsys, tmp_path / "nowhere")
    assert "no checkpoint below it" in refused(capsys, tmp_path)
    line = refused(capsys, run, "--to", "onnx")
    assert line == "holdfast: --to onnx: expected safetensors, hf, dcp"
    assert "--step 3: " in (line := refused(capsys, run, "--step", 3))
    assert line.endswith("has no such checkpoint, but those of step 4")
    assert "is of a list of layers" in refused(capsys, run, "--to", "hf")
    (tmp_path / "file").touch()
    assert "cannot be written (File exists)" in refused(
        capsys, run, "--out", tmp_path / "file" / "x"
    )
    assert not (run / "exports").exists()


def test_what_is_there_is_replaced_only_if_asked_and_only_if_it_is_an_export(run, tmp_path, capsys):
    out = hf.export(run, out=tmp_path / "out")
    assert "exists; choose another place with --out" in refused(capsys, run, "--out", out)
    (out / "notes.txt").touch()
    line = refused(capsys, run, "--out", out, "--force")
    assert "out: holds notes.txt, which is of no export, and is not replaced" in line
    (out / "notes.txt").unlink()
    (out / "model.safetensors").write_bytes(b"old")
    assert main(["export", str(run), "--out", str(out), "--force"]) == 0
    assert bits(read_back(out, "safetensors")) == bits(MODEL)
    assert sorted(os.listdir(tmp_path)) == ["out", "run"]


def test_too_little_room_is_seen_before_anything_is_written(run, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10, 0, 10))
    with pytest.raises(ConfigError, match="has 10 B free, and the model takes 464 B; make room"):
        hf.export(run, out=tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["run"]


@pytest.mark.parametrize("to", FORMATS)
def test_a_disk_that_becomes_full_leaves_nothing_and_the_old_export_as_it_was(
    run, to, tmp_path, monkeypatch
):
    out = hf.export(run, to, tmp_path / "out")
    before = {path.name: path.read_bytes() for path in out.iterdir()}

    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("holdfast.weights.exporting.sync_file", full)
    with pytest.raises(ConfigError, match=r"out: cannot be written \(No space left on device\)"):
        hf.export(run, to, out, force=True)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert sorted(os.listdir(tmp_path)) == ["out", "run"]


def test_a_damaged_checkpoint_is_not_exported(run, tmp_path):
    [file] = (run / "checkpoints" / "step-00000004" / "stage-1").glob("*.safetensors")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match="SHA-256 differs"):
        hf.export(run, out=tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["run"]


def test_a_run_on_emulated_devices_has_no_model(tmp_path):
    origin = Origin(settings={"device": {"emulate": "F=1ms,B=1ms,W=1ms"}})
    run = written(tmp_path / "run", MODEL, origin=origin)
    with pytest.raises(ConfigError, match="train a stand-in"):
        hf.export(run)
