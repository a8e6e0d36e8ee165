"""Who holds which stage in which epoch. Decides nothing: others ask for every change."""

from collections.abc import Mapping

from holdfast.cluster import WorkerId


class Placement:
    """``rolling_back``: those who build anew from a checkpoint, until they are members again."""

    def __init__(self, num_stages: int) -> None:
        self._num_stages = num_stages
        self._epoch = 0
        self._stages: dict[WorkerId, int] = {}
        self._rolling_back: dict[WorkerId, int] = {}
        self._by_stage: dict[int, list[WorkerId]] | None = None  # None: to be sorted anew

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def stages(self) -> Mapping[WorkerId, int]:
        """Of the members."""
        return self._stages

    @property
    def rolling_back(self) -> Mapping[WorkerId, int]:
        return self._rolling_back

    def holders(self, stage: int) -> list[WorkerId]:
        return list(self._holders().get(stage, ()))

    @property
    def lost_stages(self) -> list[int]:
        held = self._holders()
        return [stage for stage in range(self._num_stages) if stage not in held]

    def _holders(self) -> dict[int, list[WorkerId]]:
        if self._by_stage is None:
            self._by_stage = {}
            for worker, stage in sorted(self._stages.items()):
                self._by_stage.setdefault(stage, []).append(worker)
        return self._by_stage

    def next_epoch(self) -> int:
        self._epoch += 1
        return self._epoch

    def recall(self, epoch: int, stages: Mapping[WorkerId, int]) -> None:
        """As another coordinator has left it."""
        self._epoch, self._stages = epoch, dict(stages)

    def hold(self, worker: WorkerId, stage: int) -> None:
        self._stages[worker], self._by_stage = stage, None

    def release(self, worker: WorkerId) -> int:
        """It is no member any more; the stage it held."""
        self._by_stage = None
        return self._stages.pop(worker)

    def release_all(self) -> None:
        self._by_stage = None
        self._stages.clear()

    def hold_all(self, stages: Mapping[WorkerId, int]) -> None:
        """These are the members, and nobody else; nobody builds anew any more."""
        self._stages, self._by_stage = dict(stages), None
        self._rolling_back.clear()

    def roll_back(self, stages: Mapping[WorkerId, int]) -> None:
        """These build anew, and nobody else."""
        self._rolling_back = dict(stages)

    def leave_rollback(self, worker: WorkerId) -> int | None:
        """The stage it was to build; None: it builds none."""
        return self._rolling_back.pop(worker, None)
