"""From the first hello to the first Proceed: cut, costs, schedule, stages.

A worker that ends in this time ends the run: nothing is lost yet but its own start.
"""

from holdfast.cluster import WorkerId, parse_worker
from holdfast.control.checks import (
    check_alike,
    check_built_alike,
    check_fits,
    check_same_job,
    check_same_run,
)
from holdfast.control.device_room import device_room, limited_by_device, most_in_flight
from holdfast.control.effects import Effect, Emit, OpenRun, Send
from holdfast.control.inventory.losses import ProgressTracker
from holdfast.control.join.costs import emulated_costs, layer_costs, measured_costs
from holdfast.control.plans import Plans
from holdfast.control.state.current_plan import Cut, Steady
from holdfast.control.state.lifecycle import RunPhase
from holdfast.control.state.run import Run
from holdfast.control.state.workers import membership as m
from holdfast.errors import HoldfastError
from holdfast.observability import events
from holdfast.planner.schedules import make
from holdfast.protocol import messages
from holdfast.schedule.cut import equal_cut, stage_ranges
from holdfast.schedule.generate import default_memory
from holdfast.schedule.schedule import Schedule
from holdfast.schedule.validity import check

SUSPICION_S = 0.5  # an agent reports the end of a process within milliseconds


class Starting:
    def __init__(self, run: Run, tracker: ProgressTracker, plans: Plans) -> None:
        self._run = run
        self._tracker, self._plans = tracker, plans
        self._suspicion: tuple[float, HoldfastError] | None = None

    @property
    def _expected(self) -> dict[WorkerId, int]:
        """Those who begin: some may come later, when there is a machine for them."""
        absent = self._run.membership.all_in(m.WorkerPhase.ABSENT)
        return {w: stage for w, stage in self._run.first_stages.items() if w not in absent}

    def waiting_for(self) -> str:
        """For the error when a limit is reached."""
        here: set[WorkerId] = set(self._run.membership.all_in(m.WorkerPhase.READY))
        if self._run.phase is RunPhase.STARTING:
            here = set(self._run.hellos)
        missing = [str(worker) for worker in self._expected if worker not in here]
        return f"{self._run.phase.name.lower()}: no answer from worker {', '.join(missing)}"

    def suspect(self, worker: str, what: str, at_s: float) -> list[Effect]:
        """Something is wrong with it; its agent will soon say what, so wait a little."""
        self._suspicion = self._suspicion or (at_s, HoldfastError(f"worker {worker} {what}"))
        return []

    def ended(self, why: HoldfastError, at_s: float) -> list[Effect]:
        """A process has ended; what it has said itself of that may be read a moment later."""
        since_s = at_s if self._suspicion is None else self._suspicion[0]
        self._suspicion = since_s, why
        return []

    def tick(self, at_s: float) -> None:
        if self._suspicion and at_s - self._suspicion[0] > SUSPICION_S:
            raise self._suspicion[1]

    def on_hello(self, hello: messages.Hello, at_s: float) -> list[Effect]:
        run = self._run
        worker = parse_worker(hello.worker)
        run.membership.handle(m.SaidHello(worker, at_s))
        run.roster.enroll(worker, hello)
        ready: list[Effect] = [Emit(worker_ready(hello, at_s))]
        if len(run.hellos) < len(self._expected):
            return ready
        check_alike(
            {str(worker): hello.fingerprint for worker, hello in sorted(run.hellos.items())},
            allow_mixed=run.config.workers.allow_mixed,
        )
        check_same_job({str(w): hello.traits for w, hello in sorted(run.hellos.items())})
        check_built_alike({str(w): hello.layer_hashes for w, hello in sorted(run.hellos.items())})
        if run.settings.resume is not None:
            check_fits(run.settings.resume, hello.num_layers)
            first = run.hellos[min(run.hellos)]
            check_same_run(run.settings.resume, first, run.config, run.settings.accepted)
        return ready + self._choose_cut(hello.num_layers)

    def _wish(self) -> tuple[int, ...]:
        """Of the user, or else of the job; empty: none."""
        run = self._run
        own = tuple(run.hellos[run.roster.first].cut)
        return run.config.parallel.cut or (own if len(own) == run.shape.stages - 1 else ())

    def _choose_cut(self, num_layers: int) -> list[Effect]:
        run = self._run
        stages = run.shape.stages
        wish, emulated = self._wish(), run.config.device.durations_s()
        layers = wish or equal_cut([1.0] * num_layers, stages)  # refuses too many stages
        ranges = stage_ranges(layers, num_layers)
        cut_known = stages == 1 or bool(wish)
        if emulated or (cut_known and not self._room_bytes()):
            reason = "layers cut as asked" if wish else "layers cut by number"
            costs = emulated_costs(emulated, stages) or layer_costs([len(one) for one in ranges])
            return self._assign(Cut(layers, costs, not emulated, reason, default_memory(stages)))
        run.lifecycle.enter(RunPhase.MEASURING)
        return [Send(run.roster.first, messages.MeasureLayers())]

    def _room_bytes(self) -> float:
        """On each device; 0: there is none, or the user has said what fits."""
        run = self._run
        return 0.0 if run.config.schedule.memory else device_room(run.hellos.values())

    def on_costs(self, costs: messages.LayerCosts) -> list[Effect]:
        run = self._run
        both = [f + b for f, b in zip(costs.forward_s, costs.backward_s, strict=True)]
        wish = self._wish()
        layers = wish or equal_cut(both, run.shape.stages)
        ranges = stage_ranges(layers, len(both))
        forward = [sum(costs.forward_s[i] for i in of_stage) for of_stage in ranges]
        backward = [sum(costs.backward_s[i] for i in of_stage) for of_stage in ranges]
        measured = measured_costs(forward, backward)
        reason = "layers cut as asked" if wish else "layers cut by measured time"
        in_flight, room_bytes = default_memory(run.shape.stages), self._room_bytes()
        if room_bytes:
            in_flight = most_in_flight(room_bytes, costs.sizes, ranges, run.config)
        return self._assign(Cut(layers, measured, False, reason, in_flight))

    def _assign(self, cut: Cut) -> list[Effect]:
        run = self._run
        first = Steady(self._schedule(cut), 0.0, cut.reason)
        run.plan.make(cut, first, run.first_stages)
        run.lifecycle.enter(RunPhase.BUILDING)
        return [run.assign(worker, stage) for worker, stage in sorted(self._expected.items())]

    def _schedule(self, cut: Cut) -> Schedule:
        run = self._run
        if run.settings.schedule is not None:
            return run.settings.schedule
        memory = run.config.schedule.memory or cut.in_flight
        name = run.config.schedule.name
        schedule = make(name, run.shape, cut.costs, memory, staggered=run.settings.staggered)
        check(schedule, memory)
        return schedule

    def on_ready(self, worker: WorkerId, at_s: float) -> list[Effect]:
        run, expected = self._run, self._expected
        run.membership.handle(m.IsReady(worker, at_s))
        if len(run.membership.all_in(m.WorkerPhase.READY)) < len(expected):
            return []
        for each in expected:
            run.membership.handle(m.Entered(each, at_s))
        run.lifecycle.enter(RunPhase.TRAINING)
        run.placement.next_epoch()
        run.placement.hold_all(expected)
        self._plans.for_members()
        _, first_step = run.start
        told = dict.fromkeys(run.stages, (first_step, 0, 0))
        self._tracker.adopt(run.epoch, (), run.plan.steady.schedule, told)
        first = run.hellos[min(run.hellos)]
        opened = OpenRun(first.traits, first.fingerprint)
        started: list[Effect] = [opened, Emit(self._started(at_s, first_step))]
        return [*started, *run.proceed(first_step=first_step)]

    def _started(self, at_s: float, first_step: int) -> events.RunStarted:
        run = self._run
        own = run.settings.schedule is not None
        return events.RunStarted(
            at_s=at_s,
            pipelines=run.shape.pipelines,
            stages=run.shape.stages,
            microbatches=run.shape.microbatches,
            samples=self._samples(),
            first_step=first_step,
            steps=run.config.train.steps,
            schedule=run.config.schedule.file if own else run.config.schedule.name,
            reason=run.plan.cut.reason,
            cut=run.plan.cut.layers,
            address=run.settings.address,
            join_with=run.settings.join_with,
            in_flight=limited_by_device(run.plan.cut.in_flight, run.config),
            limits=run.timeouts.describe(),
        )

    def _samples(self) -> int:
        """Of a step."""
        run = self._run
        size = run.hellos[min(run.hellos)].traits.get(messages.MICROBATCH_SIZE, "")
        return int(size) * run.shape.microbatches if size.isdecimal() else 0


def worker_ready(hello: messages.Hello, at_s: float) -> events.WorkerReady:
    return events.WorkerReady(
        at_s=at_s,
        worker=hello.worker,
        pid=hello.pid,
        versions=hello.fingerprint,
        machine=hello.host,
    )
