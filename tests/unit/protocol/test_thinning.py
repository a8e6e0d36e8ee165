"""Agents pass on what is news of heartbeats, and else only that there was one."""

import pytest

from holdfast.protocol import messages
from holdfast.protocol.gathering import (
    beats_of,
    gathered_beat,
    gathered_report,
    heartbeat_of,
    reports_of,
    together,
)
from holdfast.protocol.thinning import Thinning


def beat(worker: str = "0.0", **more) -> messages.Heartbeat:
    values = {
        "epoch": 1, "step": 7, "attempt": 0, "done": 3, "operation": "F", "number": 12,
        "microbatch": 2, "busy_s": 0.25, "longest": {},
    }  # fmt: skip
    return messages.Heartbeat(worker=worker, **(values | more))


def passed_on(
    thinning: Thinning, *beats: messages.Heartbeat, beat_s: float = 0.4
) -> tuple[list[messages.Heartbeat], list[str]]:
    found = thinning.thinned(together(map(gathered_beat, beats)), beat_s)
    return [heartbeat_of(one) for one in beats_of(found)], [row.worker for row in found.alive]


@pytest.mark.parametrize(("beat_s", "every"), [(0.05, 20), (0.2, 5), (0.4, 2), (1.0, 1), (1.6, 1)])
def test_details_come_about_once_a_second(beat_s, every) -> None:
    thinning = Thinning()
    for number in range(2 * every + 1):
        told = beat(done=number)
        expected = ([told], []) if number % every == 0 else ([], ["0.0"])
        assert passed_on(thinning, told, beat_s=beat_s) == expected


@pytest.mark.parametrize("news", [{"epoch": 2}, {"attempt": 1}, {"saving": True}, {"renewed": 5}])
def test_what_is_acted_on_is_told_at_once(news) -> None:
    thinning = Thinning()
    passed_on(thinning, beat())
    assert passed_on(thinning, beat(**news)) == ([beat(**news)], [])
    assert passed_on(thinning, beat(**news)) == ([], ["0.0"])


def test_the_longest_of_the_meantime_is_told() -> None:
    thinning = Thinning()
    for longest in ({"F": 0.1}, {"F": 0.3, "B": 0.2}, {}, {"F": 0.2, "W": 0.4}):
        passed_on(thinning, beat(longest=longest), beat_s=0.25)
    told = {"F": 0.3, "B": 0.2, "W": 0.5}
    assert passed_on(thinning, beat(longest={"W": 0.5}), beat_s=0.25) == ([beat(longest=told)], [])
    for _ in range(3):
        passed_on(thinning, beat(), beat_s=0.25)
    assert passed_on(thinning, beat(), beat_s=0.25) == ([beat(longest={})], [])


def test_of_several_heartbeats_the_newest_counts() -> None:
    said = [beat(done=1, longest={"F": 0.5}), beat("0.1"), beat(done=2, longest={"F": 0.1})]
    told = [beat(done=2, longest={"F": 0.5}), beat("0.1")]
    assert passed_on(Thinning(), *said) == (told, [])


def test_one_that_was_mute_tells_all_when_it_is_heard_again() -> None:
    thinning = Thinning()
    passed_on(thinning, beat(), beat("0.1"), beat_s=0.2)
    for _ in range(4):
        passed_on(thinning, beat("0.1"), beat_s=0.2)
    assert passed_on(thinning, beat(busy_s=1.0), beat_s=0.2)[0] == [beat(busy_s=1.0)]


@pytest.mark.parametrize("end", [lambda t: t.forget("0.0"), lambda t: t.begin_anew()])
def test_another_process_or_another_coordinator_begins_with_all(end) -> None:
    thinning = Thinning()
    passed_on(thinning, beat())
    end(thinning)
    assert passed_on(thinning, beat()) == ([beat()], [])


def test_reports_stay_as_they_are() -> None:
    report = messages.StepReport(
        worker="0.0", step=4, losses=[], num_tokens=0, norm=1.0, clipped=False, skipped=False,
        taken_back=False, nonfinite=False, operations=[], transfers=[],
    )  # fmt: skip
    from_agent = gathered_report(report, 1, 3)
    thinned = Thinning().thinned(together([from_agent, gathered_beat(beat())]), 0.4)
    assert list(map(heartbeat_of, beats_of(thinned))) == [beat()]
    assert [(word.message, word.said) for word in reports_of(thinned)] == [(report, 3)]
