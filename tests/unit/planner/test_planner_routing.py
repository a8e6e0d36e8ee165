import numpy as np
import pytest

from helpers.plans import asked, fleet_of
from holdfast.cluster import WorkerId
from holdfast.planner.problem import LinkCost, LinkCosts
from holdfast.planner.route.crossing import home_routes, round_robin, two_stages
from holdfast.planner.route.routing import relabelled


def pipelines(routing, fleet):
    """Names and number of micro-batches of every pipeline."""
    return [
        ([str(fleet.workers[index]) for index in members], int((numbers >= 0).sum()))
        for group in routing.groups
        for members, numbers in zip(group.members, group.numbers, strict=True)
    ]


def shares(routing, fleet):
    """Micro-batches by (worker, stage), for routes over the whole cluster."""
    (group,) = routing.groups
    count = np.bincount(routing.template.route.ravel(), minlength=group.members.shape[1])
    stage = routing.template.hosts.stage
    return {
        (str(fleet.workers[index]), int(stage[host])): int(count[host])
        for host, index in enumerate(group.members[0])
    }


def test_with_nobody_missing_pipelines_are_those_at_home():
    fleet = fleet_of(asked(3, 2, 4))
    found = pipelines(relabelled(fleet), fleet)
    assert found == [([f"{d}.0", f"{d}.1"], 4) for d in range(3)]


def test_every_micro_batch_is_in_one_pipeline():
    fleet = fleet_of(asked(5, 3, 7, dead=["1.0", "2.2"], slow={"0.1": 0.5, "3.0": 0.6}))
    numbers = np.concatenate([group.numbers.ravel() for group in relabelled(fleet).groups])
    assert sorted(numbers[numbers >= 0].tolist()) == list(range(35))


def test_slow_workers_of_all_stages_share_a_pipeline_with_fewer_micro_batches():
    fleet = fleet_of(asked(4, 3, 14, slow={"0.0": 0.5, "1.1": 0.5, "2.2": 0.5}))
    found = pipelines(relabelled(fleet), fleet)
    slow = [(members, count) for members, count in found if "0.0" in members]
    assert slow == [(["0.0", "1.1", "2.2"], 8)]
    assert sorted(count for _, count in found) == [8, 16, 16, 16]


def test_a_dead_worker_leaves_one_pipeline_fewer_and_hot_spares():
    fleet = fleet_of(asked(3, 4, 6, dead=["1.2"]))
    found = pipelines(relabelled(fleet), fleet)
    assert [count for _, count in found] == [9, 9]
    assert len({name for members, _ in found for name in members}) == 8


def test_many_distinct_speeds_are_planned_as_few_kinds_of_pipeline():
    slow = {f"{d}.0": 1 - d / 100 for d in range(60)}
    fleet = fleet_of(asked(60, 2, 4, slow=slow))
    routing = relabelled(fleet)
    assert len(routing.groups) <= 24
    assert sum(count for _, count in pipelines(routing, fleet)) == 240


def test_a_slow_link_is_avoided_by_workers_of_equal_speed():
    links = LinkCosts(unusual={(WorkerId(0, 0), WorkerId(0, 1)): LinkCost(5.0)})
    fleet = fleet_of(asked(2, 2, 4, links=links))
    assert pipelines(relabelled(fleet), fleet) == [(["0.0", "1.1"], 4), (["1.0", "0.1"], 4)]


def test_a_slow_link_is_avoided_by_a_swap_at_either_end():
    links = LinkCosts(unusual={(WorkerId(0, 0), WorkerId(0, 1)): LinkCost(5.0)})
    fleet = fleet_of(asked(2, 2, 4, links=links, slow={"1.1": 0.6}))
    found = [members for members, _ in pipelines(relabelled(fleet), fleet)]
    assert sorted(found) == [["0.0", "1.1"], ["1.0", "0.1"]]


def test_a_pipeline_over_a_slow_link_gets_what_memory_admits_meanwhile():
    """Its 4 micro-batches are in flight for 15 s: there is no time for a second round."""
    links = LinkCosts(unusual={(WorkerId(d, 0), WorkerId(0, 1)): LinkCost(5.1) for d in range(4)})
    fleet = fleet_of(asked(4, 2, 8, links=links))
    found = {members[1]: count for members, count in pipelines(relabelled(fleet), fleet)}
    assert found["0.1"] == 4
    assert max(found.values()) == 10


def test_a_slow_link_that_cannot_be_avoided_delays_its_pipeline_alone():
    links = LinkCosts(unusual={(WorkerId(0, 0), WorkerId(0, 1)): LinkCost(2.0)})
    fleet = fleet_of(asked(2, 2, 12, links=links, slow={"1.0": 0.9, "1.1": 0.8}))
    routing = relabelled(fleet)
    assert len(routing.groups) == 2
    hops = fleet.units.tick_s * routing.template.hops[:, 0]
    assert sorted({round(float(hop), 3) for hop in hops}) == [0.0, 2.0]


def test_home_routes_keep_to_the_home_pipeline_and_give_out_what_is_over():
    fleet = fleet_of(asked(3, 2, 6, dead=["1.1"]))
    found = shares(home_routes(fleet), fleet)
    assert {found[f"{d}.0", 0] for d in range(3)} == {6}
    assert (found["0.1", 1], found["2.1", 1]) == (9, 9)
    template = home_routes(fleet).template
    rows = np.arange(18) % 3
    kept = [template.hosts.worker[template.route[rows == d, 1]] for d in (0, 2)]
    assert all(len(set(workers.tolist())) == 1 for workers in kept)


def test_home_shares_go_by_speed():
    fleet = fleet_of(asked(4, 1, 14, slow={"3.0": 0.5}))
    found = shares(home_routes(fleet), fleet)
    assert [found[f"{d}.0", 0] for d in range(4)] == [16, 16, 16, 8]


def test_round_robin_knows_no_speed():
    fleet = fleet_of(asked(3, 1, 4, dead=["1.0"], slow={"2.0": 0.5}))
    found = shares(round_robin(fleet), fleet)
    assert (found["0.0", 0], found["2.0", 0]) == (6, 6)


def test_a_helper_holds_a_second_stage_and_nobody_has_more_work_than_the_aim():
    fleet = fleet_of(asked(8, 4, 16, dead=["7.3"]))
    routing = two_stages(fleet, 54.0)
    assert routing is not None
    found = shares(routing, fleet)
    assert sum(count for (_, stage), count in found.items() if stage == 3) == 128
    work = {}
    for (worker, _), count in found.items():
        work[worker] = work.get(worker, 0) + 3 * count
    assert max(work.values()) <= 54
    assert len(found) > len(fleet.workers), "nobody helps"


def test_help_that_cannot_reach_the_aim_is_no_plan():
    fleet = fleet_of(asked(8, 4, 16, dead=["7.3"]))
    assert two_stages(fleet, 45.0) is None, "more work than all workers together can do"
    assert two_stages(fleet, 60.0) is None, "nobody needs help"


@pytest.mark.parametrize("make", [relabelled, home_routes])
def test_a_worker_with_two_stages_or_none_is_not_made_by_plain_routes(make):
    fleet = fleet_of(asked(3, 3, 3, dead=["0.1"]))
    hosts = make(fleet).template.hosts
    assert len(hosts.worker) == hosts.num_workers
