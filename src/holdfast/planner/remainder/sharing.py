"""Who takes the work that is bound to nobody: integer loops only, as in ``planner.kernel``."""

from holdfast.planner.kernel.compiled import compiled

Row = list[int]  # or an array
Table = list[Row]

UNTAKEN = -1


@compiled
def first_done(load: Row, takes: Row, home: int) -> int:
    """The holder that would be done first; of equals the one at home, then the lowest."""
    best = 0
    for holder in range(1, len(load)):
        if load[holder] + takes[holder] < load[best] + takes[best]:
            best = holder
    if home >= 0 and load[home] + takes[home] <= load[best] + takes[best]:
        best = home
    return best


@compiled
def balance(sort: Row, homes: Row, takes: Table, load: Row, taken: Row) -> int:
    """Give every task that is untaken to the holder that is done first; when the last one is.

    ``sort``: a task's row of ``takes``, which has ticks a holder; ``homes``: -1 for none.
    """
    last = 0
    for task in range(len(sort)):
        if taken[task] == UNTAKEN:
            holder = first_done(load, takes[sort[task]], homes[task])
            taken[task] = holder
            load[holder] += takes[sort[task]][holder]
            last = max(last, load[holder])
    return last


@compiled
def stay_home(sort: Row, homes: Row, takes: Table, load: Row, taken: Row, limit: int) -> None:
    """Leave tasks in their own pipeline, as far as that is done by ``limit``."""
    for task in range(len(sort)):
        home = homes[task]
        if home >= 0 and load[home] + takes[sort[task]][home] <= limit:
            taken[task] = home
            load[home] += takes[sort[task]][home]
