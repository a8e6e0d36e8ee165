"""The journal of a run that cannot be written: waited for, unless the run is to end."""

import pytest

from holdfast.control.io.succession import run_journal
from holdfast.control.io.succession.run_journal import RunFacts, RunJournal
from holdfast.errors import JournalAway

FACTS = RunFacts(1, {}, "job.py", "5a" * 32, "", [])


class Away:
    """A journal that does not answer so many times; what comes after is written."""

    def __init__(self, num_times: int) -> None:
        self.num_times, self.written = num_times, []
        self.when_asked = lambda: None

    def append(self, record) -> None:
        self.when_asked()
        self.num_times -= 1
        if self.num_times >= 0:
            raise JournalAway("etcd://a: no answer")
        self.written.append(record["snapshot"])

    compact = append


@pytest.fixture
def lines():
    return []


def begun(journal: Away, lines: list[str], *, waits: bool = True) -> RunJournal:
    made = RunJournal(journal, FACTS, lines.append, waits=waits)
    made.leads_already()
    return made


def test_one_that_is_shared_is_waited_for_and_said_to_be_once(lines):
    journal = Away(7)
    begun(journal, lines).write({"epoch": 1})
    assert journal.written == [{"epoch": 1}]
    assert lines == ["the journal cannot be written: etcd://a: no answer; it is waited for"]


def test_one_in_the_run_directory_is_not(lines):
    journal = Away(7)
    begun(journal, lines, waits=False).write({"epoch": 1})
    assert not journal.written
    assert "nobody could take over" in lines[0]


def test_a_run_that_is_to_end_waits_a_little_and_then_ends_without_it(lines, monkeypatch):
    monkeypatch.setattr(run_journal, "END_LIMIT_S", 0.05)
    journal = Away(10**9)
    made = begun(journal, lines)
    made.hurry()
    with pytest.raises(JournalAway, match=r"ends without its journal .* newest checkpoint"):
        made.write({"epoch": 1})
    assert journal.num_times < 10**9 - 1  # it was tried again meanwhile
    left = journal.num_times
    made.write({"epoch": 2})  # of the end: nobody waits for it
    assert journal.num_times == left


def test_after_a_second_word_it_is_not_waited_for_at_all(lines):
    journal = Away(10**9)
    made = begun(journal, lines)
    made.hurry()
    journal.when_asked = made.hurry  # by a signal, while it is asked
    with pytest.raises(JournalAway):
        made.write({"epoch": 1})
    assert journal.num_times == 10**9 - 1


def test_one_that_comes_back_in_time_has_it_all(lines):
    journal = Away(1)
    made = begun(journal, lines)
    made.hurry()
    made.write({"epoch": 1})
    assert journal.written == [{"epoch": 1}]
