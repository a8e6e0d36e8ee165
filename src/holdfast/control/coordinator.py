"""What the run does next. Pure: messages in, effects out; ``server.py`` does the talking.

Every worker starts, says hello, is given its stage and its lane, trains, reports, finishes.
A worker that ends too early ends the run: nobody is left waiting for it.
"""

import hashlib
from dataclasses import dataclass, field
from enum import Enum, auto

from holdfast.cluster import WorkerId, parse_worker
from holdfast.config import RunConfig
from holdfast.control.checks import check_alike, check_fits
from holdfast.control.costs import emulated_costs, layer_costs, measured_costs
from holdfast.errors import ConfigError, HoldfastError
from holdfast.observability import events
from holdfast.planner.schedules import make
from holdfast.protocol import messages
from holdfast.recovery.manifest import Checkpoint, Part
from holdfast.schedule.costs import Costs
from holdfast.schedule.cut import equal_cut, stage_ranges
from holdfast.schedule.generate import default_memory
from holdfast.schedule.operation import Shape
from holdfast.schedule.schedule import Schedule
from holdfast.schedule.validity import check

SUSPICION_S = 1.5  # an agent reports the end of a process within milliseconds


class Phase(Enum):
    STARTING = auto()  # waiting for every worker's hello
    MEASURING = auto()  # one worker times the layers
    BUILDING = auto()  # workers build their stages
    TRAINING = auto()
    FINISHED = auto()
    FAILED = auto()


@dataclass(frozen=True, slots=True)
class Send:
    to: WorkerId
    message: messages.Message


@dataclass(frozen=True, slots=True)
class OpenRun:
    """Make the run directory: from here on there is something to keep."""


@dataclass(frozen=True, slots=True)
class SealCheckpoint:
    """All parts of a checkpoint are on disk: make it one that can be resumed."""

    step: int
    parts: tuple[Part, ...]
    took_s: float


@dataclass(frozen=True, slots=True)
class Emit:
    event: events.Event


Effect = Send | OpenRun | SealCheckpoint | Emit


@dataclass
class Progress:
    """What the workers have reported so far."""

    reports: dict[int, dict[WorkerId, messages.StepReport]] = field(default_factory=dict)
    num_steps: int = 0
    last_end_s: float = 0.0
    parts: dict[int, dict[WorkerId, messages.CheckpointPart]] = field(default_factory=dict)
    finished: dict[WorkerId, messages.Finished] = field(default_factory=dict)


class Coordinator:
    """Change it only through :meth:`handle` and :meth:`fail`."""

    def __init__(self, config: RunConfig, run_dir: str, resume: Checkpoint | None) -> None:
        parallel = config.parallel
        self._config = config
        self._run_dir = run_dir
        self._resume = resume
        self._shape = Shape(parallel.pipelines, parallel.stages, parallel.microbatches)
        self.workers = [
            WorkerId(pipeline, stage)
            for pipeline in range(parallel.pipelines)
            for stage in range(parallel.stages)
        ]
        self.phase = Phase.STARTING
        self.failure: HoldfastError | None = None
        self.details = ""
        self.hellos: dict[WorkerId, messages.Hello] = {}
        self.progress = Progress()
        self._ready: set[WorkerId] = set()
        self._suspicion: tuple[float, HoldfastError] | None = None
        self._complained: set[WorkerId] = set()
        self._heard_s = 0.0
        self._cut: tuple[int, ...] = ()
        self._reason = ""
        self.schedule: Schedule | None = None

    @property
    def _staggered(self) -> bool:
        return self._config.optimizer.mode == "staggered"

    @property
    def first_step(self) -> int:
        return self._resume.step if self._resume else 0

    @property
    def over(self) -> bool:
        return self.phase in (Phase.FINISHED, Phase.FAILED)

    def waiting_for(self) -> str:
        """For the error when a limit is reached."""
        here = self.hellos if self.phase is Phase.STARTING else self._ready
        missing = [str(worker) for worker in self.workers if worker not in here]
        return f"{self.phase.name.lower()}: no answer from worker {', '.join(missing)}"

    def handle(self, message: messages.Message, at_s: float) -> list[Effect]:
        if self.over:
            return []
        self._heard_s = at_s
        try:
            match message:
                case messages.Hello():
                    return self._on_hello(message, at_s)
                case messages.LayerCosts():
                    return self._on_costs(message)
                case messages.Ready():
                    return self._on_ready(message, at_s)
                case messages.StepReport():
                    return self._on_report(message, at_s)
                case messages.CheckpointPart():
                    return self._on_part(message)
                case messages.Finished():
                    return self._on_finished(message, at_s)
                case _:
                    return self._on_ending(message, at_s)
        except HoldfastError as why:
            return self.fail(why, at_s)

    def fail(self, why: HoldfastError, at_s: float, details: str = "") -> list[Effect]:
        """End the run: tell everyone, once."""
        if self.over:
            return []
        was_training = self.phase is Phase.TRAINING
        self.phase, self.failure, self.details = Phase.FAILED, why, details
        failed: list[Effect] = [Emit(events.RunFailed(at_s=at_s, reason=str(why)))]
        return (failed if was_training else []) + self._stop_all(str(why))

    def suspect(self, worker: str, what: str, at_s: float) -> list[Effect]:
        """Something is wrong with ``worker``; its agent will soon say what, so wait a little."""
        if not self.over and parse_worker(worker) not in self.progress.finished:
            self._suspicion = self._suspicion or (at_s, HoldfastError(f"worker {worker} {what}"))
        return []

    def tick(self, at_s: float) -> list[Effect]:
        if self._suspicion and at_s - self._suspicion[0] > SUSPICION_S:
            return self.fail(self._suspicion[1], at_s)
        if self.phase is Phase.TRAINING and at_s - self._heard_s > self._silence_limit_s():
            limit_s = self._silence_limit_s()
            return self.fail(HoldfastError(f"no worker reported a step for {limit_s:g} s"), at_s)
        return []

    def _silence_limit_s(self) -> float:
        """No operation may wait longer than the limit, and a worker reports once a lane."""
        lanes = self.schedule.lanes.values() if self.schedule else ()
        return max(map(len, lanes), default=1) * self._config.workers.wait_limit_s

    def _stop_all(self, reason: str) -> list[Effect]:
        return [Send(worker, messages.Stop(reason=reason)) for worker in self.hellos]

    def _on_ending(self, message: messages.Message, at_s: float) -> list[Effect]:
        match message:
            case messages.Failed() if message.lost:
                self._complained.add(parse_worker(message.worker))
                return self.suspect(message.lost, f"was lost by {message.worker}", at_s)
            case messages.Failed():
                kind = ConfigError if message.exit_code == ConfigError.exit_code else HoldfastError
                who = "" if kind is ConfigError else f"worker {message.worker}: "
                return self.fail(kind(who + message.reason), at_s, message.details)
            case messages.WorkerExited():
                worker = parse_worker(message.worker)
                explained = self._suspicion is not None and worker in self._complained
                if worker in self.progress.finished or explained:
                    return []  # tick() ends the run if nobody says what became of the suspect
                at_step = self.first_step + self.progress.num_steps
                why = HoldfastError(
                    f"worker {message.worker} (pid {message.pid}) ended with {message.how} "
                    f"{self._where(at_step)}; all workers were stopped. {self.advice()}"
                )
                return self.fail(why, at_s)
            case _:
                raise HoldfastError(f"unexpected {type(message).__name__} while {self.phase.name}")

    def _where(self, step: int) -> str:
        return f"in step {step + 1}" if self.phase is Phase.TRAINING else "before training started"

    def advice(self) -> str:
        """How to go on after a run that was stopped."""
        sealed = [s for s, parts in self.progress.parts.items() if len(parts) == self._shape.stages]
        if sealed:
            return f"Go on from the last checkpoint with --resume {self._run_dir}"
        if self._resume:
            return f"Go on from the same checkpoint with --resume {self._resume.directory}"
        return "No checkpoint was written yet: start again (checkpoint.every_steps sets how often)"

    def _on_hello(self, hello: messages.Hello, at_s: float) -> list[Effect]:
        worker = parse_worker(hello.worker)
        self.hellos[worker] = hello
        ready: list[Effect] = [Emit(_worker_ready(hello, at_s))]
        if len(self.hellos) < len(self.workers):
            return ready
        check_alike(
            {str(worker): hello.fingerprint for worker, hello in sorted(self.hellos.items())},
            allow_mixed=self._config.workers.allow_mixed,
        )
        return ready + self._choose_cut(hello.num_layers, tuple(hello.cut))

    def _choose_cut(self, num_layers: int, wish: tuple[int, ...]) -> list[Effect]:
        if self._resume is not None:
            check_fits(self._resume, num_layers)
        stages = self._shape.stages
        wish = self._config.parallel.cut or (wish if len(wish) == stages - 1 else ())
        emulated = self._config.device.durations_s()
        if stages == 1 or wish or emulated:
            cut = wish or equal_cut([1.0] * num_layers, stages)
            self._reason = "layers cut as asked" if wish else "layers cut by number"
            lengths = [len(layers) for layers in stage_ranges(cut, num_layers)]
            return self._assign(cut, emulated_costs(emulated, stages) or layer_costs(lengths))
        equal_cut([1.0] * num_layers, stages)  # refuses too many stages before anyone measures
        self.phase = Phase.MEASURING
        return [Send(self.workers[0], messages.MeasureLayers())]

    def _on_costs(self, costs: messages.LayerCosts) -> list[Effect]:
        both = [f + b for f, b in zip(costs.forward_s, costs.backward_s, strict=True)]
        cut = equal_cut(both, self._shape.stages)
        self._reason = "layers cut by measured time"
        ranges = stage_ranges(cut, len(both))
        forward = [sum(costs.forward_s[i] for i in layers) for layers in ranges]
        backward = [sum(costs.backward_s[i] for i in layers) for layers in ranges]
        return self._assign(cut, measured_costs(forward, backward))

    def _assign(self, cut: tuple[int, ...], costs: Costs) -> list[Effect]:
        memory = self._config.schedule.memory or default_memory(self._shape.stages)
        self.schedule = make(
            self._config.schedule.name, self._shape, costs, memory, staggered=self._staggered
        )
        check(self.schedule, memory)
        self._cut = cut
        self.phase = Phase.BUILDING
        addresses = {str(worker): [h.host, h.port] for worker, h in self.hellos.items()}
        assign = messages.Assign(
            epoch=1,
            cut=list(cut),
            schedule=self.schedule.dumps(),
            addresses=addresses,
            checkpoint=self._resume.directory if self._resume else "",
            first_step=self.first_step,
        )
        return [Send(worker, assign) for worker in self.workers]

    def _on_ready(self, ready: messages.Ready, at_s: float) -> list[Effect]:
        self._ready.add(parse_worker(ready.worker))
        if len(self._ready) < len(self.workers):
            return []
        self.phase = Phase.TRAINING
        self.progress.last_end_s = at_s
        started = events.RunStarted(
            at_s=at_s,
            pipelines=self._shape.pipelines,
            stages=self._shape.stages,
            microbatches=self._shape.microbatches,
            first_step=self.first_step,
            steps=self._config.train.steps,
            schedule=self._config.schedule.name,
            reason=self._reason,
            cut=self._cut,
        )
        go = [Send(worker, messages.Go(run_dir=self._run_dir)) for worker in self.workers]
        return [OpenRun(), Emit(started), *go]

    def _on_report(self, report: messages.StepReport, at_s: float) -> list[Effect]:
        worker = parse_worker(report.worker)
        effects: list[Effect] = []
        if report.operations:
            done = events.WorkerStep(
                at_s=at_s,
                worker=report.worker,
                step=report.step,
                ops=tuple((text, start_s, end_s) for text, start_s, end_s in report.operations),
            )
            effects.append(Emit(done))
        if report.taken_back:
            reason = "clipped" if report.clipped else "skipped"
            back = events.StepTakenBack(
                at_s=at_s, worker=report.worker, step=report.step, reason=reason
            )
            effects.append(Emit(back))
        reports = self.progress.reports.setdefault(report.step, {})
        reports[worker] = report
        if len(reports) == len(self.workers):
            effects.append(Emit(self._fold_step(report.step, at_s)))
        return effects

    def _fold_step(self, step: int, at_s: float) -> events.StepFinished:
        reports = self.progress.reports.pop(step)
        losses = sorted((int(m), loss) for r in reports.values() for m, loss in r.losses)
        loss = sum(loss for _, loss in losses) / self._shape.microbatches  # in micro-batch order
        tokens = sum(report.num_tokens for report in reports.values())
        one = reports[self.workers[0]]
        took_s = at_s - self.progress.last_end_s
        self.progress.num_steps += 1
        self.progress.last_end_s = at_s
        return events.StepFinished(
            at_s=at_s,
            step=step,
            loss=loss,
            gradient_norm=one.norm,
            tokens=tokens,
            took_s=took_s,
            clipped=one.clipped,
            skipped=one.skipped,
        )

    def _on_part(self, part: messages.CheckpointPart) -> list[Effect]:
        parts = self.progress.parts.setdefault(part.step, {})
        parts[parse_worker(part.worker)] = part
        if len(parts) < self._shape.stages:
            return []
        sealed = tuple(
            Part(p.directory, tuple(p.layers), p.digests, p.state) for _, p in sorted(parts.items())
        )
        return [SealCheckpoint(part.step, sealed, max(p.took_s for p in parts.values()))]

    def _on_finished(self, finished: messages.Finished, at_s: float) -> list[Effect]:
        self.progress.finished[parse_worker(finished.worker)] = finished
        if len(self.progress.finished) < len(self.workers):
            return []
        sha256 = self.parameters_sha256()
        self.phase = Phase.FINISHED
        memory = {f.worker: f.peak_memory_bytes for f in self.progress.finished.values()}
        done = events.RunFinished(at_s=at_s, parameters_sha256=sha256, peak_memory_bytes=memory)
        return [Emit(done), *self._stop_all("the run is finished")]

    def parameters_sha256(self) -> str:
        """Of all layers in order. Replicas that disagree are an error, never averaged away."""
        digests: dict[int, tuple[str, WorkerId]] = {}
        for worker, finished in sorted(self.progress.finished.items()):
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


def _worker_ready(hello: messages.Hello, at_s: float) -> events.WorkerReady:
    return events.WorkerReady(
        at_s=at_s, worker=hello.worker, pid=hello.pid, versions=hello.fingerprint
    )
