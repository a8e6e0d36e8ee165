import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigError
from holdfast.schedule.operation import Fact, Kind, Op, Shape, What, makes, needs, parse_op

SHAPE = Shape(pipelines=2, stages=3, microbatches=4)


@given(
    st.integers(0, 200),
    st.sampled_from(Kind),
    st.integers(0, 10_000),
)
def test_an_operation_prints_as_one_word_and_parses_back(stage, kind, microbatch):
    op = Op(stage, kind, None if kind is Kind.R else microbatch)
    assert parse_op(str(op)) == op
    assert len(str(op).split()) == 1


def test_the_printed_words_are_those_of_the_wire():
    ops = [Op(2, Kind.F, 5), Op(2, Kind.B, 5), Op(2, Kind.W, 5), Op(2, Kind.BW, 5), Op(2, Kind.R)]
    assert list(map(str, ops)) == ["2F5", "2B5", "2W5", "2BW5", "2R"]


@pytest.mark.parametrize(
    "text", ["", "F5", "2F", "2R5", "2X5", "2WB5", "-1F0", "2F5 ", "2f5", "٢F5"]
)
def test_a_wrong_word_is_refused_with_the_word(text):
    with pytest.raises(ValueError, match=r"expected e\.g\. '2F5'") as caught:
        parse_op(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(("kind", "microbatch"), [(Kind.R, 0), (Kind.F, None)])
def test_only_r_has_no_microbatch(kind, microbatch):
    with pytest.raises(ValueError, match="for every kind but R"):
        Op(0, kind, microbatch)


@pytest.mark.parametrize(
    ("word", "needed"),
    [
        ("0F1", []),
        ("1F1", [(What.ACTIVATION, 0, 1)]),
        ("2B1", [(What.ACTIVATION, 2, 1)]),
        ("1B1", [(What.ACTIVATION, 1, 1), (What.GRADIENT, 2, 1)]),
        ("0BW1", [(What.ACTIVATION, 0, 1), (What.GRADIENT, 1, 1)]),
        ("0W1", [(What.GRADIENT, 0, 1)]),
        ("1R", [(What.WEIGHT, 1, m) for m in range(4)]),
    ],
)
def test_what_an_operation_needs(word, needed):
    assert needs(parse_op(word), SHAPE) == tuple(Fact(*fact) for fact in needed)


def test_with_a_global_optimizer_r_needs_the_weight_gradients_of_all_stages():
    needed = needs(Op(1, Kind.R), SHAPE, staggered=False)
    assert {(fact.stage, fact.microbatch) for fact in needed} == {
        (stage, m) for stage in range(3) for m in range(4)
    }


def test_fused_makes_what_both_parts_make():
    b, w, fused = Op(1, Kind.B, 3), Op(1, Kind.W, 3), Op(1, Kind.BW, 3)
    assert makes(fused) == makes(b) + makes(w)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((0, 1, 1), "pipelines = 0: expected at least 1"),
        ((1, -2, 1), "stages = -2: expected at least 1"),
        ((1, 1, 0), "microbatches = 0: expected at least 1"),
        ((2, 1, 3), "microbatches = 3: expected a multiple of pipelines = 2"),
    ],
)
def test_a_wrong_shape_is_refused_with_its_value(shape, message):
    with pytest.raises(ConfigError, match=message):
        Shape(*shape)
