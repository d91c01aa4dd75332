"""e2e: the table of a model's step, measured and predicted."""

import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from null_backend import Fate, Null
from rich.console import Console
from variant_results import ROOT, by_name, context, failed, text, took

from workbench import catalog
from workbench.commands import experiment_command
from workbench.commands.experiment import ExperimentOptions
from workbench.experiments import ExperimentError
from workbench.reports.findings import GAINS, IMPACT, KPI

FILE = ROOT / "examples/rwkv7/e2e.py"
e2e = catalog.module_at(FILE)
EAGER, EMPTY, GRAPH, TORCH, WAIT = e2e.EAGER, e2e.EMPTY, e2e.GRAPH, e2e.TORCH, e2e.WAIT
EXPERIMENT, USUAL, variants, analyse, pieces = (
    e2e.EXPERIMENT,
    e2e.USUAL,
    e2e.variants,
    e2e.analyse,
    e2e.pieces,
)
US = 1e-6
QUESTION = context(e2e.STEP)
VARIANTS = {variant.name: variant for variant in variants(QUESTION)}
PRODUCTS = [p.name for p in pieces(USUAL) if p.product]
TIMES = {EAGER: 600 * US, GRAPH: 200 * US, TORCH: 700 * US, WAIT: 20 * US, EMPTY: 0.8 * US,
         **dict.fromkeys(PRODUCTS, 7 * US)}  # fmt: skip
COUNTS = {EAGER: 33, GRAPH: 33, TORCH: 45}


def result(half=0.01, without=(), **times):
    every = {**TIMES, **times}
    return {
        n: failed(a) if n in without
        else took(a, every[n], half=half, kernels=COUNTS.get(n, 1),
                  peak_bytes=2_000_000 if n == TORCH else 1_000_000)
        for n, a in VARIANTS.items()
    }  # fmt: skip


def analysed(of, question=QUESTION):
    (only,) = analyse(question, of)
    return only


def test_the_step_calls_what_the_kernels_file_says():
    every = pieces(USUAL)
    assert sum(p.calls for p in every) == 8 * USUAL["L"] + 1
    flops = sum(2 * p.calls * math.prod(p.sizes.values()) for p in every if p.product)
    S, W, F, L = USUAL["S"], 64 * USUAL["H"], USUAL["F"], USUAL["L"]
    assert flops == 2 * S * L * (4 * W * W + 3 * W * F)


def test_the_table_of_guide_four():
    of = analysed(result(half=0.0))
    assert of.word == "partly launch-bound" and "3.00 times" in of.sentence
    eager, graph = by_name(of, EAGER), by_name(of, GRAPH)
    assert graph[KPI.total].target == "decreasing" and graph[KPI.total].met is True
    assert graph[KPI.kernels].met is True and "torch: 45" in graph[KPI.kernels].target
    share = graph["products, share"]
    assert share.value == pytest.approx(4 * 4 * 7 / 200)
    assert share.target == "< 60 %" and share.met is True
    wait = eager["waiting for the GPU, share at most"]
    assert wait.value == pytest.approx(20 / 600) and wait.target == "< 5 %" and wait.met is True
    assert eager["launch overhead, share"].value == pytest.approx(400 / 600)
    assert graph["launch overhead, share at most"].value == pytest.approx(33 * 0.8 / 200)
    assert graph["peak memory without inputs"].met is True
    assert graph["largest error, in tolerances"].met is True
    assert by_name(of, IMPACT)["time in which the GPU waits"].value == pytest.approx(2 / 3)
    assert by_name(of, GAINS)["capture the step in a graph"].value == pytest.approx(2 / 3)


def test_products_of_which_one_has_no_time_have_no_share():
    of = analysed(result(without=PRODUCTS[:1]))
    assert (
        "products, share" not in by_name(of)
        and f"No time of {PRODUCTS[0]}: it broke." in of.caveats
    )


@pytest.mark.parametrize("operand", [EAGER, GRAPH])
def test_a_step_without_a_time_leaves_no_word(operand):
    of = analysed(result(without=(operand,)))
    assert of.word == "no verdict" and f"No time of {operand}: it broke." in of.caveats


def test_without_a_gpu_the_kernels_of_a_layer_are_summed():
    question = context(e2e.STEP, predicts=True)
    own = {a.name: a for a in variants(question)}
    of = {
        n: text(a, 5 * US) if a.kernel not in (e2e.STEP, "empty") else failed(a)
        for n, a in own.items()
    }
    only = analysed(of, question)
    assert only.word == "needs a GPU" and {e.kind for e in only.evidence} == {
        "predicted", "computed",
    }  # fmt: skip
    rows = by_name(only, "step in a graph")
    assert rows[KPI.total].value == pytest.approx(33 * 5 * US) and rows[KPI.kernels].value == 33
    assert rows["products, share"].value == pytest.approx(16 / 33)
    # what a GPU alone can tell is no failure: of the other arms' reasons none is left out
    assert f"No time of {EMPTY}: it broke." in only.caveats
    missing = analysed(of | {"SwiGLU": failed(own["SwiGLU"])}, question)
    assert KPI.total not in by_name(missing) and "SwiGLU" in missing.sentence


def test_another_kernel_is_refused():
    with pytest.raises(ExperimentError, match="leave --kernel out"):
        variants(context("matmul"))


@given(st.dictionaries(st.sampled_from(sorted(VARIANTS)), st.floats(1e-7, 1e-2)),
       st.sets(st.sampled_from(sorted(VARIANTS))), st.floats(0, 0.4))  # fmt: skip
def test_whatever_was_timed_the_numbers_lie_in_their_intervals(other, without, half):
    of = analysed(result(half, without, **other))
    assert all(e.low <= e.value <= e.high for e in of.evidence if e.low is not None)
    for e in of.evidence:
        if e.met is not None and e.target == "< 60 %":
            assert e.met is (e.high < 0.6)


@pytest.mark.parametrize("predicts", [False, True])
def test_it_runs_from_the_question_to_the_page(tmp_path, predicts):
    words = io.StringIO()
    backend = Null(lambda c: Fate(time_s=1e-5, kernels=33), predicts=predicts)
    question = ExperimentOptions(str(FILE), out=tmp_path, database=f"sqlite:///{tmp_path}/h.db")
    console = Console(file=words, width=999, highlight=False, markup=False)
    trials = experiment_command.ExperimentCommand(question, console, lambda device, folder: backend)
    assert trials.go() == 0 and EXPERIMENT.kernels == (e2e.STEP,)
    (finding,) = trials.recorder.findings
    assert finding.kernel == "model_step" and finding.sentence in words.getvalue()
    assert next(tmp_path.glob("*/report.html")).is_file()
