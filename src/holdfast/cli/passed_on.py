"""Words after ``--``: for a command that is started later, or for the job."""

import argparse
from collections.abc import Sequence

_ADDRESS = "checkpoint.dir="


def given_address(words: Sequence[str]) -> str:
    """Of checkpoints, in words for ``holdfast train``; empty: they are in the run directory."""
    found = ""
    for flag, value in zip(words, [*words[1:], ""], strict=False):
        if flag == "--set" and value.startswith(_ADDRESS):
            found = value.removeprefix(_ADDRESS)
        if flag.startswith(f"--set={_ADDRESS}"):
            found = flag.removeprefix(f"--set={_ADDRESS}")
    return found


def passes_on(parser: argparse.ArgumentParser, name: str) -> None:
    """What stands after ``--`` becomes ``name``, whatever it is; argparse would look into it."""
    plain = parser.parse_known_args

    def parse(
        args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        words = list(args or ())
        end = words.index("--") if "--" in words else len(words)
        found, unknown = plain(words[:end], namespace)
        setattr(found, name, words[end + 1 :])
        return found, unknown

    parser.parse_known_args = parse  # type: ignore[assignment, method-assign]
