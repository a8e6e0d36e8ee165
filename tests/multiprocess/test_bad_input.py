"""Bad input: one clear line, exit code 2, nothing half-written."""

import shutil
import socket
from pathlib import Path

import pytest

from helpers import jobs, runs
from helpers.runs import holdfast, settings

MICROBATCHES = ["--microbatches", "2"]
THREADS = settings("workers.kind=threads")


@pytest.fixture
def job(tmp_path):
    return jobs.small(tmp_path)


@pytest.fixture
def run_dir(tmp_path):
    return tmp_path / "not yet there" / "run"


def files_below(folder):
    return {
        path: path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
        if "__pycache__" not in path.parts
    }


def assert_refused(outcome, *parts):
    assert outcome.exit_code == 2, outcome
    [line] = outcome.stderr.splitlines()
    assert line.startswith("holdfast: ")
    for part in parts:
        assert part in line
    assert "Traceback" not in outcome.stderr + outcome.stdout


def refuse(job, run_dir, *words, parts):
    """Train with bad input in threads; all files must be as before."""
    before = files_below(job.parent)
    command = ["train", str(job), "--run-dir", str(run_dir), *THREADS, *words]
    assert_refused(holdfast(command, run_dir), *parts)
    assert files_below(job.parent) == before


BAD_SETTINGS = [
    (settings("optimizer.moed=global"), "optimizer.moed: unknown setting"),
    (settings("optimiser.mode=global"), "optimiser.mode: unknown setting"),
    (settings("optimizer.mode=none"), "optimizer.mode=none: must be staggered or global"),
    (settings("optimizer.mode"), "--set optimizer.mode: expected section.field=value"),
    (settings("train.steps=many"), "train.steps='many': must be a whole number"),
    (settings("device.emulate=F=1ms"), "device.emulate=F=1ms: lacks B, W"),
    (settings("control.host=0.0.0.0"), "control.host: unknown setting; its name is network.listen"),
    (settings("network.listen=192.0.2.7"), "network.listen=192.0.2.7: cannot listen there"),
    (settings("network.listen=[::1]"), "network.listen=[::1]: expected a host name"),
    (settings("network.advertise=::"), "network.advertise=::: stands for all addresses"),
    (settings("parallel.cut=[0]", "parallel.stages=2"), "cut=[0]: layer numbers must rise"),
    (settings("parallel.cut=[1,2]"), "parallel.cut=[1, 2]: needs 0 layer numbers"),
    (["--pipelines", "0"], "parallel.pipelines=0: must be at least 1"),
    (["--stages", "0"], "parallel.stages=0: must be at least 1"),
    (["--stages", "-1"], "parallel.stages=-1: must be at least 1"),
    (["--steps", "0"], "train.steps=0: must be at least 1"),
    (["--seed", "-3"], "train.seed=-3: must be in 0"),
    (["--stages", "two"], "--stages: invalid int value: 'two'"),
    (["--stages", "3"], "parallel.stages=3: the job has only 2 layers"),
    (["--stages", "5"], "parallel.stages=5: the job has only 2 layers"),
    (["--pipelines", "2", "--microbatches", "5"], "parallel.microbatches=5: must be divisible"),
    (["--no-such-flag"], "--no-such-flag"),
    (["--config", "no such.toml"], "--config no such.toml: "),
]


@pytest.mark.parametrize(
    ("words", "part"), BAD_SETTINGS, ids=[" ".join(w) for w, _ in BAD_SETTINGS]
)
def test_a_bad_setting_is_refused_by_its_name_and_value(job, run_dir, words, part):
    refuse(job, run_dir, *words, parts=[part])


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[parallel\nstages = 2", "line 1"),
        ("[parallel]\nstagse = 2", "parallel.stagse: unknown setting"),
        ("[paralel]\nstages = 2", "paralel: unknown section"),
        ("parallel = 2", "parallel=2: is a section"),
        ("[parallel]\nstages = '2'", "parallel.stages='2': must be a whole number"),
        ("[train]\nsteps = 2.5", "train.steps=2.5: must be a whole number"),
    ],
)
def test_a_bad_settings_file_is_refused(job, run_dir, text, part):
    config = job.parent / "bad.toml"
    config.write_text(text)
    refuse(job, run_dir, "--config", str(config), parts=[part])


BAD_JOBS = {
    "raises_on_import": ("import math\n1 / 0\n", ":2: ZeroDivisionError: division by zero"),
    "raises_in_job": (
        "def job():\n    raise KeyError('no data here')\n",
        ":2: KeyError: 'no data here'",
    ),
    "has_no_job": ("jobs = 1\n", "defines no function job()"),
    "returns_no_job": ("def job():\n    return 5\n", "job() returned a int"),
    "does_not_parse": ("def job(:\n", ":1: SyntaxError"),
    "leaves": ("import sys\nsys.exit(0)\n", ":2: SystemExit: 0"),
}


@pytest.mark.parametrize("name", BAD_JOBS)
def test_a_bad_job_file_is_refused_with_its_name_line_and_reason(tmp_path, run_dir, name):
    text, part = BAD_JOBS[name]
    job = jobs.write(tmp_path, name, text)
    refuse(job, run_dir, *runs.layout("2x2"), parts=[str(job), part])


@pytest.mark.wide
@pytest.mark.multiprocess
def test_a_job_that_raises_in_four_processes_is_still_one_line(tmp_path, run_dir):
    job = jobs.write(tmp_path, "raises", BAD_JOBS["raises_in_job"][0])
    outcome = runs.processes(job, run_dir, *runs.layout("2x2"))
    assert_refused(outcome, str(job), BAD_JOBS["raises_in_job"][1])
    assert not run_dir.parent.exists()


def test_a_missing_job_file_is_refused(tmp_path, run_dir):
    refuse(tmp_path / "missing.py", run_dir, parts=["missing.py: no such job file"])


def test_a_folder_as_job_file_is_refused(job, run_dir):
    words = ["train", str(job.parent), "--run-dir", str(run_dir)]
    assert_refused(holdfast(words, run_dir), f"{job.parent}: no such job file")


def test_a_port_in_use_is_refused(job, run_dir):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refuse(
            job, run_dir, *settings(f"control.port={port}"), parts=[f"control.port={port}: cannot"]
        )


def test_a_run_dir_below_a_regular_file_is_refused(job):
    (job.parent / "file").write_text("not a folder")
    run_dir = job.parent / "file" / "run"
    refuse(job, run_dir, parts=[f"--run-dir {run_dir}: cannot be written"])


def test_a_run_dir_that_is_a_regular_file_is_refused(job):
    run_dir = job.parent / "file"
    run_dir.write_text("not a folder")
    refuse(job, run_dir, parts=[f"--run-dir {run_dir}: cannot be written"])


# --- a job that is not the same everywhere ---

DRAWN = ("def job():", "def job():\n    torch.manual_seed(int.from_bytes(os.urandom(4)))")


def drawn_anew(folder, where="all"):
    """The same job, but built from the system's own random numbers each time."""
    text = "import os\n" + jobs.SMALL.replace("NUM_LAYERS", "2").replace(*DRAWN)
    if where == "tied":  # both layers have the same weight, drawn by each worker
        text = text.replace(
            "[nn.Linear(4, 4) for _ in range(2)]",
            "(lambda one: [one, nn.Sequential(one)])(nn.Linear(4, 4))",
        )
    return jobs.write(folder, f"drawn_{where}", text)


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("layout", ["2x1", "1x2"])
def test_a_job_that_builds_other_layers_on_each_worker_is_refused(tmp_path, run_dir, layout, mode):
    job = drawn_anew(tmp_path)
    words = [*runs.layout(layout), *settings(f"gradients.mode={mode}")]
    refuse(job, run_dir, *words, parts=["layer 0 differs between workers 0.0 and", "Seed all"])


def test_so_is_one_whose_layers_share_what_each_worker_draws(tmp_path, run_dir):
    job = drawn_anew(tmp_path, "tied")
    refuse(job, run_dir, *runs.layout("1x2"), parts=["layer 0 differs between workers 0.0 and 0.1"])


LATER = """
def job():
    with open(__file__ + ".built", "a+") as file:
        torch.manual_seed(file.tell() > 1)  # two workers, then those who go back
        file.write("x")
"""


def test_a_job_that_builds_other_layers_later_is_refused_when_all_go_back(tmp_path, run_dir):
    text = jobs.SMALL.replace("NUM_LAYERS", "2").replace("def job():", LATER.strip())
    job = jobs.write(tmp_path, "later", text)
    words = [*THREADS, *runs.layout("1x2"), "--fault", "kill 0.1 @ 2", "--steps", "4"]
    words += settings("checkpoint.every_steps=0")
    outcome = holdfast(["train", str(job), "--run-dir", str(run_dir), *words], run_dir)
    assert outcome.exit_code == 2, outcome
    assert "1 fault will be injected" in outcome.stdout
    assert "rolled back to the initial parameters" in outcome.stdout
    [line] = outcome.stderr.splitlines()
    assert "layer " in line
    assert "before: the job must build the same layers every time" in line


# --- checkpoints ---


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of 4 steps with checkpoints after 2 and 4."""
    folder = tmp_path_factory.mktemp("trained")
    every = settings("checkpoint.every_steps=2")
    run = runs.threads(
        jobs.small(folder), folder / "run", *runs.layout("1x2"), *every, steps=4, microbatches=2
    )
    return runs.finished(run)


@pytest.fixture
def old(trained, tmp_path):
    """A copy of that run, to be spoiled."""
    return Path(shutil.copytree(trained.run_dir, tmp_path / "old"))


def refuse_resume(job, old, run_dir, *words, parts, place=None):
    steps = [] if "--steps" in words else ["--steps", "6"]
    microbatches = [] if "--microbatches" in words else MICROBATCHES
    words = ["--resume", str(place or old), *steps, *microbatches, *words]
    refuse(job, run_dir, *words, parts=parts)


def test_a_run_dir_that_already_holds_a_run_is_refused(job, old):
    refuse(job, old, parts=[f"--run-dir {old}: already holds a run", f"--resume {old}"])


@pytest.mark.parametrize("place", ["not there", "empty"])
def test_a_resume_from_where_no_checkpoint_is_is_refused(job, tmp_path, run_dir, place):
    (tmp_path / "empty").mkdir()
    folder = tmp_path / place
    refuse_resume(job, folder, run_dir, parts=[f"{folder}: no "])


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--steps", "4"], "train.steps=4"),
        (["--steps", "3"], "train.steps=3"),
        (["--seed", "1"], "train.seed=1"),
        (["--microbatches", "4"], "parallel.microbatches=4"),
        (settings("gradients.mode=fast"), "gradients.mode=fast"),
        (settings("workers.compute_threads=2"), "workers.compute_threads=2"),
        (settings("device.emulate=F=1ms,B=1ms,W=1ms"), "device.emulate=F=1ms,B=1ms,W=1ms"),
    ],
)
def test_a_resume_that_cannot_continue_the_run_is_refused(job, old, run_dir, words, part):
    checkpoint = old / "checkpoints" / "step-00000004"
    refuse_resume(job, old, run_dir, *words, parts=[part, str(checkpoint)])


def flip_a_byte(path):
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


SPOIL = {
    "a changed tensor": ("stage-1/model-00001-of-00001.safetensors", flip_a_byte, "SHA-256"),
    "a missing file": ("stage-0/model-00001-of-00001.safetensors", Path.unlink, "cannot be read"),
    "a shorter file": (
        "stage-0/model-00001-of-00001.safetensors",
        lambda path: path.write_bytes(path.read_bytes()[:-100]),
        "SHA-256",
    ),
    "a cut manifest": (
        "manifest.json",
        lambda path: path.write_text(path.read_text()[:-50]),
        "its manifest cannot be read",
    ),
    "a changed manifest": (
        "manifest.json",
        lambda path: path.write_text(path.read_text().replace('"step": 4', '"step": 3')),
        "its manifest was changed",
    ),
    "an empty manifest": (
        "manifest.json",
        lambda path: path.write_text("[]"),
        "its manifest cannot be read",
    ),
}


@pytest.mark.parametrize("what", SPOIL)
def test_a_corrupted_checkpoint_is_refused_and_the_one_before_it_named(job, old, run_dir, what):
    name, spoil, part = SPOIL[what]
    newest, older = (old / "checkpoints" / f"step-{step:08d}" for step in (4, 2))
    spoil(newest / name)
    refuse_resume(
        job, old, run_dir, parts=[f"checkpoint {newest}", part, f"resume an older one: {older}"]
    )


@pytest.mark.wide
@pytest.mark.multiprocess
def test_a_corrupted_checkpoint_is_refused_by_real_processes_as_well(job, old, run_dir):
    newest = old / "checkpoints" / "step-00000004"
    flip_a_byte(newest / "stage-0" / "model-00001-of-00001.safetensors")
    words = [*runs.layout("2x2"), "--resume", str(old)]
    outcome = runs.processes(job, run_dir, *words, steps=6, microbatches=2)
    assert_refused(outcome, f"checkpoint {newest}", "SHA-256")
    assert not run_dir.parent.exists()


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (("nn.Linear(4, 4)", "nn.Linear(4, 4, bias=False)"), "0.bias"),
        (("nn.Linear(4, 4)", "nn.Bilinear(4, 4, 4)"), "0.weight"),
        (("range(2)", "range(3)"), "holds 2 layers, the job has 3"),
        (("range(2)", "range(1)"), "holds 2 layers, the job has 1"),
    ],
    ids=["lacks a parameter", "other shape", "more layers", "fewer layers"],
)
def test_the_checkpoint_of_another_model_is_refused(old, tmp_path, run_dir, change, part):
    text = jobs.SMALL.replace("NUM_LAYERS", "2").replace(*change)
    job = jobs.write(tmp_path, "foreign", text)
    refuse_resume(job, old, run_dir, parts=["foreign.py: has SHA-256", "--changed-job"])
    alone = ["--stages", "1"]  # else its layers are timed first, and one of them cannot run
    refuse_resume(job, old, run_dir, "--changed-job", *alone, parts=["checkpoint", part])


def test_the_trace_of_a_directory_without_a_run_is_refused(tmp_path):
    for folder in (tmp_path, tmp_path / "missing"):
        assert_refused(holdfast(["trace", str(folder)], folder), str(folder))


# --- plans ---

BAD_PLANS = [
    (["--dead", "0.1", "1.1"], "stage 1 has no live holder", "at least one, e.g. 0.1 or 1.1"),
    (["--dead", "0.0,0.1,1.0,1.1"], "stage 0 has no live holder", "to be alive"),
    (["--dead", "9.9"], "--dead 9.9: no such worker", "0.0 to 1.1"),
    (["--dead", "0.1", "--dead", "0.1"], "worker 0.1 is given twice", "expected it once"),
    (["--dead", "0.1", "--slow", "0.1=0.5"], "worker 0.1 is in --dead and in --slow", "one of"),
    (["--slow", "0.1=2"], "--slow 0.1=2: ", "a speed from 1e-06 to 1"),
    (["--slow", "0.1=-0.5"], "--slow 0.1=-0.5: ", "a speed from 1e-06 to 1"),
    (["--slow", "0.1=fast"], "--slow 0.1=fast: ", "a speed from 1e-06 to 1"),
    (["--slow-link", "0.0-0.1=late"], "--slow-link 0.0-0.1=late: ", "the delay in seconds"),
    (["--memory", "0.1"], "--memory 0.1 = 0 micro-batches", "at least 1"),
    (["--memory", "-3"], "--memory -3: ", "e.g. 16"),
    (["--stages", "1000", "--microbatches", "100000"], "x 1000 stages", "at most 100,000"),
    (["--pipelines", "1000000", "--microbatches", "1000000"], "1000000 x ", "at most 100,000"),
    (["--stages", "1000000000"], "--stages 1000000000", "at most 100,000 workers"),
    (["--costs", "F=1e308"], "'F=1e+308'", "at most 1e+09 s"),
    (["--costs", "BW=1e9"], "BW=1e+09", "at most 1000 x"),
    (["--certify", "soon"], "--certify soon: ", "30s, 30 or 2m"),
    (["--certify", "9", "--microbatches", "4000"], "24,000 operations", "at most 6,000"),
    (["--schedule", "1f1b", "--dead", "0.1"], "--schedule 1f1b ", "expected no --dead"),
]


@pytest.mark.parametrize(
    ("words", "what", "expected"), BAD_PLANS, ids=[" ".join(w) for w, *_ in BAD_PLANS]
)
def test_a_plan_that_cannot_be_is_refused_with_what_would_make_it_possible(
    tmp_path, words, what, expected
):
    drawn = tmp_path / "plan.svg"
    drawn.write_text("the last one")
    shape = ["--pipelines", "2", "--stages", "2", "--microbatches", "8", "--svg", str(drawn)]
    outcome = holdfast(["plan", *shape, *words], tmp_path)
    assert_refused(outcome, what, expected)
    assert outcome.stdout == ""
    assert files_below(tmp_path) == {drawn: b"the last one"}
