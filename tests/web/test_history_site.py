"""The site of the history in a real browser: opened from a disk, with the network off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import synthetic
from made_history import commits, fill, measured_run, noisy, repository
from nightly import by_turns

from workbench import cli
from workbench.data.database import open_history
from workbench.device.error_band import device_words
from workbench.reports.history_site import file_of

H200, H100 = "NVIDIA H200", "NVIDIA H100 80GB HBM3"
EVIL = "<img src=x onerror=alert(1)>"
Open = Callable[..., Any]


@pytest.fixture(scope="module")
def site(once: Any) -> Path:
    """Two kernels on two devices, a branch with a step of its own, a prediction, an odd name."""
    return once("history", written) / "site"


def written(folder: Path) -> None:
    """Fill a history and write its site."""
    repository(folder / "repo", 30, branch_at=22, on_branch=12)
    main, feature = commits(folder / "repo"), commits(folder / "repo", "feature")
    url = f"sqlite:///{folder / 'h.db'}"
    with open_history(url) as history:
        fill(history, main, lambda n: noisy(30e-6, n, 0.004) * (1.05 if n >= 15 else 1))
        fill(history, main, lambda n: noisy(40e-6, n, 0.004), device=H100, library_s=42e-6)
        fill(history, main[:8], lambda n: noisy(5e-3, n), kernel="swiglu", dtype="fp16")
        fill(history, feature[23:], lambda n: noisy(31.5e-6, n, 0.004) * (1.1 if n >= 5 else 1),
             first=100)  # fmt: skip
        fill(history, main[:3], lambda n: 1e-5, kernel=EVIL)
        run, outcomes = measured_run(200, main[-1], 33e-6, dirty=True)
        history.import_run([run, *outcomes])
        run, made = synthetic.softmax(predicted=True)
        history.import_run([run, *made])
    words = ["--database", url, "--repository", str(folder / "repo"), "--quiet"]
    assert cli.main(["site", str(folder / "site"), *words]) == 0


@pytest.fixture
def show(new_tab: Any, site: Path) -> Iterator[Open]:
    """Opens a page offline, and afterwards asserts that it was silent and asked for nothing."""
    tabs, complaints = [], []

    def opened(name: str, hash: str = "", width: int = 1280, scheme: str = "light") -> Any:
        tabs.append(tab := new_tab(width, scheme))
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on("dialog", lambda box: complaints.append("a dialog") or box.dismiss())
        tab.on("request", lambda wanted: None if wanted.url.startswith(("file:", "data:"))
               else complaints.append(wanted.url))  # fmt: skip
        tab.goto((site / name).as_uri() + hash)
        return tab

    yield opened
    for tab in tabs:
        tab.close()
    assert not complaints


def rows(tab: Any, table: str) -> list[str]:
    """The first cells of the rows that show."""
    shown = f"table.{table} tbody tr:not([hidden])"
    return [text.split("\n")[0] for text in tab.locator(shown).all_inner_texts()]


def test_the_matrix_shows_each_kernel_and_device(show: Open) -> None:
    tab = show("index.html")
    assert rows(tab, "matrix") == [EVIL, "softmax", "swiglu", "toy"]
    assert tab.locator("table.matrix thead th").all_inner_texts() == [
        "Kernel, sizes, dtype", H100, H200, "h200 (predicted)",
    ]  # fmt: skip
    toy = tab.locator("table.matrix tr", has_text="toy").first
    assert "slower at" in toy.inner_text() and "no step in 30 commits" in toy.inner_text()
    assert "31.3 µs" in toy.inner_text(), "the latest commit, not the changed work tree: 33 µs"
    assert "0.947× torch" in toy.inner_text()
    assert toy.locator("svg.spark path.slower").count() == 1
    assert tab.locator("td.only-predicted").count() == 1


@pytest.mark.parametrize(
    ("name", "value", "kernels", "fragment"),
    [
        ("dtype", "fp16", ["swiglu"], "#dtype=fp16"),
        ("device", H100, ["toy"], "#device=NVIDIA+H100+80GB+HBM3"),
        ("device", "h200", ["softmax"], "#device=h200"),
    ],
)
def test_a_filter_hides_rows_and_is_in_the_fragment(
    show: Open, name: str, value: str, kernels: list[str], fragment: str
) -> None:
    tab = show("index.html")
    tab.select_option(f"[name={name}]", value)
    assert rows(tab, "matrix") == kernels
    assert tab.url.endswith(fragment)
    again = show("index.html", fragment)
    assert (
        rows(again, "matrix") == kernels and again.locator(f"[name={name}]").input_value() == value
    )


def test_the_filter_of_kernels_takes_part_of_a_name(show: Open) -> None:
    tab = show("index.html")
    tab.fill("[name=kernel]", "SWI")
    assert rows(tab, "matrix") == ["swiglu"] and rows(tab, "changes") == []


CUT = """each => each.filter(text => {
  const own = text.getBoundingClientRect(), svg = text.ownerSVGElement.getBoundingClientRect();
  return own.left < svg.left - 1 || own.right > svg.right + 1;
}).map(text => text.textContent)"""


@pytest.mark.parametrize(("width", "branch"), by_turns((380, 700, 1280), ("main", "feature")))
def test_no_text_of_a_curve_is_cut(show: Open, width: int, branch: str) -> None:
    tab = show("kernels/toy.html", f"#branch={branch}", width)
    assert tab.locator(".curves svg text").count() > 10
    assert tab.locator(".curves svg text").evaluate_all(CUT) == []


def test_predicted_times_have_their_error_beside_them(show: Open) -> None:
    for name, heading in (("index.html", "h-matrix"), ("kernels/softmax.html", "h-predicted")):
        near = show(name).locator(f"section[aria-labelledby={heading}]")
        assert device_words("h200", "softmax") in near.inner_text()


def test_a_branch_has_its_own_trend_and_changes(show: Open) -> None:
    tab = show("index.html")
    on_main = tab.locator("table.changes tbody tr:not([hidden])").all_inner_texts()
    assert len(on_main) == 1 and "main 15" in on_main[0]
    tab.select_option("[name=branch]", "feature")
    on_branch = tab.locator("table.changes tbody tr:not([hidden])").all_inner_texts()
    assert len(on_branch) == 2 and any("feature 5" in text for text in on_branch)
    assert tab.url.endswith("#branch=feature")
    text = tab.locator("#answer").inner_text()
    assert text.startswith("2 regressions and 0 improvements on feature")
    tab.select_option("[name=dtype]", "fp16")
    assert (
        "0 regressions and 0 improvements on feature, as filtered"
        in tab.locator("#answer").inner_text()
    )


def test_a_link_to_a_kernel_keeps_the_branch_and_opens_the_series(show: Open) -> None:
    tab = show("index.html", "#branch=feature")
    tab.locator("table.matrix tbody tr:not([hidden])", has_text="toy").locator("td a").first.click()
    assert "/kernels/toy.html#" in tab.url and "branch=feature" in tab.url and "series=" in tab.url
    assert tab.locator("#curves figure").count() == 1
    assert tab.locator("[name=branch]").input_value() == "feature"
    tab.click("#one")
    assert tab.locator("#curves figure").count() > 1 and "series=" not in tab.url


def test_a_curve_has_a_point_for_each_commit_its_steps_and_a_hollow_one(show: Open) -> None:
    tab = show("kernels/toy.html", "#device=NVIDIA+H200")
    curve = tab.locator("#curves figure").first
    assert curve.locator("circle.point").count() == 31
    assert curve.locator("circle.dirty").count() == 1
    assert (
        curve.locator("path.mark.slower").count() == 1 and curve.locator("path.level").count() == 2
    )
    assert "time, µs" in curve.inner_text() and "% slower" in curve.inner_text()
    curve.locator("circle.point").nth(3).hover()
    tip = tab.locator("#tip").inner_text()
    assert "main 3" in tip and "µs" in tip and "run-0003-toy" in tip


def test_the_ratio_to_the_library_can_be_shown(show: Open) -> None:
    tab = show("kernels/toy.html", "#impl=rows&value=ratio")
    text = tab.locator("#curves").inner_text()
    assert "time over torch's" in text and "No run of this series has a library's time" in text


def test_the_keyboard_goes_along_a_curve(show: Open) -> None:
    tab = show("kernels/toy.html")
    tab.locator("#curves circle.point").first.focus()
    tab.keyboard.press("ArrowRight")
    assert "main 1" in tab.locator("#tip").inner_text()


def test_an_unknown_fragment_is_no_filter(show: Open) -> None:
    tab = show("index.html", "#device=none&branch=gone&x=%3Cb%3E&dtype=%00")
    assert len(rows(tab, "matrix")) == 4
    assert tab.locator("[name=branch]").input_value() == "main"


@pytest.mark.parametrize(("width", "scheme"), by_turns((420, 1280), ("light", "dark")))
def test_no_page_is_wider_than_the_window(show: Open, width: int, scheme: str) -> None:
    for name in ("index.html", "kernels/toy.html", file_of(EVIL), "kernels/softmax.html"):
        tab = show(name, width=width, scheme=scheme)
        assert tab.evaluate("document.documentElement.scrollWidth") <= width, name


def test_names_of_the_database_are_text(show: Open) -> None:
    tab = show(file_of(EVIL))
    assert tab.locator("h1").inner_text().startswith(EVIL)
    assert tab.locator("img").count() == 0


@pytest.mark.parametrize(
    ("name", "scheme"), by_turns(("index.html", "kernels/toy.html"), ("light", "dark"))
)
def test_text_is_legible(show: Open, name: str, scheme: str) -> None:
    from tests.web.test_sweep_page import CONTRAST

    seen, poor = show(name, scheme=scheme).evaluate(CONTRAST)
    assert seen > 20 and not poor
