"""Every planted fault is named with its line, and clean kernels raise no alarm."""

import re
import struct
from dataclasses import replace

import pytest
import torch
from metal_bugs import BUGS, CLEAN, launch
from nightly import at_night

from metal_shim.check import _dispatch_lines
from metal_shim.emulate import (
    SCHEDULES,
    CheckName,
    EmulationError,
    EmulationOptions,
    LaunchRejected,
    Order,
    Schedule,
    emulate_launch,
    emulation,
)
from metal_shim.kernel import MetalKernel, metal_kernel
from metal_shim.whole import NotWhole, whole_source

SMALL = {"accesses": 1 << 16, "time_limit_s": 5.0}


def finding_of(bug, schedule):
    with emulation(EmulationOptions(schedule, **SMALL)), pytest.raises(EmulationError) as caught:
        emulate_launch(launch(bug.name, bug.body, bug.header, bug.group, bug.groups))
    return caught.value.finding


# An endless loop takes its limit of 5 s; by day one with accesses ends by the number of them.
ENDLESS = "endless loop without accesses"


@pytest.mark.parametrize(
    "bug", at_night(BUGS, lambda bug: bug.name != ENDLESS), ids=lambda bug: bug.name
)
def test_a_planted_fault_is_named_with_its_line(bug):
    finding = finding_of(bug, SCHEDULES[0])
    assert finding.check is bug.check, finding
    assert bug.says in finding.sentence, finding
    named = {finding.line, *map(int, re.findall(r"\(line (\d+)\)", finding.sentence))}
    assert bug.line in named, finding
    assert finding.is_in_header == ("//!" in bug.header)


@pytest.mark.parametrize("bug", [b for b in BUGS if "endless" not in b.name], ids=lambda b: b.name)
def test_a_planted_fault_is_detected_in_every_schedule(bug):
    assert {finding_of(bug, schedule).check for schedule in SCHEDULES[1:]} == {bug.check}


def test_a_race_names_both_threads_and_both_lines():
    (bug,) = (b for b in BUGS if b.name == "no barrier")
    finding = finding_of(bug, SCHEDULES[0])
    index, group = finding.thread
    other = int(re.search(r"thread (\d+) of threadgroup 0,0,0 read it", finding.sentence)[1])
    assert index + other == 63 and group == (0, 0, 0)
    assert finding.sentence.endswith(f"(line {bug.line})") and finding.line == bug.line - 1
    assert f"[thread {index} of threadgroup 0,0,0]" in str(finding)
    assert "(`s[lid] = x[at];`)" in str(finding)


@pytest.mark.parametrize("name", CLEAN)
@pytest.mark.parametrize("counting", [False, True])
def test_a_clean_kernel_raises_no_alarm(name, counting):
    results = set()
    for schedule in (*SCHEDULES, Schedule(True, Order.ROTATED)):
        with emulation(EmulationOptions(schedule, counting=counting)) as runs:
            results.add(tuple(emulate_launch(launch(name, CLEAN[name]))))
        assert len(runs) == 1
    assert len(results) == 1  # the same bits in every order


def test_schedules_differ():
    """Which thread comes first shows in a counter, and which threadgroup in the finding of a race
    between two."""
    body = """
    threadgroup atomic_uint n;
    if (lid == 0) atomic_store_explicit(&n, 0u, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    y[at] = float(atomic_fetch_add_explicit(&n, 1u, memory_order_relaxed));
    """
    results = {}
    for order in Order:
        with emulation(EmulationOptions(Schedule(simdgroups=order))):
            (contents,) = emulate_launch(launch("counter", body, group=96))
        values = struct.unpack("=96f", contents)
        assert sorted(values) == list(range(96))
        results[order] = [int(values[k]) // 32 for k in (0, 32, 64)]
    assert results[Order.FORWARD] == [0, 1, 2] and results[Order.BACKWARD] == [2, 1, 0]
    assert results[Order.ROTATED] not in (results[Order.FORWARD], results[Order.BACKWARD])
    (bug,) = (b for b in BUGS if b.name == "two threadgroups write one element")
    groups = [finding_of(bug, Schedule(groups_backward=back)).thread[1] for back in (False, True)]
    assert groups == [(1, 0, 0), (0, 0, 0)]


def test_threads_see_the_threadgroups_that_mlx_launches():
    """A threadgroup is at most the grid, and those at the edge are smaller."""
    body = """
    y[at] = float(threads_per_threadgroup.x + 1000 * dispatch_threads_per_threadgroup.x);
    """
    for threads, expected in ((40, [40_040] * 40), (80, [64_064] * 64 + [64_016] * 16)):
        start = launch("edges", body, group=threads)
        edges = replace(start, group=(64, 1, 1), grid=(threads, 1, 1))
        (contents,) = emulate_launch(edges)
        assert list(struct.unpack(f"={threads}f", contents)) == expected
        assert edges.extents == (min(64, threads), 1, 1)


def test_atomic_outputs_with_a_first_value_of_an_unsigned_dtype():
    kernel = metal_kernel(
        "counted", inputs="x", outputs="n", atomic_outputs=True,
        body="""
    const uint at = x[thread_position_in_grid.x];
    atomic_fetch_add_explicit(&n[at], 1, memory_order_relaxed);
""",
    )  # fmt: skip
    x = torch.tensor([0, 1, 1, 3, 3, 3, 0, 0], dtype=torch.int32).view(torch.uint32)
    like = torch.empty(4, dtype=torch.uint32, device="meta")
    n = kernel(x, like=like, grid=(8, 1, 1), group=8, init_value=5)
    assert n.dtype == torch.uint32 and n.tolist() == [8, 7, 5, 8]


def test_equal_values_may_be_declared():
    body = "\n    y[at] = x[0];\n    y[0] = x[0];\n"
    with pytest.raises(EmulationError, match="race"):
        emulate_launch(launch("same", body))
    (contents,) = emulate_launch(launch("same", body, same="y"))
    assert set(struct.unpack("=64f", contents)) == {0.0}


def test_no_more_threads_than_metal_takes():
    with pytest.raises(LaunchRejected, match="1056 threads in a threadgroup"):
        emulate_launch(launch("wide", "\n    y[at] = 0;\n", group=1056))


@pytest.mark.parametrize(
    ("header", "body", "says"),
    [
        ("", "\n    double d = x[at];\n    y[at] = float(d);\n", "double"),
        ("float h(device const float* p) { return p[0]; }\n", "\n    y[at] = h(c);\n", "h"),
        ("", "\n    threadgroup float s[64];\n    threadgroup float* q = y;\n", "threadgroup"),
        ("", "\n    y[at] = missing;\n", "missing"),
    ],
)
def test_what_clang_rejects_is_one_sentence(header, body, says):
    with pytest.raises(LaunchRejected, match=says) as caught:
        emulate_launch(launch("rejected", body, header))
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)


WHOLE = """
constant bool doubled [[function_constant(0)]];
template <typename T, int N>
[[kernel, max_total_threads_per_threadgroup(64)]] void shifted(
    const device T* x [[buffer(0)]],
    device T* y [[buffer(1)]],
    constant int& by [[buffer(2)]],
    uint2 at [[thread_position_in_grid]],
    uint lid [[thread_index_in_threadgroup]]) {
  threadgroup T held[N];
  held[lid] = x[at.x];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[at.x] = held[lid + by] * (doubled ? 2 : 1);
}
"""


def test_a_whole_kernel_runs_as_it_is_and_names_its_lines():
    kernel = MetalKernel(whole_source(WHOLE, "shifted", constants={"doubled": 1}))
    x, launch = torch.arange(64.0), dict(grid=(64, 1, 1), group=64, T=torch.float32, N=64)
    assert torch.equal(kernel(x, torch.tensor(0, dtype=torch.int32), like=x, **launch), 2 * x)
    with pytest.raises(EmulationError, match="index 64 is outside the threadgroup array") as error:
        kernel(x, torch.tensor(1, dtype=torch.int32), like=x, **launch)
    assert error.value.finding.line == 13 and error.value.finding.text.startswith("y[at.x]")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (WHOLE, "the function constant doubled has no value"),
        ("void plain() {}", "no kernel shifted"),
        (WHOLE.replace("lid [[thread_index_in_threadgroup]]", "lid [[amplification_id]]"), "takes"),
    ],
)
def test_a_text_that_is_no_whole_kernel_is_one_sentence(text, says):
    with pytest.raises(NotWhole, match=says):
        whole_source(text, "shifted", constants={} if text == WHOLE else {"doubled": 0})


@pytest.mark.parametrize(("used", "is_found"), [("lid & 3", True), ("lid & 1", False)])
def test_results_that_depend_on_an_unset_local_are_a_finding(used, is_found):
    """Two of four elements are set; as integers the others raise no NaN."""
    body = f"""
    int own[4];
    own[0] = int(lid); own[1] = 1;
    y[at] = float(own[{used}]);
    """
    with emulation(EmulationOptions(unset=True)):
        if not is_found:
            emulate_launch(launch("unset", body))
            return
        with pytest.raises(EmulationError, match="depend on a local array or field") as caught:
            emulate_launch(launch("unset", body))
    assert caught.value.finding.check is CheckName.INITCHECK


@pytest.mark.parametrize(
    "body",
    [
        "bool b[2];\nb[0] = x[i] > 3;\ny[i] = b[0] || b[1] ? 1 : 0;",
        "Part p;\np.a = x[i];\nif (i < 3) p.on = true;\ny[i] = p.on ? p.a : 0;",
    ],
)
def test_a_bool_that_nothing_has_set_is_named(body):
    """It holds neither 0 nor 1, whatever the two fills make of the result."""
    header = "struct Part { float a; bool on; };\n"
    start = "const uint i = thread_position_in_grid.x;\n"
    kernel = metal_kernel("flag", inputs="x", outputs="y", body=start + body, header=header)
    x = torch.arange(64.0)
    with pytest.raises(EmulationError, match="read of a bool that was never set") as raised:
        kernel(x, like=x, grid=(64, 1, 1), group=64)
    assert raised.value.finding.check is CheckName.INITCHECK and raised.value.finding.line >= 4
    clean = start + "bool b[2];\nb[0] = x[i] > 3;\nb[1] = false;\ny[i] = b[0] || b[1] ? 1 : 0;"
    kernel = metal_kernel("flag", inputs="x", outputs="y", body=clean)
    assert kernel(x, like=x, grid=(64, 1, 1), group=64).sum() == 60


def test_a_threadgroup_larger_than_the_grid_is_said_to_be_cut():
    body = "y[thread_position_in_grid.x] = threads_per_threadgroup.x;"
    kernel, x = metal_kernel("cut", inputs="x", outputs="y", body=body), torch.arange(24.0)
    with emulation(EmulationOptions()) as runs:
        y = kernel(x, like=x, grid=(24, 1, 1), group=(256, 1, 1))
    assert y.tolist() == [24] * 24
    assert "threadgroups of 24x1x1, cut from 256x1x1 to the grid," in next(_dispatch_lines(runs[0]))
