"""A run to be simulated: its shape and settings, and what happens to it. Data with a text form.

One line each, a word in front. Times are virtual seconds; faults of the kind that real runs have
are written as for ``--fault``.
"""

from dataclasses import dataclass
from typing import Any

from holdfast.config import RunConfig, config_from, parse_assignment, set_value
from holdfast.errors import ConfigError
from holdfast.protocol.records import VerdictRow
from holdfast.schedule.operation import Kind, Shape
from holdfast.simulator.costs.measured_times import MeasuredTimes
from holdfast.simulator.messages.reference import CLIPPED, SKIPPED

_VERDICTS = {"clip": CLIPPED, "skip": SKIPPED}
DEED_WORDS = {  # how many words each is followed by
    "kill": 1,  # a worker
    "stop": 2,  # a worker's process, for so many seconds
    "hang-up": 1,  # a worker's control connection
    "dies": 1,  # a machine: its connections close
    "power": 1,  # a machine goes without a word
    "comes": 1,  # a machine, for the first time or again
    "drain": 1,  # a machine
    "cut": 3,  # two machines from each other, for so many seconds
    "full": 1,  # the disk, for so many seconds
    "crash": 1,  # the coordinator; another one takes over after so many seconds
    "pause": 2,  # the coordinator, for so many seconds; another one takes over after so many
    "interrupt": 0,
}


@dataclass(frozen=True, slots=True)
class Deed:
    """``at``: seconds, or with ``of_stimuli`` the number of a stimulus of the coordinator."""

    at: float
    what: str
    words: tuple[str, ...] = ()
    of_stimuli: bool = False

    def __str__(self) -> str:
        at = f"#{int(self.at)}" if self.of_stimuli else f"{self.at:g}"
        return " ".join([at, self.what, *self.words])

    @classmethod
    def parse(cls, text: str) -> "Deed":
        at, what, *words = [*text.split(), "", ""][: max(2, len(text.split()))]
        if DEED_WORDS.get(what) != len(words):
            raise ConfigError(f"{text!r}: expected a time, and one of {', '.join(DEED_WORDS)}")
        try:
            return cls(float(at.removeprefix("#")), what, tuple(words), at.startswith("#"))
        except ValueError:
            raise ConfigError(f"{text!r}: {at!r} is no time") from None


@dataclass(frozen=True, slots=True)
class OperationCosts:
    """Seconds on a worker that is not slow."""

    forward_s: float = 0.05
    backward_s: float = 0.05
    weight_s: float = 0.04
    reduce_s: float = 0.0
    link_s: float = 0.002
    spread: float = 0.1  # how much they vary

    def of(self, kind: Kind) -> float:
        match kind:
            case Kind.F:
                return self.forward_s
            case Kind.B:
                return self.backward_s
            case Kind.W:
                return self.weight_s
            case Kind.BW:
                return self.backward_s + self.weight_s
        return self.reduce_s


@dataclass(frozen=True)
class Scenario:
    """``machines``: the slots of each; empty: one machine that has room for all. ``measured``: what
    everything takes, instead of ``costs`` and times that are drawn; not in the text form."""

    seed: str
    shape: Shape
    steps: int
    settings: tuple[str, ...] = ()
    machines: tuple[int, ...] = ()
    home: str = "m0"  # the coordinator's machine; another name than theirs: one of its own
    bad: tuple[tuple[int, str], ...] = ()  # step, and clip or skip
    faults: tuple[str, ...] = ()
    deeds: tuple[Deed, ...] = ()
    refined_s: float = -1.0
    costs: OperationCosts = OperationCosts()
    measured: MeasuredTimes | None = None

    def config(self) -> RunConfig:
        shape = self.shape
        values: dict[str, Any] = {
            "parallel": {
                "pipelines": shape.pipelines,
                "stages": shape.stages,
                "microbatches": shape.microbatches,
            },
            "train": {"steps": self.steps},
        }
        if self.machines:
            values["machines"] = {"count": len(self.machines)}
        for text in self.settings:
            set_value(values, *parse_assignment(text))
        return config_from(values)

    def verdicts(self) -> dict[int, VerdictRow]:
        return {step: _VERDICTS[what] for step, what in self.bad}

    def __str__(self) -> str:
        shape, costs = self.shape, self.costs
        lines = [
            f"seed {self.seed}",
            f"shape {shape.pipelines}x{shape.stages} {shape.microbatches}",
            f"steps {self.steps}",
            f"costs {costs.forward_s:g} {costs.backward_s:g} {costs.weight_s:g} "
            f"{costs.reduce_s:g} {costs.link_s:g} {costs.spread:g}",
            *(f"set {text}" for text in self.settings),
            *([f"machines {' '.join(map(str, self.machines))}"] if self.machines else []),
            *([f"home {self.home}"] if self.home != "m0" else []),
            *(f"bad {step} {what}" for step, what in self.bad),
            *([f"refined {self.refined_s:g}"] if self.refined_s >= 0 else []),
            *(f"fault {text}" for text in self.faults),
            *(f"deed {deed}" for deed in self.deeds),
        ]
        return "\n".join(lines) + "\n"


def parse_scenario(text: str) -> Scenario:
    """ConfigError: it is none."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        word, _, rest = line.strip().partition(" ")
        if word and not word.startswith("#"):
            found.setdefault(word, []).append(rest.strip())
    try:
        [seed], [shape], [steps], [costs] = (found[w] for w in ("seed", "shape", "steps", "costs"))
        layout, microbatches = shape.split()
        pipelines, stages = map(int, layout.split("x"))
        bad = (line.split() for line in found.get("bad", ()))
        return Scenario(
            seed=seed,
            shape=Shape(pipelines, stages, int(microbatches)),
            steps=int(steps),
            settings=tuple(found.get("set", ())),
            machines=tuple(map(int, " ".join(found.get("machines", ())).split())),
            home=found.get("home", ["m0"])[0],
            bad=tuple((int(step), what) for step, what in bad),
            faults=tuple(found.get("fault", ())),
            deeds=tuple(map(Deed.parse, found.get("deed", ()))),
            refined_s=float(found.get("refined", ["-1"])[0]),
            costs=OperationCosts(*map(float, costs.split())),
        )
    except (KeyError, ValueError) as why:
        raise ConfigError(
            f"not a world to be simulated ({why}); expected lines as in tests/worlds"
        ) from why
