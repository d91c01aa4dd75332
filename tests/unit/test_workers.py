"""Processes that hang or die cost their own task alone, and none outlives who started it."""

import contextlib
import dataclasses
import inspect
import json
import math
import os
import pickle
import signal
import struct
import subprocess
import sys
import time
import typing
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workbench.backend import replies, workers
from workbench.backend.checking import compare_outputs, make_inputs, tried_again
from workbench.backend.processes import compile_task, outcome_of
from workbench.backend.workers import Solo, Workers, cpu_count
from workbench.catalog.source import SourceChanged
from workbench.evaluation.verdict import RulesVerdict
from workbench.measurement import correctness, handover, worker
from workbench.measurement.candidate import Refusal

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pool():
    """Tasks here are functions of the standard library: a worker cannot import a test."""
    with Workers(1) as workers:
        workers.submit(math.sqrt, 4.0, timeout_s=60).result()
        yield workers


def test_a_result_comes_back(pool):
    assert pool.submit(math.sqrt, 9.0, timeout_s=30).result() == 3.0


def test_what_a_task_raises_is_raised(pool):
    with pytest.raises(ValueError, match="domain"):
        pool.submit(math.sqrt, -1.0, timeout_s=30).result()


def test_one_that_hangs_is_ended_and_the_next_runs(pool):
    hung = pool.submit(os.getpid, timeout_s=30).result()
    with pytest.raises(TimeoutError, match=r"took longer than 0\.3 s"):
        pool.submit(signal.pause, timeout_s=0.3).result()
    assert pool.submit(os.getpid, timeout_s=30).result() != hung
    assert waited(lambda: not alive(hung)), "the one that hangs is still there"


@pytest.mark.parametrize("death", [(os._exit, 3), (os.abort,)])
def test_one_that_dies_is_told_and_the_next_runs(pool, death):
    with pytest.raises(ChildProcessError, match=r"its process died \(exit code -?\d+\)"):
        pool.submit(*death, timeout_s=30).result()
    assert pool.submit(math.sqrt, 9.0, timeout_s=30).result() == 3.0


def test_a_restart_gives_a_fresh_process(pool):
    before = pool.submit(os.getpid, timeout_s=30).result()
    pool.restart()
    assert pool.submit(os.getpid, timeout_s=30).result() != before


def test_workers_leave_ctrl_c_to_their_parent(pool):
    pid = pool.submit(os.getpid, timeout_s=30).result()
    status = Path(f"/proc/{pid}/status").read_text()
    ignored = next(line for line in status.splitlines() if line.startswith("SigIgn:"))
    assert int(ignored.split()[1], 16) >> (signal.SIGINT - 1) & 1


def test_no_worker_outlives_a_parent_that_was_killed(tmp_path):
    """kill -9 leaves the parent no chance to end its workers, and this one would hang an hour."""
    noted = tmp_path / "pid"
    code = f"""
import os, pathlib, time
from workbench.backend.workers import Workers
if __name__ == "__main__":
    pool = Workers(1)
    pid = pool.submit(os.getpid, timeout_s=60).result()
    pool.submit(time.sleep, 3600, timeout_s=3600)
    time.sleep(0.3)
    pathlib.Path({str(noted)!r}).write_text(str(pid))
    time.sleep(3600)
"""
    script = tmp_path / "parent.py"
    script.write_text(code)
    parent = subprocess.Popen(
        [sys.executable, script], env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    worker = int(waited(lambda: noted.exists() and noted.read_text()))
    parent.kill()
    parent.wait()
    assert waited(lambda: not alive(worker)), "the worker is still there"


def waited(what, limit_s=60.0):
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if result := what():
            return result
        time.sleep(0.05)
    return None


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_lost_task_is_a_refusal_that_says_how():
    for error, words in (
        (TimeoutError("took longer than 60 s"), "the compile took longer than 60 s"),
        (ChildProcessError("its process died (exit code -11)"), "the compile its process died"),
        (KeyError("x"), "KeyError: 'x'"),
    ):
        future = Future()
        future.set_exception(error)
        result = outcome_of(future, "compile")
        assert isinstance(result, Refusal) and result.reason.startswith(words)


def test_a_closed_pool_answers_everyone_who_waits():
    pool = Workers(1)
    running = pool.submit(time.sleep, 60, timeout_s=60)
    waiting = pool.submit(time.sleep, 60, timeout_s=60)
    assert waited(running.running)
    pool.close()
    assert isinstance(running.exception(timeout=30), ChildProcessError)
    with pytest.raises(CancelledError):
        waiting.result(timeout=30)


def future_of(end):
    future = Future()
    future.set_exception(end) if isinstance(end, BaseException) else future.set_result(end)
    return future


DIED, SLOW, WRONG = ChildProcessError("died"), TimeoutError("slow"), ValueError("wrong")


@pytest.mark.parametrize(
    ("ends", "expected", "runs"),
    [([1], 1, 1), ([DIED, 2], 2, 2), ([SLOW, 2], 2, 2), ([DIED, SLOW], SLOW, 2),
     ([DIED, WRONG], WRONG, 2), ([WRONG, 2], WRONG, 1)],
)  # fmt: skip
def test_a_task_whose_process_is_lost_runs_once_more(ends, expected, runs):
    todo = iter(ends)
    result = tried_again(lambda: future_of(next(todo)))
    assert (result.exception() or result.result()) == expected
    assert len(ends) - len(list(todo)) == runs


def test_cpus_are_those_of_this_process():
    assert 1 <= cpu_count() <= (os.cpu_count() or 1)


def test_a_worker_has_no_pipe_to_what_others_need(pool):
    """A byte that the user's code writes there would end the fork server, and with it all pools."""
    pid = pool.submit(os.getpid, timeout_s=30).result()
    held = {os.readlink(f) for f in Path(f"/proc/{pid}/fd").iterdir() if f.exists()}
    for file in (
        forkserver._forkserver._forkserver_alive_fd,
        resource_tracker._resource_tracker._fd,
    ):
        assert os.readlink(f"/proc/self/fd/{file}") not in held


def test_a_killed_process_costs_its_own_task_alone():
    """At any moment, also between two bytes of a result."""
    with Workers(2) as pool:
        hung = pool.submit(signal.pause, timeout_s=60)
        assert waited(hung.running)
        done = [pool.submit(os.getpid, timeout_s=60) for _ in range(4)]
        (other,) = {future.result() for future in done}
        (first,) = {solo.pid for solo in pool._all} - {other}
        os.kill(first, signal.SIGKILL)
        assert isinstance(hung.exception(timeout=30), ChildProcessError)
        assert pool.submit(os.getpid, timeout_s=60).result() == other


# One process, one task at a time


@pytest.fixture
def solo():
    one = Solo()
    yield one
    one.end()


def test_a_solo_answers_raises_and_goes_on(solo):
    assert solo.ask(math.sqrt, 9.0, timeout_s=60) == 3.0
    with pytest.raises(ValueError, match="domain"):
        solo.ask(math.sqrt, -1.0, timeout_s=30)
    assert solo.ask(os.getpid, timeout_s=30) == solo.pid


def test_what_was_begun_is_done_before_what_is_asked_and_its_answer_dropped(solo, tmp_path):
    solo.begin(os.mkdir, tmp_path / "made")
    solo.begin(math.sqrt, -1.0)
    assert solo.ask(os.path.isdir, tmp_path / "made", timeout_s=60) is True


def test_an_answer_that_cannot_travel_is_an_error_and_no_end(solo):
    with pytest.raises(RuntimeError, match="cannot travel"):
        solo.ask(open, os.devnull, timeout_s=60)
    assert solo.ask(math.sqrt, 9.0, timeout_s=30) == 3.0


def test_a_solo_that_hangs_is_ended_at_its_limit(solo):
    solo.ask(math.sqrt, 1.0, timeout_s=60)
    with pytest.raises(TimeoutError, match=r"took longer than 0\.3 s"):
        solo.ask(time.sleep, 60, timeout_s=0.3)
    with pytest.raises(ProcessLookupError):
        os.kill(solo.pid, 0)
    with pytest.raises(ChildProcessError):
        solo.ask(math.sqrt, 1.0, timeout_s=30)


@pytest.mark.parametrize("begun", [False, True])
def test_a_solo_that_dies_says_how(solo, begun):
    solo.ask(math.sqrt, 1.0, timeout_s=60)
    if begun:
        solo.begin(os._exit, 3)
    with pytest.raises(ChildProcessError, match=r"exit code 3\)"):
        solo.ask(os._exit, 3, timeout_s=30)
    solo.end()  # again


# What a process may send


class Own(Exception):
    pass


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
))  # fmt: skip
def test_values_arrive_as_they_were_sent(value):
    assert replies.read(replies.write(True, value)) == (True, value)
    refusal = Refusal("check", "wrong", cause="crash")
    assert replies.read(replies.write(True, [refusal, value])) == (True, [refusal, value])


def classes_of(hint):
    """The classes in an annotation, and in the fields of those that are dataclasses."""
    seen, waiting = set(), [hint]
    while waiting:
        hint = waiting.pop()
        waiting += typing.get_args(hint)
        if isinstance(hint, type) and typing.get_origin(hint) is None and hint not in seen:
            seen.add(hint)
            if dataclasses.is_dataclass(hint):
                waiting += typing.get_type_hints(hint, None, NAMES).values()
    return seen


NAMES = vars(handover) | vars(correctness) | {"torch": torch}
TASKS = [
    *(f for _, f in inspect.getmembers(worker, inspect.isfunction)
      if f.__module__ == worker.__name__ and not f.__name__.startswith("_")
      and f not in (worker.account_seconds, worker.resolve)),
    compile_task, compare_outputs, make_inputs,
]  # fmt: skip


@pytest.mark.parametrize("task", TASKS, ids=lambda f: f.__name__)
def test_what_a_task_returns_can_be_read(task):
    plain = (object, str, int, float, bool, bytes, list, tuple, dict, type(None))
    known = NAMES | vars(sys.modules[task.__module__])
    returned = eval(task.__annotations__["return"], known)
    for kind in classes_of(returned) - {*plain}:
        assert kind.__module__ in ("collections.abc", "typing") or replies._is_known(kind), kind


def test_the_seconds_of_a_task_can_be_read(monkeypatch):
    state = worker._State(None, None, None, None, None, {})
    monkeypatch.setattr(worker, "_now", state)

    @worker.account_seconds
    def task(limit_s):
        with worker._checking():
            time.sleep(limit_s)
        return Refusal("check", "wrong")

    right, (result, spent) = replies.read(replies.write(True, task(0.01)))
    assert right and result == Refusal("check", "wrong")
    assert spent.total >= spent.check >= 0.01 and spent.timing_s == 0


def test_an_error_arrives_by_its_class_or_by_its_name():
    _, known = replies.read(replies.write(False, SourceChanged("changed")))
    assert type(known) is SourceChanged
    _, alien = replies.read(replies.write(False, Own("their text")))
    assert type(alien) is RuntimeError and str(alien) == "Own: their text"


def sent(described, *lengths, right=True):
    """The bytes of a reply with this description of its value."""
    head = json.dumps([right, described, lengths]).encode()
    return struct.pack("!Q", len(head)) + head


CHECKED = {"error": 0.5, "wrong": None, "rule": None, "bits": "", "programs": None}


@pytest.mark.parametrize("described", [
    {"value": ["workbench.measurement.correctness:Checked", CHECKED | {"error": "0.5"}]},
    {"value": ["workbench.measurement.correctness:Checked", CHECKED | {"rule": "mine"}]},
    {"value": ["workbench.measurement.correctness:Checked", CHECKED | {"__setstate__": 1}]},
    {"value": ["workbench.measurement.correctness:Checked", {"error": 0.5}]},
    {"value": ["workbench.measurement.correctness:Poisoned", {}]},  # a class that is no value
    {"value": ["workbench.backend.workers:Solo", {}]}, {"value": ["subprocess:Popen", {}]},
    {"error": ["builtins:SystemExit", []]}, {"error": ["builtins:eval", ["1"]]},
    {"value": ["workbench.kernels.copy:Config", {}]}, {"slice": [{"tuple": []}, 1, 1]},
    {"bytes": 0}, {"tuple": [1], "list": [2]}, {}, {"call": ["os", "system"]},
])  # fmt: skip
def test_what_describes_no_value_is_not_read(described):
    with pytest.raises(replies.Unreadable):
        replies.read(sent(described))


@pytest.mark.parametrize(("value", "hint", "fits"), [
    ((1, "a"), tuple[int, str], True), ((1, 2), tuple[int, str], False),
    ((1,), tuple[int, str], False), ((1, "a", 2), tuple[int, str], False),
    ((1, 2, 3), tuple[int, ...], True), ((1, "a"), tuple[int, ...], False),
    ([1, 2], list[int], True), ([1, "a"], list[int], False), ({1, "a"}, set[int], False),
    ((), tuple[int, ...], True), ([1, "a"], tuple[int, str], False), (1, float, True),
])  # fmt: skip
def test_a_tuple_has_its_declared_parts(value, hint, fits):
    assert replies._fits(value, hint) is fits


def test_a_value_is_built_from_its_declared_fields():
    described = {"value": ["workbench.measurement.correctness:Checked", CHECKED]}
    assert replies.read(sent(described)) == (True, correctness.Checked(0.5))


def test_bytes_set_no_attribute_of_a_class():
    """These bytes, before a reply, made each verdict `correct`."""
    forged = b"\x80\x05cworkbench.evaluation.verdict\nRulesVerdict\nN}(Vword\nVcorrect\nu\x86b0"
    for data in (forged, forged + pickle.dumps((True, 1))[2:], forged + replies.write(True, 1)):
        with pytest.raises(replies.Unreadable):
            replies.read(data)
    assert isinstance(RulesVerdict.word, property)


@given(st.binary())
def test_other_bytes_are_no_result(data):
    try:
        right, result = replies.read(data)
    except replies.Unreadable:
        return
    assert right is True or isinstance(result, Exception)


def test_everywhere_reaches_each_process_and_spoils_none(tmp_path):
    with Workers(2) as pool:
        pool.everywhere(math.sqrt, -1.0)
        assert pool.submit(math.sqrt, 9.0, timeout_s=60).result() == 3.0


def test_threads_that_start_processes_at_once_leave_stderr_as_it_was():
    """Each keeps the descriptor and puts it back: a second thread would keep the closed one."""

    def start(_):
        with workers._silent():
            time.sleep(0.002)

    before = os.fstat(2)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(start, range(64)))
    assert os.path.samestat(os.fstat(2), before)


@pytest.mark.nightly
def test_processes_start_at_once_after_the_server_was_ended():
    """As in a second command of one process. A server that was killed and not awaited counted as
    running, so that a process that began there failed: EOFError."""
    for _ in range(2):
        solo = Solo()
        assert solo.ask(math.sqrt, 4.0, timeout_s=60) == 2.0
        solo.end()
        server = forkserver._forkserver._forkserver_pid
        workers.end_server()
        with pytest.raises(ProcessLookupError):
            os.kill(server, 0)
    workers.end_server()  # where there is none


def test_a_promise_is_kept_while_later_tasks_go_on():
    with closing_solo() as solo:
        promised = solo.promise(divmod, 7, 2)
        failing = solo.promise(divmod, 7, 0)
        solo.begin(time.sleep, 60)
        started = time.monotonic()
        assert solo.keep(promised) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            solo.keep(failing)
        assert time.monotonic() - started < 50


def test_a_promise_of_a_process_that_died_is_an_error():
    with closing_solo() as solo:
        promised = solo.promise(time.sleep, 60)
        os.kill(solo.pid, signal.SIGKILL)
        with pytest.raises(ChildProcessError):
            solo.keep(promised)


@contextlib.contextmanager
def closing_solo():
    solo = Solo()
    try:
        yield solo
    finally:
        solo.end()


BESIDE = """
import os
from workbench.backend.workers import Solo
if __name__ == "__main__":
    for spawned in (False, True):
        solo = Solo(spawned=spawned)
        seen = solo.ask(os.getenv, "PYTHONSAFEPATH", timeout_s=60)
        print(solo.ask(divmod, 7, 2, timeout_s=60), seen)
        solo.end()
    print(os.getenv("PYTHONSAFEPATH"))
"""


def test_files_beside_it_are_not_taken_for_the_standard_library(tmp_path):
    for name in ("random", "queue", "types", "copy", "selectors"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('the wrong module')\n")
    (script := tmp_path / "elsewhere" / "script.py").parent.mkdir()
    script.write_text(BESIDE)
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    variables.pop("PYTHONSAFEPATH", None)
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=variables, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["(3, 1) None", "(3, 1) None", "None"], done.stderr
