"""A real Slurm of several nodes on this machine: no munge, no database, nothing installed.

Debian's packages, unpacked into a cache; one slurmctld and a slurmd a node, by the user who runs
the tests. All files are in a folder of the test.
"""

import getpass
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from helpers.debian import fetched

_LIMIT_S = 60.0
_PACKAGES = (
    *("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "libmunge2"),
    *("libhwloc15", "liblua5.1-0", "libjson-c5", "libdbus-1-3", "libyaml-0-2", "liblz4-1"),
    *("libnuma1", "libreadline8", "libpam0g"),
)
_CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
AuthInfo=cred_expire=5
CredType=cred/none
PluginDir={plugins}
SlurmctldPort={port}
StateSaveLocation={root}/state
SlurmctldPidFile={root}/slurmctld.pid
SlurmdSpoolDir={root}/spool.%n
SlurmdPidFile={root}/slurmd.%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
SchedulerParameters=batch_sched_delay=0
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@contextmanager
def slurm_cluster(root: Path, nodes: int) -> Iterator[dict[str, str]]:
    """The environment for srun, sbatch and the like; skips the test if there can be none."""
    place = fetched("slurm", _PACKAGES)
    libraries = place / "usr/lib/x86_64-linux-gnu"
    plugins = libraries / "slurm-wlm"
    root = _conf(root, nodes, plugins)
    environment = os.environ | {
        "SLURM_CONF": str(root / "slurm.conf"),
        "PATH": f"{place}/usr/bin:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": f"{plugins}:{libraries}:{place}/lib/x86_64-linux-gnu",
    }
    sbin, step = place / "usr/sbin", str(place / "usr/sbin/slurmstepd-wlm")
    commands = [[str(sbin / "slurmctld-wlm"), "-D"]]
    commands += [[str(sbin / "slurmd-wlm"), "-D", "-d", step, "-N", f"n{n}"] for n in range(nodes)]
    daemons = []
    try:
        for words in commands:
            with open(root / f"daemon{len(daemons)}.out", "wb") as out:
                daemons.append(
                    subprocess.Popen(
                        words, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out
                    )
                )
        _wait_until_idle(root, environment, nodes)
        yield environment
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            with suppress(subprocess.TimeoutExpired):
                daemon.wait(10)
            daemon.kill()
            daemon.wait()
        _end_steps(environment["SLURM_CONF"])


def _conf(root: Path, nodes: int, plugins: Path) -> Path:
    host = socket.gethostname().split(".")[0]
    rows = [
        f"NodeName=n{n} NodeHostname={host} NodeAddr=127.0.0.1 Port={_free_port()} CPUs=2"
        for n in range(nodes)
    ]
    for name in ("state", *(f"spool.n{n}" for n in range(nodes))):
        (root / name).mkdir()
    text = _CONF.format(
        host=host,
        user=getpass.getuser(),
        plugins=plugins,
        port=_free_port(),
        root=root,
        nodes="\n".join(rows),
    )
    (root / "slurm.conf").write_text(text)
    (root / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    return root


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _wait_until_idle(root: Path, environment: dict[str, str], nodes: int) -> None:
    deadline_s = time.monotonic() + _LIMIT_S
    while time.monotonic() < deadline_s:
        words = ["sinfo", "-h", "-N", "-o", "%t"]
        found = subprocess.run(words, env=environment, capture_output=True, text=True)
        if found.stdout.split() == ["idle"] * nodes:
            return
        time.sleep(0.2)
    logs = [*sorted(root.glob("*.log")), *sorted(root.glob("*.out"))]
    said = [path.read_text()[-300:] for path in logs]
    pytest.skip(f"Slurm does not run here: {found.stdout} {found.stderr} {said}")


def _end_steps(conf: str) -> None:
    """They outlive their slurmd, so that it can be started anew."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            pid = int(path.parent.name)
            if pid != os.getpid() and f"SLURM_CONF={conf}\0" in path.read_text() + "\0":
                os.kill(pid, signal.SIGKILL)
