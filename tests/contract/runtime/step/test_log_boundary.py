"""What of a training goes into the log: what travelled over logged boundaries, verdicts and
ties."""

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest
import torch
from test_executor import (
    MICROBATCHES,
    SPLIT,
    STEPS,
    UNEVEN,
    WIDTH,
    Cluster,
    cluster,
    plain,
    tuples_job,
)
from torch import Tensor, nn, optim

from helpers.harness.log_harness import LIMIT_S
from holdfast.cluster import WorkerId
from holdfast.errors import PeerLost
from holdfast.job import Job
from holdfast.protocol import messages
from holdfast.protocol.records import LogOrder
from holdfast.runtime.reduce.flat_layout import FlatLayout
from holdfast.runtime.reduce.reduction import Reduced
from holdfast.runtime.reduce.step_sums import Totals
from holdfast.runtime.reduce.verdict import Verdict
from holdfast.runtime.state.boundary_log import BoundaryLog, FileLog, open_log
from holdfast.runtime.update.commit import StepResult
from holdfast.schedule.operation import Kind, Op
from holdfast.storage.log.frame import FrameKind
from holdfast.storage.log.reader import LogReader
from holdfast.storage.log.segment import opened, read_segment_header, scan
from holdfast.storage.places import Places
from holdfast.transport.base import Channel

pytestmark = pytest.mark.usefixtures("one_thread")

RUN = "ab.3"
A, G = FrameKind.ACTIVATION, FrameKind.GRADIENT
GOOD = Verdict(1.0, None, False)


def order(**changed) -> LogOrder:
    """As it comes with ``Assign``."""
    plain = LogOrder(RUN, 0, [], [0, 1], 0)
    return plain._replace(**changed)


def places_of(root, mirror="") -> Places:
    return Places("unused", "", str(root), str(mirror))


class Told(list[messages.Message]):
    def of(self, kind: type) -> list:
        return [message for message in self if isinstance(message, kind)]


SLOTS = {0: [(0, "wte"), (0, "bias")], 1: [(1, "w")], 2: [(2, "w"), (2, "head")]}
TIES = [[(0, "bias"), (0, "wte")], [(0, "wte"), (2, "head")]]


@pytest.fixture
def make(tmp_path):
    made = []

    def start(
        stage: int = 1, every_steps: int = 0, mirror="", **changed
    ) -> tuple[BoundaryLog, Told]:
        told = Told()
        log = open_log(
            order(**changed),
            places_of(tmp_path, mirror),
            worker=WorkerId(0, stage),
            stage=stage,
            slots=SLOTS,
            ties=TIES,
            every_steps=every_steps,
            tell=told.append,
        )
        made.append(log)
        return log, told

    yield start
    for log in made:
        log.close()


def reader(root) -> LogReader:
    return LogReader.open(root, "", RUN)


def tensors(numel: int = 4) -> tuple[Tensor, ...]:
    return (torch.ones(numel),)


# --- in a training ---


class Sent:
    """Every boundary tensor that a worker sent, by what the log calls it."""

    def __init__(self, transport) -> None:
        self.found: dict[tuple, dict[int, Tensor]] = {}
        self._send = transport.send
        transport.send = self._note

    def _note(self, to, tag, tensor, *bundle) -> None:
        if tag.channel in (Channel.ACTIVATION, Channel.GRADIENT):
            kind = A if tag.channel is Channel.ACTIVATION else G
            name = (kind, tag.step, tag.attempt, tag.microbatch)
            self.found.setdefault(name, {})[tag.part] = tensor
        self._send(to, tag, tensor, *bundle)


@dataclass
class Logged(Cluster):
    """With a log on every worker."""

    root: Path = field(default_factory=Path)
    told: dict[WorkerId, Told] = field(default_factory=dict)

    @property
    def places(self) -> Places:
        return places_of(self.root)

    def _assign(self, worker: WorkerId) -> messages.Assign:
        return replace(super()._assign(worker), log=order())

    def _hear(self, worker: WorkerId, message: messages.Message) -> None:
        self.told.setdefault(worker, Told()).append(message)
        super()._hear(worker, message)

    def run(self) -> dict[str, str]:
        self.sent = {worker: Sent(transport) for worker, transport in self.transports.items()}
        digests = super().run()
        for training in self.trainings.values():
            assert training.log.flush(LIMIT_S)
            training.close()
        return digests


def logged(root, schedule: str, make_job=tuples_job, hasty=(), cut=(2,)) -> Logged:
    """A training that has been run to its end."""
    made = Logged(schedule, make_job, cut, {}, frozenset(hasty), root=root)
    made.digests = made.run()
    return made


@pytest.mark.parametrize("schedule", [plain(1, 2), plain(2, 2), SPLIT, UNEVEN])
@pytest.mark.parametrize("clip_norm", [None, 0.5], ids=["", "clipped"])
def test_the_log_has_all_that_travelled_bit_for_bit(tmp_path, schedule, clip_norm):
    made = logged(tmp_path, schedule, lambda: tuples_job(clip_norm))
    found, num_facts = reader(tmp_path), 0
    for worker, of_worker in made.sent.items():
        for (kind, step, attempt, microbatch), parts in of_worker.found.items():
            back = found.read(kind, worker.stage, step, attempt, microbatch)
            wanted = [parts[i] for i in sorted(parts)]
            assert len(back) == len(wanted)
            for one, other in zip(back, wanted, strict=True):
                assert torch.equal(one, other)
                assert (one.dtype, one.requires_grad) == (other.dtype, other.requires_grad)
            num_facts += 1
    assert num_facts >= 2 * MICROBATCHES * STEPS
    for step in range(STEPS):
        verdict = found.verdict(step)
        report = next(iter(made.reports.values()))[step]
        assert verdict.norm == report.norm
        assert (verdict.scale is not None, verdict.skip) == (report.clipped, report.skipped)
        if clip_norm is not None:
            assert verdict.scale is not None


def test_a_log_changes_no_bit_of_the_training(tmp_path):
    made = logged(tmp_path, plain(2, 2), cut=(1,))
    assert made.digests == cluster(plain(2, 2), cut=(1,)).run()
    assert all(training.finished(0, 0).log_bytes for training in made.trainings.values())


def tied_job() -> Job:
    torch.manual_seed(11)
    first, last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    last.weight = first.weight
    data = [(torch.randn(WIDTH), torch.randn(WIDTH)) for _ in range(2 * MICROBATCHES * STEPS)]
    return Job(
        layers=nn.Sequential(first, nn.Tanh(), last),
        loss=nn.functional.mse_loss,
        optimizer=partial(optim.SGD, lr=0.1),
        data=data,
        microbatch_size=2,
    )


def only_of(worker, root):
    """A reader that sees what this worker has written, and nothing else."""
    alone = root.with_name(f"{root.name}-{worker}")
    alone.mkdir()
    (alone / worker).symlink_to(root / worker)
    return reader(alone)


def test_both_stages_of_a_tie_log_the_same_gradient_of_every_step(tmp_path):
    made = logged(tmp_path, plain(1, 2), tied_job)
    found = reader(tmp_path)
    gradients = [found.tied(1, step, 0) for step in range(STEPS)]
    assert all(values.numel() == WIDTH * WIDTH and touched for values, touched in gradients)
    result = made.trainings[WorkerId(0, 0)].built.commit.result
    assert result.step == STEPS - 1
    assert torch.equal(gradients[-1][0], result.reduced.layout.padded(result.reduced.flat, 0))
    for worker in ("0.0", "0.1"):
        alone = only_of(worker, tmp_path)
        for step, (values, _) in enumerate(gradients):
            assert torch.equal(values, alone.tied(1, step, 0)[0])


def test_the_attempt_that_counts_is_in_the_log_beside_the_one_that_does_not(tmp_path):
    logged(tmp_path, plain(1, 2), lambda: tuples_job(clip_norm=0.5), hasty=[WorkerId(0, 0)])
    found = reader(tmp_path)
    for step in range(1, STEPS):
        assert not Verdict(*found.verdict(step - 1)).good
        for microbatch in range(MICROBATCHES):
            assert found.has(A, 0, step, 1, microbatch)
            assert found.has(G, 1, step, 1, microbatch)
    assert found.has(A, 0, 1, 0, 0)  # sent with weights that were taken back


def test_each_worker_tells_once_what_its_boundary_takes(tmp_path):
    told = logged(tmp_path, plain(1, 2)).told
    (first,) = told[WorkerId(0, 0)].of(messages.LogVolume)
    (last,) = told[WorkerId(0, 1)].of(messages.LogVolume)
    assert (first.worker, first.step, first.gradient_bytes) == ("0.0", 0, 0)
    assert (last.worker, last.step, last.activation_bytes) == ("0.1", 0, 0)
    sizes: Counter[tuple[FrameKind, int]] = Counter()
    for path in tmp_path.glob("*/segment-*.log"):
        with opened(path) as fd:
            for _, header in scan(fd, read_segment_header(fd)[1]).frames:
                sizes[header.name.kind, header.name.step] += header.frame_bytes
    assert first.activation_bytes == sizes[A, 0]
    assert last.gradient_bytes == sizes[G, 0]


# --- what is picked ---


def run_step(log: BoundaryLog, step: int, stage: int = 1, numel: int = 4) -> None:
    log.begin_step(step)
    log.keep(step, 0, Op(stage, Kind.F, 0), tensors(numel))
    log.keep(step, 0, Op(stage, Kind.BW, 0), tensors(numel))
    log.committed(step, GOOD)


def test_only_logged_boundaries_are_logged_and_a_change_takes_effect_at_once(make, tmp_path):
    log, _ = make(boundaries=[1])
    run_step(log, 0)
    log.boundaries([0], 0)
    run_step(log, 1)
    assert log.flush(LIMIT_S)
    log.boundaries([], 0)
    run_step(log, 2)
    assert log.flush(LIMIT_S)
    found = reader(tmp_path)
    there = [[found.has(kind, 1, step) for step in range(3)] for kind in (A, G)]
    assert there == [[True, False, False], [False, True, False]]
    assert [found.has(FrameKind.VERDICT, 0, step) for step in range(3)] == [True, True, False]


@pytest.mark.parametrize("kind", [Kind.B, Kind.BW])
def test_gradients_are_logged_whether_or_not_the_backward_is_split(make, tmp_path, kind):
    log, _ = make()
    log.keep(0, 0, Op(1, kind, 5), tensors())
    assert log.flush(LIMIT_S)
    assert reader(tmp_path).has(G, 1, 0, 0, 5)


def test_what_was_run_for_another_stage_is_logged_under_its_name(make, tmp_path):
    log, _ = make(stage=2)
    log.keep(4, 1, Op(0, Kind.F, 5), tensors())
    assert log.flush(LIMIT_S)
    assert reader(tmp_path).has(A, 0, 4, 1, 5)


def result(*touched: bool, step: int = 2, attempt: int = 1) -> StepResult:
    layout = FlatLayout.of([torch.zeros(3), torch.zeros(20)])
    flat = torch.arange(float(layout.numel))
    nothing = (0.0,) * 2
    reduced = Reduced(layout, flat, touched, False, nothing, nothing)
    return StepResult(step, attempt, reduced, Totals({}, 0, {}))


@pytest.mark.parametrize("touched", [False, True])
def test_a_tie_between_stages_is_logged_padded_under_its_number(make, tmp_path, touched):
    log, _ = make(stage=2)
    log.reduced(result(not touched, touched))
    assert log.flush(LIMIT_S)
    values, was_touched = reader(tmp_path).tied(2, 2, 1)
    assert torch.equal(values, torch.arange(16.0, 48.0))  # the second slot, with its padding
    assert was_touched is touched


def test_a_tie_within_a_stage_is_not_logged_nor_one_of_other_stages(make, tmp_path):
    for stage in (0, 1):
        log, _ = make(stage=stage)
        log.reduced(result(True, True))
        assert log.flush(LIMIT_S)
    found = reader(tmp_path)
    assert not found.has(FrameKind.TIED, 0, 2, 1, 1)
    assert found.num_facts == 1


@pytest.mark.parametrize(
    ("boundaries", "there"), [([0], True), ([1], True), ([2], False), ([], False)]
)
def test_a_tie_is_logged_only_if_its_stages_may_be_replayed_apart(
    make, tmp_path, boundaries, there
):
    log, _ = make(stage=0, boundaries=boundaries)
    log.reduced(result(True, True))
    assert log.flush(LIMIT_S)
    assert reader(tmp_path).has(FrameKind.TIED, 0, 2, 1, 2) is there


@pytest.mark.parametrize(
    "verdict",
    [Verdict(math.nan, None, True), Verdict(math.inf, None, True), Verdict(2.0, 0.1 + 0.2, False)],
)
def test_a_verdict_comes_back_as_it_was(make, tmp_path, verdict):
    log, _ = make()
    log.committed(8, verdict)
    assert log.flush(LIMIT_S)
    back = Verdict(*reader(tmp_path).verdict(8))
    assert repr(back) == repr(verdict)


# --- volume and queue ---


def test_the_volume_is_told_after_the_first_whole_step_logged_or_not(make):
    log, told = make(boundaries=[])
    log.keep(3, 0, Op(1, Kind.F, 0), tensors())  # the rest of a step that began elsewhere
    log.committed(3, GOOD)
    assert not told
    log.begin_step(4)
    log.keep(4, 0, Op(1, Kind.F, 0), tensors(1000))
    log.begin_step(4)  # what came before was an attempt in vain
    for microbatch in range(2):
        log.keep(4, 1, Op(1, Kind.F, microbatch), tensors(1000))
        log.keep(4, 1, Op(1, Kind.B, microbatch), tensors(10))
    log.begin_step(5)
    log.keep(5, 0, Op(1, Kind.F, 0), tensors(1000))
    log.keep(4, 1, Op(0, Kind.F, 0), tensors(1000))  # of another stage
    assert not told
    log.committed(4, GOOD)
    log.committed(5, GOOD)
    run_step(log, 6)
    (volume,) = told.of(messages.LogVolume)
    assert volume.step == 4
    assert 8000 < volume.activation_bytes < 8300
    assert 80 < volume.gradient_bytes < 380


def test_the_queue_has_room_for_four_steps_ties_included(make):
    log, _ = make(stage=0)
    assert isinstance(log, FileLog)
    log.begin_step(0)
    numel = 8 << 20
    log.keep(0, 0, Op(0, Kind.F, 0), tensors(numel))
    log.keep_tied(0, 0, 0, 2, torch.zeros(numel), True)
    log.committed(0, GOOD)
    assert 0 <= log.queue_bytes - 4 * 2 * 4 * numel < 2000


def test_the_queue_of_a_small_stage_is_not_smaller_than_64_megabytes(make):
    log, _ = make()
    run_step(log, 0)
    assert isinstance(log, FileLog)
    assert log.queue_bytes == 64 << 20


# --- what it tells and is told ---


def test_trouble_is_told_with_the_step_and_the_bytes_so_far(make, tmp_path):
    log, told = make(limit_bytes=1000)
    for step in range(4):
        run_step(log, step)
        log.flush(LIMIT_S)
    (state,) = told.of(messages.LogState)
    assert (state.worker, state.logging) == ("0.1", False)
    assert "limit of 1,000 bytes" in state.reason
    assert 0 < state.num_bytes == log.num_bytes < 1000


def test_a_lower_limit_counts_at_once(make):
    log, told = make()
    run_step(log, 0)
    log.boundaries([0, 1], 10)
    run_step(log, 1)
    log.flush(LIMIT_S)
    assert [state.logging for state in told.of(messages.LogState)] == [False]


def test_a_launcher_that_is_gone_does_not_end_the_writing_thread(tmp_path):
    def tell(message: messages.Message) -> None:
        raise PeerLost("gone")

    (tmp_path / "0.1").write_text("a file is in the way")
    log = FileLog(
        order(),
        places_of(tmp_path),
        worker=WorkerId(0, 1),
        stage=1,
        ties=[],
        every_steps=0,
        tell=tell,
    )
    log.keep(0, 0, Op(1, Kind.F, 0), tensors())
    assert not log.flush(LIMIT_S)
    assert log.is_alive
    log.close()


def test_a_sealed_checkpoint_trims_what_was_before_it_but_the_verdict(make, tmp_path):
    log, _ = make(every_steps=2)
    for step in range(5):
        log.begin_step(step)
        if step:
            log.committed(step - 1, GOOD)  # as a rule the next step begins before
        log.keep(step, 0, Op(1, Kind.F, 0), tensors())
    log.sealed(2)
    assert log.flush(LIMIT_S)
    found = reader(tmp_path)
    assert [found.has(A, 1, step) for step in range(5)] == [False, False, True, True, True]
    there = [found.has(FrameKind.VERDICT, 0, step) for step in range(4)]
    assert there == [False, True, True, True]


def test_the_verdict_before_a_checkpoint_stays_though_its_segment_goes(make, tmp_path):
    log, _ = make(every_steps=2)
    for step in range(4):
        run_step(log, step)  # each verdict beside its step
    assert log.flush(LIMIT_S)
    before = len(list(tmp_path.glob("*/segment-*")))
    log.sealed(2)
    assert log.flush(LIMIT_S)
    found = reader(tmp_path)
    assert [found.has(A, 1, step) for step in range(4)] == [False, False, True, True]
    assert found.verdict(1).norm == 1.0
    assert before == 2


def test_without_a_log_nothing_happens(tmp_path):
    log = open_log(
        None,
        places_of(tmp_path),
        worker=WorkerId(0, 1),
        stage=1,
        slots=SLOTS,
        ties=TIES,
        every_steps=2,
        tell=print,
    )
    run_step(log, 0)
    log.reduced(result(True, True))
    log.boundaries([0], 5)
    log.sealed(1)
    with log.waits():
        pass
    assert log.flush(0.0)
    log.close()
    assert log.num_bytes == 0
    assert list(tmp_path.iterdir()) == []
