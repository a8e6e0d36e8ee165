"""Lanes run by threads on the in-memory transport: the same parameters, whoever ran what."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn, optim

from helpers.harness.transport_harness import Background, wait_until
from holdfast.cluster import WorkerId
from holdfast.config import RunConfig, config_from
from holdfast.data.batches import Batches
from holdfast.errors import DataError, HoldfastError, JobError, PeerLost
from holdfast.faults.injection import Injector
from holdfast.job import Job
from holdfast.protocol import messages
from holdfast.protocol.half_done import to_record
from holdfast.runtime.link.lease import Lease
from holdfast.runtime.state import saving
from holdfast.runtime.state.state_keeping import StateKeeping
from holdfast.runtime.step.stage_runner import StageTraining
from holdfast.schedule.generate import one_f_one_b
from holdfast.schedule.operation import Shape
from holdfast.schedule.running import RunningStep
from holdfast.schedule.schedule import loads
from holdfast.storage.places import Places
from holdfast.transport.base import ALONE, Bundle, Channel, Tag
from holdfast.transport.local.transport import LocalHub, LocalTransport

MICROBATCHES, STEPS = 6, 3
WIDTH = 4
ALICE = WorkerId(0, 0)

SPLIT = """schedule pipelines=1 stages=2 microbatches=6
0.0: 0F0 0F1 0F2 0B0 0F3 0B1 0W0 0BW2 0F4 0B3 0F5 0BW4 0B5 0W1 0W3 0W5 0R
0.1: 1F0 1B0 1F1 1B1 1F2 1BW2 1F3 1B3 1W0 1F4 1B4 1F5 1B5 1W5 1W1 1W4 1W3 1R
"""
# Two holders of the first stage, three of the second, and micro-batches that change pipelines.
UNEVEN = """schedule pipelines=1 stages=2 microbatches=6
0.0: 0F0 0F1 0F5 0BW0 0BW1 0BW5 0R
1.0: 0F2 0F3 0F4 0B2 0BW3 0B4 0W4 0W2 0R
0.1: 1F0 1BW0 1F4 1BW4 1R
1.1: 1F2 1BW2 1F1 1BW1 1R
2.1: 1F3 1B3 1F5 1B5 1W5 1W3 1R
"""


pytestmark = pytest.mark.usefixtures("one_thread")


class Split(nn.Module):
    """One tensor in; out come two floating ones around an integer one."""

    def __init__(self) -> None:
        super().__init__()
        self.main, self.side = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, values: Tensor) -> tuple[Tensor, ...]:
        return self.main(values), values.argmax(-1), self.side(values)


class Mix(nn.Module):
    """Uses the integers, passes all on; nothing it computes depends on the third tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.drop = nn.Embedding(WIDTH, WIDTH), nn.Dropout(0.25)

    def forward(self, values: Tensor, places: Tensor, side: Tensor) -> tuple[Tensor, ...]:
        return self.drop(values + self.table(places)), places, side


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, values: Tensor, places: Tensor, side: Tensor) -> Tensor:
        return self.out(self.norm(values) * (1 + places.unsqueeze(-1)))


def samples(poisoned: int | None = None) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(5)
    made = [
        (torch.randn(WIDTH, generator=generator), torch.randn(2, generator=generator))
        for _ in range(2 * MICROBATCHES * STEPS)
    ]
    if poisoned is not None:
        made[poisoned][1].fill_(torch.nan)
    return made


def tuples_job(clip_norm: float | None = None, poisoned: int | None = None) -> Job:
    torch.manual_seed(11)
    return Job(
        layers=[Split(), Mix(), Head()],
        loss=nn.functional.mse_loss,
        optimizer=partial(optim.AdamW, lr=0.05),
        data=samples(poisoned),
        microbatch_size=2,
        clip_norm=clip_norm,
    )


class Wide(nn.Module):
    """Hands on ``count`` tensors."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count, self.scale = count, nn.Parameter(torch.ones(()))

    def forward(self, values: Tensor) -> tuple[Tensor, ...]:
        return tuple(values * self.scale * i for i in range(self.count))


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, 2)

    def forward(self, *values: Tensor) -> Tensor:
        return self.out(torch.stack(values).sum(0))


def wide_job(count: int) -> Job:
    torch.manual_seed(11)
    return Job(
        layers=[Wide(count), Sum()],
        loss=nn.functional.mse_loss,
        optimizer=partial(optim.SGD, lr=0.01),
        data=samples(),
        microbatch_size=2,
    )


class NumbersOnly(nn.Module):
    """A first stage without parameters whose whole output is integers."""

    def forward(self, values: Tensor) -> Tensor:
        return values.argmax(-1)


def integer_job() -> Job:
    torch.manual_seed(11)
    return Job(
        layers=nn.Sequential(NumbersOnly(), nn.Embedding(WIDTH, 2)),
        loss=nn.functional.mse_loss,
        optimizer=partial(optim.SGD, lr=0.1),
        data=samples(),
        microbatch_size=2,
    )


class Recording(LocalTransport):
    """Remembers what it sent."""

    def __init__(self, me: WorkerId, hub: LocalHub) -> None:
        super().__init__(me, hub)
        self.sent: list[Tag] = []

    def send(self, to: WorkerId, tag: Tag, tensor: Tensor, bundle: Bundle = ALONE) -> None:
        self.sent.append(tag)
        super().send(to, tag, tensor, bundle)

    def attempts(self, step: int, channel: Channel) -> set[int]:
        return {tag.attempt for tag in self.sent if (tag.step, tag.channel) == (step, channel)}


class Hasty(Recording):
    """Sees no verdict before it has sent something of the next step: its trust comes first."""

    def has(self, source: WorkerId, tag: Tag) -> bool:
        if tag.channel is Channel.VERDICT and not any(t.step > tag.step for t in self.sent):
            return False
        return super().has(source, tag)


@dataclass
class Cluster:
    """Workers as threads, wired as a worker process would be, without launcher or sockets."""

    schedule: str
    make_job: Callable[[], Job]
    cut: Sequence[int]
    settings: dict
    hasty: frozenset[WorkerId] = frozenset()
    wait_s: float = 20.0
    hub: LocalHub = field(default_factory=LocalHub)
    transports: dict[WorkerId, Recording] = field(default_factory=dict)
    trainings: dict[WorkerId, StageTraining] = field(default_factory=dict)
    reports: dict[WorkerId, list[messages.StepReport]] = field(default_factory=dict)
    parts: list[messages.CheckpointPart] = field(default_factory=list)
    failed_parts: list[messages.PartFailed] = field(default_factory=list)
    check: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        lanes = loads(self.schedule).lanes
        for worker in lanes:
            kind = Hasty if worker in self.hasty else Recording
            self.transports[worker] = kind(worker, self.hub)
        for worker in lanes:
            self.trainings[worker] = self._build(worker)

    @property
    def places(self) -> Places:
        return Places("unused", "", "", "")

    @property
    def config(self) -> RunConfig:
        plain = {
            "parallel": {"microbatches": MICROBATCHES},
            "train": {"steps": STEPS},
            "checkpoint": {"every_steps": 0, "at_end": False},
        }
        return config_from(plain | self.settings)

    def _build(self, worker: WorkerId) -> StageTraining:
        job = self.make_job()
        return StageTraining(
            me=worker,
            config=self.config,
            job=job,
            batches=Batches(job, 0, MICROBATCHES),
            transport=self.transports[worker],
            assign=self._assign(worker),
            keeping=StateKeeping(self.config),
            places=self.places,
            tell=partial(self._hear, worker),
            check=lambda: self.check(),
            lease=Lease(is_needed=False),
            injector=Injector([], lambda *_: None),
        )

    def _hear(self, worker: WorkerId, message: messages.Message) -> None:
        if isinstance(message, messages.StepReport):
            self.reports.setdefault(worker, []).append(message)
        if isinstance(message, messages.CheckpointPart):
            self.parts.append(message)
        if isinstance(message, messages.PartFailed):
            self.failed_parts.append(message)

    def _assign(self, worker: WorkerId) -> messages.Assign:
        return messages.Assign(
            stage=worker.stage,
            cut=list(self.cut),
            checkpoint="",
            first_step=0,
            beat_s=1.0,
            wait_s=self.wait_s,
            log=None,
            faults=[],
            part="stage-0.0a1b2c3d",
        )

    @property
    def proceed(self) -> messages.Proceed:
        return messages.Proceed(
            epoch=1,
            stages={str(worker): worker.stage for worker in self.trainings},
            addresses={},
            running=[],
            schedule=self.schedule,
            first_step=0,
            end_step=STEPS,
            verdicts={},
            saved={},
            saves=[],
        )

    def start(self, worker: WorkerId) -> Background:
        self.transports[worker].advance(1)
        return Background(self.trainings[worker].run, self.proceed)

    def run(self) -> dict[str, str]:
        """Train to the end; the digest of every layer, on which all holders agree."""
        running = [self.start(worker) for worker in self.trainings]
        for call in running:
            call.result()
        digests: dict[str, str] = {}
        for training in self.trainings.values():
            for layer, digest in training.finished(0, 0).digests.items():
                assert digests.setdefault(layer, digest) == digest, f"layer {layer} differs"
        return digests

    def losses(self, step: int) -> list[float]:
        """Every holder of the last stage reports all of them."""
        found = [reports[step].losses for reports in self.reports.values() if reports[step].losses]
        assert found
        assert all(losses == found[0] for losses in found)
        return [row.loss for row in found[0]]


def plain(pipelines: int, stages: int) -> str:
    return one_f_one_b(Shape(pipelines, stages, MICROBATCHES)).dumps()


def cluster(
    schedule: str, make_job=tuples_job, cut=(), hasty: Sequence[WorkerId] = (), **sections
) -> Cluster:
    return Cluster(schedule, make_job, cut, sections, frozenset(hasty))


@pytest.fixture(scope="module")
def alone() -> Cluster:
    """One worker, one stage: nothing to disagree with."""
    made = cluster(plain(1, 1))
    made.run()
    return made


@pytest.mark.parametrize(
    ("schedule", "cut"),
    [
        (plain(1, 2), (1,)),
        (plain(1, 2), (2,)),
        (plain(1, 3), (1, 2)),
        (plain(3, 1), ()),
        (plain(2, 2), (1,)),
        (SPLIT, (1,)),
        (SPLIT, (2,)),
        (UNEVEN, (1,)),
        (UNEVEN, (2,)),
    ],
    ids=["1x2", "1x2 late", "1x3", "3x1", "2x2", "split", "split late", "uneven", "uneven late"],
)
@pytest.mark.parametrize("mode", ["staggered", "global"])
def test_tuples_and_integers_cross_boundaries_and_no_layout_shows_in_the_result(
    alone, schedule, cut, mode
):
    other = cluster(schedule, cut=cut, optimizer={"mode": mode})
    assert other.run() == alone.trainings[ALICE].finished(0, 0).digests
    for step in range(STEPS):
        assert other.losses(step) == alone.losses(step)


def test_training_changed_every_layer(alone):
    torch.manual_seed(11)
    untrained = cluster(plain(1, 1)).trainings[ALICE].finished(0, 0).digests
    trained = alone.trainings[ALICE].finished(0, 0).digests
    assert set(untrained) == {"0", "1", "2"}
    assert all(trained[layer] != untrained[layer] for layer in untrained)


def test_a_stage_without_parameters_and_without_gradients_can_be_the_first():
    one, two = cluster(plain(1, 1), integer_job), cluster(plain(1, 2), integer_job, (1,))
    assert one.run() == two.run()
    sent = two.transports[WorkerId(0, 1)].sent
    assert Channel.GRADIENT not in {tag.channel for tag in sent}


def test_sixteen_tensors_cross_a_boundary_and_seventeen_are_refused():
    one = cluster(plain(1, 1), partial(wide_job, 16))
    two = cluster(plain(1, 2), partial(wide_job, 16), (1,))
    assert one.run() == two.run()
    too_many = cluster(plain(1, 2), partial(wide_job, 17), (1,))
    with pytest.raises(HoldfastError, match="stage 0 hands on 17 tensors; at most 16"):
        too_many.start(ALICE).result()


def test_every_operation_of_the_lane_is_reported_once_and_in_order():
    run = cluster(SPLIT, cut=(1,))
    run.run()
    for worker, lane in loads(SPLIT).lanes.items():
        for report in run.reports[worker]:
            assert [text for text, *_ in report.operations] == [str(op) for op in lane]
            times = [
                time_s for _, start_s, end_s, *_ in report.operations for time_s in (start_s, end_s)
            ]
            assert times == sorted(times)


@pytest.mark.parametrize("lost", [WorkerId(0, 1), WorkerId(1, 0)], ids=["next stage", "replica"])
def test_a_worker_whose_peer_closes_its_transport_hears_who_is_lost(lost):
    run = cluster(plain(2, 2), cut=(1,))
    waiting = run.start(ALICE)
    if lost.stage == ALICE.stage:  # let it come as far as the reduction
        run.start(WorkerId(0, 1))
        wait_until(lambda: any(t.channel is Channel.PARTIAL for t in run.transports[ALICE].sent))
    waiting.wait_until_blocked()
    run.transports[lost].close()
    with pytest.raises(PeerLost) as error:
        waiting.result()
    assert error.value.worker == str(lost)
    for transport in run.transports.values():
        transport.close()


# --- steps applied speculatively and taken back ---

WORKERS = [WorkerId(pipeline, stage) for pipeline in range(2) for stage in range(2)]
ALWAYS_CLIPPED = partial(tuples_job, 1e-3)


def in_mode(mode: str, job: Callable[[], Job], hasty: Sequence[WorkerId] = ()) -> Cluster:
    return cluster(plain(2, 2), job, (1,), hasty, optimizer={"mode": mode})


@pytest.mark.parametrize("hasty", [[ALICE], [ALICE, WorkerId(1, 0)]], ids=["one", "both"])
def test_a_clipped_step_taken_as_it_was_is_taken_back_and_the_next_one_begun_anew(hasty):
    trusting, waiting = (
        in_mode("staggered", ALWAYS_CLIPPED, hasty),
        in_mode("global", ALWAYS_CLIPPED),
    )
    assert trusting.run() == waiting.run()
    taken_back = {worker for worker in WORKERS if trusting.reports[worker][0].taken_back}
    assert set(hasty) <= taken_back
    assert not any(r.taken_back for worker in WORKERS for r in waiting.reports[worker])
    for worker in hasty:  # what was computed with the wrong weights went out as attempt 0
        assert trusting.transports[worker].attempts(1, Channel.ACTIVATION) == {0, 1}
        assert trusting.transports[worker].attempts(1, Channel.PARTIAL) == {1}
    for worker in WORKERS:
        assert trusting.transports[worker].attempts(1, Channel.VERDICT) == {1}
        assert waiting.transports[worker].attempts(1, Channel.VERDICT) == {0}
    for step in range(STEPS):
        assert trusting.losses(step) == waiting.losses(step)


def test_operations_of_an_abandoned_attempt_are_reported_and_its_losses_are_not():
    run = in_mode("staggered", ALWAYS_CLIPPED, [ALICE])
    run.run()
    counts = Counter(text for text, *_ in run.reports[ALICE][1].operations)
    assert counts["0F0"] == 2
    assert counts["0R"] == 1
    for step in range(STEPS):
        assert len(run.losses(step)) == MICROBATCHES


def test_after_a_bad_verdict_nobody_trusts_until_a_good_one_came():
    run = in_mode("staggered", ALWAYS_CLIPPED, [ALICE])
    run.run()
    assert run.reports[ALICE][0].taken_back
    assert [report.taken_back for report in run.reports[ALICE][1:]] == [False] * (STEPS - 1)
    assert run.transports[ALICE].attempts(2, Channel.ACTIVATION) == {1}


def test_a_nan_in_one_step_leaves_that_step_out_for_everyone():
    batches = Batches(tuples_job(), 0, MICROBATCHES)
    poison = partial(tuples_job, None, batches.indices(1, 2)[0])
    trusting, waiting = in_mode("staggered", poison, [ALICE]), in_mode("global", poison)
    assert trusting.run() == waiting.run() == cluster(plain(1, 1), poison).run()
    for run in (trusting, waiting):
        for worker in WORKERS:
            assert [report.skipped for report in run.reports[worker]] == [False, True, False]
    assert trusting.reports[ALICE][1].taken_back
    assert not trusting.reports[ALICE][0].taken_back


def test_a_worker_ends_only_when_its_last_part_is_on_disk_however_long_that_takes(
    tmp_path, monkeypatch
):
    begun, freed = threading.Event(), threading.Event()

    def write(folder, tensors):
        begun.set()
        assert freed.wait(20)
        return {}

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(saving, "write_part", write)
    settings = {"checkpoint": {"every_steps": 0, "at_end": True}}
    run = Cluster(plain(1, 1), tuples_job, (), settings, wait_s=0.0)
    run.check = lambda: freed.set() if begun.is_set() else None  # asked while it waits
    run.run()
    assert [part.step for part in run.parts] == [STEPS]


def test_a_last_part_that_is_never_written_is_told_after_its_limit(tmp_path, monkeypatch):
    freed = threading.Event()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(saving, "write_part", lambda folder, tensors: freed.wait(20) and {})
    run = cluster(plain(1, 1), checkpoint={"every_steps": 0, "at_end": True, "write_limit_s": 0.01})
    run.run()
    freed.set()
    [failed] = run.failed_parts
    assert failed.step == STEPS
    assert "is still being written" in failed.reason


class Leaves(nn.Module):
    """Ends the process, or tries to, when it is asked for the ninth time."""

    def __init__(self) -> None:
        super().__init__()
        self.out, self.num_asked = nn.Linear(WIDTH, 2), 0

    def forward(self, values: Tensor) -> Tensor:
        self.num_asked += 1
        if self.num_asked > MICROBATCHES + 2:
            raise SystemExit(3)
        return self.out(values)


def leaving_job() -> Job:
    torch.manual_seed(11)
    return Job(
        layers=[Leaves()],
        loss=nn.functional.mse_loss,
        optimizer=partial(optim.SGD, lr=0.01),
        data=samples(),
        microbatch_size=2,
    )


def test_a_layer_that_calls_exit_is_named_and_ends_no_worker():
    with pytest.raises(JobError) as caught:
        cluster(plain(1, 1), leaving_job).run()
    assert caught.value.step == 1
    cause = caught.value.__cause__
    assert isinstance(cause, SystemExit)
    assert cause.__notes__ == ["in layer 0 (Leaves), input (2, 4)"]


class BadLater(list):
    """Samples of which none can be read any more, from some moment on."""

    is_bad = False

    def __getitem__(self, index):
        if self.is_bad:
            raise OSError("gone")
        return super().__getitem__(index)


def test_a_sample_that_is_bad_when_an_operation_is_run_again_is_told_with_its_step():
    data = BadLater(samples())

    def bad_later_job() -> Job:
        return replace(tuples_job(), data=data)

    run = cluster(plain(1, 2), bad_later_job, (1,))
    run.run()
    data.is_bad = True
    lanes = loads("schedule pipelines=1 stages=2 microbatches=6\n0.0: 0F0\n0.1:\n")
    half_done = to_record(RunningStep.whole(STEPS - 1, 0, lanes))
    run.transports[ALICE].advance(2)
    with pytest.raises(JobError) as caught:
        run.trainings[ALICE].run(replace(run.proceed, epoch=2, running=[half_done]))
    assert caught.value.step == STEPS - 1
    assert isinstance(caught.value.__cause__, DataError)


class Moody(list):
    """Raises at its first sample."""

    num_raised = 0

    def __getitem__(self, index):
        if not self.num_raised:
            self.num_raised += 1
            raise OSError("not now")
        return super().__getitem__(index)


def test_a_pause_before_the_data_set_is_asked_again_is_no_part_of_loading(monkeypatch):
    data, seen = Moody(samples()), []

    def make_job() -> Job:
        return replace(tuples_job(), data=data)

    def look() -> None:
        seen.append(cluster.trainings[ALICE].activity.current)

    one = "schedule pipelines=1 stages=1 microbatches=6\n0.0: "
    one += " ".join(f"0F{number} 0BW{number}" for number in range(6)) + " 0R\n"
    monkeypatch.setitem(globals(), "Batches", partial(Batches, retries=1, pause_s=0.05))
    cluster = Cluster(one, make_job, [], {})
    monkeypatch.setattr("holdfast.runtime.job.job_code.time", Watched(look))
    cluster.run()
    assert data.num_raised == 1
    assert seen
    assert set(seen) == {None}


class Watched:
    """The module ``time``; calls ``look`` at every sleep."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look

    def sleep(self, seconds: float) -> None:
        self._look()
        time.sleep(seconds)

    def __getattr__(self, name: str) -> Callable[[], float]:
        return getattr(time, name)
