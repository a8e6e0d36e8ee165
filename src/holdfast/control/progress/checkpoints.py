"""Parts of checkpoints as workers report them: when all is there, whether replicas agree.

A part that cannot be written is asked of another holder of its stage. What cannot be saved at all
is said, and training goes on: the state is in memory. Only replicas that differ end the run.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from holdfast.cluster import WorkerId, parse_worker
from holdfast.control.effects import Discard, Effect, Emit, SealCheckpoint, Send
from holdfast.control.state.lifecycle import RunPhase
from holdfast.control.state.run import Run
from holdfast.errors import HoldfastError
from holdfast.observability import events
from holdfast.protocol import messages
from holdfast.schedule.cut import stage_ranges
from holdfast.storage.manifest import Part, partial_directory

_AHEAD = 2  # steps, at least, before one more version is saved: everyone must have heard of it
_HEARD_S = 0.2  # by then everyone has
_SEAL_TRIES = 4
_SEAL_AGAIN_S = 1.0


@dataclass
class _Again:
    """One more version to save, since an earlier one could not be."""

    failed: int  # the earlier one
    step: int
    writers: dict[int, WorkerId]  # by stage


class Checkpoints:
    """``is_past``: whether a worker will say nothing more of a version."""

    def __init__(self, run: Run, is_past: Callable[[WorkerId, int], bool]) -> None:
        self._run = run
        self._is_past = is_past
        self._parts: dict[int, dict[int, messages.CheckpointPart]] = {}  # step, stage
        self._on_disk: dict[int, int] = {}  # stage -> newest version
        self._hashes: dict[int, dict[int, dict[WorkerId, str]]] = {}  # step, layer
        self._compared_from = 0  # versions before it may differ: fast sums were taken twice
        self._bad: dict[int, list[WorkerId]] = {}  # stage -> who could not write, of late
        self._tried: set[int] = set()  # versions of which a part could not be written
        self._again: _Again | None = None
        self._sealing: SealCheckpoint | None = None  # could not be sealed yet
        self._under_seal = False  # it is not known yet whether it can be
        self._seal_tries, self._seal_at_s = 0, 0.0
        self._last_reason = ""
        self._given_up: set[int] = set()  # versions

    # --- a history begins ---

    def begin(self, first_step: int) -> None:
        """From the start, or again from a step that all have gone back to."""
        for known in (self._parts, self._hashes):
            for step in [step for step in known if step > first_step]:
                del known[step]
        self._on_disk = {stage: min(v, first_step) for stage, v in self._on_disk.items()}
        self._again = self._sealing = None
        self._under_seal = self._under_seal and self._run.saved.seals_at_once
        self._bad.clear()

    def rewind(self, version: int, reached: int) -> None:
        """Versions after ``version`` are made again: in fast mode perhaps with other bits."""
        for step in [step for step in self._hashes if step > version]:
            del self._hashes[step]
        if self._run.config.gradients.mode == "fast":
            self._compared_from = reached + 1

    @property
    def compared_from(self) -> int:
        return self._compared_from

    def recall(self, compared_from: int) -> None:
        """As another coordinator has left it."""
        self._compared_from = compared_from

    # --- what workers say ---

    def on_part(self, part: messages.CheckpointPart) -> list[Effect]:
        if self._run.phase is RunPhase.RETURNING:
            return []  # all have been told which step they go back to: it stays that one
        worker = parse_worker(part.worker)
        owner, stage = self._run.assignments.parts.get(part.directory, (None, -1))
        if owner != worker or tuple(part.layers) != self._layers_of(stage):
            return []  # not the directory that it was given, or of a history that is over
        self._compare(worker, stage, part.step, part.hashes)
        if part.step <= self._run.saved.newest:
            return []  # another holder has saved it as well, or a later one is whole
        self._parts.setdefault(part.step, {}).setdefault(stage, part)
        self._on_disk[stage] = max(part.step, self._on_disk.get(stage, 0))
        return []

    def on_hashes(self, told: messages.StateHashes) -> list[Effect]:
        worker = parse_worker(told.worker)
        stage = self._run.stages.get(worker)
        if stage is not None:
            self._compare(worker, stage, told.step, told.hashes)
        return []

    def _layers_of(self, stage: int) -> tuple[int, ...]:
        num_layers = self._run.hellos[self._run.roster.first].num_layers
        return tuple(stage_ranges(self._run.plan.cut.layers, num_layers)[stage])

    # --- replicas ---

    def _compare(self, worker: WorkerId, stage: int, step: int, hashes: dict[str, str]) -> None:
        known = self._hashes.setdefault(step, {})
        for number in self._layers_of(stage):
            if str(number) not in hashes:
                continue
            of_layer = known.setdefault(number, {})
            of_layer[worker] = hashes[str(number)]
            if len(set(of_layer.values())) > 1 and step >= self._compared_from:
                raise HoldfastError(self._divergence(step, stage, number, of_layer))

    def _divergence(self, step: int, stage: int, layer: int, told: dict[WorkerId, str]) -> str:
        groups: dict[str, list[str]] = {}
        for worker, value in sorted(told.items()):
            groups.setdefault(value, []).append(str(worker))
        sides = " and ".join("/".join(group) for group in groups.values())
        kept = self._run.saved.sealed == step
        saved = "its checkpoint is not to be trusted" if kept else "it was not saved"
        return (
            f"after step {step} layer {layer} of stage {stage} differs between workers {sides}: "
            f"replicas have diverged, and {saved}. Look for a layer that is not deterministic, or "
            f"for bad memory. {self._run.advice}"
        )

    # --- whole, or not ---

    def whole(self, at_s: float, *, all_have_said: bool = False) -> list[Effect]:
        """Checkpoints of which all is there. ``all_have_said``: everyone stands still."""
        if self._run.phase is not RunPhase.TRAINING:
            return []
        effects: list[Effect] = []
        for step in sorted(self._parts):
            if self._under_seal and not self._run.saved.seals_at_once:
                break  # one after the other: this one's turn comes when it is known how that ends
            parts = self._parts.get(step, {})
            if len(parts) == self._run.shape.stages and (all_have_said or self._all_said(step)):
                effects += self._seal(step, parts)
        return effects

    def _all_said(self, step: int) -> bool:
        hashes = self._hashes.get(step, {})
        return all(
            self._is_past(worker, step) or worker in hashes.get(self._layers_of(stage)[0], {})
            for worker, stage in self._run.stages.items()
        )

    def _seal(self, step: int, parts: dict[int, messages.CheckpointPart]) -> list[Effect]:
        sealed = tuple(
            Part(p.directory, tuple(p.layers), p.digests, p.state, p.sizes)
            for _, p in sorted(parts.items())
        )
        took_s = max(p.took_s for p in parts.values())
        self._run.saved.seal(step)
        for known in (self._parts, self._hashes):
            for old in [old for old in known if old < step]:
                del known[old]
        del self._parts[step]
        self._sealing, self._seal_tries, self._under_seal = None, 0, True
        keeps_more, validations = self._run.logs.is_replaying, self._run.validations
        found, best = validations.up_to(step), validations.best
        return [SealCheckpoint(step, sealed, took_s, keeps_more, found, best)]

    def on_sealed(self, step: int) -> list[Effect]:
        """It is on disk, with its manifest."""
        if not self._run.saved.confirm(step):
            return []
        self._bad.clear()
        self._sealing, self._again, self._under_seal = None, None, False
        return self._run.tell_sealed(step)

    def on_seal_failed(self, seal: SealCheckpoint, reason: str, at_s: float) -> list[Effect]:
        """The parts are there; it is tried again, now and then."""
        if not self._run.saved.unseal(seal.step):
            return []
        self._seal_tries += 1
        self._last_reason, self._under_seal = reason, False
        if self._seal_tries < _SEAL_TRIES:
            self._sealing, self._seal_at_s = seal, at_s + _SEAL_AGAIN_S * self._seal_tries
            return []
        self._sealing = None
        told = self._failed(seal.step, "", reason, "", at_s)
        return [Emit(told), self._give_up(seal.step)]

    def _give_up(self, step: int) -> Effect:
        """Other stages' parts would only take room, of which there may be too little."""
        self._given_up.add(step)
        self._parts.pop(step, None)
        return Discard(str(partial_directory(self._run.settings.run_dir, step)))

    def tick(self, at_s: float) -> list[Effect]:
        is_returning = self._run.phase is RunPhase.RETURNING  # it stays the step that was told
        if self._sealing is None or at_s < self._seal_at_s or is_returning:
            return []
        seal, self._sealing, self._under_seal = self._sealing, None, True
        self._run.saved.seal(seal.step)
        return [seal]

    # --- parts that cannot be written ---

    def on_failed(self, failed: messages.PartFailed, next_step: int, at_s: float) -> list[Effect]:
        run, worker = self._run, parse_worker(failed.worker)
        stage = run.stages.get(worker)
        over = failed.step in self._given_up or failed.step <= run.saved.newest
        if stage is None or over:
            return []
        is_first = not self._bad
        self._tried.add(failed.step)
        self._last_reason = f"worker {worker}: {failed.reason}"
        self._bad.setdefault(stage, []).append(worker)
        others = [other for other in run.placement.holders(stage) if other not in self._bad[stage]]
        later = self._later(failed.step, next_step)
        if not others or later is None:
            self._bad.clear()  # the next one that is due is tried by all of them again
            told = self._failed(failed.step, failed.worker, failed.reason, "", at_s)
            return [Emit(told), self._give_up(failed.step)]
        again = self._save_again(failed.step, later, stage, others[0])
        told = self._failed(failed.step, failed.worker, failed.reason, str(others[0]), at_s)
        partial = partial_directory(run.settings.run_dir, failed.step)
        lost: list[Effect] = [] if later == failed.step else [Discard(str(partial))]
        return [*([Emit(told)] if is_first else []), *lost, *again]

    @property
    def _end_is_wanted(self) -> bool:
        config = self._run.config
        return config.checkpoint.at_end or self._run.ending.end_step < config.train.steps

    def _later(self, step: int, next_step: int) -> int | None:
        """At the end of the run the same version; else one that nobody has come to yet."""
        if self._again is not None and self._again.failed == step:
            return self._again.step  # another stage has failed too
        end, step_s = self._run.ending.end_step, self._run.timeouts.step_s
        if step >= end:
            return step if self._end_is_wanted else None
        ahead = max(_AHEAD, math.ceil(_HEARD_S / step_s) if step_s else _AHEAD)
        later = max(next_step, step) + ahead
        return later if later < end else end if self._end_is_wanted else None

    def _save_again(self, failed: int, step: int, stage: int, writer: WorkerId) -> list[Effect]:
        if self._again is None or self._again.failed != failed:
            self._again = _Again(failed, step, {})
        self._again.writers[stage] = writer
        order = messages.SaveOnce(
            step=step,
            writers={s: str(w) for s, w in sorted(self._again.writers.items())},
        )
        return [Send(member, order) for member in sorted(self._run.stages)]

    def _failed(
        self, step: int, worker: str, reason: str, other: str, at_s: float
    ) -> events.CheckpointFailed:
        return events.CheckpointFailed(
            at_s=at_s,
            step=step,
            worker=worker,
            reason=reason,
            next_writer=other,
            newest=-1 if self._run.saved.sealed is None else self._run.saved.sealed,
        )

    def was_tried(self, version: int) -> bool:
        """In vain, at least once."""
        return version in self._tried or version in self._given_up

    # --- the end of the run ---

    def is_pending(self) -> bool:
        """Whether the last checkpoint may still come, although it failed at first."""
        if self._sealing is not None or self._under_seal:
            return True
        end = self._run.ending.end_step
        return end in self._tried and self._run.saved.sealed != end and end not in self._given_up

    def check_end(self) -> None:
        """Raises if what the run has come to is not on disk, and was to be."""
        run, end = self._run, self._run.ending.end_step
        if end not in self._given_up or run.saved.sealed == end or not self._end_is_wanted:
            return
        kept, since = run.start
        place = f"step {since} is kept" if kept else "no checkpoint is left"
        cure = f", then train on with: {run.how_to_resume(kept)}" if kept else ", then start again"
        address = run.config.checkpoint.dir
        help_it = f"See to {address}" if address else f"Make room in {run.settings.run_dir}"
        raise HoldfastError(
            f"the last checkpoint, of step {end}, could not be written ({self._last_reason}); "
            f"{place}, later steps are lost. {help_it}{cure}"
        )

    # --- for changes ---

    def saved(self, saving: Iterable[tuple[int, int]] = ()) -> dict[int, int]:
        """Stage -> newest version whose part is on disk, or that a member is writing now."""
        newest = dict(self._on_disk)
        for stage, version in saving:
            newest[stage] = max(version, newest.get(stage, 0))
        return newest
