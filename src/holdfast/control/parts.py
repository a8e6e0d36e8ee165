"""The parts that a coordinator consists of, and who knows whom. Does nothing itself."""

from dataclasses import dataclass

from holdfast.control.inventory.losses import Losses, ProgressTracker
from holdfast.control.join.joining import Joining
from holdfast.control.join.moving import Moving
from holdfast.control.join.recovery_parts import RecoveryParts
from holdfast.control.join.replacing import Replacing
from holdfast.control.join.starting import Starting
from holdfast.control.join.switching import Switching
from holdfast.control.liveness.complaints import Complaints
from holdfast.control.liveness.deadline import Deadline
from holdfast.control.liveness.failure_detector import FailureDetector
from holdfast.control.liveness.failure_notices import FailureNotices
from holdfast.control.liveness.link_complaints import LinkComplaints
from holdfast.control.liveness.losing import Losing
from holdfast.control.liveness.stuck import StuckDetector
from holdfast.control.plans import Plans, SomePlanner
from holdfast.control.progress.reports import Reports
from holdfast.control.reconfigure.policies import Policies, RecoveryPolicy
from holdfast.control.reconfigure.reconfiguring import Reconfigurations
from holdfast.control.restore.log_policy import LogPolicy
from holdfast.control.state.run import Run
from holdfast.control.straggler.mitigation import Mitigating
from holdfast.control.straggler.monitor import StragglerMonitor


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
        recovery = RecoveryParts(run, work, losses, plans, reports, joining)
        policy = policies.recovery(recovery)
        changes = Reconfigurations(recovery, policy)
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
