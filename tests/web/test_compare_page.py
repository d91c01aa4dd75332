"""The pages of comparisons, measurements, experiments and traces in a real browser: opened from a
file, offline."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import compiled_cases
import pytest
import synthetic
from compiled_cases import CASE, FACTS, other, paired
from compiled_cases import predicted as predicted_time
from nightly import by_turns

from workbench.code.code_reading import MachineCode
from workbench.code.flow import flow_graph
from workbench.code.listing import read_sass
from workbench.code.partitions import specialisation
from workbench.commands.ceilings import CeilingsOptions
from workbench.commands.ceilings_command import stated_run
from workbench.commands.traces import trace_run
from workbench.data import stats
from workbench.data.record import (
    Case,
    Chart,
    Comparison,
    Evidence,
    Failure,
    Finding,
    Measured,
    Outcome,
    Predicted,
    Ratio,
    Record,
    Run,
    Series,
)
from workbench.data.verdict import verdict
from workbench.device.calibration import calibration_of
from workbench.device.error_band import device_words
from workbench.device.hardware import DEVICES, device_named
from workbench.reports.calibration import page as calibration_page
from workbench.reports.calibration import part_of
from workbench.reports.ceilings import page as ceilings_page
from workbench.reports.code import CodeView
from workbench.reports.code import page as code_page
from workbench.reports.compare import page as compare_page
from workbench.reports.experiment import page as experiment_page
from workbench.reports.measure import page as measure_page
from workbench.reports.trace import comparison_page
from workbench.reports.trace import page as trace_page
from workbench.reports.versions import changes_page
from workbench.reports.workload import page as workload_page
from workbench.traces.readers import read
from workbench.traces.trace import ActivityKind, Trace
from workbench.traces.trace_compare import TraceOperand
from workbench.traces.trace_compare import compare as compared_traces
from workbench.traces.trace_summary import summarise
from workbench.workload.tuning_text import DONE_HEADINGS

pytestmark = pytest.mark.web

GOLDEN = Path(__file__).parents[1] / "golden"
TRACES = GOLDEN / "traces"
BERT = "tracelens_h100_bert_small.json.gz"
HOSTILE = '<script>document.title = "owned"</script><img src=x onerror=alert(1)>&amp;"\''
SIZES = {"M": 4096, "N": 4096, "K": 4096}
CONFIG = {"block_m": 128, "block_n": 256, "block_k": 64, "num_warps": 8, "num_stages": 3}
Open = Callable[..., Any]


def interleaved(times_s: Sequence[float], seed: int = 0, rounds: int = 24) -> list[Measured]:
    """Windows of sides that share a clock which wanders by 5 %."""
    dice = random.Random(seed)
    windows: list[list[list[float]]] = [[] for _ in times_s]
    mhz: list[list[float]] = [[] for _ in times_s]
    clock = 1500.0
    for _ in range(rounds):
        for operand, time_s in enumerate(times_s):
            clock = min(1600.0, max(1400.0, clock + dice.gauss(0, 25)))
            mhz[operand].append(clock)
            took = [time_s * 1500 / clock * (1 + abs(dice.gauss(0, 0.002))) for _ in range(12)]
            windows[operand].append(took)
    return [_measured(w, f) for w, f in zip(windows, mhz, strict=True)]


def _measured(windows: Sequence[Sequence[float]], mhz: Sequence[float]) -> Measured:
    samples = tuple(s for window in windows for s in window)
    low, high = stats.median_interval(samples)
    return Measured(
        stats.median(samples), low, high, samples, "cold", "events", "p2-3f2a91", len(windows),
        stats.median(mhz), 51.0, 640.0, "sustained", tuple(len(w) for w in windows), tuple(mhz),
    )  # fmt: skip


def run(engine: str, name: str, predicted: bool = False) -> Run:
    created, _ = synthetic.matmul(predicted=predicted)
    command = f"python -m workbench.{engine} matmul"
    return replace(created, engine=engine, name=name, command=command, sizes={}, vary=(), tune=())


def record(of: Run, key: str, timing: Any, phase: Any, sizes: Any = SIZES, **case: Any) -> Record:
    wanted = {"kernel": "matmul", "impl": "tiles", "backend": "triton", "config": CONFIG, **case}
    created = Case(**wanted, sizes=sizes, dtype="bf16", device=of.device)
    m, n, k = sizes["M"], sizes["N"], sizes["K"]
    bytes_ = 2 * (m * k + k * n + m * n)
    return Record(created, key, of.id, of.started, phase, timing, 2 * m * n * k, bytes_, "gpu", 0.2)


def compared(
    of: Run, by: float, n: int = 0, sizes: Any = SIZES
) -> tuple[list[Outcome], list[Comparison]]:
    """The right side takes `by` times as long."""
    timings = interleaved([206e-6, 206e-6 * by], n)
    operands: list[Outcome] = [
        record(of, f"{place}{n}", t, "compare", sizes)
        for place, t in zip(("left", "right"), timings, strict=True)
    ]
    ratio = Ratio(by, by * 0.998, by * 1.002)
    result = verdict(ratio, ratio, 0.01, 0.003, 24)
    names = ("tiles at HEAD~1", "tiles at WORKING")
    text = Comparison(of.id, of.started, "matmul", sizes, "bf16", *names, f"left{n}", f"right{n}",
                      result, 3)  # fmt: skip
    return operands, [text]


def slow() -> str:
    of = run("compare", "versions")
    return compare_page(of, *compared(of, 1.02))


def with_energy(record: Outcome, power_w: float, windows: int = 6) -> Outcome:
    """The same with an energy, where it has a measured time."""
    if not isinstance(record, Record) or not isinstance(record.timing, Measured):
        return record
    energy = synthetic.energy_of(record.time_s, power_w, windows, record.key)
    return replace(record, timing=replace(record.timing, energy=energy))


def saved() -> str:
    """A little slower, and less energy."""
    of = run("compare", "versions")
    (left, right), text = compared(of, 1.02)
    return compare_page(of, [with_energy(left, 650, 12), with_energy(right, 500, 12)], text)


def failed() -> str:
    of = run("compare", "versions")
    (left, right), (text,) = compared(of, 1.0)
    reason = "wrong at y[3, 5]: 0.5 where 0.25 is right, 31 tolerances off"
    broken = Failure(right.case, right.key, of.id, of.started, "check", reason)
    return compare_page(of, [left, broken], [replace(text, verdict=None)])


def suite() -> str:
    of = run("gate", "main")
    outcomes: list[Outcome] = []
    text: list[Comparison] = []
    for n, by in enumerate((1.0, 1.03, 0.96, 1.0101)):
        operands, result = compared(of, by, n, {**SIZES, "M": 1024 << n})
        outcomes, text = outcomes + operands, text + result
    return compare_page(of, outcomes, text)


def measured() -> str:
    of = run("measure", "tiles, persistent")
    outcomes: list[Outcome] = []
    for n, m in enumerate((1024, 4096)):
        sizes = {**SIZES, "M": m}
        base = 206e-6 * m / 4096
        names = (("tiles", "triton", CONFIG), ("persistent", "triton", CONFIG),
                 ("torch", "torch", {}))  # fmt: skip
        for phase, by in (("final", 1.0), ("hot", 0.93)):
            timings = interleaved([base * by, base * by * 1.01, base * by * 0.99], n)
            outcomes += [
                record(of, f"{i}{m}", replace(t, regime="hot" if phase == "hot" else "cold"),
                       phase, sizes, impl=i, backend=b, config=c)
                for (i, b, c), t in zip(names, timings, strict=True)
            ]  # fmt: skip
    case = Case("matmul", "split", "triton", {"block_m": 64}, SIZES, "bf16", of.device)
    outcomes.append(Failure(case, "f", of.id, of.started, "compile", "PassManager::run failed"))
    outcomes = [o if getattr(o, "phase", "") == "hot" else with_energy(o, 600) for o in outcomes]
    return measure_page(of, outcomes)


def predicted() -> str:
    of = run("measure", "tiles", predicted=True)
    timing = Predicted(210e-6, "analytic-1", 190e-6, 30e-6, 60e-6, 8e-6, 2e-6, "compute")
    return measure_page(of, [record(of, "p", timing, "predict")])


def experiment() -> str:
    of = run("experiment", "launch_overhead")
    variants = [record(of, f"a{n}", t, "final", impl=f"arm_{n}")
            for n, t in enumerate(interleaved([2e-6, 206e-6, 9e-4]))]  # fmt: skip
    rows = (
        Evidence("GPU utilisation", 0.42, "1", "measured", 0.4, 0.44, "KPI", "> 80 %", False),
        Evidence("mean gap", 0.4e-6, "s", "measured", None, None, "KPI", "< 1 us", True),
        Evidence("rate", 4.3e12, "B/s", "datasheet", group="ceilings"),
    )
    xs = (0.125, 1.0, 8.0, 64.0)
    line = Series("measured", xs, (5e11, 4e12, 3e13, 6e13), (4e11, 3e12, 2e13, 5e13),
                  (6e11, 5e12, 4e13, 7e13))  # fmt: skip
    ceiling = Series("stated", xs, (6e11, 5e12, 4e13, 6e13), kind="datasheet")
    chart = Chart("Rate against intensity", "FLOP per byte", "FLOP/s", (line, ceiling), True, True)
    result = Finding(of.id, of.started, of.name, "matmul", SIZES, "bf16", "launch-bound",
                    "The GPU waits for launches.", rows, (chart,), ("A caveat.",))  # fmt: skip
    return experiment_page(of, variants, [result, replace(result, kernel="", charts=())])


def trace(of: Trace) -> str:
    summary = summarise(of)
    kept = trace_run(
        summary, "read", of.files[0].name if of.files else "t.json", "workbench read t"
    )
    return trace_page(kept.run, (), kept.findings, kept.profiles, summary)


def calibration() -> str:
    known = calibration_of("h100")
    assert known is not None  # it comes with the workbench
    device = device_named("h100")
    return calibration_page(known, [part_of(known, "matmul", "bf16", device)], device)


def hostile() -> str:
    """Every name of the file is markup."""
    of = Trace("torch.profiler", devices={"0": {"name": HOSTILE}}, notes=[HOSTILE])
    at = 1000
    for n in range(18):
        of.activities.add(ActivityKind.OP, HOSTILE, at - 900, at + 10, "", "1", "p")
        of.activities.add(ActivityKind.CALL, HOSTILE, at - 500, at, "", "1", "p", n)
        name = f"{HOSTILE}{n % 3}"
        of.activities.add(ActivityKind.KERNEL, name, at, at + 4000, "0", HOSTILE, "p", n)
        of.activities.add(ActivityKind.RANGE, HOSTILE, at, at + 100, "", "1", "p")
        at += 9000
    return trace(of)


def two_traces() -> str:
    operands = []
    for name in ("eager_trace.json.gz", "graph_trace.json.gz"):
        kept = trace_run(summarise(read([TRACES / "h200" / name])), "read", name, "")
        operands.append(TraceOperand(name, kept.findings, kept.profiles))
    result = compared_traces(operands[0], operands[1], 0.01)
    return comparison_page(result, "workbench compare a b", "2026-11-23T10:00:00")


def compilers() -> str:
    """Two versions of Triton over configs with long names: 70 rows, ten of them folded."""
    worse = other(timing=predicted_time(1.2e-3), registers=252)
    config = {**CONFIG, "group_m": 8, "split_store": 1}
    pairs = [
        paired(replace(CASE, impl=f"persistent{n}", config=config, sizes=SIZES, device=device),
               FACTS, worse)
        for n in range(35) for device in ("h200", "rtx7900xtx")
    ]  # fmt: skip
    return changes_page(
        compiled_cases.changes(
            "Two compilers", "Triton 3.6.0", "Triton 3.9.0", ["h200", "rtx7900xtx"], pairs, [],
            "workbench compare --triton 3.6.0 3.9.0", "2026-11-23T12:00", 1.0,
        )
    )  # fmt: skip


def tuned_workload() -> str:
    """A workload tuned without a GPU, one of whose signatures has twelve tensors."""
    long = ", ".join(f"tensor_{n} 4096x4096 bfloat16" for n in range(12))
    rows = [("scale", text, "50 %", "kept", "BLOCK 64, 4 warps, 3 stages", "~52.6 µs", "~52.6 µs")
            for text in ("x 4096 float32", long)]  # fmt: skip
    notes = [(f"scale, {row[1]}", "the config in use stays") for row in rows]
    error, order = device_words("h200", "scale"), "In the order of their share."
    return workload_page("NVIDIA H200", error, "0 of 2.", order, DONE_HEADINGS, rows, notes)


def code() -> str:
    """A product's machine code."""
    text = gzip.decompress((GOLDEN / "code" / "h200_mm.nvdisasm_gi.txt.gz").read_bytes()).decode()
    listing = read_sass(text)
    graph = flow_graph(listing)
    machine = MachineCode(listing.functions[0], "sm_90", listing, graph, "mm", None, None,
                          partitions=specialisation(listing, graph))  # fmt: skip
    return code_page(CodeView("matmul.tiles", "h200", machine, [("Target", "sm_90")], "workbench"))


def ceilings() -> str:
    """The stated ceilings of a device."""
    return ceilings_page(stated_run(DEVICES["h200"], CeilingsOptions()), [])


MAKERS = {"compilers": compilers, "tuned workload": tuned_workload, "code": code,
          "ceilings": ceilings, "slow": slow, "saved": saved, "experiment": experiment,
          "failed": failed, "suite": suite,
          "measured": measured, "predicted": predicted,
          "nothing": lambda: measure_page(run("measure", "tiles"), []),
          "no bout": lambda: compare_page(run("compare", "impls"), [], []),
          "timeline": lambda: trace(read([TRACES / "torch_profiler" / BERT])),
          "counters": lambda: trace(read([TRACES / "h200" / "raw_base.csv.gz"])),
          "checker": lambda: trace(read([TRACES / "h200" / "oob.log.gz"])),
          "hostile": hostile, "two traces": two_traces, "calibration": calibration}  # fmt: skip

# Text in figures against the page, and all other text against what lies under it.
CONTRAST = """() => {
  const parse = (text) => { const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number);
    return [r, g, b, a]; };
  const light = ([r, g, b]) => { const [x, y, z] = [r, g, b].map((v) => { v /= 255;
      return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * x + 0.7152 * y + 0.0722 * z; };
  const ground = (element) => { for (let e = element; e; e = e.parentElement) {
      const colour = parse(getComputedStyle(e).backgroundColor); if (colour[3] > 0.5) return colour;
    } return [255, 255, 255, 1]; };
  const poor = []; let seen = 0;
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || ["STYLE", "TITLE"].includes(e.tagName.toUpperCase())) continue;
    if (!e.getClientRects().length) continue;
    const style = getComputedStyle(e);
    const ink = light(parse(e.localName === "text" ? style.fill : style.color));
    const under = light(ground(e));
    const ratio = (Math.max(ink, under) + 0.05) / (Math.min(ink, under) + 0.05);
    seen++;
    if (ratio < 4.5) poor.push(`${ratio.toFixed(2)} ${e.localName} ${e.textContent.slice(0, 40)}`);
  }
  return [seen, poor.slice(0, 10)];
}"""


@pytest.fixture(scope="module")
def files(pages: Any) -> Any:
    """One page on disk of each kind."""
    return pages("compare", lambda name: MAKERS[name]())


@pytest.fixture
def show(new_tab: Any, files: Any) -> Iterator[Open]:
    """Opens a page offline, and afterwards asserts that it was silent and asked for nothing."""
    tabs, complaints = [], []

    def opened(name: str, width: int = 1280, scheme: str = "light") -> Any:
        tabs.append(tab := new_tab(width, scheme, reduced_motion="reduce"))
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on(
            "request",
            lambda wanted: (
                None if wanted.url.startswith(("file:", "data:")) else complaints.append(wanted.url)
            ),
        )
        tab.goto(files[name].as_uri())
        return tab

    yield opened
    for tab in tabs:
        tab.close()
    assert complaints == []


@pytest.mark.parametrize(("name", "scheme"), by_turns(MAKERS, ("light", "dark")))
def test_text_is_legible_and_nothing_overflows_a_desk(show: Open, name: str, scheme: str) -> None:
    """Both of one page that is opened: to open it is most of the time."""
    tab = show(name, scheme=scheme, width=1280)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 1280
    tab.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    seen, poor = tab.evaluate(CONTRAST)
    assert seen > 20 and poor == []
    dark = tab.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert dark == (scheme == "dark")


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("width", [400])
def test_nothing_overflows_sideways(show: Open, name: str, width: int) -> None:
    tab = show(name, width=width)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [1280, 400])
def test_words_of_compared_code_are_not_squeezed(show: Open, width: int) -> None:
    tab = show("compilers", width=width)
    tab.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    for heading in ("kernel", "what changed", "instruction mix"):
        places = tab.locator("th", has_text=heading)
        assert places.count() == 2, "the folded rows have their heads too"
        assert all(each["width"] >= 145 for n in range(2) if (each := places.nth(n).bounding_box()))


def test_the_word_comes_first_and_the_sides_are_in_order(show: Open) -> None:
    tab = show("slow")
    assert tab.inner_text("#answer").startswith("SLOW")
    names = tab.locator("table.data tbody td:first-child").all_inner_texts()
    assert [n.strip() for n in names] == ["tiles at HEAD~1", "tiles at WORKING"]
    labels = tab.eval_on_selector_all("svg.figure", "all => all.map(f => f.ariaLabel)")
    assert [label.split(" ")[0] for label in labels] == ["Samples", "Ratio", "Ratio", "SM"]


def test_a_side_that_failed_says_why_and_nothing_is_drawn(show: Open) -> None:
    tab = show("failed")
    assert "31 tolerances off" in tab.inner_text("#answer")
    assert tab.locator("svg.figure").count() == 0


def test_energy_stands_beside_the_verdict(show: Open) -> None:
    tab = show("saved")
    assert tab.locator("#answer .word").inner_text() == "SLOW", "the verdict is of time"
    facts = tab.locator(".facts").inner_text()
    assert "ratio in energy" in facts.lower() and "0.78" in facts
    heads = tab.locator("#h-operands ~ .rows th").all_inner_texts()
    assert {"energy, mJ", "power, W", "per joule"} <= set(heads)
    assert "energy, mJ" not in show("slow").inner_text("body")
    assert "energy, mJ" in show("measured").inner_text("body")


def test_a_suite_opens_what_is_slow_alone(show: Open) -> None:
    tab = show("suite")
    result = tab.eval_on_selector_all(
        "#h-each ~ details", "all => all.map(d => [d.open, d.querySelector('summary').textContent])"
    )
    assert len(result) == 4
    assert [summary for is_open, summary in result if is_open] == [
        s for _, s in result if s.endswith("SLOW")
    ]
    assert tab.locator('svg[aria-label^="Ratio of each comparison"]').count() == 1
    assert tab.locator("tr.bad").count() == 1


def test_a_measurement_names_both_regimes_and_its_failures(show: Open) -> None:
    tab = show("measured")
    regimes = tab.locator("table.data tbody td:nth-child(2)").all_inner_texts()
    assert regimes == ["cold"] * 3 + ["hot"] * 3 + ["cold"] * 3 + ["hot"] * 3
    assert "PassManager::run failed" in tab.inner_text("main")


def test_the_predicted_page_opens_with_the_word(show: Open) -> None:
    tab = show("predicted")
    first = tab.inner_text("body").strip().splitlines()[0]
    assert first.startswith("All times on this page are predicted")
    assert "~210" in tab.inner_text("table.data")


def test_an_experiment_says_its_word_first_and_which_targets_were_missed(show: Open) -> None:
    tab = show("experiment")
    assert tab.inner_text("#answer-f0").startswith("launch-bound")
    assert tab.locator("tr.missed").first.inner_text().split("\t")[:2] == [
        "GPU utilisation",
        "42 %",
    ]
    assert tab.locator('svg[aria-label="Rate against intensity"]').count() == 1
    assert "$" not in tab.inner_text("main")  # no tick in matplotlib's own markup
    heads = tab.locator("h2").all_inner_texts()
    assert heads[:2] == ["matmul, M=4096 N=4096 K=4096, bf16",
                         "launch_overhead, M=4096 N=4096 K=4096, bf16"]  # fmt: skip


def test_a_trace_shows_its_word_its_lanes_and_its_gaps(show: Open) -> None:
    tab = show("timeline")
    assert "profiled" in tab.inner_text("body").strip().splitlines()[0]
    assert tab.locator('svg[aria-label^="timeline of device"]').count() == 1
    assert tab.locator('svg[aria-label^="a part of"]').count() == 1
    lanes = tab.locator('svg[aria-label^="timeline of device"] text').all_text_contents()
    assert {"device", "idle", "stream 7"} <= {lane.strip() for lane in lanes}
    heads = tab.locator("h3").all_inner_texts()
    assert {"Longest gaps", "Classes of kernels", "Ranges of the host"} <= set(heads)
    gaps = tab.locator("h3", has_text="Longest gaps").locator("xpath=following-sibling::div[1]")
    assert gaps.locator("tbody tr").count() == 10


def test_names_of_a_trace_are_text(show: Open) -> None:
    """Escaped in tables, figures and their titles: nothing runs, and nothing is asked for."""
    tab = show("hostile")
    assert "owned" not in tab.title()
    own = tab.locator("body script")
    assert own.count() == 1 and "[data-tables]" in own.text_content()  # the page's
    assert tab.locator("body img").count() == 0
    shown = tab.inner_text("main")
    assert shown.count("<script>") > 8 and "&amp;" in shown


def test_a_page_of_counters_and_one_of_a_checker(show: Open) -> None:
    assert "DRAM throughput" in show("counters").inner_text("main")
    text = show("checker").inner_text("main")
    assert "memcheck: fail" in text and "oob+0x160" in text


def test_two_traces_say_the_word_first(show: Open) -> None:
    tab = show("two traces")
    assert tab.locator("#answer .word").inner_text() == "suspected FAST"
