"""The pytest plugin `--metal-check`: custom kernels of MLX that tests launch are emulated and
checked, and a test fails where one has a finding."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from metal_shim.mlx_program import ProgramReport

_REPORT: pytest.StashKey[ProgramReport] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption(
        "--metal-check", action="store_true", help="check the Metal kernels that MLX tests launch"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Replace `mx.fast.metal_kernel` before any file of the tests is imported. Raises UsageError
    where MLX or the compiler is missing."""
    if not early_config.known_args_namespace.metal_check:
        return
    try:
        import_module("metal_shim.compiler").find_compiler()
        checked_program = import_module("metal_shim.mlx_program").checked_program
    except (ImportError, RuntimeError) as error:
        raise pytest.UsageError(f"--metal-check: {error}") from None
    stack = ExitStack()
    early_config.stash[_REPORT] = stack.enter_context(checked_program())
    early_config.add_cleanup(stack.close)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[Any]:
    """Fail a test that passed while a kernel had a finding. Returns the test's own result."""
    report = item.config.stash.get(_REPORT, None)
    before = len(report.findings) if report else 0
    result = yield
    if report and (new := report.findings[before:]):
        pytest.fail("\n".join(dict.fromkeys(map(str, new))), pytrace=False)
    return result


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the kernels, launches and findings of all tests."""
    if report := config.stash.get(_REPORT, None):
        terminalreporter.section("Metal kernels")
        for line in report.lines():
            terminalreporter.write_line(line)
