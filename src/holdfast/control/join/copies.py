"""Joiners copy the state of their stage from a member and follow its updates: from whom, how far.

A copy that breaks off begins anew from somebody else. It ends no member.
"""

from holdfast.cluster import WorkerId, parse_worker
from holdfast.control.effects import Effect, Send
from holdfast.control.join.joiner import Joiner, Joiners
from holdfast.control.state.lifecycle import RunPhase
from holdfast.control.state.run import Run
from holdfast.control.state.workers import membership as m
from holdfast.errors import ConfigError
from holdfast.protocol import messages

_MOST_STARVED = 3  # copies: whoever cannot keep up by then never will


class Copies:
    def __init__(self, run: Run, joiners: Joiners) -> None:
        self._run, self._joiners = run, joiners

    def find_sources(self, at_s: float) -> list[Effect]:
        """For every joiner that is built and copies from nobody who could give it the state."""
        if self._run.phase is not RunPhase.TRAINING:
            return []
        effects: list[Effect] = []
        for worker in self._run.membership.all_in(m.WorkerPhase.READY, m.WorkerPhase.COPYING):
            joiner = self._joiners.all.get(worker)
            if joiner is not None and not self.goes_on(joiner):
                effects += self._copy(worker, joiner, at_s)
        return effects

    def goes_on(self, joiner: Joiner) -> bool:
        """Its source can still give it the state."""
        return joiner.source in self._run.placement.holders(joiner.stage)

    def complains(self, worker: WorkerId, about: WorkerId, at_s: float) -> list[Effect]:
        """The copy broke off: from somebody else, if there is somebody."""
        joiner = self._joiners.all.get(worker)
        if joiner is None or joiner.source != about:
            return []
        return self._copy(worker, joiner, at_s)

    def starves(self, worker: WorkerId, at_s: float) -> list[Effect]:
        """Its source sends nothing: it begins anew; ConfigError: it never keeps up."""
        joiner = self._joiners.all.get(worker)
        if joiner is None:
            return []
        joiner.starve()
        if joiner.num_starved > _MOST_STARVED and not joiner.enters:
            raise ConfigError(
                f"it did not get the state of stage {joiner.stage} in {joiner.num_starved} copies: "
                "its connection is slower than training goes on"
            )
        return self._copy(worker, joiner, at_s)

    def _copy(self, worker: WorkerId, joiner: Joiner, at_s: float) -> list[Effect]:
        busy = [other.source for other in self._joiners.all.values()]
        holders = self._run.placement.holders(joiner.stage)
        if not holders or joiner.enters:
            return []  # the stage is lost and all go back, or it will be asked for what it has
        # It may wait for somebody who will send nothing any more.
        halt = [] if joiner.source is None else [self._halt(worker)]
        self._run.membership.handle(m.CopyBegun(worker, at_s))
        source = min(holders, key=lambda holder: (busy.count(holder), holder))
        joiner.copy_from(source, at_s)
        hello = self._run.hellos[worker]
        share = messages.ShareState(to=str(worker), host=hello.host, port=hello.port)
        return [*halt, self.follow(worker), Send(source, share)]

    def halt_if_copying(self, worker: WorkerId) -> list[Effect]:
        """It copies from nobody any more."""
        copies = self._run.membership.phase(worker) is m.WorkerPhase.COPYING
        return [self._halt(worker)] if copies else []

    def _halt(self, worker: WorkerId) -> Effect:
        return Send(worker, messages.Halt(epoch=self._run.epoch))

    def follow(self, worker: WorkerId) -> Effect:
        """Copy, or go on copying, in the epoch that is now."""
        source = self._joiners.all[worker].source
        return Send(worker, messages.CopyState(source=str(source), epoch=self._run.epoch))

    def on_copied(self, copied: messages.Copied, at_s: float) -> None:
        worker = parse_worker(copied.worker)
        joiner = self._joiners.all.get(worker)
        if joiner is None or self._run.membership.phase(worker) is not m.WorkerPhase.COPYING:
            return  # it was told to do something else meanwhile
        if copied.source != str(joiner.source):
            return  # it works off what a former source had sent
        self._run.membership.handle(m.StateCopied(worker, at_s))
        if joiner.copied(copied.version, copied.num_bytes, at_s):
            self._run.times.note_copy(at_s - joiner.given_s)  # so long a mover helps nobody
