"""Run the tests of a session in forks of the process that collected them: `pytest --forks 3`.

pytest-xdist starts processes that each import and collect everything again, 18 s of CPU for
tests/unit in a fresh clone, 5 to 10 s for any other folder. A fork has what its parent imported,
and what modules computed while they were collected.
"""

from __future__ import annotations

import gc
import os
import signal
import tempfile
import traceback
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing import Pipe, util
from multiprocessing.connection import Connection, wait
from typing import Any

import pytest

MOST = 24  # tests that a fork takes at once, and those after them that share a fixture
POLL_S = 2.0  # a fork that ended is noticed after so long where something that it left holds a pipe


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forks", type=int, default=0, help="run the tests in so many forks")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run all tests in forks; None, so that pytest does it, without the option."""
    many = min(session.config.option.forks, len(session.items))
    if not many or session.config.option.collectonly or session.testsfailed:
        return None
    Pool(session, many).run()
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    return True


def share(one: Any, other: Any) -> bool:
    """Return whether two tests have a fixture of their module, which each process makes anew."""
    names = {name for name, made in fixtures(one) if made.scope == "module"}
    return one.path == other.path and bool(names & {name for name, _ in fixtures(other)})


def fixtures(item: Any) -> list[tuple[str, Any]]:
    """Return the fixtures of a test by their names."""
    known = item._fixtureinfo.name2fixturedefs
    return [(name, definitions[-1]) for name, definitions in known.items()]


@dataclass
class Fork:
    """One process, and the tests that it was given and has not ended."""

    pid: int
    number: int
    connection: Connection
    tests: deque[int] = field(default_factory=deque)


class Pool:
    """Gives tests to forks in their order, fewer at a time towards the end, and reports results."""

    def __init__(self, session: pytest.Session, many: int) -> None:
        self._session, self._config, self._many = session, session.config, many
        self._waiting = deque(range(len(session.items)))
        self._forks: list[Fork] = []
        self._folder = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]

    def run(self) -> None:
        """Return when every test has its result, or no more is to be run."""
        gc.collect()
        gc.freeze()  # a collection in a fork would copy every page of its parent
        gc.set_threshold(100_000, 50, 1000)  # from 700, 10, 10: an eighth of the seconds
        try:
            for number in range(self._many):
                self._start(number)
            while self._forks:
                self._serve()
        finally:
            gc.unfreeze()
            for fork in self._forks:  # after Ctrl-C
                os.kill(fork.pid, signal.SIGTERM)
                os.waitpid(fork.pid, 0)

    def _start(self, number: int) -> None:
        ours, theirs = Pipe()
        if not (pid := os.fork()):
            try:
                ours.close()
                Worker(self._session, theirs).run(number, self._folder)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        theirs.close()
        self._forks.append(Fork(pid, number, ours))

    def _serve(self) -> None:
        """Take one message of each fork that has one, and see which ended."""
        ready = wait([fork.connection for fork in self._forks], POLL_S)
        for fork in list(self._forks):
            if fork.connection in ready:
                try:
                    self._answer(fork, fork.connection.recv())
                except (EOFError, ConnectionError):
                    self._ended(fork, os.waitpid(fork.pid, 0)[1])
            elif not ready and (status := os.waitpid(fork.pid, os.WNOHANG))[0]:
                self._ended(fork, status[1])

    def _answer(self, fork: Fork, message: Any) -> None:
        """Give a fork that sends None more tests, and report what any other message holds."""
        if message is None:
            fork.connection.send(tests := self._next())
            fork.tests.extend(tests)
            return
        hook = self._config.hook
        report = hook.pytest_report_from_serializable(config=self._config, data=message)
        hook.pytest_runtest_logreport(report=report)
        if report.when == "teardown":
            fork.tests.popleft()

    def _next(self) -> list[int]:
        if self._session.shouldfail or self._session.shouldstop:
            return []
        items, waiting = self._session.items, self._waiting
        many = min(MOST, 1 + len(waiting) // (4 * self._many), len(waiting))
        result = [waiting.popleft() for _ in range(many)]
        while result and waiting and share(items[result[-1]], items[waiting[0]]):
            result.append(waiting.popleft())
        return result

    def _ended(self, fork: Fork, status: int) -> None:
        """Report the test during which a fork ended, and start another for those after it."""
        self._forks.remove(fork)
        fork.connection.close()
        if not fork.tests:
            return
        item = self._session.items[fork.tests.popleft()]
        code = os.waitstatus_to_exitcode(status)
        message = f"the process of this test ended with {code}"
        lost = pytest.TestReport(
            item.nodeid, item.location, dict(item.keywords), "failed", message, "call"
        )
        self._config.hook.pytest_runtest_logreport(report=lost)
        self._waiting.extendleft(reversed(fork.tests))
        self._start(fork.number)


class Worker:
    """What a fork does: it runs tests and sends their reports."""

    def __init__(self, session: pytest.Session, connection: Connection) -> None:
        self._session, self._connection = session, connection

    def run(self, number: int, folder: Any) -> None:
        """Run tests until there are no more."""
        config = self._session.config
        capture = config.pluginmanager.getplugin("capturemanager")
        capture.stop_global_capturing()  # its files are those of all forks
        capture.start_global_capturing()
        capture.suspend_global_capture()
        config.pluginmanager.unregister(name="terminalreporter")
        config.pluginmanager.register(self)
        own = folder / f"fork-{os.getpid()}"
        own.mkdir(mode=0o700)
        config._tmp_path_factory._basetemp = own  # type: ignore[attr-defined]
        os.environ["PYTEST_XDIST_WORKER"] = f"gw{number}"  # under its name plugins look for it
        os.environ["XDG_DATA_HOME"] = tempfile.mkdtemp(dir=own)  # conftest.py: none but the test's
        self._all()
        util._exit_function()  # type: ignore[attr-defined]  # ends what tests left running
        self._connection.close()

    def _all(self) -> None:
        items: Sequence[pytest.Item] = self._session.items
        tests = deque(self._more())
        while tests:
            test = tests.popleft()
            if not tests:
                tests.extend(self._more())
            following = items[tests[0]] if tests else None
            self._session.config.hook.pytest_runtest_protocol(item=items[test], nextitem=following)

    def _more(self) -> list[int]:
        self._connection.send(None)
        result: list[int] = self._connection.recv()
        return result

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        hook = self._session.config.hook
        self._connection.send(
            hook.pytest_report_to_serializable(config=self._session.config, report=report)
        )
