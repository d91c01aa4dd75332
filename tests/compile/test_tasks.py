"""Submissions to tasks of other formats are judged from their plans."""

import json

import pytest
from nightly import nightly
from task_files import ADD, NORM, OF_MODEL, SOFTPLUS, SOLUTION

import workbench as wb

EXAMPLES = [(SOFTPLUS, OF_MODEL), (ADD, ADD / "submission.py"), (NORM, SOLUTION)]
WRONG = {OF_MODEL: ("y * w * scale", "y * w"), SOLUTION: ("* w\\n", "\\n"),
         ADD / "submission.py": ("a * 2.0 + b", "a * 2.0 - b")}  # fmt: skip


# The others nightly: ten seconds each.
BY_DAY = [pytest.param(*one, marks=() if one[0] is ADD else nightly) for one in EXAMPLES]


@pytest.mark.parametrize(("task", "submission"), BY_DAY)
def test_an_example_of_each_format_is_correct_on_evidence(task, submission, tmp_path):
    result = wb.evaluate(submission, task=task, device="h200", progress=False)
    assert (result.verdict, result.claims) == ("correct", ()), str(result)
    assert result.time_s and result.plain()["task"] == str(task)
    stored = tmp_path / "verdict.json"
    result.json(stored)
    assert json.loads(stored.read_text())["file"] == str(submission)


@pytest.mark.nightly
@pytest.mark.parametrize(("task", "submission"), EXAMPLES)
def test_a_wrong_submission_is_rejected_by_its_values(task, submission, tmp_path):
    path, text = tmp_path / submission.name, submission.read_text()
    old, new = WRONG[submission]
    assert old in text
    path.write_text(text.replace(old, new))
    result = wb.evaluate(path, task=task, device="h200", progress=False)
    assert (result.verdict, result.rule, result.time_s) == ("rejected", "values", None)


@pytest.mark.nightly
def test_a_model_that_leaves_the_work_to_torch_is_rejected(tmp_path):
    path, text = tmp_path / "mine.py", OF_MODEL.read_text()
    path.write_text(text.replace("return y\n", "return y * torch.ones_like(y)\n"))
    result = wb.evaluate(path, task=SOFTPLUS, device="h200", progress=False)
    assert (result.verdict, result.rule) == ("rejected", "operators")


@pytest.mark.nightly
def test_the_package_of_the_format_reads_the_example():
    data = pytest.importorskip("flashinfer_bench.data", reason="pip install flashinfer-bench")
    definition = data.Definition(**json.loads(NORM.read_text()))
    solution = data.Solution(**json.loads(SOLUTION.read_text()))
    assert definition.name == solution.definition and solution.get_entry_symbol() == "run"
    lines = NORM.parents[2] / "workloads" / "norm" / f"{NORM.stem}.jsonl"
    traces = [data.Trace(**json.loads(line)) for line in lines.read_text().splitlines()]
    assert [t.workload.axes for t in traces] == [{"rows": 8192}, {"rows": 32}, {"rows": 7}]
