"""A page of the documentation as a session: its files are written, its commands run, in order.

A shown line must be among those that were printed, up to its numbers; lines may be left out, and
the end of one (``...``). With HOLDFAST_REWRITE=1 the numbers are refreshed; a block with a line
that is not printed any more becomes all that was printed, to be cut by hand.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

from helpers import runs
from helpers.pages import REWRITES, ROOT, Block, blocks

LIMIT_S = 600  # against hangs only
READERS_HOME = "/home/you/holdfast"
_SUM = re.compile(r"\b[0-9a-f]{64}\b")
_MORE = "..."
_WIDTH = 110  # of a line that is shown


class Session:
    """What was run, and what it printed."""

    def __init__(self, page: Path, folder: Path) -> None:
        self.page, self.folder = page, folder
        self.printed: dict[tuple[str, ...], str] = {}
        (folder / "examples").symlink_to(ROOT / "examples")

    def play(self) -> None:
        """Every file and every command that is shown, but for what only plans."""
        for block in blocks(self.page):
            if block.title:
                (self.folder / block.title).write_text(block.body)
            elif block.language == "console" and _is_run(block):
                self._check(block, self.run(block.command))

    def run(self, command: list[str]) -> str:
        done = subprocess.run(
            _words(command),
            cwd=self.folder,
            env=_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
        )
        assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}"
        self.printed[tuple(command)] = done.stdout
        return done.stdout.replace(str(self.folder), READERS_HOME)

    def sums(self) -> set[str]:
        """Of the parameters, by all runs that began at the beginning."""
        whole = [text for words, text in self.printed.items() if "--resume" not in words]
        return {found for text in whole for found in _SUM.findall(text)}

    def _check(self, block: Block, printed: str) -> None:
        lines = printed.splitlines()
        missing = [line for line in block.output.splitlines() if not _like(line, lines)]
        if REWRITES:
            block.rewrite(_all_of(lines) if missing else _refreshed(block, lines))
            return
        where = f"{self.page.name}: {' '.join(block.command)}"
        assert not missing, f"{where} does not print {missing}, but\n{printed}"


def _is_run(block: Block) -> bool:
    first, *more = block.command
    plans = first == "holdfast" and more[0] in ("plan", "recovery-plan")
    return block.body.startswith("$ ") and not plans and "--help" not in more


def _words(command: list[str]) -> list[str]:
    program, *more = command
    if program == "holdfast":
        return runs.command(*more)
    assert program == "python", f"a page runs {program}"
    return [sys.executable, *more]


def _environment() -> dict[str, str]:
    """With torchrun and the like of this Python; alone, as a reader's shell."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return runs.environment() | {"PATH": path, "PYTHONUNBUFFERED": "1"}


def shape(line: str) -> str:
    """Without numbers: two lines of one shape say the same of different runs."""
    line = line.strip().replace(f"{READERS_HOME}/", "")
    line = re.sub(r"\b[0-9a-f]{64}\b", "#", line)
    line = re.sub(r"\d[\d,.:]*(e-?\d+)?", "#", line)
    line = re.sub(r"# (ms|s)\b", "# s", line)
    return re.sub(r"# (\w+?)(?:s|es)?\b", r"# \1", line)


def _like(shown: str, printed: list[str]) -> list[str]:
    """Those of the printed lines that it could be."""
    if shown.endswith(_MORE):
        start = shape(shown.removesuffix(_MORE))
        return [line for line in printed if shape(line).startswith(start)]
    return [line for line in printed if shape(line) == shape(shown)]


def _refreshed(block: Block, printed: list[str]) -> str:
    """The same lines with the numbers of today."""
    fresh = []
    for shown in block.output.splitlines():
        words = shown.split()

        def in_common(line: str, words: list[str] = words) -> int:
            return sum(map(str.__eq__, words, line.split()))

        best = max(_like(shown, printed), key=in_common)
        if shown.endswith(_MORE):
            best = " ".join([*best.split(" ")[: len(shown.split(" ")) - 1], _MORE])
        fresh.append(best)
    return "".join(f"{line}\n" for line in fresh)


def _all_of(printed: list[str]) -> str:
    """Of the lines on steps the last; long ones cut."""
    steps = [line for line in printed if shape(line).startswith("step #/#")]
    kept = [line for line in printed if line not in steps[:-1]]
    cut = [
        line if len(line) <= _WIDTH else f"{line[:_WIDTH].rpartition(' ')[0]} {_MORE}"
        for line in kept
    ]
    return "".join(f"{line}\n" for line in cut)
