"""The simulator beside published figures and real runs, all policies in a matrix, a short hunt.

Simulated: nothing is trained; in section real worker processes sleep instead of computing. The last
line is JSON. A long hunt is ``bench/hunt.py``.

    .venv/bin/python bench/simulate.py [--quick] [--hunt-seeds 100]
        [--section published|matrix|depths|speed|real|resolutions|hunt]
"""

import argparse
import json
import sys
from statistics import mean
from typing import Any

from hunt import hunt_all, warm_up
from simulate_matrix import cells, line, matrix_figures, seconds_24h, without_floor
from simulate_published import average_figures, curve_figures, table_figures
from simulate_real import add_flags, real
from simulate_resolutions import resolutions

SECTIONS = ("published", "matrix", "depths", "speed", "real", "resolutions", "hunt")
QUICK_SIZES = (24, 128)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="24 and 128 workers, no long runs")
    parser.add_argument("--section", choices=SECTIONS, action="append")
    parser.add_argument("--hunt-seeds", type=int, default=100, metavar="N", help="default: 100")
    add_flags(parser.add_argument_group("section real"))
    parser.add_argument("--worlds", type=int, default=12, help="of section resolutions (12)")
    args = parser.parse_args()
    chosen = args.section or SECTIONS
    figures: dict[str, Any] = {}
    if "published" in chosen:
        figures |= published()
    if "matrix" in chosen:
        figures |= matrix(args.quick)
    if "depths" in chosen:
        figures |= depths()
    if "speed" in chosen:
        figures |= speed(args.quick)
    if "hunt" in chosen:
        warm_up()
        figures |= hunt_all(0, args.hunt_seeds)
    if "real" in chosen:
        figures |= real(args)
    if "resolutions" in chosen:
        figures |= resolutions(args.quick, args.worlds)
    print(json.dumps(figures))
    return 0


def published() -> dict[str, Any]:
    curve, averages, table = curve_figures(), average_figures(), table_figures()
    print("ReCycle's curve, 24 to 15 GPUs:", curve["ours"], curve["published"])
    print("9 dead, by micro-batches a pipeline:", curve["nine_dead"])
    for name, row in (averages["rows"] | table["rows"]).items():
        print(f"{name:28} {row}")
    kept = ("recycle_curve_error", "recycle_curve_error_to_8_dead")
    figures = {name: curve[name] for name in kept}
    figures |= {name: value for name, value in averages.items() if name != "rows"}
    figures["oobleck_table_error"] = table["oobleck_table_error"]
    figures["oobleck_table_by_system"] = table["by_system"]
    return figures


def matrix(quick: bool) -> dict[str, Any]:
    found = []
    for cell in cells(QUICK_SIZES) if quick else cells():
        print(line(cell), flush=True)
        found.append(cell)
    return matrix_figures(found)


def depths() -> dict[str, Any]:
    """How the ratio over ReCycle depends on the micro-batches a pipeline: 2, 4 and 8 S."""
    figures: dict[str, Any] = {}
    for depth in (2, 4, 8):
        found = list(cells((128,), ("30m", "10m"), depths=depth))
        ratios = [cell.over_recycle for cell in found if cell.over_recycle]
        least = min(cell.margin for cell in found)
        figures[f"{depth}S"] = {"mean": round(mean(ratios), 3), "least_margin": round(least, 3)}
        print(f"{depth} S micro-batches a pipeline, 128 workers: {figures[f'{depth}S']}")
    free = round(without_floor(), 3)
    return {"over_recycle_by_microbatches": figures, "over_recycle_without_floor": free}


def speed(quick: bool) -> dict[str, float]:
    sizes = (1024,) if quick else (1024, 16384)
    return {f"seconds_{size}_24h": round(seconds_24h(size), 1) for size in sizes}


if __name__ == "__main__":
    sys.exit(main())
