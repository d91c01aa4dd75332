"""A result in a notebook, in a real browser: its colours follow the notebook's theme, not the
system's, and it fits a narrow cell. A notebook is run by a real kernel of Jupyter, too."""

import os
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
import synthetic
from nbclient import NotebookClient
from nbconvert import HTMLExporter

import workbench as wb
from workbench.api.call import Called
from workbench.commands.result import CommandResult, RunResult
from workbench.commands.sweep import SweepOptions

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


FUNCTION = """
import torch, triton, triton.language as tl, workbench as wb
@triton.jit
def scale(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, i < n) * 2, i < n)
"""
TUNED = """
x, n, i, BLOCK = torch.randn(4096), 4096, None, [1]
result = wb.tune(
    scale, (x, torch.empty(4096), n), grid=lambda c: (triton.cdiv(n, c["BLOCK"]),),
    configs=[triton.Config({"BLOCK": block}) for block in (256, 512)], device="h200",
)
"""
CELLS = (FUNCTION, TUNED, "print(result)", "result", "result.best", "wb.history().plot()")


@pytest.mark.nightly  # a kernel's start, a compiler and an interpreter: 12 s
def test_a_notebook_runs_and_shows_its_results(browser, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))  # Jupyter's own settings
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    run = NotebookClient(book, timeout=120, resources={"metadata": {"path": tmp_path}})
    run.execute()  # raises what a cell raises
    outputs = [cell.outputs for cell in book.cells]
    bars = [o for o in outputs[1] if o.output_type == "display_data"]
    assert [o.data["text/html"] for o in bars] == [""], "one bar, removed at the end"
    text = "".join(o.text for o in outputs[2])
    assert "BLOCK" in text and "predicted" in text and "\x1b" not in text
    for cell in outputs[3:5]:
        (card,) = cell
        assert "workbench-result" in card.data["text/html"]
    assert "image/png" in outputs[5][0].data
    file = tmp_path / "book.html"
    file.write_text(HTMLExporter().from_notebook_node(book)[0])
    page = browser.new_page(viewport={"width": 1000, "height": 900})
    page.goto(file.as_uri())
    cards = page.locator(".workbench-result")
    assert cards.count() == 2 and all(cards.nth(n).is_visible() for n in range(2))
    assert "predicted for h200" in cards.first.inner_text()
    page.close()
