import hashlib
import inspect
import os
import pickle
import py_compile
import random
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import IterableDataset, TensorDataset

from holdfast.data.batches import Batches, num_tokens
from holdfast.errors import ConfigError, DataError
from holdfast.job import Job
from holdfast.job_call import load_job


@pytest.fixture(autouse=True)
def _one_thread_and_a_path_of_its_own(monkeypatch):
    torch.set_num_threads(1)
    monkeypatch.setattr(sys, "path", list(sys.path))  # loading a job adds its folder


class Numbers:
    """Sample ``i`` is ``(i, -i)``."""

    def __init__(self, length=20):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.tensor(index), torch.tensor(-index)


class Stream(IterableDataset):
    def __iter__(self):
        return iter([])


def make(**changes):
    values = {
        "layers": [nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 1)],
        "loss": nn.functional.mse_loss,
        "optimizer": torch.optim.SGD,
        "data": Numbers(),
    }
    return Job(**(values | changes))


def test_a_job_needs_only_layers_loss_optimizer_and_data():
    assert make().microbatch_size == 8


def test_layers_may_be_a_sequential_and_data_any_torch_data_set():
    job = make(layers=nn.Sequential(nn.Linear(1, 1)), data=TensorDataset(torch.ones(3, 1)))
    assert len(job.layers) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": nn.Linear(1, 1)}, r"Job\.layers is a Linear: expected a list"),
        ({"layers": []}, r"Job\.layers is empty"),
        ({"layers": [torch.relu]}, r"Job\.layers\[0\] is a builtin_function_or_method"),
        (
            {"layers": [nn.Linear(1, 1), nn.Linear(1, 1).double()]},
            r"parameter 1\.weight is float64: expected float32, bfloat16 or float16 of what is tr",
        ),
        ({"loss": 3}, r"Job\.loss is a int: expected a function"),
        (
            {"optimizer": torch.optim.SGD([nn.Parameter(torch.ones(1))])},
            r"Job\.optimizer is a finished SGD",
        ),
        ({"lr_schedule": "cosine"}, r"Job\.lr_schedule is a str: expected a function"),
        ({"collate": 1}, r"Job\.collate is a int: expected a function"),
        (
            {"data": Stream()},
            r"Job\.data is a Stream: .* __iter__, state_dict and load_",
        ),
        ({"data": iter([])}, r"Job\.data is a list_iterator"),
        ({"data": Numbers(0)}, r"Job\.data has 0 samples"),
        ({"microbatch_size": 0}, r"Job\.microbatch_size=0"),
        ({"microbatch_size": 2.5}, r"Job\.microbatch_size=2\.5"),
        ({"microbatch_size": True}, r"Job\.microbatch_size=True"),
        ({"clip_norm": 0.0}, r"Job\.clip_norm=0\.0"),
        ({"clip_norm": float("nan")}, r"Job\.clip_norm=nan"),
        ({"clip_norm": "1"}, r"Job\.clip_norm='1'"),
        ({"cut": (0,)}, r"Job\.cut=\(0,\): .* between 1 and 2"),
        ({"cut": (3,)}, r"Job\.cut=\(3,\)"),
        ({"cut": (2, 1)}, r"Job\.cut=\(2, 1\)"),
        ({"cut": (1, 1)}, r"Job\.cut=\(1, 1\)"),
        ({"cut": (1.0,)}, r"Job\.cut=\(1\.0,\)"),
        ({"cut": 1}, r"Job\.cut=1: expected rising layer numbers"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_name_value_and_cure(changes, message):
    with pytest.raises(ConfigError, match=message):
        make(**changes)


def test_what_is_not_trained_may_have_any_type():
    make(layers=[nn.Linear(1, 1), nn.Linear(1, 1).double().requires_grad_(False)])


HEAD = """
import torch
from torch import nn
from holdfast.job import Job

def make(**more):
    return Job(layers=[nn.Linear(4, 4)], loss=nn.functional.mse_loss,
               optimizer=torch.optim.SGD, data=[(torch.ones(4), torch.ones(4))], **more)
"""


def write(tmp_path, text, name="my-job.v2.py"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_a_job_file_is_loaded(tmp_path):
    path = write(tmp_path, HEAD + "def job():\n    return make(microbatch_size=3)\n")
    assert load_job(path, 0).microbatch_size == 3


def test_initial_parameters_follow_from_the_seed_alone(tmp_path):
    path = write(tmp_path, HEAD + "torch.rand(5)\ndef job():\n    return make()\n")

    def weights(seed):
        torch.rand(random.randrange(1, 9))  # whatever the loading process did before
        return load_job(path, seed).layers[0].weight

    assert torch.equal(weights(7), weights(7))
    assert not torch.equal(weights(7), weights(8))


def test_a_job_file_may_define_dataclasses_and_import_its_neighbours(tmp_path):
    write(tmp_path, "SIZE = 5\n", name="neighbour_of_a_job.py")
    text = """
from __future__ import annotations
from dataclasses import dataclass
from neighbour_of_a_job import SIZE

@dataclass
class Settings:
    size: int = SIZE

def job():
    return make(microbatch_size=Settings().size)
"""
    head, _, rest = text.partition("def job")
    path = write(tmp_path, head + HEAD + "def job" + rest)
    assert load_job(path, 0).microbatch_size == 5


def test_a_job_is_what_its_file_says_and_not_what_a_cache_has_of_it(tmp_path):
    """Of equal time and size: only reading the file itself tells them apart."""
    text = HEAD + "def job():\n    return make(microbatch_size=3)\n"
    path = write(tmp_path, text.replace("size=3", "size=7"))
    py_compile.compile(str(path), doraise=True)
    time_ns = path.stat().st_mtime_ns
    path.write_text(text)
    os.utime(path, ns=(time_ns, time_ns))
    poisoned = {}
    exec(SourceFileLoader("poisoned", str(path)).get_code("poisoned"), poisoned)
    assert poisoned["job"]().microbatch_size == 7
    assert load_job(path, 0).microbatch_size == 3


def test_the_file_is_read_once_and_runs_as_it_was_when_it_was_compared(tmp_path, monkeypatch):
    path = write(tmp_path, HEAD + "def job():\n    return make(microbatch_size=3)\n")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    read = Path.read_bytes

    def changed_meanwhile(self):
        source = read(self)
        path.write_text("raise ValueError('not what was compared')")
        return source

    monkeypatch.setattr(Path, "read_bytes", changed_meanwhile)
    assert load_job(path, 0, digest).microbatch_size == 3
    with pytest.raises(ConfigError, match="was changed since the run began"):
        load_job(path, 0, digest)


def test_what_a_job_file_defines_can_be_pickled_and_its_source_shown(tmp_path):
    text = HEAD + "class Mine:\n    x = 1\n\ndef job():\n    return make(collate=Mine)\n"
    path = write(tmp_path, text)
    mine = load_job(path, 0).collate
    assert pickle.loads(pickle.dumps(mine)) is mine
    assert inspect.getsource(mine) == "class Mine:\n    x = 1\n"
    module = sys.modules[mine.__module__]
    assert module.__file__ == module.__spec__.origin == str(path)


def test_two_job_files_of_one_name_are_two_modules(tmp_path):
    jobs = []
    for size in (1, 2):
        folder = tmp_path / str(size)
        folder.mkdir()
        text = HEAD + f"SIZE = {size}\ndef job():\n    return make(microbatch_size=SIZE)\n"
        jobs.append(load_job(write(folder, text), 0))
    assert [job.microbatch_size for job in jobs] == [1, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def job(:\n", r"my-job\.v2\.py:1: SyntaxError"),
        ("x = 1\nimport no_such_library\n", r"py:2: ModuleNotFoundError: .*no_such_library"),
        ("\n\nraise ValueError('two\\nlines')\n", r"py:3: ValueError: two lines$"),
        ("import sys\nsys.exit('bye')\n", r"py:2: SystemExit: bye"),
        ("x = 1\n", r"py: defines no function job\(\)"),
        ("job = 1\n", r"py: job is a int: expected a function"),
        ("def job():\n    return 1\n", r"py: job\(\) returned a int: expected a holdfast Job"),
        ("def job(x, y):\n    return 1\n", r"py: TypeError: job\(\) missing"),
        ("import json\ndef job():\n    json.loads('{')\n", r"py:3: JSONDecodeError: Expecting"),
        (HEAD + "def job():\n    return make(cut=(4,))\n", r"py:\d+: Job\.cut=\(4,\)"),
        ("def job():\n    return '\x00'\n", r"py.*: SyntaxError: .*null bytes"),
    ],
)
def test_whatever_is_wrong_with_a_job_file_is_one_line_that_says_where(tmp_path, text, message):
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_job(path, 0)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


PARSES = (
    HEAD
    + """
import argparse

def job(args):
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=2)
    print("parsing")
    return make(microbatch_size=parser.parse_args(args).size)
"""
)


def test_a_job_gets_its_arguments_as_a_list(tmp_path, capsys):
    path = write(tmp_path, PARSES)
    assert load_job(path, 0).microbatch_size == 2
    assert load_job(path, 0, args=("--size", "5")).microbatch_size == 5
    assert capsys.readouterr().out == "parsing\n" * 2


@pytest.mark.parametrize(
    "head", ["def job(microbatch_size=3):", "def job(*, microbatch_size=3):", "def job(**more):"]
)
def test_what_has_a_value_of_its_own_is_no_place_for_arguments(tmp_path, head):
    path = write(tmp_path, HEAD + f"{head}\n    return make(microbatch_size=3)\n")
    assert load_job(path, 0).microbatch_size == 3
    with pytest.raises(ConfigError, match=r"job\(\) takes no arguments, and was given --size 5; "):
        load_job(path, 0, args=("--size", "5"))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--size", "big"), r"\(--size big\): .*argument --size: invalid int value: 'big'$"),
        (("--sise=2",), r"\(--sise=2\): .*unrecognized arguments: --sise=2$"),
        (("--help",), r"\(--help\): parsing usage: .*--size SIZE"),
    ],
)
def test_arguments_that_a_job_refuses_are_one_line(tmp_path, capsys, args, message):
    with pytest.raises(ConfigError, match=f"arguments of the job {message}") as caught:
        load_job(write(tmp_path, PARSES), 0, args=args)
    assert "\n" not in str(caught.value)
    assert capsys.readouterr() == ("", "")


def test_a_missing_job_file_is_an_error_that_names_it(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.py: no such file"):
        load_job(tmp_path / "nowhere.py", 0)


@settings(max_examples=40, deadline=None)
@given(
    length=st.integers(1, 30),
    size=st.integers(1, 7),
    num_microbatches=st.integers(1, 6),
    seed=st.integers(0, 2**63 - 1),
)
def test_every_sample_comes_exactly_once_an_epoch_of_the_data(length, size, num_microbatches, seed):
    job = make(data=Numbers(length), microbatch_size=size)
    batches = Batches(job, seed, num_microbatches)
    num_steps = -(-3 * length // (size * num_microbatches))
    seen = [
        index
        for step in range(num_steps)
        for microbatch in range(num_microbatches)
        for index in batches.indices(step, microbatch)
    ]
    for epoch in range(3):
        assert sorted(seen[epoch * length : (epoch + 1) * length]) == list(range(length))


def samples(batches, steps, num_microbatches):
    return [n for t in steps for m in range(num_microbatches) for n in batches.indices(t, m)]


def test_the_order_of_the_samples_does_not_depend_on_how_they_are_batched():
    small = Batches(make(microbatch_size=1), 5, 2)
    large = Batches(make(microbatch_size=5), 5, 4)
    assert samples(small, range(20), 2) == samples(large, range(2), 4)


def test_a_microbatch_is_the_same_whatever_was_loaded_before():
    job = make(microbatch_size=3)
    fresh, used = Batches(job, 5, 4), Batches(job, 5, 4)
    for step in (9, 0, 4):
        used.load(step, 1)
    (fresh_input,), fresh_target = fresh.load(2, 3)
    (used_input,), used_target = used.load(2, 3)
    assert torch.equal(fresh_input, used_input)
    assert torch.equal(fresh_target, used_target)


def test_epochs_and_seeds_have_orders_of_their_own():
    def order(seed, epoch):
        return Batches(make(microbatch_size=20), seed, 1).indices(epoch, 0)

    orders = [order(0, 0), order(0, 1), order(1, 0), order(1, 1)]
    assert len({tuple(order) for order in orders}) == 4


def test_inputs_are_a_tuple_of_tensors_and_samples_stay_together():
    inputs, target = Batches(make(microbatch_size=4), 0, 2).load(0, 1)
    assert len(inputs) == 1
    assert torch.equal(inputs[0], -target)


class Augmented(Numbers):
    def __getitem__(self, index):
        noise = torch.tensor([random.random(), numpy.random.random(), torch.rand(()).item()])
        return (torch.tensor(index), noise), torch.tensor(0)


def test_random_numbers_drawn_by_a_data_set_are_the_same_on_every_worker():
    batches = Batches(make(data=Augmented(), microbatch_size=2), 3, 4)
    (_, noise), _ = batches.load(1, 2)
    torch.rand(3)
    random.random()
    (_, again), _ = batches.load(1, 2)
    (_, other), _ = batches.load(1, 3)
    assert torch.equal(noise, again)
    assert not torch.equal(noise, other)


def test_loading_leaves_the_random_numbers_of_torch_and_python_alone():
    batches = Batches(make(data=Augmented()), 3, 4)

    def draw(load):
        torch.manual_seed(1)
        random.seed(1)
        if load:
            batches.load(0, 0)
        return torch.rand(()).item(), random.random()

    assert draw(load=True) == draw(load=False)


class Broken(Numbers):
    def __getitem__(self, index):
        raise KeyError(f"file-{index}")


def test_a_data_set_that_raises_is_named_with_sample_step_and_microbatch():
    batches = Batches(make(data=Broken(), microbatch_size=1), 0, 4)
    [index] = batches.indices(3, 2)
    expected = rf"KeyError for sample {index} \(step 4, micro-batch 2\): 'file-{index}'"
    with pytest.raises(ConfigError, match=expected):
        batches.load(3, 2)


@pytest.mark.parametrize(
    ("collate", "message"),
    [
        (lambda samples: samples[0][0], r"step 1, micro-batch 0: a batch is a Tensor"),
        (lambda samples: ("text", 1), r"an input of the first layer is a str"),
        (lambda samples: 1 / 0, r"cannot collate step 1, micro-batch 0: ZeroDivisionError"),
    ],
)
def test_a_batch_of_the_wrong_form_is_refused(collate, message):
    with pytest.raises(ConfigError, match=message):
        Batches(make(collate=collate), 0, 1).load(0, 0)


def test_a_step_has_at_least_one_microbatch():
    with pytest.raises(ConfigError, match="micro-batches a step=0"):
        Batches(make(), 0, 0)


@pytest.mark.parametrize("microbatch", [-1, 2])
def test_a_microbatch_outside_the_step_is_a_bug_of_the_caller(microbatch):
    with pytest.raises(ValueError, match="of a step of 2"):
        Batches(make(), 0, 2).load(0, microbatch)


def test_tokens_are_the_elements_of_text_targets_and_samples_otherwise():
    assert num_tokens(torch.zeros(8, 64, dtype=torch.long)) == 512
    assert num_tokens(torch.zeros(8, dtype=torch.long)) == 8
    assert num_tokens(torch.zeros(8, 3)) == 8
    assert num_tokens(torch.tensor(1)) == 1
    assert num_tokens({"labels": [torch.zeros(8, 64, dtype=torch.long)]}) == 512
    with pytest.raises(ConfigError, match="a target is a str"):
        num_tokens("text")


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (nn.LazyLinear(4), "weight"),
        (nn.Sequential(nn.ReLU(), nn.LazyConv2d(4, 3)), "1.weight"),
        (nn.LazyBatchNorm1d(affine=False), "running_mean"),
    ],
)
def test_a_layer_whose_parameters_have_no_shape_yet_is_refused_by_name(layer, name):
    with pytest.raises(ConfigError) as refused:
        Job(
            layers=[nn.ReLU(), layer],
            loss=nn.functional.mse_loss,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
            data=[(torch.zeros(4), torch.zeros(4))],
        )
    assert f"Job.layers[1] is a {type(layer).__name__} whose {name} has no shape" in str(
        refused.value
    )
    assert refused.value.exit_code == 2


# --- what a data set raises ---


class Panic(BaseException):
    """As a library in Rust raises."""


class Flaky:
    """Raises ``why`` the first times that it is asked for its length, or for a sample."""

    def __init__(self, why: BaseException, *, length: int = 0, item: int = 0) -> None:
        self.why, self.left = why, {"length": length, "item": item}
        self.is_open = False

    def _ask(self, what: str) -> None:
        if self.is_open and self.left[what]:
            self.left[what] -= 1
            raise self.why

    def __len__(self) -> int:
        self._ask("length")
        return 8

    def __getitem__(self, index: int):
        self._ask("item")
        return torch.ones(2), torch.ones(1)


def broken_batches(data: Flaky, retries: int) -> Batches:
    job = Job(
        layers=[nn.Linear(2, 1)],
        loss=nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        data=data,
        microbatch_size=2,
    )
    data.is_open = True
    return Batches(job, 0, 2, retries=retries)


WHYS = [OSError("no"), SystemExit(3), Panic("index out of bounds")]


@pytest.mark.parametrize("why", WHYS, ids=lambda why: type(why).__name__)
def test_whatever_a_data_set_raises_names_the_sample(why):
    batches = broken_batches(Flaky(why, item=1), 0)
    first = batches.indices(1, 1)[0]
    kind = type(why).__name__
    with pytest.raises(DataError, match=rf"Flaky raised {kind} for sample {first} \(step 2, mic"):
        batches.load(1, 1)


@pytest.mark.parametrize("why", WHYS, ids=lambda why: type(why).__name__)
def test_so_does_its_length_which_is_asked_once(why):
    with pytest.raises(DataError, match=f"Flaky raised {type(why).__name__} for its length"):
        broken_batches(Flaky(why, length=1), 0)


def test_an_interrupt_inside_a_data_set_stays_one():
    with pytest.raises(KeyboardInterrupt):
        broken_batches(Flaky(KeyboardInterrupt(), item=1), 3).load(0, 0)
