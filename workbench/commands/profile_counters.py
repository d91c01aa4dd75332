"""Counters of `profile`: the names that a device has, those that are added, and a checker's
verdicts as a table."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from workbench.commands.options import OptionError
from workbench.data.exits import PASSED
from workbench.device import hardware
from workbench.traces.profilers.names import RATIOS, SUBMETRICS, SUMS, chip_of, counter, list_names
from workbench.traces.profilers.names.defaults import default_counters
from workbench.traces.profilers.running.workload import Workload

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from workbench.commands.profile import ProfileOptions
    from workbench.traces.trace import CheckerResult

AMD_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")


def print_counters(options: ProfileOptions, console: Console) -> int:
    """Print the names of a device that hold the pattern. Returns the exit code. Raises
    CounterError."""
    pattern = options.target[0] if options.target else ""
    chip, device = _chip(options)
    rows = list_names(chip, pattern)
    if not rows:
        raise OptionError(
            f"{chip} has no counter that holds {pattern!r}; name a part of one, such as stall."
        )
    width = max(len(name) for name, _ in rows)
    for name, kind in rows:
        console.print(f"{name:{width}}  {kind}", soft_wrap=True, markup=False, highlight=False)
    if not options.quiet:
        console.print(
            f"\n{len(rows)} names of {device} ({chip}). A counter or a throughput is followed by "
            f".{', .'.join(SUMS)}, and these by one of {', '.join(SUBMETRICS)} or none; a ratio by "
            f".{', .'.join(RATIOS)}.",
            soft_wrap=True,
            highlight=False,
        )
    return PASSED


def ncu_counters(options: ProfileOptions, tell: Callable[[str], None]) -> tuple[str, ...]:
    """Return the counters to add by their names on this chip; `tell` is called with what is said
    of each that is called otherwise. Raises CounterError with the nearest names."""
    chip, _ = _chip(options)
    named = [name.strip() for name in (options.metrics or "").split(",")]
    if not all(named):
        raise OptionError("--metrics has an empty name; write: --metrics NAME,NAME.")
    chosen = [counter(name, chip) for name in dict.fromkeys(named)]
    for each in chosen:
        if each.sentence:
            tell(each.sentence)
    return tuple(dict.fromkeys(each.name for each in chosen))


def counter_groups(text: str) -> tuple[str, ...]:
    """Return the groups of rocprofv3, each of which is one pass: names with commas, groups with
    spaces between. No list of AMD's names is here: rocprofv3-avail checks them. Raises OptionError
    where a name cannot be one."""
    groups = tuple(text.split())
    for name in (name for group in groups for name in group.split(",")):
        if not AMD_NAME.match(name):
            raise OptionError(
                f"{name!r} is not a counter of rocprofv3; write: --metrics 'SQ_WAVES,SQ_INSTS'."
            )
    if not groups:
        raise OptionError("--metrics is empty; write: --metrics 'SQ_WAVES,SQ_INSTS'.")
    return groups


def add_default_counters(workload: Workload, tool: str, gpu: str) -> Workload:
    """Return the workload of one kernel with the counters that a tool is asked for on the GPU that
    is here (`cuda` or `hip`); a program of the user's as it is, as each group is one more run."""
    device = hardware.live() if gpu and workload.marks is not None else None
    if device is None:
        return workload
    return replace(workload, defaults=default_counters(tool, device.limits.arch))


def _chip(options: ProfileOptions) -> tuple[str, str]:
    """Return the chip, and the name of its device: the one that is named, or the GPU here. Raises
    OptionError where there is neither."""
    device = hardware.device_named(options.device) if options.device else hardware.live()
    if device is None:
        raise OptionError(
            "Names of counters are those of a chip, and no GPU is here; name one: --device h200."
        )
    return chip_of(device.limits.arch), device.name


def checks_table(results: Mapping[str, CheckerResult]) -> Table:
    """Return a row per check: verdict, the count of its summary line, and its first record."""
    from rich.table import Table
    from rich.text import Text

    table = Table("check", "verdict", "errors", "first record")
    for name, result in results.items():
        first = result.records[0] if result.records else None
        where = first.text if first else ""
        if first is not None and first.kernel:
            line = f" ({first.file}:{first.line})" if first.file else ""
            where += f" in {first.kernel}{line}"
        errors = "" if result.errors is None else f"{result.errors:,}"
        table.add_row(name, result.verdict, errors, Text(where))
    return table
