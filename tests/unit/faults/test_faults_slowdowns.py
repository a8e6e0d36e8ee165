"""Random slowness: the same for a seed, as long and as deep as published, and always admitted."""

import itertools
from statistics import mean, median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.cluster import WorkerId
from holdfast.faults.fault import FaultKind, check_faults
from holdfast.faults.slowdowns import Mix, slowdowns

NOTHING = dict.fromkeys(["compute", "link", "machine", "ladder", "burst", "dips", "compound"], 0.0)
MACHINES = [[WorkerId(d, s) for s in range(2)] for d in range(2)]
MINUTE_S = 60.0


def only(**weights):
    return Mix(**(NOTHING | weights))


def made(mix, *, rate=0.02, steps=20_000, seed=1, **more):
    return slowdowns(seed, 2, 2, steps, MINUTE_S, rate=rate, mix=mix, **more)


def num_steps(fault):
    return fault.lasting.last_step - fault.step + 1


# --- the same every time, and what a run admits ---


def test_a_seed_gives_these_faults_on_every_machine():
    assert [str(fault) for fault in slowdowns(1, 2, 2, 120, MINUTE_S, rate=0.05)] == [
        "slow 0.1 @ 5-14 x1.16",
        "slow 0.1 @ 24-31 x1.7",
        "slow 0.1 @ 52-60 x1.13",
        "slow 0.1 @ 56-66 x1.19",
        "link 0.0-0.1 @ 80-113 +14.3ms",
        "slow 1.0 @ 107-116 x1.17",
        "slow 1.1 @ 117-120 x1.13",
    ]


def test_another_seed_gives_other_faults():
    assert len({made(Mix(), seed=seed, steps=400) for seed in range(50)}) == 50


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 2**63 - 1),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.integers(1, 60),
    st.integers(0, 5),
    st.sampled_from([0.1, 0.5, 1.0]),
    st.floats(1e-7, 1000),
    st.booleans(),
)
def test_the_faults_pass_the_checks_of_a_run(
    seed, shape, steps, first_step, rate, transfer_s, large
):
    machines = [[WorkerId(d, s) for s in range(shape[1])] for d in range(shape[0])]
    steps += first_step
    faults = slowdowns(
        seed,
        *shape,
        steps,
        20.0,
        rate=rate,
        transfer_s=transfer_s,
        large_job=large,
        machines=machines,
        first_step=first_step,
    )
    check_faults(faults, *shape, steps, first_step=first_step)
    assert faults or rate < 1


# --- how often ---


def test_the_rate_is_the_share_of_steps_in_which_something_becomes_slow():
    faults = made(only(compute=1), rate=0.02)
    assert 340 < len(faults) < 460  # 400 expected, 20 standard deviation; the seed is fixed


def test_as_published_a_link_becomes_slow_once_in_forty_hours_and_a_worker_once_in_a_thousand():
    faults = slowdowns(1, 2, 2, 600_000, MINUTE_S)  # 10,000 h: 4 links, 4 workers
    links = [fault for fault in faults if fault.kind is FaultKind.LINK]
    workers = {fault.step for fault in faults if fault.kind is FaultKind.SLOW}
    assert 900 < len(links) < 1100  # 1,000 expected
    compounds = {fault.step for fault in faults if any(one.covers(fault.step) for one in links)}
    assert 20 < len(workers - compounds) < 150  # 40 of a worker alone, and a tenth for each shape


def test_a_time_scale_makes_published_slowness_more_frequent_and_shorter():
    faults = slowdowns(1, 2, 2, 10_000, 1.0, time_scale=60.0)
    assert faults == slowdowns(1, 2, 2, 10_000, MINUTE_S)
    quick = slowdowns(1, 2, 2, 10_000, 1.0, time_scale=600.0)
    assert len(quick) > 5 * len(faults)
    links, quick_links = ([f for f in few if f.peer] for few in (faults, quick))
    assert 5 * mean(map(num_steps, quick_links)) < mean(map(num_steps, links))


# --- shapes ---


def test_a_slow_worker_is_so_for_six_to_twelve_minutes_at_half_its_speed_or_more():
    faults = made(only(compute=1))[:-1]  # the last one may be cut off
    assert {num_steps(fault) for fault in faults} == set(range(6, 13))
    assert 9 < mean(map(num_steps, faults)) < 10
    factors = [fault.lasting.factor for fault in faults]
    assert min(factors) == pytest.approx(1 / 0.9, abs=0.01)
    assert 1.8 < max(factors) <= 2.0
    assert 0.7 < mean(factor < 1.26 for factor in factors) < 0.9
    assert {fault.worker for fault in faults} == {w for machine in MACHINES for w in machine}


def test_a_slow_link_lasts_under_a_minute_or_up_to_hours_and_is_one_of_neighbours():
    faults = made(only(link=1), rate=0.005, steps=200_000)
    lengths = list(map(num_steps, faults))
    assert 0.15 < mean(length <= 1 for length in lengths) < 0.35
    assert 15 < median(lengths) < 25
    assert max(lengths) > 150
    assert {f"{fault.worker}-{fault.peer}" for fault in faults} == {
        *("0.0-0.1", "1.0-1.1", "0.0-1.0", "0.1-1.1")
    }


def test_the_delay_of_a_slow_link_is_what_its_lost_bandwidth_costs_a_transfer():
    delays_s = [f.lasting.delay_s for f in made(only(link=1), transfer_s=0.1)]
    assert min(delays_s) == pytest.approx(0.1 * (1 / 0.6 - 1), abs=0.01)
    assert 0.5 < max(delays_s) <= 0.9
    assert median(delays_s) == pytest.approx(0.1 * (1 / 0.36 - 1), rel=0.2)


def test_slow_links_of_a_large_job_last_longer_than_ten_minutes():
    faults = made(only(link=1), rate=0.0005, steps=400_000, large_job=True)
    assert {num_steps(fault) for fault in faults} == {
        *(11, 12, 16, 20, 26, 28, 30, 34, 40, 51, 52, 94, 110, 590)
    }


def test_with_a_slow_link_three_times_in_sixteen_a_worker_becomes_slow_while_it_lasts():
    faults = made(Mix(compute=0, ladder=0, burst=0, dips=0), rate=0.005, steps=200_000)
    pairs = list(itertools.pairwise(faults))
    inside = [one for one, other in pairs if other.kind is FaultKind.SLOW]
    assert all(
        one.kind is FaultKind.LINK and one.covers(other.step)
        for one, other in pairs
        if other.kind is FaultKind.SLOW
    )
    num_links = sum(fault.kind is FaultKind.LINK for fault in faults)
    assert 0.14 < len(inside) / num_links < 0.24


def test_all_workers_of_a_slow_machine_become_slow_together_and_only_if_machines_are_given():
    faults = made(only(machine=1), machines=MACHINES)
    pairs = list(zip(faults[::2], faults[1::2], strict=True))
    assert all((one.step, one.lasting) == (other.step, other.lasting) for one, other in pairs)
    assert {(one.worker, other.worker) for one, other in pairs} == set(map(tuple, MACHINES))
    assert made(only(machine=1)) == ()


def test_a_ladder_is_two_or_three_small_drops_of_one_worker_that_stay():
    for seed in range(20):
        faults = made(only(ladder=1), rate=1.0, steps=100, seed=seed)[:3]
        assert all(fault.lasting.last_step is None for fault in faults)
        assert all(1.03 <= fault.lasting.factor <= 1.09 for fault in faults)
        assert 6 <= faults[1].step - faults[0].step <= 12
        assert faults[0].worker == faults[1].worker


@pytest.mark.parametrize(("kind", "lengths"), [("burst", {2, 3}), ("dips", {1})])
def test_bursts_and_dips_are_a_few_short_stretches_of_one_worker_with_pauses(kind, lengths):
    faults = made(only(**{kind: 1}), rate=0.001)[:-1]
    assert {num_steps(fault) for fault in faults} == lengths
    series = [[faults[0]]]
    for fault in faults[1:]:
        if fault.step - series[-1][-1].step > 7:
            series.append([])
        series[-1].append(fault)
    assert {len(one) for one in series} == {2, 3, 4}
    for one in series:
        assert len({(fault.worker, fault.lasting.factor) for fault in one}) == 1
        pairs = itertools.pairwise(one)
        assert all(before.lasting.last_step + 1 < after.step for before, after in pairs)


def test_a_lone_worker_has_no_links_that_could_be_slow():
    assert slowdowns(1, 1, 1, 100, MINUTE_S, rate=1.0, mix=only(link=1)) == ()
    assert slowdowns(1, 1, 1, 100, MINUTE_S, rate=1.0)
