"""Which launcher is meant: KIND or KIND:FILE, as one word."""

from holdfast.errors import ConfigError
from holdfast.launch.clusters import Cluster, Say
from holdfast.launch.ssh.ssh_cluster import open_ssh

KINDS = "ssh:FILE"


def open_cluster(text: str, say: Say) -> Cluster:
    """``say`` takes the lines of agents. ConfigError: there is no such launcher, or not here."""
    kind, _, file = text.partition(":")
    match kind, bool(file):
        case "ssh", True:
            return open_ssh(file, say)
    raise ConfigError(f"cluster {text}: expected {KINDS}")
