"""Rules on calls of several launches: what a call is, its sums, and what `diagnose` says of it."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import softmax

from workbench.commands.diagnose_trace import run_report
from workbench.commands.result import RunResult
from workbench.commands.traces import kernel_run, known_of_calls
from workbench.data.record import Evidence, Profile, Record
from workbench.reports.figures.profiled_traffic import ProfiledCalls, bytes_at
from workbench.traces.readers import read
from workbench.traces.rule_metrics import AVERAGED, SUMMED, call_metrics, calls_of
from workbench.traces.rules import call_rules, evaluate_call, evaluate_kernel
from workbench.traces.trace import CounterValue, Dispatch, Trace
from workbench.traces.trace_summary import summarise

H200 = Path(__file__).parents[1] / "golden" / "traces" / "h200"
RAW, PAGE = H200 / "raw_base.csv.gz", H200 / "source_sass.csv.gz"
OF_CALLS = {"excess_traffic", "model", "clock", "deferred_writes"}

pytestmark = pytest.mark.unit

positive = st.floats(1e-9, 1e12)
shares = st.floats(0, 1)
WHOLE = st.fixed_dictionaries({
    "duration": st.floats(1e-6, 1.0), "dram_bytes": positive, "dram_read_bytes": positive,
    "dram_written_bytes": positive,
    "matrix_flop": positive, "vector_flop": positive, "local_sectors": positive,
    "ideal_sectors": positive, "excessive_sectors": positive, "dram_throughput": shares,
    "compute_throughput": shares, "sm_clock": st.floats(1e9, 2e9),
})  # fmt: skip
PLAIN = st.fixed_dictionaries({
    "least_bytes": positive, "least_bytes_read": positive, "declared_flop": positive,
    "plain_clock": st.floats(1e9, 2e9),
})  # fmt: skip


def split(whole, parts):
    """A launch as several with these shares of its bytes, FLOP and time, each as busy."""
    return [
        {n: v * part if n in SUMMED else v for n, v in whole.items()} for part in parts
    ]  # fmt: skip


@given(WHOLE, PLAIN, st.integers(1, 5))
def test_a_call_is_judged_as_one_launch_that_does_all_of_its_work(whole, plain, count):
    """However it is divided into launches."""
    call = call_metrics(split(whole, [1 / count] * count), plain)
    for name in (*SUMMED, *AVERAGED):
        assert (name in call) == (name in whole)
        if name in whole:
            assert call[name] == pytest.approx(whole[name], rel=1e-9)
    single = {**whole, **plain, "traffic_ratio": whole["dram_bytes"] / plain["least_bytes"]}
    known = {m.name: m.diagnosis for m in evaluate_kernel(single) if m.name in OF_CALLS}
    missing_b = plain["least_bytes"] - plain["least_bytes_read"] - whole["dram_written_bytes"]
    near = any(  # at a threshold, rounding decides
        abs(value - 1) < 1e-6
        for value in (
            single["traffic_ratio"] / 1.5, whole["dram_throughput"] / 0.6,
            whole["dram_read_bytes"] / (0.75 * plain["least_bytes_read"]),
            whole["matrix_flop"] / (1.25 * plain["declared_flop"]),
            (whole["matrix_flop"] + whole["vector_flop"]) / (0.75 * plain["declared_flop"]),
            abs(whole["sm_clock"] / plain["plain_clock"] - 1) / 0.03,
            missing_b / (0.03 * plain["least_bytes"]), missing_b / (128 * 2**20),
        )
    )  # fmt: skip
    if not near:
        assert {m.name for m in evaluate_call(call)} == set(known)


@given(st.lists(st.tuples(st.floats(1e-6, 1.0), shares), min_size=1, max_size=5))
def test_the_throughput_of_a_call_is_of_its_whole_time(launches):
    """Busy time over all time: a short launch at the roof does not make the call busy."""
    known = [{"duration": spent, "dram_throughput": busy} for spent, busy in launches]
    call = call_metrics(known, {})
    busy_s = sum(spent * busy for spent, busy in launches)
    assert call["dram_throughput"] == pytest.approx(busy_s / sum(spent for spent, _ in launches))
    assert call["duration"] == pytest.approx(sum(spent for spent, _ in launches))


def test_only_rules_of_work_and_clock_are_of_calls():
    assert set(call_rules()) == OF_CALLS
    # what holds of one launch in its own right is no matter of sums
    metrics = {"spill_share": 1.0, "duration": 1.0}
    assert evaluate_kernel(metrics) and not evaluate_call(metrics)


@given(st.lists(st.sets(st.sampled_from([*SUMMED, *AVERAGED])), min_size=1, max_size=4))
def test_what_one_launch_lacks_is_absent_and_never_a_part(known):
    launches = [dict.fromkeys(names, 1.0) for names in known]
    every = set.intersection(*known)
    averaged = every & set(AVERAGED) if "duration" in every else set()
    assert set(call_metrics(launches, {})) - {"excess_sectors"} == (every & set(SUMMED)) | averaged


@given(st.integers(1, 5), st.integers(0, 4))
def test_launches_are_divided_into_calls(size, calls):
    launches = [{"call_launches": float(size), "n": n} for n in range(size * calls)]
    known = calls_of(launches)
    assert len(known) == calls and [each for call in known for each in call] == launches
    if calls:
        assert not calls_of([*launches, {"n": 1.0}]) and not calls_of([{}, *launches])
        assert size == 1 or not calls_of(launches[1:])


def counted(*names, tool="ncu"):
    value = CounterValue("dram__bytes_read.sum", 1.0, "byte", "1", "ok")
    counters = {"dram__bytes_read.sum": value}
    return Trace(tool, dispatches=[Dispatch(n, str(k), counters=dict(counters))
                                   for k, n in enumerate(names)])  # fmt: skip


@pytest.mark.parametrize("names, calls, launches, size", [
    ("a", 1, None, 1), ("aaa", 3, None, 1), ("abc", 1, None, 3), ("abcabc", 2, None, 3),
    ("aa", 1, None, 2), ("aa", 1, 2, 2), ("aa", 1, 3, 0), ("abab", 3, None, 0),
    ("abba", 2, None, 0), ("", 1, None, 0),
])  # fmt: skip
def test_a_call_is_whole_or_nothing_is_declared_of_it(names, calls, launches, size):
    records = [softmax()[1][0]]
    known = known_of_calls(counted(*names), records, calls, launches)
    assert (known.plain or {}).get("call_launches", 0) == size
    assert ("least_bytes" in (known.plain or {})) == (size == 1)
    assert len(known.calls) == (calls if size > 1 else 0)
    assert known_of_calls(counted(*names), [], calls).plain is None


@pytest.mark.parametrize("names, launches, size", [
    ("a", 1, 1), ("ab", 2, 2), ("ab", None, 0), ("ab", 3, 0),
])  # fmt: skip
def test_rocprofv3_counts_each_kernel_once_of_all_calls(names, launches, size):
    trace = counted(*names, tool="rocprofv3")
    known = known_of_calls(trace, [softmax()[1][0]], 10, launches)
    assert (known.plain or {}).get("call_launches", 0) == size


# Runs


def call_of_three(bytes_read=None):
    """The three golden kernels as one call of a kernel, profiled with its plain time."""
    run, outcomes = softmax()
    record = next(o for o in outcomes if isinstance(o, Record) and o.is_measured)
    if bytes_read is not None:
        record = replace(record, bytes_read=bytes_read, bytes=bytes_read + 1)
    summary = summarise(read([RAW, PAGE]))
    kept = kernel_run(summary, replace(run, engine="profile", device="h200"), [record], "mm", 1, 3)
    return kept, record


def test_a_call_of_several_launches_has_its_own_findings():
    """It reads 443.6 MB in all: a Spec that declares more than 591 MB is contradicted."""
    for bytes_read, holds in ((10**6, False), (10**10, True)):
        kept, _ = call_of_three(bytes_read)
        own = [f for f in kept.findings if f.kernel == "call of 3 launches"]
        models = [f for f in own if f.rule == "model"]
        assert any("reads" in f.sentence for f in models) == holds
        # and each launch alone is not held against the whole call
        assert not {f.rule for f in kept.findings if f not in own} & OF_CALLS


def test_diagnose_evaluates_the_stored_call_and_lists_its_rules_no_more():
    kept, record = call_of_three(10**10)
    assert all(p.outcome == record.key for p in kept.profiles)
    stored = RunResult(kept.run, [record], (), kept.findings, kept.profiles)
    report = run_report(stored)
    (model,) = [each for each in report.results if each.rule == "model"]
    assert model.subject == "call of 3 launches" and "reads 444 MB" in model.sentence
    assert not OF_CALLS & {each.rule for each in report.missing} - {"clock"}
    some = [replace(p, outcome="", metrics=tuple(e for e in p.metrics if e.name != "call_launches"))
            for p in kept.profiles]  # fmt: skip
    without = run_report(replace(stored, profiles=some))
    assert "model" in {each.rule for each in without.missing}
    assert "model" not in {each.rule for each in without.results}


def test_traffic_of_a_call_is_that_of_its_first_call():
    kept, record = call_of_three()
    once = bytes_at(ProfiledCalls.select(kept.profiles).traffic(record), "dram")
    assert once == pytest.approx(sum(
        e.value for p in kept.profiles for e in p.metrics if e.name == "dram_bytes"
    ))  # fmt: skip
    again = [replace(p, launch=str(int(p.launch) + 3)) for p in kept.profiles]
    twice = ProfiledCalls.select([*again, *kept.profiles]).traffic(record)
    assert bytes_at(twice, "dram") == pytest.approx(once)
    unknown = Profile("r", "t", "ncu", "", "0", "k", launch="0", outcome=record.key,
                      metrics=(Evidence("dram_bytes", 7.0, "B", "profiled"),))  # fmt: skip
    assert bytes_at(ProfiledCalls.select([unknown]).traffic(record), "dram") == 7
