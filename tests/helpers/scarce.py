"""A machine that is out of threads for a while."""

import threading

import pytest


def refuse_threads(monkeypatch: pytest.MonkeyPatch, name: str, number: int) -> list[str]:
    """The first so many threads whose names begin so do not start; returns those that did not."""
    start, refused = threading.Thread.start, list[str]()

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith(name) and len(refused) < number:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    return refused
