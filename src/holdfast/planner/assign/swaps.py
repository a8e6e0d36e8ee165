"""Who could change places when workers or links are slow: a few good guesses, cheaply found.

A slow link between two holders of a stage delays every reduction; slow workers in one stage make
it the slowest. Guesses only: plans and the timeline say what they are worth.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations, pairwise
from typing import NamedTuple

from holdfast.cluster import WorkerId
from holdfast.planner.problem import Member, Problem
from holdfast.planner.route.shares import least_time
from holdfast.schedule.reduction_delay import ExtraLinkS
from holdfast.schedule.timeline import Pace

Stages = dict[WorkerId, int]

_LEAST_GAIN = 0.02
_MOST_EXCHANGES = 3
_NUM_FOLLOWED = 3  # of the best exchanges, to see what a further one adds
_ALIKE = 0.01  # of the step: guesses so near are told apart by the number of moves
_ROUNDING = 1e-6
_LEAST_SHARE = 0.01  # of its time that an eased worker works


def pace(problem: Problem) -> Pace:
    """The speeds and links of ``problem`` for the timeline, reductions too."""
    speeds = {member.worker: member.speed for member in problem.members if member.speed > 0}
    return Pace(speeds, problem.hop_s, extra_link_s(problem))


def extra_link_s(problem: Problem) -> ExtraLinkS:
    def excess_s(one: WorkerId, other: WorkerId) -> float:
        usual_s = problem.costs.link_s
        return max(0.0, problem.links.between(one, other, usual_s).delay_s - usual_s)

    return excess_s


def swaps(problem: Problem, limit: int = 4) -> list[Stages]:
    """New stages of all live holders, the most promising first; none if nothing promises much.

    Every stage keeps one of its holders, as the source of copies.
    """
    judge, held = _Judge(problem), _held(problem)
    now_s = judge.period_s(held)
    found: dict[tuple[int, ...], _Guess] = {}
    frontier = [held]
    for _ in range(_MOST_EXCHANGES):
        tried = [after for before in frontier for after in _exchanges(judge, held, before)]
        new = {tuple(stages.values()): stages for stages in tried}
        guesses = {key: _guess(judge, held, stages, now_s) for key, stages in new.items()}
        found = guesses | found
        best = sorted(guesses.values(), key=lambda guess: guess.rank)
        frontier = [guess.stages for guess in best[:_NUM_FOLLOWED]]
    good = [guess for guess in found.values() if guess.period_s <= now_s * (1 - _LEAST_GAIN)]
    return [guess.stages for guess in sorted(good, key=lambda guess: guess.rank)[:limit]]


class _Guess(NamedTuple):
    rank: tuple[int, int, float]
    period_s: float
    stages: Stages


def _guess(judge: "_Judge", held: Stages, stages: Stages, now_s: float) -> _Guess:
    period_s = judge.period_s(stages)
    num_moved = sum(stages[worker] != held[worker] for worker in stages)
    return _Guess((round(period_s / (_ALIKE * now_s)), num_moved, period_s), period_s, stages)


def eased(problem: Problem) -> Problem:
    """The same question, with the ends of slow reduction links taken for slower than they are.

    So they get less to do and are ready earlier, and the others wait less for the slow link.
    The same object if there is no such link. Whether a plan for it is better, and how long its
    step takes, only the timeline can tell.
    """
    judge, held = _Judge(problem), _held(problem)
    shares: dict[WorkerId, float] = {}
    for stage in range(problem.shape.stages):
        team = [worker for worker in held if held[worker] == stage]
        shares.update(judge.eased_shares(stage, team))
    if not shares:
        return problem
    members = (m._replace(speed=m.speed * shares.get(m.worker, 1.0)) for m in problem.members)
    return replace(problem, members=tuple(members))


def _held(problem: Problem) -> Stages:
    return {
        member.worker: member.stage
        for member in sorted(problem.members, key=lambda member: member.worker)
        if member.speed > 0 and member.stage is not None
    }


def _exchanges(judge: "_Judge", held: Stages, stages: Stages) -> Iterator[Stages]:
    """All that one more exchange of two workers can lead to; at least one is in trouble."""
    unmoved = [worker for worker in stages if stages[worker] == held[worker]]
    for one, other in _pairs(judge, stages, unmoved):
        after = {**stages, one: stages[other], other: stages[one]}
        if _has_sources(held, after):
            yield after


def _pairs(
    judge: "_Judge", stages: Stages, workers: list[WorkerId]
) -> Iterator[tuple[WorkerId, WorkerId]]:
    """Of workers without a slow link that are not slow the last stands for its whole stage."""
    troubled = [worker for worker in workers if judge.is_troubled(worker)]
    others = [worker for worker in workers if not judge.is_troubled(worker)]
    likes = {stages[worker]: worker for worker in others if not judge.is_end(worker)}
    partners = [*troubled, *filter(judge.is_end, others), *likes.values()]
    for one in troubled:
        for other in partners:
            is_first = other not in troubled or one < other
            if stages[one] != stages[other] and is_first:
                yield one, other


def _has_sources(held: Stages, after: Stages) -> bool:
    stayed = {stage for worker, stage in after.items() if held[worker] == stage}
    return stayed == set(held.values())


class _Judge:
    """About how long a step takes, by work, reductions and unavoidable links. No order is made."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._members: Mapping[WorkerId, Member] = {m.worker: m for m in problem.members}
        costs, stages = problem.costs, range(problem.shape.stages)
        self._each_s = [costs.forward_s[stage] + costs.backward_s(stage) for stage in stages]
        extra_s = extra_link_s(problem)
        slow = {(one, other): extra_s(one, other) for one, other in problem.links.unusual}
        self._slow = {tuple(sorted(pair)): seconds for pair, seconds in slow.items() if seconds}
        self._ends = Counter(worker for pair in self._slow for worker in pair)
        # A worker all of whose links are slow is in trouble, not all of its peers.
        self._troubled = {
            worker
            for pair in self._slow
            for worker in pair
            if self._ends[worker] == max(self._ends[end] for end in pair)
        }
        self._stage_s: dict[tuple[int, tuple[WorkerId, ...]], float] = {}

    def is_end(self, worker: WorkerId) -> bool:
        return worker in self._ends

    def is_troubled(self, worker: WorkerId) -> bool:
        return worker in self._troubled or self._members[worker].speed < 1

    def period_s(self, stages: Stages) -> float:
        teams: list[list[WorkerId]] = [[] for _ in range(self._problem.shape.stages)]
        for worker, stage in stages.items():
            teams[stage].append(worker)
        longest_s = max(self._team_s(stage, team) for stage, team in enumerate(teams))
        boundaries = pairwise(teams)
        return longest_s + sum(2 * self._unavoidable_s(one, other) for one, other in boundaries)

    def _team_s(self, stage: int, team: list[WorkerId]) -> float:
        """The work of a stage and the wait in its reduction, eased if that is better."""
        key = stage, tuple(team)
        if key not in self._stage_s:
            self._stage_s[key] = self._eased_s(stage, team) + self._problem.costs.step_s[stage]
        return self._stage_s[key]

    def eased_shares(self, stage: int, team: list[WorkerId]) -> dict[WorkerId, float]:
        """What share of its time each end of a slow link should work; empty if all should."""
        late_s = self._ends_s(team)
        if not late_s:
            return {}
        period_s = self._eased_s(stage, team)
        return {
            worker: max(1 - wait_s / period_s, _LEAST_SHARE) for worker, wait_s in late_s.items()
        }

    def _eased_s(self, stage: int, team: list[WorkerId]) -> float:
        """If those that wait longest in the reduction have so much less to do."""
        units_s = self._units_s(stage, team)
        late_s = self._ends_s(team)
        waits_s = [late_s.get(worker, 0.0) for worker in team]
        count = self._problem.shape.microbatches
        low = self._work_s(stage, team)
        high = low + max(waits_s)
        while high - low > _ROUNDING * high:
            middle = (low + high) / 2
            room = zip(units_s, waits_s, strict=True)
            num = sum(max(0, int((middle * (1 + 1e-9) - wait) / unit)) for unit, wait in room)
            low, high = (low, middle) if num >= count else (middle, high)
        return high

    def _work_s(self, stage: int, team: list[WorkerId]) -> float:
        return least_time(self._problem.shape.microbatches, self._units_s(stage, team))

    def _units_s(self, stage: int, team: list[WorkerId]) -> list[float]:
        return [self._each_s[stage] / self._members[worker].speed for worker in team]

    def _ends_s(self, team: list[WorkerId]) -> dict[WorkerId, float]:
        """How long those at a slow link wait for their own messages to come back."""
        if not self._ends:
            return {}
        found: dict[WorkerId, float] = {}
        for pair in combinations(sorted(self._ends.keys() & set(team)), 2):
            for worker in pair if pair in self._slow else ():
                found[worker] = max(found.get(worker, 0.0), 2 * self._slow[pair])
        return found

    def _unavoidable_s(self, one: list[WorkerId], other: list[WorkerId]) -> float:
        """The worst link that a matching of two neighbouring stages cannot do without."""
        between = [pair for pair in self._slow if _joins(pair, one, other)]
        wanted = min(len(one), len(other))
        num_slow = Counter(worker for pair in between for worker in pair)
        # Where everyone has half of the others left, all find a partner.
        if 2 * max(num_slow.values(), default=0) <= wanted:
            return 0.0
        levels_s = sorted({0.0, *(self._slow[pair] for pair in between)})
        for most_s in levels_s:
            near = {a: [b for b in other if self._excess_s(a, b) <= most_s] for a in one}
            if _matched(near) >= wanted:
                return most_s
        return levels_s[-1]

    def _excess_s(self, one: WorkerId, other: WorkerId) -> float:
        pair = (one, other) if one < other else (other, one)
        return self._slow.get(pair, 0.0)


def _joins(pair: tuple[WorkerId, ...], one: list[WorkerId], other: list[WorkerId]) -> bool:
    a, b = pair
    return (a in one and b in other) or (b in one and a in other)


def _matched(near: Mapping[WorkerId, list[WorkerId]]) -> int:
    """The largest number of pairs, by augmenting paths."""
    partner: dict[WorkerId, WorkerId] = {}

    def seat(one: WorkerId, seen: set[WorkerId]) -> bool:
        for other in near[one]:
            if other not in seen:
                seen.add(other)
                if other not in partner or seat(partner[other], seen):
                    partner[other] = one
                    return True
        return False

    return sum(seat(one, set()) for one in near)
