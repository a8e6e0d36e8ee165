"""All that a run needs on Kubernetes, as one file for kubectl."""

import json
from typing import Any

from holdfast.addresses import host_port
from holdfast.auth.certificate import TlsKey
from holdfast.launch.k8s import pods
from holdfast.launch.k8s.pods import COORDINATOR, MACHINE, K8sRun
from holdfast.launch.k8s.yaml_text import documents

_PREFIX = "jobset.sigs.k8s.io"
_COORDINATOR_TRIES = 10
_MACHINE_TRIES = 1000  # machines come and go for as long as the run takes


def manifests(run: K8sRun, secret: bytes, key: TlsKey | None) -> str:
    """``key``: of the coordinator; None: it speaks without TLS."""
    parts: list[tuple[str, dict[str, Any]]] = []
    if not run.secret_name:
        comment = (
            "What proves that a pod belongs to the run, and the key of its coordinator. Keep this\n"
            "file as you keep a password."
        )
        parts.append((comment, _secret(run, secret, key)))
    if not run.job:
        comment = "The job. Machines get it from the coordinator."
        parts.append((comment, _job_file(run)))
    parts.append(("Names for all pods of the run, also before they are ready.", _service(run)))
    if run.machines > 1:
        comment = "Who drains nodes takes one machine after the other."
        parts.append((comment, _budget(run, MACHINE, run.machines - 1)))
    comment = (
        "One job for the coordinator and one a machine. It has succeeded when the coordinator\n"
        "has; a pod that is lost is replaced, and takes part again."
    )
    parts.append((comment, _job_set(run)))
    return documents(*parts)


def ticket_of(run: K8sRun, secret: bytes, certificate: str) -> str:
    """As ``auth.ticket`` reads it."""
    values = {
        "version": 1,
        "address": host_port(run.host, pods.PORT),
        "more": [],
        "certificate": certificate,
        "secret": secret.hex(),
        "run": "",
    }
    return json.dumps(values) + "\n"


def _secret(run: K8sRun, secret: bytes, key: TlsKey | None) -> dict[str, Any]:
    ticket = ticket_of(run, secret, "" if key is None else key.fingerprint)
    texts = {pods.SECRET_KEY: f"{secret.hex()}\n", pods.TICKET_KEY: ticket}
    texts |= {} if key is None else {pods.TLS_KEY: key.pem.decode("ascii")}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _named(run, run.secret),
        "type": "Opaque",
        "stringData": texts,
    }


def _job_file(run: K8sRun) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _named(run, f"{run.name}-job"),
        "data": {pods.JOB_KEY: run.job_text},
    }


def _service(run: K8sRun) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _named(run, run.name),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {f"{_PREFIX}/jobset-name": run.name},
        },
    }


def _budget(run: K8sRun, kind: str, least: int) -> dict[str, Any]:
    labels = {f"{_PREFIX}/jobset-name": run.name, f"{_PREFIX}/replicatedjob-name": kind}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _named(run, f"{run.name}-{kind}"),
        "spec": {"minAvailable": least, "selector": {"matchLabels": labels}},
    }


def _job_set(run: K8sRun) -> dict[str, Any]:
    rows = (
        (COORDINATOR, 1, _COORDINATOR_TRIES, pods.coordinator_pod(run)),
        (MACHINE, run.machines, _MACHINE_TRIES, pods.machine_pod(run)),
    )
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": _named(run, run.name),
        "spec": {
            "network": {
                "enableDNSHostnames": True,
                "subdomain": run.name,
                "publishNotReadyAddresses": True,
            },
            "successPolicy": {"operator": "All", "targetReplicatedJobs": [COORDINATOR]},
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": [
                {"name": name, "replicas": num, "template": _job(tries, pod)}
                for name, num, tries, pod in rows
            ],
        },
    }


def _job(tries: int, pod: dict[str, Any]) -> dict[str, Any]:
    disrupted = [{"type": "DisruptionTarget", "status": "True"}]
    return {
        "spec": {
            "parallelism": 1,
            "completions": 1,
            "backoffLimit": tries,
            # Drained, preempted, or on a node that is gone: none of its own faults.
            "podFailurePolicy": {"rules": [{"action": "Ignore", "onPodConditions": disrupted}]},
            "template": {"spec": pod},
        }
    }


def _named(run: K8sRun, name: str) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name}
    if run.namespace:
        found["namespace"] = run.namespace
    return {**found, "labels": {"app.kubernetes.io/name": "holdfast"}}
