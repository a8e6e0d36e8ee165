"""Training from Python: the same results as the command's, from scripts, threads and notebooks."""

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from subprocess import Popen

import pytest
import torch

import holdfast as hf
from helpers import api_jobs, jobs, runs
from holdfast.storage.manifest import find

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(300)]
THREADS = {"workers.kind": "threads"}
MUST_HOLD = (
    "import holdfast as hf; r = hf.train({job!r}, pipelines=2, stages=2, steps=6, "
    "run_dir={run_dir!r}); print(r.parameters_sha256)"
)


def python(code: str, *words: str, cwd=None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        env=runs.environment(),
        timeout=runs.LIMIT_S,
        cwd=cwd,
    )


@pytest.mark.wide
def test_a_call_in_python_prints_what_the_command_prints(tmp_path):
    job = str(runs.TINY_GPT)
    called = python(MUST_HOLD.format(job=job, run_dir=str(tmp_path / "called")))
    assert called.returncode == 0, called.stderr
    words = ["train", job, "--run-dir", str(tmp_path / "command"), *runs.layout("2x2")]
    command = runs.holdfast([*words, "--steps", "6"], tmp_path / "command")
    assert f"parameters sha256 {called.stdout.strip()}\n" in runs.finished(command).stdout


# --- jobs of every kind ---

SCRIPT = """
import sys

import holdfast as hf
from helpers.api_jobs import small

seen = open(sys.argv[1], "a") if len(sys.argv) > 1 and sys.argv[1].endswith("seen") else None


def make():
    return small()


result = hf.train(make, stages=2, steps=3, run_dir=sys.argv[2])
print(result.parameters_sha256)
"""


@pytest.fixture(scope="module")
def expected():
    return hf.testing.train_in_threads(api_jobs.small, stages=2, steps=3).parameters_sha256


@pytest.mark.wide
@pytest.mark.parametrize("guarded", [False, True])
def test_a_script_trains_a_function_of_its_own(tmp_path, expected, guarded, monkeypatch):
    text = SCRIPT
    if guarded:
        head, train, tail = text.partition("result = ")
        body = (train + tail).replace("\n", "\n    ")
        text = f'{head}if __name__ == "__main__":\n    {body}'
    script = jobs.write(tmp_path, "script", text)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "seen"), str(tmp_path / "run")],
        capture_output=True,
        text=True,
        env=runs.environment(),
        timeout=runs.LIMIT_S,
    )
    assert (done.returncode, done.stdout) == (0, f"{expected}\n"), done.stderr
    origin = find(tmp_path / "run").origin
    assert origin.job == f"{script}:make"


@pytest.mark.wide
def test_a_function_of_a_module_is_loaded_by_processes(tmp_path, expected, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    result = hf.train("helpers.api_jobs:small", stages=2, steps=3, run_dir=tmp_path / "run")
    assert result.parameters_sha256 == expected


NOTEBOOK = """
import asyncio
import holdfast as hf
from helpers.api_jobs import small

def make():
    return small()

async def cell():  # the event loop of a notebook runs in the main thread
    try:
        hf.train(make, stages=2, steps=3, run_dir={run_dir!r})
    except hf.ConfigError as why:
        print("workers.kind=threads" in str(why))
    result = hf.train(
        make, stages=2, steps=3, run_dir={run_dir!r}, config={{"workers.kind": "threads"}}
    )
    print(result.parameters_sha256)

asyncio.run(cell())
"""


@pytest.mark.wide
def test_a_notebook_is_told_what_to_do_and_can_train_in_threads(tmp_path, expected, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    done = python(NOTEBOOK.format(run_dir=str(tmp_path / "run")))
    assert (done.returncode, done.stdout) == (0, f"True\n{expected}\n"), done.stderr


@pytest.mark.wide
def test_it_trains_in_any_thread(tmp_path, expected):
    found = []

    def work():
        result = hf.train(
            api_jobs.small, stages=2, steps=3, run_dir=tmp_path / "run", config=THREADS
        )
        found.append(result.parameters_sha256)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [expected]


# --- the result ---


def test_the_result_has_the_losses_the_events_and_the_trained_model(tmp_path):
    seen = []
    before = torch.get_rng_state()
    result = hf.train(
        api_jobs.small,
        stages=2,
        steps=4,
        run_dir=tmp_path / "run",
        config=THREADS,
        on_event=seen.append,
    )
    finished = [event for event in seen if isinstance(event, hf.events.StepFinished)]
    assert tuple(event.loss for event in finished) == result.losses
    assert [type(event) for event in result.events] == [type(event) for event in seen]
    assert result.digest == result.parameters_sha256
    torch.set_rng_state(before)
    model = result.model().eval()
    assert torch.equal(torch.get_rng_state(), before)
    assert model[0].weight is model[3].weight  # tied
    assert model[1].num_batches_tracked > 0  # buffers are trained too
    stored = runs.Outcome(tmp_path / "run", 0, "", "").state()
    assert torch.equal(model[0].weight, stored["0.weight"])
    assert torch.equal(model[1].running_mean, stored["1.running_mean"])
    assert model(torch.ones(3, api_jobs.WIDTH)).shape == (3, api_jobs.WIDTH)


@pytest.mark.wide
def test_a_run_can_be_opened_and_gone_on_with(tmp_path):
    whole = hf.testing.train_in_threads(api_jobs.small, stages=2, steps=6)
    options = {"run_dir": tmp_path / "run", "config": THREADS}
    hf.train("helpers.api_jobs:small", stages=2, steps=3, **options)
    opened = hf.open_run(tmp_path / "run")
    assert (opened.is_running, opened.summary.steps, opened.config.train.steps) == (False, 3, 3)
    assert [checkpoint.step for checkpoint in opened.checkpoints] == [1, 3]
    assert torch.equal(opened.model()[0].weight, opened.model(api_jobs.small)[0].weight)
    result = hf.resume(tmp_path / "run", steps=6)
    assert (result.summary.first_step, len(result.losses)) == (3, 3)
    assert result.parameters_sha256 == whole.parameters_sha256
    again = hf.open_run(tmp_path / "run")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] == 3
    assert replace(again.summary, config={}) == replace(result.summary, config={})
    assert again.config == result.config


@pytest.mark.wide
def test_runs_in_threads_take_turns_and_leave_torch_as_it_was(tmp_path, expected):
    before = torch.get_num_threads(), torch.get_rng_state()
    both = [
        hf.start(api_jobs.small, stages=2, steps=3, run_dir=tmp_path / name, config=THREADS)
        for name in "ab"
    ]
    assert [run.result().parameters_sha256 for run in both] == [expected, expected]
    assert torch.get_num_threads() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])


def test_a_directory_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(hf.ConfigError, match="expected the directory of a run"):
        hf.open_run(tmp_path)


# --- live events, interrupts, exceptions ---


def live(run_dir, steps=400):
    return hf.start(api_jobs.small, stages=2, steps=steps, run_dir=run_dir, config=THREADS)


@pytest.mark.wide
def test_a_live_run_gives_its_events_one_by_one(tmp_path):
    with live(tmp_path / "run", steps=3) as run:
        steps = [event.step for event in run if isinstance(event, hf.events.StepFinished)]
        result = run.result()
    assert steps == [0, 1, 2]
    assert run.is_over
    assert result.run_dir == tmp_path / "run"


class OwnError(Exception):
    pass


def test_an_exception_of_a_callback_comes_after_an_orderly_end(tmp_path):
    def fail(event):
        if isinstance(event, hf.events.StepFinished) and event.step == 1:
            raise OwnError

    with pytest.raises(OwnError) as why:
        hf.train(
            api_jobs.small,
            steps=5000,
            run_dir=tmp_path / "run",
            config=THREADS,
            on_event=fail,
        )
    [note] = why.value.__notes__
    assert "interrupted" in note
    assert f"holdfast.resume('{tmp_path / 'run'}')" in note
    opened = hf.open_run(tmp_path / "run")
    assert not opened.is_running
    assert opened.checkpoints[-1].step == opened.summary.steps >= 2


@pytest.mark.wide
def test_an_interrupt_by_the_program_is_an_error_of_its_own_kind(tmp_path):
    run = live(tmp_path / "run", steps=5000)
    for event in run:
        if isinstance(event, hf.events.StepFinished):
            run.interrupt()
            break
    with pytest.raises(hf.RunInterrupted, match=r"holdfast\.resume"):
        run.result()


CTRL_C = """
import os, signal
import holdfast as hf

def press(event):
    if isinstance(event, hf.events.StepFinished) and event.step == 2:
        os.kill(os.getpid(), signal.SIGINT)

before = signal.getsignal(signal.SIGINT)
try:
    hf.train({job!r}, stages=2, steps=100000, run_dir={run_dir!r}, on_event=press)
except KeyboardInterrupt as why:
    print(signal.getsignal(signal.SIGINT) is before, why.__notes__)
"""


@pytest.mark.wide
def test_ctrl_c_ends_with_a_checkpoint_and_is_then_raised(tmp_path):
    job = jobs.small(tmp_path)
    done = python(CTRL_C.format(job=str(job), run_dir=str(tmp_path / "run")))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("True ")
    assert "holdfast.resume(" in done.stdout
    opened = hf.open_run(tmp_path / "run")
    assert opened.checkpoints[-1].step == opened.summary.steps >= 3


@pytest.mark.wide
def test_a_run_that_fails_raises_what_the_command_would_say(tmp_path):
    job = jobs.write(tmp_path, "bad", "def job():\n    raise KeyError('no data')\n")
    with pytest.raises(hf.ConfigError, match=r"bad\.py:2: KeyError: 'no data'"):
        hf.train(job, run_dir=tmp_path / "run", config=THREADS)
    with pytest.raises(hf.ConfigError, match=r"faults='kill 9\.9 @ 1': there is no worker"):
        hf.train(job, run_dir=tmp_path / "run", config=THREADS, faults=["kill 9.9 @ 1"])


@pytest.mark.wide
def test_settings_may_be_a_config_a_mapping_or_a_file(tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text("[workers]\nkind = 'threads'\n[train]\nsteps = 2\n")
    config = hf.Config()
    assert config.parallel.pipelines == 1
    for number, given in enumerate(
        [file, {"workers": {"kind": "threads"}, "train.steps": 2}, None]
    ):
        more = {} if given else {"steps": 2}
        result = hf.train(
            api_jobs.small,
            pipelines=2,
            run_dir=tmp_path / str(number),
            config=given or THREADS,
            **more,
        )
        assert (len(result.losses), result.summary.config["parallel"]["microbatches"]) == (2, 8)


def test_a_job_that_survives_is_told_from_one_that_does_not():
    survived = hf.testing.assert_survives(api_jobs.small, kill="1.0 @ 2.B1", steps=3)
    assert survived.summary.faults_fired == ("kill 1.0 @ 2.B1",)
    other = hf.testing.train_in_threads(api_jobs.small, steps=3, config={"train.seed": 1})
    assert not hf.testing.same_bits(survived, other)
    with pytest.raises(AssertionError, match="the parameters"):
        hf.testing.assert_same_bits(survived, other)


@pytest.mark.parametrize(
    ("kill", "error", "said", "trained"),
    [
        ("1.0 @ 2", hf.errors.ConfigError, "there is no step 2; expected 1 to 1", 0),
        ("1.0 @ 1.halt", AssertionError, "no worker came to that point: kill 1.0 @ 1.halt", 1),
    ],
)
def test_a_kill_that_does_not_happen_is_said_before_the_undisturbed_training(
    kill, error, said, trained, monkeypatch
):
    finished, train = [], hf.testing.train_in_threads
    monkeypatch.setattr(
        hf.testing,
        "train_in_threads",
        lambda *a, **b: finished.append(train(*a, **b)) or finished[-1],
    )
    with pytest.raises(error, match=said) as caught:
        hf.testing.assert_survives(api_jobs.small, kill=kill, steps=1)
    assert len(finished) == trained
    assert "\n" not in str(caught.value)


@pytest.mark.wide
def test_r8_a_standard_error_that_nobody_reads_does_not_hold_up_the_end(tmp_path):
    """The pipe is full before the run begins, and the run ends with an error."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    with suppress(BlockingIOError):
        while True:
            os.write(write_end, bytes(1 << 16))
    os.set_blocking(write_end, True)
    job = jobs.write(tmp_path, "bad", "def job():\n    raise KeyError('no data')\n")
    words = runs.arguments(job, tmp_path / "run", *runs.settings("workers.kind=threads"))
    process = Popen(runs.command(*words), stderr=write_end, env=runs.environment())
    try:
        assert process.wait(runs.LIMIT_S) == 2
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        os.close(read_end)
        os.close(write_end)
