"""Which checksum for tensors: microseconds a call.

.venv/bin/python bench/checksum.py [--rounds 5]
"""

import argparse
import json
import os
import statistics
import time
import zlib
from collections.abc import Callable

import numpy as np
import torch
import xxhash

SIZES = {"4 kB": 4 << 10, "256 kB": 256 << 10, "16 MB": 16 << 20}
BATCH_BYTES = 64 << 20
CANDIDATES: dict[str, Callable[[np.ndarray], object]] = {
    "zlib.crc32": lambda data: zlib.crc32(data),
    "zlib.adler32": lambda data: zlib.adler32(data),
    "xxhash.xxh3_64": lambda data: xxhash.xxh3_64_intdigest(data),
    "sum of int64, NumPy": lambda data: int(data.view(np.int64).sum()),
    "sum of int64, torch": lambda data: int(torch.from_numpy(data).view(torch.int64).sum()),
    "a copy": lambda data: data.copy(),
}


def call_s(check: Callable[[np.ndarray], object], data: np.ndarray) -> float:
    num_calls = max(3, min(5000, BATCH_BYTES // data.nbytes))
    began_s = time.perf_counter()
    for _ in range(num_calls):
        check(data)
    return (time.perf_counter() - began_s) / num_calls


def measure(rounds: int) -> dict[str, dict[str, float]]:
    torch.set_num_threads(1)
    found: dict[str, dict[str, list[float]]] = {n: {s: [] for s in SIZES} for n in CANDIDATES}
    data = {size: np.random.default_rng(0).bytes(num) for size, num in SIZES.items()}
    arrays = {size: np.frombuffer(bytearray(raw), np.uint8) for size, raw in data.items()}
    for _ in range(rounds):  # taking turns: the machine drifts
        for name, check in CANDIDATES.items():
            for size, array in arrays.items():
                found[name][size].append(call_s(check, array))
    return {
        name: {size: 1e6 * statistics.median(times_s) for size, times_s in row.items()}
        for name, row in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    found = measure(args.rounds)
    print(f"load {os.getloadavg()[0]:.1f}, medians of {args.rounds} rounds")
    print(f"{'':22}" + "".join(f"{size + ', us':>14}" for size in SIZES))
    for name, row in found.items():
        cells = (f"{call_us:14.2f}" for call_us in row.values())
        print(f"{name:22}" + "".join(cells))
    print(json.dumps({"bench": "checksum", "load": os.getloadavg()[0], "us": found}))


if __name__ == "__main__":
    main()
