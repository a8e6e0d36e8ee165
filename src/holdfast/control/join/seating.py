"""On which machine a worker is started. Who waits because none has room is kept here.

The planner says what is best; where there is one machine, or none but this process, nothing is to
be decided.
"""

from holdfast.cluster import WorkerId
from holdfast.control.effects import Effect, Emit, StartWorker
from holdfast.control.state.run import Run
from holdfast.observability import events
from holdfast.planner.place.placing import place
from holdfast.planner.place.refilling import refill


class Seating:
    def __init__(self, run: Run) -> None:
        self._run = run
        self._waiting: dict[WorkerId, float] = {}  # for a machine with room; since when

    def first(self) -> dict[WorkerId, str]:
        """The machine of each worker to begin with; some have none if there is no room for all.

        ConfigError: all machines are here and together too small.
        """
        run = self._run
        here, shape = tuple(run.machines.here.values()), run.shape
        wanted = run.first_stages
        if len(here) == 1 and here[0].slots >= len(wanted):
            return dict.fromkeys(wanted, here[0].name)
        is_room = sum(machine.slots for machine in here) >= shape.pipelines * shape.stages
        if is_room or len(here) >= run.config.machines.count:
            where = place(shape.pipelines, shape.stages, here).where
        else:
            where = refill(run.machines.placement({}), here, may_move=False).starts
        return {worker: name for worker, name in where.items() if worker in wanted}

    def start(self, worker: WorkerId, at_s: float) -> Effect:
        """Now, or as soon as there is room for it."""
        machines = self._run.machines
        if self._is_here:
            return StartWorker(worker)
        name = self._machine_for(worker)
        if name:
            self._waiting.pop(worker, None)
            machines.seat(worker, name)
            return StartWorker(worker, name)
        self._waiting[worker] = at_s
        here = machines.names
        return Emit(events.NoRoom(at_s=at_s, worker=str(worker), machines=here))

    def due(self, at_s: float) -> list[Effect]:
        """Those for whom there is room now."""
        found: list[Effect] = []
        for worker in sorted(self._waiting):
            if self._machine_for(worker):
                found.append(self.start(worker, at_s))
        return found

    def has_room(self, worker: WorkerId) -> bool:
        return self._is_here or bool(self._machine_for(worker))

    def waits(self, worker: WorkerId, at_s: float) -> bool:
        """For a machine, and not too long yet."""
        since_s = self._waiting.get(worker)
        return since_s is not None and at_s - since_s <= self._run.config.machines.wait_s

    def forget(self, worker: WorkerId) -> None:
        self._waiting.pop(worker, None)

    @property
    def _is_here(self) -> bool:
        """Nobody speaks for a machine: whoever runs the coordinator starts workers itself."""
        return not self._run.config.machines.count and not self._run.machines.here

    def _machine_for(self, worker: WorkerId) -> str:
        """Empty: none has room."""
        machines = self._run.machines
        open_ = [name for name in machines.open if machines.room_on(name) > 0]
        if len(open_) < 2:
            return "".join(open_)
        here = machines.open.values()
        best = refill(machines.placement(self._run.stages), here, may_move=False).starts
        # Others may be missing as well, and would come first; nobody has asked for them.
        return best.get(worker) or max(open_, key=lambda name: (machines.room_on(name), name))
