"""The trained model, from a checkpoint and the job's own layers."""

import warnings
from typing import Any

from torch import Tensor, nn

from holdfast.errors import ConfigError
from holdfast.runtime.stage.named_tensors import ASIDE, load_state_tensors
from holdfast.storage.checkpoint import read_layers
from holdfast.storage.manifest import Checkpoint
from holdfast.weights.naming import load_here, own_names


class TrainedLayers(nn.Sequential):
    """The layers of a job that has given a list: what a layer returns as a tuple are several
    inputs of the next, as in training."""

    def forward(self, *inputs: Any) -> Any:
        for layer in self:
            output = layer(*inputs)
            inputs = tuple(output) if isinstance(output, list | tuple) else (output,)
        return output


def load_model(checkpoint: Checkpoint, job: str, sha256: str) -> nn.Module:
    """``job``: a reference; ``sha256``: of its file as it has to be; empty: any."""
    if checkpoint.origin.settings.get("device", {}).get("emulate"):
        raise ConfigError(
            f"{checkpoint.directory}: was trained on emulated devices, which train a stand-in: "
            "there is no model of the job"
        )
    args = checkpoint.origin.settings.get("job", {}).get("args", ())
    loaded = load_here(job, checkpoint.seed, sha256, args)
    layers = loaded.layers
    tensors = all_tensors(checkpoint)
    wanted = {key: tensor for key, tensor in tensors.items() if not _is_of_optimizer(key)}
    load_state_tensors(dict(enumerate(layers)), wanted)
    if loaded.model is not None:
        return loaded.model  # the layers hold its own tensors
    return layers if isinstance(layers, nn.Sequential) else TrainedLayers(*layers)


def weights_of(checkpoint: Checkpoint, job: str) -> dict[str, Tensor]:
    """Parameters and persistent buffers by the model's own names. ``job``: a reference."""
    names = own_names(checkpoint, job)
    return {names.of(k): tensor for k, tensor in all_tensors(checkpoint).items() if "/" not in k}


def all_tensors(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Parameters, buffers and all that belongs to the optimizer, by layer."""
    with warnings.catch_warnings():  # it is read here without a process group, on purpose
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        return read_layers(checkpoint, range(checkpoint.num_layers))


def _is_of_optimizer(key: str) -> bool:
    return "/" in key and not key.endswith(ASIDE)
