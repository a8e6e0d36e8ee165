"""Which long tests make test-all leaves out."""

from helpers import drawn


def test_each_is_drawn_within_a_few_trees_and_the_same_tree_draws_the_same():
    names = [f"tests/multiprocess/test_a.py::test_{number}" for number in range(100)]
    trees = [{name for name in names if drawn.is_drawn(name, str(seed))} for seed in range(12)]
    assert trees[3] == {name for name in names if drawn.is_drawn(name, "3")}
    assert all(40 < len(tree) < 80 for tree in trees)
    assert set().union(*trees) == set(names)
