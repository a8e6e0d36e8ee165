"""Which launcher is meant, as one word: KIND, or KIND:MORE."""

from holdfast.errors import ConfigError
from holdfast.launch.clusters import Cluster, Say
from holdfast.launch.ray.ray_cluster import open_ray
from holdfast.launch.slurm.slurm_cluster import open_slurm
from holdfast.launch.ssh.ssh_cluster import open_ssh

KINDS = "ssh:FILE, slurm[:SLOTS] or ray[:SLOTS]"


def open_cluster(text: str, say: Say, command: str = "agent") -> Cluster:
    """``say`` takes the lines of agents, or of another ``command`` that is run on each machine.

    ConfigError: there is no such launcher, or not here.
    """
    kind, _, more = text.partition(":")
    if kind == "ssh" and more:
        return open_ssh(more, say, command)
    if kind == "slurm":
        return open_slurm(_slots(text, more), say, command)
    if kind == "ray":
        return open_ray(_slots(text, more), say, command)
    raise ConfigError(f"cluster {text}: expected {KINDS}")


def _slots(text: str, more: str) -> int | None:
    """None: each agent's own default."""
    if not more:
        return None
    if not more.isdecimal() or int(more) < 1:
        raise ConfigError(f"cluster {text}: expected the workers on one machine after the colon")
    return int(more)
