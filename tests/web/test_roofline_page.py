"""The roofline report in a real browser: opened from a file, with the network off."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import synthetic

from workbench.device import hardware
from workbench.reports.figures.roofline_points import (
    COLUMNS,
    RunWithOutcomes,
    Sheet,
    rows,
    sheet_of,
)
from workbench.reports.roofline import page

Open = Callable[..., Any]


def several() -> Sheet:
    """Two devices, one of them predicted; hot times, arrows, a kernel without FLOPs."""
    predicted, outcomes = synthetic.matmul(predicted=True)
    moved = [replace(o, case=replace(o.case, device="mi300x")) for o in outcomes]
    stated = hardware.ceilings(hardware.DEVICES["mi300x"], "bf16")
    other = RunWithOutcomes(replace(predicted, device="mi300x", ceilings=stated), moved)
    return sheet_of([*(RunWithOutcomes(*make()) for make in (synthetic.matmul, synthetic.softmax,
                                                    synthetic.copy)), other])  # fmt: skip


def many() -> Sheet:
    """All configs of a sweep, and some of another by the model: more than 300 points."""
    predicted, outcomes = synthetic.matmul(predicted=True)
    some = RunWithOutcomes(replace(predicted, device="NVIDIA H200"), [
        replace(o, case=replace(o.case, device="NVIDIA H200")) for o in outcomes[:80]
    ])  # fmt: skip
    result = sheet_of(
        [RunWithOutcomes(*synthetic.matmul()), RunWithOutcomes(*synthetic.copy()), some], (), True
    )
    assert len(result.points) >= 300
    return result


MAKERS: dict[str, Callable[[], Sheet]] = {
    "several": several,
    "many": many,
    "empty": lambda: sheet_of([RunWithOutcomes(*synthetic.empty())]),
}

# Contrast of all text that shows against the ground of what it stands on.
CONTRAST = """() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((v) => {
      v /= 255;
      return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const ground = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const [r, g, b, a = 1] = parse(getComputedStyle(e).backgroundColor);
      if (a > 0.5) return [r, g, b];
    }
    return [255, 255, 255];
  };
  const poor = [];
  let seen = 0;
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || ["SCRIPT", "STYLE", "OPTION"].includes(e.tagName)) continue;
    if (!e.getClientRects().length) continue;
    const style = getComputedStyle(e);
    const ink = light(parse(e.ownerSVGElement ? style.fill : style.color));
    const under = light(ground(e));
    seen++;
    const ratio = (Math.max(ink, under) + 0.05) / (Math.min(ink, under) + 0.05);
    if (ratio < 4.5) poor.push(`${ratio.toFixed(2)} ${e.localName} ${e.textContent.slice(0, 40)}`);
  }
  return [seen, [...new Set(poor)].slice(0, 10)];
}"""
# Pairs of words of the chart that lie over one another.
OVERLAPS = """() => {
  const texts = [...document.querySelectorAll('svg[aria-label="Roofline"] [data-t] text')]
    .filter((t) => t.getClientRects().length && t.textContent !== "!")
    .map((t) => [t.textContent, t.getBoundingClientRect()]);
  const found = [];
  texts.forEach(([one, a], n) => {
    for (const [other, b] of texts.slice(n + 1)) {
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (across > 4 && down > 5) found.push(`${one} / ${other}`);
    }
  });
  return found;
}"""


@pytest.fixture(scope="module")
def files(pages: Any) -> Any:
    """One page on disk for each sheet."""
    return pages("roofline", lambda name: page(MAKERS[name]()))


@pytest.fixture
def show(new_tab: Any, files: Any) -> Iterator[Open]:
    """Opens a page offline, and afterwards asserts that it was silent and asked for nothing."""
    tabs, complaints = [], []
    own = ("file:", "data:", "blob:")

    def opened(name: str, width: int = 1280, scheme: str = "light") -> Any:
        tabs.append(tab := new_tab(width, scheme, reduced_motion="reduce"))
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on("request", lambda r: None if r.url.startswith(own) else complaints.append(r.url))
        tab.goto(files[name].as_uri())
        return tab

    yield opened
    for tab in tabs:
        tab.close()
    assert complaints == []


def point(tab: Any, row: int) -> Any:
    """The point of a row."""
    return tab.locator(f'.points use[data-r="{row}"], .points use[data-held="{row}"]')


def meet(tab: Any, mark: Any) -> None:
    """Put the pointer on the middle of a mark."""
    mark.scroll_into_view_if_needed()
    box = mark.bounding_box()
    tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)


@pytest.mark.parametrize(
    ("name", "scheme", "width"),
    [("many", "light", 1280), ("many", "dark", 1280), ("several", "dark", 420),
     ("empty", "light", 420)],
)  # fmt: skip
def test_text_is_legible_and_nothing_overflows(
    show: Open, name: str, scheme: str, width: int
) -> None:
    tab = show(name, scheme=scheme, width=width)
    seen, poor = tab.evaluate(CONTRAST)
    assert seen > 10 and poor == []
    dark = tab.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert dark == (scheme == "dark")
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.evaluate(OVERLAPS) == []


def test_points_stand_at_their_rates_and_their_areas_are_shares(show: Open) -> None:
    """A mark lies on its whisker, and the larger share of time is the larger mark."""
    tab = show("several")
    result = several()
    shares = {n: p.share_of_time for n, p in enumerate(result.points) if p.load.flops}
    first = max(shares, key=lambda n: shares[n])
    boxes = {n: point(tab, n).bounding_box() for n in shares}
    assert max(boxes, key=lambda n: boxes[n]["width"]) == first
    at = tab.evaluate(
        """(row) => {
          const use = document.querySelector(`.points use[data-r="${row}"]`);
          const box = use.getBoundingClientRect();
          const svg = use.ownerSVGElement.getBoundingClientRect();
          const scale = svg.width / use.ownerSVGElement.viewBox.baseVal.width;
          return [box.left + box.width / 2 - svg.left - use.x.baseVal.value * scale,
                  box.top + box.height / 2 - svg.top - use.y.baseVal.value * scale];
        }""",
        first,
    )
    assert at == pytest.approx([0, 0], abs=1)


def test_switches_hide_levels_dtypes_kinds_and_devices(show: Open) -> None:
    tab = show("several")
    measured = tab.locator('[data-t*="K-cold"]')
    for word, hidden in (
        ("K-predicted", '.points [data-t*="K-predicted"]'),
        ("L-cache", 'g[data-t*="L-cache"]'),
        ("T-bf16", '.points [data-t*="T-bf16"]'),
        ("D1", 'g[data-t^="D1"]'),
        ("O-stated", 'g[data-t$="O-stated"]'),
        ("A", "g.arrow"),
    ):
        button = tab.locator(f'[data-word="{word}"]')
        assert tab.locator(hidden).locator("visible=true").count() > 0
        button.focus()
        tab.keyboard.press("Enter")
        assert button.get_attribute("aria-pressed") == "false"
        assert tab.locator(hidden).locator("visible=true").count() == 0
        tab.keyboard.press("Enter")
        assert tab.locator(hidden).locator("visible=true").count() > 0
    assert measured.locator("visible=true").count() > 0


def test_a_line_of_several_dtypes_goes_with_the_last(show: Open) -> None:
    tab = show("several")
    line = tab.locator('g[data-t^="D1"][data-t*="T-bf16|T-fp16"]').first
    assert line.is_visible(), "bf16 is on, though fp16 is off"
    tab.locator('[data-word="T-bf16"]').click()
    assert not line.is_visible()
    tab.locator('[data-word="T-fp16"]').click()
    assert line.is_visible()


def test_a_point_says_what_holds_it_and_finds_its_row(show: Open) -> None:
    tab = show("several")
    sheet = several()
    row = next(n for n, p in enumerate(sheet.points) if p.role == "default" and p.load.flops)
    mark = point(tab, row)
    meet(tab, mark)
    text = tab.inner_text("#tip")
    assert sheet.points[row].limit.sentence in text and sheet.points[row].sizes in text
    tab.mouse.down()
    tab.mouse.up()
    result = tab.locator(f"#r{row}")
    assert result.get_attribute("aria-current") == "true"
    assert tab.evaluate("document.activeElement.id") == f"r{row}"
    assert 0 <= result.bounding_box()["y"] <= 900


def test_points_by_keyboard_pass_over_hidden_ones(show: Open) -> None:
    tab = show("several")
    tab.locator('[data-word="K-cold"]').click()
    tab.locator('[data-word="K-hot"]').click()
    tab.locator('svg[aria-label="Roofline"] .points').focus()
    tab.keyboard.press("ArrowRight")
    assert "predicted" in tab.inner_text("#tip")
    tab.keyboard.press("Enter")
    assert "pr" in tab.evaluate("document.activeElement.className").split()


def test_the_table_sorts_and_marks_predictions(show: Open) -> None:
    tab = show("several")
    head = tab.locator("#configs thead th button", has_text="to gain")
    head.click()
    at = head.evaluate("b => b.parentElement.cellIndex")
    gains = tab.eval_on_selector_all(
        "#configs tbody tr", f"rows => rows.map((r) => parseFloat(r.cells[{at}].textContent))"
    )
    known = [gain for gain in gains if gain == gain]
    assert known == sorted(known, reverse=True) and len(known) > 5
    cell = tab.locator("#configs tr.pr td").nth(at)
    assert cell.evaluate("e => getComputedStyle(e, '::before').content") == '"~"'
    tab.fill("#filter", "softmax")
    assert set(
        tab.locator("#configs tbody tr:not([hidden]) td:nth-child(2)").all_inner_texts()
    ) == {"softmax"}


def test_the_files_hold_every_number(show: Open) -> None:
    tab, expected = show("several"), rows(several())
    got = {}
    for kind in ("csv", "json"):
        with tab.expect_download() as waited:
            tab.locator(f'[data-save="{kind}"]').click()
        assert waited.value.suggested_filename == f"roofline.{kind}"
        got[kind] = Path(waited.value.path()).read_text(encoding="utf-8")
    text = json.loads(got["json"])
    assert text["points"] == expected and len(text["ceilings"]) > 10 and text["arrows"]
    read = list(csv.DictReader(io.StringIO(got["csv"])))
    assert [list(row) for row in read] == [list(COLUMNS)] * len(expected)
    for row, plain in zip(read, expected, strict=True):
        assert float(row["time_s"]) == plain["time_s"] and row["diagnosis"] == plain["diagnosis"]
        assert row["low_s"] == "" if plain["low_s"] is None else float(row["low_s"]) > 0


def test_paper_has_no_controls(show: Open) -> None:
    tab = show("several", scheme="dark")
    tab.emulate_media(media="print", color_scheme="dark")
    assert not tab.locator(".switches").is_visible() and not tab.locator("form").is_visible()
    seen, poor = tab.evaluate(CONTRAST)
    assert seen > 20 and poor == []
