"""The command that starts an agent's keeper over ssh, and what its end means."""

import shlex
from collections.abc import Sequence
from pathlib import Path

import holdfast
from holdfast.launch.ssh.hosts_file import SshHost

MARK = "holdfast-keeper"  # and the version: the first word from there
NO_HOLDFAST, OTHER_VERSION, NO_WORKDIR = 90, 91, 92
_NOT_FOUND = (126, 127)  # of a shell
SSH_FAILED = 255
CONNECT_LIMIT_S = 15
_OPTIONS = {
    "BatchMode": "yes",  # never asks anybody
    "ConnectTimeout": str(CONNECT_LIMIT_S),
    "ServerAliveInterval": "10",
    "ServerAliveCountMax": "3",
    "ClearAllForwardings": "yes",
    "LogLevel": "ERROR",
}
# One line, as shells differ in how they quote line ends. What lies in the working directory is
# no module: a folder called holdfast would be taken for the package.
_BOOT = (
    "import importlib.util,sys;sys.path=[p for p in sys.path if p];"
    f"importlib.util.find_spec('holdfast') or sys.exit({NO_HOLDFAST});"
    "import holdfast;version=getattr(holdfast,'__version__','?');"
    f"print('{MARK}',version,flush=True);version==sys.argv[1] or sys.exit({OTHER_VERSION});"
    "from holdfast.cli.launching.keeper import main;sys.exit(main())"
)
# ssh has one exit code for all that goes wrong on the way; only its own words tell them apart.
_SSH_SAYS = {
    "host key verification failed": "its host key is not known here, or is not the one that is "
    "known; connect once by hand and look at it: {ssh}",
    "permission denied": "it takes none of your keys; try by hand: {ssh}",
    "could not resolve": "this name does not resolve; correct its address",
    "refused": "nobody listens for ssh there; is sshd running?",
    "timed out": f"no answer within {CONNECT_LIMIT_S} s; is it up, and is its port open?",
    "no route": "there is no way to it; is it up?",
    "unreachable": "there is no way to it; is it up?",
}


def ssh_words(host: SshHost, config: Path | None) -> list[str]:
    options = [word for key, value in _OPTIONS.items() for word in ("-o", f"{key}={value}")]
    go = f"cd {shlex.quote(host.workdir)} || exit {NO_WORKDIR}; " if host.workdir else ""
    boot = f"exec {shlex.quote(host.python)} -c {shlex.quote(_BOOT)} {holdfast.__version__}"
    there = shlex.join(["sh", "-c", f"{go}{boot}"])
    return ["ssh", "-T", *options, *_way(host, config), "--", host.address, there]


def _way(host: SshHost, config: Path | None) -> list[str]:
    words = [] if config is None else ["-F", str(config)]
    words += [] if host.port is None else ["-p", str(host.port)]
    return words + (["-l", host.user] if host.user else [])


def why_not_up(host: SshHost, config: Path | None, code: int, said: Sequence[str]) -> str:
    """``said``: all that has come instead of the keeper's first word."""
    last = next((line.strip() for line in reversed(said) if line.strip()), "")
    if code == SSH_FAILED:
        by_hand = shlex.join(["ssh", *_way(host, config), host.address])
        for line in reversed(said):
            for phrase, meaning in _SSH_SAYS.items():
                if phrase in line.lower():
                    return f"cannot be reached by ssh: {meaning.format(ssh=by_hand)}"
        return f"cannot be reached by ssh: {last or 'it said nothing'}"
    if code in _NOT_FOUND:
        return f"has no program {host.python}; say which Python to use: python = ..."
    if code == NO_HOLDFAST:
        return (
            f"its {host.python} has no holdfast; install it there: "
            f"{host.python} -m pip install holdfast=={holdfast.__version__}"
        )
    if code == NO_WORKDIR:
        return f"has no directory {host.workdir}; make it, or change workdir = ..."
    return f"the agent was not started (exit code {code}): {last or 'nothing was said'}"


def other_version(host: SshHost, version: str) -> str:
    return (
        f"has holdfast {version}; here is {holdfast.__version__}; install the same: "
        f"{host.python} -m pip install holdfast=={holdfast.__version__}"
    )


def why_ended(code: int, said: Sequence[str]) -> str:
    """Of an agent that had been started. ``said``: last of all, by ssh itself."""
    last = next((f": {line.strip()}" for line in reversed(said) if line.strip()), "")
    if code == SSH_FAILED:
        return f"the connection of ssh ended{last}"
    if code < 0:
        return f"ssh was ended here by signal {-code}"
    return "its agent ended" if code == 0 else f"its agent ended with code {code}{last}"
