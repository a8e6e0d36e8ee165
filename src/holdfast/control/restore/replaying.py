"""One replay at a time: which stages are computed again together, by whom, and how it ended.

Knows neither who will hold them then nor whether it should be done at all.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.cluster import WorkerId, parse_worker
from holdfast.control.effects import Effect, Emit, Send
from holdfast.control.state.run import Run
from holdfast.observability import events
from holdfast.protocol import messages
from holdfast.storage.run_paths import rebuilt_directory


@dataclass
class RunningReplay:
    """Some neighbouring stages, being computed again by a crew."""

    epoch: int
    stages: tuple[int, ...]
    lost: tuple[int, ...]  # of them
    version: int
    crew: tuple[WorkerId, ...]
    into: str
    begun_s: float
    done: dict[WorkerId, messages.Replayed] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        return self.done.keys() >= set(self.crew)


class Replaying:
    def __init__(self, run: Run) -> None:
        self._run = run
        self.current: RunningReplay | None = None

    def takes_part(self, worker: WorkerId) -> bool:
        return self.current is not None and worker in self.current.crew

    def together(self, stage: int) -> tuple[int, ...]:
        """The stage and all between the nearest logged boundaries around it."""
        run = self._run
        first = last = stage
        while first > 0 and first - 1 not in run.logs.boundaries:
            first -= 1
        while last < run.shape.stages - 1 and last not in run.logs.boundaries:
            last += 1
        return tuple(range(first, last + 1))

    def _neighbours(self, missing: Sequence[int]) -> tuple[int, ...]:
        """Lost stages next to each other have no log between them: they go together."""
        stages = self.together(missing[0])
        for stage in missing[1:]:
            if stage <= stages[-1] + 1:
                stages = tuple(range(stages[0], max(stages[-1], self.together(stage)[-1]) + 1))
        return stages

    def begin(
        self, missing: Sequence[int], version: int, crew: tuple[WorkerId, ...], at_s: float
    ) -> list[Effect]:
        """Of the first missing stages; nothing while another is under way or nobody is there."""
        run = self._run
        if not crew or (self.current is not None and self.current.epoch == run.epoch):
            return []
        stages = self._neighbours(missing)
        lost = tuple(stage for stage in stages if stage in missing)
        into = str(rebuilt_directory(run.settings.run_dir, version, stages[0], run.epoch))
        self.current = replay = RunningReplay(run.epoch, stages, lost, version, crew, into, at_s)
        began = events.ReplayBegan(
            at_s=at_s,
            stages=lost,
            replayed=stages,
            from_step=run.start[1],
            to_step=version,
            workers=tuple(map(str, crew)),
        )
        order = self._order(replay)
        return [Emit(began), *(Send(worker, order) for worker in crew)]

    def _order(self, replay: RunningReplay) -> messages.Replay:
        run = self._run
        checkpoint, first_step = run.start
        log = run.logs.order()
        assert log is not None, "without a log nothing is replayed"
        return messages.Replay(
            epoch=replay.epoch,
            stages=list(replay.stages),
            lost=list(replay.lost),
            cut=list(run.plan.cut.layers),
            checkpoint=run.settings.name_of(checkpoint),
            first_step=first_step,
            version=replay.version,
            crew=[str(worker) for worker in replay.crew],
            addresses={str(worker): run.roster.address(worker) for worker in replay.crew},
            into=run.settings.name_of(replay.into),
            log=log,
            keepers={
                host: [run.roster.address(worker) for worker in keepers]
                for host, keepers in run.log_keepers().items()
            },
            beat_s=run.timeouts.beat_s,
            # others may still load the job
            wait_s=max(run.timeouts.wait_s, run.timeouts.start_limit_s),
        )

    def forget(self) -> None:
        """Whatever is under way is of no use any more."""
        self.current = None

    def note(self, replayed: messages.Replayed) -> RunningReplay | None:
        """The replay, if this was its last part."""
        replay = self.current
        if replay is None or replayed.epoch != replay.epoch:
            return None
        replay.done[parse_worker(replayed.worker)] = replayed
        if not replay.is_done:
            return None
        self.current = None
        return replay

    def failed(self, failed: messages.ReplayFailed) -> bool:
        """Whether it is news."""
        if self.current is None or failed.epoch != self.current.epoch:
            return False
        self.current = None
        return True

    def lost(self, worker: WorkerId) -> bool:
        """Whether it took part."""
        took_part = self.takes_part(worker)
        if took_part:
            self.current = None
        return took_part


def rebuilt(replay: RunningReplay, at_s: float) -> events.StageRebuilt:
    told = replay.done.values()
    return events.StageRebuilt(
        at_s=at_s,
        stages=replay.lost,
        replayed=replay.stages,
        version=replay.version,
        workers=tuple(map(str, replay.crew)),
        operations=sum(one.num_operations for one in told),
        read_bytes=sum(one.num_bytes for one in told),
        took_s=at_s - replay.begun_s,
    )


def from_checkpoint(stages: Sequence[int], version: int, at_s: float) -> events.StageRebuilt:
    """Nothing had to be replayed."""
    return events.StageRebuilt(
        at_s=at_s,
        stages=tuple(stages),
        replayed=tuple(stages),
        version=version,
        workers=(),
        operations=0,
        read_bytes=0,
        took_s=0.0,
    )
