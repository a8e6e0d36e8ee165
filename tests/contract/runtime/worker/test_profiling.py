"""The profiler's window: a trace of its steps and of no others, and no number is changed."""

import json

import pytest
import torch

import holdfast as hf
from helpers import jobs
from holdfast.config import ObserveConfig
from holdfast.errors import ConfigError
from holdfast.runtime.probe.profiling import Profiling


def run(profiling: Profiling, num_steps: int) -> list[float]:
    """Each step has a matrix of a size of its own."""
    drawn = []
    for step in range(num_steps):
        profiling.begin_step(step)
        with torch.profiler.record_function(f"step {step}"):
            drawn.append(float(torch.rand(step + 2, 3).sum()))
    profiling.end()
    return drawn


def steps_in(path) -> set[str]:
    names = {event.get("name", "") for event in json.loads(path.read_text())["traceEvents"]}
    return {name for name in names if name.startswith("step ")}


def test_a_trace_has_the_steps_of_the_window_only(tmp_path):
    lines: list[str] = []
    torch.manual_seed(1)
    without = run(Profiling("0.0", None, tmp_path, lines.append), 5)
    assert list(tmp_path.iterdir()) == []
    torch.manual_seed(1)
    steps = ObserveConfig(profile="2:3").profiled_steps()
    assert run(Profiling("1.0", steps, tmp_path, lines.append), 5) == without
    assert steps_in(tmp_path / "profile" / "worker-1.0.json") == {"step 1", "step 2"}
    run(Profiling("1.1", range(3, 9), tmp_path, lines.append), 5)  # ends in the middle
    assert steps_in(tmp_path / "profile" / "worker-1.1.json") == {"step 3", "step 4"}
    assert lines == []


def test_a_trace_that_cannot_be_had_is_told_of_and_holds_up_nobody(tmp_path):
    lines: list[str] = []
    (tmp_path / "file").write_text("")
    run(Profiling("0.0", range(1), tmp_path / "file", lines.append), 2)
    run(Profiling("0.1", range(1), tmp_path, lines.append, lambda: False), 2)
    assert lines[0].startswith("observe.profile: no trace of worker 0.0: [Errno 20]")
    assert lines[1:] == [
        "observe.profile: no trace of worker 0.1: it does not see the run directory"
    ]


@pytest.mark.parametrize("text", ["5", "0:3", "7:3", "a:b"])
def test_what_is_no_window_is_refused(text):
    with pytest.raises(ConfigError, match=f"observe.profile={text}: write the first and the last"):
        ObserveConfig(profile=text)


@pytest.mark.wide
@pytest.mark.timeout(120)
def test_every_worker_of_a_run_writes_a_trace_and_the_bits_are_the_same(tmp_path):
    job = jobs.small(tmp_path)
    calm = hf.train(job, steps=4, microbatches=4, run_dir=tmp_path / "calm",
                    config={"workers.kind": "threads"})  # fmt: skip
    run = hf.train(job, stages=2, steps=4, microbatches=4, run_dir=tmp_path / "run",
                   config={"observe.profile": "2:3"})  # fmt: skip
    assert run.parameters_sha256 == calm.parameters_sha256
    traces = sorted(path.name for path in (tmp_path / "run" / "profile").iterdir())
    assert traces == ["worker-0.0.json", "worker-0.1.json"]
    text = (tmp_path / "run" / "profile" / traces[0]).read_text()
    assert "aten::" in text
