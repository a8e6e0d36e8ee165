"""What workers were given to build, and where they write their parts of checkpoints to.

Knows which faults have fired: they are not given to anybody again.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

from holdfast.cluster import WorkerId
from holdfast.faults.fault import Fault, FaultKind
from holdfast.storage.manifest import part_directory


class Assignments:
    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._builds: Counter[WorkerId] = Counter()
        self._parts: dict[str, tuple[WorkerId, int]] = {}
        self._num_given = 0
        self._fired: set[str] = set()

    @property
    def parts(self) -> Mapping[str, tuple[WorkerId, int]]:
        """Directories that parts are written to: whose each is, and of which stage."""
        return self._parts

    @property
    def num_given(self) -> int:
        """Directories for parts, so far."""
        return self._num_given

    @property
    def fired(self) -> AbstractSet[str]:
        """Faults."""
        return self._fired

    def recall(
        self, parts: Mapping[str, tuple[WorkerId, int]], num_given: int, fired: Iterable[str]
    ) -> None:
        """As another coordinator has left it."""
        self._parts, self._num_given, self._fired = dict(parts), num_given, set(fired)

    def regain(self, worker: WorkerId, num_builds: int) -> None:
        """It has come back, and says what it was given and has not built yet."""
        self._builds[worker] = num_builds

    def num_builds(self, worker: WorkerId) -> int:
        """Stages that it was given and has not built yet."""
        return self._builds[worker]

    def give(self, worker: WorkerId, stage: int) -> str:
        """The directory for its parts: no other worker, nor the same one again, has the same."""
        self._builds[worker] += 1
        self._num_given += 1
        part = part_directory(stage, f"{self._run_id} {self._num_given}")
        self._parts[part] = worker, stage
        return part

    def built(self, worker: WorkerId) -> bool:
        """Whether that was the last one: it may have been given another stage meanwhile."""
        self._builds[worker] -= 1
        return not self._builds[worker]

    def forget(self, worker: WorkerId) -> None:
        """Whoever comes under its name has been given nothing."""
        self._builds[worker] = 0

    def drop_parts(self) -> None:
        """What somebody still writes is of steps that will run again."""
        self._parts.clear()

    def fire(self, fault: str) -> bool:
        """Whether that is news. One that lasts fires again on a worker that came back."""
        is_news = fault not in self._fired
        self._fired.add(fault)
        return is_news

    def faults_for(self, worker: WorkerId, faults: Iterable[Fault]) -> list[str]:
        mine = (f for f in faults if f.concerns(worker) and f.kind is not FaultKind.JOIN)
        return [str(fault) for fault in mine if fault.lasting or str(fault) not in self._fired]
