"""The plugin of pytest: a marker for tests of kernels, a fixture that times, and a gate.

    @pytest.mark.kernel("mine.py")
    def test_mine_is_faster(bench):
        def add(N):
            x, y = torch.rand(2, N, device="cuda")
            return {"torch": lambda: x + y, "mine": lambda: mine(x, y)}

        assert bench(add, {"N": 2**24}, bytes=lambda N: 12 * N).best.impl == "mine"

`pytest --kernel-gate main` adds a test for each kernel that a marker names: `workbench gate main`.
pytest imports this module in every project, so that it imports the workbench only when it is used.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MARKER = (
    "kernel(name): the kernel that a test is about, by name or path/to/mine.py; "
    "--kernel-gate compares it with a revision"
)
LINES = pytest.StashKey[list[str]]()  # of the times, printed at the end
UNDECIDED = 3  # exit code of a gate


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    group = parser.getgroup("workbench", "Kernel Workbench")
    group.addoption(
        "--kernel-gate", metavar="REF",
        help="Compare each kernel that a marker `kernel` names with this git revision.",
    )  # fmt: skip
    group.addoption(
        "--kernel-device", metavar="NAME", action="append", default=[],
        help="Compile for this device, and run nothing: h200, mi300x, ... May be repeated.",
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line("markers", MARKER)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add a test for each kernel that a marker of the collected tests names, with --kernel-gate."""
    baseline = config.getoption("--kernel-gate")
    if not baseline:
        return
    kernels = dict.fromkeys(
        _place(str(name), item)
        for item in items
        for marker in item.iter_markers("kernel")
        for name in marker.args
    )
    root: Any = items[0].listchain()[0] if items else None
    for kernel in kernels:
        name = f"kernel-gate[{Path(kernel).name}]"
        more = {"name": name, "nodeid": name, "kernel": kernel, "baseline": baseline}
        items.append(KernelGate.from_parent(root, **more))


def _place(name: str, item: pytest.Item) -> str:
    """Return a kernel as `workbench gate` takes it: a path from the folder of the test, or of the
    whole suite, as a whole path."""
    if not name.endswith(".py"):
        return name
    folders = (item.path.parent, item.config.rootpath)
    return next((str(f / name) for f in folders if (f / name).is_file()), name)


class KernelGate(pytest.Item):
    """A kernel beside its version at a revision: fails where it became slower or wrong."""

    def __init__(self, *, kernel: str, baseline: str, **more: Any) -> None:
        """Take the kernel and the revision."""
        super().__init__(**more)
        self.kernel, self.baseline = kernel, baseline
        self.add_marker(pytest.mark.kernel(kernel))

    def runtest(self) -> None:
        """Run the gate, in a process of its own. Raises GateFailed where the gate failed."""
        devices = self.config.getoption("--kernel-device") or _default_devices()
        words = [sys.executable, "-m", "workbench", "gate", self.baseline, "--kernel", self.kernel]
        words += [word for device in devices for word in ("--device", device)]
        done = run_gate([*words, "--json", "-"], self.config.rootpath)
        if done.returncode:
            report = _findings(done.stdout) or done.stderr.strip() or done.stdout.strip()
            if done.returncode == UNDECIDED:
                pytest.skip(f"undecided: {report}")
            raise GateFailed(report)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the findings of the gate, without a traceback."""
        if isinstance(excinfo.value, GateFailed):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return where the test is and its title."""
        return Path(self.kernel), None, f"{Path(self.kernel).name} against {self.baseline}"


def run_gate(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a gate in a folder, in a process of its own, and return what it printed."""
    return subprocess.run(words, cwd=folder, capture_output=True, text=True)


class GateFailed(Exception):
    """A gate that failed; the message is its findings."""


def _default_devices() -> list[str]:
    """Return the device to compile for where there is no GPU to measure on."""
    from workbench.commands.options import DEFAULT_TARGET
    from workbench.commands.run import gpu_present

    return [] if gpu_present() else [DEFAULT_TARGET]


def _findings(text: str) -> str:
    """Return the findings of a gate's document; empty where it wrote none."""
    from workbench.commands.annotations import annotations_of

    try:
        document = json.loads(text)
    except ValueError:
        return ""
    return "\n".join(each.message for each in annotations_of(document))


Bench = Callable[..., Any]


@pytest.fixture
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    """Time functions as `workbench.bench` does: `bench(function, sizes, providers, bytes=...)`
    returns its result. The test fails where a provider's result differs from the first one's, and
    is skipped where there is no GPU. The times are printed at the end and are properties of the
    test in a JUnit file."""

    def time_function(function: Any, sizes: Any, providers: Any = (), **costs: Any) -> Any:
        import workbench
        from workbench.commands.bench import NEEDS_GPU

        decorated = workbench.bench(sizes, providers, **costs)(function)
        try:
            result = decorated.run(out=tmp_path / "results", progress=False)
        except workbench.WorkbenchError as error:
            if str(error) == NEEDS_GPU:
                pytest.skip("there is no GPU that torch sees")
            raise
        _keep(request, result)
        wrong = [f"{f.case.impl}: {f.reason}" for f in result.failures]
        if wrong:
            pytest.fail("\n".join(wrong), pytrace=False)
        return result

    return time_function


def _keep(request: pytest.FixtureRequest, result: Any) -> None:
    from workbench.data.units import duration
    from workbench.spec import sizes_text

    lines = request.config.stash.setdefault(LINES, [])
    for record in result.records:
        case = record.case
        at = f"{case.kernel} {case.impl} {sizes_text(case.sizes)}"
        request.node.user_properties.append((f"seconds: {at}", record.time_s))
        lines.append(f"{request.node.nodeid}: {at}  {duration(record.time_s)} measured")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the times."""
    if lines := config.stash.get(LINES, []):
        terminalreporter.section("Kernel Workbench: times")
        for line in lines:
            terminalreporter.write_line(line)
