"""Somebody is slow: found from reports, told, planned around without a stop, and back when over.

The planner is the real one, but plans at once; times of operations are made up by the world.
"""

from dataclasses import replace

import pytest

from helpers.harness.coordinator_pace import Pace
from helpers.harness.coordinator_world import ScriptedPlanner, World, emitted, sent
from holdfast.cluster import WorkerId, parse_worker
from holdfast.control.state.lifecycle import RunPhase
from holdfast.detection.diagnosis import Health
from holdfast.detection.live.watcher import Watcher
from holdfast.observability import events
from holdfast.planner.planning import first_plan
from holdfast.protocol import messages
from holdfast.schedule.operation import Kind
from holdfast.schedule.schedule import Schedule, loads

LEARNT = 14  # steps until the watcher knows what is usual
FOUND = 8  # steps until it has found, measured and told what is not


class PromptPlanner(ScriptedPlanner):
    def plan_now(self, problem):
        self.asked.append(problem)
        return first_plan(problem)


def healthy(pipelines: int = 2, stages: int = 2, **more) -> World:
    """Everything is as usual, and it is known how that is."""
    settings = {"steps": 400, "pace": Pace(), "planner": PromptPlanner()} | more
    settings["microbatches"] = 4 * pipelines
    world = World(pipelines, stages, **settings).start()
    world.step(LEARNT)
    assert not emitted(world.effects, events.MitigationChosen)
    return world


def slow(name: str = "1.0", factor: float = 2.0, **more) -> World:
    world = healthy(**more)
    world.pace.slow[name] = factor
    world.step(FOUND)
    return world


def until(world: World, action: str) -> World:
    """Steps until it is decided; what is sent then is still on its way."""
    for _ in range(60):
        for actor in world.live():
            world.run_step(actor)
        if action in actions(world):
            return world
        world.pump()
        world.at_s += world.step_s
    raise AssertionError(f"no {action} in 60 steps: {actions(world)}")


def actions(world: World) -> list[str]:
    """Those that were done."""
    chosen = [event.action for event in emitted(world.effects, events.MitigationChosen)]
    return [action for action in chosen if action != "wait"]


def share(schedule: Schedule, name: str) -> int:
    lane = schedule.lanes[parse_worker(name)]
    return sum(op.kind is Kind.F for op in lane)


def now_runs(world: World) -> Schedule:
    return world.ran[max(world.ran)]


# --- a slow worker ---


def test_a_slow_worker_is_told_and_gets_less_to_do_and_nobody_stops() -> None:
    world = healthy()
    usual = share(now_runs(world), "1.0")
    world.pace.slow["1.0"] = 2.0
    effects = world.step(FOUND)
    (found,) = emitted(effects, events.Diagnosed)
    assert (found.cause, found.subject, found.since) == ("slow computation", "1.0", LEARNT)
    assert found.factor == pytest.approx(2.0, rel=0.05)
    assert set(sent(effects, messages.Offer)) == {"0.0", "0.1", "1.0", "1.1"}
    assert not sent(effects, messages.Halt)
    (switched,) = emitted(effects, events.PlanSwitched)
    assert (actions(world), switched.cause) == (["re-plan"], "re-plan")
    assert share(now_runs(world), "1.0") < usual


class Starved(Pace):
    """Who is slow takes no more CPU time than before."""

    def operations(self, name, lane):
        factor = self.slow.get(name, 1.0)
        return [one._replace(cpu_s=one.cpu_s / factor) for one in super().operations(name, lane)]

    def benchmark(self, name, step):
        found = super().benchmark(name, step)
        return replace(found, cpu_s=found.cpu_s / self.slow.get(name, 1.0))


@pytest.mark.parametrize(
    ("num_cores", "hint"),
    [
        (0, "short of CPU time"),
        (1, "4 workers share 1 core"),
        (3, "4 workers share 3 cores"),
        (4, "short of CPU time"),
    ],
)
def test_whoever_lacks_cpu_time_on_too_few_cores_is_told_with_that(num_cores, hint) -> None:
    world = slow(pace=Starved(), given={"num_cores": num_cores})
    assert emitted(world.effects, events.Diagnosed)[0].hint == hint


def test_that_cores_are_few_explains_nothing_if_more_is_computed() -> None:
    world = slow(given={"num_cores": 1})
    assert emitted(world.effects, events.Diagnosed)[0].hint == ""


def test_the_choice_says_what_it_gains() -> None:
    world = slow()
    chosen = emitted(world.effects, events.MitigationChosen)[0]
    assert chosen.subjects == ("1.0",)
    assert chosen.new_period_s < chosen.period_s
    assert "instead of" in chosen.reason


def test_the_suspect_and_nobody_else_is_measured_before_it_is_told() -> None:
    world = healthy()
    world.pace.slow["1.0"] = 2.0
    probes = sent(world.step(FOUND), messages.Probe)
    assert set(probes) == {"1.0"}
    assert probes["1.0"].compute


def test_if_its_benchmark_shows_nothing_nothing_is_done() -> None:
    world = healthy()
    benchmark = world.pace.benchmark
    world.pace.benchmark = lambda name, step: replace(benchmark("0.0", step), worker=name)
    world.pace.slow["1.0"] = 1.2
    world.step(FOUND)
    assert not emitted(world.effects, events.Diagnosed)
    assert not sent(world.effects, messages.Offer)


def test_when_it_is_over_all_go_back_to_the_lanes_of_the_beginning() -> None:
    world = slow()
    world.pace.slow.clear()
    world.step(30)
    assert [over.subject for over in emitted(world.effects, events.SlownessOver)] == ["1.0"]
    assert actions(world) == ["re-plan", "go back"]
    assert now_runs(world) == loads(world.last_proceed.schedule)
    assert world.run.run.health.now == Health({}, {})


def test_while_it_stays_slow_lanes_do_not_change_again() -> None:
    world = slow()
    world.step(60)
    assert actions(world) == ["re-plan"]
    assert len(emitted(world.effects, events.PlanSwitched)) == 1


def test_a_worker_that_gets_slower_still_gets_still_less() -> None:
    world = slow(pipelines=3)
    before = share(now_runs(world), "1.0")
    world.pace.slow["1.0"] = 6.0
    world.step(20)
    assert actions(world) == ["re-plan", "re-plan"]
    assert share(now_runs(world), "1.0") < before


def test_if_all_are_equally_slow_nobody_is_the_slow_one() -> None:
    world = healthy()
    world.pace.slow |= dict.fromkeys(["0.0", "0.1", "1.0", "1.1"], 2.0)
    world.step(30)
    assert emitted(world.effects, events.Diagnosed), "it is told"
    assert not world.run.run.health.now.speeds
    assert not sent(world.effects, messages.Offer)


# --- modes ---


def test_to_observe_is_to_tell_and_to_do_nothing() -> None:
    world = slow(mitigation={"mode": "observe"})
    world.step(20)
    assert [found.subject for found in emitted(world.effects, events.Diagnosed)] == ["1.0"]
    (chosen,) = {e.reason for e in emitted(world.effects, events.MitigationChosen)}
    assert chosen.startswith("only told")
    assert "re-plan" in chosen
    assert not sent(world.effects, messages.Offer)


def test_off_is_off() -> None:
    world = slow(mitigation={"mode": "off"})
    world.step(20)
    assert not sent(world.effects, messages.Probe)
    assert not sent(world.effects, messages.Offer)
    kinds = (events.Diagnosed, events.MitigationChosen, events.PlanSwitched)
    assert not [event for kind in kinds for event in emitted(world.effects, kind)]


def test_the_published_way_moves_shares_of_whole_pipelines() -> None:
    world = slow(mitigation={"mode": "falcon"})
    assert actions(world) == ["re-plan"]
    schedule = now_runs(world)
    assert share(schedule, "1.0") == share(schedule, "1.1") < share(schedule, "0.0")


def test_before_steps_are_measured_nothing_is_done(monkeypatch) -> None:
    """Costs that are numbers of layers cannot be compared with seconds."""
    world = World(steps=400, pace=Pace(), planner=PromptPlanner()).start()
    found = Health({WorkerId(1, 0): 0.5}, {})
    monkeypatch.setattr(Watcher, "health", lambda watcher: found)
    world.step(2)
    assert world.run.run.health.now.speeds
    assert not emitted(world.effects, events.MitigationChosen)
    assert not sent(world.effects, messages.Offer)
    world.step(3)
    assert actions(world) == ["re-plan"]


# --- something else happens to a run with a slow worker ---


def test_the_plan_for_a_death_counts_on_the_slow_one_as_it_is() -> None:
    world = slow(pipelines=3)
    world.die("2.0")
    world.pump()
    members = world.planner.asked[-1].members
    assert {str(m.worker): m.speed for m in members if m.speed != 1.0} == {
        "1.0": pytest.approx(0.5, rel=0.05)
    }
    lanes = loads(world.last_proceed.schedule)
    assert share(lanes, "1.0") < share(lanes, "0.0")
    world.step(20)
    assert actions(world) == ["re-plan"], "that was a plan for the slow one too"


def test_if_the_slow_one_dies_the_others_are_planned_as_usual() -> None:
    world = slow(pipelines=3)
    world.die("1.0")
    world.pump()
    assert all(member.speed == 1.0 for member in world.planner.asked[-1].members)
    world.step(10)
    assert world.run.run.health.now == Health({}, {})
    assert actions(world) == ["re-plan"]


def test_who_takes_the_place_of_a_slow_one_is_not_slow() -> None:
    world = slow(pipelines=3)
    world.die("1.0")
    world.pump()
    world.pace.slow.clear()
    world.step(3)
    world.come("1.0")
    world.pump()
    world.step(6)
    assert "1.0" in world.stages
    assert world.run.run.health.now == Health({}, {})
    world.step(20)
    assert actions(world) == ["re-plan"]


def test_a_death_on_the_way_to_other_lanes_is_planned_for_with_the_slow_speed() -> None:
    world = healthy(3)
    world.pace.slow["1.0"] = 2.0
    until(world, "re-plan")
    world.die("2.1")
    world.pump()
    assert not emitted(world.effects, events.PlanSwitched)
    speeds = {str(member.worker): member.speed for member in world.planner.asked[-1].members}
    assert speeds["1.0"] == pytest.approx(0.5, rel=0.05)
    assert share(loads(world.last_proceed.schedule), "1.0") < 4
    world.step(20)
    assert actions(world) == ["re-plan"], "it was made void by a plan that counts on the same"


def test_the_last_holder_of_a_stage_stays_however_slow_it_is() -> None:
    world = healthy(1, 2)
    world.pace.slow["0.1"] = 5.0
    world.step(30)
    assert emitted(world.effects, events.Diagnosed)
    assert world.stages == {"0.0": 0, "0.1": 1}
    assert not set(actions(world)) & {"drop", "change places"}
    assert world.run.phase is RunPhase.TRAINING


def test_a_joiner_that_enters_a_run_with_a_slow_worker_gets_its_share() -> None:
    """What was wanted before it came is not offered after: it would have no lane in it."""
    world = healthy(3)
    world.die("2.0")
    world.pump()
    world.step(3)
    world.pace.slow["1.0"] = 2.0
    world.step(3)
    world.come("2.0")
    world.pump()
    world.step(20)
    assert world.stages["2.0"] == 0
    assert share(now_runs(world), "2.0") > share(now_runs(world), "1.0")


# --- links ---


def slow_link(one: str, other: str, excess_s: float, *, num_steps: int = 60, **more) -> World:
    world = healthy(**more)
    world.pace.links[one, other] = excess_s
    world.step(num_steps)
    return world


def test_a_slow_pipeline_link_is_told_and_avoided_without_a_stop() -> None:
    world = slow_link("0.0", "0.1", 0.05, num_steps=20, pipelines=3)
    (found,) = emitted(world.effects, events.Diagnosed)
    assert (found.cause, found.subject) == ("slow link", "0.0-0.1")
    assert found.excess_s == pytest.approx(0.05, rel=0.1)
    assert actions(world)[0] == "re-plan"
    assert not sent(world.effects, messages.Halt)
    schedule = now_runs(world)
    across = [m for m in range(12) if schedule.route(0, m) == WorkerId(0, 0)]
    assert not any(schedule.route(1, m) == WorkerId(0, 1) for m in across)


def test_both_ends_of_a_suspected_link_send_a_benchmark_over_it() -> None:
    world = slow_link("0.0", "0.1", 0.05, num_steps=FOUND, pipelines=3)
    probes = sent(world.effects, messages.Probe)
    assert probes["0.0"].links == [("0.1", 0)]
    assert probes["0.1"].links == [("0.0", 0)]


def test_a_slow_reduction_link_ends_with_other_places() -> None:
    """Its ends hold different stages then: nothing is summed over it any more."""
    world = slow_link("0.0", "1.0", 0.05, mitigation={"drop": False})
    assert "change places" in actions(world)
    assert world.stages["0.0"] != world.stages["1.0"]
    assert len(world.stages) == 4
    assert set(world.stages.values()) == {0, 1}
    assert not emitted(world.effects, events.WentBack)
    assert len(emitted(world.effects, events.WorkerMoved)) == 2
    stops = [e for e in emitted(world.effects, events.Recovered) if e.cause == "move"]
    assert len(stops[0].workers) == 2, "both leave at once"
    assert len(stops) <= 3
    world.step(40)
    assert actions(world).count("change places") == 1


def test_a_worker_all_of_whose_links_are_slow_is_left_out_after_its_last_work() -> None:
    world = healthy(3)
    for other in ("0.1", "1.0", "1.1", "2.0", "2.1"):
        world.pace.links["0.0", other] = 0.2
    world.step(30)
    assert "drop" in actions(world)
    assert "0.0" not in world.stages
    assert [e.cause for e in emitted(world.effects, events.PlanSwitched)].count("drop") == 1
    assert not any(event.redone for event in emitted(world.effects, events.Recovered))
    assert "too slow" in sent(world.effects, messages.Stop)["0.0"].reason
    world.step(20)
    assert len(world.stages) == 5


def test_nobody_is_left_out_if_that_is_not_allowed() -> None:
    world = healthy(3, mitigation={"drop": False})
    for other in ("0.1", "1.0", "1.1", "2.0", "2.1"):
        world.pace.links["0.0", other] = 0.2
    world.step(40)
    assert "drop" not in actions(world)
    assert len(world.stages) == 6


@pytest.mark.parametrize("dying", [("1.0",), ("1.0", "2.0")])
def test_whoever_is_about_to_be_left_out_stays_if_others_of_its_stage_die(dying) -> None:
    world = healthy(3)
    for other in ("0.1", "1.0", "1.1", "2.0", "2.1"):
        world.pace.links["0.0", other] = 0.2
    until(world, "drop")
    for name in dying:
        world.die(name)
    world.pump()
    assert "0.0" in world.stages
    if len(dying) == 2:
        world.step(3)
        assert "0.0" in world.stages, "nobody else holds its stage"
    assert not emitted(world.effects, events.WentBack)
