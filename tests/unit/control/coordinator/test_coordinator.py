"""The coordinator without a death: start, reports, checkpoints, end, interrupt."""

from dataclasses import replace

import pytest

from helpers.harness.coordinator_world import (
    TORCH,
    TRAITS,
    World,
    emitted,
    finished,
    hello,
    layer_costs,
    pid_of,
    report,
    seals,
    sent,
)
from holdfast.cluster import WorkerId
from holdfast.config import config_from
from holdfast.control.checks import NOTHING, Accepted, check_alike, read_schedule
from holdfast.control.effects import Emit, OpenRun
from holdfast.control.io import server
from holdfast.control.io.agents import worker_processes
from holdfast.control.join import starting
from holdfast.control.state.lifecycle import RunPhase
from holdfast.control.state.timeouts import Timeouts
from holdfast.errors import CheckpointError, ConfigError
from holdfast.observability import events
from holdfast.protocol import messages
from holdfast.protocol.records import OperationTime
from holdfast.schedule.generate import one_f_one_b
from holdfast.schedule.operation import Shape
from holdfast.schedule.schedule import Schedule, loads
from holdfast.storage.manifest import Checkpoint, Origin, Part


def say_hello(world: World, **changes) -> list:
    return [e for w in world.run.workers for e in world.come(str(w), **changes)]


# --- start ---


def test_one_worker_measures_and_all_get_the_cut_that_balances_what_it_found() -> None:
    world = World()
    assert list(sent(say_hello(world, cut=[]), messages.MeasureLayers)) == ["0.0"]
    costs_s = [5.0, 1, 1, 1, 1, 1]
    costs = layer_costs("0.0", forward_s=costs_s, backward_s=costs_s)
    assigned = sent(world.handle(costs), messages.Assign)
    assert {name: a.stage for name, a in assigned.items()} == {
        "0.0": 0,
        "0.1": 1,
        "1.0": 0,
        "1.1": 1,
    }
    assert {tuple(a.cut) for a in assigned.values()} == {(1,)}


def test_a_cut_of_the_job_or_of_the_user_is_taken_without_measuring() -> None:
    assigned = sent(say_hello(World(), cut=[4]), messages.Assign)
    assert {tuple(a.cut) for a in assigned.values()} == {(4,)}
    shape = {"pipelines": 2, "stages": 2, "microbatches": 4, "cut": [2]}
    assigned = sent(say_hello(World(parallel=shape), cut=[4]), messages.Assign)
    assert {tuple(a.cut) for a in assigned.values()} == {(2,)}


def test_more_stages_than_layers_is_refused_before_anyone_measures() -> None:
    world = World(stages=7)
    effects = say_hello(world, cut=[])
    assert isinstance(world.run.failure, ConfigError)
    assert "only 6 layers" in str(world.run.failure)
    assert len(sent(effects, messages.Stop)) == 14


def test_training_starts_when_all_are_ready_and_opens_the_run_first() -> None:
    world = World(given={"address": "127.0.0.1:4"})
    say_hello(world)
    effects = world.pump()
    kinds = [type(e) for e in effects]
    assert kinds.index(OpenRun) < kinds.index(Emit)
    proceeds = sent(effects, messages.Proceed)
    assert len(proceeds) == 4
    first = proceeds["1.1"]
    assert (first.epoch, first.running, first.first_step, first.end_step) == (1, [], 0, 20)
    assert first.stages == {"0.0": 0, "0.1": 1, "1.0": 0, "1.1": 1}
    (started,) = emitted(effects, events.RunStarted)
    assert started.address == "127.0.0.1:4"
    assert "heartbeat timeout 10 s" in started.limits


def test_the_start_of_a_run_tells_how_many_samples_a_step_has() -> None:
    world = World()
    say_hello(world, traits={messages.MICROBATCH_SIZE: "16"})
    (started,) = emitted(world.pump(), events.RunStarted)
    assert started.samples == 16 * started.microbatches


def test_a_schedule_of_the_users_own_says_who_is_started(tmp_path) -> None:
    whole = one_f_one_b(Shape(1, 2, 4))
    file = tmp_path / "lanes.txt"
    shape = Shape(2, 2, 4)
    file.write_text(Schedule(shape, whole.lanes).dumps())
    config = config_from(
        {
            "parallel": {"pipelines": 2, "stages": 2, "microbatches": 4},
            "schedule": {"file": str(file)},
        }
    )
    world = World(given={"schedule": read_schedule(config)})
    assert world.run.workers == [WorkerId(0, 0), WorkerId(0, 1)]
    world.start()
    assert loads(world.last_proceed.schedule).lanes == whole.lanes
    world.finish()
    assert world.run.phase is RunPhase.FINISHED


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nonsense", "first line"),
        (one_f_one_b(Shape(1, 2, 4)).dumps(), "expected 2 pipelines x 2 stages with 4"),
        (
            "schedule pipelines=2 stages=2 microbatches=4\n5.0: 0F0 0BW0 0R\n",
            "the schedule cannot run",
        ),
        (
            Schedule(
                Shape(2, 2, 4),
                {
                    WorkerId(w.pipeline + 5, w.stage): lane
                    for w, lane in one_f_one_b(Shape(1, 2, 4)).lanes.items()
                },
            ).dumps(),
            "there is no worker 5.0; expected 0.0 to 1.1",
        ),
    ],
    ids=["nonsense", "other shape", "not runnable", "unknown worker"],
)
def test_a_schedule_that_does_not_fit_is_refused_by_the_name_of_its_file(tmp_path, text, words):
    file = tmp_path / "lanes.txt"
    file.write_text(text)
    parallel = {"pipelines": 2, "stages": 2, "microbatches": 4}
    config = config_from({"parallel": parallel, "schedule": {"file": str(file)}})
    with pytest.raises(ConfigError) as error:
        read_schedule(config)
    assert f"schedule.file={file}: " in str(error.value)
    assert words in str(error.value)


def test_workers_that_would_compute_other_bits_are_refused_unless_allowed() -> None:
    prints = {"0.0": {"threads": "1", "torch": "2"}, "1.0": {"threads": "2", "torch": "2"}}
    with pytest.raises(ConfigError, match=r"0\.0 and 1\.0 differ in threads: 1 and 2"):
        check_alike(prints, allow_mixed=False)
    check_alike(prints, allow_mixed=True)


def test_mixed_workers_never_get_an_assignment() -> None:
    world = World()
    for worker in world.run.workers[:-1]:
        world.come(str(worker))
    effects = world.come("1.1", fingerprint={"torch": "3"})
    assert "differ in torch" in str(world.run.failure)
    assert not sent(effects, messages.Assign)


def test_workers_of_another_job_never_get_an_assignment_whatever_may_be_mixed() -> None:
    world = World(workers={"allow_mixed": True})
    for worker in world.run.workers[:-1]:
        world.come(str(worker))
    effects = world.come("1.1", traits=TRAITS | {"len(Job.data)": "91"})
    assert "workers 0.0 and 1.1 differ in len(Job.data): 90 and 91" in str(world.run.failure)
    assert isinstance(world.run.failure, ConfigError)
    assert not sent(effects, messages.Assign)


# --- a run that is resumed ---


def resumed(origin: Origin, accepted: Accepted = NOTHING, **settings) -> World:
    part = Part("stage-0", tuple(range(6)), {}, {})
    checkpoint = Checkpoint("runs/x/checkpoints/step-00000005", 5, 0, 4, (part,), origin)
    world = World(given={"resume": checkpoint, "accepted": accepted}, **settings)
    say_hello(world)
    return world


SAME = Origin(traits=TRAITS, fingerprint=TORCH)
OTHERS = [  # what the checkpoint has, what the one line says, what accepts it
    (
        replace(SAME, traits=TRAITS | {"len(Job.data)": "80"}),
        "changed_data=True",
        Accepted(data=True),
    ),
    (replace(SAME, traits=TRAITS | {"Job.clip_norm": "1"}), "changed_job=True", Accepted(job=True)),
    (
        replace(SAME, traits=TRAITS | {"imports of the job (a.py)": "0a"}),
        "changed_job=True",
        Accepted(job=True),
    ),
]


@pytest.mark.parametrize(("origin", "flag", "accepted"), OTHERS)
def test_a_resume_with_another_job_or_data_is_refused_by_name_unless_that_is_accepted(
    origin, flag, accepted
) -> None:
    [(name, then)] = origin.traits.items() - TRAITS.items()
    now = TRAITS.get(name)
    for other in (NOTHING, Accepted(job=not accepted.job, data=not accepted.data)):
        world = resumed(origin, other)
        assert isinstance(world.run.failure, CheckpointError)
        assert f"{name} is {now}, the checkpoint runs/x/" in str(world.run.failure)
        assert f"was written with {then}. Put it back as it was, or add {flag}" in str(
            world.run.failure
        )
    assert resumed(origin, accepted).run.failure is None


def test_a_resume_on_another_machine_is_refused_unless_bits_do_not_matter() -> None:
    origin = replace(SAME, fingerprint={"torch": "1"})
    failure = resumed(origin, Accepted(job=True, data=True)).run.failure
    assert isinstance(failure, CheckpointError)
    assert "torch is 2, the checkpoint runs/x/" in str(failure)
    assert "was written with 1; the result would not be exact" in str(failure)
    assert "workers.allow_mixed=true" in str(failure)
    assert resumed(origin, workers={"allow_mixed": True}).run.failure is None
    assert resumed(origin, gradients={"mode": "fast"}).run.failure is None


def test_a_checkpoint_that_says_nothing_of_job_and_machine_is_resumed() -> None:
    assert resumed(Origin()).run.failure is None


def test_checkpoints_are_to_say_what_job_and_machine_the_run_began_with() -> None:
    [opened] = [e for e in World().start().effects if isinstance(e, OpenRun)]
    assert (opened.traits, opened.fingerprint) == (TRAITS, TORCH)


def test_workers_that_have_built_other_layers_never_get_an_assignment() -> None:
    world = World()
    for worker in world.run.workers[:-1]:
        world.come(str(worker))
    hashes = [f"layer {number}" for number in range(6)]
    effects = world.come("1.1", layer_hashes=[*hashes[:4], "another", hashes[5]])
    assert "layer 4 differs between workers 0.0 and 1.1" in str(world.run.failure)
    assert isinstance(world.run.failure, ConfigError)
    assert not sent(effects, messages.Assign)


def test_faults_are_given_to_their_worker_and_joins_to_nobody() -> None:
    world = World(faults=["kill 1.0 @ 3", "slow 0.1=0.5 @ 2", "join @ 4"])
    assigned = sent(say_hello(world), messages.Assign)
    assert {name: a.faults for name, a in assigned.items()} == {
        "0.0": [],
        "0.1": ["slow 0.1=0.5 @ 2"],
        "1.0": ["kill 1.0 @ 3"],
        "1.1": [],
    }


# --- an end before training ---


def exited(name: str) -> messages.WorkerExited:
    return messages.WorkerExited(worker=name, pid=pid_of(name), how="signal SIGKILL")


@pytest.mark.parametrize("in_phase", ["starting", "building"])
def test_a_worker_that_ends_before_training_ends_the_run_and_is_named(in_phase) -> None:
    world = World()
    if in_phase == "building":
        say_hello(world)
    else:
        world.come("0.0")
    world.handle(exited("0.0"))
    assert world.run.phase is not RunPhase.FAILED  # its own word may come a moment later
    world.take(world.run.tick(world.at_s + 1.0))
    assert world.run.phase is RunPhase.FAILED
    for word in ("worker 0.0", "pid 1000", "SIGKILL", "before training started"):
        assert word in str(world.run.failure)


def test_before_training_the_agent_has_a_moment_to_explain_a_closed_connection() -> None:
    world = World()
    say_hello(world)
    assert world.take(world.run.lost_connection("1.0", 5.0)) == []
    assert world.take(world.run.tick(5.0 + starting.SUSPICION_S / 2)) == []
    world.handle(exited("1.0"))
    world.take(world.run.tick(5.1 + starting.SUSPICION_S))
    assert "SIGKILL" in str(world.run.failure)


def test_before_training_a_closed_connection_that_nobody_explains_ends_the_run() -> None:
    world = World()
    say_hello(world)
    world.take(world.run.lost_connection("1.0", 5.0))
    effects = world.take(world.run.tick(5.1 + starting.SUSPICION_S))
    assert "worker 1.0 closed its connection" in str(world.run.failure)
    assert len(sent(effects, messages.Stop)) == 4


def test_a_users_mistake_found_by_a_worker_keeps_its_exit_code() -> None:
    world = World()
    world.come("0.0")
    failed = messages.Failed(
        worker="0.0", lost="", exit_code=2, reason="job.py:3: boom", details=""
    )
    world.handle(failed)
    assert isinstance(world.run.failure, ConfigError)
    assert str(world.run.failure) == "job.py:3: boom"


def test_a_fault_of_a_members_own_ends_the_run() -> None:
    world = World().start()
    failed = messages.Failed(worker="0.1", lost="", exit_code=1, reason="no data", details="trace")
    effects = world.handle(failed)
    assert str(world.run.failure) == "worker 0.1: no data"
    assert world.run.details == "trace"
    assert len(sent(effects, messages.Stop)) == 4
    assert emitted(effects, events.RunFailed)


def test_a_member_whose_machine_is_out_of_something_is_lost_and_the_others_go_on() -> None:
    world = World(steps=20).start()
    world.step(2)
    reason = "OSError: [Errno 24] Too many open files"
    failed = messages.Failed(
        worker="0.1", lost="", exit_code=1, reason=reason, details="trace", scarce=True
    )
    world.handle(failed)
    del world.actors["0.1"]
    world.pump()
    world.step(3)
    [lost] = emitted(world.effects, events.WorkerLost)
    assert (lost.worker, lost.cause) == ("0.1", reason)
    assert world.run.failure is None
    assert "0.1" not in world.stages


def test_a_stop_has_time_to_spare_within_the_promised_five_seconds() -> None:
    assert server.STOP_LIMIT_S + worker_processes.STOP_GRACE_S + starting.SUSPICION_S <= 4.5


# --- steps ---


def test_a_step_is_finished_when_all_reported_and_its_loss_is_the_mean_in_microbatch_order():
    world = World().start()
    losses = [(3, 4.0), (2, 3.0), (0, 1.0), (1, 2.0)]
    world.at_s = 2.0
    world.handle(report("0.0", 0))
    world.handle(report("1.0", 0))
    assert not emitted(world.handle(report("1.1", 0, losses)), events.StepFinished)
    (done,) = emitted(world.handle(report("0.1", 0, losses)), events.StepFinished)
    assert (done.step, done.loss, done.tokens, done.took_s) == (0, 2.5, 10, 2.0)


def test_last_stage_workers_that_report_other_losses_end_the_run() -> None:
    world = World().start()
    for name in ("0.0", "1.0"):
        world.handle(report(name, 0))
    world.handle(report("0.1", 0, [(0, 1.0)]))
    world.handle(report("1.1", 0, [(0, 1.5)]))
    assert "losses of step 1 differ between workers 0.1 and 1.1" in str(world.run.failure)


def test_losses_that_are_no_number_agree_with_each_other() -> None:
    world = World().start()
    for name in ("0.0", "1.0"):
        world.handle(report(name, 0))
    world.handle(report("0.1", 0, [(0, float("nan"))]))
    assert emitted(world.handle(report("1.1", 0, [(0, float("nan"))])), events.StepFinished)


def test_operations_and_steps_taken_back_are_passed_on() -> None:
    world = World().start()
    effects = world.handle(
        report(
            "0.0",
            0,
            operations=[OperationTime("0F0", 1.0, 2.0, 0.5, 8)],
            taken_back=True,
            clipped=True,
        )
    )
    (ops,) = emitted(effects, events.WorkerStep)
    assert ops.ops == (("0F0", 1.0, 2.0),)
    (back,) = emitted(effects, events.StepTakenBack)
    assert back.reason == "clipped"


# --- checkpoints ---


def test_a_checkpoint_is_sealed_when_every_stage_has_written_its_part() -> None:
    world = World().start()
    assert world.part("0.1", 1, 10) == []
    (seal,) = world.part("0.0", 0, 10)
    given = {whose: directory for directory, whose in world.run.run.assignments.parts.items()}
    own = [given[WorkerId(0, stage), stage] for stage in (0, 1)]
    assert [p.directory for p in seal.parts] == own
    assert [p.layers for p in seal.parts] == [(0, 1, 2), (3, 4, 5)]


def test_a_part_counts_whoever_of_the_stage_wrote_it_and_only_once() -> None:
    world = World().start()
    world.part("0.1", 1, 10)
    assert seals(world.part("1.1", 1, 10)) == []
    assert seals(world.part("1.0", 0, 10)) == [10]
    assert seals(world.part("0.0", 0, 10)) == []


def test_an_older_checkpoint_that_is_not_whole_is_given_up_when_a_later_one_is() -> None:
    world = World().start()
    world.part("0.1", 1, 10)
    world.part("0.1", 1, 12)
    assert seals(world.part("0.0", 0, 12)) == [12]
    assert seals(world.part("0.0", 0, 10)) == []


# --- the end ---


def test_the_run_is_finished_when_all_members_are_and_everyone_is_told_to_stop() -> None:
    world = World(steps=3).start()
    effects = world.finish()
    assert world.run.phase is RunPhase.FINISHED
    assert len(sent(effects, messages.Stop)) == 4
    (done,) = emitted(effects, events.RunFinished)
    assert done.kept_bytes == dict.fromkeys(("0.0", "0.1", "1.0", "1.1"), 5)


def test_the_hash_does_not_depend_on_the_cut() -> None:
    one, two = World(1, 1).start(), World(1, 2).start()
    one.handle(finished("0.0", 0, digests={"0": "a", "1": "b", "5": "c"}))
    two.handle(finished("0.0", 0, digests={"0": "a", "1": "b"}))
    two.handle(finished("0.1", 1, digests={"5": "c"}))
    assert one.run.phase is two.run.phase is RunPhase.FINISHED
    hashes = [emitted(w.effects, events.RunFinished)[0].parameters_sha256 for w in (one, two)]
    assert hashes[0] == hashes[1]


def test_replicas_that_disagree_end_the_run_with_an_error() -> None:
    world = World(2, 1).start()
    world.handle(finished("0.0", 0, digests={"0": "a"}))
    world.handle(finished("1.0", 0, digests={"0": "b"}))
    assert world.run.phase is RunPhase.FAILED
    assert "layer 0 differs between workers 0.0 and 1.0" in str(world.run.failure)


# --- interrupt ---


def test_an_interrupt_before_training_stops_at_once() -> None:
    world = World()
    world.come("0.0")
    effects = world.take(world.run.interrupt(1.0))
    assert str(world.run.failure).startswith("interrupted; all workers were stopped. No checkpoint")
    assert set(sent(effects, messages.Stop)) == {"0.0"}


def test_an_interrupt_ends_the_run_after_the_running_step_with_a_checkpoint() -> None:
    world = World().start()
    world.step(3)
    effects = world.take(world.run.interrupt(world.at_s))
    assert len(sent(effects, messages.Halt)) == 4
    after = world.pump()
    assert {p.end_step for p in sent(after, messages.Proceed).values()} == {3}
    assert world.run.phase is RunPhase.FAILED  # all were at the end already
    assert "interrupted" in str(world.run.failure)
    assert emitted(world.effects, events.RunFailed)
    (recovered,) = emitted(world.effects, events.Recovered)
    assert (recovered.cause, recovered.redone) == ("interrupt", 0)


def test_an_interrupted_run_says_how_to_go_on_from_its_checkpoint() -> None:
    world = World().start()
    world.step(3)
    world.take(world.run.interrupt(world.at_s))
    world.part("0.0", 0, 3)
    world.part("0.1", 1, 3)
    world.pump()
    assert "holdfast.resume('runs/x')" in str(world.run.failure)


def test_a_second_interrupt_stops_at_once() -> None:
    world = World().start()
    world.actors["0.0"].mute = True
    world.take(world.run.interrupt(world.at_s))
    world.pump()
    assert not world.run.over
    effects = world.take(world.run.interrupt(world.at_s))
    assert world.run.phase is RunPhase.FAILED
    assert len(sent(effects, messages.Stop)) == 4


def test_an_interrupt_that_leads_to_nothing_stops_after_half_a_minute() -> None:
    world = in_its_last_step()
    world.tick(29.0)
    assert not world.run.over
    world.tick(2.0)
    assert world.run.phase is RunPhase.FAILED


def in_its_last_step(**settings: dict[str, object]) -> World:
    """Three steps are measured; it is interrupted in the fourth, which one worker has done."""
    world = World(**settings).start()
    world.step(3)
    world.run_step(world.actors["0.1"])
    world.take(world.run.interrupt(world.at_s))
    world.pump()
    assert world.last_proceed.end_step == 4
    return world


def test_no_limit_counts_while_a_part_of_the_checkpoint_is_being_written() -> None:
    world = in_its_last_step()
    world.actors["0.0"].saving = True
    world.tick(500.0)
    assert not world.run.over
    world.actors["0.0"].saving = False  # another holder is asked, and begins
    world.tick(29.0)
    world.actors["1.0"].saving = True
    world.tick(500.0)
    assert not world.run.over
    effects = world.take(world.run.interrupt(world.at_s))
    assert world.run.phase is RunPhase.FAILED, "a second signal still ends it at once"
    assert len(sent(effects, messages.Stop)) == 4


def test_a_disk_that_is_stuck_at_the_end_has_a_limit_of_its_own() -> None:
    world = in_its_last_step(checkpoint={"write_limit_s": 90.0})
    world.actors["0.0"].saving = True
    world.tick(89.0)
    assert not world.run.over
    world.tick(2.0)
    assert world.run.phase is RunPhase.FAILED


def test_an_interrupt_in_the_first_steps_may_take_as_long_as_a_start() -> None:
    world = World(workers={"heartbeat_timeout_s": 60.0, "start_limit_s": 700.0}).start()
    world.run_step(world.actors["0.1"])
    world.take(world.run.interrupt(world.at_s))
    world.pump()
    world.tick(699.0)
    assert not world.run.over
    world.tick(2.0)
    assert world.run.phase is RunPhase.FAILED


def test_what_saving_took_so_far_is_added_to_the_limit() -> None:
    world = World().start()
    world.step(3)
    world.part("0.0", 0, 3, took_s=50.0)
    world.part("0.1", 1, 3)
    world.run_step(world.actors["0.1"])
    world.take(world.run.interrupt(world.at_s))
    world.pump()
    world.tick(79.0)
    assert not world.run.over
    world.tick(2.0)
    assert world.run.phase is RunPhase.FAILED


def test_one_that_waits_for_its_disk_is_not_lost_for_not_stopping() -> None:
    world = World().start()
    world.step(3)
    slow, stuck = world.actors["0.0"], world.actors["1.1"]
    slow.mute = slow.saving = stuck.mute = True
    world.tick()
    world.take(world.run.interrupt(world.at_s))
    world.pump()
    world.tick(25.0)
    assert world.stages.keys() == {"0.0", "0.1", "1.0"}
    slow.mute = slow.saving = False
    world.pump()
    assert not emitted(world.effects, events.WentBack)
    assert "0.0" in world.stages


# --- the clock ---


def test_the_heartbeat_timeout_is_twice_a_usual_step_within_bounds() -> None:
    assert Timeouts.of(0.0, 180.0, []).heartbeat_timeout_s == 10.0
    assert Timeouts.of(0.0, 180.0, [4.0, 4.0]).heartbeat_timeout_s == 10.0
    assert Timeouts.of(0.0, 180.0, [4.0, 4.0, 90.0]).heartbeat_timeout_s == 8.0
    assert Timeouts.of(0.0, 180.0, [0.1] * 3).heartbeat_timeout_s == 2.0
    assert Timeouts.of(0.0, 180.0, [100.0] * 3).heartbeat_timeout_s == 60.0
    assert Timeouts.of(1.5, 180.0, [100.0] * 3).heartbeat_timeout_s == 1.5


def test_all_other_waits_follow_from_the_heartbeat_timeout() -> None:
    first, later = Timeouts.of(0.0, 180.0, []), Timeouts.of(0.0, 180.0, [10.0] * 3)
    assert (first.beat_s, later.beat_s) == (0.2, 0.2)
    assert Timeouts.of(3.0, 180.0, []).beat_s == pytest.approx(0.3)
    assert (first.wait_s, later.wait_s, later.answer_s) == (180.0, 200.0, 200.0)
    assert Timeouts.of(0.0, 180.0, [0.1] * 3).wait_s == 60.0
    assert "heartbeat timeout 3 s;" in Timeouts.of(3.0, 180.0, []).describe()


def test_a_message_that_is_not_for_the_coordinator_ends_the_run() -> None:
    world = World().start()
    world.handle(messages.Halt(epoch=3))
    assert "unexpected Halt while TRAINING" in str(world.run.failure)


def test_a_name_that_is_not_of_this_run_is_not_listened_to() -> None:
    world = World().start()
    assert not world.run.accepts("7.7")
    assert world.run.handle(hello("7.7"), 1.0) == []


def test_from_512_workers_on_heartbeats_come_less_often_and_are_waited_for_longer():
    few, many = (Timeouts.of(0.0, 180.0, [0.5] * 3, number) for number in (512, 1024))
    assert (few.beat_s, few.heartbeat_timeout_s) == (0.2, 2.0)
    assert (many.beat_s, many.heartbeat_timeout_s) == (0.4, 4.0)
    assert Timeouts.of(0.0, 180.0, [], 4096).heartbeat_timeout_s == 16.0
    assert Timeouts.of(3.0, 180.0, [], 4096).beat_s == pytest.approx(0.3), "as it was asked for"
