"""Name the fastest configs of a kernel by predicted time, without a GPU and without a sweep."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from workbench.commands import field
from workbench.commands.console import aloud, console_for
from workbench.commands.field import DTYPE, KERNEL, SIZES, argument, option
from workbench.commands.options import DEFAULT_TARGET, CommandError, Options
from workbench.data.exits import PASSED
from workbench.data.units import amount, rough
from workbench.spec import Spec, label, sizes_text

if TYPE_CHECKING:
    from rich.console import Console

    from workbench.device.hardware import Device
    from workbench.tuner.prediction import ConfigRanking, PredictedConfig


class PredictOptions(Options):
    kernel: str = argument(f"{KERNEL} Or a function: path/to/mine.py:kernel.", MISSING, "KERNEL")
    impl: tuple[str, ...] = option((), "This Impl only; may be repeated. Default: all Triton.")
    sizes: str | None = option(None, f"{SIZES}. Default: the kernel's first.")
    dtype: str = option("bf16", DTYPE)
    device: str | None = option(None, "Predict for this device; by default for the GPU here.")
    arg: tuple[str, ...] = option(
        (), "For a function: x=bf16[8192,4096], i=int64[4096]<32000 or n=4096; once per argument."
    )
    grid: str = option("", "For a function: 'cdiv(M, BM), cdiv(N, BN)'.")
    config: tuple[str, ...] = option(
        (), "For a function: BM=64,num_warps=4; repeated. Default: those of @triton.autotune."
    )
    config_from: str | None = field.config_from()
    quiet: bool = field.quiet()
    json: Path | None = field.json()


def run(options: PredictOptions) -> int:
    """Run the command. Returns its exit code. On the command line kernels' files are imported
    without Triton: the process ends before anything uses it."""
    from workbench import catalog
    from workbench.commands.progress import redirection

    if ".py:" in options.kernel:  # FILE.py:FUNCTION
        return _function(options)
    device = device_for(options.device)
    spec = (catalog.spec_of if redirection() else spec_without_triton)(options.kernel)
    return _kernel(options, spec, device)


def device_for(name: str | None) -> Device:
    """Return the device of this name; of None the GPU of this machine, or an H200 without one."""
    from workbench.data.environment import gpu_shown
    from workbench.device import hardware

    if name is not None:
        return hardware.device_named(name)
    return (hardware.live() if gpu_shown() else None) or hardware.device_named(DEFAULT_TARGET)


def _kernel(options: PredictOptions, spec: Spec, device: Device) -> int:
    from workbench import catalog
    from workbench.commands.sizes import check_dtype, sizes_of
    from workbench.tuner.prediction import rank_configs

    for name in ("arg", "grid", "config", "config_from"):
        if getattr(options, name):
            word = f"--{name.replace('_', '-')}"
            raise CommandError(
                f"{word} describes the launch of a FILE.py:FUNCTION; {spec.name} takes --sizes."
            )
    check_dtype(spec, options.dtype)
    sizes = sizes_of(spec, options.sizes)
    impls = [catalog.impl_of(spec, name) for name in dict.fromkeys(options.impl)]
    impls = impls or [impl for impl in spec.impls if impl.backend == "triton"]
    try:
        ranking = rank_configs(spec, impls, device, options.dtype, sizes, options.kernel)
    except ValueError as error:
        raise CommandError(f"{error}; name another device with --device.") from None
    title = f"{spec.name} at {sizes_text(sizes)} in {options.dtype}"
    return say_ranking(options, title, device, ranking, sizes=sizes, dtype=options.dtype)


def _function(options: PredictOptions) -> int:
    from workbench.commands.tune_function import described_launch

    if options.sizes or options.impl:
        named = "--sizes" if options.sizes else "--impl"
        raise CommandError(
            f"{named} is for a kernel with a Spec; a FILE.py:FUNCTION takes --arg and --grid."
        )
    kernel, given, grid, configs = described_launch(options, options.kernel)
    return predict_function(options, kernel, ((), given), grid, configs)


def predict_function(
    options: PredictOptions,
    kernel: Any,
    given: tuple[Sequence[Any], Mapping[str, Any]],
    grid: Any,
    configs: Sequence[Any] | None,
) -> int:
    """Compile all configs of a function for a launch with these arguments, and print the fastest by
    their code. Returns the exit code."""
    from workbench.adapted import autotuned
    from workbench.adapted.kernel import unwrap
    from workbench.adapted.predicted import rank_function
    from workbench.commands.tune_function import configs_of

    device = device_for(options.device)
    chosen, _ = configs_of(autotuned.autotuner_of(kernel), given, configs)
    function = unwrap(kernel)
    named = {**dict(zip(function.arg_names, given[0], strict=False)), **given[1]}
    ranking = rank_function(kernel, device, named, grid, chosen)
    return say_ranking(options, options.kernel, device, ranking)


def say_ranking(
    options: PredictOptions, title: str, device: Device, ranking: ConfigRanking, **more: Any
) -> int:
    """Print the fastest configs and write them as JSON. Returns the exit code."""
    from workbench.commands.result import write_result

    console = console_for(options)
    first = ranking.configs[0]
    if not options.quiet:
        tried = amount(ranking.configs_tried, "config")
        of = f"the fastest of {tried} by predicted time on {device.title}"
        console.print(f"{title}: {of}", soft_wrap=True)
    with aloud(console):
        _table(console, ranking.configs[:1] if options.quiet else ranking.configs)
    if not options.quiet:
        console.print(_how(ranking, first), soft_wrap=True)
    return write_result(
        options,
        "predict",
        PASSED,
        kernel=options.kernel,
        device=device.name,
        predictions=[asdict(one) for one in ranking.configs],
        tried=ranking.configs_tried,
        calibrated_by=ranking.calibrated_by or None,
        **more,
    )


def _table(console: Console, configs: Sequence[PredictedConfig]) -> None:
    from workbench.reports.tables import text_table

    heads = ("time", "if measured", "limit", "config")
    table = text_table(heads, right=(), whole=heads[:-1])
    for one in configs:
        ends = " to ".join(map(rough, one.expected_s)) if one.expected_s else ""
        config = f"{one.impl} {label(one.config)}".lstrip()
        table.add_row(f"~{rough(one.time_s)}", ends, one.bound, config)
    console.print(table)


def _how(ranking: ConfigRanking, first: PredictedConfig) -> str:
    """Return where the times come from, in a sentence."""
    from workbench.device.error_band import NEVER

    of = "Predicted from the compiled code" if not first.impl else "Predicted before compiling"
    if ranking.calibrated_by:
        of += f", corrected by the calibration of {ranking.calibrated_by}"
    known = "" if first.expected_s else f"; {NEVER}"
    return f"{of}{known}. Nothing was run or checked: `workbench tune` and `sweep` check results."


KERNEL_FILES = ("workbench.dsl", "workbench.dsl.gluon", "workbench.kernels", "workbench.variants")


def spec_without_triton(kernel: str) -> Spec:
    """Return the Spec of a kernel as `catalog.spec_of` does, and import its file without Triton,
    and torch only where it uses it as it is imported: its declarations need neither, and both take
    seconds. A file that needs Triton itself gets it."""
    from workbench import catalog
    from workbench.catalog import CatalogError

    if "torch" in sys.modules or "triton" in sys.modules:
        return catalog.spec_of(kernel)
    before = set(sys.modules)
    sys.modules["triton"] = None  # type: ignore[assignment]
    sys.modules["torch"] = _Later("torch")
    try:
        return catalog.spec_of(kernel, metal=False)
    except CatalogError:
        for name in set(sys.modules) - before:
            if name.startswith(KERNEL_FILES):
                del sys.modules[name]
    finally:
        del sys.modules["triton"]
        if isinstance(sys.modules.get("torch"), _Later):
            del sys.modules["torch"]
    return catalog.spec_of(kernel)


class _Later(ModuleType):
    """Stands for a module that is imported at the first use of a name of it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # the import system's own questions
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)
