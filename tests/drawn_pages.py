"""Pages of small runs, element by element, and what commands print of golden files.

    python tests/drawn_pages.py       writes `tests/golden/pages/` anew
    git diff tests/golden/pages       shows what changes: read it against the records

Places in figures are compared on the version of matplotlib whose layout they follow.
"""

from __future__ import annotations

import gzip
import io
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from functools import cache, partial
from html.parser import HTMLParser
from pathlib import Path

import made_history
import matplotlib
import synthetic

from workbench import __version__, cli
from workbench.commands.report import draw
from workbench.commands.traces import trace_run
from workbench.data.database import open_history
from workbench.data.record import Chart, Failure, Measured, Outcome, Record, Run, Series
from workbench.reports.figures import roofline_points
from workbench.reports.figures.calibration import regrets
from workbench.reports.figures.curve import Curve, chart, curve_svg
from workbench.reports.figures.paper import paper
from workbench.reports.figures.roofline_points import RunWithOutcomes, csv_text, sheet_of
from workbench.reports.history_site import file_of
from workbench.reports.measure import page as measure_page
from workbench.reports.roofline import page as roofline_page
from workbench.reports.sweep import page as sweep_page
from workbench.reports.trace import page as trace_page
from workbench.traces.readers import read
from workbench.traces.trace_summary import summarise

FOLDER = Path(__file__).resolve().parent / "golden" / "pages"
VOID = {"meta", "link", "br", "hr", "input", "img", "col"}


class Outline(HTMLParser):
    """The elements and texts of a page, one a line, without styles and programs."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.inside: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        words = [f"{name}={' '.join(value.split())}" if value else name for name, value in attrs]
        self.lines.append(" " * len(self.inside) + rounded(" ".join([f"<{tag}>", *words])))
        if tag not in VOID:
            self.inside.append(tag)

    def handle_startendtag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.inside.pop()

    def handle_endtag(self, tag: str) -> None:
        while self.inside and self.inside.pop() != tag:
            pass

    def handle_data(self, text: str) -> None:
        is_code = self.inside[-1:] in (["style"], ["script"]) and not text.lstrip().startswith("{")
        if text.strip() and not is_code:
            self.lines.append(" " * len(self.inside) + " ".join(text.split()))


def rounded(text: str) -> str:
    """Return a text whose numbers with a fraction have one digit of it: the tenth of a pixel."""
    return re.sub(r"-?\d+\.\d+", lambda n: f"{float(n[0]):.1f}", text)


def few(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the outcomes with eight samples for each time."""
    return [
        replace(o, timing=replace(o.timing, samples_s=o.timing.samples_s[:8]))
        if isinstance(o, Record) and isinstance(o.timing, Measured) else o for o in outcomes
    ]  # fmt: skip


CHOICES = {
    "tiles": {"block_m": (32, 128), "block_n": (128, 256), "block_k": (64, 128),
              "num_warps": (4, 8), "num_stages": (3,)},
    "persistent": {"block_m": (64, 128), "block_n": (256,), "block_k": (64, 128),
                   "num_warps": (4, 8), "num_stages": (3, 4)},
}  # fmt: skip
STORED = FOLDER.parent / "stored"
RUNS = {
    "sweep": "20261122-125805-tile_size-rms_norm-30ae",
    "compare": "20261122-125936-compare-matmul-b3e0",
    "measure": "20261122-130006-measure-softmax-5cc2",
    "experiment": "20261122-130035-experiment-suite-44e1",
    "ceilings": "20261122-130047-ceilings-h200-8c46",
}
TRACES = {
    "chain_eager": "h200/chain_eager.json.gz",
    "chain_copy": "h200/chain_copy.json.gz",
    "ncu": "h200/details.csv.gz",
    "nsys": "nsys/h100_2gpu_trim_schema3.25.0.sqlite.gz",
    "roctx": "cases/rocprofv3_roctx_messages.json.gz",
    "proton": "proton/examples_cuda.json",
}


@cache
def history() -> Path:
    """Return the unpacked database of version 0.1.0."""
    path = Path(tempfile.mkdtemp()) / "history.db"
    path.write_bytes(gzip.decompress((STORED / "history.db.gz").read_bytes()))
    return path


def stored(name: str) -> str:
    """Return the page of a stored run."""
    path = draw(name, RUNS[name], history().with_name(f"{name}.html"), f"sqlite:///{history()}")
    return path.read_text(encoding="utf-8")


def trace(file: str) -> str:
    """Return the page of a golden trace."""
    summary = summarise(read([FOLDER.parent / "traces" / file]))
    kept = trace_run(summary, "read", file, "workbench read", "one")
    run = replace(kept.run, started=synthetic.AT, project="p")
    return trace_page(run, (), kept.findings, kept.profiles, summary)


def small(**more: bool) -> tuple[Run, list[Outcome]]:
    """Return a sweep of two Impls whose records have eight samples."""
    run, outcomes = synthetic.matmul(choices=CHOICES, **more)
    return run, few(outcomes)


def with_energy() -> tuple[Run, list[Outcome]]:
    """Return the sweep with an energy of each final."""
    run, outcomes = small()
    records = [replace(o, timing=replace(o.timing, energy=synthetic.energy_of(
        o.time_s, 690.0 - 14 * n, seed=o.key)))
        if isinstance(o, Record) and o.phase == "final" and isinstance(o.timing, Measured) else o
        for n, o in enumerate(outcomes)]  # fmt: skip
    return run, records


def sheet() -> roofline_points.Sheet:
    """Return a roofline of a measured sweep, a predicted one and a kernel without FLOPs."""
    runs = [small(), synthetic.softmax(predicted=True, device="mi300x"), synthetic.copy()]
    return sheet_of([RunWithOutcomes(run, few(outcomes)) for run, outcomes in runs])


def crowded() -> roofline_points.Sheet:
    """Return a roofline of all times of several runs: of kernels with FLOPs and without, of two
    devices, predicted and measured."""
    runs = [small(), synthetic.softmax(), synthetic.softmax(predicted=True, device="mi300x")]
    for name, slower in (("copy", 1.0), ("fill", 0.6), ("gather", 9.0)):
        run, outcomes = synthetic.copy()
        changed = [
            replace(o, key=f"{name} {o.key}", case=replace(o.case, kernel=name),
                    timing=synthetic.measured(o.time_s * slower, n=8, seed=len(name)))
            for o in outcomes if isinstance(o, Record)
        ]  # fmt: skip
        runs.append((replace(run, kernel=name, id=f"{run.id}-{name}"), list(changed)))
    return sheet_of([RunWithOutcomes(run, few(outcomes)) for run, outcomes in runs], (), True)


def sizes_measured() -> tuple[Run, list[Outcome]]:
    """Return a measurement of one kernel at four sizes, beside a library."""
    run, outcomes = synthetic.softmax()
    record = next(o for o in few(outcomes) if isinstance(o, Record))
    made: list[Outcome] = []
    for n, rows in enumerate((1024, 2048, 4096, 8192)):
        for impl, backend, share in (("rows", "triton", 1.0), ("torch", "torch", 1.3 - 0.1 * n)):
            case = replace(record.case, impl=impl, backend=backend, sizes={"M": rows, "N": 4096},
                           config=record.case.config if backend == "triton" else {})  # fmt: skip
            timing = synthetic.measured(rows * 5e-9 * share, n=8, seed=n)
            done = replace(record, flops=5 * rows * 4096, bytes=4 * rows * 4096, phase="final")
            made.append(replace(done, case=case, key=f"{impl}{rows}", timing=timing))
    made.append(Failure(made[0].case, "f", run.id, synthetic.AT, "launch", "illegal access"))
    return replace(run, engine="measure"), made


@cache
def site() -> Mapping[str, str]:
    """Return the site of two kernels over two branches, in which one became slower, then faster on
    the branch alone: index, pages and the JSON document, by the names of files. Commits have their
    place in the history in place of their hash."""
    folder = Path(tempfile.mkdtemp())
    made_history.repository(folder / "repo", 26, branch_at=18, on_branch=8)
    main, branch = (made_history.commits(folder / "repo", name) for name in ("main", "feature"))
    url = f"sqlite:///{folder / 'h.db'}"

    def time_of(n: int, at: float = 30e-6) -> float:
        return made_history.noisy(at, n, 0.004) * (1.05 if n >= 13 else 1) * (0.9 if n > 40 else 1)

    with open_history(url) as history:
        made_history.fill(history, main, time_of, library_s=29e-6)
        made_history.fill(history, branch[-8:], lambda n: time_of(38 + n), first=40)
        made_history.fill(
            history, main[::3], lambda n: time_of(n, 9e-6), 60, kernel="softmax", dtype="fp16"
        )
        made_history.fill(history, main[::2], lambda n: time_of(n, 29e-6), first=80, phase="hot")
    words = ["site", str(folder / "site"), "--database", url, "--json", str(folder / "site.json")]
    text = io.StringIO()
    with redirect_stdout(text), redirect_stderr(text):
        assert cli.main([*words, "--repository", str(folder / "repo")]) == 0
    files = {
        path.relative_to(folder / "site").as_posix(): path.read_text("utf-8")
        for path in (folder / "site").rglob("*.html")
    }
    files |= {"said": text.getvalue(), "json": (folder / "site.json").read_text(encoding="utf-8")}
    places = {commit: f"COMMIT-{n}" for n, commit in enumerate(dict.fromkeys((*main, *branch)))}
    for name, content in files.items():
        for commit, place in places.items():
            content = re.sub(rf"{commit[:7]}[0-9a-f]{{0,33}}", place, content)
        files[name] = "\n".join(lasting(content.replace(str(folder), "FOLDER")))
    shutil.rmtree(folder)
    return files


def chart_of(**scales: bool) -> str:
    """Return a chart with a line of each kind, two of which have intervals."""
    kinds = ("measured", "predicted", "computed", "datasheet", "measured", "profiled")
    series = []
    for n, kind in enumerate(kinds):
        y = tuple(10.0 * (n + 1) * x for x in (1, 2, 4, 8))
        ends = {"low": tuple(0.9 * t for t in y), "high": tuple(1.2 * t for t in y)}
        more = ends if n in (0, 1) else {}
        series.append(Series(f"line {n}", (1.0, 16.0, 256.0, 3e4), y, kind=kind, **more))
    return chart(Chart("lines", "size", "rate, GB/s", tuple(series), **scales), "c")


def curve_of(unit: str, count: int) -> str:
    """Return a curve of many Impls and libraries, measured and predicted."""
    xs = tuple(1024 * n for n in range(1, count))
    lines = [
        Series(f"impl {n} of a name that is long", xs, tuple((n + 1.0) * x for x in xs),
               tuple((n + 0.9) * x for x in xs) if n % 2 else (),
               tuple((n + 1.2) * x for x in xs) if n % 2 else (),
               "measured" if n % 3 else "predicted")
        for n in range(12)
    ]  # fmt: skip
    bound = Series("roofline bound:\nDRAM", xs, tuple(20.0 * x for x in xs))
    libraries = frozenset(line.name for line in lines[6:])
    return curve_svg(Curve("N", "M=4096, bf16", unit, tuple(lines), bound, libraries), "c")


def held_figure() -> str:
    """Return the figure of a calibration of two kernels."""
    chosen, defaults = (1.0, 1.1, 2.0), (1.5, 3.0, 4.0)
    assert regrets([("none", [], [])], "h") is None
    return str(regrets([("matmul in bf16", chosen, defaults),
                        ("copy in fp32", chosen[:2], defaults[:1])], "h"))  # fmt: skip


def code_page(*words: str) -> str:
    """Return the page that `workbench code` writes."""
    folder = Path(tempfile.mkdtemp())
    for packed in FOLDER.parent.glob("*.gfx942.amdgcn.gz"):
        (folder / packed.stem).write_bytes(gzip.decompress(packed.read_bytes()))
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        given = [word.replace("FOLDER", str(folder)) for word in words]
        assert cli.main(["code", *given, "--out", str(folder / "out")]) == 0
    (path,) = (folder / "out").rglob("code.html")
    text = path.read_text(encoding="utf-8").replace(str(folder), "FOLDER")
    shutil.rmtree(folder)
    return "\n".join(lasting(text))


PAGES: dict[str, Callable[[], str]] = {
    "small_sweep": lambda: sweep_page(*small()),
    "small_screens": lambda: sweep_page(*small(finals=False)),
    "small_predicted": lambda: sweep_page(*small(predicted=True)),
    "energy": lambda: sweep_page(*with_energy()),
    "one_field": lambda: sweep_page(*synthetic.softmax()),
    "two_fields": lambda: sweep_page(*synthetic.copy()),
    "sizes": lambda: measure_page(*sizes_measured()),
    "roofline": lambda: roofline_page(sheet()),
    "roofline_all": lambda: roofline_page(crowded()),
    "paper": lambda: paper(sheet(), "svg").decode(),
    "roofline_table": lambda: "<pre>" + csv_text(sheet()) + "</pre>",
    **{f"stored_{name}": partial(stored, name) for name in RUNS},
    "site_index": lambda: site()["index.html"],
    "site_kernel": lambda: site()[file_of("toy")],
    "site_softmax": lambda: site()[file_of("softmax")],
    "site_said": lambda: f"<pre>{site()['said']}{site()['json']}</pre>",
    **{f"trace_{name}": partial(trace, file) for name, file in TRACES.items()},
    "chart": chart_of, "chart_log": partial(chart_of, x_log=True, y_log=True),
    "curve": partial(curve_of, "GB/s", 6), "curve_many": partial(curve_of, "TFLOP/s", 24),
    "curve_times": partial(curve_of, "µs", 4), "calibration": held_figure,
    "code_page": partial(code_page, "FOLDER/copy.gfx942.amdgcn"),
    "code_page_pair": partial(code_page, "FOLDER/copy.gfx942.amdgcn", "--against",
                              "FOLDER/copy_ragged.gfx942.amdgcn"),
}  # fmt: skip


def drawn(name: str) -> list[str]:
    """Return the outline of a page, below the version of matplotlib, or what a command prints."""
    if name in PRINTED:
        return printed(*PRINTED[name])
    return [f"matplotlib {matplotlib.__version__}", *Outline(PAGES[name]()).lines]


GOLDEN = "tests/golden"  # commands run at the root
JSON = ("--json", "FOLDER/json")  # the folder is another each time
PRINTED: dict[str, tuple[str, ...]] = {
    **{f"read_{name}": ("read", f"{GOLDEN}/traces/{file}") for name, file in TRACES.items()},
    **{f"diagnose_{name}": ("diagnose", f"{GOLDEN}/traces/{file}")
       for name, file in TRACES.items()},
    "compare_traces": ("compare", *(f"{GOLDEN}/traces/cases/cmp_async_{word}.json.gz"
                                    for word in ("fast", "slow"))),
    "history": ("history",),
    "history_failures": ("history", "--failures"),
    "history_json": ("history", "softmax", "--limit", "3", *JSON),
    "tuned": ("tuned", "--file", f"{GOLDEN}/stored/tuned.json"),
    "tuned_code": ("tuned", "--file", f"{GOLDEN}/stored/tuned.json", "--code"),
    "ceilings": ("ceilings", "--device", "h200"),
    "ceilings_amd": ("ceilings", "--device", "mi300x"),
    "code_amd": ("code", "FOLDER/matmul.gfx942.amdgcn", "--text"),
    "code_pair": ("code", "FOLDER/copy.gfx942.amdgcn", "--against",
                  "FOLDER/copy_ragged.gfx942.amdgcn"),
    "code_pair_nvidia": ("code", f"{GOLDEN}/copy.sm_90.cubin", "--against",
                         f"{GOLDEN}/matmul.sm_90.cubin"),
    "code_nvidia": ("code", f"{GOLDEN}/softmax_slot.sm_120.cubin", "--text"),
    "findings": ("report", "findings", RUNS["experiment"]),
    "roofline_json": ("report", "roofline", *list(RUNS.values())[:3], *JSON),
}  # fmt: skip
HAS_DATABASE = {"read", "diagnose", "compare", "history", "ceilings", "report"}


def printed(*words: str) -> list[str]:
    """Return the lines that a command prints and its exit code, without what is of this minute."""
    folder = Path(tempfile.mkdtemp())
    shutil.copy(history(), folder / "h.db")
    for packed in FOLDER.parent.glob("*.gfx942.amdgcn.gz") if words[0] == "code" else ():
        (folder / packed.stem).write_bytes(gzip.decompress(packed.read_bytes()))
    more = ["--database", f"sqlite:///{folder / 'h.db'}"] if words[0] in HAS_DATABASE else []
    if words[0] in ("read", "code", "ceilings", "compare", "report"):
        more += ["--out", str(folder / "out")]
    text = io.StringIO()
    with redirect_stdout(text), redirect_stderr(text):
        code = cli.main([word.replace("FOLDER", str(folder)) for word in (*words, *more)])
    files = [folder / "json"] + [folder / "out"] * (words[1:2] == ("findings",))
    written = [path.read_text(encoding="utf-8") for path in files if path.is_file()]
    shutil.rmtree(folder)
    whole = "\n".join([text.getvalue(), *written]).replace(str(folder), "FOLDER")
    return [f"exit code {code}", *lasting(whole)]


def lasting(text: str) -> list[str]:
    """Return the lines of a text without moments, names of runs and versions."""
    text = re.sub(r"\d{8}-\d{6}-([\w.-]+)-[0-9a-f]{4}", r"RUN-\1", text)
    text = re.sub(r"20\d\d-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?([+-]\d\d:\d\d)?", "MOMENT", text)
    text = text.replace(__version__, "VERSION")
    return [line.rstrip() for line in text.splitlines()]


def without_places(lines: Sequence[str]) -> list[str]:
    """Return the lines without what follows from a layout."""
    places = r" (?:d|x|y|[xy][12]|c[xy]|points|transform|viewbox|width|height|style)=.*"
    return [re.sub(places, "", line) for line in lines[1:]]


def place_of(name: str) -> Path:
    """Return the file of a page, packed, or of a printed text."""
    return FOLDER / (f"{name}.txt.gz" if name in PAGES else f"{name}.txt")


def golden(name: str) -> list[str]:
    """Return the lines of a file. Raises OSError where it is not there."""
    content = place_of(name).read_bytes()
    text = gzip.decompress(content) if name in PAGES else content
    return text.decode().split("\n")


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name in (*PAGES, *PRINTED):
        content = "\n".join(drawn(name)).encode()
        packed = gzip.compress(content, mtime=0) if name in PAGES else content
        place_of(name).write_bytes(packed)


if __name__ == "__main__":
    main()
