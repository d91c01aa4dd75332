"""One outcome, as plain data: `Record` or `Failure`. Uses the standard library only.

The sweep yields it, the events file and the database store it, the reports draw it. `Measured` and
`Predicted` are different types with different fields, and nothing converts one into the other.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from itertools import accumulate, pairwise
from statistics import median
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

from workbench.data.compiled_code import CodeVersions, CompiledCode, HotLoop
from workbench.data.impl_check import ImplCheck
from workbench.spec import label

# "code": compiled alone, to be compared by its machine code
Phase = Literal["first_pass", "final", "hot", "predict", "compare", "code"]
Stage = Literal["refused", "compile", "check", "launch", "measure"]
# What the outputs were compared on; "not here" where nothing on this machine ran the config.
Checked = Literal["gpu", "interpreter", "library", "emulated", "rehearsal", "not here"]
State = Literal["boost", "sustained"]  # of the clock: after a pause, or settled under load
# How a process ended in place of an answer: it died, or outlasted its limit.
Cause = Literal["crash", "timeout"]
LaunchKind = Literal["default", "tuned config"]  # what a launch takes that names no config
Item = TypeVar("Item")
Key = TypeVar("Key")


@dataclass(frozen=True)
class Mode:
    """One of two times that a call takes by turns."""

    share: float  # of the samples
    median_s: float


@dataclass(frozen=True)
class Energy:
    """Energy of one call on the whole board, by the driver's counter, idle power included. `joules`
    is the median of the windows; `low_joules` to `high_joules` is its 95 % order-statistic
    interval."""

    joules: float
    low_joules: float
    high_joules: float
    power_w: float  # average during the calls, median of the windows
    idle_w: float  # just before, with nothing on the GPU
    calls: int  # in all windows
    windows: int
    window_s: float  # how long a window lasted, median
    step_s: float  # between two updates of the counter, as seen before the windows
    source: str  # "nvml"
    regime: Literal["cold", "warm"] = "cold"  # warm: between calls the cache was not flushed
    window_joules: tuple[float, ...] = ()  # of one call, by window, in the order taken

    @property
    def active_joules(self) -> float:
        """Joules of one call beyond what the idle board takes in the same time."""
        return self.joules * (1 - self.idle_w / self.power_w) if self.power_w else self.joules


@dataclass(frozen=True)
class Measured:
    """A measured time. Seconds; `low_s` to `high_s` is the 95 % order-statistic interval of the
    median; `samples_s` are all samples kept, in the order they were taken."""

    median_s: float
    low_s: float
    high_s: float
    samples_s: tuple[float, ...]
    regime: Literal["cold", "hot"]
    # "eval": the host's clock around the evaluation of many calls on a Metal device, less the same
    # of empty kernels; "command buffer": that device's own clock
    method: Literal["events", "graph", "host", "eval", "command buffer"]
    protocol: str
    rounds: int = 1
    sm_mhz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    state: State = "boost"
    window_sizes: tuple[int, ...] = ()  # samples in each window, in order
    window_mhz: tuple[float, ...] = ()  # the SM clock during each window
    throttle: tuple[str, ...] = ()  # reasons that the driver gave for a lowered clock
    left_out: int = 0  # samples taken at under 3/4 of the run's own median clock
    stable: bool = True  # the interval became as narrow as the protocol requires, of one mode
    modes: tuple[Mode, ...] = ()  # two, where a call takes one of two times
    others_on_gpu: int = 0  # processes that came while this was measured
    energy: Energy | None = None  # of one call, where it was requested
    no_energy: str = ""  # one sentence: why it was requested and is absent
    # host seconds to issue one call without waiting for it, the median of a few calls (see
    # `Rotation.learn_issue`); of a call that waits for the GPU itself, until it returns
    host_s: float | None = None
    compile_s: float | None = None  # the first call outlasted the next by it; not in the time

    @property
    def mean_s(self) -> float:
        """Mean of the samples, in seconds. It compares times of several modes, and nothing else."""
        return sum(self.samples_s) / len(self.samples_s)

    @property
    def std_s(self) -> float:
        """Standard deviation of the samples about their mean, in seconds; 0 of one sample."""
        mean, others = self.mean_s, max(1, len(self.samples_s) - 1)
        return math.sqrt(math.fsum((s - mean) ** 2 for s in self.samples_s) / others)

    @property
    def min_s(self) -> float:
        """Least sample, in seconds."""
        return min(self.samples_s)

    @property
    def max_s(self) -> float:
        """Largest sample, in seconds."""
        return max(self.samples_s)

    @property
    def windows(self) -> list[tuple[float, ...]]:
        """Samples by window, in the order taken; empty if the window sizes are unknown."""
        if not self.window_sizes or sum(self.window_sizes) != len(self.samples_s):
            return []
        ends = [0, *accumulate(self.window_sizes)]
        return [self.samples_s[a:b] for a, b in pairwise(ends)]

    @property
    def window_medians(self) -> list[float]:
        """Median of each window, in seconds."""
        return [median(window) for window in self.windows]

    @property
    def cycles(self) -> float | None:
        """Clock cycles of one call at the median; None where the clock is unknown."""
        return self.median_s * self.sm_mhz * 1e6 if self.sm_mhz else None


@dataclass(frozen=True)
class Predicted:
    """A time predicted by a model, and the terms it came from, all in seconds. Terms are None where
    the model has none, or the device no figure for it."""

    predicted_s: float
    model: str
    compute_s: float | None
    dram_s: float
    cache_s: float | None
    latency_s: float
    launch_s: float
    bound: str  # the name of the largest term
    # the interval that the model states; predictions whose intervals overlap are not ranked
    shortest_s: float | None = None
    longest_s: float | None = None

    @property
    def interval_s(self) -> tuple[float, float] | None:
        """Both ends of the interval in seconds; None if the model states none."""
        if self.shortest_s is None or self.longest_s is None:
            return None
        return self.shortest_s, self.longest_s


@dataclass(frozen=True)
class ResourceColumn:
    """The column that shows a field of Resources, which is annotated with it."""

    head: str  # with its unit
    form: str = "{}"  # a format of `scale` times the value
    scale: float | None = None
    none: str | None = None  # shown in place of None and 0; None shows them as they are
    text: bool = False  # sorts as text; else as a number
    minor: bool = False  # left out on paper
    best_first: Literal["ascending", "descending"] = "ascending"  # order of the first click

    def cell(self, value: Any) -> str:
        """Return the value as the column shows it."""
        if self.none is not None and not value:
            return self.none
        return self.form.format(value if self.scale is None else value * self.scale)


@dataclass(frozen=True)
class Resources:
    """Resources of a compiled config on one target, and its occupancy of the device."""

    binary: str  # hash of the machine code
    registers: Annotated[int, ResourceColumn("registers")]  # per thread
    spill_bytes: Annotated[int, ResourceColumn("spills, B")]  # per thread
    shared_bytes: Annotated[
        int, ResourceColumn("shared, KiB", "{:.3g}", scale=1 / 1024)
    ]  # per block
    threads: int  # per block
    blocks_per_core: int  # resident at once on one SM or CU
    # resident warps over the most that fit, 0 to 1
    occupancy: Annotated[
        float, ResourceColumn("occupancy, %", "{:.0f}", scale=100, best_first="descending")
    ]
    # registers, shared memory, threads or blocks
    limiter: Annotated[str, ResourceColumn("limited by", text=True)]
    programs: int  # blocks launched
    # programs over those resident at once on the whole device
    waves: Annotated[float, ResourceColumn("waves", "{:.2f}")]
    # share of the last wave's places that stay empty, 0 to 1
    tail: Annotated[float, ResourceColumn("idle tail, %", "{:.0f}", scale=100)]
    # widest global load of one thread; 0 when none was found
    load_bits: Annotated[
        int, ResourceColumn("load, bits", none="", minor=True, best_first="descending")
    ]
    # wgmma, mma, tcgen05, mfma, wmma, or None where no launch uses one
    matrix_unit: Annotated[
        str | None, ResourceColumn("matrix unit", none="none", text=True, minor=True)
    ]
    compile_s: Annotated[float, ResourceColumn("compile, s", "{:.1f}", minor=True)]
    copy_engine: bool = False  # loads by tensor descriptor (TMA), whatever `load_bits` says
    spills_in_loop: bool = True  # unless the hot loop was read and touches none of them

    @property
    def loop_spill_bytes(self) -> int:
        """Bytes per thread that a trip of the hot loop may write and read back."""
        return self.spill_bytes if self.spills_in_loop else 0


def metrics() -> dict[str, ResourceColumn]:
    """Return the metric of each field of Resources that declares one, by the field's name."""
    hints = get_type_hints(Resources, include_extras=True)
    return {
        name: declared
        for name, hint in hints.items()
        for declared in getattr(hint, "__metadata__", ())
        if isinstance(declared, ResourceColumn)
    }


@dataclass(frozen=True)
class BufferCounts:
    """Bytes of one buffer in an emulated run. Requested bytes count each access, unique ones each
    byte once; `sectors` are the 32-byte sectors that each instruction of a SIMD-group touched."""

    name: str
    requested_read: int
    requested_written: int
    unique_read: int
    unique_written: int
    sectors: int
    scale: float = 1.0  # times as many bytes at the outcome's own sizes, by the kernel's formula

    @property
    def requested_bytes(self) -> int:
        """Bytes of all accesses."""
        return self.requested_read + self.requested_written

    @property
    def unique(self) -> int:
        """Bytes that were read, each once, and bytes that were written, each once."""
        return self.unique_read + self.unique_written


@dataclass(frozen=True)
class CountedTraffic:
    """Bytes that a Metal kernel moved when it was emulated on a CPU; it holds no time.

    `sizes` are those of the counted run, which are small. Bank rounds assume 32 banks of 4 bytes.
    The last four are at the outcome's own sizes: of the whole call, by the kernel's formula.
    """

    sizes: Mapping[str, int]
    buffers: tuple[BufferCounts, ...]
    dispatches: int  # of one call
    threads: int  # of a threadgroup of the largest dispatch
    threadgroups: int  # of all dispatches at the outcome's own sizes
    threadgroup_bytes: int
    barriers: int  # of each thread, on the average
    bank_rounds: int
    all_barriers: int = 0  # of all threadgroups
    all_accesses: int = 0  # of SIMD-groups to threadgroup memory
    all_bank_rounds: int = 0
    edge_bytes: int = 0  # that whole tiles would store past the outputs

    @property
    def counted_bytes(self) -> int:
        """Bytes of all sectors of the counted run."""
        return 32 * sum(buffer.sectors for buffer in self.buffers)

    @property
    def bytes(self) -> int:
        """Bytes of all sectors at the outcome's own sizes."""
        return round(sum(32 * buffer.sectors * buffer.scale for buffer in self.buffers))


@dataclass(frozen=True)
class Case:
    """The config of one outcome: the part of its key that is readable."""

    kernel: str
    impl: str
    backend: str
    config: Mapping[str, int]
    sizes: Mapping[str, int]
    dtype: str
    device: str

    @property
    def label(self) -> str:
        """Name in tables: `tiles 128x256x64, 8 warps, 3 stages`; of a library only its name."""
        return f"{self.impl} {label(self.config)}" if self.config else self.impl

    @property
    def is_baseline(self) -> bool:
        """Whether this is a library's own implementation, which has no knobs."""
        return self.backend in ("torch", "mlx")


@dataclass(frozen=True)
class Record:
    """A config that gave the correct result, and its time."""

    case: Case
    key: str  # hash of all that decides the outcome: see `key_of`
    run: str  # id of the run that obtained it
    at: str  # when, ISO 8601 with offset
    phase: Phase
    timing: Measured | Predicted
    flops: int
    bytes: int  # least bytes, as the Spec declares them
    checked: Checked
    error: float | None  # largest error over its tolerance, at most 1; None if `checked` not here
    resources: Resources | None = None
    default: bool = False  # what launches that name no config took then: see `Run.launch_kind`
    same_as: Mapping[str, int] | None = None  # config with the same machine code, timed instead
    older_key: bool = False  # found under the key that schema 1 gave the same config
    seed: int | None = None  # of the inputs that it was checked on; the kernel could not know it
    # hash of the bits of its outputs: configs of one run with equal bits are interchangeable
    bits: str | None = None
    repeats: bool | None = None  # whether its bits were the same again; None if not looked at
    # the two parts of `bytes`: all inputs read once, all outputs written once; a tensor that is
    # both counts in both. None in older files, and where no Spec declares the tensors
    bytes_read: int | None = None
    bytes_written: int | None = None
    traffic: CountedTraffic | None = None  # of a Metal kernel, counted by the emulator
    gpu: str = ""  # host and GPU that it was obtained on, of a cluster; see `Run.gpu`
    # of a library that was timed after the final: seconds of the winner in the same rounds
    winner_s: float | None = None
    # programs of the launch whose results were compared; None: all
    checked_programs: int | None = None
    code: CompiledCode | None = None  # facts of the machine code, of the phase `code`

    def __post_init__(self) -> None:
        """Raise ValueError for a measured time of what ran on the CPU in place of the device."""
        if self.is_measured and self.checked == "emulated":
            raise ValueError("a result of the emulator has no measured time")

    @property
    def time_s(self) -> float:
        """Seconds of one call, measured or predicted; see `is_measured`."""
        t = self.timing
        return t.median_s if isinstance(t, Measured) else t.predicted_s

    @property
    def is_measured(self) -> bool:
        """Whether the time was measured, not predicted."""
        return isinstance(self.timing, Measured)


@dataclass(frozen=True)
class Failure:
    """A config that has no time, and the reason. A failure is a result."""

    case: Case
    key: str
    run: str
    at: str
    stage: Stage
    reason: str  # one sentence
    resources: Resources | None = None
    default: bool = False
    older_key: bool = False  # see `Record.older_key`
    cause: Cause | None = None  # None: the config itself was rejected or wrong
    attempts: int = 1  # that ended in the same cause; the last one alone, with a larger limit
    traffic: CountedTraffic | None = None  # see `Record.traffic`
    gpu: str = ""  # see `Record.gpu`
    code: CompiledCode | None = None  # of a config that compiles and has no predicted time


Outcome = Record | Failure


@dataclass(frozen=True)
class Environment:
    """Hardware and software of a run. An allow-list: no host, user or serial numbers."""

    gpu: str | None  # name as the driver gives it; None when no GPU was used
    driver: str | None
    gpu_memory_bytes: int | None
    power_limit_w: float | None
    clock_policy: str  # "locked", "default" or "unknown"
    others_on_gpu: int | None  # foreign processes at the start; None when unknown
    os: str
    cpu: str
    python: str
    versions: Mapping[str, str]  # workbench, torch, triton, ptxas, cuda, hip, numpy
    settings: Mapping[str, str]  # TRITON_* variables that change code
    commit: str | None  # of the repository that holds the kernel
    dirty: bool | None


@dataclass(frozen=True, kw_only=True)
class Run:
    """One invocation of an engine: its options and its environment."""

    id: str  # 20261121-093000-tile_size-matmul-3f2a
    engine: str  # "sweep"
    name: str  # "tile_size"
    command: str  # command line that repeats it
    started: str  # ISO 8601
    # times: measured or predicted; code: of two versions; trace: what a profiler recorded, of a
    # kernel or, without one, of a program
    kind: Literal["times", "code", "trace"] = "times"
    kernel: str = ""  # or several: "copy, softmax"
    sizes: Mapping[str, int] = field(default_factory=dict)  # where all outcomes have the same
    dtype: str = ""
    device: str  # "h200": its file in `devices/`, or a live GPU's own name
    predicted: bool  # times are predicted: no GPU took part
    vary: tuple[str, ...] = ()  # knob words, of a sweep
    tune: tuple[str, ...] = ()
    impls: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # choices and knobs
    ceilings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # `hardware.ceilings`
    environment: Environment
    source: str = ""  # file of the kernel, as the user named it
    # by Impl, the best config of an earlier run of the same problem; it wins ties
    previous_best: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    same_bits_as: str = ""  # "default": the winner's outputs must have the bits of a launch's
    launch_kind: LaunchKind = "default"  # of launches when a sweep began
    # of a profiler, each with name, bytes and sha256
    files: tuple[Mapping[str, Any], ...] = ()
    # of a run on a cluster: `node3 GPU 1 (1f2e3d4c)`, the host, its GPU and the start of its UUID
    gpu: str = ""
    # library references of that GPU by name, in B/s and FLOP/s: times of GPUs whose references
    # differ by more than 3 % are not ranked together
    references: Mapping[str, float] = field(default_factory=dict)
    project: str = ""  # `project_id` where it began; empty in older runs
    versions: CodeVersions | None = None  # that a run of kind `code` compares


Word = Literal["SLOW", "FAST", "SAME", "CLOCK", "INCONCLUSIVE"]


@dataclass(frozen=True)
class Ratio:
    """Right operand over the left: above 1 the right one is slower. `low` to `high` is the 95 %
    interval of the median ratio."""

    middle: float
    low: float
    high: float


@dataclass(frozen=True)
class Verdict:
    """Verdict of an interleaved comparison of two operands."""

    word: Word
    time: Ratio
    cycles: Ratio | None  # None where the SM clock is unknown
    threshold: float  # the larger of the requested one and the noise floor; 0.01 is one percent
    requested_threshold: float
    noise: float  # difference of two runs of the same code, measured beside the two operands
    rounds: int
    reason: str  # one sentence


@dataclass(frozen=True)
class Comparison:
    """Two outcomes of one run, compared with each other. `left` and `right` are readable names."""

    run: str
    at: str  # ISO 8601 with offset
    kernel: str
    sizes: Mapping[str, int]
    dtype: str
    left: str  # "tiles 128x256x64, 8 warps at HEAD~1"
    right: str
    left_key: str  # of the operand's outcome
    right_key: str
    verdict: Verdict | None  # None where an operand gave no time
    looks: int = 1  # how often it could have stopped, which widens its interval
    by: Literal["time", "code"] = "time"  # by code the outcomes themselves say the result
    tuned: str = ""  # date of a tuned config; empty for a default
    commit: str = ""  # of the right side, in a bisection by code
    reason: str = ""  # why there is no verdict, where no outcome says it


# `profiled` numbers were taken while a profiler watched: never a measured time.
Kind = Literal["measured", "predicted", "computed", "datasheet", "profiled"]


@dataclass(frozen=True)
class Evidence:
    """One number behind a finding, with its unit; `kind` says whether it was measured, predicted,
    computed, profiled or is from a datasheet. Units: "s", "B", "FLOP", "B/s", "FLOP/s", "FLOP/B",
    "kernels", "copies"; "1" is a ratio or a share. `low` to `high` is its 95 % interval."""

    name: str
    value: float
    unit: str
    kind: Kind
    low: float | None = None
    high: float | None = None
    group: str = ""  # rows of one group are listed together
    target: str = ""  # what it should be according to the guide: "> 80 %"
    met: bool | None = None


@dataclass(frozen=True)
class Series:
    """Points of one line of a chart; `low` and `high` are empty or as long as `y`."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    kind: Kind = "measured"


@dataclass(frozen=True)
class Chart:
    """A chart of a finding. Axes carry their units in their labels."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    x_log: bool = False
    y_log: bool = False


@dataclass(frozen=True)
class Finding:
    """Finding of an experiment on one kernel: a word, a sentence, and the numbers behind both."""

    run: str
    at: str  # ISO 8601 with offset
    experiment: str
    kernel: str
    sizes: Mapping[str, int]
    dtype: str
    word: str  # "memory-bound"
    sentence: str
    evidence: tuple[Evidence, ...] = ()
    charts: tuple[Chart, ...] = ()
    caveats: tuple[str, ...] = ()  # a sentence each
    rule: str = ""  # that holds; empty for an experiment's own finding
    gain_s: float | None = None  # that it may give back at most; None without a bound
    advice: str = ""
    effort: str = ""  # small, medium, large
    where: tuple[str, ...] = ()  # the lines that are responsible, each with its instruction


@dataclass(frozen=True)
class Profile:
    """Times and metrics of a kernel as a profiler saw them: of one launch, or of all launches of
    one name. They are never measured times: a profiler slows launches, replays kernels and flushes
    caches. Seconds; fields are None where the file does not tell."""

    run: str
    at: str  # when it was read, ISO 8601 with offset
    tool: str
    version: str
    device: str
    name: str  # of the kernel in the file
    launch: str = ""  # the tool's id of one launch; empty for all of one name
    count: int = 1  # launches
    total_s: float | None = None
    median_s: float | None = None
    median_low_s: float | None = None  # its 95 % interval, from six launches on
    median_high_s: float | None = None
    low_s: float | None = None  # the shortest
    high_s: float | None = None  # the longest
    metrics: tuple[Evidence, ...] = ()  # of kind `profiled`
    kernel: str = ""  # of the workbench, where it was profiled by it
    impl: str = ""
    config: Mapping[str, int] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    dtype: str = ""
    outcome: str = ""  # key of the record that holds the plain time of this config
    # lines that are responsible for each class of instructions, by its name
    lines: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def key_of(case: Case, **also: str) -> str:
    """Return the hash of a case and whatever else decides its outcome (source hash, versions,
    protocol): 24 hex digits."""
    plain = {f.name: getattr(case, f.name) for f in fields(case)}
    text = json.dumps([plain, also], sort_keys=True, default=dict)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


# To and from JSON. Each object carries its type's name; floats survive exactly.

_TYPES: dict[str, type] = {}


def register(*types: type) -> None:
    """Let `encode_plain` and `decode_plain` take these dataclasses."""
    _TYPES.update({t.__name__: t for t in types})


register(
    HotLoop,
    CompiledCode,
    ImplCheck,
    CodeVersions,
    Mode,
    Energy,
    Measured,
    Predicted,
    Resources,
    BufferCounts,
    CountedTraffic,
    Case,
    Record,
    Failure,
    Environment,
    Run,
    Ratio,
    Verdict,
    Comparison,
    Evidence,
    Series,
    Chart,
    Finding,
    Profile,
)


def type_named(name: object) -> type | None:
    """Return the dataclass that objects of this type name are restored to, or None."""
    return _TYPES.get(name) if isinstance(name, str) else None


def encode_plain(value: Any) -> Any:
    """Return a dataclass of this file as dicts, lists, strings and numbers, with `type` fields."""
    if type(value).__name__ in _TYPES and hasattr(value, "__dataclass_fields__"):
        plain = {k: encode_plain(getattr(value, k)) for k in value.__dataclass_fields__}
        return {"type": type(value).__name__, **plain}
    if isinstance(value, Mapping):
        return {k: encode_plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode_plain(v) for v in value]
    return value


def decode_plain(plain: Any) -> Any:
    """Return the inverse of `encode_plain`. Unknown fields are dropped, so an older reader
    reads newer files.

    Raises ValueError where a type is unknown or a field without a default is missing.
    """
    if isinstance(plain, list):
        return tuple(decode_plain(v) for v in plain)
    if not isinstance(plain, dict):
        return plain
    if "type" not in plain:
        return {k: decode_plain(v) for k, v in plain.items()}
    kind = _TYPES.get(plain["type"])
    if kind is None:
        raise ValueError(f"unknown record type {plain['type']!r}")
    plain = _upgrade_names(plain)
    fields_by_name = kind.__dataclass_fields__  # type: ignore[attr-defined]
    try:
        return kind(**{k: decode_plain(v) for k, v in plain.items() if k in fields_by_name})
    except TypeError as error:
        raise ValueError(f"a {plain['type']} lacks a field: {error}") from None


# Names of fields in schema 1.
_FORMER: Mapping[str, Mapping[str, str]] = {
    "Run": {"incumbents": "previous_best"},
    "Verdict": {"asked": "requested_threshold", "why": "reason"},
}


_FORMER_CEILING = {"why": "reason", "yardstick": "library"}


def _upgrade_names(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object as schema 1 wrote it, with the names and words of this schema."""
    former = _FORMER.get(plain["type"], {})
    renamed = {former.get(k, k): v for k, v in plain.items()}
    if renamed.get("phase") == "screen":
        renamed["phase"] = "first_pass"
    if renamed["type"] == "Run":
        ceilings = dict(renamed.get("ceilings", {}))
        renamed["ceilings"] = {
            name: _stateful({_FORMER_CEILING.get(k, k): v for k, v in dict(ceiling).items()})
            for name, ceiling in ceilings.items()
        }
    return renamed


# What the sources of measured ceilings said before ceilings had a `state`: groups of variants took
# turns once the clock had settled; the test before a run followed a pause.
_FORMER_STATES = {
    ", sustained clock,": "sustained",
    "copy kernel, just before this run": "boost",
    "launch in a graph, just before this run": "boost",
}


def _stateful(ceiling: dict[str, Any]) -> dict[str, Any]:
    """Return a ceiling with the state in which it was measured, where only its source said so."""
    source = str(ceiling.get("source", ""))
    known = next((state for words, state in _FORMER_STATES.items() if words in source), None)
    if known is None or "state" in ceiling or ceiling.get("kind") != "measured":
        return ceiling
    return {**ceiling, "state": known}


def dumps(value: Any) -> str:
    """Return a dataclass of this file as one line of JSON."""
    return json.dumps(encode_plain(value), separators=(",", ":"), allow_nan=True)


def loads(line: str) -> Any:
    """Return the object that `dumps` wrote. Raises ValueError on anything else."""
    return decode_plain(json.loads(line))


def group_by(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return the items by their key, in the order of first appearance."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
