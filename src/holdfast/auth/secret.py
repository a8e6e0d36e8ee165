"""The secret of a run: where it comes from, and how it reaches our own processes.

Never by a command line, which everybody on a machine can read: by a file that only its owner can
read, by the environment, or from process to process through a pipe.
"""

import os
import re
import secrets
import stat
from collections.abc import MutableMapping
from pathlib import Path

from holdfast.auth.handshake import MOST_GENERATION, SECRET_BYTES
from holdfast.errors import Argument, ConfigError

SECRET_FILE = "secret"  # inside the directory of a run
SECRET_VARIABLE = "HOLDFAST_SECRET"
SECRET_FILE_VARIABLE = "HOLDFAST_SECRET_FILE"
FD_VARIABLE = "HOLDFAST_SECRET_FD"
_GENERATION_FILE = "generation"
_HEX = re.compile(f"[0-9a-fA-F]{{{2 * SECRET_BYTES}}}")
_MOST_BYTES = 4096
_EXPECTED = f"expected {2 * SECRET_BYTES} hexadecimal digits, as 'openssl rand -hex 32' makes them"


def new_secret() -> bytes:
    return secrets.token_bytes(SECRET_BYTES)


def given_secret(path: str | None, environment: MutableMapping[str, str]) -> bytes | None:
    """From the file at ``path``, else from the environment; None: nobody has given one.

    The environment does not have it any more: a job's code may run in this process, and start
    others.
    """
    text = environment.pop(SECRET_VARIABLE, "")
    named = environment.pop(SECRET_FILE_VARIABLE, "")
    if path:
        return read_secret(Path(path), Argument("secret_file"))
    if text:
        return _decoded(text, SECRET_VARIABLE)
    return read_secret(Path(named), SECRET_FILE_VARIABLE) if named else None


def read_secret(path: Path, source: Argument | str) -> bytes:
    """``source``: who named the file, for the line that says what is wrong with it."""
    return _decoded(read_private(path, source).decode("ascii", "replace"), source, f" {path}")


def read_private(path: Path, source: Argument | str) -> bytes:
    """Its beginning. ConfigError: somebody else could have read or written it."""
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            data = file.read(_MOST_BYTES) if stat.S_ISREG(found.st_mode) else b""
    except OSError as why:
        raise ConfigError(source, f" {path}: cannot be read ({why.strerror})") from why
    if found.st_uid != os.geteuid():  # whoever it belongs to knows it, and can change it
        raise ConfigError(
            source,
            f" {path}: belongs to user id {found.st_uid}; expected your own, {os.geteuid()}; use a "
            "file of your own",
        )
    if found.st_mode & 0o077:
        mode = stat.S_IMODE(found.st_mode)
        raise ConfigError(
            source,
            f" {path}: others may read it (mode {mode:04o}); protect it: chmod 600 {path}",
        )
    return data


def write_secret(run_dir: Path, secret: bytes) -> None:
    """For those who join. It may be there already: a run that is resumed keeps its secret."""
    write_private(run_dir / SECRET_FILE, f"{secret.hex()}\n")


def kept_secret(run_dir: Path) -> bytes | None:
    """Of an earlier launch of the run in this directory."""
    path = run_dir / SECRET_FILE
    return read_secret(path, "the run's secret") if path.exists() else None


def last_generation(run_dir: Path) -> int:
    """How often the run in this directory was launched; 0: never."""
    path = run_dir / _GENERATION_FILE
    try:
        number = int(path.read_text())
    except FileNotFoundError:
        return 0
    except (OSError, ValueError) as why:
        raise ConfigError(f"{path}: expected the number of launches ({why})") from why
    if not 0 <= number < MOST_GENERATION:
        raise ConfigError(f"{path}: holds {number}; expected 0 to {MOST_GENERATION - 1}")
    return number


def write_generation(run_dir: Path, generation: int) -> None:
    write_private(run_dir / _GENERATION_FILE, f"{generation}\n")


def write_private(path: Path, text: str) -> None:
    """By a rename: whoever reads it meanwhile sees the old one or the new one."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.unlink(missing_ok=True)
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _decoded(text: str, source: Argument | str, path: str = "") -> bytes:
    """What it says is not repeated: it may be a secret of another kind."""
    if not _HEX.fullmatch(text.strip()):
        raise ConfigError(source, f"{path}: is no secret of a run; {_EXPECTED}")
    return bytes.fromhex(text.strip())


# --- from process to process ---


def hand_over(secret: bytes) -> int:
    """A descriptor for a process to come, which reads it once; name it in ``FD_VARIABLE``."""
    ours, theirs = os.pipe()
    os.write(theirs, secret)  # far less than a pipe holds
    os.close(theirs)
    return ours


def taken_over(environment: MutableMapping[str, str]) -> bytes | None:
    """What the process before has handed over; None: nothing."""
    number = environment.pop(FD_VARIABLE, "")
    if not number.isascii() or not number.isdigit():
        return None
    try:
        with open(int(number), "rb") as file:
            secret = file.read(SECRET_BYTES + 1)
    except OSError:
        return None
    return secret if len(secret) == SECRET_BYTES else None
