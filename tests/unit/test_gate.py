"""What a gate reads of kernels that it does not import, and what it makes of it."""

import json
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pytest

from workbench import catalog
from workbench.backend.described import (
    CheckedConfig,
    DefaultLaunch,
    DescribedImpl,
    Description,
    DescriptionRequest,
    describe,
    describe_kernel,
    read_description,
)
from workbench.commands.console import plain_console
from workbench.commands.gate import GateOptions
from workbench.commands.gate_checks import ChangedImpl, Judges
from workbench.commands.gate_command import missing
from workbench.commands.gate_report import GateReport
from workbench.data.comparison import ComparisonResult
from workbench.data.impl_check import ImplCheck
from workbench.data.record import Case, Comparison, Failure
from workbench.data.verdict import exit_code
from workbench.device.hardware import DEVICES
from workbench.measurement.candidate import Refusal
from workbench.revisions.changed_kernels import ChangedCode, LeftOut

pytestmark = pytest.mark.unit
AT = {"N": 8}


def kernel(file, impl, tensors=(("x",), ("y",)), check=(AT,)):
    return Description("k", file, ("bf16",), tensors, (AT,), check, (impl,))


def impl(*sizes, name="rows"):
    configs = (CheckedConfig({"block_n": 64}, sizes),) if sizes else ()
    launches = (DefaultLaunch("h200", AT, {"block_n": 64}, ""),)
    return DescribedImpl(name, "triton", "code", launches, configs)


# Descriptions


def test_a_kernel_is_described_by_its_defaults():
    request = DescriptionRequest("copy", "bf16", (DEVICES["h200"],), check=({"N": 5},))
    got = read_description(describe_kernel(request))
    assert (got.name, got.tensors) == ("copy", (("x",), ("y",)))
    assert {"N": 5} not in got.check and got.check
    one = got.impl("blocks")
    assert [launch.sizes for launch in one.launches] == list(got.bench)
    assert {launch.device for launch in one.launches} == {"h200"}
    (config,) = one.taken_configs([{"N": 5}])
    assert config.sizes == ({"N": 5},) and config.config == one.launches[0].config
    assert got.impl("torch") is None or not got.impl("torch").launches


def test_what_a_worker_sends_is_a_description_or_nothing():
    whole = json.loads(describe_kernel(DescriptionRequest("copy", "bf16", (DEVICES["h200"],))))
    read_description(json.dumps(whole))
    first = whole["impls"][0]
    for wrong in (
        {**whole, "name": 3}, {**whole, "tensors": [["x"], "y"]}, {**whole, "bench": [{"N": 0.5}]},
        {**whole, "check": [{"N": True}]}, {**whole, "dtypes": [None]}, [], {"name": "copy"},
        {**whole, "impls": [{**first, "code": None}]},
        {**whole, "impls": [{**first, "configs": [{"config": {"a": []}, "sizes": []}]}]},
    ):  # fmt: skip
        with pytest.raises(ValueError):
            read_description(json.dumps(wrong))
    for wrong in (None, b"{}", "x" * (1 << 23), "{"):
        with pytest.raises(ValueError):
            read_description(wrong)


@pytest.mark.parametrize("result", [TimeoutError("took longer"), "{}", OSError("no")])
def test_a_kernel_that_sends_no_description_cannot_be_imported(result):
    def submit(*_, timeout_s):
        future = Future()
        raised = isinstance(result, Exception)
        (future.set_exception if raised else future.set_result)(result)
        return future

    with pytest.raises(catalog.CatalogError, match=r"there\.py cannot be imported \("):
        describe(SimpleNamespace(submit=submit), DescriptionRequest("there.py", "bf16", ()))


# Files


class Repository:
    """Files of a work tree beside those of a revision."""

    def __init__(self, root, then):
        self.root, self.then = root, then

    def tracked_files(self):
        return set(map(Path, self.then))

    def untracked_files(self):
        return {p.relative_to(self.root) for p in self.root.glob("*.py")} - self.tracked_files()

    def changed_since(self, revision):
        here = [p for p in self.root.glob("*.py")]
        return [p.relative_to(self.root) for p in here if self.then.get(p.name) != p.read_text()]

    def removed_since(self, revision):
        return [Path(name) for name in self.then if not (self.root / name).exists()]

    def text_at(self, revision, file):
        return self.then.get(str(file), "")

    def full_hash(self, revision):
        return "c0ffee"


def test_only_code_makes_a_file_another_one(tmp_path):
    files = {
        "same.py": "x = 1\n", "comment.py": "x = 1\n", "value.py": "x = 1\n",
        "user.py": "from value import x\n", "behind.py": "import user\n",
        "gone.py": "x = 1\n", "uses_gone.py": "import gone\n", "broken.py": "x = (\n",
    }  # fmt: skip
    now = {**files, "comment.py": "x = 1  # one\n", "value.py": "x = 2\n", "broken.py": "x = ((\n"}
    for name, text in now.items():
        if name != "gone.py":
            (tmp_path / name).write_text(text)
    changed = ChangedCode.find(Repository(tmp_path, files), "HEAD")
    assert {str(file) for file in changed.files} == {
        "value.py", "user.py", "behind.py", "gone.py", "uses_gone.py", "broken.py",
    }  # fmt: skip
    (tmp_path / "value.py").write_text("x = 3\n")
    assert ChangedCode.find(Repository(tmp_path, files), "HEAD").digest != changed.digest


# Checks


class Played:
    """Checks whose results were given: by the file of the reference and of the kernel."""

    def __init__(self, results):
        self.results, self.asked, self.restarts, self.seed = results, [], [], 7

    def calls(self, request, kernel, candidate, timeout_s):
        self.asked.append((request.kernel, kernel, dict(candidate.case.config)))
        wrong = self.results[request.kernel, kernel]
        future = Future()
        if isinstance(wrong, Refusal):
            future.set_result(wrong)
        else:
            one = SimpleNamespace(check=SimpleNamespace(wrong=wrong))
            future.set_result([one] * len(request.calls))
            assert [call.hard for call in request.calls[-2:]] == [False, True]
        return future

    def restart(self, checker):
        self.restarts.append(checker)


def judged(changed, baseline, branch=None):
    judges = Judges.__new__(Judges)
    judges._baseline, judges._branch = Played(baseline), Played(branch or {})
    (check,) = judges.check([changed], "bf16")
    return check, judges


THEN, NOW = kernel("then.py", impl(AT)), kernel("now.py", impl(AT))
LACKS = Refusal("check", "the interpreter lacks it")


@pytest.mark.parametrize(
    ("changed", "baseline", "branch", "state"),
    [
        (ChangedImpl(NOW, impl(AT), THEN), {("then.py", "now.py"): ""}, {}, "right"),
        (ChangedImpl(NOW, impl(AT), THEN), {("then.py", "now.py"): "y is off"},
         {("now.py", "now.py"): "y is off"}, "wrong"),
        (ChangedImpl(NOW, impl(AT), THEN), {("then.py", "now.py"): "y is off"},
         {("now.py", "now.py"): ""}, "other reference"),
        (ChangedImpl(NOW, impl(AT), None), {}, {("now.py", "now.py"): "y is off"}, "wrong"),
        # what the interpreter lacks is excused where it lacks it for the baseline, too
        (ChangedImpl(NOW, impl(AT), THEN), {("then.py", "now.py"): LACKS,
         ("then.py", "then.py"): LACKS}, {}, "unchecked"),
        (ChangedImpl(NOW, impl(AT), THEN), {("then.py", "now.py"): LACKS,
         ("then.py", "then.py"): ""}, {}, "unproven"),
        # sizes that only the branch refuses
        (ChangedImpl(NOW, impl(), THEN), {("then.py", "then.py"): ""}, {}, "unproven"),
        # other tensors: the branch's Spec says what is right, in a process of its own
        (ChangedImpl(kernel("now.py", impl(AT), (("x", "b"), ("y",))), impl(AT), THEN), {},
         {("now.py", "now.py"): ""}, "right"),
    ],
)  # fmt: skip
def test_the_baseline_says_what_is_right(changed, baseline, branch, state):
    check, judges = judged(changed, baseline, branch)
    assert (check.title, check.state) == ("k.rows", state)
    assert {kernel for kernel, *_ in judges._baseline.asked} <= {"then.py"}


def test_a_size_that_the_baseline_takes_must_be_taken():
    other = {"N": 9}
    now = kernel("now.py", impl(AT), check=(AT, other))
    then = kernel("then.py", impl(AT, other), check=(AT, other))
    check, _ = judged(ChangedImpl(now, impl(AT), then), {("then.py", "now.py"): ""})
    assert check == ImplCheck(
        "k.rows", "unproven", "it refuses N=9, at which the baseline's is checked"
    )
    assert exit_code([check.state, "SAME"]) == 3


# Measured comparisons


def test_a_comparison_that_the_measuring_process_owes_is_missing():
    def failure(name):
        case = Case("k", name, "triton", {}, AT, "bf16", "g")
        return Failure(case, f"key {name}", "r", "", "measure", "no")

    sent = Comparison("r", "", "k", AT, "bf16", "a", "b", "key rows", "key rows", None)
    expected = [("k", "rows", AT), ("k", "rows", {"N": 9}), ("k", "tiles", AT), ("k", "gone", AT)]
    left = [LeftOut("k.gone", "removed since HEAD")]
    missing(expected, [failure("rows")], [sent], left)
    assert [(one.what, one.broken) for one in left] == [
        ("k.gone", False), ("k.rows at N=9", True), ("k.tiles at N=8", True),
    ]  # fmt: skip


def test_a_gate_that_compared_nothing_does_not_pass_because_a_result_is_right():
    report = GateReport(GateOptions("main"), plain_console())
    report.checks = [ImplCheck("k.rows", "right"), ImplCheck("k.cols", "unchecked", "why")]
    assert ComparisonResult("times", "a", "b", "", (), report.words).exit_code == 2
    report.checks.append(ImplCheck("k.tiles", "wrong", "y is off"))
    assert ComparisonResult("times", "a", "b", "", (), report.words).exit_code == 1
