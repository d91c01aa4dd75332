"""Cases by hand with two of everything: two files, two parts, two rows, both sides of a limit."""

import csv
from dataclasses import replace

import pytest
from fake_gpu import FakeGpu, FakeVariant, Weather

from workbench.adapted.call import Layout
from workbench.code.flow import all_loops
from workbench.commands.operators import read_operators, write_operators
from workbench.device.hardware import find_device
from workbench.experiments.quantization_overhead import packed_variants, plain_variants
from workbench.measurement.halving import halve
from workbench.measurement.protocol import Protocol
from workbench.measurement.rounds import Window, clean
from workbench.traces.readers import read
from workbench.traces.trace import CheckerResult, Dispatch, Geometry, Trace

pytestmark = pytest.mark.unit


def test_a_loop_behind_blocks_that_were_seen_is_found() -> None:
    """0 leads to 1; 2 and 3 are a loop that nothing enters, 4 is one of its own."""
    after = {0: (1,), 1: (), 2: (3,), 3: (2,), 4: (4,)}
    assert sorted(map(sorted, all_loops(set(after), after))) == [[2, 3], [4]]


def test_two_files_of_a_run_are_joined_kernel_by_kernel() -> None:
    first = Trace("ncu", dispatches=[Dispatch("a", "1", duration_ns=5.0, notes=["old"])],
                  checker=CheckerResult("memcheck", [], 2, 1, 4))  # fmt: skip
    shape = Geometry((2, 1, 1), (64, 1, 1))
    others = [
        Dispatch("b", "2", duration_ns=7.0),
        Dispatch("a", "1", duration_ns=6.0, geometry=shape, notes=["old", "new"]),
        Dispatch("c", "3"),
    ]
    more = Trace("ncu", version="2026", dispatches=others, has_streams=True,
                 checker=CheckerResult("", [], 3, 10, 20))  # fmt: skip
    first.join(more)
    assert [(d.name, d.duration_ns) for d in first.dispatches] == [
        ("a", 5.0),
        ("b", 7.0),
        ("c", None),
    ]
    assert first.dispatches[0].notes == ["old", "new"] and first.dispatches[0].geometry == shape
    assert (first.version, first.has_streams) == ("2026", True)
    assert first.checker == CheckerResult("memcheck", [], 5, 11, 24)
    first.join(Trace("ncu", version="2027"))
    assert (first.version, first.has_streams) == ("2026", True)


def test_operators_with_shapes_and_without_are_in_one_table(tmp_path) -> None:
    numbers = ("calls", "cpu_s", "self_cpu_s", "device_s", "self_device_s", "self_cpu_bytes",
               "self_device_bytes")  # fmt: skip
    rows = [{"name": f"aten::{n}", "device": "cuda", **{name: n + 0.5 for name in numbers}}
            for n in (1, 2)]  # fmt: skip
    rows[1]["shapes"] = "[8, 4]"
    path = tmp_path / "operators.json"
    path.write_text(str(rows).replace("'", '"'), encoding="utf-8")
    kept = read_operators(path)
    assert [row.get("shapes") for row in kept] == [None, "[8, 4]"]
    table = list(csv.reader(write_operators(path, kept).open(encoding="utf-8")))
    assert table == [["name", "device", *numbers, "shapes"],
                     ["aten::1", "cuda", *["1.5"] * 7, ""],
                     ["aten::2", "cuda", *["2.5"] * 7, "[8, 4]"]]  # fmt: skip


def test_a_race_of_eight_halves_to_four_and_two() -> None:
    """Equal times: nobody is surely slower, so half of them go after each stage. A stage has twice
    the turns of the one before."""
    gpu, rules = FakeGpu(3, Weather.wait_idle(noise=0.002)), Protocol()
    windows = halve({n: FakeVariant(gpu, 1e-4) for n in range(8)}, rules, 2)
    turns = rules.halving_turns
    assert sorted(len(taken) // turns for taken in windows.values()) == [1, 1, 1, 1, 3, 3, 7, 7]


def test_a_window_at_the_least_clock_is_kept_and_one_below_it_is_not() -> None:
    windows = [Window((1.0,), mhz) for mhz in (1e3, 1e3, 1e3, 750.0, 749.9, None)]
    kept, left_out = clean(windows, 0.75)
    assert [w.sm_mhz for w in kept] == [1e3, 1e3, 1e3, 750.0, None] and left_out == 1


def test_memory_of_a_strided_tensor_ends_with_its_last_element() -> None:
    """Rows of 3 in steps of 5, the last at 2 * 5, its last element 2 further: 13, behind 4."""
    layout = Layout((3, 3), (5, 1), "float32", lead=4, plain=False)
    assert layout.extents == (4 + 13,)
    assert replace(layout, plain=True).extents == (3, 3)


@pytest.mark.parametrize(("programs", "fits"), [(65_535, True), (65_536, False)])
def test_the_second_axis_of_a_grid_ends_at_65535(programs: int, fits: bool) -> None:
    assert (find_device("h200").limits.refuse_grid(programs) is None) == fits
    assert find_device("mi300x").limits.refuse_grid(programs) is None


def test_products_are_chosen_by_the_rows_of_x() -> None:
    names = {m: {k for k, _ in plain_variants(m)} for m in (1, 4, 5, 64, 65)}
    ours = {m: sum(impl == "rows" for _, impl in plain_variants(m)) for m in names}
    assert ours == {1: 1, 4: 1, 5: 0, 64: 0, 65: 0}
    assert {m for m, kernels in names.items() if "matmul" in kernels} == {65}
    assert [m for m in names if ("matvec", "torch.mv") in plain_variants(m)] == [1]
    assert all(packed_variants(m) for m in names)


@pytest.mark.parametrize(("unit", "ns"), [("ps", 0.002), ("ns", 2.0), ("µs", 2e3), ("ms", 2e6)])
def test_a_benchmark_of_criterion_has_its_unit(tmp_path, unit: str, ns: float) -> None:
    path = tmp_path / "run.txt"
    lines = [f"{name}    time:   [2.0000 {unit} 2.0000 {unit} 2.0000 {unit}]" for name in "ab"]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    times = [(total.name, total.total_ns) for total in read([path]).totals]
    assert times == [("a", pytest.approx(ns)), ("b", pytest.approx(ns))]
