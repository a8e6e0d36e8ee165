"""A job that was sent elsewhere is the same job: equal traits, equal layers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from holdfast.api.job_source import job_source
from holdfast.bundle.locating import job_here
from holdfast.bundle.packing import pack
from holdfast.bundle.serving import keep
from holdfast.job_reference import JobSource

JOB = """
from pathlib import Path

import torch
from torch import nn

from holdfast.job import Job
from parts.layers import make_layers
import side_of_bundled_job

HOLDFAST_FILES = ["data/*.txt", "weights"]


class Numbers:
    def __init__(self):
        self.texts = (Path(__file__).parent / "data" / "a.txt").read_text().split()

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return torch.ones(4), torch.ones(4)


def job():
    import lazy_of_bundled_job
    return Job(
        layers=make_layers(),
        loss=nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        data=Numbers(),
        microbatch_size=1,
    )
"""
FILES = {
    "job.py": JOB,
    "parts/__init__.py": "",
    "parts/layers.py": "from torch import nn\nfrom .width import WIDTH\n"
    "def make_layers():\n    return [nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)]\n",
    "parts/width.py": "WIDTH = 4\n",
    "lazy_of_bundled_job.py": "",
    "src/side_of_bundled_job.py": "",
    "data/a.txt": "one two three",
    "data/unsent.bin": "",
}
LOADED = """
import json, os, sys
from holdfast.cluster import WorkerId
from holdfast.config import config_from
from holdfast.protocol.spec import Access, WorkerSpec
from holdfast.runtime.worker.job_loading import JobLoader

jobs, sha256 = json.loads(sys.argv[1]), sys.argv[2]
for job, folder in jobs:
    if os.fork():  # each on its own: they share the names of modules
        assert os.wait()[1] == 0
        os.rename(os.path.dirname(job), os.path.dirname(job) + " is gone")
        continue
    sys.path += [folder] if folder else []
    config = config_from({"job": {"weights": "weights/start.pt"}})
    spec = WorkerSpec(WorkerId(0, 0), Access("h", 1, bytes(32), 1), job, sha256, config)
    loader = JobLoader(spec, sys.exit)
    loader.load()
    print(json.dumps([loader.traits, loader.hashes]))
    break
"""


def loaded(jobs: list[tuple[str, str]], sha256: str) -> list[list[dict[str, str]]]:
    """Traits and hashes of each (job, more of the path), as workers of two machines find them.

    No job is there any more when the next one is loaded.
    """
    source = str(Path(__file__).parents[4] / "src")
    done = subprocess.run(
        [sys.executable, "-c", LOADED, json.dumps(jobs), sha256],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
        cwd="/",
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.wide
def test_a_job_from_its_bundle_has_the_traits_and_layers_of_the_original(
    tmp_path: Path, monkeypatch
) -> None:
    folder = tmp_path / "launcher"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "weights").mkdir()
    names = [f"{layer}.{name}" for layer in range(2) for name in ("weight", "bias")]
    shapes = [(4, 4), (4,)] * 2
    weights = {name: torch.ones(shape) for name, shape in zip(names, shapes, strict=True)}
    torch.save(weights, folder / "weights" / "start.pt")
    monkeypatch.syspath_prepend(folder / "src")  # as an editable install does
    source: JobSource = job_source(folder / "job.py", in_threads=False)
    bundle = pack(source)
    assert bundle is not None
    there = keep(bundle, tmp_path / "machine")
    copy = job_here(source.reference, source.sha256, "node-1", there.root)
    jobs = [(source.reference, str(folder / "src")), (copy, "")]
    original, from_bundle = loaded(jobs, source.sha256)
    assert from_bundle == original
    traits, hashes = original
    imported = {name: value for name, value in traits.items() if name.startswith("imports")}
    assert [name.partition("(")[2] for name in imported] == [
        "lazy_of_bundled_job.py)",
        "parts/__init__.py)",
        "parts/layers.py)",
        "parts/width.py)",
        "src/side_of_bundled_job.py)",
    ]
    assert traits["len(Job.data)"] == "3"
    assert len(traits["the weights that the run starts from"]) == 16
    assert len(hashes) == 2
