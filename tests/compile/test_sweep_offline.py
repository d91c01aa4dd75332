"""Whole sweeps for a GPU that is not here: compiled for real, interpreted, predicted."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from workbench import cli
from workbench.backend.offline import Offline
from workbench.commands.console import SweepConsole
from workbench.commands.new_kernel import write_kernel
from workbench.commands.sweep import SweepOptions
from workbench.commands.sweep_command import SweepCommand
from workbench.data.database import open_history
from workbench.data.events import RunFinished, read
from workbench.data.record import Failure, Predicted, Record
from workbench.device.hardware import device_named

ROOT = Path(__file__).parents[2]
ODD = """    if config.block_n == 256:
        raise RuntimeError("the launcher wants none of this")
    if config.block_n == 512:
        os.kill(os.getpid(), signal.SIGSEGV)
    if config.block_n == 1024 and x.device.type == "meta":
        time.sleep(600)
    if config.block_n == 4096 and x.device.type != "meta":
        time.sleep(600)
    if config.block_n == 8192 and x.device.type != "meta":
        return x * 2
    x = x.contiguous()
"""


def options(folder):
    return ["--device", "h200", "--out", str(folder / "results"),
            "--database", f"sqlite:///{folder / 'history.db'}"]  # fmt: skip


def outcomes(folder):
    with open_history(f"sqlite:///{folder / 'history.db'}") as history:
        return history.outcomes(history.run("last").id)


@pytest.mark.nightly  # it waits for a launcher that hangs: 38 s
@pytest.mark.newest
def test_a_launcher_that_raises_dies_or_hangs_costs_its_config_only(tmp_path):
    kernel, _ = write_kernel("odd", tmp_path)
    text = kernel.read_text().replace("    x = x.contiguous()\n", ODD)
    kernel.write_text(text.replace("import torch\n", "import os, signal, time\nimport torch\n", 1))
    wanted = SweepOptions(
        "tile_size", str(kernel), device="h200", only=True, out=tmp_path / "results",
        database=f"sqlite:///{tmp_path / 'history.db'}",
    )  # fmt: skip
    h200 = device_named("h200")
    session = SweepCommand(
        wanted, SweepConsole(quiet=True),
        lambda device, folder: Offline(h200, folder, compile_s=5, interpret_s=5),
    )  # fmt: skip
    assert session.go() == 0
    results = {o.case.config["block_n"]: o for o in session.outcomes}
    words = {n: (o.stage, o.reason) for n, o in results.items() if isinstance(o, Failure)}
    assert words == {
        256: ("compile", "RuntimeError: the launcher wants none of this"),
        512: ("compile", "the compile its process died (exit code -11)"),
        1024: ("compile", "the compile took longer than 15 s"),
        4096: ("check", "the check took longer than 15 s"),
        8192: words[8192],
    }
    assert words[8192][0] == "check" and "y" in words[8192][1]
    assert isinstance(results[2048], Record) and isinstance(results[2048].timing, Predicted)


def test_a_new_kernel_is_swept_as_it_stands(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "my kernels"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    assert cli.main(["new-kernel", "my_gelu", "--folder", "my kernels"]) == 0
    words = ["sweep", "tile_size", "--kernel", "my kernels/my_gelu.py", "--budget", "3"]
    assert cli.main([*words, *options(tmp_path)]) == 0
    text = capsys.readouterr()
    assert text.err == "" and "3 predicted" in text.out
    assert sum(isinstance(o, Record) for o in outcomes(tmp_path)) == 3


@pytest.mark.nightly
@pytest.mark.newest
def test_a_module_is_found_from_where_the_user_stands(tmp_path):
    (tmp_path / "pack").mkdir()
    write_kernel("my_gelu", tmp_path / "pack")
    script = "import sys; sys.path.pop(0); from workbench.cli import main; sys.exit(main())"
    words = ["sweep", "tile_size", "--kernel", "pack.my_gelu", "--budget", "2", "--quiet"]
    done = subprocess.run(
        [sys.executable, "-c", script, *words, *options(tmp_path)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sum(isinstance(o, Record) for o in outcomes(tmp_path)) == 2


@pytest.mark.nightly
@pytest.mark.newest
@pytest.mark.parametrize("results", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_ctrl_c_ends_all_processes_and_keeps_what_there_is(tmp_path, results):
    """While torch is still being loaded, and once results have come. The terminal signals the
    whole group."""
    words = ["tile_size", "--kernel", "copy", "--budget", "60", *options(tmp_path)]
    command = ["-m", "workbench.sweep", *words]
    child = subprocess.Popen(
        [sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
        env={**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "cache")},
    )  # fmt: skip
    if results:
        wait_for_record(tmp_path / "results", child)
    else:
        wait_for_torch(child)
    os.killpg(child.pid, signal.SIGINT)
    words, complained = child.communicate(timeout=30)
    assert child.returncode == 130, complained
    assert "Traceback" not in complained and not re.search("[a-z]Error", complained), complained
    assert nobody_left(child.pid)
    if results:
        assert "report  " in words and list((tmp_path / "results").glob("*/report.html"))
        events = read(next((tmp_path / "results").glob("*/events.jsonl"))).events
        assert isinstance(events[-1], RunFinished) and events[-1].state == "interrupted"
        logged = [e for e in events if isinstance(e, (Record, Failure))]
        assert logged == outcomes(tmp_path)


def children_of(pid):
    with contextlib.suppress(OSError):
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def wait_for_torch(child, limit_s=60.0):
    """Until the process maps torch's libraries: the command line is read by then, nothing is
    planned yet, and no slow machine is at another point."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end and child.poll() is None:
        for pid in (child.pid, *children_of(child.pid)):  # the command runs in a child
            with contextlib.suppress(OSError):
                if "libtorch" in Path(f"/proc/{pid}/maps").read_text():
                    return
        time.sleep(0.01)
    raise AssertionError(f"torch was not loaded: {child.communicate()}")


def wait_for_record(folder, child, limit_s=90.0):
    end = time.monotonic() + limit_s
    while time.monotonic() < end and child.poll() is None:
        files = list(folder.glob("*/events.jsonl"))
        if files and any(isinstance(e, Record) for e in read(files[0]).events):
            return
        time.sleep(0.05)
    raise AssertionError(f"no record came: {child.communicate()}")


def nobody_left(group, limit_s=10.0):
    """Whether all processes of the group are gone, the helpers of multiprocessing too."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False
