"""Units by exact text: 1 GB/s is 1e9 bytes a second, 1 TFLOP/s is 1e12 FLOPs a second, wherever a
rate is shown or written."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace

import pytest
import synthetic

from workbench.code.compared_pair import ComparedPair
from workbench.commands.console import ProgressLine
from workbench.data.record import Case, Measured, Outcome, Record, Run, key_of
from workbench.data.selection import rate, select
from workbench.data.units import duration, quantity, reading
from workbench.reports import ceilings, measure, roofline, sweep
from workbench.reports.compare import HEADS, conclusion, line, operand_rows, ratio_lines
from workbench.reports.figures.roofline_points import RunWithOutcomes, csv_text, json_text, sheet_of
from workbench.reports.selection_sentence import sentence

# 3456.8 GB/s, which are 3219 GiB/s, and 700.8 TFLOP/s, at a call of 1.25 ms
TIME_S, BYTES, FLOPS = 1.25e-3, 4_321_000_000, 876_000_000_000
SIZES = {"N": 1 << 20}


def run_of(**more: object) -> Run:
    run, _ = synthetic.matmul()
    choices = {"rows": {"choices": {"num_warps": (2, 4, 8)}, "knobs": {"num_warps": "threads"}}}
    return replace(run, sizes=SIZES, kernel="toy", impls=choices, **more)


RUN = run_of()


def timed(time_s: float, phase: str = "final", library: bool = False) -> Record:
    case = Case("toy", "torch" if library else "rows", "torch" if library else "triton",
                {} if library else {"num_warps": 4}, SIZES, "bf16", RUN.device)  # fmt: skip
    regime = "hot" if phase == "hot" else "cold"
    timing = replace(synthetic.measured(time_s, noise=0.0), regime=regime)
    return Record(case, key_of(case), RUN.id, synthetic.AT, phase, timing, FLOPS, BYTES,  # type: ignore[arg-type]
                  "gpu", 0.1, None, default=not library)  # fmt: skip


OURS, LIBRARY = timed(TIME_S), timed(2 * TIME_S, library=True)
OUTCOMES: list[Outcome] = [timed(TIME_S, "first_pass"), OURS, LIBRARY, timed(1e-3, "hot")]


@pytest.fixture(scope="module")
def swept() -> str:
    return sweep.page(RUN, OUTCOMES)


def test_a_rate_is_in_bytes_below_the_ridge_and_in_flops_above() -> None:
    assert rate(OURS, ridge=203) == "3457 GB/s"
    assert rate(OURS, ridge=202) == "701 TFLOP/s"
    assert rate(replace(OURS, flops=0)) == "3457 GB/s"


def test_the_answer_says_the_rate_and_what_it_is_against() -> None:
    assert sentence(select(RUN, OUTCOMES)) == "4 warps (the default): 3457 GB/s, 2.00x torch."


def test_the_page_of_a_sweep_holds_the_rates_in_both_tables(swept: str) -> None:
    assert "<b>3457 GB/s</b>" in swept
    rows = [row for row in re.split(r"<tr[^>]*>", swept) if "winner" in row and "100.0" in row]
    (table,) = rows
    assert re.search(r"<td[^>]*>1250\.0<td[^>]*>1250\.0–1250\.0<td[^>]*>701<td[^>]*>3457<", table)
    heads = re.findall(r"<button[^>]*>([^<]+)", swept)
    at = heads.index("TFLOP/s")
    assert heads[at - 2 : at + 2] == ["time, µs", "95 % interval, µs", "TFLOP/s", "GB/s"]
    assert "<td>4321000000<td>876000000000<td>3457<td>700.8<td>80.4<" in swept, "the final in full"


def test_a_measurement_shows_rates_shares_and_ratios_on_the_right_side() -> None:
    group, = measure.groups_of(RUN, OUTCOMES[1:])  # fmt: skip
    at = {name: n for n, name in enumerate(measure.HEADS)}
    results = {(row[at["impl"]], row[at["regime"]]): row for row in measure.rows(group)}
    ours, library = results["rows 4 warps (default)", "cold"], results["torch", "cold"]
    hot = results["rows 4 warps (default)", "hot"]
    assert [row[at["rate"]] for row in (ours, library, hot)] == [
        "3457 GB/s", "1728 GB/s", "4321 GB/s",
    ]  # fmt: skip
    assert [row[at["median"]] for row in (ours, library, hot)] == [
        "1250.0 µs", "2500.0 µs", "1000.0 µs",
    ]  # fmt: skip
    assert [row[at["of ceiling"]] for row in (ours, library, hot)] == ["80 %", "40 %", ""]
    assert [row[at["vs baseline"]] for row in (ours, library, hot)] == ["2.000x", "1.000x", ""]
    assert measure.sentence(RUN, [group]) == (
        "toy runs at 2.00x the speed of its best baseline, at N=1048576, bf16."
    )


def test_the_roofline_and_its_csv_and_json_hold_the_same_rates() -> None:
    sheet = sheet_of([RunWithOutcomes(RUN, OUTCOMES)])
    rows = list(csv.DictReader(io.StringIO(csv_text(sheet))))
    (ours,) = (r for r in rows if r["impl"] == "rows" and r["regime"] == "cold")
    assert float(ours["byte_per_s"]) == pytest.approx(3.4568e12)
    assert float(ours["flop_per_s"]) == pytest.approx(7.008e14)
    assert float(ours["intensity_flop_per_byte"]) == pytest.approx(FLOPS / BYTES)
    assert (float(ours["time_s"]), ours["bytes"], ours["flops"]) == (TIME_S, str(BYTES), str(FLOPS))
    assert float(ours["share_of_ceiling"]) == pytest.approx(3.4568 / 4.3)
    points = json.loads(json_text(sheet))["points"]
    assert [p["byte_per_s"] for p in points] == [float(r["byte_per_s"]) for r in rows]
    html = roofline.page(sheet)
    assert re.search(r"<td[^>]*>202\.7<td[^>]*>700\.8<td[^>]*>3457<td[^>]*>1250–1250<", html)
    assert "876000<" in html and "4321<" in html, "MFLOP and MB"


def test_each_side_of_a_comparison_has_its_own_time_and_rate() -> None:
    text = synthetic_verdict()
    compared = ComparedPair(text, OURS, LIBRARY)
    left, right = operand_rows(compared, RUN)
    at = HEADS.index("rate")
    assert (left[0], left[1], left[at]) == ("ours", "1250.0 µs", "3457 GB/s")
    assert (right[0], right[1], right[at]) == ("theirs", "2500.0 µs", "1728 GB/s")
    cycles = left[HEADS.index("cycles")]
    assert cycles == "2193750", "1.25 ms at 1755 MHz"
    assert ratio_lines(text.verdict)[0] == "time    2.0000  1.9900 to 2.0100"
    assert line(compared)[-4:] == ["1.9900 to 2.0100", "unknown", "1 %", "SLOW"]
    assert conclusion([compared]).startswith("theirs is 100.0 % slower (99.0 to 101.0 %) than ours")


def synthetic_verdict():  # type: ignore[no-untyped-def]
    from workbench.data.record import Comparison, Ratio
    from workbench.data.verdict import verdict

    result = verdict(Ratio(2.0, 1.99, 2.01), None, 0.01, 0.001, 48)
    return Comparison(
        RUN.id, synthetic.AT, "toy", SIZES, "bf16", "ours", "theirs", "a", "b", result
    )


def test_the_terminal_shows_microseconds() -> None:
    shown = ProgressLine(2)
    shown.saw(OURS)
    assert "best 1250.0 us" in shown.draw(120).plain


def test_copies_between_host_and_device_are_in_gb_of_ten_to_the_nine() -> None:
    case = Case("host_copy", "h2d_pinned", "torch", {}, {"B": 1 << 20}, "uint8", RUN.device)
    copy = replace(OURS, case=case, timing=synthetic.measured(2**20 / 50e9, noise=0.0), flops=0)
    assert isinstance(copy.timing, Measured)
    (row,) = ceilings._copies([copy])["rows"]  # type: ignore[index]
    assert row == ["1 MiB", "50.00 (20.97)"], "50 GB/s, which are 46.6 GiB/s, in 21 µs"


@pytest.mark.parametrize(
    ("level", "unit", "value", "text"),
    [
        ("link", "B/s", 50e9, "50 GB/s"), ("dram", "B/s", 4.29e12, "4.29 TB/s"),
        ("compute", "FLOP/s", 780e12, "780 TFLOP/s"), ("compute", "OP/s", 1.5e15, "1500 TOP/s"),
        ("launch", "s", 0.8e-6, "0.8 µs"),
    ],
)  # fmt: skip
def test_ceilings_are_shown_in_the_unit_of_their_level(
    level: str, unit: str, value: float, text: str
) -> None:
    assert ceilings.amount(value, {"level": level, "unit": unit}) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (4.3e12, "B/s", "4.3 TB/s"), (64e9, "B/s", "64 GB/s"), (999e9, "B/s", "999 GB/s"),
        (1e12, "B/s", "1 TB/s"), (989e12, "FLOP/s", "989 TFLOP/s"), (1.2e15, "OP/s", "1.2 POP/s"),
        (50e6, "B", "50 MB"), (1000, "B", "1 kB"), (999, "B", "999 B"), (2.5e-5, "s", "25 µs"),
    ],
)  # fmt: skip
def test_prefixes_are_decimal(value: float, unit: str, text: str) -> None:
    assert quantity(value, unit) == text
    if unit != "s":
        assert reading(value, unit) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (2.0, "2 s"), (1.0, "1 s"), (0.5, "500 ms"), (1e-3, "1 ms"), (0.9e-3, "900 µs"),
        (1e-6, "1 µs"), (12.34e-6, "12.3 µs"), (0.5e-6, "500 ns"),
    ],
)  # fmt: skip
def test_durations_have_the_unit_of_their_size(seconds: float, text: str) -> None:
    assert duration(seconds) == text
