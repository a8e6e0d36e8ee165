"""Messages that a worker may say, with any content: mostly of the right types, some not."""

import json
import random
import types
import typing
from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from holdfast.protocol import codec, messages

# Without those by which a worker ends the run on purpose: Failed and JobFailed.
KINDS: tuple[type, ...] = (
    messages.CheckpointPart,
    messages.Copied,
    messages.FaultReport,
    messages.Finished,
    messages.Heartbeat,
    messages.LayerCosts,
    messages.LogState,
    messages.LogVolume,
    messages.Offered,
    messages.PartFailed,
    messages.PeerGone,
    messages.Probed,
    messages.Ready,
    messages.Replayed,
    messages.ReplayFailed,
    messages.Resumed,
    messages.StateHashes,
    messages.StepReport,
    messages.Inventory,
    messages.WorkerWarning,
)
ILL = [None, True, -1, 1 << 70, 10**400, float("nan"), "x", "../x", "\ud800", [], [["x"]], {"x": 1}]
TEXTS = ["0.0", "1.1", "9.9", "0F0", "1R", "7F99", "5a" * 16, "5a" * 32, "0", "77", "stage-0", "F"]
CHOICES: dict[Any, list[Any]] = {
    int: [0, 0, 1, 1, 2, 3, 7, 255, 9999, 1 << 31, 1 << 53],
    float: [0.0, 0.5, 1.5, 1e9, 1e300, float("nan"), float("-inf")],
    bool: [True, False],
    str: TEXTS,
    type(None): [None],
}


@dataclass
class AnyWords:
    """``said``: how many of which kind, to show that all were tried."""

    seed: int
    ill: float = 0.2  # how often a field is of a wrong type
    said: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._dice = random.Random(self.seed)

    def message(self, worker: str, epoch: int) -> bytes:
        kind = self._dice.choice(KINDS)
        self.said[kind.__name__] += 1
        hints = get_type_hints(kind, include_extras=True)
        values = {name: self._value(hint) for name, hint in hints.items()}
        if "epoch" in values and self._dice.random() < 0.8:  # else hardly any would count
            values["epoch"] = epoch
        if self._dice.random() < self.ill:
            values[self._dice.choice(sorted(values))] = self._dice.choice(ILL)
        if kind is messages.PeerGone:
            values["lost"] = "9.9"  # two that name nobody end the run, as they should
        if kind is messages.StepReport:
            values["losses"] = []  # replicas that differ end it too
        whole = {"v": codec.VERSION, "kind": kind.__name__, **values, "worker": worker}
        return json.dumps(whole).encode()

    def _value(self, hint: Any) -> Any:
        dice, origin, inner = self._dice, get_origin(hint), get_args(hint)
        if origin is Annotated:
            tries = [dice.choice(CHOICES[inner[0]]) for _ in range(20)]
            return next((one for one in tries if all(c.fits(one) for c in inner[1:])), tries[0])
        if origin is list:
            return [self._value(inner[0]) for _ in range(dice.randrange(4))]
        if origin is dict:
            keys = [str(self._value(inner[0])) for _ in range(dice.randrange(4))]
            return {key: self._value(inner[1]) for key in keys}
        if origin in (types.UnionType, typing.Union):
            return self._value(dice.choice(inner))
        if origin is typing.Literal:
            return dice.choice(inner)
        if hasattr(hint, "_fields"):
            hints = get_type_hints(hint, include_extras=True)
            return [self._value(hints[name]) for name in hint._fields]
        return dice.choice(CHOICES[hint])
