"""Draw the pictures of docs/gallery.md: pages of stored runs, photographed in Chromium.

    python docs/gallery.py

The runs were measured on one NVIDIA H200 (`tests/golden/README.md`); nothing is measured here. It
needs Chromium and playwright, as the web tests do.
"""

from __future__ import annotations

import gzip
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from workbench import cli  # noqa: E402

PICTURES = ROOT / "docs" / "images" / "gallery"
STORED = ROOT / "tests" / "golden" / "stored"
TRACES = ROOT / "tests" / "golden" / "traces" / "h200"
RUNS = {  # of the stored database
    "sweep": "20261122-125832-full-softmax-5c64",
    "measure": "20261122-130006-measure-softmax-5cc2",
    "compare": "20261122-125951-compare-copy-97c9",
    "experiment": "20261122-130035-experiment-suite-44e1",
    "ceilings": "20261122-130047-ceilings-h200-8c46",
}
WIDTH, HEIGHT, COLOURS = 1100, 760, 96
TALL = {"sweep": 1180, "roofline": 1240}  # as far as the figure
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def workbench(*words: object) -> None:
    """Run a command of the workbench."""
    code = cli.main(list(map(str, words)))
    if code:
        raise SystemExit(f"workbench {' '.join(map(str, words))} ended with exit code {code}")


def pages(folder: Path) -> Iterator[tuple[str, Path]]:
    """Draw each page. Yields its name and its file."""
    database = folder / "history.db"
    database.write_bytes(gzip.decompress((STORED / "history.db.gz").read_bytes()))
    url = f"sqlite:///{database}"
    for name, run in RUNS.items():
        page = folder / f"{name}.html"
        workbench("report", name, run, "--out", page, "--database", url, "--quiet")
        yield name, page
    page = folder / "roofline.html"
    workbench("report", "roofline", RUNS["sweep"], RUNS["measure"], "--out", page,
              "--database", url, "--quiet")  # fmt: skip
    yield "roofline", page
    out = folder / "read"
    workbench("read", TRACES / "chain_eager.json.gz", "--out", out, "--database", url, "--quiet")
    yield "read", next(out.rglob("report.html"))


def main() -> int:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise SystemExit("There is no Chromium on the path; install it first.")
    PICTURES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as run:
        os.environ["XDG_DATA_HOME"] = folder
        chromium = run.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        tab = chromium.new_page()
        for name, page in pages(Path(folder)):
            tab.set_viewport_size({"width": WIDTH, "height": TALL.get(name, HEIGHT)})
            tab.goto(page.as_uri())
            picture = Image.open(BytesIO(tab.screenshot())).convert("RGB")
            path = PICTURES / f"{name}.png"
            picture.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
            print(f"{path.relative_to(ROOT)}  {path.stat().st_size / 1e3:.0f} kB")
        chromium.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
