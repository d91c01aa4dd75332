"""The user's code in a command: whatever it does at its import, the command ends in a sentence."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from workbench.data.exits import COULD_NOT_RUN, INTERRUPTED
from workbench.data.user_code import UserCodeExit, user_code

pytestmark = pytest.mark.unit

PLAIN = """
import sys
from workbench.backend.supervisor import supervise
from workbench.data import user_code

def command():
    with user_code.user_code("the import of k.py", {limit}):
        {code}
    print("done")
    return {result}

raise SystemExit(supervise(command, lambda text: print(text, file=sys.stderr)))
"""


def ran(code, result=0, limit=20.0, **how):
    script = PLAIN.format(code=code, result=result, limit=limit)
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, **how
    )


@pytest.mark.parametrize("result", [0, 1, 2, 3, 4, 130])
def test_the_exit_code_is_that_of_the_command(result):
    done = ran("pass", result)
    assert (done.returncode, done.stdout, done.stderr) == (result, "done\n", "")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import os; os._exit(0)", "the import of k.py ended the process (exit code 0)"),
        ("import os; os._exit(3)", "the import of k.py ended the process (exit code 3)"),
        ("import ctypes; ctypes.string_at(0)", "the import of k.py ended the process (SIGSEGV)"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "(SIGKILL; the system may"),
    ],
)
def test_code_that_ends_the_process_is_named(code, words):
    done = ran(code)
    assert done.returncode == COULD_NOT_RUN and words in done.stderr and not done.stdout
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("code", ["while True: pass", "import time; time.sleep(1000)"])
def test_code_that_never_returns_is_ended_at_its_limit(code):
    done = ran(code, limit=0.5)
    assert done.returncode == COULD_NOT_RUN
    assert "the import of k.py took longer than 0.5 s" in done.stderr


def test_a_thread_of_the_code_keeps_no_command_alive():
    code = "import threading, time; threading.Thread(target=lambda: time.sleep(1000)).start()"
    done = ran(code, 3)
    assert (done.returncode, done.stdout) == (3, "done\n")


def test_a_del_that_fails_is_one_line():
    done = ran("type('Odd', (), {'__del__': lambda s: 1 // 0})()", 3)
    assert (done.returncode, done.stdout) == (3, "done\n")
    assert done.stderr.count("\n") == 1 and "raised ZeroDivisionError" in done.stderr


def test_ctrl_c_in_a_del_is_not_lost():
    """Python ignores whatever is raised there."""
    code = "\n".join(
        [
            "import os, signal, time",
            "        class Odd:",
            "            def __del__(self): os.kill(os.getpid(), signal.SIGINT); time.sleep(0.01)",
            "        try: Odd(); time.sleep(30)",
            "        except KeyboardInterrupt: print('stopped')",
        ]
    )
    done = ran(code, 3, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    assert (done.returncode, done.stdout, done.stderr) == (3, "stopped\ndone\n", "")


@pytest.mark.parametrize("name", ["monotonic", "sleep"])
def test_a_clock_that_was_replaced_is_put_back(name):
    before = getattr(time, name)
    with pytest.raises(UserCodeExit, match=f"it replaced time.{name}"), user_code("k.py"):
        setattr(time, name, lambda *given: 0.0)
    assert getattr(time, name) is before


def test_memory_is_limited():
    """More than the machine has: the system would end other processes for it."""
    done = ran("bytearray(1 << 44)")
    assert "MemoryError" in done.stderr and done.returncode != 0


def test_code_that_holds_on_to_ctrl_c_is_ended():
    hold = "\n".join(
        [
            "import time; print(1, flush=True)",
            "        while True:",
            "            try:",
            "                time.sleep(0.01)",
            "            except BaseException: pass",
        ]
    )
    script = PLAIN.format(code=hold, result=0, limit=60.0)
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    process.stdout.read(1)
    time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert (process.returncode, error) == (INTERRUPTED, b"stopped\n")


def test_the_command_ends_with_the_process_that_the_user_started():
    code = "print(os.getpid(), flush=True); time.sleep(1000)"
    script = PLAIN.format(code=code, result=0, limit=60)
    script = "import os, time\n" + script
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    child = int(process.stdout.readline())
    process.kill()
    process.wait()
    end = time.monotonic() + 10
    while (alive := is_alive(child)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not alive


@pytest.mark.parametrize("end", ["pass", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_processes_that_the_code_started_end_with_the_command(end, tmp_path):
    """Also those that a program of it started, in a session of their own. Each makes a folder with
    its number, for which the code waits before it ends."""
    sleep = "time.sleep(1000)"
    come = f"os.mkdir({str(tmp_path)!r} + f'/{{os.getpid()}}')"
    program = f"import os, time; {come}; os.fork(); {sleep}"
    fork = f"os.fork() or ({come}, {sleep})"
    start = f"subprocess.Popen([sys.executable, '-c', {program!r}], start_new_session=True)"
    both = f"[time.sleep(0.01) for _ in iter(lambda: len(os.listdir({str(tmp_path)!r})), 2)]"
    begin = "import os, signal, subprocess, time"
    done = ran(f"{begin}; {fork}; {start}; {both}; {end}")
    pids = [int(path.name) for path in tmp_path.iterdir()]
    assert len(pids) == 2 and not any(map(is_alive, pids))
    assert done.returncode == (0 if end == "pass" else COULD_NOT_RUN)


def is_alive(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


class Textless(Exception):
    """Its text ends the process."""

    def __str__(self):
        raise SystemExit(3)

    __repr__ = __str__


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (SystemExit(3), r"sys.exit\(3\)"),
        (SystemExit(Textless()), r"sys.exit\(None\)"),
        (GeneratorExit(), "GeneratorExit"),
        (asyncio.CancelledError(), "it raised CancelledError"),
        (BaseExceptionGroup("two", [SystemExit(0)]), "it raised BaseExceptionGroup"),
        (Textless(), "it raised Textless, which has no text"),
    ],
)
def test_exits_become_errors(error, words):
    with pytest.raises(UserCodeExit, match=words), user_code("k.py"):
        raise error


def test_what_a_killed_process_leaves_is_removed_by_the_next_command():
    """Temporary files of processes that the command starts, and the folder of its sockets."""
    begin = "import multiprocessing.util, subprocess, tempfile; multiprocessing.util.get_temp_dir()"
    write = "subprocess.run([sys.executable, '-c', 'import tempfile; tempfile.mkstemp()'])"
    kill = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    with tempfile.TemporaryDirectory() as short:  # the path of a socket has 104 letters
        variables = {**os.environ, "TMPDIR": short}
        assert ran(f"{begin}; {write}; {kill}", env=variables).returncode == COULD_NOT_RUN
        (left,) = Path(short).iterdir()
        assert len(list(left.iterdir())) == 2  # its lock and the file; sockets need no more
        inside = ran("import tempfile; print(tempfile.gettempdir())", env=variables)
        assert inside.stdout == f"{short}\ndone\n" and not list(Path(short).iterdir())
