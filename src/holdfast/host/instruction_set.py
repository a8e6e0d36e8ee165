"""Keeps torch from instructions that this machine shows and then refuses.

Some hypervisors show AMX without letting programs use it, or without saying what its tiles are:
torch then dies of SIGILL in the first bfloat16 product. Found out in a process of its own, before
torch is loaded in ours, and cured by a limit of oneDNN's. Loads no torch; knows nothing of runs.
"""

import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from holdfast.errors import ConfigError
from holdfast.host import amx_probe

VARIABLE = "HOLDFAST_INSTRUCTION_SET"  # auto, off, or a name below
LIMIT_VARIABLES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")  # read by oneDNN; the first wins
WITHOUT_AMX = "AVX512_CORE_FP16"  # a limit: a processor that lacks it goes lower by itself

_AMX_FLAG = "amx_tile"
_LEVELS = {  # oneDNN's names, lowest first -> flags in /proc/cpuinfo
    "SSE41": "sse4_1",
    "AVX": "avx",
    "AVX2": "avx2",
    "AVX2_VNNI": "avx2 avx_vnni",
    "AVX2_VNNI_2": "avx2 avx_vnni avx_vnni_int8 avx_ne_convert",
    "AVX512_CORE": "avx512f avx512bw avx512dq avx512vl",
    "AVX512_CORE_VNNI": "avx512f avx512_vnni",
    "AVX512_CORE_BF16": "avx512f avx512_vnni avx512_bf16",
    "AVX512_CORE_FP16": "avx512f avx512_vnni avx512_bf16 avx512_fp16",
    "AVX512_CORE_AMX": "avx512_fp16 amx_tile amx_int8 amx_bf16",
    "AVX512_CORE_AMX_FP16": "avx512_fp16 amx_tile amx_fp16",
}
_ALIASES = {
    "AVX10_1_512": "AVX512_CORE_FP16",
    "AVX10_1_512_AMX": "AVX512_CORE_AMX",
    "AVX10_1_512_AMX_FP16": "AVX512_CORE_AMX_FP16",
}
_UNLIMITED = ("ALL", "DEFAULT")
_MOST_BYTES = 4096  # of what is remembered
PROBE_LIMIT_S = 5.0
# How a processor refuses. Other signals come from somebody else, as SIGKILL when memory is short.
_REFUSALS = {-signal.SIGILL, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGTRAP, -signal.SIGFPE}
_CPU_FIELDS = ("vendor_id", "model name", "cpu family", "model", "stepping", "microcode", "flags")


@dataclass(frozen=True, slots=True)
class Cpu:
    flags: frozenset[str]
    identity: str  # what else the answer may depend on


@dataclass(frozen=True, slots=True)
class InstructionLimit:
    limit: str = ""  # for oneDNN; empty: as it is
    why: str = ""  # one line; empty: nothing to tell


def _log(line: str) -> None:
    """Where a program has not said otherwise, logging shows it on standard error."""
    logging.getLogger("holdfast").warning("holdfast: %s", line)


def prepare(say: Callable[[str], object] = _log) -> None:
    """Before torch is loaded, here or in a child. Once is enough: children inherit the limit."""
    choice = choose(os.environ, read_cpu(), amx_works)
    if choice.limit:
        os.environ[LIMIT_VARIABLES[0]] = choice.limit
    if choice.why:
        say(choice.why)


def prepare_script() -> None:
    """The same for programs that are not the ``holdfast`` command."""
    try:
        prepare()
    except ConfigError as why:
        _log(str(why))
        sys.exit(why.exit_code)


def choose(
    environment: Mapping[str, str], cpu: Cpu, works: Callable[[Cpu], bool | None]
) -> InstructionLimit:
    """``works``: whether AMX can be used, None if nobody can tell; asked only if it matters."""
    wanted = _wanted(environment.get(VARIABLE, ""))
    if any(environment.get(name) for name in LIMIT_VARIABLES) or wanted == "OFF":
        return InstructionLimit()
    if wanted != "AUTO":
        return InstructionLimit(wanted)
    if _AMX_FLAG not in cpu.flags or works(cpu) is not False:
        return InstructionLimit()
    return InstructionLimit(
        WITHOUT_AMX,
        "this CPU's AMX does not work: harmless, torch runs without it (bfloat16 may be slower)",
    )


def _wanted(text: str) -> str:
    name = text.strip().upper() or "AUTO"
    if name not in {"AUTO", "OFF", *_LEVELS, *_ALIASES}:
        raise ConfigError(
            f"{VARIABLE}={text[:60]}: expected auto, off (leave oneDNN alone) or the most "
            f"that it may use: {', '.join(_LEVELS)}"
        )
    return name


def in_use(environment: Mapping[str, str], cpu: Cpu) -> str:
    """What oneDNN computes with: the highest that the processor has and the limit allows.

    The same on two machines if their bits are, however each came to it.
    """
    limit = next((environment[name] for name in LIMIT_VARIABLES if environment.get(name)), "")
    limit = limit.upper() or _UNLIMITED[0]
    names = list(_LEVELS)
    highest = _ALIASES.get(limit, limit)
    allowed = names[: names.index(highest) + 1] if highest in names else names
    have = [name for name in allowed if set(_LEVELS[name].split()) <= cpu.flags]
    unknown = "" if highest in (*names, *_UNLIMITED) else f", limit {limit}"
    return (have[-1] if have else "none") + unknown


def read_cpu(path: str = "/proc/cpuinfo") -> Cpu:
    """The first processor stands for all; elsewhere than on Linux nothing is known."""
    fields: dict[str, str] = {}
    with suppress(OSError), open(path, encoding="ascii", errors="replace") as lines:
        for line in lines:
            if not line.strip():
                break  # the others are alike, and there may be hundreds
            name, _, value = line.partition(":")
            fields[name.strip()] = value.strip()
    found = [fields.get(name, "") for name in _CPU_FIELDS]
    return Cpu(frozenset(fields.get("flags", "").split()), "\n".join(found))


def amx_works(
    cpu: Cpu, command: tuple[str, ...] | None = None, cache: Path | None = None
) -> bool | None:
    """Tried once a start of the machine; None: could not be tried, so oneDNN is left alone."""
    place = cache or _cache_file()
    key = _key(cpu)
    known = _recall(place, key)
    if known is None:
        known = _try(command or (sys.executable, "-I", "-S", amx_probe.__file__))
        if known is not None:
            _remember(place, key, known)
    return known


def _try(command: tuple[str, ...]) -> bool | None:
    quiet = subprocess.DEVNULL
    try:
        done = subprocess.run(
            command, stdin=quiet, stdout=quiet, stderr=quiet, timeout=PROBE_LIMIT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode == amx_probe.WORKS:
        return True
    refused = done.returncode in _REFUSALS or done.returncode in amx_probe.UNUSABLE
    return False if refused else None


def _cache_file() -> Path | None:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "holdfast" / "amx.json" if os.path.isabs(base) else None


def _key(cpu: Cpu) -> str:
    """Each start of a machine counts as another one: what lies below it may have changed."""
    parts = [cpu.identity, *os.uname(), _torch_version()]
    with suppress(OSError):
        parts.append(Path(amx_probe.__file__).read_text())  # another probe may answer otherwise
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _torch_version() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:
        return ""


def _recall(place: Path | None, key: str) -> bool | None:
    if place is None:
        return None
    try:
        with place.open("rb") as file:
            is_own = os.fstat(file.fileno()).st_uid == os.geteuid()
            found = json.loads(file.read(_MOST_BYTES)) if is_own else None
    except (OSError, ValueError, RecursionError):  # missing, or not ours: tried anew
        return None
    works = found.get(key) if isinstance(found, dict) else None
    return works if isinstance(works, bool) else None


def _remember(place: Path | None, key: str, works: bool) -> None:
    """As one piece, so that it does not matter who else does; nowhere to write is no harm."""
    if place is None:
        return
    with suppress(OSError):
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=place.parent, prefix=".amx-")
        try:
            with os.fdopen(handle, "w") as file:  # mode 0600, by mkstemp
                json.dump({key: works}, file)
            os.replace(temporary, place)
        except OSError:
            os.unlink(temporary)
