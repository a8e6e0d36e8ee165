"""What the workers log, in which history, and whether somebody reads it for a replay.

A seal that would trim what is being read is held back until the replay is over.
"""

from collections.abc import Mapping, Sequence

from holdfast.cluster import WorkerId
from holdfast.control.state.settings import Settings
from holdfast.control.state.workers.roster import Roster
from holdfast.protocol.records import LogOrder


def copiers(keepers: Mapping[str, Sequence[WorkerId]]) -> dict[WorkerId, str]:
    """Who copies the logs of which machine: the first worker of the next one in a ring by host.

    ``keepers``: by machine, those who are there. One alone is copied by nobody.
    """
    hosts = sorted(host for host, here in keepers.items() if here)
    return {
        keepers[after][0]: host
        for host, after in zip(hosts, hosts[1:] + hosts[:1], strict=True)
        if host != after
    }


class BoundaryLogs:
    def __init__(self, settings: Settings, roster: Roster, began: int) -> None:
        self._run_id, self._roster = settings.run_id, roster
        self._is_on = settings.config.recovery.log == "boundary"
        self._are_copied = settings.config.recovery.log_copies > 0
        self._boundaries = tuple(range(settings.shape.stages - 1)) if self._is_on else ()
        self._limits: dict[int, int] = {}
        self._num_histories = 0
        self._began = began
        self._is_replaying = False
        self._held_seal: int | None = None

    @property
    def is_on(self) -> bool:
        return self._is_on

    @property
    def are_copied(self) -> bool:
        """From each machine to another one."""
        return self._are_copied

    @property
    def boundaries(self) -> tuple[int, ...]:
        """That are logged; boundary b is the one after stage b."""
        return self._boundaries

    @property
    def limits(self) -> Mapping[int, int]:
        """Bytes, by stage; empty: not decided."""
        return self._limits

    @property
    def is_replaying(self) -> bool:
        """A stage that nobody holds is being computed again."""
        return self._is_replaying

    def order(self, stage: int | None = None) -> LogOrder | None:
        """As the workers are told of it; None: nothing is logged."""
        if not self._is_on:
            return None
        return LogOrder(
            run=f"{self._run_id}.{self._num_histories}",
            began=self._began,
            workers=[str(worker) for worker in sorted(self._roster.hellos)],
            boundaries=list(self._boundaries),
            limit_bytes=0 if stage is None else self._limits.get(stage, 0),
        )

    def choose(self, boundaries: Sequence[int], limits: Mapping[int, int]) -> None:
        self._boundaries, self._limits = tuple(boundaries), dict(limits)

    @property
    def history(self) -> tuple[int, int]:
        """How many have begun before the present one, and its first step."""
        return self._num_histories, self._began

    def recall(self, num_histories: int, began: int) -> None:
        """As another coordinator has left it."""
        self._num_histories, self._began = num_histories, began

    def begin_anew(self, step: int) -> None:
        """All go back to ``step``: what was logged before is of no use."""
        self._num_histories, self._began = self._num_histories + 1, step

    def replay_begins(self) -> None:
        self._is_replaying = True

    def replay_ends(self) -> None:
        self._is_replaying = False

    def hold_seal(self, step: int) -> None:
        """A checkpoint of which nobody who logs may hear yet."""
        self._held_seal = step

    def take_held_seal(self) -> int | None:
        step, self._held_seal = self._held_seal, None
        return step
