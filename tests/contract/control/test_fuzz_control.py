"""The launcher's port under fire: no crash, no hang, no growth, and the run ends as it should."""

import contextlib
import struct
import threading
from dataclasses import replace

import pytest
from test_server import FINISHED, Run, Worker, assert_finished, begin, is_dropped, told

from helpers import wide
from helpers.agents import agent_hello
from helpers.any_words import AnyWords
from helpers.fuzz import Fuzzer
from helpers.live import wait_until
from holdfast.auth.handshake import AGENT
from holdfast.control.effects import Emit
from holdfast.control.state.lifecycle import RunPhase
from holdfast.errors import PeerLost
from holdfast.protocol import messages

SEED, NUM_FRAMES = 20260101, 500


def test_s5_malformed_and_replayed_frames_disturb_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.control.io.server.STOP_LIMIT_S", 0.5)
    run = Run(pipelines=2)
    fuzzer = Fuzzer(run.access, SEED)
    threads = threading.active_count()
    try:
        agent = run.connection(AGENT)
        agent.send(agent_hello(1))
        workers = begin(run)
        # From here on: those of the run have come in, however long that took.
        monkeypatch.setattr("holdfast.control.io.entry.entrance.ASK_LIMIT_S", 0.2)
        monkeypatch.setattr("holdfast.control.io.entry.strangers.HANDSHAKE_LIMIT_S", 0.2)
        fuzzer.run(NUM_FRAMES)
        assert all(fuzzer.sent.values()), f"not all was tried: {fuzzer.sent}"
        assert len(fuzzer.sent) == 5
        assert not fuzzer.let_in
        wait_until(lambda: len(run.server.strangers) == 0, "the strangers to be sent away")
        wait_until(lambda: run.server.num_peers == 3, "all but the run's own to be gone")
        assert run.coordinator.phase is RunPhase.TRAINING
        assert threading.active_count() <= threads
        for worker in workers:
            worker.connection.send(replace(FINISHED, worker=worker.name))
        assert_finished(run)
    finally:
        fuzzer.close()
        run.close()


# --- by one who was let in ---

LIAR, NUM_WORDS = "1.0", 60


def stays_until_alone(worker: Worker) -> None:
    """Answers every halt until it is the only member."""
    while True:
        message = worker.expect(messages.Message)
        if isinstance(message, messages.Halt):
            worker.connection.send(told(worker, message))
        elif isinstance(message, messages.Proceed) and message.stages == {"0.0": 0}:
            return


@pytest.mark.parametrize("seed", wide.first(3, range(SEED, SEED + 30)))
def test_s5_a_worker_that_says_anything_at_all_is_lost_and_the_run_goes_on(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr("holdfast.control.io.server.STOP_LIMIT_S", 0.5)
    run, words = Run(pipelines=2), AnyWords(seed, ill=0.2 * (seed % 2))
    try:
        stays, lies = begin(run)
        with contextlib.suppress(OSError, PeerLost):  # it was hung up on
            for _ in range(NUM_WORDS):
                body = words.message(LIAR, 1)
                lies.connection.send_encoded(struct.pack("<I", len(body)) + body)
        stays_until_alone(stays)
        [dropped] = [e.event for e in run.effects if isinstance(e, Emit) and is_dropped(e.event)]
        assert dropped.who == f"worker {LIAR}"
        assert any(dropped.reason.startswith(kind) for kind in words.said)
        stays.finish()
        assert_finished(run)
    finally:
        run.close()
