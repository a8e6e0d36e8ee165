"""Reads the stacks that stuck workers write: which thread, and where in whose code."""

import re
import sysconfig
from pathlib import Path

_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>[0-9]+|\?\?\?) in (?P<name>.*)')
_HEADER = re.compile(r"# worker \S+ \(pid [0-9]+\), thread (0x[0-9a-f]+)")
_OURS = str(Path(__file__).resolve().parents[1])
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib")})
_MOST_BYTES = 1 << 20  # from the end of a file


def stack_file(run_dir: Path, worker: str, pid: int) -> Path:
    return run_dir / "stacks" / f"{worker}-{pid}.txt"


def header(worker: str, pid: int, thread: int) -> str:
    """The file's first line: of all threads this one computes."""
    return f"# worker {worker} (pid {pid}), thread 0x{thread:016x}\n"


def read_stack(path: Path) -> str:
    """The newest stack of the thread that computes, innermost call first; empty: none."""
    try:
        with path.open("rb") as file:
            first = file.readline(200).decode(errors="replace")
            file.seek(max(file.tell(), path.stat().st_size - _MOST_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    found = _HEADER.match(first)
    return _newest(text, found[1]) if found else ""


def _newest(text: str, thread: str) -> str:
    _, here, rest = text.rpartition(f"hread {thread} (most recent call first):\n")
    frames = []
    for line in rest.splitlines() if here else []:
        if not _FRAME.fullmatch(line):
            break
        frames.append(line)
    return "\n".join(frames)


def user_frame(stack: str) -> str:
    """``job.py:33 in __getitem__``: the innermost call of the user's own code, or of any."""
    frames = [found for line in stack.splitlines() if (found := _FRAME.fullmatch(line))]
    own = [frame for frame in frames if not _is_library(frame["file"])]
    for frame in (own or frames)[:1]:
        return f"{Path(frame['file']).name}:{frame['line']} in {frame['name']}"
    return ""


def _is_library(file: str) -> bool:
    return file.startswith(("<", _OURS, *_LIBRARIES)) or "/site-packages/" in file
