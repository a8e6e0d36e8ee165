"""Streams by place: in any order of asking, in any epoch, the samples of one reading."""

import random
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from helpers.seed import SEED
from holdfast.data.batches import Batches
from holdfast.data.stream import StreamSamples
from holdfast.errors import CheckpointError, ConfigError, DataError
from holdfast.job import Job, is_stream

STEP = 6  # samples


class Numbers:
    """Counts, with noise from the global generator; what it has drawn so far is part of it."""

    def __init__(self, length=10):
        self.length, self.at, self.sum, self.epoch = length, 0, 0.0, 0
        self.num_read = 0

    def __iter__(self):
        while self.at < self.length:
            self.at += 1
            self.num_read += 1
            self.sum += random.random()
            yield 100 * self.epoch + self.at - 1, self.sum
        self.at = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def state_dict(self):
        return {"at": self.at, "sum": self.sum}

    def load_state_dict(self, state):
        self.at, self.sum = state["at"], state["sum"]


def straight(count, length=10):
    return StreamSamples(Numbers(length), 3, STEP).take(0, count, "")


def test_epochs_follow_each_other():
    assert [number for number, _ in straight(23)] == [*range(10), *range(100, 110), 200, 201, 202]


@settings(max_examples=60, deadline=None)
@given(
    length=st.integers(1, 14),
    asked=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), min_size=1, max_size=6),
)
def test_samples_are_the_same_in_whatever_order_they_are_asked_for(length, asked):
    whole = straight(50, length)
    samples = StreamSamples(Numbers(length), 3, STEP)
    for first, count in asked:
        assert samples.take(first, count, "") == whole[first : first + count]


@settings(max_examples=40, deadline=None)
@given(length=st.integers(1, 14), read=st.integers(0, 40), asked=st.integers(0, 45))
def test_another_one_goes_on_from_a_position(length, read, asked):
    reader = StreamSamples(Numbers(length), 3, STEP)
    reader.take(0, read, "")
    position, stream = reader.position(asked), Numbers(length)
    other = StreamSamples(stream, 3, STEP)
    if position is not None:
        other.go_on_from(position)
    assert other.take(asked, 3, "") == straight(50, length)[asked : asked + 3]
    known = min(asked, read - 1) // STEP * STEP if read else 0
    assert stream.num_read <= asked + 3 - known


def test_several_may_read_the_same_stream():
    stream, whole = Numbers(), straight(30)
    one, other = (StreamSamples(stream, 3, STEP) for _ in range(2))
    assert one.take(0, 4, "") == whole[:4]
    assert other.take(2, 9, "") == whole[2:11]
    assert one.take(4, 9, "") == whole[4:13]
    assert StreamSamples(stream, 3, STEP).take(0, 3, "") == whole[:3]


def test_going_back_a_step_does_not_read_from_the_start():
    stream = Numbers(1000)
    samples = StreamSamples(stream, 3, STEP)
    samples.take(600, STEP, "")
    before = stream.num_read
    samples.take(600 - STEP, 2, "")
    assert stream.num_read - before == 2


class Broken(Numbers):
    def __iter__(self):
        for sample in super().__iter__():
            if sample[0] == 7 and not self.is_mended:
                raise OSError("gone")
            yield sample

    is_mended = False


def test_what_raises_names_the_stream_and_where_and_can_be_tried_again():
    stream = Broken()
    samples = StreamSamples(stream, 3, STEP)
    with pytest.raises(DataError, match=r"stream Broken raised OSError near sample 6 \(step 2\)"):
        samples.take(6, 3, "step 2")
    stream.is_mended = True
    assert samples.take(6, 3, "step 2") == straight(10)[6:9]


def test_a_stream_that_is_empty_is_refused():
    with pytest.raises(DataError, match=r"^the stream Numbers has no sample in epoch 2"):
        StreamSamples(Numbers(0), 3, STEP).take(0, 1, "")


def test_a_state_of_foreign_code_is_refused():
    class Strange(Numbers):
        def state_dict(self):
            return {"at": self}

    with pytest.raises(DataError, match=r"the stream Strange has a state that cannot be saved"):
        StreamSamples(Strange(), 3, STEP)


def test_a_position_that_is_none_is_refused():
    with pytest.raises(CheckpointError, match=r"the position of the stream Numbers cannot be read"):
        StreamSamples(Numbers(), 3, STEP).go_on_from(torch.zeros(5, dtype=torch.uint8))


def make(data, **more):
    return Job(
        layers=[nn.Identity()],
        loss=nn.functional.mse_loss,
        optimizer=torch.optim.SGD,
        data=data,
        microbatch_size=2,
        **more,
    )


def test_microbatches_of_a_stream_hold_its_samples_one_after_the_other():
    job = make(Numbers(), collate=lambda samples: (torch.tensor([n for n, _ in samples]), 0))
    batches = Batches(job, 0, 3)
    loaded = [batches.load(step, m)[0][0].tolist() for step in range(2) for m in (1, 2, 0)]
    assert loaded == [[2, 3], [4, 5], [0, 1], [8, 9], [100, 101], [6, 7]]


def test_what_can_be_asked_for_any_sample_is_no_stream():
    class Both(Numbers):
        def __getitem__(self, index):
            return index

        def __len__(self):
            return 3

    assert is_stream(Numbers())
    assert not is_stream(Both())


def test_a_sampler_for_a_stream_is_refused():
    with pytest.raises(ConfigError, match=r"Job.sampler is a range, and Job.data a stream"):
        make(Numbers(), sampler=range(3))


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_torchdata_gives_each_sample_once_wherever_it_is_taken_up():
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    numbers = torch.utils.data.TensorDataset(torch.arange(20))

    def stream():
        return stateful.StatefulDataLoader(numbers, batch_size=None, shuffle=False)

    def values(samples):
        return [int(value[0]) for value in samples]

    reader = StreamSamples(stream(), 3, STEP)
    whole = values(reader.take(0, 45, ""))
    assert whole == [*range(20), *range(20), *range(5)]
    draw = random.Random(SEED)
    for _ in range(20):
        first = draw.randrange(40)
        other = StreamSamples(stream(), 3, STEP)
        reader.take(first, 1, "")
        if (position := reader.position(first)) is not None:
            other.go_on_from(position)
        assert values(other.take(first, 4, "")) == whole[first : first + 4]


def test_reading_needs_no_import_of_torchdata():
    words = "import sys, holdfast.data.batches; sys.exit('torchdata' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", words]).returncode == 0
