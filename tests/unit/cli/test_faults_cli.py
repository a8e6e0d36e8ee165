"""The flags ``--fault`` and ``--chaos``: checked before anything starts, handed to the run."""

from pathlib import Path

import pytest

from helpers.sample_events import sample
from holdfast.api import live_run, training
from holdfast.cli import main
from holdfast.errors import HoldfastError
from holdfast.faults.chaos import Chaos, chaos_faults
from holdfast.faults.fault import PHASES, FaultKind, parse_fault
from holdfast.observability.events import FaultFired, RunStarted
from holdfast.storage.manifest import Checkpoint


class StoppedLauncher:
    """Starts nothing."""

    run_dir = Path("run")

    def __init__(self, request, starter, *, handle, warn):
        self.request, self.handle = request, handle

    def run(self):
        raise HoldfastError("stopped by the test")


@pytest.fixture
def launched(monkeypatch):
    """The faults of each run that would have started."""
    runs = []

    class Launcher(StoppedLauncher):
        def run(self):
            runs.append(self.request.faults)
            return super().run()

    monkeypatch.setattr(live_run, "Launcher", Launcher)
    return runs


@pytest.fixture
def start(tmp_path, capsys):
    """``holdfast train`` on 2 pipelines x 2 stages, 20 steps: exit code, stdout, stderr."""
    job = tmp_path / "job.py"
    job.write_text("")

    def run(*words):
        shape = ["--pipelines", "2", "--stages", "2", "--steps", "20", "--microbatches", "6"]
        code = main.main(["train", str(job), "--run-dir", str(tmp_path / "run"), *shape, *words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.mark.parametrize("kind", ["processes", "threads"])
def test_faults_reach_the_run_in_the_order_given_and_are_counted(launched, start, kind):
    texts = ["join @ 8", "kill 1.0 @ 5.B2"]
    words = [word for text in texts for word in ("--fault", text)]
    code, out, err = start(*words, "--set", f"workers.kind={kind}")
    assert launched == [tuple(map(parse_fault, texts))]
    assert "\n2 faults will be injected\n" in out
    assert (code, err) == (1, "holdfast: stopped by the test\n")


def test_a_single_fault_is_counted_in_the_singular(launched, start):
    assert "\n1 fault will be injected\n" in start("--fault", "join @ 8")[1]


def test_without_faults_nothing_is_said_of_them(launched, start):
    assert "fault" not in start()[1]
    assert launched == [()]


def test_chaos_comes_after_the_faults_that_were_given(launched, start):
    start("--chaos", "seed=3,rate=0.2", "--fault", "hang 1.0 @ 5.B2")
    random = chaos_faults(Chaos(3, 0.2), 2, 2, 20, operations=3)
    assert launched == [(parse_fault("hang 1.0 @ 5.B2"), *random)]
    assert random


def test_chaos_makes_slow_also_where_nobody_may_be_killed(launched, start):
    start("--chaos", "seed=3,slow=0.2", "--pipelines", "1")
    random = chaos_faults(Chaos(3, slow=0.2), 1, 2, 20, operations=6)
    assert launched == [random]
    assert random


def test_slow_links_of_chaos_are_felt_next_to_emulated_operations(launched, start):
    start("--chaos", "seed=3,slow=0.5", "--set", "device.emulate=F=1s,B=2s,W=1s")
    random = chaos_faults(Chaos(3, slow=0.5), 2, 2, 20, operations=3, transfer_s=1.0)
    assert launched == [random]
    assert random != chaos_faults(Chaos(3, slow=0.5), 2, 2, 20, operations=3)


@pytest.mark.parametrize("kind", ["processes", "threads"])
def test_slow_workers_and_links_are_accepted_in_any_kind_of_worker(launched, start, kind):
    texts = ["slow 1.0 @ 5-8 x2.0", "link 0.0-0.1 @ 5-8 +15ms"]
    words = [word for text in texts for word in ("--fault", text)]
    start(*words, "--set", f"workers.kind={kind}")
    assert [[str(fault) for fault in faults] for faults in launched] == [texts]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--fault", "kill 1.0"], "--fault 'kill 1.0': it does not say when"),
        (["--fault", "kill 2.0 @ 5"], "--fault 'kill 2.0 @ 5': there is no worker 2.0; expected"),
        (["--fault", "join @ 21"], "--fault 'join @ 21': there is no step 21; expected 1 to 20"),
        (["--fault", "join @ 8", "--fault", "join @ 8"], "--fault 'join @ 8': it is given twice"),
        (["--fault", "slow 1.0 @ 5-21 x2"], "--fault 'slow 1.0 @ 5-21 x2.0': there is no step 21"),
        (["--fault", "link 0.0 @ 5 +1ms"], "--fault 'link 0.0 @ 5 +1ms': link needs two workers"),
        (
            ["--fault", "cpu 1.0 @ 5-8 x2", "--set", "workers.kind=threads"],
            "--fault 'cpu 1.0 @ 5-8 x2.0': workers.kind=threads has all workers in one process",
        ),
        (["--chaos", "rate=0.1"], "--chaos 'rate=0.1': lacks seed; write e.g. seed=1,rate=0.05"),
        (["--chaos", ""], "--chaos '': cannot read ''"),
        (
            ["--chaos", "seed=1,rate=0.1", "--pipelines", "1"],
            "--chaos 'seed=1,rate=0.1': with one pipeline each stage has only one worker",
        ),
    ],
)
def test_bad_faults_are_refused_before_anything_starts(launched, start, words, line):
    code, out, err = start(*words)
    assert (code, out, launched) == (2, "", [])
    assert err.startswith(f"holdfast: {line}")
    assert len(err.splitlines()) == 1


def test_faults_of_a_resumed_run_lie_in_the_steps_that_are_left(launched, start, monkeypatch):
    monkeypatch.setattr(training, "find", lambda place: Checkpoint(place, 10, 0, 6, ()))
    code, _, err = start("--resume", "somewhere", "--fault", "kill 1.0 @ 10")
    assert (code, launched) == (2, [])
    assert "there is no step 10; expected 11 to 20" in err
    start("--resume", "somewhere", "--fault", "kill 1.0 @ 11", "--chaos", "seed=3,rate=0.5")
    assert min(fault.step for fault in launched[0]) == 10


def test_the_help_names_every_phase_with_its_meaning(capsys):
    with pytest.raises(SystemExit):
        main.main(["train", "--help"])
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    for phase, meaning in PHASES.items():
        assert f"{phase} {meaning}" in lines


def test_the_help_names_every_fault(capsys):
    with pytest.raises(SystemExit):
        main.main(["train", "--help"])
    text = capsys.readouterr().out
    for kind in FaultKind:
        assert f"{kind.value} " in text.partition("a fault is one of:")[2].partition("begin")[0]


@pytest.mark.parametrize("has_begun", [True, False])
def test_faults_that_did_not_fire_are_said_also_when_the_run_fails(start, monkeypatch, has_begun):
    started = sample(RunStarted, at_s=0.0, steps=20)
    fired = FaultFired(at_s=1.0, worker="1.0", fault="kill 1.0 @ 5", step=4, point="start")

    class Launcher(StoppedLauncher):
        def run(self):
            for event in (started, fired) if has_begun else ():
                self.handle(event)
            return super().run()

    monkeypatch.setattr(live_run, "Launcher", Launcher)
    code, out, _ = start("--fault", "kill 1.0 @ 5", "--fault", "kill 1.1 @ 9")
    assert code == 1
    line = "not injected, as no worker came to that point: kill 1.1 @ 9\n"
    assert (line in out) == has_begun
    assert ("not injected" in out) == has_begun
