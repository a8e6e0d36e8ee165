"""What a coordinator has left in its journal, as little of it as there can be."""

from typing import Any

from holdfast.config import RunConfig
from holdfast.control.takeover import snapshot as s
from holdfast.control.takeover.snapshot import RunSnapshot, to_record

JOB_SHA256 = "5a" * 32
RUN_ID = "0a1b2c3d4e5f6071"


def a_snapshot(address: str) -> RunSnapshot:
    steady = s.SteadyRow("1f1b", 0.1, "")
    return RunSnapshot(
        run_id=RUN_ID,
        address=address,
        resumed="",
        phase="TRAINING",
        epoch=1,
        next_step=0,
        cut=s.CutRow([1], s.CostRow([0.1], [0.1], [0.1], [0.1], [0.1], 0.0), False, "", 4),
        first=steady,
        steady=steady,
        steady_from=0,
        planned_for={},
        stages={},
        rolling_back={},
        workers={},
        hello_kinds=[],
        hellos={},
        parts={},
        num_given=0,
        fired=[],
        joins_used=[],
        seats={},
        by_hand=[],
        left_out=[],
        draining=[],
        rules=[],
        compared_from=0,
        log=s.LogRow([], {}, 0, 0),
        times=s.TimesRow([], 0.0, 0.0),
        nonfinite=s.NonfiniteRow(-1, -1, "", 0, 0, 0, 0, ""),
        validations=[],
        validated=-1,
    )


def a_record(config: RunConfig, address: str, launch: int = 1) -> dict[str, Any]:
    """As ``RunJournal`` writes it."""
    facts = {
        "launch": launch,
        "settings": config.to_dict(),
        "job": "/job.py",
        "job_sha256": JOB_SHA256,
        "origin": "job.py",
        "faults": [],
    }
    return {"run": facts, "snapshot": to_record(a_snapshot(address))}
