"""Whether a process sees the directory of its run: by a mark that is in it, not by any address.

The launcher leaves the mark when the run begins; only holders of the run's secret can make it, and
it is another one at each launch. So a directory of the same path on another machine is no home.
"""

import hmac
import os
from dataclasses import dataclass, field
from pathlib import Path

_FILE = "home"
_MOST_BYTES = 200


@dataclass
class Home:
    run_dir: str
    mark: str = field(repr=False, default="")  # empty: this process is at home, whatever it sees
    _is_here: bool = False

    @classmethod
    def of(cls, run_dir: str, secret: bytes, generation: int) -> "Home":
        return cls(run_dir, _derived(secret, b"home", generation))

    @property
    def is_here(self) -> bool:
        """It may become so: there is no mark before the training begins."""
        if not self._is_here:
            self._is_here = not self.mark or _is_marked(Path(self.run_dir) / _FILE, self.mark)
        return self._is_here

    def leave_mark(self) -> None:
        path = Path(self.run_dir) / _FILE
        part = path.with_name(f".{_FILE}.{os.getpid()}.part")
        part.write_text(f"{self.mark}\n")
        part.replace(path)


def scratch_name(secret: bytes) -> str:
    """Of the directory that workers of the run share on a machine that does not see its own."""
    return f"holdfast-{_derived(secret, b'scratch', 0)[:16]}"


def _derived(secret: bytes, what: bytes, generation: int) -> str:
    return hmac.digest(secret, b"holdfast %s %d" % (what, generation), "sha256").hex()


def _is_marked(path: Path, mark: str) -> bool:
    try:
        with open(path, "rb") as file:
            return hmac.compare_digest(file.read(_MOST_BYTES).strip(), mark.encode())
    except OSError:
        return False
