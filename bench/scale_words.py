"""What simulated machines of bench/scale.py are, and what their agents and workers say."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import holdfast
from holdfast.cluster import WorkerId
from holdfast.protocol import messages
from holdfast.protocol.connection import Connection
from holdfast.protocol.records import KeptRow, MicrobatchLoss, OperationTime, Transfers, VerdictRow
from holdfast.protocol.report_limits import tells_losses, told_transfers
from holdfast.protocol.thinning import Thinning
from holdfast.schedule.operation import Op, Shape

LAYERS_A_STAGE = 4
_OP_S = 0.03


@dataclass(eq=False)
class Agent:
    """Of one machine."""

    number: int
    connection: Connection
    workers: dict[WorkerId, "Worker"] = field(default_factory=dict)
    told: list[messages.Gathered] = field(default_factory=list)  # not passed on yet
    thinning: Thinning = field(default_factory=Thinning)

    def fileno(self) -> int:
        return self.connection.fileno()


@dataclass(eq=False)
class Worker:
    name: WorkerId
    agent: Agent
    connection: Connection
    pid: int
    num_said: int = 0  # by itself
    unsure: list[int] = field(default_factory=list)  # steps that its agent has told of
    lane: Sequence[Op] = ()
    stage: int = 0
    beats: bool = False
    renewed: int = 0  # of its lease
    report: messages.StepReport | None = None  # of any step
    inventory: tuple[int, bytes] = (0, b"")  # epoch and the message

    def fileno(self) -> int:
        return self.connection.fileno()


def host_of(machine: int) -> str:
    return f"10.0.{machine // 250}.{machine % 250 + 1}"


def agent_hello(number: int, shape: Shape) -> messages.AgentHello:
    return messages.AgentHello(
        machine=f"m{number}",
        slots=shape.stages,
        devices=["cpu"],
        memory_bytes=0,
        pid=number + 1,
        fingerprint={"holdfast": holdfast.__version__},
    )


def hello_of(worker: Worker, shape: Shape) -> messages.Hello:
    num_layers = LAYERS_A_STAGE * shape.stages
    return messages.Hello(
        worker=str(worker.name),
        pid=worker.pid,
        fingerprint={"holdfast": holdfast.__version__, "torch": "2", "cpu": "AVX2"},
        traits={messages.SAMPLES: "100000", messages.MICROBATCH_SIZE: "4"},
        num_layers=num_layers,
        layer_hashes=[f"{layer:032x}" for layer in range(num_layers)],
        cut=[],
        host=host_of(worker.agent.number),
        port=20000 + worker.pid % 20000,
        device_index=0,
        device_bytes=0,
    )


def heartbeat(worker: Worker, epoch: int, step: int) -> messages.Heartbeat:
    return messages.Heartbeat(
        worker=str(worker.name),
        epoch=epoch,
        step=step,
        attempt=0,
        done=len(worker.lane) // 2,
        operation="F",
        number=step * 100 + 7,
        microbatch=0,
        busy_s=_OP_S / 2,
        longest={"F": _OP_S, "B": _OP_S, "W": _OP_S},
        renewed=worker.renewed,
    )


def report(worker: Worker, shape: Shape, step: int) -> messages.StepReport:
    name, stage = worker.name, worker.stage
    began_s = time.monotonic()
    times = [
        OperationTime(str(op), began_s + i * _OP_S, began_s + (i + 0.98) * _OP_S, _OP_S, 65536)
        for i, op in enumerate(worker.lane)
    ]
    holders = (WorkerId(p, stage) for p in range(shape.pipelines) if p != name.pipeline)
    beside = (WorkerId(name.pipeline, s) for s in (stage - 1, stage + 1) if 0 <= s < shape.stages)
    of_last = [WorkerId(p, stage) for p in range(shape.pipelines)]
    tells = stage == shape.last_stage and tells_losses(name, of_last)
    losses = range(shape.microbatches if tells else 0)
    transfers = [
        *(Transfers(str(one), "pipeline", 8, 8 << 20, 0.0012345) for one in beside),
        *(Transfers(str(one), "reduction", 2, 1 << 20, 0.0012345) for one in holders),
    ]
    return messages.StepReport(
        worker=str(name),
        step=step,
        losses=[MicrobatchLoss(m, 2.5 + m % 17 / 7) for m in losses],
        num_tokens=shape.microbatches * 4096 if losses else 0,
        norm=1.2345678901,
        clipped=False,
        skipped=False,
        taken_back=False,
        nonfinite=False,
        operations=times,
        transfers=told_transfers(name, transfers),
    )


def inventory_of(worker: Worker, shape: Shape, epoch: int, step: int) -> messages.Inventory:
    """In the middle of a step, and the same moment for all: of each pipeline's micro-batches the
    first two are through, the next two are forwarded, and the others are to come."""
    of_pipeline = shape.microbatches // shape.pipelines
    mine = sorted({op.microbatch for op in worker.lane if op.microbatch is not None})
    through = [m for m in mine if m % of_pipeline < 2]
    forwarded = [m for m in mine if m % of_pipeline < 4]
    activations = forwarded if worker.stage < shape.last_stage else []
    return messages.Inventory(
        worker=str(worker.name),
        epoch=epoch,
        reduced=step,
        oldest=step,
        attempt=0,
        progress={m: 3 if m in through else 1 for m in forwarded},
        kept=[KeptRow(step, activations, through if worker.stage else [])],
        verdicts={step - 1: VerdictRow(1.2345678901, None, False)} if step else {},
        kept_bytes=1 << 20,
        done=len(forwarded) + 2 * len(through),
        saving=0,
        commits=[],
    )
