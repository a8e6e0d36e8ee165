"""One simulated worker, from hello to goodbye: obeys, runs lanes, follows, replays, saves.

Follows ``runtime/worker/worker.py`` and ``runtime/step/stage_runner.py``.
"""

from typing import Any

from holdfast.errors import EpochPast, WaitTimeout
from holdfast.faults.fault import parse_fault
from holdfast.faults.injection import Injector
from holdfast.protocol import messages
from holdfast.protocol.records import KeptRow, LayerSize
from holdfast.runtime.step.schedule_switch import Lanes
from holdfast.schedule.cut import stage_ranges
from holdfast.schedule.operation import Kind, Op
from holdfast.schedule.running import RunningStep
from holdfast.simulator.messages.reference import first_state
from holdfast.simulator.messages.worker import waiting as w
from holdfast.simulator.messages.worker.lane_runner import LaneRunner
from holdfast.simulator.messages.worker.replaying import replayed
from holdfast.simulator.messages.worker.stage_model import StageModel
from holdfast.simulator.messages.worker.worker_duties import WorkerDuties

_AT_ONCE_S = -1.0
_NOWHERE = -2  # far behind every stage
TORCH = {"torch": "2"}
TRAITS = {"len(Job.data)": "90", "Job.clip_norm": "1.0"}


class SimulatedWorker(WorkerDuties):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.lanes = Lanes(lambda: None)
        self._was_alone = True

    def is_there(self, wait: w.Wait) -> bool:
        kind, what = wait
        if kind == w.LANES:
            return self.lanes_of(what) is not None
        return kind in (w.SAVED, w.SAVED_LAST) and not self.saves.is_busy

    # --- what it is told ---

    def live(self) -> w.WaitsOf[None]:
        yield w.SLEEP, self.around.load_s()
        self._say_hello()
        while True:
            message = yield w.INBOX, None
            try:
                yield from self._obey(message)
            except EpochPast:
                continue
            except WaitTimeout:
                self.link.send(self._gone(""))
            except w.PeerAway as why:
                if why.worker:
                    self.link.send(self._gone(why.worker))

    def _say_hello(self) -> None:
        layers = self.around.num_layers
        self.link.send(
            messages.Hello(
                worker=self.name,
                pid=self.pid,
                fingerprint=TORCH,
                traits=TRAITS,
                num_layers=layers,
                layer_hashes=[f"{number:032x}" for number in range(layers)],
                cut=[],
                host=self.machine,
                port=self.port,
                device_index=0,
                device_bytes=0,  # all are on processors
            )
        )

    def _obey(self, message: messages.Message) -> w.WaitsOf[None]:
        match message:
            case messages.MeasureLayers():
                yield from self._measure()
            case messages.Assign():
                yield from self._build(message)
            case messages.CopyState():
                self.enter(message.epoch)
                self._was_alone = False
                yield from self.following.follow(message.source)
            case messages.Halt():
                if self.model is not None:
                    self.injector.reach(self.model.reduced, "halt", self.model.ledger.num_done)
                    self.link.send(self._inventory(self.model, message.epoch))
            case messages.Restore():
                assert self.model is not None
                self.saves.restore(self.model, message.version)
            case messages.Proceed():
                yield from self._proceed(message)
            case messages.Replay():
                self.enter(message.epoch)
                self.connect(message.addresses)
                self.beat_from_now_on(message.beat_s)
                yield from replayed(self, message)

    def _measure(self) -> w.WaitsOf[None]:
        yield w.SLEEP, 0.1
        layers, stages = self.around.num_layers, self.around.config.parallel.stages
        share = stages / layers
        forward_s = share * self.around.operation_s(Op(0, Kind.F, 0))
        backward_s = share * self.around.operation_s(Op(0, Kind.BW, 0))
        self.link.send(
            messages.LayerCosts(
                worker=self.name,
                forward_s=[forward_s] * layers,
                backward_s=[backward_s] * layers,
                sizes=[LayerSize(0, 0, 0, 0, 0)] * layers,
            )
        )

    def _build(self, assign: messages.Assign) -> w.WaitsOf[None]:
        self.model = None
        self.cut_off_s = None  # a coordinator wants it again
        self.peers = {}
        self.feeding.forget_all()
        yield w.SLEEP, self.around.build_s()
        config, stage = self.around.config, assign.stage
        state = first_state(stage)
        if assign.checkpoint:
            state = self.around.shelf.open_state(assign.checkpoint)[stage]
        self.model = StageModel(
            stage,
            assign.first_step,
            state,
            self.around.reference,
            self._violated,
            keeps_old=bool(assign.cut),
            staggered=config.optimizer.mode == "staggered",
        )
        self._was_alone, self._wait_s, self._log = True, assign.wait_s, assign.log
        self._logs_from = -1
        self.layers = list(stage_ranges(assign.cut, self.around.num_layers)[stage])
        self.following.begin()
        self.saves.begin(assign)
        self.lanes = Lanes(lambda: None)
        self.injector = Injector(
            [parse_fault(text) for text in assign.faults], self._fire, self.lasting
        )
        self.beat_from_now_on(assign.beat_s)
        self.link.send(messages.Ready(worker=self.name))

    def _violated(self, what: str) -> None:
        self.around.violated(f"worker {self.name} (process {self.pid}): {what}")

    def enter(self, epoch: int) -> None:
        if epoch < self.epoch:
            raise EpochPast("")
        if epoch > self.epoch:
            self.epoch = epoch
            self.box.advance(epoch)

    def _proceed(self, proceed: messages.Proceed) -> w.WaitsOf[None]:
        model = self.model
        assert model is not None, "a Proceed before a stage was assigned"
        self.enter(proceed.epoch)
        kept = {*proceed.stages, *self.feeding.joiners}
        self.peers = {name: peer for name, peer in self.peers.items() if name in kept}
        self.connect(proceed.addresses)
        self.feeding.forget(proceed.stages)
        self.following.stop()
        self._probes, self._link_steps = [], set()
        self.lanes.start(proceed.epoch, proceed.schedule, proceed.first_step)
        model.ledger.num_done = 0
        runner = LaneRunner(self, model, proceed)
        if change_s := self.around.measured_s("change"):
            yield w.SLEEP, change_s
        self._was_alone = self._was_alone and runner.is_alone
        model.be_alone(self._was_alone)
        self.saves.enter(proceed, model, is_first_holder=runner.is_first_holder)
        yield from runner.run(self.lanes_of)
        yield from self.saves.ended(model)
        self.link.send(self._finished(model))

    def lanes_of(self, step: int) -> RunningStep | None:
        try:
            return self.lanes.of(step, _AT_ONCE_S)
        except WaitTimeout:
            return None

    def _inventory(self, model: StageModel, epoch: int) -> messages.Inventory:
        ledger = model.ledger
        is_begun = ledger.step == model.reduced
        return messages.Inventory(
            worker=self.name,
            epoch=epoch,
            reduced=_NOWHERE if self.following.is_fresh else model.reduced,
            oldest=model.oldest,
            attempt=ledger.attempt if is_begun else 0,
            progress={m: int(p) for m, p in ledger.progress.items()} if is_begun else {},
            kept=[
                KeptRow(step, sorted(kept.activations), sorted(kept.gradients))
                for step, kept in sorted(ledger.kept.items())
            ],
            verdicts=dict(model.verdicts),
            kept_bytes=1,
            done=ledger.num_done if is_begun else 0,
            saving=self.saves.newest,
            commits=self.saves.commits,
        )

    def _finished(self, model: StageModel) -> messages.Finished:
        return messages.Finished(
            worker=self.name,
            digests={str(layer): f"{model.state:064x}" for layer in self.layers},
            peak_memory_bytes=1,
            kept_bytes=1,
            log_bytes=0,
            old_bytes=0,
        )

    # --- aside ---

    def aside(self, message: messages.Message) -> None:
        match message:
            case messages.Renewal():
                self.lease.renew(message)
                self.look_again()
            case messages.ShareState():
                if self.model is not None:
                    self.feeding.ask(message)
            case messages.SaveAt() | messages.SaveOnce():
                self.saves.change(message, self.model)
            case messages.Offer() | messages.Adopt():
                self._change_lanes(message)
            case messages.Probe():
                self._probes.append(message)
            case messages.LogBoundaries() if self._log is not None:
                self._log = self._log._replace(boundaries=list(message.boundaries))
            case messages.Sealed():
                self.around.shelf.trim_logs([self.name], message.step)
            case messages.TidyLogs():
                self.around.shelf.trim_logs(message.gone, message.step)

    def _change_lanes(self, order: messages.Offer | messages.Adopt) -> None:
        try:
            if isinstance(order, messages.Adopt):
                self.lanes.adopt(order.epoch, order.number, order.first_step)
                self.look_again()
                return
            step = self.lanes.offer(order.epoch, order.number, order.schedule)
        except EpochPast:
            return
        self.link.send(
            messages.Offered(worker=self.name, epoch=order.epoch, number=order.number, step=step)
        )
