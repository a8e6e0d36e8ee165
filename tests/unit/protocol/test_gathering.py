"""Heartbeats and reports as rows that agents pass on: what comes out is what went in."""

from dataclasses import replace

import pytest

from holdfast.errors import ProtocolError
from holdfast.protocol import codec, messages
from holdfast.protocol.gathering import (
    beats_of,
    check_numbers,
    gathered_beat,
    gathered_report,
    heartbeat_of,
    reports_of,
    speakers,
    together,
)
from holdfast.protocol.records import AliveRow, MicrobatchLoss, OperationTime, Transfers


def beat(worker: str, **more) -> messages.Heartbeat:
    values = {
        "epoch": 1, "step": 7, "attempt": 0, "done": 3, "operation": "F", "number": 12,
        "microbatch": 2, "busy_s": 0.25, "longest": {"F": 0.5, "B": 0.75}, "saving": True,
        "renewed": 9,
    }  # fmt: skip
    return messages.Heartbeat(worker=worker, **(values | more))


def report(worker: str, step: int, num_operations: int = 2) -> messages.StepReport:
    times = [OperationTime(f"1F{n}", 1.0 + n, 1.5 + n, 0.4, 100) for n in range(num_operations)]
    return messages.StepReport(
        worker=worker,
        step=step,
        losses=[MicrobatchLoss(0, 2.5), MicrobatchLoss(1, 2.25)],
        num_tokens=64,
        norm=1.5,
        clipped=True,
        skipped=False,
        taken_back=False,
        nonfinite=False,
        operations=times,
        transfers=[Transfers("0.0", "pipeline", 2, 4096, 0.001)],
    )


SAID = [beat("0.0"), beat("0.1", longest={}, operation="", number=-1, microbatch=-1, saving=False)]
TOLD = [report("0.0", 6), report("0.1", 6, num_operations=0), report("0.0", 7, num_operations=5)]


def gathered() -> messages.Gathered:
    reports = [gathered_report(one, 1, 10 + number) for number, one in enumerate(TOLD)]
    return together([*map(gathered_beat, SAID), *reports])


def over_the_wire(message: messages.Message) -> messages.Message:
    return codec.decode(codec.body_of(codec.encode(message)))


def test_each_word_comes_back_as_it_was_said() -> None:
    passed_on = over_the_wire(gathered())
    assert list(map(heartbeat_of, beats_of(passed_on))) == SAID
    found = list(reports_of(passed_on))
    assert [word.message for word in found] == TOLD
    assert [word.said for word in found] == [10, 11, 12]
    assert {word.epoch for word in found} == {1}


def test_who_speaks_is_known() -> None:
    assert speakers(gathered()) == {"0.0", "0.1"}
    assert speakers(replace(gathered(), alive=[AliveRow("1.1")])) == {"0.0", "0.1", "1.1"}


@pytest.mark.parametrize("name", ["longest", "losses", "operations", "transfers"])
@pytest.mark.parametrize("change", [lambda rows: rows[1:], lambda rows: [*rows, rows[0]]])
def test_rows_that_are_missing_or_too_many_are_refused(name, change) -> None:
    bad = replace(gathered(), **{name: change(getattr(gathered(), name))})
    with pytest.raises(ProtocolError, match=r"Gathered: .* rows; expected"):
        check_numbers(bad)


@pytest.mark.parametrize(
    ("field", "value"), [("step", -1), ("worker", "../x"), ("saving", 1), ("busy_s", float("nan"))]
)
def test_a_bad_value_in_any_row_is_refused(field, value) -> None:
    whole = gathered()
    bad = replace(whole, beats=[whole.beats[0], whole.beats[1]._replace(**{field: value})])
    with pytest.raises(ProtocolError, match=rf"Gathered\.beats\[1\]\.{field}"):
        over_the_wire(bad)
