"""Where a job comes from, as one line of text that every process of a run understands.

``FILE.py`` has a function ``job``; ``FILE.py:make`` names another one; ``ROOT:package.module:make``
is a module below a folder that imports begin at. Reads no file. A function of this process has
a reference too, which no other process understands.
"""

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

_HERE = "/in this process"
_numbers = itertools.count(1)
_here: dict[str, Callable[[], Any]] = {}
_lock = threading.Lock()


class JobSource(NamedTuple):
    """A job, as a run names it."""

    reference: str  # as workers are told of it
    sha256: str  # of its file, as it was when the run began
    origin: str  # for whoever resumes the run; empty: it must be given again
    name: str  # for people


@dataclass(frozen=True, slots=True)
class Reference:
    path: Path  # of the file
    function: str = "job"
    module: str = ""  # dotted; empty: the file is a script
    root: Path = Path()  # imports begin there

    @classmethod
    def parse(cls, text: str) -> "Reference":
        head, colon, function = text.rpartition(":")
        if not colon or not is_dotted(function):
            return cls.script(Path(text))
        root, colon, module = head.rpartition(":")
        if colon and is_dotted(module) and not head.endswith(".py"):
            return cls.of_module(Path(root), module, function)
        return cls.script(Path(head), function) if head.endswith(".py") else cls.script(Path(text))

    @classmethod
    def script(cls, path: Path, function: str = "job") -> "Reference":
        return cls(path, function, "", path.parent)

    @classmethod
    def of_module(cls, root: Path, module: str, function: str) -> "Reference":
        file = root.joinpath(*module.split("."))
        package = file / "__init__.py"
        path = package if package.is_file() else file.with_name(f"{file.name}.py")
        return cls(path, function, module, root)

    @property
    def package(self) -> str:
        """That relative imports of the module start from; empty: none."""
        if self.path.name == "__init__.py":
            return self.module
        return self.module.rpartition(".")[0]

    def copied_to(self, path: Path) -> "Reference":
        """The same function, of another copy of the file."""
        return Reference.script(path, self.function)

    def moved_to(self, root: Path) -> "Reference":
        """The same function, where all that was below its root is below another one."""
        if self.module:
            return Reference.of_module(root, self.module, self.function)
        return Reference.script(root / self.path.name, self.function)

    def __str__(self) -> str:
        if self.module:
            return f"{self.root}:{self.module}:{self.function}"
        return str(self.path) if self.function == "job" else f"{self.path}:{self.function}"


def is_dotted(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))


# --- functions of this process ---


def keep_here(make: Callable[[], Any], name: str) -> str:
    """A reference to a function, for workers that are threads of this process."""
    with _lock:
        reference = f"{_HERE}/{next(_numbers)} {name.replace('/', ' ')}"
        _here[reference] = make
    return reference


def forget_here(reference: str) -> None:
    """The run is over."""
    with _lock:
        _here.pop(reference, None)


def found_here(reference: str) -> Callable[[], Any] | None:
    return _here.get(reference)
