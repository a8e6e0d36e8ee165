"""Which device a worker gets, and one clear line where there is none."""

import re

import pytest
import torch

from helpers import runs
from holdfast.control.checks import check_alike
from holdfast.device.choosing import make_deterministic, open_device
from holdfast.device.processor import PROCESSOR, Device
from holdfast.errors import ConfigError
from holdfast.runtime.job.fingerprint import fingerprint

no_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


class Card(Device):
    model, libraries = "A card, multi_processor_count 7", "cuda 12"


@no_cuda
def test_without_an_accelerator_it_is_the_processor_and_nothing_is_set():
    before = torch.are_deterministic_algorithms_enabled()
    make_deterministic("auto")
    assert open_device("auto", -1, 3) is PROCESSOR
    assert torch.are_deterministic_algorithms_enabled() == before


@no_cuda
def test_an_index_without_a_device_is_refused_and_not_forgotten():
    with pytest.raises(ConfigError, match=r"device\.index=3: torch .* finds no device on this m"):
        open_device("auto", 3, 0)
    assert open_device("cpu", 3, 0) is PROCESSOR


@no_cuda
@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("cuda", "device.kind=cuda: torch .* finds none on this machine; set"),
        ("abacus", "device.kind=abacus: torch knows no such device; expected auto, cpu, cuda"),
    ],
)
def test_a_run_that_asks_for_what_is_not_there_ends_before_it_begins(train, kind, line):
    outcome = train(kind, "1x1")
    assert outcome.exit_code == 2
    [told] = outcome.stderr.splitlines()
    assert re.search(line, told), told
    assert not list(outcome.run_dir.glob("checkpoints/*"))


@pytest.mark.parametrize("setting", ["device.kind=Cuda!", "device.index=-2"])
def test_a_setting_that_cannot_be_is_refused(train, setting):
    outcome = train("cpu", "1x1", *runs.settings(setting))
    assert outcome.exit_code == 2
    assert setting.partition("=")[0] in outcome.stderr


def test_models_are_not_mixed_unless_asked_for():
    prints = {"0.0": fingerprint(Card()), "1.0": {**fingerprint(Card()), "device": "B card"}}
    with pytest.raises(ConfigError, match=r"differ in device: A card.* with device\.mixed=true"):
        check_alike(prints, allow_mixed=False)
    assert "device" not in fingerprint(Card(), mixed=True)
    assert fingerprint(Card())["device libraries"] == "cuda 12"
    assert fingerprint(PROCESSOR) == fingerprint()
