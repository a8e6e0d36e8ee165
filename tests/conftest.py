"""What holds for all tests: one compute thread, one seed, and a count of what each folder takes.

HOLDFAST_SEED is what random samples are drawn from: always the same in ``make test``, another one
each time in ``make test-all`` and ``make chaos``, which print it. HOLDFAST_TEST_DEVICE=1 puts all
runs in threads on a device that is not there.
"""

import os
import signal
import threading

import pytest
from hypothesis import settings

from helpers.drawn import leave_out
from helpers.seed import SEED
from helpers.tally import Tally
from holdfast.host import instruction_set

# As every worker on a small machine: bits depend on it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
instruction_set.prepare_script()  # nothing that this machine refuses: before any test loads torch

# nohup, or a shell's &, has them ignored, and every run that a test starts would inherit that.
for number, usual in (
    (signal.SIGHUP, signal.SIG_DFL),
    (signal.SIGINT, signal.default_int_handler),
):
    is_ours = threading.current_thread() is threading.main_thread()
    if is_ours and signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)

if "HOLDFAST_TEST_DEVICE" in os.environ:
    from helpers import far_device

    far_device.install()  # every run whose settings do not say otherwise is there

settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("drawn", print_blob=True, deadline=None)
settings.load_profile("drawn" if "HOLDFAST_SEED" in os.environ else "same")


def pytest_configure(config):
    config.pluginmanager.register(Tally(config), "tally")


def pytest_collection_modifyitems(config, items):
    leave_out(config, items)


@pytest.fixture(scope="session")
def tally(pytestconfig):
    """Where a test leaves a line or a count for the end of the run."""
    return pytestconfig.pluginmanager.getplugin("tally")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    if report.failed:
        report.sections.append(("drawn from", f"HOLDFAST_SEED={SEED}"))
    return report
