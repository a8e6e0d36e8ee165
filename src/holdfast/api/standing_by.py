"""Waits beside a run until its coordinator leads no more, and takes over from it."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from holdfast.addresses import host_port
from holdfast.api.following import Following
from holdfast.api.live_run import LiveRun
from holdfast.api.taking_over import Heir, Warn
from holdfast.auth.secret import last_generation
from holdfast.auth.ticket import Ticket, read_ticket
from holdfast.config import RunConfig
from holdfast.control.io.entry.listening import listen, whereabouts
from holdfast.control.io.succession.run_journal import Led, LeftBehind, left_behind
from holdfast.control.journal.base import POLL_S
from holdfast.control.state.settings import resume_call
from holdfast.errors import Argument, ConfigError, JournalAway, JournalHeld
from holdfast.observability.log import EVENTS_FILE
from holdfast.storage.copied_states import copies_of, drop_copies
from holdfast.storage.stores import has_checkpoint

_LEASE_S = 2.0  # until the run's own is known
_NOT_BEGUN_S = 0.5
_LOOK_S = 1.0  # between two looks at where a silent coordinator is
_LAST_S = 5.0  # for what is being copied when the run has ended


@dataclass(frozen=True)
class Vigil:
    """How it is, for whoever looks on."""

    leader: str  # in words; empty: nobody knows
    step: int = 0  # the last finished one, as far as it was told
    num_events: int = 0  # that were copied; 0 as well if all is on this disk
    trouble: str = ""


class Standby:
    """``show`` is told again and again how it is."""

    def __init__(
        self,
        heir: Heir,
        *,
        warn: Warn,
        show: Callable[[Vigil], None],
        resume_with: Callable[[str], str] = resume_call,
    ) -> None:
        """ConfigError: it could never take over."""
        self._heir, self._warn, self._show = heir, warn, show
        self._resume_with = resume_with
        self._is_far = bool(heir.asked.control.journal)
        self._ticket: Ticket | None = None
        if self._is_far:
            self._ticket = _far_ticket(heir)
            if (heir.run_dir / EVENTS_FILE).exists() or has_checkpoint(heir.run_dir):
                raise ConfigError(
                    f"{heir.run_dir}: already holds a run; choose another directory for this "
                    "standby"
                )
        self._journal = heir.open(_LEASE_S)
        self._run_id = ""  # of the run that it is ready for
        self._following: Following | None = None
        self._seen = 0  # generation that leads
        self._looked_s = 0.0  # when the journal was asked who that is

    def wait(self) -> LiveRun | None:
        """The run, which has yet to begin here. None: it has ended without us."""
        try:
            self._wait_until_begun()
            run = self._taken_over(self._when_nobody_leads())
        except BaseException:
            self._journal.close()
            raise
        finally:
            self._stop_following()
        if run is None:
            self._journal.close()
            self._drop_copies()
        return run

    def _wait_until_begun(self) -> None:
        """A journal that nobody has written to is nobody's to take over."""
        while True:
            try:
                left = left_behind(self._journal)
                if left is not None:
                    self._get_ready(left)
                if left is not None or self._journal.records():
                    return  # of an earlier run, perhaps: whoever leads says so
                self._tell("", "the run has not begun")
            except JournalAway as why:
                self._tell("", str(why))
            time.sleep(_NOT_BEGUN_S)

    def _when_nobody_leads(self) -> Led:
        while True:
            try:
                above = last_generation(self._heir.run_dir)
                return Led(self._journal, self._journal.claim(above=above).generation)
            except JournalHeld as why:
                self._look_at(why.generation)
                self._tell(why.holder, "")
            except JournalAway as why:
                self._tell("", str(why))
            time.sleep(POLL_S)

    def _get_ready(self, left: LeftBehind) -> None:
        """For a run that was not known before. ConfigError: it could never be taken over."""
        if left.snapshot.run_id == self._run_id:
            return
        heir, config = self._heir, self._heir.config(left)
        if self._is_far:  # else whoever leads listens there until then
            self._check(config)
        heir.prepare(config)
        self._stop_following()
        self._following = None
        if self._is_far:  # an earlier standby may have ended there
            drop_copies(heir.run_dir, but=copies_of(heir.run_dir, left.snapshot.run_id))
        self._journal.close()
        self._journal = heir.open(config.control.lease_s)
        self._run_id = left.snapshot.run_id

    def _check(self, config: RunConfig) -> None:
        """ConfigError: nobody would find us here."""
        with listen(config) as listener:
            told = whereabouts(config, listener).told
        known = config.control.standby_addresses
        asked = host_port(config.network.listen, config.control.port)
        if told not in known and asked not in known:
            shown = ", ".join(known) or "none"
            raise ConfigError(
                Argument("listen", told),
                f": workers would not look for a coordinator there; the run knows of {shown}; "
                "start it with ",
                Argument("standby", told),
            )

    def _taken_over(self, led: Led) -> LiveRun | None:
        left = left_behind(led.journal)
        if left is None:
            return None
        heir, config = self._heir, self._heir.config(left)
        heir.prepare(config)
        if self._following is not None:
            self._following.stop()
            with suppress(OSError):  # then losses so far are missing, and nothing else
                self._following.write_down()
        request = heir.request(config, left, led, self._warn)
        return LiveRun(replace(request, resume_with=self._resume_with), self._warn)

    # --- who leads meanwhile ---

    def _look_at(self, generation: int) -> None:
        if not self._is_news(generation):
            return
        self._looked_s = time.monotonic()
        with suppress(JournalAway):
            left = left_behind(self._journal)
            if left is not None:
                self._get_ready(left)
                self._follow(left, is_new=generation != self._seen)
                self._seen = generation

    def _follow(self, left: LeftBehind, *, is_new: bool) -> None:
        before = self._following
        is_there = before is not None and before.address == left.snapshot.address
        if self._ticket is not None and (is_new or not is_there):
            self._stop_following()
            self._following = self._followed(left, self._ticket, before)
            self._following.start()

    def _is_news(self, generation: int) -> bool:
        if generation != self._seen:
            return True
        # One that leads since a moment has yet to write down where it is.
        is_silent = self._following is not None and bool(self._following.trouble)
        return is_silent and time.monotonic() - self._looked_s > _LOOK_S

    def _followed(self, left: LeftBehind, ticket: Ticket, before: Following | None) -> Following:
        far = not self._heir.config(left).checkpoint.dir
        run_dir = self._heir.run_dir
        return Following(left, ticket, run_dir, far_checkpoints=far, before=before)

    def _stop_following(self) -> None:
        if self._following is not None:
            self._following.stop()

    def _drop_copies(self) -> None:
        """The run has ended: nobody needs them."""
        if self._following is not None:
            self._following.wait(_LAST_S)
        drop_copies(self._heir.run_dir)

    def _tell(self, leader: str, trouble: str) -> None:
        following = self._following
        if following is None:
            self._show(Vigil(leader, trouble=trouble))
            return
        number = len(following.events)
        self._show(Vigil(leader, following.step, number, trouble or following.trouble))


def _far_ticket(heir: Heir) -> Ticket:
    if heir.ticket is None:
        raise ConfigError(
            "standby: expected ",
            Argument("ticket", "FILE"),
            ", which a run over several machines has written",
        )
    return read_ticket(heir.ticket)
