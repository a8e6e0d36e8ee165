"""Timing the layers: finds the slow ones and leaves the model as it was."""

import pytest
import torch
from torch import Tensor, nn, optim

from holdfast.data.batches import Batches
from holdfast.job import Job
from holdfast.runtime.stage import measure
from holdfast.runtime.stage.measure import measure_layers

WIDTH = 96
SLEEP_S = 0.3


class Repeated(nn.Module):
    """The same product over and over."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times, self.inner = times, nn.Linear(WIDTH, WIDTH)

    def forward(self, values: Tensor) -> Tensor:
        for _ in range(self.times):
            values = self.inner(values)
        return values


class Sleepy(nn.Module):
    """Takes long in its first ``times`` calls."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times, self.num_calls = times, 0

    def forward(self, values: Tensor) -> Tensor:
        self.num_calls += 1
        Clock.now_s += SLEEP_S * (self.num_calls <= self.times)
        return values * 2


class Clock:
    """The module ``time``: nothing takes any but what sleeps, however busy the machine is."""

    now_s = 0.0

    def perf_counter(self) -> float:
        return Clock.now_s


@pytest.fixture
def clock(monkeypatch) -> None:
    monkeypatch.setattr(measure, "time", Clock())


class Noisy(nn.Module):
    """Draws random numbers, writes to one buffer in place and puts another tensor for the other."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.tensor(7))
        self.register_buffer("mean", torch.full((WIDTH,), 0.5))

    def forward(self, values: Tensor) -> Tensor:
        self.count.add_(1)
        self.mean = self.mean + values.detach().mean(0)
        return values + torch.randn_like(values)


class Two(nn.Module):
    def forward(self, values: Tensor) -> tuple[Tensor, Tensor]:
        return values, values.argmax(-1)


class Join(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WIDTH, WIDTH)

    def forward(self, values: Tensor, places: Tensor) -> Tensor:
        return values + self.table(places)


class JoinPair(Join):
    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:  # type: ignore[override]
        return super().forward(*pair)


def job(layers) -> Job:
    data = [(torch.randn(WIDTH), torch.randn(WIDTH)) for _ in range(16)]
    return Job(
        layers=layers,
        loss=nn.functional.mse_loss,
        optimizer=lambda parameters: optim.SGD(parameters, lr=0.1),
        data=data,
        microbatch_size=8,
    )


def measured(layers) -> tuple[list[float], list[float]]:
    made = job(layers)
    return measure_layers(made, Batches(made, 0, 2))


def state(layers) -> dict[str, bytes]:
    """The test's own view of all parameters and buffers."""
    return {
        f"{number}.{name}": tensor.detach().numpy().tobytes()
        for number, layer in enumerate(layers)
        for name, tensor in layer.state_dict().items()
    }


def test_parameters_gradients_and_buffers_are_as_they_were():
    layers = [nn.Linear(WIDTH, WIDTH), Noisy(), nn.BatchNorm1d(WIDTH), nn.Dropout(), Repeated(2)]
    before = state(layers)
    measured(layers)
    assert state(layers) == before
    assert all(p.grad is None for layer in layers for p in layer.parameters())
    assert all(layer.training for layer in layers)


@pytest.mark.parametrize("slow", [0, 1, 3])
def test_the_slow_layer_is_found(slow):
    layers = [Repeated(50 if number == slow else 1) for number in range(4)]
    forward_s, backward_s = measured(layers)
    for times in (forward_s, backward_s):
        assert len(times) == 4
        others = [time_s for number, time_s in enumerate(times) if number != slow]
        assert times[slow] > 3 * sorted(others)[1]  # the middle one: a pause may hit any layer


def test_neither_the_warm_up_nor_one_disturbed_time_counts(clock):
    forward_s, _ = measured([nn.Linear(WIDTH, WIDTH), Sleepy(times=2)])
    assert forward_s[1] < SLEEP_S


def test_slow_layers_are_timed_twice_only(clock):
    slow = Sleepy(times=100)
    forward_s, _ = measured([nn.Linear(WIDTH, WIDTH), slow])
    assert forward_s[1] == pytest.approx(SLEEP_S)
    assert slow.num_calls == 3  # one warms up


def test_every_time_is_positive():
    forward_s, backward_s = measured([nn.Linear(WIDTH, WIDTH), nn.ReLU()])
    assert all(time_s > 0 for time_s in forward_s + backward_s)


@pytest.mark.parametrize(
    "layers", [[Two(), Join()], nn.Sequential(Two(), JoinPair())], ids=["arguments", "one tuple"]
)
def test_tuples_pass_between_layers_as_in_training(layers):
    assert [len(times) for times in measured(layers)] == [2, 2]


def test_layers_may_write_to_their_input():
    layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Sigmoid(), nn.ReLU(inplace=True))
    assert [len(times) for times in measured(layers)] == [3, 3]


def test_frozen_layers_are_measured_too():
    frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
    assert [len(times) for times in measured([frozen, nn.Linear(WIDTH, WIDTH)])] == [2, 2]
