"""What a kernel is, said as plain values. Standard library only; everything else builds on this.

A `Spec` says what is computed. An `Impl` says how: one launcher, one backend, one config type.
A config is an ordinary frozen dataclass whose fields carry their own choices, and the word that
declares a field (`tile`, `threads`, `stages`, `among`) is the word that a sweep varies.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from fractions import Fraction
from functools import cached_property
from importlib import import_module
from typing import Any, Literal

Backend = Literal["triton", "metal", "torch"]
Sizes = Mapping[str, int]
Knob = Callable[..., Any]

# The default of a knob that depends on the sizes. It is none of the knob's choices: `Impl.resolved`
# replaces it before anything is planned, recorded, compared or launched.
AUTO = -1

# What chooses the config of a launch that names none: imported at the first such launch.
LAUNCH = "workbench.adapted.launch"


class WorkbenchError(Exception):
    """An error that is one sentence: what was wrong, where, and what to do next. The command line
    prints it and ends with exit code 2."""


# Bytes per element. The first three are what kernels are written and tested for; the others may be
# those of single tensors, and of functions that `workbench.adapter` takes over.
ITEMSIZE: Mapping[str, int] = {
    "fp32": 4,
    "fp16": 2,
    "bf16": 2,
    "fp64": 8,
    "fp8": 1,
    "fp8_e5m2": 1,
    "fp8_fnuz": 1,
    "fp8_e5m2_fnuz": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}


@dataclass(frozen=True)
class Tolerance:
    """How far an output may lie from the float64 reference of the rounded inputs.

    An element passes when |actual - expected| <= relative * |expected| + of_rms * rms(expected),
    where rms is the root mean square of the expected output that it belongs to.
    """

    relative: float
    of_rms: float = 0.0


# Each output is rounded once, so an element may be off by half a unit in the last place
# (2**-24, 2**-11, 2**-8) plus what the fp32 arithmetic before it added.
TOLERANCE: Mapping[str, Tolerance] = {
    "fp32": Tolerance(relative=1e-5, of_rms=1e-6),
    "fp16": Tolerance(relative=1e-3, of_rms=1e-6),
    "bf16": Tolerance(relative=8e-3, of_rms=1e-6),
}


@dataclass(frozen=True)
class Tensor:
    """An input or output: its axes (`"M K"`), its dtype where that is not the one under test, and
    who makes it where standard normal values will not do.

    An axis is a name, a number, or both joined by `*` and `/`, worked out from left to right:
    `"B S Hkv*G D"`, `"N K/256*144"`.

    `make(shape, dtype, device, generator)` gets torch objects and returns a torch tensor.
    """

    axes: str
    dtype: str | None = None
    make: Callable[..., Any] | None = None

    def shape(self, sizes: Sizes) -> tuple[int, ...]:
        """Extents at these sizes. Raises ValueError where one is no whole number."""
        return tuple(_whole(axis, sizes) for axis in self.axes.split())


@dataclass(frozen=True)
class Extent:
    """What an axis may be, where not every number will do: one of a few, or a multiple."""

    among: tuple[int, ...] = ()
    multiple: int = 1

    def refuse(self, axis: str, extent: int) -> str | None:
        """Why the axis cannot be that long, in a sentence; None when it can."""
        if self.among and extent not in self.among:
            return f"{axis} is one of {', '.join(map(str, self.among))}, not {extent}"
        if extent % self.multiple:
            return f"{axis} is a multiple of {self.multiple}, which {extent} is not"
        return None

    def near(self, extent: int) -> int:
        """The least that it may be from there on, or else the most."""
        fit = [e for e in self.among if not e % self.multiple]
        if not fit:
            return extent + -extent % self.multiple
        return min((e for e in fit if e >= extent), default=max(fit))


@dataclass(frozen=True)
class Limits:
    """What a device allows one program: what a config must fit into, whatever the kernel.

    `arch` is Triton's name of the target (`sm_90`, `gfx942`); bytes and counts are per block
    unless a name says otherwise.
    """

    arch: str
    warp_size: int
    shared_bytes: int
    registers_per_thread: int
    threads_per_block: int
    cores: int  # streaming multiprocessors (NVIDIA) or compute units (AMD)


@dataclass(frozen=True)
class Work:
    """What one launch does, piece by piece: what the analytic model needs beyond the costs that
    the Spec declares. A tile is an independent piece of output, whichever program computes it.
    """

    tiles: int
    steps: int  # trips of one tile's main loop
    load_bytes: int  # what one trip asks of the last-level cache
    store_bytes: int  # what one tile writes at its end
    dot: tuple[int, int, int] | None = None  # m, n, k of the matrix product in one trip
    band: int = 1  # tile rows that are visited together, so that their loads meet in the cache


@dataclass(frozen=True)
class Spec:
    """One operation: its inputs, its meaning, its cost, and the sizes that matter.

    `flops`, `bytes` take the sizes as keywords (`lambda M, N: 2 * M * N`); `reference` takes the
    inputs as torch tensors of any float dtype and returns the output (a tuple where there are
    several) in that dtype, computed plainly.
    """

    name: str
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    reference: Callable[..., Any]
    flops: Callable[..., int]
    check: Sequence[Sizes]  # small and ragged: correctness, also interpreted on a CPU
    bench: Sequence[Sizes]  # real: timing
    tolerance: Mapping[str, Tolerance] = field(default_factory=lambda: TOLERANCE)
    extents: Mapping[str, Extent] = field(default_factory=dict)  # of axes that are not free
    impls: list[Impl] = field(default_factory=list, compare=False, repr=False)

    @property
    def axes(self) -> tuple[str, ...]:
        """Axis names in the order of their first appearance, inputs before outputs."""
        tensors = (*self.inputs.values(), *self.outputs.values())
        names = (name for t in tensors for name in re.findall(r"[A-Za-z_]\w*", t.axes))
        return tuple(dict.fromkeys(names))

    def refuse(self, sizes: Sizes) -> str | None:
        """Why there is no such problem, in a sentence; None when there is."""
        for axis, extent in self.extents.items():
            if reason := extent.refuse(axis, sizes[axis]):
                return f"{self.name}: {reason}"
        return None

    def near(self, sizes: Sizes) -> dict[str, int]:
        """The nearest sizes that there can be, mostly larger ones."""
        free = Extent()
        return {axis: self.extents.get(axis, free).near(n) for axis, n in sizes.items()}

    def bytes(self, sizes: Sizes, dtype: str) -> int:
        """Least bytes that must move: every input read once, every output written once."""
        return sum(
            _product(tensor.shape(sizes)) * ITEMSIZE[tensor.dtype or dtype]
            for tensor in (*self.inputs.values(), *self.outputs.values())
        )

    def impl(
        self,
        config: type | None = None,
        *,
        backend: Backend = "triton",
        name: str | None = None,
        resolve: Callable[..., Any] | None = None,
        refuse: Callable[..., str | None] = lambda config, limits, **at: None,
        work: Callable[..., Work] | None = None,
        defaults: Mapping[str, Any] | None = None,
        mutates: Sequence[str] = (),
    ) -> Callable[[Callable[..., Any]], Impl]:
        """Decorate a launcher, `launch(*inputs, config=...) -> output`.

        resolve(config, limits, *, itemsize, **sizes) returns the config with a number in the
        place of every AUTO; a config type with such a default needs it. refuse(config, limits, *,
        itemsize, **sizes) says in one sentence why this config cannot run there, or None; that a
        block may not have so many warps is said without it.
        work(config, limits, *, itemsize, **sizes) describes the launch for the analytic model.
        All three and the launcher see no AUTO, save `resolve`. defaults maps a dtype (`fp32`) or
        an architecture (`gfx942`), or several with blanks between (`gfx90a gfx942`), to the
        default config where the dataclass' own does not suit; the dtype comes first. mutates names
        the inputs that a launch changes: they are restored before each check and each timed call,
        and where the launcher returns one, it is checked like any output. Raises ValueError when a
        name there is no input, and when `resolve` is missing.
        """
        if odd := [n for n in mutates if n not in self.inputs]:
            raise ValueError(
                f"mutates names {odd[0]!r}, which is no input of {self.name}; "
                f"its inputs are {', '.join(self.inputs)}"
            )

        def add(launch: Callable[..., Any]) -> Impl:
            named = name or launch.__name__
            by_name = {n: c for names, c in (defaults or {}).items() for n in names.split()}
            created = Impl(
                self,
                named,
                launch,
                backend,
                config or NoKnobs,
                resolve,
                refuse,
                work,
                by_name,
                tuple(mutates),
            )
            if created.auto and resolve is None:
                raise ValueError(
                    f"{created.title} leaves {created.auto[0]} to the sizes (AUTO); "
                    "say how with resolve=, or give it a default"
                )
            self.impls.append(created)
            return created

        return add

    def library(
        self,
        name: str,
        call: Callable[..., Any],
        *,
        refuse: Callable[..., str | None] | None = None,
    ) -> Impl:
        """Add a library's own version, `call(*inputs) -> output`, as an Impl to compare with."""
        if refuse is None:
            return self.impl(backend="torch", name=name)(call)
        return self.impl(backend="torch", name=name, refuse=refuse)(call)


@dataclass(frozen=True)
class NoKnobs:
    """The config of an Impl that has nothing to choose: a library baseline."""


@dataclass(frozen=True)
class Impl:
    """One way to compute a Spec."""

    spec: Spec
    name: str
    launch: Callable[..., Any]
    backend: Backend
    config: type
    resolve: Callable[..., Any] | None
    refuse: Callable[..., str | None]
    work: Callable[..., Work] | None
    defaults: Mapping[str, Any]
    mutates: tuple[str, ...] = ()  # inputs that a launch changes
    # by device, shapes and dtypes of the inputs: what `workbench.launch` chose for them
    chosen: dict[Any, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def title(self) -> str:
        """`matmul.tiles`: how this Impl is named everywhere."""
        return f"{self.spec.name}.{self.name}"

    def __call__(self, *inputs: Any, config: Any = None) -> Any:
        """Launch. Without a config it is the one tuned for these inputs on their GPU, or the
        default; the logger `workbench` says which, once. An AUTO in a config is resolved by the
        inputs; ValueError where their sizes do not follow from their shapes."""
        if self.config is NoKnobs:
            return self.launch(*inputs)
        if config is None:
            config = self._chosen(inputs)
        elif self.is_open(config):
            config = import_module(LAUNCH).resolved(self, config, inputs)
        return self.launch(*inputs, config=config)

    def _chosen(self, inputs: Sequence[Any]) -> Any:
        try:
            at = (inputs[0].device, *[(x.shape, x.dtype) for x in inputs])
        except (AttributeError, IndexError):  # no tensors: nothing to look up by
            return self.config()
        if (known := self.chosen.get(at)) is not None:
            return known
        return import_module(LAUNCH).choose(self, inputs, at)

    @cached_property
    def auto(self) -> tuple[str, ...]:
        """Fields of the config whose default depends on the sizes."""
        return tuple(
            f.name
            for f in fields(self.config)
            if f.default == AUTO and AUTO not in f.metadata.get("choices", (AUTO,))
        )

    def is_open(self, config: Any) -> bool:
        """Whether a field of this config is AUTO."""
        return any(getattr(config, name) == AUTO for name in self.auto)

    def resolved(self, config: Any, limits: Limits, dtype: str, sizes: Sizes) -> Any:
        """Return this config with a number in the place of every AUTO, as these sizes want it.

        Raises ResolveError where the kernel's own `resolve` fails or leaves a field open.
        """
        if not self.is_open(config):
            return config
        assert self.resolve is not None  # `Spec.impl` saw to it
        try:
            result = self.resolve(config, limits, itemsize=ITEMSIZE[dtype], **sizes)
        except Exception as error:
            text = f"`resolve` of {self.title} failed at {sizes_text(sizes)}"
            raise ResolveError(f"{text} ({type(error).__name__}: {error}); mend it.") from error
        if self.is_open(result):
            open_ = next(name for name in self.auto if getattr(result, name) == AUTO)
            raise ResolveError(f"`resolve` of {self.title} leaves {open_} AUTO; mend it.")
        return result

    def default(self, limits: Limits, dtype: str, sizes: Sizes) -> Any:
        """Return the config that runs these sizes when nobody chose one, on a device with these
        limits. No field of it is AUTO."""
        return self.resolved(self.declared(limits, dtype), limits, dtype, sizes)

    def rejection_reason(self, config: Any, limits: Limits, dtype: str, sizes: Sizes) -> str | None:
        """Return why this config cannot run at these sizes, in one sentence, or None: it has more
        warps than a block may have, or the kernel's own `refuse` rejects it or raises."""
        warps = getattr(config, "num_warps", 0)
        if warps * limits.warp_size > limits.threads_per_block:
            return f"{warps} warps are more than one block may have here"
        try:
            return self.refuse(config, limits, itemsize=ITEMSIZE[dtype], **sizes)
        except Exception as error:  # the kernel's own code
            return f"`refuse` of {self.title} failed ({type(error).__name__}: {error})"

    def declared(self, limits: Limits, dtype: str) -> Any:
        """Return the default as the file has it, with AUTO where it depends on the sizes."""
        return self.defaults.get(dtype) or self.defaults.get(limits.arch) or self.config()

    def space(self, default: Any, vary: Sequence[Knob] = ()) -> Iterator[Any]:
        """Every config of the declared choices; knobs outside `vary` keep the value that they have
        in `default`, which need not be a choice where it was AUTO.

        An empty `vary` varies all. Legality is another question: see `rejection_reason`.
        """
        axes = [
            f.metadata["choices"]
            if not vary or f.metadata["knob"] in vary
            else (getattr(default, f.name),)
            for f in fields(self.config)
        ]
        return (self.config(*point) for point in itertools.product(*axes))

    def knobs(self) -> dict[str, str]:
        """Field name to knob word: `{"block_m": "tile", "num_warps": "threads", ...}`."""
        return {f.name: f.metadata["knob"].__name__ for f in fields(self.config)}

    def choices(self) -> dict[str, tuple[int, ...]]:
        """Field name to its declared choices, in order."""
        return {f.name: f.metadata["choices"] for f in fields(self.config)}


class ResolveError(WorkbenchError, ValueError):
    """A kernel's `resolve` cannot say what AUTO stands for; the message is one sentence."""


def sizes_text(sizes: Sizes, separator: str = ",") -> str:
    """`M=4096,N=4096,K=4096`: as `--sizes` takes them."""
    return separator.join(f"{axis}={extent}" for axis, extent in sizes.items())


def values(config: Any) -> dict[str, int]:
    """A config as plain data."""
    return {f.name: getattr(config, f.name) for f in fields(config)}


def label(config: Mapping[str, int]) -> str:
    """A config in a few words: `128x256x64, 8 warps, 3 stages, group_m 8`; a block with one edge
    is named by it, `block_n 1024, 4 warps`. In older records an edge or a number of warps may be 0,
    which the launcher replaced by the sizes: `auto`."""
    text = {k: "auto" if _left_open(k, v) else v for k, v in config.items()}
    block = {k: v for k, v in text.items() if k.startswith("block_")}
    rest = {k: v for k, v in text.items() if k not in block}
    words = {"num_warps": "warp", "num_stages": "stage"}
    edges = [f"{k} {v}" for k, v in block.items()] if len(block) == 1 else []
    parts = edges or (["x".join(map(str, block.values()))] if block else [])
    for name, value in rest.items():
        noun = words.get(name)
        parts.append(f"{value} {noun}{'s' * (value != 1)}" if noun else f"{name} {value}")
    return ", ".join(parts) or "as the library chooses"


def _left_open(name: str, value: int) -> bool:
    return value == 0 and (name.startswith("block_") or name == "num_warps")


def brief(config: Mapping[str, int]) -> str:
    """The same for a table's cell: `128x256x64, 8w, 3s, group_m 8`."""
    words = {" warps": "w", " warp": "w", " stages": "s", " stage": "s"}
    text = label(config)
    for long, short in words.items():
        text = text.replace(long, short)
    return text.replace("autow", "auto warps")


_JOINED = re.compile(r"([*/])?(\w+)")


def _whole(axis: str, sizes: Sizes) -> int:
    value = Fraction(1)
    for sign, part in _JOINED.findall(axis):
        factor = int(part) if part.isdigit() else sizes[part]
        value = value / factor if sign == "/" else value * factor
    if value.denominator != 1:
        raise ValueError(f"{axis} is no whole number at {sizes_text(sizes)}")
    return int(value)


def solved(axis: str, extent: int, sizes: Sizes) -> dict[str, int] | None:
    """What an axis of this extent tells beyond the known sizes: the one that it names, or nothing
    where it names several unknown ones. None where it contradicts them."""
    unknown = {part for _, part in _JOINED.findall(axis) if not part.isdigit()} - sizes.keys()
    if not unknown:
        try:
            return {} if _whole(axis, sizes) == extent else None
        except ValueError:
            return None
    if len(unknown) > 1:
        return {}
    value = Fraction(extent)
    for sign, part in _JOINED.findall(axis):
        if part in unknown:
            if sign == "/":
                return {}
            continue
        factor = int(part) if part.isdigit() else sizes[part]
        value = value * factor if sign == "/" else value / factor
    return {unknown.pop(): int(value)} if value.denominator == 1 else None


# Knobs: the word that declares a config field is the word that a sweep varies.


def among(*choices: int, default: int, knob: Knob | None = None) -> Any:
    """A knob with its choices written out."""
    if default not in choices and default != AUTO:
        raise ValueError(f"default {default} is not among the choices {choices}")
    return field(default=default, metadata={"choices": choices, "knob": knob or among})


def tile(lo: int, hi: int, default: int) -> Any:
    """An edge of the block that one program owns: a power of two."""
    return among(*_powers(lo, hi), default=default, knob=tile)


def threads(lo: int, hi: int, default: int) -> Any:
    """Warps per program (Triton) or threads per threadgroup (Metal): a power of two."""
    return among(*_powers(lo, hi), default=default, knob=threads)


def stages(lo: int, hi: int, default: int) -> Any:
    """Depth of the software pipeline."""
    return among(*range(lo, hi + 1), default=default, knob=stages)


def given(value: int, otherwise: int) -> int:
    """Return the value of a knob, or `otherwise` where it is AUTO."""
    return otherwise if value == AUTO else value


def _powers(lo: int, hi: int) -> tuple[int, ...]:
    return tuple(1 << e for e in range(lo.bit_length() - 1, hi.bit_length()))


def _product(extents: Sequence[int]) -> int:
    total = 1
    for extent in extents:
        total *= extent
    return total
