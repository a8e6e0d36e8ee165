"""What a worker of two ranks would need and cost: a stage with tensor-parallel layers over gloo.

    .venv/bin/python bench/worker_groups.py [--microbatches 40] [--width 512] [--rounds 3]

A prototype for decision 0040, no part of the runtime: two processes hold half of each layer by
``torch.distributed.tensor``, and both run the project's own Stage. It looks at bits (backward whole
and split, processes started twice) and at what one more agreement for each operation would take.
Both ranks share this machine's cores. The last line is JSON.
"""

import argparse
import hashlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.multiprocessing.spawn import spawn
from torch.nn import functional as F

from holdfast.runtime.stage.stage import Stage

RANKS, LAYERS, SAMPLES, TOKENS = 2, 3, 4, 64
Queue = Any  # of multiprocessing: its type takes no parameter at run time


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.down(F.gelu(self.up(self.norm(x))))
        return x + hidden


class Sums:
    native = False

    def __init__(self) -> None:
        self.of: dict[int, Tensor] = {}

    def add(self, slot: int, gradient: Tensor) -> None:
        mine = gradient.to_local() if isinstance(gradient, DTensor) else gradient
        self.of[slot] = self.of[slot] + mine if slot in self.of else mine.clone()

    def digest(self) -> str:
        parts = (tensor.numpy().tobytes() for _, tensor in sorted(self.of.items()))
        return hashlib.sha256(b"".join(parts)).hexdigest()


def rank_of_a_worker(rank: int, meeting: str, width: int, microbatches: int, found: Queue) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    told: dict[str, Any] = {"rank": rank}
    for way in ("whole", "split"):
        told[way], told[f"{way}_s"] = train(width, microbatches, split=way == "split", agree=False)
    _, told["agreed_s"] = train(width, microbatches, split=True, agree=True)
    started = time.perf_counter()
    for _ in range(200):
        dist.barrier()
    told["barrier_s"] = (time.perf_counter() - started) / 200
    found.put(told)
    dist.destroy_process_group()


def train(width: int, microbatches: int, *, split: bool, agree: bool) -> tuple[str, float]:
    """With ``agree`` no operation counts as done before both ranks have done it."""
    torch.manual_seed(0)
    layers = [Block(width) for _ in range(LAYERS)]
    mesh = init_device_mesh("cpu", (RANKS,))
    for layer in layers:
        parallelize_module(layer, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    sums = Sums()
    stage = Stage(layers, loss=F.mse_loss, sink=sums)
    started = time.perf_counter()
    for microbatch in range(microbatches):
        x = torch.randn(SAMPLES, TOKENS, width, generator=torch.Generator().manual_seed(microbatch))
        stage.forward(0, microbatch, (x,), x / 2, split=split)
        operations: list[Callable[[int], object]] = [stage.backward]
        if split:
            operations = [stage.backward_input, stage.backward_weight]
        for operation in operations:
            if agree:
                dist.barrier()
            operation(microbatch)
        if agree:
            dist.barrier()
        stage.drop(microbatch)
    return sums.digest(), time.perf_counter() - started


def one_worker(width: int, microbatches: int) -> list[dict[str, Any]]:
    context = torch.multiprocessing.get_context("spawn")
    found = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        meeting = str(Path(folder) / "meeting")
        arguments = (meeting, width, microbatches, found)
        spawn(rank_of_a_worker, arguments, nprocs=RANKS)  # type: ignore[no-untyped-call]
    return sorted((found.get() for _ in range(RANKS)), key=lambda told: int(told["rank"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--microbatches", type=int, default=40)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3, help="each with new processes")
    args = parser.parse_args()
    rounds = [one_worker(args.width, args.microbatches) for _ in range(args.rounds)]
    digests = {
        (told["rank"], told[way])
        for ranks in rounds
        for told in ranks
        for way in ("whole", "split")
    }
    agreed = [told["agreed_s"] / told["split_s"] for ranks in rounds for told in ranks]
    barriers = [told["barrier_s"] for ranks in rounds for told in ranks]
    print(f"load {os.getloadavg()[0]:.1f}; digests of {RANKS} ranks: {len(digests)}")
    print(
        json.dumps(
            {
                "same_bits": len(digests) == RANKS,
                "agreement_us": round(statistics.median(barriers) * 1e6),
                "agreed_over_split": round(statistics.median(agreed), 3),
            }
        )
    )


if __name__ == "__main__":
    main()
