"""A worker that loads its job later than the others must load the same one."""

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers import jobs
from holdfast.cluster import WorkerId
from holdfast.config import RunConfig
from holdfast.data.batches import Batches
from holdfast.errors import ConfigError
from holdfast.job_call import load_job
from holdfast.job_file import known_imports
from holdfast.protocol.spec import Access, WorkerSpec
from holdfast.runtime.job.traits import job_traits
from holdfast.runtime.worker.job_loading import JobLoader
from holdfast.storage.manifest import file_digest

ACCESS = Access("h", 1, bytes(32), 1)


def loader_of(job: Path) -> JobLoader:
    def warn(line: str) -> None:
        raise AssertionError(f"nothing is to be told, but {line}")

    spec = WorkerSpec(WorkerId(0, 0), ACCESS, str(job), file_digest(job), RunConfig())
    return JobLoader(spec, warn)


def test_a_job_file_that_was_changed_since_the_run_began_is_refused(tmp_path) -> None:
    job = jobs.small(tmp_path)
    loader = loader_of(job)
    assert len(loader.load().layers) == 2
    job.write_text(job.read_text() + "\n")
    with pytest.raises(ConfigError, match="was changed since the run began"):
        loader.load()


GROWING = jobs.SMALL.replace("NUM_LAYERS", "2").replace("return 1000", "return len(SAMPLES)")
GROWING = f"SAMPLES = [1]\n{GROWING}"


def test_data_that_has_grown_when_the_job_is_loaded_again_is_refused_by_name(tmp_path) -> None:
    number = tmp_path / "number of samples"
    number.write_text("3")
    read = f"import pathlib; SAMPLES = range(int(pathlib.Path({str(number)!r}).read_text()))"
    loader = loader_of(jobs.write(tmp_path, "grows", GROWING.replace("SAMPLES = [1]", read)))
    loader.load()
    loader.load()
    number.write_text("4")
    with pytest.raises(ConfigError, match=r"len\(Job.data\) is 4, and was 3 when worker 0\.0"):
        loader.load()


def test_the_order_of_the_samples_stays_when_the_data_set_grows_under_a_run(tmp_path) -> None:
    job = load_job(jobs.write(tmp_path, "grows", GROWING.replace("[1]", "[1] * 20")), 0)
    still = Batches(job, 0, 4)
    order = [still.indices(step, 1) for step in range(9)]
    begun = Batches(job, 0, 4)
    sys.modules[type(job.data).__module__].SAMPLES.append(1)
    assert len(job.data) == 21
    assert [begun.indices(step, 1) for step in range(9)] == order


TABLE = """
class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        with open(__file__ + ".table") as file:
            self.register_buffer("table", torch.ones(4) * int(file.read()), persistent=False)


def job():
"""


def test_a_buffer_that_no_checkpoint_has_must_be_built_the_same_again(tmp_path) -> None:
    text = jobs.SMALL.replace("NUM_LAYERS", "2").replace("\ndef job():\n", TABLE)
    job = jobs.write(tmp_path, "table", text.replace("nn.Linear(4, 4) for", "Table() for"))
    table = Path(f"{job}.table")
    table.write_text("1")
    loader, from_checkpoint = loader_of(job), SimpleNamespace(cut=(1,), stage=1, checkpoint="any")
    loader.load()
    loader.load_again(from_checkpoint)
    table.write_text("2")
    with pytest.raises(ConfigError, match=r"layer 1 differs from how worker 0\.0 had built it"):
        loader.load_again(from_checkpoint)


# --- what is compared with the other workers ---

OWN = """
import torch
from torch import nn

from holdfast.job import Job
from own_layers_of_a_job.inner import WIDTH


def job():
    def optimizer(parameters):
        weight, bias = parameters
        groups = [{"params": [weight]}, {"params": [bias], "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=torch.tensor(0.5), betas=(0.5, 0.75))

    return Job(
        layers=[nn.Linear(WIDTH, 1)], loss=sum, optimizer=optimizer, data=[1, 2, 3], clip_norm=2.0
    )
"""


@pytest.fixture
def own(tmp_path):
    """A job that imports a package beside it."""
    package = tmp_path / "own_layers_of_a_job"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "inner.py").write_text("WIDTH = 4\n")
    (tmp_path / "not_imported.py").write_text("")
    yield jobs.write(tmp_path, "own", OWN)
    for name in [name for name in sys.modules if name.startswith(package.name)]:
        del sys.modules[name]


def traits_of(job: Path) -> dict[str, str]:
    return job_traits(load_job(job, 0), str(job), file_digest(job))


def test_a_name_that_is_no_file_is_none_of_its_imports(own, monkeypatch) -> None:
    """torch.classes says that it is _classes.py, in whatever folder the process happens to be."""
    assert sys.modules["torch.classes"].__file__ == "_classes.py"
    monkeypatch.chdir(own.parent)
    known_imports.cache_clear()
    assert not [name for name in traits_of(own) if "_classes" in name]


def test_traits_are_the_files_it_imports_its_data_its_numbers_and_its_optimizer(own) -> None:
    traits = traits_of(own)
    imported = {name: value for name, value in traits.items() if name.startswith("imports")}
    inner = own.parent / "own_layers_of_a_job" / "inner.py"
    assert imported == {
        "imports of the job (own_layers_of_a_job/__init__.py)": file_digest(
            inner.with_name("__init__.py")
        )[:16],
        "imports of the job (own_layers_of_a_job/inner.py)": file_digest(inner)[:16],
    }
    expected = {
        "len(Job.data)": "3",
        "Job.microbatch_size": "8",
        "Job.clip_norm": "2.0",
        "Job.optimizer": "AdamW",
        "Job.optimizer, lr": "0.5",
        "Job.optimizer, betas": "(0.5, 0.75)",
        "Job.optimizer, weight_decay": "0.01",
        "Job.optimizer, weight_decay of group 1": "0.0",
    }
    assert expected.items() <= traits.items()
    assert not [name for name in traits if "of group 0" in name]


def test_a_module_that_is_loaded_is_told_as_it_was_and_not_as_its_file_is_now(own) -> None:
    before = traits_of(own)
    (own.parent / "own_layers_of_a_job" / "inner.py").write_text("WIDTH = 4  # edited\n")
    assert traits_of(own) == before


def test_a_copy_of_a_job_in_another_folder_has_the_same_traits(own, tmp_path_factory) -> None:
    before = traits_of(own)
    for name in [name for name in sys.modules if name.startswith("own_layers_of_a_job")]:
        del sys.modules[name]
    sys.path.remove(str(own.parent))
    copy = Path(shutil.copytree(own.parent, tmp_path_factory.mktemp("there") / "copy"))
    assert traits_of(copy / own.name) == before
