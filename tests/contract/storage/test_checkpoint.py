"""Tensors to disk and back: every bit, any cut, and nothing read that was not written."""

import errno
import logging
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from holdfast.errors import CheckpointError
from holdfast.host import scarce
from holdfast.storage import checkpoint as storage
from holdfast.storage import manifest
from holdfast.storage.checkpoint import read_layers, write_part
from holdfast.storage.manifest import Checkpoint, Part, load_manifest, partial_directory, seal

Tensors = Mapping[str, Tensor]
STEP = 4


def of_layer(layer: int) -> dict[str, Tensor]:
    """Parameters, buffers and optimizer state as they come."""
    generator = torch.Generator().manual_seed(layer)
    weight = torch.randn(3, 5, generator=generator)
    return {
        f"{layer}.weight": weight,
        f"{layer}.weight/exp_avg": weight.square(),
        f"{layer}.weight/step": torch.tensor(float(layer + 1)),
        f"{layer}.weight/exponent": torch.tensor(-30 + layer),
        f"{layer}.half": weight.to(torch.bfloat16),
        f"{layer}.special": torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0, 1e-45]),
        f"{layer}.count": torch.tensor(2**40 + layer),
        f"{layer}.mask": torch.tensor([True, False, True]),
        f"{layer}.double": weight.double() / 3,
        f"{layer}.nothing": torch.zeros(0, 4),
        f"{layer}.turned": weight.t(),  # not contiguous
    }


def written(run_dir: Path, stages: list[list[int]]) -> Checkpoint:
    parts = []
    for stage, layers in enumerate(stages):
        folder = partial_directory(run_dir, STEP) / f"stage-{stage}"
        tensors = {key: value for layer in layers for key, value in of_layer(layer).items()}
        parts.append(Part(folder.name, tuple(layers), write_part(folder, tensors), {}))
    return load_manifest(seal(run_dir, STEP, parts, seed=0, microbatches=4))


def assert_same_bits(found: Tensors, expected: Tensors) -> None:
    assert found.keys() == expected.keys()
    for key, tensor in expected.items():
        other = found[key]
        assert (other.dtype, other.shape) == (tensor.dtype, tensor.shape), key
        pair = [t.contiguous().reshape(-1).view(torch.uint8) for t in (other, tensor)]
        assert torch.equal(*pair), key


def layers_of(*layers: int) -> dict[str, Tensor]:
    return {key: value for layer in layers for key, value in of_layer(layer).items()}


def test_every_type_comes_back_with_all_its_bits(tmp_path):
    checkpoint = written(tmp_path, [[0]])
    assert_same_bits(read_layers(checkpoint, [0]), of_layer(0))


def test_a_large_part_is_several_files_and_reads_as_one(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "FILE_BYTES", 100)
    checkpoint = written(tmp_path, [[0, 1], [2]])
    files = [name for name in checkpoint.parts[0].files if name.endswith(".safetensors")]
    assert len(files) > 3
    assert_same_bits(read_layers(checkpoint, [0, 2]), layers_of(0, 2))


def test_nothing_is_logged_when_all_is_well(tmp_path):
    """A logger of torch's would fill the output of a test that fails."""
    loggers = [logging.getLogger(name) for name in logging.root.manager.loggerDict]
    told: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = told.append
    for logger in loggers:
        logger.addHandler(handler)
    try:
        read_layers(written(tmp_path, [[0]]), [0])
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
    assert not told


@pytest.mark.parametrize("wanted", [[0], [1, 2], [3], [2, 0], range(12)])
def test_any_other_cut_can_be_read(tmp_path, wanted):
    checkpoint = written(tmp_path, [[0, 1], list(range(2, 11)), [11]])
    assert_same_bits(read_layers(checkpoint, wanted), layers_of(*wanted))


def test_layer_1_does_not_bring_layer_10_along(tmp_path):
    checkpoint = written(tmp_path, [[1, 10]])
    assert_same_bits(read_layers(checkpoint, [1]), of_layer(1))


def test_a_missing_layer_is_refused_by_number(tmp_path):
    checkpoint = written(tmp_path, [[0], [1]])
    with pytest.raises(CheckpointError, match="has no layer 2: it holds 2 layers"):
        read_layers(checkpoint, range(3))


def test_a_stage_without_tensors_can_be_written_and_read(tmp_path):
    folder = partial_directory(tmp_path, STEP) / "stage-0"
    part = Part("stage-0", (0,), write_part(folder, {}), {})
    checkpoint = load_manifest(seal(tmp_path, STEP, [part], seed=0, microbatches=4))
    assert read_layers(checkpoint, [0]) == {}


def test_a_changed_byte_in_any_file_is_found_before_a_tensor_is_read(tmp_path):
    checkpoint = written(tmp_path, [[0], [1]])
    files = [
        (part, Path(checkpoint.directory) / part.directory / name)
        for part in checkpoint.parts
        for name in part.files
    ]
    assert len(files) >= 2
    for part, path in files:
        data = path.read_bytes()
        for place in (0, len(data) // 2, len(data) - 1):
            path.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
            with pytest.raises(CheckpointError, match=f"{part.directory}/{path.name} was changed"):
                read_layers(checkpoint, [0, 1])
        path.write_bytes(data)
    assert_same_bits(read_layers(checkpoint, [0, 1]), layers_of(0, 1))


def test_every_file_of_a_part_is_in_the_manifest(tmp_path):
    checkpoint = written(tmp_path, [[0], [1]])
    for part in checkpoint.parts:
        folder = Path(checkpoint.directory) / part.directory
        assert {path.name for path in folder.iterdir()} == set(part.files)


def test_only_the_parts_that_hold_the_layers_are_verified_and_read(tmp_path):
    checkpoint = written(tmp_path, [[0], [1]])
    for name in checkpoint.parts[1].files:
        (Path(checkpoint.directory) / "stage-1" / name).unlink()
    assert_same_bits(read_layers(checkpoint, [0]), of_layer(0))
    with pytest.raises(CheckpointError, match="stage-1/"):
        read_layers(checkpoint, [1])


def test_a_part_written_over_an_abandoned_one_holds_the_new_tensors(tmp_path):
    folder = partial_directory(tmp_path, STEP) / "stage-0"
    write_part(folder, layers_of(0, 1, 2))
    checkpoint = written(tmp_path, [[0, 1], [2]])
    assert_same_bits(read_layers(checkpoint, range(3)), layers_of(0, 1, 2))


def test_a_checkpoint_is_read_later_when_there_is_no_descriptor(tmp_path, monkeypatch):
    checkpoint = written(tmp_path, [[0]])
    file_digest, refused = manifest.file_digest, []

    def scarce_digest(path: Path) -> str:
        if len(refused) < 2:
            refused.append(path)
            raise OSError(errno.EMFILE, "Too many open files")
        return file_digest(path)

    monkeypatch.setattr(manifest, "file_digest", scarce_digest)
    monkeypatch.setattr(scarce, "PAUSES_S", (0.0, 0.0))
    assert_same_bits(read_layers(checkpoint, [0]), layers_of(0))
    assert len(refused) == 2
