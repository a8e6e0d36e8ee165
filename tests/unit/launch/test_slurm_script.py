"""The batch script: as it was looked at, and read by bash. HOLDFAST_REWRITE=1 writes it anew."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.errors import ConfigError
from holdfast.launch.kinds import open_cluster
from holdfast.launch.orders import read_order
from holdfast.launch.slurm import slurm_cluster
from holdfast.launch.slurm.slurm_cluster import num_nodes, srun_words

GOLDEN = Path(__file__).parents[2] / "data" / "launch"
CASES = {
    "plain.sbatch": "job.py --nodes 2",
    "spares.sbatch": "jobs/gpt.py:make --nodes 4 --spares 1 --slots 2 --sbatch partition=gpu "
    "--sbatch time=8:00:00 -- --pipelines 4 --stages 2 --set 'x.y=a b' -- --lr 3e-4",
    "address.sbatch": "job.py --nodes 2 --name big --run-dir '/scratch/$USER/a \"b\"' "
    "-- --set checkpoint.dir=s3://bucket/run",
}


@pytest.mark.parametrize("name", CASES)
def test_the_script_is_as_it_was_looked_at_and_bash_reads_it(name, capsys):
    words = ["slurm", "--python", "/opt/my env/bin/python", *shlex.split(CASES[name])]
    assert main(words) == 0
    text = capsys.readouterr().out
    if os.environ.get("HOLDFAST_REWRITE"):
        (GOLDEN / name).write_text(text)
    assert text == (GOLDEN / name).read_text()
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def ran(folder, script, restart, *, python, state="RUNNING", bash=""):
    """What the script did with programs of ours in place of Slurm's: the words of each.

    ``bash``: what every bash begins with.
    """
    (folder / "begins").write_text(bash)
    programs = {
        "python": python,
        "hostname": "echo n1",
        "squeue": f"echo {state}",
        "scontrol": f'echo "scontrol $*" >> {folder}/did',
    }
    for name, body in programs.items():
        path = folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o700)
    env = {"PATH": f"{folder}/bin:/usr/bin:/bin", "SLURM_JOB_ID": "20001", "USER": "ada"}
    env["BASH_ENV"] = f"{folder}/begins"
    env |= {"SLURM_RESTART_COUNT": str(restart)} if restart else {}
    done = subprocess.run(["bash", str(script)], cwd=folder, env=env, timeout=60)
    did = folder / "did"
    return done.returncode, did.read_text().splitlines() if did.exists() else []


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "job.sbatch"
    python = str(tmp_path / "bin" / "python")
    words = ["slurm", "job.py", "--nodes", "2", "--python", python, "--output", str(path)]
    assert main([*words, "--", "--stages", "2"]) == 0
    return path


SAYS = 'if [ "$1" = -c ]; then exit {found}; fi; echo "$*" >> {folder}/did; '


def test_the_first_start_trains_and_a_later_one_resumes(tmp_path, script):
    first = SAYS.format(found=1, folder=tmp_path)
    options = "--cluster slurm --machines 2 --start-with 2 --listen n1:20001"
    code, did = ran(tmp_path, script, 0, python=first)
    run_dir = "runs/job-20001"
    anew = f"-m holdfast train {options} --run-dir {run_dir} job.py --stages 2"
    assert (code, did) == (0, [anew])
    (tmp_path / "did").unlink()
    (tmp_path / run_dir).mkdir(parents=True)
    code, did = ran(tmp_path, script, 1, python=SAYS.format(found=0, folder=tmp_path))
    resumed = f"-m holdfast train {options} --resume {run_dir} --run-dir {run_dir}"
    assert did == [resumed]
    (tmp_path / "did").unlink()
    code, did = ran(tmp_path, script, 2, python=first)
    assert did == [anew]
    assert (tmp_path / "runs" / "job-20001.before-2").is_dir()


# The script itself is not on while what it has started begins.
SLOW = r"""
case "$0" in *.sbatch) trap '[ "$BASH_COMMAND" != "train=\$!" ] || sleep 1' DEBUG ;; esac
"""


@pytest.mark.parametrize("bash", ["", SLOW], ids=["running", "being started"])
def test_told_to_end_it_passes_that_on_and_goes_back_into_the_queue(tmp_path, script, bash):
    saves = f"trap 'echo saved >> {tmp_path}/did; exit 1' TERM; kill -TERM $PPID; sleep 20 & wait"
    python = SAYS.format(found=1, folder=tmp_path) + saves
    code, did = ran(tmp_path, script, 0, python=python, bash=bash)
    assert (code, did[1:]) == (1, ["saved", "scontrol requeue 20001"])


def test_a_run_that_fails_by_itself_is_not_started_again(tmp_path, script):
    code, did = ran(tmp_path, script, 0, python=SAYS.format(found=1, folder=tmp_path) + "exit 2")
    assert (code, len(did)) == (2, 1)


@pytest.mark.parametrize(
    ("ends", "restart", "state", "is_queued"),
    [
        ("kill -KILL $$", 0, "RUNNING", True),
        ("kill -KILL $$", 4, "RUNNING", True),
        ("kill -KILL $$", 5, "RUNNING", False),  # else it is started for ever
        ("kill -KILL $$", 0, "COMPLETING", False),  # it was cancelled
        ("exit 130", 0, "RUNNING", False),  # Ctrl-C
    ],
)
def test_a_job_whose_coordinator_was_killed_is_queued_again(
    tmp_path, script, ends, restart, state, is_queued
):
    python = SAYS.format(found=1, folder=tmp_path) + ends
    code, did = ran(tmp_path, script, restart, python=python, state=state)
    assert code == (130 if "130" in ends else 137)
    assert did[1:] == (["scontrol requeue 20001"] if is_queued else [])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--nodes 0", "--nodes 0: expected at least 1"),
        ("--nodes 1 --spares -1", "--spares -1: expected at least 0"),
        ("--nodes 1 --sbatch 'x y'", "--sbatch x y: expected OPTION=VALUE"),
        ("--nodes 1 --sbatch 'a=b\n#SBATCH'", "expected OPTION=VALUE"),
        ("--nodes 1 --name 'a b'", "--name a b: expected letters"),
        ("--nodes 1 --run-dir 'a\nb'", "takes no line ends"),
    ],
)
def test_bad_input_is_one_line(words, expected, capsys):
    assert main(["slurm", "job.py", *shlex.split(words)]) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert error.count("\n") == 1


def test_inside_of_an_allocation_all_its_nodes_are_taken():
    assert num_nodes({"SLURM_JOB_NUM_NODES": "3"}) == 3
    assert num_nodes({"SLURM_NNODES": "2"}) == 2
    words = srun_words(3)
    assert words[:3] == ["srun", "--nodes=3", "--ntasks=3"]
    assert words[-2:] == ["-m", "holdfast.cli.launching.keeper"]
    assert "--no-kill" in words


@pytest.mark.parametrize("environment", [{}, {"SLURM_JOB_NUM_NODES": "no"}])
def test_outside_of_one_that_is_said(environment):
    with pytest.raises(ConfigError, match="expected to run inside of an allocation"):
        num_nodes(environment)


def test_more_machines_than_nodes_are_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    with pytest.raises(ConfigError, match="the allocation has 2 nodes; 3 machines are wanted"):
        open_cluster("slurm", print).start(tmp_path / "ticket", 3)
    with pytest.raises(ConfigError, match="slurm:x: expected the workers on one machine"):
        open_cluster("slurm:x", print)


def test_agents_end_with_the_job_whatever_the_ticket_says_of_standbys(monkeypatch, tmp_path):
    said = []
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    monkeypatch.setattr(slurm_cluster, "Program", lambda words, order, env: said.append(order))
    (tmp_path / "ticket").write_text('{"more": ["h:1"]}')
    open_cluster("slurm", print).start(tmp_path / "ticket", 2)
    assert not read_order(said[0]).outlives
