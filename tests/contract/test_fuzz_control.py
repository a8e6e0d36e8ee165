"""The launcher's port under fire: no crash, no hang, no growth, and the run ends as it should."""

import threading
from dataclasses import replace

import pytest
from test_server import FINISHED, Run, assert_finished, begin

from helpers.fuzz import Fuzzer
from helpers.live import wait_until
from holdfast.control.run import RunPhase
from holdfast.handshake import AGENT
from holdfast.protocol import messages

SEED, NUM_FRAMES = 20260101, 500


def test_s5_malformed_and_replayed_frames_disturb_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.control.server.STOP_LIMIT_S", 0.5)
    monkeypatch.setattr("holdfast.control.server.ASK_LIMIT_S", 0.2)
    monkeypatch.setattr("holdfast.control.strangers.HANDSHAKE_LIMIT_S", 0.2)
    run = Run(pipelines=2)
    fuzzer = Fuzzer(run.access, SEED)
    threads = threading.active_count()
    try:
        agent = run.connection(AGENT)
        agent.send(messages.AgentHello(pid=1))
        workers = begin(run)
        fuzzer.run(NUM_FRAMES)
        assert all(fuzzer.sent.values()), f"not all was tried: {fuzzer.sent}"
        assert len(fuzzer.sent) == 5
        assert not fuzzer.let_in
        wait_until(lambda: len(run.server._strangers) == 0, "the strangers to be sent away", 20.0)
        wait_until(lambda: len(run.server._peers) == 3, "all but the run's own to be gone", 20.0)
        assert run.coordinator.phase is RunPhase.TRAINING
        assert threading.active_count() <= threads
        for worker in workers:
            worker.connection.send(replace(FINISHED, worker=worker.name))
        assert_finished(run)
    finally:
        fuzzer.close()
        run.close()
