"""Select the winner of a sweep: pure functions of records.

First-pass times and final times come from different protocols, so they are never ranked together:
final records are ranked if there are any, else first-pass records.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from workbench.data import stats
from workbench.data.dominance import dominates, front_of
from workbench.data.record import (
    Case,
    Failure,
    LaunchKind,
    Measured,
    Outcome,
    Phase,
    Record,
    Run,
    Stage,
    group_by,
)
from workbench.data.units import three_digits
from workbench.spec import label

TIE_SHARE = 0.005  # medians closer than this share tie, however narrow their intervals are
MODEL_SHARE = 0.02  # predictions closer than this share tie
RIDGE = 8.0  # FLOP a byte, taken where the device's own ridge is unknown
MOST_THREADS = 1024  # of a block, on every GPU that Triton or Metal compiles for

# A final time outranks a first-pass time of the same config. "hot" times are not ranked.
_PHASES: tuple[Phase, ...] = ("final", "first_pass", "predict")
_STAGES: tuple[Stage, ...] = ("measure", "launch", "check", "compile", "refused")


ConfigKey = tuple[str, str, tuple[tuple[str, int], ...]]


@dataclass(frozen=True)
class Baseline:
    """A record that the winner is compared with, in the best phase that timed both."""

    record: Record
    ratio: float  # its time over the winner's: above 1 the winner is faster
    phase: Phase


@dataclass(frozen=True)
class Edge:
    """A knob whose best value is the smallest or largest of its declared choices."""

    field: str
    value: int
    highest: bool  # at the upper end; else at the lower


@dataclass(frozen=True)
class Selection:
    """Result of a sweep. `winner` is None if no config gave a time."""

    is_predicted: bool
    winner: Record | None = None
    times: Mapping[Phase, float] = field(default_factory=dict)  # the winner's, seconds, by phase
    fastest: Record | None = None  # of the ranked phase; the winner unless the tie rule chose
    launch_kind: LaunchKind = "default"  # what `default` is: see `Run.launch_kind`
    default: Baseline | None = None  # the launch that runs where no config is named
    default_failure: Failure | None = None  # set instead when that config failed
    baselines: tuple[Baseline, ...] = ()  # fastest first
    baseline_failures: tuple[Failure, ...] = ()  # libraries without a time
    ties: tuple[Record, ...] = ()  # others that cannot be told from the fastest
    duplicates: tuple[Record, ...] = ()  # others with the winner's machine code
    edges: tuple[Edge, ...] = ()
    unsteady: tuple[Record, ...] = ()  # two modes, and slower on the average than another
    # False where the winner stands for a class: predictions whose intervals overlap with its own
    is_ranked: bool = True
    alike: str = ""  # a clause about members of the class that nothing separates
    unpredicted_configs: int = 0  # configs that were emulated and right, and have no predicted time
    emulated_configs: int = 0  # configs whose traffic was counted, and that were right
    front: tuple[Outcome, ...] = ()  # those of them that no other of their Impl dominates
    dominates_default: str = ""  # the config that dominates the default, where one does
    other_bits: int = 0  # configs whose outputs differ in bits from those that were requested
    ridge: float = RIDGE  # FLOP a byte below which memory limits, on this device
    impls: int = 0  # that were swept, baselines not counted
    configs: int = 0
    binaries: int = 0
    failures: Mapping[Stage, int] = field(default_factory=dict)  # configs by the stage of failure
    reason: str = ""  # the most frequent one among the failures

    @property
    def phase(self) -> Phase | None:
        """Phase of the winner's time, or None without a winner."""
        return self.winner.phase if self.winner else None


def config_key(case: Case) -> ConfigKey:
    """Return the key that outcomes of the same config share within one run."""
    return case.backend, case.impl, tuple(sorted(case.config.items()))


def relevant(run: Run, outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return the outcomes that may be ranked for this run: of its sizes, dtype, kind of time."""
    return [
        o
        for o in outcomes
        if dict(o.case.sizes) == dict(run.sizes)
        and o.case.dtype == run.dtype
        and (isinstance(o, Failure) or o.is_measured != run.predicted)
    ]


def ranking(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return one outcome for each config, best first: final records by time, then first-pass
    records by time, then failures by stage.

    A config that ever failed counts as that failure, whatever times it gave: a wrong result in the
    final benchmark also invalidates its first-pass time.
    """
    best: dict[ConfigKey, Outcome] = {}
    for outcome in outcomes:
        if isinstance(outcome, Record) and outcome.phase not in _PHASES:
            continue
        key = config_key(outcome.case)
        if key not in best or _claim(outcome) <= _claim(best[key]):  # the later of equals
            best[key] = outcome
    failures = [o for o in best.values() if isinstance(o, Failure)]
    records = [o for o in best.values() if isinstance(o, Record)]
    return [*sorted(records, key=_rank), *sorted(failures, key=_claim)]


def comparable_times(outcomes: Iterable[Outcome]) -> dict[ConfigKey, Record]:
    """Return the first record of each swept config, of the first pass or predicted. These times are
    comparable, since all were obtained alike; a final benchmark is longer, and at a lower clock."""
    results: dict[ConfigKey, Record] = {}
    for outcome in outcomes:
        if isinstance(outcome, Record) and outcome.phase in ("first_pass", "predict"):
            results[config_key(outcome.case)] = outcome
    return results


def best_per_group(
    outcomes: Iterable[Outcome], fields: Sequence[str]
) -> dict[tuple[int, ...], Record]:
    """Return the best record for each tuple of values of these config fields, final before first
    pass.

    Baselines, failed configs and configs that lack one of the fields have no group.
    """
    best: dict[tuple[int, ...], Record] = {}
    for outcome in ranking(outcomes):  # best first, so the first of a group is its best
        config = outcome.case.config
        if isinstance(outcome, Failure) or outcome.case.is_baseline:
            continue
        if all(f in config for f in fields):
            best.setdefault(tuple(config[f] for f in fields), outcome)
    return best


def select(run: Run, outcomes: Sequence[Outcome]) -> Selection:
    """Return the winner of a run, its comparisons, and the caveats about it."""
    outcomes = relevant(run, outcomes)
    stand = ranking(outcomes)
    swept = [o for o in stand if _is_swept(o, run)]
    failed = [o for o in swept if isinstance(o, Failure)]
    counts = {stage: sum(o.stage == stage for o in failed) for stage in reversed(_STAGES)}
    binaries = {o.resources.binary for o in swept if o.resources is not None}
    given = [o.reason for o in failed if o.stage != "refused"]
    result = Selection(
        is_predicted=run.predicted,
        launch_kind=run.launch_kind,
        ridge=ridge_of(run),
        impls=len({o.case.impl for o in swept}),
        configs=len(swept),
        binaries=len(binaries),
        failures={stage: n for stage, n in counts.items() if n},
        reason=max(dict.fromkeys(given), key=given.count, default=""),  # the most frequent
        unpredicted_configs=sum(o.stage == "measure" and o.traffic is not None for o in failed),
    )
    result = _add_front(result, swept)
    records = [o for o in swept if isinstance(o, Record)]
    if not records:
        return result
    pool = [r for r in records if r.phase == records[0].phase]
    allowed = keep_default_bits(run, pool, [o for o in stand if isinstance(o, Record)])
    result = replace(result, other_bits=len(pool) - len(allowed))
    if not allowed:
        return result
    unsteady = tuple(r for r in allowed if any(_steadier(other, r) for other in allowed))
    pool = [r for r in allowed if r not in unsteady]
    fastest = min(pool, key=lambda r: (r.time_s, *_frugality(r, run)))
    near = [r for r in pool if _cannot_tell(r, fastest)]
    ranked = interval_of(fastest) is None
    winner = _select_tied(near, fastest, run)
    others = [r for r in records if r is not winner]
    default = next((o for o in stand if o.default), None)
    return replace(
        result,
        winner=winner,
        is_ranked=ranked,
        alike="" if ranked else threads_alone(run, _front_records(result, near)),
        unsteady=unsteady,
        times={phase: r.time_s for phase, r in _phases(winner, outcomes).items()},
        fastest=fastest,
        default=_baseline(default, winner, outcomes) if isinstance(default, Record) else None,
        default_failure=default if isinstance(default, Failure) else None,
        baselines=_baselines([o for o in stand if o.case.is_baseline], winner, outcomes),
        baseline_failures=tuple(o for o in stand if o.case.is_baseline and isinstance(o, Failure)),
        ties=tuple(r for r in near if r is not winner and not same_code(r, winner)),
        duplicates=tuple(r for r in others if same_code(r, winner)),
        edges=_sure(_edges(run, winner), near) if ranked else (),
    )


def _add_front(result: Selection, swept: Sequence[Outcome]) -> Selection:
    """Return the result with the configs that no other of their Impl dominates by count. Only where
    times are predicted: a measured time says more."""
    right = [o for o in swept if isinstance(o, Record) or o.stage == "measure"]
    counted_ones = [o for o in right if o.traffic is not None]
    if not result.is_predicted or not counted_ones:
        return result
    front = sorted(front_of(counted_ones), key=lambda o: (o.case.impl, *o.case.config.values()))
    default = next((o for o in counted_ones if o.default), None)
    better = [o for o in front if default is not None and dominates(o, default)]
    return replace(
        result,
        emulated_configs=len(counted_ones),
        front=tuple(front),
        dominates_default=config_name(result, better[0]) if better else "",
    )


def _front_records(result: Selection, records: Sequence[Record]) -> list[Record]:
    """Return the records of the front; all of them where nothing was counted."""
    return [r for r in records if not result.front or any(r is o for o in result.front)]


def _select_tied(near: Sequence[Record], fastest: Record, run: Run) -> Record:
    """Return the config to select among those that cannot be told from the fastest."""
    # Final times are precise enough for the whole rule, and a model that states an interval does
    # not rank what lies within it. Of other predictions the rule is that a default stays.
    if fastest.phase == "final" or interval_of(fastest) is not None:
        return min(near, key=lambda r: _frugality(r, run))
    default = next((r for r in near if r.default), fastest)
    return fastest if fastest.is_measured else default


def interval_of(record: Record) -> tuple[float, float] | None:
    """Return the seconds between which a model that states an interval expects the time; None for
    other models and for measured times."""
    return None if isinstance(record.timing, Measured) else record.timing.interval_s


def members(result: Selection) -> list[Record]:
    """Return the winner and all that cannot be told from it, by name."""
    if result.winner is None:
        return []
    each = [result.winner, *result.ties]
    return sorted(each, key=lambda r: (r.case.impl, *r.case.config.values()))


def class_interval(result: Selection) -> tuple[float, float]:
    """Return the seconds from the shortest to the longest that the model expects of a class."""
    spans = [span for r in members(result) if (span := interval_of(r)) is not None]
    return min(low for low, _ in spans), max(high for _, high in spans)


def threads_alone(run: Run, records: Sequence[Record]) -> str:
    """Return a clause where configs differ only in their threads and move equal bytes, so that
    nothing without a Mac separates them; else an empty text."""
    groups: dict[tuple[object, ...], set[tuple[int, ...]]] = {}
    for record in records:
        knobs: Mapping[str, str] = run.impls.get(record.case.impl, {}).get("knobs", {})
        alone = {k: v for k, v in record.case.config.items() if knobs.get(k) == "threads"}
        others = {k: v for k, v in record.case.config.items() if k not in alone}
        moved = record.traffic.bytes if record.traffic else 0
        at = (record.case.impl, tuple(others.items()), moved)
        groups.setdefault(at, set()).add(tuple(alone.values()))
    many = sum(len(each) for each in groups.values() if len(each) > 1)
    if not many:
        return ""
    which = "them" if many == len(records) else f"{many} of them"
    return (
        f"nothing separates {which} without a Mac, as they differ only in their threads and move "
        "equal bytes"
    )


def keep_default_bits(run: Run, records: Sequence[Record], other: Iterable[Record]) -> list[Record]:
    """Return the records whose outputs have the bits of a launch's, where the run was restricted to
    them; else all. Bits compare only between checks on the same inputs."""
    if run.same_bits_as != "default":
        return list(records)
    bits = {(r.seed, r.bits) for r in other if r.default and r.bits}
    return [r for r in records if (r.seed, r.bits) in bits]


def bit_classes(records: Iterable[Record]) -> dict[tuple[int | None, str], str]:
    """Return a letter for each set of bits that configs gave on the same inputs: A for the most
    common one."""
    counts = Counter((r.seed, r.bits) for r in records if r.bits)
    ordered = sorted(counts, key=lambda k: (-counts[k], k[1]))
    return {key: _letters(n) for n, key in enumerate(ordered)}


def same_bits(one: Iterable[Record], other: Iterable[Record]) -> bool | None:
    """Return whether two configs gave equal bits wherever both were checked on the same inputs;
    None where they never were. False where one of them changes its bits from call to call."""
    one, other = list(one), list(other)
    if any(r.repeats is False for r in (*one, *other)):
        return False
    pairs = [(a.bits, b.bits) for a in one for b in other if a.seed == b.seed and a.bits and b.bits]
    return all(a == b for a, b in pairs) if pairs else None


def _letters(number: int) -> str:
    text = chr(ord("A") + number % 26)
    return text if number < 26 else _letters(number // 26 - 1) + text


def _steadier(other: Record, record: Record) -> bool:
    """Return whether a record with two modes loses to another one: mean and 95th percentile of the
    other are lower, whatever the medians."""
    a, b = other.timing, record.timing
    if not (isinstance(a, Measured) and isinstance(b, Measured)) or a.modes or not b.modes:
        return False
    p95 = [stats.quantile(t.samples_s, 0.95) for t in (a, b)]
    return a.mean_s < b.mean_s and p95[0] < p95[1]


def rate(record: Record, ridge: float = RIDGE) -> str:
    """Return the winner's rate as text: `722 TFLOP/s`, or `4240 GB/s` below the ridge point."""
    if memory_bound(record, ridge):
        return f"{three_digits(record.bytes / record.time_s / 1e9)} GB/s"
    return f"{three_digits(record.flops / record.time_s / 1e12)} TFLOP/s"


def memory_bound(record: Record, ridge: float = RIDGE) -> bool:
    """Return whether the kernel is compared with the memory ceiling: it does fewer FLOP a byte than
    `ridge`, where the device's two ceilings meet."""
    return record.flops < ridge * record.bytes


def ridge_of(run: Run) -> float:
    """Return the ridge point in FLOP a byte, where the compute ceiling of the run's dtype meets the
    memory ceiling; RIDGE if one of them is unknown."""
    compute, dram = (run.ceilings.get(name, {}).get("value", 0) for name in ("compute", "dram"))
    return float(compute / dram) if compute and dram else RIDGE


def _claim(outcome: Outcome) -> tuple[int, int]:
    """Return the precedence of an outcome among those of one config: the lowest counts."""
    if isinstance(outcome, Failure):
        return -1, _STAGES.index(outcome.stage)
    return 0, _PHASES.index(outcome.phase)


def _rank(record: Record) -> tuple[int, float]:
    return _PHASES.index(record.phase), record.time_s


def _is_swept(outcome: Outcome, run: Run) -> bool:
    """Return whether an outcome is of an Impl of the sweep: not a library's, nor the launch of
    another Impl that takes part as the default."""
    case = outcome.case
    return not case.is_baseline and (not run.impls or case.impl in run.impls)


def _cannot_tell(record: Record, fastest: Record) -> bool:
    """Return whether the two tie: by their interleaved windows if there are such, since the clock
    drifts further than two configs differ; else by their intervals."""
    a, b = record.timing, fastest.timing
    ours, theirs = interval_of(record), interval_of(fastest)
    if ours is not None and theirs is not None:
        return ours[0] <= theirs[1]
    if not (isinstance(a, Measured) and isinstance(b, Measured)):
        return record.time_s <= fastest.time_s * (1 + MODEL_SHARE)
    own, best = a.window_medians, b.window_medians
    paired = record.run == fastest.run and not a.left_out and not b.left_out
    if paired and len(own) == len(best) >= stats.least_for(0.95):
        ratio = stats.ratio(best, own)
        return ratio.low <= 1 or ratio.middle <= 1 + TIE_SHARE
    overlap = a.low_s <= b.high_s and b.low_s <= a.high_s
    return overlap or a.median_s <= b.median_s * (1 + TIE_SHARE)


def _frugality(record: Record, run: Run) -> tuple[float, ...]:
    """Return the sort key inside a tie: the previous best first, then configs that state their
    warps, since they are reproducible elsewhere, then the default; then fewer spills, registers,
    warps; then less time; of equal times that of the Impl listed first, and of the config that was
    itself timed."""
    resources = record.resources
    stays = dict(run.previous_best.get(record.case.impl, {})) == dict(record.case.config)
    spills, registers = (
        (resources.spill_bytes, resources.registers) if resources else (1 << 30, 1 << 30)
    )
    warps = record.case.config.get("num_warps", 0)
    timed = record.same_as is not None
    is_launcher = record.case.config.get("num_warps") == 0  # by the launcher: older records alone
    lean = spills, registers, warps
    last = record.time_s, _place(record, run), timed
    return not stays, is_launcher, not record.default, *lean, *last


def _place(record: Record, run: Run) -> int:
    """Return the position of a record's Impl in the run; behind all of them where it has none."""
    names = list(run.impls)
    return names.index(record.case.impl) if record.case.impl in names else len(names)


def same_code(a: Record, b: Record) -> bool:
    """Return whether two configs have the time of one of them, or of a third, whose machine code
    is the same. Of two Impls the hash of the code decides, too: `same_as` does not name an Impl."""
    if a.case.backend != b.case.backend:
        return False
    ours, theirs = (dict(r.same_as or r.case.config) for r in (a, b))
    shared = (a.same_as or b.same_as) and _binary(a) == _binary(b) != ""
    return ours == theirs and bool(a.case.impl == b.case.impl or shared)


def _binary(record: Record) -> str:
    return record.resources.binary if record.resources else ""


def representatives(
    run: Run, records: Sequence[Record], launches: Sequence[str] = ()
) -> list[Record]:
    """Return one record for each config that was timed, in the given order: its own, or that of a
    duplicate: of a launch of today (by key), or of an Impl that the kernel's file lists first."""
    order = {key: place for place, key in enumerate(launches)}
    alike = group_by(records, _binary)
    return [
        min(
            (leader, *(r for r in alike[_binary(leader)] if r.same_as and same_code(r, leader))),
            key=lambda r: (order.get(r.key, len(order)), _place(r, run), r.same_as is not None),
        )
        for leader in records
        if leader.same_as is None
    ]


def _baselines(
    others: Iterable[Outcome], winner: Record, all_of: Sequence[Outcome]
) -> tuple[Baseline, ...]:
    met = [_baseline(o, winner, all_of) for o in others if isinstance(o, Record)]
    return tuple(sorted((r for r in met if r is not None), key=lambda r: r.ratio))


def _baseline(other: Record, winner: Record, outcomes: Sequence[Outcome]) -> Baseline | None:
    """Return the comparison, or None if no phase timed both: times of two phases have no ratio."""
    if other.winner_s is not None:
        return Baseline(other, other.time_s / other.winner_s, other.phase)
    theirs, ours = _phases(other, outcomes), _phases(winner, outcomes)
    for phase in _PHASES:
        if phase in theirs and phase in ours:
            return Baseline(theirs[phase], theirs[phase].time_s / ours[phase].time_s, phase)
    return None


def _phases(record: Record, outcomes: Iterable[Outcome]) -> dict[Phase, Record]:
    """Return every record of this config, the last of each phase."""
    key = config_key(record.case)
    return {o.phase: o for o in outcomes if isinstance(o, Record) and config_key(o.case) == key}


def _edges(run: Run, winner: Record) -> tuple[Edge, ...]:
    declared = run.impls.get(winner.case.impl, {})
    knobs: Mapping[str, str] = declared.get("knobs", {})
    moved = {*run.vary, *run.tune}
    results = []
    for name, choices in declared.get("choices", {}).items():
        value = winner.case.config.get(name)
        if value is None or len(choices) < 3 or (moved and knobs.get(name) not in moved):
            continue
        low, high = min(choices), max(choices)
        if value in (low, high) and _extends(name, value, value == high, winner):
            results.append(Edge(name, value, highest=value == high))
    return tuple(results)


def _sure(edges: Sequence[Edge], near: Sequence[Record]) -> tuple[Edge, ...]:
    """Return the edges at which all configs lie that cannot be told from the fastest: where one of
    them lies elsewhere, nothing says that the knob matters."""
    return tuple(e for e in edges if all(r.case.config.get(e.field) == e.value for r in near))


def _extends(name: str, value: int, highest: bool, winner: Record) -> bool:
    """Return whether a value beyond this one would give a different kernel."""
    if not highest:
        return value > 1
    if name == "num_warps":
        resources = winner.resources
        threads = resources.threads if resources else 32 * value
        return 2 * threads <= MOST_THREADS
    extent = winner.case.sizes.get(name.removeprefix("block_").upper())
    return not name.startswith("block_") or extent is None or value < extent


def config_name(result: Selection, outcome: Outcome) -> str:
    """Return how a sentence names a config: with its Impl where several took part."""
    return outcome.case.label if result.impls > 1 else label(outcome.case.config)
