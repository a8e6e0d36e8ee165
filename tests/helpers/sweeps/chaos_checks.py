"""What must be true of a run in which workers died: the result, and the work it took.

Looks at what the run left behind and at the operations that were counted, never at its insides.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from helpers import runs
from helpers.sweeps.chaos import Ran, Story
from holdfast.cluster import parse_worker
from holdfast.faults.fault import parse_fault
from holdfast.observability.events import (
    FaultFired,
    Recovered,
    WorkerJoined,
    WorkerLost,
    WorkerMoved,
    WorkerStep,
)
from holdfast.schedule.operation import Kind, Op, parse_op

Key = tuple[int, int, Op]
"""step, attempt, operation; a fused one counts as its two parts"""


def assert_ended_well(story: Story) -> None:
    assert not story.stacks, f"hung:\n{story}"
    assert (story.outcome.exit_code, story.outcome.stderr) == (0, ""), str(story)
    assert story.outcome.summary["outcome"] == "finished", str(story)


def assert_same(story: Story, undisturbed: runs.Outcome) -> None:
    assert_ended_well(story)
    assert story.outcome.sha256 == undisturbed.sha256, str(story)
    assert story.outcome.losses == undisturbed.losses, f"{undisturbed.losses}\n{story}"


def assert_fired(story: Story, faults: Iterable[str] | None = None) -> None:
    wanted = story.faults if faults is None else [str(parse_fault(fault)) for fault in faults]
    assert sorted(story.fired) == sorted(wanted), str(story)
    lost = {event.worker for event in story.outcome.events if isinstance(event, WorkerLost)}
    killed = {str(parse_fault(f).worker) for f in wanted if not f.startswith(("join", "slow"))}
    assert killed <= lost, str(story)


def assert_went_back_only_for_a_lost_stage(story: Story) -> None:
    """Then surely, unless a joiner that had its copy entered in the same change. Whoever changes
    sides holds nothing on the way: that may lose a stage too."""
    assert story.went_back or not _stage_was_lost(story, after_changes=True), str(story)
    assert _stage_was_lost(story, movers(story)) or not story.went_back, str(story)


def movers(story: Story) -> set[str]:
    """Whoever has left a stage for another one, or was about to."""
    return {
        worker
        for event in story.outcome.events
        if isinstance(event, Recovered) and "move" in event.cause
        for worker in event.workers
    }


def _stage_was_lost(
    story: Story, on_the_way: Iterable[str] = (), *, after_changes: bool = False
) -> bool:
    """Whether at some time, or after some change, nobody held some stage, from what happened to
    whom."""
    staying = set(story.layout.workers) - set(on_the_way)
    holds = {worker: parse_worker(worker).stage for worker in staying}
    for event in story.outcome.events:
        match event:
            case FaultFired() if event.fault.startswith(("kill", "hang")):
                holds.pop(event.worker, None)
            case WorkerJoined():
                holds[event.worker] = event.stage
            case WorkerMoved():
                holds[event.worker] = event.to_stage
        is_looked_at = isinstance(event, Recovered) or not after_changes
        if is_looked_at and set(holds.values()) != set(range(story.layout.stages)):
            return True
    return False


def parts(op: Op) -> list[Op]:
    if op.kind is not Kind.BW:
        return [op]
    return [Op(op.stage, kind, op.microbatch) for kind in (Kind.B, Kind.W)]


def who_ran(ran: Iterable[Ran]) -> Mapping[Key, list[str]]:
    """All who have computed an operation, in order."""
    found: dict[Key, list[str]] = defaultdict(list)
    for one in ran:
        for part in parts(one.op):
            found[one.step, one.attempt, part].append(one.worker)
    return found


def assert_only_lost_work_is_redone(story: Story, victim: str) -> None:
    """Each operation once, but those that the victim had finished at most once more.

    A worker that changes sides gets no more work first: nothing of its is done again.
    """
    who_of = who_ran(story.ran)
    again = {key: who for key, who in who_of.items() if len(who) > 1}
    for key, who in again.items():
        assert len(who) == 2, f"{key} was run by {who}\n{story}"
        assert who[0] == victim, f"{key} was run by {who}\n{story}"
        assert who[1] not in (who[0], victim), f"{key} was run by {who}\n{story}"
    counted = sum(recovery["redone"] for recovery in story.outcome.summary["recoveries"])
    most = len(again) + num_void_in_the_end(story, victim, who_of)
    what = f"{counted} counted, {sorted(map(str, again))} ran, at most {most}\n{story}"
    assert len(again) <= counted <= most, what


def assert_neighbours_run_nothing_again(story: Story, victims: Iterable[str]) -> None:
    """Only operations of the lost stage are run twice, and a replay of it is seen."""
    stages = {parse_worker(victim).stage for victim in victims}
    for key, who in who_ran(story.ran).items():
        assert len(who) == 1 or key[2].stage in stages, f"{key} was run by {who}\n{story}"
    assert not any(one.is_again for one in story.ran), str(story)
    rebuilt = {stage for one in story.outcome.summary["rebuilt"] for stage in one["stages"]}
    assert rebuilt == stages, str(story)


def num_void_in_the_end(story: Story, victim: str, who_of: Mapping[Key, list[str]]) -> int:
    """What the victim did in an attempt that was given up, though no plan could know that.

    It was to be done again when the plan was made; then the step before was clipped.
    """
    planned_s = max((e.plan_s for e in story.outcome.events if isinstance(e, Recovered)), default=0)
    known = {
        event.step + 1
        for event in story.outcome.events
        if isinstance(event, WorkerStep) and event.at_s < planned_s
    }
    last = {step: attempt for step, attempt, _ in sorted(who_of, key=lambda key: key[:2])}
    return sum(
        victim in who and attempt < last[step] and step not in known and len(who) == 1
        for (step, attempt, _), who in who_of.items()
    )


def assert_events_tell_what_ran(story: Story, victim: str) -> None:
    """The operations of survivors in the events are those that were counted.

    A worker that changes sides does not report the step that it leaves.
    """
    for worker in set(story.layout.workers) - {victim, *movers(story)}:
        told = sorted(
            (event.step, text)
            for event in story.outcome.events
            if isinstance(event, WorkerStep) and event.worker == worker
            for text, _, _ in event.ops
            if parse_op(text).microbatch is not None
        )
        ran = sorted(
            (one.step, str(one.op))
            for one in story.ran
            if one.worker == worker and not one.is_again
        )
        assert told == ran, f"worker {worker}\n{story}"
