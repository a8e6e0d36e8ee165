"""A run whose coordinator is gone and whose workers are not: found by its journal, and by them."""

from collections.abc import Callable
from pathlib import Path

from holdfast.auth.secret import kept_secret
from holdfast.baselines.registry import policies_of
from holdfast.checkpoint_address import is_address
from holdfast.config import RunConfig, config_from, known_settings
from holdfast.control.io.launcher import RunRequest
from holdfast.control.io.succession.knocking import somebody_knocks
from holdfast.control.io.succession.run_journal import LeftBehind, claim, left_behind
from holdfast.control.journal.file_journal import JOURNAL_FILE
from holdfast.control.journal.opening import open_journal
from holdfast.errors import CheckpointError, ConfigError
from holdfast.faults.fault import parse_fault
from holdfast.job_reference import JobSource
from holdfast.storage.contents import Checkpoint
from holdfast.storage.stores import find, load


def run_left_alive(
    place: str | Path, secret: bytes | None, warn: Callable[[str], None]
) -> RunRequest | None:
    """None: there is none, and the run goes on from its checkpoint.

    ConfigError: somebody leads it.
    """
    if is_address(str(place)) or not (Path(place) / JOURNAL_FILE).is_file():
        return None
    run_dir = Path(place).absolute()
    left = left_behind(open_journal("", run_dir, 0.0))
    if left is None:
        return None
    config = config_from(known_settings(left.facts.settings))
    secret = secret or kept_secret(run_dir)
    if secret is None or not config.workers.are_processes or not config.workers.orphan_limit_s:
        return None
    if not _is_alive(run_dir, config, left, secret):
        warn("no worker of the run is left: it goes on from its newest checkpoint")
        return None
    warn("workers of the run are alive: it goes on where they are, with its own settings")
    return _request(run_dir, config, left, secret)


def _is_alive(run_dir: Path, config: RunConfig, left: LeftBehind, secret: bytes) -> bool:
    journal = open_journal("", run_dir, 0.0)
    generation = claim(journal, above=0)  # not beside somebody who leads
    try:
        return somebody_knocks(run_dir, config, left.snapshot.address, secret, generation)
    finally:
        journal.close()


def _request(run_dir: Path, config: RunConfig, left: LeftBehind, secret: bytes) -> RunRequest:
    facts = left.facts
    name = Path(facts.origin or facts.job).stem
    return RunRequest(
        config=config,
        policies=policies_of(config),
        job=JobSource(facts.job, facts.job_sha256, facts.origin, name),
        run_dir=run_dir,
        resume=_newest(run_dir, left.snapshot.resumed),
        faults=tuple(parse_fault(text) for text in facts.faults),
        secret=secret if kept_secret(run_dir) is None else None,
        left_behind=left,
        ticket=run_dir.with_name(f"{run_dir.name}.ticket") if config.machines.count else None,
    )


def _newest(run_dir: Path, resumed: str) -> Checkpoint | None:
    """Where all would go back to, if they had to; None: to the beginning."""
    try:
        return find(run_dir)
    except (CheckpointError, ConfigError):
        return load(resumed) if resumed else None
