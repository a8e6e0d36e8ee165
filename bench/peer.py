"""The same job on PyTorch's own parts: ``torch.distributed.pipelining`` 1F1B and gloo all-reduce.

Run by bench/overhead.py: ``peer.py PORT MICROBATCHES STEPS FOLDER``. Each rank writes the end of
each step to FOLDER/RANK.steps at once; in the end FOLDER/result.json has losses and peak memory.
"""

import json
import os
import resource
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from holdfast.data.batches import Batches
from holdfast.host import instruction_set
from holdfast.job import Job
from holdfast.job_call import load_job

PIPELINES = STAGES = 2


def flat_gradients(module: nn.Module) -> Tensor:
    """One buffer for all gradients, so that one all-reduce does."""
    parameters = list(module.parameters())
    flat = torch.zeros(sum(p.numel() for p in parameters))
    views = flat.split([p.numel() for p in parameters])
    for parameter, view in zip(parameters, views, strict=True):
        parameter.grad = view.view_as(parameter)
    return flat


def load_step(batches: Batches, step: int, pipeline: int, count: int) -> tuple[Tensor, Tensor]:
    numbers = range(pipeline * count, (pipeline + 1) * count)
    loaded = [batches.load(step, number) for number in numbers]
    return torch.cat([inputs[0] for inputs, _ in loaded]), torch.cat(
        [target for _, target in loaded]
    )


def train(rank: int, port: int, microbatches: int, steps: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=PIPELINES * STAGES)
    mesh = init_device_mesh("cpu", (PIPELINES, STAGES), mesh_dim_names=("data", "pipeline"))
    pipeline, index = mesh.get_coordinate()
    job: Job = load_job(Path(__file__).with_name("gpt4m.py"), seed=0)
    layers = list(job.layers)
    own = layers[: job.cut[0]] if index == 0 else layers[job.cut[0] :]
    module = nn.Sequential(*own)
    del layers, own
    stage = PipelineStage(
        module, index, STAGES, torch.device("cpu"), group=mesh.get_group("pipeline")
    )
    count = microbatches // PIPELINES
    schedule = Schedule1F1B(stage, count, loss_fn=job.loss)
    flat = flat_gradients(module)
    optimizer = job.optimizer(module.parameters())
    batches = Batches(job, 0, microbatches)
    losses = []
    ends = (Path(folder) / f"{rank}.steps").open("w", buffering=1)
    for step in range(steps):
        inputs, target = load_step(batches, step, pipeline, count)
        step_losses: list[Tensor] = []
        if index == 0:
            schedule.step(inputs)
        else:
            schedule.step(target=target, losses=step_losses)
        dist.all_reduce(flat, group=mesh.get_group("data"))
        flat /= PIPELINES
        optimizer.step()
        flat.zero_()
        ends.write(f"{time.monotonic()}\n")
        losses.append(sum(loss.item() for loss in step_losses) / count)
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    result = {"losses": losses, "peak_bytes": peak_bytes, "stage": index}
    (Path(folder) / f"{rank}.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    port, microbatches, steps = map(int, sys.argv[1:4])
    folder = Path(sys.argv[4])
    instruction_set.prepare_script()  # for those it starts
    mp.spawn(train, (port, microbatches, steps, str(folder)), nprocs=PIPELINES * STAGES)
    ranks = [json.loads(path.read_text()) for path in sorted(folder.glob("[0-9].json"))]
    last = [rank["losses"] for rank in ranks if rank["stage"] == STAGES - 1]
    losses = [sum(each) / len(each) for each in zip(*last, strict=True)]
    result = {"losses": losses, "peak_bytes": [rank["peak_bytes"] for rank in ranks]}
    (folder / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
