"""Whole runs with groups by name, clipping by value, noise, an average of the weights and layers
that unfreeze: the same bits whatever the layout, whoever dies or joins, after a resume, and with
steps taken back.

Workers are threads of this process.
"""

import csv
import time
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from safetensors.torch import load_file

import holdfast as hf
from helpers import loop_job as job
from helpers.wide import first
from holdfast.api.model import all_tensors
from holdfast.errors import CallbackError, CheckpointError, ConfigError
from holdfast.testing import assert_same_bits, train_in_threads

STEPS = 7
CONFIG = {
    "parallel.microbatches": 8,
    "train.clip_value": 0.05,
    "train.noise": 0.01,
    "train.noise_decay": 0.55,
    "train.ema": 0.8,
    "validation.every": 3,
    "validation.ema": True,
}
UNDO = {"recovery.consistency": "undo"}
LOST = {"checkpoint.every_steps": 2}


def train(layout="1x1", made=job.job, steps=STEPS, config=None, **more):
    pipelines, stages = map(int, layout.split("x"))
    settings = CONFIG if config is None else {**CONFIG, **config}
    return train_in_threads(
        made, pipelines=pipelines, stages=stages, steps=steps, config=settings, **more
    )


@pytest.fixture(scope="module")
def calm():
    return train()


WAYS = [
    ("2x2", ["kill 1.1 @ 3.B1"], {}),
    ("1x4", [], {}),
    ("2x2", ["kill 1.0 @ 4.applied"], UNDO),
    ("2x2", ["kill 0.1 @ 2.half", "kill 1.0 @ 5.W1"], {"workers.restarts": 4}),
    ("1x2", ["kill 0.1 @ 5.B1"], LOST),
]


@pytest.mark.parametrize(("layout", "faults", "config"), first(1, WAYS))
def test_the_bits_are_those_of_one_worker(layout, faults, config, calm):
    run = train(layout, faults=faults, config=config)
    assert list(run.summary.faults_fired) == faults
    assert run.validation == calm.validation
    assert_same_bits(calm, run)


@pytest.mark.wide
def test_a_resumed_run_has_the_bits_of_one_that_was_not_stopped(calm, tmp_path):
    train(steps=3, run_dir=tmp_path / "run")
    run = hf.resume(tmp_path / "run", job=job.job, pipelines=2, stages=2, steps=STEPS)
    assert run.parameters_sha256 == calm.parameters_sha256
    theirs, ours = (all_tensors(one.checkpoints[-1]) for one in (calm, run))
    assert all(torch.equal(theirs[key], ours[key]) for key in theirs)
    with pytest.raises(CheckpointError, match=r"train.noise=0.5: .* was written with 0.01"):
        hf.resume(tmp_path / "run", job=job.job, steps=9, config={"train.noise": 0.5})


def test_twins_of_a_tied_parameter_stay_equal_and_the_groups_matter(calm):
    tensors = all_tensors(calm.checkpoints[-1])
    for name in ("weight", "weight/holdfast.ema", "weight/exp_avg"):
        assert torch.equal(tensors[f"0.{name}"], tensors[f"4.{name}"])
    assert train(made=job.ungrouped).parameters_sha256 != calm.parameters_sha256


def test_the_average_is_exported_and_validated_with(calm):
    tensors = all_tensors(calm.checkpoints[-1])
    written = load_file(calm.export(ema=True) / "model.safetensors")
    assert written.keys() == load_file(calm.export() / "model.safetensors").keys()
    assert torch.equal(written["2.linear.weight"], tensors["2.linear.weight/holdfast.ema"])
    assert not torch.equal(written["2.linear.weight"], tensors["2.linear.weight"])
    model = calm.model().eval()
    model.load_state_dict(written, strict=False)
    data = job.Waves(9, 100, job.WIDTH)
    inputs, targets = map(torch.stack, zip(*(data[i] for i in range(9)), strict=True))
    loss = torch.nn.functional.mse_loss(model(inputs), targets).item()
    assert calm.validation[-1].loss == pytest.approx(loss, rel=1e-5)


@pytest.mark.wide
def test_training_is_the_same_without_an_average(calm):
    run = train(config={"train.ema": 0.0, "validation.ema": False})
    assert run.parameters_sha256 == calm.parameters_sha256
    assert run.validation != calm.validation
    with pytest.raises(ConfigError, match=r"has no average of the weights; train with train.ema"):
        run.export(ema=True)


def test_an_average_that_is_not_kept_is_not_validated_with():
    with pytest.raises(ConfigError, match=r"validation.ema=True: needs train.ema above 0"):
        train(config={"train.ema": 0.0})


# --- callbacks ---


class Looking(hf.callbacks.Callback):
    """At the weights of each checkpoint; raises when it is told to."""

    def __init__(self, raises_at=None):
        self.weights, self.lost, self.ended, self._raises_at = {}, [], 0, raises_at

    def on_step(self, event, run):
        if run.steps == self._raises_at:
            raise ValueError("seen enough")

    def on_checkpoint(self, event, run):
        self.weights[event.step] = run.weights()

    def on_worker_lost(self, event, run):
        self.lost.append(event.worker)

    def on_end(self, run):
        self.ended += 1


def with_callbacks(folder, *callbacks, more=(), **options):
    config = {**CONFIG, "workers.kind": "threads", **dict(more)}
    return hf.train(
        job.job,
        stages=2,
        steps=STEPS,
        config=config,
        run_dir=folder,
        callbacks=callbacks,
        **options,
    )


def test_callbacks_see_steps_losses_and_weights_and_change_nothing(calm, tmp_path):
    looking = Looking()
    run = with_callbacks(
        tmp_path / "run",
        looking,
        hf.callbacks.CsvLogger(),
        pipelines=2,
        faults=["kill 1.0 @ 3.B1"],
    )
    assert run.parameters_sha256 == calm.parameters_sha256
    assert (looking.lost, looking.ended, max(looking.weights)) == (["1.0"], 1, STEPS)
    model = run.model().state_dict()
    assert all(torch.equal(looking.weights[STEPS][name], model[name]) for name in model)
    with (tmp_path / "run" / "steps.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == list(range(1, STEPS + 1))
    assert [float(row["loss"]) for row in rows] == list(run.losses)
    assert {float(row["lr"]) for row in rows} == {3e-2}  # of the first group


class Behind(Looking):
    """Hears of the first checkpoint when the run is all but over."""

    def __init__(self, folder):
        super().__init__()
        self.folder, self.there = folder, []

    def on_checkpoint(self, event, run):
        last = self.folder / "checkpoints" / f"step-{STEPS:08d}"
        until_s = time.monotonic() + 60
        while not last.exists() and time.monotonic() < until_s:
            time.sleep(0.01)
        self.there.append(sorted(path.name for path in last.parent.glob("step-*")))
        super().on_checkpoint(event, run)


def test_a_callback_that_is_far_behind_finds_the_weights_of_each_checkpoint(calm, tmp_path):
    behind = Behind(tmp_path / "run")
    config = {"checkpoint.every_steps": 1, "checkpoint.keep": 1}
    run = with_callbacks(tmp_path / "run", behind, more=config)
    assert run.parameters_sha256 == calm.parameters_sha256
    assert len(behind.there[0]) == STEPS, "it was not far behind: this proves nothing"
    assert list(behind.weights) == list(range(1, STEPS + 1))
    first, last = behind.weights[1], behind.weights[STEPS]
    assert not torch.equal(first["0.weight"], last["0.weight"])
    assert torch.equal(last["0.weight"], run.model().state_dict()["0.weight"])


def test_a_callback_that_raises_ends_the_run_with_a_checkpoint(tmp_path):
    looking = Looking(raises_at=2)
    with pytest.raises(CallbackError, match="callback Looking raised ValueError at step 2: seen"):
        with_callbacks(tmp_path / "run", looking)
    assert looking.ended == 1
    assert 2 <= hf.open_run(tmp_path / "run").checkpoints[-1].step <= STEPS


# --- layers that unfreeze ---

EACH = {"checkpoint.every_steps": 1, "checkpoint.keep": STEPS + 1, "train.noise": 0.0}
THAWS = {"0.weight": 3, "4.weight": 3, "2.norm.bias": 3, "2.linear.weight": 5, "3.linear.bias": 0}


@pytest.fixture(scope="module")
def thawed():
    return train(made=job.unfrozen, config=EACH)


def test_a_frozen_parameter_has_neither_changes_nor_state_until_it_thaws(thawed):
    states = [all_tensors(checkpoint) for checkpoint in thawed.checkpoints]
    assert [checkpoint.step for checkpoint in thawed.checkpoints] == list(range(1, STEPS + 1))
    for key, after in THAWS.items():
        changed = [not torch.equal(a[key], b[key]) for a, b in pairwise(states)]
        assert changed == [step > after for step in range(2, STEPS + 1)], key
        known = [f"{key}/exp_avg" in state for state in states]
        assert known == [step > after for step in range(1, STEPS + 1)], key


THAWING = [
    ("2x2", ["kill 1.0 @ 4.B2"], {}),
    ("1x4", [], {}),
    ("2x2", ["kill 1.1 @ 4.applied"], {**UNDO, "stage.checkpoint_activations": True}),
    ("1x2", ["kill 0.0 @ 5.B1"], LOST),
]


@pytest.mark.parametrize(("layout", "faults", "config"), first(1, THAWING))
def test_layers_thaw_alike_wherever_they_are(layout, faults, config, thawed):
    run = train(layout, made=job.unfrozen, faults=faults, config={**EACH, **config})
    assert list(run.summary.faults_fired) == faults
    assert_same_bits(thawed, run)


@pytest.mark.wide
def test_a_run_that_is_resumed_frozen_thaws(thawed, tmp_path):
    train(made=job.unfrozen, config=EACH, steps=2, run_dir=tmp_path / "run")
    run = hf.resume(tmp_path / "run", job=job.unfrozen, stages=2, steps=STEPS)
    assert run.parameters_sha256 == thawed.parameters_sha256


@pytest.mark.parametrize(
    ("unfreeze", "expected"),
    [
        (
            {3: ["7.*"]},
            r"Job.unfreeze has '7.\*', which no parameter is called: expected .* 0.weight",
        ),
        ({0: ["0.*"]}, r"Job.unfreeze has 0: expected a number of steps, at least 1"),
        ({3: "0.*"}, r"Job.unfreeze\[3\] is '0.\*': expected a list of names"),
        ([3], r"Job.unfreeze is a list: expected steps and names"),
    ],
)
def test_what_cannot_be_unfrozen_is_refused(unfreeze, expected):
    with pytest.raises(ConfigError, match=expected):
        replace(job.job(), unfreeze=unfreeze)
