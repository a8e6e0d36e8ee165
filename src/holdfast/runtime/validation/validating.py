"""A validation as one worker runs it: forwards of its micro-batches, then it stands still.

Who runs which micro-batch follows from the members alone. All stand still in one version until
the coordinator has every score: nobody changes a parameter that others still need.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from numbers import Real
from typing import Any

from torch import Tensor, nn

from holdfast.cluster import WorkerId, parse_worker
from holdfast.config import RunConfig
from holdfast.data.validation_batches import ValidationBatches
from holdfast.errors import MetricError
from holdfast.faults.injection import Killed
from holdfast.job import Job
from holdfast.protocol import messages
from holdfast.protocol.records import MicrobatchScore
from holdfast.runtime.job.job_code import JobCode
from holdfast.runtime.link.activity import LOAD
from holdfast.runtime.probe.emulation import EmulatedDevice
from holdfast.runtime.stage.layers import Tensors
from holdfast.runtime.stage.named_tensors import Layers
from holdfast.runtime.stage.seeding import DRAWING
from holdfast.runtime.stage.stage import Metric, Stage
from holdfast.runtime.validation.orders import LOOK_S, Orders
from holdfast.schedule.operation import Kind
from holdfast.transport.base import Channel, Tag, Transport

_FAULT_POINT = "validate"
_TELL_S = 0.5  # scores are told so often: what is told need not be run again


class Validator:
    """Of one stage on one worker."""

    def __init__(
        self,
        me: WorkerId,
        stage: Stage,
        layers: Layers,
        job: Job,
        config: RunConfig,
        code: JobCode,
        device: EmulatedDevice,
        *,
        tell: Callable[[messages.Message], None],
        reach: Callable[[int, str], None],
        weights: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """``reach`` is told when a fault may be injected. ``weights`` puts other ones into the
        layers meanwhile."""
        self._weights = weights
        self.me, self._stage, self._layers = me, stage, layers
        self._is_first, self.is_last = 0 in layers, len(job.layers) - 1 in layers
        self._code, self._device, self._tell, self._reach = code, device, tell, reach
        self._metrics, self._loss = dict(job.metrics), job.loss
        self._is_weighted = job.weight is not None
        self._last_version, self._settings = config.train.steps, config.validation
        self._batches = _batches(job, config)
        self.orders = Orders()

    def enter(
        self, proceed: messages.Proceed, transport: Transport, timeout_s: float
    ) -> "EpochValidations":
        return EpochValidations(self, proceed, transport, timeout_s)

    def is_due(self, version: int) -> bool:
        return self._batches is not None and self._settings.is_due(version, self._last_version)

    # --- one micro-batch ---

    @property
    def num_microbatches(self) -> int:
        return 0 if self._batches is None else len(self._batches)

    def run(self, version: int, microbatch: int, inputs: Tensors) -> tuple[Tensors, Any]:
        """Tensors for the next stage, or of the last layer, and the target where it is known."""
        self._code.check()
        start_s, target = time.monotonic(), None
        with self._guarded(version, microbatch), self._code.activity.doing(Kind.F.name, microbatch):
            if self._is_first or self.is_last:
                loaded, target = self._load(microbatch)
                inputs = loaded if self._is_first else inputs
            outputs = self._stage.evaluate(microbatch, inputs)
        self._device.finish(Kind.F, start_s)
        return outputs, target

    def score(
        self, version: int, microbatch: int, outputs: Tensors, target: Any
    ) -> MicrobatchScore:
        assert self._batches is not None
        where = f"in the validation after step {version}, micro-batch {microbatch}"
        metrics = {name: _checked(name, run, where) for name, run in self._metrics.items()}
        with self._guarded(version, microbatch):
            loss, found = self._stage.score(microbatch, outputs, target, metrics)
            self._code.ran("Job.metrics")
        size = len(self._batches.indices(microbatch))
        weight = loss.weight if self._is_weighted else float(size)
        return MicrobatchScore(microbatch, weight, loss.value, list(found.values()))

    def _load(self, microbatch: int) -> tuple[Tensors, Any]:
        assert self._batches is not None
        with DRAWING, self._code.activity.doing(LOAD, microbatch):
            loaded = self._batches.load(microbatch, self._code.pause)
        self._code.ran("Job.validation or Job.collate")
        return loaded

    @contextmanager
    def _guarded(self, version: int, microbatch: int) -> Iterator[None]:
        with self._code.guarded(version, f"the validation before it, micro-batch {microbatch},"):
            try:
                yield
            except (MetricError, Killed):
                raise
            except BaseException as why:
                why.add_note(f"in the validation after step {version}, micro-batch {microbatch}")
                raise

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """All layers as for use, each part back in its own mode afterwards."""
        parts: list[nn.Module] = [*self._layers.values()]
        if isinstance(self._loss, nn.Module):
            parts.append(self._loss)
        modes = [(module, module.training) for part in parts for module in part.modules()]
        try:
            for part in parts:
                part.eval()
            with self._weights():
                yield
        finally:
            for module, mode in modes:
                module.training = mode

    # --- for an epoch ---

    def tell_scores(self, epoch: int, version: int, scores: list[MicrobatchScore]) -> None:
        if scores:
            told = messages.Scores(
                worker=str(self.me), epoch=epoch, step=version, scores=list(scores)
            )
            self._tell(told)
            scores.clear()

    def reached(self, version: int) -> None:
        self._reach(version - 1, _FAULT_POINT)

    def wait(self, epoch: int, version: int) -> messages.SaveHere | messages.GoOn | None:
        self._code.check()
        return self.orders.wait(epoch, version)


class EpochValidations:
    """With the members of one epoch."""

    def __init__(
        self, stage: Validator, proceed: messages.Proceed, transport: Transport, timeout_s: float
    ) -> None:
        self._stage, self._transport, self._timeout_s = stage, transport, timeout_s
        self._epoch, self._over = proceed.epoch, proceed.validated
        self._known = frozenset(proceed.scored)
        self._holders: dict[int, list[WorkerId]] = {}
        for worker, number in sorted((parse_worker(w), s) for w, s in proceed.stages.items()):
            self._holders.setdefault(number, []).append(worker)
        self._number = proceed.stages[str(stage.me)]

    def is_due(self, version: int) -> bool:
        return version > self._over and self._stage.is_due(version)

    def run(self, version: int, save: Callable[[int], None]) -> None:
        """Until the coordinator has all scores, and ``version`` is saved if it wants it to be."""
        scores: list[MicrobatchScore] = []
        told_s, is_first = time.monotonic(), True
        with self._stage.evaluating():
            for microbatch in range(self._stage.num_microbatches):
                if microbatch in self._known or self._runs(0, microbatch) != self._stage.me:
                    continue
                scores += self._run(version, microbatch, is_first=is_first)
                is_first = False
                if time.monotonic() - told_s > _TELL_S:
                    self._stage.tell_scores(self._epoch, version, scores)
                    told_s = time.monotonic()
        self._stage.tell_scores(self._epoch, version, scores)
        self._stand_still(version, save)
        self._over, self._known = version, frozenset()

    def _run(self, version: int, microbatch: int, *, is_first: bool) -> list[MicrobatchScore]:
        """``is_first``: here, in this validation."""
        tag = Tag(Channel.VALIDATION, version, microbatch=microbatch)
        inputs: Tensors = ()
        if self._number > 0:
            source = self._runs(-1, microbatch)
            inputs = self._transport.receive_all(source, tag, self._timeout_s)
        outputs, target = self._stage.run(version, microbatch, inputs)
        if is_first:
            self._stage.reached(version)
        if self._stage.is_last:
            return [self._stage.score(version, microbatch, outputs, target)]
        self._transport.send_all(self._runs(1, microbatch), tag, outputs)
        return []

    def _runs(self, offset: int, microbatch: int) -> WorkerId:
        """Who does, in this stage or in one beside it."""
        holders = self._holders[self._number + offset]
        return holders[microbatch % len(holders)]

    def _stand_still(self, version: int, save: Callable[[int], None]) -> None:
        is_saved = False
        while not isinstance(order := self._stage.wait(self._epoch, version), messages.GoOn):
            if isinstance(order, messages.SaveHere) and not is_saved:
                save(version)
                is_saved = True
            elif order is not None:
                time.sleep(LOOK_S)


def _batches(job: Job, config: RunConfig) -> ValidationBatches | None:
    if job.validation is None:
        return None
    return ValidationBatches(
        job,
        config.train.seed,
        config.validation.microbatches,
        retries=config.data.retries,
        pause_s=config.data.pause_s,
    )


def _checked(name: str, metric: Callable[[Any, Any], Tensor | float], where: str) -> Metric:
    """What it raises, or gives instead of a number, is told with its name."""

    def run(output: Any, target: Any) -> float:
        try:
            value: object = metric(output, target)
            if isinstance(value, Tensor) and value.numel() == 1:
                value = value.item()
        except (Killed, KeyboardInterrupt):
            raise
        except BaseException as why:
            raise MetricError(
                f"metric {name!r} raised {type(why).__name__} {where}: {why}"
            ) from why
        if not isinstance(value, Real):
            kind = type(value).__name__
            shape = f" of shape {tuple(value.shape)}" if isinstance(value, Tensor) else ""
            raise MetricError(
                f"metric {name!r} returned a {kind}{shape} {where}: expected one number, the mean "
                "of the micro-batch"
            )
        return float(value)

    return run
