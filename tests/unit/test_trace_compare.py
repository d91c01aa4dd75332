"""Two traces beside each other: kernels joined by name, the word and its reason, exit codes."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.cli import main
from workbench.data.record import Evidence, Finding, Profile
from workbench.traces.trace_compare import (
    STEPS,
    TraceOperand,
    compare,
    normal_name,
    percent_change,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "traces" / "h200"
AT = "2026-11-23T10:00:00+00:00"

pytestmark = pytest.mark.unit


def kernel(name, median, count=10, launch=""):
    return Profile(
        "run", AT, "t", "", "gpu", name, launch, count, median * count, median,
        median * 0.999, median * 1.001, median * 0.9, median * 1.1,
    )  # fmt: skip


def operand(kernels, total=1.0, steps=None):
    evidence = [Evidence("total time", total, "s", "profiled", group="the window")]
    if steps is not None:
        low, middle, high = steps
        evidence.append(Evidence("step#", middle, "s", "profiled", low, high, STEPS))
    finding = Finding("run", AT, "timeline", "", {}, "", "kernels", "It is so.", tuple(evidence))
    return TraceOperand("x", [finding], kernels)


NAMES = st.lists(st.sampled_from("abcdef"), max_size=5, unique=True)


@given(NAMES, NAMES)
def test_each_kernel_is_in_one_row(before, after):
    left = operand([kernel(n, 1e-3) for n in before])
    right = operand([kernel(n, 1e-3) for n in after])
    result = compare(left, right, 0.01)
    words = {row.name: row.word for row in result.kernels}
    assert len(words) == len(result.kernels) == len({*before, *after})
    for name, word in words.items():
        both = name in before and name in after
        assert word == ("same" if both else "gone" if name in before else "new")


@given(st.floats(1e-6, 1e-2), st.floats(0.2, 5.0))
def test_the_word_of_a_kernel_follows_its_interval(median, ratio):
    (row,) = compare(
        operand([kernel("a", median)]), operand([kernel("a", median * ratio)]), 0.01
    ).kernels
    assert row.ratio == pytest.approx(ratio) and row.low <= row.ratio <= row.high
    if row.word == "slower":
        assert row.low > 1.01
    elif row.word == "faster":
        assert row.high < 1 / 1.01
    else:
        assert 0.985 < ratio < 1.015


@given(st.floats(0.5, 2.0))
def test_two_traces_in_turn_give_the_inverse(ratio):
    a, b = operand([kernel("a", 1e-3)], 1.0), operand([kernel("a", 1e-3 * ratio)], ratio)
    there, back = compare(a, b, 0.01), compare(b, a, 0.01)
    inverse = {"SLOW": "FAST", "FAST": "SLOW"}
    assert back.word == inverse.get(there.word, there.word)
    assert compare(a, a, 0.01).word == "SAME"


@pytest.mark.parametrize(
    ("after", "word"),
    [
        ((0.95, 1.005, 1.1), "SAME"),  # within the threshold
        ((1.0, 1.04, 1.2), "SAME"),  # within the spread
        ((1.2, 1.3, 1.4), "SLOW"),
        ((0.5, 0.6, 0.7), "FAST"),
    ],
)
def test_steps_decide_by_their_spread(after, word):
    before = operand([kernel("a", 1e-3)], 1.0, (0.9, 1.0, 1.05))
    result = compare(before, operand([kernel("a", 1e-3)], 3.0, after), 0.01)
    assert result.word == word and "step#" in result.reason


def test_a_window_whose_kernels_are_the_same_needs_a_quarter():
    same = [kernel("a", 1e-3)]
    assert compare(operand(same), operand(same, 1.04), 0.01).word == "SAME"
    assert compare(operand(same), operand(same, 1.2), 0.01).word == "INCONCLUSIVE"
    assert compare(operand(same), operand(same, 1.5), 0.01).word == "SLOW"
    assert compare(operand(same), operand([kernel("a", 2e-3)], 1.2), 0.01).word == "SLOW"


def test_another_device_is_said():
    other = operand([kernel("a", 1e-3)])
    other = TraceOperand("y", other.findings, [Profile("run", AT, "t", "", "gpu2", "a")])
    assert (
        "different devices, gpu and gpu2" in compare(operand([kernel("a", 1e-3)]), other, 0).reason
    )


@pytest.mark.parametrize(
    ("name", "normal"),
    [
        ("k.kd", "k"),
        ("void f<int>(int) [clone .kd]", "void f<int>(int)"),
        ("softmax_0d1d2de", "softmax"),
        ("triton_poi_fused_0", "triton_poi_fused_0"),
        ("f<x::{lambda(int)#3}>", "f<x::>"),
    ],
)
def test_names_lose_what_a_compiler_changes(name, normal):
    assert normal_name(name) == normal and normal_name(normal) == normal


def test_launches_of_one_name_are_joined_in_order():
    before = operand([kernel("mm", 1e-3, 1, "1"), kernel("mm", 5e-3, 1, "2")])
    after = operand([kernel("mm", 5e-3, 1, "11"), kernel("mm", 1e-3, 1, "9")])
    assert {row.word for row in compare(before, after, 0.01).kernels} == {"same"}


@pytest.mark.parametrize(("ratio", "text"), [(1.032, "+3.2 %"), (0.5, "-50 %"), (4.0, "4 times")])
def test_changes(ratio, text):
    assert percent_change(ratio) == text


def said(capsys, *words):
    code = main(["compare", *map(str, words)])
    streams = capsys.readouterr()
    return code, streams.out, streams.err


def test_a_graph_beside_the_launches_that_it_holds(capsys, tmp_path, monkeypatch):
    """Idle time is what differs: kernels take the same time, and there are as many."""
    monkeypatch.chdir(tmp_path)
    eager, graph = GOLDEN / "eager_trace.json.gz", GOLDEN / "graph_trace.json.gz"
    code, out, _ = said(capsys, eager, graph)
    assert code == 0 and "Suspected FAST" in out and "idle time" in out
    assert said(capsys, graph, eager)[0] == 3
    assert said(capsys, eager, eager)[:2][0] == 0


def test_stored_traces_are_compared_as_their_files_are(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    database = ("--database", f"sqlite:///{tmp_path}/h.db")
    for name in ("eager_trace.json.gz", "graph_trace.json.gz"):
        assert main(["read", str(GOLDEN / name), *database]) == 0
    runs = sorted(path.name for path in (tmp_path / "results").iterdir() if path.is_dir())
    runs.sort(key=lambda name: "graph" in name)
    capsys.readouterr()
    code, out, _ = said(capsys, *runs, *database)
    assert code == 0 and "Suspected FAST" in out and "-66.2 %" in out


@pytest.mark.parametrize("right", ["tiles", "20260101-000000-x", GOLDEN / "memcheck.log"])
def test_a_trace_and_something_else_are_refused(capsys, tmp_path, monkeypatch, right):
    monkeypatch.chdir(tmp_path)
    code, out, err = said(capsys, GOLDEN / "eager_trace.json.gz", right)
    assert code == 2 and not out and err.startswith("error: ") and err.count("\n") == 1
    assert not list(tmp_path.iterdir())
