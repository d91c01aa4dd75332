"""Tune a plain @triton.jit or @triton.autotune function with its own arguments, no Spec needed.

    from workbench import tune
    tuned = tune(kernel, (x, y, out, n), grid=grid, configs=[triton.Config({"BLOCK": 256}), ...])
    kernel[grid](x, y, out, n, **tuned.kwargs)

The function becomes a one-file kernel in `results/adapted/`, which every command works on: sweep,
checks, isolation, history, page. Workers import the function from its file, so top-level code of
that file that should not run there must be under `if __name__ == "__main__":`.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from workbench.adapted import autotuned, write
from workbench.adapted.call import ARGS, EXPECTED, Call, ConfigEntry, WordNumber
from workbench.adapted.cell import function_in_file
from workbench.adapted.discover import Discovered, NotInterpreted, discover
from workbench.adapted.grid import Grid
from workbench.adapted.kernel import LARGE, refused_grid
from workbench.adapted.referenced import expected_again, expected_of, keep_read_outputs
from workbench.adapted.sampled import (
    WHOLE_S,
    FirstPrograms,
    accessed_bytes,
    discover_sample,
    first_footprint,
    first_programs,
    import_function,
    shares_of,
)
from workbench.adapted.travel import AdaptedError, Importing, unpack
from workbench.backend.prewarm import KeptProcesses
from workbench.backend.processes import COMPILE_TIMEOUT_S
from workbench.backend.workers import LOST, Pool, Workers
from workbench.catalog import name_hint
from workbench.commands.console import SweepConsole, doing, plain_console
from workbench.commands.options import DEFAULT_TARGET, OptionError
from workbench.commands.run import Opener, check_writable, gpu_present, require_triton
from workbench.commands.sweep import SweepOptions
from workbench.commands.sweep_command import SweepCommand
from workbench.commands.tune_options import TunedFunction, TuneOptions
from workbench.commands.tune_words import arguments_of, config_of, function_of, grid_of
from workbench.data.exits import INTERRUPTED
from workbench.data.interrupts import Interrupts
from workbench.data.record import Failure, Outcome, Record
from workbench.data.temporary import temporary_folder
from workbench.data.user_code import hide_main
from workbench.device.hardware import Device, device_named
from workbench.measurement.inputs import torch_dtype
from workbench.reports.selection_sentence import NOT_CHECKED, sentence
from workbench.spec import Limits, Tolerance, label

if TYPE_CHECKING:
    from rich.console import Console

    from workbench.commands.predict import PredictOptions
    from workbench.commands.tune import FunctionOptions


DISCOVER_TIMEOUT_S = 300.0
FIRST_TIMEOUT_S = 30.0  # of three programs
OUT_OF_BOUNDS = "it accessed memory out of bounds; is a mask missing?"

# Tolerance of an output against the first config's: one step of the dtype, since both were rounded
# to it, and near zero the share of the output's rms by which fp32 sums in another order differ, as
# in kernels/matmul.py. Integers must be equal.
STEPS: Mapping[str, Tolerance] = {
    "fp64": Tolerance(1e-12, 1e-12),
    "fp32": Tolerance(1e-5, 5e-5),
    "fp16": Tolerance(1e-3, 1e-4),
    "bf16": Tolerance(8e-3, 1e-4),
    "fp8": Tolerance(0.125, 1e-4),
    "fp8_fnuz": Tolerance(0.125, 1e-4),
    "fp8_e5m2": Tolerance(0.25, 1e-4),
    "fp8_e5m2_fnuz": Tolerance(0.25, 1e-4),
}
EXACT = Tolerance(0.0)

_log = logging.getLogger("workbench")


def tune(
    kernel: Any,
    args: Sequence[Any],
    *,
    grid: Grid,
    configs: Sequence[Any] | None = None,
    **options: Unpack[TuneOptions],
) -> TunedFunction:
    """Return the best config for these arguments, by measuring on the GPU of this machine or, with
    `device` or without a GPU, by compiling, interpreting and predicting.

    `grid` is the grid of `kernel[grid]`; `configs` are `triton.Config`s, by default those of
    `@triton.autotune`, whose cache gets a measured winner, so that the next launch uses it. The
    user's tensors are not written to. Raises AdaptedError where the function cannot be adapted or
    no config gave a correct result, KeyboardInterrupt after Ctrl-C, and the errors of a sweep.
    """
    if Importing.file is not None:
        raise AdaptedError(f"{Importing.file} calls tune() as it is imported")
    if odd := sorted(set(options) - set(TuneOptions.__annotations__)):
        raise AdaptedError(name_hint("option of tune", odd[0], TuneOptions.__annotations__))
    require_triton()
    out = Path(options.get("out", "results"))
    check_writable(out)
    arguments = (tuple(args), dict(options.get("kwargs", {})))
    tuner = autotuned.autotuner_of(kernel)
    entries, notes = configs_of(tuner, arguments, configs)
    with ExitStack() as stack:
        stack.enter_context(Interrupts())
        stack.enter_context(hide_main())
        processes = None
        if options.get("device") is None and gpu_present():
            processes = KeptProcesses()  # the first launch and the sweep have one measuring process
            stack.callback(processes.end)
        code = function_in_file(kernel, out)
        path, call, more = take_over(code, arguments, grid, entries, options, pool=processes)
        for note in (*notes, *more):
            _log.warning("%s: %s", call.name, note)
        config, predicted = _sweep_kernel(path, call, entries, options, processes)
    if tuner is not None and not predicted:  # a launch must never use what was only predicted
        autotuned.remember(tuner, arguments, config)
    return TunedFunction(config, path)


def described_launch(
    options: FunctionOptions | PredictOptions, words: str
) -> tuple[Any, dict[str, Any], Grid, list[Any] | None]:
    """Return the function that these words name, its arguments by name, its grid and its
    configs. Raises OptionError where the words describe no launch."""
    kernel = function_of(words)
    if not hasattr(kernel, "arg_names"):
        raise OptionError(f"{words} is not a @triton.jit function.")
    if not options.grid:
        raise OptionError("Name the grid of the launch: --grid 'cdiv(n, BLOCK)'.")
    arguments = arguments_of(options.arg, kernel.arg_names)
    configs = [config_of(text) for text in options.config]
    if options.config_from is not None:
        configs += _configs_from(options.config_from)
    return kernel, arguments, grid_of(options.grid), configs or None


def _configs_from(words: str) -> list[Any]:
    """Return the configs of another function's autotuner. Raises OptionError where it has none."""
    tuner = autotuned.autotuner_of(function_of(words))
    if tuner is None:
        raise OptionError(f"{words} has no @triton.autotune; name a function that has one.")
    return list(tuner.configs)


def configs_of(
    tuner: Any | None, arguments: autotuned.Arguments, configs: Sequence[Any] | None
) -> tuple[list[Any], list[str]]:
    """Return the configs to try, those of the autotuner where none are given, and notes. Raises
    AdaptedError where there are none."""
    none: list[str] = []
    if configs is not None:
        result, notes = list(configs), none
    elif tuner is not None:
        result, notes = autotuned.configs_of(tuner, arguments)
    else:
        result, notes = [], none
    if not result:
        raise AdaptedError(
            "There are no configs to try; name them: configs=[triton.Config(...)], "
            "--config BLOCK=64."
        )
    return result, notes


def take_over(
    kernel: Any,
    arguments: autotuned.Arguments,
    grid: Grid,
    configs: Sequence[Any],
    options: TuneOptions,
    recorded: bool = False,
    pool: Pool | None = None,
) -> tuple[Path, Call, list[str]]:
    """Write the function as a one-file kernel. Returns its path, the call, and notes.

    One launch on copies, in a worker, shows which tensors are written: in a process of `pool`,
    which sees a GPU, or of this machine. Of a launch that a program made (`recorded`), what the
    first config leaves unwritten or reads is right; else the user has to declare it. Raises
    AdaptedError where the function cannot be adapted.
    """
    import torch

    arguments, fixed = write.split_options(kernel, arguments)
    flops = int(options.get("flops", 0))
    call, memory = write.call_of(kernel, arguments, grid, configs, flops, fixed)
    if options.get("device") is not None or not gpu_present():
        call = _launchable(call, device_named(options.get("device") or DEFAULT_TARGET).limits)
    tuner = autotuned.autotuner_of(kernel)
    for name in tuner.reset_to_zero if tuner is not None else ():
        memory[name].zero_()
    home = Path(options.get("out", "results")) / "adapted"
    home.mkdir(parents=True, exist_ok=True)
    call = _named_tensors(call, memory, options)
    reference = options.get("reference")
    declared = None if recorded else (*options.get("inputs", ()), *_restored_tensors(tuner))
    with temporary_folder(home, prefix=".workbench-") as passing:
        stage = passing / "kernel"
        stage.mkdir()
        call.write(stage)
        torch.save(memory, stage / ARGS)
        call, result = _observe_first_launch(call, stage, declared, options, pool)
        call = _complete_call(call, result, options.get("tolerance"))
        _refuse_partial(call)
        if reference is not None and not call.unchecked:
            result = keep_read_outputs(reference, arguments, call, memory, result)
            call = replace(call, initial=result.initial)
            torch.save(expected_of(reference, arguments, call), stage / EXPECTED)
            result = expected_again(stage, reference, arguments, call, result)
        rules = (grid, reference or dict(call.entries[result.first].values))
        mark = write.fingerprint(call, kernel, rules, memory, options.get("device") or "gpu")
        call.write(stage)
        write.write_file(call, stage, mark)
        folder = home / write.folder_name(call, mark)
        shutil.rmtree(folder, ignore_errors=True)
        stage.rename(folder)
    notes = _notes(call, result, reference is not None)
    for one, other in write.overlaps(arguments, kernel.arg_names):
        notes.append(f"{one} and {other} overlap in memory, and are taken as separate tensors")
    return folder / f"{call.name}.py", call, notes


def _observe_first_launch(
    call: Call,
    stage: Path,
    declared: tuple[str, ...] | None,
    options: TuneOptions,
    pool: Pool | None,
) -> tuple[Call, Discovered]:
    """Return the call with the bytes that its first launch accesses, and what that launch writes.
    Where nothing can be interpreted the call says why, and its outputs are those of the options."""
    outputs, device = tuple(options.get("outputs", ())), options.get("device")
    console = plain_console()
    console.quiet = options.get("quiet", False)
    live = pool is not None or (device is None and gpu_present())
    has_reference = options.get("reference") is not None
    task = FirstLaunchTask(stage, outputs, has_reference, declared, device, console)
    try:
        with nullcontext(pool) if pool else Workers(1, interpreted=not live) as workers:
            result, shares, accessed = task.answer(workers, live)
    except NotInterpreted as error:
        return replace(call, unchecked=str(error)), _assume_outputs(call, outputs)
    call = replace(call, sampled=shares is not None, shares=shares or {})
    return replace(call, moved_bytes=accessed), result


def _named_tensors(call: Call, memory: Mapping[str, Any], options: TuneOptions) -> Call:
    """Return the call with the outputs of partial results, whose memory is zeroed. Raises
    AdaptedError where an option names a tensor that is not among the arguments."""
    words = (*options.get("outputs", ()), *options.get("inputs", ()), *options.get("partial", ()))
    if odd := [n for n in words if n not in call.tensors]:
        raise AdaptedError(name_hint(f"tensor among the arguments of {call.name}", odd[0], memory))
    partial = tuple(options.get("partial", ()))
    for name in partial:
        if not call.tensors[name].shape:
            raise AdaptedError(f"{name} is one number; partial results lie along a first axis.")
        memory[name].zero_()
    return replace(call, partial=partial)


def _refuse_partial(call: Call) -> None:
    """Raise AdaptedError where a tensor of partial results, which began as zeros, is not an output
    of the launch."""
    if odd := [name for name in call.partial if name not in call.outputs]:
        raise AdaptedError(
            f"{call.name} does not write {', '.join(odd)}, which `partial` names; it writes "
            f"{', '.join(call.outputs)}."
        )


def _launchable(call: Call, limits: Limits) -> Call:
    """Return the call with the configs last that the device cannot launch: nothing is interpreted
    for them. Raises AdaptedError where they are all."""
    refused = [refused_grid(entry.grid, limits) for entry in call.entries]
    if all(refused):
        raise AdaptedError(f"No config of {call.name} can be launched: {refused[0]}.")
    refusals = dict(zip(map(id, call.entries), refused, strict=True))
    return replace(call, entries=tuple(sorted(call.entries, key=lambda e: bool(refusals[id(e)]))))


def _assume_outputs(call: Call, outputs: Sequence[str]) -> Discovered:
    """Return what is assumed of a function that nothing here can run: it may write each tensor of
    floats, or those that the user names."""
    floats = [n for n, t in call.tensors.items() if torch_dtype(t.dtype).is_floating_point]
    written = tuple(outputs) or tuple(floats) or tuple(call.tensors)
    return Discovered(written, dict.fromkeys(written, "values"), 0)


def _restored_tensors(tuner: Any | None) -> tuple[str, ...]:
    """Return the tensors that `@triton.autotune` zeroes or restores before a launch: with that the
    user says that a launch needs what they hold."""
    return () if tuner is None else (*tuner.reset_to_zero, *tuner.restore_value)


@dataclass(frozen=True)
class FirstLaunchTask:
    """What a launch writes and reads, found by running it in a worker."""

    stage: Path
    outputs: tuple[str, ...]
    has_reference: bool  # a reference gives the expected outputs
    declared_outputs: tuple[str, ...] | None
    device: str | None
    console: Console

    def answer(
        self, workers: Pool, live: bool
    ) -> tuple[Discovered, Mapping[str, float] | None, tuple[int, int] | None]:
        """Return what the first config does to the tensors; of a launch of which only some programs
        run, the share of each that all programs write; and the distinct bytes that a launch on
        large tensors reads and writes, None where that is not known."""
        call = Call.read(self.stage)
        place = "on the GPU" if live else "in Triton's interpreter"
        with Workers(1) as compilers:
            with doing(self.console, f"launching {call.name} {place}, to see what it writes"):
                few = None if live else self._first_programs(workers)
                accessed = self._accessed_bytes(compilers, call, 0 if few is None else few.first)
                if few is None or few.whole_s <= WHOLE_S:
                    result = self._whole(workers, "cuda" if live else "cpu")
                    return result, None, accessed()
            with doing(self.console, f"running some of its {few.programs:,} programs"):
                sample, shares = self._sample(workers, compilers, few)
                return sample, shares, accessed()

    def _accessed_bytes(
        self, compilers: Pool, call: Call, first: int
    ) -> Callable[[], tuple[int, int] | None]:
        """Begin to ask the code of a launch on large tensors for the distinct bytes that it
        accesses. Returns a function that waits for the answer."""
        if call.total_bytes <= LARGE:
            return lambda: None
        task = compilers.submit(
            accessed_bytes, self.stage, self._device, first, timeout_s=COMPILE_TIMEOUT_S
        )
        return lambda: _result_or_none(task)

    @property
    def _device(self) -> Device:
        return device_named(self.device or DEFAULT_TARGET)

    def _whole(self, workers: Pool, where: str) -> Discovered:
        options = self.outputs, where, self.has_reference, self.declared_outputs
        return self._discover(workers, discover, *options)

    def _discover(self, workers: Pool, task: Callable[..., Any], *options: Any) -> Discovered:
        """Return what a first launch does. Raises AdaptedError where its process is lost."""
        pending = workers.submit(task, self.stage, *options, timeout_s=DISCOVER_TIMEOUT_S)
        try:
            results: Discovered = pending.result()
        except LOST as error:
            raise AdaptedError(f"The first launch ended: {error}; {_advice(error)}") from None
        return results

    def _first_programs(self, workers: Pool) -> FirstPrograms | None:
        # a package may take longer to import than its programs to run
        imported = workers.submit(import_function, self.stage, timeout_s=COMPILE_TIMEOUT_S)
        if (failure := imported.exception()) is not None:
            self._refuse_interpreter(failure)
            return None
        pending = workers.submit(first_programs, self.stage, timeout_s=FIRST_TIMEOUT_S)
        try:
            results: FirstPrograms | None = pending.result()
        except TimeoutError:
            raise NotInterpreted(
                f"three of its programs take longer than {FIRST_TIMEOUT_S:.0f} s in the interpreter"
            ) from None
        except ChildProcessError:  # the launch of all programs says why
            return None
        return results

    def _refuse_interpreter(self, failure: BaseException) -> None:
        """Raise NotInterpreted where the function's file can be imported to be compiled, and its
        import failed in the interpreter: a library may look for what only compiling has."""
        with Workers(1) as compilers:
            task = compilers.submit(import_function, self.stage, timeout_s=COMPILE_TIMEOUT_S)
            if _result_or_none(task) is not None:
                reason = str(failure).split("; ")[0].replace("a worker", "Triton's interpreter")
                raise NotInterpreted(reason) from None

    def _sample(
        self, workers: Pool, compilers: Pool, few: FirstPrograms
    ) -> tuple[Discovered, Mapping[str, float] | None]:
        task = compilers.submit(
            first_footprint, self.stage, self._device, few.first, timeout_s=COMPILE_TIMEOUT_S
        )
        footprint = _result_or_none(task)
        facts = self.outputs, footprint, few.first, self.has_reference, self.declared_outputs
        sample = self._discover(workers, discover_sample, *facts)
        return sample, shares_of(Call.read(self.stage), footprint)


def _result_or_none(task: Future[Any]) -> Any:
    """Return a task's result, None where it failed: the sweep then tells why."""
    try:
        return task.result()
    except Exception:
        return None


def _advice(error: BaseException) -> str:
    """Return what to do about a first launch whose process was lost."""
    if isinstance(error, TimeoutError):
        return "give smaller tensors, or put a config that ends sooner first in the list."
    return (
        f"{OUT_OF_BOUNDS} If another config works, put it first in the list, or give smaller "
        "tensors."
    )


def _complete_call(call: Call, result: Discovered, wanted: Tolerance | None) -> Call:
    """Return the call with the results of its first launch."""
    kinds = [call.tensors[n].dtype for n in (*result.outputs, *call.tensors)]
    dtype = next((k for k in kinds if k in STEPS), kinds[0])
    own = {
        k: wanted or _loosen(STEPS[k], result.mantissa_bits) if k in STEPS else EXACT
        for k in (dtype, *kinds)
    }
    tolerance = {k: (t.relative, t.rms_share) for k, t in own.items()}
    return replace(
        call, outputs=result.outputs, initial=result.initial, dtype=dtype, tolerance=tolerance
    )


def _loosen(usual: Tolerance, bits: int | None) -> Tolerance:
    """Return the tolerance of an output of products whose operands are rounded to so many bits of
    mantissa. Of a sum of 512 random products with 10 bits the error is 3e-4 of the output's rms,
    and five times that of the worst of 1,000: two steps."""
    if bits is None:
        return usual
    step = 2.0**-bits
    return Tolerance(max(usual.relative, step), max(usual.rms_share, 2 * step))


def _notes(call: Call, result: Discovered, referenced: bool) -> list[str]:
    notes: list[str] = []
    if call.unchecked:
        return [f"{NOT_CHECKED}: {call.unchecked}"]
    if not referenced:
        first = label(call.entries[result.first].values)
        notes.append(
            f"results are compared with those of {first}; pass reference= for another check"
        )
    for name, use in result.odd.items():
        notes.append(f"of its first config: {use.sentence(call.name, name)}")
    notes += result.notes
    if result.mantissa_bits:
        loose = _loosen(EXACT, result.mantissa_bits)
        of = f"{loose.relative:.2g}, and {loose.rms_share:.2g} of the rms"
        notes.append(
            f"operands of its products are rounded to {result.mantissa_bits} bits of mantissa, so "
            f"floats are compared within {of} at least, unless a tolerance is given"
        )
    if result.repeat_reason:
        notes.append(f"the second check is on the same values as the first: {result.repeat_reason}")
    if result.skip_reason:
        notes.append(f"configs listed before that one do not launch: {result.skip_reason}")
    for knob in call.knobs:
        meant = {e.values[knob.name]: _value(e, knob.name) for e in call.entries}
        meant = {
            number: value
            for number, value in meant.items()
            if value != number and not isinstance(number, WordNumber)  # which prints as it is
        }
        if text := ", ".join(f"{k} is {v!r}" for k, v in sorted(meant.items())):
            notes.append(f"of {knob.name}, {text}")
    return notes


def _value(entry: ConfigEntry, knob: str) -> Any:
    if knob == write.HOOK:
        hook = entry.pre_hook
        return hook and (hook.name if hook.config is None else f"that of config {hook.config}")
    return unpack(entry.kwargs.get(knob))


def _sweep_kernel(
    path: Path,
    call: Call,
    configs: Sequence[Any],
    options: TuneOptions,
    processes: KeptProcesses | None,
) -> tuple[Any, bool]:
    """Sweep the adapted kernel. Returns the winning config, and whether its time is predicted."""
    console = SweepConsole(options.get("quiet", False))
    command = sweep_adapted_kernel(path, call, options, console, prewarm=processes)
    selection, page = command.selection, command.page
    assert selection is not None and page is not None  # the sweep has ended
    if selection.winner is None:
        advice = _bounds_advice(command.outcomes)
        raise AdaptedError(f"{sentence(selection)}{advice} All reasons are listed in {page}.")
    if options.get("reference") is None and (note := _other_majority(command.outcomes)):
        _log.warning("%s: %s", call.name, note)
    at = write.numbers_of(configs).index(dict(selection.winner.case.config))
    return configs[at], selection.is_predicted


def sweep_adapted_kernel(
    path: Path,
    call: Call,
    options: TuneOptions,
    console: SweepConsole,
    open_backend: Opener | None = None,
    prewarm: KeptProcesses | None = None,
) -> SweepCommand:
    """Sweep an adapted kernel over its configs: in the budget, or over each where they are only
    predicted. Returns the ended command. Raises KeyboardInterrupt after Ctrl-C."""
    device = options.get("device")
    every = str(len(call.entries)) if device is not None or not gpu_present() else None
    sweep = SweepOptions(
        "full",
        str(path),
        dtype=call.dtype,
        device=device,
        out=Path(options.get("out", "results")),
        budget=options.get("budget", every),
        database=options.get("database"),
        fresh=options.get("fresh", False),
    )
    command = SweepCommand(sweep, console, open_backend, prewarm=prewarm)
    if command.go() == INTERRUPTED:
        raise KeyboardInterrupt
    return command


def _other_majority(outcomes: Sequence[Outcome]) -> str | None:
    """Return a sentence on configs that differ from the first one and agree among themselves, where
    there are as many as agree with the first or more; None where there are not."""
    groups: dict[str, list[str]] = {}
    for outcome in outcomes:
        if isinstance(outcome, Failure) and outcome.stage == "check":
            groups.setdefault(outcome.reason, []).append(label(outcome.case.config))
    reason, others = max(groups.items(), key=lambda one: len(one[1]), default=("", []))
    right = sum(isinstance(outcome, Record) for outcome in outcomes)
    if "expected" not in reason or len(others) < max(2, right):
        return None
    return (
        f"{' and '.join(others)} give one other result, and {right} agree with the first config: "
        "the first may be the wrong one; pass reference= to decide"
    )


def _bounds_advice(outcomes: Sequence[Outcome]) -> str:
    """Return a sentence on configs whose check ended their process; empty if there are none."""
    crashed = [o for o in outcomes if isinstance(o, Failure) and o.cause == "crash"]
    if not any(o.stage == "check" for o in crashed):
        return ""
    return f" A process died as it checked {label(crashed[0].case.config)}: {OUT_OF_BOUNDS}"


__all__ = ["AdaptedError", "TuneOptions", "TunedFunction", "tune"]
