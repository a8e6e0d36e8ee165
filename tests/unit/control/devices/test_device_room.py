"""Micro-batches in flight by the memory of devices: the estimate, as a table."""

import pytest

from helpers.harness.coordinator_world import hello
from holdfast.config import config_from
from holdfast.control.device_room import device_room, limited_by_device, most_in_flight
from holdfast.protocol.records import LayerSize

STAGES = [range(0, 2), range(2, 4)]
MIB = 1 << 20
# A million numbers in fp32, 1 MiB in, 9 MiB between.
LAYER = LayerSize(4 * MIB, MIB, 0, MIB, 9 * MIB)
LAYERS = [LAYER] * 4
FAST = {"gradients": {"mode": "fast"}}
UNDO = {"recovery": {"consistency": "undo"}}
AGAIN = {"stage": {"checkpoint_activations": True}}
PARALLEL = {"stages": 2, "microbatches": 8}


def config(*sections):
    settings = {"parallel": PARALLEL}
    for section in sections:
        settings |= section
    return config_from(settings)


# Bytes a number: parameter 4, optimizer 8, and sums 12 or 4, a step back 12 or 2. Of each
# micro-batch the first stage keeps 2 x 10 MiB and its output: 21.
@pytest.mark.parametrize(
    ("room_mib", "sections", "expected"),
    [
        (1000, (), 4),  # twice the stages, whatever else there is room for
        (72 + 84, (), 4),
        (72 + 83, (), 3),
        (72 + 63, (), 3),
        (72 + 62, (), 2),
        (72 + 21, (), 1),
        (0, (), 1),
        (56 + 42, (FAST,), 2),
        (56 + 41, (FAST,), 1),
        (36 + 42, (FAST, UNDO), 2),
        (36 + 41, (FAST, UNDO), 1),
        # Inputs only, and the inner part of one layer while it is computed again.
        (72 + 9 + 6, (AGAIN,), 2),
        (72 + 9 + 5, (AGAIN,), 1),
        (72 + 8 + 42, ({"train": {"ema": 0.9}},), 2),
        (72 + 8 + 41, ({"train": {"ema": 0.9}},), 1),
        # More holders of a stage keep older weights.
        (72 + 16 + 42, ({"parallel": PARALLEL | {"pipelines": 2}},), 2),
        (72 + 16 + 41, ({"parallel": PARALLEL | {"pipelines": 2}},), 1),
    ],
)
def test_so_many_fit(room_mib, sections, expected):
    assert most_in_flight(room_mib * MIB, LAYERS, STAGES, config(*sections)) == expected


def test_the_stage_with_the_least_room_decides():
    large = LAYER._replace(inner_bytes=60 * MIB)
    assert most_in_flight((72 + 150) * MIB, [*LAYERS[:3], large], STAGES, config()) == 2
    assert most_in_flight((72 + 150) * MIB, [large, *LAYERS[1:]], STAGES, config()) == 2


def test_frozen_parameters_have_no_gradients_and_no_optimizer():
    frozen = [LAYER._replace(trained=0)] * 4
    assert most_in_flight((8 + 63) * MIB, frozen, STAGES, config()) == 3


@pytest.mark.parametrize(("masters", "expected"), [(True, 2), (False, 3)])
def test_masters_take_room(masters, expected):
    low = [LAYER._replace(held_bytes=2 * MIB, trained_low=MIB)] * 4
    asked = config({"optimizer": {"masters": masters}})
    assert most_in_flight((68 + 8 + 62) * MIB, low, STAGES, asked) == expected


def test_layers_that_keep_nothing_leave_the_usual_limit():
    empty = [LayerSize(0, 0, 0, 0, 0)] * 4
    assert most_in_flight(MIB, empty, STAGES, config()) == 4


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ([("a", 0, 0), ("a", 0, 0)], 0),
        ([("a", 0, 1000), ("a", 1, 1000)], 900),
        ([("a", 0, 1000), ("a", 1, 800)], 720),
        ([("a", 0, 1000), ("b", 0, 1000)], 900),
        ([("a", 0, 1000), ("a", 0, 1000)], 450),  # they share it
        ([("a", 0, 1000), ("a", 0, 0)], 900),  # the other one is on the processor
    ],
)
def test_the_smallest_share_of_a_device_counts(devices, expected):
    hellos = [
        hello(f"0.{stage}", host=host, device_index=index, device_bytes=size)
        for stage, (host, index, size) in enumerate(devices)
    ]
    assert device_room(hellos) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("in_flight", "settings", "expected"),
    [
        (3, {}, 3),
        (4, {}, 0),
        (3, {"parallel": {"stages": 2, "microbatches": 3}}, 0),
        (3, {"schedule": {"memory": 3}}, 0),
    ],
)
def test_it_is_told_where_it_limits(in_flight, settings, expected):
    assert limited_by_device(in_flight, config(settings)) == expected
