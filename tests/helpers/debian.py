"""Programs for tests that are not installed: packages of Debian, unpacked into a cache."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest


def fetched(name: str, packages: tuple[str, ...]) -> Path:
    """Packages of Debian, unpacked into a cache; skips the test, with the reason, without them."""
    if missing := [each for each in ("apt-get", "dpkg") if shutil.which(each) is None]:
        pytest.skip(f"{name}: not installed: {', '.join(missing)}")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "holdfast-tests"
    place = cache / name
    if not place.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            words = ["apt-get", "download", *packages]
            got = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120)
            if got.returncode:
                pytest.skip(f"{name} cannot be fetched: {got.stderr.strip()[-200:]}")
            for package in Path(folder).glob("*.deb"):
                subprocess.run(["dpkg", "-x", str(package), f"{folder}/x"], check=True)
            shutil.move(f"{folder}/x", place)
    return place
