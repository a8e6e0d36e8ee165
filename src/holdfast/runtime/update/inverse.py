"""The inverse of an optimizer's step, element by element: what was there before, up to rounding.

Follows torch.optim's order of operations, so that most elements come back exactly; the rest is
for a residual to correct. What cannot be estimated is given as 0, never as NaN. Importing compiles
the kernels (or loads them from Numba's cache). Knows nothing of steps, stages or gradients' origin.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.optim import SGD, Adam, AdamW, Optimizer

from holdfast.errors import ConfigError
from holdfast.runtime.update.residual import Floats, compiled

_LARGEST = float(np.finfo(np.float32).max)
_CURE = "set recovery.consistency=keep-old"
_BUFFER, _FIRST, _SECOND = "momentum_buffer", "exp_avg", "exp_avg_sq"


def check_undoable(optimizer: Optimizer) -> None:
    """Refuse what has no inverse, or whose arithmetic is not known here."""
    kind = type(optimizer)
    if kind not in (SGD, Adam, AdamW):
        _refuse(kind, "is none of torch.optim.SGD, Adam and AdamW")
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        _refuse(kind, "has step hooks, which undo would call several times a step")
    for group in optimizer.param_groups:
        for what, is_so in _obstacles(group).items():
            if is_so:
                _refuse(kind, what)


def _obstacles(group: Mapping[str, Any]) -> dict[str, bool]:
    kinds = {str(p.dtype) for p in group["params"] if p.dtype != torch.float32}
    betas = [float(beta) for beta in group.get("betas", ())]
    lr, decay = float(group["lr"]), float(group["weight_decay"])
    return {
        "has amsgrad=True, and a running maximum forgets what was there": bool(
            group.get("amsgrad", False)
        ),
        f"has betas={betas}, and one of 0 forgets what was there": 0.0 in betas,
        f"has lr={lr:g} and weight_decay={decay:g}, whose product of 1 forgets the parameters": (
            _shrinks(group) and lr * decay == 1.0
        ),
        "is differentiable=True, which has another arithmetic": bool(group["differentiable"]),
        f"has parameters of {', '.join(sorted(kinds))}: expected torch.float32": bool(kinds),
    }


def _shrinks(group: Mapping[str, Any]) -> bool:
    """Whether weight decay multiplies the parameter, so that the inverse must divide."""
    if "momentum" in group:
        return group["momentum"] == 0 or bool(group["nesterov"])
    return bool(group["decoupled_weight_decay"])


def _refuse(kind: type, what: str) -> None:
    raise ConfigError(f"recovery.consistency=undo: Job.optimizer {kind.__name__} {what}; {_CURE}")


@dataclass(frozen=True, slots=True)
class SgdInverse:
    """Numbers of one parameter's step, as fp32 holds them."""

    names = (_BUFFER,)

    lr: float
    sign: float
    decay: float
    momentum: float
    share: float
    nesterov: bool

    def parameter(self, new: Floats, gradient: Floats, state: Mapping[str, Floats]) -> Floats:
        """Estimate the parameter before the step, from what is there after it."""
        buffer, out = state.get(_BUFFER, gradient), np.empty_like(new)
        with_gradient = self.momentum == 0 or self.nesterov
        of_gradient = self.sign * self.lr if with_gradient else 0.0
        of_buffer = self.lr * (self.momentum if self.nesterov else float(self.momentum != 0))
        kept = 1 - self.lr * self.decay if with_gradient else 1.0
        _sum(out, new, gradient, of_gradient, buffer, of_buffer, _reciprocal(kept))
        return out

    def state(self, name: str, new: Floats, gradient: Floats, before: Floats) -> Floats:
        """Estimate a tensor of the state; ``before``: the parameter before the step, exactly."""
        out, kept = np.empty_like(new), _reciprocal(self.momentum)
        _average(out, new, gradient, self.sign, before, self.decay, self.share, kept, False)
        return out


@dataclass(frozen=True, slots=True)
class AdamInverse:
    """Numbers of one parameter's step, as fp32 holds them."""

    names = (_FIRST, _SECOND)

    size: float
    root: float
    epsilon: float
    sign: float
    decay: float  # added to the gradient
    kept: float  # share of the parameter that decoupled weight decay leaves
    shares: tuple[float, float]  # of the gradient in the averages
    second_kept: float

    def parameter(self, new: Floats, gradient: Floats, state: Mapping[str, Floats]) -> Floats:
        """Estimate the parameter before the step, from what is there after it."""
        out, kept = np.empty_like(new), _reciprocal(self.kept)
        first, second = state[_FIRST], state[_SECOND]
        _ratio(out, new, first, second, self.size, self.root, self.epsilon, kept)
        return out

    def state(self, name: str, new: Floats, gradient: Floats, before: Floats) -> Floats:
        """Estimate a tensor of the state; ``before``: the parameter before the step, exactly."""
        out, (first, second) = np.empty_like(new), self.shares
        given = (out, new, gradient, self.sign, before, self.decay)
        if name == _FIRST:
            _average(*given, first, _reciprocal(1 - first), False)
        else:
            _average(*given, second, _reciprocal(self.second_kept), True)
        return out


Inverse = SgdInverse | AdamInverse


def inverse_of(group: Mapping[str, Any], state: Mapping[str, Any]) -> Inverse:
    """Of the step that has just been made; ``state``: of one parameter, after it."""
    lr, decay = float(group["lr"]), float(group["weight_decay"])
    sign = -1.0 if group["maximize"] else 1.0
    if "momentum" in group:
        return SgdInverse(
            lr=_rounded(lr),
            sign=sign,
            decay=_rounded(decay),
            momentum=_rounded(group["momentum"]),
            share=_rounded(1 - group["dampening"]),
            nesterov=group["nesterov"],
        )
    (beta1, beta2), count = map(float, group["betas"]), float(state["step"])
    decoupled = group["decoupled_weight_decay"]
    return AdamInverse(
        size=_rounded(lr / (1 - beta1**count)),
        root=_rounded(math.sqrt(1 - beta2**count)),
        epsilon=_rounded(group["eps"]),
        sign=sign,
        decay=0.0 if decoupled else _rounded(decay),
        kept=_rounded(1 - lr * decay) if decoupled else 1.0,
        shares=(_rounded(1 - beta1), _rounded(1 - beta2)),
        second_kept=_rounded(beta2),
    )


def _rounded(value: float) -> float:
    """torch's kernels take their numbers as fp32."""
    return float(np.float32(value))


def _reciprocal(value: float) -> float:
    """Nothing can be estimated where it would divide by 0: infinity, which becomes 0."""
    return 1.0 / value if value else math.inf


@compiled("float32(float64)")
def _finite(value: float) -> np.float32:
    return np.float32(value if abs(value) <= _LARGEST else 0.0)


@compiled("void(float32[::1], float32[::1], float32[::1], float64, float32[::1], float64, float64)")
def _sum(
    out: Floats, new: Floats, a: Floats, of_a: float, b: Floats, of_b: float, factor: float
) -> None:
    for i in range(out.size):
        total = np.float64(new[i]) + of_a * np.float64(a[i]) + of_b * np.float64(b[i])
        out[i] = _finite(total * factor)


@compiled(
    "void(float32[::1], float32[::1], float32[::1], float64, float32[::1], float64, float64, "
    "float64, boolean)"
)
def _average(
    out: Floats,
    new: Floats,
    gradient: Floats,
    sign: float,
    before: Floats,
    decay: float,
    share: float,
    factor: float,
    squared: bool,
) -> None:
    """``new`` is a share of the decayed gradient and 1 / factor of what was there before.

    ``squared``: of its square; rounding must not make one negative, nor a zero negative zero.
    """
    for i in range(out.size):
        decayed = np.float64(
            np.float32(sign * np.float64(gradient[i]) + decay * np.float64(before[i]))
        )
        added = share * decayed * decayed if squared else share * decayed
        value = (np.float64(new[i]) - added) * factor
        out[i] = _finite(value if value > 0.0 or not squared else 0.0)


@compiled(
    "void(float32[::1], float32[::1], float32[::1], float32[::1], float32, float32, float32, "
    "float64)"
)
def _ratio(
    out: Floats,
    new: Floats,
    first: Floats,
    second: Floats,
    size: float,
    root: float,
    epsilon: float,
    factor: float,
) -> None:
    """In fp32 and in torch's order: the same update, added instead of subtracted."""
    for i in range(out.size):
        update = size * first[i] / (np.sqrt(second[i]) / root + epsilon)
        out[i] = _finite(np.float64(np.float32(new[i] + update)) * factor)
