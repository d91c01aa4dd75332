"""The documentation as a site: it builds without a warning, no link of it is broken, and its pages
fit on a small screen."""

from __future__ import annotations

import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

pytestmark = (
    pytest.mark.nightly
)  # 15 s of CPU; tests/unit/test_docs.py follows the links of each page

ROOT = Path(__file__).parents[2]
BASE = "https://example.org/blob/main"


@pytest.fixture(scope="module")
def site(once: Any) -> Path:
    """The site, built once in a run. 10 s of one core."""
    return once("site", built) / "site"


def built(folder: Path) -> None:
    """Build the site as `make site` does."""
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", "docs",
         "-d", str(folder / "doctrees"), "-D", f"repository={BASE}", ".", str(folder / "site")],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0 and not done.stderr, done.stderr


def test_every_page_is_in_the_navigation_and_no_link_is_broken(site: Path) -> None:
    pages = {p: p.read_text(encoding="utf-8") for p in site.rglob("*.html")}
    names = {re.sub(r"\.html$", "", p.relative_to(site).as_posix()) for p in pages}
    sources = [*(ROOT / "docs").rglob("*.md"), ROOT / "CONTRIBUTING.md", ROOT / "README.md"]
    assert {p.relative_to(ROOT).with_suffix("").as_posix() for p in sources} <= names
    for page, html in pages.items():
        for target in map(unescape, re.findall(r'(?:href|src)="([^"]+)"', html)):
            if re.match(r"(https?|mailto|data):", target):
                assert not target.startswith(BASE) or (ROOT / target[len(BASE) + 1 :]).exists()
                continue
            path, _, anchor = target.partition("#")
            there = (page.parent / unquote(path.partition("?")[0])).resolve() if path else page
            assert there.exists(), f"{page.name} links to {target}"
            if anchor and there in pages:
                assert f'id="{unquote(anchor)}"' in pages[there], f"{page.name}: {target}"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_in_420_pixels_and_ask_for_nothing(new_tab: Any, site: Path, scheme: str) -> None:
    names = ("README", "start", "commands", "troubleshooting", "gallery", "kernels/matmul")
    complaints: list[str] = []
    tab = new_tab(420, scheme)
    tab.on("requestfailed", lambda request: complaints.append(request.url))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    for name in names:
        tab.goto((site / "docs" / f"{name}.html").as_uri())
        assert tab.evaluate("document.documentElement.scrollWidth") <= 420, name
    dark = tab.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert dark == (scheme == "dark")
    tab.close()
    assert not complaints
