"""What the demo has shown, in words: which faults fired, what was done, and the two digests."""

import sys
from pathlib import Path
from statistics import median
from typing import Any

from holdfast.observability.events import StepFinished
from holdfast.observability.log import EVENTS_FILE, read_events

FAULTS = ("slow 0.1 @ 21-40 x4.0", "kill 1.0 @ 54.B2", "join @ 58")
_SLOW = (20, 40)  # steps, counted from 0


class Report:
    """Everything is said, and kept for the file."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def say(self, line: str = "") -> None:
        self._lines.append(line)
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    def write(self, path: Path) -> None:
        path.write_text("# Demo\n\n```text\n" + "\n".join(self._lines) + "\n```\n")
        sys.stdout.write(f"report in {path}\n")

    def compare(self, calm: dict[str, Any], disturbed: dict[str, Any], run_dir: Path) -> bool:
        """Whether the faults fired, the slow worker was found and the parameters are the same.

        ``calm`` and ``disturbed`` are summaries; ``run_dir`` is the directory of the latter.
        """
        fired = set(disturbed["faults_fired"])
        self.say(f"\n{len(fired)} of {len(FAULTS)} faults fired: {'; '.join(sorted(fired))}")
        found = self._tell_slowness(disturbed, run_dir)
        for one in disturbed["recoveries"]:
            self.say(
                f"step {one['step'] + 1}, {one['cause']} of {', '.join(one['workers'])}: "
                f"went on after {one['seconds_to_resume']:.3f} s, "
                f"{one['redone']} operations done again"
            )
        self.say(f"undisturbed  sha256 {calm['parameters_sha256']}")
        self.say(f"disturbed    sha256 {disturbed['parameters_sha256']}")
        same = calm["parameters_sha256"] == disturbed["parameters_sha256"]
        if not same or len(fired) < len(FAULTS) or not found:
            self.say(
                "NOT as expected: the parameters differ, a fault did not fire, "
                "or nobody was found slow"
            )
            return False
        self.say("The parameters are the same, bit for bit.")
        return True

    def _tell_slowness(self, disturbed: dict[str, Any], run_dir: Path) -> bool:
        """What was found, what was done, and how fast training was meanwhile."""
        found = [
            one
            for one in disturbed["diagnoses"]
            if one["subject"] == "0.1" and one["step"] >= _SLOW[0]
        ]
        for one in found[:1]:
            self.say(
                f"step {one['step'] + 1}, {one['cause']}: {one['subject']} takes "
                f"{one['factor']:.2f} x as long since step {one['since'] + 1}"
            )
        for one in disturbed["switches"]:
            self.say(
                f"from step {one['step'] + 1} on another plan ({one['cause']}), without a stop"
            )
        switches = [one["step"] for one in disturbed["switches"]]
        self._tell_speeds(run_dir, [step for step in switches if _SLOW[0] < step < _SLOW[1]])
        return bool(found)

    def _tell_speeds(self, run_dir: Path, switches: list[int]) -> None:
        """``switches``: steps, among the slow ones, from which on another plan was used."""
        events = read_events(run_dir / EVENTS_FILE)
        took_s = {event.step: event.took_s for event in events if isinstance(event, StepFinished)}
        planned = switches[0] if switches else _SLOW[1]
        stretches = {
            "before": (5, _SLOW[0]),
            "slow, not yet planned around": (_SLOW[0], planned),
            "slow, planned around": (planned + 1, _SLOW[1]),
            "after": (_SLOW[1] + 6, 53),
        }
        for name, (first, last) in stretches.items():
            steps = [took_s[step] for step in range(first, last) if step in took_s]
            if steps:
                self.say(f"  {name:30} {1 / median(steps):5.2f} steps/s")
