"""Layers and loss in low precision: what is cast, what is refused, what overflows."""

import pytest
import torch
from torch import Tensor, nn

from helpers.harness.module_cases import Sums
from holdfast.data.batches import Batches
from holdfast.errors import ConfigError
from holdfast.job import Job
from holdfast.runtime.stage.measure import measure_layers
from holdfast.runtime.stage.precision import Precision
from holdfast.runtime.stage.stage import Stage

pytestmark = pytest.mark.usefixtures("one_thread")
seen: list[torch.dtype] = []


def _precision() -> torch.dtype:
    is_on = torch.is_autocast_enabled("cpu")
    return torch.get_autocast_dtype("cpu") if is_on else torch.float32


class Product(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        # Not of the result: a recomputation ends before there is one.
        seen.append(_precision())
        return super().forward(x)


@pytest.fixture(autouse=True)
def _forget() -> None:
    seen.clear()


def first(y: Tensor, _: object) -> Tensor:
    """In the precision of the last layer."""
    seen.append(_precision())
    return y[0, 0]


def stage(name, **options) -> Stage:
    precision = Precision.of(name)
    layers = [Product(4, 4), Product(4, 4)]
    return Stage(layers, loss=first, sink=Sums(), autocast=precision.autocast, **options)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)],
)
@pytest.mark.parametrize("again", [False, True])
def test_each_layer_and_its_recomputation_have_the_precision(name, dtype, again):
    one = stage(name, checkpoint_activations=again)
    one.forward(0, 0, (torch.ones(2, 4),))
    one.backward(0)
    assert seen == [dtype] * (5 if again else 3)
    assert all(gradient.dtype == torch.float32 for gradient in one.sink.sums.values())
    assert not torch.is_autocast_enabled("cpu")


def test_a_loss_in_fp16_overflows_as_its_gradients_do():
    one = stage("fp16", loss_scale=lambda step: 65536.0)
    one.forward(0, 0, (torch.ones(2, 4),))
    one.backward(0)
    assert not any(gradient.isfinite().all() for gradient in one.sink.sums.values())


@pytest.mark.parametrize("device", ["meta", "no such device"])
def test_what_torch_cannot_cast_is_refused_in_one_line(device):
    with pytest.raises(ConfigError) as refused:
        Precision.of("fp16", device)
    text = str(refused.value)
    assert text.startswith("train.precision=fp16: torch ")
    assert f"no autocast to torch.float16 on {device}; set train.precision=fp32" in text
    assert Precision.of("fp32", device).dtype is None


def test_layers_are_timed_in_the_precision_that_they_run_in():
    data = [(torch.ones(4), torch.ones(4))] * 4
    job = Job(
        layers=[Product(4, 4)],
        loss=first,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        data=data,
        microbatch_size=2,
    )
    measure_layers(job, Batches(job, 0, 2), Precision.of("bf16"))
    assert set(seen) == {torch.bfloat16}
