"""Each test carries the marker of its folder, KERNELS chooses those of some kernels, and Hypothesis
draws the same way everywhere."""

import os
import signal
import tempfile
from pathlib import Path

from forks import pytest_addoption, pytest_runtestloop
from hypothesis import settings

__all__ = ["pytest_addoption", "pytest_runtestloop"]  # hooks: this file is a plugin of pytest
TESTS = Path(__file__).parent
# Winners and histories go into the user's data folder by default: not those of the tests.
os.environ["XDG_DATA_HOME"] = tempfile.mkdtemp(prefix="workbench-tests-")
# A job in the background starts with Ctrl-C ignored, and so would whatever the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Tests run side by side: threads of numpy's that wait for each other took ten times the seconds of
# the replayed searches.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Threads of torch's spin while they wait: on a busy machine the references of lora's check sizes
# took 280 ms of CPU with two, and take 4 with one.
os.environ.setdefault("OMP_NUM_THREADS", "1")
MARKED = {"unit", "interpret", "compile", "emulated", "gpu", "metal", "web"}
OF_KERNELS = {"interpret", "compile", "emulated", "gpu", "metal"}  # folders that KERNELS is about

# No deadline: the first example of a test pays for imports, and shared machines stall. By day the
# same examples in every run, every night others.
settings.register_profile("day", deadline=None, max_examples=10, derandomize=True)
settings.register_profile("night", deadline=None, max_examples=50, print_blob=True)
settings.load_profile("day")


def pytest_collection_modifyitems(config, items):
    only = set(filter(None, os.environ.get("KERNELS", "").split(",")))
    kept, others = [], []
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0]
        if folder in MARKED:
            item.add_marker(folder)
        of_another = only and folder in OF_KERNELS and not only & kernels_of(item)
        (others if of_another else kept).append(item)
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = kept


def kernels_of(item):
    """Return the first words of the parts of a test's title: `softmax` of softmax.rows-fp32."""
    title = item.callspec.id if hasattr(item, "callspec") else ""
    return {part.partition(".")[0] for part in title.split("-")}
