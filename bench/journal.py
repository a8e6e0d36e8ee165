"""What an append to the coordinator's journal takes: in a directory, and in etcd if one is given.

    .venv/bin/python bench/journal.py [--num 500] [--dir DIR] [--address etcd://HOST:2379/PREFIX]

One record an append, then 100 at once, as in one turn of the coordinator. The prefix must be new.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from holdfast.control.journal.base import Journal
from holdfast.control.journal.opening import open_journal

LEASE_S = 2.0
AT_ONCE = 100


def record(number: int) -> dict[str, object]:
    members = [f"{pipeline}.{stage}" for pipeline in range(4) for stage in range(4)]
    return {"kind": "epoch", "number": number, "step": 10 * number, "members": members}


def took_ms(journal: Journal, number: int, together: int) -> float:
    records = [record(number) for _ in range(together)]
    start_s = time.perf_counter()
    journal.append_all(records)
    return 1e3 * (time.perf_counter() - start_s)


def measured(journal: Journal, num: int) -> dict[str, float]:
    journal.claim()
    try:
        single = sorted(took_ms(journal, number, 1) for number in range(num))
        many = [took_ms(journal, num, AT_ONCE) for _ in range(max(1, num // 20))]
    finally:
        journal.close()
    return {
        "median_ms": round(statistics.median(single), 3),
        "p99_ms": round(single[int(0.99 * num)], 3),
        f"median_of_{AT_ONCE}_at_once_ms": round(statistics.median(many), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--num", type=int, default=500, help="appends")
    parser.add_argument("--dir", type=Path, default=Path("runs"), help="on the disk to measure")
    parser.add_argument("--address", default="", help="of an etcd")
    args = parser.parse_args()
    args.dir.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        addresses = {"file": ""} | ({"etcd": args.address} if args.address else {})
        found = {
            name: measured(open_journal(address, Path(folder), LEASE_S), args.num)
            for name, address in addresses.items()
        }
    for name, times in found.items():
        print(name, ", ".join(f"{key} {value}" for key, value in times.items()))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
