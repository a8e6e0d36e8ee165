"""Bad links as a graph: when connections are made anew, and who is left out in the end."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cluster import WorkerId
from holdfast.control.liveness.link_complaints import (
    MOST_COMPLAINTS,
    PATIENCE_S,
    Judgement,
    LinkComplaints,
    MachineSeats,
)
from holdfast.control.liveness.link_cover import smallest_cover

A, B, C, D = (WorkerId(pipeline, stage) for pipeline in (0, 1) for stage in (0, 1))
STAGES = {A: 0, B: 1, C: 0, D: 1}
WINDOW_S = 60.0

workers = st.builds(WorkerId, st.integers(0, 3), st.integers(0, 3))
links = st.lists(
    st.tuples(workers, workers).filter(lambda pair: pair[0] != pair[1]).map(sorted).map(tuple),
    max_size=8,
)


def judge(known: LinkComplaints, at_s: float, epoch: int = 1, stages=STAGES) -> Judgement:
    return known.judge(at_s, epoch, stages, WINDOW_S)


def after_complaints(known: LinkComplaints, pairs, num: int, every_s: float = 1.0) -> Judgement:
    judged = Judgement()
    for number in range(num):
        for by, about in pairs:
            known.complain(by, about, number, number * every_s)
        judged = judge(known, number * every_s + 2 * PATIENCE_S, number)
    return judged


def test_a_complaint_waits_for_a_better_explanation() -> None:
    known = LinkComplaints()
    known.complain(A, B, 1, 0.0)
    assert judge(known, PATIENCE_S / 2) == Judgement()
    assert judge(known, PATIENCE_S) == Judgement(mend=((A, B),))
    assert judge(known, 9.0) == Judgement(), "what was judged takes a new complaint"


@pytest.mark.parametrize("why", ["lost", "an older epoch"])
def test_a_complaint_that_is_explained_meanwhile_is_over(why) -> None:
    known = LinkComplaints()
    known.complain(A, B, 1, 0.0)
    if why == "lost":
        left = {worker: stage for worker, stage in STAGES.items() if worker != B}
        assert judge(known, 1.0, stages=left) == Judgement()
    else:
        assert judge(known, 1.0, epoch=2) == Judgement()


def test_both_ends_of_a_link_complain_of_the_same_trouble() -> None:
    pairs = [(A, B), (B, A)]
    judged = after_complaints(LinkComplaints(), pairs, MOST_COMPLAINTS - 1)
    assert judged == Judgement(mend=((A, B),))


def test_a_link_that_stays_bad_costs_one_end() -> None:
    judged = after_complaints(LinkComplaints(), [(A, B)], MOST_COMPLAINTS)
    assert len(judged.leave_out) == 1


def test_complaints_that_are_long_past_do_not_count() -> None:
    judged = after_complaints(LinkComplaints(), [(A, B)], 2 * MOST_COMPLAINTS, every_s=WINDOW_S)
    assert judged == Judgement(mend=((A, B),))


def test_rather_one_with_another_holder_of_its_stage() -> None:
    known, stages = LinkComplaints(), {A: 0, B: 1, D: 1}
    for number in range(MOST_COMPLAINTS):
        known.complain(B, A, number, number)
        judged = judge(known, number + 2 * PATIENCE_S, number, stages)
    assert judged.leave_out == (B,)


def test_one_bad_network_card_does_not_cost_its_peers() -> None:
    """Everyone complains of B, and B of everyone: B alone is left out."""
    pairs = [(A, B), (B, A), (B, C), (D, B)]
    assert after_complaints(LinkComplaints(), pairs, MOST_COMPLAINTS).leave_out == (B,)


def test_whoever_comes_under_the_name_of_the_lost_begins_anew() -> None:
    known = LinkComplaints()
    after_complaints(known, [(A, B)], MOST_COMPLAINTS - 1)
    known.forget(B)
    known.complain(A, B, 7, 7.0)
    assert judge(known, 8.0, 7) == Judgement(mend=((A, B),))


@given(links)
def test_a_cover_touches_every_link_and_none_is_smaller(pairs) -> None:
    cover = smallest_cover(pairs)
    assert all(set(link) & set(cover) for link in pairs)
    ends = {end for link in pairs for end in link}
    for smaller in itertools.combinations(sorted(ends), max(0, len(cover) - 1)):
        assert not pairs or not all(set(link) & set(smaller) for link in pairs)


def test_many_bad_links_are_covered_in_reasonable_time() -> None:
    hub = WorkerId(0, 0)
    pairs = [(hub, WorkerId(1, stage)) for stage in range(30)]
    pairs += [(WorkerId(2, stage), WorkerId(3, stage)) for stage in range(5)]
    cover = smallest_cover(pairs)
    assert hub in cover
    assert len(cover) == 6


# --- several machines ---

# Four machines, each with a pipeline of two stages.
GRID = {WorkerId(pipeline, stage): stage for pipeline in range(4) for stage in (0, 1)}
HOSTS = {worker: f"h{worker.pipeline}" for worker in GRID}


def left_out(*bad: tuple[int, int], own: str = "h0", stages=GRID, seats=HOSTS) -> tuple[str, ...]:
    """``bad``: links between machines, over which stage 0 hears nothing of stage 1."""
    known, judged = LinkComplaints(), Judgement()
    for number in range(MOST_COMPLAINTS):
        assert judged.machines == (), "not before"
        for one, other in bad:
            known.complain(WorkerId(one, 0), WorkerId(other, 1), number, number)
        at_s = number + 2 * PATIENCE_S
        judged = known.judge(at_s, number, stages, WINDOW_S, MachineSeats(seats, own))
    assert judged.leave_out == ()
    return judged.machines


@pytest.mark.parametrize(
    ("bad", "own", "expected"),
    [
        ([(0, 1)], "h0", ("h1",)),
        ([(0, 1)], "h1", ("h0",)),
        ([(2, 3)], "h0", ("h2",)),  # by name
        ([(3, 0), (3, 1)], "h0", ("h3",)),  # it reaches the coordinator, but not half of the others
        ([(0, 1), (0, 2), (0, 3)], "h0", ("h0",)),  # one is less than three
        ([(0, 2), (0, 3), (1, 2), (1, 3)], "h0", ("h2", "h3")),
        ([(0, 2), (0, 3), (1, 2), (1, 3)], "h3", ("h0", "h1")),
        ([(0, 2), (0, 3), (1, 2), (1, 3)], "", ("h0", "h1")),
        ([(0, 1), (2, 3)], "h0", ("h1", "h2")),
    ],
)
def test_as_few_machines_as_will_do_are_left_out(bad, own, expected) -> None:
    assert left_out(*bad, own=own) == expected
    assert left_out(*((b, a) for a, b in reversed(bad)), own=own) == expected


def test_of_two_machines_the_smaller_one_goes() -> None:
    stages = {**GRID, WorkerId(4, 0): 0}
    assert left_out((2, 3), stages=stages, seats={**HOSTS, WorkerId(4, 0): "h2"}) == ("h3",)


def test_rather_the_coordinators_own_machine_than_the_last_holder_of_a_stage() -> None:
    stages = {WorkerId(0, 0): 0, WorkerId(1, 0): 0, WorkerId(1, 1): 1}
    seats = {WorkerId(0, 0): "h0", WorkerId(1, 0): "h1", WorkerId(1, 1): "h1"}
    assert left_out((0, 1), stages=stages, seats=seats) == ("h0",)


def test_workers_of_two_machines_that_complain_in_turn_speak_of_one_link() -> None:
    known = LinkComplaints()
    for number in range(MOST_COMPLAINTS):
        known.complain(WorkerId(number % 2, 0), WorkerId(1 - number % 2, 1), number, number)
        at_s = number + 2 * PATIENCE_S
        judged = known.judge(at_s, number, GRID, WINDOW_S, MachineSeats(HOSTS, "h0"))
    assert judged.machines == ("h1",)


def test_a_link_within_a_machine_costs_a_worker_and_not_the_machine() -> None:
    known = LinkComplaints()
    for number in range(MOST_COMPLAINTS):
        known.complain(WorkerId(2, 0), WorkerId(2, 1), number, number)
        at_s = number + 2 * PATIENCE_S
        judged = known.judge(at_s, number, GRID, WINDOW_S, MachineSeats(HOSTS, "h0"))
    assert judged.machines == ()
    assert len(judged.leave_out) == 1


names = st.integers(0, 5).map("m{}".format)
graphs = st.lists(
    st.tuples(names, names).filter(lambda pair: pair[0] != pair[1]).map(sorted).map(tuple),
    max_size=10,
)


@given(graphs, names, st.randoms(use_true_random=False))
def test_the_coordinators_machine_stays_if_it_can_and_the_order_does_not_matter(pairs, own, dice):
    def cost(some: tuple[str, ...]) -> bool:
        return own in some

    cover = smallest_cover(pairs, cost, keep=own)
    ends = sorted({end for link in pairs for end in link})
    covers = [
        (len(some), own in some)
        for size in range(len(ends) + 1)
        for some in itertools.combinations(ends, size)
        if all(set(link) & set(some) for link in pairs)
    ]
    assert (len(cover), own in cover) == min(covers)
    dice.shuffle(pairs)
    assert smallest_cover(pairs, cost, keep=own) == cover


@given(st.integers(1, 20), st.integers(1, 20), st.integers(0, 39))
def test_a_network_in_two_parts_costs_the_smaller_one_however_large_it_is(num_near, num_far, own):
    near = [f"a{number:02}" for number in range(num_near)]
    far = [f"b{number:02}" for number in range(num_far)]
    keep = (near + far)[own % (num_near + num_far)]
    links = [(one, other) for one in near for other in far]
    cover = smallest_cover(links, lambda some: keep in some, keep=keep)
    smaller = near if (num_near, keep in near) < (num_far, keep in far) else far
    assert cover == tuple(smaller)
