"""Nine faults among forty good configs on the GPU that is here: each costs its own config, by a
reason that names it, and no other; the winner is one of the good ones."""

import sys
from pathlib import Path

import pytest

from workbench.commands.console import SweepConsole
from workbench.commands.sweep import SweepOptions
from workbench.commands.sweep_command import SweepCommand
from workbench.data.events import read
from workbench.data.record import Failure, Record
from workbench.device import hardware

if hardware.live() is None:
    pytest.skip("torch sees no GPU here", allow_module_level=True)

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
KERNEL = str(BENCHMARKS / "faulty_kernel.py")
SIZES = "N=1048576"


def swept(name, folder):
    """Every outcome of one sweep of the faulty kernel, refused configs left out."""
    wanted = SweepOptions(
        name=name, kernel=KERNEL, sizes=(SIZES,), out=folder, events_file=folder / f"{name}.jsonl",
        database=f"sqlite:///{folder}/{name}.db", fresh=True,
    )  # fmt: skip
    assert SweepCommand(wanted, SweepConsole(quiet=True)).go() == 0
    outcomes = [e for e in read(wanted.events_file).events if isinstance(e, (Record, Failure))]
    return [o for o in outcomes if getattr(o, "stage", None) != "refused"]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    return swept("full", tmp_path_factory.mktemp("faulty"))


@pytest.fixture(scope="module")
def module():
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import faults

        yield faults
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def failures(outcomes):
    return {o.case.config["fault"]: o for o in outcomes if isinstance(o, Failure)}


def test_exactly_the_faulty_configs_are_lost(outcomes, failures, module):
    assert set(failures) == set(module.TELLING)
    assert sum(isinstance(o, Failure) for o in outcomes) == len(module.TELLING)


@pytest.mark.parametrize("fault", range(1, 10))
def test_the_reason_names_the_fault(failures, module, fault):
    reason = failures[fault].reason
    assert any(word in reason for word in module.TELLING[fault]), reason


def test_every_good_config_is_timed(outcomes):
    timed = {
        tuple(o.case.config.values())
        for o in outcomes
        if isinstance(o, Record) and o.phase == "first_pass" and o.case.config["fault"] == 0
    }
    assert len(timed) == 40


def test_the_final_holds_good_configs_alone(outcomes):
    finalists = [o for o in outcomes if isinstance(o, Record) and o.phase == "final"]
    assert finalists and all(o.case.config["fault"] == 0 for o in finalists)
