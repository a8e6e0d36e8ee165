"""``holdfast k8s``: writes the manifests of a run on Kubernetes, as a JobSet."""

import argparse
import os
import re
import shlex
import sys
from pathlib import Path

from holdfast.auth.certificate import new_key
from holdfast.auth.secret import new_secret
from holdfast.cli import help_text
from holdfast.cli.passed_on import given_address, passes_on
from holdfast.errors import ConfigError
from holdfast.launch.k8s.manifests import manifests
from holdfast.launch.k8s.pods import K8sRun

_EXAMPLES = (
    "holdfast k8s job.py --image registry.example/holdfast:1 --machines 4 --output run.yaml \\\n"
    "      -- --pipelines 4 --stages 2 --steps 1000",
    "holdfast k8s /app/job.py --job-in-image --image registry.example/holdfast:1 --machines 8 \\\n"
    "      --start-with 6 --gpus 1 --memory 32Gi --claim runs",
)
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,29}[a-z0-9])?")  # "-coordinator-0-0" is put behind it
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|[KMGT]i?)?")
_MOST_JOB_BYTES = 900_000  # of a ConfigMap


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "k8s",
        help="write manifests for Kubernetes",
        description="Write the manifests of a run on Kubernetes, for kubectl apply. The cluster\n"
        "needs JobSet (jobset.x-k8s.io/v1alpha2), the image Python with Holdfast.\n"
        "What stands after -- is passed on to 'holdfast train'.",
        **help_text.parts(_EXAMPLES),
    )
    parser.add_argument("job", metavar="JOB.py", help="the job file; it goes into a ConfigMap")
    parser.add_argument(
        "--job-in-image", action="store_true", help="JOB is a path in the image, or a module there"
    )
    parser.add_argument("--image", required=True, help="of all pods")
    parser.add_argument("--machines", type=int, required=True, metavar="N", help="pods with agents")
    parser.add_argument(
        "--start-with", type=int, metavar="M", help="begin when so many are there (default: all)"
    )
    parser.add_argument(
        "--slots", type=int, metavar="N", help="workers on one machine (default: one a core)"
    )
    parser.add_argument("--name", default="", help="of the run (default: that of the file)")
    parser.add_argument("--namespace", default="", help="default: that of kubectl")
    parser.add_argument("--cpu", default="", metavar="Q", help="of one machine, e.g. 4")
    parser.add_argument("--memory", default="", metavar="Q", help="of one machine, e.g. 16Gi")
    parser.add_argument("--gpus", type=int, default=0, metavar="N", help="of one machine")
    parser.add_argument(
        "--claim",
        default="",
        metavar="NAME",
        help="a PersistentVolumeClaim for the run directory (default: it ends with the pod)",
    )
    parser.add_argument(
        "--secret", default="", metavar="NAME", help="a Secret that is there (default: a new one)"
    )
    parser.add_argument("--output", metavar="FILE", help="default: printed; it holds the secret")
    passes_on(parser, "train")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    _check(args)
    is_plain = "network.tls=off" in args.train
    key = None if is_plain else new_key("holdfast k8s without --set network.tls=off")
    text = manifests(_asked(args), new_secret(), key)
    if args.output is None:
        sys.stdout.write(text)
        return 0
    path = Path(args.output)
    path.unlink(missing_ok=True)  # its mode would stay
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    sys.stdout.write(
        f"wrote {path}; it holds the run's secret; start it with: "
        f"kubectl apply -f {shlex.quote(args.output)}\n"
    )
    return 0


def _asked(args: argparse.Namespace) -> K8sRun:
    stem = Path(args.job.partition(":")[0]).stem
    name = args.name or re.sub(r"[^a-z0-9-]", "-", stem.lower()).strip("-")[:31].strip("-")
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"--name {name}: expected up to 31 small letters, digits and '-', a letter first"
        )
    return K8sRun(
        name=name,
        image=args.image,
        machines=args.machines,
        start_with=args.machines if args.start_with is None else args.start_with,
        job=args.job if args.job_in_image else "",
        job_text="" if args.job_in_image else _job_text(args.job),
        namespace=args.namespace,
        secret_name=args.secret,
        slots=args.slots,
        cpu=args.cpu,
        memory=args.memory,
        gpus=args.gpus,
        claim=args.claim,
        address=given_address(args.train),
        train=args.train,
    )


def _job_text(path: str) -> str:
    expected = "one that is in the image is given with --job-in-image"
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as why:
        said = why.strerror if isinstance(why, OSError) else "not UTF-8"
        raise ConfigError(f"{path}: cannot be read ({said}); {expected}") from why
    if len(text.encode()) > _MOST_JOB_BYTES:
        raise ConfigError(f"{path}: is too large for a ConfigMap; {expected}")
    return text


def _check(args: argparse.Namespace) -> None:
    start_with = args.machines if args.start_with is None else args.start_with
    if args.machines < 1:
        raise ConfigError(f"--machines {args.machines}: expected at least 1")
    if not 1 <= start_with <= args.machines:
        raise ConfigError(f"--start-with {start_with}: expected 1 to {args.machines}")
    if args.slots is not None and args.slots < 1:
        raise ConfigError(f"--slots {args.slots}: expected at least 1")
    if args.gpus < 0:
        raise ConfigError(f"--gpus {args.gpus}: expected 0 or more")
    for flag, quantity in (("--cpu", args.cpu), ("--memory", args.memory)):
        if quantity and not _QUANTITY.fullmatch(quantity):
            raise ConfigError(f"{flag} {quantity}: expected a quantity, e.g. 4 or 16Gi")
