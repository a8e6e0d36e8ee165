"""Micro-batches that count for their real tokens: as one big batch, and the same bits anywhere.

Workers are threads of this process.
"""

import math
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

import holdfast as hf
from helpers import weighted_job as job
from helpers.wide import first
from holdfast.errors import ConfigError, HoldfastError
from holdfast.observability.events import StepFinished
from holdfast.runtime.stage.weighing import checked_weight
from holdfast.testing import assert_same_bits, train_in_threads

STEPS, MICROBATCHES = 4, 4
USUAL = {"parallel.microbatches": MICROBATCHES, "validation.every": 2}
FP16 = {"train.precision": "fp16", "train.loss_scale": 2**17}  # so high that steps are left out
LOG = {"recovery.log": "boundary", "checkpoint.every_steps": 2, "workers.replace": 3}


def train(made=job.weighted, layout="1x1", config=(), steps=STEPS, **more):
    pipelines, stages = map(int, layout.split("x"))
    config = USUAL | dict(config)
    return train_in_threads(
        made, pipelines=pipelines, stages=stages, steps=steps, config=config, **more
    )


def finished(run):
    return [event for event in run.events if isinstance(event, StepFinished)]


# --- one big batch ---


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.5)


def big_batch(data, first_sample, number, model):
    samples = [data[i] for i in range(first_sample, first_sample + number)]
    tokens, target = (torch.stack(column) for column in zip(*samples, strict=True))
    scores = model(tokens).flatten(0, 1)
    total = cross_entropy(scores, target.flatten(), ignore_index=-100, reduction="sum")
    return total / (target != -100).sum()


@pytest.mark.parametrize("clip_norm", first(1, [0.3, None]))
def test_a_step_is_that_of_one_big_batch_to_rounding(clip_norm):
    made = partial(job.weighted, layers=job.layers(), optimizer=sgd, clip_norm=clip_norm)
    run = train(made, steps=3)
    model, data = torch.nn.Sequential(*job.layers()), job.Padded()
    counts = [int((data[i][1] != -100).sum()) for i in range(8)]
    assert counts[:2] == [0, 0], "a micro-batch without any token"
    assert len({sum(counts[i : i + 2]) for i in range(0, 8, 2)}) > 2, "uneven ones"
    optimizer = sgd(model.parameters())
    for step, event in enumerate(finished(run)):
        optimizer.zero_grad()
        loss = big_batch(data, 8 * step, 8, model)
        loss.backward()
        norm = clip_grad_norm_(model.parameters(), clip_norm or 1e9)
        optimizer.step()
        assert event.loss == pytest.approx(loss.item(), rel=1e-6)
        assert event.gradient_norm == pytest.approx(norm.item(), rel=1e-5)
        assert event.clipped == (clip_norm is not None and norm.item() > clip_norm)
    for ours, theirs in zip(run.model().parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6, check_device=False)
    validation = big_batch(job.Padded(9), 0, 9, run.model().eval())
    assert run.validation[-1].loss == pytest.approx(validation.item(), rel=1e-6)


@pytest.mark.parametrize("weight", first(1, [2.0, 1]))
def test_equal_weights_are_as_none_bit_for_bit(weight):
    """1 / 2 is exact."""
    made = partial(job.weighted, data=job.Padded(num_empty=0), validation=None)
    made = partial(made, optimizer=sgd, clip_norm=None)
    config = {"validation.every": 0}
    without = train(partial(made, weight=None), config=config)
    given = train(partial(made, weight=lambda target: weight), "2x2", config)
    assert given.parameters_sha256 == without.parameters_sha256
    assert given.losses == pytest.approx(without.losses, rel=1e-15)


# --- the same bits ---


@pytest.fixture(scope="module")
def calm():
    """By settings, on one worker."""
    made = {}

    def run(config):
        key = tuple(sorted(config.items()))
        made.setdefault(key, None)
        made[key] = made[key] or train(config=config)
        return made[key]

    return run


DISTURBED = {
    "killed": ("2x2", ["kill 1.0 @ 2.B1"], {}, {}),
    "a lost stage replayed": ("1x4", ["kill 0.3 @ 3.B1"], LOG, {}),
    "four stages": ("1x4", [], {}, {}),
    "the last stage, reduced": ("2x2", ["kill 1.1 @ 2.reduced"], {}, {}),
    "killed, and back": ("2x2", ["kill 1.1 @ 2", "join @ 3"], {}, {}),
    "a lost first stage replayed": ("1x2", ["kill 0.0 @ 4.F1"], LOG, {}),
    "all wait": ("2x2", ["kill 0.1 @ 3.W0"], {"optimizer.mode": "global"}, {}),
    "undone": ("2x2", ["kill 0.1 @ 3.W0"], {"recovery.consistency": "undo"}, {}),
    "bf16": ("2x2", ["kill 1.0 @ 3.B1"], {}, {"train.precision": "bf16"}),
    "fp16": ("2x2", ["kill 1.1 @ 3.B1"], {}, FP16),
}


@pytest.mark.parametrize("how", first(1, DISTURBED))
def test_no_layout_and_no_death_shows(how, calm):
    layout, faults, config, common = DISTURBED[how]
    run, expected = train(layout=layout, faults=faults, config=config | common), calm(common)
    assert sorted(run.summary.faults_fired) == sorted(faults)
    assert bool(run.summary.rebuilt) == ("recovery.log" in config)
    assert run.losses == pytest.approx(expected.losses, rel=0, abs=0, nan_ok=True)
    assert run.validation == expected.validation
    skipped = [event.skipped for event in finished(run)]
    assert skipped == [event.skipped for event in finished(expected)]
    assert any(skipped) == (common is FP16)
    assert_same_bits(run, expected)


@pytest.mark.wide
def test_a_resumed_run_has_the_same_bits(calm, tmp_path):
    train(layout="2x2", steps=2, run_dir=tmp_path / "run")
    run = hf.resume(tmp_path / "run", job=job.weighted, pipelines=1, stages=2, steps=STEPS)
    assert run.losses == calm({}).losses[2:]
    assert run.parameters_sha256 == calm({}).parameters_sha256


# --- nothing to train on ---


@pytest.mark.parametrize("config", first(1, [{}, FP16 | {"train.loss_scale": 1024}]))
def test_a_step_without_any_weight_is_left_out_and_says_so(config):
    made = partial(job.weighted, data=job.Padded(num_empty=8))
    one, two = train(made, config=config, steps=2), train(made, "2x2", config, steps=2)
    assert [event.empty for event in finished(two)] == [True, False]
    assert two.summary.skipped_steps == (0,)
    assert len({event.loss_scale for event in finished(two)}) == 1, "it was not too high"
    assert one.parameters_sha256 == two.parameters_sha256


def test_a_validation_without_any_weight_is_no_number():
    made = partial(job.weighted, validation=job.Padded(3, num_empty=3))
    assert [math.isnan(one.loss) for one in train(made, steps=2).validation] == [True]


def test_a_run_without_any_weight_is_no_success():
    made = partial(job.weighted, data=job.Padded(num_empty=40))
    with pytest.raises(HoldfastError, match=r"Job\.weight was 0 for every micro-batch"):
        train(made, steps=2)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (-1, "-1"),
        (float("nan"), "nan"),
        (torch.tensor(float("inf")), "inf"),
        (1e-30, "1e-30"),
        ("3", "a str"),
        (None, "a NoneType"),
        (True, "a bool"),
        (torch.ones(2), "a Tensor of shape (2,)"),
    ],
)
def test_a_weight_that_is_none_is_refused(given, said):
    with pytest.raises(ConfigError) as caught:
        checked_weight(given, "micro-batch 3 of step 1")
    expected = "expected 0, or a number from 1e-09 to 1e+15, such as its real tokens"
    assert str(caught.value) == (
        f"Job.weight returned {said} for micro-batch 3 of step 1: {expected}"
    )


@pytest.mark.parametrize("given", [0, 3, 2.5, np.int64(7), np.float32(0.5), torch.tensor([4])])
def test_any_other_number_is_a_weight(given):
    assert checked_weight(given, "any") == float(given)


def test_a_run_ends_with_the_micro_batch_whose_weight_is_none():
    made = partial(job.weighted, weight=lambda target: 1 - int((target != -100).sum()))
    with pytest.raises(
        HoldfastError, match=r"returned -\d+ for micro-batch 1 of step 1:"
    ) as caught:
        train(made, steps=1)
    assert caught.value.exit_code == 2


def test_a_weight_that_is_no_function_is_refused():
    with pytest.raises(ConfigError, match=r"Job\.weight is a int: expected a function"):
        job.weighted(weight=3)
