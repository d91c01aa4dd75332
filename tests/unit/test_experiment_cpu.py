"""cpu_vs_gpu: the distributions of both sides, the speed-up, and whether both kernels ran."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from variant_results import by_name, context, failed, text, took

from workbench.data.stats import summary
from workbench.experiments import ExperimentError
from workbench.experiments.cpu_vs_gpu import EXPERIMENT, analyse, variant_names, variants
from workbench.reports.findings import GAINS

US = 1e-6
SIZES = {"B": 1, "V": 32_000}
QUESTION = context("sample_logits", sizes=SIZES)
CPU, GPU, ALONE = variant_names(SIZES)
VARIANTS = {variant.name: variant for variant in variants(QUESTION)}
GROUP_MAXIMA = {"made": "_group_maxima", "launches": 2}


def result(cpu=400 * US, gpu=30 * US, half=0.01, kernels=2, compiled="_group_maxima", launches=2):
    of = {"half": half, "kernels": kernels, "made": compiled, "launches": launches}
    return {
        CPU: took(VARIANTS[CPU], cpu, half=half),
        GPU: took(VARIANTS[GPU], gpu, **of),
        ALONE: took(VARIANTS[ALONE], gpu / 5, **of),
    }


def analysed(of, question=QUESTION):
    (only,) = analyse(question, of)
    return only


def test_both_vocabularies_and_both_numbers_of_rows_by_the_clock_of_the_host():
    every = variants(context("sample_logits"))
    sizes = {tuple(a.sizes.items()) for a in every}
    assert sizes == {(("B", b), ("V", v)) for b in (1, 8) for v in (32_000, 128_256)}
    assert {a.impl: a.clock for a in every if "only" not in a.name} == {
        "cpu": "host", "partials_and_merge": "host",
    }  # fmt: skip
    assert len({a.name for a in every}) == len(every) == 12
    assert EXPERIMENT.kernels == ("sample_logits",)


def test_mean_p50_p95_and_stddev_of_each_side_are_those_of_its_samples():
    samples = tuple(n * US for n in (390, 395, 400, 401, 402, 410, 500))
    of = result()
    of[CPU] = took(VARIANTS[CPU], 401 * US, samples=samples)
    rows, right = by_name(analysed(of), CPU), summary(samples)
    assert rows["mean"].value == right.mean and rows["p95"].value == right.p95
    assert rows["standard deviation"].value == right.stddev and rows["p50"].value == 401 * US
    assert set(by_name(analysed(of), GPU)) == {"mean", "p50", "p95", "standard deviation"}


def test_the_speed_up_has_an_interval_and_the_copied_bytes_stand_there():
    of = analysed(result(half=0.1))
    rows = by_name(of)
    speed = rows["speed-up of the GPU"]
    assert [s.name for s in of.charts[0].series] == [CPU, GPU]
    assert of.word == "GPU faster" and speed.value == pytest.approx(400 / 30)
    assert (speed.low, speed.high) == pytest.approx((360 / 33, 440 / 27))
    assert rows["logits copied to the CPU"].value == 64_000
    assert by_name(of, GAINS)["sample on the GPU"].value == pytest.approx(1 - 30 / 400)


def test_a_slower_gpu_is_said_and_no_gain():
    slower = analysed(result(gpu=500 * US))
    assert slower.word == "CPU faster" and not by_name(slower, GAINS)


def test_intervals_that_meet_decide_nothing():
    assert analysed(result(gpu=395 * US, half=0.05)).word == "undecided"


@pytest.mark.parametrize(
    ("kernels", "launches", "compiled", "words"),
    [
        (3, 2, "_group_maxima", "launched 3 kernels"),
        (None, 1, "_group_maxima", "launched 1 kernels"),
        (2, 2, "_softmax", "_softmax and not _group_maxima"),
    ],
)
def test_no_word_where_other_kernels_ran(kernels, launches, compiled, words):
    of = analysed(result(kernels=kernels, launches=launches, compiled=compiled))
    assert of.word == "other kernels" and words in of.sentence
    count = by_name(of)["kernels of a call on the GPU"]
    assert count.met is (count.value == 2)


@pytest.mark.parametrize("operand", [CPU, GPU])
def test_a_side_without_a_time_leaves_no_word(operand):
    of = result() | {operand: failed(VARIANTS[operand])}
    assert (
        analysed(of).word == "no verdict"
        and f"No time of {operand}: it broke." in analysed(of).caveats
    )


def test_without_a_gpu_the_device_alone_is_predicted():
    question = context("sample_logits", sizes=SIZES, predicts=True)
    of = {
        CPU: failed(VARIANTS[CPU]),
        GPU: failed(VARIANTS[GPU]),
        ALONE: text(VARIANTS[ALONE], 3 * US, 2),
    }
    only = analysed(of, question)
    assert only.word == "needs a GPU" and f"No time of {CPU}; {GPU}: it broke." in only.caveats
    (time,) = (e for e in only.evidence if e.unit == "s")
    assert time.kind == "predicted" and time.group == ALONE


def test_another_kernel_is_refused():
    with pytest.raises(ExperimentError, match="leave --kernel out"):
        variants(context("softmax"))


@given(st.floats(1e-6, 1e-2), st.floats(1e-6, 1e-2), st.floats(0, 0.3))
def test_a_side_is_called_faster_only_where_the_intervals_lie_apart(cpu, gpu, half):
    word = analysed(result(cpu, gpu, half)).word
    apart = {"GPU faster": cpu * (1 - half) > gpu * (1 + half),
             "CPU faster": gpu * (1 - half) > cpu * (1 + half)}  # fmt: skip
    if word == "undecided":
        assert not any(apart.values()) or abs(cpu / gpu - 1) < 1e-9 or half < 1e-9
    else:
        assert cpu > gpu if word == "GPU faster" else gpu > cpu
        edge = abs(cpu * (1 - half) / (gpu * (1 + half)) - 1)
        assert apart[word] or edge < 1e-9
