"""The end of a stage's step: trust that turns out wrong leaves no bit behind."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn, optim

from holdfast.cluster import WorkerId
from holdfast.errors import EpochPast, PeerLost
from holdfast.runtime.reduce.flat_layout import FlatLayout
from holdfast.runtime.reduce.gradients import FastGradients
from holdfast.runtime.reduce.loss_scale import LossScale, ScaleState
from holdfast.runtime.reduce.reduction import Reduced, conclude
from holdfast.runtime.reduce.step_sums import Totals
from holdfast.runtime.reduce.verdict import Verdict, VerdictExchange, make_piece
from holdfast.runtime.stage.named_tensors import state_tensors
from holdfast.runtime.stage.stage import Stage
from holdfast.runtime.update.commit import CommitPhase, Committed, StageCommit, StepResult
from holdfast.runtime.update.optimizer import StageOptimizer
from holdfast.transport.base import Channel, Tag
from holdfast.transport.local.transport import LocalHub, LocalTransport

ME, PEER = WorkerId(0, 0), WorkerId(0, 1)
HOLDERS = [[ME], [PEER]]
TIMEOUT_S = 20.0
GOOD, CLIPPED, SKIPPED = 0.0, 400.0, math.nan  # sums of squares that the other stage may send

OPTIMIZERS: dict[str, Callable[..., optim.Optimizer]] = {
    "SGD": partial(optim.SGD, lr=0.1),
    "SGD momentum": partial(optim.SGD, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.1),
    "SGD nesterov foreach": partial(optim.SGD, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
    "Adam": partial(optim.Adam, lr=0.1, weight_decay=0.1, maximize=True),
    "AdamW": partial(optim.AdamW, lr=0.1),
    "AdamW fused": partial(optim.AdamW, lr=0.1, fused=True),
}


class OneStage:
    """Stage 0 of two; what stage 1 says is fed by hand."""

    consistency = "keep-old"

    def __init__(
        self,
        optimizer: str = "AdamW",
        counted: tuple[bool, ...] | None = None,
        *,
        keeps_old: bool = True,
        before_update: Callable[[], None] = lambda: None,
        may_commit: Callable[[], None] = lambda: None,
        reach: Callable[[int, str], None] = lambda step, point: None,
        due: Callable[[int, str], bool] = lambda step, point: False,
        loss_scale: LossScale | None = None,
    ) -> None:
        torch.manual_seed(3)
        self.layers = {0: nn.Linear(3, 4), 1: nn.BatchNorm1d(4)}
        stage = Stage(list(self.layers.values()))
        parameters = [slot.parameter for slot in stage.slots]
        keys = [slot.key for slot in stage.slots]
        self.layout = FlatLayout.of(parameters, keys)
        self.optimizer = StageOptimizer(parameters, keys, OPTIMIZERS[optimizer], None)
        hub = LocalHub()
        self.transport, self.peer = LocalTransport(ME, hub), LocalTransport(PEER, hub)
        self.commit = StageCommit(
            self.optimizer,
            stage,
            self.layers,
            counted or (True,) * len(parameters),
            keeps_old=keeps_old,
            consistency=self.consistency,
            before_update=before_update,
            may_commit=may_commit,
            reach=reach,
            due=due,
            loss_scale=loss_scale,
        )
        self.enter()
        self._learn_buffers(stage)

    def enter(self, known: dict[int, Verdict] | None = None) -> None:
        """An epoch. What was told in an earlier one is told again."""
        self.verdicts = VerdictExchange(
            ME, 0, HOLDERS, self.transport, 10.0, known, timeout_s=TIMEOUT_S
        )
        self.commit.tell(self.verdicts)

    def missing(self) -> list[tuple[WorkerId, Tag]]:
        return self.commit.missing(self.verdicts)

    def commit_step(self) -> Committed:
        return self.commit.commit_step(self.verdicts)

    def advance(self, epoch: int) -> None:
        self.peer.advance(epoch)
        self.transport.advance(epoch)

    def _learn_buffers(self, stage: Stage) -> None:
        stage.forward(0, 0, (torch.randn(8, 3),))
        stage.drop_all()

    def reduce(self, step: int, attempt: int = 0, scale: float = 1.0) -> Reduced:
        reduced = self.accept(step, attempt, scale)
        self.commit.tell(self.verdicts)
        return reduced

    def accept(self, step: int, attempt: int = 0, scale: float = 1.0) -> Reduced:
        """What a reduction, or a copy of one, brings."""
        reduced = self.gradient(step, scale)
        self.commit.accept(StepResult(step, attempt, reduced, Totals(CHANGES)))
        return reduced

    def gradient(self, step: int, scale: float) -> Reduced:
        torch.manual_seed(50 + step)
        flat = torch.zeros(self.layout.numel)
        for slot in range(len(self.layout.slots)):
            view = self.layout.view(flat, slot)
            view.copy_(torch.randn(view.shape) * scale)
        touched = [True] * len(self.layout.slots)
        return conclude(FastGradients(self.layout), flat, touched=touched, nonfinite=False)

    def hear(self, step: int, square: float, attempt: int = 0) -> None:
        piece = make_piece(math.isnan(square), [square])
        self.peer.send(ME, Tag(Channel.VERDICT, step, attempt), piece)

    def bits(self) -> dict[str, bytes]:
        """Parameters, buffers and optimizer state."""
        tensors = state_tensors(self.layers) | self.optimizer.state_tensors()
        return {key: _bytes(tensor) for key, tensor in tensors.items()}


@pytest.fixture(autouse=True, params=["keep-old", "undo"])
def consistency(request, monkeypatch) -> str:
    """Every promise holds however a step is taken back."""
    monkeypatch.setattr(OneStage, "consistency", request.param)
    return request.param


CHANGES = {
    "1.running_mean": torch.full((4,), 0.25, dtype=torch.float64),
    "1.num_batches_tracked": torch.ones((), dtype=torch.float64),
}


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def run_step(stage: OneStage, step: int, square: float, *, trust: bool) -> Committed:
    stage.reduce(step)
    if trust:
        stage.commit.apply_speculatively()
    stage.hear(step, square)
    return stage.commit_step()


def test_the_phases_follow_each_other():
    stage = OneStage()
    assert stage.commit.phase is CommitPhase.COLLECTING
    assert stage.missing() == []
    stage.reduce(0)
    assert stage.commit.phase is CommitPhase.REDUCED
    assert stage.missing() == [(PEER, Tag(Channel.VERDICT, 0, 0))]
    stage.commit.apply_speculatively()
    assert stage.commit.phase is CommitPhase.SPECULATIVE
    stage.hear(0, GOOD)
    assert stage.missing() == []
    committed = stage.commit_step()
    assert (committed.step, committed.taken_back) == (0, False)
    assert stage.commit.phase is CommitPhase.COLLECTING


def test_reducing_changes_nothing_and_tells_the_other_stage_the_squares():
    stage = OneStage()
    before = stage.bits()
    stage.commit.restart(2)
    reduced = stage.reduce(2, attempt=1)
    assert stage.bits() == before
    told = stage.peer.receive(ME, Tag(Channel.VERDICT, 2, 1), TIMEOUT_S)
    assert told.tolist() == [0.0, 1.0, *reduced.squares]


def test_a_later_twin_of_a_tied_parameter_does_not_count_for_the_norm():
    stage = OneStage(counted=(True, False, True, True))
    squares = stage.reduce(0).squares
    told = stage.peer.receive(ME, Tag(Channel.VERDICT, 0, 0), TIMEOUT_S)
    assert told.tolist() == [0.0, 1.0, squares[0], 0.0, *squares[2:]]


def test_settling_without_trust_applies_gradient_and_buffer_changes_once():
    stage = OneStage("SGD")
    before = state_tensors(stage.layers)
    gradient = stage.gradient(0, 1.0).gradients()[0]
    assert gradient is not None
    committed = run_step(stage, 0, GOOD, trust=False)
    assert committed.verdict.good
    assert not committed.taken_back
    after = state_tensors(stage.layers)
    assert torch.equal(after["0.weight"], before["0.weight"].add(gradient, alpha=-0.1))
    assert torch.equal(after["1.running_mean"], before["1.running_mean"] + 0.25)
    assert after["1.num_batches_tracked"] == before["1.num_batches_tracked"] + 1


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_justified_trust_gives_the_same_bits_as_waiting(optimizer):
    trusting, waiting = OneStage(optimizer), OneStage(optimizer)
    for step in range(3):
        assert not run_step(trusting, step, GOOD, trust=True).taken_back
        run_step(waiting, step, GOOD, trust=False)
        assert trusting.bits() == waiting.bits()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("verdict", [CLIPPED, SKIPPED], ids=["clipped", "skipped"])
@pytest.mark.parametrize("steps_before", [0, 2])
def test_disappointed_trust_gives_the_same_bits_as_waiting(optimizer, verdict, steps_before):
    trusting, waiting = OneStage(optimizer), OneStage(optimizer)
    for step in range(steps_before):
        run_step(trusting, step, GOOD, trust=True)
        run_step(waiting, step, GOOD, trust=False)
    taken_back = run_step(trusting, steps_before, verdict, trust=True)
    waited = run_step(waiting, steps_before, verdict, trust=False)
    assert (taken_back.taken_back, waited.taken_back) == (True, False)
    assert repr(taken_back.verdict) == repr(waited.verdict)  # NaN is not equal to itself
    assert trusting.bits() == waiting.bits()
    run_step(trusting, steps_before + 1, GOOD, trust=True)
    run_step(waiting, steps_before + 1, GOOD, trust=False)
    assert trusting.bits() == waiting.bits()


def test_a_clipped_step_moves_the_parameters_less():
    stage = OneStage("SGD")
    before = state_tensors(stage.layers)["0.weight"]
    gradient = stage.gradient(0, 1.0).gradients()[0]
    assert gradient is not None
    committed = run_step(stage, 0, CLIPPED, trust=True)
    scale = committed.verdict.scale
    assert scale is not None
    assert 0 < scale < 1
    after = state_tensors(stage.layers)["0.weight"]
    assert torch.equal(after, before.add(gradient * scale, alpha=-0.1))


@pytest.mark.parametrize("trust", [True, False])
def test_a_skipped_step_leaves_everything_as_it_was(trust):
    stage = OneStage()
    run_step(stage, 0, GOOD, trust=trust)
    before = stage.bits()
    assert run_step(stage, 1, SKIPPED, trust=trust).verdict.skip
    assert stage.bits() == before


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_own_nonfinite_gradient_is_never_applied_not_even_on_trust(bad):
    stage = OneStage()
    run_step(stage, 0, GOOD, trust=True)
    before = stage.bits()
    assert stage.reduce(1, scale=bad).nonfinite
    stage.commit.apply_speculatively()
    assert stage.bits() == before
    stage.hear(1, GOOD)
    committed = stage.commit_step()
    assert committed.verdict.skip
    assert stage.bits() == before


def test_a_piece_of_an_earlier_attempt_settles_nothing():
    stage = OneStage()
    stage.commit.restart(1)
    stage.reduce(1, attempt=1)
    stage.hear(1, CLIPPED, attempt=0)
    assert stage.missing() == [(PEER, Tag(Channel.VERDICT, 1, 1))]
    stage.hear(1, GOOD, attempt=1)
    assert stage.commit_step().verdict.good


def test_a_lost_stage_ends_the_wait_for_its_verdict_and_the_step_stays_open():
    stage = OneStage()
    stage.reduce(0)
    stage.commit.apply_speculatively()
    stage.peer.close()
    with pytest.raises(PeerLost) as lost:
        stage.commit_step()
    assert lost.value.worker == str(PEER)
    assert stage.commit.phase is CommitPhase.SPECULATIVE


def test_a_step_cannot_be_reduced_before_the_one_before_is_settled():
    stage = OneStage()
    stage.reduce(0)
    with pytest.raises(AssertionError, match="must be settled first"):
        stage.reduce(1)


# --- what others may still need ---


def test_the_versions_of_a_step_are_told_apart():
    stage = OneStage()
    assert (stage.commit.reduced, stage.commit.oldest, stage.commit.result) == (0, 0, None)
    stage.reduce(0)
    # Reduced and not applied: the present weights are still those of step 0.
    assert (stage.commit.reduced, stage.commit.oldest) == (1, 0)
    stage.commit.apply_speculatively()
    assert (stage.commit.reduced, stage.commit.oldest) == (1, 0)
    stage.hear(0, GOOD)
    stage.commit_step()
    assert (stage.commit.reduced, stage.commit.oldest) == (1, 0)
    run_step(stage, 1, GOOD, trust=False)
    assert (stage.commit.reduced, stage.commit.oldest) == (2, 1)
    assert list(stage.commit.verdicts) == [0, 1]
    run_step(stage, 2, GOOD, trust=True)
    assert (stage.commit.reduced, stage.commit.oldest) == (3, 2)
    assert list(stage.commit.verdicts) == [1, 2]


def test_the_result_of_the_newest_step_stays_until_the_next_one_is_here():
    stage = OneStage()
    run_step(stage, 0, CLIPPED, trust=True)
    first = stage.commit.result
    assert first is not None
    assert first.step == 0
    expected = stage.gradient(0, 1.0).flat
    assert torch.equal(first.reduced.flat, expected), "clipping must not touch what others may need"
    stage.reduce(1)
    assert stage.commit.result is not None
    assert stage.commit.result.step == 1


def test_a_joiner_that_follows_settled_updates_has_the_same_bits():
    member, joiner = OneStage(), OneStage()
    for step, square in enumerate([GOOD, CLIPPED, SKIPPED, GOOD]):
        committed = run_step(member, step, square, trust=True)
        joiner.commit.follow(committed.result, committed.verdict)
        assert joiner.bits() == member.bits()
        assert joiner.commit.reduced == member.commit.reduced
        assert joiner.commit.oldest == member.commit.oldest
        assert repr(joiner.commit.verdicts) == repr(member.commit.verdicts)


# --- a step that is applied to every second parameter only, for a while ---


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("steps_before", [0, 2])
@pytest.mark.parametrize("square", [GOOD, CLIPPED], ids=["good", "clipped"])
def test_a_step_that_was_half_applied_for_a_while_leaves_no_bit_behind(
    optimizer, steps_before, square
):
    halves: list[dict[str, bytes]] = []

    def reach(step: int, point: str) -> None:
        if point == "half":
            halves.append(stage.bits())

    stage = OneStage(
        optimizer, reach=reach, due=lambda step, point: (step, point) == (steps_before, "half")
    )
    calm = OneStage(optimizer)
    for step in range(steps_before):
        run_step(stage, step, GOOD, trust=True)
        run_step(calm, step, GOOD, trust=True)
    before = stage.bits()
    run_step(stage, steps_before, square, trust=False)
    run_step(calm, steps_before, square, trust=False)
    (half,) = halves
    changed = {key for key in before if half[key] != before[key] and "/" not in key}
    assert changed == {"0.bias", "1.bias"}, "no half step: this test proves nothing"
    assert stage.bits() == calm.bits()


# --- who still reads the weights ---


@pytest.mark.parametrize("trust", [True, False])
def test_whoever_still_reads_the_weights_is_asked_before_each_update(trust):
    seen: list[tuple[str, dict[str, bytes]]] = []
    stage = OneStage(
        before_update=lambda: seen.append(("before", stage.bits())),
        reach=lambda _, point: seen.append((point, stage.bits())) if point == "apply" else None,
    )
    for step in range(2):
        before = stage.bits()
        run_step(stage, step, GOOD, trust=trust)
        assert seen == [("before", before), ("apply", before)], "before any fault can happen, too"
        seen.clear()
        assert stage.bits() != before


def test_a_step_that_changes_no_weights_asks_nobody():
    asked = []
    stage = OneStage(before_update=lambda: asked.append(1))
    run_step(stage, 0, math.nan, trust=False)
    assert asked == []


# --- a lease that has ended ---


@pytest.mark.parametrize("trust", [True, False], ids=["on trust", "waiting"])
@pytest.mark.parametrize("square", [GOOD, CLIPPED, SKIPPED], ids=["good", "clipped", "skipped"])
def test_a_step_that_may_not_be_committed_stays_open_and_leaves_no_bit_behind(square, trust):
    calm, ended = OneStage(), [True]
    run_step(calm, 0, square, trust=False)

    def may_commit() -> None:
        if ended:
            raise EpochPast("the others go on without this worker")

    stage = OneStage(may_commit=may_commit)
    stage.reduce(0)
    if trust:
        stage.commit.apply_speculatively()
    before, phase = stage.bits(), stage.commit.phase
    stage.hear(0, square)
    with pytest.raises(EpochPast):
        stage.commit_step()
    assert (stage.bits(), stage.commit.phase) == (before, phase)
    assert stage.commit.verdicts == {}, "what it has heard is not told as its own"
    ended.clear()
    stage.advance(1)
    stage.enter()
    stage.hear(0, square)
    assert stage.commit_step().taken_back == (trust and square is not GOOD)
    assert stage.bits() == calm.bits()


# --- what it holds ---


def test_what_is_kept_is_given_up_again():
    stage = OneStage()
    assert stage.commit.kept_bytes == 0
    run_step(stage, 0, GOOD, trust=True)
    settled = stage.commit.kept_bytes
    assert settled > 0
    stage.reduce(1)
    stage.commit.apply_speculatively()
    speculative = stage.commit.kept_bytes
    assert speculative > settled
    stage.hear(1, CLIPPED)
    stage.commit_step()
    assert stage.commit.kept_bytes < speculative <= stage.commit.peak_kept_bytes
    stage.commit.restart(5)
    assert stage.commit.kept_bytes == 0


def test_what_is_kept_does_not_grow_with_the_number_of_steps():
    stage = OneStage()
    run_step(stage, 0, GOOD, trust=False)
    first = stage.commit.kept_bytes
    for step in range(1, 10):
        run_step(stage, step, CLIPPED if step % 3 == 0 else GOOD, trust=step % 2 == 0)
    assert stage.commit.kept_bytes < 2 * first


def test_a_stage_alone_keeps_nothing_and_can_still_go_back():
    """Nobody asks it for old weights; only a step speculatively needs something to go back to."""
    stage, waiting = OneStage(keeps_old=False), OneStage(keeps_old=False)
    run_step(stage, 0, GOOD, trust=False)
    assert stage.commit.kept_bytes == 0
    run_step(waiting, 0, GOOD, trust=False)
    run_step(stage, 1, CLIPPED, trust=True)
    run_step(waiting, 1, CLIPPED, trust=False)
    assert stage.bits() == waiting.bits()
    assert stage.commit.oldest == stage.commit.reduced == 2


def test_a_worker_alone_on_its_stage_keeps_nothing_until_there_is_another():
    stage, shared = OneStage(), OneStage()
    stage.commit.be_alone(True)
    for step, told in enumerate((GOOD, CLIPPED)):
        run_step(stage, step, told, trust=True)
        run_step(shared, step, told, trust=True)
        assert stage.commit.kept_bytes < shared.commit.kept_bytes / 2  # buffers are small
        assert stage.commit.result is None
    assert stage.commit.oldest == 2 > shared.commit.oldest
    stage.commit.be_alone(False)
    run_step(stage, 2, GOOD, trust=True)
    run_step(shared, 2, GOOD, trust=True)
    assert stage.commit.oldest == shared.commit.oldest == 2
    assert stage.commit.result is not None
    assert stage.bits() == shared.bits()


# --- a new epoch between reduced and committed ---


@pytest.mark.parametrize("trust", [True, False], ids=["on trust", "waiting"])
def test_what_was_told_in_a_past_epoch_is_told_again_in_the_next(trust):
    stage, calm = OneStage(), OneStage()
    run_step(calm, 0, CLIPPED, trust=False)
    reduced = stage.reduce(0)
    if trust:
        stage.commit.apply_speculatively()
    stage.transport.interrupt(1)
    with pytest.raises(EpochPast):
        stage.commit_step()
    stage.advance(1)
    stage.enter()
    told = stage.peer.receive(ME, Tag(Channel.VERDICT, 0, 0), TIMEOUT_S)
    assert told.tolist() == [0.0, 1.0, *reduced.squares]
    assert len(stage.missing()) == 1
    stage.hear(0, CLIPPED)
    assert stage.commit_step().taken_back == trust
    assert stage.bits() == calm.bits()


@pytest.mark.parametrize("trust", [True, False], ids=["on trust", "waiting"])
@pytest.mark.parametrize("square", [GOOD, CLIPPED, SKIPPED], ids=["good", "clipped", "skipped"])
def test_a_verdict_that_somebody_else_has_heard_settles_the_step_without_a_message(square, trust):
    stage, calm = OneStage(), OneStage()
    heard = run_step(calm, 0, square, trust=False).verdict
    stage.accept(0)
    if trust:
        stage.commit.apply_speculatively()
    sent = stage.transport.statistics.sent_messages
    stage.enter({0: heard})
    assert stage.missing() == []
    committed = stage.commit_step()
    assert repr(committed.verdict) == repr(heard)
    assert committed.taken_back == (trust and not heard.good)
    assert stage.bits() == calm.bits()
    assert stage.transport.statistics.sent_messages == sent


def test_a_new_epoch_with_nothing_open_tells_nothing():
    stage = OneStage()
    run_step(stage, 0, GOOD, trust=True)
    sent = stage.transport.statistics.sent_messages
    stage.enter()
    assert stage.transport.statistics.sent_messages == sent


def test_the_next_step_has_the_loss_scale_of_a_good_one_until_the_verdict_is_known():
    scale = LossScale(ScaleState(4), growth_steps=1)
    stage = OneStage(loss_scale=scale)
    stage.reduce(0)
    assert (scale.at(0), scale.at(1)) == (16.0, 32.0)
    stage.hear(0, SKIPPED)
    assert stage.commit_step().loss_scale == 16.0
    assert (scale.at(0), scale.at(1)) == (16.0, 8.0)


def test_a_joiner_follows_the_loss_scale():
    scales = [LossScale(ScaleState(4), growth_steps=2) for _ in range(2)]
    member, joiner = (OneStage(loss_scale=scale) for scale in scales)
    for one in (member, joiner):
        one.commit.restart(5)
    for step, square in enumerate((GOOD, GOOD, SKIPPED, CLIPPED), 5):
        committed = run_step(member, step, square, trust=True)
        joiner.commit.follow(committed.result, committed.verdict)
    assert scales[0].state == scales[1].state == (4, 1)
