"""Calls callbacks, and says which one has raised or is slow."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from holdfast.callbacks.callback import Callback, RunSoFar
from holdfast.errors import CallbackError, ConfigError
from holdfast.observability.events import (
    CheckpointSaved,
    Event,
    Recovered,
    StepFinished,
    Validated,
    WorkerLost,
)

_SLOW_S = 5.0


class Calls:
    """``on_error``: a callback that raises ends the run, or a line tells of it."""

    def __init__(
        self,
        callbacks: Sequence[Callback],
        run: RunSoFar,
        on_error: Literal["stop", "warn"],
        warn: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._callbacks, self._run = tuple(callbacks), run
        self._on_error, self._warn, self._clock = on_error, warn, clock
        self._told = set[str]()

    def call(self, event: Event) -> None:
        """CallbackError: one has raised, and the run is to end."""
        self._run.note(event)
        for callback in self._callbacks:
            self._guarded(callback, _about(event), partial(self._one, callback, event))

    def end(self) -> None:
        """All are told of it, also if some raise."""
        failures = []
        for callback in self._callbacks:
            try:
                self._guarded(callback, "the end of the run", partial(callback.on_end, self._run))
            except CallbackError as why:
                failures.append(why)
        if failures:
            raise failures[0]

    def _one(self, callback: Callback, event: Event) -> None:
        callback.on_event(event, self._run)
        match event:
            case StepFinished():
                callback.on_step(event, self._run)
            case Validated():
                callback.on_validation(event, self._run)
            case CheckpointSaved():
                callback.on_checkpoint(event, self._run)
            case WorkerLost():
                callback.on_worker_lost(event, self._run)
            case Recovered():
                callback.on_recovered(event, self._run)

    def _guarded(self, callback: Callback, about: str, act: Callable[[], None]) -> None:
        name, began_s = type(callback).__name__, self._clock()
        try:
            act()
        except Exception as why:  # the code of others: it may raise anything
            line = f"callback {name} raised {type(why).__name__} at {about}: {why}"
            if self._on_error == "stop":
                raise CallbackError(line) from why
            self._tell(f"{name} {type(why).__name__}", f"{line}; the run goes on")
        took_s = self._clock() - began_s
        if took_s > _SLOW_S:
            text = f"callback {name} took {took_s:.0f} s at {about}; the run does not wait for it"
            self._tell(f"{name} slow", text)

    def _tell(self, key: str, line: str) -> None:
        """The first of each kind."""
        if key not in self._told:
            self._told.add(key)
            self._warn(line)


def check_callbacks(callbacks: object) -> None:
    if not isinstance(callbacks, Sequence):
        kind = type(callbacks).__name__
        raise ConfigError(f"callbacks is a {kind}: expected a list of holdfast.callbacks.Callback")
    for number, one in enumerate(callbacks):
        if not isinstance(one, Callback):
            kind = type(one).__name__
            hint = "; make one of the class first" if isinstance(one, type) else ""
            raise ConfigError(
                f"callbacks[{number}] is a {kind}: expected a holdfast.callbacks.Callback{hint}; "
                "for a function there is on_event"
            )


def _about(event: Event) -> str:
    """Steps as the terminal counts them."""
    match event:
        case StepFinished(step=step):
            return f"step {step + 1}"
        case Validated(step=step) | CheckpointSaved(step=step):
            return f"{type(event).__name__} of step {step}"
    return type(event).__name__
