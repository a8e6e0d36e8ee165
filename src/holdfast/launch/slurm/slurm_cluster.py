"""Agents on all nodes of the Slurm allocation that this process runs in, by one srun."""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast.errors import ConfigError
from holdfast.launch.clusters import MachineEnded, Say
from holdfast.launch.orders import STOP, AgentOrder
from holdfast.launch.programs import Program

NODE_VARIABLE = "SLURMD_NODENAME"  # on each node: its name
_NODES_VARIABLES = ("SLURM_JOB_NUM_NODES", "SLURM_NNODES")
_OPTIONS = (
    "--ntasks-per-node=1",
    "--no-kill",  # a node that fails takes none of the others along
    "--kill-on-bad-exit=0",  # nor does an agent
    "--wait=0",
    "--overlap",  # beside the coordinator, on the first node
    "--cpu-bind=none",
    "--mpi=none",
    "--input=all",  # what we say is said to every agent
    "--unbuffered",
)


def num_nodes(environment: Mapping[str, str]) -> int:
    """ConfigError: this is no job of Slurm."""
    for variable in _NODES_VARIABLES:
        if (text := environment.get(variable, "")).isdecimal() and int(text) > 0:
            return int(text)
    raise ConfigError(
        "cluster slurm: expected to run inside of an allocation of Slurm, which sets "
        f"{_NODES_VARIABLES[0]}; use salloc or sbatch ('holdfast slurm' writes a script)"
    )


def srun_words(nodes: int) -> list[str]:
    keeper = [sys.executable, "-m", "holdfast.cli.launching.keeper"]
    return ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", *_OPTIONS, *keeper]


class SlurmCluster:
    """Nodes above those that are wanted are spares."""

    def __init__(self, nodes: int, slots: int | None, say: Say, command: str) -> None:
        self._command = command
        self._nodes, self._slots, self._say = nodes, slots, say
        self._grace_s = AgentOrder("").grace_s
        self._srun: Program | None = None
        self._was_up = False

    def start(self, ticket: Path, machines: int) -> int:
        if machines > self._nodes:
            raise ConfigError(
                f"cluster slurm: the allocation has {self._nodes} nodes; {machines} machines are "
                "wanted"
            )
        order = AgentOrder(  # outlives nobody: Slurm ends a step with its job
            ticket.read_text(),
            command=self._command,
            slots=self._slots,
            name_from=NODE_VARIABLE,
            labels=True,
        )
        try:
            self._srun = Program(srun_words(self._nodes), order.encode(), os.environ)
        except OSError as why:
            raise ConfigError(f"cluster slurm: srun cannot be started: {why.strerror}") from why
        return self._nodes

    def poll(self) -> list[MachineEnded]:
        if self._srun is None:
            return []
        code = self._srun.code()
        said = self._listen(self._srun)
        if code is None:
            return []
        self._srun.end(0.0)
        self._srun = None
        return [MachineEnded("srun", _reason(code, said), self._was_up, is_last=True)]

    def _listen(self, srun: Program) -> list[str]:
        """What srun itself has said; what agents say is passed on too."""
        lines = srun.lines()
        self._was_up = self._was_up or bool(lines)
        errors = srun.errors()
        for line in [*lines, *errors]:
            self._say(line)
        return errors

    def stop(self) -> None:
        if self._srun is None:
            return
        self._srun.say(STOP)
        deadline_s = time.monotonic() + self._grace_s + 1.0
        while self._srun.code() is None and time.monotonic() < deadline_s:
            self._listen(self._srun)
            time.sleep(0.05)
        self._listen(self._srun)
        self._srun.end(0.0)
        self._srun = None


def _reason(code: int, said: Sequence[str]) -> str:
    last = next((f": {line.strip()}" for line in reversed(said) if line.strip()), "")
    return "all agents ended" if code == 0 else f"ended with code {code}{last}"


def open_slurm(slots: int | None, say: Say, command: str) -> SlurmCluster:
    return SlurmCluster(num_nodes(os.environ), slots, say, command)
