"""One worker, from hello to goodbye: loads the job, builds its stage, trains, halts, trains on.

Obeys the coordinator, one message after the other. What it runs in, a process or a thread, and
how it ends, is in ``process.py``.
"""

import os
import resource
from dataclasses import replace

from holdfast.cluster import parse_worker
from holdfast.config import RunConfig
from holdfast.errors import (
    CheckpointError,
    EpochPast,
    HoldfastError,
    JobError,
    LogGap,
    PeerLost,
    WaitTimeout,
)
from holdfast.faults.injection import WorkerFaults
from holdfast.job import Job
from holdfast.protocol import messages
from holdfast.protocol.records import Address
from holdfast.protocol.spec import WorkerSpec
from holdfast.runtime.job.fingerprint import fingerprint
from holdfast.runtime.link.control_link import ControlLink
from holdfast.runtime.link.heartbeat_sender import HeartbeatSender
from holdfast.runtime.link.lease import Lease
from holdfast.runtime.replay.replay import Replayer
from holdfast.runtime.state.boundary_log import BoundaryLog, open_log
from holdfast.runtime.state.state_keeping import StateKeeping
from holdfast.runtime.step.stage_runner import StageTraining
from holdfast.runtime.worker.failures import job_failed, replay_failed
from holdfast.runtime.worker.heartbeat import clock_told, heartbeat
from holdfast.runtime.worker.job_loading import JobLoader
from holdfast.runtime.worker.log_orders import LogOrders
from holdfast.runtime.worker.stacks import Stacks
from holdfast.runtime.worker.worker_places import places_of
from holdfast.transport.base import Transport

_IDLE_LIMIT_S = 1_000_000.0  # the control connection ends a wait for the launcher, not the clock


class Worker:
    def __init__(
        self,
        spec: WorkerSpec,
        link: ControlLink,
        transport: Transport,
        faults: WorkerFaults,
        keeping: StateKeeping,
        *,
        is_process: bool = False,
    ) -> None:
        self._spec = spec
        self._link = link
        self._transport = transport
        self._faults = faults
        self._keeping = keeping
        self._loader = JobLoader(spec, self._warn)
        self._heartbeats = HeartbeatSender(link.send)
        # A connection within one machine is not cut without both its ends hearing of it.
        self._lease = Lease(is_needed=spec.config.machines.count > 0)
        self._stacks = Stacks(str(spec.worker), on_signal=is_process)
        transport.tell_unreached(lambda peer: link.tell(self._gone(str(peer))))
        self._places = places_of(spec, link.now_at, is_process=is_process)
        self._log_orders = LogOrders(spec, self._places, self._lease, link.tell)
        self._epoch, self._host = 0, ""  # where others reach it
        self._log = BoundaryLog()
        self.training: StageTraining | None = None

    @property
    def _config(self) -> RunConfig:
        return self._spec.config

    def run(self) -> None:
        """Until told to stop."""
        loaded = self._loader.load()
        self._say_hello(loaded)
        job: Job | None = loaded
        for line in self._loader.warnings:
            self._warn(line)
        limit_s = self._config.workers.start_limit_s
        try:
            while True:
                message = self._link.next(limit_s)
                limit_s = _IDLE_LIMIT_S
                if isinstance(message, messages.MeasureLayers):
                    assert job is not None
                    self._link.send(self._loader.measured(job))
                else:
                    self._obey(message, job)
                    job = None  # the other stages' layers
        finally:
            self._heartbeats.stop()

    def _warn(self, line: str) -> None:
        self._link.send(messages.WorkerWarning(worker=str(self._spec.worker), reason=line))

    def _obey(self, message: messages.Message, job: Job | None) -> None:
        try:
            match message:
                case messages.Assign():
                    self._build(message, job)
                case messages.CopyState():
                    self._follow(message)
                case messages.Halt() | messages.Restore():
                    self._stand_still(message)
                case messages.Proceed():
                    self._proceed(message)
                case messages.Replay():
                    self._replay(message, job)
                case _:
                    raise HoldfastError(f"cannot obey {type(message).__name__}")
        except EpochPast:
            return  # a Halt is in the inbox, or about to be
        except WaitTimeout:
            # Somebody is stuck, and not necessarily the one that was waited for.
            self._link.send(self._gone(""))
        except PeerLost as why:
            if not why.worker:
                raise
            self._link.send(self._gone(why.worker))

    def _stand_still(self, order: messages.Halt | messages.Restore) -> None:
        if isinstance(order, messages.Halt):
            if self.training is not None:  # else it only replayed, and has nothing to tell
                self._link.send(self.training.inventory(order.epoch))
        else:
            self._built.restore(order.version)

    def _gone(self, lost: str) -> messages.PeerGone:
        return messages.PeerGone(worker=str(self._spec.worker), epoch=self._epoch, lost=lost)

    @property
    def _built(self) -> StageTraining:
        if self.training is None:
            raise HoldfastError("told to train before a stage was assigned")
        return self.training

    def _say_hello(self, job: Job) -> None:
        self._host, port = self._transport.listen()
        memory = self._loader.device.memory()
        hello = messages.Hello(
            worker=str(self._spec.worker),
            pid=os.getpid(),
            fingerprint=fingerprint(self._loader.device, mixed=self._config.device.mixed),
            traits=self._loader.traits,
            num_layers=len(job.layers),
            layer_hashes=list(self._loader.hashes.values()),
            cut=list(job.cut or ()),
            host=self._host,
            port=port,
            device_index=self._loader.device.index,
            device_bytes=memory.total_bytes if memory else 0,
        )
        self._link.send(hello)

    def _build(self, assign: messages.Assign, job: Job | None) -> None:
        if self.training is not None:
            self.training.close()
            self.training = None
            self._transport.disconnect(())  # the others have left this worker out
        self._transport.expect_copies(True)
        self._log.close()  # of a replay
        if job is None:
            job = self._loader.load_again(assign)
        self.training = StageTraining(
            me=self._spec.worker,
            config=self._config,
            job=job,
            batches=self._loader.batches(job),
            transport=self._transport,
            assign=assign,
            keeping=self._keeping,
            places=self._places,
            tell=self._link.send,
            check=lambda: self._link.check(self._epoch),
            lease=self._lease,
            injector=self._faults.injector(assign.faults),
            ran=self._loader.settings.check,
            weights=self._loader.weights,
            device=self._loader.device,
        )
        self._log = self.training.log
        self._heartbeats.start(assign.beat_s, self._beat)
        self._link.send(messages.Ready(worker=str(self._spec.worker)))

    def _beat(self) -> messages.Heartbeat | None:
        if self._faults.is_silent():
            return None
        return heartbeat(self._spec.worker, self._epoch, self.training, self._lease.told())

    def tell_fault(self, fired: messages.Message) -> None:
        """A fault knows the step it acts in, but not which attempt at it this is."""
        if isinstance(fired, messages.FaultReport) and self.training is not None:
            fired = replace(fired, attempt=self.training.ledger.attempt_of(fired.step))
        self._link.send(fired)

    def _follow(self, order: messages.CopyState) -> None:
        self._enter(order.epoch)
        self._built.follow(parse_worker(order.source))

    def _replay(self, order: messages.Replay, job: Job | None) -> None:
        self._enter(order.epoch)
        self._connect(order.addresses)
        self._heartbeats.start(order.beat_s, self._beat)
        if job is None:
            job = self._loader.load()
        try:
            self._link.send(self._replayer(order, job).run())
        except (LogGap, CheckpointError, JobError) as why:
            self._link.send(replay_failed(self._spec.worker, order, why))

    def _replayer(self, order: messages.Replay, job: Job) -> Replayer:
        training = self.training
        if training is None:  # it has come for this replay
            self._log = self._open_log(order)
        return Replayer(
            order,
            me=self._spec.worker,
            places=self._places,
            config=self._config,
            job=job,
            batches=self._loader.batches(job),
            transport=self._transport,
            check=lambda: self._link.check(self._epoch),
            reach=lambda step, point: None if training is None else training.reach(step, point),
            log=self._log,
            own_host=self._host,
            may_write=lambda: self._lease.wait(lambda: self._link.check(self._epoch)),
            weights=self._loader.weights,
            device=self._loader.device,
        )

    def _open_log(self, order: messages.Replay) -> BoundaryLog:
        self._log.close()
        return open_log(
            order.log,
            self._places,
            worker=self._spec.worker,
            stage=order.stages[0],
            slots={},
            ties=(),
            every_steps=self._config.checkpoint.every_steps,
            tell=self._link.send,
        )

    def close(self) -> None:
        """Leave no thread behind, and no helper."""
        self._faults.lasting.stop_contending()
        if self.training is not None:
            self.training.close()
        self._log.close()
        self._log_orders.close()
        self._stacks.close()
        if self._link.is_over:
            self._places.leave()

    def abandon_log(self) -> None:
        """As a process that is killed: what is not on disk is gone."""
        self._log.close(0)

    def aside(self, message: messages.Message) -> None:
        """From the control thread."""
        match message:
            case messages.ShareState():  # the joiner is fed at the next committed step
                address = {message.to: Address(message.host, message.port)}
                joiner = parse_worker(message.to)
                self._built.sender.ask(joiner, lambda: self._connect(address))
            case messages.SaveAt() | messages.SaveOnce():
                self._change_saves(message)
            case messages.Offer() | messages.Adopt():
                self._change_lanes(message)
            case messages.Probe() | messages.SaveHere() | messages.GoOn():
                if self.training is not None:
                    self.training.between_steps(message)
            case messages.ClockAsk():
                self._link.send(clock_told(self._spec.worker, message))
            case messages.ShowStack():
                self._stacks.dump()
            case (
                messages.LogBoundaries()
                | messages.Sealed()
                | messages.TidyLogs()
                | messages.CopyLogs()
            ):
                self._log_orders.obey(message, self._log)
            case messages.Renewal():
                self._lease.renew(message)

    def _change_saves(self, order: messages.SaveAt | messages.SaveOnce) -> None:
        if self.training is None:
            return  # it comes with the first Proceed
        if isinstance(order, messages.SaveAt):
            self.training.saves.times.change(order.rules)
        else:
            self.training.saves.once(order)

    def _change_lanes(self, order: messages.Offer | messages.Adopt) -> None:
        lanes = self._built.lanes
        try:
            if isinstance(order, messages.Adopt):
                lanes.adopt(order.epoch, order.number, order.first_step)
                return
            step = lanes.offer(order.epoch, order.number, order.schedule)
        except EpochPast:
            return  # all were told to stop since
        self._link.send(
            messages.Offered(
                worker=str(self._spec.worker), epoch=order.epoch, number=order.number, step=step
            )
        )

    def _proceed(self, proceed: messages.Proceed) -> None:
        # Not before: a start that fails leaves nothing behind.
        self._stacks.open(self._places.own_dir)
        training = self._built
        members = {parse_worker(name) for name in proceed.stages}
        self._enter(proceed.epoch)
        self._transport.expect_copies(False)  # a member follows nobody
        self._transport.disconnect({*members, *training.sender.joiners})
        self._connect(proceed.addresses)
        try:
            training.run(proceed)
        except JobError as why:
            self._link.send(job_failed(self._spec.worker, self._epoch, why))
            return
        device = self._loader.device.memory()
        on_device = 0 if device is None else device.peak_bytes
        self._link.send(training.finished(_peak_memory_bytes(), on_device))

    def _enter(self, epoch: int) -> None:
        self._epoch = epoch
        self._transport.advance(epoch)

    def _connect(self, addresses: dict[str, Address]) -> None:
        self._transport.connect(
            {parse_worker(name): (at.host, at.port) for name, at in addresses.items()}
        )


def _peak_memory_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
