"""Declare kernels as plain values. Uses the standard library only; everything else builds on it.

A `Spec` declares what is computed. An `Impl` is one way to compute it: one launcher, one backend,
one config type. A config is an ordinary frozen dataclass whose fields carry their own choices, and
the word that declares a field (`tile`, `threads`, `stages`, `among`) is the word that a sweep
varies.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields, is_dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from importlib import import_module
from typing import Any, Literal

Backend = Literal["triton", "metal", "torch", "mlx"]
Sizes = Mapping[str, int]
Knob = Callable[..., Any]

# The default of a knob that depends on the sizes. It is not one of the knob's choices:
# `Impl.resolved` replaces it before anything is planned, recorded, compared or launched.
AUTO = -1

# Indices of one axis. Device code counts rows and columns in 32 bits and rounds them up to whole
# tiles, of at most 2^17 indices; offsets within a tensor have 64 bits.
LONGEST = (1 << 31) - (1 << 17)

# The module that chooses the config of a launch without one; imported at the first such launch.
LAUNCH = "workbench.adapted.launch"


# Called around each of a kernel's own functions, with its name. `catalog` sets it, so that commands
# can end functions that hang: see `data/user_code.py`.
watched: Callable[[str], AbstractContextManager[Any]] = nullcontext


class WorkbenchError(Exception):
    """Base class of errors whose message is one sentence: what was wrong, where, and what to do
    next. The command line prints it and ends with exit code 2."""


# Bytes per element. Kernels are written and tested for the first three; the others may be the dtype
# of single tensors, and of functions that `workbench.adapter` adapts.
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
    """Largest accepted distance of an output from the float64 reference of the rounded inputs.

    An element passes when |actual - expected| <= relative * |expected| + rms_share * rms(expected),
    where rms is the root mean square of the expected output that it belongs to.

    With `rms` the errors of an output together have a bound, too: their root mean square is at most
    that share of the output's. Roundings leave a known one, whatever the worst of a million
    elements is: 2**-9 of each value in bf16, more where intermediate values are rounded. A factor,
    or fewer bits throughout, leaves more. It may be a function of the sizes.
    """

    relative: float
    rms_share: float = 0.0
    rms: float | Callable[..., float] | None = None

    def rms_at(self, sizes: Sizes | None) -> float | None:
        """Return the bound of all errors together at these sizes, or None where there is none."""
        if not callable(self.rms):
            return self.rms
        return None if sizes is None else float(self.rms(**sizes))


# Each output is rounded once, so an element may be off by half a unit in the last place
# (2**-24, 2**-11, 2**-8) plus what the fp32 arithmetic before it added.
TOLERANCE: Mapping[str, Tolerance] = {
    "fp32": Tolerance(relative=1e-5, rms_share=1e-6),
    "fp16": Tolerance(relative=1e-3, rms_share=1e-6),
    "bf16": Tolerance(relative=8e-3, rms_share=1e-6),
}


def rms_bounds(**distances: float) -> dict[str, Tolerance]:
    """Return the usual tolerance of each named dtype, but with this distance in proportion to the
    rms of the output: `rms_bounds(fp32=5e-5, fp16=1e-4)`."""
    return {d: Tolerance(TOLERANCE[d].relative, rms) for d, rms in distances.items()}


@dataclass(frozen=True)
class Tensor:
    """An input or output: its axes (`"M K"`), its dtype if that is not the one under test, and the
    function that makes it if standard normal values do not suit. `part` has the axes of what a call
    reads or writes of it, if that is not all: a table `"V K"` of which M rows are looked up has the
    part `"M K"`.

    An axis is a name, a number, or both joined by `*` and `/`, evaluated from left to right: `"B S
    Hkv*G D"`, `"N K/256*144"`.

    `make(shape, dtype, device, generator)` gets torch objects and returns a torch tensor.
    """

    axes: str
    dtype: str | None = None
    make: Callable[..., Any] | None = None
    part: str = ""

    def shape(self, sizes: Sizes) -> tuple[int, ...]:
        """Return the extent of each axis at these sizes. Raises ValueError where one is not
        whole."""
        return tuple(_whole(axis, sizes) for axis in self.axes.split())


def unaligned_rows(*axes: str) -> Callable[..., bool]:
    """Return a function that says whether rows along one of these axes are not a multiple of 16
    bytes, as tensor descriptors need them: `Spec(refusable=unaligned_rows("K", "N"))`."""
    return lambda itemsize, **sizes: any(sizes[axis] * itemsize % 16 for axis in axes)


@dataclass(frozen=True)
class Extent:
    """Restrict the extents of an axis to a few values, or to multiples of one."""

    choices: tuple[int, ...] = ()
    multiple: int = 1

    def refuse(self, axis: str, extent: int) -> str | None:
        """Return in one sentence why the axis cannot have this extent, or None if it can."""
        if self.choices and extent not in self.choices:
            return f"{axis} is one of {', '.join(map(str, self.choices))}, not {extent}"
        if extent % self.multiple:
            return f"{axis} is a multiple of {self.multiple}, which {extent} is not"
        return None

    def nearest(self, extent: int) -> int:
        """Return the smallest allowed extent that is at least this one, or else the largest
        allowed."""
        fit = [e for e in self.choices if not e % self.multiple]
        if not fit:
            return extent + -extent % self.multiple
        return min((e for e in fit if e >= extent), default=max(fit))


WIDE_ONLY = ("sm_80", "sm_86", "sm_87", "gfx908", "gfx90a", "gfx1100", "gfx1101", "gfx1102")


@dataclass(frozen=True)
class Limits:
    """Limits of a device that every config must fit into, whatever the kernel.

    `arch` is Triton's name of the target (`sm_90`, `gfx942`); bytes and counts are per block unless
    a name says otherwise.
    """

    arch: str
    warp_size: int
    shared_bytes: int
    registers_per_thread: int
    threads_per_block: int
    cores: int  # streaming multiprocessors (NVIDIA) or compute units (AMD)

    @property
    def nvidia(self) -> bool:
        """Return whether it is a GPU of NVIDIA's."""
        return self.arch.startswith("sm_")

    def buffers(self, num_stages: int) -> int:
        """Return how many stages of a pipeline lie in shared memory: AMD's keeps one of them in
        registers."""
        return num_stages if self.nvidia else num_stages - 1

    def stages_bytes(self, config: Any, itemsize: int) -> int:
        """Return how many bytes of shared memory the stages of a tiled matrix product take."""
        numbers: int = (config.block_m + config.block_n) * config.block_k
        return self.buffers(config.num_stages) * numbers * itemsize

    @property
    def fp32_in_parts(self) -> bool:
        """Return whether kernels multiply fp32 in bf16 parts there; see `dsl.precision_of`."""
        return self.arch == "sm_90"

    # Each of these returns one sentence, or None where there is nothing to refuse.

    def refuse_held(self, held: int, most: int, what: str = "elements in registers") -> str | None:
        """Return why a thread cannot hold so many numbers of `what`."""
        return f"each thread would hold {held} {what}; {most} is the most" if held > most else None

    def refuse_sums(self, held: int) -> str | None:
        """Return why a thread cannot hold so many sums of a matrix product."""
        reason = self.refuse_held(held, 128, "sums in registers")
        return reason and f"{reason} without spills"

    def refuse_shared(self, needed: int, what: str = "stages") -> str | None:
        """Return why so many bytes of shared memory are more than a block has."""
        if needed > self.shared_bytes:
            return (
                f"the {what} need {needed} bytes of shared memory; a block has {self.shared_bytes}"
            )
        return None

    def refuse_grid(self, second: int, axis: str = "second") -> str | None:
        """Return why a grid cannot have so many programs along its second axis, or its third."""
        if self.nvidia and second > 65_535:
            return f"the grid has at most 65535 programs along its {axis} axis, not {second}"
        return None

    def refuse_program(self, threads: int, held: int, most: int, staged: int = 0) -> str | None:
        """Return why no program of so many threads can take its rows: each thread would hold more
        than `most` numbers, or the rows on their way, `staged` bytes, do not fit."""
        if held > most:
            return f"each of {threads} threads would hold {held} elements; {most} is the most"
        if self.nvidia and staged + 1024 > self.shared_bytes:
            return f"the stages need {staged} bytes of shared memory; {self.shared_bytes} are there"
        return None

    def refuse_rows(self, itemsize: int, **extents: int) -> str | None:
        """Return why no tensor descriptor can describe dense rows of these extents."""
        for axis, extent in extents.items():
            if extent * itemsize % 16:
                row = f"{axis} = {extent} gives {extent * itemsize}"
                return f"a descriptor needs rows of a multiple of 16 bytes; {row}"
        return None

    def refuse_fp8(self) -> str | None:
        """Return why the device has no products of e4m3fn."""
        if self.arch.startswith("gfx94"):
            return f"the 8-bit format of {self.arch} is e4m3fnuz, and the inputs here are e4m3fn"
        if self.arch in WIDE_ONLY:
            return f"{self.arch} has no matrix instruction for 8-bit floats"
        return None

    def refuse_pdl(self) -> str | None:
        """Return why no launch can begin there before the previous one ends."""
        if self.arch in ("sm_80", "sm_86", "sm_89") or not self.nvidia:
            return "programmatic dependent launches need a GPU of NVIDIA's from Hopper on"
        return None


@dataclass(frozen=True)
class Work:
    """Work of one launch, which the analytic model needs beyond the costs that the Spec declares. A
    tile is an independent piece of output, whichever program computes it.

    `vector_ops` counts in additions of fp32. On NVIDIA since compute capability 8.6 a conversion, a
    comparison or an operation on integers takes the time of two, a shuffle that of four (128, 64
    and 32 results a clock of a core by the CUDA C++ Programming Guide, "Arithmetic Instructions").
    Where integers are as fast as floats, as on 8.0, such a count is too high.
    """

    tiles: int
    steps: int  # trips of one tile's main loop
    load_bytes: int  # requested from the last-level cache in one trip
    store_bytes: int  # written at the end of one tile
    dot: tuple[int, int, int] | None = None  # m, n, k of the matrix product in one trip
    band: int = 1  # tile rows that are visited together, so that they share loads in the cache
    vector_ops: int = 0  # of one trip beside the product: one for each element and instruction
    special_ops: int = 0  # of one trip: exponentials, roots, reciprocals
    overlapped: bool = False  # other warps of the block do them while the product runs
    stages: int | None = None  # buffers of a load's tiles; None is the config's `num_stages`
    products: int = 1  # of the size of `dot` in one trip, one after the other
    barriers: int = 0  # of one trip, each with the access to shared memory that it orders
    waits: int = 1  # for loads from memory in one trip, one after the other
    hits: int = 0  # further loads of one trip, in a row, of what the cache holds
    passed_bytes: int = 0  # that the launch writes for, or reads from, another one of the call
    memory_bytes: int = 0  # of the Spec's least bytes, those of this launch; the first has the rest
    # loads of the tiles move one element each, as rows begin at no multiple of 16 elements
    by_element: bool = False

    def odd_field(self) -> str | None:
        """Return the first field that describes no launch, with its value, or None."""
        for name, low in LEAST_OF_WORK.items():
            value = getattr(self, name)
            if value.__class__ is int and value >= low:  # almost all are
                continue
            if name == "stages" and value is None:
                continue
            if not is_number(value, low):
                return f"{name} = {short(value)}"
        if self.dot is not None:
            whole = isinstance(self.dot, tuple) and len(self.dot) == 3
            if not (whole and all(is_number(n, 1) for n in self.dot)):
                return f"dot = {short(self.dot)}"
        return None

    @classmethod
    def product(cls, config: Any, itemsize: int, *, M: int, N: int, K: int, band: int = 1) -> Work:
        """Return that of a matrix product whose tiles of `block_m` x `block_n` take steps of
        `block_k`."""
        BM, BN, BK = config.block_m, config.block_n, config.block_k
        return cls(
            tiles=-(-M // BM) * -(-N // BN),
            steps=-(-K // BK),
            load_bytes=(BM + BN) * BK * itemsize,
            store_bytes=BM * BN * itemsize,
            dot=(BM, BN, BK),
            band=band,
        )


@dataclass(frozen=True)
class Spec:
    """One operation: its inputs, its reference, its cost, and the sizes to check and to time.

    `flops`, `bytes` take the sizes as keywords (`lambda M, N: 2 * M * N`); `reference` takes the
    inputs as torch tensors of any float dtype and returns the output (a tuple where there are
    several) in that dtype, computed in the simplest way.
    """

    name: str
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    reference: Callable[..., Any]
    flops: Callable[..., int]
    check: Sequence[Sizes]  # small and ragged, for correctness, also interpreted on a CPU
    bench: Sequence[Sizes]  # realistic, for timing
    tolerance: Mapping[str, Tolerance] = field(default_factory=lambda: TOLERANCE)
    # of outputs that are always fp32, by the dtype of the call, where its arithmetic is not fp32
    fp32_outputs: Mapping[str, Tolerance] = field(default_factory=dict)
    extents: Mapping[str, Extent] = field(default_factory=dict)  # of axes that are not free
    nonfinite: Sequence[str] = ()  # inputs whose NaN and infinities reach what the reference says
    longest: int = LONGEST  # indices of an axis; more where the device code counts them in 64 bits
    mutates: tuple[str, ...] = ()  # inputs that a launch may change, for `workbench evaluate`
    # refusable(itemsize, **sizes): sizes that an Impl may leave to others, for the same
    refusable: Callable[..., bool] = lambda itemsize, **sizes: False
    impls: list[Impl] = field(default_factory=list, compare=False, repr=False)

    has_stored_outputs = False  # the reference returns stored outputs, and reads no input

    @property
    def axes(self) -> tuple[str, ...]:
        """Axis names in the order of their first appearance, inputs before outputs."""
        tensors = (*self.inputs.values(), *self.outputs.values())
        names = (name for t in tensors for name in re.findall(r"[A-Za-z_]\w*", t.axes))
        return tuple(dict.fromkeys(names))

    def tolerance_of(self, output: str, dtype: str) -> Tolerance:
        """Return the tolerance of an output in a call of this dtype."""
        own = self.outputs[output].dtype or dtype
        if own == "fp32" and dtype in self.fp32_outputs:
            return self.fp32_outputs[dtype]
        return self.tolerance[own]

    def joint_inputs(self, sizes: Sizes, dtype: str, seed: int) -> tuple[Any, ...] | None:
        """Return all inputs of a call at once, on the CPU, or None where each input has a maker of
        its own: None."""
        return None

    def objection(self, inputs: Sequence[Any], sizes: Sizes | None, outputs: Sequence[Any]) -> str:
        """Return what another check says against outputs that are within the tolerance: nothing."""
        return ""

    def compared_outputs(self, outputs: Sequence[Any]) -> tuple[Any, ...]:
        """Return what of the outputs is compared with the reference: all of it."""
        return tuple(outputs)

    @property
    def contiguous(self) -> bool:
        """Return whether outputs that a launch makes must be contiguous."""
        return True

    def refuse(self, sizes: Sizes) -> str | None:
        """Return in one sentence why the sizes are not allowed, or None if they are."""
        for axis, extent in self.extents.items():
            if reason := extent.refuse(axis, sizes[axis]):
                return f"{self.name}: {reason}"
        return None

    def nearest_sizes(self, sizes: Sizes) -> dict[str, int]:
        """Return the nearest allowed sizes: per axis the next larger, or else the largest."""
        free = Extent()
        return {axis: self.extents.get(axis, free).nearest(n) for axis, n in sizes.items()}

    def bytes(self, sizes: Sizes, dtype: str) -> int:
        """Return the least bytes that must move, the sum of `bytes_read` and `bytes_written`: every
        input read once, every output written once, or the `part` that a call moves of it."""
        return self.bytes_read(sizes, dtype) + self.bytes_written(sizes, dtype)

    def held_bytes(self, sizes: Sizes, dtype: str) -> int:
        """Return the bytes of memory that all inputs and outputs take."""
        every = (*self.inputs.values(), *self.outputs.values())
        return _bytes_of([Tensor(t.axes, t.dtype) for t in every], sizes, dtype)

    def certain_bytes(self, sizes: Sizes, dtype: str) -> int:
        """Return the bytes below whose time on a device a measured time is impossible."""
        return self.bytes(sizes, dtype)

    def bytes_read(self, sizes: Sizes, dtype: str) -> int:
        """Return the bytes that a call reads of all inputs, each once."""
        return _bytes_of(self.inputs.values(), sizes, dtype)

    def bytes_written(self, sizes: Sizes, dtype: str) -> int:
        """Return the bytes that a call writes of all outputs, each once."""
        return _bytes_of(self.outputs.values(), sizes, dtype)

    def impl(
        self,
        config: type | None = None,
        *,
        backend: Backend = "triton",
        name: str | None = None,
        resolve: Callable[..., Any] | None = None,
        refuse: Callable[..., str | None] = lambda config, limits, **at: None,
        work: Callable[..., Work | tuple[Work, ...]] | None = None,
        defaults: Mapping[str, Any] | None = None,
        mutates: Sequence[str] = (),
        unchecked_reason: str = "",
    ) -> Callable[[Callable[..., Any]], Impl]:
        """Decorate a launcher, `launch(*inputs, config=...) -> output`. Returns the decorator.

        resolve(config, limits, *, itemsize, **sizes) returns the config with a number in place of
        every AUTO; a config type with such a default needs it. refuse(config, limits, *, itemsize,
        **sizes) returns one sentence why this config cannot run there, or None; it need not check
        the number of warps in a block. work(config, limits, *, itemsize, **sizes) describes the
        launch for the analytic model. None of them sees an AUTO, nor does the launcher, except
        `resolve`. defaults maps a dtype (`fp32`), an architecture (`gfx942`), both (`fp32:sm_90`)
        or several separated by blanks (`gfx90a gfx942`) to the default config if the dataclass' own
        does not suit; both come before the dtype, and that before the architecture. mutates names
        the inputs that a launch changes: they are restored before each check and each timed call,
        and if the launcher returns one, it is checked like any output. unchecked_reason says why
        its results cannot be checked without a GPU, as of a kernel in Gluon. Raises ValueError if
        mutates names no input, or if `resolve` is missing.
        """
        self._check_mutates(mutates)
        by_name = {n: c for names, c in (defaults or {}).items() for n in names.split()}
        changed, reason = tuple(mutates), unchecked_reason
        rest = backend, config or NoKnobs, resolve, refuse, work, by_name, changed, reason

        def add(launch: Callable[..., Any]) -> Impl:
            if not callable(launch):
                raise ValueError(f"an impl of {self.name} launches by a function, not {launch!r}")
            named = name or str(getattr(launch, "__name__", type(launch).__name__))
            return self._add_impl(Impl(self, named, launch, *rest))

        return add

    def _check_mutates(self, mutates: Any) -> None:
        several = isinstance(mutates, (tuple, list)) and all(isinstance(n, str) for n in mutates)
        if not several:
            raise ValueError(f"mutates is a tuple of names of inputs, not {short(mutates)}")
        if odd := [n for n in mutates if n not in self.inputs]:
            raise ValueError(
                f"mutates names {odd[0]!r}, which is not an input of {self.name}; "
                f"its inputs are {', '.join(self.inputs)}"
            )

    def _add_impl(self, created: Impl) -> Impl:
        """Return an Impl, entered in this Spec. Raises ValueError where `resolve` is missing."""
        if created.auto and created.resolve is None:
            raise ValueError(
                f"{created.title} leaves {created.auto[0]} to the sizes (AUTO); "
                "say how with resolve=, or give it a default"
            )
        self.impls.append(created)
        return created

    def library(self, name: str, call: Callable[..., Any] | None = None, **options: Any) -> Any:
        """Add a library's own version, `call(*inputs) -> output`, as a baseline; `options` are
        those of `impl`. Returns its Impl, or without `call` a decorator."""
        add = self.impl(backend="torch", name=name, **options)
        return add if call is None else add(call)


@dataclass(frozen=True)
class NoKnobs:
    """Config of an Impl without knobs: a library baseline."""


@dataclass(frozen=True)
class Sampling:
    """Tasks that check a config on some of its programs. `launch(kernel, candidate, examined)` runs
    them where the code under test runs; `compare(kernel, result)` judges what that returned."""

    launch: Callable[..., Any]
    compare: Callable[..., Any]


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
    work: Callable[..., Work | tuple[Work, ...]] | None
    defaults: Mapping[str, Any]
    mutates: tuple[str, ...] = ()  # inputs that a launch changes
    unchecked_reason: str = ""  # why its results cannot be checked without a GPU
    # config that `workbench.adapted.launch` chose, by device, shapes and dtypes of the inputs
    launch_configs: dict[Any, Any] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )
    # what `work` returned, by config, limits, dtype and sizes
    _works: dict[Any, tuple[Work, ...]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    @property
    def imports(self) -> tuple[str, ...]:
        """Modules that the first launch of a library's version imports, which takes seconds: a
        launcher or `refuse` names them in an attribute `imports`. Empty for all others."""
        return getattr(self.launch, "imports", ()) or getattr(self.refuse, "imports", ())

    def load(self) -> None:
        """Import what a launch needs beyond the kernel's file, which may take seconds: nothing."""

    def contents(self) -> Mapping[str, Any]:
        """Return the integers that arguments of the device function are known to hold, flat numpy
        arrays by name: none."""
        return {}

    def examine_code(self, ttgir: str, grid: Sequence[int], given: Any) -> Any:
        """Return what a check has to know of the code of the largest launch: nothing."""
        return None

    @property
    def sampling(self) -> Sampling | None:
        """The tasks that check only some programs of a launch; None checks whole calls."""
        return None

    @property
    def is_watched(self) -> bool:
        """Return whether a check in the interpreter watches every access of all programs."""
        return False

    @property
    def title(self) -> str:
        """Name of this Impl in tables and messages: `matmul.tiles`."""
        return f"{self.spec.name}.{self.name}"

    def __call__(self, *inputs: Any, config: Any = None) -> Any:
        """Launch. Without a config, launch the one tuned for these inputs on their GPU, or the
        default; the logger `workbench` reports the choice, once. An AUTO in a config is resolved by
        the inputs; raises ValueError where their shapes do not determine the sizes, or where an
        axis is longer than `Spec.longest`."""
        if self.config is NoKnobs:
            return self.launch(*inputs)
        if config is None:
            config = self._choose_config(inputs)
        else:
            self._check_axes(inputs)
            if self.is_open(config):
                config = import_module(LAUNCH).resolve(self, config, inputs)
        return self.launch(*inputs, config=config)

    def _check_axes(self, inputs: Sequence[Any]) -> None:
        """Raise ValueError where an axis of these tensors is longer than the Impl can count."""
        shapes = (getattr(x, "shape", ()) for x in inputs)
        # half: an axis may be part of a tensor's, as K of `K/256*144`
        if 2 * max((max(shape, default=0) for shape in shapes), default=0) > self.spec.longest:
            sizes = import_module(LAUNCH).sizes_of(self.spec, inputs) or {}
            if reason := self._refuse_axis(max(sizes.values(), default=0)):
                raise ValueError(f"{self.title}: {reason}")

    def _refuse_axis(self, extent: int) -> str | None:
        if self.backend != "triton" or extent <= self.spec.longest:
            return None
        return f"an axis has at most {self.spec.longest} indices, not {extent}; split the tensors"

    def _choose_config(self, inputs: Sequence[Any]) -> Any:
        try:
            at = (inputs[0].device, *[(x.shape, x.dtype) for x in inputs])
        except (AttributeError, IndexError):  # no tensors, so nothing can be looked up
            return self.config()
        if (known := self.launch_configs.get(at)) is not None:
            return known
        self._check_axes(inputs)
        return import_module(LAUNCH).choose(self, inputs, at)

    @cached_property
    def auto(self) -> tuple[str, ...]:
        """Fields of the config whose default depends on the sizes."""
        declared = fields(self.config) if is_dataclass(self.config) else ()  # see `declared.py`
        return tuple(
            f.name
            for f in declared
            if f.default == AUTO and AUTO not in f.metadata.get("choices", (AUTO,))
        )

    def is_open(self, config: Any) -> bool:
        """Return whether a field of this config is AUTO."""
        return any(getattr(config, name) == AUTO for name in self.auto)

    def resolved_config(self, config: Any, limits: Limits, dtype: str, sizes: Sizes) -> Any:
        """Return this config with a number in place of every AUTO, chosen for these sizes.

        Raises ResolveError where the kernel's own `resolve` fails or leaves a field AUTO.
        """
        if not self.is_open(config):
            return config
        assert self.resolve is not None  # checked by `Spec.impl`
        try:
            with watched(f"`resolve` of {self.title}"):
                result = self.resolve(config, limits, itemsize=ITEMSIZE[dtype], **sizes)
        except Exception as error:
            text = f"`resolve` of {self.title} failed at {sizes_text(sizes)}"
            raise ResolveError(f"{text} ({type(error).__name__}: {error}); correct it.") from error
        if not isinstance(result, self.config):
            raise ResolveError(
                f"`resolve` of {self.title} returned {short(result)}; return a config, as by "
                "dataclasses.replace(config, ...)."
            )
        if self.is_open(result):
            open_ = next(name for name in self.auto if getattr(result, name) == AUTO)
            raise ResolveError(f"`resolve` of {self.title} leaves {open_} AUTO; correct it.")
        return result

    def default(self, limits: Limits, dtype: str, sizes: Sizes) -> Any:
        """Return the config that runs at these sizes if none was chosen, on a device with these
        limits. No field of it is AUTO."""
        return self.resolved_config(self.declared_default(limits, dtype), limits, dtype, sizes)

    def default_or_reason(self, limits: Limits, dtype: str, sizes: Sizes) -> tuple[Any, str]:
        """Return the default at these sizes; None and the reason where it cannot run."""
        try:
            config = self.default(limits, dtype, sizes)
        except ResolveError as error:
            return None, str(error)
        reason = self.rejection_reason(config, limits, dtype, sizes)
        return (None, reason) if reason else (config, "")

    def rejection_reason(self, config: Any, limits: Limits, dtype: str, sizes: Sizes) -> str | None:
        """Return in one sentence why this config cannot run at these sizes, or None if it can. It
        cannot if it is a Metal kernel and the device no Apple GPU, if it has more warps than a
        block may have, if an axis is longer than `Spec.longest`, or if the kernel's own `refuse`
        rejects it, raises, or returns neither a sentence nor None."""
        if self.backend == "metal" and limits.arch != "metal":
            check = f"`python -m metal_shim.check {self.spec.name}` executes it on the CPU"
            return f"a Metal kernel needs an Apple GPU; {check}"
        warps = getattr(config, "num_warps", 0)
        if warps * limits.warp_size > limits.threads_per_block:
            return f"{warps} warps are more than one block may have here"
        if reason := self._refuse_axis(max(sizes.values(), default=0)):
            return reason
        try:
            with watched(f"`refuse` of {self.title}"):
                reason = self.refuse(config, limits, itemsize=ITEMSIZE[dtype], **sizes)
        except Exception as error:  # the kernel's own code
            return f"`refuse` of {self.title} failed ({type(error).__name__}: {error})"
        if reason is None or (isinstance(reason, str) and reason.strip()):
            return reason
        return f"`refuse` of {self.title} returned {short(reason)}; return one sentence, or None"

    def work_of(
        self, config: Any, limits: Limits, dtype: str, sizes: Sizes
    ) -> tuple[Work, ...] | None:
        """Return the kernel's own description of its launches, or None where it has none: a Work
        for each in order, or that of the largest alone. `work` is asked once for a config at
        sizes. Raises WorkError where `work` raises, or returns no Work of finite numbers."""
        if self.work is None:
            return None
        at = (config, limits, ITEMSIZE.get(dtype), *sizes.items())
        if (works := self._works.get(at)) is None:
            works = self._declared_works(config, limits, dtype, sizes)
            if len(self._works) >= MOST_WORKS:
                self._works.clear()
            self._works[at] = works
        return works

    def _declared_works(
        self, config: Any, limits: Limits, dtype: str, sizes: Sizes
    ) -> tuple[Work, ...]:
        assert self.work is not None
        named = f"`work` of {self.title}"
        try:
            with watched(named):
                result = self.work(config, limits, itemsize=ITEMSIZE[dtype], **sizes)
        except Exception as error:
            text = f"{named} failed at {sizes_text(sizes)} ({type(error).__name__}: {error})"
            raise WorkError(f"{text}; correct it.") from error
        works = (result,) if isinstance(result, Work) else result
        if not (isinstance(works, tuple) and works and all(isinstance(w, Work) for w in works)):
            raise WorkError(
                f"{named} returned {short(result)}; return a Work, or a tuple of one for each "
                "launch."
            )
        if odd := next(filter(None, (work.odd_field() for work in works)), None):
            raise WorkError(f"{named} returned a Work with {odd}; correct it.")
        return works

    def declared_default(self, limits: Limits, dtype: str) -> Any:
        """Return the default as the file declares it, with AUTO where it depends on the sizes."""
        names = (f"{dtype}:{limits.arch}", dtype, limits.arch)
        known = (self.defaults[name] for name in names if name in self.defaults)
        return next(known, None) or self.config_of({})

    def space(self, default: Any, vary: Sequence[Knob] = ()) -> Iterator[Any]:
        """Return an iterator over all configs of the declared choices. Knobs outside `vary` keep
        their value in `default`, which need not be a choice if it was AUTO.

        An empty `vary` varies all. Configs may still be illegal: see `rejection_reason`.
        """
        axes = self.choices(vary)
        names = [f.name for f in fields(self.config)]
        every = [axes.get(name, (getattr(default, name),)) for name in names]
        points = itertools.product(*every)
        return (self.config_of(dict(zip(names, p, strict=True))) for p in points)

    def config_of(self, point: Mapping[str, Any]) -> Any:
        """Return the config with these values. Raises ConfigError where its own code refuses or
        fails."""
        try:
            with watched(f"a config of {self.title}"):
                return self.config(**point)
        except Exception as error:  # the config's own `__post_init__`
            raise ConfigError(
                f"{self.config.__name__} of {self.title} cannot be made of {label(point)} "
                f"({type(error).__name__}: {error}); let `refuse` reject such a config instead."
            ) from error

    def knobs(self) -> dict[str, str]:
        """Return the knob word of each field: `{"block_m": "tile", "num_warps": "threads",
        ...}`."""
        return {f.name: f.metadata["knob"].__name__ for f in fields(self.config)}

    def choices(self, vary: Sequence[Knob] = ()) -> dict[str, tuple[int, ...]]:
        """Return the declared choices of each field, in order, of all or of those whose knob is in
        `vary`."""
        chosen = (f for f in fields(self.config) if not vary or f.metadata["knob"] in vary)
        return {f.name: f.metadata["choices"] for f in chosen}


class ResolveError(WorkbenchError, ValueError):
    """A kernel's `resolve` failed or left a field AUTO; the message is one sentence."""


# of each field of a Work, the least number
LEAST_OF_WORK = dict(tiles=1, steps=0, load_bytes=0, store_bytes=0, band=1, products=1)
LEAST_OF_WORK |= dict(vector_ops=0, special_ops=0, barriers=0, waits=0, hits=0, stages=1)
LEAST_OF_WORK |= dict(passed_bytes=0, memory_bytes=0)
MOST_WORKS = 10_000  # that an Impl keeps, of some 500 bytes each


class WorkError(WorkbenchError, ValueError):
    """A kernel's `work` failed or describes no launch; the message is one sentence."""


class ConfigError(WorkbenchError, ValueError):
    """A config type rejects one of its own choices; the message is one sentence."""


class SpecFault(WorkbenchError, ValueError):
    """A Spec's own reference or maker is wrong, whatever the kernel does; the message is one
    sentence."""


def is_number(value: object, least: float = 0.0) -> bool:
    """Return whether a value is a finite number, and at least `least`; truth values are none."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and least <= value < math.inf  # type: ignore[operator]


def short(value: object) -> str:
    """Return a value as Python writes it, in at most 80 characters of one line; its type where it
    cannot be written."""
    try:
        with watched(f"the text of a {type(value).__name__}"):
            text = " ".join(repr(value).split())
    except Exception:
        return f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."


def sizes_text(sizes: Sizes, separator: str = ",") -> str:
    """Return the sizes as `--sizes` takes them: `M=4096,N=4096,K=4096`."""
    return separator.join(f"{axis}={extent}" for axis, extent in sizes.items())


def values(config: Any) -> dict[str, int]:
    """Return a config as a dict from field name to value."""
    return {name: getattr(config, name) for name in _field_names(config.__class__)}


@lru_cache(maxsize=1024)
def _field_names(config: type) -> tuple[str, ...]:
    return tuple(f.name for f in fields(config))


def label(config: Mapping[str, int]) -> str:
    """Return a config as text: `128x256x64, 8 warps, 3 stages, group_m 8`; a block with one edge is
    named by it, `block_n 1024, 4 warps`. In older records an edge or a number of warps may be 0,
    which the launcher replaced by a value that depends on the sizes: `auto`."""
    text = {k: knob_text(k, v) for k, v in config.items()}
    block = {k: v for k, v in text.items() if k.startswith("block_")}
    rest = {k: v for k, v in text.items() if k not in block}
    words = {"num_warps": "warp", "num_stages": "stage"}
    edges = [f"{k} {v}" for k, v in block.items()] if len(block) == 1 else []
    parts = edges or (["x".join(map(str, block.values()))] if block else [])
    for name, value in rest.items():
        noun = words.get(name)
        parts.append(f"{value} {noun}{'s' * (value != '1')}" if noun else f"{name} {value}")
    return ", ".join(parts) or "as the library chooses"


def knob_text(name: str, value: int) -> str:
    """Return a knob's value as text: `auto` where the launcher chooses it from the sizes."""
    open_ = value == 0 and (name.startswith("block_") or name == "num_warps")
    return "auto" if open_ else str(value)


_JOINED = re.compile(r"([*/])?(\w+)")


def _whole(axis: str, sizes: Sizes) -> int:
    if axis in sizes:  # most are a name; a plan of thousands of configs asks for each of them
        return int(sizes[axis])
    over, under = 1, 1
    for sign, part in _JOINED.findall(axis):
        factor = int(part) if part.isdigit() else sizes[part]
        if sign == "/" and not factor:
            raise ValueError(f"{axis} divides by zero at {sizes_text(sizes)}")
        over, under = (over, under * factor) if sign == "/" else (over * factor, under)
    if over % under:
        raise ValueError(f"{axis} is not a whole number at {sizes_text(sizes)}")
    return over // under


def solve_sizes(tensors: Mapping[str, Tensor], inputs: Sequence[Any]) -> dict[str, int]:
    """Return the sizes that the shapes of inputs determine."""
    sizes: dict[str, int] = {}
    for tensor, x in zip(tensors.values(), inputs, strict=True):
        for axis, extent in zip(tensor.axes.split(), x.shape, strict=False):
            sizes |= solve_axis(axis, extent, sizes) or {}
    return sizes


def solve_axis(axis: str, extent: int, sizes: Sizes) -> dict[str, int] | None:
    """Return the one unknown size that an axis of this extent determines, by name. The dict is
    empty if the axis has no unknown or several; the result is None if the extent contradicts the
    known sizes."""
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


# Knobs: the function that declares a config field is the word that a sweep varies.


def among(*choices: int, default: int, knob: Knob | None = None) -> Any:
    """Return a config field with these choices. Raises ValueError where one of them is not a whole
    number, or where the default is not one of them."""
    if odd := [c for c in (*choices, default) if type(c) is not int]:
        word = (knob or among).__name__
        raise ValueError(f"{word}: {short(odd[0])} is not a whole number; the values of a knob are")
    if default not in choices and default != AUTO:
        raise ValueError(f"default {default} is not among the choices {choices}")
    return field(default=default, metadata={"choices": choices, "knob": knob or among})


def tile(lo: int, hi: int, default: int) -> Any:
    """Return a config field for an edge of the block that one program computes: a power of two."""
    return among(*_powers(lo, hi), default=default, knob=tile)


def threads(lo: int, hi: int, default: int) -> Any:
    """Return a config field for warps per program (Triton) or threads per threadgroup (Metal): a
    power of two."""
    return among(*_powers(lo, hi), default=default, knob=threads)


def stages(lo: int, hi: int, default: int) -> Any:
    """Return a config field for the number of stages of the software pipeline."""
    _check_range(lo, hi)
    return among(*range(lo, hi + 1), default=default, knob=stages)


def value_or(value: int, otherwise: int) -> int:
    """Return the value of a knob, or `otherwise` if it is AUTO."""
    return otherwise if value == AUTO else value


def _powers(lo: int, hi: int) -> tuple[int, ...]:
    _check_range(lo, hi)
    return tuple(1 << e for e in range(lo.bit_length() - 1, hi.bit_length()))


def _check_range(lo: int, hi: int) -> None:
    if type(lo) is not int or type(hi) is not int or not 0 < lo <= hi:
        raise ValueError(
            f"a knob from {short(lo)} to {short(hi)}: the ends are whole numbers above 0, the "
            "smaller first"
        )


def _bytes_of(tensors: Iterable[Tensor], sizes: Sizes, dtype: str) -> int:
    parts = tuple((t.axes, t.part or t.axes, t.dtype or dtype) for t in tensors)
    return _bytes_at(parts, tuple(sizes.items()))


@lru_cache(maxsize=4096)  # each of a kernel's configs asks at the same sizes
def _bytes_at(tensors: Sequence[tuple[str, str, str]], sizes: Sequence[tuple[str, int]]) -> int:
    at = dict(sizes)
    return sum(
        min(_product(Tensor(axes).shape(at)) for axes in (whole, part)) * ITEMSIZE[dtype]
        for whole, part, dtype in tensors
    )


def _product(extents: Sequence[int]) -> int:
    total = 1
    for extent in extents:
        total *= extent
    return total
