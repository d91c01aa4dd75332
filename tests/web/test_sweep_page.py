"""The page of a sweep in a real browser: opened from a file, with the network off."""

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
from nightly import by_turns
from playwright.sync_api import expect

from workbench.data.record import Failure, Outcome, Record, Run
from workbench.data.selection import select
from workbench.reports.run_index import write_index, write_run_page
from workbench.reports.sweep import page as sweep_page

MAKERS = {
    "matmul": synthetic.matmul,
    "energy": synthetic.matmul_with_energy,
    "no energy": lambda: synthetic.matmul_with_energy("this GPU has no energy counter"),
    "predicted": lambda: synthetic.matmul(predicted=True),
    "softmax": synthetic.softmax,
    "seven": lambda: seven(),
    "copy": synthetic.copy,
    "failed": synthetic.all_failed,
    "empty": synthetic.empty,
}
Open = Callable[..., Any]


def _blocks(o: Outcome) -> tuple[int | None, int | None]:
    return o.case.config.get("block_m"), o.case.config.get("block_n")


def seven() -> tuple[Run, list[Outcome]]:
    """A sweep of seven Impls, in which some pairs of blocks were not tried."""
    run, outcomes = synthetic.matmul()
    own = [o for o in outcomes if _blocks(o) != (32, 64)]
    more = [o for o in own if o.case.impl == "tiles" and o.case.config["block_k"] == 64]
    for n in range(5):
        own += [replace(o, case=replace(o.case, impl=f"other{n}")) for o in more]
    return run, own


SECONDS = {"start": 4.0, "wait": 1.0, "check": 2.0, "timed": 3.5, "flush": 1.5, "idle": 0.5}

# Text against what lies under it: colours composed up the tree; in figures, the cell below.
CONTRAST = """() => {
  const parse = (text) => {
    const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number);
    return [r, g, b, a];
  };
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((v) => {
      v /= 255;
      return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const ground = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const colour = parse(getComputedStyle(e).backgroundColor);
      if (colour[3] > 0.5) return colour;
    }
    return [255, 255, 255, 1];
  };
  const known = new Map();  // the cells of each figure, which has hundreds of paths and texts
  const cells = (figure) => {
    if (!known.has(figure)) {
      known.set(figure, [...figure.querySelectorAll("path")].flatMap((path) => {
        const fill = getComputedStyle(path).fill, at = path.getBoundingClientRect();
        return fill.startsWith("rgb") && at.width > 40 && at.height > 20 ? [{fill, at}] : [];
      }));
    }
    return known.get(figure);
  };
  const cell = (text) => {
    const box = text.getBoundingClientRect();
    const x = box.left + box.width / 2, y = box.top + box.height / 2;
    const under = cells(text.ownerSVGElement).filter(({at}) =>
      at.left <= x && x <= at.right && at.top <= y && y <= at.bottom);
    return under.length ? parse(under.at(-1).fill) : ground(text);
  };
  const poor = [];
  let seen = 0;
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || ["SCRIPT", "STYLE", "OPTION"].includes(e.tagName)) continue;
    if (!e.getClientRects().length) continue;
    const drawn = e.localName === "text";
    const style = getComputedStyle(e);
    const ink = light(parse(drawn ? style.fill : style.color));
    const under = light(drawn ? cell(e) : ground(e));
    const ratio = (Math.max(ink, under) + 0.05) / (Math.min(ink, under) + 0.05);
    seen++;
    const text = e.textContent.trim().slice(0, 40);
    if (ratio < 4.5) poor.push(`${ratio.toFixed(2)} ${e.localName} ${text}`);
  }
  return [seen, [...new Set(poor)].slice(0, 10)];
}"""


@pytest.fixture(scope="module")
def files(pages: Any) -> Any:
    """One page on disk for each kind of run."""
    return pages("sweep", lambda name: sweep_page(*MAKERS[name](), SECONDS))


@pytest.fixture
def show(new_tab: Any, files: Any) -> Iterator[Open]:
    """Opens a page offline, and afterwards asserts that it was silent and asked for nothing."""
    tabs, complaints = [], []

    def opened(name: str, width: int = 1280, scheme: str = "light") -> Any:
        tabs.append(tab := new_tab(width, scheme, reduced_motion="reduce"))
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on(
            "request",
            lambda wanted: (
                None
                if wanted.url.startswith(("file:", "data:", "blob:"))
                else complaints.append(wanted.url)
            ),
        )
        tab.goto(files[name].as_uri())
        return tab

    yield opened
    for tab in tabs:
        tab.close()
    assert complaints == []


def column(tab: Any, number: int) -> list[str]:
    """Texts of the visible cells of one column, among rows that have a time."""
    return tab.eval_on_selector_all(
        "#configs tbody tr:not(.f):not([hidden])",
        "(rows, n) => rows.map((row) => row.cells[n].textContent.trim())",
        number,
    )


def header(tab: Any, starts: str) -> int:
    """Number of the column whose header starts so."""
    heads = tab.eval_on_selector_all(
        "#configs thead th", "all => all.map(h => h.textContent.trim())"
    )
    return next(n for n, head in enumerate(heads) if head.startswith(starts))


def point(tab: Any, figure: str, row: str) -> Any:
    """The point of a row in the figure whose label starts so."""
    return tab.locator(f'svg[aria-label^="{figure}"] use[data-r="{row}"]')


def hover(tab: Any, mark: Any) -> None:
    """Put the pointer on a mark that may lie under another."""
    mark.scroll_into_view_if_needed()
    box = mark.bounding_box()
    tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)


@pytest.mark.parametrize(("name", "scheme"), by_turns(MAKERS, ("light", "dark")))
def test_text_is_legible_and_nothing_overflows_a_desk(show: Open, name: str, scheme: str) -> None:
    """Both of one page that is opened: to open it is most of the time."""
    tab = show(name, scheme=scheme, width=1280)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 1280
    seen, poor = tab.evaluate(CONTRAST)
    assert seen > 20 and poor == []
    dark = tab.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert dark == (scheme == "dark")


@pytest.mark.parametrize(("name", "width"), by_turns(MAKERS, (420, 800)))
def test_nothing_overflows_sideways(show: Open, name: str, width: int) -> None:
    tab = show(name, width=width)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [1280, 800, 420])
def test_text_in_the_figures_of_the_final_is_never_tiny(show: Open, width: int) -> None:
    tab = show("matmul", width=width)
    for name in ("Finalists", "Rounds of the final"):
        drawn = tab.locator(f'svg[aria-label="{name}"]')
        scale = drawn.bounding_box()["width"] / float(drawn.get_attribute("width"))
        sizes = drawn.locator("text").evaluate_all(
            "all => all.map(t => parseFloat(getComputedStyle(t).fontSize))"
        )
        assert len(sizes) > 5 and min(sizes) * scale >= 9.5


def test_a_name_never_runs_into_its_time(show: Open) -> None:
    """In each row of the finalists the name ends before the time begins."""
    tab = show("matmul")
    texts = tab.locator('svg[aria-label="Finalists"] text').evaluate_all(
        "all => all.map(t => [t.textContent, t.getBoundingClientRect()])"
        ".map(([t, b]) => [t, b.left, b.right, b.top])"
    )
    rows: dict[int, list[tuple[float, float]]] = {}
    for text, left, right, top in texts:
        if "µs ·" in text or any(text.startswith(i) for i in ("tiles", "pers", "cublas", "torch")):
            rows.setdefault(round(top), []).append((left, right))
    _, outcomes = synthetic.matmul()
    assert len(rows) == sum(isinstance(o, Record) and o.phase == "final" for o in outcomes)
    for spans in rows.values():
        (_, end), (begin, _) = sorted(spans)
        assert end < begin


def test_the_csv_holds_every_row_and_needs_no_network(show: Open) -> None:
    tab = show("matmul")
    tab.fill("#filter", "128x256")  # what is hidden is still in the file
    tab.get_by_role("button", name="registers").click()
    with tab.expect_download() as waited:
        tab.locator("#csv").click()
    assert waited.value.suggested_filename.endswith(".csv")
    text = Path(waited.value.path()).read_text(encoding="utf-8")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == tab.locator("#configs tbody tr").count()
    assert all(None not in row and None not in row.values() for row in rows), "a ragged line"
    run, outcomes = synthetic.matmul()
    by_rank = [row for row in rows if row["rank"]]
    winner = select(run, outcomes).winner
    finals = sorted(
        (o for o in outcomes if isinstance(o, Record) and o.phase == "final"),
        key=lambda r: (r is not winner, r.time_s),
    )
    for record, row in zip(finals, by_rank, strict=False):
        assert row["state"] == "final" and row["impl"] == record.case.impl
        assert float(row["median, µs"]) == pytest.approx(record.time_s * 1e6, abs=0.01)
        assert row["FLOPs"] == str(record.flops) and row["dtype"] == "bf16" and row["M"] == "4096"
        assert row["regime"] == "cold" and row["clock state"] == "sustained"
    failed = [row for row in rows if not row["rank"]]
    reasons = [o.reason for o in outcomes if isinstance(o, Failure)]
    assert sorted(row["reason"] for row in failed) == sorted(reasons)
    assert not any(row["median, µs"] or row["regime"] for row in failed)


def test_the_final_in_full_keeps_its_names_in_view(show: Open) -> None:
    tab = show("matmul", width=800)
    wrap = tab.locator(".rows")
    wrap.scroll_into_view_if_needed()
    name = wrap.locator("tbody th").first
    before = name.bounding_box()["x"]
    wrap.evaluate("e => { e.scrollLeft = e.scrollWidth; }")
    assert name.bounding_box()["x"] == pytest.approx(before, abs=1)
    assert wrap.evaluate("e => e.scrollLeft") > 100
    assert wrap.locator("tr.w").count() == 1 and "winner" in wrap.locator("tr.w th").inner_text()


def test_the_bar_of_where_the_time_went_is_to_scale(show: Open) -> None:
    tab = show("matmul")
    widths = tab.locator(".spent span").evaluate_all(
        "all => all.map(e => e.getBoundingClientRect().width)"
    )
    whole = sum(SECONDS.values())
    for width, s in zip(widths, SECONDS.values(), strict=True):
        assert width / sum(widths) == pytest.approx(s / whole, abs=0.01)


def test_a_header_sorts_and_says_so(show: Open) -> None:
    tab = show("matmul")
    at = header(tab, "time")
    button = tab.locator("#configs thead th button").nth(at)
    for words, turned in (("ascending", False), ("descending", True)):
        button.click()
        assert button.locator("..").get_attribute("aria-sort") == words
        times = [float(text) for text in column(tab, at)]
        assert times == sorted(times, reverse=turned)
        assert tab.locator("#configs th[aria-sort]").count() == 1
        last = tab.locator("#configs tbody tr").last
        assert "f" in (last.get_attribute("class") or ""), "rows without a value come last"


def test_a_rate_sorts_highest_first_and_registers_skip_reasons(show: Open) -> None:
    tab = show("matmul")
    tab.get_by_role("button", name="TFLOP/s").click()
    rates = [float(text) for text in column(tab, header(tab, "TFLOP/s"))]
    assert rates == sorted(rates, reverse=True)
    tab.get_by_role("button", name="registers").click()
    created = [float(t) for t in column(tab, header(tab, "registers")) if t]
    assert created == sorted(created)


def test_filters_narrow_rows_and_fade_points(show: Open) -> None:
    tab = show("matmul")
    total = tab.locator("#configs tbody tr").count()
    tab.fill("#filter", "128x256 num_stages=3")
    shown = tab.locator("#configs tbody tr:not([hidden])")
    assert 0 < shown.count() < total
    assert all("128x256" in text and "3 stages" in text for text in shown.all_inner_texts())
    assert tab.inner_text("#shown") == f"{shown.count()} of {total} shown"
    assert tab.locator(".points use[style*=opacity]").count() > 0
    tab.fill("#filter", "")
    tab.select_option("#state", "failed")
    assert shown.count() == tab.locator("tr.f").count() == 80
    tab.select_option("#state", "ok")
    tab.select_option("#impl", "persistent")
    assert set(column(tab, 1)) == {"persistent"}
    tab.fill("#filter", "no such config")
    assert shown.count() == 0


@pytest.mark.parametrize("name", ["matmul", "predicted"])
def test_a_point_shows_its_config_and_finds_its_row(show: Open, name: str) -> None:
    tab = show(name)
    row = tab.locator("#configs tr.w").get_attribute("id").removeprefix("r")
    mark = point(tab, "Time against registers", row)
    hover(tab, mark)
    tip = tab.locator("#tip")
    assert tip.is_visible()
    assert (
        "tiles 128x256x64, 8 warps, 3 stages" in tip.inner_text() and "time, µs" in tip.inner_text()
    )
    assert ("predicted" in tip.inner_text()) == (name == "predicted")
    tab.mouse.down()
    tab.mouse.up()
    result = tab.locator(f"#r{row}")
    assert result.get_attribute("aria-current") == "true"
    box = result.bounding_box()
    assert 0 <= box["y"] <= 900, "the row was brought into view"
    assert tab.evaluate("document.activeElement.id") == f"r{row}"


def test_a_filtered_row_comes_back_when_its_point_is_clicked(show: Open) -> None:
    tab = show("matmul")
    row = tab.locator("#configs tr.w").get_attribute("id")
    tab.fill("#filter", "spelt wrong")
    hover(tab, point(tab, "Time against registers", row[1:]))
    tab.mouse.down()
    tab.mouse.up()
    assert tab.locator(f"#{row}").is_visible() and tab.input_value("#filter") == ""


def test_a_row_lights_its_points_in_every_figure(show: Open) -> None:
    tab = show("matmul")
    tab.locator("#configs tr.w").hover()
    lit = tab.eval_on_selector_all(".on", "all => all.map(e => e.ownerSVGElement.ariaLabel)")
    assert {label.split(" ")[0] for label in lit} == {"Best", "Finalists", "Roofline", "Time"}
    assert len(lit) == 6  # a cell, the finals, the roofline, three panels
    row = tab.locator("#configs tr.w").get_attribute("id").removeprefix("r")
    outline = tab.locator('svg[aria-label="Roofline"] .on').bounding_box()
    mark = point(tab, "Roofline", row).bounding_box()
    for start, size in (("x", "width"), ("y", "height")):
        assert outline[start] + outline[size] / 2 == pytest.approx(
            mark[start] + mark[size] / 2, abs=1
        )
    tab.mouse.move(2, 2)
    assert tab.locator(".on").count() == 0


def test_a_cell_that_only_failed_says_why(show: Open) -> None:
    tab = show("matmul")
    cell = tab.locator("rect[data-why]").first
    hover(tab, cell)
    text = tab.locator("#tip").inner_text()
    assert text.startswith("18 tried here, 18 failed") and "the compile time-out" in text


def test_the_table_works_without_a_mouse(show: Open) -> None:
    tab = show("matmul")
    tab.locator("#configs thead button").last.focus()
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.id") == "r0"
    assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    tab.keyboard.press("ArrowDown")
    assert tab.evaluate("document.activeElement.id") == "r1"
    assert tab.locator(".on").count() > 0, "a focused row lights its points"
    tab.keyboard.press("End")
    assert "f" in tab.evaluate("document.activeElement.className")
    tab.keyboard.press("Home")
    tab.keyboard.press("Enter")
    assert tab.locator("#r0").get_attribute("aria-current") == "true"
    assert tab.locator("#configs tbody tr[tabindex]").count() == 1


def test_sort_buttons_and_points_work_without_a_mouse(show: Open) -> None:
    tab = show("matmul")
    tab.get_by_role("button", name="GB/s").focus()
    tab.keyboard.press("Enter")
    assert tab.locator("th[aria-sort=descending]").inner_text().startswith("GB/s")
    tab.locator('svg[aria-label^="Roofline"] .points').focus()
    tab.keyboard.press("ArrowRight")
    assert tab.locator("#tip").is_visible()
    tab.keyboard.press("Enter")
    assert tab.evaluate("document.activeElement.localName") == "tr"


@pytest.mark.parametrize("name", ["matmul", "predicted", "failed"])
def test_paper_has_no_controls_and_light_colours(show: Open, name: str) -> None:
    tab = show(name, scheme="dark")
    tab.emulate_media(media="print", color_scheme="dark")
    assert tab.evaluate(
        "getComputedStyle(document.documentElement).getPropertyValue('--ground')"
    ) in (
        "#ffffff",
        " #ffffff",
    )
    assert not tab.locator("form").is_visible()
    assert tab.locator("#configs tbody tr:not([data-folded])").last.is_visible()
    wrap = tab.locator(".table")
    assert wrap.evaluate("e => getComputedStyle(e).overflow") == "visible"
    seen, poor = tab.evaluate(CONTRAST)
    assert seen > 20 and poor == []
    paper = tab.pdf(prefer_css_page_size=True)
    assert paper.startswith(b"%PDF")


def test_energy_is_drawn_with_its_front_and_fills_columns(show: Open) -> None:
    tab = show("energy")
    section = tab.locator('section[aria-labelledby="h-energy"]')
    assert "Least energy: tiles 128x256x64" in section.inner_text()
    drawn = section.locator('svg[aria-label="Time and energy"]')
    finals = tab.locator("section[aria-labelledby=h-full] tbody tr").count() - 1  # one is hot
    assert drawn.locator(".points use").count() == finals
    assert "Pareto front" in drawn.text_content()
    heads = [h.split("\n")[0] for h in tab.locator("#configs th").all_inner_texts()]
    at = heads.index("energy, mJ")
    assert {"energy 95 % interval, mJ", "GFLOP/J", "GB/J"} <= set(heads)
    values = [float(v) for v in column(tab, at) if v]
    assert len(values) == finals and all(90 < v < 150 for v in values)
    assert "mJ" in tab.locator(".facts").inner_text()
    assert "NVML" in tab.inner_text("body") or "made up, updated every 20" in tab.inner_text("body")


def test_an_absent_energy_says_why(show: Open) -> None:
    section = show("no energy").locator('section[aria-labelledby="h-energy"]')
    assert "No energy: this GPU has no energy counter." in section.inner_text()
    assert section.locator("svg").count() == 0
    assert show("matmul").locator("#h-energy").count() == 0


def test_the_predicted_page_opens_with_the_word(show: Open) -> None:
    tab = show("predicted")
    first = tab.inner_text("body").strip().splitlines()[0]
    assert first.startswith("All times on this page are predicted") and "No GPU took part" in first
    hollow = point(tab, "Roofline", "0").evaluate("e => getComputedStyle(e).fill")
    assert hollow == "none"
    solid = point(show("matmul"), "Roofline", "0").evaluate("e => getComputedStyle(e).fill")
    assert solid != "none"


def test_a_link_keeps_filter_order_and_row(show: Open) -> None:
    tab = show("matmul")
    tab.fill("#filter", "block_m=128,num_warps=8")
    tab.select_option("#impl", "tiles")
    tab.locator("#configs thead th button", has_text="registers").click()
    row = tab.locator("#configs tbody tr:not([hidden])").nth(3)
    row.click()
    shown = tab.locator("#configs tbody tr:not([hidden])").all_inner_texts()
    kept, again = tab.url, show("matmul")
    again.goto(kept)
    again.reload()
    assert again.locator("#configs tbody tr:not([hidden])").all_inner_texts() == shown
    assert again.locator('[aria-current="true"]').get_attribute("id") == row.get_attribute("id")
    assert again.locator("#configs th[aria-sort]").inner_text().startswith("registers")


def test_a_knob_as_the_command_line_writes_it_filters(show: Open) -> None:
    tab = show("matmul")
    _, outcomes = synthetic.matmul()
    wanted = {
        tuple(o.case.config.items())
        for o in outcomes
        if o.case.impl == "tiles"
        and (o.case.config["block_m"], o.case.config["num_stages"]) == (64, 3)
    }
    tab.fill("#filter", "tiles:block_m=64,num_stages=3")
    tab.select_option("#impl", "tiles")
    assert tab.locator("#configs tbody tr:not([hidden])").count() == len(wanted) > 5


def test_refused_configs_are_folded_until_they_are_asked_for(show: Open) -> None:
    tab = show("matmul")
    every, open_ = "#configs tbody tr", "#configs tbody tr:not([hidden])"
    refused = tab.locator(f"{every}[data-folded]").count()
    rows = tab.locator(every).count()
    assert 0 < refused < rows and tab.locator(open_).count() == rows - refused
    assert tab.locator(open_).first.get_attribute("class") == "w", "the winner is the first row"
    tab.select_option("#state", "every")
    assert tab.locator(open_).count() == rows
    assert tab.inner_text("#shown") == f"{rows} of {rows} shown"


def test_the_answer_stands_before_what_was_run(show: Open) -> None:
    tab = show("matmul")
    answer, kind = tab.locator("#answer"), tab.locator(".result .kind")
    assert "as fast as the default" in answer.inner_text()
    assert len(answer.inner_text()) < 100 and kind.inner_text().startswith("measured on ")
    assert answer.bounding_box()["y"] < 140
    assert not tab.get_by_text("Implementations").is_visible()
    tab.locator("summary").first.click()
    assert tab.get_by_text("Implementations").is_visible()


def test_a_config_is_copied_as_triton_takes_it(show: Open) -> None:
    tab = show("matmul")
    assert tab.inner_text("#copy") == "Copy the winner as triton.Config"
    row = tab.locator("#configs tbody tr[data-c]", has_text="64x128x32, 4 warps, 2 stages").first
    row.click()
    inner = '{"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 32}'
    assert (
        tab.get_attribute("#copy", "title") == f"triton.Config({inner}, num_warps=4, num_stages=2)"
    )
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    tab.evaluate("window.setTimeout = () => 0")  # the button keeps its word until it is read
    tab.click("#copy")
    expect(tab.locator("#copy")).to_have_text("Copied")
    assert tab.evaluate("navigator.clipboard.readText()") == tab.get_attribute("#copy", "title")
    tab.locator("#configs tbody tr", has_text="library").first.click()
    assert tab.locator("#copy").is_disabled()
    tab.context.clear_permissions()  # other tabs have this context, too


@pytest.mark.parametrize("name", ["matmul", "predicted"])
def test_the_json_holds_every_row(show: Open, name: str) -> None:
    tab = show(name)
    with tab.expect_download() as waited:
        tab.click("#json")
    rows = json.loads(Path(waited.value.path()).read_text(encoding="utf-8"))["rows"]
    _, outcomes = MAKERS[name]()
    configs = {(o.case.impl, tuple(o.case.config.items())) for o in outcomes}
    assert {(r["impl"], tuple(r.get("config", {}).items())) for r in rows} == configs
    time = "median, µs" if name == "matmul" else "time, µs"
    assert sum(isinstance(r.get(time), float) for r in rows) > 100


def test_every_impl_has_its_own_mark(show: Open) -> None:
    """Seven Impls and two libraries have nine marks, in the key as in the figure."""
    tab = show("seven")
    marks = tab.locator('[aria-labelledby="h-finals"] .key use').evaluate_all(
        "all => all.map(use => use.getAttribute('href'))"
    )
    assert len(marks) == len({*marks}) == 9
    drawn = tab.locator('svg[aria-label="Finalists"] .points use').evaluate_all(
        "all => all.map(use => use.getAttribute('href'))"
    )
    assert {*drawn} <= {*marks}


def test_cells_without_a_time_have_a_key(show: Open) -> None:
    key = show("seven").inner_text('[aria-label="Colour key"]')
    assert "not tried" in key and "no config gave a time" in key
    assert "not tried" not in show("matmul").inner_text('[aria-label="Colour key"]')


def test_no_figure_of_the_final_is_cut_on_a_phone(show: Open) -> None:
    cut = show("matmul", width=420).evaluate(
        "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1)"
        ".map(e => e.textContent.slice(0, 60))"
    )
    assert cut == []


def test_the_index_of_runs_links_their_pages(show: Open, tmp_path: Path) -> None:
    for name, make in (("20261121-093000-a", synthetic.matmul), ("odd & even", synthetic.copy)):
        write_run_page(tmp_path / "results" / name, sweep_page(*make()))
    (tmp_path / "results" / "broken").mkdir()
    (tmp_path / "results" / "broken" / "report.html").write_bytes(
        b'<meta name="run" content="{">\xff'
    )
    write_index(tmp_path / "results")
    tab = show("matmul")
    tab.goto((tmp_path / "results" / "index.html").as_uri())
    assert tab.locator("#configs tbody tr").count() == 3
    tab.fill("#filter", "copy")
    with tab.expect_download() as waited:
        tab.click('[data-tables="json"]')
    table = json.loads(Path(waited.value.path()).read_text(encoding="utf-8"))["tables"][0]
    assert len(table["rows"]) == 3 and table["columns"][2].startswith("kernel")
    tab.locator("#configs tbody tr:not([hidden]) a").click()
    assert tab.locator("h1").inner_text().startswith("copy")


def test_a_page_of_a_thousand_configs_is_small() -> None:
    tiles = {"block_m": (32, 64, 128, 256), "block_n": (32, 64, 128, 256), "block_k": (32, 64, 128)}
    choices = {**tiles, "num_warps": (4, 8), "num_stages": (1, 2, 3, 4)}
    more = {"tiles": {**choices, "num_warps": (2, 4, 8)}, "persistent": choices}
    run, outcomes = synthetic.matmul(choices=more)
    html = sweep_page(run, outcomes, SECONDS)
    rows = html.count('<tr id="r')
    assert rows > 950 and len(html.encode()) / rows * 1000 <= 700_000
