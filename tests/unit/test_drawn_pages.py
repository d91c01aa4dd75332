"""Pages and printed texts are what was read when their golden files were written."""

import difflib
from pathlib import Path

import drawn_pages
import pytest
from nightly import at_night

pytestmark = pytest.mark.unit
ROOT = Path(__file__).parents[2]


# `tuned --code` takes 8 s of CPU; `tests/compile/test_tuned_code.py` has its parts.
EVERY = at_night((*drawn_pages.PAGES, *drawn_pages.PRINTED), lambda name: name != "tuned_code")


@pytest.mark.parametrize("name", EVERY)
def test_it_is_drawn_as_it_was_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "100")
    before, after = drawn_pages.golden(name), drawn_pages.drawn(name)
    if name in drawn_pages.PAGES and before[0] != after[0]:  # another matplotlib
        before, after = map(drawn_pages.without_places, (before, after))
    changes = list(difflib.unified_diff(before, after, "golden", "drawn", lineterm="", n=0))
    assert not changes, "\n".join(changes[:30])
