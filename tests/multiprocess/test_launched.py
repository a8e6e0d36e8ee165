"""Runs whose agents somebody starts for them: over ssh, by Slurm and by Ray."""

import importlib.util
import json
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import holdfast
from helpers import runs
from helpers.cluster_run import HOLDFAST, JOB, JOB_TEXT, PORT, RUN_DIR
from helpers.hosts import hosts, why_not
from helpers.live import wait_until
from helpers.slurm_cluster import slurm_cluster
from helpers.sshd import sshds
from holdfast.auth.certificate import new_key
from holdfast.auth.secret import new_secret
from holdfast.launch.k8s.manifests import ticket_of
from holdfast.launch.k8s.pods import K8sRun, coordinator_pod, machine_pod
from holdfast.observability.events import MachineLost, StepFinished, WorkerReady
from holdfast.observability.log import EVENTS_FILE, read_events
from holdfast.observability.summary import SUMMARY_FILE

pytestmark = [pytest.mark.multiprocess, pytest.mark.cluster, pytest.mark.timeout(900)]
LIMIT_S = 600
WHY_NOT = why_not()
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
        file = tmp_path / "hosts.toml"
        file.write_text(f"ssh_config = 'ssh_config'\n{''.join(rows)}")
        own = ["--machines", "2", "--listen", f"127.0.0.1:{free_port()}"]
        own += ["--cluster", f"ssh:{file}"]
        done = train(job, tmp_path / "run", *own)
    assert done.exit_code == 0, done
    assert done.sha256 == undisturbed
    assert "s1 | holdfast agent: the run is over" in done.stderr


def test_hosts_that_cannot_be_reached_end_a_run_in_one_line(job, tmp_path):
    file = tmp_path / "hosts.toml"
    file.write_text("[[host]]\naddress = '127.0.0.1'\nname = 'a'\nport = 1\n")
    own = ["--machines", "1", "--listen", f"127.0.0.1:{free_port()}", "--cluster", f"ssh:{file}"]
    done = train(job, tmp_path / "run", *own)
    assert done.exit_code == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("holdfast: a: cannot be reached by ssh: nobody listens for ssh there")


# --- Kubernetes ---


def test_the_entry_points_of_pods_train_together(job, undisturbed, tmp_path):
    """By hand, as the kubelet would: volumes, variables, command; names and ports are ours."""
    port = free_port()
    run = K8sRun("gpt", "i", 2, 2, str(job), slots=2, train=[*WORDS, *NO_FILES])
    secret, key = new_secret(), new_key("a test")
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python3"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={SRC} exec {sys.executable} "$@"\n')
    python.chmod(0o700)

    def started(name, pod, **variables):
        folder = tmp_path / name
        (folder / "tmp").mkdir(parents=True)
        secrets = folder / "holdfast" / "secret"
        secrets.mkdir(parents=True)
        ticket = ticket_of(run, secret, key.fingerprint)
        ticket = ticket.replace(f"{run.host}:7077", f"127.0.0.1:{port}")
        for file, text in (
            ("secret", secret.hex()),
            ("ticket", ticket),
            ("tls.pem", key.pem.decode()),
        ):
            (secrets / file).write_text(text)
        [container] = pod["containers"]
        [script] = container["args"]
        script = re.sub("(?<![a-z])/(holdfast|tmp)/(?!pytest)", rf"{folder}/\1/", script)
        script = script.replace(run.host, "127.0.0.1").replace(":7077", f":{port}")
        env = runs.environment() | variables
        env |= {"PATH": f"{tmp_path}/bin:{env['PATH']}"}
        with open(folder / "log", "w") as log:
            words = [*container["command"], script]
            return subprocess.Popen(words, env=env, stdout=log, stderr=log)

    pods = [started("c", coordinator_pod(run))]
    for index in ("0", "1"):
        variables = {"JOB_INDEX": index, "POD_IP": "127.0.0.1"}
        pods.append(started(f"m{index}", machine_pod(run), **variables))
    try:
        code = pods[0].wait(LIMIT_S)
    finally:
        for pod in pods:  # a JobSet that has succeeded ends what is left of it
            pod.kill()
            pod.wait()
    said = "".join((tmp_path / name / "log").read_text() for name in ("c", "m0", "m1"))
    assert code == 0, said
    summary = json.loads((tmp_path / "c/holdfast/run/run" / SUMMARY_FILE).read_text())
    assert summary["parameters_sha256"] == undisturbed
    assert "machine machine-1 is here" in said


# --- Slurm ---


def slurm_job(folder, job, env):
    """A script as it is written, submitted; its number."""
    script = folder / "job.sbatch"
    words = ["slurm", str(job), "--nodes", "2", "--slots", "2", "--run-dir", f"{folder}/run"]
    words += ["--output", str(script), "--", *WORDS, *NO_FILES]
    subprocess.run(runs.command(*words), check=True, env=env, stdout=subprocess.DEVNULL)
    submit = ["sbatch", "--parsable", str(script)]
    done = subprocess.run(submit, cwd=folder, env=env, check=True, stdout=subprocess.PIPE)
    return done.stdout.decode().strip()


def wait_for_the_end(env, folder):
    def is_over():
        queue = ["squeue", "-h", "-o", "%T"]
        return not subprocess.run(queue, env=env, stdout=subprocess.PIPE).stdout.strip()

    wait_until(is_over, "the end of the job", LIMIT_S)
    return said_in(folder)


def said_in(folder):
    return "".join(path.read_text() for path in folder.glob("paced_gpt-*.log"))


@pytest.fixture
def slurm(tmp_path):
    root = tmp_path / "slurm"
    root.mkdir()
    with slurm_cluster(root, 2) as environment:
        yield environment | {"PYTHONPATH": str(SRC)}


def test_the_script_for_slurm_trains_on_two_nodes_to_the_same_bits(
    job, undisturbed, slurm, tmp_path
):
    slurm_job(tmp_path, job, slurm)
    said = wait_for_the_end(slurm, tmp_path)
    summary = json.loads((tmp_path / "run" / SUMMARY_FILE).read_text())
    assert summary["parameters_sha256"] == undisturbed, said
    for node in ("n0", "n1"):
        assert f"{node} | holdfast agent: {node} with 2 slots" in said


def test_a_job_of_slurm_that_is_told_to_end_saves_and_goes_on_later(
    job, undisturbed, slurm, tmp_path
):
    own = tmp_path / job.name
    own.write_text(job.read_text().replace("/tmp/slow", f"{tmp_path}/slow"))
    (tmp_path / "slow").write_text("0.1")
    number = slurm_job(tmp_path, own, slurm)
    events = tmp_path / "run" / EVENTS_FILE

    def has_step():
        found = read_events(events) if events.exists() else []
        return any(isinstance(event, StepFinished) for event in found)

    wait_until(has_step, "a step", LIMIT_S)
    subprocess.run(["scancel", "--batch", "--signal=TERM", number], env=slurm, check=True)
    wait_until(lambda: "interrupted" in said_in(tmp_path), "the notice", LIMIT_S)
    (tmp_path / "slow").unlink()
    said = wait_for_the_end(slurm, tmp_path)
    summary = json.loads((tmp_path / "run" / SUMMARY_FILE).read_text())
    assert summary["parameters_sha256"] == undisturbed, said
    assert said.count("agents are started by slurm:2") == 2


# --- Ray ---

KNOCK = "import socket, sys; s = socket.socket(); s.settimeout(1)\n"
KNOCK += "print('no' if s.connect_ex((sys.argv[1], 6379)) else 'yes')"
NODES = """
import sys, time, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
while sum(node["Alive"] for node in ray.nodes()) < 3: time.sleep(0.2)
"""
RAY_LIMIT_S = 120.0
RAY_COMMON = ["--num-cpus=2", "--object-store-memory=100000000", "--disable-usage-stats", "--block"]


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
def test_agents_on_three_nodes_of_ray_survive_the_loss_of_one(job, undisturbed, tmp_path):
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'holdfast[ray]'")
    packages = Path(importlib.util.find_spec("ray").origin).parents[1]
    ray = [sys.executable, "-m", "ray.scripts.scripts", "start"]
    with hosts(3, share=[packages]) as machines:
        head = machines[0]
        own = ["--head", f"--node-ip-address={head.ipv4}", "--port=6379"]
        own += ["--include-dashboard=false"]
        head.start([*ray, *own, *RAY_COMMON], tmp_path, "ray-head")
        listens = [sys.executable, "-c", KNOCK, head.ipv4]
        wait_until(lambda: head.run(listens) == "yes\n", "Ray", RAY_LIMIT_S)
        for host in machines[1:]:
            place = [f"--address={head.ipv4}:6379", f"--node-ip-address={host.ipv4}"]
            host.start([*ray, *place, *RAY_COMMON], tmp_path, f"ray-{host.name}")
        head.file(JOB).parent.mkdir()
        head.file(JOB).write_text(JOB_TEXT)  # the others are sent it
        for host in machines:
            host.file("/tmp/slow").write_text("0.2")
        count = [sys.executable, "-c", NODES, f"{head.ipv4}:6379"]
        head.run(count)
        words = ["train", JOB, "--run-dir", RUN_DIR, *WORDS, *NO_FILES, "--cluster", "ray:2"]
        words += ["--machines", "3", "--listen", f"{head.ipv4}:{PORT}"]
        words += runs.settings("workers.heartbeat_timeout_s=3")
        train = head.start([*HOLDFAST, *words], tmp_path, "train")

        def seen(kind):
            path = head.file(f"{RUN_DIR}/{EVENTS_FILE}")
            assert train.process.poll() is None, train.stdout + train.stderr
            return [e for e in read_events(path) if isinstance(e, kind)] if path.exists() else []

        wait_until(lambda: seen(StepFinished), "a step", LIMIT_S)
        busy = {event.machine for event in seen(WorkerReady)}
        victim = next(host for host in machines[1:] if host.ipv4 in busy)
        lost_s = time.monotonic()
        victim.power_off()
        wait_until(lambda: seen(MachineLost), "the loss", 30)
        noticed_s = time.monotonic() - lost_s
        for host in machines:
            if host.is_on:
                host.file("/tmp/slow").unlink()
        assert train.wait(LIMIT_S) == 0, train.stdout + train.stderr
        summary = json.loads(head.file(f"{RUN_DIR}/{SUMMARY_FILE}").read_text())
    assert summary["parameters_sha256"] == undisturbed
    assert noticed_s < 30  # Ray itself takes a minute
    assert "h1 | holdfast agent: h1 with 2 slots" in train.stderr
