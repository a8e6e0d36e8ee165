"""The picture of a death, drawn from events that were made up."""

import runpy

import pytest

from helpers.pages import DOCS
from holdfast.observability.events import FaultFired, Recovered, RunStarted, WorkerLost, WorkerStep

SCRIPT = runpy.run_path(str(DOCS / "pictures" / "make_pipeline.py"))


def started():
    return RunStarted(
        at_s=0.0,
        pipelines=2,
        stages=1,
        microbatches=2,
        steps=4,
        schedule="zero-bubble",
        reason="",
        cut=(),
    )


def did(worker, step, *ops):
    times = tuple((op, 10.0 * step + at, 10.0 * step + at + 1) for at, op in enumerate(ops))
    return WorkerStep(at_s=0.0, worker=worker, step=step, ops=times)


def run_with_a_death():
    """Worker 1.0 is killed in its second step, and 0.0 runs its micro-batch."""
    return [
        started(),
        did("0.0", 0, "0F0", "0BW0", "0R"),
        did("1.0", 0, "0F1", "0BW1", "0R"),
        did("0.0", 1, "0F0", "0BW0", "0F1", "0BW1", "0R"),
        FaultFired(at_s=11.5, worker="1.0", fault="kill 1.0 @ 2.B0", step=1, point="B0"),
        WorkerLost(at_s=11.6, worker="1.0", step=1, cause="signal SIGKILL"),
        Recovered(
            at_s=11.7,
            epoch=2,
            step=1,
            cause="death",
            workers=("1.0",),
            fault_s=11.5,
            notice_s=11.6,
            plan_s=11.65,
            resumed_s=11.75,
            redone=1,
            operations=3,
            members=1,
            period_s=0.0,
            reason="",
            num_lost=1,
        ),
    ]


def test_the_death_is_marked_and_the_work_of_the_dead_worker_is_framed():
    svg = SCRIPT["Picture"](run_with_a_death()).svg()
    assert "worker 1.0 is killed in step 2" in svg
    assert "250 ms later" in svg
    assert svg.count("SIGKILL</text>") == 1
    framed = [line for line in svg.splitlines() if 'stroke-width="1.8"' in line]
    assert [line.partition(": ")[0].partition("worker ")[2] for line in framed] == [
        "0.0, 0F1",
        "0.0, 0BW1",
    ]


def test_a_run_without_a_death_is_refused():
    with pytest.raises(SystemExit, match="nobody died"):
        SCRIPT["Picture"]([started(), did("0.0", 0, "0F0")])
