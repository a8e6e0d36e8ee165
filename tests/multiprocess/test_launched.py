"""Runs whose agents somebody starts for them: over ssh."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from helpers import runs
from helpers.cluster_run import JOB_TEXT
from helpers.sshd import sshds

pytestmark = [pytest.mark.multiprocess, pytest.mark.wide, pytest.mark.timeout(900)]
LIMIT_S = 600
SRC = Path(holdfast.__file__).parents[1]
WORDS = ["--pipelines", "2", "--stages", "2", "--steps", "6", "--microbatches", "8"]
NO_FILES = runs.settings("checkpoint.at_end=false", "checkpoint.first_step=0")


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    path = tmp_path_factory.mktemp("job") / "paced_gpt.py"
    path.write_text(JOB_TEXT)
    return path


@pytest.fixture(scope="module")
def undisturbed(job):
    """In one process."""
    numbers = {"steps": None, "microbatches": None}
    return runs.finished(runs.threads(job, job.parent / "run", *WORDS, **numbers)).sha256


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def train(job, run_dir, *words):
    words = ["train", str(job), "--run-dir", str(run_dir), *WORDS, *NO_FILES, *words]
    done = subprocess.run(
        runs.command(*words),
        env=runs.environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    return runs.Outcome(run_dir, done.returncode, done.stdout, done.stderr)


def test_agents_over_ssh_train_to_the_same_bits(job, undisturbed, tmp_path):
    with sshds(tmp_path, 2):
        python = tmp_path / "python"
        python.write_text(f'#!/bin/sh\nPYTHONPATH={SRC} exec {sys.executable} "$@"\n')
        python.chmod(0o700)
        rows = [f"[[host]]\naddress = 's{at}'\nslots = 2\npython = '{python}'\n" for at in (0, 1)]
        hosts = tmp_path / "hosts.toml"
        hosts.write_text(f"ssh_config = 'ssh_config'\n{''.join(rows)}")
        own = ["--machines", "2", "--listen", f"127.0.0.1:{free_port()}"]
        own += ["--cluster", f"ssh:{hosts}"]
        done = train(job, tmp_path / "run", *own)
    assert done.exit_code == 0, done
    assert done.sha256 == undisturbed
    assert "s1 | holdfast agent: the run is over" in done.stderr


def test_hosts_that_cannot_be_reached_end_a_run_in_one_line(job, tmp_path):
    hosts = tmp_path / "hosts.toml"
    hosts.write_text("[[host]]\naddress = '127.0.0.1'\nname = 'a'\nport = 1\n")
    own = ["--machines", "1", "--listen", f"127.0.0.1:{free_port()}", "--cluster", f"ssh:{hosts}"]
    done = train(job, tmp_path / "run", *own)
    assert done.exit_code == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("holdfast: a: cannot be reached by ssh: nobody listens for ssh there")
