"""The table of a workload: one row per function, with launches, signatures, GPU time and config."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from workbench.spec import label
from workbench.workload.file import CountedSignature, KernelTime, RecordedWorkload
from workbench.workload.signature import KernelFunction, LaunchSignature, plain_value, tensors_of

WARP_SIZES = (32, 64)  # of NVIDIA and AMD's RDNA, and of AMD's CDNA


@dataclass(frozen=True)
class WorkloadRow:
    """One function of a workload."""

    name: str
    module: str
    file: str
    launches: int
    signatures: int  # distinct ones that were kept
    gpu_s: float | None  # in the profiled window; None where nothing was profiled
    share: float | None  # of all GPU time of the window
    config: str  # of most launches; empty where there is none
    configs: int  # distinct ones in use
    origin: str  # where the config comes from
    needs_values: int  # integer tensors whose values were not kept


def rows_of(workload: RecordedWorkload) -> list[WorkloadRow]:
    """Return one row per function: the most GPU time first, or where none was measured the most
    launches."""
    by_function: dict[KernelFunction, list[int]] = defaultdict(list)
    for number, each in enumerate(workload.signatures):
        by_function[each.signature.function].append(number)
    beyond = dict(workload.omissions)
    spent, total = seconds_by_signature(workload), sum(t.total_s for t in workload.times)
    rows = []
    for function in dict.fromkeys((*by_function, *beyond)):
        numbers = by_function[function]
        own = [workload.signatures[n] for n in numbers]
        seconds = sum(spent[n] for n in numbers) if workload.times else None
        rows.append(_row(function, own, beyond.get(function, 0), seconds, total))
    return sorted(rows, key=lambda row: (-(row.gpu_s or 0.0), -row.launches, row.name))


def _row(
    function: KernelFunction,
    own: Sequence[CountedSignature],
    beyond: int,
    seconds: float | None,
    total_s: float,
) -> WorkloadRow:
    configs: dict[str, int] = defaultdict(int)
    for each in own:
        configs[config_text(each.signature)] += each.launches
    most = max(own, key=lambda each: each.launches, default=None)
    needed = {
        name
        for each in own
        for name, argument in each.signature.arguments.items()
        if any(tensor.needs_values for tensor in tensors_of(argument))
    }
    return WorkloadRow(
        function.name,
        function.module,
        function.file,
        sum(each.launches for each in own) + beyond,
        len(own),
        seconds,
        None if seconds is None or not total_s else seconds / total_s,
        max(configs, key=lambda c: configs[c], default=""),
        len(configs),
        origin_text(most.signature) if most else "",
        len(needed),
    )


def config_text(signature: LaunchSignature) -> str:
    """Return a config in one line: `BLOCK 128, 4 warps, 3 stages`."""
    values = {n: plain_value(v) for n, v in signature.config.items()}
    named = {n: v for n, v in values.items() if v is not None}
    if named.get("num_ctas") == 1:
        del named["num_ctas"]
    return label(named)


def origin_text(signature: LaunchSignature) -> str:
    """Return where a config comes from: `autotune, 12 configs`."""
    many = f", {signature.choices} configs" if signature.choices > 1 else ""
    if signature.origin == "autotune" and not signature.tuned:
        return f"the first of autotune's {signature.choices}" if many else "autotune, 1 config"
    words = {"call": "the call", "autotune": "autotune", "inductor": "torch.compile"}
    return words.get(signature.origin, signature.origin) + many


def seconds_by_signature(workload: RecordedWorkload) -> list[float]:
    """Return the GPU time of each signature in the profiled windows, in seconds.

    The time of a kernel goes to the signatures with its name, grid and block; where several have
    these, by their launches, and where none has, to all with its name.
    """
    return _amounts(workload, lambda time: time.seconds)


def mean_seconds(workload: RecordedWorkload) -> list[float | None]:
    """Return the mean time of one launch of each signature in the profiled windows, in seconds;
    None of a signature without a launch in them."""
    many = _amounts(workload, lambda time: float(time.launches))
    spent = seconds_by_signature(workload)
    return [s / n if n and s else None for s, n in zip(spent, many, strict=True)]


def _amounts(workload: RecordedWorkload, amount: Callable[[KernelTime], float]) -> list[float]:
    result = [0.0] * len(workload.signatures)
    by_name: dict[str, list[int]] = defaultdict(list)
    for number, each in enumerate(workload.signatures):
        by_name[each.signature.function.name].append(number)
    for time in (kernel for times in workload.times for kernel in times.kernels):
        named = by_name.get(time.name, [])
        fitting = (
            [n for n in named if _fits(workload.signatures[n].signature, time, warp)]
            for warp in WARP_SIZES
        )
        chosen = next(filter(None, fitting), named)
        weights = [workload.signatures[n].launches for n in chosen]
        for number, weight in zip(chosen, weights, strict=True):
            result[number] += amount(time) * weight / max(1, sum(weights))
    return result


def _fits(signature: LaunchSignature, time: KernelTime, warp_size: int) -> bool:
    grid, warps = (*signature.grid, 1, 1)[:3], signature.warps
    return grid == time.grid and (warps is None or prod(time.block) == warps * warp_size)


def head_lines(workload: RecordedWorkload) -> list[str]:
    """Return what was recorded, in sentences: processes, mode, and what is missing."""
    lines = []
    modes = {process.mode for process in workload.processes}
    devices = sorted({p.device for p in workload.processes if p.device and p.mode == "gpu"})
    programs = sorted({process.program for process in workload.processes})
    many = len(workload.processes)
    lines.append(
        f"{', '.join(programs)}: {workload.launches:,} launches, "
        f"{len(workload.signatures):,} distinct signatures"
        + (f", {many} processes" if many > 1 else "")
        + (f"; {', '.join(devices)}" if devices else "")
        + "."
    )
    if "caught" in modes:
        lines.append(
            "There was no GPU: launches were recorded and not run, so tensors hold no results and "
            "nothing was timed."
        )
    if "interpreted" in modes:
        lines.append("Launches ran in Triton's interpreter: nothing was timed.")
    if open_ := sum(not process.complete for process in workload.processes):
        lines.append(
            f"{open_} of {many} processes did not end by themselves: the last launches are missing."
        )
    if workload.omissions:
        number = sum(n for _, n in workload.omissions)
        lines.append(f"{number:,} launches had signatures beyond those that are kept.")
    return [*lines, *workload.notes]
