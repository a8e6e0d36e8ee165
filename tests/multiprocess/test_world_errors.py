"""Errors of the world do not end a run, or end it with a checkpoint: data, layers, NaN, deaths."""

import pytest

from helpers import jobs, runs
from helpers.live import LiveRun, assert_nothing_left, paced
from holdfast.observability.events import CheckpointSaved, WorkerJoined

TWO_BY_TWO = runs.layout("2x2")
STEPS = 8
ITEM = """
    def __getitem__(self, index):
        noise = torch.rand(WIDTH) + random.random() + float(numpy.random.rand())
        broken = pathlib.Path(__file__).with_name("broken").read_text()
        seen = pathlib.Path(__file__).with_name(f"seen-{index}")
        if index == BAD and (broken == "always" or (broken == "once" and not seen.exists())):
            seen.touch()
            raise OSError(f"cannot read file {index}")
        phase = noise + torch.arange(WIDTH) * (index + 1) * 0.37
"""
BAD = 37  # a sample of the fourth step with seed 0, see the test


def job(folder, broken="never", layer=""):
    """The job ``mixed`` with noise in its data and a sample, or a layer, that may raise."""
    old = """
    def __getitem__(self, index):
        phase = torch.arange(WIDTH) * (index + 1) * 0.37
"""
    assert old in jobs.MIXED
    text = jobs.MIXED.replace(old, ITEM).replace("CLIP_NORM", "1.3")
    text = text.replace("return torch.tanh(", f"{layer}\n        return torch.tanh(")
    head = f"import pathlib\nimport random\n\nimport numpy\n\nBAD = {BAD}\n"
    path = jobs.write(folder, "world", head + text)
    (folder / "broken").write_text(broken)
    return path


def train(tmp_path, name, path, *more, layout=TWO_BY_TWO, steps=STEPS):
    quick = runs.settings("data.pause_s=0.01")
    return runs.threads(path, tmp_path / name, *layout, *quick, *more, steps=steps)


@pytest.fixture
def calm(tmp_path):
    return runs.finished(train(tmp_path, "calm", job(tmp_path), layout=[]))


def test_a_sample_that_can_be_read_the_second_time_changes_no_bit(tmp_path, calm):
    done = runs.finished(train(tmp_path, "once", job(tmp_path, "once")))
    assert (tmp_path / f"seen-{BAD}").exists(), "nothing was raised: this test proves nothing"
    runs.assert_same_result(done, calm)


def assert_saved_and_resumed(tmp_path, ended, calm, *parts):
    assert ended.exit_code == 1
    [line] = ended.stderr.splitlines()
    for text in (*parts, "Go on from the last checkpoint with: holdfast train --resume"):
        assert text in line
    finished = len(ended.losses)
    assert 0 < finished < STEPS
    saved = [e.step for e in ended.events if isinstance(e, CheckpointSaved)]
    assert saved == [1, finished]  # the early one, and that of the end
    assert "Traceback" in (ended.run_dir / "error.txt").read_text()
    path = job(tmp_path)  # it is mended
    more = ["--changed-job", "--resume", str(ended.run_dir)]
    runs.assert_same_result(runs.finished(train(tmp_path, "resumed", path, *more)), calm)


@pytest.mark.parametrize("layout", ["1x1", "2x2"])
def test_a_sample_that_cannot_be_read_ends_the_run_with_a_checkpoint(tmp_path, calm, layout):
    path = job(tmp_path, "always")
    ended = train(tmp_path, "always", path, layout=runs.layout(layout))
    what = f"the data set Numbers raised OSError for sample {BAD} (step "
    assert_saved_and_resumed(tmp_path, ended, calm, what, "tried 4 times")


def test_a_layer_that_raises_ends_the_run_with_a_checkpoint(tmp_path, calm):
    """Not before the fourth step: it counts its calls in a file. The cut is given, since layers
    that are timed first are called more often."""
    raises = 'calls = pathlib.Path(__file__).with_name("broken")\n'
    raises += '        if calls.read_text() == "layer":\n'
    raises += '            count = pathlib.Path(__file__).with_name("count")\n'
    raises += "            with count.open('a') as file:\n                file.write('x')\n"
    raises += "            if count.stat().st_size > 4 * 4 * 2:\n"
    raises += '                raise RuntimeError("no luck")'
    path = job(tmp_path, "layer", raises)
    ended = train(tmp_path, "layer", path, *runs.settings("parallel.cut=[2]"))
    parts = ("RuntimeError: no luck; in layer ", "(Normed)")
    assert_saved_and_resumed(tmp_path, ended, calm, *parts)


def test_nan_in_every_step_is_an_error(tmp_path):
    text = jobs.SMALL.replace("NUM_LAYERS", "2").replace("float(index)", "float('nan')")
    path = jobs.write(tmp_path, "nan", text)
    few = runs.threads(path, tmp_path / "few", *TWO_BY_TWO, steps=4)
    assert few.exit_code == 1
    assert "NaN or Inf in all of steps 1 to 4, first in the loss: nothing was trained" in few.stderr
    many = runs.threads(path, tmp_path / "many", *TWO_BY_TWO, steps=200)
    assert many.exit_code == 1
    assert "NaN or Inf in all of steps 1 to " in many.stderr
    assert "(gradients.nonfinite_limit=10)" in many.stderr
    assert "--resume" in many.stderr
    assert len(many.losses) < 200


def test_a_sample_that_is_bad_in_a_replay_sends_all_back_and_changes_no_bit(tmp_path, calm):
    """Each of the two stages reads it once, then whoever replays the first one: the third time."""
    path = job(tmp_path)
    counted = """
        count = pathlib.Path(__file__).with_name("count")
        if index == BAD:
            with count.open("a") as file:
                file.write("x")
            if count.stat().st_size == 3:
                raise OSError(f"cannot read file {index}")
        phase = noise"""
    path.write_text(path.read_text().replace("\n        phase = noise", counted))
    count = tmp_path / "count"
    count.unlink(missing_ok=True)
    log = runs.settings("recovery.log=boundary", "data.retries=0", "workers.heartbeat_timeout_s=10")
    # a speculative step is loaded twice if it is void
    log += runs.settings("optimizer.mode=global")
    kill = ["--fault", "kill 0.0 @ 7.reduce"]
    done = runs.finished(train(tmp_path, "replay", path, *log, *kill, layout=runs.layout("1x2")))
    assert done.summary["faults_fired"] == ["kill 0.0 @ 7.reduce"]
    [back] = done.summary["went_back"]
    assert f"raised OSError for sample {BAD} (step 5, " in back["reason"]
    assert count.stat().st_size > 3
    runs.assert_same_result(done, calm)


LEAVES = """
class Leaves(torch.optim.SGD):
    def step(self, closure=None):
        sys.exit(3)
"""


def test_an_optimizer_that_calls_exit_ends_the_run_with_its_name(tmp_path):
    text = jobs.SMALL.replace("NUM_LAYERS", "2").replace("torch.optim.SGD(", "Leaves(")
    text = text.replace("import torch\n", "import sys\n\nimport torch\n", 1)
    path = jobs.write(tmp_path, "leaves", text.replace("\n\ndef job", f"\n{LEAVES}\n\ndef job"))
    ended = runs.threads(path, tmp_path / "leaves", *runs.layout("1x2"), steps=4)
    assert ended.exit_code == 1
    assert "SystemExit: 3" in ended.stderr


@pytest.mark.wide
@pytest.mark.multiprocess
def test_a_killed_worker_is_replaced_by_default_and_the_result_is_the_same(tmp_path):
    numbers = {"steps": 60, "microbatches": 6}
    calm = runs.finished(runs.threads(jobs.mixed(tmp_path), tmp_path / "calm", **numbers))
    words = ["train", str(paced(tmp_path)), *TWO_BY_TWO, "--steps", "60", "--microbatches", "6"]
    live = LiveRun(tmp_path, *words, *runs.settings("workers.replace=3"))
    try:
        live.wait_for_steps(2)
        live.kill("1.0")
        live.wait_for(WorkerJoined, worker="1.0")
        live.release()
        done = runs.finished(live.outcome())
    finally:
        live.close()
    assert [one["worker"] for one in done.summary["replaced"]] == ["1.0"]
    assert "1 worker lost, 1 replaced" in done.stdout
    assert done.sha256 == calm.sha256
    assert_nothing_left(done)
