"""Loading ahead: the same bits as loading at once, whatever was foreseen, whoever dies."""

import multiprocessing
import os
import signal
import socket
import threading
import time
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from holdfast.data.ahead import LoadingAhead
from holdfast.data.batches import Batches
from holdfast.data.parcel import Parcel, receive
from holdfast.errors import ConfigError, DataError
from holdfast.job import Job

pytestmark = pytest.mark.timeout(120)
MICROBATCHES = 4
LIMIT_S = 50.0


class Data:
    """Counts in a file who asked for which sample."""

    def __init__(self, log):
        self.log = log
        self.do = lambda index: None

    def __len__(self):
        return 64

    def __getitem__(self, index):
        with self.log.open("a") as file:
            file.write(f"{index} {os.getpid()}\n")
        self.do(index)
        return torch.full((3,), float(index)) + torch.rand(3), torch.tensor(index)

    def asked(self):
        return [tuple(map(int, line.split())) for line in self.log.read_text().splitlines()]


@pytest.fixture
def data(tmp_path):
    log = tmp_path / "asked"
    log.touch()
    return Data(log)


def batches_of(data, **changes):
    job = Job(
        layers=[nn.Identity()],
        loss=nn.functional.mse_loss,
        optimizer=torch.optim.SGD,
        data=data,
        microbatch_size=2,
        **changes,
    )
    return Batches(job, 0, MICROBATCHES)


@pytest.fixture
def ahead():
    made = []

    def make(batches, *, processes=1, ahead=2, check=lambda: None):
        made.append(
            LoadingAhead(
                batches, processes=processes, ahead=ahead, check=check, quiet=nullcontext()
            )
        )
        return made[-1]

    yield make
    for one in made:
        one.close()
    wait_for(lambda: not multiprocessing.active_children())


def wait_for(condition):
    until_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.01)


def same(one, other):
    return torch.equal(one[0][0], other[0][0]) and torch.equal(one[1], other[1])


@pytest.mark.parametrize("processes", [1, 3])
def test_what_is_loaded_ahead_has_the_bits_of_what_is_loaded_at_once(data, ahead, processes):
    batches = batches_of(data)
    loading = ahead(batches, processes=processes, ahead=3)
    for step in range(3):
        loading.expect([(t, m) for t in (step, step + 1) for m in (2, 0, 3)])
        for microbatch in (2, 0, 1, 3):  # one of them is not foreseen
            assert same(loading.load(step, microbatch), batches.load(step, microbatch))


def test_it_loads_before_it_is_asked_and_not_more_than_it_may(data, ahead):
    loading = ahead(batches_of(data), ahead=3)
    loading.expect([(t, m) for t in range(2) for m in range(MICROBATCHES)])
    wait_for(lambda: len(data.asked()) == 3 * 2)
    time.sleep(0.2)
    assert len(data.asked()) == 3 * 2
    loading.load(0, 0)
    wait_for(lambda: len(data.asked()) == 4 * 2)
    assert os.getpid() not in {pid for _, pid in data.asked()}


def test_each_sample_is_loaded_once(data, ahead):
    loading = ahead(batches_of(data), processes=2, ahead=4)
    for step in range(4):
        loading.expect([(t, m) for t in range(step, min(step + 2, 4)) for m in range(MICROBATCHES)])
        for microbatch in range(MICROBATCHES):
            loading.load(step, microbatch)
    samples = [index for index, _ in data.asked()]
    assert len(samples) == len(set(samples)) == 4 * MICROBATCHES * 2


def test_what_is_asked_for_goes_before_what_is_only_expected(data, ahead):
    batches = batches_of(data)
    asked = data.log.with_name("asked for")
    loading = ahead(batches, ahead=8, check=asked.touch)  # while it waits for what it asked for
    data.do = lambda index: wait_for(asked.exists)
    loading.expect([(0, 0), (0, 1), (0, 2), (0, 3)])
    loading.load(1, 0)
    order = [index for index, _ in data.asked()]
    assert order.index(batches.indices(1, 0)[0]) <= 2  # behind the one that was begun at most


def test_what_is_no_longer_expected_does_not_stand_in_the_way(data, ahead):
    """Also what was being loaded when it was no longer expected."""
    batches = batches_of(data)
    late, go_on = batches.indices(0, 1), data.log.with_name("go on")
    data.do = lambda index: wait_for(go_on.exists) if index == late[-1] else None
    loading = ahead(batches, ahead=2)
    loading.expect([(0, 0), (0, 1)])
    wait_for(lambda: len(data.asked()) == 4)
    loading.expect([(7, 0), (7, 1)])
    go_on.touch()
    wait_for(lambda: len(data.asked()) >= 8)
    assert [index for index, _ in data.asked()][-4:] == [
        *batches.indices(7, 0),
        *batches.indices(7, 1),
    ]


def test_what_raises_is_told_when_it_is_asked_for(data, ahead):
    batches = batches_of(data)
    bad = batches.indices(0, 1)[1]

    def broken(index):
        if index == bad:
            raise KeyError("gone")

    data.do = broken
    loading = ahead(batches)
    loading.expect([(0, 0), (0, 1), (0, 2)])
    loading.load(0, 0)
    expected = rf"raised KeyError for sample {bad} \(step 1, micro-batch 1\): 'gone'"
    with pytest.raises(DataError, match=expected):
        loading.load(0, 1)
    assert same(loading.load(0, 2), batches.load(0, 2))


def test_how_often_it_was_tried_is_told_too(data, ahead):
    data.do = lambda index: 1 / 0
    job = Job(
        layers=[nn.Identity()],
        loss=nn.functional.mse_loss,
        optimizer=torch.optim.SGD,
        data=data,
        microbatch_size=1,
    )
    loading = ahead(Batches(job, 0, 1, retries=2))
    with pytest.raises(DataError) as caught:
        loading.load(0, 0)
    assert caught.value.__notes__ == ["tried 3 times"]


def test_a_batch_that_cannot_be_sent_says_what_to_do(data, ahead):
    loading = ahead(batches_of(data, collate=lambda samples: (torch.zeros(1), lambda: 0)))
    with pytest.raises(DataError, match=r"cannot be sent from the process.*set data.workers=0"):
        loading.load(0, 0)


def test_a_batch_of_the_wrong_form_is_refused_as_without(data, ahead):
    loading = ahead(batches_of(data, collate=lambda samples: samples[0][0]))
    with pytest.raises(ConfigError, match=r"step 1, micro-batch 0: a batch is a Tensor"):
        loading.load(0, 0)


def test_a_process_that_is_killed_is_replaced(data, ahead):
    batches = batches_of(data)
    loading = ahead(batches, ahead=1)
    loading.expect([(0, 0)])
    wait_for(lambda: data.asked())
    [killed] = multiprocessing.active_children()
    os.kill(killed.pid, signal.SIGKILL)
    wait_for(lambda: not multiprocessing.active_children())
    assert same(loading.load(0, 0), batches.load(0, 0))
    assert same(loading.load(0, 1), batches.load(0, 1))
    assert len({pid for _, pid in data.asked()}) == 3  # the dead one, the new one, this one


def test_a_data_set_that_crashes_every_process_ends_well(data, ahead):
    data.do = lambda index: os.kill(os.getpid(), signal.SIGSEGV)
    loading = ahead(batches_of(data))
    with pytest.raises(DataError, match=r"ended by signal 11 while it loaded step 3, micro-batch"):
        loading.load(2, 1)


def test_a_wait_ends_when_the_worker_is_to_stop(data, ahead):
    class Stop(Exception):
        pass

    def check():
        if data.asked():
            raise Stop

    data.do = lambda index: time.sleep(LIMIT_S)
    loading = ahead(batches_of(data), check=check)
    with pytest.raises(Stop):
        loading.load(0, 0)


def test_connections_of_the_worker_are_not_held_open(data, ahead):
    here, there = socket.socketpair()
    loading = ahead(batches_of(data))
    loading.load(0, 0)
    here.close()
    there.settimeout(LIMIT_S)
    assert there.recv(1) == b""
    there.close()


def test_the_processes_end_with_the_thread_that_has_started_them(data):
    pids = []

    def worker():
        loading = LoadingAhead(
            batches_of(data), processes=2, ahead=2, check=lambda: None, quiet=nullcontext()
        )
        loading.load(0, 0)
        pids.extend(child.pid for child in multiprocessing.active_children())

    thread = threading.Thread(target=worker)
    thread.start()
    thread.join()
    assert len(pids) == 2
    wait_for(lambda: not multiprocessing.active_children())


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(3.5),
        torch.zeros(0, 4),
        torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1),
        torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last),
        torch.arange(10_000_000)[5_000_000:5_000_006].view(2, 3),
        torch.ones(1).expand(4, 5),
        torch.tensor([1.5, -2], dtype=torch.bfloat16),
        torch.tensor([True, False]),
        torch.tensor([1 + 2j]),
    ],
    ids=lambda tensor: f"{tuple(tensor.shape)} {tensor.dtype}",
)
def test_a_tensor_arrives_as_it_was_and_no_more_of_it(tensor):
    here, there = multiprocessing.Pipe()
    value = {"input": tensor, "more": [tensor, "text", 3]}
    sender = threading.Thread(target=lambda: Parcel(value).send(here))
    sender.start()
    got = receive(there)
    sender.join()
    assert got["more"][1:] == ["text", 3]
    for found in (got["input"], got["more"][0]):
        assert torch.equal(found, tensor)
        assert (found.dtype, found.stride()) == (tensor.dtype, tensor.stride())
        assert found.untyped_storage().nbytes() <= max(1, tensor.nbytes)
