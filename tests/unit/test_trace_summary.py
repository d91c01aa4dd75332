"""What follows from a timeline: parents of launches, gaps, classes, sequences, ranges, rules."""

import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.commands.traces import trace_run
from workbench.reports.figures.trace import LEFT, WIDTH, tick_step
from workbench.reports.figures.trace import timeline as drawn
from workbench.traces.host_work import longest_gaps, operation_rows, operations_of, range_rows
from workbench.traces.kernel_class import class_of, class_rows
from workbench.traces.readers import read
from workbench.traces.repeats import repeats
from workbench.traces.rule_metrics import rule_metrics
from workbench.traces.rules import evaluate_device, evaluate_kernel, kernel_rules, rules
from workbench.traces.timeline import device_times
from workbench.traces.trace import Activities, ActivityKind, Trace
from workbench.traces.trace_summary import summarise

GOLDEN = Path(__file__).parents[1] / "golden" / "traces"

pytestmark = pytest.mark.unit

K, CALL, OP = ActivityKind.KERNEL, ActivityKind.CALL, ActivityKind.OP


def timeline(kernels, launches=True, gap=5000, length=1000, call_ns=2000):
    """A trace of one stream in which each kernel is launched as the one before it ends."""
    trace = Trace("t", devices={"0": {"name": "NVIDIA X"}})
    at = 10_000
    for number, name in enumerate(kernels):
        if launches:
            trace.activities.add(CALL, "cudaLaunchKernel", at - call_ns, at, "", "1", "p", number)
        trace.activities.add(K, name, at, at + length, "0", "7", "p", number)
        at += length + gap
    return trace


# Idle time for copies


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 30), st.integers(1, 9)), max_size=6),
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=6),
)
def test_a_gap_that_begins_in_a_copy_of_the_host_is_the_copies_whole(copies, kernels):
    trace, at = Trace("t", devices={"0": {"name": "NVIDIA X"}}), 0
    for idle, length in kernels:
        at += idle
        trace.activities.add(K, "k", at, at + length, "0", "7", "p")
        at += length
    spans = []
    for number, (start, length, late) in enumerate(copies):
        end = start + length
        spans.append((start, end))
        table = trace.activities
        table.add(CALL, "cudaMemcpyAsync", start, end, "", str(number), "p", 100 + number)
        table.add(ActivityKind.COPY, "Memcpy DtoH", start + late, start + late + 1, "0", "8", "p",
                  100 + number)  # fmt: skip
    (device,) = summarise(trace).devices
    times = device.times
    busy = {t for a, b in times.busy.pairs() for t in range(a, b)}
    inside = {t for a, b in spans for t in range(a, b)}
    expected, waits = 0, False
    for t in range(times.start, times.end):
        if t in busy:
            waits = False
            continue
        if t - 1 in busy or t == times.start:
            waits = t in inside
        expected += waits or t in inside
    assert device.copying_idle == expected


# Operations that launched a kernel


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)), max_size=8),
    st.lists(st.integers(0, 60), min_size=1, max_size=8),
)
def test_the_parent_of_a_launch_is_the_shortest_operation_around_it(spans, moments):
    """Operations of a thread are nested, so each is cut to the one around it."""
    table = Activities()
    nested = []
    for start, length in sorted(spans, key=lambda s: (s[0], -s[1])):
        around = [(a, b) for a, b in nested if a <= start < b]
        end = min([start + length, *(b for _, b in around)])
        nested.append((start, end))
    for number, (start, end) in enumerate(nested):
        table.add(OP, f"op{number}", start, end, "", "1", "p")
    for number, moment in enumerate(sorted(moments)):
        table.add(CALL, "launch", moment, moment + 1, "", "1", "p", number)
        table.add(K, "k", 100 + number, 101 + number, "0", "7", "p", number)
    kernels = list(table.select(K))
    parents = operations_of(table, table.launches(), kernels)
    for moment, parent in zip(sorted(moments), parents, strict=True):
        around = [b - a for a, b in nested if a <= moment < b]
        assert (parent >= 0) == bool(around)
        if around:
            assert table.ends[parent] - table.starts[parent] == min(around)


def test_operations_of_another_thread_are_no_parents():
    table = Activities()
    table.add(OP, "aten::mm", 0, 100, "", "2", "p")
    table.add(CALL, "launch", 10, 11, "", "1", "p", 1)
    table.add(K, "k", 20, 21, "0", "7", "p", 1)
    assert operations_of(table, table.launches(), [2]) == [-1]


def test_own_time_leaves_out_what_is_inside():
    trace = Trace("t")
    trace.activities.add(OP, "aten::linear", 0, 100, "", "1", "p")
    trace.activities.add(OP, "aten::addmm", 10, 70, "", "1", "p")
    trace.activities.add(OP, "aten::addmm", 70, 90, "", "1", "p")
    trace.activities.add(OP, "aten::addmm", 20, 50, "", "1", "p")  # in another of its name
    rows = {row.name: (row.count, row.total_ns, row.own_ns) for row in operation_rows(trace)}
    assert rows == {"aten::linear": (1, 100, 20), "aten::addmm": (2, 80, 80)}


# Classes


@pytest.mark.parametrize(
    ("kernel", "operation", "name"),
    [
        ("whatever", "aten::addmm", "GEMM"),
        ("Cijk_Alik_Bljk_BBS_BH", "", "GEMM"),
        ("nvjet_tst_64x64", "", "GEMM"),
        ("void pytorch_flash::flash_fwd_kernel<x>", "", "attention"),
        ("sm90_xmma_fprop_implicit_gemm_bf16", "", "convolution"),
        ("sm90_xmma_gemm_bf16bf16", "", "GEMM"),
        ("ncclDevKernel_AllReduce_Sum_bf16", "", "collective"),
        ("vectorized_layer_norm_kernel", "", "normalisation"),
        ("vectorized_elementwise_kernel", "aten::copy_", "copy or cast"),
        ("vectorized_elementwise_kernel", "aten::add", "elementwise"),
        ("triton_red_fused_mean_1", "", "reduction"),
        ("my_kernel", "", "other"),
    ],
)
def test_a_kernel_has_the_class_of_its_operation_or_its_name(kernel, operation, name):
    assert class_of(kernel, operation).name == name


def test_every_kernel_is_in_one_class():
    summary = summarise(read([GOLDEN / "h200" / "eager_trace.json.gz"])).devices[0]
    assert sum(row.total_ns for row in summary.classes) == summary.times.kernel_sum
    assert sum(row.count for row in summary.classes) == summary.times.kernel_count
    rows = {row.name: row.count for row in summary.classes}
    # three layers: qkv, projection and two of the feed-forward part; two kernels where split
    assert rows["attention"] == 3 and rows["normalisation"] == 6 and rows["GEMM"] == 18


# Sequences


@given(
    st.lists(st.sampled_from("abcd"), min_size=3, max_size=6).filter(lambda s: len(set(s)) > 1),
    st.integers(5, 9),
)
def test_a_sequence_that_is_repeated_is_shown(names, count):
    trace = timeline(["x", "y", *names * count, "z"])
    times = device_times(trace, "0")
    longest = repeats(trace, times)[0]
    # the part that repeats may begin before or after, and be a multiple of a shorter one
    assert longest.kernels * longest.count > len(names) * (count - 1)
    assert (
        Counter(longest.names) == Counter(names)
        or longest.kernels < len(names)
        or (longest.kernels % len(names) == 0)
    )
    assert longest.kernel_ns == 1000 * longest.kernels * longest.count
    assert longest.gap_ns == 5000 * (longest.kernels * longest.count - 1)


@pytest.mark.parametrize("kernels", [["a"] * 50, list("abcdefgh"), [*"abc" * 4], []])
def test_one_kernel_or_few_times_are_no_sequence(kernels):
    trace = timeline([*kernels, "z"])
    assert repeats(trace, device_times(trace, "0")) == []


# Gaps and ranges


def test_a_long_gap_names_the_hosts_work_and_the_launch_that_ended_it():
    trace = timeline(["a", "b"], gap=100_000)
    trace.activities.add(OP, "aten::item", 12_000, 105_000, "", "1", "p")
    trace.activities.add(OP, "outer", 0, 200_000, "", "1", "p")
    times = device_times(trace, "0")
    (gap,) = longest_gaps(trace, times, trace.activities.launches())
    assert (gap.host, gap.launch, gap.next) == ("aten::item", "cudaLaunchKernel", "b")
    assert gap.gap.duration == 100_000 and gap.host_share == pytest.approx(0.93)


def test_ranges_hold_the_work_that_was_launched_in_them():
    trace = timeline("abcdef")
    for step in range(3):
        start = 7000 + 12_000 * step
        trace.activities.add(
            ActivityKind.RANGE, f"ProfilerStep#{step}", start, start + 12_000, "", "1", "p"
        )
    times = device_times(trace, "0")
    (row,) = range_rows(trace, times, trace.activities.launches())
    assert (row.name, row.count, row.kernels, row.median_ns) == ("ProfilerStep#", 3, 6, 12_000)
    assert row.busy_ns == 6000 and row.window_ns == 3 * 7000


# Rules


def words(trace):
    (summary,) = summarise(trace).devices
    return [match.rule.word for match in evaluate_device(summary)]


def planted(name):
    """A trace in which one cause of lost time was planted, and all that follows from it."""
    if name == "launch_bound":
        return timeline("ab" * 20, gap=20_000)
    if name == "graph_candidate":
        return timeline("abc" * 10, gap=5000, length=20_000)
    if name == "short_kernels":
        return timeline("abcdefgh", gap=100, length=2000)
    if name == "host_bound":
        return timeline("ab", gap=50_000, length=40_000)
    if name == "inefficient":
        return timeline("ab", gap=100, length=40_000)
    if name == "casts":
        return timeline(["mm", "cast_kernel"], gap=100, length=40_000)
    if name == "variation":
        trace = timeline("a" * 12, gap=100, length=10_000)
        trace.activities.add(CALL, "cudaLaunchKernel", 199_000, 199_500, "", "1", "p", 99)
        trace.activities.add(K, "a", 200_000, 700_000, "0", "7", "p", 99)
        return trace
    trace = timeline("ab", gap=20_000, length=40_000)
    if name == "transfers":
        trace.activities.add(
            ActivityKind.COPY, "Memcpy HtoD (Pageable -> Device)", 51_000, 65_000, "0", "8", "p",
            0, moved=4096,
        )  # fmt: skip
    else:
        trace.activities.add(
            ActivityKind.SYNC, "cudaStreamSynchronize", 45_000, 68_000, "", "1", "p"
        )
    return trace


@pytest.mark.parametrize("name", rules())
def test_each_rule_finds_its_planted_cause(name):
    assert rules()[name].word in words(planted(name))


@pytest.mark.parametrize("name", rules())
def test_no_gain_is_larger_than_the_window_and_numbers_are_profiled(name):
    (summary,) = summarise(planted(name)).devices
    for match in evaluate_device(summary):
        gain = match.diagnosis.gain_ns
        assert gain is None or 0 <= gain <= summary.times.window
        assert match.diagnosis.advice and match.diagnosis.sentence.endswith(".")
        assert all(each.kind == "profiled" for each in match.diagnosis.evidence)


# One step of a program whose bottleneck is known, since launching it otherwise was timed without a
# profiler: 1472 us a chain eager, 94 in a graph, 2105 with waits, 7939 with copies (docs/facts.md).
CHAINS = {
    "eager": ["launch-bound", "short kernels"],
    "graph": ["short kernels"],
    "sync": ["launch-bound", "synchronisation", "short kernels"],
    "copy": ["transfer-bound", "short kernels"],
}


@pytest.mark.parametrize("name", CHAINS)
def test_the_bottleneck_of_a_known_program_comes_first(name):
    (summary,) = summarise(read([GOLDEN / "h200" / f"chain_{name}.json.gz"])).devices
    assert [match.rule.word for match in evaluate_device(summary)] == CHAINS[name]
    assert summary.times.kernel_count == 5 * 64
    kpis = {kpi.name: kpi.value for kpi in summary.kpis}
    # Proton's mean of the same kernel is 1.179 us; beside copies and in a graph it takes longer
    within = 0.005 if name in ("eager", "sync") else 0.1
    assert kpis["mean kernel time"] == pytest.approx(1.18e-6, rel=within)


def queued(late):
    """A busy device: 60 kernels that wait for long in its queue, and `late` that are launched as
    the one before them ends."""
    trace = Trace("t", devices={"0": {"name": "NVIDIA X"}})
    at = 1_000_000
    for number in range(60 + late):
        begin = at - (500_000 if number < 60 else 2000)
        trace.activities.add(CALL, "cudaLaunchKernel", begin, begin + 1500, "", "1", "p", number)
        trace.activities.add(K, "abc"[number % 3], at, at + 40_000, "0", "7", "p", number)
        at += 45_000
    return trace


def test_a_full_queue_silences_rules_about_launches():
    assert "graph candidate" in words(queued(90))
    assert "graph candidate" not in words(queued(30)) and "kernels" in words(queued(30))


def test_exposed_synchronisation_is_rare_in_real_traces():
    """A rule on wall time would hold on most of them."""
    paths = sorted((GOLDEN / "torch_profiler").glob("tracelens_*.json*"))
    held = [
        path.name
        for path in paths
        for summary in summarise(read([path])).devices
        if "synchronisation" in [match.rule.word for match in evaluate_device(summary)]
    ]
    assert len(paths) >= 5 and len(held) <= 1, held


# Rules of a kernel's counters

HEALTHY = {
    "duration": 1e-4, "dram_throughput": 0.5, "compute_throughput": 0.5, "l2_throughput": 0.5,
    "l1_throughput": 0.7, "memory_throughput": 0.7, "matrix_pipe": 0.5, "spill_share": 0.0,
    "excess_sectors": 0.0, "bank_conflicts": 0.0, "fp64_pipe": 0.0, "xu_pipe": 0.1,
    "issue_active": 0.5, "occupancy_theoretical": 1.0, "occupancy": 0.95, "lanes_active": 32.0,
    "programs": 4096.0, "cores": 132.0, "waves": 8.0, "empty_places": 0.03,
    "stall_long_scoreboard": 0.4, "stall_wait": 0.1, "stall_math_pipe_throttle": 0.1,
    "stall_lg_throttle": 0.1, "stall_membar": 0.0, "stall_barrier": 0.2,
    "stall_short_scoreboard": 0.1, "stall_not_selected": 0.02,
    "traffic_ratio": 1.05, "least_bytes": 3e8, "least_bytes_read": 2e8, "declared_flop": 1e11,
    "dram_bytes": 3.15e8, "dram_read_bytes": 2.1e8, "dram_written_bytes": 1.05e8,
    "matrix_flop": 1e11,
    "ideal_sectors": 1e7, "excessive_sectors": 0.0, "local_sectors": 0.0,
    "atomic_share": 0.0, "fence_share": 0.0, "exchange_share": 0.04,
    "special_share": 0.02, "conversion_share": 0.01, "unpack_share": 0.05, "narrow_share": 0.1,
    "async_copy_share": 0.05, "copied_share": 0.4, "product": 1.0, "vector_flop": 1e9,
    "memory_lanes": 32.0, "masked_share": 0.0, "tma_store_samples": 0.1, "tmem_load_samples": 0.1,
    "sm_clock": 1.6e9, "plain_clock": 1.61e9, "plain_clock_low": 1.6e9, "plain_clock_high": 1.62e9,
}  # fmt: skip
PLANTED = {
    "spills": {"spill_share": 0.3},
    "no_matrix_work": {"matrix_flop": 0.0, "vector_flop": 1e11},
    "narrow_loads": {"narrow_share": 0.9},
    "conversions": {"xu_pipe": 0.8, "conversion_share": 0.2},
    "matrix_serialised": {"matrix_pipe": 0.4, "async_copy_share": 0.0},
    "uncoalesced": {"excess_sectors": 0.5},
    "bank_conflicts": {"bank_conflicts": 0.6},
    "fp64": {"fp64_pipe": 0.5},
    "special_functions": {"xu_pipe": 0.8},
    "excess_traffic": {"traffic_ratio": 3.0, "dram_throughput": 0.9, "l2_throughput": 0.8},
    "at_ceiling": {"dram_throughput": 0.9},
    "l2_bound": {"l2_throughput": 0.9},
    "atomics": {"atomic_share": 0.02, "stall_membar": 0.2},
    "barriers": {"stall_barrier": 0.4, "exchange_share": 0.3},
    "small_grid": {"programs": 40.0},
    "tail": {"waves": 1.2, "empty_places": 0.4},
    "masked_lanes": {"memory_lanes": 12.0},
    "dependent_loads": {"stall_long_scoreboard": 0.9, "issue_active": 0.02, "dram_throughput": 0.1},
    "occupancy": {"occupancy_theoretical": 0.2, "occupancy": 0.2, "memory_throughput": 0.3},
    "fixed_latency": {"stall_wait": 0.5},
    "divergence": {"lanes_active": 8.0},
    "tma_store": {"tma_store_samples": 0.3},
    "tmem_latency": {"tmem_load_samples": 0.3},
    "clock": {"sm_clock": 1.9e9},
    "model": {"matrix_flop": 2e11},
    "deferred_writes": {"dram_written_bytes": 0.8e8},
}


def test_each_rule_has_a_planted_cause():
    lost = sorted(set(kernel_rules()) - set(PLANTED))
    assert not lost, f"enter in PLANTED of this file the metrics at which it must hold: {lost}"


def kernel_words(**metrics):
    return [match.name for match in evaluate_kernel({**HEALTHY, **metrics})]


def test_no_rule_holds_on_a_healthy_kernel():
    assert kernel_words() == []


@pytest.mark.parametrize("name", PLANTED)
def test_each_rule_of_a_kernel_gives_the_word_of_its_planted_cause(name):
    assert kernel_words(**PLANTED[name])[0] == name


def test_a_ceiling_that_is_reached_with_bytes_too_many_is_none():
    """DRAM at 90 % with three times the least bytes: 70 % of the time may be given back."""
    (match,) = evaluate_kernel({**HEALTHY, **PLANTED["excess_traffic"]})
    assert match.diagnosis.gain_ns == pytest.approx(1e5 * (1 - max(0.9 / 3, 0.5)))
    assert kernel_words(dram_throughput=0.9, l2_throughput=0.8) == ["at_ceiling"]


def test_advice_on_occupancy_names_what_limits_it():
    few = {"occupancy_theoretical": 0.4, "occupancy": 0.38}
    (match,) = evaluate_kernel(few)
    assert "fewer registers" in match.diagnosis.advice
    uneven = {"occupancy_theoretical": 1.0, "occupancy": 0.76}  # softmax of 1024x4096 on an H200
    (match,) = evaluate_kernel(uneven)
    assert match.rule.word == "occupancy" and "more programs" in match.diagnosis.advice


@pytest.mark.parametrize("name", PLANTED)
def test_a_rule_without_its_metrics_is_silent(name):
    metrics = {**HEALTHY, **PLANTED[name]}
    for missing in kernel_rules()[name].needs:
        rest = {n: value for n, value in metrics.items() if n != missing}
        assert name not in [match.name for match in evaluate_kernel(rest)]


SHARES = [name for name, value in HEALTHY.items() if value <= 1 and name != "duration"]


@given(st.dictionaries(st.sampled_from(SHARES), st.floats(0, 1)), st.floats(0.1, 20))
def test_a_gain_is_never_more_than_the_time_above_the_nearest_roof(changed, ratio):
    """The roof of DRAM is that of the least bytes: what moves beyond them may be saved."""
    metrics = {**HEALTHY, **changed, "traffic_ratio": ratio}
    needed = metrics["dram_throughput"] / max(1.0, ratio)
    nearest = max(needed, metrics["compute_throughput"])
    for match in evaluate_kernel(metrics):
        gain = match.diagnosis.gain_ns
        assert gain is None or -1e-6 <= gain <= 1e5 * (1 - nearest) + 1e-6


def test_real_kernels_have_the_word_of_what_was_planted_in_them():
    """A sum and a product at their roofs, and a product whose tile is too large for its warps."""
    trace = read([GOLDEN / "h200" / "raw_base.csv.gz"])
    words = [
        [match.name for match in evaluate_kernel(rule_metrics(d, trace.tool))]
        for d in trace.dispatches
    ]
    assert words == [["at_ceiling"], ["at_ceiling"], ["spills"]]


# Runs


def test_a_trace_as_a_run_has_kpis_findings_and_kernels_of_kind_profiled():
    trace = read([GOLDEN / "h200" / "eager_trace.json.gz"])
    kept = trace_run(summarise(trace), "read", "eager_trace.json.gz", "workbench read")
    assert kept.run.device == "NVIDIA H200" and kept.run.files[0]["sha256"]
    assert kept.run.environment.cpu == "" and kept.run.environment.gpu is None
    first = kept.findings[0]
    values = {e.name: e.value for e in first.evidence}
    assert values["kernel count"] == 33 and not first.rule
    assert {e.kind for f in kept.findings for e in f.evidence} == {"profiled"}
    assert sum(p.count for p in kept.profiles) == 33
    assert all(p.low_s <= p.median_s <= p.high_s for p in kept.profiles)


def test_a_launch_with_counters_is_a_profile_with_metrics():
    trace = read([GOLDEN / "h200" / "raw_base.csv.gz"])
    kept = trace_run(summarise(trace), "read", "raw_base.csv.gz", "workbench read")
    spilled, mm, _ = kept.profiles  # the longest first
    metrics = {e.name: e.value for e in mm.metrics}
    assert mm.total_s == pytest.approx(186_816e-9)
    assert metrics["dram_bytes"] == 186_625_536 + 28_370_944
    assert spilled.total_s > mm.total_s and spilled.launch != mm.launch


def test_classes_of_kernels_need_no_launch():
    trace = timeline(["nvjet_x", "softmax_kernel"], launches=False)
    times = device_times(trace, "0")
    rows = {row.name for row in class_rows(trace, times, trace.activities.launches())}
    assert rows == {"GEMM", "softmax"}


# The picture


@given(st.floats(1e-3, 1e9))
def test_an_axis_has_four_to_ten_ticks_at_round_numbers(length):
    step = tick_step(length)
    assert 3.999 < length / step < 10.001
    assert f"{step:.0e}"[0] in "125" and step == pytest.approx(float(f"{step:.0e}"))


def test_a_timeline_begins_and_ends_where_its_axis_does():
    (summary,) = summarise(timeline("abc", gap=5000, length=20_000)).devices
    times = summary.times
    text = str(drawn(summary, times.start, times.end, "a & b"))
    assert 'aria-label="a &amp; b"' in text and "µs since the window began" in text
    ticks = re.findall(r'text x="([\d.]+)" y="[\d.]+" text-anchor="middle"[^>]*>([\d.]+)<', text)
    places = [(float(x), float(label)) for x, label in ticks]
    assert places[0] == (LEFT, 0)
    for x, label in places:  # 1 µs is one unit of the axis
        share = label * 1e3 / (times.end - times.start)
        assert x == pytest.approx(LEFT + share * (WIDTH - LEFT - 20), abs=0.1)


def test_work_that_takes_no_time_is_drawn():
    trace = Trace("t", devices={"0": {"name": "NVIDIA X"}})
    trace.activities.add(K, "k", 5000, 5000, "0", "7", "p")
    (summary,) = summarise(trace).devices
    assert str(drawn(summary, 5000, 5000, "x")).endswith("</svg>")
