"""What a change was to do to a kernel's counters, and whether it did."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.cli import main
from workbench.data.expected_change import EXPECTED, expectation_results, longest_counted
from workbench.data.record import Evidence, Profile

STALLS = Path(__file__).parents[1] / "golden" / "traces" / "h200" / "stall_metrics.csv"
RAW = STALLS.with_name("raw_base.csv.gz")
VALUES = st.floats(0.01, 100.0)


def profile(total_s=1e-5, **values):
    metrics = tuple(Evidence(name, value, "cycle", "profiled") for name, value in values.items())
    return Profile("r", "", "ncu", "", "0", "k", total_s=total_s, metrics=metrics)


def states(name, before, after):
    return [r.state for r in expectation_results(name, profile(**before), profile(**after))]


@given(VALUES, VALUES, VALUES, VALUES)
def test_a_barrier_that_few_warps_wait_for(old, new, membar, more):
    got = states(
        "mbarrier",
        {"stall_barrier": old, "stall_membar": membar},
        {"stall_barrier": new, "stall_membar": more},
    )
    falls = "met" if new <= (1 - 0.8) * old else "not met"
    assert got == [falls, "met" if more - membar < old - new else "not met"]


@pytest.mark.parametrize(("name", "after", "wanted"), [
    ("direct_store", {"stall_wait": 1.0, "stall_short_scoreboard": 0.5, "lanes_on": 31.0},
     ["met", "met", "met"]),
    ("direct_store", {"stall_wait": 1.9, "stall_short_scoreboard": 0.5, "lanes_on": 20.0},
     ["not met", "met", "not met"]),
    ("tmem_ahead", {"stall_long_scoreboard": 1.0}, ["met"]),
    ("prefetch", {"global_loads": 40.0}, ["met"]),
    ("prefetch", {"global_loads": 60.0}, ["not met"]),
    ("prefetch", {}, ["not measured"]),
])  # fmt: skip
def test_each_change_has_its_counters(name, after, wanted):
    before = {"stall_wait": 2.0, "stall_short_scoreboard": 1.0, "lanes_on": 20.0,
              "stall_long_scoreboard": 2.0, "global_loads": 100.0}  # fmt: skip
    assert states(name, before, after) == wanted


@pytest.mark.parametrize("name", EXPECTED)
def test_without_counters_nothing_is_met(name):
    assert set(states(name, {}, {})) == {"not measured"}
    assert longest_counted([profile()]) is None


def test_the_longest_launch_with_counters_is_taken():
    first, second = profile(total_s=1e-5, lanes_on=1.0), profile(total_s=2e-5, lanes_on=2.0)
    assert longest_counted([first, second, profile(total_s=1.0)]) is second


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The stalls of a real kernel, and of one whose barriers cost a tenth of it."""
    monkeypatch.chdir(tmp_path)
    text = STALLS.read_text()
    Path("before.csv").write_text(text)
    lines = text.splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if "stalled_barrier" in line)
    head, _, value = lines[at].rstrip().rstrip('"').rpartition('"')
    lines[at] = f'{head}"{float(value) / 10}"\n'
    Path("after.csv").write_text("".join(lines))


def run(capfd, *words):
    code = main(["compare", *words])
    return code, *capfd.readouterr()


def test_two_files_of_ncu_are_held_to_what_was_expected(files, capfd):
    words = ("--expect", "mbarrier", "--json", "out.json", "--out", "o")
    code, out, _ = run(capfd, "before.csv", "after.csv", *words)
    assert "met: stalls by barrier fall by 80 % or more" in out
    parts = json.loads(Path("out.json").read_text())["comparison"]["parts"]
    part, *_ = (one for one in parts if "expected" in one)
    expected = part["expected"]
    assert part["word"] == expected["state"] == "met"
    assert expected["after"] < expected["before"]
    (page,) = Path("o").glob("*/report.html")
    html = page.read_text()
    assert "Expected of mbarrier" in html
    assert "0.000" not in html, "no time is in these files, so there is no difference of times"
    code, out, _ = run(capfd, "before.csv", "before.csv", "--expect", "mbarrier")
    assert code == 1 and "not met: stalls by barrier fall" in out
    code, out, _ = run(capfd, "before.csv", "after.csv", "--expect", "prefetch")
    assert code == 3 and "not measured: global loads fall" in out


@pytest.mark.parametrize(("words", "said"), [
    (("before.csv", "after.csv", "--expect", "mbarier"), "did you mean mbarrier"),
    (("tiles", "wide", "--expect", "mbarrier"), "name two files of ncu"),
    (("before.csv", "trace.json", "--expect", "mbarrier"), "has no counters"),
])  # fmt: skip
def test_a_wrong_request_is_one_sentence(files, capfd, words, said):
    trace = STALLS.with_name("eager_trace.json.gz")
    Path("trace.json").write_bytes(gzip.decompress(trace.read_bytes()))
    code, out, err = run(capfd, *words)
    assert code == 2 and said in err and err.count("\n") == 1 and not out
