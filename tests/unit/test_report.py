"""The page of a sweep as text: whole, small, the same each time, and safe to open."""

from __future__ import annotations

import html.parser
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import synthetic
from nightly import at_night

from workbench.data.record import Failure, Outcome, Record, Run
from workbench.reports import (
    PALETTE,
    TEMPLATES,
    ReportError,
    drawn_at_least,
    figure,
    figure_svg,
    software,
    write_page,
)
from workbench.reports.sweep import page

ROOT = Path(__file__).parents[2]
LIMIT = 500_000  # bytes of a page with 300 configs of 40 samples
MAKERS = {
    "matmul": synthetic.matmul,
    "screens": lambda: synthetic.matmul(finals=False),
    "predicted": lambda: synthetic.matmul(predicted=True),
    "softmax": synthetic.softmax,
    "copy": synthetic.copy,
    "failed": synthetic.all_failed,
    "empty": synthetic.empty,
}
BLOCKED = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Refuse())
sys.path.insert(0, {root!r})
"""


class Reader(html.parser.HTMLParser):
    """Counts tags, ids and addresses of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.targets: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("href", "src", "xlink:href"):
                self.targets.append(value or "")


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    """One page of each kind of run."""
    return {name: page(*make()) for name, make in MAKERS.items()}


def run_python(code: str, blocked: set[str]) -> str:
    """What a fresh interpreter without these packages prints."""
    code = BLOCKED.format(blocked=blocked, root=str(ROOT)) + code
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_page_needs_neither_torch_nor_triton() -> None:
    code = (
        "from tests import synthetic\nfrom workbench.reports.sweep import page\n"
        "print(page(*synthetic.softmax())[:15])"
    )
    assert run_python(code, {"torch", "triton"}) == "<!doctype html>\n"


def test_importing_the_engine_imports_neither_matplotlib_nor_jinja() -> None:
    code = "import workbench.reports, sys\nprint('matplotlib' in sys.modules)"
    assert run_python(code, {"torch", "triton", "matplotlib", "jinja2"}) == "False\n"


@pytest.mark.parametrize(
    "name", at_night(["matmul", "predicted", "screens"], {"matmul"}.__contains__)
)
def test_three_hundred_configs_fit(pages: dict[str, str], name: str) -> None:
    assert pages[name].count("<tr id=") >= 300
    assert len(pages[name].encode()) < LIMIT


@pytest.mark.parametrize("name", MAKERS)
def test_a_page_is_whole_and_alone(pages: dict[str, str], name: str) -> None:
    read = Reader(pages[name])
    assert {"html", "main", "h1", "h2"} <= {*read.tags}
    assert len(read.ids) == len(set(read.ids)), "an id occurs twice"
    for target in read.targets:
        assert target == "data:," or target.startswith("#"), target
        assert not target.startswith("#") or target[1:] in read.ids
    for reference in re.findall(r"url\(#([^)]+)\)", pages[name]):
        assert reference in read.ids
    assert "<script src" not in pages[name] and "@import" not in pages[name]


@pytest.mark.parametrize("name", ["matmul", "predicted", "copy"])
def test_the_same_records_give_the_same_bytes(pages: dict[str, str], name: str) -> None:
    assert page(*MAKERS[name]()) == pages[name]


@pytest.mark.parametrize("name", MAKERS)
def test_colours_are_all_variables_of_the_page(pages: dict[str, str], name: str) -> None:
    styles = pages[name].split("</style>")[0]
    drawn = pages[name].split("</style>")[1].split("<script>")[0]
    assert "#0a5e" not in drawn, "a stand-in colour was left in a figure"
    assert not re.findall(r"(?:fill|stroke): ?#(?!000000)[0-9a-f]{6}", drawn)
    for variable in set(re.findall(r"var\(--([\w-]+)\)", drawn)):
        assert f"--{variable}:" in styles, variable
    for variable in PALETTE:
        assert styles.count(f"--{variable}:") == 2, f"{variable} needs a light and a dark value"


def test_a_predicted_page_says_so_first(pages: dict[str, str]) -> None:
    body = pages["predicted"].split("<body>")[1].strip()
    assert body.startswith(
        '<p class="predicted-first"><strong>All times on this page are predicted'
    )
    assert "No GPU took part" in body.splitlines()[0]
    assert "All times on this page are predicted" not in pages["matmul"]
    assert "hollow: predicted" in pages["predicted"] and "hollow" not in pages["matmul"]


def test_a_page_names_each_compiler_that_may_have_made_its_code() -> None:
    versions = {"ptxas-blackwell": "13.4.59", "numpy": "2.3", "ptxas": "12.9.86", "triton": "3.9.0"}
    assert software(versions) == "triton 3.9.0, ptxas 12.9.86, ptxas-blackwell 13.4.59"
    run, records = synthetic.matmul()
    environment = replace(run.environment, versions=versions)
    assert software(versions) in page(replace(run, environment=environment), records)
    for template in TEMPLATES.glob("*.html.j2"):
        assert "env.versions[" not in template.read_text(encoding="utf-8"), template.name


def test_every_failure_is_there_with_its_reason(pages: dict[str, str]) -> None:
    _, outcomes = synthetic.matmul()
    failures = [o for o in outcomes if isinstance(o, Failure)]
    assert pages["matmul"].count('class="f"') == len(failures)
    assert "illegal memory access" in pages["matmul"]


@pytest.mark.parametrize("name", ["failed", "empty"])
def test_a_run_without_times_still_has_a_page(pages: dict[str, str], name: str) -> None:
    assert "To repeat it" in pages[name] and "python -m workbench.sweep" in pages[name]
    assert '<svg class="figure"' not in pages[name]


HOSTILE = "<script>alert('&\"$x^2$')</script>"


def hostile() -> tuple[Run, list[Outcome]]:
    """A run whose every name is an attack on the page."""
    run, outcomes = synthetic.matmul()
    outcomes = [
        replace(
            o,
            case=replace(o.case, kernel=HOSTILE, impl=HOSTILE + o.case.impl),
            **({"reason": HOSTILE} if isinstance(o, Failure) else {}),
        )
        for o in outcomes
    ]
    named = {HOSTILE + name: declared for name, declared in run.impls.items()}
    bad = {**run.ceilings, HOSTILE: {"value": 1e12, "unit": "B/s", "source": HOSTILE}}
    run = replace(run, kernel=HOSTILE, command=HOSTILE, impls=named, ceilings=bad, name=HOSTILE)
    return run, outcomes


def test_hostile_names_are_text() -> None:
    text = page(*hostile())
    assert Reader(text).tags.count("script") == 1
    assert "alert(" in text and "<script>alert" not in text and "$x^2$" in text


def test_strange_records_still_make_a_page() -> None:
    run, outcomes = synthetic.matmul()
    bare = [replace(o, resources=None) for o in outcomes]
    one = [next(o for o in outcomes if isinstance(o, Record))]
    for some in (bare, one, bare[:1], [o for o in outcomes if o.case.is_baseline]):
        for wanted in (run, replace(run, ceilings={}), replace(run, impls={}, vary=(), tune=())):
            assert "</html>" in page(wanted, some)


def test_a_page_is_replaced_whole(tmp_path: Path) -> None:
    target = tmp_path / "new" / "page.html"
    assert write_page(target, "one") == target
    write_page(str(target), "zwei µ")
    assert target.read_text(encoding="utf-8") == "zwei µ"
    assert [p.name for p in target.parent.iterdir()] == ["page.html"]


def test_a_page_that_cannot_be_kept_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = write_page(tmp_path / "page.html", "old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(ReportError, match="no space left on device; name a folder"):
        write_page(target, "new")
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["page.html"]


@pytest.mark.parametrize("error", [RuntimeError("the disk is gone"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("fails", [False, True], ids=["drawn", "cannot be drawn"])
def test_what_there_is_is_drawn_before_an_error_goes_on(error: BaseException, fails: bool) -> None:
    drawn = []

    def draw() -> None:
        drawn.append("page")
        if fails:
            raise ValueError("nor can it be drawn")

    with pytest.raises(type(error)) as caught, drawn_at_least(draw):
        raise error
    assert caught.value is error and drawn == ["page"]
    with drawn_at_least(draw):
        pass
    assert drawn == ["page"], "who ends well draws the page himself"


def test_an_unwritable_folder_is_one_helpful_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError) as caught:
        write_page(tmp_path / "file" / "page.html", "")
    text = str(caught.value)
    assert str(tmp_path) in text and "name a folder" in text and text.count(".") >= 1
    assert "\n" not in text


def test_two_figures_share_no_id_and_text_stays_text() -> None:
    drawings = []
    for prefix in ("one", "two"):
        fig = figure(300, 200)
        axes = fig.add_axes((0.2, 0.2, 0.7, 0.7))
        axes.plot([0, 1], [0.25, 1])
        axes.set_xlabel("$time$ & <b>")
        drawings.append(str(figure_svg(fig, prefix, title='"quoted"')))
    first, second = (set(Reader(d).ids) for d in drawings)
    assert first and not first & second
    assert "$time$ &amp; &lt;b&gt;" in drawings[0] and "0.25" not in drawings[0].split("<text")[0]
    assert 'aria-label="&#34;quoted&#34;"' in drawings[0]
