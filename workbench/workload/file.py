"""The workload file: what a program launched, as one JSON document.

Arguments and functions are stored once and named by their numbers, so that a file has about 200
bytes a signature. The reader is strict: a file that this version cannot read whole is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from workbench import __version__
from workbench.data.files import open_to_read, reason_of, write_file
from workbench.workload import strict
from workbench.workload.signature import (
    ORIGINS,
    PLAIN_KINDS,
    ConfigGrids,
    DescriptorArgument,
    KernelFunction,
    LaunchSignature,
    PlainArgument,
    RecordedArgument,
    TensorArgument,
    TupleArgument,
)
from workbench.workload.strict import WorkloadError

SCHEMA = 1
MOST_DEEP = 8  # tuples in tuples
Mode = Literal["gpu", "caught", "interpreted"]
MODES: tuple[Mode, ...] = ("gpu", "caught", "interpreted")


@dataclass(frozen=True)
class RecordedProcess:
    """One process of a program."""

    program: str  # the name of its script
    rank: int | None  # of torch.distributed
    mode: Mode  # `caught`: launches were recorded and not run
    device: str  # the GPU's name; empty where there is none or it is not known
    started: str  # ISO 8601 with offset
    seconds: float  # until the last write
    complete: bool  # False: it was killed, and the file ends with the last write before
    versions: Mapping[str, str]  # of torch, triton and python


@dataclass(frozen=True)
class KernelTime:
    """GPU time of the launches of one kernel with one grid in the profiled window."""

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    launches: int
    seconds: float


@dataclass(frozen=True)
class GpuTimes:
    """GPU time of a window of the program, by torch.profiler."""

    window: str  # which part of the program
    total_s: float  # of all kernels
    kernels: tuple[KernelTime, ...]  # those that were recorded
    others: tuple[tuple[str, float], ...] = ()  # the longest of the others, with seconds


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
    beyond: list[tuple[KernelFunction, int]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def launches(self) -> int:
        """Number of all launches."""
        kept = sum(each.launches for each in self.signatures)
        return kept + sum(number for _, number in self.beyond)


# Writing


def text_of(workload: RecordedWorkload) -> str:
    """Return the contents of a workload file."""
    functions, arguments = _NumberedRows(), _NumberedRows()
    signatures = [_signature(each, functions, arguments) for each in workload.signatures]
    beyond = [[functions.number(_function(f)), n] for f, n in workload.beyond]
    head = {
        "workload": SCHEMA,
        "written_by": f"kernel-workbench {__version__}",
        "processes": [asdict(each) for each in workload.processes],
        "times": [asdict(each) for each in workload.times],
        "notes": workload.notes,
    }
    tables = {
        "functions": functions.rows,
        "arguments": arguments.rows,
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


class _NumberedRows:
    """Rows, each stored once."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self._numbers: dict[str, int] = {}

    def number(self, row: Any) -> int:
        """Return the number of a row, which is added if it is new."""
        text = json.dumps(row)
        if text not in self._numbers:
            self._numbers[text] = len(self.rows)
            self.rows.append(row)
        return self._numbers[text]


def _function(function: KernelFunction) -> dict[str, Any]:
    return asdict(function)


def _signature(
    each: CountedSignature, functions: _NumberedRows, arguments: _NumberedRows
) -> dict[str, Any]:
    of = each.signature
    row: dict[str, Any] = {
        "function": functions.number(_function(of.function)),
        "arguments": [[n, arguments.number(_argument(a))] for n, a in of.arguments.items()],
        "grid": list(of.grid),
        "launches": each.launches,
        "origin": of.origin,
    }
    for name, value in (("options", of.options), ("config", of.config)):
        if value:
            row[name] = [[n, arguments.number(_argument(a))] for n, a in value.items()]
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
    try:
        with open_to_read(path) as file:
            data = file.read()
    except OSError as error:
        raise WorkloadError(
            f"{path} cannot be read ({reason_of(error)}); name a workload file."
        ) from None
    return parse(data, str(path))


def read_all(names: Sequence[str]) -> RecordedWorkload:
    """Return several workload files as one. Raises WorkloadError."""
    return merge_workloads([read(Path(name)) for name in names])


def parse(data: bytes, name: str) -> RecordedWorkload:
    """Return the workload of a file's bytes; `name` is the file's, for messages. Raises
    WorkloadError."""
    plain = strict.document(data, name, "workload", SCHEMA, "workload file")
    try:
        return _workload(plain)
    except strict.Damage as error:
        raise WorkloadError(f"{name} is damaged ({error}); record or copy it again.") from None


def _workload(plain: Mapping[str, Any]) -> RecordedWorkload:
    functions = strict.rows(plain, "functions", _read_function)
    arguments = strict.rows(plain, "arguments", lambda v, at: _read_argument(v, at, 0))

    def signature_count(value: Any, at: str) -> CountedSignature:
        return _read_signature(value, at, functions, arguments)

    def function_count(value: Any, at: str) -> tuple[KernelFunction, int]:
        if not isinstance(value, list) or len(value) != 2:
            raise strict.Damage(f"{at} is not a pair")
        return strict.entry_at(functions, value[0], at), strict.count(value[1], at)

    return RecordedWorkload(
        strict.rows(plain, "processes", _read_process),
        strict.rows(plain, "signatures", signature_count),
        strict.rows(plain, "times", _read_times),
        strict.rows(plain, "beyond", function_count),
        strict.rows(plain, "notes", strict.text),
    )


def _read_function(value: Any, at: str) -> KernelFunction:
    names = ("name", "module", "file", "text_hash")
    plain = strict.fields_of(value, at, (*names, "arguments", "constexprs"))
    return KernelFunction(
        **{name: strict.text(plain[name], f"{at}.{name}") for name in names},
        arguments=strict.texts(plain["arguments"], f"{at}.arguments"),
        constexprs=strict.texts(plain["constexprs"], f"{at}.constexprs"),
    )


def _read_argument(value: Any, at: str, depth: int) -> RecordedArgument:
    if not isinstance(value, dict) or not value:
        raise strict.Damage(f"{at} is not an argument")
    if "tensor" in value:
        return _read_tensor(value, at)
    if "descriptor" in value:
        plain = strict.fields_of(value, at, ("descriptor", "shape", "stride", "block"))
        base = _read_tensor(plain["descriptor"], f"{at}.descriptor")
        shapes = (strict.wholes(plain[n], f"{at}.{n}") for n in ("shape", "stride", "block"))
        return DescriptorArgument(base, *shapes)
    if "tuple" in value:
        items = strict.fields_of(value, at, ("tuple",))["tuple"]
        if not isinstance(items, list) or depth >= MOST_DEEP:
            raise strict.Damage(f"{at}.tuple is not a list of arguments")
        return TupleArgument(tuple(_read_argument(i, at, depth + 1) for i in items))
    if len(value) != 1:
        raise strict.Damage(f"{at} is not an argument")
    ((kind, held),) = value.items()
    return _read_plain(strict.one_of(kind, at, PLAIN_KINDS), held, at)


def _read_plain(kind: Any, held: Any, at: str) -> PlainArgument:
    if kind == "int":
        return PlainArgument(kind, strict.whole(held, at))
    if kind == "bool":
        return PlainArgument(kind, strict.flag(held, at))
    if kind == "none":
        return PlainArgument(kind, strict.one_of(held, at, (None,)))
    if kind == "float":
        try:
            float(strict.text(held, at))
        except ValueError:
            raise strict.Damage(f"{at} is not a number") from None
    return PlainArgument(kind, strict.text(held, at))


def _read_tensor(value: Any, at: str) -> TensorArgument:
    plain = strict.fields_of(
        value, at, ("tensor", "shape", "stride", "align", "storage"), ("values",)
    )
    shape = strict.wholes(plain["shape"], f"{at}.shape", 0)
    stride = strict.wholes(plain["stride"], f"{at}.stride")
    if len(shape) != len(stride):
        raise strict.Damage(f"{at} has {len(shape)} extents and {len(stride)} strides")
    values = strict.wholes(plain["values"], f"{at}.values") if "values" in plain else None
    align = strict.one_of(plain["align"], f"{at}.align", (1, 2, 4, 8, 16))
    storage = strict.count(plain["storage"], f"{at}.storage")
    return TensorArgument(strict.text(plain["tensor"], at), shape, stride, align, storage, values)


def _pairs(value: Any, at: str, table: Sequence[RecordedArgument]) -> dict[str, RecordedArgument]:
    if not isinstance(value, list):
        raise strict.Damage(f"{at} is not a list")
    result: dict[str, RecordedArgument] = {}
    for pair in value:
        if not isinstance(pair, list) or len(pair) != 2:
            raise strict.Damage(f"{at} holds no pair of a name and a number")
        result[strict.text(pair[0], at)] = strict.entry_at(table, pair[1], at)
    return result


def _plain_only(value: Any, at: str, table: Sequence[RecordedArgument]) -> dict[str, PlainArgument]:
    result = {}
    for name, argument in _pairs(value, at, table).items():
        if not isinstance(argument, PlainArgument):
            raise strict.Damage(f"{at} holds a tensor")
        result[name] = argument
    return result


def _read_signature(
    value: Any, at: str, functions: Sequence[KernelFunction], table: Sequence[RecordedArgument]
) -> CountedSignature:
    plain = strict.fields_of(
        value,
        at,
        ("function", "arguments", "grid", "launches", "origin"),
        ("options", "config", "choices", "tuned", "key", "grids"),
    )
    grid = strict.wholes(plain["grid"], f"{at}.grid", 0)
    if not 1 <= len(grid) <= 3:
        raise strict.Damage(f"{at}.grid has {len(grid)} extents")
    signature = LaunchSignature(
        strict.entry_at(functions, plain["function"], f"{at}.function"),
        _pairs(plain["arguments"], f"{at}.arguments", table),
        grid,
        _plain_only(plain.get("options", []), f"{at}.options", table),
        strict.one_of(plain["origin"], f"{at}.origin", ORIGINS),
        _plain_only(plain.get("config", []), f"{at}.config", table),
        strict.count(plain.get("choices", 1), f"{at}.choices"),
        strict.flag(plain.get("tuned", True), f"{at}.tuned"),
        strict.texts(plain["key"], f"{at}.key") if "key" in plain else None,
        _read_grids(plain["grids"], f"{at}.grids") if "grids" in plain else None,
    )
    return CountedSignature(signature, strict.count(plain["launches"], f"{at}.launches"))


def _read_grids(value: Any, at: str) -> ConfigGrids:
    plain = strict.fields_of(value, at, ("knobs", "shapes"))
    knobs, shapes = strict.texts(plain["knobs"], f"{at}.knobs"), plain["shapes"]
    if not isinstance(shapes, list):
        raise strict.Damage(f"{at}.shapes is not a list")
    result = {}
    for pair in shapes:
        if not isinstance(pair, list) or len(pair) != 2:
            raise strict.Damage(f"{at}.shapes holds no pair of knobs and a grid")
        values, grid = strict.wholes(pair[0], at), strict.wholes(pair[1], at, 0)
        if len(values) != len(knobs) or not 1 <= len(grid) <= 3:
            raise strict.Damage(f"{at}.shapes holds a pair of another length")
        result[values] = grid
    return ConfigGrids(knobs, result)


def _read_process(value: Any, at: str) -> RecordedProcess:
    names = ("program", "rank", "mode", "device", "started", "seconds", "complete", "versions")
    plain = strict.fields_of(value, at, names)
    versions = plain["versions"]
    if not isinstance(versions, dict):
        raise strict.Damage(f"{at}.versions is not an object")
    return RecordedProcess(
        strict.text(plain["program"], f"{at}.program"),
        None if plain["rank"] is None else strict.count(plain["rank"], f"{at}.rank"),
        strict.one_of(plain["mode"], f"{at}.mode", MODES),
        strict.text(plain["device"], f"{at}.device"),
        strict.text(plain["started"], f"{at}.started"),
        strict.seconds(plain["seconds"], f"{at}.seconds"),
        strict.flag(plain["complete"], f"{at}.complete"),
        {strict.text(k, at): strict.text(v, f"{at}.versions") for k, v in versions.items()},
    )


def _read_times(value: Any, at: str) -> GpuTimes:
    plain = strict.fields_of(value, at, ("window", "total_s", "kernels", "others"))
    others = plain["others"]
    if not isinstance(others, list) or any(not isinstance(o, list) or len(o) != 2 for o in others):
        raise strict.Damage(f"{at}.others is not a list of pairs")
    return GpuTimes(
        strict.text(plain["window"], f"{at}.window"),
        strict.seconds(plain["total_s"], f"{at}.total_s"),
        tuple(strict.rows(plain, "kernels", _read_time)),
        tuple((strict.text(n, at), strict.seconds(s, f"{at}.others")) for n, s in others),
    )


def _read_time(value: Any, at: str) -> KernelTime:
    plain = strict.fields_of(value, at, ("name", "grid", "block", "launches", "seconds"))
    extents = [strict.wholes(plain[name], f"{at}.{name}", 0) for name in ("grid", "block")]
    if any(len(each) != 3 for each in extents):
        raise strict.Damage(f"{at} has a grid or block without three extents")
    (g0, g1, g2), (b0, b1, b2) = extents
    launches = strict.count(plain["launches"], f"{at}.launches")
    seconds = strict.seconds(plain["seconds"], f"{at}.seconds")
    return KernelTime(strict.text(plain["name"], at), (g0, g1, g2), (b0, b1, b2), launches, seconds)


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
        for function, number in workload.beyond:
            beyond[function] = beyond.get(function, 0) + number
    result.signatures = list(counts.values())
    result.beyond = list(beyond.items())
    return result


def canonical(signature: LaunchSignature) -> str:
    """Return a text that is equal for equal signatures."""
    grids = signature.grids
    shapes = None if grids is None else [grids.knobs, sorted(grids.shapes.items())]
    plain = asdict(replace(signature, grids=None))
    return json.dumps([plain, shapes], sort_keys=True)
