"""The parts that a coordinator consists of, and who knows whom. Does nothing itself."""

from dataclasses import dataclass

from holdfast.control.complaints import Complaints
from holdfast.control.deadline import Deadline
from holdfast.control.joining import Joining
from holdfast.control.links import LinkComplaints
from holdfast.control.liveness import FailureDetector
from holdfast.control.log_policy import LogPolicy
from holdfast.control.losing import Losing
from holdfast.control.losses import Losses, ProgressTracker
from holdfast.control.mitigating import Mitigating
from holdfast.control.moving import Moving
from holdfast.control.notices import FailureNotices
from holdfast.control.plans import Plans, SomePlanner
from holdfast.control.policies import Policies, PolicyParts, RecoveryPolicy
from holdfast.control.progress import StuckDetector
from holdfast.control.reconfiguring import Reconfigurations
from holdfast.control.replacing import Replacing
from holdfast.control.reports import Reports
from holdfast.control.run import Run
from holdfast.control.slowness import StragglerMonitor
from holdfast.control.starting import Starting
from holdfast.control.switching import Switching


@dataclass(frozen=True)
class CoordinatorParts:
    work: ProgressTracker
    losses: Losses
    plans: Plans
    reports: Reports
    starting: Starting
    joining: Joining
    changes: Reconfigurations
    replacing: Replacing
    progress: StuckDetector
    losing: Losing
    complaints: Complaints
    liveness: FailureDetector
    notices: FailureNotices
    log_policy: LogPolicy
    deadline: Deadline
    policy: RecoveryPolicy
    switching: Switching
    slowness: StragglerMonitor
    mitigating: Mitigating
    moving: Moving

    @classmethod
    def of(cls, run: Run, planner: SomePlanner | None, policies: Policies) -> "CoordinatorParts":
        workers = run.config.workers
        work, losses, links = ProgressTracker(), Losses(), LinkComplaints()
        plans, reports, starting = Plans(run, planner), Reports(run), Starting(run, work)
        joining = Joining(run, work, plans)
        policy = policies.recovery(PolicyParts(run, work, plans, reports, joining))
        changes = Reconfigurations(run, work, losses, plans, reports, joining, policy)
        replacing = Replacing(run, reports, joining, policy)
        progress = StuckDetector(workers.stuck_limit_s, workers.start_limit_s)
        losing = Losing(run, work, losses, reports, joining, changes, links)
        complaints = Complaints(run, reports, joining, changes, losing, links)
        liveness = FailureDetector(run, joining, changes, progress, losing)
        switching = Switching(run, work)
        return cls(
            work=work,
            losses=losses,
            plans=plans,
            reports=reports,
            starting=starting,
            joining=joining,
            changes=changes,
            replacing=replacing,
            progress=progress,
            losing=losing,
            complaints=complaints,
            liveness=liveness,
            notices=FailureNotices(
                run, work, losses, starting, reports, replacing, losing, complaints, liveness
            ),
            log_policy=LogPolicy(run, reports),
            deadline=Deadline(run),
            policy=policy,
            switching=switching,
            slowness=StragglerMonitor(run),
            mitigating=Mitigating(run, plans, policy, policies.stragglers(run, plans)),
            moving=Moving(run, plans, work, switching),
        )
