"""The batch script of a Slurm job: commented, to be read and changed before it is submitted."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.launch.again import HAS_CHECKPOINT

_SCRIPT = """\
#!/bin/bash
# {written_by}
# Submit it with: sbatch FILE. Change what you like; Holdfast does not read it again.
#
{directives}

set -u
python={python}
# The job keeps its number when it is started again, and so finds its run directory: one that the
# first node of any start sees. Else keep checkpoints at an address, s3://bucket/run.
run_dir={run_dir}{own_each}
saved={saved}

# Anew, or from the newest checkpoint of an earlier start.
if "$python" -c {has_checkpoint} "$saved" 2> /dev/null; then
  what=(--resume "$saved" --run-dir "$run_dir")
else
  what=(--run-dir "$run_dir"
    {train})
  [ ! -e "$run_dir" ] || mv "$run_dir" "$run_dir.before-${{SLURM_RESTART_COUNT:-0}}"
fi

# Told to end, {notice_s} s before the time limit: the step is finished and a checkpoint saved, and
# the job goes back into the queue. So it does if the coordinator is killed (not by Ctrl-C), in the
# first {most_restarts} starts. A job that is cancelled does not run any more, and stays away.
told=0
train=
trap 'told=1; [ -z "$train" ] || kill -TERM "$train"' TERM

# The coordinator runs here, on the first node; it starts an agent on every node by srun.
# {spare_words} Each job listens on a port of its own.
port=$((20000 + SLURM_JOB_ID % 20000))
"$python" -m holdfast train --cluster {cluster} \\
  --machines {machines} --start-with {start_with} \\
  --listen "$(hostname):$port" "${{what[@]}}" &
train=$!
[ "$told" = 0 ] || kill -TERM "$train" # told while it was being started
wait "$train"
while kill -0 "$train" 2> /dev/null; do
  wait "$train" # a signal interrupts it
done
wait "$train"
code=$?
again=0
[ "$told" = 1 ] && [ "$code" != 0 ] && again=1
[ "$code" -gt 128 ] && [ "$code" != 130 ] \\
  && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {most_restarts} ] && again=1
if [ "$again" = 1 ] \\
  && [ "$(squeue -h -j "$SLURM_JOB_ID" -o %T)" = RUNNING ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""
_MOST_RESTARTS = 5  # after a kill: it may come each time
_DIRECTIVES = (
    ("--job-name={name}", ""),
    ("--nodes={nodes}", "{nodes_words}"),
    ("--ntasks-per-node=1", "one agent a node; it starts the workers there"),
    ("--no-kill", "a node that fails does not end the job"),
    ("--requeue", "the job is started again when its first node fails"),
    ("--open-mode=append", "the output of all starts in one file"),
    ("--output={log}", ""),
    ("--signal=B:TERM@{notice_s}", "a word in time before the time limit"),
)


@dataclass(frozen=True, slots=True)
class SlurmJob:
    job: str
    nodes: int
    python: str
    written_by: str
    spares: int = 0
    slots: int | None = None
    name: str = "holdfast"
    run_dir: str = "runs/holdfast-$SLURM_JOB_ID"
    notice_s: int = 120
    options: Sequence[str] = ()  # of sbatch, such as partition=gpu
    train: Sequence[str] = field(default=())  # of the run
    address: str = ""  # of its checkpoints; empty: they are in the run directory


def script_of(job: SlurmJob) -> str:
    nodes = job.nodes + job.spares
    words = {
        "name": job.name,
        "nodes": nodes,
        "nodes_words": f"{job.nodes} to train on, {job.spares} spare" if job.spares else "",
        "log": "%x-%j.log",
        "notice_s": job.notice_s,
    }
    rows = [(flag.format(**words), why.format(**words)) for flag, why in _DIRECTIVES]
    rows += [(f"--{option}", "") for option in job.options]
    lines = [f"#SBATCH {flag:<26} {f'# {why}' if why else ''}".rstrip() for flag, why in rows]
    spare_words = (
        f"It begins when {job.nodes} are there; the others are spares that take over."
        if job.spares
        else "It begins when all are there."
    )
    return _SCRIPT.format(
        written_by=job.written_by,
        directives="\n".join(lines),
        python=shlex.quote(job.python),
        run_dir=_double_quoted(job.run_dir),
        own_each=".${SLURM_RESTART_COUNT:-0}" if job.address else "",
        saved=shlex.quote(job.address) if job.address else '"$run_dir"',
        has_checkpoint=shlex.quote(HAS_CHECKPOINT),
        train=shlex.join([job.job, *job.train]),
        spare_words=spare_words,
        cluster="slurm" if job.slots is None else f"slurm:{job.slots}",
        machines=nodes,
        start_with=job.nodes,
        notice_s=job.notice_s,
        most_restarts=_MOST_RESTARTS,
    )


def _double_quoted(text: str) -> str:
    """Variables of the job are filled in, nothing else."""
    for letter in ("\\", '"', "`"):
        text = text.replace(letter, f"\\{letter}")
    return f'"{text}"'
