"""Agents gather what their workers tell, and the coordinator hears it as if they had said it."""

import selectors
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from holdfast.cluster import WorkerId
from holdfast.control.effects import Effect
from holdfast.control.io.agents.agent_connections import Agents
from holdfast.control.io.agents.gathering import Gatherer
from holdfast.control.io.agents.passed_on import Hear, PassedOnWords
from holdfast.control.io.entry.worker_connections import WorkerConnections
from holdfast.protocol import messages
from holdfast.protocol.connection import Connection
from holdfast.protocol.gathering import (
    Beat,
    gathered_beat,
    gathered_report,
    heartbeat_of,
    speakers,
    together,
)
from holdfast.protocol.records import AliveRow, LongestRow
from holdfast.protocol.relay import relay_end, relay_pair

LIMIT_S = 30.0
LAST_STEP = 98


def beat(worker: str, step: int = 0) -> messages.Heartbeat:
    return messages.Heartbeat(
        worker=worker, epoch=1, step=step, attempt=0, done=0, operation="", number=-1,
        microbatch=-1, busy_s=0.0, longest={},
    )  # fmt: skip


def report(worker: str, step: int) -> messages.StepReport:
    return messages.StepReport(
        worker=worker, step=step, losses=[], num_tokens=0, norm=1.0, clipped=False, skipped=False,
        taken_back=False, nonfinite=False, operations=[], transfers=[],
    )  # fmt: skip


# --- the agent ---


class Machine:
    """An agent's side of its workers' lines; the workers are scripted."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.gathering = Gatherer(self.selector)
        self.lines: list[Connection] = []

    def start(self, worker: str) -> Connection:
        self.lines.append(relay_end(self.gathering.open(worker)))
        return self.lines[-1]

    def hear(self, number: int) -> None:
        """So many lines that have something."""
        until_s = time.monotonic() + LIMIT_S
        while number:
            assert time.monotonic() < until_s
            for key, _ in self.selector.select(0.1):
                self.gathering.hear(key.data)
                number -= 1


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine()
    yield made
    made.gathering.end()
    made.selector.close()
    for line in made.lines:
        line.close()


def test_words_of_all_workers_are_one_message_and_each_is_answered(machine) -> None:
    lines = {name: machine.start(name) for name in ("0.0", "0.1")}
    for name, line in lines.items():
        line.send(gathered_beat(beat(name)))
    machine.hear(2)
    told = machine.gathering.take()
    assert speakers(told) == {"0.0", "0.1"}
    machine.gathering.passed_on(is_heard=True)
    for line in lines.values():
        assert line.read_within(LIMIT_S) == [messages.PassedOn()]
    assert machine.gathering.take() is None


def test_while_nobody_hears_the_agent_no_worker_is_answered_and_nothing_is_kept(machine) -> None:
    line = machine.start("0.0")
    line.send(gathered_beat(beat("0.0", 1)))
    machine.hear(1)
    machine.gathering.passed_on(is_heard=False)
    line.send(gathered_beat(beat("0.0", 2)))
    machine.hear(1)
    assert [row.step for row in machine.gathering.take().beats] == [2]
    machine.gathering.passed_on(is_heard=True)
    assert line.read_within(LIMIT_S) == [messages.PassedOn()]


def test_a_worker_that_hangs_has_nothing_to_be_passed_on(machine) -> None:
    hangs, lives = machine.start("0.0"), machine.start("0.1")
    lives.send(gathered_beat(beat("0.1")))
    machine.hear(1)
    assert speakers(machine.gathering.take()) == {"0.1"}
    assert hangs.fileno() >= 0


def test_in_between_only_that_they_have_beaten_is_passed_on(machine) -> None:
    line = machine.start("0.0")
    passed_on = []
    for step in range(4):
        line.send(gathered_beat(beat("0.0", step)))
        machine.hear(1)
        told = machine.gathering.take(0.4)
        passed_on.append([*[row.step for row in told.beats], *[row.worker for row in told.alive]])
        machine.gathering.passed_on(is_heard=True)
    assert passed_on == [[0], ["0.0"], [2], ["0.0"]]
    machine.gathering.begin_anew()  # another coordinator knows nothing of it
    line.send(gathered_beat(beat("0.0", 4)))
    machine.hear(1)
    assert [row.step for row in machine.gathering.take(0.4).beats] == [4]


def test_renewals_go_on_to_those_they_name(machine) -> None:
    lines = {name: machine.start(name) for name in ("0.0", "0.1")}
    answers = {"0.1": 7, "9.9": 3}
    renewals = messages.Renewals(
        number=8, for_s=2.0, epoch=1, next_step=5, heard=5, leads=True, answers=answers
    )
    machine.gathering.renew(renewals)
    assert lines["0.1"].read_within(LIMIT_S) == [replace(renewals, answers={"0.1": 7})]
    assert lines["0.0"].read_within(0.05) == []


def test_a_worker_whose_end_shows_while_it_is_told_something_ends_nobody_else(machine) -> None:
    line, other = machine.start("0.0"), machine.start("0.1")
    line.close()
    [(key, _)] = machine.selector.select(LIMIT_S)  # its end has been seen
    answers = {"0.0": 7, "0.1": 7}
    renewals = messages.Renewals(
        number=8, for_s=2.0, epoch=1, next_step=5, heard=5, leads=True, answers=answers
    )
    machine.gathering.renew(renewals)
    machine.gathering.hear(key.data)
    assert other.read_within(LIMIT_S) == [replace(renewals, answers={"0.1": 7})]


def test_one_that_reports_many_steps_is_passed_on_before_its_time(machine) -> None:
    line = machine.start("0.0")
    for step in range(LAST_STEP):
        assert step < 64 or machine.gathering.is_full
        line.send(gathered_report(report("0.0", step), 1, step))
        machine.hear(1)
    assert len(machine.gathering.take().reports) == LAST_STEP
    machine.gathering.passed_on(is_heard=True)
    assert not machine.gathering.is_full


def test_a_line_that_cannot_be_heard_is_none(machine, monkeypatch) -> None:
    def refused(*_) -> None:
        raise OSError("no more watches")

    with monkeypatch.context() as patch:
        patch.setattr(machine.selector, "register", refused)
        with pytest.raises(OSError, match="watches"):
            machine.gathering.open("0.0")
    machine.start("0.0").send(gathered_beat(beat("0.0")))
    machine.hear(1)
    assert machine.gathering.take() is not None


@pytest.mark.parametrize(
    "lie",
    [
        gathered_beat(beat("0.1")),
        messages.AgentBeat(),
        replace(together([]), alive=[AliveRow("0.1")]),
        replace(gathered_beat(beat("0.0")), longest=[LongestRow("F", 0.1)]),
    ],
    ids=["of-another", "no-words", "another-lives", "too-many-rows"],
)
def test_a_worker_speaks_for_itself_only_or_not_at_all(machine, lie) -> None:
    liar, honest = machine.start("0.0"), machine.start("0.1")
    liar.send(lie)
    honest.send(gathered_beat(beat("0.1", 5)))
    machine.hear(2)
    assert [(row.worker, row.step) for row in machine.gathering.take().beats] == [("0.1", 5)]
    machine.gathering.passed_on(is_heard=True)
    assert honest.read_within(LIMIT_S) == [messages.PassedOn()]


def test_another_process_under_the_same_name_has_another_line(machine) -> None:
    before = machine.start("0.0")
    before.send(gathered_beat(beat("0.0", 1)))
    machine.hear(1)
    after = machine.start("0.0")
    after.send(gathered_beat(beat("0.0", 2)))
    machine.hear(1)
    assert [row.step for row in machine.gathering.take().beats] == [2]


# --- the coordinator ---


class Heard:
    """Two machines: 0.0 and 0.1 run on the first, 1.0 on the second."""

    def __init__(self) -> None:
        self.agents, self.workers = Agents(2), WorkerConnections()
        self.lines = [relay_end(sock) for _ in range(3) for sock in relay_pair()]
        self.first, self.second = self.lines[:2]
        self.own = dict(zip(("0.0", "0.1", "1.0"), self.lines[2:5], strict=True))
        for agent, name in ((self.first, "m0"), (self.second, "m1")):
            self.agents.admit(agent, 0.0)
            self.agents.name(agent, name)
        for pid, (name, agent) in enumerate(
            (("0.0", self.first), ("0.1", self.first), ("1.0", self.second)), start=7
        ):
            self.agents.hear(agent, messages.WorkerStarted(worker=name, pid=pid))
            pipeline, stage = name.split(".")
            self.workers.came(WorkerId(int(pipeline), int(stage)), self.own[name])
        self.words: list[messages.Message] = []
        self.one_by_one: list[str] = []
        self.alive: list[WorkerId] = []
        self.first_epoch = 0
        self.passed_on = PassedOnWords(
            self.agents,
            self.workers,
            Hear(self._hear_one, self._hear_beats, lambda effects: None),
            lambda epoch: epoch < self.first_epoch,
        )

    def _hear_one(self, connection: Connection, message: messages.Message) -> None:
        assert connection is self.own[message.worker]
        self.words.append(message)
        self.one_by_one.append(message.worker)

    def _hear_beats(
        self, beats: Sequence[Beat], alive: Sequence[WorkerId], at_s: float
    ) -> tuple[list[Effect], list[Beat]]:
        self.alive += alive
        rest = [beat for beat in beats if beat.row.step > LAST_STEP]
        self.words += [heartbeat_of(beat) for beat in beats if beat not in rest]
        return [], rest

    def says(self, worker: str) -> None:
        """Something else, by itself."""
        self.workers.heard(self.own[worker])
        self.passed_on.heard(self.own[worker])


@pytest.fixture
def heard() -> Iterator[Heard]:
    made = Heard()
    yield made
    for line in made.lines:
        line.close()


def test_an_agent_cannot_keep_a_worker_of_another_machine_alive(heard) -> None:
    forged = [gathered_beat(beat(name)) for name in ("0.0", "1.0", "5.5")]
    heard.passed_on.take(heard.first, together(forged))
    assert heard.words == [beat("0.0")]
    quiet = [AliveRow(name) for name in ("0.1", "1.0", "5.5")]
    heard.passed_on.take(heard.first, replace(together([]), alive=quiet))
    assert heard.alive == [WorkerId(0, 1)]
    heard.passed_on.take(heard.second, gathered_beat(beat("1.0")))
    assert heard.words == [beat("0.0"), beat("1.0")]


def test_heartbeats_of_a_machine_are_heard_at_once_and_only_doubtful_ones_one_by_one(heard) -> None:
    said = [beat("0.0", LAST_STEP + 1), beat("0.1")]
    heard.passed_on.take(heard.first, together(map(gathered_beat, said)))
    assert heard.words == [said[1], said[0]]
    assert heard.one_by_one == ["0.0"]


def test_nor_one_that_it_had_and_that_was_given_up(heard) -> None:
    heard.agents.fence(WorkerId(0, 0))
    heard.passed_on.take(heard.first, together(map(gathered_beat, (beat("0.0"), beat("0.1")))))
    assert heard.words == [beat("0.1")]


def test_what_a_worker_said_by_itself_before_a_report_is_heard_before_it(heard) -> None:
    reports = [report("0.0", 4), report("0.0", 5)]
    said = [gathered_report(one, 1, said=2 + n) for n, one in enumerate(reports)]
    heard.passed_on.take(heard.first, together([gathered_beat(beat("0.0")), *said]))
    assert heard.words == [beat("0.0")]
    heard.says("0.0")
    assert heard.words == [beat("0.0")]
    heard.says("0.0")
    assert heard.words == [beat("0.0"), reports[0]]
    heard.says("0.0")
    assert heard.words == [beat("0.0"), *reports]


def test_reports_stay_in_their_order(heard) -> None:
    heard.passed_on.take(heard.first, gathered_report(report("0.0", 4), 1, said=1))
    heard.passed_on.take(heard.first, gathered_report(report("0.0", 5), 1, said=0))
    assert heard.words == []
    heard.says("0.0")
    assert heard.words == [report("0.0", 4), report("0.0", 5)]


def test_what_waits_for_words_that_cannot_come_any_more_is_dropped(heard) -> None:
    heard.passed_on.take(heard.first, gathered_report(report("0.0", 4), 1, said=1))
    heard.passed_on.drop(heard.own["0.0"])
    heard.says("0.0")
    assert heard.words == []


def test_a_report_from_before_all_went_back_does_not_count(heard) -> None:
    heard.first_epoch = 3
    heard.passed_on.take(heard.first, gathered_report(report("0.0", 4), 2, said=0))
    heard.passed_on.take(heard.first, gathered_report(report("0.1", 4), 3, said=0))
    assert heard.words == [report("0.1", 4)]


def test_one_that_has_not_come_back_to_another_coordinator_is_not_heard_by_its_agent(heard) -> None:
    heard.workers.drop(heard.own["0.0"])
    told = replace(gathered_beat(beat("0.0")), alive=[AliveRow("0.0"), AliveRow("0.1")])
    heard.passed_on.take(heard.first, told)
    assert heard.words == []
    assert heard.alive == [WorkerId(0, 1)]
