"""One run at a time on a GPU; foreign processes are told from our own; a fitting self-test."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.data import locks
from workbench.data.locks import LockBusy
from workbench.measurement import preflight
from workbench.measurement.preflight import COPY_ELEMENTS, copy_elements, foreign, gpu_lock

ROOT = Path(preflight.__file__).parents[2]
HOLDS = """
import sys, tempfile, time
tempfile.tempdir = sys.argv[1]
from workbench.measurement.preflight import gpu_lock
with gpu_lock(sys.argv[2], lambda said: print("told", said, flush=True)):
    print("held", flush=True)
    sys.stdin.readline()
print("free", flush=True)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(locks.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(locks, "POLL_S", 0.01)
    return tmp_path


@pytest.fixture
def another(folder):
    """Starts a process that holds the lock of a GPU until it is told to end."""
    started = []

    def start(gpu="GPU-a"):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDS, str(folder), gpu],
            cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def held(process):
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_run_waits_for_the_first_and_says_for_whom(another):
    first = held(another())
    second = another()
    assert (
        second.stdout.readline() == f"told waiting for the GPU, which process {first.pid} holds\n"
    )
    assert first.poll() is None
    first.communicate("\n", timeout=30)
    assert second.stdout.readline() == "held\n", "told once, then held"


def test_another_gpu_is_another_lock(another):
    first, entered = held(another("GPU-a")), False
    with gpu_lock("GPU-b", pytest.fail, timeout_s=0):
        entered = first.poll() is None
    assert entered, "both are held at once"


def test_the_lock_of_a_killed_process_is_free(another):
    first = held(another())
    with pytest.raises(LockBusy, match=f"process {first.pid} still holds"), \
            gpu_lock("GPU-a", lambda text: None, timeout_s=0):  # fmt: skip
        pytest.fail("it is held")
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    with gpu_lock("GPU-a", pytest.fail, timeout_s=0):
        pass


def test_a_child_that_outlives_its_parent_does_not_keep_the_lock(folder):
    with gpu_lock("GPU-a", pytest.fail):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        with gpu_lock("GPU-a", pytest.fail, timeout_s=0):
            assert child.poll() is None
    finally:
        child.communicate(b"\n")


def test_a_run_inside_a_run_ends_at_once():
    with gpu_lock("GPU-a", pytest.fail):
        with pytest.raises(LockBusy, match="this process"), gpu_lock("GPU-a", pytest.fail):
            pytest.fail("it would wait for itself for ever")
        with pytest.raises(LockBusy, match="this process"), gpu_lock("GPU-a", pytest.fail):
            pytest.fail("the first is still held")


def test_an_error_inside_lets_go():
    with pytest.raises(ZeroDivisionError), gpu_lock("GPU-a", pytest.fail):
        raise ZeroDivisionError
    with gpu_lock("GPU-a", pytest.fail, timeout_s=0):
        pass


def test_two_processes_are_never_inside_together(folder):
    """Each adds to a file what it read from it; together they would lose some."""
    context = multiprocessing.get_context("spawn")
    count = folder / "count"
    count.write_text("0")
    processes = [context.Process(target=add, args=(str(folder), 8)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert count.read_text() == "24"


def add(folder, times):
    locks.tempfile.tempdir = folder
    locks.POLL_S = 0.001
    count = Path(folder) / "count"
    for _ in range(times):
        with gpu_lock("GPU-a", lambda text: None):
            seen = int(count.read_text())
            time.sleep(0.002)
            count.write_text(str(seen + 1))


def test_the_file_names_no_gpu_and_is_for_everybody(folder):
    before = os.umask(0o077)
    try:
        with gpu_lock("GPU-secret", pytest.fail):
            (file,) = folder.iterdir()
            assert "secret" not in file.name
            assert file.read_text() == str(os.getpid())
            assert file.stat().st_mode & 0o777 == 0o666
        assert file.read_text() == "" and file.exists()
    finally:
        os.umask(before)


def test_a_link_in_place_of_the_file_is_not_followed(folder):
    with gpu_lock("GPU-a", pytest.fail):
        (file,) = folder.iterdir()
    file.unlink()
    file.symlink_to(folder / "elsewhere")
    with pytest.raises(LockBusy, match="cannot be opened"), gpu_lock("GPU-a", pytest.fail):
        pytest.fail("it followed the link")
    assert not (folder / "elsewhere").exists()


def test_a_holder_that_has_not_signed_yet_is_another_process(another, folder):
    held(another())
    (file,) = folder.iterdir()
    file.write_text("")
    heard = []

    def listen(text):
        heard.append(text)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), gpu_lock("GPU-a", listen):
        pytest.fail("it is held")
    assert heard == ["waiting for the GPU, which another process holds"]


# Foreign processes

pids = st.sets(st.integers(1, 500), max_size=8)


@given(own=pids, others=pids)
def test_in_one_namespace_those_that_are_not_ours_are_foreign(own, others):
    others = others - own
    assert foreign([*own, *others, *others], own, lambda pid: True) == len(others)


@given(own=pids, visible=pids, hidden=pids)
def test_in_a_container_as_many_hidden_ones_as_we_miss_are_ours(own, visible, hidden):
    """The driver numbers our processes as the host does: by numbers that nothing here has."""
    visible, renumbered = visible - own, {pid + 1000 for pid in own}
    hidden = {pid + 5000 for pid in hidden}
    listed = [*visible, *renumbered, *hidden]
    result = foreign(listed, own, lambda pid: pid <= 500)
    assert result == len(visible) + len(hidden)


@given(own=pids, others=pids)
def test_a_process_of_ours_that_is_not_listed_hides_no_stranger(own, others):
    """Strangers that are visible here are no process of ours under another number."""
    others = others - own
    assert foreign(sorted(others), own, lambda pid: True) == len(others)


@given(own=pids)
def test_ours_alone_are_nobody(own):
    assert foreign([], own, lambda pid: True) == 0
    assert foreign(sorted(own), own, lambda pid: False) == 0


def test_who_computes_is_unknown_where_nobody_tells():
    assert preflight.others_on_gpu(None, {1}) is None
    assert preflight.others_on_gpu([os.getpid(), os.getppid()], {os.getpid()}) == 1


@given(st.integers(0, 1 << 40))
def test_the_copy_of_the_self_test_fits_in_half_of_what_is_free(free):
    count = copy_elements(free)
    assert 1 <= count <= COPY_ELEMENTS and count & (count - 1) == 0
    assert count == 1 or 2 * 8 * count <= free
    assert count == COPY_ELEMENTS or 2 * 8 * (2 * count) > free


def test_a_lock_that_does_not_stay_is_held_by_one_at_a_time_and_leaves_no_file(folder):
    """Three processes add to a number that only the holder may change."""
    code = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from pathlib import Path
from workbench.data import locks
locks.POLL_S = 0.0005
number = Path(sys.argv[1], "number")
for _ in range(40):
    with locks.hold_lock(locks.Lock("sweep", "a", "the sweep", stays=False), lambda said: None):
        number.write_text(str(int(number.read_text()) + 1))
"""
    (folder / "number").write_text("0")
    running = [
        subprocess.Popen([sys.executable, "-c", code, str(folder)], cwd=ROOT) for _ in range(3)
    ]
    assert [process.wait(60) for process in running] == [0, 0, 0]
    assert (folder / "number").read_text() == "120"
    assert not list(folder.glob("*.lock"))


def test_the_file_of_a_killed_holder_is_removed_and_that_of_a_living_one_is_not(folder):
    lock = locks.Lock("sweep", "a", "the sweep", stays=False)
    lock.path.write_text("123456789")
    locks.remove_stale_file(lock)
    assert not lock.path.exists()
    with locks.hold_lock(lock, pytest.fail):
        locks.remove_stale_file(lock)
        assert lock.path.exists()
    assert not lock.path.exists()
