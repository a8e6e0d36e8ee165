"""The parts that a coordinator consists of, and who knows whom. Does nothing itself."""

from holdfast.control.inventory.losses import Losses, ProgressTracker
from holdfast.control.join.coming_machines import ComingMachines
from holdfast.control.join.draining import Draining
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
from holdfast.control.liveness.leases import Leases
from holdfast.control.liveness.left_out import LeftOutMachines
from holdfast.control.liveness.link_complaints import LinkComplaints
from holdfast.control.liveness.losing import Losing
from holdfast.control.liveness.lost_machines import LostMachines
from holdfast.control.liveness.stuck import StuckDetector
from holdfast.control.plans import Plans, SomePlanner
from holdfast.control.progress.reports import Reports
from holdfast.control.reconfigure.policies import Policies
from holdfast.control.reconfigure.reconfiguring import Reconfigurations
from holdfast.control.restore.log_policy import LogPolicy
from holdfast.control.state.run import Run
from holdfast.control.straggler.mitigation import Mitigating
from holdfast.control.straggler.monitor import StragglerMonitor


class CoordinatorParts:
    """In the order in which each needs those before it."""

    def __init__(self, run: Run, planner: SomePlanner | None, policies: Policies) -> None:
        workers, links = run.config.workers, LinkComplaints()
        self.tracker = tracker = ProgressTracker()
        self.losses = losses = Losses()
        self.plans = plans = Plans(run, planner)
        self.reports = reports = Reports(run)
        self.starting = starting = Starting(run, tracker, plans)
        self.joining = joining = Joining(run, tracker, plans)
        self.coming_machines = coming_machines = ComingMachines(run, joining.admission.seating)
        recovery = RecoveryParts(run, tracker, losses, plans, reports, joining)
        self.recovery_policy = policy = policies.recovery(recovery)
        self.reconfigurations = reconfigurations = Reconfigurations(recovery, policy)
        self.replacing = replacing = Replacing(run, reports, joining, policy)
        self.stuck_detector = stuck_detector = StuckDetector(
            workers.stuck_limit_s, workers.start_limit_s
        )
        self.losing = losing = Losing(
            run, tracker, losses, reports, joining, reconfigurations, links
        )
        self.lost_machines = lost_machines = LostMachines(run, coming_machines, losing)
        self.left_out = left_out = LeftOutMachines(run, lost_machines)
        self.complaints = complaints = Complaints(
            run, reports, joining, reconfigurations, losing, left_out, links
        )
        self.failure_detector = failure_detector = FailureDetector(
            run, joining, reconfigurations, stuck_detector, losing, lost_machines
        )
        self.notices = FailureNotices(
            run,
            tracker,
            losses,
            starting,
            reports,
            replacing,
            lost_machines,
            losing,
            complaints,
            failure_detector,
        )
        self.switching = switching = Switching(run, tracker)
        self.log_policy = LogPolicy(run, reports)
        self.deadline = Deadline(run)
        self.leases = Leases(run, reports)
        self.straggler_monitor = StragglerMonitor(run)
        self.mitigating = Mitigating(run, plans, policy, policies.stragglers(run, plans))
        self.moving = moving = Moving(run, plans, tracker, switching)
        self.draining = Draining(run, moving)
