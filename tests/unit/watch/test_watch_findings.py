"""From the records of all ranks to what is said of the job."""

import random
import re
import stat
import sys
import tempfile
from pathlib import Path

import pytest

from holdfast.watch import gathering, watching
from holdfast.watch.collector import Collector
from holdfast.watch.findings import WatchReport
from holdfast.watch.records import Call, RankHello, Record

MS = 1_000_000
GRADIENTS, STEP = Call("gradients", "", 64), Call("step", "", 0)


class Job:
    """Ranks with 100 ms of work an iteration that meet at the end of it."""

    def __init__(self, ranks=range(4), world_size=4, calls=None, verbose=False):
        self.said = []
        self.findings = WatchReport(self.said.append, verbose=verbose)
        self.ranks, self.now = list(ranks), 0
        self.calls = calls or {rank: [GRADIENTS] for rank in self.ranks}
        self.noise = random.Random(1)
        self.step = STEP
        for rank in self.ranks:
            self.findings.join(RankHello(rank, world_size, 100 + rank))

    def run(self, num_iterations, slow=None, factor=1.0, transfer_ms=2):
        for _ in range(num_iterations):
            busy = {rank: int(100 * MS * self.noise.uniform(0.99, 1.01)) for rank in self.ranks}
            if slow is not None:
                busy[slow] = int(busy[slow] * factor)
            end = self.now + max(busy.values()) + transfer_ms * MS
            for rank in self.ranks:
                self._tell(rank, self.now + busy[rank], end)
            self.now = end
        return self

    def _tell(self, rank, enter, end):
        """All its calls but the first one cost nothing."""
        first, *others = self.calls[rank]
        self.findings.add(rank, Record(first, enter, end))
        for call in [*others, *([STEP] if self.step else [])]:
            self.findings.add(rank, Record(call, end, end))

    @property
    def found(self):
        return self.findings.report([], 0)["findings"]


def test_the_rank_that_becomes_slow_is_named_with_factor_and_evidence():
    job = Job().run(30).run(6, slow=1, factor=1.5)
    [line] = job.said
    assert line.startswith("rank 1 is slow since iteration 31: x1.5")
    assert "waits least" not in line
    assert "waits least" in job.found[0]["evidence"]


def test_with_verbose_the_evidence_is_said_as_well():
    job = Job(verbose=True).run(30).run(6, slow=1, factor=1.5)
    assert "waits least" in job.said[1]


def test_ranks_have_their_own_numbers_when_only_some_are_on_this_machine():
    job = Job(ranks=range(4, 8), world_size=8).run(30).run(8, slow=6, factor=2.0)
    assert [finding["subject"] for finding in job.found] == ["rank 6"]
    assert "4 of 8 ranks" in job.findings.summary()
    job.run(12)
    assert job.found[0]["over_since"] == 39
    assert "rank 6 is as fast as before since iteration 39" in job.said


def test_ranks_that_make_different_calls_are_compared_all_the_same():
    first = [Call("send", "@1", 8), Call("recv", "@1", 8)]
    second = [Call("recv", "@0", 8), Call("send", "@0", 8), Call("barrier", "", 0)]
    job = Job(ranks=range(2), world_size=2, calls={0: first, 1: second})
    job.run(30).run(8, slow=0, factor=1.6)
    assert [finding["subject"] for finding in job.found] == ["rank 0"]


def test_calls_that_become_slow_for_all_are_told_as_the_network():
    job = Job().run(30).run(12, transfer_ms=60)
    assert [finding["subject"] for finding in job.found] == ["network"]
    assert job.said[0].startswith("the network is slow since iteration 31: ")


def test_slowness_that_grows_is_told_again_but_is_one_finding():
    job = Job().run(30).run(15, slow=3, factor=1.3).run(15, slow=3, factor=2.5)
    assert "rank 3 is still slow since" in job.said[1]
    [finding] = job.found
    assert finding["factor"] == pytest.approx(2.5, abs=0.2)


def test_a_rank_that_has_ended_is_not_waited_for():
    job = Job().run(20)
    job.findings.leave(2)
    job.ranks.remove(2)
    job.run(40).run(8, slow=3, factor=2.0)
    assert [finding["subject"] for finding in job.found] == ["rank 3"]


def test_a_rank_that_starts_again_is_waited_for_though_its_end_was_heard_after_others_had():
    job = Job().run(20)
    for rank in (0, 1, 2):
        job.findings.join(RankHello(rank, 4, 200 + rank))
    job.findings.leave(3)
    job.findings.join(RankHello(3, 4, 203))
    job.run(30).run(8, slow=3, factor=2.0)
    assert [finding["subject"] for finding in job.found] == ["rank 3"]


def test_another_phase_of_the_job_is_not_taken_for_slowness():
    job = Job().run(30)
    job.calls = {rank: [Call("all_gather", "", 8), GRADIENTS] for rank in job.ranks}
    for _ in range(40):
        job.now += 100 * MS  # everything outside of the calls takes twice as long
        job.run(1)
    assert job.found == []


def test_many_calls_are_counted_by_their_names():
    calls = [GRADIENTS, *[Call("all_gather", "", size) for size in range(8, 20)]]
    job = Job(calls=dict.fromkeys(range(4), calls)).run(6)
    assert "(1 x gradients, 12 x all_gather, 1 x step)" in job.findings.summary()


def test_an_error_of_the_watcher_is_told_once_and_the_command_runs_on(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(WatchReport, "join", lambda *_: 1 / 0)
    said, proof = [], tmp_path / "proof"
    code = (
        "import os, socket, sys; s = socket.socket(socket.AF_UNIX)\n"
        "s.connect(os.environ['HOLDFAST_WATCH'])\n"
        "for rank in range(5): s.sendall(f'rank {rank} 5 7\\n'.encode())\n"
        "s.close(); open(sys.argv[1], 'w'); sys.exit(3)"
    )
    findings = WatchReport(said.append)
    assert watching.watch([sys.executable, "-c", code, str(proof)], findings) == 3
    assert proof.exists()
    assert_told_with_traceback(said, findings)


def assert_told_with_traceback(said, findings):
    [line] = said
    assert "ZeroDivisionError" in line
    assert line.endswith("; the job goes on")
    assert "stopped by an error" in findings.summary()
    place = Path(re.search(r"see (\S+):", line)[1])
    assert "1 / 0" in place.read_text()
    assert stat.S_IMODE(place.stat().st_mode) == 0o600


def test_no_error_of_the_watcher_ends_the_command(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(Collector, "handle", lambda *_: 1 / 0)
    said, proof = [], tmp_path / "proof"
    findings = WatchReport(said.append)
    code = "import sys; open(sys.argv[1], 'w'); sys.exit(3)"
    assert watching.watch([sys.executable, "-c", code, str(proof)], findings) == 3
    assert proof.exists()
    assert_told_with_traceback(said, findings)


def test_findings_in_what_were_no_iterations_are_void():
    job = Job(calls={rank: [GRADIENTS] for rank in range(4)})
    job.step = None  # a long warm-up: the same call again and again, no optimizer
    job.run(30).run(8, slow=1, factor=2.0)
    assert [finding["subject"] for finding in job.found] == ["rank 1"]
    job.step = STEP
    job.run(12)
    assert job.found == []
    assert "what was said so far is void" in job.said[-1]
    job.run(20).run(8, slow=2, factor=2.0)
    [finding] = job.found
    assert (finding["subject"], finding["since"]) == ("rank 2", 33)


# --- what was not seen is said ---


def test_a_job_that_was_seen_as_a_whole_has_no_remarks():
    assert Job().run(30).findings.remarks() == []


def test_calls_that_a_rank_could_not_tell_are_counted_by_rank():
    job = Job()
    for rank, num in ((1, 5), (3, 1), (1, 7)):
        job.findings.lost(rank, num)
    first, second = job.findings.remarks()
    assert first == "12 calls of rank 1 were not seen: it made more than could be read"
    assert second.startswith("1 call of rank 3 was not ")
    assert job.findings.report([], 0)["not_seen"] == [first, second]


def test_iterations_that_wait_for_a_rank_are_bounded_by_their_calls(monkeypatch):
    monkeypatch.setattr(gathering, "MOST_HELD_CALLS", 50)
    job = Job()
    held = job.findings.gathering
    job.ranks = [0, 1, 2]  # the last one says nothing
    job.run(100)
    assert held.num_held_calls <= 50
    assert held.num_held_calls == 2 * held.num_held  # gradients and a step in each
    assert held.num_dropped > 0
    num_whole = sum(stream.num_iterations for stream in held.streams.values())
    assert held.num_held + held.num_dropped == num_whole - 3
    assert job.findings.remarks() == [
        f"{held.num_dropped} iterations were dropped: other ranks were too far behind"
    ]


def test_a_row_that_is_whole_leaves_nothing_behind():
    job = Job().run(30)
    assert (job.findings.gathering.num_held, job.findings.gathering.num_held_calls) == (0, 0)


def test_faults_of_the_hooks_are_said_beside_what_was_seen():
    job = Job().run(30)
    job.findings.unread(4, (2, "/kept.txt"))
    lines, fault = job.findings.remarks()
    assert lines == "4 lines of the job's processes were too much to keep"
    assert fault.endswith("an error in Holdfast's hooks in 2 processes of the job, see /kept.txt")
    assert job.findings.report([], 0)["hook_faults"] == "/kept.txt"
    assert job.findings.summary().startswith("4 ranks, ")


def test_nothing_was_seen_because_the_hooks_failed():
    findings = WatchReport(print)
    findings.unread(0, (2, "/kept.txt"))
    assert findings.summary() == (
        "nothing was seen: an error in Holdfast's hooks in 2 processes of the job, see /kept.txt"
    )
    assert findings.remarks() == []
