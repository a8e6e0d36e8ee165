"""What a worker's thread is busy with, and where it is, seen from another thread."""

import os
import threading

import pytest

from holdfast.observability.stacks import read_stack, stack_file, user_frame
from holdfast.runtime.link.activity import Activity
from holdfast.runtime.worker.stacks import Stacks


def test_what_is_done_inside_of_something_else_is_no_part_of_it() -> None:
    now_s = [0.0]
    activity = Activity(lambda: now_s[0])
    assert activity.current is None
    with activity.doing("F", 3):
        now_s[0] = 1.0
        with activity.doing("load", 3):
            assert activity.current.kind == "load"
            now_s[0] = 11.0
        busy = activity.current
        assert (busy.kind, activity.busy_s(busy)) == ("F", 1.0)
        now_s[0] = 13.0
    assert activity.current is None
    assert activity.take_longest() == {"load": 10.0, "F": 3.0}
    assert activity.take_longest() == {}


def test_who_waits_on_purpose_in_an_operation_is_busy_with_nothing() -> None:
    now_s = [0.0]
    activity = Activity(lambda: now_s[0])
    with activity.doing("load", 3):
        now_s[0] = 1.0
        with activity.waiting():
            assert activity.current is None
            now_s[0] = 100.0
        assert activity.busy_s(activity.current) == 1.0
    assert activity.take_longest() == {"load": 1.0}


def test_an_operation_that_fails_is_over_too() -> None:
    activity = Activity()
    with pytest.raises(ArithmeticError), activity.doing("B"):
        raise ArithmeticError
    assert activity.current is None


def test_the_stack_of_a_thread_that_is_stuck(tmp_path) -> None:
    stacks, here, go = Stacks("0.1", on_signal=False), threading.Event(), threading.Event()

    def stands_still():
        stacks.open(lambda: tmp_path)
        here.set()
        go.wait(30)

    thread = threading.Thread(target=stands_still)
    thread.start()
    assert here.wait(30)
    stacks.dump()
    go.set()
    thread.join(30)
    [path] = (tmp_path / "stacks").iterdir()
    assert path == stack_file(tmp_path, "0.1", os.getpid())
    assert user_frame(read_stack(path)).endswith("in stands_still")
    stacks.close()
