"""What a simulated worker does beside its lanes: it reports, beats, logs, and is made to fail."""

from typing import Any

from holdfast.errors import WaitTimeout
from holdfast.faults.fault import Fault, FaultKind
from holdfast.faults.injection import Injector, LastingFaults
from holdfast.protocol import messages
from holdfast.protocol.records import LogOrder, MicrobatchLoss, VerdictRow
from holdfast.schedule.operation import Kind, Op
from holdfast.simulator.messages.reference import StepTotal
from holdfast.simulator.messages.worker import waiting as w
from holdfast.simulator.messages.worker.following import CopyFollowing, Feeding
from holdfast.simulator.messages.worker.lane_operations import LaneOperations
from holdfast.simulator.messages.worker.process import SimulatedProcess
from holdfast.simulator.messages.worker.stage_model import StageModel
from holdfast.simulator.messages.worker.worker_saves import WorkerSaves

_BENCHMARK_S = 0.005


class WorkerDuties(SimulatedProcess):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.model: StageModel | None = None
        self.layers: list[int] = []
        self.saves = WorkerSaves(self)
        self.feeding, self.following = Feeding(self), CopyFollowing(self)
        self.lasting = LastingFaults(self.id)
        self.injector = Injector([], self._fire, self.lasting)
        self._beat_s, self._wait_s, self._beats = 0.0, 600.0, False
        self._busy, self._op_number = "", 0
        self._longest: dict[str, float] = {}
        self._log: LogOrder | None = None
        self._logs_from = -1
        self._probes: list[messages.Probe] = []
        self._link_steps: set[int] = set()  # in which links are measured

    # --- what the lanes ask ---

    def operation_s(self, op: Op) -> float:
        took_s = self.around.operation_s(op) * self.around.slowness.get(self.machine, 1.0)
        self._op_number += 1
        self._busy = "" if op.kind is Kind.R else op.kind.name
        took_s += self.injector.slowdown(took_s) if op.kind is not Kind.R else 0.0
        self._longest[op.kind.name] = max(took_s, self._longest.get(op.kind.name, 0.0))
        return took_s

    def measured_s(self, name: str) -> float:
        return self.around.measured_s(name)

    def verdict_of(self, step: int) -> VerdictRow:
        return self.around.reference.verdict(step)

    def is_nonfinite(self, stage: int, step: int) -> bool:
        return self.around.reference.is_nonfinite(stage, step)

    def log(self, step: int, attempt: int, op: Op, number: int) -> None:
        order = self._log
        if order is None:
            return
        boundary = op.stage if op.kind is Kind.F else op.stage - 1
        if boundary in order.boundaries:
            self.around.shelf.log(self.name, order.run, step, attempt, op, number)
        if self._logs_from < 0:
            self._logs_from = step

    def resumed(self, epoch: int) -> None:
        self.link.send(messages.Resumed(worker=self.name, epoch=epoch, at_s=self.now_s))

    def begins(self, step: int) -> float:
        self.injector.enter(step)
        due = [order for order in self._probes if order.step <= step]
        self._probes = [order for order in self._probes if order.step > step]
        self._link_steps |= {order.step + link.after for order in due for link in order.links}
        links_s = self.around.probe_s(step) if step in self._link_steps else 0.0
        return links_s + (self._benchmark_s(step) if any(one.compute for one in due) else 0.0)

    def _benchmark_s(self, step: int) -> float:
        measured_s = self.measured_s("benchmark")
        took_s = measured_s or _BENCHMARK_S
        took_s += self.injector.slowdown(took_s)
        self.link.send(messages.Probed(worker=self.name, step=step, wall_s=took_s, cpu_s=took_s))
        return took_s if measured_s else 0.0

    def commits(self, step: int) -> None:
        self.around.committed(self, step)

    def settled(
        self, done: StepTotal, verdict: VerdictRow, taken_back: bool, lane: LaneOperations
    ) -> w.WaitsOf[None]:
        model = self.model
        assert model is not None
        operations = model.ledger.times.pop(done.step, [])
        losses = [MicrobatchLoss(m, loss) for m, loss in done.losses] if lane.is_last_stage else []
        report = messages.StepReport(
            worker=self.name,
            step=done.step,
            losses=losses,
            num_tokens=len(losses),
            norm=verdict.norm,
            clipped=verdict.scale is not None,
            skipped=verdict.skip,
            taken_back=taken_back,
            nonfinite=done.is_nonfinite,
            operations=operations,
            transfers=[],
        )
        self.link.send(report)
        self._tell_volume(done.step)
        self.feeding.send_update(done, verdict)
        self.feeding.send_state(model)
        self.saves.committed(model)
        yield from self.saves.save_if_due(model)

    def _tell_volume(self, step: int) -> None:
        if self._log is None or self._logs_from != step:
            return
        sizes = {"activation_bytes": 64, "gradient_bytes": 64, "tied_bytes": 0}
        self.link.send(messages.LogVolume(worker=self.name, step=step, **sizes))

    # --- heartbeats ---

    def beat_from_now_on(self, beat_s: float) -> None:
        self._beat_s = beat_s
        if not self._beats:
            self._beats = True
            self._beat()

    def _beat(self) -> None:
        if self.put_off(self._beat) or self.link.is_over:
            return
        self.around.time.after(self._beat_s, self._beat)
        self.link.look_if_silent()
        ledger = None if self.model is None else self.model.ledger
        is_busy = self._want is not None and self._want[0] == w.SLEEP and bool(self._busy)
        longest, self._longest = self._longest, {}
        self.link.send(
            messages.Heartbeat(
                worker=self.name,
                epoch=self.epoch,
                step=max(0, ledger.step) if ledger else 0,
                attempt=ledger.attempt if ledger else 0,
                done=ledger.num_done if ledger else 0,
                operation=self._busy if is_busy else "",
                number=self._op_number if is_busy else -1,
                microbatch=-1,
                busy_s=self.now_s - self._since_s if is_busy else 0.0,
                longest={kind: s for kind, s in longest.items() if kind != "R"},
                saving=self.saves.is_busy,
                renewed=self.lease.told(),
            )
        )
        waits = self._want is not None and self._want[0] in (w.ANY, w.LANES)
        if waits and self.now_s - self._since_s > self._wait_s:
            self._want = None
            self._go(None, WaitTimeout(""))

    # --- faults ---

    def _fire(self, fault: Fault, step: int, point: str, done: int) -> None:
        ledger = None if self.model is None else self.model.ledger
        self.link.send(
            messages.FaultReport(
                worker=str(fault.worker),
                fault_kind=fault.kind.value,
                fault=str(fault),
                step=max(0, step),
                attempt=ledger.attempt if ledger and ledger.step == step else 0,
                point=point,
                done=done,
                at_s=self.now_s,
            )
        )
        if fault.kind is FaultKind.KILL:
            raise w.ProcessKilled
        if fault.kind is FaultKind.HANG:
            self.is_stopped = True
