"""Energy of a call on the GPU that is here: a power that the board can have, and the same again.

`pytest -s tests/gpu/test_energy.py` prints the figures.
"""

import io

import pytest
from rich.console import Console

from workbench.commands.measure import MeasureOptions
from workbench.commands.measure_command import MeasureCommand
from workbench.data.energy import energy_of
from workbench.data.events import read
from workbench.data.record import Record, Run
from workbench.device import hardware

if hardware.live() is None:
    pytest.skip("torch sees no GPU here", allow_module_level=True)
CASES = [("matmul", "padded", "M=4096,N=4096,K=4096"), ("copy", "blocks", "N=268435456")]
AGREE = 0.03  # share by which two runs may differ


def measured(folder, kernel, impl, sizes):
    """The run of `measure --also energy` and its cold records, by Impl."""
    options = MeasureOptions(
        kernel, impl=(impl,), sizes=(sizes,), also="energy", out=folder,
        database=f"sqlite:///{folder / 'h.db'}",
    )  # fmt: skip
    text = io.StringIO()
    console = Console(file=text, width=240, highlight=False, markup=False)
    assert MeasureCommand(options, console, tuned_file=folder / "tuned.json").go() == 0
    print(text.getvalue())
    (path,) = folder.glob("*/events.jsonl")
    events = read(path).events
    run = next(e for e in events if isinstance(e, Run))
    return run, {e.case.impl: e for e in events if isinstance(e, Record) and e.phase == "final"}


def shown(record):
    e = energy_of(record)
    return (
        f"{record.case.kernel}.{record.case.label}: {record.time_s * 1e6:.2f} us, "
        f"{1e3 * e.joules:.4g} mJ ({1e3 * e.low_joules:.4g} to {1e3 * e.high_joules:.4g}), "
        f"{e.power_w:.0f} W, idle {e.idle_w:.0f} W, active {1e3 * e.active_joules:.4g} mJ, "
        f"counter every {1e3 * e.step_s:.1f} ms, {e.windows} windows of {e.window_s:.2f} s, "
        f"{e.calls} calls, {e.regime}"
    )


@pytest.mark.alone
@pytest.mark.parametrize(("kernel", "impl", "sizes"), CASES)
def test_power_is_the_boards_and_a_repeat_agrees(tmp_path, kernel, impl, sizes):
    runs = []
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        runs.append(measured(folder, kernel, impl, sizes))
    (run, first), (_, second) = runs
    assert first and first.keys() == second.keys()
    if reasons := {r.timing.no_energy for r in first.values()} - {""}:
        pytest.skip(f"no energy here: {'; '.join(sorted(reasons))}")
    limit_w = run.environment.power_limit_w
    for name, record in first.items():
        again = second[name]
        print(shown(record), shown(again), sep="\n")
        energy, repeat = energy_of(record), energy_of(again)
        assert energy.joules > 0 and energy.active_joules > 0
        assert energy.idle_w < energy.power_w
        assert limit_w is None or energy.power_w <= 1.1 * limit_w
        assert energy.low_joules <= energy.joules <= energy.high_joules
        # what a window gives is the power during it times the time of a call, which the bench knows
        assert energy.joules == pytest.approx(energy.power_w * record.time_s, rel=0.1)
        assert energy.joules == pytest.approx(repeat.joules, rel=AGREE)
