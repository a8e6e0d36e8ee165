"""Named tensors into a folder, in a format of others; each tensor is mapped, none is held."""

import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save

from holdfast.weights.naming import ModelConfig

SHARD_BYTES = 2 << 30
INDEX = "model.safetensors.index.json"
Named = Iterable[tuple[str, Tensor]]
Wrote = Callable[[int], None]  # so many bytes more


def write_safetensors(folder: Path, tensors: Named, wrote: Wrote) -> None:
    """One file, or several with an index, as ``transformers`` names and reads them."""
    names: list[list[str]] = []
    total_bytes = 0
    for number, shard in enumerate(_shards(tensors)):
        save_file(shard, folder / _temporary(number), metadata={"format": "pt"})
        num_bytes = sum(tensor.nbytes for tensor in shard.values())
        names.append(list(shard))
        total_bytes += num_bytes
        wrote(num_bytes)
    if len(names) == 1:
        (folder / _temporary(0)).rename(folder / "model.safetensors")
        return
    weight_map: dict[str, str] = {}
    for number, of_shard in enumerate(names):
        name = f"model-{number + 1:05d}-of-{len(names):05d}.safetensors"
        (folder / _temporary(number)).rename(folder / name)
        weight_map |= dict.fromkeys(of_shard, name)
    index = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index, indent=1))


def _temporary(number: int) -> str:
    """Until it is known how many there are."""
    return f"model-{number + 1:05d}.safetensors"


def _shards(tensors: Named) -> Iterator[dict[str, Tensor]]:
    shard: dict[str, Tensor] = {}
    num_bytes = 0
    for name, tensor in tensors:
        if shard and num_bytes + tensor.nbytes > SHARD_BYTES:
            yield shard
            shard, num_bytes = {}, 0
        shard[name] = tensor
        num_bytes += tensor.nbytes
    yield shard


def write_hf(folder: Path, tensors: Named, wrote: Wrote, config: ModelConfig) -> None:
    """What ``from_pretrained`` loads."""
    config.save_pretrained(folder)
    write_safetensors(folder, tensors, wrote)


def write_dcp(folder: Path, tensors: Named, wrote: Wrote) -> None:
    """The format of ``torch.distributed.checkpoint``, without a process group."""
    state: Mapping[str, Tensor] = dict(tensors)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        save(dict(state), storage_writer=FileSystemWriter(folder), no_dist=True)
    wrote(sum(tensor.nbytes for tensor in state.values()))
