"""Copied as ``sitecustomize.py`` into a folder that is first on PYTHONPATH of a watched job.

Needs nothing but the standard library: the job may run in another interpreter than Holdfast.
It must never fail or be noticed: the user's own ``sitecustomize`` still runs, as it would have.
"""

import importlib.machinery
import importlib.util
import os
import sys

VARIABLE = "HOLDFAST_WATCH"  # the socket that the records go to
FAULT_FILES = "fault-{pid}.txt"  # beside the socket: what went wrong in here, for who watches


def start(folder: str) -> None:
    """Put the hooks in place, then leave no trace of ``folder`` in the import path."""
    socket_path = os.environ.get(VARIABLE)
    try:
        if socket_path:
            import holdfast_watch_hooks  # type: ignore[import-not-found]  # lies beside this file

            holdfast_watch_hooks.install(socket_path, keep_fault)
    except Exception:  # the job matters more than what is seen of it
        keep_fault()
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != folder]
    run_the_users_own()


def keep_fault() -> None:
    """Write down the error that is being handled; only the first one of a process is."""
    try:
        folder = os.path.dirname(os.environ[VARIABLE])
        name = os.path.join(folder, FAULT_FILES.format(pid=os.getpid()))
        handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        import traceback  # here: most processes never need it

        with os.fdopen(handle, "w") as file:
            file.write(traceback.format_exc())
    except Exception:
        pass  # it was the second one, or nobody watches any more


def run_the_users_own() -> None:
    """The next ``sitecustomize`` on the path, if there is one."""
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    start(os.path.dirname(os.path.abspath(__file__)))
