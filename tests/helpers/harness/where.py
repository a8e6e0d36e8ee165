"""Where contract tests compute: the processor, or the test device with HOLDFAST_TEST_DEVICE.

What they compare with is always computed on the processor, without any device.
"""

import os
from collections.abc import Iterable
from functools import partial

import pytest
from torch import Tensor, nn

from holdfast.device.choosing import open_device
from holdfast.device.processor import PROCESSOR, Device

ON_TEST_DEVICE = "HOLDFAST_TEST_DEVICE" in os.environ
DEVICE: Device = open_device("far", -1, 0) if ON_TEST_DEVICE else PROCESSOR


# What the device that is not there cannot do, and a real one can.
cannot = partial(pytest.mark.skipif, ON_TEST_DEVICE)


def placed(layers: Iterable[nn.Module]) -> list[nn.Module]:
    """In place: the same layers, on the device."""
    return [DEVICE.place_layer(layer) for layer in layers]


def trained(values: Iterable[Tensor]) -> list[nn.Parameter]:
    """With their order in memory, as layers keep it."""
    return [nn.Parameter(value.to(DEVICE.torch_device)) for value in values]
