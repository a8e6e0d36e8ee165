from xml.etree import ElementTree

import pytest

from holdfast.planner.schedules import make
from holdfast.schedule.costs import Costs
from holdfast.schedule.generate import one_f_one_b
from holdfast.schedule.operation import Shape
from holdfast.schedule.render import grid, svg
from holdfast.schedule.schedule import loads
from holdfast.schedule.timeline import timeline

KEY = (
    "F forward, B input gradient, W weight gradient, {} both gradients, R reduce and optimizer step"
)
SVG = "{http://www.w3.org/2000/svg}"


def drawn(schedule, costs, **options):
    return grid(schedule, timeline(schedule, costs, steps=1), **options)


def test_with_room_every_operation_is_named():
    text = drawn(one_f_one_b(Shape(1, 2, 2)), Costs.uniform(2, step_s=1))
    assert text.splitlines() == [
        "0.0 F0- F1- ........BW0---- ....BW1---- R--",
        "0.1 ....F0- BW0---- F1- BW1---- R--",
        KEY.format("BW") + ", . idle",
    ]


def test_without_room_every_operation_is_a_letter():
    text = drawn(one_f_one_b(Shape(1, 2, 2)), Costs.uniform(2, step_s=1), width=16)
    assert text.splitlines() == [
        "0.0 FF..X-.X-R",
        "0.1 .FX-FX-R",
        KEY.format("X") + ", . idle",
    ]


def test_an_operation_of_a_guest_stage_is_named_in_full():
    guest = loads("schedule pipelines=1 stages=2 microbatches=1\n0.0: 0F0 1F0 1BW0 0BW0 0R 1R\n")
    assert "0.0 F0-- 1F0- " in drawn(guest, Costs.uniform(2))


@pytest.mark.parametrize("width", [20, 40, 80, 300])
def test_rows_keep_to_the_width(width):
    costs = Costs.uniform(4, forward_s=0.7, input_s=1.1, weight_s=0.9, step_s=0.05, link_s=0.03)
    rows = drawn(make("zero-bubble", Shape(2, 4, 16), costs, 8), costs, width=width).splitlines()
    assert len(rows) == 9
    assert max(map(len, rows[:-1])) <= width


def test_the_svg_is_well_formed_with_a_box_and_a_tooltip_for_every_operation():
    costs = Costs.uniform(3, step_s=0.5)
    schedule = make("zero-bubble", Shape(2, 3, 8), costs, 6)
    found = timeline(schedule, costs)
    root = ElementTree.fromstring(svg(schedule, found))
    tooltips = [title.text for title in root.findall(f"{SVG}g/{SVG}title")]
    assert len(tooltips) == len(found.spans)
    assert "step 0, worker 0.0, 0F0: 0 to 1 s" in tooltips
    labels = {text.text for text in root.findall(f"{SVG}text")}
    assert {"0.0", "1.2", "F forward", "BW both gradients"} <= labels
