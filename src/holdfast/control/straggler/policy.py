"""Which lanes members get that are not equally fast. Others may have another rule."""

from holdfast.control.plans import Plans
from holdfast.control.state.current_plan import Steady
from holdfast.control.state.run import Run


class StragglerPolicy:
    """Ours: work is shared by speed; if that is not enough, places change or one is left out."""

    changes_places = True
    """Somebody may be given another stage, or be left out."""

    def __init__(self, run: Run, plans: Plans) -> None:
        self._run, self._plans = run, plans

    def lanes(self) -> Steady:
        """For the members, as slow as they are now."""
        run = self._run
        return self._plans.steady(self._plans.problem(run.stages, health=run.health.now))
