"""FALCON's answer to slow computation: whole pipelines get fewer or more micro-batches.

Places stay, and nobody is left out.
"""

from typing_extensions import override

from holdfast.baselines.whole_pipelines import whole_pipelines
from holdfast.control.state.current_plan import Steady
from holdfast.control.straggler.policy import StragglerPolicy


class Falcon(StragglerPolicy):
    changes_places = False

    @override
    def lanes(self) -> Steady:
        """As many micro-batches as each pipeline can take."""
        run, plans = self._run, self._plans
        plans.stop_refining()
        if not plans.is_slow and run.stages == run.first_stages:
            return run.plan.first._replace(period_s=plans.period_s(run.plan.first.schedule))
        schedule = whole_pipelines(plans.problem(run.stages), run.config.schedule.name)
        return Steady(schedule, plans.period_s(schedule), "shares of whole pipelines")
