"""Each example through a death, in threads of this process: the bits of the run on one worker."""

from pathlib import Path

import pytest

from helpers.wide import first
from holdfast.testing import assert_same_bits, train_in_threads

EXAMPLES = Path(__file__).parents[2] / "examples"
NEEDS = {"hf_llama": "transformers", "hf_dataset": "datasets"}
KILL = "kill 1.0 @ 2.B1"


@pytest.mark.parametrize(
    "name", first(1, ["token_stream", "resnet", "llama", "hf_llama", "hf_dataset"])
)
def test_a_death_does_not_show_in_an_example(name, monkeypatch):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    monkeypatch.syspath_prepend(EXAMPLES)  # loading a job adds its folder
    every = 2 if name == "hf_llama" else 0
    config = {"parallel.microbatches": 4, "validation.every": every}
    job = EXAMPLES / f"{name}.py"
    calm = train_in_threads(job, steps=2, config=config)
    run = train_in_threads(job, pipelines=2, stages=2, steps=2, config=config, faults=[KILL])
    assert run.summary.faults_fired == (KILL,)
    assert run.losses[0] != run.losses[1]
    assert len(run.validation) == (every > 0)
    assert run.validation == calm.validation
    assert_same_bits(run, calm)


def test_an_example_is_short():
    jobs = [path for path in EXAMPLES.glob("*.py") if "Job" in path.read_text()]
    assert len(jobs) == 7
    assert {path.name: len(path.read_text().splitlines()) for path in jobs if _is_long(path)} == {}


def _is_long(path: Path) -> bool:
    return len(path.read_text().splitlines()) >= 60
