"""Processes that several live backends share."""

import pytest

from workbench.backend import measuring, prewarm
from workbench.backend.measuring import Measuring
from workbench.spec import WorkbenchError

pytestmark = pytest.mark.unit


class HereSolo:
    """A process that is this one."""

    started = 0

    def __init__(self, spawned=False):
        HereSolo.started += 1
        self.alive = True

    def begin(self, *_):
        pass

    def ask(self, task, *args, timeout_s):
        assert self.alive
        return task(*args)

    def end(self):
        self.alive = False


class HerePool:
    """A pool of this process."""

    def __init__(self, count):
        self.closed, self.tasks = False, []

    def everywhere(self, task, *args):
        pass

    def submit(self, task, *args, timeout_s):
        self.tasks.append((task.__name__, *args))
        return prewarm.Future()

    def close(self):
        self.closed = True


@pytest.fixture(autouse=True)
def here(monkeypatch):
    monkeypatch.setattr(measuring, "Solo", HereSolo)
    monkeypatch.setattr(HereSolo, "started", 0)


def fails(error):
    raise error


@pytest.mark.parametrize(
    ("error", "started"),
    [(WorkbenchError("A sentence."), 1), (RuntimeError("an illegal access"), 2)],
)
def test_a_task_that_may_have_spoilt_the_process_ends_it(error, started):
    process = Measuring()
    with pytest.raises(type(error)):
        process.aside(fails, error, timeout_s=1)
    assert HereSolo.started == started
    assert process.aside(len, "ab", timeout_s=1) == 2


def test_a_backend_leaves_the_processes_to_their_owner(monkeypatch):
    monkeypatch.setattr(prewarm, "Workers", HerePool)
    kept = prewarm.KeptProcesses()
    pool, process = kept._workers, kept._measuring
    kept.compilers.close()
    kept.gpu.close()
    kept.close()
    assert not pool.closed and process._now.alive
    assert kept.gpu.seconds is process.seconds
    assert kept.submit(len, "abc", timeout_s=1).result() == 3
    with pytest.raises(RuntimeError):
        kept.submit(fails, RuntimeError(), timeout_s=1).result()
    kept.end()
    assert pool.closed and not process._now.alive
