"""Sort kernels of a trace into classes: GEMM, attention, normalisation and so on.

The host operation that launched a kernel decides, where the file has it: `aten::mm` is a GEMM
whatever the library calls its kernel. Else the kernel's name decides, by the first pattern of an
ordered table. Every match comes with its rule, so that a reader can doubt it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from workbench.traces.host_work import operations_of
from workbench.traces.timeline import DeviceTimes
from workbench.traces.trace import ActivityKind, Trace

GEMM, ATTENTION, OTHER = "GEMM", "attention", "other"


class KernelClass(NamedTuple):
    """The class of a kernel, and the rule that it comes from; the rule of `other` is empty."""

    name: str
    rule: str


# Names of torch's operators. What is not listed is decided by the kernel's name.
BY_OPERATION = {
    GEMM: r"aten::(?:_?(?:scaled|grouped|int|scaled_grouped)_mm|mm|addmm|bmm|baddbmm|addbmm|"
    r"linear|matmul|mv|addmv|dot|addmm_activation|_addmm_activation)(?:_out)?$",
    ATTENTION: r"aten::.*attention|flash_attn",
    "convolution": r"aten::.*conv",
    "normalisation": r"aten::.*norm(?:_backward)?$",
    "softmax": r"aten::.*softmax",
    "copy or cast": r"aten::(?:copy_|_to_copy|to|clone|contiguous|cat|_foreach_copy_)$",
    "collective": r"(?:c10d|nccl|rccl)(?:::|:)",
}

# Parts of kernels' names, the more special ones first: an attention kernel holds `gemm`, too, and
# so does a convolution as an implicit GEMM.
BY_NAME = {
    "collective": r"nccl|rccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|"
    r"cross_device_reduce|nvshmem|deep_?ep",
    ATTENTION: r"flash_?(?:fwd|bwd|attn|attention)|fmha|attention|attn_fwd|attn_bwd|sdpa",
    "convolution": r"implicit_?gemm|convolve|conv[123]d|winograd|dgrad|wgrad|fprop|miopenconv",
    GEMM: r"^Cijk_|nvjet|gemm|gemv|xmma|cutlass_\d+|cutlass\w*_(?:tensorop|wmma|simt)|matmul|"
    r"matvec|splitk_?reduce|DeviceGemm|steel_|\bmm_kernel|dot_kernel|^bmm_",
    "normalisation": r"(?:layer|rms|group|batch|instance)_?norm",
    "softmax": r"softmax|cross_?entropy|log_?sum_?exp",
    "random": r"philox|distribution_(?:elementwise|nullary)|curand|rocrand|random|dropout",
    "sort or index": r"sort|top_?k|gather|scatter|index_?(?:select|put|add|elementwise)|"
    r"embedding|nonzero|unique",
    "copy or cast": r"copy|(?:\b|_)cast(?:\b|_)|convert|quantize|fp8_quant|transpose|catarray|"
    r"fill|memset|contiguous",
    "reduction": r"reduce|reduction|triton_(?:red|per)_|cumsum|scan|welford",
    "elementwise": r"elementwise|pointwise|triton_poi_|vectorized|\baxpy|_add_|_mul_",
}


@lru_cache(maxsize=65536)
def class_of(kernel: str, operation: str = "") -> KernelClass:
    """Return the class of a kernel by the host operation that launched it, or by its own name."""
    for name, pattern in BY_OPERATION.items() if operation else ():
        if re.search(pattern, operation, re.IGNORECASE):
            return KernelClass(name, f"launched by {operation}")
    for name, pattern in BY_NAME.items():
        if match := re.search(pattern, kernel, re.IGNORECASE):
            return KernelClass(name, f"its name holds {match[0]}")
    return KernelClass(OTHER, "")


@dataclass(frozen=True)
class ClassRow:
    """All kernels of one class on one device."""

    name: str
    count: int
    total_ns: int
    rules: tuple[tuple[str, int], ...]  # each with the ns that it decided, the most first


def class_rows(trace: Trace, times: DeviceTimes, launches: Sequence[int]) -> list[ClassRow]:
    """Return the classes of a device's kernels, the longest total first."""
    table = trace.activities
    operations = operations_of(table, launches, times.order)
    counts: dict[str, int] = {}
    rules: dict[str, dict[str, int]] = {}
    for index, operation in zip(times.order, operations, strict=True):
        if table.kinds[index] != ActivityKind.KERNEL:
            continue
        kind = class_of(table.name(index), table.name(operation))
        counts[kind.name] = counts.get(kind.name, 0) + 1
        spent = rules.setdefault(kind.name, {})
        spent[kind.rule] = spent.get(kind.rule, 0) + table.length(index)
    rows = []
    for name, spent in rules.items():
        longest_first = sorted(spent.items(), key=lambda each: (-each[1], each[0]))
        rows.append(ClassRow(name, counts[name], sum(spent.values()), tuple(longest_first)))
    return sorted(rows, key=lambda row: (-row.total_ns, row.name))
