"""The comment on a pull request: its text, that names and messages stay text, and its length."""

import html
import os
import re
from dataclasses import replace
from pathlib import Path

import compiled_cases
import pytest
import synthetic
from compiled_cases import CASE, FACTS, other, paired, predicted, timed
from hypothesis import given
from hypothesis import strategies as st

from workbench import __version__
from workbench.code.compared_pair import ComparedPair, compiled_change
from workbench.commands.pair_results import code_result
from workbench.data.compiled_code import HotLoop
from workbench.data.record import Comparison, Ratio, Verdict
from workbench.reports.compare import conclusion
from workbench.reports.pull_request import MARKER, GateResult, escape_markdown, markdown

GOLDEN = Path(__file__).parents[1] / "golden" / "pull_request"
MOST = 65_536  # characters of a comment

SLOWER = other(
    timing=predicted(1.2e-3), loop=HotLoop(190, {"matrix": 64, "spills": 12}, 396),
    registers=255, spill_bytes=96, load_bits=32, shared_bytes=4096,
)  # fmt: skip


def of_code(pairs, left_out=(), baseline="origin/main", broken=False):
    command = f"workbench gate {baseline} --device a100"
    names = "Changed kernels", baseline, "WORKING", ["a100"]
    changes = compiled_cases.changes(*names, pairs, [], command, "2026-11-23T12:00", 1.0)
    result = code_result(changes, ["FAILS"] * broken)
    return GateResult(baseline, result.exit_code, command, left_out, result.sentence, pairs)


def of_times():
    _, outcomes = synthetic.softmax()
    left, right = outcomes[:2]
    slow = Verdict("SLOW", Ratio(1.25, 1.24, 1.26), None, 0.01, 0.01, 0.001, 48, "so")
    each = [
        ComparedPair(Comparison("r", "", "softmax", {"M": 8, "N": 64}, "bf16", "rows at v1", "rows",
                                left.key, right.key, verdict), left, right,
                     compiled_change(left, right))
        for verdict in (slow, replace(slow, word="SAME", time=Ratio(1.001, 0.999, 1.003)), None)
    ]  # fmt: skip
    return GateResult("v1", 1, "workbench gate v1", (), conclusion(each), each, "NVIDIA H200")


def of_both():
    """Pairs by code, of which a GPU measured two."""
    slow = Verdict("SLOW", Ratio(1.25, 1.24, 1.26), None, 0.01, 0.01, 0.001, 48, "so")
    worse = paired(CASE, FACTS, SLOWER)
    asked = timed(worse, slow), timed(worse, None, "wrong by 3")
    return of_code([*asked, worse, paired(CASE, FACTS, FACTS)])


CASES = {
    "both": of_both(),
    "suspected": of_code([paired(CASE, FACTS, SLOWER), paired(CASE, FACTS, FACTS)]),
    "same": of_code([paired(CASE, FACTS, FACTS)], [("gelu", "new since origin/main")]),
    "broken": of_code(
        [
            paired(replace(CASE, impl="a|b"), FACTS, "ptxas: @one <b>no room</b> `x` #1"),
            paired(CASE, FACTS, SLOWER),
        ],
        [("old.py", "removed since origin/main")],
    ),
    "nothing": GateResult("v1", 0, "workbench gate v1", nothing="no kernel's file has changed"),
    "times": of_times(),
}


@pytest.mark.parametrize("name", CASES)
def test_the_comment_is_the_golden_one(name):
    """To write them anew: GOLDEN=write, then read the difference."""
    text = markdown(CASES[name]).replace(__version__, "VERSION")
    file = GOLDEN / f"{name}.md"
    if os.environ.get("GOLDEN") == "write":
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


hostile = st.text(st.sampled_from("ab|`<>@#*[]()~\\\n\r\0é _-!$"), max_size=40)


@given(hostile)
def test_text_from_the_branch_is_shown_and_does_nothing(text):
    shown = escape_markdown(text)
    assert not re.search(r"[|`<>@*\[\]~\\\n\r\0$]|#(?!\d+;)", shown)
    assert html.unescape(shown) == "".join(c for c in " ".join(text.split()) if c.isprintable())


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/runner/work/r/r/toy.py cannot be read", "toy.py cannot be read"),
        ("toy.py: (/tmp/workbench-x/c0ffee/toy.py)", "toy.py: (toy.py)"),
        ("N/2 of https://a.org/b/c at src/toy.py", "N/2 of https://a.org/b/c at src/toy.py"),
    ],
)
def test_no_folder_of_the_runner_is_shown(text, shown):
    assert escape_markdown(text) == shown


@given(hostile, hostile, st.integers(0, 80), st.integers(1, 400))
def test_every_row_has_the_cells_of_its_table_and_the_comment_is_taken(impl, reason, many, long):
    case = replace(CASE, impl=impl, kernel="k|" * long)
    pairs = [paired(case, FACTS, reason * long or "no"), paired(case, FACTS, SLOWER)] * many
    result = of_code(pairs, [(reason, impl)] * many, baseline=f"v{long}")
    text = markdown(result)
    assert text.startswith(MARKER + "\n") and len(text) <= MOST
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} <= {5, 9, 4}
    first = text.partition("<details>")[0]
    shown = sum(line.startswith(("| FAILS", "| WORSE")) for line in first.splitlines())
    more = re.search(r"^(\d+) more rows", first, flags=re.M)
    assert shown + (int(more[1]) if more else 0) == 2 * many
