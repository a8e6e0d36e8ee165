"""Taking steps back without copies: inverse arithmetic, then the residual, which makes it exact.

The gradient of a step is kept for others anyway; beside it only the residual stays, under a
byte a parameter. An optimizer step goes chunk by chunk of the parameters, so that the values
before it are there for a moment and for a few of them only. All of it is done on the host.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from holdfast.runtime.reduce.reduction import Reduced
from holdfast.runtime.update.inverse import Inverse, check_undoable, inverse_of
from holdfast.runtime.update.optimizer import StageOptimizer
from holdfast.runtime.update.residual import Floats, Residual, correct, residual_of
from holdfast.runtime.update.rollback import Update

CHUNK_BYTES = 4 << 20  # of parameters: what was there before stays in cache until it is compared
_Flats = dict[str, Floats]


@dataclass(frozen=True, slots=True)
class _Stepped:
    """What makes one parameter's step exactly invertible."""

    inverse: Inverse
    parameter: Residual
    states: Mapping[str, Residual]  # empty: only the parameter can be had
    copies: Mapping[str, Any]  # the rest of the state: counters
    is_first: bool  # it had no state before

    def parameter_before(self, new: Floats, gradient: Floats, state: _Flats) -> Floats:
        values = self.inverse.parameter(new, gradient, state)
        correct(values, self.parameter)
        return values

    def state_before(self, gradient: Floats, state: _Flats, before: Floats) -> _Flats:
        values = {}
        for name, residual in self.states.items():
            values[name] = self.inverse.state(name, state[name], gradient, before)
            correct(values[name], residual)
        return values

    @property
    def residuals(self) -> list[Residual]:
        return [self.parameter, *self.states.values()]


@dataclass(frozen=True, slots=True)
class _Record:
    update: Update
    stepped: dict[int, _Stepped]  # by parameter

    @property
    def num_bytes(self) -> int:
        return sum(r.num_bytes for one in self.stepped.values() for r in one.residuals)

    def without_state(self) -> "_Record":
        stepped = {i: replace(one, states={}, copies={}) for i, one in self.stepped.items()}
        return replace(self, stepped=stepped)


class InverseRollback:
    """Refuses, with a ConfigError, an optimizer that has no inverse."""

    def __init__(self, optimizer: StageOptimizer, *, keeps_old: bool) -> None:
        if optimizer.optimizer is not None:
            check_undoable(optimizer.optimizer)
        self._optimizer, self.keeps_old = optimizer, keeps_old
        self._records: dict[int, _Record] = {}
        self._old: dict[int, tuple[Tensor, ...]] = {}  # as long as nothing new is applied
        self.peak_bytes = 0
        self.num_copied = 0  # tensors that were kept as they were, whole or in part, in a step

    def apply(self, update: Update, *, speculative: bool) -> None:
        self._old.clear()
        if speculative or self.keeps_old:
            self._records[update.step] = self._step(update, with_state=speculative)
        elif update.reduced is not None:
            self._optimizer.step(update.step, update.gradients(), update.scale)

    def _step(self, update: Update, *, with_state: bool) -> _Record:
        record = _Record(update, {})
        if update.reduced is not None:
            self._optimizer.step(
                update.step,
                update.gradients(),
                update.scale,
                chunk_bytes=CHUNK_BYTES,
                around=partial(self._remembering, record, with_state),
            )
        return record

    @contextmanager
    def _remembering(
        self, record: _Record, with_state: bool, chunk: Sequence[int]
    ) -> Iterator[None]:
        own = self._optimizer
        before = {index: _copied(own.parameters[index].detach()) for index in chunk}
        states = {index: own.state_of(index) for index in chunk}
        wanted = states if with_state else {}
        copies = {i: {n: _copied(v) for n, v in state.items()} for i, state in wanted.items()}
        yield
        self._note_peak(record, before, copies)
        for index in chunk:
            given = copies.get(index, {})
            one = self._stepped(record, index, _flat(before.pop(index)), given, not states[index])
            record.stepped[index] = one
            self.num_copied += sum(residual.is_copied for residual in one.residuals)

    def _stepped(
        self, record: _Record, index: int, before: Floats, state: dict[str, Any], is_first: bool
    ) -> _Stepped:
        inverse = inverse_of(self._optimizer.group_of(index), self._optimizer.state_of(index))
        new, now = self._present(index, inverse)
        gradient = self._gradient(record, index)
        estimate = inverse.parameter(new, gradient, now)
        residuals = {
            name: residual_of(_flat(state[name]), inverse.state(name, now[name], gradient, before))
            for name in inverse.names
            if isinstance(state.get(name), Tensor)
        }
        rest = {name: value for name, value in state.items() if name not in residuals}
        return _Stepped(inverse, residual_of(before, estimate), residuals, rest, is_first)

    def _gradient(self, record: _Record, index: int) -> Floats:
        step, reduced, scale = record.update
        assert reduced is not None
        view = reduced.layout.view(reduced.flat, index)
        return _flat(self._optimizer.gradient(step, index, view, scale))

    def _present(self, index: int, inverse: Inverse) -> tuple[Floats, _Flats]:
        state = self._optimizer.state_of(index)
        parameter = self._optimizer.parameters[index]
        return _flat(parameter), {n: _flat(state[n]) for n in inverse.names if n in state}

    def take_back(self, step: int) -> None:
        self._old.clear()
        self._undo(self._records.pop(step))

    def _undo(self, record: _Record) -> None:
        for index, one in record.stepped.items():
            gradient = self._gradient(record, index)
            new, now = self._present(index, one.inverse)
            before = one.parameter_before(new, gradient, now)
            states = one.state_before(gradient, now, before)
            own = {} if one.is_first else self._optimizer.state_of(index)
            _put(self._optimizer.parameters[index], before)
            for name, values in states.items():
                _put(own[name], values)
            self._optimizer.set_state_of(index, {**own, **one.copies})
        self._optimizer.masters.round_off()

    def committed(self, step: int) -> None:
        """The state of the step is needed no more: only parameters are asked for from now on."""
        kept = {s: record for s, record in self._records.items() if s >= step and self.keeps_old}
        self._records = {s: record.without_state() for s, record in kept.items()}
        self._old = {s: old for s, old in self._old.items() if s >= step}

    def restart(self) -> None:
        self._records, self._old = {}, {}

    @property
    def steps(self) -> list[int]:
        return list(self._records) if self.keeps_old else []

    def old(self, step: int) -> tuple[Tensor, ...] | None:
        if step not in self._records:
            return None
        if step not in self._old:
            later = sorted((s for s in self._records if s >= step), reverse=True)
            records = [self._records[s] for s in later]
            indices = range(len(self._optimizer.parameters))
            self._old[step] = tuple(self._before(index, records) for index in indices)
        return self._old[step]

    def _before(self, index: int, records: Sequence[_Record]) -> Tensor:
        """One parameter before the last of ``records``, the newest of which comes first."""
        parameter, values = self._optimizer.parameters[index], None
        state: _Flats = {}
        for record in records:
            one = record.stepped.get(index)
            if one is None:  # it was left alone
                continue
            if values is None:
                values, state = self._present(index, one.inverse)
            gradient = self._gradient(record, index)
            values = one.parameter_before(values, gradient, state)
            state = one.state_before(gradient, state, values)
        if values is None:
            return parameter.detach()
        out = torch.from_numpy(values).view(parameter.shape)
        if parameter.is_contiguous() and parameter.is_cpu:
            return out
        return torch.empty_like(parameter, requires_grad=False).copy_(out)

    def try_out(self, update: Update, then: Callable[[], None]) -> None:
        record = self._step(update, with_state=True)
        then()
        self._undo(record)

    def kept_bytes(self, newest: Reduced | None) -> int:
        older = {id(r.update.reduced): r.update.reduced for r in self._records.values()}
        gradients = [r for r in older.values() if r is not None and r is not newest]
        held = sum(record.num_bytes for record in self._records.values())
        scratch = sum(tensor.nbytes for old in self._old.values() for tensor in old)
        return held + scratch + sum(reduced.flat.nbytes for reduced in gradients)

    def _note_peak(
        self, record: _Record, before: Mapping[int, Tensor], copies: Mapping[int, dict[str, Any]]
    ) -> None:
        largest = max((tensor.nbytes for tensor in before.values()), default=0)
        of_state = [v for state in copies.values() for v in state.values()]
        held = sum(t.nbytes for t in [*before.values(), *of_state] if isinstance(t, Tensor))
        for_a_moment = held + 2 * largest  # an estimate, and room for its residual
        kept = self.kept_bytes(record.update.reduced) + record.num_bytes
        self.peak_bytes = max(self.peak_bytes, kept + for_a_moment)


def _flat(tensor: Tensor) -> Floats:
    """On the host, in the order of its elements, whatever that of its memory is."""
    flat: Floats = tensor.detach().cpu().reshape(-1).numpy()
    return flat


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _put(tensor: Tensor, values: Floats) -> None:
    with torch.no_grad():
        tensor.copy_(torch.from_numpy(values).view(tensor.shape))
