"""Whether a run may have ended as it did, and lost whom it has lost."""

import re

from holdfast.config import RunConfig
from holdfast.errors import HoldfastError
from holdfast.faults.fault import parse_fault
from holdfast.simulator.messages.scenario import Scenario

# Mistakes of the coordinator, whatever has happened.
_NEVER = re.compile(
    r"the coordinator failed|differs between|diverged|unexpected \w+ while|no rule for|"
    r"cannot be acted on|nobody has it and nobody's lane"
)
_DEADLY = {"kill", "hang", "stop", "hang-up", "dies", "power", "cut", "drain", "crash", "pause"}
_MUTE = {"hang", "stop", "power", "cut", "pause"}
# How a run may end only if something of this kind has happened.
_ONLY_AFTER = (
    (re.compile(r"interrupted"), {"interrupt"}),
    (re.compile(r"waited in vain"), _MUTE),
    (re.compile(r"could not be written"), {"full"}),
    (re.compile(r"every machine is to leave"), {"drain"}),
    (re.compile(r"machines\.wait_s"), {"dies", "power", "cut", "drain"}),
    (re.compile(r"was lost|ended with|closed its connection|start_limit_s|nobody holds"), _DEADLY),
)

# A run that may start workers again three times in a row survives so many of these, if nothing else
# happens and training had begun.
_MOST_LOSSES = 2
_EARLY = re.compile(r"before training|start_limit_s reached|^worker \S+ closed")
_AWAY_S = 30.0  # longer than a coordinator is away
_LOSSES = {"kill", "hang", "stop", "hang-up", "crash"}
_HARMLESS = {"slow", "join", "comes"}


def unlawful(failure: HoldfastError, scenario: Scenario) -> str:
    """What is wrong with ending like this; empty: nothing."""
    text = str(failure)
    if _NEVER.search(text):
        return f"the run ended with: {text}"
    all_of_it = [deed.what for deed in scenario.deeds]
    all_of_it += [fault.split()[0] for fault in scenario.faults]
    if _must_go_on(all_of_it, scenario) and not _EARLY.search(text):
        return f"of all that has happened no run ends, but this one did: {text}"
    happened = set(all_of_it)
    for pattern, kinds in _ONLY_AFTER:
        if pattern.search(text):
            return "" if happened & kinds else f"for no reason the run ended with: {text}"
    return f"nobody expects a run to end with: {text}"


_OF_ONE = {"kill", "stop", "hang-up"}


def may_be_lost(scenario: Scenario, config: RunConfig) -> set[str] | None:
    """Workers to whom something happens; None: it may be anybody."""
    deeds = {deed.what for deed in scenario.deeds}
    away = config.workers.orphan_limit_s < _AWAY_S and "crash" in deeds
    if away or deeds & (_DEADLY - _OF_ONE - {"crash"}):
        return None
    faults = [parse_fault(text) for text in scenario.faults]
    named = [str(worker) for fault in faults for worker in (fault.worker, fault.peer) if worker]
    return {*named, *(deed.words[0] for deed in scenario.deeds if deed.what in _OF_ONE)}


def _must_go_on(happened: list[str], scenario: Scenario) -> bool:
    losses = [what for what in happened if what in _LOSSES]
    others = set(happened) - _LOSSES - _HARMLESS
    settings = scenario.config().workers
    may_restart = settings.restarts > _MOST_LOSSES and settings.orphan_limit_s > _AWAY_S
    return may_restart and not others and len(losses) <= _MOST_LOSSES
