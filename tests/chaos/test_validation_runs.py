"""Whole runs that are validated: the same numbers whatever the layout, and whoever dies meanwhile.

Workers are threads of this process.
"""

import json
import math

import pytest
import torch

import holdfast as hf
from helpers import validated_job as job
from helpers.sweeps.chaos_order import steps_wait_for_checkpoints
from helpers.wide import first
from holdfast.errors import CheckpointError, ConfigError, HoldfastError
from holdfast.observability.events import FaultFired, StoppedEarly, Validated, WentBack
from holdfast.storage.best import BEST_FILE
from holdfast.testing import train_in_threads

STEPS, EVERY = 7, 3  # the last step is validated, too
USUAL = {"parallel.microbatches": 8, "validation.every": EVERY}
# Nothing is better than the first one by so much.
STOPPED = {**USUAL, "validation.every": 2, "validation.patience": 2, "validation.min_delta": 9.0}
STOPPED |= {"validation.keep_best": "max near", "checkpoint.keep": 1, "checkpoint.every_steps": 1}
LAYOUTS = ["2x2", "1x4", "4x1"]


def train(layout="1x1", made=job.validated, config=USUAL, steps=STEPS, **more):
    pipelines, stages = map(int, layout.split("x"))
    return train_in_threads(
        made, pipelines=pipelines, stages=stages, steps=steps, config=config, **more
    )


@pytest.fixture(scope="module")
def calm():
    return train()


def assert_same(run, calm):
    assert run.validation == calm.validation
    assert run.parameters_sha256 == calm.parameters_sha256


def of_kind(run, kind):
    return [event for event in run.events if isinstance(event, kind)]


# --- what it is ---


def test_it_is_what_a_plain_loop_finds(calm):
    model, data = calm.model().eval(), job.Waves(job.NUM_VALIDATED, 100)
    rows = []
    with torch.no_grad():
        for at in range(0, len(data), 2):
            some = [data[i] for i in range(at, min(at + 2, len(data)))]
            given, target = (torch.stack(tensors) for tensors in zip(*some, strict=True))
            output = model(given)
            loss = torch.nn.functional.mse_loss(output, target).item()
            rows.append((loss, job.near(output, target).item(), output.max().item(), len(some)))
            for layer in (model[1], model[2]):
                layer.seen -= 1  # a validation leaves no trace in a buffer

    def mean(place):
        return math.fsum(row[place] * row[3] for row in rows) / len(data)

    last = calm.validation[-1]
    assert [one.step for one in calm.validation] == [3, 6, 7]
    assert (last.loss, last.metrics) == (mean(0), {"near": mean(1), "largest": mean(2)})


def test_training_is_the_same_without_it(calm):
    without = train(made=job.plain, config={"parallel.microbatches": 8})
    assert without.parameters_sha256 == calm.parameters_sha256
    assert without.losses == calm.losses
    assert without.validation == ()
    hf.testing.assert_same_bits(without, calm)  # buffers and the optimizer's state


@pytest.mark.parametrize("layout", first(1, LAYOUTS))
def test_it_does_not_depend_on_the_layout(layout, calm):
    assert_same(train(layout), calm)


@pytest.mark.wide
def test_a_part_of_the_set_is_enough(calm):
    run = train("2x2", config={**USUAL, "validation.microbatches": 3})
    assert [one.step for one in run.validation] == [3, 6, 7]
    assert run.validation != calm.validation
    assert run.parameters_sha256 == calm.parameters_sha256
    assert run.validation == train(config={**USUAL, "validation.microbatches": 3}).validation


# --- somebody dies ---

DEATHS = [
    ["kill 1.1 @ 3.validate"],
    ["kill 0.0 @ 6.validate", "kill 1.1 @ 7.validate"],
    ["kill 0.1 @ 3.validate"],
    ["kill 1.0 @ 7.validate", "kill 0.1 @ 7.proceed"],
]


@pytest.mark.parametrize("deaths", first(1, DEATHS))
def test_deaths_in_a_validation_change_nothing(deaths, calm):
    run = train("2x2", faults=deaths)
    assert sorted(run.summary.faults_fired) == sorted(deaths)
    fired, found = of_kind(run, FaultFired), of_kind(run, Validated)
    in_validation = [one for one in fired if one.point == "validate"]
    assert in_validation
    for one in in_validation:  # it was not over, and is found once
        assert [event.at_s > one.at_s for event in found if event.step == one.step + 1] == [True]
    assert_same(run, calm)


@pytest.mark.parametrize("layout", first(1, ["1x2", "1x4"]))
def test_a_stage_that_is_lost_in_a_validation_goes_back_and_finds_the_same(
    layout, calm, monkeypatch
):
    steps_wait_for_checkpoints(monkeypatch, every=2)
    config = {**USUAL, "checkpoint.every_steps": 2, "recovery.log": "none"}
    run = train(layout, config=config, faults=["kill 0.1 @ 6.validate"])
    assert run.summary.faults_fired == ("kill 0.1 @ 6.validate",)
    assert [event.to_step for event in of_kind(run, WentBack)] in ([4], [6])
    assert_same(run, calm)


# --- the best one, and enough ---


def check_stopped(run):
    assert [event.step for event in of_kind(run, StoppedEarly)] == [6]
    assert run.summary.outcome == "finished"
    assert "2 validations in a row" in run.summary.stopped_early
    assert [one.step for one in run.validation] == [2, 4, 6]
    # That of the first validation, besides the newest one.
    assert [checkpoint.step for checkpoint in run.checkpoints] == [2, 6]
    assert run.best.step == 2
    assert json.loads((run.run_dir / BEST_FILE).read_text())["step"] == 2


@pytest.fixture(scope="module")
def stopped():
    run = train(config=STOPPED, steps=12)
    check_stopped(run)
    return run


STOPS = [("2x2", ["kill 1.1 @ 6.validate"]), ("1x4", []), ("2x2", ["kill 0.0 @ 2.save"])]


@pytest.mark.parametrize(("layout", "deaths"), first(1, STOPS))
def test_the_run_ends_with_the_same_step_and_keeps_the_same_checkpoint(layout, deaths, stopped):
    run = train(layout, config=STOPPED, steps=12, faults=deaths)
    check_stopped(run)
    assert list(run.summary.faults_fired) == deaths
    assert_same(run, stopped)


def test_a_resumed_run_knows_the_best_and_its_patience(stopped, tmp_path):
    train(config=STOPPED, steps=4, run_dir=tmp_path / "run")
    run = hf.resume(tmp_path / "run", job=job.validated, pipelines=2, stages=2, steps=12)
    assert [event.step for event in of_kind(run, StoppedEarly)] == [6]
    assert run.parameters_sha256 == stopped.parameters_sha256
    assert run.validation == stopped.validation[2:]
    assert run.best.step == 2


def test_a_run_that_has_stopped_early_is_resumed_without_patience_only(tmp_path):
    # Its only checkpoint is that of its end: one that was due could be whole before its validation.
    train(config={**STOPPED, "checkpoint.every_steps": 0}, steps=12, run_dir=tmp_path / "run")
    expected = r"validation.patience=2: .* has stopped early \(2 validations in a row no better"
    with pytest.raises(CheckpointError, match=expected):
        hf.resume(tmp_path / "run", job=job.validated, steps=12)
    on = {"validation.patience": 0}
    assert hf.resume(tmp_path / "run", job=job.validated, steps=8, config=on).validation[-1].step


def test_a_best_version_that_no_rule_would_save_is_saved(calm):
    config = {**USUAL, "validation.keep_best": "loss", "validation.min_delta": 9.0}
    run = train("2x2", config=config | {"checkpoint.every_steps": 0, "checkpoint.keep": 1})
    assert run.best.step == EVERY
    assert [checkpoint.step for checkpoint in run.checkpoints] == [EVERY, STEPS]
    assert_same(run, calm)
    best, last = (model.state_dict() for model in (run.best_model(job.validated), run.model()))
    assert best.keys() == last.keys()
    assert not torch.equal(best["0.weight"], last["0.weight"])


# --- what is wrong with it ---


def test_a_metric_that_raises_ends_the_run_with_its_name_and_a_checkpoint(tmp_path):
    expected = (
        r"metric 'fragile' raised ValueError in the validation after step 3, micro-batch 6: too few"
    )
    with pytest.raises(HoldfastError, match=expected):
        train(made=job.with_a_metric_that_raises, run_dir=tmp_path / "run")
    assert [one.step for one in hf.open_run(tmp_path / "run").checkpoints][-1] == 3


@pytest.mark.parametrize(
    ("made", "settings", "expected"),
    [
        (job.plain, {"validation.every": 2}, "validation.every=2: the job has nothing to validate"),
        (
            job.validated,
            {"validation.keep_best": "max far"},
            "validation.keep_best=max far: Job.metrics has no 'far'; known are loss, near, largest",
        ),
    ],
)
def test_what_the_job_has_not_is_refused_before_anything_is_written(
    made, settings, expected, tmp_path
):
    with pytest.raises(ConfigError, match=expected):
        train(made=made, config=settings, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
