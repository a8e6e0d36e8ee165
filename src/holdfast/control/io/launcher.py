"""One run on this machine, from start to summary: port, workers, server, run directory.

Prints nothing, handles no signal, and can be run by any thread.
"""

import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.cluster import WorkerId
from holdfast.config import RunConfig
from holdfast.control.checks import NOTHING, Accepted, read_schedule
from holdfast.control.coordinator import Coordinator
from holdfast.control.effects import Emit
from holdfast.control.io.agents.agent_process import Starter
from holdfast.control.io.anywhere import from_anywhere, plain_path, with_plain_logs
from holdfast.control.io.entry.listening import listen, whereabouts
from holdfast.control.io.private_files import private_files
from holdfast.control.io.recorder import Pass, RunRecorder, check_run_dir, continues_in, unwritable
from holdfast.control.io.sealing import Seals
from holdfast.control.io.server import Server
from holdfast.control.io.succession.copies import EventCopies
from holdfast.control.io.succession.knocking import listen_again, write_address
from holdfast.control.io.succession.past import past_events, started, steps_finished
from holdfast.control.io.succession.run_journal import (
    Led,
    LeftBehind,
    RunFacts,
    RunJournal,
    claim,
)
from holdfast.control.io.supplies import Supplies
from holdfast.control.journal.base import Journal
from holdfast.control.journal.opening import open_journal
from holdfast.control.reconfigure.policies import Policies
from holdfast.control.state.settings import resume_call
from holdfast.control.takeover.remembering import Former
from holdfast.errors import Deposed, HoldfastError, JournalAway, RunInterrupted
from holdfast.faults.fault import Fault
from holdfast.files.file_service import FileService
from holdfast.host.descriptors import allow_connections
from holdfast.host.rare_collections import rare_collections
from holdfast.job_reference import JobSource
from holdfast.observability import events
from holdfast.observability.summary import Summary, summarize
from holdfast.planner.warm_up import warm_up_beside
from holdfast.protocol.messages import StartWorkers
from holdfast.schedule.schedule import Schedule
from holdfast.storage.contents import Checkpoint, Origin
from holdfast.storage.run_paths import check_logs, drop_logs
from holdfast.storage.run_shelf import RunShelf
from holdfast.storage.stores import store_of


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """What is asked of a launcher; all of it is known to be possible, but for the directory."""

    config: RunConfig
    policies: Policies
    job: JobSource
    run_dir: Path
    resume: Checkpoint | None = None
    faults: Sequence[Fault] = ()
    secret: bytes | None = None  # the user's own
    join_with: Callable[[Path, str], str] = lambda run_dir, certificate: ""
    """What those who join by hand have to say on their command line."""
    resume_with: Callable[[str], str] = resume_call  # a directory -> how to go on from there
    accepted: Accepted = NOTHING
    ticket: Path | None = None  # written for agents of other machines while the run is under way
    left_behind: LeftBehind | None = None  # take over from a coordinator that is gone
    led: Led | None = None  # its journal, if that was claimed already


class Launcher:
    """``handle`` is told of every event, ``warn`` of what else a user should know.

    Making one raises ConfigError for whatever can be seen before anything starts. Then ``run``.
    """

    def __init__(
        self,
        request: RunRequest,
        starter: Starter,
        *,
        handle: Callable[[events.Event], None],
        warn: Callable[[str], None],
        journal: Journal | None = None,
    ) -> None:
        """``journal``: instead of the one that the settings name."""
        if request.left_behind is None:
            check_run_dir(request.run_dir, request.resume)
            check_logs(request.run_dir, request.config)
        schedule = read_schedule(request.config)
        allow_connections(request.config.parallel.pipelines * request.config.parallel.stages)
        request = _absolute(request)
        self._config, self.run_dir = request.config, request.run_dir
        control, self._is_interrupted = self._config.control, False
        if request.led is not None:
            journal = request.led.journal
        journal = journal or open_journal(control.journal, self.run_dir, control.lease_s)
        packed_by = request.left_behind
        self._supplies = Supplies(self._config, request.job, request.ticket, warn, packed_by)
        bundle = self._supplies.bundle
        with self._supplies.kept_if_it_begins():
            pass_on = _pass(request, journal)
            self._journal = _run_journal(request, journal, bundle.sha256, pass_on.generation, warn)
            self._recorder = _recorder(request, pass_on, handle, warn, self._journal)
            former, listener = self._begin(request, pass_on, handle)
        at = whereabouts(self._config, listener)
        self._access = pass_on.access(at.host, at.port)
        join_with = request.join_with(self.run_dir, pass_on.certificate)
        self._coordinator = _coordinator(request, schedule, at.told, join_with, former)
        launch = _launch(request, pass_on)
        self._order = _order(request, self._coordinator.workers, bundle.sha256, launch)
        self._starter, self._told = starter, at.told
        self._files = _file_service(self._order, launch, self._recorder.kept)
        self._server = Server(
            listener,
            self._access,
            self._coordinator,
            self._recorder.perform,
            self._order,
            start_more=lambda more: starter.start(self._access, more),
            most_agents=self._supplies.most_agents,
            take_seals=self._recorder.take_seals,
            leads=self._recorder.leads,
            bundle=bundle,
            take_courier=self._files.take,
        )

    def _begin(
        self, request: RunRequest, pass_on: Pass, handle: Callable[[events.Event], None]
    ) -> tuple[Former | None, socket.socket]:
        """Where it listens; and what it takes over, if it does."""
        if request.left_behind is None:
            return None, listen(self._config, pass_on.key)
        snapshot = request.left_behind.snapshot
        listener = listen_again(self._config, snapshot.address, pass_on.key)
        past = past_events(self.run_dir)
        self._recorder.take_over(past)
        write_address(self.run_dir, self._config, listener)
        next_step = steps_finished(past) if past else snapshot.next_step
        if not past:
            self._recorder.perform(Emit(started(self._config, snapshot, next_step)))
        for event in past:
            if isinstance(event, events.RunStarted):
                handle(event)
        resume = request.resume
        sealed = resume.step if resume is not None and resume.is_in(self.run_dir) else None
        return Former(snapshot, next_step, sealed, time.monotonic()), listener

    def interrupt(self) -> None:
        """End the run after its step, with a checkpoint; the second time at once.

        By any thread, also in a signal handler, and before ``run``.
        """
        self._is_interrupted = True
        self._journal.hurry()
        self._server.interrupt()

    def spare_checkpoints(self, num_more: Callable[[], int]) -> None:
        """Besides those that the settings keep: so many of the newest."""
        self._recorder.spare(num_more)

    def run(self) -> Summary:
        """Train. Raises HoldfastError, after everything was stopped and the summary written."""
        warm_up_beside(wait=self._config.workers.kind == "threads")
        large = rare_collections(is_large=self._config.is_gathered)
        with large, private_files() as usual_mask:
            self._recorder.expect_mask(usual_mask)
            try:
                self._serve()
            except BaseException:
                self._recorder.abandon()
                raise
            finally:
                self._coordinator.close()
            summary = summarize(self._recorder.kept, config=self._config.to_dict())
            failure = self._failure()
            try:
                self._recorder.close(summary, self._coordinator.details)
            except OSError as why:  # what went wrong first is what the user must hear
                raise failure or unwritable(self.run_dir, why) from why
        if failure is not None:
            raise failure
        drop_logs(self.run_dir, self._config)  # the last checkpoint is all that a resume needs
        return summary

    def _serve(self) -> None:
        deposed: Deposed | None = None
        try:
            self._supplies.open(self._told, self._access)
            if self._order.workers:
                self._starter.start(self._access, self._order)
            self._server.run(self._config.workers.start_limit_s, self._starter.ended)
            deposed = self._server.deposed
        finally:
            self._server.close()
            if deposed is None:
                self._starter.stop()
            else:  # agents and ticket are its successor's
                self._starter.leave()
                self._supplies.leave()
            self._files.close()
            self._supplies.close()
        if deposed is not None:
            raise deposed

    def _failure(self) -> HoldfastError | None:
        failure = self._coordinator.failure
        is_asked_for = type(failure) in (HoldfastError, JournalAway)
        if failure is not None and self._is_interrupted and is_asked_for:
            return RunInterrupted(*failure.args)
        return failure


def _coordinator(
    request: RunRequest,
    schedule: Schedule | None,
    told: str,
    join_with: str,
    former: Former | None,
) -> Coordinator:
    return Coordinator(
        request.config,
        str(request.run_dir),
        request.resume,
        policies=request.policies,
        faults=request.faults,
        address=told,
        join_with=join_with,
        resume_with=request.resume_with,
        schedule=schedule,
        now=time.monotonic,
        run_id=former.snapshot.run_id if former else secrets.token_hex(8),
        accepted=request.accepted,
        num_cores=len(os.sched_getaffinity(0)),
        journalled=True,
        former=former,
    )


def _recorder(
    request: RunRequest,
    pass_on: Pass,
    handle: Callable[[events.Event], None],
    warn: Callable[[str], None],
    journal: RunJournal,
) -> RunRecorder:
    """ConfigError: checkpoints cannot be kept where they are to be kept."""
    config = request.config
    store = store_of(request.run_dir, config.checkpoint.dir)
    store.check(request.resume)
    seals = Seals(config.checkpoint.write_limit_s, at_once=store.seals_at_once)
    origin = Origin(from_anywhere(config), request.job.origin, request.job.sha256)
    return RunRecorder(
        config, store, seals, request.resume, origin, handle, warn, pass_on, journal=journal
    )


def _pass(request: RunRequest, journal: Journal) -> Pass:
    """A journal that others share says which generation this is, and that nobody else leads."""
    run_dir, is_taken_over = request.run_dir, request.left_behind is not None
    continues = is_taken_over or continues_in(run_dir, request.resume)
    pass_on = Pass.of(run_dir, request.secret, request.config.network, continues=continues)
    if not is_taken_over and not request.config.control.journal:
        return pass_on
    if request.led is not None:
        generation = request.led.generation
    else:
        generation = claim(journal, above=pass_on.generation - 1)
    launch = request.left_behind.facts.launch if request.left_behind else 0
    return replace(pass_on, generation=generation, launch=launch)


def _run_journal(
    request: RunRequest,
    journal: Journal,
    bundle: str,
    generation: int,
    warn: Callable[[str], None],
) -> RunJournal:
    config, job = request.config, request.job
    left, waits = request.left_behind, bool(config.control.journal)
    facts = RunFacts(
        left.facts.launch if left else generation,
        from_anywhere(config),
        job.reference,
        job.sha256,
        job.origin,
        [str(fault) for fault in request.faults],
        bundle,
    )
    kept = RunJournal(journal, facts, warn, waits=waits)
    if left is not None or waits:
        kept.leads_already()
    return kept


def _launch(request: RunRequest, pass_on: Pass) -> int:
    return request.left_behind.facts.launch if request.left_behind else pass_on.generation


def _order(
    request: RunRequest, workers: Sequence[WorkerId], bundle: str, launch: int
) -> StartWorkers:
    """To be started with the run; those of one that is taken over are there."""
    return StartWorkers(
        workers=[] if request.left_behind else [str(worker) for worker in workers],
        launch=launch,
        job=request.job.reference,
        job_sha256=request.job.sha256,
        run_dir=str(request.run_dir),
        resumed="" if request.resume is None else request.resume.directory,
        config=request.config,
        bundle=bundle,
    )


def _file_service(
    order: StartWorkers, generation: int, kept: Sequence[events.Event]
) -> FileService:
    """For workers that do not see the run directory, and for who stands by."""
    shelf = RunShelf(Path(order.run_dir), order.resumed)
    return FileService(EventCopies(kept, shelf.answer).answer, generation)


def _absolute(request: RunRequest) -> RunRequest:
    """Whoever is told of a path may have another working directory."""
    run_dir, resume = request.run_dir, request.resume
    if resume is not None and not resume.address:
        resume = replace(resume, directory=plain_path(resume.directory))
    if ".." in run_dir.parts:  # a link before it leads elsewhere than the words say
        run_dir = run_dir.resolve()
    config = with_plain_logs(request.config)
    return replace(request, config=config, run_dir=Path(plain_path(run_dir)), resume=resume)
