"""Messages in the words of the command line: what a call names ``run_dir``, a flag names."""

import shlex

from holdfast.errors import Argument, HoldfastError, ResumeFrom

_FLAGS = {"faults": "fault", "slow_links": "slow-link"}


def in_flags(error: BaseException) -> str:
    """One line."""
    if not isinstance(error, HoldfastError):
        return " ".join(str(error).split())
    return " ".join("".join(map(_said, error.args)).split())


def resume_command(directory: str) -> str:
    return f"holdfast train --resume {shlex.quote(directory)}"


def _said(part: object) -> str:
    match part:
        case Argument(name="job"):
            return "holdfast train JOB.py ..."
        case Argument(name=name, value=value):
            flag = f"--{_FLAGS.get(name, name.replace('_', '-'))}"
            return flag if value is None or value is True else f"{flag} {value}"
        case ResumeFrom(directory=directory):
            return resume_command(directory)
        case _:
            return str(part)
