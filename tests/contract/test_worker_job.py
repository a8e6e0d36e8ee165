"""A worker that loads its job later than the others must load the same one."""

from contextlib import nullcontext

import pytest

from helpers import jobs
from holdfast.cluster import WorkerId
from holdfast.config import RunConfig
from holdfast.errors import ConfigError
from holdfast.protocol.spec import Access, WorkerSpec
from holdfast.recovery.manifest import file_digest
from holdfast.runtime.worker import Worker
from holdfast.transport.local import LocalHub, LocalTransport

ACCESS = Access("h", 1, bytes(32), 1)


class NoLink:
    def send(self, message: object) -> None:
        raise AssertionError(f"nothing is to be sent, but {message}")


def test_a_job_file_that_was_changed_since_the_run_began_is_refused(tmp_path) -> None:
    job = jobs.small(tmp_path)
    spec = WorkerSpec(WorkerId(0, 0), ACCESS, str(job), file_digest(job), RunConfig())
    transport = LocalTransport(spec.worker, LocalHub())
    worker = Worker(spec, NoLink(), transport, nullcontext(), lambda *_: None, lambda: False)
    assert len(worker._load_job().layers) == 2
    job.write_text(job.read_text() + "\n")
    with pytest.raises(ConfigError, match="was changed since the run began"):
        worker._load_job()
