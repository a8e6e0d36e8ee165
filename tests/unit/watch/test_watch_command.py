"""``holdfast watch`` around commands that need no torch: exit codes, signals, findings.

The ranks are made up: a script says to the socket what hooks in four processes would have said.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.cli.main import main

LIMIT_S = 60
WATCH = [sys.executable, "-m", "holdfast", "watch"]
RANKS = """
import array, fcntl, os, socket, sys, termios, time

def all_read():  # as in a job, where all ranks are there long before an iteration ends
    unread = array.array("i", [1])
    for rank in ranks:
        while fcntl.ioctl(rank, termios.TIOCOUTQ, unread) or unread[0]:
            time.sleep(0.001)

num_iterations, slow_from, slow_to, factor = int(sys.argv[1]), *map(float, sys.argv[2:5])
NUM_RANKS, SLOW = 4, 2
ranks = []
for rank in range(NUM_RANKS):
    ranks.append(socket.socket(socket.AF_UNIX))
    ranks[-1].connect(os.environ["HOLDFAST_WATCH"])
    hello = f"rank {rank} {NUM_RANKS} {rank}\\ncall 0 gradients - 64\\ncall 1 step - 0\\n"
    ranks[-1].sendall(hello.encode() + b"0 0 1000\\n1 1000 1000\\n")
all_read()
now = 1000
for iteration in range(2, num_iterations + 1):
    busy = [100_000_000 + 1_000_000 * ((iteration * 7 + rank * 3) % 5) for rank in range(NUM_RANKS)]
    if slow_from <= iteration <= slow_to:
        busy[SLOW] = int(busy[SLOW] * factor)
    leave = now + max(busy) + 2_000_000
    for rank in range(NUM_RANKS):
        text = f"0 {now + busy[rank]} {leave}\\n1 {leave} {leave}\\n"
        ranks[rank].sendall(text.encode())
    all_read()
    now = leave
"""


def watch(*words, options=(), env=None):
    return subprocess.run(
        [*WATCH, *options, "--", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env=env,
        check=False,
    )


def python(code, *words):
    return [sys.executable, "-c", code, *words]


def job(num_iterations, slow_from=10**6, slow_to=10**6, factor=2.0, **kwargs):
    numbers = map(str, (num_iterations, slow_from, slow_to, factor))
    return watch(*python(RANKS, *numbers), **kwargs)


def last_line(done):
    return done.stderr.splitlines()[-1]


# --- findings ---


def test_a_slow_rank_is_named_soon_and_its_end_as_well(tmp_path):
    report = tmp_path / "report.json"
    done = job(100, 41, 70, options=["--report", str(report)])
    assert done.returncode == 0, done
    told = json.loads(report.read_text())
    [finding] = told["findings"]
    assert finding["subject"] == "rank 2"
    assert 39 <= finding["since"] <= 43
    assert finding["factor"] == pytest.approx(2.0, abs=0.1)
    assert 69 <= finding["over_since"] <= 75
    assert told["iterations"] == 100
    assert [call["op"] for call in told["period"]] == ["gradients", "step"]
    slow, over, summary = done.stderr.splitlines()
    assert slow.startswith(f"holdfast watch: rank 2 is slow since iteration {finding['since']}: x")
    assert "rank 2 is as fast as before since iteration" in over
    assert "4 ranks, 100 iterations" in summary


def test_a_steady_job_is_not_accused():
    done = job(300)
    [line] = done.stderr.splitlines()
    assert line.endswith("nothing was slow")


def test_a_job_too_short_for_a_period_says_what_was_needed():
    done = job(2)
    [line] = done.stderr.splitlines()
    assert "no iterations were found in 4 calls of 4 ranks" in line
    assert "3 times" in line


def test_a_job_that_never_uses_torch_distributed_runs_to_its_end(tmp_path):
    report = tmp_path / "report.json"
    code = "import sys; print(sys.stdin.read()); sys.exit(7)"
    done = subprocess.run(
        [*WATCH, "--report", str(report), "--", *python(code)],
        input="through and through",
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert (done.returncode, done.stdout) == (7, "through and through\n")
    [line] = done.stderr.splitlines()
    assert line.startswith("holdfast watch: nothing was seen: ")
    assert json.loads(report.read_text())["exit_code"] == 7


def test_a_fault_of_the_hooks_is_named_and_kept_when_the_watch_is_over(tmp_path):
    code = (
        "import os, sitecustomize\ntry: 1 / 0\n"
        "except ZeroDivisionError: sitecustomize.keep_fault()\nprint('as always')"
    )
    done = watch(*python(code), env={**os.environ, "TMPDIR": str(tmp_path)})
    assert (done.returncode, done.stdout) == (0, "as always\n")
    [kept] = tmp_path.iterdir()
    told = "nothing was seen: an error in Holdfast's hooks in 1 process of the job, see"
    assert last_line(done) == f"holdfast watch: {told} {kept}"
    assert kept.read_text().endswith("ZeroDivisionError: division by zero\n\n")


def test_ranks_that_start_again_are_counted_from_one():
    code = f"import sys\nfor _ in range(2): exec({RANKS!r})"
    done = watch(*python(code, "20", "1e9", "1e9", "1"))
    assert "rank 0 has started again" in done.stderr
    assert "4 ranks, 20 iterations" in last_line(done)


LATE = """
import os, sys, time
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from holdfast.cli.terminal.signals import forwarded
from holdfast.watch import watching
from holdfast.watch.findings import WatchReport

@contextmanager
def late(pass_on):
    {waits}
    with forwarded(pass_on):
        yield

report = WatchReport(print)
code = watching.watch(sys.argv[1:], report, late)
print(report.summary())
sys.exit(code)
"""


def watch_that_sleeps(waits, *words):
    """It is not on until what it ``waits`` for has happened, after the command has begun."""
    return subprocess.run(
        python(LATE.format(waits=waits), *words), capture_output=True, text=True, timeout=LIMIT_S
    )


def test_all_that_was_said_is_heard_however_late_the_watch_is():
    jumps = "time=SimpleNamespace(monotonic=count(0, 60).__next__, thread_time=time.thread_time)"
    waits = f"os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT); vars(watching).update({jumps})"
    code = RANKS.replace("all_read()\n", "pass\n")
    done = watch_that_sleeps(waits, *python(code, "2", "1e9", "1e9", "1"))
    assert "no iterations were found in 4 calls of 4 ranks" in done.stdout


# --- exit codes and bad input ---


@pytest.mark.parametrize("words", [[], ["--"]])
def test_no_command_is_refused(capfd, words):
    assert main(["watch", *words]) == 2
    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith("holdfast: watch: no command; ")


def test_a_command_that_is_not_there_is_127(capfd):
    assert main(["watch", "--", "no-such-command", "--flag"]) == 127
    assert capfd.readouterr().err == "holdfast: watch: no-such-command: command not found\n"


def test_a_command_that_cannot_be_run_is_126(capfd, tmp_path):
    assert main(["watch", "--", str(tmp_path)]) == 126
    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith(f"holdfast: watch: {tmp_path}: cannot be run: ")


def test_a_report_that_cannot_be_written_is_refused_before_the_command_runs(capfd, tmp_path):
    report = str(tmp_path / "none" / "r.json")
    assert main(["watch", "--report", report, "--", "echo", "ran"]) == 2
    said = capfd.readouterr()
    assert said.out == ""
    assert "no such directory" in said.err


def test_a_command_ended_by_a_signal_gives_128_and_its_number():
    done = watch(*python("import os; os.kill(os.getpid(), 9)"))
    assert done.returncode == 137


# --- signals, and what is left behind ---

WAITS = """
import os, signal, sys, time
def told(number, frame):
    print("told", number, flush=True)
    sys.exit(5)
signal.signal(signal.SIGTERM, told)
signal.signal(signal.SIGINT, told)
print(os.getpid(), flush=True)
time.sleep(60)
"""


@pytest.fixture
def waiting(tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [*WATCH, "--", *python(WAITS)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,  # no terminal: signals come from elsewhere
    )
    yield process
    process.kill()
    process.communicate(timeout=LIMIT_S)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_reach_the_command_and_nothing_is_left_behind(waiting, tmp_path, number):
    waiting.stdout.readline()
    assert list(tmp_path.iterdir())
    waiting.send_signal(number)
    stdout, _ = waiting.communicate(timeout=LIMIT_S)
    assert (waiting.returncode, stdout) == (5, f"told {int(number)}\n")
    assert not list(tmp_path.iterdir())


def test_a_signal_that_comes_before_the_watch_is_ready_reaches_the_command(tmp_path):
    sent = tmp_path / "sent"
    script = f"trap 'exit 5' TERM; kill -TERM $PPID; touch {sent}; sleep 20 & wait"
    waits = f"while not Path({str(sent)!r}).exists(): time.sleep(0.01)"
    done = watch_that_sleeps(waits, "sh", "-c", script)
    assert done.returncode == 5, done


def test_a_command_does_not_outlive_a_killed_watch(waiting):
    pid = int(waiting.stdout.readline())
    waiting.kill()
    assert waiting.stdout.readline() == f"told {int(signal.SIGTERM)}\n"
    until = time.monotonic() + LIMIT_S
    while Path(f"/proc/{pid}").exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()
