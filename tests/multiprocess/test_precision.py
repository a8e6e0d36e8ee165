"""bf16 and fp16: one result in every layout and after every loss, near that of a plain loop."""

import shutil
from itertools import pairwise

import pytest
import torch
from torch.nn.utils import clip_grad_norm_

from helpers import jobs, runs
from helpers.runs import assert_same_result, finished
from helpers.wide import wide
from holdfast.data.batches import Batches
from holdfast.job_call import load_job
from holdfast.observability.events import StepFinished
from holdfast.runtime.stage.seeding import seed_layer

pytestmark = pytest.mark.timeout(300)
STEPS, MICROBATCHES = 9, 8
NUMBERS = {"steps": STEPS, "microbatches": MICROBATCHES}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
BAND = {"bf16": 1e-2, "fp16": 3e-3}
# So high at first that five steps are left out; then it doubles so often that more are.
SCALING = (
    "train.precision=fp16",
    "train.loss_scale=16777216",
    "train.loss_scale_steps=2",
    "gradients.nonfinite=stop",  # no such skip counts
)
SETTINGS = {"bf16": ("train.precision=bf16",), "fp16": SCALING}
LOG = ("recovery.log=boundary", "checkpoint.every_steps=4", "workers.replace=3")
CHECKPOINTED = "stage.checkpoint_activations=true"

DISTURBED = {
    "two pipelines": ("2x2", (), ()),
    "four stages, activation checkpointing": ("1x4", (), (CHECKPOINTED,)),
    "killed in a step that is left out": ("2x2", ("kill 1.0 @ 2.B1",), ()),
    "killed while others have gone on": ("2x2", ("kill 1.1 @ 6.reduced",), ()),
    "killed, and back": ("2x2", ("kill 1.1 @ 3", "join @ 5"), ()),
    "a lost stage replayed": ("1x4", ("kill 0.3 @ 7.B1",), LOG),
    "a lost stage replayed, activation checkpointing": (
        "1x4",
        ("kill 0.2 @ 7.W1",),
        (*LOG, CHECKPOINTED),
    ),
    "all wait for the verdict": ("2x2", ("kill 0.1 @ 4.B1",), ("optimizer.mode=global",)),
    "steps are undone": ("2x2", ("kill 0.1 @ 7.W1",), ("recovery.consistency=undo",)),
}
USUAL = {("fp16", "killed, and back"), ("bf16", "two pipelines")}
WITHOUT_SCALE = (  # of bf16: the rest differs in what the loss scale does
    "two pipelines",
    "four stages, activation checkpointing",
    "killed, and back",
    "a lost stage replayed",
)
EVERY = [("fp16", how) for how in DISTURBED] + [("bf16", how) for how in WITHOUT_SCALE]
IN_BF16 = """
from dataclasses import replace

from torch import nn

import mixed


class InBf16(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer.bfloat16()

    def forward(self, x):
        return self.layer(x.bfloat16())


def loss(y, target):
    return nn.functional.mse_loss(y.float(), target)


def job():
    made = mixed.job()
    return replace(made, layers=[InBf16(layer) for layer in made.layers], loss=loss)
"""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """By precision, on one worker; with a checkpoint in the middle."""
    made = {}

    def run(precision):
        if precision not in made:
            folder = tmp_path_factory.mktemp(precision)
            settings = (*SETTINGS[precision], "checkpoint.every_steps=3", "checkpoint.keep=9")
            words = runs.settings(*settings)
            made[precision] = runs.threads(jobs.mixed(folder), folder / "run", *words, **NUMBERS)
        return finished(made[precision])

    return run


def scales(run):
    return [event.loss_scale for event in run.events if isinstance(event, StepFinished)]


@pytest.mark.parametrize(
    ("precision", "how"), [case if case in USUAL else wide(case) for case in EVERY]
)
def test_layouts_and_losses_of_workers_do_not_show(tmp_path, undisturbed, precision, how):
    layout, faults, settings = DISTURBED[how]
    flags = [word for fault in faults for word in ("--fault", fault)]
    words = [*runs.layout(layout), *flags, *runs.settings(*SETTINGS[precision], *settings)]
    run = finished(runs.threads(jobs.mixed(tmp_path), tmp_path / "run", *words, **NUMBERS))
    assert sorted(run.summary["faults_fired"]) == sorted(faults)
    assert bool(run.summary["rebuilt"]) == ("recovery.log=boundary" in settings)
    assert_same_result(run, undisturbed(precision))
    assert run.summary["skipped_steps"] == undisturbed(precision).summary["skipped_steps"]


def test_the_loss_scale_falls_and_rises_and_its_skips_end_no_run(undisturbed):
    run = undisturbed("fp16")
    assert "NaN or Inf: skipped, loss scale 16,777,216 halved" in run.stdout
    assert run.summary["skipped_steps"][:5] == [0, 1, 2, 3, 4]
    assert scales(run)[:6] == [2.0**bits for bits in (24, 23, 22, 21, 20, 19)]
    assert any(later > earlier for earlier, later in pairwise(scales(run))), "it never rose"
    assert undisturbed("bf16").summary["skipped_steps"] == []
    assert run.sha256 != undisturbed("bf16").sha256


def test_a_run_in_which_no_scale_was_low_enough_is_an_error(tmp_path):
    run = runs.threads(
        jobs.mixed(tmp_path), tmp_path / "run", *runs.settings(*SCALING), steps=2, microbatches=8
    )
    assert run.exit_code == 1
    assert "the loss scale was too high in every step: nothing was trained" in run.stderr


@pytest.mark.parametrize("layout", ["1x4"])
def test_a_resumed_run_goes_on_with_the_loss_scale_of_its_checkpoint(tmp_path, undisturbed, layout):
    whole = undisturbed("fp16")
    run_dir = shutil.copytree(whole.run_dir, tmp_path / "run")
    for step in (6, 9):
        shutil.rmtree(run_dir / "checkpoints" / f"step-{step:08d}")
    words = [*runs.layout(layout), "--resume", str(run_dir)]
    run = finished(runs.threads(whole.run_dir.parent / "mixed.py", run_dir, *words, **NUMBERS))
    assert scales(run)[-6:] == scales(whole)[-6:]
    assert_same_result(run, whole)


def test_a_run_is_not_resumed_in_another_precision(tmp_path, undisturbed):
    whole = undisturbed("bf16")
    words = ["--resume", str(whole.run_dir), "--precision", "fp16"]
    job = whole.run_dir.parent / "mixed.py"
    run = runs.threads(job, tmp_path / "run", *words, steps=12, microbatches=MICROBATCHES)
    assert run.exit_code == 2
    assert "train.precision=fp16: the checkpoint" in run.stderr
    assert "was written with bf16" in run.stderr


def test_a_precision_that_there_is_not_is_refused_in_one_line(tmp_path):
    run = runs.threads(jobs.mixed(tmp_path), tmp_path / "run", "--precision", "fp8", **NUMBERS)
    assert run.exit_code == 2
    [line] = run.stderr.splitlines()
    assert "train.precision" in line
    assert "fp8" in line
    assert "bf16" in line
    assert not run.run_dir.exists()


MASTERS = [
    ("2x2", ("kill 1.1 @ 3", "join @ 5"), ()),
    wide(("1x4", ("kill 0.2 @ 7.B1",), LOG)),
    wide(("2x2", ("kill 1.0 @ 6.reduced",), ("recovery.consistency=undo",))),
]


@pytest.mark.parametrize(("layout", "faults", "settings"), MASTERS)
def test_parameters_in_bf16_have_masters_that_survive_too(tmp_path, layout, faults, settings):
    jobs.mixed(tmp_path)
    job = jobs.write(tmp_path, "in_bf16", IN_BF16)
    one = finished(runs.threads(job, tmp_path / "one", **NUMBERS))
    flags = [word for fault in faults for word in ("--fault", fault)]
    words = [*runs.layout(layout), *flags, *runs.settings(*settings)]
    other = finished(runs.threads(job, tmp_path / "other", *words, **NUMBERS))
    assert sorted(other.summary["faults_fired"]) == sorted(faults)
    assert_same_result(other, one)
    state = one.state()
    masters = [key for key in state if key.endswith("/holdfast.master")]
    for key in masters:
        parameter = state[key.removesuffix("/holdfast.master")]
        assert (state[key].dtype, parameter.dtype) == (torch.float32, torch.bfloat16)
        assert torch.equal(state[key].bfloat16(), parameter)
    exact = [torch.equal(state[key].bfloat16().float(), state[key]) for key in masters]
    assert not all(exact), "no master holds more than its parameter"


def plain_loop(job, precision, num_steps):
    """As most people write it."""
    trained = list(dict.fromkeys(p for layer in job.layers for p in layer.parameters()))
    optimizer, batches = job.optimizer(trained), Batches(job, 0, MICROBATCHES)
    schedule = job.lr_schedule(optimizer)
    scaler = torch.amp.GradScaler("cpu", enabled=precision == "fp16")
    losses = []
    for step in range(num_steps):
        optimizer.zero_grad()
        losses.append(0.0)
        for microbatch in range(MICROBATCHES):
            (x,), target = batches.load(step, microbatch)
            with torch.autocast("cpu", DTYPES[precision]):
                for number, layer in enumerate(job.layers):
                    seed_layer(0, step, microbatch, number)
                    x = layer(x)
                loss = job.loss(x, target) / MICROBATCHES
            scaler.scale(loss).backward()
            losses[-1] += loss.item()
        scaler.unscale_(optimizer)
        clip_grad_norm_(trained, job.clip_norm)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
    return losses


@pytest.mark.parametrize("precision", [wide("bf16"), "fp16"])
def test_losses_are_near_those_of_a_plain_loop_with_autocast(tmp_path, precision):
    job = jobs.mixed(tmp_path)
    numbers = {"steps": 20, "microbatches": MICROBATCHES}
    run = finished(runs.threads(job, tmp_path / "run", "--precision", precision, **numbers))
    losses = plain_loop(load_job(job, seed=0), precision, 20)
    assert run.losses == pytest.approx(losses, rel=BAND[precision])
