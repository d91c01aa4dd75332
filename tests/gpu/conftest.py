"""Tests on one GPU from many processes (`pytest -n 8`): those marked `alone` time something and
have the GPU to themselves, and those that need much memory wait until it is there.

Every test holds a lock that the others share; one that is `alone` holds it by itself. Whoever wants
it queues at a gate first, so that one that is to be alone does not wait for ever. Memory is handed
out in pieces, each a lock too.
"""

import fcntl
import os
import tempfile
import time
from contextlib import ExitStack, closing

import pytest
import torch

PIECES = 16
SHARED_OUT = 0.75  # of the GPU's memory, in so many pieces; the rest is for tests that ask for none


class Lock:
    """One of the user's locks for these tests; it ends with the process at the latest."""

    def __init__(self, name, how=fcntl.LOCK_EX):
        path = os.path.join(tempfile.gettempdir(), f"workbench-gpu-tests-{os.getuid()}-{name}")
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._handle, how)
        except OSError:  # held by another, and not waited for
            self.close()
            raise

    def close(self):
        os.close(self._handle)


def pytest_configure(config):
    config.addinivalue_line("markers", "alone: times something, so no other test uses the GPU")


def pytest_collection_modifyitems(items):
    """What runs alone comes last, when the other processes run out of work anyway."""
    items.sort(key=lambda item: item.get_closest_marker("alone") is not None)


@pytest.fixture(autouse=True)
def the_gpu(request):
    alone = request.node.get_closest_marker("alone") is not None
    with closing(Lock("gate")):
        lock = Lock("gpu", fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
    with closing(lock):
        yield


@pytest.fixture
def needs_memory():
    """Waits until other tests leave so many bytes, and skips the test where they are not free."""
    with ExitStack() as held:

        def wanted(bytes_):
            free, whole = torch.cuda.mem_get_info()
            pieces = min(PIECES, int(PIECES * bytes_ / (SHARED_OUT * whole)))
            if pieces:
                torch.cuda.empty_cache()
                with closing(Lock("memory")):  # one at a time, or two would wait for each other
                    take(pieces, held)
                free, _ = torch.cuda.mem_get_info()
            if free < bytes_:
                gigabytes = f"{bytes_ / 1e9:.0f} GB of GPU memory, and {free / 1e9:.0f} are free"
                pytest.skip(f"takes up to {gigabytes}")

        yield wanted
        torch.cuda.empty_cache()


def take(pieces, held):
    """So many pieces of the memory; whatever they are held by gives them back."""
    there = list(range(PIECES))
    while pieces:
        for piece in list(there):
            if not pieces:
                return
            try:
                held.enter_context(closing(Lock(f"memory-{piece}", fcntl.LOCK_EX | fcntl.LOCK_NB)))
            except OSError:
                continue
            there.remove(piece)
            pieces -= 1
        time.sleep(0.05 if pieces else 0)
