"""Launches that deceive a harness or break it, on the GPU that is here: each costs its own config,
by a reason that names it, and a good config wins."""

from pathlib import Path

import pytest

from workbench.commands.console import SweepConsole
from workbench.commands.sweep import SweepOptions
from workbench.commands.sweep_command import SweepCommand
from workbench.data.events import read
from workbench.data.record import Failure, Measured, Record, Run
from workbench.data.selection import select
from workbench.device import hardware

if hardware.live() is None:
    pytest.skip("torch sees no GPU here", allow_module_level=True)

KERNEL = str(Path(__file__).parents[2] / "benchmarks" / "hostile_kernel.py")
NOTHING = "launches nothing on its own stream, and not the compiled kernel `_doubled`"
TELLING = {
    1: ("took longer than",),
    2: ("took longer than",),
    3: ("illegal memory access",),
    4: ("tried to allocate 200.00 GiB",),
    5: ("its process died (exit code -11)",),
    6: ("the first is [16777215]",),
    7: ("NaN",),
    # of two streams that do not wait for each other, either may come first
    8: ("another stream", "is wrong in", NOTHING),
    9: ("another stream", "is wrong in", NOTHING),
    11: ("the first is [16777215]",),
    12: (NOTHING, "is wrong in"),
    13: (NOTHING,),
    14: ("replaced torch.equal",),
    15: ("shares memory with an input", "is wrong in"),
    16: ("and not the compiled kernel `_doubled`",),
    18: ("another stream", "is wrong in"),
    19: ("SystemExit",),
    20: ("is on cpu where the inputs are",),
    21: ("the launch changed its input x",),
    22: (NOTHING, "is wrong in"),
}
SLOW = (10, 17)  # right, and slower than they pretend to be


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    wanted = SweepOptions(
        name="full", kernel=KERNEL, out=folder, events_file=folder / "events.jsonl",
        database=f"sqlite:///{folder}/h.db", fresh=True,
    )  # fmt: skip
    assert SweepCommand(wanted, SweepConsole(quiet=True)).go() == 0
    return read(wanted.events_file).events


@pytest.fixture(scope="module")
def failures(events):
    failed = [e for e in events if isinstance(e, Failure) and e.stage != "refused"]
    return {f.case.config["fault"]: f for f in failed}


@pytest.mark.alone
def test_exactly_the_deceptions_are_lost(failures):
    assert set(failures) == set(TELLING)


@pytest.mark.alone
@pytest.mark.parametrize("fault", TELLING)
def test_its_reason_names_it(failures, fault):
    reason = failures[fault].reason
    assert any(words in reason for words in TELLING[fault]), reason


@pytest.mark.alone
def test_a_good_config_wins(events):
    (run,) = (e for e in events if isinstance(e, Run))
    outcomes = [e for e in events if isinstance(e, (Record, Failure))]
    winner = select(run, outcomes).winner
    assert winner is not None and winner.case.config["fault"] == 0
    assert isinstance(winner.timing, Measured) and not winner.timing.modes


@pytest.mark.alone
def test_what_adds_work_to_an_equal_binary_has_its_own_time(events):
    times = {
        (e.case.config["fault"], e.case.config["block_n"], e.case.config["num_warps"]): e
        for e in events
        if isinstance(e, Record) and e.phase == "first_pass"
    }
    slow, good = times[17, 1024, 4], times[0, 1024, 4]
    assert slow.same_as is None and good.same_as is None
    assert slow.time_s > 1.5 * good.time_s
