"""AMX that is shown and refused: found out in a child, remembered, cured by a limit of oneDNN's.

The machines are stand-ins: flags are made up, and the probe's process is another one. The real
instructions are tried too, and end as this machine has them end.
"""

import json
import os
import signal
import stat
import subprocess
import sys
import threading

import pytest

from holdfast.errors import ConfigError
from holdfast.host import amx_probe, instruction_set
from holdfast.host.instruction_set import (
    LIMIT_VARIABLES,
    VARIABLE,
    WITHOUT_AMX,
    Cpu,
    InstructionLimit,
    amx_works,
    choose,
    in_use,
    read_cpu,
)

SKYLAKE = "sse4_1 avx avx2 avx512f avx512bw avx512dq avx512vl"
ICE_LAKE = f"{SKYLAKE} avx512_vnni"
WITH_FP16 = f"{ICE_LAKE} avx512_bf16 avx512_fp16"
SAPPHIRE = f"{WITH_FP16} amx_tile amx_int8 amx_bf16"
LIMIT, OLD_LIMIT = LIMIT_VARIABLES
ILLEGAL = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
LIMIT_S = 60


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """However slow the machine is, a child that ends by itself is waited for."""
    monkeypatch.setattr(instruction_set, "PROBE_LIMIT_S", LIMIT_S)


def cpu(flags):
    return Cpu(frozenset(flags.split()), "made up")


def never(_):
    raise AssertionError("nothing to find out")


def child(code):
    return (sys.executable, "-I", "-S", "-c", code)


# --- what is done ---


def test_amx_that_is_refused_is_left_out_and_one_line_says_what_that_means():
    choice = choose({}, cpu(SAPPHIRE), lambda _: False)
    assert choice.limit == WITHOUT_AMX
    for words in ("harmless", "AMX does not work", "torch runs without it", "slower"):
        assert words in choice.why
    assert len(f"holdfast: {choice.why}") <= 100


@pytest.mark.parametrize("works", [True, None])
def test_amx_that_works_or_that_nobody_can_try_is_left_alone(works):
    assert choose({}, cpu(SAPPHIRE), lambda _: works) == InstructionLimit()


@pytest.mark.parametrize("flags", ["", SKYLAKE, WITH_FP16])
def test_nothing_is_tried_where_no_amx_is_shown(flags):
    assert choose({}, cpu(flags), never) == InstructionLimit()


@pytest.mark.parametrize("name", LIMIT_VARIABLES)
def test_the_users_own_limit_wins(name):
    assert (
        choose({name: "AVX2", VARIABLE: "AVX512_CORE"}, cpu(SAPPHIRE), never) == InstructionLimit()
    )


@pytest.mark.parametrize("text", ["off", "OFF", " off "])
def test_it_can_be_switched_off(text):
    assert choose({VARIABLE: text}, cpu(SAPPHIRE), never) == InstructionLimit()


@pytest.mark.parametrize("text", ["", "auto", "Auto"])
def test_by_default_it_is_on(text):
    assert choose({VARIABLE: text}, cpu(SAPPHIRE), lambda _: False).limit == WITHOUT_AMX


@pytest.mark.parametrize("text", ["AVX2", "avx2", "AVX10_1_512", "AVX512_CORE_AMX"])
def test_the_user_may_name_the_most_that_is_used(text):
    assert choose({VARIABLE: text}, cpu(SAPPHIRE), never) == InstructionLimit(text.upper())


@pytest.mark.parametrize("text", ["AVX3", "on", "AVX2,AVX", "\x00", "1" * 5000])
def test_a_name_that_onednn_does_not_know_is_refused(text):
    with pytest.raises(ConfigError, match=f"{VARIABLE}=.*: expected auto, off"):
        choose({VARIABLE: text}, cpu(""), never)


def test_it_is_set_and_said_only_once(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    for name in LIMIT_VARIABLES:
        monkeypatch.setenv(name, "")  # so that it is put back afterwards
    monkeypatch.setattr(instruction_set, "read_cpu", lambda: cpu(SAPPHIRE))
    monkeypatch.setattr(instruction_set, "amx_works", lambda _: False)
    said = []
    instruction_set.prepare(said.append)
    assert os.environ[LIMIT] == WITHOUT_AMX
    instruction_set.prepare(said.append)
    assert len(said) == 1


# --- what the bits depend on ---


@pytest.mark.parametrize(
    ("flags", "environment", "name"),
    [
        ("", {}, "none"),
        ("avx2 avx sse4_1", {}, "AVX2"),
        (SKYLAKE, {}, "AVX512_CORE"),
        (ICE_LAKE, {}, "AVX512_CORE_VNNI"),
        (ICE_LAKE, {LIMIT: WITHOUT_AMX}, "AVX512_CORE_VNNI"),
        (ICE_LAKE, {LIMIT: "avx512_core"}, "AVX512_CORE"),
        (ICE_LAKE, {OLD_LIMIT: "AVX2"}, "AVX2"),
        (ICE_LAKE, {LIMIT: "AVX", OLD_LIMIT: "AVX2"}, "AVX"),
        (SAPPHIRE, {}, "AVX512_CORE_AMX"),
        (SAPPHIRE, {LIMIT: "ALL"}, "AVX512_CORE_AMX"),
        (SAPPHIRE, {LIMIT: "AVX10_1_512"}, "AVX512_CORE_FP16"),
        (SAPPHIRE, {LIMIT: "AVX99"}, "AVX512_CORE_AMX, limit AVX99"),
    ],
)
def test_what_onednn_computes_with(flags, environment, name):
    assert in_use(environment, cpu(flags)) == name


def test_machines_that_compute_alike_are_alike_whatever_limited_them():
    refused = in_use({LIMIT: WITHOUT_AMX}, cpu(SAPPHIRE))
    assert refused == in_use({}, cpu(WITH_FP16))
    assert refused != in_use({}, cpu(SAPPHIRE))


# --- finding it out ---


@pytest.mark.parametrize(
    ("code", "works"),
    [
        ("pass", True),
        (ILLEGAL, False),
        (f"raise SystemExit({amx_probe.WRONG})", False),
        (f"raise SystemExit({amx_probe.DENIED})", False),
        (f"raise SystemExit({amx_probe.UNDESCRIBED})", False),
        ("no Python", None),
    ],
)
def test_how_the_child_ends_is_the_answer(code, works, tmp_path):
    assert amx_works(cpu(SAPPHIRE), child(code), tmp_path / "amx.json") is works


@pytest.mark.parametrize("name", ["SIGILL", "SIGSEGV", "SIGBUS", "SIGTRAP", "SIGFPE"])
def test_signals_that_a_processor_causes_are_an_answer_and_remembered(name, tmp_path):
    place = tmp_path / "amx.json"
    code = f"import os, signal; os.kill(os.getpid(), signal.{name})"
    assert amx_works(cpu(SAPPHIRE), child(code), place) is False
    assert amx_works(cpu(SAPPHIRE), child("pass"), place) is False


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGHUP", "SIGXCPU"])
def test_signals_of_somebody_else_tell_nothing_and_are_not_remembered(name, tmp_path):
    place = tmp_path / "amx.json"
    code = f"import os, signal; os.kill(os.getpid(), signal.{name})"
    if name == "SIGHUP":  # which nohup has all its children ignore
        code = f"import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL); {code}"
    assert amx_works(cpu(SAPPHIRE), child(code), place) is None
    assert not place.exists()
    assert amx_works(cpu(SAPPHIRE), child("pass"), place) is True


def test_a_child_that_cannot_be_started_or_does_not_end_tells_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(instruction_set, "PROBE_LIMIT_S", 0.1)
    place = tmp_path / "amx.json"
    assert amx_works(cpu(SAPPHIRE), (str(tmp_path / "nobody"),), place) is None
    assert amx_works(cpu(SAPPHIRE), child("import time; time.sleep(60)"), place) is None
    assert not place.exists()


def test_the_real_child_answers_on_this_machine(tmp_path):
    assert amx_works(read_cpu(), cache=tmp_path / "amx.json") is not None


@pytest.mark.skipif("avx" not in read_cpu().flags, reason="instructions of another processor")
def test_instructions_that_a_machine_lacks_end_the_child_by_sigill():
    words = [
        "-c",
        "from holdfast.host import amx_probe; raise SystemExit(not amx_probe.multiply())",
    ]
    done = subprocess.run([sys.executable, *words], capture_output=True, timeout=LIMIT_S)
    shown = "amx_tile" in read_cpu().flags
    assert done.returncode == -signal.SIGILL or (shown and done.returncode == 0)


def test_the_first_processor_stands_for_all(tmp_path):
    path = tmp_path / "cpuinfo"
    path.write_text("model name\t: A\nflags\t\t: avx avx2\n\nflags\t\t: amx_tile\n")
    assert read_cpu(str(path)).flags == {"avx", "avx2"}
    assert read_cpu(str(tmp_path / "none")).flags == frozenset()


# --- remembering it ---


@pytest.fixture
def tried(tmp_path):
    """A child that refuses, and a file with one letter for each time that it ran."""
    count = tmp_path / "count"
    return count, child(f"open({str(count)!r}, 'a').write('x'); {ILLEGAL}")


def test_it_is_tried_once_a_machine(tried, tmp_path):
    count, command = tried
    place = tmp_path / "cache" / "holdfast" / "amx.json"
    for _ in range(3):
        assert amx_works(cpu(SAPPHIRE), command, place) is False
    assert count.read_text() == "x"
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert amx_works(Cpu(frozenset(), "another microcode"), command, place) is False
    assert count.read_text() == "xx"


@pytest.mark.parametrize(
    "garbage", [b"", b"{", b"\xff\xfe", b"[1]", b"null", b"[" * 3000, b'{"x": "yes"}', b"9" * 9000]
)
def test_garbage_in_the_cache_is_overwritten(garbage, tmp_path):
    place = tmp_path / "amx.json"
    place.write_bytes(garbage)
    assert amx_works(cpu(SAPPHIRE), child(ILLEGAL), place) is False
    assert list(json.loads(place.read_text()).values()) == [False]


def test_a_home_that_cannot_be_written_costs_a_child_each_time(tried, tmp_path):
    count, command = tried
    (tmp_path / "file").write_text("")
    for _ in range(2):
        assert amx_works(cpu(SAPPHIRE), command, tmp_path / "file" / "amx.json") is False
    assert count.read_text() == "xx"


def test_many_may_find_out_at_the_same_time(tmp_path):
    place, found = tmp_path / "amx.json", []

    def ask():
        found.append(amx_works(cpu(SAPPHIRE), child(ILLEGAL), place))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert found == [False] * 4
    assert [path.name for path in tmp_path.iterdir()] == ["amx.json"]


# --- the commands ---


def holdfast(*words, **environment):
    return subprocess.run(
        [sys.executable, "-m", "holdfast", *words],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**os.environ, LIMIT: "", **environment},
    )


@pytest.mark.parametrize(
    "words", [("train", "job.py"), ("worker", "--join", "localhost:1"), ("watch", "--", "true")]
)
def test_a_bad_name_is_one_line_and_exit_code_2(words):
    done = holdfast(*words, **{VARIABLE: "AVX3"})
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith(f"holdfast: {VARIABLE}=AVX3: expected auto, off")
    assert not done.stdout


def test_what_is_watched_gets_the_limit():
    code = f"import os; print(os.environ[{LIMIT!r}])"
    done = holdfast("watch", "--", sys.executable, "-c", code, **{VARIABLE: "AVX512_CORE"})
    assert (done.returncode, done.stdout) == (0, "AVX512_CORE\n")
