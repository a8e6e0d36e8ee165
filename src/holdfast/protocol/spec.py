"""What a worker is told when it is started: enough to find its launcher and load its job."""

import json
import os
import socket
from dataclasses import dataclass, field, replace
from pathlib import Path

from holdfast.addresses import host_port, parse_host_port
from holdfast.auth.secret import SECRET_FILE_VARIABLE, SECRET_VARIABLE
from holdfast.auth.ticket import Ticket
from holdfast.cluster import WorkerId, parse_worker
from holdfast.config import RunConfig, config_from

# By environment: a command line shows in ps.
SPEC_VARIABLE = "HOLDFAST_WORKER"
REJOIN_VARIABLE = "HOLDFAST_REJOIN"  # set: this process was a worker of the run before
ADDRESS_FILE = "address"  # of the coordinator, inside the directory of its run
BY_HAND_VARIABLE = "HOLDFAST_BY_HAND"  # set: somebody sits in front of it


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach the launcher, and what proves that one belongs to its run."""

    host: str
    port: int
    secret: bytes = field(repr=False)
    generation: int  # which coordinator of the run; 0: not known yet
    certificate: str = ""  # fingerprint of the one it shows; empty: it speaks without TLS
    more: tuple[str, ...] = ()  # HOST:PORT where another one may take over
    is_standby: bool = False  # it has a certificate of its own, which the secret vouches for

    @classmethod
    def by(cls, ticket: Ticket) -> "Access":
        """For whoever has nothing else."""
        at = ticket.host, ticket.port
        return cls(*at, ticket.secret, 0, ticket.certificate, ticket.more)

    def __str__(self) -> str:
        return host_port(self.host, self.port)

    @property
    def expected_certificate(self) -> str:
        """Empty: whichever is shown, as both sides prove to each other which one that was."""
        return "" if self.is_standby else self.certificate

    def places(self) -> list["Access"]:
        """Where the run is, and where others may have taken it over."""
        found = {str(self): self}
        known = self.all_known
        for text in self.more:
            host, port = parse_host_port(text, "an address of the run")
            there = replace(self, host=host, port=port, is_standby=True, more=known)
            found.setdefault(text, there)
        return list(found.values())

    @property
    def all_known(self) -> tuple[str, ...]:
        """Where one has died another may stand by later."""
        return tuple(dict.fromkeys([*self.more, str(self)]))


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    worker: WorkerId
    access: Access  # to the launcher
    job: str  # path of the job file
    job_sha256: str  # as it was when the run began
    config: RunConfig
    run_dir: str = ""
    resumed: str = ""  # checkpoint that the run went on from; empty: none
    launch: int = 0  # its first coordinator; 0: the one that it was started by
    relay: socket.socket | None = None  # to the agent that has forked it; None: it speaks itself
    slot: int = 0  # which of the workers on its machine, for those that share something out

    @property
    def first_launch(self) -> int:
        """Of the coordinators that took over from each other: all workers are known by that."""
        return self.launch or self.access.generation

    def to_text(self) -> str:
        """All but the secret, which goes by a pipe, and what only a forked process has."""
        values = {
            "worker": str(self.worker),
            "host": self.access.host,
            "port": self.access.port,
            "generation": self.access.generation,
            "certificate": self.access.certificate,
            "job": str(Path(self.job).absolute()),
            "job_sha256": self.job_sha256,
            "config": self.config.to_dict(),
            "run_dir": self.run_dir,
            "resumed": self.resumed,
            "more": list(self.access.more),
            "is_standby": self.access.is_standby,
            "launch": self.launch,
            "slot": self.slot,
        }
        return json.dumps(values)


def spec_from(text: str, secret: bytes) -> WorkerSpec:
    values = json.loads(text)
    access = Access(
        values["host"],
        values["port"],
        secret,
        values["generation"],
        values["certificate"],
        tuple(values["more"]),
        values["is_standby"],
    )
    return WorkerSpec(
        parse_worker(values["worker"]),
        access,
        values["job"],
        values["job_sha256"],
        config_from(values["config"]),
        values["run_dir"],
        values["resumed"],
        values["launch"],
        slot=values["slot"],
    )


def worker_environment(config: RunConfig) -> dict[str, str]:
    """For the process that will compute: read once, when its libraries are loaded."""
    threads = str(config.workers.compute_threads)
    own = (SECRET_VARIABLE, SECRET_FILE_VARIABLE)  # no business of the job's code
    inherited = {name: value for name, value in os.environ.items() if name not in own}
    return inherited | {
        "OMP_NUM_THREADS": threads,
        # Threads that spin while they wait take the cores from the other workers.
        "OMP_WAIT_POLICY": "PASSIVE",
        "MKL_NUM_THREADS": threads,
        # Freed tensors stay with the process: page faults cost up to 10 % otherwise.
        # Not the largest: sums of a whole stage leave gaps that nothing else fits into.
        "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
        "MALLOC_TRIM_THRESHOLD_": str(4 << 30),
        "MALLOC_TOP_PAD_": str(16 << 20),
    }
