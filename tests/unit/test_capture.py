"""Captures of Metal commands as far as they go without a Mac: names, command lines, refusals, the
notes beside a capture, and the intervals of one program among those of all."""

import json
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metal_shim.capture import archive
from metal_shim.capture import main as capture_main
from workbench import catalog, cli
from workbench.commands.profile import ProfileOptions
from workbench.commands.profiled_kernel import capture_workload, trace_path
from workbench.data.mac import Mac
from workbench.traces.profilers import ProfilerError, preflight, profilers, refusal
from workbench.traces.profilers.running.machine import Machine
from workbench.traces.profilers.xctrace import select_program
from workbench.traces.readers import read
from workbench.traces.readers.inputs.source import ReadError
from workbench.traces.trace import ActivityKind, Trace
from workbench.traces.trace_summary import summarise

MAC = Machine("/py", system="darwin")
LINUX = Machine("/py")


@given(st.integers(0, 5))
def test_a_capture_gets_a_name_that_is_free(tmp_path_factory, taken):
    folder = tmp_path_factory.mktemp("perf")
    for _ in range(taken):
        trace_path("softmax", date(2026, 11, 24), folder).mkdir()
    path = trace_path("softmax", date(2026, 11, 24), folder)
    number = "" if taken == 0 else f"_{taken + 1}"
    assert path == folder / f"softmax_2026-11-24{number}.gputrace" and not path.exists()


def test_the_command_line_of_a_capture():
    options = ProfileOptions(
        target=("softmax",), impl="lanes:rows=8", dtype="fp16", tool="gputrace"
    )
    workload = capture_workload(options, MAC, Path("perf/x.gputrace"))
    tool = profilers()["gputrace"]
    assert tool.argv(MAC, workload, Path("perf")) == [
        "/py", "-m", "metal_shim.capture", "softmax", "--impl", "lanes:rows=8", "--dtype", "fp16",
        "--trace", "perf/x.gputrace",
    ]  # fmt: skip
    assert (
        tool.variables == {"MTL_CAPTURE_ENABLED": "1", "MTL_DEBUG_LAYER": "1"}
        and refusal(tool, MAC, workload) is None
    )
    assert tool.reads(workload, Path()) == [Path("perf/x.gputrace"), Path("perf/x.json")]
    with pytest.raises(ProfilerError, match="needs macOS"):
        preflight(tool, LINUX, workload)


def test_on_linux_it_refuses_and_shows_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    where = ["--database", f"sqlite:///{tmp_path / 'h.db'}"]
    assert cli.main(["profile", "softmax", "--tool", "gputrace", *where]) == 2
    assert "needs macOS" in capsys.readouterr().err and not list(tmp_path.iterdir())
    assert cli.main(["profile", "softmax", "--tool", "gputrace", "--dry-run", *where]) == 0
    said = capsys.readouterr().out
    for word in (
        "metal_shim.capture softmax",
        "MTL_CAPTURE_ENABLED=1",
        "MTL_DEBUG_LAYER=1",
        "perf/softmax_",
        "not here",
    ):
        assert word in said
    program = ["--tool", "gputrace", *where, "--", "python", "step.py"]
    assert cli.main(["profile", *program]) == 2


def test_without_a_metal_device_no_kernel_is_called(capsys):
    assert capture_main(["softmax", "--calls", "2"]) == 2
    assert capsys.readouterr().err == "error: MLX has no Metal device here; run it on a Mac.\n"
    assert capture_main(["softmax", "--sizes", "M=4"]) == 2
    assert "lacks N" in capsys.readouterr().err


# What lies beside a capture

NOTES = {
    "taken": "2026-11-24T12:00:00+00:00", "commit": "0f" * 20, "dirty": False,
    "gpu": "Apple M2 Max", "gpu_cores": 38, "os": "macOS 15.1 arm64", "kernel": "softmax",
    "impl": "lanes", "config": {"rows": 4}, "sizes": {"M": 8192, "N": 4096}, "dtype": "fp16",
    "dispatches": [{"function": "softmax_lanes", "grid": [262144, 1, 1],
                    "threadgroup": [128, 1, 1], "threadgroup_bytes": 0}],
    "entered_by_hand": {"threadgroup_utilisation_percent": 81.5, "l1_read_transactions": None},
}  # fmt: skip


def test_the_notes_of_a_capture_have_its_place_and_its_dispatches(tmp_path):
    sampler = catalog.impl_of(catalog.spec_of("sample_topk_topp"), "partials_and_merge")
    sizes, mac = {"B": 8, "V": 128256}, Mac("Apple M2 Max", 38, None, "ac", False)
    notes = archive(mac, sampler, sampler.config(), sizes, "fp16")
    assert len(notes["dispatches"]) == 2 and (notes["gpu"], notes["gpu_cores"]) == (mac.chip, 38)
    assert set(notes) == set(NOTES) and set(notes["entered_by_hand"].values()) == {None}
    path = tmp_path / "x.json"
    path.write_text(json.dumps(notes))
    assert read([path]).tables["dispatch 2"]["function"] == "sample_topk_topp_merge"


def test_figures_of_xcode_are_marked_as_entered_by_hand(tmp_path, capsys):
    path = tmp_path / "softmax_2026-11-24.json"
    path.write_text(json.dumps(NOTES, indent=1))
    trace = read([path])
    assert trace.tables["entered by hand"] == {
        "threadgroup_utilisation_percent": 81.5, "l1_read_transactions": "not entered",
    }  # fmt: skip
    assert trace.tables["capture"]["gpu"] == "Apple M2 Max" and "by hand" in str(trace.tables)
    where = ["--out", str(tmp_path), "--database", f"sqlite:///{tmp_path / 'h.db'}"]
    assert cli.main(["read", str(path), *where]) == 0
    said = capsys.readouterr().out
    assert "81.5" in said and "entered by hand" in said and "no program measured" in said


@pytest.mark.parametrize("value", ["81", [1], True, -3, float("nan"), {}])
def test_a_figure_that_is_no_number_is_refused(tmp_path, value):
    path = tmp_path / "x.json"
    path.write_text(json.dumps({**NOTES, "entered_by_hand": {"l1_read_transactions": value}}))
    with pytest.raises(ReadError, match="l1_read_transactions"):
        read([path])


# The intervals of one program


def recorded(*rows):
    trace = Trace("xctrace")
    for process, start, end in rows:
        trace.activities.add(ActivityKind.KERNEL, "encoder", start, end, "gpu", "Compute", process)
    return trace


OURS, SERVER = "Python (4711)", "WindowServer (88)"


def test_utilisation_gaps_count_and_mean_are_of_our_process():
    """Union of active intervals over the span, by hand: 600 of 1000 ns, one gap of 400."""
    trace = select_program(
        recorded((OURS, 0, 400), (SERVER, 300, 900), (OURS, 200, 500), (OURS, 900, 1000)),
        "python3.12",
    )
    (device,) = summarise(trace).devices
    kpis = {kpi.name: kpi.value for kpi in device.kpis}
    assert kpis["GPU utilisation"] == pytest.approx(0.6) and kpis["kernel count"] == 3
    assert kpis["mean gap"] == pytest.approx(400e-9)
    assert kpis["mean kernel time"] == pytest.approx(800e-9 / 3)
    assert any("encoder" in note for note in trace.notes)


def test_a_recording_of_other_processes_names_them():
    with pytest.raises(ProfilerError, match=r"no interval of python, but of: WindowServer"):
        select_program(recorded((SERVER, 0, 1)), "python")


def test_a_trace_of_a_metal_kernel_names_its_program():
    marked = capture_workload(ProfileOptions(target=("softmax",)), MAC, Path("x"))
    machine = replace(MAC, programs={"xcrun": "/t/xcrun"})
    assert "metal_shim.capture" in profilers()["xctrace"].available(machine, marked)
