"""A run whose coordinator is gone and whose workers are not: found by its journal, and by them."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.api.settings import ConfigLike, asked_standbys, own_place
from holdfast.auth.certificate import kept_key, new_key, write_key
from holdfast.auth.secret import kept_secret, last_generation
from holdfast.auth.ticket import read_ticket
from holdfast.baselines.registry import policies_of
from holdfast.checkpoint_address import is_address
from holdfast.config import NetworkConfig, RunConfig, config_from, known_settings
from holdfast.control.io.launcher import RunRequest
from holdfast.control.io.private_files import make_private, private_files
from holdfast.control.io.succession.knocking import somebody_knocks
from holdfast.control.io.succession.run_journal import Led, LeftBehind, claim, left_behind
from holdfast.control.journal.base import Journal, wait_for_leadership
from holdfast.control.journal.file_journal import JOURNAL_FILE
from holdfast.control.journal.opening import noted_journal, open_journal
from holdfast.errors import (
    Argument,
    CheckpointError,
    ConfigError,
    JournalAway,
    JournalDamaged,
    ResumeFrom,
)
from holdfast.faults.fault import parse_fault
from holdfast.job_reference import JobSource
from holdfast.observability.log import EVENTS_FILE
from holdfast.storage.contents import Checkpoint
from holdfast.storage.copied_states import take_copies
from holdfast.storage.stores import find, load

_MORE_S = 1.0  # than a lease: then whoever was killed a moment ago leads no more
Warn = Callable[[str], None]


@dataclass(frozen=True)
class Heir:
    """Whoever would take over, and what it has."""

    run_dir: Path  # of its own, or the run's
    asked: RunConfig  # where it listens, and where the journal is; all else is the run's
    secret: bytes | None = None  # that was given
    ticket: Path | None = None  # of the run; a new one is written there
    standbys: tuple[str, ...] = ()  # that are asked for

    @property
    def journal(self) -> str:
        """Its address; empty: in the run directory."""
        return self.asked.control.journal or noted_journal(self.run_dir)

    def open(self, lease_s: float) -> Journal:
        return open_journal(self.journal, self.run_dir, lease_s)

    def find_secret(self) -> bytes | None:
        """What was given counts; then the run's own: a ticket may be an older one's."""
        found = self.secret or kept_secret(self.run_dir)
        if found is None and self.ticket is not None and self.ticket.exists():
            found = read_ticket(self.ticket).secret
        return found

    def config(self, left: LeftBehind) -> RunConfig:
        """The run's own, but for what is of this machine."""
        config, asked = config_from(known_settings(left.facts.settings)), self.asked
        network, control = config.network, config.control
        if asked.network != NetworkConfig():
            network = replace(
                network,
                listen=asked.network.listen,
                advertise=asked.network.advertise,
                tls="on" if network.encrypts_control else "off",  # as those who call expect it
            )
        if control.standbys:  # where one has died another may stand by later
            known = dict.fromkeys([*control.standby_addresses, left.snapshot.address])
            control = replace(control, standbys=",".join(known))
        control = replace(control, port=asked.control.port or control.port)
        return replace(config, network=network, control=control)

    def check_standbys(self, config: RunConfig) -> None:
        """ConfigError: those who are alive would not look for a coordinator there."""
        known = config.control.standby_addresses
        for address in self.standbys:
            if address not in known:
                raise ConfigError(
                    Argument("standby", address),
                    ": workers of the run are alive, and would not look for a coordinator there; "
                    f"they know of {', '.join(known) or 'none'}. Leave it out",
                )

    def prepare(self, config: RunConfig) -> None:
        """Its directory, and a key if there is none: on another machine it is new."""
        with private_files() as usual_mask:
            make_private(self.run_dir, usual_mask)
            if config.network.encrypts_control and kept_key(self.run_dir) is None:
                write_key(self.run_dir, new_key("network.tls=on"))

    def request(self, config: RunConfig, left: LeftBehind, led: Led, warn: Warn) -> RunRequest:
        facts = left.facts
        name = Path(facts.origin or facts.job).stem
        ticket = self.ticket or self.run_dir.with_name(f"{self.run_dir.name}.ticket")
        return RunRequest(
            config=config,
            policies=policies_of(config),
            job=JobSource(facts.job, facts.job_sha256, facts.origin, name),
            run_dir=self.run_dir,
            resume=_newest(self.run_dir, config, left, warn),
            faults=tuple(parse_fault(text) for text in facts.faults),
            secret=self.find_secret() if kept_secret(self.run_dir) is None else self.secret,
            left_behind=left,
            led=led,
            ticket=ticket if config.machines.count else None,
        )


def run_left_alive(heir: Heir, warn: Warn) -> RunRequest | None:
    """None: there is none, and the run goes on from its checkpoint.

    ConfigError: somebody leads it.
    """
    if not heir.journal and not (heir.run_dir / JOURNAL_FILE).is_file():
        return None
    try:
        left = left_behind(heir.open(1.0))
    except JournalAway as why:
        raise ConfigError(f"the journal of the run cannot be read: {why}") from why
    except JournalDamaged as why:
        warn(f"{why}. It goes on from its newest checkpoint")
        return None
    if left is None:
        return None
    config, secret = heir.config(left), heir.find_secret()
    if secret is None or not config.workers.are_processes or not config.workers.orphan_limit_s:
        return None
    heir.prepare(config)
    led = _lead(heir, config)
    if not somebody_knocks(heir.run_dir, config, left.snapshot.address, secret, led.generation):
        led.journal.close()
        _check_that_it_can_go_on(heir.run_dir, config)
        warn("no worker of the run is left: it goes on from its newest checkpoint")
        return None
    try:
        heir.check_standbys(config)
    except ConfigError:
        led.journal.close()
        raise
    warn("workers of the run are alive: it goes on where they are, with its own settings")
    # What it has decided since it was looked at for the first time counts.
    return heir.request(config, left_behind(led.journal) or left, led, warn)


def _lead(heir: Heir, config: RunConfig) -> Led:
    """Not beside somebody who leads."""
    lease_s, above = config.control.lease_s, last_generation(heir.run_dir)
    journal = heir.open(lease_s)
    if heir.journal:  # a lease may have to run out first
        claimed = wait_for_leadership(journal, lease_s + _MORE_S, above=above)
        if claimed is not None:
            return Led(journal, claimed.generation)
    return Led(journal, claim(journal, above=above))


def _check_that_it_can_go_on(run_dir: Path, config: RunConfig) -> None:
    address = config.checkpoint.dir
    if address and not (run_dir / EVENTS_FILE).exists():
        raise ConfigError(
            "no worker of the run is left; go on from its checkpoint: ", ResumeFrom(address)
        )


def _newest(run_dir: Path, config: RunConfig, left: LeftBehind, warn: Warn) -> Checkpoint | None:
    """Where all would go back to, if they had to; None: to the beginning."""
    address, resumed = config.checkpoint.dir, left.snapshot.resumed
    with suppress(OSError):  # it can be taken over without
        take_copies(run_dir, left.snapshot.run_id)
    with suppress(CheckpointError, ConfigError):
        found = find(address).from_run(str(run_dir)) if address else find(run_dir)
        if found.directory == resumed or _is_of(found, config, left):
            return found
        warn(f"{found.directory} is a checkpoint of another run: nobody goes back to it")
    try:
        return load(resumed) if resumed else None
    except CheckpointError:
        warn(
            f"{resumed}, which the run began from, is not on this machine: if all holders of a "
            "stage are lost, the run begins anew"
        )
        return None


def _is_of(checkpoint: Checkpoint, config: RunConfig, left: LeftBehind) -> bool:
    """As far as it says what it is of."""
    job = checkpoint.origin.job_sha256
    return (
        checkpoint.seed == config.train.seed
        and checkpoint.microbatches == config.parallel.microbatches
        and (not job or job == left.facts.job_sha256)
    )


def heir_at(
    place: str | Path, config: ConfigLike, secret: bytes | None, ticket: str | Path | None
) -> Heir | None:
    """None: nobody takes over at an address of checkpoints."""
    if is_address(str(place)):
        return None
    path = Path(ticket) if ticket else None
    return Heir(Path(place).absolute(), own_place(config), secret, path, asked_standbys(config))
