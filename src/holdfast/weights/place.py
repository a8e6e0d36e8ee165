"""Where the weights are that a run starts from: as a setting has it, and on each machine.

Loads no torch.
"""

from pathlib import Path

from holdfast.checkpoint_address import is_address
from holdfast.errors import Argument, ConfigError

KINDS = (
    "a .safetensors file, a .pt file with a state dict, a folder of Hugging Face, or a run or "
    "checkpoint of Holdfast"
)


def as_setting(given: str, root: Path | None, *, is_here: bool) -> str:
    """``given``: as a user writes it, from the working directory. Relative to ``root``, the job's
    folder, if it is in there: such a file may come to other machines with the job."""
    if is_address(given):
        raise ConfigError(
            Argument("weights", given),
            f": expected {KINDS}, on a disk; export it to one first",
        )
    path = Path(given).expanduser().resolve()
    if is_here and not path.exists():
        raise ConfigError(Argument("weights", given), f": no such file; expected {KINDS}")
    if root is not None and path.is_relative_to(root.resolve()):
        return path.relative_to(root.resolve()).as_posix()
    return str(path)


def on_this_machine(setting: str, root: Path) -> Path:
    path = root / setting  # itself, if it is absolute
    if not path.exists():
        cure = (
            "put it there on every machine"
            if Path(setting).is_absolute()
            else f'name it in HOLDFAST_FILES = ["{setting}"] of the job file, so that it is sent'
        )
        raise ConfigError(f"job.weights={setting}: there is no {path} on this machine; {cure}")
    return path
