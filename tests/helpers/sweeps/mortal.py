"""A coordinator that dies, or falls asleep, at a given stimulus, in the midst of what it does."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from helpers.harness.coordinator_world import SomePlan
from holdfast.control import coordinator as core
from holdfast.control.effects import Discard, Effect
from holdfast.protocol import messages

AT_THE_END = -1  # of the run


class CoordinatorDied(BaseException):
    pass


def _die() -> None:
    raise CoordinatorDied


@dataclass(frozen=True)
class LastEffect(Discard):
    """``end`` is called instead of anything that would have followed."""

    end: Callable[[], None]


@dataclass
class Life:
    """Of one coordinator. ``ends_at``: number of the stimulus, from the beginning of training, or
    of its taking over, on; 0: it lives. ``from_step``: they are counted from there on."""

    ends_at: int
    seed: str
    from_step: int = 0
    num_stimuli: int = 0
    last: str = ""  # kind of the stimulus that it ended at
    had_ended: bool = False  # the run, when it died
    end: Callable[[], None] = field(default=_die, repr=False)

    def cut(self, effects: list[Effect], kind: str, *, run_is_over: bool) -> list[Effect]:
        """Of what its last stimulus leads to only a part is done."""
        self.num_stimuli += 1
        is_last = run_is_over if self.ends_at == AT_THE_END else self.num_stimuli == self.ends_at
        if not is_last:
            return effects
        self.last, self.had_ended = kind, run_is_over
        dice = random.Random(f"{self.ends_at}-{self.seed}")
        return [*effects[: dice.randint(0, len(effects))], LastEffect("", self.end)]


@dataclass
class Switch:
    """One for a whole run: other lanes for the members of then, once."""

    from_step: int
    is_made: bool = field(default=False)


def mortal(life: Life, switch: Switch) -> type[core.Coordinator]:
    class MortalCoordinator(core.Coordinator):
        kind = ""

        def __init__(self, *given: Any, **more: Any) -> None:
            super().__init__(*given, **more)
            usual = self.parts.plans.better
            self.parts.plans.better = lambda left: self._better() or usual(left)

        def _better(self) -> Any:
            run = self.run
            if switch.is_made or self.parts.reports.next_step < switch.from_step:
                return None
            switch.is_made = True
            problem = self.parts.plans.problem(run.stages)
            turned = SomePlan(problem, 0.5, "cleverer", 1).schedule()
            return run.plan.steady._replace(schedule=turned)

        def handle(self, message: messages.Message, at_s: float) -> list[Effect]:
            self.kind = type(message).__name__
            return super().handle(message, at_s)

        def tick(self, at_s: float) -> list[Effect]:
            self.kind = "tick"
            return super().tick(at_s)

        def lost_connection(self, worker: str, at_s: float) -> list[Effect]:
            self.kind = "lost connection"
            return super().lost_connection(worker, at_s)

        def heard_of_seal(self, *told: Any) -> list[Effect]:
            self.kind = "seal"
            return super().heard_of_seal(*told)

        def _noted(self, effects: list[Effect]) -> list[Effect]:
            effects = super()._noted(effects)
            if self.starting or self.parts.reports.next_step < life.from_step:
                return effects
            return life.cut(effects, self.kind, run_is_over=self.over)

    return MortalCoordinator
