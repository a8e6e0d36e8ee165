"""Stories: text files with command lines, a line ``----`` and what happened then.

Knows the form of the files, not what the commands mean. Blank lines and lines with ``#`` in front
of commands are kept; what happened ends with a blank line.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

RULE = "----"
NOTHING = "(nothing)"


class BadStory(Exception):
    """The text is not a story, or a command in it cannot be done."""


@dataclass(frozen=True)
class Scene:
    """Some commands, and what happened when they were done."""

    remarks: tuple[str, ...]
    commands: tuple[str, ...]
    happened: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([*self.remarks, *self.commands, RULE, *self.happened])


def parse(text: str) -> list[Scene]:
    scenes: list[Scene] = []
    remarks: list[str] = []
    commands: list[str] = []
    lines = iter(text.splitlines())
    for line in lines:
        if line == RULE:
            if not commands:
                raise BadStory(f"{RULE} without a command before it")
            happened = tuple(iter(lambda: next(lines, ""), ""))  # up to a blank line, or the end
            scenes.append(Scene(tuple(remarks), tuple(commands), happened))
            remarks, commands = [], []
        elif not commands and (not line.strip() or line.startswith("#")):
            remarks.append(line)
        else:
            commands.append(line)
    if commands or any(line.strip() for line in remarks):
        raise BadStory(f"{(commands or remarks)[-1]!r}: expected a line {RULE} after it")
    return scenes


def dumps(scenes: list[Scene]) -> str:
    return "\n\n".join(map(str, scenes)) + "\n"


def played(scenes: list[Scene], do: Callable[[str], list[str]]) -> list[Scene]:
    """The same commands, with what happens now."""
    again = []
    for scene in scenes:
        happened = [line for command in scene.commands for line in do(command)]
        again.append(replace(scene, happened=tuple(happened or [NOTHING])))
    return again
