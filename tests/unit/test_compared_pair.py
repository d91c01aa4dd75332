"""Machine code before and after: words, reasons, their order, and the exit code."""

import html
import io
from dataclasses import replace

import compiled_cases
import pytest
from compiled_cases import CASE, FACTS, RESOURCES, failed, other, outcome, paired, predicted
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from workbench.code.compared_pair import (
    ORDER,
    REGISTERS,
    SCRATCH_BYTES,
    has_facts,
    loop_rates,
    rank_pairs,
)
from workbench.commands.code_table import say_changes
from workbench.commands.pair_results import code_result
from workbench.data.compiled_code import CompiledCode, HotLoop
from workbench.data.record import decode_plain, encode_plain
from workbench.device.error_band import device_words
from workbench.reports.compare import line, operand_rows
from workbench.reports.compare import page as compare_page
from workbench.reports.pair_texts import MEANINGS, reasons
from workbench.reports.versions import (
    NARROW,
    WIDEST,
    changed_pairs,
    changes_page,
    conclusion,
    pair_rows,
    tune_again,
)

resources = st.builds(
    replace,
    st.just(RESOURCES),
    registers=st.integers(1, 512),
    spill_bytes=st.integers(0, 4096),
    occupancy=st.sampled_from([0.125, 0.25, 0.5, 1.0]),
    load_bits=st.sampled_from([0, 16, 32, 128]),
    matrix_unit=st.sampled_from([None, "mma", "wgmma", "tcgen05", "mfma", "wmma"]),
    copy_engine=st.booleans(),
)
loops = st.none() | st.builds(
    HotLoop,
    st.integers(1, 5000),
    st.dictionaries(st.sampled_from(["matrix", "float"]), st.integers(1, 64)),
    st.none() | st.integers(0, 512),
)
codes = st.builds(CompiledCode, st.sampled_from("abc"), st.integers(1, 3), st.just({}), loops)
facts = st.builds(
    outcome, codes, resources, st.none() | st.floats(1e-6, 1.0).map(predicted), st.just(CASE)
)
either = facts | st.sampled_from(["it needs more shared memory", "ptxas failed"]).map(failed)


@given(either, either)
def test_the_word_follows_from_the_reasons(before, after):
    pair = paired(CASE, before, after)
    assert pair.word in ORDER and pair.word in MEANINGS
    if not (has_facts(before) and has_facts(after)):
        assert (pair.word == "FAILS") == (has_facts(before) and not has_facts(after))
        assert reasons(pair) in [o.reason for o in (before, after) if not has_facts(o)]
    else:
        assert (pair.word == "SAME") == (before.code.digest == after.code.digest)
        assert (pair.word == "WORSE") == bool(pair.change.worse)
        assert (pair.word == "BETTER") == bool(pair.change.better and not pair.change.worse)
    assert "\n" not in reasons(pair)


@given(facts, facts)
def test_what_is_worse_one_way_is_better_the_other(one, other):
    there, back = paired(CASE, one, other), paired(CASE, other, one)
    assert len(there.change.worse) == len(back.change.better) and len(there.change.better) == len(
        back.change.worse
    )


@given(facts)
def test_equal_facts_of_other_code_are_neither_worse_nor_better(one):
    changed = replace(one, code=replace(one.code, digest=one.code.digest + "x"))
    assert paired(CASE, one, changed).word == "CHANGED"


def test_the_registers_of_the_matmul_of_the_issue_are_seen():
    pair = paired(CASE, FACTS, other(registers=252))
    assert pair.word == "WORSE" and reasons(pair) == "registers 228 to 252"
    few = other("a", registers=10), other(registers=14)  # nothing is limited by so few
    assert paired(CASE, *few).word == "CHANGED"


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"spill_bytes": SCRATCH_BYTES}, "scratch 0 to 16 B"),
        ({"occupancy": 0.0625}, "occupancy 12 to 6 %"),
        ({"load_bits": 32}, "load width 128 bits to 32 bits"),
        ({"matrix_unit": None}, "matrix unit mma to none"),
    ],
)
def test_each_resource_that_got_worse_is_named(more, reason):
    assert paired(CASE, FACTS, other(**more)).change.worse == (reason,)
    better = paired(CASE, other(**more), FACTS)
    assert better.word == "BETTER" and len(better.change.better) == 1


def test_changes_below_the_thresholds_are_no_suspicion():
    little = other(registers=int(228 * (1 + REGISTERS)), spill_bytes=SCRATCH_BYTES - 1)
    assert paired(CASE, FACTS, little).word == "CHANGED"


def test_the_predicted_time_counts_beyond_the_threshold():
    later = other(timing=predicted(1.05e-3))
    assert paired(CASE, FACTS, later).change.worse == ("predicted time up by 5 %",)
    assert paired(CASE, FACTS, later, threshold=0.1).word == "CHANGED"
    assert paired(CASE, later, FACTS).change.better == ("predicted time down by 5 %",)


def test_loops_are_compared_by_their_work():
    once, twice = HotLoop(100, {"matrix": 10}, 64), HotLoop(200, {"matrix": 20}, 128)
    assert loop_rates(once, twice) == (10.0, 10.0, "a matrix instruction")
    assert loop_rates(HotLoop(100, {}, 50), HotLoop(100, {}, 25)) == (2.0, 4.0, "a byte")
    assert loop_rates(once, HotLoop(100, {}, 64)) is None  # one works in another way
    assert loop_rates(None, once) is None and loop_rates(HotLoop(9, {}, None), once) is None


@given(st.lists(st.tuples(either, either), max_size=12), st.randoms())
def test_the_order_is_by_word_and_does_not_depend_on_the_order_before(both, random):
    pairs = [
        paired(replace(CASE, impl=f"i{n}"), before, after) for n, (before, after) in enumerate(both)
    ]
    order = rank_pairs(pairs)
    assert [ORDER.index(p.word) for p in order] == sorted(ORDER.index(p.word) for p in pairs)
    random.shuffle(pairs)
    assert rank_pairs(pairs) == order


def test_the_worst_of_a_word_comes_first():
    slower = paired(CASE, FACTS, other(timing=predicted(2e-3)))
    wider = paired(CASE, FACTS, other(registers=252))
    spilled = paired(CASE, FACTS, other(spill_bytes=512))
    assert rank_pairs([wider, spilled, slower]) == [slower, spilled, wider]


@given(st.lists(st.tuples(either, either), max_size=6))
def test_the_exit_code_is_that_of_the_worst(both):
    pairs = [paired(CASE, before, after) for before, after in both]
    words = {pair.word for pair in pairs}
    result = code_result(changes_of(pairs))
    assert result.exit_code == (2 if "FAILS" in words else 3 if "WORSE" in words else 0)
    assert code_result(changes_of(pairs), ["FAILS"]).exit_code == 2


@given(facts)
def test_facts_survive_json(one):
    assert decode_plain(encode_plain(one)) == one


@given(st.lists(st.tuples(either, either), max_size=8))
def test_the_page_has_a_row_for_each_pair_that_differs(both):
    pairs = [
        paired(replace(CASE, impl=f"i{n}q"), a, b, tuned="2026-11-01")
        for n, (a, b) in enumerate(both)
    ]
    drawn = changes_page(changes_of(pairs))
    assert drawn.count("matmul.i") == len(changed_pairs(pairs))
    assert all(f"--impl {p.case.impl} " in drawn for p in pairs if p.word != "SAME")
    assert len(tune_again(pairs)) == len(changed_pairs(pairs))
    parts = code_result(changes_of(pairs)).plain()["parts"]
    assert [part["word"] for part in parts] == [pair.word for pair in rank_pairs(pairs)]


@given(st.lists(st.tuples(either, either), max_size=4), st.sampled_from(["a100", "h200", "mi300x"]))
def test_predicted_times_have_their_error_once_on_the_page_and_in_the_terminal(both, device):
    pairs = [paired(replace(CASE, device=device), before, after) for before, after in both]
    changes = changes_of(pairs)
    console = Console(file=io.StringIO(), width=240, highlight=False, markup=False)
    say_changes(console, changes)
    cells = [cell for row, _ in pair_rows(changed_pairs(pairs), WIDEST)["rows"] for cell in row]
    shown = any(cell.startswith("~") or "> ~" in cell for cell in cells)
    for text in (console.file.getvalue(), html.unescape(changes_page(changes))):
        assert text.count(device_words(device, CASE.kernel)) == shown


@given(st.lists(st.tuples(either, either), min_size=70, max_size=75))
def test_rows_beyond_the_first_have_their_heads_too(both):
    pairs = [paired(CASE, before, after) for before, after in both]
    drawn = changes_page(changes_of(pairs))
    assert drawn.count(">what changed</th>") == (len(changed_pairs(pairs)) + 59) // 60


def changes_of(pairs, **more):
    names = "Two compilers", "Triton 3.6.0", "Triton 3.9.0", ["a100"]
    about = "workbench compare", "2026-11-23T12:00", 1.0
    return compiled_cases.changes(*names, pairs, [], *about, **more)


@given(st.lists(st.tuples(either, either), max_size=4))
def test_a_narrow_table_has_the_same_rows(both):
    pairs = [paired(CASE, before, after) for before, after in both]
    wide, narrow = pair_rows(pairs, WIDEST), pair_rows(pairs, NARROW)
    assert len(wide["rows"]) == len(narrow["rows"]) == len(pairs)
    for table in (wide, narrow):
        assert all(len(cells) == len(table["heads"]) for cells, _ in table["rows"])


@pytest.mark.parametrize("width", [40, 60, 80, 160])
def test_rows_of_any_width_are_told_apart_by_their_sizes(width):
    cases = [replace(CASE, sizes={"M": 8192, "N": n}) for n in (1000, 2000)]
    changes = changes_of([paired(case, FACTS, other(registers=252)) for case in cases])
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False)
    say_changes(console, changes)
    text = "".join(console.file.getvalue().split())
    for n in (1000, 2000):
        assert f"{n}" in text if width < 80 else f"N={n}" in text
    assert width < 80 or text.count("228>252") == 2
    assert "228>2" not in text.replace("228>252", "")  # no number loses digits


def test_predicted_operands_have_their_times_and_ratio_on_the_page():
    pair = paired(CASE, FACTS, other(timing=predicted(2e-3)))
    timeless = replace(pair, before=None)
    run = changes_of([pair]).run
    cells = [row[1] for row in operand_rows(pair, run)]
    assert cells == ["~1 ms predicted", "~2 ms predicted"] and line(pair)[4] == "~2.0000"
    assert operand_rows(timeless, run)[0][1] == "was not measured" and line(timeless)[4] == ""
    told = compare_page(run, [pair.before, pair.after], [pair.comparison])
    table = told.partition('h-operands">')[2].partition("</table>")[0]
    assert ">time</th>" in table and "~2 ms predicted</td>" in table
    assert "colspan" not in table, "reasons span the row, and are red"


def test_another_config_is_named():
    pair = paired(CASE, FACTS, other(registers=252), commit="c0ffee")
    was = replace(FACTS, case=replace(CASE, config={"block_m": 64, "num_warps": 4}))
    assert reasons(pair) == "registers 228 to 252; at c0ffee"
    pair = replace(pair, before=was, comparison=replace(pair.comparison, commit=""))
    assert reasons(pair) == "registers 228 to 252; was block_m 64, 4 warps"


def test_the_conclusion_says_what_is_left():
    pairs = [paired(CASE, FACTS, other(registers=252))]
    text = conclusion(changes_of(pairs, interrupted=True, of=70))
    assert "1 WORSE" in text and "stopped after 1 of 70" in text and "a GPU decides" in text
    assert conclusion(changes_of([])).endswith("nothing to compare.")


def test_names_of_a_kernel_are_text_on_the_page():
    hostile = replace(CASE, kernel="<script>alert(1)</script>")
    drawn = changes_page(changes_of([paired(hostile, FACTS, "no <b>room</b>")]))
    assert "<script>alert" not in drawn and "<b>room" not in drawn
