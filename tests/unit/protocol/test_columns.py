"""Rows looked at by columns: what is good passes as it is, all else is refused as one by one."""

import json
import math

import pytest

from holdfast.errors import ProtocolError
from holdfast.protocol import messages
from holdfast.protocol.codec import decode, encode
from holdfast.protocol.records import OperationTime, Transfers

GOOD = messages.StepReport(
    worker="1.0",
    step=3,
    losses=[],
    num_tokens=4,
    norm=1.0,
    clipped=False,
    skipped=False,
    taken_back=False,
    nonfinite=False,
    operations=[OperationTime(f"0F{m}", 1.0 + m, 2.0 + m, 0.5, 64) for m in range(5)],
    transfers=[Transfers("0.0", "reduction", 1, 10, -0.5), Transfers("1.1", "probe", 1, 10, 0.5)],
)


def changed(field: str, row: int, column: int, value: object) -> bytes:
    values = json.loads(encode(GOOD)[4:])
    values[field][row][column] = value
    return json.dumps(values).encode()


def test_good_rows_come_through_as_they_are_each_time():
    for _ in range(2):
        found = decode(encode(GOOD)[4:])
        assert found == GOOD
        assert type(found.operations[4]) is OperationTime


@pytest.mark.parametrize(
    ("field", "row", "column", "value", "where"),
    [
        ("operations", 4, 0, "0F4/..", "operations[4].op"),
        ("operations", 4, 0, 7, "operations[4].op"),
        ("operations", 4, 0, None, "operations[4].op"),
        ("operations", 4, 0, ["0F4"], "operations[4].op"),
        ("operations", 2, 1, math.nan, "operations[2].start_s"),
        ("operations", 0, 1, math.nan, "operations[0].start_s"),
        ("operations", 2, 2, math.inf, "operations[2].end_s"),
        ("operations", 2, 2, -math.inf, "operations[2].end_s"),
        ("operations", 2, 2, -0.1, "operations[2].end_s"),
        ("operations", 2, 2, 1e13, "operations[2].end_s"),
        ("operations", 2, 2, "1.0", "operations[2].end_s"),
        ("operations", 2, 2, True, "operations[2].end_s"),
        ("operations", 1, 4, 1.5, "operations[1].elements"),
        ("operations", 1, 4, True, "operations[1].elements"),
        ("operations", 1, 4, -1, "operations[1].elements"),
        ("operations", 1, 4, 1 << 54, "operations[1].elements"),
        ("transfers", 1, 1, "gossip", "transfers[1].purpose"),
        ("transfers", 1, 0, "1.1.1", "transfers[1].source"),
    ],
)
def test_a_bad_value_in_one_row_is_found_and_named(field, row, column, value, where):
    with pytest.raises(ProtocolError) as refused:
        decode(changed(field, row, column, value))
    assert f"StepReport.{where}=" in str(refused.value)


@pytest.mark.parametrize("row", [[], ["0F1", 1.0, 2.0, 0.5], ["0F1", 1.0, 2.0, 0.5, 1, 1], {}, 3])
def test_a_row_of_another_length_or_kind_is_refused(row):
    values = json.loads(encode(GOOD)[4:])
    values["operations"][1] = row
    with pytest.raises(ProtocolError, match=r"operations\[1\]"):
        decode(json.dumps(values).encode())


def test_a_whole_number_for_seconds_is_taken_as_before():
    found = decode(changed("operations", 1, 1, 2))
    assert found.operations[1].start_s == 2.0
    assert type(found.operations[1].start_s) is float
