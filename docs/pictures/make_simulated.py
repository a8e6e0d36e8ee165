"""Draws docs/pictures/simulated-*.svg: the pictures of "Which cluster should I rent?".

.venv/bin/python docs/pictures/make_simulated.py
"""

from pathlib import Path

from holdfast.baselines.policies.catalogue import BY_NAME
from holdfast.simulator.answers.pictures import drawn
from holdfast.simulator.costs.presets import preset
from holdfast.simulator.costs.transformer import Hardware, transformer_costs
from holdfast.simulator.intervals.comparing import compare_policies
from holdfast.simulator.worlds.files import packaged_trace
from holdfast.simulator.worlds.world import scaled

HERE = Path(__file__).parent
PIPELINES, STAGES = 12, 8


def main() -> None:
    job = transformer_costs(
        preset("6.7b"), Hardware(), pipelines=PIPELINES, stages=STAGES, microbatches=2 * STAGES
    )
    world = scaled(packaged_trace("aws-p3"), PIPELINES * STAGES)
    outcomes = compare_policies(world, job, list(BY_NAME))
    (HERE / "simulated-spot.svg").write_bytes(drawn(world, outcomes, "svg"))


if __name__ == "__main__":
    main()
