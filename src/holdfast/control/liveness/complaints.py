"""Workers that wait in vain, or have lost a connection: all connect anew, or one is left out.

A complaint names no culprit. Whoever it is about may well live: it is judged in a moment.
"""

from holdfast.cluster import WorkerId, parse_worker
from holdfast.control.decide.reconfiguration import ChangeRequest
from holdfast.control.effects import Effect
from holdfast.control.join.joining import Joining
from holdfast.control.liveness.left_out import LeftOutMachines
from holdfast.control.liveness.link_complaints import Judgement, LinkComplaints, MachineSeats
from holdfast.control.liveness.losing import Losing
from holdfast.control.progress.reports import Reports
from holdfast.control.reconfigure.reconfiguring import Reconfigurations
from holdfast.control.state.lifecycle import RunPhase
from holdfast.control.state.run import Run
from holdfast.control.state.workers import membership as m
from holdfast.errors import ConfigError, HoldfastError
from holdfast.protocol import messages


class Complaints:
    def __init__(
        self,
        run: Run,
        reports: Reports,
        joining: Joining,
        reconfigurations: Reconfigurations,
        losing: Losing,
        left_out: LeftOutMachines,
        link_complaints: LinkComplaints,
    ) -> None:
        self._run, self._reports, self._joining = run, reports, joining
        self._reconfigurations, self._losing, self._left_out = reconfigurations, losing, left_out
        self._link_complaints = link_complaints
        self._stuck_in = -1  # step in which a wait has run out

    def on_peer_gone(self, gone: messages.PeerGone, at_s: float) -> list[Effect]:
        worker = parse_worker(gone.worker)
        if gone.epoch != self._run.epoch and worker in self._run.stages:
            return []  # everyone was told to stop since
        if not gone.lost:
            return self._stuck(worker, at_s)
        return self.complain(worker, parse_worker(gone.lost), at_s)

    def complain(self, by: WorkerId, about: WorkerId, at_s: float) -> list[Effect]:
        """About somebody who has left it says nothing."""
        stages, copies = self._run.stages, self._joining.copies
        if by not in stages or about not in stages:  # either end of a copy can tell that it broke
            joiner, source = (about, by) if by in stages else (by, about)
            return copies.complains(joiner, source, at_s)
        self._link_complaints.complain(by, about, self._run.epoch, at_s)
        return []

    def _stuck(self, worker: WorkerId, at_s: float) -> list[Effect]:
        """Nobody is gone, yet nothing comes: all stop, and whoever does not is the one."""
        if worker not in self._run.stages:
            try:
                return self._joining.copies.starves(worker, at_s)
            except ConfigError as why:
                return self._losing.refuse(worker, str(why), at_s)
        change = self._reconfigurations.current
        if change is not None and not change.is_resuming:
            # Whoever does not stop will be found, unless all wait for a replay.
            return self._reconfigurations.again(at_s) if self._reconfigurations.note_stuck() else []
        if self._stuck_in == self._reports.next_step:
            self._give_up_step(worker, at_s)
        self._stuck_in = self._reports.next_step
        if change is None:
            return self._reconfigurations.begin(ChangeRequest("stuck"), at_s)
        return self._reconfigurations.again(at_s)

    def _give_up_step(self, by: WorkerId, at_s: float) -> None:
        """What is in memory is saved first; raises if there is nothing new, or that fails too."""
        run = self._run
        why = (
            f"worker {by} waited in vain for {run.timeouts.wait_s:g} s, and again after all had "
            "been "
            "stopped and started"
        )
        if run.ending.gives_up_step or self._reports.next_step <= run.start[1]:
            raise HoldfastError(f"{why}. {run.advice}")
        run.ending.ask_before_step(why, at_s)

    def mend_links(self, at_s: float) -> list[Effect]:
        """All stop and connect anew; whoever complains has stopped already."""
        run = self._run
        if run.phase is not RunPhase.TRAINING or self._link_complaints.is_quiet:
            return []
        machines, limit_s = run.machines, run.timeouts.wait_s
        seats = MachineSeats(machines.seats, machines.own) if machines.are_many else MachineSeats()
        judged = self._link_complaints.judge(at_s, run.epoch, run.stages, limit_s, seats)
        effects = self._leave_out(judged, seats, at_s)
        if effects or not judged.mend:
            return effects
        change = self._reconfigurations.current
        if change is None:
            ends = sorted({end for link in judged.mend for end in link})
            return self._reconfigurations.begin(ChangeRequest("link", about=tuple(ends)), at_s)
        if not change.is_resuming and not self._reconfigurations.note_stuck():
            return []
        return self._reconfigurations.again(at_s, "link")

    def _leave_out(self, judged: Judgement, seats: MachineSeats, at_s: float) -> list[Effect]:
        effects: list[Effect] = []
        for worker in judged.leave_out:
            others = {end for link in judged.mend if worker in link for end in link} - {worker}
            cause = f"no connection to {', '.join(map(str, sorted(others)))}, again and again"
            effects += self._losing.lose(m.PeerComplained(worker, at_s), cause)
        if judged.machines:
            links = [between for link in judged.mend if (between := seats.between(link))]
            effects += self._left_out.leave_out(judged.machines, links, at_s)
        return effects
