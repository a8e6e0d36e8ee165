"""What a reconfiguration does when everyone has told: one pure function.

Inventories and the situation in, a decision with its reason out. Sends nothing, starts nobody, and
remembers nothing: it may be asked again whenever something has changed.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from holdfast.cluster import WorkerId
from holdfast.control.inventory.remainder import Remainders
from holdfast.errors import ScheduleError
from holdfast.protocol.messages import Inventory

MOST_STUCK = 2  # replays in which a wait ran out

Inventories = Mapping[WorkerId, Inventory]
Stages = Mapping[WorkerId, int]


@dataclass(frozen=True, slots=True)
class ProceedDecision:
    """All go on, with these members; ``remainder`` ends the half-done steps."""

    stages: Stages
    remainder: Remainders
    reason: str


@dataclass(frozen=True, slots=True)
class Rebuild:
    """Stages that nobody holds are computed again, up to a version; the others stand still."""

    stages: tuple[int, ...]
    version: int
    reason: str


@dataclass(frozen=True, slots=True)
class RestoreCopy:
    """All go back to a version that each has a copy of in memory."""

    version: int
    reason: str


@dataclass(frozen=True, slots=True)
class Rollback:
    """All go back to the last checkpoint, or to the beginning."""

    reason: str


@dataclass(frozen=True, slots=True)
class EndRun:
    """The run, which was to end early, cannot go on to a step that all could save."""

    reason: str


Decision = ProceedDecision | Rebuild | RestoreCopy | Rollback | EndRun


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What is known of the logs that a stage would be replayed from."""

    start: int  # version of the checkpoint that a replay begins with
    has_boundary: bool = True  # some boundary around every lost stage is logged
    num_stuck: int = 0  # replays so far in which a wait ran out
    reached: int | None = None  # a log ends before this step
    gap: str = ""  # why
    chosen: int | None = None  # the version since all were halted: it stays that one


@dataclass(frozen=True, slots=True)
class Situation:
    """All that counts besides the inventories. Whoever is in ``stages`` or enters has told."""

    stages: Stages  # of the members that are left
    num_stages: int
    end_step: int
    # ScheduleError: they cannot end the steps
    plan_rest: Callable[[Stages, Inventories], Remainders]
    entering: Stages  # joiners and the stages they are for
    leaving: Collection[WorkerId] = ()
    dead: tuple[tuple[WorkerId, int], ...] = ()  # and the stage each held
    free: tuple[WorkerId, ...] = ()  # names under which somebody could hold a lost stage
    log_facts: LogFacts | None = None  # None: nothing is logged
    ends_all: str = ""  # why a loss ends every worker; empty: it does not

    @property
    def lost_stages(self) -> tuple[int, ...]:
        held = set(self.stages.values())
        return tuple(stage for stage in range(self.num_stages) if stage not in held)

    def holds_all(self, stages: Stages) -> bool:
        return len(set(stages.values())) == self.num_stages


AfterLoss = Callable[[Inventories, Situation], Decision]


def go_on(inventories: Inventories, situation: Situation) -> Decision:
    """Those who are left take over; if others who come or go make that impossible, all stay."""
    wanted = members_after(inventories, situation)
    for stages, reason in (
        (wanted, "every stage has a holder"),
        (dict(situation.stages), "as they are, the members can end what is half done"),
    ):
        if not situation.holds_all(stages):
            continue
        try:
            return ProceedDecision(stages, situation.plan_rest(stages, inventories), reason)
        except ScheduleError:
            continue
    return roll_back(situation)


def decide(
    inventories: Inventories, situation: Situation, after_loss: AfterLoss = go_on
) -> Decision:
    """Everyone who is waited for has told. ``after_loss``: if every stage has a holder."""
    furthest = max((inventories[worker].reduced for worker in situation.stages), default=0)
    if furthest > situation.end_step:
        return EndRun(f"step {furthest} is finished by some, and the last is {situation.end_step}")
    if not situation.holds_all(members_after(inventories, situation)):
        return _without_a_stage(inventories, situation)
    return (after_loss if situation.dead else go_on)(inventories, situation)


def roll_back(situation: Situation, why: str = "") -> Rollback:
    """``why``, if there is a better reason than that a stage is lost."""
    # A stage also counts as lost if nobody has the old weights that its rest needs.
    [stage, *_] = [*situation.lost_stages, *(stage for _, stage in situation.dead), 0]
    lost = f"nobody has the state of stage {stage} any more"
    return Rollback(situation.ends_all or why or lost)


def members_after(inventories: Inventories, situation: Situation) -> dict[WorkerId, int]:
    """Without those who leave, with the joiners that are not too far behind."""
    stages = dict(situation.stages)
    for worker in situation.leaving:
        if list(stages.values()).count(stages[worker]) > 1:  # else others have died meanwhile
            del stages[worker]
    for worker, stage in situation.entering.items():
        holders = [other for other, held in situation.stages.items() if held == stage]
        reduced = max((inventories[holder].reduced for holder in holders), default=None)
        if reduced is None or inventories[worker].reduced >= reduced - 1:
            stages[worker] = stage
    return stages


# --- a stage that nobody holds ---


def _without_a_stage(inventories: Inventories, situation: Situation) -> Decision:
    log_facts = situation.log_facts
    if log_facts is None:
        return roll_back(situation)
    if not log_facts.has_boundary:
        return roll_back(situation, "no boundary of the lost stage is logged")
    if log_facts.num_stuck >= MOST_STUCK:
        return roll_back(situation, "the replay did not come to an end")
    version = newest_version(inventories, situation, log_facts)
    if version is None:
        none = "the others cannot go on from any version of the lost stage"
        return roll_back(situation, log_facts.gap or none)
    lost = situation.lost_stages
    return Rebuild(lost, version, f"nobody holds stage {', '.join(map(str, lost))}")


def newest_version(
    inventories: Inventories, situation: Situation, log_facts: LogFacts
) -> int | None:
    """Of the lost stages: the newest from which the members can go on; None: there is none."""
    if log_facts.chosen is not None:
        return log_facts.chosen
    return next(_versions(inventories, situation, log_facts), None)


def _versions(inventories: Inventories, situation: Situation, log_facts: LogFacts) -> Iterator[int]:
    first = log_facts.start
    settled = [step for inventory in inventories.values() for step in inventory.verdicts]
    newest = max(settled, default=first - 1) + 1
    for version in sorted({newest, max(first, newest - 1)}, reverse=True):
        too_far = log_facts.reached is not None and version > log_facts.reached
        if not too_far and version >= first and _fits(inventories, situation, version):
            yield version


def _fits(inventories: Inventories, situation: Situation, version: int) -> bool:
    """Whether the steps can be ended with the lost stages at this version."""
    hosts = dict(zip(situation.free, situation.lost_stages, strict=False))
    told = {worker: inventories[worker] for worker in situation.stages}
    told |= {worker: _has_only(worker, version) for worker in hosts}
    try:
        situation.plan_rest({**situation.stages, **hosts}, told)
    except ScheduleError:
        return False
    return True


def _has_only(worker: WorkerId, version: int) -> Inventory:
    """What a worker tells that holds a stage at ``version`` and has done nothing since."""
    return Inventory(
        worker=str(worker),
        epoch=0,
        reduced=version,
        oldest=version,
        attempt=0,
        progress={},
        kept=[],
        verdicts={},
        kept_bytes=0,
        done=0,
        saving=0,
        commits=[],
    )
