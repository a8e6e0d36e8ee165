"""A worker's stage in training: built from an assignment, then run epoch after epoch.

Wires the parts together, reports, tells what it has. What to run comes with each ``Proceed``.
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from holdfast.batches import Batches
from holdfast.cluster import WorkerId, parse_worker
from holdfast.config import RunConfig
from holdfast.job import Job
from holdfast.protocol import messages, records
from holdfast.protocol.half_done import from_record
from holdfast.recovery.places import Places
from holdfast.runtime.activity import Activity
from holdfast.runtime.boundary_log import open_log
from holdfast.runtime.built import Builder
from holdfast.runtime.commit import Committed
from holdfast.runtime.copying import HEADER, Giver, receive_state
from holdfast.runtime.emulation import EmulatedDevice
from holdfast.runtime.epoch import Epoch
from holdfast.runtime.executor import Executor, Lane, StepRecord, Work
from holdfast.runtime.hidden_state import HiddenState
from holdfast.runtime.injection import Injector
from holdfast.runtime.lanes import Lanes
from holdfast.runtime.ledger import Ledger
from holdfast.runtime.memory_commit import MemoryCommits
from holdfast.runtime.probing import Prober
from holdfast.runtime.results import Arrivals, BegunAnew, receive_result
from holdfast.runtime.saving import SaveTimes, StageSaver, Written
from holdfast.runtime.stage import Stage
from holdfast.runtime.stage_state import OPTIMIZER
from holdfast.runtime.state import hashes_by_layer, layer_digest
from holdfast.runtime.transfer_times import summed_up
from holdfast.runtime.two_phase import TwoPhaseSaver
from holdfast.runtime.verdict import Verdict, VerdictExchange
from holdfast.schedule.running import RunningStep
from holdfast.transport.base import Channel, Tag, Transport

_NOWHERE = -2  # far behind every stage
_FLUSH_LIMIT_S = 10.0
_LOOK_S = 0.05


class StageTraining:
    def __init__(
        self,
        *,
        me: WorkerId,
        config: RunConfig,
        job: Job,
        batches: Batches,
        transport: Transport,
        assign: messages.Assign,
        places: Places,
        tell: Callable[[messages.Message], None],
        check: Callable[[], None],
        injector: Injector,
        ran: Callable[[str], None] = lambda who: None,
    ) -> None:
        """``check`` raises when this worker is to stop at the next operation boundary, ``ran`` if
        the code of the job that has just run did what it may not."""
        self._ran = ran
        self._me, self._config, self._transport, self._tell = me, config, transport, tell
        self._number, self._wait_s, self._injector = assign.stage, assign.wait_s, injector
        self._check = check
        self._clip_norm = job.clip_norm
        builder = Builder(job, config, assign.cut, ran)
        self.ledger, self.activity = Ledger(), Activity()
        self.lanes = Lanes(check)
        saver = TwoPhaseSaver if config.recovery.mode == "checkfreq" else StageSaver
        self._saver = saver(Path(places.run_dir), assign.part, self._wait_s, self._part_failed)
        self.save_times = SaveTimes(config.save_every, config.first_save)
        self._writers: dict[int, dict[int, str]] = {}  # of versions that are saved once more
        self._ended_at: int | None = None  # all steps are done, and nothing is begun since
        self._built = built = builder.build(
            [assign.stage],
            first_step=assign.first_step,
            keeps_old=bool(assign.cut),
            before_update=self._saver.before_update,
            reach=self._reach,
            due=injector.due,
        )
        self._layers, self._state, self._commit = built.layers, built.state, built.commit
        self._parts, self._commit.activity = built.parts, self.activity
        self._hidden = HiddenState(job, built.layers, built.optimizer.plain)
        self.giver = Giver(transport, built.parts.form)
        self._device = EmulatedDevice(config.device.durations_s())
        self.prober = Prober(me, transport, self._device, injector.slowdown, tell)
        self._tells_operations = config.observe.operations or config.mitigation.mode != "off"
        self.log = open_log(
            assign.log,
            places,
            worker=me,
            stage=assign.stage,
            slots=built.parts.slots,
            ties=built.parts.ties,
            every_steps=config.checkpoint.every_steps,
            tell=tell,
        )
        self._arrivals: Arrivals | None = None
        self._has_state, self._copied_bytes = False, 0
        self._is_fresh = False  # a joiner that has not followed a step by itself yet
        if assign.checkpoint:
            self._state.load_checkpoint(places.state(assign.checkpoint))
        every = config.recovery.commit_every if config.recovery.mode == "commit" else 0
        self._commits = MemoryCommits(self._state, every, assign.first_step)
        again = builder.stage_of(self._layers)
        self._executor = Executor(self._lane(again, batches, check))

    def _lane(self, again: Stage, batches: Batches, check: Callable[[], None]) -> Lane:
        config = self._config
        return Lane(
            me=self._me,
            number=self._number,
            stage=self._built.stage,
            again=again,
            batches=batches,
            transport=self._transport,
            commit=self._commit,
            ledger=self.ledger,
            log=self.log,
            sums=self._parts.sums,
            injector=self._injector,
            reduce=self._reduce,
            begin_step=self._begin_step,
            on_commit=self._on_commit,
            on_first=self._on_first,
            check=check,
            device=self._device,
            staggered=config.optimizer.mode == "staggered",
            activity=self.activity,
            ran=self._ran,
        )

    # --- as a member ---

    def run(self, proceed: messages.Proceed) -> None:
        """Until the last step is settled and saved. EpochPast and PeerLost break it off."""
        running = [from_record(one) for one in proceed.running]
        self._ended_at = None
        epoch = self._enter(proceed)
        for routes in running:
            epoch.serve(routes, self._commit.result)
        self._injector.reach(self._commit.reduced, "proceed", self.ledger.num_done)
        work = Work(
            running,
            partial(self.lanes.of, timeout_s=self._wait_s),
            proceed.first_step,
            proceed.end_step,
            self._wait_s,
        )
        self._executor.run(work)
        self._save_at_end(proceed.end_step)

    def _enter(self, proceed: messages.Proceed) -> Epoch:
        stages = {parse_worker(name): stage for name, stage in proceed.stages.items()}
        self.giver.forget([joiner for joiner in self.giver.joiners if joiner in stages])
        self._epoch_number, self._end_step = proceed.epoch, proceed.end_step
        self._arrivals = None  # it follows nobody any more
        self.prober.forget()
        self.lanes.start(proceed.epoch, proceed.schedule, proceed.first_step)
        self.ledger.new_plan()
        self._epoch = Epoch(
            self._me, self._number, stages, self._transport, self._parts, self._wait_s
        )
        known = {step: Verdict(*told) for step, told in proceed.verdicts.items()}
        self._commit.verdicts = {**known, **self._commit.verdicts}
        exchange = VerdictExchange(
            self._me,
            self._number,
            self._epoch.holders,
            self._transport,
            self._clip_norm,
            known,
        )
        self._commit.enter(exchange, self._transport, self._wait_s)
        self._saver.others = proceed.saved.get(self._number, 0)
        self.save_times.change(proceed.saves)
        return self._epoch

    def tell(self, epoch: int) -> messages.Tell:
        """All that planning needs to know of this worker."""
        commit, ledger = self._commit, self.ledger
        self._injector.reach(commit.reduced, "halt", ledger.num_done)
        self.log.flush(_FLUSH_LIMIT_S)  # whoever has to replay will read it
        is_begun = ledger.step == commit.reduced
        return messages.Tell(
            worker=str(self._me),
            epoch=epoch,
            reduced=_NOWHERE if self._is_fresh else commit.reduced,
            oldest=commit.oldest,
            attempt=ledger.attempt if is_begun else 0,
            progress={m: int(p) for m, p in ledger.progress.items()} if is_begun else {},
            kept=[
                records.Kept(step, sorted(kept.activations), sorted(kept.gradients))
                for step, kept in sorted(ledger.kept.items())
            ],
            verdicts={
                step: records.Verdict(told.norm, told.scale, told.skip)
                for step, told in commit.verdicts.items()
            },
            kept_bytes=ledger.peak_bytes,
            done=ledger.num_done if is_begun else 0,
            saving=self._saver.newest,
            commits=self._commits.versions,
        )

    def restore(self, version: int) -> None:
        """Back to a copy in memory."""
        self._commits.restore(version)
        self._commit.restart(version)
        self.ledger.clear()

    def finished(self, peak_memory_bytes: int) -> messages.Finished:
        return messages.Finished(
            worker=str(self._me),
            digests={str(number): layer_digest(layer) for number, layer in self._layers.items()},
            peak_memory_bytes=peak_memory_bytes,
            kept_bytes=self.ledger.peak_bytes,
            log_bytes=self.log.num_bytes,
            old_bytes=self._commit.peak_kept_bytes,
        )

    def close(self) -> None:
        """Another stage takes its place."""
        self.giver.forget(self.giver.joiners)
        self.log.close()

    # --- as a joiner ---

    def follow(self, source: WorkerId) -> None:
        """Take the state from ``source`` and keep up with it. Only EpochPast or a loss ends it."""
        if self._arrivals is None or self._arrivals.source != source:
            self._transport.drop_copies(keep=source)
            self._arrivals = Arrivals(self._transport, source, HEADER)
            self._has_state = False
        while True:
            try:
                self._keep_up_with(self._arrivals)
            except BegunAnew:  # a connection broke: updates may be missing
                self._arrivals.use_up()
                self._has_state = False

    def _keep_up_with(self, arrivals: Arrivals) -> None:
        if not self._has_state:
            self._is_fresh = True
            state = receive_state(
                arrivals, self._wait_s, lambda version: self._injector.reach(version, "copy")
            )
            self._state.load(state.tensors, f"the state of worker {arrivals.source}")
            self._commit.restart(state.version)
            self._commits.restart(state.version)
            self._has_state, self._copied_bytes = True, state.num_bytes
        while True:
            tag = Tag(Channel.UPDATE, self._commit.reduced)
            result, verdict = receive_result(arrivals, tag, self._parts.form, self._wait_s)
            assert verdict is not None, "an update is sent when it is settled"
            self._state.begin_step()
            self._state.choose_exponents(result.reduced.maxima)
            self._commit.follow(result, verdict)
            self._commits.settled(self._commit.reduced)
            self._is_fresh = False
            copied = messages.Copied(
                worker=str(self._me),
                source=str(arrivals.source),
                version=self._commit.reduced,
                num_bytes=self._copied_bytes,
            )
            self._tell(copied)

    # --- called by the executor ---

    def reach(self, step: int, point: str) -> None:
        """A point at which a fault may be injected, outside of any operation."""
        self._injector.reach(step, point)

    def _reach(self, step: int, point: str) -> None:
        self._injector.reach(step, point, self.ledger.done_of(step))

    def _begin_step(self, step: int, attempt: int) -> None:
        self.ledger.begin(step, attempt)
        self._state.begin_step()
        self._parts.sums.clear()
        self._injector.enter(step)  # a benchmark is as slow as the step
        self.prober.begin_step(step)

    def _reduce(self, routes: RunningStep, step: int, attempt: int) -> None:
        self._reach(step, "reduce")
        result = self._epoch.reduce(
            routes, step, attempt, on_sent=lambda: self._reach(step, "partials")
        )
        self._state.choose_exponents(result.reduced.maxima)
        self._commit.accept(result)
        self.log.reduced(result)
        self._reach(step, "reduced")
        self._commit.tell()
        self._reach(step, "told")

    def _on_first(self) -> None:
        resumed = messages.Resumed(
            worker=str(self._me), epoch=self._epoch_number, at_s=time.monotonic()
        )
        self._tell(resumed)

    def _on_commit(self, committed: Committed, record: StepRecord) -> None:
        verdict, totals = committed.verdict, committed.result.totals
        self._ran("the optimizer or its LR schedule")
        report = messages.StepReport(
            worker=str(self._me),
            step=committed.step,
            losses=[records.MicrobatchLoss(*one) for one in sorted(totals.losses.items())],
            num_tokens=totals.num_tokens,
            norm=verdict.norm,
            clipped=verdict.scale is not None,
            skipped=verdict.skip,
            taken_back=committed.taken_back,
            nonfinite=committed.result.reduced.nonfinite,
            operations=record.operations if self._tells_operations else [],
            transfers=summed_up(self._transport.take_transfers()),
        )
        self._tell(report)
        self._look_for_hidden_state()
        self.giver.send_update(committed)
        if self.giver.is_asked:
            self.giver.send_state(committed.step + 1, self._state.tensors())
        self._commits.settled(committed.step + 1)
        self._save_if_due(committed.step + 1)

    def _look_for_hidden_state(self) -> None:
        lines = self._hidden.look()
        if self._epoch.is_first_holder:
            for line in lines:
                self._tell(messages.Warned(worker=str(self._me), reason=line))

    # --- checkpoints ---

    def save_once(self, order: messages.SaveOnce) -> None:
        """From the control thread. At the end of a run nobody changes the state any more."""
        self._writers = {**self._writers, order.step: order.writers}
        self.save_times.once(order.step)
        if self._ended_at == order.step and self._is_writer(order.step):
            self._save(order.step, is_last=True)

    def _save_if_due(self, version: int) -> None:
        if self.save_times.is_due(version) and version < self._end_step:
            self._save(version)

    @property
    def is_saving(self) -> bool:
        return self._saver.is_busy

    def _save_at_end(self, version: int) -> None:
        """The last version, also of a run that ends early: then it is to be resumed."""
        self._wait_for_saver()
        cut_short = version < self._config.train.steps
        is_wanted = self._config.checkpoint.at_end or cut_short
        if is_wanted or self.save_times.is_due(version):
            self._save(version, is_last=is_wanted)
        if not self._wait_for_saver():
            self._saver.give_up(version)
        self._ended_at = version

    def _wait_for_saver(self) -> bool:
        """Far longer than on the way: nothing is left to do, and what is not written is lost."""
        until_s = time.monotonic() + self._config.checkpoint.write_limit_s
        while not self._saver.wait(_LOOK_S):
            self._check()
            if time.monotonic() > until_s:
                return False
        return True

    def _is_writer(self, version: int) -> bool:
        chosen = self._writers.get(version, {}).get(self._number)
        return self._epoch.is_first_holder if chosen is None else chosen == str(self._me)

    def _save(self, version: int, *, is_last: bool = False) -> None:
        """One holder of a stage writes it for all; the others say what they have."""
        if not self._is_writer(version) or self._saver.has(version):
            self._tell_hashes(version)
            return

        def done(written: Written) -> None:
            part = messages.CheckpointPart(
                worker=str(self._me),
                step=version,
                directory=written.directory,
                layers=list(self._layers),
                digests=written.digests,
                sizes=written.sizes,
                hashes=written.hashes,
                state={OPTIMIZER: self._built.optimizer.kind},
                took_s=written.took_s,
                copy_s=written.copy_s,
            )
            self._tell(part)

        if isinstance(self._saver, TwoPhaseSaver):
            self._saver.write_live(version, self._state.live_tensors(), done, is_last=is_last)
        else:
            self._saver.write(version, self._state.tensors(), done, is_last=is_last)
        self._reach(version - 1, "save")

    def _tell_hashes(self, version: int) -> None:
        """Taken at once: a copy for later would take longer, and memory."""
        hashes = hashes_by_layer(self._state.live_tensors())
        self._tell(messages.StateHashes(worker=str(self._me), step=version, hashes=hashes))

    def _part_failed(self, version: int, reason: str) -> None:
        self._tell(messages.PartFailed(worker=str(self._me), step=version, reason=reason))
