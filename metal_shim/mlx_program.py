"""Check the custom kernels of an MLX program while it runs, its text unchanged.

`checked_program` replaces `mx.fast.metal_kernel` in the process. Each launch is compiled by clang,
emulated and checked: the first of its kind in four schedules, later ones in one of them in turn.
Its outputs go back to the program. On Linux the program meets MLX's CPU backend as a Metal device.
"""

from __future__ import annotations

import runpy
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import numpy as np

from metal_shim import emulate
from metal_shim.emulate import SCHEDULES, CheckName, EmulationFinding, LaunchRejected, MetalLaunch
from metal_shim.file_check import bytes_of, numbers_of
from metal_shim.signature import LIBRARY_NAMES, SIZES, ArrayType, MetalCall, MetalSource
from workbench.data.exits import COULD_NOT_RUN, FAILED
from workbench.data.units import amount

MLX_DTYPES = {word: getattr(mx, name, mx.bool_) for word, name in LIBRARY_NAMES.items()}
DTYPES = {dtype: word for word, dtype in MLX_DTYPES.items()}
_OURS = (str(Path(__file__).parent), str(Path(mx.__file__).parent))


@dataclass(frozen=True)
class ProgramFinding:
    """A fault of a launch: the finding, and the files and lines of the kernel and of the call."""

    finding: EmulationFinding
    kernel_at: str
    called_at: str

    def __str__(self) -> str:
        return f"{self.kernel_at}{self.finding}; launched at {self.called_at}"


@dataclass
class ProgramReport:
    """Kernels and findings of a program. Each finding counts as often as it occurs."""

    kernels: list[CheckedKernel] = field(default_factory=list)
    findings: list[ProgramFinding] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        """Yield the lines to print: counts by check, each finding once, and a table of kernels."""
        launched = [kernel for kernel in self.kernels if kernel.launches]
        launches = sum(kernel.launches for kernel in launched)
        yield (
            f"{amount(len(launched), 'Metal kernel')}, {amount(launches, 'launch')} emulated "
            "on a CPU; Apple's compiler and GPU took no part"
        )
        yield from emulate.finding_lines((f.finding.check, str(f)) for f in self.findings)
        for sentence in dict.fromkeys(self.refusals):
            yield f"not checked: {sentence}"
        if launched:
            width = max(len(kernel.source.name) for kernel in launched)
            yield f"{'kernel':<{width}}  launches    runs     sectors   races  made at"
        faults = Counter((f.finding.check, f.finding.kernel) for f in self.findings)
        for kernel in launched:
            races = faults[CheckName.RACECHECK, kernel.source.name]
            yield (
                f"{kernel.source.name:<{width}} {kernel.launches:>9} {kernel.runs:>7} "
                f"{kernel.sectors:>11,} {races:>7}  {kernel.place}"
            )
            yield from (f"  {note}" for note in sorted(kernel.notes))
        unlaunched = [kernel.source.name for kernel in self.kernels if not kernel.launches]
        if unlaunched:
            yield f"never launched: {', '.join(dict.fromkeys(unlaunched))}"


@dataclass
class CheckedKernel:
    """Stands in the place of a kernel of MLX's: called with the same arguments, it returns outputs
    that the emulator computed. It counts its launches; `sectors`, of 32 bytes, are those of all."""

    source: MetalSource
    dense: bool  # inputs are made row contiguous, as `ensure_row_contiguous` asks
    frame: FrameType | None
    place: str
    report: ProgramReport
    launches: int = 0
    runs: int = 0
    sectors: int = 0
    notes: set[str] = field(default_factory=set)
    kinds: dict[Any, int] = field(default_factory=dict)  # sectors of each kind of launch

    def __call__(
        self,
        *,
        inputs: Sequence[Any],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[Any],
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
        template: Sequence[tuple[str, Any]] | None = None,
        init_value: float | None = None,
        **_: Any,  # verbose and stream
    ) -> list[Any]:
        """Emulate a launch in its schedules and return the outputs. A finding enters the report;
        after one that ends a run the outputs are `init_value` or zeros. Raises LaunchRejected."""
        arrays = [x if isinstance(x, mx.array) else mx.array(x) for x in inputs]
        mx.eval(arrays)
        declared = zip(output_shapes, output_dtypes, self.source.outputs, strict=True)
        models = [ArrayType(tuple(s), self._word(dtype, name)) for s, dtype, name in declared]
        given = [self._content(x, name) for x, name in zip(arrays, self.source.inputs, strict=True)]
        values = {n: self._value(v, n) for n, v in template or ()}
        call = MetalCall(self.source, tuple(t for t, _ in given), tuple(models), values)
        start = dict[str, bytes]()
        if init_value is not None:
            contents = [bytes_of(np.full(m.size, init_value), m.dtype) for m in models]
            start = dict(zip(self.source.outputs, contents, strict=True))
        (x, y, z), (across, down, deep) = grid, threadgroup  # lists, too
        extents = (x, y, z), (across, down, deep)
        contents = self._emulate(MetalLaunch(call, [c for _, c in given], *extents, initial=start))
        outputs = [
            mx.array(numbers_of(content, model)).astype(MLX_DTYPES[model.dtype])
            for content, model in zip(contents, models, strict=True)
        ]
        # MLX gives custom kernels no gradient; without this a program would get zeros
        return list(_refuse_gradient(self.source.name, outputs)(*arrays))

    def _emulate(self, launch: MetalLaunch) -> list[bytes]:
        """Return the outputs of a launch and enter what its runs show."""
        call = launch.call
        kind = (call.inputs, call.outputs, tuple(call.template.items()), launch.grid, launch.group)
        turn = self.launches % len(SCHEDULES)
        schedules = (SCHEDULES[turn],) if kind in self.kinds else SCHEDULES
        self.launches += 1
        if launch.extents != launch.group:
            cut, group = ("x".join(map(str, extents)) for extents in (launch.extents, launch.group))
            self.notes.add(f"a threadgroup of {group} is cut to {cut}, the grid")
        results: list[bytes] | None = None
        for schedule in schedules:
            counting = kind not in self.kinds and schedule is SCHEDULES[0]
            try:
                options = emulate.EmulationOptions(schedule, counting, unset=counting)
                with emulate.emulation(options) as runs:
                    outputs = emulate.emulate_launch(launch)
            except emulate.EmulationError as error:
                self.report.findings.append(self._locate(error.finding))
                self.runs += 1
                return self._resume(error.finding, launch, schedule)
            except LaunchRejected as error:
                self.report.refusals.append(f"{error} (made at {self.place})")
                raise
            self.runs += 1
            results = results or outputs
            if counting:
                traffics = (run.traffic for run in runs)
                self.kinds[kind] = sum(b.sectors for t in traffics for b in t.buffers.values())
        self.sectors += self.kinds.get(kind, 0)
        assert results is not None
        return results

    def _resume(self, finding: EmulationFinding, launch: MetalLaunch, schedule: Any) -> list[bytes]:
        """Return the outputs of a launch with a finding. After a race or a read of memory that
        nothing has written a kernel goes on, here as on a GPU."""
        if finding.check in (CheckName.RACECHECK, CheckName.INITCHECK):
            options = emulate.EmulationOptions(schedule, is_unchecked=True)
            with suppress(emulate.EmulationError), emulate.emulation(options):
                return emulate.emulate_launch(launch)
        self.notes.add("a finding ended a run, and its outputs are zeros")
        outputs = zip(self.source.outputs, launch.call.outputs, strict=True)
        return [launch.initial.get(name, bytes(model.bytes)) for name, model in outputs]

    def _locate(self, finding: EmulationFinding) -> ProgramFinding:
        at = f"{self._line(finding)}: " if finding.line else ""
        return ProgramFinding(finding, at, _place(_caller(sys._getframe(1))))

    def _line(self, finding: EmulationFinding) -> str:
        """Return the file and line of a kernel's line, where its text stands there as it is."""
        if self.frame is None:
            return ""
        path = Path(self.frame.f_code.co_filename)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return self.place
        part = self.source.header if finding.is_in_header else self.source.body
        if (at := text.find(part)) >= 0:
            return f"{_short_path(path)}:{text.count(chr(10), 0, at) + (finding.line or 1)}"
        same = [n for n, line in enumerate(text.splitlines(), 1) if line.strip() == finding.text]
        return f"{_short_path(path)}:{same[0]}" if len(same) == 1 else self.place

    def _word(self, dtype: Any, name: str) -> str:
        if dtype not in DTYPES:
            self._refuse(f"the emulator does not support {dtype}, the dtype of {name}")
        return DTYPES[dtype]

    def _value(self, value: Any, name: str) -> bool | int | str:
        return value if isinstance(value, bool | int) else self._word(value, name)

    def _content(self, x: Any, name: str) -> tuple[ArrayType, bytes]:
        """Return type and contents of an input: as it lies in memory, strides included, where the
        kernel does not ask for a dense one."""
        word = self._word(x.dtype, name)
        if self.dense or not x.ndim:
            flat = x.reshape(-1)  # which MLX can view as bits; numpy has no bfloat16
            flat = flat.view(mx.uint16) if word == "bf16" else flat
            return ArrayType(tuple(x.shape), word), np.array(flat).tobytes()
        view = np.array(x.view(mx.uint16) if word == "bf16" else x, copy=False)
        size = SIZES[word]
        strides = tuple(stride // size for stride in view.strides)
        if any(stride < 0 for stride in strides):
            self._refuse(f"{name} has a negative stride; the emulator does not support that")
        last = sum((n - 1) * s for n, s in zip(view.shape, strides, strict=True))
        flat = np.lib.stride_tricks.as_strided(view, (last + 1 if view.size else 0,), (size,))
        return ArrayType(tuple(x.shape), word, strides), flat.tobytes()

    def _refuse(self, sentence: str) -> None:
        self.report.refusals.append(f"{self.source.name}: {sentence} (made at {self.place})")
        raise LaunchRejected(f"{self.source.name}: {sentence}.")


def _refuse_gradient(name: str, outputs: Sequence[Any]) -> Any:
    def forward(*_: Any) -> Sequence[Any]:
        return outputs

    def refuse(*_: Any) -> Any:
        raise ValueError(f"[Primitive::vjp] MLX has no gradient of the custom kernel {name}")

    function = mx.custom_function(forward)
    function.vjp(refuse)
    return function


def _caller(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of the program's own."""
    while frame and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return frame


def _place(frame: FrameType | None) -> str:
    return f"{_short_path(Path(frame.f_code.co_filename))}:{frame.f_lineno}" if frame else "?"


def _short_path(path: Path) -> str:
    """Return a path from the working folder, or from the folder of the installed packages."""
    for base in (Path.cwd(), *map(Path, sys.path)):
        if base.is_absolute() and path.is_relative_to(base):
            return str(path.relative_to(base))
    return str(path)


# The program


def _kernel(report: ProgramReport, name: str, input_names: Sequence[str],
            output_names: Sequence[str], source: str, header: str = "",
            ensure_row_contiguous: bool = True, atomic_outputs: bool = False,
            compile_options: object = None) -> CheckedKernel:  # fmt: skip
    """Return what stands for a kernel, from the arguments of `mx.fast.metal_kernel`."""
    frame = _caller(sys._getframe(1))
    text = MetalSource(name, tuple(input_names), tuple(output_names), source, header,
                       atomic_outputs=atomic_outputs)  # fmt: skip
    kernel = CheckedKernel(text, ensure_row_contiguous, frame, _place(frame), report)
    report.kernels.append(kernel)
    return kernel


def _call_on_cpu(function: Any, *given: Any, **named: Any) -> Any:
    """Call a function of MLX's with the CPU where the program named the GPU."""

    def own(value: Any) -> Any:
        return mx.cpu if isinstance(value, mx.Device | mx.DeviceType) and value == mx.gpu else value

    return function(*map(own, given), **{name: own(value) for name, value in named.items()})


def _replacements(report: ProgramReport) -> Iterator[tuple[ModuleType, str, Any]]:
    yield mx.fast, "metal_kernel", partial(_kernel, report)
    if mx.metal.is_available():
        return
    yield mx.metal, "is_available", lambda: True
    yield mx, "default_device", lambda: mx.Device(mx.gpu)
    for name in ("set_default_device", "default_stream", "new_stream", "stream", "synchronize",
                 "new_thread_local_stream", "new_thread_unsafe_stream"):  # fmt: skip
        if hasattr(mx, name):
            yield mx, name, partial(_call_on_cpu, getattr(mx, name))


@contextmanager
def checked_program() -> Iterator[ProgramReport]:
    """Return a context manager in which MLX's custom kernels are emulated and checked. A function
    that `mx.compile` wraps runs uncompiled: a kernel needs the values of its inputs."""
    report = ProgramReport()
    mx.disable_compile()
    with ExitStack() as stack:
        stack.callback(mx.enable_compile)
        for module, name, value in _replacements(report):
            stack.enter_context(patch.object(module, name, value))
        yield report


def check_program(words: Sequence[str]) -> int:
    """Run a program, given as on Python's command line (`script.py ...`, or `-m module ...`), print
    its report, and return the exit code: 1 with findings, 2 where it failed or launched nothing."""
    module = words[0] == "-m"
    arguments = list(words[1:] if module else words)
    failure = ""
    path = ["" if module else str(Path(arguments[0]).resolve().parent), *sys.path]
    with checked_program() as report, patch.multiple(sys, argv=arguments, path=path):
        try:
            if module:
                runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(arguments[0], run_name="__main__")
        except SystemExit as ended:
            failure = f"it ended with exit code {ended.code}" if ended.code else ""
        except Exception as error:
            traceback.print_exc()
            failure = f"it ended with {type(error).__name__}"
    print(*report.lines(), sep="\n")
    if failure:
        print(f"{arguments[0]}: {failure}")
    if report.findings:
        return FAILED
    checked = any(kernel.launches for kernel in report.kernels)
    return COULD_NOT_RUN if failure or report.refusals or not checked else 0
