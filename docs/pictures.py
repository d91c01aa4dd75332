"""Draw every picture of the README and the docs: pages of stored runs, photographed in Chromium,
a chart of the figures in docs/facts.md, and the floors of the house.

    python docs/pictures.py          all of them
    python docs/pictures.py house    only the floors, without Chromium

The runs were measured on one NVIDIA H200 (`tests/golden/README.md`); nothing is measured here. It
needs Chromium and playwright, as the web tests do. `docs/images/sources.json` holds a digest of
what each picture was drawn from: a test fails where that has changed, and the picture not.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
DIGESTS = IMAGES / "sources.json"
FACTS = ROOT / "docs" / "facts.md"
HISTORY = ROOT / "tests" / "golden" / "stored" / "history.db.gz"
TRACES = ROOT / "tests" / "golden" / "traces" / "h200"
REPORTS = ROOT / "workbench" / "reports"
RUNS = {  # of the stored database
    "sweep": "20261122-125832-full-softmax-5c64",
    "predicted": "20261122-125428-tile_size-matmul-eb05",
    "measure": "20261122-130006-measure-softmax-5cc2",
    "compare": "20261122-125951-compare-copy-97c9",
    "experiment": "20261122-130035-experiment-suite-44e1",
    "ceilings": "20261122-130047-ceilings-h200-8c46",
}
PAIR = "chain_eager.json.gz", "chain_graph.json.gz"
TEMPLATES = {
    **{name: (f"{name}.html.j2",) for name in ("measure", "compare", "experiment", "ceilings")},
    "sweep": ("sweep.html.j2", "sweep.css", "sweep.js"),
    "predicted": ("sweep.html.j2", "sweep.css", "sweep.js"),
    "roofline": ("roofline.html.j2", "roofline.css"),
    "read": ("trace.html.j2",),
    "traces": ("trace_compare.html.j2",),
}
OF_TRACES = {"read": PAIR[:1], "traces": PAIR}
WIDTH, HEIGHT, COLOURS = 1100, 760, 96
TALL = {"sweep": 1160, "predicted": 1040, "roofline": 1240}  # as far as the figure
BROWSERS = ("chromium", "chromium-browser", "google-chrome")

# The chart: ink of text, of notes, of this project's bars and of the others.
CHART = {
    "light": ("#1a1f26", "#57606c", "#0072b2", "#c2c9d1"),
    "dark": ("#e7eaee", "#a3adb9", "#56b4e9", "#46515f"),
}
# px: the chart is as wide as that of README's text beside the thumbnail of a page; where bars begin
# and the longest ends, a row, heads
BROAD, LEFT, RIGHT, LINE, TOP = 600, 240, 536, 36, 50
THUMBNAIL = 620  # px of the page of a sweep, from its top, at WIDTH: its tiles and the first figure
# The house: its floors from the roof to the ground, each with its entries and what they do. An
# entry imports only from entries on the floors below and to its right, which
# tests/unit/test_layers.py checks.
HOUSE = (
    ("__main__ sweep cli", "read the command line"),
    ("api", "offers the commands as functions"),
    ("commands", "turn options into a run, and store it as it goes"),
    ("experiments reports", "compare variants; draw pages"),
    ("workload revisions ops adapted", "programs, commits, models, functions of users"),
    ("tuner evaluation", "chooses a config; judges a kernel"),
    ("backend", "compiles, measures or predicts in worker processes"),
    ("compile code measurement", "compile; read machine code; check, then time"),
    ("catalog traces device", "find kernels and devices; read and diagnose profiles"),
    ("data", "holds records, events, database, statistics"),
    ("variants sweeps kernels", "operations, and the knobs that vary"),
    ("dsl spec", "Triton and launch helpers; Spec, Impl and knobs"),
)
# Entries that hold what contributors write, with the folders inside of them or beside.
CONTRIBUTED = {
    "kernels": "", "sweeps": "", "variants": "", "reports": "", "experiments": "", "commands": "",
    "device": "devices/*.toml", "traces": "readers, profilers, rules",
}  # fmt: skip
# px of the house: its width, a floor, and the part of it that boxes may fill
BREADTH, STOREY, BOXES = 880, 44, 480
ROW = re.compile(
    r"^\| (?P<name>[^|]+) \| (?P<configs>\d+), \d+ \| cold \| (?P<other>[\d.]+) s \| [^|]+ \| "
    r"(?P<own>[\d.]+) s \((?P<ratio>[\d.]+x)\) \|",
    flags=re.M,
)


def times() -> list[tuple[str, float, float, str]]:
    """Return the rows of the first table of docs/facts.md with cold caches: list of configs,
    seconds of triton.autotune, seconds to a final verdict here, and their ratio."""
    facts = FACTS.read_text(encoding="utf-8")
    start = facts.index("| list | configs, binaries |")
    facts = facts[start : facts.index("\n\n", start)]
    return [
        (f"{m['name']}, {m['configs']} configs", float(m["other"]), float(m["own"]), m["ratio"])
        for m in ROW.finditer(facts)
    ]


def chart(rows: Sequence[tuple[str, float, float, str]], scheme: str) -> str:
    """Return the chart as SVG: two bars a row, the shorter one is this project's."""
    ink, quiet, own_ink, other_ink = CHART[scheme]
    longest = max(other for _, other, *_ in rows)
    height = TOP + LINE * len(rows) + 38
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {BROAD} {height}" width="{BROAD}" '
        f'height="{height}" role="img" font-family="system-ui, -apple-system, Segoe UI, Roboto, '
        'Helvetica, Arial, sans-serif" font-size="13">',
        "<title>Seconds to a trustworthy answer: Kernel Workbench and triton.autotune</title>",
        f'<text x="0" y="18" fill="{ink}" font-weight="600" font-size="15">Seconds to a final, '
        "checked answer over the same list of configs</text>",
        f'<rect x="0" y="30" width="12" height="12" fill="{own_ink}"/>'
        f'<text x="18" y="41" fill="{ink}">workbench sweep</text>'
        f'<rect x="168" y="30" width="12" height="12" fill="{other_ink}"/>'
        f'<text x="186" y="41" fill="{ink}">triton.autotune</text>',
    ]
    for n, (name, other, own, ratio) in enumerate(rows):
        y = TOP + LINE * n
        parts.append(f'<text x="0" y="{y + 19}" fill="{ink}">{name}</text>')
        for seconds, fill, at in ((own, own_ink, y + 2), (other, other_ink, y + 16)):
            width = (RIGHT - LEFT) * seconds / longest
            more = f", {ratio} as fast" if seconds == own else ""
            weight = 600 if seconds == own else 400
            parts.append(
                f'<rect x="{LEFT}" y="{at}" width="{width:.1f}" height="13" fill="{fill}"/>'
                f'<text x="{LEFT + width + 6:.1f}" y="{at + 11}" fill="{ink}" '
                f'font-weight="{weight}">{seconds:.1f} s{more}</text>'
            )
    notes = (
        "One NVIDIA H100, cold caches, from the start of the process, 2026-11-27: docs/facts.md.",
        "Of matmul's 256 configs the sweep timed 98.",
    )
    for n, note in enumerate(notes):
        y = height - 22 + 16 * n
        parts.append(f'<text x="0" y="{y}" fill="{quiet}" font-size="12">{note}</text>')
    return "\n".join(parts) + "</svg>\n"


def house() -> str:
    """Return the floors of the house as SVG: a row of boxes a floor, and what it does."""
    height = STOREY * len(HOUSE) + 64
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {BREADTH} {height}" '
        f'width="{BREADTH}" height="{height}" role="img" font-family="system-ui, -apple-system, '
        'Segoe UI, Roboto, Helvetica, Arial, sans-serif" font-size="13">',
        "<title>The entries of workbench/, floor by floor</title>",
        f'<rect width="{BREADTH}" height="{height}" rx="8" fill="#ffffff"/>',
        f'<path d="M16 36 V{height - 40} m-4 -8 l4 8 l4 -8" stroke="#57606c" fill="none"/>',
        '<text x="12" y="24" fill="#57606c" font-size="12">'
        "imports lead down, and on a floor to the right</text>",
    ]
    for number, (names, meaning) in enumerate(HOUSE):
        y = STOREY * number + 36
        parts += boxes(names.split(), y)
        parts.append(f'<text x="{BOXES + 20}" y="{y + 21}" fill="#1a1f26">{meaning}</text>')
    parts.append(
        f'<text x="30" y="{height - 14}" fill="#57606c" font-size="12">Green: one file a thing, '
        "found by its name. "
        "Beside the house: tests/, docs/, benchmarks/, examples/, metal_shim/.</text>"
    )
    return "\n".join(parts) + "\n</svg>\n"


def boxes(names: Sequence[str], y: int) -> Iterator[str]:
    """Yield the boxes of a floor, which share its width; green are those of contributors."""
    wide = (BOXES - 30) / len(names)
    for number, name in enumerate(names):
        x, more = 30 + wide * number, CONTRIBUTED.get(name)
        fill, edge = ("#eef1f4", "#c2c9d1") if more is None else ("#d9f0e3", "#3b8f63")
        middle = x + (wide - 8) / 2
        parts = [
            (name, y + 21 if not more else y + 15, 13, "#1a1f26"),
            (more, y + 28, 10, "#57606c"),
        ]
        yield (
            f'<rect x="{x:.0f}" y="{y}" width="{wide - 8:.0f}" height="{STOREY - 10}" rx="4" '
            f'fill="{fill}" stroke="{edge}"/>'
        )
        for text, line, size, ink in parts:
            if text:
                yield (
                    f'<text x="{middle:.0f}" y="{line}" text-anchor="middle" fill="{ink}" '
                    f'font-size="{size}">{text}</text>'
                )


def sources() -> Mapping[str, Sequence[Path]]:
    """Return the files that each picture is drawn from, by its path in docs/images."""
    named = {f"autotune_{scheme}.svg": (FACTS,) for scheme in CHART}
    for name, templates in TEMPLATES.items():
        data = [TRACES / file for file in OF_TRACES.get(name, ())] or [HISTORY]
        code = drawing_code(templates[0].partition(".")[0])
        named[f"gallery/{name}.png"] = (*data, *(REPORTS / file for file in templates), *code)
    named["house.svg"] = ()
    return named | {f"thumbnail_{scheme}.png": named["gallery/sweep.png"] for scheme in CHART}


def drawing_code(page: str) -> list[Path]:
    """Return the modules of workbench/reports that draw a page: that of its name, if there is one,
    and those that these import."""
    wanted, known = [f"workbench.reports.{page}"], list[Path]()
    while wanted:
        file = (ROOT / wanted.pop().replace(".", "/")).with_suffix(".py")
        if file.is_file() and file not in known:
            known.append(file)
            wanted += imported_modules(file)
    return sorted(known)


def imported_modules(file: Path) -> Iterator[str]:
    """Yield the modules of workbench.reports that a file imports."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("workbench.reports"):
            yield str(node.module)
            yield from (f"{node.module}.{each.name}" for each in node.names)


def digest(picture: str, files: Sequence[Path]) -> str:
    """Return the digest of what a picture is drawn from: of the chart only the figures, as other
    parts of docs/facts.md change every day."""
    if picture == "house.svg":
        return hashlib.sha256(house().encode()).hexdigest()[:16]
    if picture.endswith(".svg"):
        return hashlib.sha256(repr(times()).encode()).hexdigest()[:16]
    contents = b"\0".join(file.read_bytes() for file in files)
    return hashlib.sha256(contents).hexdigest()[:16]


def digests() -> dict[str, str]:
    """Return the digest of each picture's sources as they are now."""
    return {picture: digest(picture, files) for picture, files in sources().items()}


def workbench(*words: object) -> None:
    """Run a command of the workbench."""
    from workbench import cli

    code = cli.main(list(map(str, words)))
    if code not in (0, 3):  # 3: a difference of two traces is suspected at most
        raise SystemExit(f"workbench {' '.join(map(str, words))} ended with exit code {code}")


def pages(folder: Path) -> Iterator[tuple[str, Path]]:
    """Draw each page. Yields its name and its file."""
    database = folder / "history.db"
    database.write_bytes(gzip.decompress(HISTORY.read_bytes()))
    url = f"sqlite:///{database}"
    for name, run in RUNS.items():
        page, report = folder / f"{name}.html", "sweep" if name == "predicted" else name
        workbench("report", report, run, "--out", page, "--database", url, "--quiet")
        yield name, page
    page = folder / "roofline.html"
    workbench("report", "roofline", RUNS["sweep"], RUNS["measure"], "--out", page,
              "--database", url, "--quiet")  # fmt: skip
    yield "roofline", page
    for name, files in OF_TRACES.items():
        out = folder / name
        command = "read" if name == "read" else "compare"
        named = (os.path.relpath(TRACES / file) for file in files)
        workbench(command, *named, "--out", out, "--database", url, "--quiet")
        yield name, next(out.rglob("report.html"))


def draw_house() -> None:
    """Draw the floors, and write down what they were drawn from."""
    (IMAGES / "house.svg").write_text(house(), encoding="utf-8")
    drawn = json.loads(DIGESTS.read_text()) | {"house.svg": digest("house.svg", ())}
    DIGESTS.write_text(json.dumps(drawn, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    """Draw all pictures, and write down what they were drawn from. Returns the exit code."""
    draw_house()
    if sys.argv[1:] == ["house"]:
        return 0
    from PIL import Image
    from playwright.sync_api import sync_playwright

    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise SystemExit("There is no Chromium on the path; install it first.")
    (IMAGES / "gallery").mkdir(parents=True, exist_ok=True)
    for scheme in CHART:
        (IMAGES / f"autotune_{scheme}.svg").write_text(chart(times(), scheme), encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as run:
        os.environ["XDG_DATA_HOME"] = folder
        os.chdir(ROOT)  # pages name files as they were given
        chromium = run.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        tab = chromium.new_page()
        for name, page in pages(Path(folder)):
            wanted = [(f"gallery/{name}.png", TALL.get(name, HEIGHT), "light")]
            if name == "sweep":
                wanted += [(f"thumbnail_{scheme}.png", THUMBNAIL, scheme) for scheme in CHART]
            tab.goto(page.as_uri())
            for file, height, scheme in wanted:
                tab.emulate_media(color_scheme=scheme)
                tab.set_viewport_size({"width": WIDTH, "height": height})
                picture = Image.open(BytesIO(tab.screenshot())).convert("RGB")
                path = IMAGES / file
                picture.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
                print(f"{path.relative_to(ROOT)}  {path.stat().st_size / 1e3:.0f} kB")
        chromium.close()
    DIGESTS.write_text(json.dumps(digests(), indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
