"""What a run leaves on disk: events, checkpoints, secret, summary. Decides nothing."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from holdfast.auth.certificate import TlsKey, kept_key, new_key, write_key
from holdfast.auth.secret import (
    kept_secret,
    last_generation,
    new_secret,
    write_generation,
    write_secret,
)
from holdfast.config import NetworkConfig, RunConfig
from holdfast.control.effects import (
    CheckLead,
    ClearLogs,
    Discard,
    Effect,
    Emit,
    OpenRun,
    PointToBest,
    ReportStuck,
    SealCheckpoint,
    SealFailed,
    SealResult,
    TrimLogs,
    WriteDown,
)
from holdfast.control.io.private_files import make_private
from holdfast.control.io.sealing import SealDone, Seals
from holdfast.control.io.succession.run_journal import RunJournal
from holdfast.control.journal.opening import note_journal
from holdfast.errors import Argument, CheckpointError, ConfigError, ProtocolError, ResumeFrom
from holdfast.host.scarce import patiently
from holdfast.observability import events, log
from holdfast.observability.stacks import read_stack, stack_file, user_frame
from holdfast.observability.summary import SUMMARY_FILE, Summary, write_summary
from holdfast.protocol.spec import Access
from holdfast.storage.best import forget_best_after, write_best
from holdfast.storage.contents import Checkpoint, Origin
from holdfast.storage.home import Home
from holdfast.storage.run_paths import claim_logs, clear_logs, trim_logs
from holdfast.storage.store import Store
from holdfast.storage.stores import has_checkpoint, note_address


@dataclass(frozen=True)
class Pass:
    """What a run and its workers prove to each other that they belong together with."""

    secret: bytes = field(repr=False)
    generation: int  # which launch of the run in its directory
    given: bool  # the user has it already, and says where
    key: TlsKey | None = None  # of TLS; None: the run is without
    launch: int = 0  # whose workers there are, if this one takes over from it

    @classmethod
    def of(
        cls, run_dir: Path, given: bytes | None, network: NetworkConfig, *, continues: bool
    ) -> "Pass":
        """A run that goes on in its directory keeps its secret.

        A key that lies in the directory is the run's: of an earlier launch, or put there by
        somebody who has told its fingerprint to others already.
        """
        before = last_generation(run_dir) if continues else 0
        kept = kept_secret(run_dir) if continues and given is None else None
        key = None
        if network.encrypts_control:
            key = kept_key(run_dir) or new_key(_wanted_by(network))
        return cls(given or kept or new_secret(), before + 1, given is not None, key)

    @property
    def certificate(self) -> str:
        """Its fingerprint; empty: there is none."""
        return "" if self.key is None else self.key.fingerprint

    def access(self, host: str, port: int) -> Access:
        """For the processes of the run."""
        return Access(host, port, self.secret, self.generation, self.certificate)

    def write(self, run_dir: Path) -> None:
        write_generation(run_dir, self.generation)
        Home.of(str(run_dir), self.secret, self.launch or self.generation).leave_mark()
        if not self.given:
            write_secret(run_dir, self.secret)
        if self.key is not None:
            write_key(run_dir, self.key)


def _wanted_by(network: NetworkConfig) -> str:
    if network.tls == "on":
        return "network.tls=on"
    return f"network.listen={network.listen} without network.tls=off"


@dataclass
class RunRecorder:
    """Carries out what the coordinator wants done besides messages."""

    config: RunConfig
    store: Store
    seals: Seals
    resume: Checkpoint | None
    origin: Origin
    handle: Callable[[events.Event], None]  # is told of every event; must not raise
    warn: Callable[[str], None]
    pass_on: Pass
    usual_mask: int = 0o022
    kept: list[events.Event] = field(default_factory=list)
    sink: log.EventWriter | None = None
    journal: RunJournal | None = None
    spares: Callable[[], int] = lambda: 0

    @property
    def run_dir(self) -> Path:
        return self.store.run_dir

    def spare(self, num_more: Callable[[], int]) -> None:
        """So many checkpoints besides those that the settings keep."""
        self.spares = num_more

    def expect_mask(self, usual: int) -> None:
        """The user's own, for what is made above the run directory."""
        self.usual_mask = usual

    def perform(self, effect: Effect) -> None:
        """Deposed: another coordinator leads."""
        self._ask_journal(effect)
        match effect:
            case Emit():
                self._emit(effect.event)
            case OpenRun():
                self.origin = replace(
                    self.origin, traits=effect.traits, fingerprint=effect.fingerprint
                )
                self._open()
            case WriteDown() | CheckLead():
                pass
            case SealCheckpoint():
                self.seals.begin(effect, self._seal)
            case PointToBest():
                self._point_to_best(effect)
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

    def _ask_journal(self, effect: Effect) -> None:
        if self.journal is None:
            return
        match effect:
            case WriteDown():
                self.journal.write(effect.record)
            case CheckLead():
                self.journal.check()
            case SealCheckpoint():
                self.journal.confirm()

    def leads(self, now_s: float) -> bool:
        """Whether no other coordinator can have taken over."""
        return self.journal is None or self.journal.leads(now_s)

    def take_seals(self) -> list[SealResult]:
        """What has come of seals since: those that are whole, and those that failed."""
        told: list[SealResult] = []
        for done in self.seals.take():
            if isinstance(done, SealDone):
                self._emit(_saved(done))
            told.append(done.effect if isinstance(done, SealDone) else done)
        return told

    def take_over(self, past: Sequence[events.Event]) -> None:
        """What is in the directory belongs to the run that goes on; on another machine than before
        it may be new."""
        try:
            make_private(self.run_dir, self.usual_mask)
            self.sink = self._only_writer()
            self.kept += past
            self.pass_on.write(self.run_dir)
            self._note_places()
            self.store.take_over()
        except OSError as why:
            raise unwritable(self.run_dir, why) from why

    def abandon(self) -> None:
        """Somebody else goes on with the run: nothing more is said of it."""
        if self.sink is not None:
            self.sink.close()
        if self.journal is not None:
            self.journal.close()

    def close(self, summary: Summary, details: str) -> None:
        if self.journal is not None:
            self.journal.end()
            self.journal.close()
        if self.sink is None:
            return
        self.sink.close()
        patiently(lambda: write_summary(self.run_dir / SUMMARY_FILE, summary))
        if details:
            (self.run_dir / "error.txt").write_text(details)
        if self.sink.num_dropped:
            self.warn(f"{self.sink.num_dropped} events could not be written")

    def _emit(self, told: events.Event) -> None:
        event = events.dated(told, time.time())
        if self.sink is not None:
            self.sink.emit(event)
        if not isinstance(event, events.WorkerStep):  # the bulk of them: only on disk
            self.kept.append(event)
        self.handle(event)

    def _report_stuck(self, effect: ReportStuck) -> None:
        path = stack_file(self.run_dir, effect.event.worker, effect.pid)
        stack = read_stack(path)
        where, written = user_frame(stack), str(path) if stack else ""
        self._emit(replace(effect.event, where=where, stack=stack, path=written))

    def _point_to_best(self, effect: PointToBest) -> None:
        try:
            address = self.config.checkpoint.dir
            write_best(self.run_dir, address, effect.step, effect.judged_by, effect.value)
        except FileNotFoundError:
            pass  # it is elsewhere: the run was resumed in another directory
        except OSError as why:
            self.warn(f"the best checkpoint, of step {effect.step}, is not noted: {why.strerror}")

    def _open(self) -> None:
        try:
            make_private(self.run_dir, self.usual_mask)
            self.sink = self._only_writer()
            if self.journal is not None:
                self.journal.lead(self.pass_on.generation)
            self.pass_on.write(self.run_dir)
            self._note_places()
            self.store.open(self.resume)
            forget_best_after(self.run_dir, 0 if self.resume is None else self.resume.step)
            claim_logs(self.run_dir, self.config)
        except OSError as why:
            raise unwritable(self.run_dir, why) from why
        for event in self.kept:
            self.sink.emit(event)

    def _note_places(self) -> None:
        note_address(self.run_dir, self.config.checkpoint.dir)
        note_journal(self.run_dir, self.config.control.journal)

    def _only_writer(self) -> log.EventWriter:
        """The events file, locked as long as this process lives: two runs would mix in it."""
        limit_bytes = self.config.observe.events_limit_bytes()
        try:
            return log.EventWriter.of_run(self.run_dir, limit_bytes)
        except BlockingIOError as why:
            raise ConfigError(
                _run_dir(self.run_dir), ": another run is writing there; choose another directory"
            ) from why

    def _seal(self, effect: SealCheckpoint) -> str:
        try:
            place = self.store.seal(
                effect.step,
                effect.parts,
                seed=self.config.train.seed,
                microbatches=self.config.parallel.microbatches,
                origin=replace(self.origin, validations=effect.validations),
            )
            keep = self.config.checkpoint.keep + effect.keeps_more + self.spares()
            self.store.tidy(keep, effect.step, effect.best)
        except (OSError, CheckpointError, ProtocolError) as why:
            reason = why.strerror if isinstance(why, OSError) and why.strerror else str(why)
            raise SealFailed(effect, reason) from why
        return place


def check_run_dir(run_dir: Path, resume: Checkpoint | None) -> None:
    """Find out now, not after minutes of training; leaves nothing behind."""
    if not continues_in(run_dir, resume) and (run_dir / log.EVENTS_FILE).exists():
        refusal = (_run_dir(run_dir), ": already holds a run; choose another directory")
        if has_checkpoint(run_dir):
            raise ConfigError(*refusal, ", or go on with it: ", ResumeFrom(str(run_dir)))
        raise ConfigError(*refusal)
    existing = run_dir
    while not existing.exists():
        existing = existing.parent
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".holdfast-", dir=existing))
    except OSError as why:
        raise unwritable(run_dir, why) from why


def continues_in(run_dir: Path, resume: Checkpoint | None) -> bool:
    """Whether the run goes on in the directory of its checkpoint."""
    return resume is not None and resume.is_in(run_dir)


def _saved(done: SealDone) -> events.CheckpointSaved:
    step, took_s = done.effect.step, done.effect.took_s
    return events.CheckpointSaved(at_s=time.monotonic(), step=step, path=done.place, took_s=took_s)


def unwritable(run_dir: Path, why: OSError) -> ConfigError:
    return ConfigError(
        _run_dir(run_dir), f": cannot be written ({why.strerror}); choose a directory you own"
    )


def _run_dir(run_dir: Path) -> Argument:
    return Argument("run_dir", run_dir)
