"""How many files and connections this process may have open at once."""

import resource

from holdfast.errors import ConfigError

_OTHERS = 256  # files, libraries, checkpoints, strangers at the door


def allow_connections(number: int) -> None:
    """ConfigError: the system does not let this process have so many."""
    wanted = number + _OTHERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise ConfigError(
            f"{number} workers need {wanted} open files in the launcher, and its limit is {hard}: "
            f"expected at least as many; raise it (ulimit -Hn {wanted}, or LimitNOFILE of systemd)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
