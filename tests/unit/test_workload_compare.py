"""Programs compared with and without a tuned table: verdicts, first steps, outputs, early ends."""

import itertools
import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.commands import workload_comparison
from workbench.commands.options import OptionError
from workbench.commands.workload_compare import WorkloadCompareOptions, run
from workbench.commands.workload_comparison import mark_of
from workbench.workload import program_runner
from workbench.workload.gate import Gate, wait
from workbench.workload.program_runs import (
    NamedOutput,
    ProgramRun,
    differences,
    first_step,
    largest_difference,
    unit_of,
    verdict_of,
    whole_rounds,
)
from workbench.workload.step_marks import MarkOptions, StepMarks
from workbench.workload.tuned_table import write

PROGRAM = Path(__file__).parents[1] / "stepping_program.py"


def runs(ratios, steps=True, first=True):
    """Rounds in which the table takes these shares of the time."""
    result = []
    for number, ratio in enumerate(ratios):
        for pinned in (False, True):
            time = (1 + 0.0001 * (number % 3)) * (ratio if pinned else 1.0)
            result.append(
                ProgramRun(
                    pinned, number, 50 * time, 7 * time if first else None, (time,) * 3 * steps
                )
            )
    return result


@pytest.mark.parametrize(
    ("ratios", "word"),
    [
        ([0.9] * 6, "FAST"),
        ([1.1] * 6, "SLOW"),
        ([1.001, 0.999] * 3, "SAME"),
        ([0.5, 1.5] * 3, "INCONCLUSIVE"),
        ([0.9] * 5, "INCONCLUSIVE"),  # too few
    ],
)
@pytest.mark.parametrize("steps", [True, False])
def test_the_verdict_is_that_of_kernels(ratios, word, steps):
    several = runs(ratios, steps)
    assert unit_of(several) == ("step" if steps else "run")
    assert verdict_of(several, 0.01).word == word


def test_noise_of_the_program_itself_widens_the_threshold():
    several = runs([0.95] * 8)
    noisy = [
        ProgramRun(r.pinned, r.number, 1.0, None, (r.steps_s[0] * (1 + 0.2 * (r.number % 2)),) * 3)
        for r in several
    ]
    assert verdict_of(several, 0.01).word == "FAST"
    result = verdict_of(noisy, 0.01)
    assert result.word == "INCONCLUSIVE" and result.noise > 0.1


def test_half_a_round_is_left_out_and_one_round_has_no_verdict():
    several = runs([0.9] * 6)
    assert whole_rounds(several[:-1]) == several[:-2]
    assert verdict_of(several[:2], 0.01) is None and verdict_of([], 0.01) is None
    assert first_step(several).middle == pytest.approx(0.9)
    assert first_step(runs([0.9], first=False)) is None and first_step([]) is None


@given(st.lists(st.floats(width=32), min_size=1, max_size=8), st.data())
def test_the_largest_difference_is_that_of_plain_python(x, data):
    y = data.draw(st.lists(st.floats(width=32), min_size=len(x), max_size=len(x)))
    expected = 0.0
    for a, b in zip(x, y, strict=True):
        if a == b or (math.isnan(a) and math.isnan(b)):
            continue
        off = abs(b - a)
        expected = max(expected, off if math.isfinite(off) else math.inf)
    assert largest_difference(np.array(x), np.array(y))[0] == expected
    assert largest_difference(np.array(x), np.array(x))[0] == 0.0


def test_outputs_of_other_shapes_and_missing_ones_are_not_compared():
    def of(name, *values):
        return NamedOutput(name, (len(values),), np.array(values))

    left = [of("a", 1.0, 2.0), of("a", 4.0), of("b", 1.0), NamedOutput("c", (1,), None)]
    right = [of("a", 1.0, 2.5), of("a", 4.0), of("b", 1.0, 1.0), NamedOutput("c", (1,), None)]
    a, b, c = differences(left, right)
    assert (a.compared, a.largest, a.relative) == (2, 0.5, 0.25)
    assert (b.compared, b.left_out) == (c.compared, c.left_out) == (0, 1)
    assert differences(left, right[1:])[0].left_out == 2


def test_an_output_is_a_tensor_or_a_number(tmp_path, monkeypatch):
    import torch

    monkeypatch.setattr("workbench.workload.step_marks.MOST_BYTES", 32)
    marks = StepMarks(MarkOptions(str(tmp_path)))
    for value in (torch.ones(2, dtype=torch.bfloat16), 3, torch.tensor([True]), torch.ones(99)):
        marks.output("x", value)
    from workbench.workload.program_runs import read_marks

    steps, first, outputs = read_marks(tmp_path)
    assert (steps, first) == ((), None)
    assert [each.shape for each in outputs] == [(2,), (), (1,), (99,)]
    assert outputs[0].values.tolist() == [1, 1] and outputs[3].values is None
    with pytest.raises(TypeError, match="a tensor or a number"):
        marks.output("x", "text")


# Whole programs


def part_of(document):
    (part,) = document["comparison"]["parts"]
    return part


def command(tmp_path, *words, rounds=6, at_once=1):
    write(tmp_path / "tuned.json", [])
    path = os.pathsep.join(filter(None, [str(PROGRAM.parents[1]), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", "workbench", "workload", "compare", "tuned.json", "--json", "r.json",
         "--rounds", str(rounds), "--at-once", str(at_once), "--", sys.executable, str(PROGRAM),
         *words],
        env={**os.environ, "PYTHONPATH": path, "RUN_NUMBER_FILE": str(tmp_path / "number")},
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=200,
        start_new_session=True,
    )  # fmt: skip
    document = json.loads((tmp_path / "r.json").read_text())
    assert document["exit_code"] == done.returncode, done.stderr
    page = Path(document["page"])
    assert json.loads((page.parent / "result.json").read_text())["outputs"] == document["outputs"]
    if several := document["process_runs"]:
        assert len((page.parent / "runs.jsonl").read_text().splitlines()) == len(several)
    return document, page.read_text(), done.stdout


@pytest.fixture(autouse=True)
def number(tmp_path):
    (tmp_path / "number").write_text("")


def test_a_faster_program_is_fast_and_its_outputs_are_compared(tmp_path):
    document, page, printed = command(tmp_path, "0.010", "0.009")
    assert part_of(document)["verdict"]["word"] == "FAST" and document["unit"] == "step"
    assert part_of(document)["first_step"]["middle"] == pytest.approx(0.1)
    order = [each["pinned"] for each in document["process_runs"]]
    assert order == [False, True, True, False] * 3
    loss, same = document["outputs"]
    assert (loss["largest"], loss["relative"], loss["repeated"]) == (0.25, 0.125, 0)
    assert loss["compared"] == 30 and same["largest"] == 0
    assert "FAST" in page and "Agreement of outputs" in page and "FAST. A step takes" in printed


@pytest.mark.nightly
def test_runs_that_import_at_once_take_turns(tmp_path):
    document, page, _ = command(tmp_path, "0.010", "0.009", "alone", rounds=2, at_once=3)
    assert part_of(document)["first_step"]["middle"] == pytest.approx(0.1)
    assert part_of(document)["verdict"]["time"]["high"] < 0.91 and document["failure"] is None
    order = [each["pinned"] for each in document["process_runs"]]
    assert order == [False, True, True, False]
    assert "went on at the same time" in page


def test_a_run_that_ends_before_its_turn_ends_the_comparison(tmp_path):
    document, page, _ = command(tmp_path, "1", "1", "early", at_once=2)
    assert document["exit_code"] == 2 and "with exit code 4 before" in document["failure"]
    assert "without --at-once" in document["failure"] and "without --at-once" in page


def test_runs_that_do_not_reach_the_gpu_are_counted(tmp_path, monkeypatch, capsys):
    """Each minute, as nothing else shows that the comparison waits."""
    polls = itertools.count()
    options = WorkloadCompareOptions(tmp_path / "t.json", rounds=2, at_once=2)
    runner = replace(
        workload_comparison.program_runner(options, MarkOptions(""), ["x"]),
        now=itertools.count(0, 50).__next__,
    )

    def poll():
        if next(polls) == 5:
            for folder in runner._place.iterdir():
                (folder / "1.waiting").touch()

    process = SimpleNamespace(
        poll=poll, terminate=lambda: None, kill=lambda: None, wait=lambda *limit: 0
    )
    monkeypatch.setattr(program_runner, "start_child", lambda *words, **more: process)
    monkeypatch.setattr(program_runner, "LOOK_S", 0.0)
    with runner:
        runner._start(0, False)
    said = capsys.readouterr().err
    assert "after 100 s 2 of 2 runs have not used the GPU" in said and "after 200 s" not in said


def test_a_run_whose_comparison_is_gone_ends(tmp_path):
    Gate(tmp_path).close()  # as the kernel does for a process that was killed
    with pytest.raises(SystemExit, match="has ended"):
        wait(tmp_path)
    assert list(tmp_path.glob("*.waiting"))
    (opened := Gate(tmp_path)).open()
    wait(tmp_path)
    assert opened.waited_for


@pytest.mark.parametrize("noise", [0.002, 0.01, 0.05])
def test_the_same_program_twice_is_seldom_slow_or_fast(noise):
    """Six rounds, simulated: processes that differ, steps with a heavy tail, a drift over the
    comparison. Of 95 % intervals at most 5 % may be wrong."""
    dice = np.random.default_rng(1)
    words = []
    for _ in range(400):
        drift = dice.normal(0, noise)
        several = []
        for number in range(6):
            for place, pinned in enumerate((False, True) if number % 2 == 0 else (True, False)):
                level = 1 + dice.normal(0, noise) + drift * (2 * number + place) / 12
                steps = level * (1 + noise * dice.standard_t(3, 9) / 3)
                several.append(ProgramRun(pinned, number, 1.0, None, tuple(np.maximum(steps, 0.1))))
        words.append(verdict_of(several, 0.01).word)
    assert sum(word in ("SLOW", "FAST") for word in words) <= 0.05 * len(words)
    if noise == 0.002:
        assert words.count("SAME") > 0.5 * len(words)


def test_a_program_that_fails_with_the_table_is_no_verdict(tmp_path):
    document, page, printed = command(tmp_path, "1", "1", "fail")
    assert document["exit_code"] == 2 and part_of(document)["verdict"] is None
    assert "with the table ended with exit code 3 in round 1" in printed
    assert len(document["process_runs"]) == 1 and "ended with exit code 3" in page


@pytest.mark.nightly
def test_ctrl_c_leaves_what_was_measured(tmp_path):
    document, page, _ = command(tmp_path, "1", "1", "interrupt")
    assert document["exit_code"] == 130 and len(document["process_runs"]) == 5
    assert part_of(document)["verdict"]["word"] == "INCONCLUSIVE" and "too few" in page


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"table": Path("t.json")}, "No program is named"),
        ({"table": Path("--"), "target": ("a.py",)}, "No table is named"),
        ({"table": Path("t.json"), "target": ("u.json", "--", "a.py")}, "one word too many"),
        ({"table": Path("t.json"), "threshold": 1.0}, "not a share"),
    ],
)
def test_mistaken_command_lines_of_compare_are_sentences(options, words):
    with pytest.raises(OptionError, match=words):
        run(WorkloadCompareOptions(**options))


def test_a_step_mark_is_a_kernel_and_a_number_of_launches():
    assert mark_of("softmax:12") == MarkOptions("", "softmax", 12)
    assert mark_of("softmax").launches == 1 and mark_of(None).kernel is None
    for text in ("", ":2", "f:", "f:0", "f:x"):
        with pytest.raises(OptionError, match="KERNEL:N"):
            mark_of(text)
