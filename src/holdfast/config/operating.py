"""Settings of how a run is kept going: workers, checkpoints, recovery, slow workers, events."""

import re
from dataclasses import dataclass
from typing import Literal

from holdfast.addresses import HOST, LOOPBACK, is_host, is_loopback, is_wildcard, parse_host_port
from holdfast.checkpoint_address import ADDRESS
from holdfast.config.checks import MAX_LIMIT_S, at_least, parse_size, require
from holdfast.journal_address import parse_journal_address

MAX_THREADS = 1024
LEAST_LEASE_S, MOST_LEASE_S = 1.0, 600.0
MOST_TIMEOUT_S = 60.0  # of heartbeats, if it follows from the length of a step
_STEPS = re.compile(r"([0-9]{1,12}):([0-9]{1,12})")


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkersConfig:
    kind: Literal["processes", "threads"] = "processes"
    """threads: all workers in the launcher's process, for tests and for debugging a job."""

    compute_threads: int = 1
    """Threads of one worker's arithmetic. Part of the result's bits: the same on all workers."""

    allow_mixed: bool = False
    """Run or resume although workers differ in threads, instruction set or versions (not exact)."""

    start_limit_s: float = 180.0
    """Longest wait for all workers to start, load the job and build their stages."""

    heartbeat_timeout_s: float = 0.0
    """A worker that is silent for longer is lost; 0: twice a step, from 2 to 60 s."""

    stuck_limit_s: float = 0.0
    """A worker that is in one operation for longer is lost; 0: 10 times the longest usual one of
    its kind, at least 15 s (loading data: 30 s). The first steps have ``start_limit_s``."""

    restarts: int = 3
    """How often in a row a lost worker is started again, if too few are left; 0: never."""

    replace: int = 3
    """How often within 100 steps a lost worker is replaced while the others go on; 0: never."""

    @property
    def are_processes(self) -> bool:
        return self.kind == "processes"

    orphan_limit_s: float = 600.0
    """How long workers keep their state, and train on, without a coordinator, so that another one
    can take over; 0: they end with it."""

    gathered_from: int = 65
    """From so many workers on, heartbeats and reports of steps go by the agent of each machine, in
    one message for all its workers; before, each worker sends its own."""

    @property
    def silence_limit_s(self) -> float:
        """A machine that acknowledges nothing for so long is gone; its workers are lost before."""
        return max(self.heartbeat_timeout_s, MOST_TIMEOUT_S)

    def __post_init__(self) -> None:
        at_least(0, "workers.restarts", self.restarts, "must be 0 or more")
        at_least(0, "workers.replace", self.replace, "must be 0 or more")
        at_least(1, "workers.gathered_from", self.gathered_from)
        timeout_s = self.heartbeat_timeout_s
        good = timeout_s == 0 or 0.1 <= timeout_s <= MAX_LIMIT_S
        expected = f"must be 0 (automatic), or from 0.1 to {MAX_LIMIT_S}"
        require(good, "workers.heartbeat_timeout_s", timeout_s, expected)
        stuck_s = self.stuck_limit_s
        good = stuck_s == 0 or 1 <= stuck_s <= MAX_LIMIT_S
        expected = f"must be 0 (automatic), or from 1 to {MAX_LIMIT_S}"
        require(good, "workers.stuck_limit_s", stuck_s, expected)
        good = 0 <= self.orphan_limit_s <= MAX_LIMIT_S
        expected = f"must be 0 (none), or at most {MAX_LIMIT_S}"
        require(good, "workers.orphan_limit_s", self.orphan_limit_s, expected)
        for name in ("compute_threads", "start_limit_s"):
            value = getattr(self, name)
            most = MAX_THREADS if name == "compute_threads" else MAX_LIMIT_S
            good = 0 < value <= most
            require(good, f"workers.{name}", value, f"must be above 0 and at most {most}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ControlConfig:
    port: int = 0
    """Where the launcher listens for its workers; 0: any free port."""

    journal: str = ""
    """An address that the coordinator's journal goes to, e.g. etcd://HOST:2379/PREFIX; empty: the
    run directory."""

    standbys: str = ""
    """Where others may take over if the coordinator dies: HOST:PORT, several with commas. A
    ``holdfast standby`` waits at each. Agents and workers look for it there."""

    lease_s: float = 2.0
    """A coordinator that has not renewed its lease in etcd for so long leads no more, and another
    may take over."""

    @property
    def standby_addresses(self) -> tuple[str, ...]:
        return tuple(self.standbys.split(",")) if self.standbys else ()

    def __post_init__(self) -> None:
        require(0 <= self.port < 65536, "control.port", self.port, "must be in 0 .. 65535")
        if self.journal:
            parse_journal_address(self.journal, "control.journal")
        for address in self.standby_addresses:
            parse_host_port(address, "control.standbys")
        good = LEAST_LEASE_S <= self.lease_s <= MOST_LEASE_S
        expected = f"must be from {LEAST_LEASE_S:g} to {MOST_LEASE_S:g}"
        require(good, "control.lease_s", self.lease_s, expected)


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkConfig:
    """Of one machine: what joins from another one has its own."""

    listen: str = LOOPBACK
    """Where the launcher and its workers listen: a name or address of this machine; 0.0.0.0 or ::
    for all of them. Loopback: nobody joins from another machine."""

    advertise: str = ""
    """The host that others are told to call; empty: where it listens, or with 0.0.0.0 or :: the
    address of the card that leads to other machines."""

    tls: Literal["auto", "on", "off"] = "auto"
    """Whether control connections are encrypted; auto: unless the run listens on loopback only."""

    tensor_tls: bool = False
    """Whether tensors between workers are encrypted, too."""

    @property
    def encrypts_control(self) -> bool:
        return self.tls == "on" or (self.tls == "auto" and not is_loopback(self.listen))

    def __post_init__(self) -> None:
        require(is_host(self.listen), "network.listen", self.listen, f"expected {HOST}")
        told = self.advertise
        require(not told or is_host(told), "network.advertise", told, f"expected {HOST}")
        nowhere = "stands for all addresses; name one that others can call"
        require(not is_wildcard(told), "network.advertise", told, nowhere)


@dataclass(frozen=True, kw_only=True, slots=True)
class MachinesConfig:
    count: int = 0
    """Machines that the workers are spread over, each with an agent (``holdfast agent``); 0: all
    run on this one, and no agent is needed."""

    start_with: int = 0
    """Begin when so many are here, and fill the places that are missing as others come; 0: all."""

    wait_s: float = 3600.0
    """Longest wait for machines: at the start, and while too few are left to go on."""

    def __post_init__(self) -> None:
        at_least(0, "machines.count", self.count, "must be >= 0")
        good = 0 <= self.start_with <= self.count
        expected = f"must be in 0 .. machines.count={self.count}"
        require(good, "machines.start_with", self.start_with, expected)
        good = 0 < self.wait_s <= MAX_LIMIT_S
        require(good, "machines.wait_s", self.wait_s, f"must be above 0, up to {MAX_LIMIT_S}")

    @property
    def needed(self) -> int:
        """Before anything begins."""
        return self.start_with or self.count


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointConfig:
    dir: str = ""
    """An address that checkpoints go to, e.g. s3://bucket/run; empty: the run directory."""

    every_steps: int = 100
    """Steps between checkpoints written in the background; 0: none on the way."""

    first_step: int = 1
    """One more right after this step, so that few losses mean the beginning; 0: none."""

    at_end: bool = True
    """Write one after the last step, so that the run can be resumed with more steps."""

    keep: int = 2
    """How many of the newest checkpoints stay on disk."""

    write_limit_s: float = 1800.0
    """For the last one, which everybody waits for: then the disk counts as stuck."""

    def __post_init__(self) -> None:
        is_known = not self.dir or ADDRESS.fits(self.dir)
        require(is_known, "checkpoint.dir", self.dir, f"expected {ADDRESS.what}, or nothing")
        at_least(0, "checkpoint.every_steps", self.every_steps, "must be >= 0")
        at_least(0, "checkpoint.first_step", self.first_step, "must be >= 0")
        at_least(1, "checkpoint.keep", self.keep)
        limit_s = self.write_limit_s
        is_possible = 0 < limit_s <= MAX_LIMIT_S
        require(
            is_possible,
            "checkpoint.write_limit_s",
            limit_s,
            f"must be above 0, up to {MAX_LIMIT_S}",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class RecoveryConfig:
    mode: Literal["holdfast", "swift", "checkfreq", "commit", "global"] = "holdfast"
    """holdfast: only lost work is done again; the others are the published alternatives."""

    log: Literal["none", "boundary"] = "none"
    """boundary: tensors between stages are logged, so that a stage nobody holds is replayed."""

    log_budget: str = ""
    """Most that the logs of all workers take on disk, e.g. 2GB; empty: no limit."""

    log_dir: str = ""
    """Where each worker keeps its log; empty: in the run directory."""

    log_mirror: str = ""
    """A second directory that gets a copy of every log, e.g. on another disk; empty: none."""

    log_copies: int = 0
    """1: the logs of each machine are copied to another one as they grow; 0: they are not."""

    helpers: int = -1
    """Most survivors that take part in a replay; 0: the replacement alone; -1: all."""

    consistency: Literal["keep-old", "undo"] = "keep-old"
    """How a step is taken back: from a copy kept meanwhile, or by the optimizer's inverse."""

    commit_every: int = 1
    """Steps between two copies in memory, with recovery.mode=commit."""

    overhead: float = 0.035
    """Most that checkpoints may cost, as a share of a step, with recovery.mode=checkfreq."""

    def __post_init__(self) -> None:
        self.log_budget_bytes()
        at_least(-1, "recovery.helpers", self.helpers, "must be -1 (all) or more")
        at_least(1, "recovery.commit_every", self.commit_every)
        good = 0 < self.overhead <= 1
        require(good, "recovery.overhead", self.overhead, "must be above 0 and at most 1")
        logs, wants = self.log == "boundary", self.mode in ("holdfast", "swift")
        if self.mode == "swift":
            require(logs, "recovery.mode", self.mode, "needs recovery.log=boundary")
        require(wants or not logs, "recovery.log", self.log, f"mode {self.mode} replays nothing")
        good = self.log_copies in (0, 1)
        require(good, "recovery.log_copies", self.log_copies, "must be 0 (none) or 1")
        for name in ("log_budget", "log_dir", "log_mirror", "log_copies"):
            value = getattr(self, name)
            require(logs or not value, f"recovery.{name}", value, "needs recovery.log=boundary")

    def log_budget_bytes(self) -> int | None:
        """None: no limit."""
        return parse_size("recovery.log_budget", self.log_budget) if self.log_budget else None


@dataclass(frozen=True, kw_only=True, slots=True)
class MitigationConfig:
    mode: Literal["holdfast", "observe", "off", "falcon"] = "holdfast"
    """What is done about a slow worker or link. observe: it is only named; off: nobody looks;
    falcon: the published way, whole pipelines get fewer or more micro-batches."""

    drop: bool = True
    """Whether a worker may be left out when that is the only thing that helps."""

    pays_within_steps: int = 20
    """A change that repays its cost within so many steps is made at once."""

    def __post_init__(self) -> None:
        at_least(1, "mitigation.pays_within_steps", self.pays_within_steps)

    @property
    def watches(self) -> bool:
        """Somebody looks for slow workers and links."""
        return self.mode != "off"

    @property
    def only_observes(self) -> bool:
        """What is found is told, and nothing is done about it."""
        return self.mode == "observe"


@dataclass(frozen=True, kw_only=True, slots=True)
class CallbacksConfig:
    on_error: Literal["stop", "warn"] = "stop"
    """A callback that raises ends the run, after its step and with a checkpoint; warn: a line tells
    of it, and the run goes on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ObserveConfig:
    operations: bool = True
    """Record the time of every operation in events.jsonl (needed by ``holdfast trace``)."""

    events_limit: str = "200MB"
    """Most that times of operations take on disk, e.g. 1GB: the oldest are dropped; empty: no
    limit. Other events are kept."""

    profile: str = ""
    """``100:105``: torch's profiler runs on every worker from step 100 to 105; empty: in none."""

    def __post_init__(self) -> None:
        self.events_limit_bytes()
        self.profiled_steps()

    def profiled_steps(self) -> range | None:
        """As the executor counts them, from 0 on; None: none are."""
        if not self.profile:
            return None
        match = _STEPS.fullmatch(self.profile)
        first, last = (int(match[1]), int(match[2])) if match else (0, 0)
        expected = "write the first and the last step as 100:105"
        require(0 < first <= last, "observe.profile", self.profile, expected)
        return range(first - 1, last)

    def events_limit_bytes(self) -> int | None:
        """None: no limit."""
        return parse_size("observe.events_limit", self.events_limit) if self.events_limit else None
