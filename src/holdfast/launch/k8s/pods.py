"""The two kinds of pods of a run: one that coordinates, and one a machine."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.launch.again import HAS_CHECKPOINT

PORT = 7077
COORDINATOR, MACHINE = "coordinator", "machine"
SECRET_KEY, TICKET_KEY, TLS_KEY, JOB_KEY = "secret", "ticket", "tls.pem", "job.py"
_SECRETS, _JOB, _RUN = "/holdfast/secret", "/holdfast/job", "/holdfast/run"
_GRACE_S = 120  # to hand over what a machine holds, or to save a checkpoint
_LISTENS = f'":{PORT:04X} 0*:0000 0A"'  # in /proc/net: nobody is called to find out
_CONNECTED = f'":{PORT:04X} 01"'
_INDEX_LABEL = "metadata.labels['jobset.sigs.k8s.io/job-index']"


@dataclass(frozen=True, slots=True)
class K8sRun:
    name: str
    image: str
    machines: int
    start_with: int
    job: str  # in the image, or empty: the file below
    job_text: str = ""
    namespace: str = ""
    secret_name: str = ""  # that is there already; empty: a new one
    slots: int | None = None
    cpu: str = ""
    memory: str = ""
    gpus: int = 0
    claim: str = ""  # of a volume for the run directory; empty: it ends with the pod
    address: str = ""  # of checkpoints; empty: they are in the run directory
    train: Sequence[str] = ()

    @property
    def secret(self) -> str:
        return self.secret_name or f"{self.name}-ticket"

    @property
    def host(self) -> str:
        """Of the coordinator, for all other pods, whichever pod it is just now."""
        return f"{self.name}-{COORDINATOR}-0-0.{self.name}"


def coordinator_pod(run: K8sRun) -> dict[str, Any]:
    mounts = [_mount("ticket", _SECRETS), _mount("run", _RUN)]
    claim = {"persistentVolumeClaim": {"claimName": run.claim}} if run.claim else {"emptyDir": {}}
    volumes = [_secret_volume(run), {"name": "run", **claim}]
    if not run.job:
        mounts.append(_mount("job", _JOB))
        volumes.append({"name": "job", "configMap": {"name": f"{run.name}-job"}})
    container = {
        "name": COORDINATOR,
        "image": run.image,
        "command": ["sh", "-c"],
        "args": [_train_script(run)],
        "ports": [{"name": "control", "containerPort": PORT}],
        "volumeMounts": mounts,
        "resources": {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"memory": "2Gi"}},
        **_probes(_LISTENS),
        **_common(),
    }
    return _pod(container, volumes, {})


def machine_pod(run: K8sRun) -> dict[str, Any]:
    limits = {"memory": run.memory} if run.memory else {}
    limits |= {"nvidia.com/gpu": str(run.gpus)} if run.gpus else {}
    requests = {**limits, **({"cpu": run.cpu} if run.cpu else {})}
    resources = {"requests": requests, "limits": limits}
    container = {
        "name": MACHINE,
        "image": run.image,
        "command": ["sh", "-c"],
        "args": [_agent_script(run)],
        "env": [
            _from_field("JOB_INDEX", _INDEX_LABEL),
            _from_field("POD_IP", "status.podIP"),
        ],
        "volumeMounts": [_mount("ticket", _SECRETS), _mount("shm", "/dev/shm")],
        "resources": {key: value for key, value in resources.items() if value},
        **_probes(_CONNECTED),
        **_common(),
    }
    volumes = [_secret_volume(run, TICKET_KEY), {"name": "shm", "emptyDir": {"medium": "Memory"}}]
    return _pod(container, volumes, _spread(run))


def _train_script(run: K8sRun) -> str:
    """Anew, or from the newest checkpoint: it runs again if its pod is lost."""
    anew = shlex.join([run.job or f"{_JOB}/{JOB_KEY}", *run.train])
    saved = shlex.quote(run.address) if run.address else f"{_RUN}/run"
    options = [
        f"--machines {run.machines} --start-with {run.start_with}",
        f"--listen 0.0.0.0:{PORT} --set network.advertise={run.host}",
        f"--secret-file /tmp/secret --run-dir {_RUN}/run",
    ]
    return "\n".join(
        [
            "set -e; umask 077",
            f"cp {_SECRETS}/{SECRET_KEY} /tmp/secret # readable for us only, whoever we are",
            f"set -- python3 -m holdfast train {' '.join(options)}",
            f"if python3 -c {shlex.quote(HAS_CHECKPOINT)} {saved} 2> /dev/null; then",
            f'  set -- "$@" --resume {saved}',
            "else",
            f"  rm -rf {_RUN}/run # of a pod that was lost before its first checkpoint",
            f'  set -- "$@" {anew}',
            "fi",
            f"mkdir -p {_RUN}/run # with the key that the ticket knows, if there is one",
            f"cp -f {_SECRETS}/{TLS_KEY} {_RUN}/run/{TLS_KEY} 2> /dev/null || true",
            'exec "$@"',
            "",
        ]
    )


def _agent_script(run: K8sRun) -> str:
    slots = "" if run.slots is None else f" --slots {run.slots}"
    return "\n".join(
        [
            "set -e; umask 077",
            f"cp {_SECRETS}/{TICKET_KEY} /tmp/ticket # readable for us only, whoever we are",
            f'exec python3 -m holdfast agent --ticket /tmp/ticket --name "{MACHINE}-$JOB_INDEX" '
            f'--advertise "$POD_IP"{slots}',
            "",
        ]
    )


def _probes(pattern: str) -> dict[str, Any]:
    """Ready when the port is open, or the agent connected. Holdfast itself knows who is alive."""
    look = f"grep -qi {pattern} /proc/net/tcp /proc/net/tcp6"
    probe = {"exec": {"command": ["sh", "-c", look]}, "periodSeconds": 5}
    return {"startupProbe": {**probe, "failureThreshold": 120}, "readinessProbe": probe}


def _common() -> dict[str, Any]:
    # SIGTERM is a notice: a machine hands over what it holds, the coordinator saves. Said before
    # the kubelet would, as an image may name another signal for it.
    notice = f"kill -TERM 1; sleep {_GRACE_S - 10}"
    return {
        "lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", notice]}}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }


def _pod(
    container: Mapping[str, Any], volumes: Sequence[Mapping[str, Any]], more: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _GRACE_S,
        "automountServiceAccountToken": False,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        **more,
        "containers": [container],
        "volumes": list(volumes),
    }


def _spread(run: K8sRun) -> dict[str, Any]:
    """Over nodes, as far as there are enough: a node that is lost is one machine."""
    labels = {
        "jobset.sigs.k8s.io/jobset-name": run.name,
        "jobset.sigs.k8s.io/replicatedjob-name": MACHINE,
    }
    return {
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": labels},
            }
        ]
    }


def _secret_volume(run: K8sRun, *keys: str) -> dict[str, Any]:
    """``keys``: only these of the secret; the key of the coordinator is nobody else's."""
    secret: dict[str, Any] = {"secretName": run.secret, "defaultMode": 0o444}
    if keys:
        secret["items"] = [{"key": key, "path": key} for key in keys]
    return {"name": "ticket", "secret": secret}


def _mount(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "mountPath": path}


def _from_field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
