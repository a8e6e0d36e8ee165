"""Every transfer is needed: with any of them left out a run fails, or ends with other bits."""

import sys

import pytest
import torch

from helpers import far_device
from helpers.wide import first
from holdfast.device import staging
from holdfast.device.accelerator import Accelerator
from holdfast.device.choosing import open_device
from holdfast.runtime.stage import named_tensors

TRANSFERS = [  # the method of the device, and from where it is called
    ("place", "Stage._placed"),
    ("to_host", "Stage.forward"),
    ("place", "StageOptimizer._step_chunk"),
    ("to_host", "_Part.__init__"),
    ("seed", "seed_layer"),
    ("place_all", "Stage._run_loss"),
    ("place", "Stage._run_backward"),
    ("to_host", "Stage._run_backward"),
    ("host_copy", "state_tensors"),
    ("place_layer", "Builder._started"),
]


@pytest.mark.parametrize(("method", "caller"), first(5, TRANSFERS))
def test_a_run_without_this_transfer_does_not_end_as_it_should(train, monkeypatch, method, caller):
    transfer, left_out = getattr(Accelerator, method), []

    def unless_from_there(device, value):
        called_by = sys._getframe(1).f_code.co_qualname
        if not called_by.startswith(caller):
            return transfer(device, value)
        left_out.append(caller)
        return value

    expected = train("cpu", "1x1", steps=1)
    monkeypatch.setattr(Accelerator, method, unless_from_there)
    outcome = train("far", "1x2", steps=1)
    assert left_out, "no such transfer was asked for: this test proves nothing"
    assert outcome.exit_code != 0 or outcome.sha256 != expected.sha256


def test_device_memory_is_no_array():
    with pytest.raises(TypeError, match="can't convert far"):
        open_device("far", -1, 0).place(torch.ones(3)).numpy()


def test_a_hash_is_that_of_the_same_values_on_the_host():
    values = {"a": torch.randn(5, 3).t()}
    there = {name: open_device("far", -1, 0).place(value) for name, value in values.items()}
    assert named_tensors.hash_of(there) == named_tensors.hash_of(values)


@pytest.mark.parametrize("piece_bytes", [16, 1 << 10])
@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(100.0).view(10, 10),
        torch.arange(100.0).view(10, 10)[:, ::3].t(),
        torch.tensor([True, False]),
        torch.randn(7, dtype=torch.bfloat16),
        torch.randn(5, dtype=torch.complex64).conj(),
        torch.tensor(3),
        torch.empty(0, 4),
    ],
)
def test_what_goes_there_and_back_is_the_same(monkeypatch, tensor, piece_bytes):
    monkeypatch.setattr(staging, "PIECE_BYTES", piece_bytes)
    device = open_device("far", -1, 0)
    there = device.place(tensor)
    assert there.device.type == far_device.KIND
    assert torch.equal(device.to_host(there), tensor)
    assert torch.equal(there.cpu(), tensor)


@pytest.mark.parametrize("method", ["to_host", "to_device"])
def test_a_copy_that_nobody_waits_for_is_not_there(monkeypatch, method):
    device, tensor = open_device("far", -1, 0), torch.arange(1.0, 9.0)
    there = device.place(tensor)
    name = "synchronize" if method == "to_host" else "wait_stream"
    kind = far_device.FAR.Event if method == "to_host" else far_device.FAR.Stream
    monkeypatch.setattr(kind, name, lambda *given: None)
    fresh = staging.Staging(far_device.FAR, device.torch_device)
    found = fresh.to_host(there) if method == "to_host" else fresh.to_device(tensor)
    assert not torch.equal(found.cpu(), tensor)
