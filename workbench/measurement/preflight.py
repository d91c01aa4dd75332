"""Prepare a measurement: lock the GPU, detect foreign processes, test its timer and memory.

No setting of the GPU is changed.
"""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from workbench.measurement.protocol import Protocol
from workbench.spec import WorkbenchError

POLL_S = 0.1
SELF_TEST_S = 0.02  # of timed copies, and of timed launches
COPY_ELEMENTS = 1 << 28  # bf16: from 2^28 on, an H200's copy bandwidth no longer grows


class GpuBusy(WorkbenchError):
    """Another run holds the GPU, and waiting timed out or is impossible."""


def lock_name(index: int) -> str:
    """Return the name of torch's GPU `index` for `gpu_lock`: the UUID, or its name and index where
    the driver reports none."""
    import torch

    on_wait = torch.cuda.get_device_properties(index)
    uuid = getattr(on_wait, "uuid", None)
    return str(uuid) if uuid else f"{on_wait.name} {index}"


@contextmanager
def gpu_lock(
    gpu: str, on_wait: Callable[[str], None], timeout_s: float | None = None
) -> Iterator[None]:
    """Hold one GPU against other runs of the workbench while the block lasts; yields nothing.

    `gpu` is a name from `lock_name`. `on_wait(message)` is called once for each process that is
    waited for. The lock is advisory and shared by all users of the machine: a file in the folder
    for temporary files. It ends with its process, also when that is killed. Raises GpuBusy after
    `timeout_s` seconds of waiting, at once when this process already holds the GPU, or when the
    file cannot be opened.
    """
    import fcntl

    handle = _opened(_lock_file(gpu))
    try:
        end = None if timeout_s is None else time.monotonic() + timeout_s
        heard: int | None = 0  # no process has this id
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise GpuBusy(f"the lock of the GPU cannot be taken: {error}") from None
            holder = _holder(handle)
            if holder == os.getpid():
                raise GpuBusy("this process holds the GPU already: end that run first")
            named = f"process {holder}" if holder else "another process"
            if end is not None and time.monotonic() >= end:
                raise GpuBusy(
                    f"{named} still holds the GPU after {timeout_s:.0f} s: end it or wait"
                )
            if holder != heard:
                on_wait(f"waiting for the GPU, which {named} holds")
                heard = holder
            time.sleep(POLL_S)
        _sign(handle, os.getpid())
        try:
            yield
        finally:
            _sign(handle, None)
    finally:
        os.close(handle)  # releases the lock


def _lock_file(gpu: str) -> Path:
    """Return the lock's path. It holds a hash, as a UUID identifies a machine and others may list
    this folder."""
    digest = hashlib.sha256(gpu.encode()).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"kernel-workbench-gpu-{digest}.lock"


def _opened(path: Path) -> int:
    """Open the file for all users. It is never removed, as waiting processes have it open."""
    try:
        with suppress(FileNotFoundError):
            # Without O_CREAT: in a folder like /tmp, Linux refuses that on another user's file.
            return os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        with suppress(FileExistsError):  # made by another process in between
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
            os.fchmod(handle, 0o666)  # whatever the umask
            return handle
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except OSError as error:
        raise GpuBusy(f"the lock of the GPU, {path}, cannot be opened: {error.strerror}") from None


def _holder(handle: int) -> int | None:
    """Return the process that signed the file; None in the moment before it has."""
    text = os.pread(handle, 32, 0).strip()
    return int(text) if text.isdigit() else None


def _sign(handle: int, pid: int | None) -> None:
    os.ftruncate(handle, 0)
    if pid is not None:
        os.pwrite(handle, str(pid).encode(), 0)


def foreign(listed: Sequence[int], own: Collection[int], exists: Callable[[int], bool]) -> int:
    """Return the number of processes listed by the driver on a GPU that are not ours.

    `own` are our processes that have opened the GPU. In a container the driver may list them by the
    host's numbers, which `exists` does not know: as many of those as we miss are ours.
    """
    seen = set(listed)
    others = {pid for pid in seen - set(own) if exists(pid)}
    hidden = {pid for pid in seen - set(own) if not exists(pid)}
    missed = len(set(own) - seen)
    return len(others) + max(0, len(hidden) - missed)


def others_on_gpu(listed: Sequence[int] | None, own: Collection[int]) -> int | None:
    """Return `foreign` for this machine; None where `listed`, from `Clocks.processes()`, is
    None."""
    return (
        None if listed is None else foreign(listed, own, lambda pid: Path(f"/proc/{pid}").exists())
    )


def self_test(cache_bytes: int, protocol: Protocol) -> dict[str, float]:
    """Return today's figures of torch's current GPU.

    `dram` is the bandwidth in B/s of the workbench's own copy; `launch` are the seconds of an empty
    launch in a graph; `resolution` are the seconds of one step of the event timer. Takes 0.1 s or
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
        timed = bench.timed(rotation, bench.first_time(rotation))
        seconds = stats.median(timed.window(SELF_TEST_S, least=10).samples_s)
        results[name] = spec.bytes(sizes, "bf16") / seconds if count > 1 else seconds
    return results


def rehearse() -> None:
    """Launch the kernel of `self_test` once, at one element."""
    import torch

    from workbench import catalog
    from workbench.measurement import inputs

    spec = catalog.spec_of("copy")
    impl = catalog.impl_of(spec, "blocks")
    impl(*inputs.make(spec, {"N": 1}, "bf16", "cuda"), config=impl.config())
    torch.cuda.current_stream().synchronize()


def copy_elements(free_bytes: int) -> int:
    """Return the number of elements that the self-test copies.

    A power of two, at most COPY_ELEMENTS, such that its two sets of inputs and outputs, 8 bytes an
    element, take at most half of `free_bytes`.
    """
    most = max(1, free_bytes // 16)
    return min(COPY_ELEMENTS, 1 << (most.bit_length() - 1))
