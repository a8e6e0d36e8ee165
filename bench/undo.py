"""Taking a step back by undoing it, beside keeping copies: exactness, memory, time.

Exactness: a small GPT is trained on text three times: calm; with steps undone and redone at
random by the inverse alone, as SWIFT does; and the same with residuals. Memory and time: optimizer
steps of a GPT of 4.2 million parameters with real gradients; the ways take turns, medians count.

    .venv/bin/python bench/undo.py [--steps 1000] [--rounds 15] [--quick]
"""

import argparse
import copy
import hashlib
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn, optim

from holdfast.host import instruction_set
from holdfast.models.gpt import gpt_layers
from holdfast.models.text import VOCABULARY, CharText, next_token_loss
from holdfast.runtime.reduce.flat_layout import FlatLayout
from holdfast.runtime.reduce.gradients import FastGradients
from holdfast.runtime.reduce.reduction import Reduced, conclude
from holdfast.runtime.update.inverse import inverse_of
from holdfast.runtime.update.inverse_rollback import InverseRollback
from holdfast.runtime.update.optimizer import StageOptimizer
from holdfast.runtime.update.rollback import SnapshotRollback, StepRollback, Update

Floats = NDArray[np.float32]
Factory = Callable[..., optim.Optimizer]
SHARE_UNDONE = 0.3
CONTEXT, BATCH = 32, 8
OPTIMIZERS: dict[str, Factory] = {
    "SGD decay": partial(optim.SGD, lr=0.05, weight_decay=0.01),
    "SGD momentum": partial(optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.01),
    "SGD nesterov": partial(optim.SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Adam decay": partial(optim.Adam, lr=1e-3, weight_decay=0.01),
    "AdamW": partial(optim.AdamW, lr=1e-3, weight_decay=0.01),
    "AdamW fused": partial(optim.AdamW, lr=1e-3, weight_decay=0.01, fused=True),
}


class Model:
    """Layers, their optimizer, and gradients in the form in which a stage reduces them."""

    def __init__(self, layers: Iterable[nn.Module], factory: Factory) -> None:
        self.network = nn.Sequential(*layers)
        self.parameters = list(self.network.parameters())
        keys = [f"0.{name}" for name, _ in self.network.named_parameters()]
        self._gradients = FastGradients(FlatLayout.of(self.parameters, keys))
        self.optimizer = StageOptimizer(self.parameters, keys, factory, None)

    def reduced(self, inputs: Tensor, targets: Tensor) -> Reduced:
        flat = torch.zeros(self._gradients.layout.numel)
        loss = next_token_loss(self.network(inputs), targets)
        for slot, gradient in enumerate(torch.autograd.grad(loss, self.parameters)):
            self._gradients.layout.view(flat, slot).copy_(gradient)
        touched = [True] * len(self.parameters)
        return conclude(self._gradients, flat, touched=touched, nonfinite=False)

    def sha256(self) -> str:
        state = self.optimizer.state_tensors().values()
        digest = hashlib.sha256()
        for tensor in [*self.parameters, *state]:
            digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()


# --- exactness ---


@dataclass
class Errors:
    """Of one kind of tensor, over all steps undone."""

    num_elements: int = 0
    num_exact: int = 0
    largest: dict[str, float] = field(
        default_factory=lambda: {"absolute": 0.0, "relative": 0.0, "ulp": 0.0}
    )

    def add(self, found: Floats, expected: Floats) -> None:
        ulps = np.abs(_ordered(found) - _ordered(expected))
        error = np.abs(found.astype(np.float64) - expected)
        relative = (error / np.maximum(np.abs(expected), 1e-38))[expected != 0]
        self.num_elements += found.size
        self.num_exact += int((ulps == 0).sum())
        for name, values in (("absolute", error), ("relative", relative), ("ulp", ulps)):
            self.largest[name] = max(self.largest[name], float(values.max(initial=0)))

    @property
    def share(self) -> float:
        return self.num_exact / self.num_elements


def _ordered(values: Floats) -> NDArray[np.int64]:
    bits = values.view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


class Watched:
    """Copies of all that a step changes, to compare with what undoing it gives."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._before = self._now()

    def _now(self) -> list[tuple[str, Floats]]:
        optimizer = self._model.optimizer
        found = []
        for index, parameter in enumerate(self._model.parameters):
            found.append(("parameter", _flat(parameter).copy()))
            state = optimizer.state_of(index)
            names = (n for n in sorted(state) if state[n].dim())
            found += [(n, _flat(state[n]).copy()) for n in names]
        return found

    def compare(self, errors: dict[str, Errors]) -> None:
        for (name, found), (other, expected) in zip(self._now(), self._before, strict=True):
            assert name == other
            errors.setdefault(name, Errors()).add(found, expected)


def _flat(tensor: Tensor) -> Floats:
    flat: Floats = tensor.detach().reshape(-1).numpy()
    return flat


def undo_plainly(model: Model, update: Update) -> None:
    """The inverse alone; of a first step that it was the first is known."""
    optimizer = model.optimizer
    for index, gradient in enumerate(update.gradients()):
        assert gradient is not None
        state, flat = optimizer.state_of(index), _flat(gradient)
        inverse = inverse_of(optimizer.group_of(index), state)
        now = {name: _flat(state[name]) for name in inverse.names if name in state}
        parameter = _flat(model.parameters[index])
        parameter[:] = inverse.parameter(parameter, flat, now)
        for name, values in now.items():
            values[:] = inverse.state(name, values, flat, parameter)
        if "step" in state:
            state["step"] -= 1


def train(
    factory: Factory, data: CharText, steps: int, how: str, errors: dict[str, Errors]
) -> Model:
    torch.manual_seed(0)
    layers = gpt_layers(
        vocabulary=VOCABULARY, context=CONTEXT, width=32, heads=2, depth=2, dropout=0.0
    )
    model, chance = Model(layers, factory), random.Random(1)
    undo = InverseRollback(model.optimizer, keeps_old=True)
    for step in range(steps):
        rows = [data[(step * BATCH + i) * 7 % len(data)] for i in range(BATCH)]
        inputs, targets = (torch.stack(column) for column in zip(*rows, strict=True))
        update = Update(step, model.reduced(inputs, targets))
        is_undone = chance.random() < SHARE_UNDONE and step > 0
        if how == "calm" or not is_undone:
            model.optimizer.step(step, update.gradients())
            continue
        before = Watched(model)
        undo.apply(update, speculative=True)
        if how == "plain":
            undo_plainly(model, update)
        else:
            undo.take_back(step)
        before.compare(errors)
        undo.restart()
        model.optimizer.step(step, update.gradients())
    return model


def exactness(steps: int) -> dict[str, dict[str, Any]]:
    data, found = CharText(CONTEXT, num_bytes=200_000), {}
    print(f"{steps} steps, {SHARE_UNDONE:.0%} of them undone and redone; a GPT on text\n")
    print(
        f"{'':14}{'':17}{'exact, inverse':>15}{'largest error':>15}{'relative':>10}{'ulp':>10}"
        f"{'exact, residual':>17}"
    )
    for name, factory in OPTIMIZERS.items():
        plain: dict[str, Errors] = {}
        exact: dict[str, Errors] = {}
        calm = train(factory, data, steps, "calm", {})
        drifted = train(factory, data, steps, "plain", plain)
        undone = train(factory, data, steps, "residual", exact)
        for number, (part, errors) in enumerate(plain.items()):
            largest = errors.largest
            print(
                f"{name if number == 0 else '':14}{part:17}{errors.share:15.4%}"
                f"{largest['absolute']:15.1e}{largest['relative']:10.1e}{largest['ulp']:10.1e}"
                f"{exact[part].share:17.4%}"
            )
        same = {
            "plain": drifted.sha256() == calm.sha256(),
            "exact": undone.sha256() == calm.sha256(),
        }
        drift = relative_drift(drifted, calm)
        words = {True: "the same bits", False: "other bits"}
        print(
            f"{'':14}in the end: inverse {words[same['plain']]} ({drift:.1e} off), "
            f"residual {words[same['exact']]}",
            flush=True,
        )
        found[name] = {
            "exact_share": {part: round(errors.share, 6) for part, errors in plain.items()},
            "residual_share": min(errors.share for errors in exact.values()),
            "same_sha256": same["exact"],
            "plain_drift": drift,
        }
    return found


def relative_drift(one: Model, other: Model) -> float:
    pairs = list(zip(one.parameters, other.parameters, strict=True))
    off = math.fsum(float((a - b).double().square().sum().detach()) for a, b in pairs)
    return math.sqrt(off / math.fsum(float(b.double().square().sum().detach()) for _, b in pairs))


# --- memory and time ---


def big_layers(quick: bool) -> list[nn.Module]:
    torch.manual_seed(0)
    width, vocabulary = (32, 256) if quick else (256, 2048)
    layers = gpt_layers(
        vocabulary=vocabulary, context=128, width=width, heads=4, depth=4, dropout=0.0
    )
    return list(layers)


class Way:
    """One way to make steps that can be taken back, on a model of its own."""

    def __init__(self, name: str, layers: list[nn.Module], factory: Factory) -> None:
        self.model = Model(copy.deepcopy(layers), factory)
        self._speculative = name.endswith("on trust")
        kind = {"keep-old": SnapshotRollback, "undo": InverseRollback}.get(name.split(",")[0])
        self._rollback: StepRollback | None = None
        if kind is not None:
            self._rollback = kind(self.model.optimizer, keeps_old=True)
        self.times_s: list[float] = []
        self.kept_bytes = self.most_bytes = 0

    def step(self, step: int, reduced: Reduced) -> None:
        rollback, update = self._rollback, Update(step, reduced)
        start_s = time.thread_time()  # others on the machine do not show in it
        if rollback is None:
            self.model.optimizer.step(step, update.gradients())
        else:
            rollback.apply(update, speculative=self._speculative)
        self.times_s.append(time.thread_time() - start_s)
        if rollback is not None:
            self.most_bytes = max(self.most_bytes, rollback.kept_bytes(reduced))
            rollback.committed(step)
            self.kept_bytes = rollback.kept_bytes(reduced)

    @property
    def peak_bytes(self) -> int:
        return 0 if self._rollback is None else self._rollback.peak_bytes


WAYS = ("plain", "keep-old, settled", "keep-old, on trust", "undo, settled", "undo, on trust")
WARM_UP_STEPS = 3


def cost(name: str, factory: Factory, gradients: list[Reduced], args: argparse.Namespace) -> Any:
    layers = big_layers(args.quick)
    ways = {way: Way(way, layers, factory) for way in WAYS}
    for step in range(WARM_UP_STEPS + args.rounds):
        order = list(ways.values())
        order = order[step % len(order) :] + order[: step % len(order)]
        for way in order:
            way.step(step, gradients[step % len(gradients)])
    if len({way.model.sha256() for way in ways.values()}) != 1:
        sys.exit(f"{name}: the ways do not come to the same bits")
    numel = sum(parameter.numel() for parameter in ways["plain"].model.parameters)
    medians_s = {n: statistics.median(way.times_s[WARM_UP_STEPS:]) for n, way in ways.items()}
    found: dict[str, Any] = {}
    for number, (way_name, way) in enumerate(ways.items()):
        ratio = medians_s[way_name] / medians_s["plain"]
        per = [b / numel for b in (way.kept_bytes, way.most_bytes, way.peak_bytes)]
        print(
            f"{name if number == 0 else '':14}{way_name:20}{medians_s[way_name] * 1e3:9.1f}"
            f"{ratio:9.2f}{per[0]:12.3f}{per[1]:12.3f}{per[2]:12.3f}",
            flush=True,
        )
        found[way_name] = {
            "step_ratio": round(ratio, 3),
            "bytes_settled": round(per[0], 4),
            "bytes_applied": round(per[1], 4),
            "bytes_peak": round(per[2], 4),
        }
    return found


def costs(args: argparse.Namespace) -> dict[str, Any]:
    model = Model(big_layers(args.quick), OPTIMIZERS["AdamW"])
    vocabulary = model.parameters[0].shape[0]
    gradients = []
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        tokens = (torch.rand(4, 129, generator=generator) ** 3 * vocabulary).long()
        gradients.append(model.reduced(tokens[:, :-1], tokens[:, 1:]))
    numel = sum(parameter.numel() for parameter in model.parameters)
    print(f"\noptimizer steps of {numel:,} parameters; bytes a parameter beside the gradient\n")
    print(f"{'':14}{'':20}{'step ms':>9}{'/ plain':>9}{'settled':>12}{'applied':>12}{'peak':>12}")
    found = {name: cost(name, factory, gradients, args) for name, factory in OPTIMIZERS.items()}
    print(
        "(CPU time of one thread; settled: held between steps; applied: after a step, before it\n"
        "is settled, the step before still asked for; peak: with what is held for a moment)\n"
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="a small sample: no figures to quote")
    args = parser.parse_args()
    if args.quick:
        args.steps, args.rounds = 12, 2
    instruction_set.prepare_script()  # oneDNN looks at its first product
    torch.set_num_threads(1)
    exact, cost_of = exactness(args.steps), costs(args)
    trust, adamw = "on trust", cost_of["AdamW"]
    figures = {
        "residual_share": min(found["residual_share"] for found in exact.values()),
        "same_sha256": all(found["same_sha256"] for found in exact.values()),
        "plain_share": {name: found["exact_share"] for name, found in exact.items()},
        "plain_drift": {name: found["plain_drift"] for name, found in exact.items()},
        "keep_old_bytes": adamw[f"keep-old, {trust}"]["bytes_applied"],
        "undo_bytes": adamw[f"undo, {trust}"]["bytes_applied"],
        "keep_old_bytes_settled": adamw[f"keep-old, {trust}"]["bytes_settled"],
        "undo_bytes_settled": adamw[f"undo, {trust}"]["bytes_settled"],
        "step_ratio": {
            name: {way: found[way]["step_ratio"] for way in WAYS[1:]}
            for name, found in cost_of.items()
        },
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
