"""PROFILING_RESULTS.md of traces: baseline, memory, the table of a step, opportunities, files."""

import re
from pathlib import Path

import pytest

from workbench.commands.traces import _plain_sentence, trace_run
from workbench.data.units import percent
from workbench.reports.findings import BASELINE, STEP, markdown
from workbench.traces.readers import read
from workbench.traces.trace_summary import summarise

GOLDEN = Path(__file__).parents[1] / "golden" / "traces"
BERT = "torch_profiler/tracelens_h100_bert_small.json.gz"
B200 = "torch_profiler/tracelens_b200_eager.json.gz"

pytestmark = pytest.mark.unit


def results(name):
    kept = trace_run(summarise(read([GOLDEN / name])), "read", name, f"workbench read {name}")
    return markdown([(kept.run, (), kept.findings)])


def section(text, title):
    match = re.search(rf"^### {title}\n(.*?)(?=^###? |\Z)", text, flags=re.M | re.S)
    assert match, title
    return match[1]


def test_the_baseline_has_every_key_figure():
    table = section(results(BERT), "Baseline")
    assert all(f"| {name} " in table for name in BASELINE)
    assert "Not measured" not in table and "profiled" in table


def test_a_trace_has_its_memory_patterns_and_the_table_of_a_step():
    text = results(BERT)
    assert "bytes copied" in section(text, "Memory patterns")
    step = section(text, "Inference step")
    rows = [head for head, _, _ in STEP if f"| {head} " in step]
    assert {"kernel count", "GEMM share", "synchronisation, exposed"} <= set(rows)
    left_out = [head for head, _, _ in STEP if head not in rows]
    assert f"Not measured: {', '.join(left_out)}; " in step


@pytest.mark.parametrize("name", [BERT, B200, "h200/eager_trace.json.gz"])
def test_each_opportunity_has_gain_effort_and_approach(name):
    opportunities = section(results(name), "Optimisation opportunities")
    entries = re.split(r"^\d+\. ", opportunities, flags=re.M)[1:]
    assert entries
    for entry in entries:
        lines = [line.strip() for line in entry.strip().splitlines()[1:]]
        assert [line.split(":")[0] for line in lines] == [
            "- Potential gain", "- Effort", "- Approach",
        ]  # fmt: skip


def test_the_files_of_a_trace_stand_there_with_their_hashes():
    text = section(results("h200/eager_trace.json.gz"), "Configuration")
    assert re.search(r"- Files: eager_trace.json.gz, sha256 [0-9a-f]{12}", text)
    assert "report.html" in text and "Machine" not in text


def test_a_finding_is_said_once():
    """The figures of a device open with the sentence of the rule that gives the word."""
    findings = section(results("h200/eager_trace.json.gz"), "Key findings")
    assert findings.count("host-bound, by") == 1


def test_without_a_rule_the_sentence_names_the_largest_cause_of_idle_time():
    summary = summarise(read([GOLDEN / BERT])).devices[0]
    idle = summary.times.idle()
    largest, least = (choose(idle, key=idle.__getitem__) for choose in (max, min))
    assert idle[largest] > idle[least]
    sentence = _plain_sentence(summary)
    assert f"most of it by {largest}" in sentence and sentence.startswith("No rule holds")
    assert f"idle in {percent(1 - summary.times.utilisation)} of the window" in sentence
