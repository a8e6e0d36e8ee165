"""How far the run as a whole has got: one table. What is done in a phase is known elsewhere."""

from enum import Enum, auto

from holdfast.control.state.transition import moved


class RunPhase(Enum):
    STARTING = auto()  # waiting for every worker's hello
    MEASURING = auto()  # one worker times the layers
    BUILDING = auto()  # workers build their stages
    TRAINING = auto()
    RETURNING = auto()  # a stage was lost: all build anew, from a checkpoint
    REGAINING = auto()  # another coordinator has taken over: it waits for the workers to come back
    FINISHED = auto()
    FAILED = auto()


BEFORE_TRAINING = (RunPhase.STARTING, RunPhase.MEASURING, RunPhase.BUILDING)

_NEXT: dict[RunPhase, frozenset[RunPhase]] = {
    RunPhase.STARTING: frozenset(
        {RunPhase.MEASURING, RunPhase.BUILDING, RunPhase.REGAINING, RunPhase.FAILED}
    ),
    RunPhase.MEASURING: frozenset({RunPhase.BUILDING, RunPhase.FAILED}),
    RunPhase.BUILDING: frozenset({RunPhase.TRAINING, RunPhase.FAILED}),
    RunPhase.TRAINING: frozenset({RunPhase.RETURNING, RunPhase.FINISHED, RunPhase.FAILED}),
    RunPhase.RETURNING: frozenset({RunPhase.TRAINING, RunPhase.FAILED}),
    RunPhase.REGAINING: frozenset({RunPhase.TRAINING, RunPhase.FINISHED, RunPhase.FAILED}),
    RunPhase.FINISHED: frozenset(),
    RunPhase.FAILED: frozenset(),
}


class Lifecycle:
    def __init__(self) -> None:
        self._phase = RunPhase.STARTING
        self._was_returning = False

    @property
    def phase(self) -> RunPhase:
        return self._phase

    @property
    def over(self) -> bool:
        return self._phase in (RunPhase.FINISHED, RunPhase.FAILED)

    @property
    def was_returning(self) -> bool:
        """When another coordinator took over: all were building anew."""
        return self._was_returning

    def regain(self, *, was_returning: bool) -> None:
        self.enter(RunPhase.REGAINING)
        self._was_returning = was_returning

    def enter(self, phase: RunPhase) -> None:
        self._phase = moved("the run", _NEXT, self._phase, phase)
