"""The hooks in a process of the job: they see every call, and are never noticed.

``torch`` is a stand-in of a few lines here: it loads at once, and shows what the hooks touch.
"""

import os
import selectors
import stat
import subprocess
import sys
import tempfile

import pytest

from holdfast.watch.collector import Collector, ProcessEnded
from holdfast.watch.command import prepare, socket_in
from holdfast.watch.hooks import COLLECTIVES, CallRecorder, Hooks
from holdfast.watch.keeping import keep_hook_faults
from holdfast.watch.records import Call, Lost, RankHello, Reader, Record

LIMIT_S = 60
C10D = """
import time
class Work:
    def wait(self): return "waited"
class Tensor:
    def numel(self): return 5
    def element_size(self): return 4
class Group:
    group_name = "tp"
def is_initialized(): return True
def get_rank(): return 3
def get_world_size(): return 8
def all_reduce(tensor, group=None, async_op=False): return Work() if async_op else None
def all_gather_object(out, thing): return all_reduce(Tensor())
def send(tensor, dst=None): time.sleep(0.02)
def broadcast(tensor, src=0): raise ValueError("bad source")
"""


@pytest.fixture
def job(tmp_path):
    """A folder of modules for the process, with a stand-in of torch."""
    folder = tmp_path / "job"
    (folder / "torch" / "distributed").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text("")
    (folder / "torch" / "distributed" / "__init__.py").write_text(
        "from torch.distributed.distributed_c10d import *\n"
    )
    (folder / "torch" / "distributed" / "distributed_c10d.py").write_text(C10D)
    return folder


@pytest.fixture
def hooked(tmp_path):
    folder = tmp_path / "hooks"
    folder.mkdir()
    return folder


def run(code, job, hooked):
    environment = prepare(hooked)
    environment["PYTHONPATH"] += os.pathsep + str(job)
    words = [sys.executable, "-c", "import torch.distributed as dist\n" + code]
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=LIMIT_S)


def watched(code, job, hooked):
    """What the process said to the socket, without its end."""
    said = []
    with selectors.DefaultSelector() as selector:
        collector = Collector(socket_in(hooked), selector)
        done = run(code, job, hooked)
        assert (done.returncode, done.stderr) == (0, ""), done
        while not any(isinstance(item, ProcessEnded) for item in said):
            ready = selector.select(LIMIT_S)
            assert ready, "nothing was said"
            said += [item for key, _ in ready for _, item in collector.handle(key)]
        collector.close()
    return said[:-1], done.stdout


def calls(said):
    return [item.call for item in said if isinstance(item, Record)]


def test_every_call_is_told_with_its_name_group_and_size(job, hooked):
    code = "dist.all_reduce(dist.Tensor()); dist.all_reduce(dist.Tensor(), group=dist.Group())"
    said, _ = watched(code, job, hooked)
    assert said[0][:2] == (3, 8)
    assert calls(said) == [Call("all_reduce", "", 20), Call("all_reduce", "tp", 20)]


def test_a_call_is_told_with_the_time_it_took_and_its_peer(job, hooked):
    said, _ = watched("dist.send(dist.Tensor(), 5)", job, hooked)
    assert said[1].call == Call("send", "@5", 20)
    assert said[1].took_s >= 0.02


def test_only_the_outermost_call_is_told(job, hooked):
    said, _ = watched("dist.all_gather_object([], dist.Tensor())", job, hooked)
    assert [call.op for call in calls(said)] == ["all_gather_object"]


def test_waiting_for_a_handle_is_told(job, hooked):
    code = "print(dist.all_reduce(dist.Tensor(), async_op=True).wait())"
    said, stdout = watched(code, job, hooked)
    assert [call.op for call in calls(said)] == ["all_reduce", "wait"]
    assert stdout == "waited\n"


def test_names_taken_by_import_are_hooked_too(job, hooked):
    code = "from torch.distributed import all_reduce, Tensor; all_reduce(Tensor())"
    assert len(calls(watched(code, job, hooked)[0])) == 1


def test_errors_of_a_call_reach_the_script_and_later_calls_are_told(job, hooked):
    code = (
        "try: dist.broadcast(1)\nexcept ValueError as why: print(why)\ndist.all_reduce(1)\n"
        "print(dist.broadcast.__name__, dist.broadcast.__module__)"
    )
    said, stdout = watched(code, job, hooked)
    assert stdout == "bad source\nbroadcast torch.distributed.distributed_c10d\n"
    assert [call.op for call in calls(said)] == ["all_reduce"]


def test_a_forked_child_makes_its_own_connection(job, hooked):
    code = (
        "import os\ndist.all_reduce(1)\n"
        "if os.fork() == 0: dist.send(1); os._exit(0)\nos.wait(); dist.all_reduce(1)"
    )
    with selectors.DefaultSelector() as selector:
        collector = Collector(socket_in(hooked), selector)
        assert run(code, job, hooked).returncode == 0
        said, num_left = [], 0
        while num_left < 2:
            for key, _ in selector.select(LIMIT_S):
                said += collector.handle(key)
            num_left = sum(isinstance(item, ProcessEnded) for _, item in said)
        collector.close()
    told = [(process, item.call.op) for process, item in said if isinstance(item, Record)]
    assert sorted(told) == [(1, "all_reduce"), (1, "all_reduce"), (2, "send")]


# --- never noticed ---


def test_the_users_own_sitecustomize_still_runs_and_the_folder_is_not_on_the_path(job, hooked):
    (job / "sitecustomize.py").write_text("print('mine')\n")
    code = "import sys, sitecustomize; print(sitecustomize.__file__, sys.path)"
    done = run(code, job, hooked)
    assert done.stdout.startswith(f"mine\n{job}")
    assert str(hooked) not in done.stdout


def test_an_error_in_the_users_own_sitecustomize_is_reported_as_always(job, hooked):
    (job / "sitecustomize.py").write_text("1 / 0\n")
    done = run("", job, hooked)
    assert "ZeroDivisionError" in done.stderr
    assert done.returncode == 0


def test_without_a_watching_process_the_job_goes_on(job, hooked):
    done = run("print(dist.all_reduce(dist.Tensor(), async_op=True).wait())", job, hooked)
    assert (done.returncode, done.stdout, done.stderr) == (0, "waited\n", "")


def test_a_watching_process_that_does_not_read_blocks_nobody(job, hooked):
    """What found no room is counted, and told as soon as somebody reads."""
    code = (
        "import sys\nfor _ in range(60_000): dist.all_reduce(1)\n"
        "print('done', flush=True); sys.stdin.read(); dist.all_reduce(1)"
    )
    environment = prepare(hooked)
    hooks = hooked / "holdfast_watch_hooks.py"  # what is unsent at the end is read, if slowly
    hooks.write_text(hooks.read_text() + f"\nLAST_WORD_S = {LIMIT_S}\n")
    environment["PYTHONPATH"] += os.pathsep + str(job)
    words = [sys.executable, "-c", "import torch.distributed as dist\n" + code]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    said = []
    with selectors.DefaultSelector() as selector:
        collector = Collector(socket_in(hooked), selector)
        with subprocess.Popen(words, env=environment, text=True, **pipes) as process:
            assert process.stdout.readline() == "done\n"  # nothing was read so far
            process.stdin.close()
            while not any(isinstance(item, ProcessEnded) for item in said):
                ready = selector.select(LIMIT_S)
                assert ready, "nothing was said"
                said += [item for key, _ in ready for _, item in collector.handle(key)]
            assert (process.wait(LIMIT_S), process.stderr.read()) == (0, "")
        collector.close()
    num_lost = sum(item.num for item in said if isinstance(item, Lost))
    assert num_lost > 0
    assert len(calls(said)) + num_lost == 60_001


def test_a_torch_without_what_is_hooked_goes_on(job, hooked):
    """E.g. a version in which a class has another name."""
    c10d = job / "torch" / "distributed" / "distributed_c10d.py"
    c10d.write_text(C10D.replace("Work", "Handle"))
    done = run("print(dist.all_reduce(1, async_op=True).wait())", job, hooked)
    assert (done.returncode, done.stdout, done.stderr) == (0, "waited\n", "")


@pytest.mark.parametrize(
    ("broken", "error"),
    [("raise OSError('no')", "OSError: no"), ("def install(*_): 1 / 0", "ZeroDivisionError")],
)
def test_hooks_that_fail_are_not_noticed_and_leave_their_traceback(job, hooked, broken, error):
    environment = prepare(hooked)
    (hooked / "holdfast_watch_hooks.py").write_text(broken)
    words = [sys.executable, "-c", "print('as always')"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, "as always\n", "")
    assert error in only_fault(hooked)


# --- what goes wrong in the hooks is written down ---


def only_fault(hooked):
    [path] = hooked.glob("fault-*.txt")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    return path.read_text()


def test_a_torch_without_what_is_hooked_is_written_down(job, hooked):
    c10d = job / "torch" / "distributed" / "distributed_c10d.py"
    c10d.write_text(C10D.replace("Work", "Handle"))
    run("", job, hooked)
    text = only_fault(hooked)
    assert text.startswith("Traceback ")
    assert "in on_collectives" in text
    assert text.endswith("KeyError: 'Work'\n")


def test_only_the_first_fault_of_a_process_is_written_down(job, hooked):
    strange = "class Strange:\n    def element_size(self): raise OSError('first')\n"
    code = f"{strange}    numel = None\ndist.all_reduce(Strange())\n"
    more = "Strange.numel = lambda _: 1 / 0\ndist.all_reduce(Strange())\nprint('done')"
    done = run(code + more, job, hooked)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
    assert "NoneType" in only_fault(hooked)  # and no ZeroDivisionError
    assert "ZeroDivisionError" not in only_fault(hooked)


def test_a_watching_process_that_is_not_there_is_written_down(job, hooked):
    run("dist.all_reduce(1)", job, hooked)
    text = only_fault(hooked)
    assert "in _connect" in text
    assert text.endswith("FileNotFoundError: [Errno 2] No such file or directory\n")


def test_a_job_without_faults_leaves_no_file(job, hooked):
    watched("dist.all_reduce(dist.Tensor())", job, hooked)
    assert keep_hook_faults(hooked) == (0, "")


def test_a_step_of_an_optimizer_in_a_torch_without_collectives_is_no_fault(tmp_path, monkeypatch):
    faults = []
    hooks = Hooks(CallRecorder(str(tmp_path / "socket"), lambda: faults.append(sys.exc_info()[0])))
    monkeypatch.delitem(sys.modules, COLLECTIVES, raising=False)
    hooks.after_step()
    assert faults == []
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    hooks.before_step()
    assert faults == [KeyError]


def test_faults_of_many_processes_are_kept_in_one_private_file(tmp_path, monkeypatch):
    kept = tmp_path / "kept"
    kept.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(kept))
    for pid in range(100, 120):
        (tmp_path / f"fault-{pid}.txt").write_text(f"Traceback of {pid}" + "x" * 100_000)
    assert keep_hook_faults(tmp_path) == (20, str(*kept.iterdir()))
    [path] = kept.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = path.read_text()
    assert text.startswith("fault-100:\nTraceback of 100xxx")
    assert "Traceback of 115" in text
    assert len(text) < 17 << 16


# --- what is read ---


def test_lines_may_come_in_pieces():
    reader = Reader()
    data = b"rank 1 4 77\ncall 0 all_reduce tp 16\n0 1000 3000\n"
    read = [item for byte in data for item in reader.feed(bytes([byte]))]
    assert read == [RankHello(1, 4, 77), Record(Call("all_reduce", "tp", 16), 1000, 3000)]


@pytest.mark.parametrize(
    "line", [b"rank one 2 3", b"0 1 2", b"call", b"", b"\xff\xfe \xfd 1", b"5"]
)
def test_a_line_that_makes_no_sense_is_left_out(line):
    reader = Reader()
    assert reader.feed(line + b"\nrank 0 1 2\n") == [RankHello(0, 1, 2)]
