"""Timing the layers: finds the slow ones and leaves the model as it was."""

import pytest
import torch
from torch import Tensor, nn, optim

from holdfast.data.batches import Batches
from holdfast.job import Job
from holdfast.runtime.stage import measure
from holdfast.runtime.stage.measure import Measured, kept_by_autograd, measure_layers
from holdfast.runtime.stage.stage import Stage

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


def measured(layers, *, sized: bool = True) -> Measured:
    made = job(layers)
    return measure_layers(made, Batches(made, 0, 2), sized=sized)


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
    forward_s, backward_s, _ = measured(layers)
    for times in (forward_s, backward_s):
        assert len(times) == 4
        others = [time_s for number, time_s in enumerate(times) if number != slow]
        assert times[slow] > 3 * sorted(others)[1]  # the middle one: a pause may hit any layer


def test_neither_the_warm_up_nor_one_disturbed_time_counts(clock):
    forward_s, _, _ = measured([nn.Linear(WIDTH, WIDTH), Sleepy(times=2)])
    assert forward_s[1] < SLEEP_S


def test_slow_layers_are_timed_twice_only(clock):
    slow = Sleepy(times=100)
    forward_s, _, _ = measured([nn.Linear(WIDTH, WIDTH), slow])
    assert forward_s[1] == pytest.approx(SLEEP_S)
    assert slow.num_calls == 3  # one warms up


def test_every_time_is_positive():
    forward_s, backward_s, _ = measured([nn.Linear(WIDTH, WIDTH), nn.ReLU()])
    assert all(time_s > 0 for time_s in forward_s + backward_s)


@pytest.mark.parametrize(
    "layers", [[Two(), Join()], nn.Sequential(Two(), JoinPair())], ids=["arguments", "one tuple"]
)
def test_tuples_pass_between_layers_as_in_training(layers):
    assert [len(row) for row in measured(layers)] == [2, 2, 2]


def test_layers_may_write_to_their_input():
    layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Sigmoid(), nn.ReLU(inplace=True))
    assert [len(row) for row in measured(layers)] == [3, 3, 3]


def test_frozen_layers_are_measured_too():
    frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
    assert [len(row) for row in measured([frozen, nn.Linear(WIDTH, WIDTH)])] == [2, 2, 2]


# --- memory ---

ROW_BYTES = 8 * WIDTH * 4  # of a micro-batch of 8


class Wide(nn.Module):
    """Keeps its input and four rows: what the first product gives, and its sigmoid."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.Sigmoid(), nn.Tanh(), nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(self, values: Tensor) -> Tensor:
        return self.inner(values)


def test_sizes_are_what_a_layer_holds_and_what_autograd_keeps_of_it():
    frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
    layers = [nn.BatchNorm1d(WIDTH), Wide(), frozen, nn.Linear(WIDTH, WIDTH)]
    norm, wide, cold, _ = measured(layers).sizes
    linear = WIDTH * WIDTH + WIDTH
    assert (norm.held_bytes, norm.trained) == (4 * 4 * WIDTH + 8, 2 * WIDTH)  # and buffers
    assert wide.trained * 4 == wide.held_bytes == 4 * (4 * WIDTH * WIDTH + 3 * WIDTH)
    assert (cold.held_bytes, cold.trained) == (4 * linear, 0)
    assert wide.inner_bytes == 2 * 2 * ROW_BYTES  # both activations, each as its own output
    assert cold.inner_bytes == 0
    assert {one.input_bytes for one in (norm, wide, cold)} == {ROW_BYTES}


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize(
    ("more", "rows_too_many"),
    [((), 0), ((nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout()),), 0), ((nn.Dropout(),), 1)],
    ids=["all keep their input", "dropout inside", "dropout keeps no input"],
)
def test_sizes_of_layers_add_up_to_what_a_stage_keeps_of_a_micro_batch(more, rows_too_many, split):
    layers = [nn.Linear(WIDTH, WIDTH), Wide(), nn.LayerNorm(WIDTH), *more]
    sizes = measured([*layers, nn.Linear(WIDTH, WIDTH)]).sizes
    expected = sum(one.input_bytes + one.inner_bytes for one in sizes[:-1]) + sizes[-1].input_bytes
    stage, inputs = Stage(layers), (torch.randn(8, WIDTH),)
    stage.forward(0, 0, inputs, split=split)  # learns that no layer writes to its input
    with kept_by_autograd() as kept:
        outputs = stage.forward(0, 1, inputs, split=split)
    for tensor in (*inputs, *outputs):
        kept.note(tensor)
    own = [parameter for layer in layers for parameter in layer.parameters()]
    assert kept.num_bytes(without=own) == expected - rows_too_many * ROW_BYTES


def test_a_view_of_what_is_kept_is_not_counted_again():
    class Views(nn.Module):
        def forward(self, values: Tensor) -> Tensor:
            inner = values.exp()  # keeps its result
            return inner * inner.t().t() + inner.view(-1, WIDTH) ** 2

    assert measured([Views(), nn.Linear(WIDTH, WIDTH)]).sizes[0].inner_bytes <= 2 * ROW_BYTES


def test_what_is_trained_in_less_than_fp32_is_told():
    class Low(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(WIDTH, WIDTH).to(torch.bfloat16)

        def forward(self, values: Tensor) -> Tensor:
            return self.inner(values.to(torch.bfloat16)).to(torch.float32)

    (size, _) = measured([Low(), nn.Linear(WIDTH, WIDTH)]).sizes
    assert size.trained_low == size.trained == size.held_bytes // 2


def test_autograd_is_not_looked_at_while_layers_are_timed(monkeypatch):
    counted = []
    hooks = torch.autograd.graph.saved_tensors_hooks

    def counting(*words):
        counted.append(words)
        return hooks(*words)

    monkeypatch.setattr(torch.autograd.graph, "saved_tensors_hooks", counting)
    measured([nn.Linear(WIDTH, WIDTH)] * 3)
    assert len(counted) == 3


class Sparse(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return torch.sparse.mm(torch.eye(len(values)).to_sparse(), values)


def test_a_sparse_tensor_that_is_kept_is_no_error():
    layers = [nn.Linear(WIDTH, WIDTH), Sparse()]
    assert [len(row) for row in measured(layers)] == [2, 2, 2]


class Derived(nn.Module):
    """torch.func refuses to be looked at."""

    def forward(self, values: Tensor) -> Tensor:
        return values + torch.func.grad(lambda x: (x**2).sum())(values)


@pytest.mark.parametrize("sized", [False, True])
def test_layers_that_cannot_be_looked_at_are_measured(sized):
    linear, derived = measured([nn.Linear(WIDTH, WIDTH), Derived()], sized=sized).sizes
    assert derived.inner_bytes == 0
    assert linear.held_bytes == 4 * (WIDTH * WIDTH + WIDTH)


def test_where_nobody_asks_for_sizes_autograd_is_not_looked_at(monkeypatch):
    monkeypatch.setattr(torch.autograd.graph, "saved_tensors_hooks", None)
    assert len(measured([nn.Linear(WIDTH, WIDTH)] * 2, sized=False).sizes) == 2
