"""Lanes of a step in which nobody is missing: GPipe, 1F1B and zero-bubble.

Each works out one pipeline and repeats it for the others with their own micro-batch numbers.
"""

from collections.abc import Callable, Collection, Iterator, Sequence

from holdfast.cluster import WorkerId
from holdfast.errors import ConfigError
from holdfast.schedule.costs import Costs
from holdfast.schedule.listing import Choice, Listing, Policy, list_step
from holdfast.schedule.operation import Kind, Op, Shape
from holdfast.schedule.schedule import Lane, Schedule
from holdfast.schedule.timeline import bound, steady_period_s

# Listings whose exact period is worked out, and trials of the fusing pass: both bound the
# time spent on a plan, not what is correct.
_NUM_FINALISTS = 3
_NUM_FUSING_TRIALS = 32
_ROUNDING = 1e-9

_OnePipeline = Sequence[Lane]  # one lane a stage, without R, micro-batches from 0


def default_memory(stages: int) -> int:
    """Micro-batches in flight a worker that let zero-bubble lanes reach the bound."""
    return 2 * stages


def gpipe(shape: Shape, memory: int | None = None) -> Schedule:
    """All forwards, then all backwards; in waves of ``memory`` micro-batches if that is fewer."""
    count = shape.microbatches_per_pipeline
    wave = _admitted(count, memory)
    lanes = []
    for stage in range(shape.stages):
        lane: list[Op] = []
        for first in range(0, count, wave):
            numbers = range(first, min(first + wave, count))
            lane += (Op(stage, Kind.F, m) for m in numbers)
            lane += (Op(stage, Kind.BW, m) for m in numbers)
        lanes.append(tuple(lane))
    return _repeat(shape, lanes)


def one_f_one_b(shape: Shape, memory: int | None = None) -> Schedule:
    """Warm-up forwards to the end of the pipeline, then forwards and backwards by turns."""
    count = shape.microbatches_per_pipeline
    lanes = []
    for stage in range(shape.stages):
        warm_up = min(_admitted(count, memory), shape.stages - stage)
        forwards = [Op(stage, Kind.F, m) for m in range(count)]
        lane = forwards[:warm_up]
        for m in range(count):
            lane.append(Op(stage, Kind.BW, m))
            lane += forwards[warm_up + m : warm_up + m + 1]
        lanes.append(tuple(lane))
    return _repeat(shape, lanes)


def zero_bubble(
    shape: Shape, costs: Costs, memory: int | None = None, *, staggered: bool = True
) -> Schedule:
    """Weight gradients fill the waits; split only where that shortens the steady period.

    Never slower than 1F1B with the same memory: that is one of the candidates.
    """
    costs.require_stages(shape.stages)
    one = Shape(1, shape.stages, shape.microbatches_per_pipeline)
    admitted = _admitted(one.microbatches, memory)

    def period_s(lanes: _OnePipeline) -> float:
        return steady_period_s(_repeat(one, lanes), costs, staggered=staggered)

    target_s = bound(one, costs, memory, staggered=staggered).period_s
    finalists: list[_OnePipeline] = [
        listing.lanes for listing in _finalists(one, costs, admitted, target_s, staggered)
    ]
    finalists.append(_without_r(one_f_one_b(one, memory)))
    best = min(finalists, key=period_s)  # the first of equals: the most fused
    return _repeat(shape, _fuse_where_free(best, period_s))


_GENERATORS: dict[str, Callable[[Shape, Costs, int | None, bool], Schedule]] = {
    "gpipe": lambda shape, costs, memory, staggered: gpipe(shape, memory),
    "1f1b": lambda shape, costs, memory, staggered: one_f_one_b(shape, memory),
    "zero-bubble": lambda shape, costs, memory, staggered: zero_bubble(
        shape, costs, memory, staggered=staggered
    ),
}
NAMES = tuple(_GENERATORS)


def make(
    name: str, shape: Shape, costs: Costs, memory: int | None = None, *, staggered: bool = True
) -> Schedule:
    """The schedule called ``name``, one of NAMES."""
    if name not in _GENERATORS:
        raise ConfigError(f"schedule = {name!r}: expected one of {', '.join(NAMES)}")
    return _GENERATORS[name](shape, costs, memory, staggered)


def _admitted(microbatches: int, memory: int | None) -> int:
    if memory is None:
        return microbatches
    if memory < 1:
        raise ConfigError(f"memory = {memory}: expected at least 1 micro-batch in flight a worker")
    return min(memory, microbatches)


def _repeat(shape: Shape, lanes: _OnePipeline) -> Schedule:
    share = shape.microbatches_per_pipeline
    return Schedule(
        shape,
        {
            WorkerId(pipeline, stage): (*_renumbered(lane, pipeline * share), Op(stage, Kind.R))
            for pipeline in range(shape.pipelines)
            for stage, lane in enumerate(lanes)
        },
    )


def _renumbered(lane: Lane, first: int) -> Iterator[Op]:
    for op in lane:
        assert op.microbatch is not None
        yield Op(op.stage, op.kind, op.microbatch + first)


def _without_r(schedule: Schedule) -> _OnePipeline:
    return [lane[:-1] for lane in schedule.lanes.values()]


# Chosen greedily over random shapes, memories and costs; patience in shares of a forward.
_CHOICES = (
    Choice(),
    Choice(patience=0.5, fused_first_stage=False),
    Choice(pending_weights=2),
    Choice(fused_first_stage=False),
    Choice(pending_weights=1),
    Choice(forward_first=True, patience=0.25),
    Choice(patience=0.875),
    Choice(patience=0.25, fused_first_stage=False),
    Choice(patience=0.5),
)


def _policies(one: Shape) -> Iterator[Policy]:
    """The most fused first: ramp and tail, about 2 x stages, gain from a split, the rest less."""
    count, stages = one.microbatches, one.stages
    widths = (count, count - 2 * stages, count - 2 * stages - 2, count - 3 * stages, 0)
    for width in widths:
        if width >= 0:
            first = (count - width) // 2
            for choice in _CHOICES:
                yield Policy(choice, range(first, first + width))


def _finalists(
    one: Shape, costs: Costs, memory: int, target_s: float, staggered: bool
) -> list[Listing]:
    """The best of the policies' listings; ends early with one that reaches the bound."""
    listings: list[Listing] = []
    for policy in _policies(one):
        listing = list_step(one.microbatches, costs, memory, policy, staggered=staggered)
        if listing.period_s <= target_s * (1 + _ROUNDING):
            return [listing]
        listings.append(listing)
    return sorted(listings, key=lambda listing: listing.period_s)[:_NUM_FINALISTS]


def _fuse_where_free(
    lanes: _OnePipeline, period_s: Callable[[_OnePipeline], float]
) -> _OnePipeline:
    """Join B and W wherever the period does not get longer: splitting costs compute.

    Tries whole stages first and halves what does not fit.
    """
    limit_s = period_s(lanes) * (1 + _ROUNDING)
    splits = ([op for op in lane if op.kind is Kind.B] for lane in reversed(lanes))
    trials = [group for group in splits if group]
    for _ in range(_NUM_FUSING_TRIALS):
        if not trials:
            break
        group = trials.pop()
        fused = _fuse(lanes, set(group))
        if period_s(fused) <= limit_s:
            lanes = fused
        elif len(group) > 1:
            half = len(group) // 2
            trials = [group[half:], group[:half], *trials]
    return lanes


def _fuse(lanes: _OnePipeline, backwards: Collection[Op]) -> _OnePipeline:
    """Each of ``backwards`` takes its W along; a W that comes earlier only frees memory sooner."""
    return [tuple(_fused_lane(lane, backwards)) for lane in lanes]


def _fused_lane(lane: Lane, backwards: Collection[Op]) -> Iterator[Op]:
    for op in lane:
        if op in backwards:
            yield Op(op.stage, Kind.BW, op.microbatch)
        elif op.kind is not Kind.W or Op(op.stage, Kind.B, op.microbatch) not in backwards:
            yield op
