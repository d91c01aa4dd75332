"""Corner threadgroups at true sizes: an index of 32 bits that overflows there, and hashes that may
wrap. The arrays are addresses alone, so 10 GB of them cost nothing."""

from dataclasses import replace

import pytest
import torch

from metal_shim.check import CheckReport, check_corners, lines
from metal_shim.emulate import EmulationError, planning, run_corners
from metal_shim.kernel import metal_kernel
from workbench import catalog

SIDE = 70_000  # 4.9e9 elements: more than 32 bits count
HEAD = """
    const uint N = x_shape[1];
    const uint row = threadgroup_position_in_grid.y, column = thread_position_in_grid.x;
    if (column >= N) return;
"""
RIGHT = "const size_t i = size_t(row) * N + column;\ny[i] = x[i];"


def faults(body, *, shape=(SIDE, SIDE), head=HEAD):
    kernel = metal_kernel("corner", inputs="x", outputs="y", body=head + body)
    tensor = torch.empty(shape, dtype=torch.float16, device="meta")
    grid = (-(-shape[-1] // 64) * 64, *shape[:-1], 1, 1)[:3]
    with planning() as launches:
        kernel(tensor, like=tensor, grid=grid, group=64)
    try:
        run_corners(launches[0])
    except EmulationError as error:
        return error.finding
    return None


@pytest.mark.parametrize(
    ("index", "says"),
    [
        ("int i = int(row) * int(N) + int(column)", "a product overflows a signed integer"),
        ("uint i = row * N + column", "a product of unsigned integers wraps at this size"),
        ("size_t i = row * N + column", "a product of unsigned integers wraps at this size"),
        ("uint i = size_t(row) * N + column", "an integer loses its upper bits as it is assigned"),
        ("uint i = uint(row) * N + column", "a product of unsigned integers wraps at this size"),
        ("auto i = uint(size_t(row) * N + column)", "loses its upper bits in a cast at this size"),
        ("auto i = (uint)(size_t(row) * N + column)", "loses its upper bits in a cast"),
        ("size_t j = size_t(row) * N, i = int32_t(j) + column", "loses its upper bits in a cast"),
        ("auto i = static_cast<uint>(size_t(row) * N + column)", "loses its upper bits in a cast"),
    ],
)
def test_an_index_of_32_bits_is_named_at_the_true_size(index, says):
    """In the last threadgroup of the last row; at 60,000 columns all of them are right."""
    found = faults(f"{index};\ny[i] = x[i];")
    assert says in found.sentence and found.line == 5
    assert found.thread == (0, (SIDE // 64, SIDE - 1, 0))
    assert faults(f"{index};\ny[i] = x[i];", shape=(30_000, SIDE)) is None


@pytest.mark.parametrize(
    "body",
    [
        RIGHT,
        # wraps in the first threadgroup, too: a hash
        "uint h = column * 747796405u + 2891336453u;\n" + RIGHT + "\ny[i] = half(h >> 31);",
        # of the row, which is 0 in the first: no array has so many elements
        "uint h = row * 747796405u;\n" + RIGHT + "\ny[i] = half(h >> 31);",
        "ulong h = (row + 1) * 0x9E3779B97F4A7C15ul;\n" + RIGHT + "\ny[i] = half(uint(h) & 1);",
        "uint a = row, b = uint(size_t(a) << 32 | 7u);\n" + RIGHT + "\ny[i] = half(b);",
        # casts that lose nothing, and the words that look like casts
        "struct A { uint n; operator uint() const { return n; } };\nconst uint c[uint(2)] = "
        "{uint(row), (uint)column};\nA a = {uint()};\nint q = int(1.5f) + int(bool(c[0]));\n"
        + RIGHT
        + "\ny[i] = half(uint(a) + (q & c[1] & 1));",
        # a difference of unsigned integers may pass below 0
        RIGHT + "\nuint before = column - 1;\ny[i] = half(column ? before & 1 : 0);",
    ],
)
def test_what_is_right_is_clean(body):
    assert faults(body) is None


def test_no_sum_that_wraps_is_an_index_where_arrays_are_small():
    """A hash of the row: no array has 2^32 bits."""
    body = "uint h = row * 3u * 1431655765u + 2863311530u;\n" + RIGHT + "\ny[i] = half(h & 1);"
    assert faults(body, shape=(3000, 70_000)) is None


def test_the_tail_of_the_last_row_alone_lies_outside():
    found = faults(RIGHT, shape=(100, SIDE), head=HEAD.replace("if (column >= N) return;", ""))
    assert "read of 2 bytes outside device memory x: at index 7000000 of 7000000" in found.sentence
    assert found.thread == (48, (SIDE // 64, 99, 0))


def test_an_axis_of_int_threads_is_named():
    body = "int i = thread_position_in_grid.x;\ny[i] = x[i];"
    found = faults(body, shape=(3_000_000_000,), head="")
    assert "outside device memory x: at index -1294967" in found.sentence and found.line == 2


def test_a_launcher_that_reads_its_inputs_is_not_run_at_bench_sizes():
    """It has no values there: the check says so and goes on."""
    spec, report = catalog.spec_of("matvec"), CheckReport()
    (impl,) = [i for i in spec.impls if i.backend == "metal"]

    def launch(x, w, *, config):
        return impl.launch(x, w[: int(w.sum()) or 1], config=config)

    changed = replace(spec, impls=[replace(impl, launch=launch)])
    check_corners(changed, report)
    assert report.corners == 0 and report.is_clean and len(report.not_ended) == len(spec.bench)
    (line,) = [line for line in lines(report, "k") if line.startswith("corners")]
    assert line.startswith("corners    0 dispatches at bench sizes; not all of matvec.lanes (M=1,")
    assert "Tensor.item() cannot be called on meta tensors" in line


def test_the_check_runs_the_corners_of_each_bench_size():
    """Of the matrix-vector product's one kernel; all of it is clean."""
    report, spec = CheckReport(), catalog.spec_of("matvec")
    check_corners(spec, report)
    assert report.corners == len(spec.bench) and report.is_clean and not report.not_ended
    assert f"corners    {len(spec.bench)} dispatches at bench sizes" in lines(report, "matvec")
