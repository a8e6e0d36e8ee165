"""Runs whose connections are encrypted end with the same parameters, also through a death."""

import pytest

from helpers import jobs, runs
from helpers.certificates import tls_key
from helpers.live import assert_nothing_left
from holdfast.auth.certificate import KEY_FILE, kept_key
from holdfast.observability.events import RunStarted

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(300)]
NUMBERS = {"steps": 6, "microbatches": 6}
FAULT = "kill 0.1 @ 3"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    return runs.finished(runs.threads(jobs.mixed(folder), folder / "run", **NUMBERS))


@pytest.mark.wide
@pytest.mark.parametrize("tensors", ["false", "true"], ids=["control", "tensors-too"])
def test_an_encrypted_run_has_the_same_result_and_survives_a_kill(tmp_path, undisturbed, tensors):
    tls_key()
    settings = ["network.tls=on", f"network.tensor_tls={tensors}"]
    settings += ["workers.heartbeat_timeout_s=30"]
    words = [*runs.layout("2x2"), "--fault", FAULT, *runs.settings(*settings)]
    run = runs.finished(runs.processes(jobs.mixed(tmp_path), tmp_path / "run", *words, **NUMBERS))
    assert run.summary["faults_fired"] == [FAULT]
    assert run.sha256 == undisturbed.sha256
    assert_nothing_left(run)
    key = kept_key(tmp_path / "run")
    assert key is not None
    assert (tmp_path / "run" / KEY_FILE).stat().st_mode & 0o777 == 0o600
    [started] = [event for event in run.events if isinstance(event, RunStarted)]
    assert started.join_with.endswith(f"--certificate {key.fingerprint}")
