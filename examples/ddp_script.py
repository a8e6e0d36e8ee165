"""An ordinary DistributedDataParallel script; it knows nothing of Holdfast.

    torchrun --nproc-per-node 4 examples/ddp_script.py
    holdfast watch -- torchrun --nproc-per-node 4 examples/ddp_script.py --slow-rank 2

The time of an iteration is mostly sleep, so that four processes fit on a small machine.
"""

import argparse
import hashlib
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small model on random data, on CPUs.")
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--work", type=float, default=0.1, help="seconds of sleep an iteration")
    parser.add_argument("--slow-rank", type=int, default=-1, help="rank that becomes slow")
    parser.add_argument("--slow-from", type=int, default=31, help="its first slow iteration")
    parser.add_argument("--slow-to", type=int, default=10**9, help="its last slow iteration")
    parser.add_argument("--factor", type=float, default=2.0, help="how many times as long")
    return parser.parse_args()


def build() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(64, 128),
        torch.nn.GELU(),
        torch.nn.Linear(128, 128),
        torch.nn.Linear(128, 8),
    )


def main() -> None:
    args = parsed()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(build())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(rank)
    times_s = []
    for iteration in range(1, args.iterations + 1):
        began_s = time.perf_counter()
        is_slow = rank == args.slow_rank and args.slow_from <= iteration <= args.slow_to
        time.sleep(args.work * (args.factor if is_slow else 1.0))
        inputs = torch.randn(16, 64, generator=data)
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean_loss = loss.detach()
        dist.all_reduce(mean_loss)
        times_s.append(time.perf_counter() - began_s)
        if rank == 0 and iteration % 10 == 0:
            sys.stdout.write(
                f"iteration {iteration}: loss {mean_loss.item() / dist.get_world_size():.6f}\n"
            )
    parts = [parameter.detach().numpy().tobytes() for parameter in model.parameters()]
    if rank == 0:
        sys.stderr.write(f"median iteration: {statistics.median(times_s) * 1e3:.2f} ms\n")
        sys.stdout.write(f"parameters {hashlib.sha256(b''.join(parts)).hexdigest()}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
