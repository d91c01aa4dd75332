"""`workbench diagnose`: files, stored runs, gains of the plain time, what cannot be evaluated."""

import gzip
import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planted_words import expected, stored
from synthetic import softmax

from workbench import catalog
from workbench.cli import main
from workbench.code.code_reading import MachineCode, code_of_assembly
from workbench.code.flow import flow_graph
from workbench.code.listing import read_sass
from workbench.code.partitions import specialisation
from workbench.commands.diagnose_code import ADVICE
from workbench.commands.diagnose_trace import run_report, trace_report
from workbench.commands.diagnosed import NAMED, NotEvaluable, missing_lines
from workbench.commands.result import RunResult
from workbench.commands.traces import kernel_run
from workbench.compile.facts import code_facts, next_step, product_of
from workbench.data.code_facts import FACTS, CodeFacts
from workbench.data.record import Predicted, Record
from workbench.device import apple_model, code_model, cost_model
from workbench.device.hardware import DEVICES
from workbench.device.occupancy import occupancy
from workbench.traces.readers import read
from workbench.traces.rules import (
    code_rules,
    evaluate_code,
    evaluate_kernel,
    kernel_rules,
    missing_of_code,
    rules,
    word_of,
)
from workbench.traces.trace_summary import summarise

GOLDEN = Path(__file__).parents[1] / "golden"
H200 = GOLDEN / "traces" / "h200"
RAW, EAGER = H200 / "raw_base.csv.gz", H200 / "eager_trace.json.gz"
PAGE = H200 / "source_sass.csv.gz"
BERT = GOLDEN / "traces" / "torch_profiler" / "tracelens_h100_bert_small.json.gz"
EVERY = {**rules(), **kernel_rules(), **code_rules()}

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def database(tmp_path):
    return f"sqlite:///{tmp_path}/runs.db"


def said(capsys, *words):
    code = main(["diagnose", *map(str, words)])
    streams = capsys.readouterr()
    return code, streams.out, streams.err


def document(capsys, *words):
    code, _, _ = said(capsys, *words, "--json", "result.json")
    result = json.loads(Path("result.json").read_text())
    assert result["exit_code"] == code and result["command"] == "diagnose"
    return result


# Files


def test_rules_are_ranked_by_what_they_may_give_back(capsys):
    code, out, _ = said(capsys, RAW)
    assert code == 0 and out.index("1. spills: at most 1.06 ms") < out.index("2. at its ceiling")
    assert "62 % of the instructions spill" in out and "(profiled; " in out
    _, whole, _ = said(capsys, RAW, "--all")
    assert "not evaluable: excess_traffic needs the bytes and FLOP that the Spec" in whole
    for path in (RAW, BERT):
        gains = [each["gain_s"] for each in document(capsys, path)["diagnoses"]]
        known = [gain for gain in gains if gain is not None]
        assert gains[: len(known)] == sorted(known, reverse=True) and len(gains) > 1


@pytest.mark.parametrize("path", [RAW, PAGE, EAGER, BERT, H200 / "stall_metrics.csv"])
def test_each_rule_is_evaluated_or_said_to_need_something(capsys, path):
    result = document(capsys, path)
    missing = [each["rule"] for each in result["not_evaluable"]]
    held = {each["rule"] for each in result["diagnoses"]}
    assert len(missing) == len(set(missing)) == len(EVERY) - result["evaluated"]
    assert not held & set(missing) and held | set(missing) <= set(EVERY)
    assert all(all(each["needs"]) for each in result["not_evaluable"])


def test_a_trace_without_launches_cannot_serve_rules_of_the_host(capsys):
    path = GOLDEN / "traces" / "rocprofv3" / "sdk2025_kernel_trace.csv"
    missing = {each["rule"]: each["needs"] for each in document(capsys, path)["not_evaluable"]}
    assert missing["launch_bound"] == missing["host_bound"] == ["launches of the host"]
    assert "short_kernels" not in missing


def test_all_lists_each_rule_and_else_they_are_folded(capsys):
    _, whole, _ = said(capsys, EAGER, "--all")
    _, folded, _ = said(capsys, EAGER)
    assert whole.count("not evaluable: ") == len(kernel_rules()) + len(code_rules())
    more = len(kernel_rules()) - NAMED
    assert folded.count("not evaluable: ") == 2 and f"and {more} more need counters" in folded
    each = [NotEvaluable(f"rule{n}", (f"x{n}",)) for n in range(9)]
    assert list(missing_lines(each, False))[-1] == "not evaluable: 5 more rules; --all lists them"


def test_quiet_prints_the_rules_that_hold_alone(capsys):
    _, out, _ = said(capsys, EAGER, "--quiet")
    assert out.startswith("1. host-bound") and "not evaluable" not in out and len(out) < 900


def test_a_file_that_no_rule_can_use_is_exit_code_2(capsys):
    code, out, _ = said(capsys, H200 / "racecheck.xml")
    assert code == 2 and "No rule could be evaluated." in out


def test_golden_kernels_that_are_healthy_have_no_cause(capsys):
    """A copy and a product at their ceilings: nothing to gain."""
    healthy = [d for d in document(capsys, RAW)["diagnoses"] if d["rule"] != "spills"]
    assert {d["rule"] for d in healthy} == {"at_ceiling"}
    assert all(d["gain_s"] == 0 for d in healthy)


# Stored runs


@pytest.mark.parametrize("path", [RAW, PAGE, EAGER, BERT])
def test_a_stored_run_has_the_diagnoses_of_its_file(capsys, database, path):
    assert main(["read", str(path), "--database", database, "--quiet"]) == 0
    capsys.readouterr()
    last, file = document(capsys, "last", "--database", database), document(capsys, path)
    assert last["run"].startswith("2")
    assert last["not_evaluable"] == file["not_evaluable"]
    for kept, fresh in zip(last["diagnoses"], file["diagnoses"], strict=True):
        assert {k: v for k, v in kept.items() if k != "source"} == {
            k: pytest.approx(v) if isinstance(v, float) else v
            for k, v in fresh.items()
            if k != "source"
        }
    again = document(capsys, last["run"], "--database", database)
    assert again["diagnoses"] == last["diagnoses"]


@cache
def raw_summary():
    return summarise(read([RAW]))


def profiled(time_s=200e-6):
    """The golden counters as a run of `profile` with a plain time of the kernel `mm`."""
    run, outcomes = softmax()
    record = replace(outcomes[0], timing=replace(outcomes[0].timing, median_s=time_s))
    kept = kernel_run(raw_summary(), replace(run, engine="profile"), [record], "mm")
    return record, RunResult(kept.run, (record,), (), kept.findings, kept.profiles)


@settings(max_examples=3, deadline=None)
@given(st.floats(1e-6, 1e-2))
def test_a_gain_is_a_share_of_the_plain_time_and_leaves_the_roofline_bound(time_s):
    record, kept = profiled(time_s)
    report = run_report(kept)
    first = next(each for each in report.results if each.rule == "spills")
    bound_s = record.bytes / max(
        c["value"] for n, c in kept.run.ceilings.items() if n.startswith("dram")
    )
    assert first.gain_of == "plain time" and report.more["plain_s"] == record.time_s
    assert first.gain_s == pytest.approx(first.gain_share * record.time_s)
    assert 0 <= first.gain_s <= max(0.0, record.time_s - bound_s) * 1.2 + 1e-9
    above = trace_report(raw_summary(), "x").results[0]
    assert first.gain_share <= above.gain_s / sum(p.total_s for p in kept.profiles if p.kernel) * (
        1 + 1e-9
    )


def test_at_the_roofline_bound_nothing_is_promised():
    _, kept = profiled(1e-6)
    gains = [each.gain_s for each in run_report(kept).results if each.gain_of == "plain time"]
    assert gains and not any(gains)


def test_a_run_without_a_profile_says_what_to_do(capsys, database):
    from workbench.data.database import open_history

    run, _ = softmax()
    with open_history(database) as history:
        history.add_run(run)
    code, _, err = said(capsys, run.id, "--database", database)
    assert code == 2 and "neither counters nor a timeline" in err and "workbench profile" in err
    code, _, err = said(capsys, "last", "--database", database)
    assert code == 2 and "holds no run with a profile or predicted times of this project" in err


def test_a_predicted_run_says_which_term_limits_it_and_what_would_help(capsys, database):
    """4 GB at 4.8 TB/s take 0.833 ms at least: 83.3 % of 1 ms, 41.7 % of 2 ms."""
    from workbench.data.database import open_history

    run, outcomes = softmax(predicted=True, device="h200")
    record = next(o for o in outcomes if isinstance(o, Record))
    terms = {"compute_s": 1e-5, "dram_s": 9e-4, "cache_s": None, "latency_s": 1e-6}
    near = Predicted(1e-3, "m", **terms, launch_s=7e-7, bound="memory")
    far = replace(near, predicted_s=2e-3, bound="latency", latency_s=1.9e-3)
    short = replace(near, predicted_s=1e-6)
    for number, (timing, texts) in enumerate(
        (
            (
                near,
                (
                    "1. memory",
                    "83 % of the ceiling predicted, ~1 ms (measured times are",
                    "nothing to gain but f",
                ),
            ),
            (
                far,
                (
                    "1. latency",
                    "42 % of",
                    "what would help: shorter waits",
                    "1900.0 µs; memory 900",
                ),
            ),
            (short, ("1. launch", "fewer launches")),
        )
    ):
        with open_history(database) as history:
            one = replace(run, id=f"20260101-00000{number}-a")
            history.add_run(one)
            history.add(replace(record, run=one.id, timing=timing, bytes=4_000_000_000, flops=0))
        code, out, _ = said(capsys, one.id, "--database", database)
        assert code == 0 and all(text in out for text in texts), out
        assert "No rule" not in out


# What is no run, file or kernel


@pytest.mark.parametrize(
    "words, sentence",
    [
        ((), "Name a run"),
        (("nosuch.json",), "cannot be read"),
        (("nosuch.cubin",), "cannot be read"),
        (("nosuch",), "There is no kernel"),
        (("softmax", "last"), "One run is diagnosed at a time"),
        (("softmax", "--device", "nosuch"), "no device is named"),
        (("softmax", "--device", "m2max"), "Triton does not compile"),
        (("softmax", "--dtype", "int8"), "There is no dtype"),
        (("softmax", "--impl", "nosuch"), "nosuch"),
        (("softmax", "--sizes", "M=0"), "positive whole number"),
        (("--rules", "softmax"), "leave out what else is named"),
        ((RAW, "--sizes", "M=1"), "--sizes is an option of a kernel"),
        ((RAW, "x.cubin"), "diagnosed by itself"),
    ],
)
def test_what_cannot_be_diagnosed_is_one_sentence(capsys, monkeypatch, words, sentence):
    monkeypatch.setattr("workbench.commands.diagnose_code.require_triton", lambda: None)
    code, _, err = said(capsys, *words)
    assert code == 2 and sentence in err and err.count("\n") == 1 and "Traceback" not in err


@pytest.mark.parametrize("which", ["last", "20200101-000000-read-nothing-0000"])
def test_a_missing_run_is_one_sentence(capsys, database, which):
    code, _, err = said(capsys, which, "--database", database)
    assert code == 2 and err.startswith("error: ") and err.count("\n") == 1


@given(st.binary(max_size=300))
def test_an_odd_file_is_one_sentence(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("odd") / "odd.json"
    path.write_bytes(content)
    assert main(["diagnose", str(path)]) in (0, 2)


# Rules


def test_every_rule_states_thresholds_needs_and_source(capsys):
    listed = document(capsys, "--rules")["rules"]
    assert [each["rule"] for each in listed] == [*rules(), *kernel_rules(), *code_rules()]
    for each in listed:
        assert each["thresholds"] and each["source"] and each["word"]
        assert each["needs"] and bool(each["counters"]) == (each["kind"] == "counters")
    _, out, _ = said(capsys, "--rules")
    assert all(re.search(rf"^{name}\s", out, flags=re.M) for name in EVERY)


def test_words_and_orders_are_distinct():
    assert len({rule.order for rule in EVERY.values()}) == len(EVERY)
    assert len({rule.word for rule in EVERY.values()}) == len(EVERY)


def test_what_a_rule_of_code_needs_is_a_fact_that_may_lack():
    fields = CodeFacts.__dataclass_fields__
    for rule in code_rules().values():
        assert all(need in FACTS and fields[need].default is None for need in rule.needs)


# Machine code


def golden(name):
    return gzip.decompress((GOLDEN / "code" / f"{name}.gz").read_bytes()).decode()


def code_from(text, arch="sm_100"):
    listing = read_sass(text)
    graph = flow_graph(listing)
    parts = specialisation(listing, graph)
    return MachineCode("k", arch, listing, graph, "", None, None, partitions=parts)


def test_partitions_that_are_disjoint_are_no_cause():
    code = code_from(golden("ws1_cuda_100.nvdisasm_gi.txt"))
    assert code.partitions is not None and code.partitions.overlaps == ()
    facts = code_facts(code, "sm_100")
    assert facts.overlaps == () and "partition_overlap" not in missing_of_code(facts)


def test_a_branch_from_one_partition_into_another_is_an_overlap():
    text = golden("ws1_cuda_100.nvdisasm_gi.txt")
    code = code_from(text)
    first, second = (p for p in code.partitions.partitions if p.roles[:1] in (
        ("matrix",), ("tensor loads",)
    ))  # fmt: skip
    ops, blocks = code.listing.instructions, code.graph.blocks
    target = next(
        code.listing.labels[blocks[n].start]
        for n in sorted(first.blocks)
        if blocks[n].start in code.listing.labels
    )
    jump = next(
        ops[blocks[n].end - 1] for n in sorted(second.blocks)
        if ops[blocks[n].end - 1].opcode == "BRA"
    )  # fmt: skip
    label = re.search(r"`\(([^)]+)\)", jump.operands)[1]
    line = next(x for x in text.splitlines() if f"/*{jump.address:04x}*/" in x and "BRA" in x)
    planted = code_from(text.replace(line, line.replace(f"`({label})", f"`({target})"), 1))
    pairs = {frozenset(pair[:2]) for pair in planted.partitions.overlaps}
    assert frozenset((first.name, second.name)) in pairs
    names = [match.name for match in evaluate_code(code_facts(planted, "sm_100"))]
    assert "partition_overlap" in names


def test_spills_of_a_product_whose_tile_is_too_large_on_amd():
    facts = code_facts(code_of_assembly(golden("mmspill_hip_gfx942.amdgcn"), None), "gfx942")
    (match,) = evaluate_code(facts)
    assert match.name == "spills_in_loop" and match.diagnosis.places[0].startswith("kern.py:")
    assert missing_of_code(facts)["compiler_warning"] and match.diagnosis.gain_ns is None


@pytest.mark.parametrize(
    "name", ["mm_cuda_80", "mm_cuda_90", "mm_cuda_100", "mm_cuda_120", "add_cuda_90"]
)
def test_golden_code_that_is_healthy_has_no_cause(name):
    facts = code_facts(code_from(golden(f"{name}.nvdisasm_g.txt"), f"sm_{name[-2:]}"), "x")
    assert evaluate_code(facts) == []


@pytest.mark.parametrize(
    "name, product",
    [("matmul", True), ("lora", True), ("softmax", False), ("matvec", False), ("copy", False),
     ("compute_only", False), ("cross_entropy", False)],
)  # fmt: skip
def test_a_product_is_known_by_the_axes_of_its_spec(name, product):
    spec = catalog.spec_of(name)
    assert bool(product_of(0, spec, spec.bench[0])) == product
    assert product_of(1, spec, spec.bench[0])


@given(
    st.sampled_from(["h200", "a100", "mi300x"]),
    st.integers(1, 16),
    st.integers(16, 255),
    st.integers(0, 200_000),
)
def test_the_next_step_lets_more_warps_fit(device, warps, registers, shared):
    target = DEVICES[device]
    threads = warps * target.limits.warp_size
    fit = {"threads": threads, "registers": registers, "shared_bytes": shared}
    known = replace(softmax()[1][0].resources, **fit)
    text = next_step(known, target)
    now = occupancy(target, **fit)
    if match := re.match(r"With (\d+) registers", text):
        then = occupancy(target, **{**fit, "registers": int(match[1])})
        assert now.limiter == "registers" and then.fraction > now.fraction
        same = occupancy(target, **{**fit, "registers": int(match[1]) + 1})
        assert same.fraction == now.fraction
    elif text:
        assert now.limiter == "shared memory"


# Planted kernels, by counters that an H200 gave


@pytest.mark.parametrize("name", sorted(expected()))
def test_the_word_of_a_planted_kernel_is_its_cause(name):
    word = word_of(evaluate_kernel(stored()[name]))
    assert (word.name if word else None) in expected()[name][0]


# Rules of which no kernel was planted and measured: of Blackwell alone, and of the numbers.
WITHOUT_A_KERNEL = {"tmem_latency", "clock", "model", "deferred_writes"}


def test_each_planted_kernel_is_stored():
    assert set(stored()) == set(expected())
    rules = {rule for rules, _ in expected().values() for rule in rules if rule}
    assert set(kernel_rules()) - rules == WITHOUT_A_KERNEL, (
        "plant a kernel in tests/planted_counters.py, or enter the rule in WITHOUT_A_KERNEL"
    )


# Predicted times


def test_there_is_advice_for_all_that_may_bound_a_predicted_time():
    bounds = {"launch", *cost_model.BOUNDS, *code_model.BOUNDS, *apple_model.BOUNDS}
    assert set(ADVICE) == bounds
