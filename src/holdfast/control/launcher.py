"""One run on this machine, from start to summary: port, workers, server, run directory."""

import os
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from holdfast.config import RunConfig
from holdfast.control.checks import NOTHING, Accepted, read_schedule
from holdfast.control.coordinator import Coordinator
from holdfast.control.effects import (
    ClearLogs,
    Discard,
    Effect,
    Emit,
    OpenRun,
    ReportStuck,
    SealCheckpoint,
    SealFailed,
    TrimLogs,
)
from holdfast.control.server import Server, listen
from holdfast.errors import CheckpointError, ConfigError, ProtocolError
from holdfast.faults.fault import Fault
from holdfast.observability import events
from holdfast.observability.event_files import Rotation
from holdfast.observability.stacks import read_stack, stack_file, user_frame
from holdfast.observability.summary import SUMMARY_FILE, Summary, summarize, write_summary
from holdfast.observability.view import View
from holdfast.planner.service import warm_up
from holdfast.protocol.messages import StartWorkers
from holdfast.protocol.secret import (
    FD_VARIABLE,
    hand_over,
    kept_secret,
    last_generation,
    new_secret,
    write_generation,
    write_secret,
)
from holdfast.protocol.signals import held_back, passed_to
from holdfast.protocol.spec import Access, worker_environment
from holdfast.recovery.manifest import (
    Checkpoint,
    Origin,
    clear_abandoned,
    clear_leftovers,
    file_digest,
    has_checkpoint,
    seal,
    set_aside_after,
    trim,
)
from holdfast.recovery.places import check_logs, claim_logs, clear_logs, drop_logs, trim_logs
from holdfast.scarce import patiently

_AGENT_END_LIMIT_S = 1.5  # above its grace for the workers


class Starter(Protocol):
    """Brings up whatever runs the workers, as processes or as threads."""

    def start(self, access: Access, order: StartWorkers) -> None:
        """Called again for workers that come later, unless an agent has been started."""
        ...

    def ended(self) -> str | None:
        """Why nobody will say hello any more; None: all is well."""
        ...

    def stop(self) -> None:
        """Leave nothing behind, whatever state the workers are in."""
        ...


class AgentProcess:
    """The usual starter: an agent process that forks the workers."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, access: Access, order: StartWorkers) -> None:
        descriptor = hand_over(access.secret)
        words = ["agent", "--connect", str(access), "--generation", str(access.generation)]
        # Strangers may crowd the door for longer than a moment.
        words += ["--limit", str(self._config.workers.start_limit_s)]
        with held_back():
            self._process = subprocess.Popen(
                [sys.executable, "-m", "holdfast", *words],
                env=worker_environment(self._config) | {FD_VARIABLE: str(descriptor)},
                stdin=subprocess.DEVNULL,
                pass_fds=[descriptor],
                # What ends this process group must not end the job's own processes before they
                # have saved; theirs is the agent's.
                start_new_session=True,
            )
        os.close(descriptor)

    def ended(self) -> str | None:
        code = None if self._process is None else self._process.poll()
        return None if code is None else f"the agent that starts workers ended with code {code}"

    def stop(self) -> None:
        if self._process is None:
            return
        try:
            self._process.wait(_AGENT_END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()  # its workers end with it (parent-death signal)
            self._process.wait()


@dataclass(frozen=True)
class Pass:
    """What a run and its workers prove to each other that they belong together with."""

    secret: bytes = field(repr=False)
    generation: int  # which launch of the run in its directory
    given: bool  # the user has it already, and says where

    @classmethod
    def of(cls, run_dir: Path, given: bytes | None, *, continues: bool) -> "Pass":
        """A run that goes on in its directory keeps its secret."""
        before = last_generation(run_dir) if continues else 0
        kept = kept_secret(run_dir) if continues and given is None else None
        return cls(given or kept or new_secret(), before + 1, given is not None)

    def write(self, run_dir: Path) -> None:
        write_generation(run_dir, self.generation)
        if not self.given:
            write_secret(run_dir, self.secret)


@dataclass
class _Recorder:
    """Carries out what the coordinator wants done besides messages."""

    config: RunConfig
    run_dir: Path
    resume: Checkpoint | None
    origin: Origin
    view: View
    pass_on: Pass
    usual_mask: int = 0o022
    kept: list[events.Event] = field(default_factory=list)
    sink: events.JsonLines | None = None

    def perform(self, effect: Effect) -> None:
        match effect:
            case Emit():
                self._emit(effect.event)
            case OpenRun():
                self.origin = replace(
                    self.origin, traits=effect.traits, fingerprint=effect.fingerprint
                )
                self._open()
            case SealCheckpoint():
                self._seal(effect)
            case ReportStuck():
                self._report_stuck(effect)
            case Discard():
                shutil.rmtree(effect.directory, ignore_errors=True)
            case TrimLogs():
                trim_logs(self.run_dir, self.config, effect.workers, effect.run, effect.step)
            case ClearLogs():
                clear_logs(self.run_dir, self.config)
            case _:
                raise AssertionError(f"{effect} is for the server")

    def close(self, summary: Summary, details: str) -> None:
        if self.sink is None:
            return
        self.sink.close()
        patiently(lambda: write_summary(self.run_dir / SUMMARY_FILE, summary))
        if details:
            (self.run_dir / "error.txt").write_text(details)
        if self.sink.num_dropped:
            sys.stderr.write(f"holdfast: {self.sink.num_dropped} events could not be written\n")

    def _emit(self, event: events.Event) -> None:
        if self.sink is not None:
            self.sink.emit(event)
        if not isinstance(event, events.WorkerStep):  # the bulk of them: only on disk
            self.kept.append(event)
        self.view.handle(event)

    def _report_stuck(self, effect: ReportStuck) -> None:
        path = stack_file(self.run_dir, effect.event.worker, effect.pid)
        stack = read_stack(path)
        where, written = user_frame(stack), str(path) if stack else ""
        self._emit(replace(effect.event, where=where, stack=stack, path=written))

    def _open(self) -> None:
        try:
            make_private(self.run_dir, self.usual_mask)
            self.sink = self._only_writer()
            self.pass_on.write(self.run_dir)
            clear_leftovers(self.run_dir)
            claim_logs(self.run_dir, self.config)
            if self.resume is not None and same_place(self.resume.run_dir, self.run_dir):
                set_aside_after(self.run_dir, self.resume.step)
        except OSError as why:
            raise unwritable(self.run_dir, why) from why
        for event in self.kept:
            self.sink.emit(event)

    def _only_writer(self) -> events.JsonLines:
        """The events file, locked as long as this process lives: two runs would mix in it."""
        rotation = Rotation(self.run_dir, self.config.observe.events_limit_bytes())
        try:
            return events.JsonLines(rotation.open(), rotation)
        except BlockingIOError as why:
            raise ConfigError(
                f"--run-dir {self.run_dir}: another run is writing there; choose another directory"
            ) from why

    def _seal(self, effect: SealCheckpoint) -> None:
        try:
            path = seal(
                self.run_dir,
                effect.step,
                effect.parts,
                seed=self.config.train.seed,
                microbatches=self.config.parallel.microbatches,
                origin=self.origin,
            )
            trim(self.run_dir, self.config.checkpoint.keep + effect.keeps_more)
            clear_abandoned(self.run_dir, effect.step)
        except (OSError, CheckpointError, ProtocolError) as why:
            reason = why.strerror if isinstance(why, OSError) and why.strerror else str(why)
            raise SealFailed(effect, reason) from why
        saved = events.CheckpointSaved(
            at_s=time.monotonic(), step=effect.step, path=str(path), took_s=effect.took_s
        )
        self._emit(saved)


def launch(
    config: RunConfig,
    job: Path,
    run_dir: Path,
    *,
    resume: Checkpoint | None,
    starter: Starter,
    view: View,
    faults: Sequence[Fault] = (),
    secret: bytes | None = None,
    join_with: str = "",
    accepted: Accepted = NOTHING,
) -> Summary:
    """Train. Raises HoldfastError, after everything was stopped and the summary written.

    ``secret``: the user's own; ``join_with``: how those who join are to be told of it.
    """
    check_run_dir(run_dir, resume)
    check_logs(run_dir, config)
    schedule = read_schedule(config)
    # Whoever is told of a path may have another working directory.
    config, run_dir, resume = _absolute(config, run_dir, resume)
    continues = resume is not None and same_place(resume.run_dir, run_dir)
    pass_on = Pass.of(run_dir, secret, continues=continues)
    listener = listen(config)
    host, port = listener.getsockname()
    access = Access(host, port, pass_on.secret, pass_on.generation)
    coordinator = Coordinator(
        config,
        str(run_dir),
        resume,
        faults=faults,
        address=str(access),
        join_with=join_with or f"--run-dir {shlex.quote(str(run_dir))}",
        schedule=schedule,
        now=time.monotonic,
        run_id=secrets.token_hex(8),
        accepted=accepted,
    )
    job_sha256 = file_digest(job)
    origin = Origin(_from_anywhere(config), str(job.resolve()), job_sha256)
    recorder = _Recorder(config, run_dir, resume, origin, view, pass_on)
    order = StartWorkers(
        workers=[str(worker) for worker in coordinator.workers],
        job=_plain(job.resolve()),
        job_sha256=job_sha256,
        run_dir=str(run_dir),
        resumed="" if resume is None else resume.directory,
        config=config,
    )
    server = Server(
        listener,
        access,
        coordinator,
        recorder.perform,
        order,
        start_more=lambda more: starter.start(access, more),
        has_agent=config.workers.kind == "processes",
    )
    warm_up_planner()
    with _private_files() as recorder.usual_mask:
        try:
            _serve(server, lambda: starter.start(access, order), starter, config)
        finally:
            coordinator.close()
        summary = summarize(recorder.kept, config=config.to_dict())
        try:
            recorder.close(summary, coordinator.details)
        except OSError as why:  # what went wrong first is what the user must hear
            raise coordinator.failure or unwritable(run_dir, why) from why
    if coordinator.failure is not None:
        raise coordinator.failure
    drop_logs(run_dir, config)  # the last checkpoint is all that a resume needs
    return summary


def _absolute(
    config: RunConfig, run_dir: Path, resume: Checkpoint | None
) -> tuple[RunConfig, Path, Checkpoint | None]:
    places: dict[str, Any] = {
        name: _plain(place)
        for name in ("log_dir", "log_mirror")
        if (place := getattr(config.recovery, name))
    }
    config = replace(config, recovery=replace(config.recovery, **places))
    if resume is not None:
        resume = replace(resume, directory=_plain(resume.directory))
    if ".." in run_dir.parts:  # a link before it leads elsewhere than the words say
        run_dir = run_dir.resolve()
    return config, Path(_plain(run_dir)), resume


def _plain(place: str | Path) -> str:
    """Absolute, in the one form that workers take: to POSIX '//a' and '/a' are two."""
    return "/" + os.path.abspath(place).lstrip("/")


@contextmanager
def _private_files() -> Iterator[int]:
    """Whatever is written meanwhile is for this user only: parameters, logs, samples in errors."""
    before = os.umask(0o077)
    try:
        yield before
    finally:
        os.umask(before)


def make_private(run_dir: Path, usual_mask: int) -> None:
    """The directories above it are the user's, and as they would be without us."""
    if not run_dir.parent.exists():
        mask = os.umask(usual_mask)
        try:
            run_dir.parent.mkdir(parents=True, exist_ok=True)
        finally:
            os.umask(mask)
    run_dir.mkdir(mode=0o700, exist_ok=True)
    run_dir.chmod(0o700)  # it may have been there before


def _from_anywhere(config: RunConfig) -> dict[str, Any]:
    """Settings for whoever resumes the run, perhaps from another directory."""
    values = config.to_dict()
    if config.schedule.file:
        values["schedule"]["file"] = os.path.abspath(config.schedule.file)
    return values


def _serve(server: Server, start: Callable[[], None], starter: Starter, config: RunConfig) -> None:
    with passed_to(server.interrupt):  # it ends in good order instead of being torn down half-way
        try:
            start()
            server.run(config.workers.start_limit_s, starter.ended)
        finally:
            server.close()
            starter.stop()


@cache
def warm_up_planner() -> None:
    """Once a process, beside the start of the workers: the first loss must not wait for it."""
    with suppress(RuntimeError):  # no thread to be had: then the first loss waits for it
        threading.Thread(target=warm_up, name="planner warm-up", daemon=True).start()


def check_run_dir(run_dir: Path, resume: Checkpoint | None) -> None:
    """Find out now, not after minutes of training; leaves nothing behind."""
    continues = resume is not None and same_place(resume.run_dir, run_dir)
    if not continues and (run_dir / events.EVENTS_FILE).exists():
        cure = f", or go on with it by --resume {run_dir}" if has_checkpoint(run_dir) else ""
        raise ConfigError(
            f"--run-dir {run_dir}: already holds a run; choose another directory{cure}"
        )
    existing = run_dir
    while not existing.exists():
        existing = existing.parent
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".holdfast-", dir=existing))
    except OSError as why:
        raise unwritable(run_dir, why) from why


def same_place(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()


def unwritable(run_dir: Path, why: OSError) -> ConfigError:
    return ConfigError(
        f"--run-dir {run_dir}: cannot be written ({why.strerror}); choose a directory you own"
    )
