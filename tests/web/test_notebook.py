"""A result in a notebook, in a real browser: its colours follow the notebook's theme, not the
system's, and it fits a narrow cell."""

from dataclasses import replace
from pathlib import Path

import synthetic

import workbench as wb
from workbench.api.call import Called
from workbench.commands.options import SweepOptions
from workbench.commands.result import CommandResult, RunResult

HOSTILE = '<script>document.title = "owned"</script>'
LIGHT, DARK = "rgb(255, 255, 255)", "rgb(18, 22, 28)"
THEMES = {
    'data-jp-theme-light="true"': LIGHT,
    'data-jp-theme-light="false"': DARK,
    'class="vscode-light"': LIGHT,
    'class="vscode-dark"': DARK,
}


def result(predicted=True):
    run, outcomes = synthetic.matmul(predicted=predicted)
    outcomes = [replace(o, reason=HOSTILE) if isinstance(o, wb.Failure) else o for o in outcomes]
    document = CommandResult(
        "sweep", 0, (RunResult(run, outcomes, page=Path("report.html")),), {"sentences": [HOSTILE]}
    )
    return wb.SweepResult(Called(document, "", SweepOptions("full")))


def test_a_result_follows_the_notebooks_theme_and_fits_a_cell(browser, tmp_path):
    blocks = result()._repr_html_() + result(predicted=False)._repr_html_()
    for theme, ground in THEMES.items():
        file = tmp_path / "notebook.html"
        file.write_text(f"<!doctype html><meta charset=utf-8><body {theme}>{blocks}</body>")
        system = "dark" if ground == LIGHT else "light"  # the other one
        page = browser.new_page(viewport={"width": 420, "height": 900}, color_scheme=system)
        page.goto(file.as_uri())
        colours = page.eval_on_selector_all(
            ".workbench-result", "all => all.map(e => getComputedStyle(e).backgroundColor)"
        )
        assert colours == [ground, ground] and page.title() == ""
        assert page.evaluate("document.documentElement.scrollWidth") <= 420
        assert page.locator("svg.figure").count() == 2 and page.locator("tr").count() == 22
        assert page.locator(".kind").first.inner_text().startswith("predicted for")
        page.close()
