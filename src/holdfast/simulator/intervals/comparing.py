"""Several policies in one world, on the same job."""

from collections.abc import Callable, Mapping, Sequence

from holdfast.baselines.policies.catalogue import make_policy
from holdfast.baselines.policies.job_costs import JobCosts
from holdfast.baselines.policies.paces import Paces
from holdfast.simulator.intervals.engine import simulate
from holdfast.simulator.intervals.outcome import PolicyOutcome
from holdfast.simulator.worlds.world import World


def compare_policies(
    world: World,
    job: JobCosts,
    names: Sequence[str],
    *,
    constants: Mapping[str, Mapping[str, float]] | None = None,
    boot_s: float = 60.0,
    paces: Paces | None = None,
    progress: Callable[[str, float], None] = lambda name, share: None,
) -> list[PolicyOutcome]:
    """In the order of the names. ``paces``: of the same job, if some are known already."""
    paces = paces or Paces(job)
    found = []
    for name in names:
        policy = make_policy(name, paces, (constants or {}).get(name))

        def told(share: float, name: str = name) -> None:
            progress(name, share)

        found.append(simulate(world, policy, boot_s=boot_s, progress=told))
    return found
