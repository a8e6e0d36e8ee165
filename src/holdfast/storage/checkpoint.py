"""Tensors of a checkpoint, on disk and back, through ``torch.distributed.checkpoint``.

Keys are by layer ("3.attention.weight", "3.attention.weight/exp_avg"), never by stage, so any
other cut can load them. Knows nothing of training: a flat dict of tensors in, a flat dict out.
"""

import logging
from collections.abc import Iterable, Mapping
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from holdfast.errors import CheckpointError
from holdfast.storage.contents import Checkpoint
from holdfast.storage.manifest import file_digest, sync_directory, sync_file
from holdfast.storage.stores import OpenPart, part_folder

# torch logs each call at DEBUG, to nobody; pytest shows it all when a test fails.
logging.getLogger("c10d-NullHandler-dcp_logger").setLevel(logging.WARNING)

FILE_BYTES = 64 << 20  # a file is made in memory, twice, before it is written


def write_part(folder: Path, tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Write the tensors of some layers; returns the SHA-256 of each file. All is on disk then."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = {key: tensor.contiguous() for key, tensor in tensors.items()}  # safetensors want that
    writer = HuggingFaceStorageWriter(str(folder), fqn_to_index_mapping=_files_of(plain))
    save(plain, storage_writer=writer, no_dist=True)
    files = sorted(folder.iterdir())
    for path in files:
        sync_file(path)  # the writer leaves out the index
    for directory in (folder, folder.parent, folder.parent.parent):
        sync_directory(directory)
    return {path.name: file_digest(path) for path in files}


def _files_of(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Key -> number of its file, from 1 on."""
    ends = accumulate(tensor.nbytes for tensor in tensors.values())
    places = [(end - 1) // FILE_BYTES for end in ends]
    numbers = {place: number for number, place in enumerate(dict.fromkeys(places), start=1)}
    return {key: numbers[place] for key, place in zip(tensors, places, strict=True)}


def read_layers(
    checkpoint: Checkpoint, layers: Iterable[int], open_part: OpenPart = part_folder
) -> dict[str, Tensor]:
    """All tensors of ``layers``, from whichever parts hold them, each part verified first."""
    wanted: dict[str, set[int]] = {}
    for layer in layers:
        wanted.setdefault(checkpoint.part_of(layer).directory, set()).add(layer)
    tensors: dict[str, Tensor] = {}
    for part in checkpoint.parts:
        if part.directory in wanted:
            with open_part(checkpoint, part) as folder:
                tensors |= _read_part(folder, wanted[part.directory])
    return tensors


def _read_part(folder: Path, layers: set[int]) -> dict[str, Tensor]:
    reader = HuggingFaceStorageReader(str(folder))
    tensors = {
        key: torch.empty(entry.size, dtype=entry.properties.dtype)
        for key, entry in reader.read_metadata().state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata) and int(key.partition(".")[0]) in layers
    }
    try:
        load(dict(tensors), storage_reader=reader, no_dist=True)
    except CheckpointException as why:
        raise CheckpointError(f"checkpoint part {folder} cannot be read: {why}") from why
    return tensors
