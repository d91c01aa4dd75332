"""The parts of the workbench: folders, and modules that belong to them, which an installation may
lack. No file outside a part imports it at its top, so all else works without it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.util import find_spec

from workbench.spec import WorkbenchError

REMEDY = "install the whole package: pip install --force-reinstall --no-deps . in a clone"


class MissingPart(WorkbenchError):
    """A part that is needed is not installed; one sentence says which, and what to do."""


@dataclass(frozen=True)
class PackagePart:
    """Folders or modules that are there where the part is; patterns of further modules of
    `workbench` that are of no use without them; and the parts that all these import at their
    top."""

    roots: tuple[str, ...]
    more: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()

    def has_module(self, name: str) -> bool:
        """Return whether a module belongs to the part."""
        inside = any(f"{name}.".startswith(f"{root}.") for root in self.roots)
        return inside or any(fnmatchcase(name, f"workbench.{pattern}") for pattern in self.more)


PARTS: Mapping[str, PackagePart] = {
    "kernels": PackagePart(("workbench.kernels", "workbench.variants")),
    "traces": PackagePart(
        ("workbench.traces",),
        (
            *("backend.sanitizing", "code.code_samples", "code.profiled_code", "code.responsible"),
            *("commands.config_profiles", "commands.diagnose_*", "commands.diagnosed"),
            *("commands.operators", "commands.profile_*", "commands.profiled_*", "commands.trace*"),
            *("reports.trace", "reports.figures.profiled", "reports.figures.trace"),
        ),
    ),
    "workload": PackagePart(
        ("workbench.workload",),
        ("commands.workload_comparison", "commands.workload_tuning", "reports.workload"),
        ("traces",),
    ),
    "metal": PackagePart(
        ("workbench.backend.metal", "metal_shim"),
        ("commands.bring_back", "commands.metal_comparison", "measurement.metal_*"),
        ("kernels", "traces"),
    ),
    "cluster": PackagePart(("workbench.backend.cluster",), ("commands.gpu_lines",)),
    "two_tritons": PackagePart(
        ("workbench.backend.version_timing",), ("commands.compiler_comparison",)
    ),
}


def part_of(module: str) -> str | None:
    """Return the name of the part that a module belongs to; None for one of the tool itself."""
    return next((name for name, part in PARTS.items() if part.has_module(module)), None)


def missing_part(name: str) -> MissingPart | None:
    """Return the error on a part that is not installed; None where it is. Imports nothing of it."""
    absent = next(filter(_is_absent, PARTS[name].roots), None)
    if absent is None:
        return None
    return MissingPart(f"The part {name} of the workbench ({absent}) is not installed; {REMEDY}.")


def _is_absent(module: str) -> bool:
    try:
        return find_spec(module) is None
    except ModuleNotFoundError:  # the package that it is in is absent
        return True


def require_part(name: str) -> None:
    """Raise MissingPart where a part is not installed."""
    if missing := missing_part(name):
        raise missing


@contextmanager
def named_parts() -> Iterator[None]:
    """Return a context manager that raises MissingPart in place of the error on a module of a part
    that is not installed. Any other ImportError passes."""
    try:
        yield
    except ModuleNotFoundError as error:
        name = part_of(error.name or "")
        if name and (missing := missing_part(name)):
            raise missing from error
        raise
