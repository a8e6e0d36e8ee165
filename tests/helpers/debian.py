"""Programs for tests that are not installed: packages of Debian, unpacked into a cache."""

import fcntl
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

LIMIT_S = 120.0


def fetched(name: str, packages: tuple[str, ...]) -> Path:
    """Packages of Debian, unpacked into a cache; skips the test, with the reason, without them."""
    found = _fetched(name, packages)
    if isinstance(found, Path):
        return found
    pytest.skip(found)


@functools.cache
def _fetched(name: str, packages: tuple[str, ...]) -> Path | str:
    """Or why they cannot be had. Test processes that want the same take turns."""
    if missing := [each for each in ("apt-get", "dpkg") if shutil.which(each) is None]:
        return f"{name}: not installed: {', '.join(missing)}"
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "holdfast-tests"
    place = cache / name
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return place if place.exists() else _unpacked(name, packages, place)


def _unpacked(name: str, packages: tuple[str, ...], place: Path) -> Path | str:
    with tempfile.TemporaryDirectory(dir=place.parent) as folder:
        words = ["apt-get", "download", *packages]
        got = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S)
        if got.returncode:
            return f"{name} cannot be fetched: {got.stderr.strip()[-200:]}"
        for package in Path(folder).glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, f"{folder}/x"], check=True, timeout=LIMIT_S)
        return Path(folder, "x").rename(place)
