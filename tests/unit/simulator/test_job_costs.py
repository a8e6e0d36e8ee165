"""What a job costs: from a model's size, from flags, from a run."""

import pytest

from holdfast.baselines.policies.job_costs import JobCosts
from holdfast.errors import ConfigError
from holdfast.observability import events
from holdfast.schedule.costs import Costs
from holdfast.schedule.operation import Shape
from holdfast.simulator.costs.from_run import run_costs
from holdfast.simulator.costs.presets import PRESETS, preset
from holdfast.simulator.costs.transformer import Hardware, transformer_costs


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_has_about_the_parameters_of_its_layers(name):
    model = preset(name)
    assert model.parameters == pytest.approx(12 * model.layers * model.hidden**2, rel=0.25)


def test_a_gpu_is_used_as_much_as_was_said():
    hardware, model = Hardware(utilisation=0.5), preset("6.7b")
    job = transformer_costs(model, hardware, pipelines=1, stages=4, microbatches=8)
    seconds = 3 * sum(job.costs.forward_s)  # of a micro-batch, through all stages
    flops = 6 * model.parameters * model.sequence
    assert flops / (seconds * hardware.flops) == pytest.approx(0.5, rel=0.1)
    assert sum(job.state_bytes) == pytest.approx(16 * 6.7e9)


def test_more_stages_need_less_memory_each():
    make = [
        transformer_costs(preset("6.7b"), Hardware(), pipelines=2, stages=s, microbatches=8)
        for s in (4, 8)
    ]
    assert make[0].state_a_gpu == 2 * make[1].state_a_gpu
    with pytest.raises(ConfigError, match="ask for more stages"):
        transformer_costs(preset("6.7b"), Hardware(), pipelines=2, stages=1, microbatches=8)


def test_another_layout_has_the_same_work_and_batch():
    job = JobCosts(
        name="j",
        shape=Shape(4, 2, 16),
        costs=Costs.uniform(2, step_s=1.0),
        layers=8,
        state_bytes=(6.0, 2.0),
    )
    other = job.laid_out(2, 4)
    assert other.samples_a_step == job.samples_a_step
    assert sum(other.costs.forward_s) == sum(job.costs.forward_s)
    assert sum(other.state_bytes) == 8.0
    with pytest.raises(ConfigError, match="9 stages for 8 layers"):
        job.laid_out(1, 9)


@pytest.mark.parametrize(
    "wrong",
    [
        {"state_bytes": (1.0,)},
        {"link_bytes_s": 0.0},
        {"gpus_a_worker": 0},
        {"layers": 1},
        {"microbatches_held": 0},
    ],
)
def test_a_job_that_cannot_be_is_refused(wrong):
    with pytest.raises(ConfigError, match="expected"):
        JobCosts(name="j", shape=Shape(1, 2, 2), costs=Costs.uniform(2), **wrong)


# --- from a run ---


def started():
    return events.RunStarted(
        at_s=0.0, pipelines=1, stages=2, microbatches=2, steps=3, schedule="", reason="",
        cut=(1,), samples=8,
    )  # fmt: skip


def worker_step(stage, step, forward_s):
    rows = [(f"{stage}F0", 0.0, forward_s), (f"{stage}BW0", forward_s, 3 * forward_s)]
    return events.WorkerStep(at_s=0.0, worker=f"0.{stage}", step=step, ops=tuple(rows))


def test_costs_are_the_medians_of_a_run_without_its_first_step():
    seen = [started()]
    for step, scale in ((0, 100.0), (1, 1.0), (2, 1.0)):
        seen += [worker_step(0, step, 0.1 * scale), worker_step(1, step, 0.2 * scale)]
    job = run_costs("runs/a", seen)
    assert job.costs.forward_s == pytest.approx((0.1, 0.2))
    assert job.costs.fused_s == pytest.approx((0.2, 0.4))
    assert job.costs.input_s == pytest.approx((0.1, 0.2))
    assert job.samples_a_step == 8


@pytest.mark.parametrize("seen", [[], [started()], [started(), worker_step(0, 1, 0.1)]])
def test_a_run_that_tells_too_little_is_said(seen):
    with pytest.raises(ConfigError, match=r"runs/a: no .*: expected a run"):
        run_costs("runs/a", seen)
