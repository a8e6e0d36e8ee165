"""In which rounds links are measured."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.cluster import WorkerId
from holdfast.detection.live.probe_rounds import rounds


def node(number):
    return WorkerId(number, 0)


def ring(size):
    return [(node(i), node((i + 1) % size)) for i in range(size)]


def tree(size):
    return [(node(child), node((child - 1) // 2)) for child in range(1, size)]


def check(links):
    found = rounds(links)
    assert sorted(map(frozenset, (x for r in found for x in r)), key=sorted) == sorted(
        {frozenset(link) for link in links if link[0] != link[1]}, key=sorted
    )
    for one in found:
        ends = [end for link in one for end in link]
        assert len(ends) == len(set(ends))
    return len(found)


def test_an_even_ring_takes_two_rounds_in_any_order():
    for size in (4, 6, 64):
        assert check(ring(size)) == 2
        assert check(ring(size)[::-2] + ring(size)[::2]) == 2


def test_an_odd_ring_takes_three_rounds():
    for size in (3, 5, 63):
        assert check(ring(size)) == 3


def test_a_tree_takes_no_more_than_four_rounds():
    for size in (2, 7, 100):
        assert check(tree(size)) <= 4


def test_no_links_take_no_round():
    assert rounds([]) == []
    assert rounds([(node(1), node(1))]) == []


def test_a_link_and_its_way_back_are_one():
    assert rounds([(node(1), node(2)), (node(2), node(1))]) == [[(node(2), node(1))]]


pairs = st.tuples(st.integers(0, 9), st.integers(0, 9))


@given(st.lists(pairs, max_size=40))
def test_any_set_of_links_is_measured_in_few_rounds(numbers):
    links = [(node(a), node(b)) for a, b in numbers]
    distinct = {frozenset(link) for link in links if link[0] != link[1]}
    busiest = max((sum(node(n) in link for link in distinct) for n in range(10)), default=0)
    assert check(links) <= busiest + 2


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(6, 11)), max_size=36))
def test_without_odd_rings_the_busiest_worker_decides(numbers):
    links = [(node(a), node(b)) for a, b in numbers]
    busiest = max((len({lk for lk in links if node(n) in lk}) for n in range(12)), default=0)
    assert check(links) == busiest
