"""The plugin of pytest, in a pytest of its own in this process."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fake_timer import FakeTimer, fake_gpu

from workbench.commands import bench as command
from workbench.commands import pytest_plugin as plugin

pytest_plugins = "pytester"  # forgets what was imported inside it, and torch cannot come twice
assert torch.__version__
pytestmark = pytest.mark.unit
TEST = """
    import pytest
    from fake_timer import FakeCall

    def add(N):
        return {"torch": FakeCall(2e-5, "sum"), "mine": FakeCall(1e-5, %s)}

    def test_mine(bench):
        assert bench(add, {"N": 1024}).best.impl == "mine"

    @pytest.mark.kernel("softmax", "mine.py")
    def test_both():
        pass
"""


@pytest.fixture
def run(pytester, monkeypatch):
    """Runs pytest with the plugin on a test whose result is `mine`, with options."""
    monkeypatch.setenv("XDG_DATA_HOME", str(pytester.path / "data"))

    def go(*options, mine='"sum"'):
        pytester.makepyfile(TEST % mine)
        pytester.makepyfile(mine="")
        return pytester.runpytest_inprocess("-p", "workbench.commands.pytest_plugin", *options)

    return go


def test_the_fixture_times_and_the_times_are_printed_and_kept(run, monkeypatch, pytester):
    monkeypatch.setattr(
        command.BenchCommand.__init__, "__defaults__", (lambda: fake_gpu(FakeTimer()),)
    )
    result = run("--junitxml=j.xml", "--strict-markers")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        ["*Kernel Workbench: times*", "*test_mine: add mine N=1024  10 µs measured"]
    )
    assert 'name="seconds: add mine N=1024" value="1' in (pytester.path / "j.xml").read_text()


def test_a_wrong_result_fails_the_test(run, monkeypatch):
    monkeypatch.setattr(
        command.BenchCommand.__init__, "__defaults__", (lambda: fake_gpu(FakeTimer()),)
    )
    result = run(mine='"product"')
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*mine: its result is not that of torch: product is not sum*"])


def test_without_a_gpu_a_timed_test_is_skipped(run, monkeypatch):
    monkeypatch.setattr(command.BenchCommand.__init__, "__defaults__", (lambda: None,))
    run().assert_outcomes(passed=1, skipped=1)


WRONG = {
    "command": "gate", "files": [],
    "checks": [{"title": "mine.add", "state": "wrong", "reason": "y is off"}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("code", "said", "outcome"),
    [
        (0, {}, {"passed": 3}),
        (1, WRONG, {"passed": 1, "failed": 2}),
        (3, WRONG, {"passed": 1, "skipped": 2}),
    ],
)
def test_the_gate_is_a_test_for_each_kernel_that_a_marker_names(
    run, monkeypatch, code, said, outcome
):
    lines = []

    def gate(words, folder):
        lines.append(words[3:])
        return SimpleNamespace(returncode=code, stdout=json.dumps(said), stderr="")

    monkeypatch.setattr(plugin, "run_gate", gate)
    result = run("-k", "not test_mine", "--kernel-gate", "main", "--kernel-device", "h200")
    result.assert_outcomes(**outcome)
    first, second = lines
    assert first[:3] == ["gate", "main", "--kernel"] and first[3] == "softmax"
    assert second[3].endswith("/mine.py") and second[4:] == ["--device", "h200", "--json", "-"]
    if code == 1:
        result.stdout.fnmatch_lines(
            ["*WRONG mine.add: y is off*", "FAILED kernel-gate?mine.py? - WRONG*"]
        )


def test_the_plugin_imports_nothing_of_the_workbench_before_it_is_used():
    """pytest imports it in every project where the workbench is installed."""
    tree = ast.parse(Path(plugin.__file__).read_text())
    names = {a.name for n in tree.body if isinstance(n, ast.Import) for a in n.names}
    names |= {n.module for n in tree.body if isinstance(n, ast.ImportFrom)}
    assert {n.partition(".")[0] for n in names} <= {*sys.stdlib_module_names, "pytest"}


@pytest.mark.nightly
def test_a_real_gate_finds_a_wrong_kernel(pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(plugin.__file__).parents[2]))

    def go(*words):
        subprocess.run(words, check=True, capture_output=True, cwd=pytester.path)

    go(sys.executable, "-m", "workbench", "new-kernel", "my_gelu")
    pytester.makepyfile("import pytest\n@pytest.mark.kernel('my_gelu.py')\ndef test(): pass\n")
    go("git", "init", "-q")
    go("git", "add", ".")
    go("git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "1")
    file = pytester.path / "my_gelu.py"
    file.write_text(file.read_text().replace("tl.erf(x * 0.7071067811865476)", "tl.erf(x)"))
    words = (
        "-p",
        "workbench.commands.pytest_plugin",
        "--kernel-gate",
        "HEAD",
        "--kernel-device",
        "h200",
    )
    result = pytester.runpytest_inprocess(*words)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*WRONG my_gelu.blocks*"])
