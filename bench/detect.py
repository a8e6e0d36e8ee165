"""Is slowness noticed, and rightly blamed? Synthetic series, and runs with injected slowness.

    .venv/bin/python bench/detect.py [--section series|runs|all] [--series 2000] [--tuning]

The last line is one JSON object. Targets: accuracy 0.995, false positives 0.002 of the negative
series, false negatives 0.01 of the positive ones, a drop of 20 % told within 5 iterations.
"""

import argparse
import json
from typing import Any

import detect_series

Figures = dict[str, Any]


def series_section(args: argparse.Namespace) -> Figures:
    seed = detect_series.TUNING_SEED if args.tuning else detect_series.TEST_SEED
    return detect_series.run(args.series, seed)


def runs_section(args: argparse.Namespace) -> Figures:
    import detect_runs  # real processes: loaded only if asked for

    figures: Figures = detect_runs.run(quick=args.quick)
    return figures


SECTIONS = {"series": series_section, "runs": runs_section}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--section", choices=[*SECTIONS, "all"], default="all")
    parser.add_argument("--series", type=int, default=2000, help="how many synthetic ones (2000)")
    parser.add_argument("--tuning", action="store_true", help="the series used for tuning")
    parser.add_argument("--quick", action="store_true", help="few runs")
    args = parser.parse_args(arguments)
    if args.series < 2:
        parser.error(f"--series {args.series}: expected at least 2, one of each half")
    return args


def main() -> None:
    args = parse()
    figures: Figures = {"localised": None}
    for name, section in SECTIONS.items():
        if args.section in (name, "all"):
            figures |= section(args)
            print()
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
