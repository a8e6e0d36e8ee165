"""``holdfast watch`` around real torch.distributed jobs that know nothing of Holdfast."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.ports import held_port

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(300)]

LIMIT_S = 140  # against hangs only: torch takes long to load on a busy machine
SCRIPT = Path(__file__).parents[2] / "examples" / "ddp_script.py"
WATCH = [sys.executable, "-m", "holdfast", "watch"]

# Starts the ranks as torchrun does, but imports torch only once. With a rank to hold up it stops
# this rank again and again once rank 0 has told of its twentieth iteration.
FORKED = """
import os, runpy, signal, sys, time
import torch.distributed
num_ranks, held, script, *words = sys.argv[1:]
read_end, write_end = os.pipe()
pids = []
for rank in range(int(num_ranks)):
    pids.append(os.fork())
    if pids[-1] == 0:
        if rank == 0 and held != "nobody":
            os.dup2(write_end, 1)
        os.environ.update(RANK=str(rank), WORLD_SIZE=num_ranks)
        sys.argv = [script, *words]
        runpy.run_path(script, run_name="__main__")
        sys.stdout.flush()
        os._exit(0)
if held != "nobody":
    while not os.read(read_end, 1000).startswith(b"iteration 20:"):
        pass
    pid = pids.pop(int(held))
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.15)
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.05)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids))
"""

# What else scripts do with torch.distributed: it must work as without the hooks.
EVERYTHING = """
import torch, torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank, peer = dist.get_rank(), 1 - dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(3, 3), find_unused_parameters=True)
model.register_comm_hook(None, fp16_compress_hook)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
pair = dist.new_group([0, 1])
seen = []
for iteration in range(8):
    with model.no_sync():
        model(torch.full((2, 3), rank + 1.0)).sum().backward()
    model(torch.ones(2, 3)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    total = torch.ones(3) * rank
    work = dist.all_reduce(total, group=pair, async_op=True)
    assert isinstance(work, dist.Work)
    work.wait()
    box = torch.zeros(2)
    works = [dist.isend(torch.full((2,), float(rank)), peer), dist.irecv(box, peer)]
    [work.wait() for work in works]
    more = torch.zeros(1)
    ops = [dist.P2POp(dist.isend, torch.ones(1), peer), dist.P2POp(dist.irecv, more, peer)]
    [work.wait() for work in dist.batch_isend_irecv(ops)]
    things = [None, None]
    dist.all_gather_object(things, {"rank": rank, "text": "x" * iteration})
    dist.barrier()
    seen.append((total.tolist(), box.tolist(), more.item(), things))
if rank == 0:
    print(seen[-1], [parameter.tolist() for parameter in model.parameters()])
dist.destroy_process_group()
"""


def environment():
    return {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(held_port()),
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }


def run(words, stderr=subprocess.PIPE):
    done = subprocess.run(
        list(map(str, words)),
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        timeout=LIMIT_S,
        env=environment(),
    )
    assert done.returncode == 0, done
    return done


def forked(num_ranks, script, *words, held="nobody"):
    return [sys.executable, "-c", FORKED, num_ranks, held, script, *words]


def watch(command, report, **kwargs):
    done = run([*WATCH, "--report", report, "--", *command], **kwargs)
    return done, json.loads(report.read_text())


def of_single_ranks(report):
    """All ranks at once may well be slow: other tests use the same machine."""
    return [finding for finding in report["findings"] if finding["subject"].startswith("rank")]


@pytest.mark.wide
def test_the_slow_rank_of_an_unchanged_script_is_named_within_twenty_iterations(tmp_path):
    torchrun = [Path(sys.executable).with_name("torchrun"), "--standalone", "--nproc-per-node", 4]
    words = ["--slow-rank", 2, "--slow-from", 21, "--slow-to", 50, "--iterations", 80]
    command = [*torchrun, SCRIPT, *words]
    done, report = watch(command, tmp_path / "report.json", stderr=subprocess.STDOUT)
    assert report["iterations"] == 80
    assert {finding["subject"] for finding in of_single_ranks(report)} == {"rank 2"}
    first = of_single_ranks(report)[0]
    assert 19 <= first["since"] <= 24
    assert first["factor"] == pytest.approx(2.0, abs=0.4)
    assert first["over_since"] is not None
    assert done.stdout.index("rank 2 is slow since") < done.stdout.index("iteration 40: loss")
    assert done.stdout.index("rank 2 is as fast as before") < done.stdout.index(
        "iteration 70: loss"
    )


@pytest.mark.wide
def test_the_result_has_the_same_bits_with_and_without_the_hooks(tmp_path):
    """Three ranks: a third is no binary fraction, so another way to average would show."""
    command = forked(3, SCRIPT, "--work", 0, "--iterations", 12)
    alone = run(command).stdout
    done, report = watch(command, tmp_path / "report.json")
    assert re.search(r"parameters [0-9a-f]{64}", alone)
    assert done.stdout == alone
    assert "gradients" in [call["op"] for call in report["period"]]


@pytest.mark.wide
def test_whatever_a_script_does_with_torch_distributed_works_as_before(tmp_path):
    script = tmp_path / "everything.py"
    script.write_text(EVERYTHING)
    alone = run(forked(2, script))
    done, report = watch(forked(2, script), tmp_path / "report.json")
    assert (done.stdout, len(done.stdout) > 100) == (alone.stdout, True)
    assert report["ranks"] == [0, 1]
    seen = {call["op"] for call in report["period"]}
    expected = {"step", "gradients", "all_reduce", "wait", "isend", "irecv", "batch_isend_irecv"}
    assert seen >= expected | {"all_gather_object", "barrier"}


@pytest.mark.wide
def test_a_rank_that_is_stopped_again_and_again_is_named(tmp_path):
    command = forked(3, SCRIPT, "--work", 0.05, "--iterations", 60, held=1)
    _, report = watch(command, tmp_path / "report.json")
    [finding] = of_single_ranks(report)
    assert finding["subject"] == "rank 1"
    assert 18 <= finding["since"] <= 40
