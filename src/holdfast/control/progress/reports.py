"""Folds what workers report into finished steps and the result of the run.

Counts on whoever is a member now: the dead are not waited for. Plans nothing.
"""

import hashlib
from array import array
from collections.abc import Iterable, Mapping
from operator import itemgetter

from holdfast.cluster import WorkerId, parse_worker
from holdfast.control.effects import Effect, Emit
from holdfast.control.progress.checkpoints import Checkpoints
from holdfast.control.progress.nonfinite import Nonfinite
from holdfast.control.progress.validating import Validating
from holdfast.control.state.run import Run
from holdfast.errors import HoldfastError
from holdfast.observability import events
from holdfast.protocol import messages
from holdfast.protocol.records import MicrobatchLoss, StepLosses
from holdfast.validation import weighted_mean


class Reports:
    def __init__(self, run: Run) -> None:
        self._run = run
        self.next_step = 0  # all before it are finished
        self._since_epoch = 0  # that all have begun in, or gone back in
        self._last_end_s = 0.0
        self._is_timed = True  # when steps end is heard as they do
        self._steps: dict[int, dict[WorkerId, messages.StepReport]] = {}
        self._done: dict[WorkerId, int] = {}  # steps that it has reported, or came too late for
        self.checkpoints = Checkpoints(run, self._is_past)
        self.finished: dict[WorkerId, messages.Finished] = {}
        self._kept_bytes: dict[str, int] = {}
        self._log_bytes: dict[str, int] = {}
        self.nonfinite = Nonfinite(run)
        self.validating = Validating(run, self.checkpoints)
        self._losses: dict[int, StepLosses] = {}  # of steps that were replayed
        self._awaited: WorkerId | None = None  # one that had not done the next step

    @property
    def steps_left(self) -> int:
        return max(0, self._run.ending.end_step - self.next_step)

    def is_past(self, epoch: int) -> bool:
        """Whether all have gone back since: what was reported then is done again."""
        return epoch < self._since_epoch

    def has_told(self, worker: WorkerId, step: int) -> bool:
        return self._done.get(worker, 0) > step

    def on_scores(self, told: messages.Scores, at_s: float) -> list[Effect]:
        if not self.is_past(told.epoch):
            self.validating.on_scores(told)
        return []

    def after_validation(self, at_s: float) -> list[Effect]:
        """While nothing else is under way."""
        over = self._run.validations.over
        effects = self.validating.next(self.next_step, self._last_end_s, at_s)
        if self._run.validations.over != over:  # the next step begins now
            self._last_end_s = at_s
        return effects

    def take_over(self, first_step: int, at_s: float) -> None:
        """Steps that nobody knew of are told at once: that says nothing of how long they took."""
        self.begin(first_step, at_s)
        self._is_timed = False

    def begin(self, first_step: int, at_s: float) -> None:
        """From the start, or again from a step that all have gone back to."""
        self._since_epoch = self._run.epoch
        self.next_step, self._last_end_s = first_step, at_s
        self._done = dict.fromkeys(self._run.stages, first_step)
        self._steps.clear()
        self.finished.clear()
        self.checkpoints.begin(first_step)
        self._run.validations.go_back(first_step)

    def rewind(self, version: int, at_s: float) -> None:
        """All members go on from a version they still have. What is on disk stays of use."""
        self._since_epoch = self._run.epoch
        self.checkpoints.rewind(version, self.next_step)
        self._run.validations.go_back(version)
        self.next_step, self._last_end_s = version, at_s
        self._done = dict.fromkeys(self._run.stages, version)
        self._steps.clear()
        self.finished.clear()

    def proceed(self, entered: Mapping[WorkerId, int]) -> None:
        """Everyone finishes again. ``entered``: new members and the first step they will report."""
        self.finished.clear()
        self._is_timed = True
        self._done |= entered

    def _is_past(self, worker: WorkerId, version: int) -> bool:
        """It tells what it has of a version before it reports the step that begins with it."""
        return self.has_told(worker, version) or worker in self.finished

    def on_step(self, report: messages.StepReport, at_s: float) -> list[Effect]:
        worker = parse_worker(report.worker)
        effects: list[Effect] = []
        if report.operations or report.taken_back:
            recorded = self._run.config.observe.operations
            effects += [Emit(event) for event in _worker_events(report, recorded, at_s)]
        if report.step >= self.next_step:
            self._steps.setdefault(report.step, {})[worker] = report
        self._done[worker] = max(report.step + 1, self._done.get(worker, 0))
        return effects + self.fold(at_s)

    def fold(self, at_s: float) -> list[Effect]:
        """Steps that every live member has done. Asked again when one is lost."""
        effects: list[Effect] = []
        if self._is_surely_awaited():
            return []
        if self._run.placement.lost_stages:
            return []  # all go back; what only the lost had heard of the step is run again
        while self._run.stages and not self._is_awaited():
            if self.next_step in self._steps:
                effects.append(Emit(self._fold_step(at_s)))
            else:  # whoever ran it is gone, and took its report along
                self.next_step += 1
        return effects

    def _is_awaited(self) -> bool:
        """Whether a member has not done the next step. One is enough: it is looked at first."""
        if not self._is_surely_awaited():
            members, done, step = self._run.stages, self._done, self.next_step
            # From the end, as most report in the order of their names.
            late = (worker for worker in reversed(list(members)) if done.get(worker, 0) <= step)
            self._awaited = next(late, None)
        return self._awaited is not None

    def _is_surely_awaited(self) -> bool:
        """Of nearly all reports: the one that was looked for last is still to come."""
        known = self._awaited
        if known is None or self._done.get(known, 0) > self.next_step:
            return False
        return known in self._run.stages

    def _fold_step(self, at_s: float) -> events.StepFinished:
        step = self.next_step
        reports = self._steps.pop(step)
        losses, num_tokens = _losses(reports, step)
        if not losses and step in self._losses:  # whoever had them is gone
            replayed = self._losses[step]
            losses, num_tokens = _in_order(replayed.losses), replayed.num_tokens
        self._losses.pop(step, None)
        one = reports[min(reports)]
        empty = one.skipped and bool(losses) and not any(row.weight for row in losses)
        self.nonfinite.note(step, reports, [row.loss for row in losses], empty=empty)
        took_s = at_s - self._last_end_s
        self.next_step, self._last_end_s = step + 1, at_s
        if self._is_timed:
            self._run.times.note_step(took_s)
        return events.StepFinished(
            at_s=at_s,
            step=step,
            loss=_mean(losses),
            gradient_norm=one.norm,
            tokens=num_tokens,
            took_s=took_s,
            clipped=one.clipped,
            skipped=one.skipped,
            empty=empty,
            loss_scale=one.loss_scale,
            lr=max(report.lr for report in reports.values()),
        )

    def on_finished(self, finished: messages.Finished) -> None:
        self.finished[parse_worker(finished.worker)] = finished
        self.note_kept(finished.worker, finished.kept_bytes)
        self.note_log(finished.worker, finished.log_bytes)

    def note_kept(self, worker: str, kept_bytes: int) -> None:
        self._kept_bytes[worker] = max(kept_bytes, self._kept_bytes.get(worker, 0))

    def note_losses(self, told: Iterable[StepLosses]) -> None:
        """They are the same whoever computes them."""
        self._losses |= {one.step: one for one in told}

    def note_log(self, worker: str, num_bytes: int) -> None:
        self._log_bytes[worker] = max(num_bytes, self._log_bytes.get(worker, 0))

    @property
    def all_finished(self) -> bool:
        return bool(self._run.stages) and self._run.stages.keys() <= self.finished.keys()

    def run_finished(self, at_s: float) -> events.RunFinished:
        ended = [self.finished[worker] for worker in sorted(self._run.stages)]
        return events.RunFinished(
            at_s=at_s,
            parameters_sha256=self.parameters_sha256(),
            peak_memory_bytes={f.worker: f.peak_memory_bytes for f in ended},
            peak_device_bytes={f.worker: f.peak_device_bytes for f in ended if f.peak_device_bytes},
            kept_bytes=dict(sorted(self._kept_bytes.items())),
            old_bytes={f.worker: f.old_bytes for f in ended},
            log_bytes={worker: n for worker, n in sorted(self._log_bytes.items()) if n},
        )

    def parameters_sha256(self) -> str:
        """Of all layers in order. Replicas that disagree are an error, never averaged away."""
        digests: dict[int, tuple[str, WorkerId]] = {}
        for worker, finished in sorted(self.finished.items()):
            for layer, digest in finished.digests.items():
                known, first = digests.setdefault(int(layer), (digest, worker))
                if known != digest:
                    raise HoldfastError(
                        f"layer {layer} differs between workers {first} and {worker} after the "
                        "last step: the result is not trustworthy"
                    )
        together = hashlib.sha256()
        for number, (digest, _) in sorted(digests.items()):
            together.update(f"{number}:{digest}\n".encode())
        return together.hexdigest()


def _losses(
    reports: Mapping[WorkerId, messages.StepReport], step: int
) -> tuple[list[MicrobatchLoss], int]:
    """In the order of the micro-batches, from any holder of the last stage; all have all."""
    told = dict(sorted((worker, one) for worker, one in reports.items() if one.losses))
    if not told:  # those who computed them are gone
        return [], 0
    first = min(told)
    known = _bits(told[first].losses)
    for worker, report in told.items():
        if _bits(report.losses) != known:
            raise HoldfastError(
                f"the losses of step {step + 1} differ between workers {first} and {worker}: the "
                "result is not trustworthy"
            )
    return _in_order(told[first].losses), told[first].num_tokens


def _bits(losses: Iterable[MicrobatchLoss]) -> tuple[list[int], bytes]:
    """A loss that is no number does not equal itself, but its bits do."""
    numbers, values, weights = zip(*_in_order(losses), strict=True)
    return list(numbers), array("d", values + weights).tobytes()


def _in_order(losses: Iterable[MicrobatchLoss]) -> list[MicrobatchLoss]:
    return sorted(losses, key=itemgetter(0))


def _mean(losses: list[MicrobatchLoss]) -> float:
    if losses and all(row.weight == 1 for row in losses):
        return sum(row.loss for row in losses) / len(losses)
    return weighted_mean([(row.loss, row.weight) for row in losses])


def _worker_events(report: messages.StepReport, recorded: bool, at_s: float) -> list[events.Event]:
    found: list[events.Event] = []
    if report.operations and recorded:
        step = events.WorkerStep(
            at_s=at_s,
            worker=report.worker,
            step=report.step,
            ops=tuple((one.op, one.start_s, one.end_s) for one in report.operations),
            cpu_s=tuple(one.cpu_s for one in report.operations),
            sizes=tuple(one.elements for one in report.operations),
            transfers=tuple(report.transfers),
        )
        found.append(step)
    if report.taken_back:
        reason = "clipped" if report.clipped else "skipped"
        found.append(
            events.StepTakenBack(at_s=at_s, worker=report.worker, step=report.step, reason=reason)
        )
    return found
