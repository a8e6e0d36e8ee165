"""Is the right one named? Whole runs with injected slowness, which is watched but left as it is.

Coordinator, executor, detection, injection and benchmarks are the real ones; devices are emulated
(operations sleep), workers are threads of one process, and the transport is in memory. Noise is
what this machine adds. Ragged work is not here: an emulated operation takes its time whatever its
input.

Must be told: a worker slower by 15 % or a link by half an operation, 8 steps in a row. May be told:
whoever is less slow, or for 2 to 7 steps. Nobody else may, so also no single slow step ("dips").
Right: all are told that must be, before they are healthy again (plus GRACE steps), and nobody is
who may not. Imbalance of model or data is no slowness; "slow machine" is wrong, as none is.
A run that fails is not right, nor localised.

    .venv/bin/python bench/detect_runs.py [--runs 300] [--processes 2]
"""

import argparse
import io
import json
import math
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from itertools import count, groupby
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.detection.diagnosis import Cause
from holdfast.faults.fault import Fault
from holdfast.faults.slowdowns import Mix, slowdowns
from holdfast.observability.events import (
    EVENTS_FILE,
    Diagnosed,
    Event,
    FaultFired,
    SlownessOver,
    WorkerStep,
    read_events,
)

FIRST_SEED = 2_000_000  # nothing was tuned with seeds from here on
SEEDS_A_RUN = 1000
NUM_RUNS, NUM_QUICK, NUM_PROCESSES = 300, 6, 2
STEPS, FIRST_FAULT = 60, 16  # healthy times are learnt before it, and benchmarked
WARM_UP_STEPS = 2
OP_MS, PER_PIPELINE = 4, 4
LEAST_FACTOR, LEAST_DELAY_S, LEAST_STEPS = 1.15, OP_MS / 2e3, 8
GRACE = 5
LATE = 1.1
LIMIT_S = 150.0  # a run takes some seconds
EXAMPLE = Path(__file__).parents[1] / "examples" / "tiny_gpt.py"  # its layers are not used
SETTINGS = (
    *("workers.kind=threads", "mitigation.mode=observe"),
    f"device.emulate=F={OP_MS}ms,B={OP_MS}ms,W={OP_MS}ms",
    *("checkpoint.every_steps=0", "checkpoint.at_end=false"),
)
NOTHING = Mix(compute=0, link=0, machine=0, ladder=0, burst=0, dips=0, compound=0)
MIXES = {
    "quiet": NOTHING,
    "dips": NOTHING.__class__(compute=0, link=0, machine=0, ladder=0, burst=0, dips=1),
    "compute": Mix(link=0, machine=0, ladder=0, burst=0, dips=0),
    "link": Mix(compute=0, machine=0, ladder=0, burst=0, dips=0, compound=0),
    "ladder": Mix(compute=0, link=0, machine=0, ladder=1, burst=0, dips=0),
    "compound": Mix(compute=0, machine=0, ladder=0, burst=0, dips=0, compound=1),
    "mixed": Mix(machine=0, ladder=1, burst=1, dips=1),
}
