"""The coordinator's decisions, without a socket, a process or a clock."""

import pytest

from holdfast.cluster import WorkerId
from holdfast.config import config_from
from holdfast.control import agent, server
from holdfast.control.checks import check_alike
from holdfast.control.coordinator import (
    SUSPICION_S,
    Coordinator,
    Emit,
    OpenRun,
    Phase,
    SealCheckpoint,
    Send,
)
from holdfast.errors import ConfigError
from holdfast.observability import events
from holdfast.protocol import messages
from holdfast.schedule.schedule import loads

NUM_LAYERS = 6


def hello(worker: str, **changes) -> messages.Hello:
    values = {
        "token": "t",
        "worker": worker,
        "pid": 7,
        "fingerprint": {"torch": "2"},
        "num_layers": NUM_LAYERS,
        "cut": [],
        "host": "h",
        "port": 1,
    }
    return messages.Hello(**(values | changes))


def report(worker: str, step: int, losses=(), **changes) -> messages.StepReport:
    values = {
        "worker": worker,
        "step": step,
        "losses": [list(pair) for pair in losses],
        "num_tokens": 10 * len(losses),
        "norm": 1.0,
        "clipped": False,
        "skipped": False,
        "taken_back": False,
        "operations": [],
    }
    return messages.StepReport(**(values | changes))


def coordinator(**parallel) -> Coordinator:
    shape = {"pipelines": 2, "stages": 2, "microbatches": 4} | parallel
    return Coordinator(config_from({"parallel": shape}), "runs/x", None)


def say_hello(run: Coordinator, **changes) -> list:
    effects = []
    for worker in run.workers:
        effects = run.handle(hello(str(worker), **changes), 0.0)
    return effects


def start(run: Coordinator) -> list:
    say_hello(run, cut=[3])
    effects = []
    for worker in run.workers:
        effects = run.handle(messages.Ready(worker=str(worker)), 1.0)
    assert run.phase is Phase.TRAINING
    return effects


def sent(effects, kind) -> dict[WorkerId, object]:
    return {e.to: e.message for e in effects if isinstance(e, Send) and isinstance(e.message, kind)}


def emitted(effects, kind) -> list:
    return [e.event for e in effects if isinstance(e, Emit) and isinstance(e.event, kind)]


def test_one_worker_measures_and_all_get_the_cut_that_balances_what_it_found() -> None:
    run = coordinator()
    effects = say_hello(run)
    assert list(sent(effects, messages.MeasureLayers)) == [WorkerId(0, 0)]
    costs = messages.LayerCosts(
        worker="0.0", forward_s=[5.0, 1, 1, 1, 1, 1], backward_s=[5.0, 1, 1, 1, 1, 1]
    )
    assigned = sent(run.handle(costs, 0.0), messages.Assign)
    assert set(assigned) == set(run.workers)
    assert {tuple(a.cut) for a in assigned.values()} == {(1,)}
    schedule = loads(assigned[WorkerId(0, 0)].schedule)
    assert schedule.shape == (run.schedule.shape)


def test_a_cut_of_the_job_or_of_the_user_is_taken_without_measuring() -> None:
    assigned = sent(say_hello(coordinator(), cut=[4]), messages.Assign)
    assert {tuple(a.cut) for a in assigned.values()} == {(4,)}
    assigned = sent(say_hello(coordinator(cut=[2]), cut=[4]), messages.Assign)
    assert {tuple(a.cut) for a in assigned.values()} == {(2,)}


def test_more_stages_than_layers_is_refused_before_anyone_measures() -> None:
    run = coordinator(stages=7)
    effects = say_hello(run)
    assert isinstance(run.failure, ConfigError)
    assert "only 6 layers" in str(run.failure)
    assert set(sent(effects, messages.Stop)) == set(run.workers)


def test_training_starts_when_all_are_ready_and_opens_the_run_first() -> None:
    effects = start(coordinator())
    assert isinstance(effects[0], OpenRun)
    assert len(sent(effects, messages.Go)) == 4


def test_a_step_is_finished_when_all_reported_and_its_loss_is_the_mean_in_microbatch_order() -> (
    None
):
    run = coordinator()
    start(run)
    run.handle(report("0.0", 0), 2.0)
    run.handle(report("1.0", 0), 2.0)
    assert not emitted(run.handle(report("1.1", 0, [(3, 4.0), (2, 3.0)]), 2.5), events.StepFinished)
    (done,) = emitted(run.handle(report("0.1", 0, [(0, 1.0), (1, 2.0)]), 3.0), events.StepFinished)
    assert (done.loss, done.tokens, done.took_s) == (2.5, 40, 2.0)


def test_a_worker_that_ends_too_early_stops_all_the_others_and_is_named() -> None:
    run = coordinator()
    start(run)
    gone = messages.WorkerExited(worker="1.0", pid=42, how="signal SIGKILL")
    effects = run.handle(gone, 5.0)
    assert run.phase is Phase.FAILED
    for word in ("worker 1.0", "pid 42", "SIGKILL", "step 1"):
        assert word in str(run.failure)
    assert len(sent(effects, messages.Stop)) == 4
    assert emitted(effects, events.RunFailed)
    assert run.handle(gone, 6.0) == []


def test_the_victim_is_named_although_its_peer_complains_first() -> None:
    run = coordinator()
    start(run)
    complaint = messages.Failed(
        token="t", worker="0.0", lost="1.0", exit_code=1, reason="lost 1.0", details=""
    )
    assert run.handle(complaint, 5.0) == []
    assert run.tick(5.0 + SUSPICION_S / 2) == []
    run.handle(messages.WorkerExited(worker="1.0", pid=42, how="signal SIGKILL"), 5.1)
    assert "SIGKILL" in str(run.failure)


def test_a_complaint_that_nobody_explains_ends_the_run_after_a_while() -> None:
    run = coordinator()
    start(run)
    run.suspect("1.1", "closed its connection", 5.0)
    effects = run.tick(5.1 + SUSPICION_S)
    assert "worker 1.1 closed its connection" in str(run.failure)
    assert len(sent(effects, messages.Stop)) == 4


def test_a_users_mistake_found_by_a_worker_keeps_its_exit_code() -> None:
    run = coordinator()
    failed = messages.Failed(
        token="t", worker="0.0", lost="", exit_code=2, reason="job.py:3: boom", details=""
    )
    run.handle(failed, 0.0)
    assert isinstance(run.failure, ConfigError)
    assert str(run.failure) == "job.py:3: boom"


def test_a_checkpoint_is_sealed_when_every_stage_has_written_its_part() -> None:
    run = coordinator()
    start(run)

    def part(stage: int) -> messages.CheckpointPart:
        return messages.CheckpointPart(
            worker=f"0.{stage}",
            step=10,
            directory=f"stage-{stage}",
            layers=[stage],
            digests={},
            state={},
            took_s=0.1,
        )

    assert run.handle(part(1), 2.0) == []
    (seal,) = run.handle(part(0), 2.0)
    assert isinstance(seal, SealCheckpoint)
    assert [p.directory for p in seal.parts] == ["stage-0", "stage-1"]


def finish(run: Coordinator, digests: dict[str, dict[str, str]]) -> None:
    for worker, layers in digests.items():
        run.handle(messages.Finished(worker=worker, digests=layers, peak_memory_bytes=1), 9.0)


def test_the_hash_does_not_depend_on_the_cut() -> None:
    one, two = coordinator(pipelines=1, stages=1), coordinator(pipelines=1, stages=2)
    start(one)
    start(two)
    finish(one, {"0.0": {"0": "a", "1": "b", "10": "c"}})
    finish(two, {"0.0": {"0": "a", "1": "b"}, "0.1": {"10": "c"}})
    assert one.phase is two.phase is Phase.FINISHED
    assert one.parameters_sha256() == two.parameters_sha256()


def test_replicas_that_disagree_end_the_run_with_an_error() -> None:
    run = coordinator(stages=1)
    start(run)
    finish(run, {"0.0": {"0": "a"}, "1.0": {"0": "b"}})
    assert run.phase is Phase.FAILED
    assert "layer 0 differs between workers 0.0 and 1.0" in str(run.failure)


def test_workers_that_would_compute_other_bits_are_refused_unless_allowed() -> None:
    prints = {"0.0": {"threads": "1", "torch": "2"}, "1.0": {"threads": "2", "torch": "2"}}
    with pytest.raises(ConfigError, match=r"0\.0 and 1\.0 differ in threads: 1 and 2"):
        check_alike(prints, allow_mixed=False)
    check_alike(prints, allow_mixed=True)


def test_mixed_workers_never_get_an_assignment() -> None:
    run = coordinator()
    for worker in run.workers[:-1]:
        run.handle(hello(str(worker)), 0.0)
    run.handle(hello(str(run.workers[-1]), fingerprint={"torch": "3"}), 0.0)
    assert "differ in torch" in str(run.failure)


def complaint(about: str) -> messages.Failed:
    return messages.Failed(
        token="t", worker="0.0", lost=about, exit_code=1, reason="lost", details=""
    )


def test_a_worker_that_ends_because_it_lost_another_is_not_blamed() -> None:
    run = coordinator()
    start(run)
    run.handle(complaint(about="1.0"), 5.0)
    assert run.handle(messages.WorkerExited(worker="0.0", pid=1, how="exit code 1"), 5.1) == []
    run.tick(5.1 + SUSPICION_S)
    assert "worker 1.0 was lost by 0.0" in str(run.failure)


def test_workers_that_all_fall_silent_end_the_run_at_last() -> None:
    run = coordinator()
    start(run)
    longest = max(map(len, run.schedule.lanes.values()))
    limit_s = longest * config_from({}).workers.wait_limit_s
    assert run.tick(1.0 + limit_s) == []
    effects = run.tick(1.1 + limit_s)
    assert "no worker reported a step" in str(run.failure)
    assert len(sent(effects, messages.Stop)) == 4


def test_a_stop_has_time_to_spare_within_the_promised_five_seconds() -> None:
    assert server.STOP_LIMIT_S + agent.STOP_GRACE_S + SUSPICION_S <= 4.5
