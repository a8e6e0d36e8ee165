"""One replica of a Holdfast job on torchft: its Manager, its DDP wrapper, its process group.

Run by bench/peers_torchft.py in an environment of its own, with Holdfast's sources on the path
for the job's model and data: ``torchft_job.py JOB.py REPLICA STEPS GROUP_LIMIT_S LOG``. Writes one
JSON line to LOG at the end of each of its iterations. GROUP_LIMIT_S 0: torchft's default.
"""

import json
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed import TCPStore
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

from holdfast.data.batches import Batches, num_tokens
from holdfast.job_call import load_job

NUM_REPLICAS = 2  # one micro-batch each
HOST = "localhost"


class Replica:
    def __init__(self, job_file: Path, number: int, group_limit_s: float) -> None:
        self.number = number
        self.job = load_job(job_file, seed=0)
        limit = {"timeout": timedelta(seconds=group_limit_s)} if group_limit_s else {}
        self._store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
        self.manager = Manager(
            pg=ProcessGroupGloo(**limit),
            min_replica_size=1,
            load_state_dict=self._load,
            state_dict=self._save,
            replica_id=f"replica_{number}",
            rank=0,
            world_size=1,
            store_addr=HOST,
            store_port=self._store.port,
            hostname=HOST,
        )
        self.model = DistributedDataParallel(self.manager, nn.Sequential(*self.job.layers))
        self._inner = self.job.optimizer(self.model.parameters())
        self.optimizer = Optimizer(self.manager, self._inner)
        make = self.job.lr_schedule
        self.lr_schedule = make(self._inner) if make else None
        self._batches = Batches(self.job, 0, NUM_REPLICAS)

    def _save(self) -> dict[str, Any]:
        schedule = self.lr_schedule.state_dict() if self.lr_schedule else None
        return {"model": self.model.state_dict(), "inner": self._inner.state_dict(), "lr": schedule}

    def _load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self._inner.load_state_dict(state["inner"])
        if self.lr_schedule:
            self.lr_schedule.load_state_dict(state["lr"])

    def iterate(self) -> dict[str, Any]:
        """One turn of the training loop; whether it counts is for torchft to say."""
        step = self.manager.current_step()
        inputs, target = self._batches.load(step, self.number)
        self.optimizer.zero_grad()
        loss = self.job.loss(self.model(*inputs), target)
        loss.backward()
        if self.job.clip_norm:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.job.clip_norm)
        self.optimizer.step()
        committed = self.manager.current_step() > step
        if committed and self.lr_schedule:
            self.lr_schedule.step()
        participants = self.manager.num_participants()
        return {
            "at_s": time.monotonic(),
            "step": step,
            "committed": committed,
            "participants": participants,
            "tokens": participants * num_tokens(target),
            "loss": loss.item(),
        }


def main() -> None:
    torch.set_num_threads(1)
    job_file, number, steps, group_limit_s, log_file = sys.argv[1:]
    replica = Replica(Path(job_file), int(number), float(group_limit_s))
    with Path(log_file).open("w", buffering=1) as log:
        while replica.manager.current_step() < int(steps):
            log.write(json.dumps(replica.iterate()) + "\n")
    replica.manager.shutdown()


if __name__ == "__main__":
    main()
