"""Text to train on without a download: the source of the Python standard library, by characters."""

import sysconfig
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from holdfast.errors import ConfigError

_CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
_OTHER = len(_CHARACTERS)  # one number for every byte that is not in the vocabulary
_NUMBER_OF_BYTE = bytes(
    _CHARACTERS.index(chr(byte)) if chr(byte) in _CHARACTERS else _OTHER for byte in range(256)
)
VOCABULARY = len(_CHARACTERS) + 1


class CharText:
    """Sample ``i`` is the ``i``-th window of ``context`` characters and, as target, the window one
    character on. Windows do not overlap."""

    def __init__(self, context: int, *, num_bytes: int = 1_000_000) -> None:
        if context < 1:
            raise ConfigError(f"CharText context={context}: expected at least 1 character")
        text = _library_text(num_bytes).translate(_NUMBER_OF_BYTE)
        if len(text) <= context:
            raise ConfigError(f"CharText context={context}: the text has {len(text)} characters")
        self._context = context
        self._numbers = torch.frombuffer(bytearray(text), dtype=torch.uint8)

    def __len__(self) -> int:
        return (len(self._numbers) - 1) // self._context

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        first = index * self._context
        window = self._numbers[first : first + self._context + 1].long()
        return window[:-1], window[1:]


def next_token_loss(scores: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy over all positions, but for those whose target is -100."""
    return functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


def _library_text(num_bytes: int) -> bytes:
    folder = Path(sysconfig.get_path("stdlib"))
    text = bytearray()
    for path in sorted(folder.glob("*.py")):
        text += path.read_bytes()
        if len(text) >= num_bytes:
            break
    if not text:
        raise ConfigError(f"CharText: no Python sources in {folder}; is the library in a zip file?")
    return bytes(text[:num_bytes])
