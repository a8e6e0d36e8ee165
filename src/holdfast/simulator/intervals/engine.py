"""Time passes from event to event: steps are counted, what a change costs is put down."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import floor, inf, isinf

from holdfast.baselines.policies.policy import Change, Policy, Reaction, Saving, WorkLost
from holdfast.simulator.intervals.outcome import PolicyOutcome, Segment, TimeKind
from holdfast.simulator.intervals.seating import SeatChange, seat_changes
from holdfast.simulator.worlds.world import World

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class _Part:
    """What will be done for so long, unless something happens."""

    seconds: float
    kind: TimeKind
    period_s: float = inf
    saving: Saving = field(default_factory=Saving)


@dataclass
class _Progress:
    """Steps that are done, and what would be lost if all went back to the checkpoint."""

    samples_a_step: float
    steps: float = 0.0
    saved: float = 0.0
    since_saved_s: float = 0.0  # effective seconds
    seconds: dict[TimeKind, float] = field(default_factory=lambda: dict.fromkeys(TimeKind, 0.0))
    segments: list[Segment] = field(default_factory=list)

    def spend(self, at_s: float, seconds: float, part: _Part, live: int) -> None:
        if seconds <= 0:
            return
        rate = 0.0
        if part.kind is TimeKind.EFFECTIVE:
            rate = self._train(seconds, part)
        else:
            self.seconds[part.kind] += seconds
        self.segments.append(Segment(at_s, at_s + seconds, part.kind, rate, live))

    def _train(self, seconds: float, part: _Part) -> float:
        step_s = part.period_s + part.saving.step_s()
        self.steps += seconds / step_s
        effective_s = seconds * part.period_s / step_s
        self.seconds[TimeKind.EFFECTIVE] += effective_s
        self.seconds[TimeKind.SAVING] += seconds - effective_s
        self.since_saved_s += effective_s
        every = part.saving.every_steps
        last = floor(self.steps / every + _ROUNDING) * every if every else 0
        if last > self.saved:
            self.saved = last
            self.since_saved_s = max(self.steps - last, 0.0) * part.period_s
        return self.samples_a_step / step_s

    def lose_step(self, period_s: float) -> None:
        """What was done of the step in flight is done again."""
        fraction = max(self.steps - floor(self.steps + _ROUNDING), 0.0)
        self.steps -= fraction
        self._take_back(min(fraction * period_s, self.since_saved_s), TimeKind.REDONE)

    def roll_back(self) -> None:
        self.steps = min(self.steps, self.saved)
        self._take_back(self.since_saved_s, TimeKind.ROLLED_BACK)

    def _take_back(self, seconds: float, kind: TimeKind) -> None:
        self.seconds[TimeKind.EFFECTIVE] -= seconds
        self.seconds[kind] += seconds
        self.since_saved_s -= seconds


def simulate(
    world: World,
    policy: Policy,
    *,
    boot_s: float = 60.0,
    progress: Callable[[float], None] = lambda share: None,
) -> PolicyOutcome:
    """``progress`` is told the share of the world's time that is over."""
    run = _Run(policy, world.length_s)
    for change in seat_changes(world, policy.job.num_workers, boot_s):
        run.on(change)
        progress(change.at_s / world.length_s)
    run.until(world.length_s)
    progress(1.0)
    return run.outcome()


class _Run:
    def __init__(self, policy: Policy, length_s: float) -> None:
        self._policy, self._length_s = policy, length_s
        self._done = _Progress(policy.job.samples_a_step)
        self._parts: list[_Part] = []
        self._now_s, self._live, self._rented = 0.0, 0, 0
        self._worker_s = self._live_s = 0.0
        self._period_s, self._changes = inf, 0
        self._healthy_s, self._reason = inf, ""

    def on(self, event: SeatChange) -> None:
        self.until(event.at_s)
        self._live, self._rented = event.live, event.rented
        if not self._changes:
            everyone = range(self._policy.job.num_workers)
            whole = self._policy.begin(everyone)
            self._healthy_s, self._reason = self._step_s(whole.period_s), whole.reason
            reaction = self._policy.begin(event.change.came)
        else:
            reaction = self._policy.react(event.change)
        self._changes += 1
        self._parts = list(self._planned(reaction, event.change))
        self._period_s = reaction.period_s

    def _planned(self, reaction: Reaction, change: Change) -> Iterable[_Part]:
        redo_s = self._lose(reaction, change)
        if isinf(reaction.period_s):
            yield _Part(inf, TimeKind.IDLE)
            return
        pause_s = self._pause_s(reaction, change)
        if pause_s:
            yield _Part(pause_s, TimeKind.STALLED)
        if redo_s:
            yield _Part(redo_s, TimeKind.REDONE)
        for seconds, period_s in reaction.meanwhile:
            if not isinf(period_s):
                yield self._training(seconds, period_s)
        yield self._training(inf, reaction.period_s)

    def _pause_s(self, reaction: Reaction, change: Change) -> float:
        """Who comes while all stand still is taken along, and does not make it longer."""
        stands = bool(self._parts) and self._parts[0].kind is TimeKind.STALLED
        if stands and not change.lost:
            return min(self._parts[0].seconds, reaction.pause_s)
        return reaction.pause_s

    def _training(self, seconds: float, period_s: float) -> _Part:
        return _Part(seconds, TimeKind.EFFECTIVE, period_s, self._policy.saving(period_s))

    def _lose(self, reaction: Reaction, change: Change) -> float:
        """Seconds that must be spent on work that was done once already."""
        done = self._done
        match reaction.work_lost:
            case WorkLost.SINCE_CHECKPOINT:
                done.roll_back()
            case WorkLost.STEP:
                done.lose_step(self._period_s)
            case WorkLost.OWN_SHARE if not isinf(self._period_s):
                fraction = done.steps - floor(done.steps)
                return fraction * self._period_s * len(change.lost) / max(self._live, 1)
        return reaction.replay_s * max(done.steps - done.saved, 0.0)

    def until(self, at_s: float) -> None:
        at_s = min(at_s, self._length_s)
        self._worker_s += self._rented * (at_s - self._now_s)
        self._live_s += self._live * (at_s - self._now_s)
        while self._parts and self._now_s < at_s:
            part = self._parts[0]
            seconds = min(part.seconds, at_s - self._now_s)
            self._done.spend(self._now_s, seconds, part, self._live)
            self._now_s += seconds
            if seconds >= part.seconds:
                self._parts.pop(0)
            else:
                left_s = part.seconds - seconds
                self._parts[0] = _Part(left_s, part.kind, part.period_s, part.saving)
        self._now_s = at_s

    def _step_s(self, period_s: float) -> float:
        return inf if isinf(period_s) else period_s + self._policy.saving(period_s).step_s()

    def outcome(self) -> PolicyOutcome:
        policy, done = self._policy, self._done
        samples = policy.job.samples_a_step
        return PolicyOutcome(
            policy=policy.name,
            title=policy.title,
            length_s=self._length_s,
            samples=done.steps * samples,
            seconds=done.seconds,
            segments=done.segments,
            num_changes=self._changes - 1,
            worker_s=self._worker_s,
            gpus_a_worker=policy.job.gpus_a_worker,
            fault_free_rate=samples / self._healthy_s,
            plain_rate=samples / policy.paces.plain_s,
            mean_live=self._live_s / self._length_s,
            num_workers=policy.job.num_workers,
            reason=self._reason,
        )
