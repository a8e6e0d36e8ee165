"""Under which keys the objects of a run lie, below its address. Pure.

    launches/00000001.json                                who may seal: the newest one
    checkpoints/step-00000020/manifest.json               makes a checkpoint of what lies beside it
    checkpoints/step-00000020/stage-1.0a1b2c3d/FILE.16-digits-of-its-SHA-256
    aside/step-00000020.00000002.json                     a manifest of a history that was left

A part has a name of its own for each writer, and a file one for each content: none is ever
replaced.
"""

import re
from collections.abc import Iterable, Mapping

from holdfast import names
from holdfast.storage.contents import Part

CHECKPOINTS, LAUNCHES, ASIDE = "checkpoints/", "launches/", "aside/"
_MANIFEST = re.compile(rf"{CHECKPOINTS}({names.CHECKPOINT.pattern.pattern})/manifest\.json")
_LAUNCH = re.compile(rf"{LAUNCHES}([0-9]{{8}})\.json")
_ASIDE = re.compile(rf"{ASIDE}{names.CHECKPOINT.pattern.pattern}\.[0-9]{{8}}\.json")


def folder(name: str) -> str:
    return f"{CHECKPOINTS}{names.CHECKPOINT.check(name, 'checkpoint')}/"


def manifest(name: str) -> str:
    return f"{folder(name)}manifest.json"


def launch(number: int) -> str:
    return f"{LAUNCHES}{number:08d}.json"


def aside(name: str, launch_number: int) -> str:
    return f"{ASIDE}{names.CHECKPOINT.check(name, 'checkpoint')}.{launch_number:08d}.json"


def part_file(name: str, part: str, file: str, sha256: str) -> str:
    part = names.PART.check(part, "the directory of a part")
    file = names.PART_FILE.check(file, f"a file of {part}")
    digest = names.SHA256.check(sha256, f"the SHA-256 of {part}/{file}")
    return f"{folder(name)}{part}/{file}.{digest[:16]}"


def part_files(name: str, part: Part) -> dict[str, str]:
    """Key of each file."""
    return {
        file: part_file(name, part.directory, file, digest) for file, digest in part.files.items()
    }


def sealed(keys: Iterable[str]) -> list[str]:
    """Names of the checkpoints whose manifest is there, the oldest first."""
    found = (_MANIFEST.fullmatch(key) for key in keys)
    return sorted((match[1] for match in found if match), key=step_of)


def newest_launch(keys: Iterable[str]) -> int:
    """0: there was none."""
    found = (_LAUNCH.fullmatch(key) for key in keys)
    return max((int(match[1]) for match in found if match), default=0)


def set_aside(keys: Iterable[str]) -> list[str]:
    return [key for key in keys if _ASIDE.fullmatch(key)]


def by_checkpoint(keys: Mapping[str, int]) -> dict[str, list[str]]:
    """Keys below each checkpoint's folder, whole or not."""
    found: dict[str, list[str]] = {}
    for key in keys:
        name, slash, _ = key.removeprefix(CHECKPOINTS).partition("/")
        if slash and names.CHECKPOINT.fits(name):
            found.setdefault(name, []).append(key)
    return found


def step_of(name: str) -> int:
    return int(name.removeprefix("step-"))
