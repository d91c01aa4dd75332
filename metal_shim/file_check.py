"""Check a kernel of a `.metal` file: `python -m metal_shim.check FILE.metal --kernel NAME ...`.

Each argument of the kernel is named with its value, as in `--arg n=128` (a number, or several with
commas), `--arg x=3x128` (a shape: an input has drawn values, an output none), `--arg y=3x128=0` (a
shape and its first value), `--arg x=@x.npy` (a file) and `--arg args.ne00=128` (a structure's
field). A dtype may stand before a shape: `--arg x=fp16:3x128`. Memory `[[threadgroup(0)]]` takes
its bytes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from metal_shim import emulate, signature
from metal_shim.emulate import SCHEDULES, EmulatedRun, EmulationFinding, MetalLaunch
from metal_shim.signature import LIBRARY_NAMES, TYPES, ArrayType, MetalCall, MetalSource, Parameter
from metal_shim.whole import NotWhole, WholeOptions, kernel_names, whole_file
from workbench.spec import WorkbenchError

_SHAPE = re.compile(r"(?:(?P<dtype>\w+):)?(?P<shape>\d+(?:x\d+)*)(?:=(?P<fill>\S+))?")
_NUMBER = re.compile(r"-?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|-?inf|nan|true|false")


@dataclass(frozen=True)
class FileArguments:
    """What the command line says of a launch: values by name, threads of the grid and the group."""

    values: Mapping[str, str]
    grid: tuple[int, int, int]
    group: tuple[int, int, int]
    seed: int = 0
    same_value: tuple[str, ...] = ()  # outputs to which several threads may write the same value
    options: WholeOptions = field(default_factory=WholeOptions)


@dataclass(frozen=True)
class FileResult:
    """The findings of the four schedules, each once, the run of the last clean one, and the outputs
    of the first."""

    findings: Sequence[EmulationFinding]
    runs: Sequence[EmulatedRun]
    outputs: Mapping[str, np.ndarray]


def check_file(path: Path, kernel: str, arguments: FileArguments) -> FileResult:
    """Run a kernel of a file in the four schedules and return what they show. Raises NotWhole and
    LaunchRejected."""
    if not kernel:
        names = ", ".join(kernel_names(path, arguments.options))
        raise NotWhole(f"{path.name} has the kernels {names}; choose one with --kernel.")
    source = whole_file(path, kernel, _add_fields(arguments))
    launch = launch_of(source, arguments)
    findings, runs = dict[str, EmulationFinding](), list[EmulatedRun]()
    contents = list[bytes]()
    for schedule in SCHEDULES:
        options = emulate.EmulationOptions(schedule, True, unset=schedule is SCHEDULES[0])
        try:
            with emulate.emulation(options) as done:
                results = emulate.emulate_launch(launch)
                contents, runs = contents or results, done
        except emulate.EmulationError as error:
            findings[str(error.finding)] = error.finding
    named = zip(source.outputs, launch.call.outputs, contents, strict=False)  # none after a fault
    outputs = {name: numbers_of(content, kind) for name, kind, content in named}
    return FileResult(list(findings.values()), runs, outputs)


def _add_fields(arguments: FileArguments) -> WholeOptions:
    """Return the options with the fields of structures and the bytes of threadgroup memory, which
    stand among the arguments."""
    fields, values = defaultdict[str, dict[str, str]](dict), arguments.values.items()
    for name, value in values:
        structure, _, part = name.partition(".")
        if part:
            fields[structure][part] = value
    sizes = {n: int(v) for n, v in values if "." not in n and v.isdigit()}
    return replace(arguments.options, threadgroup=sizes, fields=fields)


def launch_of(source: MetalSource, arguments: FileArguments) -> MetalLaunch:
    """Return the launch of a kernel with these arguments. Raises NotWhole where one is missing,
    left over or not understood."""
    drawn = np.random.default_rng(arguments.seed)
    inputs, outputs = list[tuple[ArrayType, bytes]](), list[ArrayType]()
    initial = dict[str, bytes]()
    known = [p.name for p in source.whole]
    for name in arguments.values:
        if name.partition(".")[0] not in known:
            raise NotWhole(f"{source.name} has no argument {name}; it has {', '.join(known)}.")
    for p in source.whole:
        if p.fields:
            inputs.append((ArrayType((1,), "uint8"), b""))
        elif p.array:
            written = p.name in source.outputs
            kind, content = _value(p, arguments.values.get(p.name), written, drawn)
            if written:
                outputs.append(kind)
                initial |= {} if content is None else {p.name: content}
            else:
                inputs.append((kind, content or b""))
    call = MetalCall(source, tuple(kind for kind, _ in inputs), tuple(outputs), {})
    contents, extents = [content for _, content in inputs], (arguments.grid, arguments.group)
    return MetalLaunch(call, contents, *extents, arguments.same_value, initial)


def array_of(path: str) -> Any:
    """Return the array of a file that `numpy.save` wrote. Raises NotWhole."""
    reason = "it is not an array of numbers"
    try:
        if isinstance(array := np.load(path), np.ndarray):
            return array
    except (OSError, ValueError, EOFError) as error:
        reason = getattr(error, "strerror", None) or reason
    raise NotWhole(f"{path} cannot be read ({reason}); name a file of numpy.save.")


def _value(
    p: Parameter, text: str | None, written: bool, drawn: np.random.Generator
) -> tuple[ArrayType, bytes | None]:
    """Return type and contents of an argument; an output without a first value has none."""
    if text is None:
        raise NotWhole(
            f"the argument {p.name} ({p.declaration}) has no value; give one as --arg {p.name}="
            f"{'16x32' if p.declaration.endswith('*') else '1'}."
        )
    spaces = r"\b(device|constant|threadgroup|thread|const|volatile|metal::)\b|[*&]"
    own = re.sub(spaces, "", p.declaration).strip()
    own = re.sub(r"^(metal::)?(?:atomic<(\w+)>|packed_)", r"\2", own).removeprefix("metal::")
    vector = re.fullmatch(r"(\w+?)([234])", own)
    word = signature.METAL_DTYPES.get(vector[1] if vector else own, "")
    if text.startswith("@"):
        array = array_of(text[1:])
        return _typed_array(array, word if word == "bf16" and array.dtype == np.uint16 else "")
    if all(_NUMBER.fullmatch(part) for part in text.split(",")) and not (
        p.declaration.endswith("*") and _SHAPE.fullmatch(text)
    ):
        numbers = [number(part) for part in text.split(",")]
        word = _require_word(p, word, own)
        return ArrayType((len(numbers),), word), bytes_of(np.array(numbers), word)
    match = _SHAPE.fullmatch(text)
    if match is None:
        raise NotWhole(f"{p.name}={text} is not a number, a shape such as 16x32 or @FILE.npy.")
    word = match["dtype"] or _require_word(p, word, own)
    if word not in TYPES:
        raise NotWhole(f"{p.name}: {word} is not a dtype; the dtypes are: {', '.join(TYPES)}.")
    shape = tuple(map(int, match["shape"].split("x")))
    kind = ArrayType(shape, word)
    if match["fill"]:
        return kind, bytes_of(np.full(prod(shape), number(match["fill"])), word)
    if written:
        return kind, None
    is_float, most = word in ("fp32", "fp16", "bf16"), 2 if word == "bool" else 8
    values = drawn.normal(size=shape) if is_float else drawn.integers(0, most, shape)
    return kind, bytes_of(values, word)


def _require_word(p: Parameter, word: str, own: str) -> str:
    if not word:
        raise NotWhole(
            f"{p.name} is of the type {own}: name a dtype before its shape, as in uint8:64, its "
            f"fields, as in --arg {p.name}.FIELD=1, or a file."
        )
    return word


class NotANumber(WorkbenchError, ValueError):
    """A value of the command line is not a number."""


def number(text: str) -> int | float:
    """Return a number of the command line; `true` is 1. Raises NotANumber."""
    try:
        if text in ("true", "false"):
            return int(text == "true")
        return int(text) if re.fullmatch(r"[-+]?\d+", text, flags=re.ASCII) else float(text)
    except ValueError:
        raise NotANumber(f"{text!r} is not a number.") from None


def extents(text: str) -> tuple[int, int, int]:
    """Return three extents; what is not named is 1. Raises NotANumber."""
    if not re.fullmatch(r"\d+(,\d+){0,2}", text, flags=re.ASCII):
        raise NotANumber(f"{text!r} is not one to three whole numbers, as in 64,2,1.")
    x, y, z = [*map(int, text.split(",")), 1, 1][:3]
    return x, y, z


def pairs(words: Sequence[str]) -> dict[str, str]:
    """Return `NAME=VALUE` as a mapping; a name alone is 1."""
    return {name: value or "1" for name, _, value in (word.partition("=") for word in words)}


def deviations(outputs: Mapping[str, np.ndarray], expected: Mapping[str, str]) -> list[str]:
    """Return one sentence for each output that is not as its file says. Raises NotWhole."""
    wrong = list[str]()
    for name, path in expected.items():
        if name not in outputs:
            wrong.append(f"results    {name} has no values")
            continue
        one, other = outputs[name].astype(float), array_of(path.removeprefix("@")).astype(float)
        if one.size != other.size:
            wrong.append(f"results    {name} has {one.size} elements, and {path} {other.size}")
            continue
        other = other.reshape(one.shape)
        far = np.argwhere(~np.isclose(one, other, rtol=1e-3, atol=1e-3, equal_nan=True))
        if len(far):
            at = tuple(map(int, far[0]))
            wrong.append(
                f"results    {name} is wrong in {len(far)} of {one.size} elements, "
                f"first at {list(at)}: {one[at]:.6g} in place of {other[at]:.6g}"
            )
    return wrong


def bytes_of(values: np.ndarray, word: str) -> bytes:
    """Return numbers as a dtype has them; bf16 is rounded to the nearest even one."""
    if word == "bf16":
        bits = values.astype(np.float32).view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16).tobytes()
    return values.astype(LIBRARY_NAMES[word]).tobytes()


def _typed_array(array: np.ndarray, word: str) -> tuple[ArrayType, bytes]:
    word = word or str(array.dtype).replace("float", "fp")
    if word not in TYPES:
        raise NotWhole(f"Metal does not support {array.dtype}, the dtype of a file.")
    return ArrayType(tuple(array.shape) or (1,), word), np.ascontiguousarray(array).tobytes()


def numbers_of(content: bytes, kind: ArrayType) -> np.ndarray:
    """Return the numbers of an array; those of bf16 are floats."""
    if kind.dtype == "bf16":
        bits = np.frombuffer(content, np.uint16).astype(np.uint32) << 16
        return bits.view(np.float32).reshape(kind.shape)
    return np.frombuffer(content, LIBRARY_NAMES[kind.dtype]).reshape(kind.shape)
