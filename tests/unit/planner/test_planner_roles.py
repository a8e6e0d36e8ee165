from collections import Counter
from functools import cache
from itertools import product
from math import ceil
from random import Random
from types import SimpleNamespace

import pytest

from holdfast.cluster import WorkerId
from holdfast.errors import ConfigError
from holdfast.planner.assign import exact, kernels, search
from holdfast.planner.assign.roles import MAX_SPEEDS, Roles, assign
from holdfast.planner.kernel.compiled import plain_twins
from holdfast.planner.problem import Member, Memory, Problem
from holdfast.schedule.costs import Costs
from holdfast.schedule.operation import Shape


def problem(
    members: list[Member],
    *,
    stages: int,
    microbatches: int = 24,
    pipelines: int = 1,
    **other: object,
) -> Problem:
    costs = other.pop("costs", None) or Costs.uniform(stages)
    shape = Shape(pipelines, stages, microbatches)
    return Problem(
        shape=shape, costs=costs, memory=Memory(limit=8), members=tuple(members), **other
    )


def crew(*holders: int, speed: float = 1.0) -> list[Member]:
    """So many workers hold stage 0, stage 1, ..."""
    return [
        Member(WorkerId(pipeline, stage), stage, speed)
        for stage, num in enumerate(holders)
        for pipeline in range(num)
    ]


def holders(roles: Roles) -> list[int]:
    num = Counter(roles.stage_of.values())
    return [num[stage] for stage in sorted(num)]


# --- the best by trying all ---


def score(given: Problem, roles: Roles) -> tuple[int, float, int]:
    cost_s = given.horizon_steps * roles.period_s + given.move_s * len(roles.moves)
    return holders(roles).count(1), pytest.approx(cost_s), len(roles.moves)


def held_now(given: Problem) -> list[int | None]:
    newest = Counter()
    for member in given.members:
        newest[member.stage] = max(newest[member.stage], member.version)
    return [m.stage if m.version == newest[m.stage] else None for m in given.members]


def best_by_trying_all(given: Problem) -> tuple[int, float, int]:
    held, stages = held_now(given), range(given.shape.stages)

    @cache
    def stage_s(stage: int, speeds: tuple[float, ...]) -> float:
        cost_s = given.costs.forward_s[stage] + given.costs.backward_s(stage)
        free_s = [0.0] * len(speeds)
        for _ in range(given.shape.microbatches):
            end_s, first = min(
                (free + cost_s / speed, i)
                for i, (free, speed) in enumerate(zip(free_s, speeds, strict=True))
            )
            free_s[first] = end_s
        return max(free_s) + given.costs.step_s[stage]

    def score_of(way: tuple[int, ...]) -> tuple[int, float, int]:
        teams = [
            tuple(sorted(m.speed for m, to in zip(given.members, way, strict=True) if to == stage))
            for stage in stages
        ]
        moves = sum(to != was for to, was in zip(way, held, strict=True))
        period_s = max(stage_s(stage, team) for stage, team in enumerate(teams))
        cost_s = given.horizon_steps * period_s + given.move_s * moves
        return sum(len(team) == 1 for team in teams), round(cost_s, 6), moves

    ways = product(stages, repeat=len(held))
    keeps_one = (way for way in ways if set(stages) == stayed_at(way, held))
    return min(map(score_of, keeps_one))


def stayed_at(way: tuple[int, ...], held: list[int | None]) -> set[int]:
    return {to for to, was in zip(way, held, strict=True) if to == was}


def random_problem(seed: int) -> Problem:
    random = Random(seed)
    stages = random.choice([2, 3])
    num = max(random.randint(stages, 7) for _ in range(2))
    speeds = random.choice([[1.0], [1.0, 0.5], [1.0, 1.0, 0.6, 0.3], [1.0, 0.9, 0.8, 0.7, 0.5]])
    at = [*range(stages), *random.choices([*range(stages), None], k=num - stages)]
    members = [
        Member(
            WorkerId(i, random.randrange(stages)),
            stage,
            random.choice(speeds),
            3 if i < stages else random.choice([3, 3, 3, 2]),
        )
        for i, stage in enumerate(at)
    ]
    alike = random.random() < 0.5
    each_s = tuple(1.0 if alike else random.choice([1.0, 1.5, 2.0]) for _ in range(stages))
    step_s = tuple(0.0 if alike else random.choice([0.0, 0.5, 3.0]) for _ in range(stages))
    return problem(
        members,
        stages=stages,
        microbatches=random.choice([4, 7, 12, 24]),
        costs=Costs(each_s, each_s, each_s, step_s=step_s),
        horizon_steps=random.choice([1, 10, 1000]),
        move_s=random.choice([0.0, 0.5, 2.0, 10.0, 100.0]),
    )


@pytest.mark.parametrize("block", range(8))
def test_nothing_is_better_in_small_clusters(block: int) -> None:
    for seed in range(50 * block, 50 * block + 50):
        given = random_problem(seed)
        roles = assign(given)
        assert roles.proven, seed
        assert score(given, roles) == best_by_trying_all(given), seed


def test_every_move_copies_from_a_holder_that_stays() -> None:
    for seed in range(100):
        given = random_problem(seed)
        roles = assign(given)
        held = dict(zip((m.worker for m in given.members), held_now(given), strict=True))
        for move in roles.moves:
            assert held[move.source] == roles.stage_of[move.source] == move.to_stage
        moved = {worker for worker, stage in roles.stage_of.items() if held[worker] != stage}
        assert moved == {move.worker for move in roles.moves}


# --- equal speeds ---


def with_dead(pipelines: int, stages: int, dead: int, seed: int) -> list[Member]:
    everyone = crew(*[pipelines] * stages)
    return sorted(Random(seed).sample(everyone, len(everyone) - dead))


@pytest.mark.parametrize(
    ("pipelines", "stages", "dead"),
    [
        (8, 4, 3),
        (16, 8, 6),
        (16, 8, 13),
        (32, 16, 26),
        (32, 16, 51),
        (256, 16, 205),
        (1024, 16, 1638),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_the_dead_are_spread_evenly_with_as_few_moves_as_can_be(
    pipelines: int, stages: int, dead: int, seed: int
) -> None:
    members = with_dead(pipelines, stages, dead, seed)
    # So many micro-batches that one holder more or less shows in the busiest one's share.
    roles = assign(problem(members, stages=stages, microbatches=pipelines**2, pipelines=pipelines))
    cap = ceil(dead / stages)
    dead_before = Counter(range(stages)) + Counter()
    for stage in range(stages):
        dead_before[stage] = pipelines - sum(m.stage == stage for m in members)
    assert pipelines - min(holders(roles)) == cap
    assert len(roles.moves) == sum(max(0, num - cap) for num in dead_before.values())
    assert roles.proven
    assert roles.period_s == 3 * ceil(pipelines**2 / (pipelines - cap))


def test_a_move_is_made_only_if_it_pays_within_the_horizon() -> None:
    # 24 micro-batches of 3 s: 6 holders 12 s, 4 holders 18 s, 5 holders 15 s. One move saves 3 s.
    members = crew(6, 4, 6)
    kept = assign(problem(members, stages=3, horizon_steps=10, move_s=30.1))
    moved = assign(problem(members, stages=3, horizon_steps=10, move_s=29.9))
    assert (holders(kept), kept.period_s) == ([6, 4, 6], 18.0)
    assert (sorted(holders(moved)), moved.period_s) == ([5, 5, 6], 15.0)


def test_of_equal_cost_the_one_with_fewer_moves_is_taken() -> None:
    # 36 micro-batches of 3 s: no move 54 s, one 36 + 9 s, two 27 + 18 s.
    roles = assign(
        problem(crew(2, 8), stages=2, microbatches=36, horizon_steps=1, move_s=9.0),
    )
    assert (holders(roles), len(roles.moves)) == ([3, 7], 1)


def test_a_healthy_cluster_stays_as_it_is() -> None:
    roles = assign(problem(crew(4, 4, 4), stages=3))
    assert roles.moves == ()
    assert roles.reason == "nobody changes the stage"


def test_the_donor_is_near_and_the_last_of_its_stage() -> None:
    roles = assign(problem(crew(6, 6, 6, 4, 6, 6), stages=6, pipelines=6))
    (move,) = roles.moves
    assert (move.worker, move.from_stage, move.to_stage) == (WorkerId(5, 2), 2, 3)
    assert move.source.stage == 3
    assert roles.reason == (
        "stage 3 had 4 holders of 6: 5.2 moves there from stage 2; "
        "the busiest stage's work goes from 18 to 15 s a step"
    )


# --- safety ---


def test_a_stage_with_one_holder_gets_a_second_whatever_a_move_costs() -> None:
    roles = assign(problem(crew(3, 1), stages=2, horizon_steps=1, move_s=1e9))
    assert holders(roles) == [2, 2]


def test_a_second_holder_comes_before_speed() -> None:
    # A slow second holder for the light stage costs the heavy one a third of its speed.
    costs = Costs((10.0, 1.0), (10.0, 1.0), (10.0, 1.0))
    roles = assign(problem(crew(3, 1), stages=2, costs=costs))
    assert holders(roles) == [2, 2]
    assert roles.period_s == 360.0


def test_single_holders_are_not_passed_around() -> None:
    roles = assign(problem(crew(2, 2, 1), stages=3))
    assert roles.moves == ()


def test_with_too_few_for_two_a_stage_spare_holders_are_spread() -> None:
    roles = assign(problem(crew(4, 1, 1, 1), stages=4, move_s=1e6))
    assert sorted(holders(roles)) == [1, 2, 2, 2]
    assert len(roles.moves) == 2


def test_the_last_who_hold_a_stage_do_not_all_leave_it() -> None:
    # Trading places would put the fast worker on the heavy stage, but leave no source to copy from.
    costs = Costs((1.0, 4.0), (1.0, 4.0), (1.0, 4.0))
    members = [Member(WorkerId(0, 0), 0, 1.0), Member(WorkerId(0, 1), 1, 0.5)]
    assert assign(problem(members, stages=2, costs=costs)).moves == ()


# --- mixed speeds ---


def test_a_slow_stage_gets_help_from_a_fast_one() -> None:
    slow = [Member(worker, stage, 0.5 if stage == 1 else 1.0) for worker, stage, *_ in crew(4, 4)]
    roles = assign(problem(slow, stages=2))
    # Two fast workers and four slow ones do as much as four fast ones; one and four is too few.
    assert roles.period_s == 24.0
    assert [move.to_stage for move in roles.moves] == [1]


@pytest.mark.parametrize(("pipelines", "stages"), [(4, 4), (8, 4), (16, 8)])
def test_eight_speeds_are_solved_with_proof(pipelines: int, stages: int) -> None:
    for seed in range(4):
        given = mixed(pipelines, stages, seed)
        assert assign(given).proven


def mixed(pipelines: int, stages: int, seed: int) -> Problem:
    random = Random(seed)
    num = pipelines * stages
    live = with_dead(pipelines, stages, round(num / 10), seed)
    slow = random.sample(live, round(num / 10))
    speeds = [0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9]
    members = [m._replace(speed=random.choice(speeds)) if m in slow else m for m in live]
    return problem(members, stages=stages, microbatches=4 * stages * pipelines, pipelines=pipelines)


def test_a_search_cut_short_says_so_and_is_still_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    given = mixed(16, 8, 0)
    proven = assign(given)
    monkeypatch.setattr(exact, "MAX_NODES", 1)
    hasty = assign(given)
    assert proven.proven
    assert not hasty.proven
    assert proven.period_s < hasty.period_s < 1.1 * proven.period_s
    assert len(hasty.stage_of) == len(given.members)


def test_more_speeds_than_the_search_tells_apart_are_no_proof() -> None:
    random = Random(1)
    members = [m._replace(speed=random.uniform(0.5, 1)) for m in crew(30, 20, 30)]
    assert len({m.speed for m in members}) > MAX_SPEEDS
    roles = assign(problem(members, stages=3, microbatches=400))
    assert not roles.proven
    assert min(holders(roles)) > 24
    assert roles.period_s < 1.05 * 3 * 400 / (sum(m.speed for m in members) / 3)


def test_the_compiled_search_answers_as_its_plain_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = [assign(random_problem(seed)) for seed in range(60)]
    plain = SimpleNamespace(**plain_twins(kernels))
    monkeypatch.setattr(search, "greedy", plain.greedy)
    monkeypatch.setattr(exact, "cover", plain.cover)
    assert [assign(random_problem(seed)) for seed in range(60)] == compiled


def test_the_order_of_the_members_does_not_matter() -> None:
    for seed in range(5):
        given = mixed(8, 4, seed)
        shuffled = Random(seed).sample(given.members, len(given.members))
        again = problem(shuffled, stages=4, microbatches=128, pipelines=8)
        assert assign(again) == assign(given)


# --- who holds nothing ---


def test_a_joiner_goes_where_most_are_missing() -> None:
    joiner = Member(WorkerId(9, 0), None)
    roles = assign(problem([*crew(4, 4, 3, 4), joiner], stages=4, pipelines=4, move_s=1e9))
    (move,) = roles.moves
    assert (move.worker, move.from_stage, move.to_stage) == (joiner.worker, None, 2)
    assert "stage 2 had 3 holders of 4: 9.0 joins there; the busiest" in roles.reason


def test_joiners_take_the_stage_of_their_name_when_it_is_open() -> None:
    joiners = [Member(WorkerId(8, 2), None), Member(WorkerId(9, 0), None)]
    roles = assign(problem([*crew(3, 4, 3), *joiners], stages=3))
    assert {move.worker: move.to_stage for move in roles.moves} == {
        WorkerId(8, 2): 2,
        WorkerId(9, 0): 0,
    }


def test_a_joiner_that_nobody_needs_still_gets_a_stage() -> None:
    roles = assign(problem([*crew(4, 4), Member(WorkerId(9, 1), None)], stages=2))
    assert sum(holders(roles)) == 9
    assert len(roles.moves) == 1


def test_an_old_version_counts_as_nothing_and_is_copied_again() -> None:
    members = [
        Member(WorkerId(0, 0), 0, version=5),
        Member(WorkerId(1, 0), 0, version=5),
        Member(WorkerId(0, 1), 1, version=6),
        Member(WorkerId(1, 1), 1, version=5),
    ]
    roles = assign(problem(members, stages=2))
    (move,) = roles.moves
    assert move == (WorkerId(1, 1), 1, 1, WorkerId(0, 1))
    assert "1.1 copies it again" in roles.reason


def test_the_dead_get_no_stage() -> None:
    dead = Member(WorkerId(5, 0), 0, speed=0.0)
    roles = assign(problem([*crew(2, 2), dead], stages=2))
    assert dead.worker not in roles.stage_of


# --- what cannot be done ---


def test_a_stage_that_nobody_holds_is_named() -> None:
    members = [*crew(4, 0, 4), Member(WorkerId(0, 1), None)]
    with pytest.raises(
        ConfigError, match="stage 1 has no live holder: its state is on no"
    ) as error:
        assign(problem(members, stages=3))
    assert "resume from a checkpoint or let a holder of it re-join" in str(error.value)


def test_too_few_workers_are_counted() -> None:
    with pytest.raises(ConfigError, match=r"stages 1, 2 have no .* \(1 live workers are 2 too few"):
        assign(problem(crew(1, 0, 0), stages=3))


@pytest.mark.parametrize(
    ("member", "words"),
    [
        (Member(WorkerId(7, 0), 2), "worker 7.0 holds stage 2: expected 0 to 1"),
        (Member(WorkerId(7, 0), -1), "worker 7.0 holds stage -1"),
        (Member(WorkerId(7, 0), 0, -0.5), r"worker 7.0 has speed -0.5: expected"),
        (Member(WorkerId(7, 0), 0, float("nan")), "worker 7.0 has speed nan"),
        (Member(WorkerId(1, 0), 0), "worker 1.0 is listed twice"),
    ],
)
def test_members_that_make_no_sense_are_refused(member: Member, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        assign(problem([*crew(2, 2), member], stages=2))
