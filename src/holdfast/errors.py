"""Every exception this package raises on purpose.

HoldfastError                                                             exit code 1
|- ConfigError          what the user asked for cannot be run             exit code 2
|  |- CheckpointError   ... because the checkpoint cannot be used         exit code 2
|  |- DataError         ... because the data set raised, again and again  exit code 2
|  |- OutOfDeviceMemory ... because a device has not enough memory for it exit code 2
|  |- NotDeterministic  ... because an operation has no deterministic kernel exit code 2
|  `- MetricError       ... because a metric raised, or gave no number    exit code 2
|- RunInterrupted       somebody asked for the end of the run, by Ctrl-C or in the program
|- JobError             the job's own code raised in an operation
|- ScheduleError        a schedule breaks a dependency or memory rule
|  `- MemoryExceeded    ... or there is none that keeps within the memory
|- ProtocolError        a peer sent something we cannot accept
|  |- Implausible       ... or something that cannot be true
|  |- EpochPast         ... or asked for something of an epoch that is over
|  `- HandshakeFailed   ... or has not proven who it is
|     `- HandshakeBroken   ... because the connection ended, or time ran out
|- TransportClosed      our own transport was closed while we waited
|- WaitTimeout          a wait reached its limit
|- TransferFailed       a file did not come over, or was refused
|- LogGap               something that a replay needs is in no log
|- JournalError         the coordinator cannot use its journal
|  |- JournalHeld       ... because another coordinator leads the run
|  |- Deposed           ... because another one has taken over
|  |- JournalAway       ... because its storage does not answer, or has no room
|  `- JournalDamaged    ... because what it reads there cannot be right
`- PeerLost             a worker ended or stopped answering
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Argument:
    """What the caller has given, or may give, by the name it has in Python.

    Part of a message. The command line says ``--run-dir runs/a`` where a call says
    ``run_dir=runs/a``.
    """

    name: str
    value: object = None  # None: only the name matters

    def __str__(self) -> str:
        return self.name if self.value is None else f"{self.name}={self.value}"


@dataclass(frozen=True, slots=True)
class ResumeFrom:
    """How to go on from a checkpoint: part of a message, like :class:`Argument`."""

    directory: str

    def __str__(self) -> str:
        return f"holdfast.resume({self.directory!r})"


class HoldfastError(Exception):
    """Its message is the sum of its arguments: texts, and names of what the caller has given."""

    exit_code = 1

    def __str__(self) -> str:
        return "".join(map(str, self.args))


class ConfigError(HoldfastError):
    exit_code = 2


class CheckpointError(ConfigError):
    pass


class DataError(ConfigError):
    pass


class OutOfDeviceMemory(ConfigError):
    pass


class NotDeterministic(ConfigError):
    pass


class MetricError(ConfigError):
    pass


class CallbackError(HoldfastError):
    """Raised from what a callback has raised, after the run has ended with a checkpoint."""


class RunInterrupted(HoldfastError):
    """It has ended in good order, with a checkpoint if a step was trained."""


class JobError(HoldfastError):
    """Raised from what the job's code has raised. The state is that from before ``step``."""

    def __init__(self, step: int, message: str) -> None:
        super().__init__(message)
        self.step = step


class ScheduleError(HoldfastError):
    pass


class MemoryExceeded(ScheduleError):
    pass


class ProtocolError(HoldfastError):
    pass


class Implausible(ProtocolError):
    pass


class EpochPast(ProtocolError):
    pass


class HandshakeFailed(ProtocolError):
    pass


class HandshakeBroken(HandshakeFailed):
    pass


class TransportClosed(HoldfastError):
    pass


class WaitTimeout(HoldfastError):
    pass


class TransferFailed(HoldfastError):
    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused  # by the other side, in these words: to try again is of no use


class PeerLost(HoldfastError):
    def __init__(self, message: str, worker: str = "") -> None:
        super().__init__(message)
        self.worker = worker  # who is lost; empty: the launcher


class LogGap(HoldfastError):
    def __init__(self, step: int, what: str, reason: str) -> None:
        super().__init__(f"the log of step {step + 1} has a gap: {what}: {reason}")
        self.step, self.what, self.reason = step, what, reason


class JournalError(HoldfastError):
    pass


class JournalHeld(JournalError):
    def __init__(self, message: str, holder: str, generation: int) -> None:
        super().__init__(message)
        self.holder, self.generation = holder, generation  # who leads; 0: not known


class Deposed(JournalError):
    """For good: whoever hears it decides nothing any more."""

    exit_code = 3


class JournalAway(JournalError):
    """For a while, perhaps."""


class JournalDamaged(JournalError):
    pass
