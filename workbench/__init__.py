"""Kernel Workbench: which configuration, how far from the limit, why, and did my change help?"""

__version__ = "0.1.0"

_LAZY = {"tune": "workbench.commands.tune", "events_frame": "workbench.data.frame"}
_PACKAGES = ("ops", "workload")


def step() -> None:
    """Tell `workbench profile --tool trace`, `workload record` or `workload compare` that one step
    of this program is over; without them nothing happens."""
    import sys

    recorder = sys.modules.get("workbench_recorder")  # is there in a recorded process alone
    if recorder is not None:
        recorder.step()


def __getattr__(name: str) -> object:
    """Import `tune`, `events_frame`, `ops` and `workload` at their first use: they need torch or
    pandas, and most of the package does not."""
    if (module := _LAZY.get(name)) is not None:
        from importlib import import_module

        return getattr(import_module(module), name)
    if name in _PACKAGES:
        from importlib import import_module

        return import_module(f"workbench.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
