"""The pages of the documentation as data: blocks, commands, links, anchors; and rewriting them.

With HOLDFAST_REWRITE=1 a test that compares a block with what is true now writes the block anew.
"""

import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
REWRITES = bool(os.environ.get("HOLDFAST_REWRITE"))
_FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TITLE = re.compile(r'title="([^"]+)"')
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    language: str
    title: str  # the name of the file that it shows; empty: none
    body: str

    @property
    def command(self) -> list[str]:
        """Of a transcript: its first line, with those that it is continued on, as words."""
        lines = self.body.splitlines()
        return shlex.split(" ".join(self._command_lines(lines)).removeprefix("$ "))

    @property
    def output(self) -> str:
        lines = self.body.splitlines(keepends=True)
        return "".join(lines[len(self._command_lines(self.body.splitlines())) :])

    @staticmethod
    def _command_lines(lines: list[str]) -> list[str]:
        found = []
        for line in lines:
            found.append(line.removesuffix("\\").strip())
            if not line.endswith("\\"):
                break
        return found

    def rewrite(self, output: str) -> None:
        """The same command with another output."""
        text = self.page.read_text()
        old = f"{self.body}```"
        kept = self.body.removesuffix(self.output) if self.output else self.body
        assert text.count(old) == 1, f"{self.page.name} shows this twice: {self.body[:60]}"
        self.page.write_text(text.replace(old, f"{kept}{output}```"))


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose(text: str) -> str:
    """Without fenced blocks."""
    return _FENCE.sub("", text)


def blocks(page: Path, *languages: str) -> list[Block]:
    found = []
    for language, info, body in _FENCE.findall(page.read_text()):
        title = _TITLE.search(info)
        found.append(Block(page, language, title[1] if title else "", body))
    return [block for block in found if not languages or block.language in languages]


def transcripts(*pages: Path) -> list[Block]:
    """Blocks that show a command and what it printed."""
    every = [block for page in pages for block in blocks(page, "console")]
    return [block for block in every if block.body.startswith("$ ")]


def commands(page: Path) -> list[str]:
    """Every ``holdfast ...`` that is shown in a shell block, a transcript or the running text."""
    text = page.read_text()
    shown = [" ".join(map(shlex.quote, block.command)) for block in transcripts(page)]
    for block in blocks(page, "sh"):
        shown += [line.partition(" #")[0].strip() for line in block.body.splitlines()]
    shown += re.findall(r"`(holdfast [^`\n]+)`", prose(text))
    return [line for line in shown if line.startswith("holdfast ")]


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """(target, anchor) of every link that leads to a file or a heading."""
    for link in _LINK.findall(prose(page.read_text())):
        if not re.match(r"[a-z]+:", link):
            target, _, anchor = link.partition("#")
            yield (page.parent / target).resolve() if target else page, anchor


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", prose(page.read_text()), re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}


def rows(text: str, num_columns: int) -> list[list[str]]:
    """Cells of every table row of that width whose first cell is in back quotes."""
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if len(row) == num_columns]
