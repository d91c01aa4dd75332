"""Prepare a measurement: lock the GPU, detect foreign processes, test its timer and memory.

No setting of the GPU is changed.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from workbench.data.locks import Lock, hold_lock
from workbench.measurement.protocol import Protocol

SELF_TEST_S = 0.02  # of timed copies, and of timed launches
# Windows of copies, of which the fastest counts: while the driver clears memory that was freed, at
# some 600 GB/s, copies ran at 0.83 of their rate on an H100 (docs/facts.md).
COPY_WINDOWS = 8
PRODUCT = {"M": 4096, "N": 4096, "K": 4096}  # 2 x 4096^3 FLOP, 0.2 ms on an H200
PRODUCT_WARM_S, PRODUCT_S = 0.5, 0.5
COPY_ELEMENTS = 1 << 28  # bf16: from 2^28 on, an H200's copy bandwidth no longer grows


def lock_name(index: int) -> str:
    """Return the name of torch's GPU `index` for `gpu_lock`: the UUID, or its name and index where
    the driver reports none."""
    import torch

    on_wait = torch.cuda.get_device_properties(index)
    uuid = getattr(on_wait, "uuid", None)
    return str(uuid) if uuid else f"{on_wait.name} {index}"


def gpu_lock(
    gpu: str, on_wait: Callable[[str], None], timeout_s: float | None = None
) -> AbstractContextManager[None]:
    """Return a context manager that holds one GPU against other runs of the workbench. `gpu` is a
    name from `lock_name`; the rest is as in `data.locks.hold_lock`."""
    return hold_lock(Lock("gpu", gpu, "the GPU"), on_wait, timeout_s)


def foreign(pids: Sequence[int], own: Collection[int], exists: Callable[[int], bool]) -> int:
    """Return the number of processes listed by the driver on a GPU that are not ours.

    `own` are our processes that have opened the GPU. In a container the driver may list them by the
    host's numbers, which `exists` does not know: as many of those as we miss are ours.
    """
    seen = set(pids)
    others = {pid for pid in seen - set(own) if exists(pid)}
    hidden = {pid for pid in seen - set(own) if not exists(pid)}
    missed = len(set(own) - seen)
    return len(others) + max(0, len(hidden) - missed)


def others_on_gpu(pids: Sequence[int] | None, own: Collection[int]) -> int | None:
    """Return `foreign` for this machine; None where `pids`, from `Clocks.processes()`, is
    None."""
    return None if pids is None else foreign(pids, own, lambda pid: Path(f"/proc/{pid}").exists())


def self_test(cache_bytes: int, protocol: Protocol) -> dict[str, float]:
    """Return today's figures of torch's current GPU.

    `dram` is the bandwidth in B/s of the workbench's own copy; `launch` are the seconds of an empty
    launch in a graph; `resolution` are the seconds of one step of the event timer. Takes 0.3 s or
    so once its kernels are compiled.
    """
    import torch

    from workbench import catalog
    from workbench.data import stats
    from workbench.measurement.bench import Bench
    from workbench.measurement.stream import timer_step_s

    spec = catalog.spec_of("copy")
    impl = catalog.impl_of(spec, "blocks")
    free, _ = torch.cuda.mem_get_info()
    results = {"resolution": timer_step_s()}
    for name, count in (("dram", copy_elements(free)), ("launch", 1)):
        sizes = {"N": count}
        bench = Bench(spec, sizes, "bf16", cache_bytes, 0.0, protocol)
        rotation = bench.calls(impl, impl.config(), "cold" if count > 1 else "hot")
        entrant = bench.choose_method(rotation, bench.first_time(rotation))
        windows = COPY_WINDOWS if name == "dram" else 1
        samples = [entrant.window(SELF_TEST_S, least=10).samples_s for _ in range(windows)]
        seconds = min(map(stats.median, samples))
        results[name] = spec.bytes(sizes, "bf16") / seconds if count > 1 else seconds
    return results


def references(cache_bytes: int, protocol: Protocol) -> dict[str, float]:
    """Return the library references by which GPUs of one model are told apart: `copy` in B/s, by
    the workbench's copy kernel, and `product` in FLOP/s, by torch's matmul at 4096 cubed in bf16.

    The product is timed after PRODUCT_WARM_S of products, since under its power limit a GPU needs
    about 0.2 s to reach the clock that it keeps, and over PRODUCT_S, since that clock wanders by
    some percent within a tenth of a second. Takes 2 s or so.
    """
    from workbench import catalog
    from workbench.data import stats
    from workbench.measurement.bench import Bench

    copied = self_test(cache_bytes, protocol)["dram"]
    spec, sizes = catalog.spec_of("matmul"), dict(PRODUCT)
    impl = catalog.impl_of(spec, "torch")
    bench = Bench(spec, sizes, "bf16", cache_bytes, 0.0, protocol)
    rotation = bench.calls(impl, impl.config(), "cold")
    entrant = bench.choose_method(rotation, bench.first_time(rotation))
    entrant.window(PRODUCT_WARM_S, least=10)
    seconds = stats.median(entrant.window(PRODUCT_S, least=10).samples_s)
    return {"copy": copied, "product": spec.flops(**sizes) / seconds}


def rehearse() -> None:
    """Launch the kernel of `self_test` at one element, and at many: Triton compiles it anew where a
    size is one."""
    import torch

    from workbench import catalog
    from workbench.measurement import inputs

    spec = catalog.spec_of("copy")
    impl = catalog.impl_of(spec, "blocks")
    for count in (1, 1 << 12):
        impl(*inputs.make(spec, {"N": count}, "bf16", "cuda"), config=impl.config())
    torch.cuda.current_stream().synchronize()


def copy_elements(free_bytes: int) -> int:
    """Return the number of elements that the self-test copies.

    A power of two, at most COPY_ELEMENTS, such that its two sets of inputs and outputs, 8 bytes an
    element, take at most half of `free_bytes`.
    """
    most = max(1, free_bytes // 16)
    return min(COPY_ELEMENTS, 1 << (most.bit_length() - 1))
