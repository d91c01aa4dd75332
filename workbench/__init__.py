"""Kernel Workbench: which configuration, how far from the limit, why, and did my change help?

    import workbench as wb

    result = wb.sweep("softmax", sizes={"M": 8192, "N": 4096}, device="h200")
    result.best, result.frame(), result.plot(), result.page

docs/api.md describes all names. Importing this package imports only `sys` and `types`; the rest of
it is imported at the first use of a name.
"""

import sys
from types import ModuleType

__version__ = "0.2.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from workbench import ops as ops
    from workbench import workload as workload
    from workbench.api import *  # noqa: F403


def step() -> None:
    """Tell `workbench profile --tool trace`, `workload record` or `workload compare` that one step
    of this program is over; without them nothing happens."""
    recorder = sys.modules.get("workbench_recorder")  # is there in a recorded process alone
    if recorder is not None:
        recorder.step()


if not TYPE_CHECKING:  # a checker knows the names, and reports any other

    def __getattr__(name: str) -> object:
        """Return a name of the API, which is imported at its first use."""
        if name == "__all__":
            return __dir__()
        # `from workbench import catalog` requests a name, and then imports the module: without the
        # API, whose import takes as long as that of the rest of a worker process
        if name.startswith("_") or name == "catalog":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name in ("ops", "workload"):  # most of the package needs neither
            return _import_module(f"workbench.{name}")
        api = _import_module("workbench.api")
        if name not in api.__all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(api, name)


def __dir__() -> list[str]:
    """Return the names of the API."""
    return sorted({*_import_module("workbench.api").__all__, "ops", "step", "workload"})


def _import_module(name: str) -> ModuleType:
    from importlib import import_module

    return import_module(name)


class _Package(ModuleType):
    """The package, whose `sweep` is a function of the API, and also the module that `python -m
    workbench.sweep` runs. Importing a module binds it in its package; this one is not bound, so
    that the function stays whatever was imported before."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name == "sweep" and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
