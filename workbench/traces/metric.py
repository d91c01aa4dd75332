"""One quantity of a kernel in our words: unit, direction, and a formula for each tool.

The definitions name the counters of ncu and of AMD's tools. `counter_name` accepts names of older
tools and of the guides. A metric whose counters are missing is None, never 0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

from workbench.traces.trace import CounterValue, Dispatch

Direction = Literal["higher", "lower", "neither"]


@dataclass(frozen=True)
class Formula:
    """A way to compute a metric from counters of a tool. The source is the list of their names."""

    tools: tuple[str, ...]
    needs: tuple[str, ...]
    compute: Callable[..., float | None]

    def value(self, counters: Mapping[str, float]) -> float | None:
        """Return the value, or None where a counter is missing or the result is not a number."""
        if any(name not in counters for name in self.needs):
            return None
        try:
            result = self.compute(*(counters[name] for name in self.needs))
        except ZeroDivisionError:
            return None
        return result if result is not None and math.isfinite(result) else None


@dataclass(frozen=True)
class Metric:
    """One quantity of a kernel. Shares are of 1, times in seconds, sizes in bytes."""

    name: str
    title: str
    unit: str
    better: Direction
    formulas: tuple[Formula, ...]


class MetricValue(NamedTuple):
    """A metric of one dispatch, and the counters that it came from."""

    metric: Metric
    value: float
    source: str


NCU = ("ncu",)
AMD = ("rocprof", "rocprofv3", "rocprof-compute")

STALLS = (
    "barrier", "branch_resolving", "dispatch_stall", "drain", "gmma", "imc_miss", "lg_throttle",
    "long_scoreboard", "math_pipe_throttle", "membar", "mio_throttle", "misc", "no_instruction",
    "not_selected", "selected", "short_scoreboard", "sleeping", "tex_throttle", "wait",
)  # fmt: skip


# Counters of a reason to stall, the first that a file has; all are weights of one reason among all.
STALL_COUNTERS = (
    "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio",
    "smsp__average_warp_latency_issue_stalled_{}.ratio",
    "smsp__warp_issue_stalled_{}_per_warp_active.pct",
    "smsp__warps_issue_stalled_{}.avg.pct_of_peak_sustained_active",
    "smsp__warps_issue_stalled_{}.sum",
    "smsp__pcsamp_warps_issue_stalled_{}",
)
# Reasons that some of these counters call otherwise.
OTHER_REASONS = {"no_instruction": "no_instructions", "gmma": "warpgroup_arrive"}


def _percent(name: str) -> Formula:
    """Return a formula that takes a percentage of ncu as a share."""
    return Formula(NCU, (name,), lambda value: value / 100)


def _same(*names: str, tools: tuple[str, ...] = NCU) -> tuple[Formula, ...]:
    return tuple(Formula(tools, (name,), lambda value: value) for name in names)


def stall_counter(reason: str) -> str:
    """Return ncu's counter of the cycles that an instruction waited for a reason."""
    return STALL_COUNTERS[0].format(reason)


def _usage(unit: str) -> Formula:
    return _percent(f"{unit}.avg.pct_of_peak_sustained_elapsed")


METRICS: tuple[Metric, ...] = (
    Metric("duration", "duration", "s", "lower", (
        Formula(NCU, ("gpu__time_duration.sum",), lambda ns: ns / 1e9),
    )),
    Metric("compute_throughput", "compute throughput", "1", "higher",
           (_usage("sm__throughput"),)),
    Metric("memory_throughput", "memory throughput", "1", "higher",
           (_usage("gpu__compute_memory_throughput"),)),
    Metric("dram_throughput", "DRAM throughput", "1", "higher",
           (_usage("gpu__dram_throughput"),)),
    Metric("l2_throughput", "L2 throughput", "1", "higher", (_usage("lts__throughput"),)),
    Metric("l1_throughput", "L1 throughput", "1", "higher",
           (_percent("l1tex__throughput.avg.pct_of_peak_sustained_active"),)),
    Metric("dram_read_bytes", "DRAM bytes read", "B", "lower",
           _same("dram__bytes_read.sum", "dram__bytes_op_read.sum")),
    Metric("dram_written_bytes", "DRAM bytes written", "B", "lower",
           _same("dram__bytes_write.sum", "dram__bytes_op_write.sum")),
    Metric("dram_bytes", "DRAM bytes", "B", "lower", (
        Formula(NCU, ("dram__bytes_read.sum", "dram__bytes_write.sum"), lambda r, w: r + w),
        Formula(NCU, ("dram__bytes_op_read.sum", "dram__bytes_op_write.sum"), lambda r, w: r + w),
        Formula(  # gfx90a
            AMD,
            ("TCC_EA_RDREQ_sum", "TCC_EA_RDREQ_32B_sum", "TCC_EA_WRREQ_sum",
             "TCC_EA_WRREQ_64B_sum"),
            lambda r, r32, w, w64: 32 * r32 + 64 * (r - r32) + 64 * w64 + 32 * (w - w64),
        ),
        Formula(  # gfx942: traffic of the Infinity Cache included
            AMD,
            ("TCC_BUBBLE_sum", "TCC_EA0_RDREQ_sum", "TCC_EA0_RDREQ_32B_sum", "TCC_EA0_WRREQ_sum",
             "TCC_EA0_WRREQ_64B_sum"),
            lambda b, r, r32, w, w64: (
                128 * b + 64 * (r - b - r32) + 32 * r32 + 64 * w64 + 32 * (w - w64)
            ),
        ),
        Formula(AMD, ("FETCH_SIZE", "WRITE_SIZE"), lambda r, w: 1024 * (r + w)),
        Formula(AMD, ("FetchSize", "WriteSize"), lambda r, w: 1024 * (r + w)),
    )),
    Metric("l2_bytes", "bytes between L2 and L1", "B", "lower", (
        Formula(
            NCU,
            ("l1tex__m_xbar2l1tex_read_bytes.sum", "l1tex__m_l1tex2xbar_write_bytes.sum"),
            lambda read, written: read + written,
        ),
    )),
    Metric("l1_bytes", "bytes of loads and stores in L1", "B", "lower", (
        Formula(  # sectors of 32 bytes; those of TMA and of textures pass elsewhere
            NCU,
            tuple(f"l1tex__t_sectors_pipe_lsu_mem_{space}_op_{op}.sum"
                  for space in ("global", "local") for op in ("ld", "st")),
            lambda *sectors: 32 * sum(sectors),
        ),
    )),
    Metric("l2_hit", "L2 hit rate", "1", "higher", (
        _percent("lts__t_sector_hit_rate.pct"),
        Formula(AMD, ("TCC_HIT_sum", "TCC_MISS_sum"), lambda hit, miss: hit / (hit + miss)),
        Formula(AMD, ("GL2C_HIT_sum", "GL2C_MISS_sum"), lambda hit, miss: hit / (hit + miss)),
        Formula(AMD, ("L2CacheHit",), lambda percent: percent / 100),
    )),
    Metric("excess_sectors", "excess sectors", "1", "lower", (
        Formula(
            NCU,
            ("derived__memory_l2_theoretical_sectors_global_excessive",
             "memory_l2_theoretical_sectors_global_ideal"),
            lambda excess, ideal: excess / (excess + ideal),
        ),
    )),
    Metric("ideal_sectors", "sectors needed", "sectors", "neither",
           _same("memory_l2_theoretical_sectors_global_ideal")),
    Metric("excessive_sectors", "sectors not needed", "sectors", "lower",
           _same("derived__memory_l2_theoretical_sectors_global_excessive")),
    Metric("local_sectors", "sectors of local memory", "sectors", "lower",
           _same("memory_l2_theoretical_sectors_local")),
    Metric("bank_conflicts", "bank conflicts", "1", "lower", (
        Formula(
            NCU,
            ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
             "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"),
            lambda conflicts, all_of: conflicts / all_of,
        ),
        Formula(AMD, ("SQ_LDS_BANK_CONFLICT", "SQ_LDS_IDX_ACTIVE"), lambda c, a: c / a),
        Formula(AMD, ("SQC_LDS_BANK_CONFLICT", "SQC_LDS_IDX_ACTIVE"), lambda c, a: c / a),
    )),
    *(
        Metric(f"{pipe}_pipe", f"{pipe} pipe", "1", "neither",
               (_percent(f"{counter}.avg.pct_of_peak_sustained_active"),))
        for pipe, counter in (
            ("xu", "sm__inst_executed_pipe_xu"),
            ("lsu", "sm__inst_executed_pipe_lsu"),
            ("fma", "sm__pipe_fma_cycles_active"),
            ("alu", "sm__pipe_alu_cycles_active"),
            ("fp64", "sm__pipe_fp64_cycles_active"),
        )
    ),
    Metric("matrix_pipe", "matrix pipe", "1", "neither", (
        _percent("sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active"),
        # GB100 and later have no counter of that name
        _percent("sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active"),
    )),
    Metric("vector_flop", "FLOP outside of the matrix unit", "FLOP", "neither", (
        Formula(
            NCU,
            tuple(f"smsp__sass_thread_inst_executed_op_{kind}{op}_pred_on.sum"
                  for kind in "fhd" for op in ("add", "mul", "fma")),
            lambda fa, fm, ff, ha, hm, hf, da, dm, df: (
                fa + fm + 2 * ff + 2 * (ha + hm + 2 * hf) + da + dm + 2 * df
            ),
        ),
        Formula(
            NCU,
            tuple(f"smsp__sass_thread_inst_executed_op_f{op}_pred_on.sum"
                  for op in ("add", "mul", "fma")),
            lambda fa, fm, ff: fa + fm + 2 * ff,
        ),
        Formula(  # by wave of 64; a fused multiply-add is two operations
            AMD,
            tuple(f"SQ_INSTS_VALU_{op}_{kind}"
                  for kind in ("F16", "F32", "F64") for op in ("ADD", "MUL", "TRANS", "FMA")),
            lambda *n: 64 * sum(weight * each for weight, each in
                                zip((1, 1, 1, 2) * 3, n, strict=True)),
        ),
    )),
    Metric("matrix_flop", "FLOP of the matrix unit", "FLOP", "neither", (
        *(
            Formula(  # a MOP is 512 operations; F8 from gfx942 on, F6F4 from gfx950 on
                AMD,
                tuple(f"SQ_INSTS_VALU_MFMA_MOPS_{kind}"
                      for kind in ("F16", "BF16", "F32", "F64", *narrow)),
                lambda *mops: 512 * sum(mops),
            )
            for narrow in (("F8", "F6F4"), ("F8",), ())
        ),
    )),
    *(
        Metric(f"{kind.lower()}_share", f"{kind} instructions", "1", "neither",
               (Formula(AMD, (f"SQ_INSTS_{kind}", "SQ_INSTS"), lambda some, whole: some / whole),))
        for kind in ("VALU", "MFMA", "VMEM", "LDS", "SALU", "SMEM")
    ),
    Metric("waves_waiting", "waves waiting", "1", "lower", (
        Formula(AMD, ("SQ_WAIT_ANY", "SQ_WAVE_CYCLES"), lambda wait, cycles: wait / cycles),
    )),
    Metric("issue_active", "issue slots used", "1", "higher",
           _same("smsp__issue_active.avg.per_cycle_active")),
    Metric("instruction_latency", "cycles an instruction", "cycle", "lower",
           _same("smsp__average_warp_latency_per_inst_issued.ratio")),
    *(
        Metric(f"stall_{reason}", f"stall {reason}", "cycle", "lower",
               _same(stall_counter(reason)))
        for reason in STALLS
    ),
    Metric("global_loads", "global loads", "instructions", "lower", (
        *_same("smsp__sass_inst_executed_op_global_ld.sum"),
        *_same("smsp__inst_executed_op_global_ld.sum"),
    )),
    Metric("lanes_active", "lanes active", "lane", "higher",
           _same("smsp__thread_inst_executed_per_inst_executed.ratio")),
    Metric("lanes_on", "lanes on", "lane", "higher", (
        *_same("smsp__thread_inst_executed_pred_on_per_inst_executed.ratio"),
        Formula(AMD, ("SQ_THREAD_CYCLES_VALU", "SQ_ACTIVE_INST_VALU"), lambda t, a: t / a),
    )),
    Metric("spill_share", "spill instructions", "1", "lower", (
        Formula(
            NCU,
            ("sass__inst_executed_register_spilling", "smsp__inst_executed.sum"),
            lambda spills, all_of: spills / all_of,
        ),
    )),
    Metric("occupancy_theoretical", "theoretical occupancy", "1", "higher",
           (_percent("sm__maximum_warps_per_active_cycle_pct"),)),
    Metric("occupancy", "achieved occupancy", "1", "higher",
           (_percent("sm__warps_active.avg.pct_of_peak_sustained_active"),)),
    Metric("empty_places", "empty places", "1", "lower", (
        Formula(NCU, ("launch__waves_per_multiprocessor",),
                lambda waves: 1 - waves / math.ceil(waves)),
    )),
    Metric("sm_clock", "SM clock", "Hz", "neither",
           _same("gpc__cycles_elapsed.avg.per_second", "sm__cycles_elapsed.avg.per_second",
                 "smsp__cycles_elapsed.avg.per_second")),
)  # fmt: skip

BY_NAME: Mapping[str, Metric] = {metric.name: metric for metric in METRICS}

# Names of older tools and of the guides, and the counter that is meant.
RENAMED = (
    (re.compile(r"smsp__(?:inst|thread_inst)_executed_not_predicated_off\b"),
     "smsp__thread_inst_executed_pred_on"),
    (re.compile(r"dram__throughput\b"), "gpu__dram_throughput"),
    (re.compile(r"dram__bytes_op_(read|write)\b"), r"dram__bytes_\1"),
    (re.compile(r"(smsp__average_warps?_(?:latency_)?issue_stalled_)no_instructions_"),
     r"\1no_instruction_"),
    (re.compile(r"(smsp__average_warps?_(?:latency_)?issue_stalled_)warpgroup_arrive_"),
     r"\1gmma_"),
    (re.compile(r"sm__pipe_tensor_op_hmma_cycles_active_v2\b"),
     "sm__pipe_tensor_op_hmma_cycles_active"),
)  # fmt: skip


@lru_cache(maxsize=1 << 14)  # a report has the same hundreds of names in each of its dispatches
def counter_name(name: str) -> str:
    """Return the present name of a counter that an older tool or a guide calls otherwise."""
    for old, new in RENAMED:
        name = old.sub(new, name)
    return name


def exact_counters(dispatch: Dispatch) -> dict[str, float]:
    """Return the counters of a dispatch that have a value, by their own and their present name."""
    result: dict[str, float] = {}
    for name, counter in dispatch.counters.items():
        if counter.state == "ok" and counter.exact is not None:
            result[name] = counter.exact
            result.setdefault(counter_name(name), counter.exact)
    return result


def metric_value(metric: Metric, counters: Mapping[str, float], tool: str) -> MetricValue | None:
    """Return a metric by the first formula of a tool that has all its counters, or None."""
    for formula in metric.formulas:
        if tool in formula.tools and (value := formula.value(counters)) is not None:
            return MetricValue(metric, value, ", ".join(formula.needs))
    return None


def metric_values(dispatch: Dispatch, tool: str) -> dict[str, MetricValue]:
    """Return every metric of a dispatch that its counters give, by name."""
    counters = exact_counters(dispatch)
    values = (metric_value(metric, counters, tool) for metric in METRICS)
    return {value.metric.name: value for value in values if value is not None}


def stall_shares(counters: Mapping[str, float]) -> dict[str, float]:
    """Return each reason's share of all stalls, from the first kind of counter that the file has;
    empty where it has none."""
    for pattern in STALL_COUNTERS:
        weights = {
            reason: counters[name]
            for reason in STALLS
            for name in _names_of(pattern, reason)
            if name in counters
        }
        whole = math.fsum(weights.values())
        if whole > 0:
            return {reason: value / whole for reason, value in weights.items()}
    return {}


def _names_of(pattern: str, reason: str) -> Iterator[str]:
    yield pattern.format(reason)
    if reason in OTHER_REASONS:
        yield pattern.format(OTHER_REASONS[reason])


def limiter(counters: Mapping[str, float]) -> Sequence[str]:
    """Return what limits occupancy: the parts with the least number of blocks; empty if unknown."""
    start = "launch__occupancy_limit_"
    limits = {name: value for name, value in counters.items() if name.startswith(start)}
    least = min(limits.values(), default=0.0)
    return [name.removeprefix(start) for name, value in limits.items() if value == least]


def refusals(dispatch: Dispatch) -> list[CounterValue]:
    """Return the counters that the tool refused."""
    return [counter for counter in dispatch.counters.values() if counter.state == "refused"]


LAUNCH = {
    "programs": "launch__grid_size",
    "cores": "launch__sm_count",
    "waves": "launch__waves_per_multiprocessor",
}
