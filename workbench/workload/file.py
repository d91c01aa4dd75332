"""The workload file: what a program launched, as one JSON document.

Arguments and functions are stored once and named by their numbers, so that a file has about 200
bytes a signature. The reader is strict: a file that this version cannot read whole is refused.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from workbench import __version__
from workbench.data.files import write_file
from workbench.data.name_table import NameTable
from workbench.data.plain import (
    Count,
    Damage,
    Format,
    Grid,
    Seconds,
    Values,
    Whole,
    read_as,
    read_rows,
    row_of,
)
from workbench.workload.errors import WorkloadError
from workbench.workload.signature import (
    ConfigGrids,
    DescriptorArgument,
    KernelFunction,
    LaunchSignature,
    Origin,
    PlainArgument,
    PlainKind,
    RecordedArgument,
    TensorArgument,
    TupleArgument,
)

FORMAT = Format("workload", 1, "workload file", WorkloadError, "record or copy it again")
MOST_DEEP = 8  # tuples in tuples
Mode = Literal["gpu", "caught", "interpreted"]


@dataclass(frozen=True)
class RecordedProcess:
    """One process of a program."""

    program: str  # the name of its script
    rank: Count | None  # of torch.distributed
    mode: Mode  # `caught`: launches were recorded and not run
    device: str  # the GPU's name; empty where there is none or it is not known
    started: str  # ISO 8601 with offset
    seconds: Seconds  # until the last write
    complete: bool  # False: it was killed, and the file ends with the last write before
    versions: Mapping[str, str]  # of torch, triton and python


@dataclass(frozen=True)
class KernelTime:
    """GPU time of the launches of one kernel with one grid in the profiled window."""

    name: str
    grid: tuple[Count, Count, Count]
    block: tuple[Count, Count, Count]
    launches: Count
    seconds: Seconds


@dataclass(frozen=True)
class GpuTimes:
    """GPU time of a window of the program, by torch.profiler."""

    window: str  # which part of the program
    total_s: Seconds  # of all kernels
    kernels: tuple[KernelTime, ...]  # those that were recorded
    others: tuple[tuple[str, Seconds], ...] = ()  # the longest of the others, with seconds


@dataclass
class CountedSignature:
    """A signature and the number of its launches."""

    signature: LaunchSignature
    launches: int


@dataclass
class RecordedWorkload:
    """The contents of a workload file."""

    processes: list[RecordedProcess]
    signatures: list[CountedSignature]
    times: list[GpuTimes] = field(default_factory=list)
    # Launches by function beyond the most signatures that a recording keeps.
    omissions: list[tuple[KernelFunction, int]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def launches(self) -> int:
        """Number of all launches."""
        kept = sum(each.launches for each in self.signatures)
        return kept + sum(number for _, number in self.omissions)


# Writing


def text_of(workload: RecordedWorkload) -> str:
    """Return the contents of a workload file."""
    functions, arguments = NameTable(), NameTable()  # rows as text
    signatures = [_signature(each, functions, arguments) for each in workload.signatures]
    beyond = [[functions[json.dumps(asdict(f))], n] for f, n in workload.omissions]
    head = {
        FORMAT.mark: FORMAT.version,
        "written_by": f"kernel-workbench {__version__}",
        "processes": [asdict(each) for each in workload.processes],
        "times": [asdict(each) for each in workload.times],
        "notes": workload.notes,
    }
    tables = {
        "functions": [json.loads(row) for row in functions.entries],
        "arguments": [json.loads(row) for row in arguments.entries],
        "signatures": signatures,
        "beyond": beyond,
    }
    lines = [f" {json.dumps(k)}: {json.dumps(v)}" for k, v in head.items()]
    for name, rows in tables.items():  # a line an entry, for `grep` and `diff`
        inner = ",\n".join(f"  {json.dumps(row, separators=(',', ':'))}" for row in rows)
        lines.append(f" {json.dumps(name)}: [\n{inner}\n ]" if rows else f" {json.dumps(name)}: []")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def write(path: Path, workload: RecordedWorkload) -> None:
    """Write a workload file; a reader sees the old content or the new one. Raises FileError."""
    write_file(path, text_of(workload), make_folder=True)


def _signature(
    each: CountedSignature, functions: NameTable, arguments: NameTable
) -> dict[str, Any]:
    of = each.signature
    row: dict[str, Any] = {
        "function": functions[json.dumps(asdict(of.function))],
        "arguments": [[n, arguments[json.dumps(_argument(a))]] for n, a in of.arguments.items()],
        "grid": list(of.grid),
        "launches": each.launches,
        "origin": of.origin,
    }
    for name, value in (("options", of.options), ("config", of.config)):
        if value:
            row[name] = [[n, arguments[json.dumps(_argument(a))]] for n, a in value.items()]
    if of.choices != 1:
        row["choices"] = of.choices
    if not of.tuned:
        row["tuned"] = False
    if of.key is not None:
        row["key"] = list(of.key)
    if of.grids is not None:
        shapes = [[list(at), list(shape)] for at, shape in of.grids.shapes.items()]
        row["grids"] = {"knobs": list(of.grids.knobs), "shapes": shapes}
    return row


def _argument(argument: RecordedArgument) -> dict[str, Any]:
    if isinstance(argument, TensorArgument):
        row = {"tensor": argument.dtype, "shape": argument.shape, "stride": argument.stride}
        row |= {"align": argument.align, "storage": argument.storage}  # type: ignore[dict-item]
        return row if argument.values is None else {**row, "values": argument.values}
    if isinstance(argument, DescriptorArgument):
        plain = {"shape": argument.shape, "stride": argument.stride}
        return {"descriptor": _argument(argument.base), **plain, "block": argument.block_shape}
    if isinstance(argument, TupleArgument):
        return {"tuple": [_argument(item) for item in argument.items]}
    return {argument.kind: argument.value}


# Reading


def read(path: Path) -> RecordedWorkload:
    """Return the contents of a workload file. Raises WorkloadError in one sentence."""
    return parse(FORMAT.read(path), str(path))


def read_all(names: Sequence[str]) -> RecordedWorkload:
    """Return several workload files as one. Raises WorkloadError."""
    return merge_workloads([read(Path(name)) for name in names])


def parse(data: bytes, name: str) -> RecordedWorkload:
    """Return the workload of a file's bytes; `name` is the file's, for messages. Raises
    WorkloadError."""
    plain = FORMAT.parse(data, name)
    try:
        return _workload(plain)
    except Damage as error:
        raise FORMAT.damage_error(name, error) from None


def _workload(plain: Mapping[str, Any]) -> RecordedWorkload:
    functions = read_rows(plain, "functions", partial(read_as, KernelFunction))
    arguments = read_rows(plain, "arguments", lambda v, at: _read_argument(v, at, 0))

    def function_count(value: Any, at: str) -> tuple[KernelFunction, int]:
        number, launches = read_as(tuple[Whole, Count], value, at)
        return row_of(functions, number, at), launches

    return RecordedWorkload(
        read_rows(plain, "processes", partial(read_as, RecordedProcess)),
        read_rows(plain, "signatures", lambda v, at: _read_signature(v, at, functions, arguments)),
        read_rows(plain, "times", partial(read_as, GpuTimes)),
        read_rows(plain, "beyond", function_count),
        read_rows(plain, "notes", partial(read_as, str)),
    )


@dataclass(frozen=True)
class _TensorRow:
    tensor: str
    shape: tuple[Count, ...]
    stride: tuple[Whole, ...]
    align: Literal[1, 2, 4, 8, 16]
    storage: Count
    values: tuple[Whole, ...] | None = None


@dataclass(frozen=True)
class _DescriptorRow:
    descriptor: _TensorRow
    shape: tuple[Whole, ...]
    stride: tuple[Whole, ...]
    block: tuple[Whole, ...]


def _read_argument(value: Any, at: str, depth: int) -> RecordedArgument:
    if not isinstance(value, dict) or not value:
        raise Damage(f"{at} is not an argument")
    if "tensor" in value:
        return _tensor(read_as(_TensorRow, value, at), at)
    if "descriptor" in value:
        row = read_as(_DescriptorRow, value, at)
        base = _tensor(row.descriptor, f"{at}.descriptor")
        return DescriptorArgument(base, row.shape, row.stride, row.block)
    if len(value) != 1:
        raise Damage(f"{at} is not an argument")
    ((kind, inner),) = value.items()
    if kind == "tuple":
        if not isinstance(inner, list) or depth >= MOST_DEEP:
            raise Damage(f"{at}.tuple is not a list of arguments")
        return TupleArgument(tuple(_read_argument(i, at, depth + 1) for i in inner))
    kind = read_as(PlainKind, kind, at)
    return PlainArgument(kind, read_as(_PLAIN_VALUES.get(kind, str), inner, at))


def _tensor(row: _TensorRow, at: str) -> TensorArgument:
    if len(row.shape) != len(row.stride):
        raise Damage(f"{at} has {len(row.shape)} extents and {len(row.stride)} strides")
    return TensorArgument(row.tensor, row.shape, row.stride, row.align, row.storage, row.values)


def _is_float(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


_PLAIN_VALUES: Mapping[str, Any] = {
    "int": Whole,
    "bool": bool,
    "none": Literal[None],
    "float": Annotated[str, Values(_is_float, "a number as text")],
}

Pairs = tuple[tuple[str, Whole], ...]  # names with numbers of rows


@dataclass(frozen=True)
class _GridsRow:
    knobs: tuple[str, ...]
    shapes: tuple[tuple[tuple[Whole, ...], Grid], ...]


@dataclass(frozen=True)
class _SignatureRow:
    function: Whole
    arguments: Pairs
    grid: Grid
    launches: Count
    origin: Origin
    options: Pairs = ()
    config: Pairs = ()
    choices: Count = 1
    tuned: bool = True
    key: tuple[str, ...] | None = None
    grids: _GridsRow | None = None


def _read_signature(
    value: Any, at: str, functions: Sequence[KernelFunction], table: Sequence[RecordedArgument]
) -> CountedSignature:
    row: _SignatureRow = read_as(_SignatureRow, value, at)
    signature = LaunchSignature(
        row_of(functions, row.function, f"{at}.function"),
        {name: row_of(table, number, f"{at}.arguments") for name, number in row.arguments},
        row.grid,
        _plain_only(row.options, f"{at}.options", table),
        row.origin,
        _plain_only(row.config, f"{at}.config", table),
        row.choices,
        row.tuned,
        row.key,
        None if row.grids is None else _grids(row.grids, f"{at}.grids"),
    )
    return CountedSignature(signature, row.launches)


def _plain_only(
    pairs: Pairs, at: str, table: Sequence[RecordedArgument]
) -> dict[str, PlainArgument]:
    result = {}
    for name, number in pairs:
        argument = row_of(table, number, at)
        if not isinstance(argument, PlainArgument):
            raise Damage(f"{at} holds a tensor")
        result[name] = argument
    return result


def _grids(row: _GridsRow, at: str) -> ConfigGrids:
    if any(len(values) != len(row.knobs) for values, _ in row.shapes):
        raise Damage(f"{at}.shapes holds a pair of another length")
    return ConfigGrids(row.knobs, dict(row.shapes))


# Several files


def merge_workloads(workloads: Sequence[RecordedWorkload]) -> RecordedWorkload:
    """Return the workload of all processes: launches of equal signatures are added."""
    counts: dict[str, CountedSignature] = {}
    beyond: dict[KernelFunction, int] = {}
    result = RecordedWorkload([], [])
    for workload in workloads:
        result.processes += workload.processes
        result.times += workload.times
        result.notes += [note for note in workload.notes if note not in result.notes]
        for each in workload.signatures:
            key = canonical(each.signature)
            before = counts.get(key, CountedSignature(each.signature, 0))
            counts[key] = replace(before, launches=before.launches + each.launches)
        for function, number in workload.omissions:
            beyond[function] = beyond.get(function, 0) + number
    result.signatures = list(counts.values())
    result.omissions = list(beyond.items())
    return result


def canonical(signature: LaunchSignature) -> str:
    """Return a text that is equal for equal signatures."""
    grids = signature.grids
    shapes = None if grids is None else [grids.knobs, sorted(grids.shapes.items())]
    plain = asdict(replace(signature, grids=None))
    return json.dumps([plain, shapes], sort_keys=True)
