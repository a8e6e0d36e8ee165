"""Manifests for Kubernetes: read by its own schemas, and the entry points of pods run by hand."""

import json
import re
import shlex
import stat
import subprocess

import pytest

from holdfast.auth.certificate import TlsKey
from holdfast.cli.main import main
from holdfast.launch.k8s.manifests import manifests, ticket_of
from holdfast.launch.k8s.pods import K8sRun
from holdfast.launch.k8s.yaml_text import documents

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
SECRET, KEY = bytes(range(32)), TlsKey(b"-----KEY-----\n", "ab" * 32)
RUNS = {
    "plain": K8sRun("gpt", "img:1", 2, 2, "", job_text="def job():\n    return 1\n"),
    "one": K8sRun("gpt", "img:1", 1, 1, "/app/job.py"),
    "all": K8sRun(
        "gpt",
        "img:1",
        4,
        3,
        "jobs:make",
        namespace="ml",
        secret_name="mine",
        slots=2,
        cpu="4",
        memory="8Gi",
        gpus=1,
        claim="runs",
        address="s3://bucket/a b",
        train=["--pipelines", "4", "--set", "x.y=a b"],
    ),
}


def parts(run):
    found = list(yaml.safe_load_all(manifests(run, SECRET, KEY)))
    return {each["kind"]: each for each in found}


def test_the_parts_of_a_run():
    assert list(parts(RUNS["plain"])) == [
        *("Secret", "ConfigMap", "Service", "PodDisruptionBudget", "JobSet"),
    ]
    assert list(parts(RUNS["all"])) == ["Service", "PodDisruptionBudget", "JobSet"]
    assert list(parts(RUNS["one"])) == ["Secret", "Service", "JobSet"]
    found = parts(RUNS["all"])
    assert {each["metadata"]["namespace"] for each in found.values()} == {"ml"}
    assert found["PodDisruptionBudget"]["spec"]["minAvailable"] == 3
    assert parts(RUNS["plain"])["ConfigMap"]["data"] == {"job.py": "def job():\n    return 1\n"}


def pods(run):
    jobs = parts(run)["JobSet"]["spec"]["replicatedJobs"]
    return {job["name"]: job["template"]["spec"]["template"]["spec"] for job in jobs}


def test_one_child_job_a_machine_and_the_coordinator_decides_the_end():
    spec = parts(RUNS["all"])["JobSet"]["spec"]
    assert [(job["name"], job["replicas"]) for job in spec["replicatedJobs"]] == (
        [("coordinator", 1), ("machine", 4)]
    )
    assert spec["successPolicy"]["targetReplicatedJobs"] == ["coordinator"]
    machine = pods(RUNS["all"])["machine"]["containers"][0]
    assert machine["resources"]["limits"] == {"memory": "8Gi", "nvidia.com/gpu": "1"}
    assert machine["resources"]["requests"]["cpu"] == "4"


@pytest.mark.parametrize("name", RUNS)
def test_a_pod_has_time_to_leave_in_good_order(name):
    for pod in pods(RUNS[name]).values():
        [container] = pod["containers"]
        notice = container["lifecycle"]["preStop"]["exec"]["command"][-1]
        assert notice.startswith("kill -TERM 1; sleep ")
        assert int(notice.split()[-1]) < pod["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("name", RUNS)
def test_kubernetes_own_schemas_accept_every_part(name):
    validate = pytest.importorskip("kubernetes_validate", reason="pip install 'holdfast[dev-k8s]'")
    for kind, part in parts(RUNS[name]).items():
        if kind != "JobSet":
            validate.validate(part, "1.30", strict=True)
    for job in parts(RUNS[name])["JobSet"]["spec"]["replicatedJobs"]:
        metadata = {"name": job["name"]}
        child = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, **job["template"]}
        validate.validate(child, "1.30", strict=True)


@pytest.mark.parametrize("name", RUNS)
def test_the_schema_of_job_sets_accepts_it_and_knows_every_field(name):
    models = pytest.importorskip(
        "kubeflow_trainer_api.models", reason="pip install 'holdfast[dev-k8s]'"
    )
    job_set = parts(RUNS[name])["JobSet"]
    read = models.JobsetV1alpha2JobSet.from_dict(job_set).to_dict()
    assert known(job_set, read) == job_set


def known(part, read):
    """What of it was read: the reader drops what it does not know."""
    if isinstance(part, dict):
        return {key: known(value, read[key]) for key, value in part.items() if key in read}
    if isinstance(part, list):
        return [known(*pair) for pair in zip(part, read, strict=True)]
    return part


# --- entry points ---

FAKE = 'if [ "$1" = -c ]; then exit {found}; fi; printf "%s\\n" "$*" "$(stat -c %a {files})"\n'


def entered(folder, pod, *, found=1, files, env):
    """What the container's command does, with its volumes below ``folder``."""
    secrets = folder / "holdfast" / "secret"
    secrets.mkdir(parents=True, exist_ok=True)
    (secrets / "secret").write_text(f"{SECRET.hex()}\n")
    (secrets / "tls.pem").write_bytes(KEY.pem)
    (secrets / "ticket").write_text(ticket_of(RUNS["plain"], SECRET, KEY.fingerprint))
    for path in secrets.iterdir():
        path.chmod(0o444)
    (folder / "tmp").mkdir(exist_ok=True)
    python = folder / "bin" / "python3"
    python.parent.mkdir(exist_ok=True)
    python.write_text("#!/bin/sh\n" + FAKE.format(found=found, files=folder / "tmp" / files))
    python.chmod(0o700)
    [container] = pod["containers"]
    words = [*container["command"], *container["args"]]
    here = [re.sub("(?<![a-z])/(holdfast|tmp)/", rf"{folder}/\1/", word) for word in words]
    done = subprocess.run(
        here,
        env={"PATH": f"{folder}/bin:/usr/bin:/bin", **env},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.replace(str(folder), "").splitlines()


def test_the_entry_point_of_a_machine_starts_an_agent(tmp_path):
    env = {"JOB_INDEX": "3", "POD_IP": "10.1.2.3"}
    said = entered(tmp_path, pods(RUNS["all"])["machine"], files="ticket", env=env)
    assert said == [
        "-m holdfast agent --ticket /tmp/ticket --name machine-3 --advertise 10.1.2.3 --slots 2",
        "400",
    ]
    ticket = json.loads((tmp_path / "tmp" / "ticket").read_text())
    assert ticket["address"] == "gpt-coordinator-0-0.gpt:7077"
    assert bytes.fromhex(ticket["secret"]) == SECRET
    assert ticket["certificate"] == KEY.fingerprint


COORDINATES = (
    "-m holdfast train --machines 4 --start-with 3 --listen 0.0.0.0:7077 --set "
    "network.advertise=gpt-coordinator-0-0.gpt --secret-file /tmp/secret --run-dir "
    "/holdfast/run/run"
)


def test_the_entry_point_of_the_coordinator_trains_and_later_resumes(tmp_path):
    pod = pods(RUNS["all"])["coordinator"]
    first = entered(tmp_path, pod, files="secret", env={})
    assert first == [f"{COORDINATES} jobs:make --pipelines 4 --set x.y=a b", "400"]
    later = entered(tmp_path, pod, found=0, files="secret", env={})
    assert later == [f"{COORDINATES} --resume s3://bucket/a b", "400"]
    assert (tmp_path / "holdfast" / "run" / "run" / "tls.pem").read_bytes() == KEY.pem


def test_a_job_that_is_not_in_the_image_comes_from_the_config_map(tmp_path):
    [line, _] = entered(tmp_path, pods(RUNS["plain"])["coordinator"], files="secret", env={})
    assert line.endswith("/holdfast/run/run /holdfast/job/job.py")


# --- the command ---


def test_without_tls_there_is_no_key():
    [secret] = [
        each
        for each in yaml.safe_load_all(manifests(RUNS["plain"], SECRET, None))
        if each["kind"] == "Secret"
    ]
    assert sorted(secret["stringData"]) == ["secret", "ticket"]
    assert json.loads(secret["stringData"]["ticket"])["certificate"] == ""


def test_the_file_is_for_its_owner_only_and_holds_a_new_secret(tmp_path, capsys):
    job, file = tmp_path / "My_Job.py", tmp_path / "run.yaml"
    job.write_text("x = 1\n")
    words = ["k8s", str(job), "--image", "i", "--machines", "2", "--output", str(file)]
    words += ["--", "--set", "network.tls=off"]  # a key needs a package that may not be there
    file.write_text("")
    assert main(words) == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "kubectl apply" in capsys.readouterr().out
    first = {each["kind"]: each for each in yaml.safe_load_all(file.read_text())}
    assert first["JobSet"]["metadata"]["name"] == "my-job"
    assert main(words) == 0
    second = {each["kind"]: each for each in yaml.safe_load_all(file.read_text())}
    assert first["Secret"] != second["Secret"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("no.py --machines 2", "no.py: cannot be read (No such file"),
        ("j:m --job-in-image --machines 0", "--machines 0: expected at least 1"),
        ("j:m --job-in-image --machines 2 --start-with 3", "--start-with 3: expected 1 to 2"),
        ("j:m --job-in-image --machines 2 --memory lots", "--memory lots: expected a quantity"),
        ("j:m --job-in-image --machines 2 --name A", "--name A: expected up to 31"),
        ("j:m --job-in-image --machines 2 --gpus -1", "--gpus -1: expected 0 or more"),
    ],
)
def test_bad_input_is_one_line(words, expected, capsys):
    assert main(["k8s", "--image", "i", *shlex.split(words)]) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "value",
    [
        {"a": "no", "b": "1", "c": "", "d": "x: y", "e": " x", "f": "x\ny", "g": "  x\n\n y\n"},
        {"a": [], "b": {}, "c": [[1, 2], {"x": [True, None]}], "d": [{"a": 1, "b": "#"}]},
        {"a": "x\n\n", "b": "tab\t\nend\n", "c": "é\n", "d": "0x1f", "e": "1e3", "f": "a #b"},
        {"on": 1, "y": "n", "a:b": "c:", "-": "- x"},
    ],
)
def test_what_is_written_is_read_back(value):
    assert yaml.safe_load(documents(("one\ntwo", value))) == value
