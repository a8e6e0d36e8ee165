"""What a run is given and never changes. Knows nothing of what becomes of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from holdfast.cluster import WorkerId
from holdfast.config import RunConfig
from holdfast.control.checks import NOTHING, Accepted
from holdfast.errors import ResumeFrom
from holdfast.faults.fault import Fault
from holdfast.schedule.operation import Shape
from holdfast.schedule.schedule import Schedule
from holdfast.storage.manifest import Checkpoint
from holdfast.storage.run_paths import state_name


def resume_call(directory: str) -> str:
    return str(ResumeFrom(directory))


@dataclass(frozen=True)
class Settings:
    config: RunConfig
    run_dir: str
    resume: Checkpoint | None
    faults: Sequence[Fault] = ()
    address: str = ""  # HOST:PORT for those who want to join
    schedule: Schedule | None = None  # lanes of the user's own; only the workers in it are started
    timeouts: Callable[[], float] | None = None  # for what an answer takes; None: times of stimuli
    run_id: str = ""  # no other run has the same
    join_with: str = ""  # what else they have to say on the command line
    accepted: Accepted = NOTHING
    resume_with: Callable[[str], str] = resume_call  # a directory -> how to go on from there
    num_cores: int = 0  # of the machine that the run is started on; 0: not known

    @cached_property
    def shape(self) -> Shape:
        parallel = self.config.parallel
        return Shape(parallel.pipelines, parallel.stages, parallel.microbatches)

    @cached_property
    def known(self) -> tuple[WorkerId, ...]:
        """Every name that a worker of this run can have."""
        pipelines, stages = range(self.shape.pipelines), range(self.shape.stages)
        return tuple(WorkerId(pipeline, stage) for pipeline in pipelines for stage in stages)

    @cached_property
    def first_stages(self) -> Mapping[WorkerId, int]:
        """Of the workers that are started with the run."""
        if self.schedule is not None:
            return {w: lane[-1].stage for w, lane in self.schedule.lanes.items() if lane}
        return {worker: worker.stage for worker in self.known}

    @property
    def staggered(self) -> bool:
        return self.config.optimizer.mode == "staggered"

    def now(self, at_s: float) -> float:
        """After some work was done since ``at_s``."""
        return at_s if self.timeouts is None else self.timeouts()

    def name_of(self, directory: str) -> str:
        """Of a state, as the workers are told of it."""
        return state_name(self.run_dir, directory, self.config.checkpoint.dir)
