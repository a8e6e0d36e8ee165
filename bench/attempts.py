"""What benches of whole runs share: places for runs, failures that take nothing along, tables."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from failstop_run import RunError

Found = TypeVar("Found")


class Attempts:
    """``keep``: where the runs' directories stay, if somebody wants to look at them."""

    def __init__(self, name: str, keep: Path | None = None) -> None:
        self._name, self._keep = name, keep
        self.failures: list[str] = []

    @contextmanager
    def place(self) -> Iterator[Path]:
        """A directory for one run."""
        if self._keep is None:
            with tempfile.TemporaryDirectory(prefix=f"{self._name}-") as folder:
                yield Path(folder)
        else:
            self._keep.mkdir(parents=True, exist_ok=True)
            yield Path(tempfile.mkdtemp(dir=self._keep))

    def attempt(self, what: str, act: Callable[[], Found]) -> Found | None:
        """None if the run fails: one that does must not take the other figures along."""
        try:
            return act()
        except RunError as why:
            self.failures.append(f"{what}: {why}")
            print(f"failed: {what}: {why}", flush=True)
            return None

    def attempt_in_place(self, what: str, act: Callable[[Path], Found]) -> Found | None:
        def there() -> Found:
            with self.place() as folder:
                return act(folder)

        return self.attempt(what, there)


def headline(text: str) -> None:
    print(f"\n{text} (load {os.getloadavg()[0]:.1f})", flush=True)


def cell(value: float | None, digits: int = 4, width: int = 11) -> str:
    return f"{'-' if value is None else f'{value:.{digits}f}':>{width}}"


def rounded(value: float | None, digits: int = 4) -> float | None:
    return None if value is None else round(value, digits)
