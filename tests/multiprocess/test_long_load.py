"""A job that loads for longer than any fixed limit there once was: it starts, and it comes back."""

import pytest

from helpers import jobs, runs
from helpers.live import LiveRun
from holdfast.observability.events import Recovered, StepFinished

pytestmark = [pytest.mark.multiprocess, pytest.mark.wide, pytest.mark.timeout(500)]
NUMBERS = {"steps": 30, "microbatches": 2}
# At the start above 30 s, on the way back above 60 s.
LOADS = """
def job():
    again = pathlib.Path(__file__).with_name("again")
    time.sleep(61 if again.exists() else 31)
"""


def test_r2_a_job_that_loads_for_a_minute_starts_and_survives_a_way_back(tmp_path):
    calm = runs.finished(runs.threads(jobs.mixed(tmp_path), tmp_path / "calm", **NUMBERS))
    text = jobs.MIXED.replace("CLIP_NORM", "1.3").replace("def job():\n", LOADS)
    item = "    def __getitem__(self, index):\n"
    slow = "        time.sleep(0 if pathlib.Path(__file__).with_name('fast').exists() else 0.05)\n"
    text = text.replace(item, item + slow)
    job = jobs.write(tmp_path, "slow", f"import pathlib\nimport time\n{text}")
    words = ["train", str(job), *runs.layout("1x2"), "--steps", "30", "--microbatches", "2"]
    live = LiveRun(tmp_path, *words)
    try:
        live.wait_for(StepFinished, 2)
        (tmp_path / "again").touch()
        live.kill("0.1")
        (tmp_path / "fast").touch()  # not before: all would be trained in no time
        live.wait_for(Recovered)
        outcome = runs.finished(live.outcome())
    finally:
        live.close()
    assert outcome.sha256 == calm.sha256
    assert len(outcome.summary["went_back"]) == 1
