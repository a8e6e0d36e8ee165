"""``holdfast watch`` around jobs whose calls are alike long before the first optimizer step."""

import re

import pytest
from test_watch import forked, of_single_ranks, watch

pytestmark = [pytest.mark.multiprocess, pytest.mark.wide, pytest.mark.timeout(300)]

NUM_RANKS, SLOW_RANK, SLOW_FROM, NUM_ITERATIONS = 3, 1, 30, 50
JOB = """
import sys, time
import torch, torch.distributed as dist

kind, slow_rank, slow_from, num_iterations = sys.argv[1], *map(int, sys.argv[2:])
dist.init_process_group("gloo")
rank, num_ranks = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)
torch.manual_seed(0)
now = 0


def work():
    time.sleep(0.06 if rank == slow_rank and now >= slow_from else 0.02)


def fully_sharded():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (num_ranks,))
    model = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(4)])
    for module in (*model, model):
        fully_shard(module, mesh=mesh)

    def run():
        for _ in range(3):
            work()
            model(torch.ones(2, 16)).sum().backward()

    return model, run


def pipeline():
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    class Slow(torch.nn.Linear):
        def forward(self, x):
            work()
            return super().forward(x)

    model = Slow(16, 16)
    stage = PipelineStage(model, rank, num_ranks, torch.device("cpu"))
    loss = torch.nn.functional.mse_loss
    schedule = Schedule1F1B(stage, n_microbatches=8, loss_fn=loss)

    def run():
        inputs = (torch.ones(16, 16),) if rank == 0 else ()
        target = torch.zeros(16, 16) if rank == num_ranks - 1 else None
        schedule.step(*inputs, target=target)

    return model, run


def by_hand():
    model = torch.nn.Sequential(*[torch.nn.Linear(16, 16, bias=False) for _ in range(12)])

    def run():
        work()
        model(torch.ones(2, 16)).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)

    return model, run


model, run = {"fully_shard": fully_sharded, "pipeline": pipeline, "by hand": by_hand}[kind]()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for now in range(1, num_iterations + 1):
    run()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("kind", ["fully_shard", "pipeline", "by hand"])
def test_the_slow_rank_of_each_kind_of_job_is_named(kind, tmp_path):
    script = tmp_path / "job.py"
    script.write_text(JOB)
    words = [kind, SLOW_RANK, SLOW_FROM, NUM_ITERATIONS]
    done, report = watch(forked(NUM_RANKS, script, *words), tmp_path / "report.json")
    assert "error in Holdfast" not in done.stderr
    assert report["iterations"] == NUM_ITERATIONS
    assert report["period"][-1]["op"] == "step"
    named = [f for f in of_single_ranks(report) if f["since"] >= SLOW_FROM - 2]
    assert [finding["subject"] for finding in named] == [f"rank {SLOW_RANK}"]
    assert named[0]["since"] <= SLOW_FROM + 6
    assert re.search(rf"rank {SLOW_RANK} is slow since iteration \d+", done.stderr)
