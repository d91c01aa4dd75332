"""Pages that another process draws while the next size is measured."""

import os
import signal
from dataclasses import replace

import pytest
import synthetic

from workbench.reports.page_drawing import PageDrawing
from workbench.reports.sweep import page


@pytest.fixture
def pages():
    made = PageDrawing()
    yield made
    made.finish()


def many(count):
    """A run, and more outcomes than a pipe holds."""
    run, outcomes = synthetic.matmul()
    return run, [replace(o, key=f"{o.key}{n}") for n in range(count) for o in outcomes]


def test_several_large_pages_are_written_in_order(tmp_path, pages):
    run, outcomes = many(8)
    folders = [tmp_path / name for name in ("first", "second", "third")]
    paths = [pages.begin(folder, run, outcomes, None, ()) for folder in folders]
    pages.finish()
    assert paths == [folder / "report.html" for folder in folders]
    assert {path.read_text() for path in paths} == {page(run, outcomes)}


def test_a_page_whose_process_is_killed_is_drawn_all_the_same(tmp_path, pages):
    run, outcomes = many(1)
    os.kill(pages._process.pid, signal.SIGKILL)
    path = pages.begin(tmp_path / "run", run, outcomes, None, ())
    pages.finish()
    assert path.read_text() == page(run, outcomes)


def test_a_page_that_cannot_be_written_fails_after_the_others(tmp_path, pages):
    run, outcomes = many(1)
    (tmp_path / "file").write_text("no folder")
    pages.begin(tmp_path / "file" / "run", run, outcomes, None, ())
    path = pages.begin(tmp_path / "run", run, outcomes, None, ())
    with pytest.raises(Exception, match=r"cannot be written|Not a directory"):
        pages.finish()
    assert path.exists()
