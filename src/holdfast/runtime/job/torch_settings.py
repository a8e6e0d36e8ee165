"""Switches of torch that change bits: part of the fingerprint, and watched while training.

A job may set them when it is loaded, the same way on every worker. Later only some workers would
have them, and from some step on.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch

from holdfast.device.processor import PROCESSOR, Device
from holdfast.errors import ConfigError

THREADS = "threads"


def _precision(backend: str, operation: str) -> Callable[[], str]:
    # Not get_float32_matmul_precision: it raises once the newer switches are used. It sets these.
    def get() -> str:
        found: str = torch._C._get_fp32_precision_getter(backend, operation)
        return "ieee" if found == "none" else found  # nothing set, here or above: the same

    return get


_SMALLEST = sys.float_info.min
_GETTERS: dict[str, Callable[[], Any]] = {
    THREADS: torch.get_num_threads,
    "default dtype": torch.get_default_dtype,
    "deterministic": torch.are_deterministic_algorithms_enabled,
    "fp32 precision": _precision("generic", "all"),
    "fp32 precision of mkldnn": _precision("mkldnn", "all"),
    "fp32 precision of mkldnn.matmul": _precision("mkldnn", "matmul"),
    "fp32 precision of mkldnn.conv": _precision("mkldnn", "conv"),
    "fp32 precision of mkldnn.rnn": _precision("mkldnn", "rnn"),
    "mkldnn enabled": torch._C._get_mkldnn_enabled,
    "mkldnn deterministic": torch._C._get_mkldnn_deterministic,
    "nnpack enabled": torch._C._get_nnpack_enabled,
    "flash attention": torch._C._get_flash_sdp_enabled,
    "plain attention": torch._C._get_math_sdp_enabled,
    "autocast": lambda: torch.is_autocast_enabled("cpu"),
    "autocast dtype": lambda: torch.get_autocast_dtype("cpu"),
    "flush denormal": lambda: _SMALLEST / 2 == 0,  # torch sets it for the whole thread
}


def torch_settings(device: Device = PROCESSOR) -> dict[str, str]:
    """For the fingerprint."""
    return {name: str(get()) for name, get in (_GETTERS | device.switches()).items()}


class SettingsWatch:
    """Compares with what was set when it was made; on the thread that made it."""

    def __init__(
        self,
        *,
        exact: bool,
        say: Callable[[str], None] = lambda line: None,
        device: Device = PROCESSOR,
    ) -> None:
        self._exact, self._say = exact, say
        self._getters = _GETTERS | device.switches()
        self._said: set[str] = set()
        self._known = self._now()

    def check(self, who: str) -> None:
        """``who`` ran last. ConfigError if bits would change; in fast mode it is said, once."""
        now = self._now()
        if now == self._known:
            return
        before, self._known = self._known, now
        for name, old, new in zip(self._getters, before, now, strict=True):
            if old != new:
                self._tell(f"{who} changed torch's {name} from {old} to {new} while training", name)

    def _tell(self, what: str, name: str) -> None:
        if not self._exact:
            if name in self._said:
                return
            self._said.add(name)
            self._say(f"{what}: the result's bits depend on the layout")
            return
        instead = "set workers.compute_threads" if name == THREADS else "set it in the job file"
        raise ConfigError(
            f"{what}: the bits would depend on who did; {instead} instead, before training, or "
            "set gradients.mode=fast"
        )

    def _now(self) -> tuple[Any, ...]:
        return tuple([get() for get in self._getters.values()])
