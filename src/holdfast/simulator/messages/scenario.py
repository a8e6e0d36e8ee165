"""A run to be simulated: its shape and settings, and what happens to it. Data with a text form.

One line each, a word in front. Times are virtual seconds; faults of the kind that real runs have
are written as for ``--fault``.
"""

import re
from collections.abc import Callable
from dataclasses import astuple, dataclass, fields
from typing import Any

from holdfast.cluster import parse_worker
from holdfast.config import RunConfig, config_from, parse_assignment, set_value
from holdfast.control import effects
from holdfast.errors import ConfigError
from holdfast.faults.fault import parse_fault
from holdfast.observability import events
from holdfast.protocol import messages
from holdfast.protocol.records import VerdictRow
from holdfast.schedule.operation import Kind, Shape
from holdfast.simulator.costs.measured_times import RecordedTimes
from holdfast.simulator.messages.reference import CLIPPED, SKIPPED

MOST_SECONDS = 1e6
_VERDICTS = {"clip": CLIPPED, "skip": SKIPPED}
DEED_WORDS = {  # what each is followed by
    "kill": ("worker",),
    "stop": ("worker", "seconds"),  # its process, for so long
    "hang-up": ("worker",),  # its control connection breaks
    "dies": ("machine",),  # its connections close
    "power": ("machine",),  # it goes without a word
    "comes": ("machine",),  # for the first time or again
    "drain": ("machine",),
    "cut": ("machine", "machine", "seconds"),  # from each other, for so long
    "full": ("seconds",),  # the disk
    "crash": ("seconds",),  # the coordinator; another one takes over after so long
    "pause": ("seconds", "seconds"),  # the coordinator; another one takes over after so long
    "interrupt": (),
}
_NOTED = {"commit", "ended", *vars(effects), *vars(events), *vars(messages)}
_WHEN = re.compile(
    r"(?:#(?P<stimulus>\d+)"
    r"|(?P<upon>(?P<name>[A-Za-z]+)(?::\d+\.\d+)?)\.(?P<count>[1-9]\d*)\+)?(?P<s>.*)"
)


@dataclass(frozen=True, slots=True)
class Deed:
    """``at``: virtual seconds; with ``upon`` since the ``count``-th event, message or effect of
    this name, as ``Halt``, or of one worker, as ``Halt:1.0``; with ``of_stimuli`` the number of a
    stimulus of the coordinator."""

    at: float
    what: str
    words: tuple[str, ...] = ()
    of_stimuli: bool = False
    upon: str = ""
    count: int = 0

    def __str__(self) -> str:
        since = f"{self.upon}.{self.count}+" if self.upon else ""
        at = f"#{int(self.at)}" if self.of_stimuli else f"{since}{self.at:g}"
        return " ".join([at, self.what, *self.words])

    @classmethod
    def parse(cls, text: str) -> "Deed":
        """ConfigError: there is no such deed."""
        when, what, *words = [*text.split(), "", ""][: max(2, len(text.split()))]
        expected = DEED_WORDS.get(what)
        if expected is None:
            raise ConfigError(f"{what!r} is no deed; expected one of {', '.join(DEED_WORDS)}")
        if len(words) != len(expected):
            form = " ".join([what, *(f"<{kind}>" for kind in expected)])
            raise ConfigError(f"{' '.join([what, *words])!r}: expected {form!r}")
        for kind, word in zip(expected, words, strict=True):
            _check_word(kind, word)
        return cls._at(when, what, tuple(words))

    @classmethod
    def _at(cls, when: str, what: str, words: tuple[str, ...]) -> "Deed":
        found = _WHEN.fullmatch(when)
        assert found is not None
        if found["stimulus"] and not found["s"]:
            if what != "crash":
                raise ConfigError(f"{when} {what}: only a crash is at a stimulus")
            return cls(float(found["stimulus"]), what, words, of_stimuli=True)
        seconds, upon = _seconds(found["s"]), found["upon"] or ""
        if upon and found["name"] not in _NOTED:
            raise ConfigError(f"{when!r}: there is no event, message or effect {found['name']!r}")
        if seconds is None:
            raise ConfigError(
                f"{when!r} is no time; expected seconds, #STIMULUS or NAME[:WORKER].COUNT+SECONDS"
            )
        return cls(seconds, what, words, upon=upon, count=int(found["count"] or 0))


def _seconds(text: str) -> float | None:
    try:
        found = float(text)
    except ValueError:
        return None
    return found if 0 <= found < MOST_SECONDS else None


def _check_word(kind: str, word: str) -> None:
    if kind == "worker":
        try:
            parse_worker(word)
        except ValueError as why:
            raise ConfigError(str(why)) from None
    elif kind == "seconds" and _seconds(word) is None:
        raise ConfigError(f"{word!r}: expected seconds, from 0 to {MOST_SECONDS:g}")


@dataclass(frozen=True, slots=True)
class OperationCosts:
    """Seconds on a worker that is not slow."""

    forward_s: float = 0.05
    backward_s: float = 0.05
    weight_s: float = 0.04
    reduce_s: float = 0.0
    link_s: float = 0.002
    spread: float = 0.1  # how much they vary
    copy_s: float = 0.02  # a state, to somebody who joins; each update after it: a twentieth
    slow_words: float = 0.02  # so large a part of all words takes thirty times as long

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
    measured: RecordedTimes | None = None

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

    @property
    def machine_names(self) -> list[str]:
        return [f"m{number}" for number in range(len(self.machines))]

    def verdicts(self) -> dict[int, VerdictRow]:
        return {step: _VERDICTS[what] for step, what in self.bad}

    def __str__(self) -> str:
        shape, costs = self.shape, self.costs
        lines = [
            f"seed {self.seed}",
            f"shape {shape.pipelines}x{shape.stages} {shape.microbatches}",
            f"steps {self.steps}",
            " ".join(["costs", *(f"{number:g}" for number in astuple(costs))]),
            *(f"set {text}" for text in self.settings),
            *([f"machines {' '.join(map(str, self.machines))}"] if self.machines else []),
            *([f"home {self.home}"] if self.home != "m0" else []),
            *(f"bad {step} {what}" for step, what in self.bad),
            *([f"refined {self.refined_s:g}"] if self.refined_s >= 0 else []),
            *(f"fault {text}" for text in self.faults),
            *(f"deed {deed}" for deed in self.deeds),
        ]
        return "\n".join(lines) + "\n"


def _shape(text: str) -> Shape:
    layout, microbatches = text.split()
    pipelines, stages = map(int, layout.split("x"))
    return Shape(pipelines, stages, int(microbatches))


def _costs(text: str) -> OperationCosts:
    numbers = [number for word in text.split() if (number := _seconds(word)) is not None]
    if len(numbers) != len(text.split()) or not 6 <= len(numbers) <= len(fields(OperationCosts)):
        raise ValueError
    return OperationCosts(*numbers)


def _bad(text: str) -> tuple[int, str]:
    step, what = text.split()
    _VERDICTS[what]
    return int(step), what


def _setting(text: str) -> str:
    set_value({}, *parse_assignment(text))
    return text


def _fault(text: str) -> str:
    parse_fault(text)
    return text


def _steps(text: str) -> int:
    return _at_least_one(int(text))


def _slots(text: str) -> tuple[int, ...]:
    return tuple(_at_least_one(int(word)) for word in text.split())


def _at_least_one(number: int) -> int:
    if number < 1:
        raise ValueError
    return number


_ONCE: dict[str, tuple[Callable[[str], Any], str]] = {  # how it is read, and its form
    "seed": (str, "a word"),
    "shape": (_shape, "PIPELINESxSTAGES MICROBATCHES"),
    "steps": (_steps, "a number, at least 1"),
    "costs": (_costs, "6 to 8 numbers: seconds of F, B, W, R and a word, ..."),
    "machines": (_slots, "the slots of each machine, at least 1"),
    "home": (str, "a machine's name"),
    "refined": (float, "seconds"),
}
_OFTEN: dict[str, tuple[Callable[[str], Any], str]] = {
    "set": (_setting, "section.field=value"),
    "bad": (_bad, "a step, and clip or skip"),
    "fault": (_fault, "as for the fault of a run"),
    "deed": (Deed.parse, "a time and what happens"),
}


def parse_scenario(text: str) -> Scenario:
    """ConfigError: it is none, and in which line."""
    once, often = dict[str, Any](), {word: list[Any]() for word in _OFTEN}
    for number, line in enumerate(text.splitlines(), 1):
        word, _, rest = line.strip().partition(" ")
        if not word or word.startswith("#"):
            continue
        found = _read(number, word, rest.strip())
        if word in often:
            often[word].append(found)
        elif word in once:
            raise ConfigError(f"line {number}: a second {word!r}; expected one")
        else:
            once[word] = found
    if missing := [word for word in ("seed", "shape", "steps", "costs") if word not in once]:
        raise ConfigError(f"not a world: it has no line {missing[0]!r}; see tests/worlds")
    found = Scenario(
        seed=once["seed"],
        shape=once["shape"],
        steps=once["steps"],
        settings=tuple(often["set"]),
        machines=once.get("machines", ()),
        home=once.get("home", "m0"),
        bad=tuple(often["bad"]),
        faults=tuple(often["fault"]),
        deeds=tuple(often["deed"]),
        refined_s=once.get("refined", -1.0),
        costs=once["costs"],
    )
    _check_names(found)
    return found


def _check_names(world: Scenario) -> None:
    shape, machines = world.shape, {world.home, "m0", *world.machine_names}
    faults = [(text, parse_fault(text)) for text in world.faults]
    named = [(text, w) for text, fault in faults for w in (fault.worker, fault.peer) if w]
    for deed in world.deeds:
        for kind, word in zip(DEED_WORDS[deed.what], deed.words, strict=True):
            if kind == "worker":
                named.append((str(deed), parse_worker(word)))
            elif kind == "machine" and word not in machines and deed.what != "comes":
                names = ", ".join(sorted(machines))
                raise ConfigError(f"deed {deed}: there is no machine {word!r}; expected {names}")
    for text, worker in named:
        if worker.pipeline >= shape.pipelines or worker.stage >= shape.stages:
            layout = f"{shape.pipelines}x{shape.stages}"
            raise ConfigError(f"{text!r}: there is no worker {worker} in {layout}")


def _read(number: int, word: str, rest: str) -> Any:
    known = _ONCE.get(word) or _OFTEN.get(word)
    if known is None:
        words = ", ".join([*_ONCE, *_OFTEN])
        raise ConfigError(f"line {number}: {word!r} is no word of a world; expected {words}")
    read, form = known
    try:
        return read(rest)
    except ConfigError as why:
        raise ConfigError(f"line {number}: {why}") from why
    except (KeyError, ValueError) as why:
        raise ConfigError(f"line {number}: {word} {rest!r}: expected {form}") from why
