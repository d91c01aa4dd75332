"""Capture calls as graphs that the GPU replays.

On CUDA the driver captures them and not torch. Before each capture torch fills its random state on
the stream that captures. Once some eight such operations have run on another stream than the
replaying one, the driver leaves more time between two kernels of every graph in the process: 0.18
us after an empty kernel, 0.34 us after one that wrote 2 MB (H200, driver 580; docs/log.md). A
driver's capture enqueues nothing on its stream.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

import torch

from workbench.measurement.candidate import Untimed
from workbench.measurement.stream import second_stream

THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: other threads are not restricted
OTHER_NODE = "graph node of type "  # copies, fills and the like; see CUgraphNodeType in cuda.h
KERNEL, COPIES = 0, (1, 2)  # CU_GRAPH_NODE_TYPE_KERNEL; _MEMCPY and _MEMSET
UNJOINED = "(CUDA error 904)"  # CUDA_ERROR_STREAM_CAPTURE_UNJOINED
OTHER_STREAM = (
    "it launches work on another stream that the current one does not wait for, so its time would "
    "leave that work out; launch on torch.cuda.current_stream(), or let that stream wait for it"
)
DRAWS = "CUDA generator"  # in torch's error where a call draws from it in a foreign capture


class NotCapturable(Exception):
    """A graph cannot hold the call: it waits for the GPU, or does something that a capture
    forbids."""


class NotJoined(Untimed):
    """A call leaves work on another stream that the current one does not wait for."""


class Graph(Protocol):
    """Captured calls. `copies` is the number of its nodes by which the driver copies or sets
    memory, as far as known."""

    copies: int

    def replay(self) -> None:
        """Enqueue the calls on torch's current stream."""


class Graphs(Protocol):
    """Captures graphs, all on one stream and with one memory pool."""

    def capture(self, calls: int, call: Callable[[], Any]) -> Graph:
        """Return a graph of `calls` calls. Raises NotCapturable; no capture is active then."""

    def kernels(self, call: Callable[[], Any]) -> int | None:
        """Return the number of kernels that one call launches, or None where it is unknown."""

    def launches(self, call: Callable[[], Any]) -> list[str] | None:
        """Return the kernels of one call with their shapes, in order, or None where unknown."""


def graphs() -> Graphs:
    """Return the object that captures graphs on torch's current GPU."""
    return TorchGraphs() if torch.version.hip else DriverGraphs()


class DriverGraphs:
    """Graphs that CUDA's driver captures. Torch supplies random numbers only to its own captures,
    so it captures the calls that draw some; a few such captures do not cause the delay above."""

    def __init__(self) -> None:
        self._pool = torch.cuda.MemPool()

    def capture(self, calls: int, call: Callable[[], Any]) -> Graph:
        """Return a graph of `calls` calls. Raises NotCapturable."""
        try:
            return DriverGraph(self._capture_calls(calls, call), self._pool)
        except Exception as error:
            if DRAWS in str(error):
                return TorchGraphs().capture(calls, call)
            if UNJOINED in str(error):
                raise NotJoined(OTHER_STREAM) from error
            raise NotCapturable(f"no graph can hold it: {error}") from error

    def kernels(self, call: Callable[[], Any]) -> int | None:
        """Return the number of kernels of one call, from the nodes of a graph that is never run."""
        names = self.launches(call)
        return None if names is None else sum(not name.startswith(OTHER_NODE) for name in names)

    def launches(self, call: Callable[[], Any]) -> list[str] | None:
        """Return the kernels of one call with their shapes, in order; None where no graph can hold
        it."""
        try:
            graph = self._capture_calls(1, call)
        except Exception:  # a call that is not capturable has no graph to count in
            return None
        try:
            return node_names(graph)
        finally:
            _driver().cuGraphDestroy(graph)

    def _capture_calls(self, calls: int, call: Callable[[], Any]) -> ctypes.c_void_p:
        """Return the driver's graph of these calls; the caller destroys it."""
        stream, graph = ctypes.c_void_p(_stream().cuda_stream), ctypes.c_void_p()
        with torch.cuda.use_mem_pool(self._pool), torch.cuda.stream(_stream()):
            _ask("cuStreamBeginCapture_v2", stream, THREAD_LOCAL)
            try:
                for _ in range(calls):
                    call()
            except BaseException:
                _driver().cuStreamEndCapture(stream, ctypes.byref(graph))
                _driver().cuGraphDestroy(graph)
                raise
            _ask("cuStreamEndCapture", stream, ctypes.byref(graph))
        return graph


def run_beside(call: Callable[[], None]) -> None:
    """Run a call on the second stream, whatever holds the current one, and wait for it. On CUDA it
    runs as a graph, so that it delays no graph that is timed later; it may not wait for the GPU."""
    second = second_stream()
    if torch.version.hip:
        with torch.cuda.stream(second):
            call()
        second.synchronize()
        return
    graph = _driver_graphs().capture(1, call)
    with torch.cuda.stream(second):
        graph.replay()
    second.synchronize()


@cache
def _driver_graphs() -> DriverGraphs:
    """Return what captures such graphs. Its memory is kept: to return it waits for the GPU."""
    return DriverGraphs()


class DriverGraph:
    """An instantiated graph that CUDA's driver captured."""

    def __init__(self, graph: ctypes.c_void_p, pool: torch.cuda.MemPool) -> None:
        """Take ownership of the captured graph; memory that its calls allocated stays in `pool`.
        Raises RuntimeError where it cannot be instantiated."""
        self._pool = pool
        self.copies = _nodes(graph, *COPIES)
        self._ready = ctypes.c_void_p()
        ready, flags = ctypes.byref(self._ready), ctypes.c_ulonglong(0)
        try:
            _ask("cuGraphInstantiateWithFlags", ready, graph, flags)
        finally:
            _driver().cuGraphDestroy(graph)

    def replay(self) -> None:
        """Enqueue the calls on torch's current stream. Raises RuntimeError where the driver
        fails."""
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        _ask("cuGraphLaunch", self._ready, stream)

    def __del__(self) -> None:
        if self._ready:
            _driver().cuGraphExecDestroy(self._ready)  # a running one is completed first


class TorchGraph(torch.cuda.CUDAGraph):
    """A graph that torch captured; its nodes are unknown."""

    copies = 0


class TorchGraphs:
    """Graphs that torch captures. `torch.cuda.graph` is not used: it waits for the device and
    returns all cached memory to the driver before each capture."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, calls: int, call: Callable[[], Any]) -> Graph:
        """Return a graph of `calls` calls. Raises NotCapturable."""
        graph, stream = TorchGraph(), _stream()
        stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(stream):
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    for _ in range(calls):
                        call()
                finally:
                    graph.capture_end()  # raises the capture's error again
        except Exception as error:
            raise NotCapturable(f"no graph can hold it: {error}") from error
        torch.cuda.current_stream().wait_stream(stream)
        return graph

    def kernels(self, call: Callable[[], Any]) -> int | None:
        """Return None: torch does not report the nodes of a graph."""
        return None

    def launches(self, call: Callable[[], Any]) -> list[str] | None:
        """Return None: torch does not report the nodes of a graph."""
        return None


def _nodes(graph: ctypes.c_void_p, *kinds: int) -> int:
    """Return the number of nodes of these kinds in a driver's graph."""
    count = ctypes.c_size_t()
    _ask("cuGraphGetNodes", graph, None, ctypes.byref(count))
    if not count.value:
        return 0
    nodes = (ctypes.c_void_p * count.value)()
    _ask("cuGraphGetNodes", graph, nodes, ctypes.byref(count))
    kind, result = ctypes.c_int(), 0
    for node in nodes:
        _ask("cuGraphNodeGetType", ctypes.c_void_p(node), ctypes.byref(kind))
        result += kind.value in kinds
    return result


def reset_persisting_lines() -> None:
    """Return lines of the last-level cache that an earlier kernel made persistent to normal use."""
    if not torch.version.hip:
        _ask("cuCtxResetPersistingL2Cache")


def node_names(graph: ctypes.c_void_p) -> list[str]:
    """Return name, grid and block of each kernel node of a driver's graph, and the type of each
    other node, in their order. Names need CUDA 12.3; before that they are left out."""
    count = ctypes.c_size_t()
    _ask("cuGraphGetNodes", graph, None, ctypes.byref(count))
    if not count.value:
        return []
    nodes = (ctypes.c_void_p * count.value)()
    _ask("cuGraphGetNodes", graph, nodes, ctypes.byref(count))
    kind, names = ctypes.c_int(), []
    for node in nodes:
        _ask("cuGraphNodeGetType", ctypes.c_void_p(node), ctypes.byref(kind))
        is_kernel = kind.value == KERNEL
        names.append(
            _kernel_text(ctypes.c_void_p(node)) if is_kernel else f"{OTHER_NODE}{kind.value}"
        )
    return names


class _KernelNode(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2 (cuda.h)."""

    _fields_ = (
        ("func", ctypes.c_void_p),
        *((f"{of}{axis}", ctypes.c_uint) for of in ("grid", "block") for axis in "xyz"),
        ("shared", ctypes.c_uint),
        ("arguments", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


def _kernel_text(node: ctypes.c_void_p) -> str:
    params, name = _KernelNode(), ctypes.c_char_p()
    _ask("cuGraphKernelNodeGetParams_v2", node, ctypes.byref(params))
    shape = [getattr(params, f"{of}{axis}") for of in ("grid", "block") for axis in "xyz"]
    if params.func and hasattr(_driver(), "cuFuncGetName"):
        _ask("cuFuncGetName", ctypes.byref(name), ctypes.c_void_p(params.func))
    elif params.kernel and hasattr(_driver(), "cuKernelGetName"):
        _ask("cuKernelGetName", ctypes.byref(name), ctypes.c_void_p(params.kernel))
    return f"{(name.value or b'').decode()} {shape} {params.shared}"


@cache
def _stream() -> torch.cuda.Stream:
    """Return the one stream that captures: cuBLAS keeps 32 MB for each stream that it is used
    on."""
    return torch.cuda.Stream()


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _ask(name: str, *arguments: Any) -> None:
    """Call the driver. Raises RuntimeError with the driver's message."""
    error = getattr(_driver(), name)(*arguments)
    if error:
        words = ctypes.c_char_p()
        _driver().cuGetErrorString(error, ctypes.byref(words))
        text = words.value.decode() if words.value else "unknown"
        raise RuntimeError(f"{name}: {text} (CUDA error {error})")
