"""FINDINGS.md: stored runs as Markdown that says what was measured, and nothing else."""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import synthetic
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from variant_results import context, finding, run_of, took

from workbench.data.record import Evidence, Finding, Record
from workbench.experiments import launch_overhead
from workbench.reports.findings import GAINS, IMPACT, KPI, code, markdown, table, text

GOLDEN = Path(__file__).parents[1] / "golden" / "findings.md"
US = 1e-6
MD = MarkdownIt("commonmark").enable(["table", "strikethrough"])


@cache
def launched():
    """A run of launch_overhead: the judgements of made-up times."""
    question = context("norm_chain", "fp32")
    times = {"eager": 640.0, "in a graph": 128.0, "torch, eager": 280.0,
             "torch, in a graph": 140.0, "copied to the CPU and back": 4000.0,
             "fused, launched": 60.0, "fused": 50.0, "empty launch": 0.8}  # fmt: skip
    results = {
        a.name: took(a, times[a.name] * US, half=0.01, kernels=1 if "fused" in a.name else 64)
        for a in launch_overhead.variants(question)
    }
    created = launch_overhead.analyse(question, results)
    outcomes = [f.outcome for f in results.values()]
    run = run_of("launch_overhead", environment=synthetic.environment(), device="NVIDIA H200")
    return run, outcomes, [finding(j, "launch_overhead", question) for j in created]


def kept():
    return markdown([launched(), (*synthetic.matmul(), [])])


def test_the_file_is_as_it_was():
    assert kept() == GOLDEN.read_text(encoding="utf-8"), (
        "python tests/unit/test_findings.py writes it"
    )


def test_the_order_of_runs_does_not_matter():
    runs = [launched(), (*synthetic.matmul(), []), (*synthetic.softmax(predicted=True), [])]
    assert markdown(runs) == markdown(reversed(runs))


def test_the_baseline_has_every_key_figure_with_its_target():
    page = markdown([launched()])
    rows = {cells[0]: cells for cells in tables(page)[0][1:]}
    assert list(rows) == [KPI.total, KPI.utilisation, KPI.efficiency, KPI.kernels, KPI.kernel,
                          KPI.gap]  # fmt: skip
    assert rows[KPI.utilisation][3:5] == ["> 80 %", "missed"]
    assert rows[KPI.gap][3:5] == ["< 1 µs", "missed"] and rows[KPI.kernels][1] == "64"
    assert rows[KPI.utilisation][1] == "20.0 %" and "Not measured" not in page


def test_what_limits_has_evidence_impact_and_cause_and_gains_are_sorted():
    page = markdown([launched()])
    assert "- Bottleneck: launch-bound, by `launch_overhead`" in page
    assert "- Impact: time in which the GPU waits, 80.0 %" in page
    assert "- Cause: Launched one by one" in page
    gains = [float(g) for g in re.findall(r"Potential gain: ([\d.]+) %", page)]
    assert len(gains) == 5 and gains == sorted(gains, reverse=True)


def test_a_row_that_nobody_measured_is_left_out_and_a_line_says_what_measures_it():
    run, outcomes, result = launched()
    bare = replace(result[0], evidence=tuple(e for e in result[0].evidence if e.name == KPI.total))
    page = markdown([(run, outcomes, [bare])])
    assert f"Not measured: {KPI.utilisation}" in page and "launch_overhead` measures them" in page
    assert [row[0] for row in tables(page)[0][1:]] == [KPI.total]
    assert "None was measured." in page  # no gains


def test_a_sweep_names_its_best_config_the_default_and_the_library():
    page = markdown([(*synthetic.matmul(), [])])
    impls = [row[1].split()[0] for row in tables(page)[0][1:]]
    assert impls == ["tiles", "tiles", "persistent", "cublas", "torch.compile"]
    assert "instead of" in page and "of its time" in page


def test_predicted_numbers_carry_a_tilde_that_strikes_nothing_through():
    run, outcomes = synthetic.softmax(predicted=True)
    page = markdown([(run, outcomes, [])])
    times = [row[-1] for row in tables(page)[0][1:]]
    assert times and all(t.startswith("~") for t in times)
    assert "s_open" not in {t.type for b in MD.parse(page) for t in b.children or ()}
    assert "no GPU took part" in page


def test_nothing_at_all_is_said():
    run, _ = synthetic.empty()
    assert "No run was given" in markdown([])
    assert "Nothing has a time." in markdown([(run, [], [])])


def tables(page):
    """Cells of each table, its head first, as a reader sees them."""
    result, cells = [], None
    for token in MD.parse(page):
        if token.type == "table_open":
            result.append([])
        elif token.type == "tr_open":
            result[-1].append([])
        elif token.type in ("th_open", "td_open"):
            cells = result[-1][-1]
        elif token.type == "inline" and cells is not None:
            cells.append("".join(t.content for t in token.children))
            cells = None
    return result


HOSTILE = st.text(
    st.sampled_from("ab1 .,:`*_{}[]()<>#+-!|~&\\$%'\"=@/\n\tµ∞")
    | st.characters(exclude_categories=("Cs", "Cc")),
    max_size=24,
)


@given(HOSTILE)
def test_words_come_through_as_they_were(words):
    """Whatever stands in a record, a reader sees it, and no more than white space is lost."""
    plain = " ".join(words.split())
    for escaped in (text(words), code(words)):
        (cell,) = tables(table(("head",), [["x" + escaped]]))[0][1]
        assert cell == "x" + plain
        assert "\n" not in escaped


@given(HOSTILE, HOSTILE, HOSTILE, st.floats(1e-9, 1e9))
def test_no_word_of_a_record_changes_the_structure(word, name, kernel, value):
    run, outcomes, _ = launched()

    def structure(word, name, kernel):
        rows = (
            Evidence(KPI.total, value, "s", "measured", target=word, group=kernel),
            Evidence(name, value, "s", "measured", target=name, group=word),
            Evidence(name, 0.5, "1", "computed", group=IMPACT),
            Evidence(name, 0.5, "1", "computed", group=GAINS),
        )
        odd = Finding(run.id, run.started, word, kernel, {}, word, name, word, rows, (), (name,))
        page = markdown([(replace(run, name=name, command="c" + word), outcomes, [odd])])
        return [t.type for t in MD.parse(page) if t.type in BLOCKS]

    assert structure(word, name, kernel) == structure("a", "a", "a")


BLOCKS = ("heading_open", "table_open", "bullet_list_open", "ordered_list_open", "list_item_open",
          "blockquote_open", "fence", "code_block", "html_block", "hr")  # fmt: skip


@given(st.lists(st.lists(st.text("ab |", max_size=9), min_size=2, max_size=2), max_size=4))
def test_the_columns_of_a_table_stand_below_one_another(rows):
    cells = [[text(cell) or "-" for cell in row] for row in rows]
    lines = table(("first", "second"), cells, (1,)).splitlines()
    assert len({len(line) for line in lines}) == 1


def test_a_long_list_of_times_is_cut_and_says_so():
    run, outcomes = synthetic.matmul()
    assert "And 3 more" in markdown([(replace(run, engine="gate"), records(outcomes, 43), [])])


def records(outcomes, count):
    return [o for o in outcomes if isinstance(o, Record)][:count]


if __name__ == "__main__":
    GOLDEN.write_text(kept(), encoding="utf-8")
