"""What is wrong with machines: each fault alone is named, with where and what to do."""

from dataclasses import replace
from itertools import permutations

import pytest

from holdfast.cli.report.preflight import report
from holdfast.clocks import ClockOffset
from holdfast.errors import ProtocolError
from holdfast.launch.preflight.facts import LinkFacts, MachineFacts, link_facts, machine_facts
from holdfast.launch.preflight.findings import Surveyed
from holdfast.launch.preflight.survey import rounds

NAMES = ("a", "b", "c")
GOOD = LinkFacts("", 0.1e-3, 1e9)


def machine(name, **words):
    facts = MachineFacts(name, f"10.0.0.{ord(name)}", 4000, "0.2.0", "3.11.7", "2.13.0", 8)
    return replace(facts, **words)


def surveyed(machines=None, links=None, clocks=None, **words):
    machines = [machine(name) for name in NAMES] if machines is None else machines
    every = dict.fromkeys(permutations(NAMES, 2), GOOD) | (links or {})
    steady = dict.fromkeys(NAMES, ClockOffset(0.0, 1e-4, 2e-4)) | (clocks or {})
    return Surveyed(machines, every, steady, **{"wanted": 3, **words})


def only(found):
    [finding] = found.findings()
    return str(finding), finding.is_fatal


def test_nothing_is_said_of_machines_that_are_well():
    assert surveyed().findings() == []
    assert list(report(surveyed(), 100))[-1] == "all is well: 3 machines, 6 ways between"


def test_a_way_that_is_closed_is_named_with_its_direction():
    bad = surveyed(links={("a", "b"): LinkFacts("timed out")})
    assert only(bad) == (
        "a -> b: cannot be reached at 10.0.0.98:4000 (timed out); open the ports of b for a, or "
        "let b advertise another address",
        True,
    )
    row = next(line for line in report(bad, 100) if line.startswith("a "))
    assert row.endswith("1 machine not reached")


@pytest.mark.parametrize(("bytes_per_s", "is_named"), [(0.2e9, True), (0.3e9, False), (10e6, True)])
def test_a_slow_link_is_named(bytes_per_s, is_named):
    found = surveyed(links={("b", "c"): replace(GOOD, bytes_per_s=bytes_per_s)}).findings()
    assert [each.where for each in found] == (["b -> c"] if is_named else [])
    assert not any(each.is_fatal for each in found)


def test_links_that_are_all_slow_are_named_too():
    slow = replace(GOOD, bytes_per_s=1e6)
    found = surveyed(links=dict.fromkeys(permutations(NAMES, 2), slow)).findings()
    assert [str(each).partition(";")[0] for each in found] == (
        ["a, all its links: slow: 8 Mbit/s", "b <-> c: slow: 8 Mbit/s"]
    )


def test_a_machine_with_a_bad_cable_is_named_once():
    bad = {
        pair: replace(GOOD, round_trip_s=20e-3) for pair in permutations(NAMES, 2) if "c" in pair
    }
    [found] = surveyed(links=bad).findings()
    assert str(found).startswith("c, all its links: far: 20 ms there and back, others have 0.1 ms;")


@pytest.mark.parametrize(("way_s", "is_named"), [(2e-3, True), (0.8e-3, False)])
def test_a_far_machine_is_named(way_s, is_named):
    found = surveyed(links={("a", "c"): replace(GOOD, round_trip_s=way_s)}).findings()
    assert [each.where for each in found] == (["a -> c"] if is_named else [])


@pytest.mark.parametrize(
    ("what", "version", "is_fatal"),
    [("holdfast", "0.1.0", True), ("torch", "2.12.0", True), ("python", "3.12.1", False)],
)
def test_another_version_is_named(what, version, is_fatal):
    machines = [machine("a"), machine("b", **{what: version}), machine("c")]
    text, found_fatal = only(surveyed(machines))
    assert text.startswith(f"b: has {what} {version}, others have ")
    assert found_fatal is is_fatal


@pytest.mark.parametrize("offset_s", [-3600.0, 3.0])
def test_a_clock_that_is_off_is_named(offset_s):
    text, is_fatal = only(surveyed(clocks={"c": ClockOffset(offset_s, 1e-4, 0.1)}))
    assert text.startswith(f"c: its clock is {offset_s:+.1f} s off; set it")
    assert not is_fatal


def test_a_clock_of_which_little_is_known_is_not_blamed():
    assert surveyed(clocks={"c": ClockOffset(3.0, 1e-4, 2.5)}).findings() == []


def test_machines_that_have_not_come_are_named_with_the_reason():
    text, is_fatal = only(surveyed(missing={"d": "no key"}, wanted=4))
    assert (text, is_fatal) == ("d: no key; then look again", True)
    text, is_fatal = only(surveyed(wanted=4))
    assert text.startswith("machines: 3 of 4 have come; start 'holdfast preflight'")
    assert is_fatal
    [first, *_] = report(Surveyed([], {}, wanted=2), 100)
    assert first.startswith("WRONG  machines: 0 of 2")


def test_what_is_wrong_comes_before_what_may_be_checked():
    both = surveyed(
        links={("a", "b"): LinkFacts("refused"), ("b", "a"): replace(GOOD, bytes_per_s=1e6)}
    )
    assert [each.is_fatal for each in both.findings()] == [True, False]


@pytest.mark.parametrize("num", [2, 3, 4, 7, 8])
def test_each_pair_is_in_one_round_and_nobody_twice_in_a_round(num):
    names = [str(at) for at in range(num)]
    found = rounds(names)
    pairs = [frozenset(pair) for each in found for pair in each]
    assert len(pairs) == len(set(pairs)) == num * (num - 1) // 2
    for each in found:
        busy = [name for pair in each for name in pair]
        assert len(busy) == len(set(busy))
    assert len(found) == num - 1 + num % 2


def test_one_machine_alone_has_no_pairs():
    assert rounds(["a"]) == [[]]


def test_facts_are_read_as_they_were_told():
    assert machine_facts(machine("a").told()) == machine("a")
    assert link_facts(GOOD.told()) == GOOD
    for wrong in ({}, {**GOOD.told(), "x": 1}, {**GOOD.told(), "round_trip_s": "1"}):
        with pytest.raises(ProtocolError):
            link_facts(wrong)
