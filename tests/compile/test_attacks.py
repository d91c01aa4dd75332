"""Attacks on an evaluation from outside its plan: the folder that it is run in, the files that it
reads, the memory and the processes of the judge, and kills at any time."""

import json
import os
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from cheats import SPEC, Cheat

from workbench.commands.serve_tools import environment

pytestmark = pytest.mark.nightly
WRONG = {"kernel": "y = y * 0.0"}


def words(path, folder, *more):
    return [sys.executable, "-P", "-m", "workbench", "evaluate", str(path), "--spec",
            str(folder / SPEC.name), "--dtype=fp32", "--device=h200", *more]  # fmt: skip


def evaluated(path, folder):
    """Evaluate a file in its folder. Returns the exit code and the verdict."""
    stored = folder / "v.json"
    done = subprocess.run(words(path, folder, f"--json={stored}"), cwd=folder, env=environment(),
                          capture_output=True, text=True, check=False)  # fmt: skip
    content = json.loads(stored.read_text()) if stored.exists() else {}
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, content.get("verdict")


@pytest.mark.parametrize("name", ["sitecustomize.py", "usercustomize.py", "conftest.py",
                                  "hook.pth", "random.py", "typing.py", "queue.py"])  # fmt: skip
def test_files_of_the_current_folder_are_not_run_by_the_judge(name, tmp_path):
    path = Cheat("wrong", (), WRONG).write(tmp_path)
    text = f"import os; open(os.path.join({str(tmp_path)!r}, 'ran'), 'w')\n"
    (tmp_path / name).write_text(text)
    assert evaluated(path, tmp_path) == (1, "rejected")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("top", [
    # a laxer Spec, as text and as bytecode
    "from pathlib import Path as P\n"
    "p = P(__file__).with_name('scaled_rows.py')\n"
    "p.write_text(p.read_text().replace('1e-5', '1e9'))",
    "import py_compile, pathlib\n"
    "p = pathlib.Path(__file__).with_name('scaled_rows.py')\n"
    "q = p.with_name('lax.py')\n"
    "q.write_text(p.read_text().replace('1e-5', '1e9'))\n"
    "import importlib.util\n"
    "py_compile.compile(str(q), importlib.util.cache_from_source(str(p)), str(p), "
    "invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)",
    # the memory of other processes of the user
    "import os, glob\n"
    "for m in glob.glob('/proc/[0-9]*/mem'):\n"
    "    try:\n"
    "        if int(m.split('/')[2]) != os.getpid():\n"
    "            open(m, 'r+b').close()\n"
    "            open(__file__ + '.' + m.split('/')[2], 'w').close()\n"
    "    except OSError:\n"
    "        pass",
    # its siblings
    "import os, signal, subprocess\n"
    "me, parent = os.getpid(), os.getppid()\n"
    "out = subprocess.run(['ps', '-o', 'pid=', '--ppid', str(parent)], capture_output=True)\n"
    "for pid in map(int, out.stdout.split()):\n"
    "    if pid != me:\n"
    "        try:\n"
    "            os.kill(pid, signal.SIGKILL)\n"
    "        except OSError:\n"
    "            pass",
])  # fmt: skip
def test_a_wrong_kernel_is_not_correct_whatever_it_does_at_import(top, tmp_path):
    path = Cheat("wrong", (), WRONG | {"top": top}).write(tmp_path)
    code, verdict = evaluated(path, tmp_path)
    assert code in (1, 2, 3) and verdict in ("rejected", "undecided", None)
    again = Cheat("wrong again", (), WRONG).write(tmp_path)  # with the Spec written anew
    assert evaluated(again, tmp_path)[0] == 1, "nothing is left for the next one"


def test_a_correct_kernel_reads_no_memory_of_the_judge(tmp_path):
    top = (
        "import os\n"
        "for pid in filter(str.isdigit, os.listdir('/proc')):\n"
        "    try:\n"
        "        words = open(f'/proc/{pid}/cmdline').read()\n"
        "        if 'evaluate' in words and str(os.getpid()) != pid:\n"
        "            open(f'/proc/{pid}/mem', 'rb').close()\n"
        "            open(__file__ + '.read', 'w').close()\n"
        "    except OSError:\n"
        "        pass"
    )
    if os.geteuid() == 0:
        pytest.skip("root reads the memory of every process")
    path = Cheat("reader", (), {"top": top}).write(tmp_path)
    evaluated(path, tmp_path)
    assert not list(tmp_path.glob("*.read"))


@pytest.mark.timeout(3600)
def test_a_hundred_kills_leave_no_half_a_file_and_the_next_run_gives_the_verdict(tmp_path):
    path, chance = Cheat("honest", (), {}).write(tmp_path), random.Random(7)
    stored = tmp_path / "v.json"
    for number in range(100):
        running = subprocess.Popen(words(path, tmp_path, f"--json={stored}"), cwd=tmp_path,
                                   env=environment(), start_new_session=True,
                                   stdout=-3, stderr=-3)  # fmt: skip
        time.sleep(chance.uniform(0.0, 12.0))
        if number % 2:
            os.killpg(running.pid, signal.SIGKILL)
        else:
            running.kill()
        running.wait()
        if stored.exists():  # whole, or not there
            assert json.loads(stored.read_text())["verdict"] == "correct"
            stored.unlink()
    time.sleep(5)
    left = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True).stdout
    assert left == "", "processes stay behind"
    assert evaluated(path, tmp_path) == (0, "correct")
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".") or p.suffix == ".tmp"]


STRANGER = """
import os, pathlib, socket, subprocess
def tried(action):
    try:
        action()
    except OSError:
        pass
here = pathlib.Path(__file__).parent
tried(lambda: (here / "beside").touch())
tried(lambda: (here / "judged" / "key").write_text((here.parent / "key").read_text()))
tried(lambda: socket.create_connection(("127.0.0.1", PORT), 1))
subprocess.Popen(["sleep", "4321.PORT"], start_new_session=True)
"""
BLOCK = re.compile(r"^### Files of strangers.*?^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
ROOT = Path(__file__).parents[2]
USER = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "env", "HOME=judged"]


@pytest.fixture
def stranger():
    """A folder that every user may read, with a file that tries what it must not do, a key beside
    it that only its owner may read, and a server that it tries to reach."""
    with socket.create_server(("127.0.0.1", 0)) as server, tempfile.TemporaryDirectory() as home:
        Path(home).chmod(0o755)
        folder = Path(home) / "folder"
        (folder / "judged").mkdir(parents=True)
        (folder / "judged").chmod(0o777)
        key = Path(home) / "key"
        key.write_text("secret")
        key.chmod(0o600)
        top = STRANGER.replace("PORT", str(server.getsockname()[1]))
        written = Cheat("stranger", (), {"top": top}).write(folder)
        written.rename(folder / "mine.py")
        (folder / SPEC.name).rename(folder / "spec.py")
        text = (folder / "mine.py").read_text()
        (folder / "mine.py").write_text(text.replace(f"from {SPEC.stem} ", "from spec "))
        yield folder, server


@pytest.mark.parametrize("way", ["bwrap", "user"])
def test_a_file_of_a_stranger_is_held_by_the_documented_way(way, stranger):
    folder, server = stranger
    (recipe,) = BLOCK.findall((ROOT / "docs" / "evaluate.md").read_text(encoding="utf-8"))
    judge = recipe[recipe.index("workbench evaluate") :]
    if way == "bwrap":
        probe = ["bwrap", "--ro-bind", "/", "/", "--unshare-all", "true"]
        if shutil.which("bwrap") is None or subprocess.run(probe).returncode:
            pytest.skip("bubblewrap is not installed, or may make no namespaces here")
        line = recipe
    else:
        if os.geteuid() or subprocess.run([*USER, sys.executable, "-c", ""]).returncode:
            pytest.skip("only root becomes another user, who may not run this Python here")
        line = shlex.join(USER) + " " + judge
    line = line.replace(
        "workbench evaluate", f"{shlex.quote(sys.executable)} -m workbench evaluate"
    )
    line = line.replace("--spec spec.py", "--spec spec.py --dtype fp32")
    there = {**environment(), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["sh", "-c", line], cwd=folder, env=there, capture_output=True, text=True)
    verdict = json.loads((folder / "judged" / "verdict.json").read_text())["verdict"]
    assert verdict == "plausible" and done.returncode == 3, done.stderr
    assert not (folder / "beside").exists() and not (folder / "judged" / "key").exists()
    port = server.getsockname()[1]
    left = subprocess.run(["pkill", "-KILL", "-f", f"sleep 4321.{port}"]).returncode == 0
    server.settimeout(0.2)
    try:
        server.accept()[0].close()
        reached = True
    except TimeoutError:
        reached = False
    assert (left, reached) == (False, way == "user")


@pytest.mark.parametrize("spoilt", [
    "y = tl.where(m == 71 * 73, y * 0.0, y)",
    "y = tl.where(m > 8100, y * 0.0, y)",
    "y = tl.where(m % 1500 == 611, y * 0.0, y)",
    "y = tl.where(m * N + n == 20000000, y * 0.0, y)",
    "if m == 7777:\n        y = y * 0.0",
])  # fmt: skip
def test_a_kernel_that_is_wrong_in_few_programs_is_rejected(spoilt, tmp_path):
    path = Cheat("few", (), {"kernel": spoilt}).write(tmp_path)
    assert evaluated(path, tmp_path) == (1, "rejected")
