"""List scheduling of a graph of operations, and the replay of fixed lanes: integer loops only.

Written so that the same source runs compiled over arrays and as plain Python over lists, with
the same result: tables are indexed row first, everything is allocated by the caller.
"""

from holdfast.planner.kernel.compiled import compiled

Row = list[int]  # or an array
Table = list[Row]

# Rows of the table of operations. An operation has at most two successors: one at the
# neighbour stage, after a delay, and one of the same micro-batch on the same host.
HOST, QUEUE, DURATION, TAKES, GIVES, NEXT, DELAY, OWN_NEXT, WAITS_FOR, READY = range(10)
NUM_OP_ROWS = 10
# Queues of a host, also the default ranking.
BACKWARD, FORWARD, WEIGHT = range(3)
# Rows of the table of hosts; a host is one stage on one worker.
WORKER, STAGE, LIMIT, RELEASE, RANKING, MOST_PENDING, WAIT_BACKWARD, WAIT_FORWARD = range(8)
NUM_HOST_ROWS = 8
# Values of RANKING.
BACKWARD_FIRST, FORWARD_FIRST, WEIGHT_FIRST = range(3)
# Rows of the hosts' running state.
USED, FIRST_START, LAST_END = range(3)
NUM_STATE_ROWS = 3

NEVER = 1 << 62


@compiled
def put_wake(times: Row, workers: Row, at: int, time: int, worker: int) -> None:
    times[at] = time
    workers[at] = worker


@compiled
def push_wake(times: Row, workers: Row, size: int, time: int, worker: int) -> int:
    """Add to the heap of (time, worker); the new size."""
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        if times[parent] < time or (times[parent] == time and workers[parent] <= worker):
            break
        put_wake(times, workers, at, times[parent], workers[parent])
        at = parent
    put_wake(times, workers, at, time, worker)
    return size + 1


@compiled
def pop_wake(times: Row, workers: Row, size: int) -> int:
    """Take the first of the heap away; the new size."""
    size -= 1
    time = times[size]
    worker = workers[size]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        right = child + 1
        if right < size and (
            times[right] < times[child]
            or (times[right] == times[child] and workers[right] < workers[child])
        ):
            child = right
        if time < times[child] or (time == times[child] and worker <= workers[child]):
            break
        put_wake(times, workers, at, times[child], workers[child])
        at = child
    put_wake(times, workers, at, time, worker)
    return size


@compiled
def enqueue(slots: Row, tails: Row, heads: Row, queue: int, ready: Row, op: int) -> None:
    """Insert ``op`` in the order of the times from which on it can start."""
    at = tails[queue]
    while at > heads[queue]:
        before = slots[at - 1]
        # Of equals the first to be known stays first: a sender's results are used in its order.
        if ready[before] <= ready[op]:
            break
        slots[at] = before
        at -= 1
    slots[at] = op
    tails[queue] += 1


@compiled
def first_ready(slots: Row, heads: Row, tails: Row, queue: int, ready: Row) -> int:
    if heads[queue] == tails[queue]:
        return NEVER
    return ready[slots[heads[queue]]]


@compiled
def best_host(
    kind: int,
    first: int,
    last: int,
    ops: Table,
    hosts: Table,
    state: Table,
    slots: Row,
    heads: Row,
    tails: Row,
    now: int,
) -> int:
    """The worker's host to serve for this kind of operation: soonest ready, then latest stage."""
    ready = ops[READY]
    best = -1
    best_ready = NEVER
    for host in range(first, last):
        queue = 3 * host + kind
        at = first_ready(slots, heads, tails, queue, ready)
        if at == NEVER:
            continue
        if kind == FORWARD:
            op = slots[heads[queue]]
            if state[USED][host] + ops[TAKES][op] > hosts[LIMIT][host]:
                continue
        if at < now:
            at = now
        if at < best_ready or (at == best_ready and hosts[STAGE][host] > hosts[STAGE][best]):
            best = host
            best_ready = at
    return best


@compiled
def ranked(ranking: int, most_pending: int, num_pending: int, place: int) -> int:
    """Which kind stands at ``place`` in the order of preference."""
    if ranking == FORWARD_FIRST:
        if place == 0:
            return FORWARD
        return BACKWARD if place == 1 else WEIGHT
    if ranking == WEIGHT_FIRST or num_pending > most_pending:
        if place == 0:
            return WEIGHT if ranking == WEIGHT_FIRST else BACKWARD
        if place == 1:
            return BACKWARD if ranking == WEIGHT_FIRST else WEIGHT
        return FORWARD
    return place


@compiled
def choose(
    worker: int,
    now: int,
    ops: Table,
    hosts: Table,
    first_host: Row,
    state: Table,
    slots: Row,
    heads: Row,
    tails: Row,
    wish: Row,
) -> int:
    """The queue to serve now (or -1); ``wish[0]``: when to look again if there is none."""
    first = first_host[worker]
    last = first_host[worker + 1]
    ready = ops[READY]
    num_pending = 0
    for host in range(first, last):
        num_pending += tails[3 * host + WEIGHT] - heads[3 * host + WEIGHT]
    wish[0] = NEVER
    for place in range(3):
        kind = ranked(hosts[RANKING][first], hosts[MOST_PENDING][first], num_pending, place)
        host = best_host(kind, first, last, ops, hosts, state, slots, heads, tails, now)
        if host < 0:
            continue
        at = first_ready(slots, heads, tails, 3 * host + kind, ready)
        if at <= now:
            return 3 * host + kind
        if at < wish[0]:
            wish[0] = at
        patience = 0
        if kind == BACKWARD:
            patience = hosts[WAIT_BACKWARD][first]
        elif kind == FORWARD:
            patience = hosts[WAIT_FORWARD][first]
        if at <= now + patience:
            return -1
    return -1


@compiled
def release_successor(
    op: int,
    at: int,
    ops: Table,
    hosts: Table,
    waits_for: Row,
    slots: Row,
    heads: Row,
    tails: Row,
) -> bool:
    """One thing less that ``op`` waits for, from ``at`` on; True if it can now be queued."""
    ready = ops[READY]
    if at > ready[op]:
        ready[op] = at
    waits_for[op] -= 1
    if waits_for[op] > 0:
        return False
    host = ops[HOST][op]
    if hosts[RELEASE][host] > ready[op]:
        ready[op] = hosts[RELEASE][host]
    enqueue(slots, tails, heads, 3 * host + ops[QUEUE][op], ready, op)
    return True


@compiled
def first_wakes(times: Row, wakes: Row, first_host: Row, hosts: Table) -> int:
    """Every worker looks for work when its first host is released; the size of the heap."""
    size = 0
    for worker in range(len(first_host) - 1):
        size = push_wake(times, wakes, size, hosts[RELEASE][first_host[worker]], worker)
    return size


@compiled
def lay_out(
    ops: Table,
    hosts: Table,
    first_host: Row,
    state: Table,
    waits_for: Row,
    slots: Row,
    heads: Row,
    tails: Row,
    free: Row,
    times: Row,
    wakes: Row,
    wish: Row,
    order: Row,
) -> int:
    """How many operations could be started, in ``order``; not all if memory is too small."""
    num_done = 0
    size = first_wakes(times, wakes, first_host, hosts)
    while size > 0:
        now = times[0]
        worker = wakes[0]
        size = pop_wake(times, wakes, size)
        if free[worker] > now:
            continue
        queue = choose(worker, now, ops, hosts, first_host, state, slots, heads, tails, wish)
        if queue < 0:
            if wish[0] < NEVER:
                size = push_wake(times, wakes, size, wish[0], worker)
            continue
        op = slots[heads[queue]]
        heads[queue] += 1
        host = queue // 3
        end = now + ops[DURATION][op]
        order[num_done] = op
        num_done += 1
        account(op, host, now, end, ops, state)
        free[worker] = end
        size = push_wake(times, wakes, size, end, worker)
        own = ops[OWN_NEXT][op]
        if own >= 0:
            release_successor(own, end, ops, hosts, waits_for, slots, heads, tails)
        other = ops[NEXT][op]
        if other >= 0:
            at = end + ops[DELAY][op]
            queued = release_successor(other, at, ops, hosts, waits_for, slots, heads, tails)
            receiver = hosts[WORKER][ops[HOST][other]]
            if queued and free[receiver] <= now:
                size = push_wake(times, wakes, size, ops[READY][other], receiver)
    return num_done


@compiled
def account(op: int, host: int, start: int, end: int, ops: Table, state: Table) -> None:
    """Memory and window of the host. Its worker does nothing else until ``end``."""
    state[USED][host] += ops[TAKES][op]
    state[USED][host] += ops[GIVES][op]
    if start < state[FIRST_START][host]:
        state[FIRST_START][host] = start
    if end > state[LAST_END][host]:
        state[LAST_END][host] = end


@compiled
def replay(order: Row, num_ops: int, ops: Table, hosts: Table, free: Row, ready: Row) -> None:
    """Run lanes once as early as possible. ``free``: of each worker, before and after."""
    for at in range(num_ops):
        op = order[at]
        host = ops[HOST][op]
        worker = hosts[WORKER][host]
        start = free[worker]
        if ready[op] > start:
            start = ready[op]
        end = start + ops[DURATION][op]
        free[worker] = end
        own = ops[OWN_NEXT][op]
        if own >= 0 and end > ready[own]:
            ready[own] = end
        other = ops[NEXT][op]
        if other >= 0:
            at_other = end + ops[DELAY][op]
            if at_other > ready[other]:
                ready[other] = at_other
