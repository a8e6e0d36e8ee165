"""Messages of workers that are well-formed and yet cannot be true. Pure; changes nothing.

Asked before a message is acted on: whoever says what cannot be loses its connection, and the rest
of the run is as if it had said nothing.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, get_args, get_type_hints

from holdfast.cluster import parse_worker
from holdfast.control.state.lifecycle import BEFORE_TRAINING, RunPhase
from holdfast.control.state.run import Run
from holdfast.control.state.validations import metric_names, num_validated
from holdfast.errors import Implausible
from holdfast.protocol import messages
from holdfast.protocol.records import MicrobatchLoss, MicrobatchScore
from holdfast.schedule.operation import parse_op

# Of what nobody can speak before training has begun.
_IN_TRAINING = (
    messages.CheckpointPart,
    messages.Copied,
    messages.Finished,
    messages.JobFailed,
    messages.LogVolume,
    messages.Offered,
    messages.PartFailed,
    messages.Probed,
    messages.ReplayFailed,
    messages.Replayed,
    messages.Resumed,
    messages.Scores,
    messages.StateHashes,
    messages.StepReport,
    messages.Inventory,
)
# Fields that only run up to where the run is, or to its end.
_LIMITED: dict[type, list[str]] = {
    kind: [name for name in ("step", "version", "epoch") if name in get_type_hints(kind)]
    for kind in get_args(messages.Message)
}


class Plausible:
    def __init__(self, run: Run) -> None:
        self._run = run
        self._known_ops: set[str] = set()  # operations of the run's shape, as they were told
        self._checks: dict[type, Callable[[Any], None]] = {
            messages.Hello: self._hello,
            messages.LayerCosts: self._costs,
            messages.Ready: self._ready,
            messages.StepReport: self._report,
            messages.Scores: self._scores,
            messages.Inventory: self._inventory,
            messages.Replayed: self._replayed,
            messages.Finished: self._finished,
        }

    def check(self, message: messages.Message) -> None:
        """Implausible: with the message, what it says and what was expected."""
        if self._run.phase in BEFORE_TRAINING and isinstance(message, _IN_TRAINING):
            phase = self._run.phase.name.lower()
            raise Implausible(f"{type(message).__name__} while {phase}: training has not begun")
        for name in _LIMITED.get(type(message), ()):
            most = self.most(name)
            if (number := getattr(message, name)) > most:
                raise _too_large(message, name, number, most)
        check = self._checks.get(type(message))
        if check is not None:
            check(message)

    def most(self, name: str) -> int:
        """Of a field that is limited in all messages."""
        return self._run.epoch if name == "epoch" else self._run.config.train.steps

    # --- before training ---

    def _hello(self, hello: messages.Hello) -> None:
        number = len(hello.layer_hashes)
        if hello.num_layers < 1 or number != hello.num_layers:
            raise Implausible(
                f"Hello.layer_hashes: {number} of them; expected one for each of "
                f"num_layers={hello.num_layers}, at least 1"
            )

    def _costs(self, costs: messages.LayerCosts) -> None:
        run = self._run
        if run.phase is not RunPhase.MEASURING or costs.worker != str(run.roster.first):
            raise Implausible(f"LayerCosts while {run.phase.name.lower()}: nobody has asked for it")
        num_layers = run.hellos[run.roster.first].num_layers
        for name, seconds in (("forward_s", costs.forward_s), ("backward_s", costs.backward_s)):
            if len(seconds) != num_layers or not all(one > 0 for one in seconds):
                raise Implausible(
                    f"LayerCosts.{name}: {len(seconds)} times; expected one above 0 for each of "
                    f"{num_layers} layers"
                )
        if len(costs.sizes) != num_layers:
            raise Implausible(
                f"LayerCosts.sizes: {len(costs.sizes)} of them; expected one for each of "
                f"{num_layers} layers"
            )

    def _ready(self, ready: messages.Ready) -> None:
        worker = parse_worker(ready.worker)
        gone = worker in self._run.membership.missing  # what it was given is forgotten
        if not gone and self._run.assignments.num_builds(worker) < 1:
            raise Implausible("Ready: it was given no stage to build")

    # --- in training ---

    def _report(self, report: messages.StepReport) -> None:
        if report.step >= self._run.config.train.steps:
            raise _too_large(report, "step", report.step, self._run.config.train.steps - 1)
        if report.losses:
            self._losses(report, "losses", report.losses)
        told = {one.op for one in report.operations}
        if not told <= self._known_ops:
            ops = [parse_op(text) for text in told]
            _at_most(report, "operations", [op.stage for op in ops], self._run.shape.last_stage)
            self._microbatches(report, "operations", [op.microbatch or 0 for op in ops])
            self._known_ops |= told

    def _scores(self, told: messages.Scores) -> None:
        config, traits = self._run.config, self._run.roster.traits
        numbers, last = [one.microbatch for one in told.scores], num_validated(traits, config) - 1
        _at_most(told, "scores", numbers, last, "micro-batch ")
        num_metrics = len(metric_names(traits))
        if any(len(one.metrics) != num_metrics for one in told.scores):
            raise Implausible(f"Scores.scores: expected {num_metrics} metrics of each")
        _check_weights(told, "scores", told.scores)
        if not config.validation.is_due(told.step, config.train.steps):
            raise Implausible(f"Scores.step: {told.step}; no validation is due then")

    def _inventory(self, inventory: messages.Inventory) -> None:
        steps = self._run.config.train.steps
        _at_most(inventory, "reduced", [inventory.reduced], steps)
        _at_most(inventory, "oldest", [inventory.oldest], steps)
        _at_most(inventory, "saving", [inventory.saving], steps)
        _at_most(inventory, "commits", inventory.commits, steps)
        _at_most(inventory, "verdicts", inventory.verdicts, steps)
        _at_most(inventory, "kept", [one.step for one in inventory.kept], steps)
        self._microbatches(inventory, "progress", inventory.progress)
        for one in inventory.kept:
            self._microbatches(inventory, "kept", [*one.activations, *one.gradients])
        if inventory.reduced < 0 and parse_worker(inventory.worker) in self._run.stages:
            raise Implausible(
                f"Inventory.reduced={inventory.reduced}: expected at least 0 of a member"
            )

    def _replayed(self, replayed: messages.Replayed) -> None:
        _at_most(
            replayed, "losses", [one.step for one in replayed.losses], self._run.config.train.steps
        )
        for one in replayed.losses:
            self._losses(replayed, "losses", one.losses)

    def _finished(self, finished: messages.Finished) -> None:
        num_layers = self._run.hellos[self._run.roster.first].num_layers
        _at_most(finished, "digests", map(int, finished.digests), num_layers - 1)

    # --- parts ---

    def _microbatches(self, message: messages.Message, name: str, numbers: Iterable[int]) -> None:
        _at_most(message, name, numbers, self._run.shape.microbatches - 1, "micro-batch ")

    def _losses(self, message: messages.Message, name: str, losses: list[MicrobatchLoss]) -> None:
        numbers = [one.microbatch for one in losses]
        self._microbatches(message, name, numbers)
        if len(set(numbers)) < len(numbers):
            raise Implausible(f"{type(message).__name__}.{name}: a micro-batch is there twice")
        _check_weights(message, name, losses)


def _check_weights(
    message: messages.Message, name: str, rows: Iterable[MicrobatchLoss | MicrobatchScore]
) -> None:
    for one in rows:
        if not 0 <= one.weight < math.inf:
            kind = type(message).__name__
            raise Implausible(f"{kind}.{name}: a weight of {one.weight}; expected at least 0")


def _at_most(
    message: messages.Message, name: str, numbers: Iterable[int], most: int, what: str = ""
) -> None:
    largest = max(numbers, default=most)
    if largest > most:
        raise _too_large(message, name, largest, most, what)


def _too_large(
    message: messages.Message, name: str, number: int, most: int, what: str = ""
) -> Implausible:
    kind = type(message).__name__
    return Implausible(f"{kind}.{name}: {what}{number}; expected at most {most}")
