"""Which simulated holder of a stage writes which part of a checkpoint, and copies in memory.

Follows ``runtime/step/stage_saves.py`` and ``runtime/state/saving.py``: one part at a time, tried
again a few times, then told as failed.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from holdfast.protocol import messages
from holdfast.protocol.records import SaveRule
from holdfast.runtime.link.lease import Lease
from holdfast.simulator.messages.worker.stage_model import StageModel
from holdfast.simulator.messages.worker.waiting import SAVED, SAVED_LAST, WaitsOf

_PAUSES_S = (0.5, 1.0)
_LAST_PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0)
_FULL = "No space left on device"
_NUM_COPIES = 2
_LOOK_S = 0.05


class SaveHost(Protocol):
    name: str
    is_alive: bool
    layers: list[int]
    lease: Lease
    around: Any
    link: Any
    injector: Any

    def look_again(self) -> None: ...


class WorkerSaves:
    def __init__(self, host: SaveHost) -> None:
        self._host, self._config = host, host.around.config
        self._life = 0  # parts of an earlier stage are not its own any more
        self.newest = self._others = 0
        self.is_busy = False
        self._reset("")

    def _reset(self, part: str) -> None:
        checkpoint = self._config.checkpoint
        self._part, self._life = part, self._life + 1
        self.newest = self._others = 0
        self.is_busy = False
        self._rules: tuple[SaveRule, ...] = (SaveRule(0, checkpoint.every_steps),)
        first = checkpoint.first_step if checkpoint.every_steps else 0
        self._once = {first} if first else set[int]()
        self._writers: dict[int, dict[int, str]] = {}
        self._is_first_holder, self._end_step, self._has_ended = False, 0, False
        self._copies: dict[int, int] = {}  # version -> state, in memory

    def begin(self, assign: messages.Assign) -> None:
        self._reset(assign.part)
        if self._keeps_copies:
            model = self._model
            self._copies = {model.reduced: model.state}

    @property
    def _model(self) -> StageModel:
        found: StageModel = self._host.model  # type: ignore[attr-defined]
        return found

    @property
    def _keeps_copies(self) -> bool:
        mode: str = self._config.recovery.mode
        return mode == "commit"

    # --- copies in memory ---

    @property
    def commits(self) -> list[int]:
        return sorted(self._copies)

    def committed(self, model: StageModel) -> None:
        every: int = self._config.recovery.commit_every
        if self._keeps_copies and model.reduced % every == 0:
            self._copies[model.reduced] = model.state
            for old in sorted(self._copies)[:-_NUM_COPIES]:
                del self._copies[old]

    def restart(self, model: StageModel) -> None:
        if self._keeps_copies:
            self._copies = {model.reduced: model.state}

    def restore(self, model: StageModel, version: int) -> None:
        for later in [kept for kept in self._copies if kept > version]:
            del self._copies[later]
        model.restart(version, self._copies[version])
        model.ledger.clear()

    # --- when ---

    def enter(self, proceed: messages.Proceed, model: StageModel, *, is_first_holder: bool) -> None:
        self._others = proceed.saved.get(model.stage, 0)
        self._change_rules(proceed.saves)
        self._is_first_holder, self._end_step = is_first_holder, proceed.end_step
        self._has_ended = False

    def _change_rules(self, rules: Sequence[SaveRule]) -> None:
        if len(rules) + 1 >= len(self._rules):
            self._rules = (self._rules[0], *rules)

    def change(self, order: messages.SaveAt | messages.SaveOnce, model: StageModel | None) -> None:
        if model is None:
            return
        if isinstance(order, messages.SaveAt):
            self._change_rules(order.rules)
            return
        self._writers[order.step] = dict(order.writers)
        self._once = self._once | {order.step}
        at_end = self._has_ended and self._end_step == order.step
        if at_end and self._is_writer(model, order.step) and not self.is_busy:
            self._save(model, order.step, is_last=True)

    def _is_due(self, version: int) -> bool:
        if version in self._once:
            return True
        first, every = next(rule for rule in reversed(self._rules) if rule.first <= version)
        return bool(every) and (version - first) % every == 0

    def save_if_due(self, model: StageModel) -> WaitsOf[None]:
        version = model.reduced
        if self._is_due(version) and version < self._end_step:
            yield SAVED, None
            self._save(model, version, is_last=False)

    def ended(self, model: StageModel) -> WaitsOf[None]:
        """All steps are done: what is wanted at the end is written, and waited for."""
        version = self._end_step
        yield SAVED_LAST, None
        cut_short = version < self._config.train.steps
        is_wanted = self._config.checkpoint.at_end or cut_short
        if is_wanted or self._is_due(version):
            self._save(model, version, is_last=is_wanted)
        yield SAVED_LAST, None
        self._has_ended = True

    def _is_writer(self, model: StageModel, version: int) -> bool:
        chosen = self._writers.get(version, {}).get(model.stage)
        return self._is_first_holder if chosen is None else chosen == self._host.name

    # --- how ---

    def _hashes(self, model: StageModel) -> dict[str, str]:
        return {str(layer): f"{model.state:032x}" for layer in self._host.layers}

    def _save(self, model: StageModel, version: int, *, is_last: bool) -> None:
        host = self._host
        if not self._is_writer(model, version) or max(self.newest, self._others) >= version:
            hashes = self._hashes(model)
            host.link.send(messages.StateHashes(worker=host.name, step=version, hashes=hashes))
            return
        before, self.newest, self.is_busy = self.newest, version, True
        pauses_s = _LAST_PAUSES_S if is_last else _PAUSES_S
        part = messages.CheckpointPart(
            worker=host.name,
            step=version,
            directory=self._part,
            layers=list(host.layers),
            digests={},
            sizes={},
            hashes=self._hashes(model),
            state={},
            took_s=0.1,
            copy_s=0.0,
        )
        what = (self._life, part, model.stage, model.state, before, list(pauses_s))
        host.around.time.after(host.around.write_s(), self._written, *what)
        host.injector.reach(version - 1, "save", model.ledger.num_done)

    def _written(
        self,
        life: int,
        part: messages.CheckpointPart,
        stage: int,
        state: int,
        before: int,
        pauses_s: list[float],
    ) -> None:
        host = self._host
        what = (life, part, stage, state, before)
        if host.put_off(self._written, *what, pauses_s):  # type: ignore[attr-defined]
            return
        if not host.lease.is_valid:
            host.around.time.after(_LOOK_S, self._written, *what, pauses_s)
            return
        shelf = host.around.shelf
        if shelf.is_full and pauses_s:
            host.around.time.after(pauses_s[0], self._written, *what, pauses_s[1:])
            return
        if life == self._life:
            self.is_busy = False
        if shelf.is_full:
            if life == self._life:
                self.newest = before
            failed = messages.PartFailed(worker=host.name, step=part.step, reason=_FULL)
            host.link.send(failed)
        else:
            shelf.put_part(part.step, part.directory, stage, state)
            host.link.send(part)
        host.look_again()
