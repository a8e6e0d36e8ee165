"""A worker's stage in training: built from an assignment, then run epoch after epoch.

Wires the parts together and tells what it has. What to run comes with each ``Proceed``; an executor
of its own runs each epoch.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from holdfast.cluster import WorkerId, parse_worker
from holdfast.config import RunConfig
from holdfast.data.batches import Batches
from holdfast.device.processor import PROCESSOR, Device
from holdfast.faults.injection import Injector
from holdfast.host.heap import Gaps
from holdfast.job import Job
from holdfast.protocol import messages, records
from holdfast.protocol.half_done import from_record
from holdfast.runtime.job.hidden_state import HiddenState
from holdfast.runtime.job.job_code import JobCode
from holdfast.runtime.job.loading import loading
from holdfast.runtime.link.activity import Activity
from holdfast.runtime.link.lease import Lease
from holdfast.runtime.probe.emulation import EmulatedDevice
from holdfast.runtime.probe.probing import Prober
from holdfast.runtime.probe.profiling import Profiling
from holdfast.runtime.reduce.verdict import Verdict, VerdictExchange
from holdfast.runtime.stage.named_tensors import layer_digest
from holdfast.runtime.state.boundary_log import BoundaryLog, SendMessage, open_log
from holdfast.runtime.state.copying import StateSender
from holdfast.runtime.state.saving import StageSaver
from holdfast.runtime.state.state_keeping import StateKeeping
from holdfast.runtime.step.boundary import TransportBoundary
from holdfast.runtime.step.builder import Builder, StageParts
from holdfast.runtime.step.ending import StepEnding
from holdfast.runtime.step.epoch import Epoch
from holdfast.runtime.step.executor import (
    EpochPlan,
    Executor,
    FirstOperation,
    StandsStill,
    StepBegins,
    StepSettled,
)
from holdfast.runtime.step.following import Follower
from holdfast.runtime.step.ledger import Ledger
from holdfast.runtime.step.operations import StageOperations
from holdfast.runtime.step.schedule_switch import Lanes
from holdfast.runtime.step.stage_saves import EpochSaves, StageSaves, stage_saver
from holdfast.runtime.step.step_reports import StepReports
from holdfast.runtime.validation.validating import Validator
from holdfast.storage.places import Places
from holdfast.transport.base import Transport
from holdfast.weights.starting import StartingWeights

_NOWHERE = -2  # far behind every stage
_FLUSH_LIMIT_S = 10.0


class StageTraining:
    _was_alone = True  # on its stage, ever since it was built

    def __init__(
        self,
        *,
        me: WorkerId,
        config: RunConfig,
        job: Job,
        batches: Batches,
        transport: Transport,
        assign: messages.Assign,
        keeping: StateKeeping,
        places: Places,
        tell: SendMessage,
        check: Callable[[], None],
        lease: Lease,
        injector: Injector,
        ran: Callable[[str], None] = lambda who: None,
        weights: StartingWeights | None = None,
        device: Device = PROCESSOR,
    ) -> None:
        """``check`` raises when this worker is to stop at the next operation boundary, ``ran`` if
        the code of the job that has just run did what it may not."""
        self._me, self._transport, self._injector = me, transport, injector
        self._wait_s, self._clip_norm = assign.wait_s, job.clip_norm
        self.ledger, self.activity, self.lanes = Ledger(), Activity(), Lanes(check)
        self._code, self._gaps = JobCode(check, ran, self.activity), Gaps()
        self._may_commit = partial(lease.wait, check)
        saver = stage_saver(me, keeping, assign, places, tell, lease=lease, check=check)
        builder = Builder(job, config, assign.cut, self._code, weights, device)
        self.built = built = self._build(builder, assign, saver)
        self._operations = self._operating(batches, config)
        self.log = self._open_log(config, assign, places, tell)
        if assign.checkpoint:
            built.state.load_checkpoint(*places.open_state(assign.checkpoint))
        self._copies = keeping.copies(built.state, assign.first_step)
        self.saves = StageSaves(
            me, built, saver, keeping.times(), config, tell=tell, check=check, reach=self._reach
        )
        self.sender = StateSender(transport, built.parts.form)
        self._follower = Follower(
            me, built, self._copies, transport, reach=injector.reach, tell=tell, wait_s=self._wait_s
        )
        self._device = EmulatedDevice(config.device.durations_s(), device)
        self._prober = Prober(me, transport, self._device, injector.slowdown, tell)
        self._reports = self._reporting(job, config, tell)
        self._profiling = self._profiler(config, places, tell)
        self._validator = self._validating(job, config, tell)
        kept = (self.ledger, self.log, self._operations.crossings)
        self._boundary = TransportBoundary(me, transport, *kept, assign.wait_s)

    def _operating(self, batches: Batches, config: RunConfig) -> StageOperations:
        ahead = loading(batches, config.data, self._code)
        return StageOperations(self.built, ahead, self._code, self._gaps)

    def _build(self, builder: Builder, assign: messages.Assign, saver: StageSaver) -> StageParts:
        return builder.build(
            [assign.stage],
            first_step=assign.first_step,
            keeps_old=bool(assign.cut),
            before_update=lambda: self._before_update(saver),
            may_commit=self._may_commit,
            reach=self._reach,
            due=self._injector.due,
        )

    def _before_update(self, saver: StageSaver) -> None:
        saver.before_update()
        self._gaps.give_back()

    def _reporting(self, job: Job, config: RunConfig, tell: SendMessage) -> StepReports:
        hidden = HiddenState(job, self.built.layers, self.built.optimizer.plain)
        told = config.observe.operations or config.mitigation.watches
        lr = self.built.optimizer.learning_rate
        return StepReports(self._me, self._transport, hidden, lr, tell, with_operations=told)

    def _profiler(self, config: RunConfig, places: Places, tell: SendMessage) -> Profiling:
        me = str(self._me)
        return Profiling(
            me,
            config.observe.profiled_steps(),
            Path(places.run_dir),
            lambda line: tell(messages.WorkerWarning(worker=me, reason=line)),
            lambda: places.home.is_here,
        )

    def _validating(self, job: Job, config: RunConfig, tell: SendMessage) -> Validator:
        mine = (self._me, self.built.stage, self.built.layers)
        running = (self._code, self._device)
        weights = self.built.averaged if config.validation.ema else nullcontext
        return Validator(
            *mine, job, config, *running, tell=tell, reach=self._reach, weights=weights
        )

    def _open_log(
        self, config: RunConfig, assign: messages.Assign, places: Places, tell: SendMessage
    ) -> BoundaryLog:
        return open_log(
            assign.log,
            places,
            worker=self._me,
            stage=assign.stage,
            slots=self.built.parts.slots,
            ties=self.built.parts.ties,
            every_steps=config.checkpoint.every_steps,
            tell=tell,
        )

    # --- as a member ---

    def run(self, proceed: messages.Proceed) -> None:
        """Until the last step is committed and saved. EpochPast and PeerLost break it off."""
        epoch, commit = self._enter(proceed), self.built.commit
        saves = self.saves.enter(is_first_holder=epoch.is_first_holder, end_step=proceed.end_step)
        validations = self._validator.enter(proceed, self._transport, self._wait_s)
        executor = self._executor(proceed, epoch, validations.is_due)
        self._injector.reach(commit.reduced, "proceed", self.ledger.num_done)
        for happened in executor.run():
            match happened:
                case FirstOperation():
                    self._reports.resumed(proceed.epoch)
                case StepBegins(step):
                    self._profiling.begin_step(step)
                    self._prober.begin_step(step)
                case StepSettled():
                    self._after(happened, saves, epoch)
                case StandsStill(version):
                    validations.run(version, saves.save)
            del happened  # it holds a gradient
        self._profiling.end()
        self.saves.ended(saves)

    def _enter(self, proceed: messages.Proceed) -> Epoch:
        stages = {parse_worker(name): stage for name, stage in proceed.stages.items()}
        self.sender.forget([joiner for joiner in self.sender.joiners if joiner in stages])
        self._follower.stop()
        self._prober.forget()
        self.lanes.start(proceed.epoch, proceed.schedule, proceed.first_step)
        self.ledger.new_plan()
        self.saves.saver.others = proceed.saved.get(self.built.number, 0)
        self.saves.times.change(proceed.saves)
        epoch = Epoch(
            self._me, self.built.number, stages, self._transport, self.built.parts, self._wait_s
        )
        self._was_alone = self._was_alone and epoch.is_alone
        self.built.commit.be_alone(self._was_alone)
        return epoch

    def _executor(
        self, proceed: messages.Proceed, epoch: Epoch, stands_still: Callable[[int], bool]
    ) -> Executor:
        running = [from_record(one) for one in proceed.running]
        ending = self._ending(proceed, epoch)
        ending.tell()  # what was told in an earlier epoch is lost
        for routes in running:
            epoch.serve(routes, ending.commit.result)
        plan = EpochPlan(
            self._me,
            running,
            partial(self.lanes.of, timeout_s=self._wait_s),
            first_step=proceed.first_step,
            end_step=proceed.end_step,
        )
        return Executor(
            plan,
            self._operations,
            self._boundary,
            ending,
            ledger=self.ledger,
            injector=self._injector,
            device=self._device,
            check=self._code.check,
            stands_still=stands_still,
        )

    def _ending(self, proceed: messages.Proceed, epoch: Epoch) -> StepEnding:
        commit = self.built.commit
        known = {step: Verdict(*told) for step, told in proceed.verdicts.items()}
        commit.verdicts = {**known, **commit.verdicts}
        verdicts = VerdictExchange(
            self._me,
            self.built.number,
            list(epoch.holders.values()),
            self._transport,
            self._clip_norm,
            known,
            timeout_s=self._wait_s,
        )
        return StepEnding(epoch, self.built.state, commit, verdicts, self.log, self._reach)

    def _after(self, settled: StepSettled, saves: EpochSaves, epoch: Epoch) -> None:
        committed = settled.committed
        self._code.ran("the optimizer or its LR schedule")
        self._reports.committed(settled, epoch, self._clip_norm)
        self.sender.send_update(committed)
        if self.sender.is_asked:
            self.sender.send_state(committed.step + 1, self.built.state.tensors())
        self._copies.committed(committed.step + 1)
        self._gaps.give_back()
        saves.save_if_due(committed.step + 1)

    def between_steps(self, order: messages.Probe | messages.SaveHere | messages.GoOn) -> None:
        """From the control thread."""
        if isinstance(order, messages.Probe):
            self._prober.order(order)
        else:
            self._validator.orders.put(order)

    # --- as a joiner ---

    def follow(self, source: WorkerId) -> None:
        self._was_alone = False
        self._follower.follow(source)

    # --- what it has ---

    def inventory(self, epoch: int) -> messages.Inventory:
        """All that planning needs to know of this worker."""
        commit, ledger = self.built.commit, self.ledger
        self._injector.reach(commit.reduced, "halt", ledger.num_done)
        self.log.flush(_FLUSH_LIMIT_S)  # whoever has to replay will read it
        is_begun = ledger.step == commit.reduced
        return messages.Inventory(
            worker=str(self._me),
            epoch=epoch,
            reduced=_NOWHERE if self._follower.is_fresh else commit.reduced,
            oldest=commit.oldest,
            attempt=ledger.attempt if is_begun else 0,
            progress={m: int(p) for m, p in ledger.progress.items()} if is_begun else {},
            kept=[
                records.KeptRow(step, sorted(kept.activations), sorted(kept.gradients))
                for step, kept in sorted(ledger.kept.items())
            ],
            verdicts={
                step: records.VerdictRow(told.norm, told.scale, told.skip)
                for step, told in commit.verdicts.items()
            },
            kept_bytes=ledger.peak_bytes,
            done=ledger.num_done if is_begun else 0,
            saving=self.saves.saver.newest,
            commits=self._copies.versions,
        )

    def finished(self, peak_memory_bytes: int, peak_device_bytes: int) -> messages.Finished:
        layers = self.built.layers
        return messages.Finished(
            worker=str(self._me),
            digests={str(number): layer_digest(layer) for number, layer in layers.items()},
            peak_memory_bytes=peak_memory_bytes,
            kept_bytes=self.ledger.peak_bytes,
            log_bytes=self.log.num_bytes,
            old_bytes=self.built.commit.peak_kept_bytes,
            peak_device_bytes=peak_device_bytes,
        )

    def restore(self, version: int) -> None:
        """Back to a copy in memory."""
        self._copies.restore(version)
        self.built.commit.restart(version)
        self.ledger.clear()

    def close(self) -> None:
        """Another stage takes its place."""
        self._profiling.end()
        self.sender.forget(self.sender.joiners)
        self._operations.close()
        self.log.close()

    def reach(self, step: int, point: str) -> None:
        """A point at which a fault may be injected, outside of any operation."""
        self._injector.reach(step, point)

    def _reach(self, step: int, point: str) -> None:
        self._injector.reach(step, point, self.ledger.done_of(step))
