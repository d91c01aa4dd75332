"""Run a Metal kernel on the CPU, check every access, and count its traffic.

A run is a process of its own with a time limit: a kernel that never ends or that crashes is a
finding like any other. What a run returns has no time in it. Emulated work says nothing about the
speed of a GPU.
"""

from __future__ import annotations

import re
import struct
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import accumulate
from math import prod
from pathlib import Path

from metal_shim import compiler, host, lint
from metal_shim.signature import ArrayType, MetalCall, Parameter, parameters
from workbench.data.record import BufferCounts
from workbench.data.units import amount
from workbench.spec import WorkbenchError

MOST_THREADS = 1024  # of a threadgroup, on every Apple GPU
SIMD_WIDTH = 32  # threads of a SIMD-group, on every Apple GPU
ACCESSES = 1 << 34  # after so many a kernel is taken to run without end


class CheckName(Enum):
    """What a finding breaks, in the order in which the checks are printed."""

    SYNCCHECK = "synccheck"
    RACECHECK = "racecheck"
    MEMCHECK = "memcheck"
    INITCHECK = "initcheck"


@dataclass(frozen=True)
class EmulationFinding:
    """A fault of a kernel: the check, one sentence, and where. `line` counts in the body, or in the
    header if `is_in_header`; `thread` is the thread in its threadgroup, and the threadgroup."""

    check: CheckName
    sentence: str
    kernel: str
    line: int | None = None
    is_in_header: bool = False
    thread: tuple[int, tuple[int, int, int]] | None = None
    text: str = ""  # of that line
    file: str = ""  # that it is of, where the kernel is one of a file's

    def __str__(self) -> str:
        part = "header line" if self.is_in_header else f"{self.file} line".strip()
        place = f"{self.kernel}, {part} {self.line}" if self.line else self.kernel
        quoted = f" (`{self.text}`)" if self.text else ""
        who = ""
        if self.thread:
            index, group = self.thread
            who = f" [thread {index} of threadgroup {','.join(map(str, group))}]"
        return f"{place}{quoted}: {self.sentence}{who}"


def finding_lines(findings: Iterable[tuple[CheckName, str]]) -> Iterator[str]:
    """Yield the number of different findings of each check, and each of them once."""
    times = Counter(findings)
    for check in CheckName:
        own = {sentence: n for (name, sentence), n in times.items() if name is check}
        yield f"{check.value:<10} {amount(len(own), 'finding')}"
        for sentence, number in own.items():
            yield f"  {sentence}" + (f" ({number} times)" if number > 1 else "")


class EmulationError(WorkbenchError, RuntimeError):
    """A kernel broke a rule of Metal's while it was emulated; `finding` is the fault."""

    def __init__(self, finding: EmulationFinding) -> None:
        super().__init__(str(finding))
        self.finding = finding


class EndlessRun(EmulationError):
    """A kernel did not end within the time limit of a run."""


class LaunchRejected(WorkbenchError, ValueError):
    """A kernel or its launch is refused before it runs; the message is one sentence."""


class Order(Enum):
    """Order in which the SIMD-groups of a threadgroup run between two barriers."""

    FORWARD = 0
    BACKWARD = 1
    ROTATED = 2  # by one more in each round


@dataclass(frozen=True)
class Schedule:
    """Order of a run: races are found in any; a wrong result shows in some."""

    groups_backward: bool = False
    simdgroups: Order = Order.FORWARD


SCHEDULES = (
    Schedule(),
    Schedule(groups_backward=True, simdgroups=Order.BACKWARD),
    Schedule(simdgroups=Order.ROTATED),
    Schedule(groups_backward=True),
)


@dataclass(frozen=True)
class EmulatedTraffic:
    """Counts of one run, none of them a time. `bank_rounds` assumes 32 banks of 4 bytes, which
    Apple does not publish: a hint. It, sectors and the accesses of SIMD-groups to threadgroup
    memory are 0 if not counted."""

    buffers: Mapping[str, BufferCounts]
    threads: int
    barriers: int  # times that a thread reached one
    exchanges: int  # times that a lane took part in a function of its SIMD-group
    threadgroup_bytes: int
    bank_rounds: int
    threadgroup_accesses: int

    @property
    def unique_read(self) -> int:
        """Bytes of device memory that were read, each once."""
        return sum(b.unique_read for b in self.buffers.values())

    @property
    def unique_written(self) -> int:
        """Bytes of device memory that were written, each once."""
        return sum(b.unique_written for b in self.buffers.values())


@dataclass(frozen=True)
class EmulatedRun:
    """A run without a finding: one kernel's traffic in one schedule."""

    call: MetalCall
    grid: tuple[int, int, int]
    group: tuple[int, int, int]
    traffic: EmulatedTraffic
    cut_from: tuple[int, int, int] | None = None  # the group, where it was larger than the grid


@dataclass(frozen=True)
class EmulationOptions:
    """How launches are emulated. `same_value` names outputs to which several threads may write the
    same value at once."""

    schedule: Schedule = SCHEDULES[0]
    counting: bool = False  # of sectors and bank rounds, which takes about twice the time
    time_limit_s: float = 60.0
    compiler: str | None = None  # name or path of a clang++
    accesses: int = ACCESSES
    unset: bool = False  # run again with other contents of locals that nothing sets
    is_unchecked: bool = (
        False  # for the values of a kernel that has a race or reads unwritten memory
    )
    corners: bool = False  # run the corner threadgroups of the grid alone, on inputs of zeros


@dataclass(frozen=True)
class MetalLaunch:
    """One dispatch: the call, the contents of its inputs as bytes, threads of the grid and of a
    threadgroup, and the outputs to which several threads may write the same value."""

    call: MetalCall
    inputs: Sequence[bytes]
    grid: tuple[int, int, int]
    group: tuple[int, int, int]
    same_value: tuple[str, ...] = ()
    initial: Mapping[str, bytes] = field(default_factory=dict)  # contents of outputs before the run

    @property
    def extents(self) -> tuple[int, int, int]:
        """Threads of a threadgroup as MLX launches it: at most those of the grid."""
        x, y, z = (min(t, n) for t, n in zip(self.group, self.grid, strict=True))
        return x, y, z

    @property
    def threads(self) -> int:
        """Threads of a threadgroup."""
        return prod(self.extents)

    @property
    def threadgroups(self) -> int:
        """Threadgroups of the grid; those at its edge count as whole ones."""
        return prod(-(-n // t) for n, t in zip(self.grid, self.group, strict=True))

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of threadgroup memory, as the kernel declares it."""
        return host.threadgroup_bytes(self.call.source, self.call.template)

    def refusal(self) -> str | None:
        """Return in one sentence why the kernel should not be launched so, or None."""
        if self.threads % SIMD_WIDTH and self.extents != self.grid:
            return f"{self.threads} threads are not a multiple of {SIMD_WIDTH}, a SIMD-group's"
        return host.refuse_threadgroup(self.threadgroup_bytes)


_Recording = tuple[EmulationOptions, list[EmulatedRun]]
_RECORDING: ContextVar[_Recording | None] = ContextVar("metal_recording", default=None)
_PLANNING: ContextVar[list[MetalLaunch] | None] = ContextVar("metal_planning", default=None)


@contextmanager
def emulation(options: EmulationOptions) -> Iterator[list[EmulatedRun]]:
    """Emulate all launches inside with these options. Yields the list that their runs enter."""
    token = _RECORDING.set((options, runs := list[EmulatedRun]()))
    try:
        yield runs
    finally:
        _RECORDING.reset(token)


@contextmanager
def planning() -> Iterator[list[MetalLaunch]]:
    """Run nothing inside: launches take tensors without memory, on `meta`, and return such. Yields
    the list that the launches enter."""
    token = _PLANNING.set(launches := list[MetalLaunch]())
    try:
        yield launches
    finally:
        _PLANNING.reset(token)


def is_planned(call: MetalCall, grid: tuple[int, int, int], group: tuple[int, int, int]) -> bool:
    """Note the launch and return True inside of `planning`. Raises LaunchRejected where no Apple
    GPU takes the launch."""
    launches = _PLANNING.get()
    if launches is None:
        return False
    launch = MetalLaunch(call, (), grid, group)
    reject_launch(launch)
    launches.append(replace(launch, group=launch.extents))
    return True


def is_planning() -> bool:
    """Return whether launches are planned and not run."""
    return _PLANNING.get() is not None


def is_requested() -> bool:
    """Return whether launches are to be emulated, even where there is a Metal device."""
    return _RECORDING.get() is not None


ACCESSES_AT_CORNERS = 1 << 24  # of a run: about 2 s


def run_corners(launch: MetalLaunch) -> None:
    """Run the threadgroups at the corners of a grid at its true size, where an index of 32 bits
    overflows: the first, and then the last before the others. The arrays are addresses alone: all
    inputs are zeros, and no output is returned.

    Raises EmulationError where a check fails, EndlessRun where that takes too long, and
    CompilerMissing.
    """
    options = EmulationOptions(corners=True, accesses=ACCESSES_AT_CORNERS)
    finding, _, _ = _run(launch, options, compiler.WRAPPING)
    if finding:
        raise (EndlessRun if finding.sentence.startswith("no end") else EmulationError)(finding)


def emulate_launch(launch: MetalLaunch) -> list[bytes]:
    """Run a launch and return the contents of its outputs.

    Raises LaunchRejected before the run, EmulationError where a check fails, and CompilerMissing.
    """
    options, runs = _RECORDING.get() or (EmulationOptions(), [])
    reject_launch(launch)
    source = launch.call.source
    types = tuple(n for n, v in launch.call.template.items() if isinstance(v, str))
    if not source.whole and (broken := lint.findings(source, types)):  # its rules are for bodies
        raise LaunchRejected(f"{source.name}, {broken[0]}.")
    finding, lines, contents = _run(launch, options)
    if finding:
        raise EmulationError(finding)
    is_unset = options.unset and _LOCAL.search(source.body + source.header)
    if is_unset and _run(launch, options, compiler.ZEROED)[2] != contents:
        sentence = "the results depend on a local array or field that was never set"
        raise EmulationError(_locate(CheckName.INITCHECK, sentence, launch.call, 0))
    cut_from = launch.group if launch.extents != tuple(launch.group) else None
    runs.append(EmulatedRun(launch.call, launch.grid, launch.extents, _traffic(lines), cut_from))
    return _split(contents, [array.bytes for array in launch.call.outputs])


# A local array, or a structure, that is declared and not initialised; clang itself names scalars
_LOCAL = re.compile(r"\b[A-Za-z_]\w*(?:\s*<[^;{}()]*>)?\s+\w+(?:\s*\[[^\];]*\])*\s*[;,]")


def reject_launch(launch: MetalLaunch) -> None:
    """Raise LaunchRejected where no Apple GPU takes the launch."""
    name = launch.call.source.name
    if min(*launch.grid, *launch.group) < 1:
        raise LaunchRejected(
            f"{name}: grid {launch.grid} and group {launch.group} must be at least 1 on each axis."
        )
    if (count := launch.threads) > MOST_THREADS:
        raise LaunchRejected(
            f"{name}: {count} threads in a threadgroup; Metal allows at most {MOST_THREADS}."
        )
    if max(launch.grid) >= 1 << 32:
        raise LaunchRejected(f"{name}: an axis of the grid has 2^32 threads or more.")
    for array in (*launch.call.inputs, *launch.call.outputs):
        if not array.size:
            raise LaunchRejected(f"{name}: MLX does not launch a kernel with an empty array.")


def _program(call: MetalCall, options: EmulationOptions, more: tuple[str, ...] = ()) -> Path:
    tools, errors = compiler.find_compiler(options.compiler), list[str]()
    for reading in range(len(host.READINGS) if call.source.files else 1):
        try:
            text = host.host_text(call, reading, options.corners)
            return compiler.compile_text(text, tools, more)
        except compiler.KernelRejected as error:
            errors.append(str(error))
            if "uninitialized" in errors[-1]:
                line = re.search(r"\.metal:(\d+):", errors[-1])
                sentence = re.sub(r"^.*error: ", "", errors[-1].partition(";")[0])
                raise EmulationError(
                    _locate(CheckName.INITCHECK, sentence, call, int(line[1]) if line else 0)
                ) from None
    raise LaunchRejected(f"{call.source.name}: {_rejection(call, errors[0])}.")


def _rejection(call: MetalCall, errors: str) -> str:
    """Return why clang does not take a kernel, with the lines of its file."""
    place = rf"\b{re.escape(call.source.name)}\.metal:(\d+):\d+(?:: error)?"
    errors = re.sub(place, lambda m: "{}line {}".format(*_lines_of(call, int(m[1]))), errors)
    lacking = [word for word in re.findall(r"'(?:metal::)?(\w+)", errors) if word in LACKING]
    if lacking:
        return f"the emulator does not support {lacking[0]} ({errors})"
    return f"clang rejects it: {errors}"


# What MSL declares beside, apart from textures, which a parameter or a header names
LACKING = frozenset({
    "atomic_thread_fence", "printf", "tensor", "mpp", "tensor_ops", "cooperative_tensor",
    "intersector", "imageblock", "acceleration_structure", "intersection_result",
    "visible_function_table", "command_buffer", "sampler", "render_command", "mesh",
    "texture1d", "texture2d", "texture3d", "texture_buffer", "texturecube", "depth2d",
    "simdgroup_async_copy", "simdgroup_event", "quad_vote",
})  # fmt: skip


# The request and the reply: see `main` of runtime.cpp


def _run(
    launch: MetalLaunch, options: EmulationOptions, flags: tuple[str, ...] = ()
) -> tuple[EmulationFinding | None, list[str], bytes]:
    """Return the finding of a reply, its lines, one at least, and what follows them."""
    program = _program(launch.call, options, flags)
    request, limit_s = b"".join(_request(launch, options)), options.time_limit_s
    command = (compiler.runner(compiler.find_compiler(options.compiler)), program)
    try:
        done = subprocess.run(command, input=request, capture_output=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        sentence = f"no end after {limit_s:g} s"
        raise EndlessRun(_locate(CheckName.SYNCCHECK, sentence, launch.call, 0)) from None
    if done.returncode:
        sentence = f"the emulated kernel crashed (signal {-done.returncode})"
        raise EmulationError(_locate(CheckName.MEMCHECK, sentence, launch.call, 0))
    head, _, contents = done.stdout.partition(b"end\n")
    lines = head.decode("utf-8", "replace").splitlines() or [""]
    is_clean = lines[0].startswith("counts ")
    return None if is_clean else _finding(program, launch.call, lines[0]), lines, contents


_WRITABLE, _INITIALISED, _SAME_VALUE, _FILLED, _EMPTY = 1, 2, 4, 8, 16


def _request(launch: MetalLaunch, options: EmulationOptions) -> Iterator[bytes]:
    listed = parameters(launch.call)
    schedule = options.schedule
    yield struct.pack(
        "=6I3I3I2Q",
        *(len(listed), options.counting, schedule.groups_backward, schedule.simdgroups.value),
        *(options.is_unchecked, options.corners),
        *(*launch.grid, *launch.extents, host.THREADGROUP_LIMIT, options.accesses),
    )
    source, call, contents = launch.call.source, launch.call, []
    given = dict(zip(source.inputs, launch.inputs, strict=not options.corners))
    given.update(launch.initial)
    names, kinds = (*source.inputs, *source.outputs), (*call.inputs, *call.outputs)
    arrays = dict(zip(names, kinds, strict=True))
    for p in listed:
        array, written = arrays[p.array], p.array in source.outputs
        content = _description(p, array) if p.part else given.get(p.array)
        flags = _WRITABLE * written | _FILLED * bool(p.fields)
        flags |= _EMPTY * (options.corners and not p.part)
        flags |= _SAME_VALUE * (p.array in launch.same_value)
        flags |= _INITIALISED * (not written or content is not None)
        size = array.bytes if content is None else len(content)
        yield struct.pack("=40sQI4x", p.name.encode(), size, flags)
        contents += [] if content is None else [content]
    yield from contents


def _description(p: Parameter, array: ArrayType) -> bytes:
    """Return the contents of a buffer that describes an array."""
    shape = array.shape
    if p.part == "ndim":
        return struct.pack("=i", len(shape))
    if p.part == "shape":
        return struct.pack(f"={len(shape)}i", *shape)
    strides = array.strides or [prod(shape[i + 1 :]) for i in range(len(shape))]
    return struct.pack(f"={len(shape)}q", *strides)


def _split(contents: bytes, sizes: Sequence[int]) -> list[bytes]:
    return [contents[end - n : end] for n, end in zip(sizes, accumulate(sizes), strict=True)]


def _traffic(lines: Sequence[str]) -> EmulatedTraffic:
    counts = [int(word) for word in lines[0].split()[1:]]
    rows = [line.split() for line in lines[1:] if line.startswith("buffer ")]
    buffers = {name: BufferCounts(name, *map(int, numbers)) for _, name, *numbers in rows}
    return EmulatedTraffic(buffers, *counts)


def _finding(program: Path, call: MetalCall, line: str) -> EmulationFinding:
    """Return the finding of a reply: `finding check place thread group group group sentence`."""
    if not line.startswith("finding "):
        return _locate(CheckName.MEMCHECK, line.removeprefix("error ") or "no result", call, 0)
    _, check, place, thread, x, y, z, sentence = line.split(" ", 7)
    number = _line_at(program, call, place)
    who = (int(thread), (int(x), int(y), int(z))) if int(thread) >= 0 else None
    return _locate(CheckName(check), _readable(program, call, sentence), call, number, who)


_LINE = 1 << 62  # marks a place that is a line and no address


def _line_at(program: Path, call: MetalCall, place: str) -> int:
    """Return the line of a place in a reply, 0 if it is unknown."""
    address = int(place, 16)
    if not address or address & _LINE:
        return address & ~_LINE
    return compiler.line_of(program, address, call.source.name) or 0


def _readable(program: Path, call: MetalCall, sentence: str) -> str:
    """Return the sentence of a reply with the line of the other access of a race, and with MSL's
    words for the type of an array."""

    def line(match: re.Match[str]) -> str:
        number = _line_at(program, call, match[1])
        return " ({}line {})".format(*_lines_of(call, number)) if number else ""

    sentence = re.sub(r"@([0-9a-f]+)@", line, sentence)
    named = re.sub(r"an array '__local msl_type_(\w+)'.*", r"the threadgroup array \1", sentence)
    return re.sub(r"an array '([^']*)'.*", r"an array \1", named)


def _locate(
    check: CheckName,
    sentence: str,
    call: MetalCall,
    line: int,
    thread: tuple[int, tuple[int, int, int]] | None = None,
) -> EmulationFinding:
    """Return a finding with its line and the text of that line; `line` is 0 if it is unknown."""
    part, number, content = _lines_of(call, line)
    lines = content.splitlines()
    text = lines[number - 1].strip() if 0 < number <= len(lines) else ""
    in_header = part == "header "
    file = "" if in_header else part.strip()
    name = call.source.name
    return EmulationFinding(check, sentence, name, number or None, in_header, thread, text, file)


def _lines_of(call: MetalCall, line: int) -> tuple[str, int, str]:
    """Return the words for the text that a line is of, its number there, and that text."""
    number, source = divmod(line, host.FILE_LINES), call.source
    if number[0] < len(source.files):
        name, text = source.files[number[0]]
        return f"{name} ", number[1], text
    if line >= host.HEADER_LINE:
        return "header ", number[1], source.header
    return "", line, source.body
