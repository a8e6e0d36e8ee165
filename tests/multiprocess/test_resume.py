"""A run that was cut in two is the run that was not, whatever the layouts of the two."""

import hashlib
import json
import os
import shutil
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import holdfast as hf
from helpers import jobs, runs
from helpers.runs import MICROBATCHES, STEPS, TINY_GPT, assert_same_result, finished
from helpers.wide import first
from holdfast import job_file
from holdfast.host.instruction_set import LIMIT_VARIABLES, VARIABLE, read_cpu
from holdfast.job_call import load_job
from holdfast.observability.events import CheckpointSaved, RunStarted

EMULATED = "device.emulate=F=1ms,B=1ms,W=1ms"


@pytest.fixture
def cut_short(two_by_two, tmp_path):
    """A copy of the 2 x 2 run as it was after 10 steps."""
    run_dir = Path(shutil.copytree(two_by_two.run_dir, tmp_path / "cut short"))
    for step in (15, 20):
        shutil.rmtree(run_dir / "checkpoints" / f"step-{step:08d}")
    return run_dir


def checkpoints(run_dir):
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir())


def first_step(run):
    return [event for event in run.events if isinstance(event, RunStarted)][-1].first_step


@pytest.mark.wide
@pytest.mark.multiprocess
def test_four_processes_resumed_in_place_at_step_5_end_as_if_never_stopped(reference, cut_short):
    words = [*runs.layout("2x2"), "--resume", str(cut_short / "checkpoints" / "step-00000005")]
    run = finished(runs.processes(TINY_GPT, cut_short, *words, *runs.settings("checkpoint.keep=9")))
    assert first_step(run) == 5
    assert run.summary["steps"] == STEPS - 5
    assert_same_result(run, reference)
    # Step 10 of the history that was left is kept, but never resumed from by mistake.
    again = ["step-00000010", "step-00000010.abandoned", "step-00000015", "step-00000020"]
    assert checkpoints(cut_short) == ["step-00000005", *again]


@pytest.mark.multiprocess
@pytest.mark.parametrize("layout", first(1, ["1x4", "1x1", "4x1"]))
def test_a_run_resumed_in_another_layout_ends_as_if_never_stopped(
    reference, cut_short, tmp_path, layout
):
    words = [*runs.layout(layout), "--resume", str(cut_short)]
    run = finished(runs.threads(TINY_GPT, tmp_path / "run", *words))
    assert first_step(run) == 10
    assert run.summary["steps"] == STEPS - 10
    assert_same_result(run, reference)


def test_only_the_newest_checkpoints_are_kept_and_none_is_left_unfinished(tmp_path):
    words = runs.settings("checkpoint.every_steps=2", "checkpoint.keep=2", EMULATED)
    run = finished(runs.threads(TINY_GPT, tmp_path / "run", *runs.layout("2x2"), *words, steps=9))
    assert checkpoints(run.run_dir) == ["step-00000008", "step-00000009"]


def test_a_run_without_checkpoints_leaves_none(tmp_path):
    words = runs.settings("checkpoint.at_end=false", "checkpoint.every_steps=0", EMULATED)
    run = finished(runs.threads(TINY_GPT, tmp_path / "run", *words, steps=3))
    assert not (run.run_dir / "checkpoints").exists()


@pytest.mark.parametrize(
    ("first", "names"), [(1, ["step-00000001"]), (2, ["step-00000002"]), (0, [])]
)
def test_the_first_checkpoint_comes_early_unless_it_is_not_wanted(tmp_path, first, names):
    words = runs.settings("checkpoint.at_end=false", f"checkpoint.first_step={first}", EMULATED)
    run = finished(runs.threads(TINY_GPT, tmp_path / "run", *words, steps=4))
    assert [path.name for path in (run.run_dir / "checkpoints").glob("*")] == names
    assert [e.step for e in run.events if isinstance(e, CheckpointSaved)] == [first] * bool(first)


def expected_operations(kinds):
    """Of one worker in one step: each micro-batch forward and back once, then the reduction."""
    backward = kinds["BW"] + kinds["B"]
    return kinds["F"] == backward and kinds["B"] == kinds["W"] and kinds["R"] == 1


@pytest.mark.multiprocess
def test_the_trace_of_a_run_shows_every_operation_of_every_worker(two_by_two, tmp_path):
    out = tmp_path / "trace.json"
    done = runs.holdfast(["trace", str(two_by_two.run_dir), "--out", str(out)], tmp_path)
    assert (done.exit_code, done.stderr) == (0, "")
    rows = [row for row in json.loads(out.read_text())["traceEvents"] if row["ph"] == "X"]
    shown = {(row["pid"], row["tid"], row["args"]["step"], row["name"]) for row in rows}
    for stage in (0, 1):
        for step in range(STEPS):
            mine = {p: {n for q, t, s, n in shown if (q, t, s) == (p, stage, step)} for p in (0, 1)}
            assert not (mine[0] & mine[1]) - {f"{stage}R"}
            for names in mine.values():
                kinds = Counter(name[1:].rstrip("0123456789") for name in names)
                assert kinds["F"] == MICROBATCHES // 2
                assert expected_operations(kinds), names
    assert all(row["dur"] >= 0 for row in rows)


# --- what a run remembers ---


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Six steps of a small job in its own settings, checkpoints after each second one."""
    folder = tmp_path_factory.mktemp("whole")
    words = runs.settings("checkpoint.every_steps=2", "checkpoint.keep=9", "parallel.cut=[1]")
    job = jobs.small(folder)
    words = [*runs.layout("1x2"), *words, "--seed", "3"]
    return finished(runs.threads(job, folder / "run", *words, steps=6, microbatches=2))


@pytest.fixture
def half(whole, tmp_path):
    """A copy of that run as it was after 4 steps."""
    run_dir = Path(shutil.copytree(whole.run_dir, tmp_path / "half done"))
    shutil.rmtree(run_dir / "checkpoints" / "step-00000006")
    return run_dir


def resume(run_dir, *words):
    return runs.holdfast(["train", "--resume", str(run_dir), *words], run_dir)


def test_a_resume_needs_nothing_but_the_directory(whole, half):
    run = finished(resume(half))
    assert first_step(run) == 4
    assert run.sha256 == whole.sha256
    assert run.summary["config"] == whole.summary["config"]


def test_what_may_change_is_given_on_top_and_what_was_of_the_old_layout_is_dropped(whole, half):
    run = finished(resume(half, "--stages", "1", "--pipelines", "2", "--set", "schedule.name=1f1b"))
    assert run.sha256 == whole.sha256
    assert run.summary["config"]["parallel"] == {
        "pipelines": 2,
        "stages": 1,
        "microbatches": 2,
        "cut": [],
    }


def test_more_steps_than_the_run_had_are_more_steps_of_the_same_run(whole, half, tmp_path):
    run = finished(resume(half, "--steps", "8"))
    job = jobs.small(tmp_path)
    words = [*runs.layout("1x1"), "--seed", "3"]
    longer = finished(runs.threads(job, tmp_path / "run", *words, steps=8, microbatches=2))
    assert run.sha256 == longer.sha256


def test_a_finished_run_says_that_nothing_is_left(whole, tmp_path):
    run_dir = Path(shutil.copytree(whole.run_dir, tmp_path / "done"))
    run = resume(run_dir)
    assert run.exit_code == 2
    assert "train.steps=6" in run.stderr
    assert "nothing is left to do. Give more --steps" in run.stderr


def test_a_job_file_that_was_changed_or_moved_is_refused_unless_it_is_meant(whole, half, tmp_path):
    changed = jobs.write(tmp_path, "changed", Path(whole_job(whole)).read_text() + "\n# edited\n")
    run = resume(half, str(changed))
    assert run.exit_code == 2
    [line] = run.stderr.splitlines()
    assert line.startswith(f"holdfast: {changed}: has SHA-256 ")
    assert "Put it back as it was, or add --changed-job" in line
    run = finished(resume(half, str(changed), "--changed-job"))
    assert run.sha256 == whole.sha256  # only a comment was added
    manifest = json.loads(newest_manifest(half).read_text())
    assert manifest["job"] == str(changed)


def whole_job(run):
    return json.loads(newest_manifest(run.run_dir).read_text())["job"]


def newest_manifest(run_dir):
    return max((run_dir / "checkpoints").glob("step-*/manifest.json"))


WITH_ARGS = """
from dataclasses import replace


def job(args):
    rate = float(args[args.index("--lr") + 1])
    return replace(plain(), optimizer=lambda parameters: torch.optim.SGD(parameters, lr=rate))
"""


def test_arguments_of_the_job_reach_all_workers_and_are_remembered(tmp_path):
    plain = jobs.small(tmp_path).read_text().replace("def job()", "def plain()")
    job = jobs.write(tmp_path, "with_args", plain + WITH_ARGS)

    def trained(name, rate, steps):
        words = [*runs.layout("1x2"), "--set", f"job.args=--lr {rate}"]
        return finished(runs.threads(job, tmp_path / name, *words, steps=steps, microbatches=2))

    whole, other, half = trained("a", "1e-6", 4), trained("b", "2e-6", 4), trained("c", "1e-6", 2)
    assert whole.sha256 != other.sha256
    refused = resume(half.run_dir, "--steps", "4", "--", "--lr", "2e-6")
    assert refused.exit_code == 2
    assert "arguments of the job (--lr 2e-6): the checkpoint " in refused.stderr
    assert "was written with --lr 1e-6. Give the same, or add --changed-job" in refused.stderr
    gone_on = resume(half.run_dir, "--steps", "4", "--", "--lr", "1e-6")
    assert finished(gone_on).sha256 == whole.sha256
    again = finished(resume(whole.run_dir, "--steps", "6"))
    assert again.summary["config"]["job"]["args"] == ["--lr", "1e-6"]
    model = hf.open_run(whole.run_dir).model()
    assert isinstance(model, torch.nn.Module)


def test_without_its_job_file_a_resume_says_how_to_give_one(half, tmp_path):
    manifest = newest_manifest(half)
    values = json.loads(manifest.read_text())
    del values["sha256"]
    for job, words in (("/gone/job.py", "/gone/job.py: no such job file"), ("", "no job file:")):
        text = json.dumps(values | {"job": job}, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()
        manifest.write_text(json.dumps({**json.loads(text), "sha256": digest}))
        run = resume(half)
        assert run.exit_code == 2
        [line] = run.stderr.splitlines()
        assert words in line
        assert "holdfast train JOB.py" in line


# --- what a run is made of besides ---

# Than what the tests run with themselves.
OWN = {os.environ.get(name) for name in (VARIABLE, *LIMIT_VARIABLES)}
LOWER = "AVX2" if "avx512f" in read_cpu().flags and "AVX2" not in OWN else "AVX"


@pytest.mark.skipif("avx2" not in read_cpu().flags, reason="names of another processor")
def test_a_resume_with_other_instructions_is_refused_unless_that_is_accepted(half, monkeypatch):
    for name in LIMIT_VARIABLES:
        monkeypatch.setenv(name, "")
    monkeypatch.setenv(VARIABLE, LOWER)
    run = resume(half)
    assert run.exit_code == 2
    [line] = run.stderr.splitlines()
    assert line.startswith(f"holdfast: oneDNN instruction set is {LOWER}, the checkpoint {half}")
    assert "accept it with workers.allow_mixed=true" in line
    finished(resume(half, "--set", "workers.allow_mixed=true"))
    told = json.loads(newest_manifest(half).read_text())["fingerprint"]
    assert told["oneDNN instruction set"] == LOWER


def refused(run_dir, *words):
    run = resume(run_dir, *words)
    assert run.exit_code == 2
    [line] = run.stderr.splitlines()
    return line


def test_what_the_job_imports_must_be_as_it_was_unless_it_is_meant(tmp_path, monkeypatch):
    helper = tmp_path / "size_of_a_resumed_job.py"
    helper.write_text("SIZE = 1\n")
    text = jobs.SMALL.replace("NUM_LAYERS", "2").replace("size=1", "size=SIZE")
    job = jobs.write(tmp_path, "job", f"from {helper.stem} import SIZE\n{text}")
    run = finished(runs.threads(job, tmp_path / "run", steps=2, microbatches=2))
    helper.write_text("SIZE = 1  # edited\n")
    monkeypatch.delitem(sys.modules, helper.stem)  # as in a new process
    job_file.known_imports.cache_clear()
    line = refused(run.run_dir, "--steps", "4", "--changed-data")
    assert line.startswith(f"holdfast: imports of the job ({helper.name}) is ")
    assert "Put it back as it was, or add --changed-job" in line
    finished(resume(run.run_dir, "--steps", "4", "--changed-job"))


def test_data_that_has_grown_is_refused_at_a_resume_unless_it_is_meant(tmp_path):
    text = jobs.SMALL.replace("NUM_LAYERS", "2")
    count = "len(list(Path(__file__).parent.glob('*.sample')))"
    text = f"from pathlib import Path\n{text.replace('1000', count)}"
    job = jobs.write(tmp_path, "job", text)
    for number in range(5):
        (tmp_path / f"{number}.sample").touch()
    run = finished(runs.threads(job, tmp_path / "run", steps=2, microbatches=2))
    (tmp_path / "new.sample").touch()
    line = refused(run.run_dir, "--steps", "4", "--changed-job")
    assert line.startswith(f"holdfast: len(Job.data) is 6, the checkpoint {run.run_dir}")
    assert "was written with 5. Put it back as it was, or add --changed-data" in line
    finished(resume(run.run_dir, "--steps", "4", "--changed-data"))
    told = json.loads(newest_manifest(run.run_dir).read_text())["traits"]
    assert told["len(Job.data)"] == "6"


# --- buffers that are no part of a model's state_dict() ---

ROTARY = """
class Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("inv_freq", torch.arange(4.0), persistent=False)
        self.register_buffer("kept", torch.ones(4))

    def forward(self, x):
        return self.linear(x) + self.inv_freq * self.kept


def job():
"""


def test_the_model_comes_out_of_a_checkpoint_as_the_readme_says(tmp_path):
    text = jobs.SMALL.replace("NUM_LAYERS", "2").replace("\ndef job():\n", ROTARY)
    job = jobs.write(tmp_path, "rotary", text.replace("nn.Linear(4, 4) for", "Rotary() for"))
    run = finished(runs.threads(job, tmp_path / "run", steps=2, microbatches=2))
    tensors = {}
    for file in (run.run_dir / "checkpoints" / "step-00000002").glob("*/*.safetensors"):
        tensors |= load_file(file)
    assert not [key for key in tensors if "inv_freq" in key]
    layers = torch.nn.Sequential(*load_job(job, 0).layers)
    layers.load_state_dict({key: value for key, value in tensors.items() if "/" not in key})
    more = finished(resume(run.run_dir, "--steps", "4"))
    whole = finished(runs.threads(job, tmp_path / "whole", steps=4, microbatches=2))
    assert more.sha256 == whole.sha256
