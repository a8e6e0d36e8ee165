"""``holdfast export``: the model of a run, in a format that others read."""

import argparse
import sys
from pathlib import Path

from holdfast.checkpoint_address import is_address
from holdfast.cli import help_text
from holdfast.cli.terminal.complaints import say

_FORMATS = """\
formats:
  safetensors   model.safetensors, or several files and an index
  hf            a folder for from_pretrained: the same with config.json; only
                for jobs whose model is one of transformers
  dcp           torch.distributed.checkpoint"""
_EXAMPLES = (
    "holdfast export runs/a --to safetensors",
    "holdfast export runs/a --to dcp --step 20 --out a-dcp",
    "holdfast export s3://bucket/run --to safetensors --out a --force",
)


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "export",
        help="write the model of a run in a format that others read",
        description="Write parameters and persistent buffers of a checkpoint, under the model's\n"
        "own names. What is written has its name when it is whole.",
        **help_text.parts(_EXAMPLES, _FORMATS),
    )
    parser.add_argument(
        "run_dir",
        metavar="RUN",
        help="directory of a run, or of one of its checkpoints, or an address (s3://bucket/run)",
    )
    parser.add_argument(
        "--to",
        default="safetensors",
        metavar="FORMAT",
        help="safetensors, hf or dcp (default: safetensors)",
    )
    parser.add_argument(
        "--out", metavar="DIR", help="where to write it (default: RUN/exports/STEP-FORMAT)"
    )
    parser.add_argument(
        "--step", type=int, metavar="N", help="of this checkpoint (default: the newest)"
    )
    parser.add_argument("--force", action="store_true", help="replace an export that is there")
    parser.add_argument(
        "--ema", action="store_true", help="the average of the weights that train.ema has kept"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from holdfast.weights.exporting import export

    place = args.run_dir if is_address(args.run_dir) else Path(args.run_dir)
    written = export(
        place,
        args.to,
        args.out,
        step=args.step,
        force=args.force,
        say=lambda line: say(line),
        ema=args.ema,
    )
    sys.stdout.write(f"exported to {written}\n")
    return 0
