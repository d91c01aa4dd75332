"""The same call through other clocks: Triton's own benchmarks and the profiler.

Runs in a process that has a GPU; torch and Triton are imported inside.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

MOST_SETS = 512
SPAN = 3  # last-level caches that the input and output sets in rotation span together


@dataclass(frozen=True)
class Case:
    """One kernel at one size, at the default config of one Impl."""

    kernel: str
    impl: str
    sizes: Mapping[str, int]

    @property
    def name(self) -> str:
        """`softmax.rows 8192x8192`."""
        return f"{self.kernel}.{self.impl} {'x'.join(map(str, self.sizes.values()))}"


LONG = (
    Case("copy", "blocks", {"N": 1 << 28}),
    Case("softmax", "rows", {"M": 8192, "N": 8192}),
    Case("matmul", "tiles", {"M": 4096, "N": 4096, "K": 4096}),
)
SHORT = (
    Case("rms_norm", "rows", {"M": 128, "N": 4096}),
    Case("softmax", "rows", {"M": 256, "N": 1024}),
    Case("copy", "blocks", {"N": 1 << 20}),
)
MORE = (
    Case("copy", "blocks", {"N": 1 << 18}),
    Case("copy", "blocks", {"N": 1 << 22}),
    Case("rms_norm", "rows", {"M": 512, "N": 2048}),
    Case("softmax", "looped", {"M": 128, "N": 8192}),
    Case("matmul", "tiles", {"M": 256, "N": 256, "K": 256}),
)  # short ones too
DTYPE = "bf16"


def pick_cases(words: Sequence[str], cases: Sequence[Case]) -> list[Case]:
    """Those whose names hold one of the words; all where there are no words."""
    return [c for c in cases if not words or any(w in c.name for w in words)]


def default_of(case: Case) -> tuple[Any, Any]:
    """Impl and default config on the GPU that is here."""
    from workbench import catalog
    from workbench.device import hardware

    device = hardware.live()
    if device is None:
        raise RuntimeError("torch sees no GPU here")
    impl = catalog.impl_of(catalog.spec_of(case.kernel), case.impl)
    return impl, impl.default(device.limits, DTYPE, case.sizes)


def rotating(case: Case, device: str = "cuda") -> tuple[Callable[[], None], int]:
    """The call on the next of so many sets of inputs, which with their outputs span three caches,
    so that no call finds its data in one; and how many sets these are."""
    from workbench.device import hardware
    from workbench.measurement import inputs

    impl, config = default_of(case)
    live = hardware.live()
    cache = live.cache.value if live and live.cache else 64 << 20
    count = math.ceil(SPAN * cache / impl.spec.bytes(case.sizes, DTYPE))
    count = min(MOST_SETS, max(2, count))
    first = inputs.make(impl.spec, case.sizes, DTYPE, device)
    sets = [first] + [tuple(x.clone() for x in first) for _ in range(count - 1)]
    kept: list[Any] = [None] * count
    turn = 0

    def call() -> None:
        nonlocal turn
        kept[turn] = impl(*sets[turn], config=config)
        turn = (turn + 1) % count

    return call, count


def do_bench(call: Callable[[], Any]) -> float:
    """Seconds by `triton.testing.do_bench` as it stands, but the median in place of the mean."""
    import triton.testing

    return float(triton.testing.do_bench(call, return_mode="median")) / 1e3


def do_bench_mean(call: Callable[[], Any]) -> float:
    """Seconds by `triton.testing.do_bench` as it stands."""
    import triton.testing

    return float(triton.testing.do_bench(call)) / 1e3


def do_bench_cudagraph(call: Callable[[], Any]) -> float:
    """Seconds by `triton.testing.do_bench_cudagraph`, the median of its ten replays."""
    import triton.testing

    return float(triton.testing.do_bench_cudagraph(call, return_mode="median")) / 1e3


@dataclass(frozen=True)
class Launch:
    """One kernel on the GPU's own time line, in seconds."""

    name: str
    start_s: float
    duration_s: float


def launches(run: Callable[[], Any]) -> list[Launch]:
    """Kernels that `run` starts, as CUPTI or roctracer saw them, in order. Empty where neither is
    there or allowed."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run()
        torch.cuda.synchronize()
    results = [
        Launch(e.name(), e.start_ns() * 1e-9, e.duration_ns() * 1e-9)
        for e in profiler.profiler.kineto_results.events()
        if "CPU" not in str(e.device_type())
    ]
    return sorted(results, key=lambda one: one.start_s)


def usual(result: Sequence[Launch]) -> list[Launch]:
    """Those of the kernel that was launched most often: neither memory sets nor marks."""
    by_name: dict[str, list[Launch]] = defaultdict(list)
    for one in result:
        by_name[one.name].append(one)
    return max(by_name.values(), key=len, default=[])


def steps_s(result: Sequence[Launch]) -> list[float]:
    """From the start of each launch to the start of the next."""
    return [b.start_s - a.start_s for a, b in pairwise(result)]


def capture_calls(call: Callable[[], Any], count: int) -> Any:
    """A graph of `count` calls."""
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            call()
    return graph
