"""Calls that the GPU replays as one graph.

On CUDA the driver captures them and not torch. Before each capture torch fills its random state
on the stream that captures. Once another stream than the one that replays has done some eight
things like that, the driver leaves more time between two kernels of every graph in the process:
0.18 us after an empty kernel, 0.34 us after one that wrote 2 MB (H200, driver 580; docs/log.md).
A driver's capture puts nothing on its stream.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

import torch

THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: what other threads do is not forbidden
KERNEL, COPIES = 0, (1, 2)  # CU_GRAPH_NODE_TYPE_KERNEL; _MEMCPY and _MEMSET
DRAWS = "CUDA generator"  # in torch's words where a call draws from it in a capture not its own


class NotCapturable(Exception):
    """A call that no graph can hold: it waits for the GPU, or does what a capture forbids."""


class Graph(Protocol):
    """Calls that were captured. `copies` are those of its nodes that the driver copies or sets
    memory by, as many as are known of."""

    copies: int

    def replay(self) -> None:
        """Put them on torch's current stream."""


class Graphs(Protocol):
    """Captures graphs, all by one stream and with one pool of memory."""

    def capture(self, calls: int, call: Callable[[], Any]) -> Graph:
        """A graph of `calls` calls. Raises NotCapturable, and then captures nothing more."""

    def kernels(self, call: Callable[[], Any]) -> int | None:
        """How many kernels one call launches; None where that cannot be told."""


def graphs() -> Graphs:
    """What captures graphs on torch's current GPU."""
    return TorchGraphs() if torch.version.hip else DriverGraphs()


class DriverGraphs:
    """Graphs that CUDA's driver captures. Torch gives its random numbers to captures of its own
    alone, so it captures the calls that draw some: a few such captures stay without effect."""

    def __init__(self) -> None:
        self._pool = torch.cuda.MemPool()

    def capture(self, calls: int, call: Callable[[], Any]) -> Graph:
        try:
            return DriverGraph(self._captured(calls, call), self._pool)
        except Exception as error:
            if DRAWS in str(error):
                return TorchGraphs().capture(calls, call)
            raise NotCapturable(f"no graph can hold it: {error}") from error

    def kernels(self, call: Callable[[], Any]) -> int | None:
        """By the nodes of a graph that is never run."""
        try:
            captured = self._captured(1, call)
        except Exception:  # what no graph can hold has no graph to count in
            return None
        try:
            return _nodes(captured, KERNEL)
        finally:
            _driver().cuGraphDestroy(captured)

    def _captured(self, calls: int, call: Callable[[], Any]) -> ctypes.c_void_p:
        """The driver's graph of these calls; whoever asks destroys it."""
        stream, captured = ctypes.c_void_p(_stream().cuda_stream), ctypes.c_void_p()
        with torch.cuda.use_mem_pool(self._pool), torch.cuda.stream(_stream()):
            _ask("cuStreamBeginCapture_v2", stream, THREAD_LOCAL)
            try:
                for _ in range(calls):
                    call()
            except BaseException:
                _driver().cuStreamEndCapture(stream, ctypes.byref(captured))
                _driver().cuGraphDestroy(captured)
                raise
            _ask("cuStreamEndCapture", stream, ctypes.byref(captured))
        return captured


class DriverGraph:
    """A graph that CUDA's driver captured, made ready to run."""

    def __init__(self, captured: ctypes.c_void_p, pool: torch.cuda.MemPool) -> None:
        """Takes the captured graph over; what its calls allocated stays in `pool`. Raises
        RuntimeError where it cannot be made ready."""
        self._pool = pool
        self.copies = _nodes(captured, *COPIES)
        self._ready = ctypes.c_void_p()
        ready, flags = ctypes.byref(self._ready), ctypes.c_ulonglong(0)
        try:
            _ask("cuGraphInstantiateWithFlags", ready, captured, flags)
        finally:
            _driver().cuGraphDestroy(captured)

    def replay(self) -> None:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        _ask("cuGraphLaunch", self._ready, stream)

    def __del__(self) -> None:
        if self._ready:
            _driver().cuGraphExecDestroy(self._ready)  # one that runs ends first


class TorchGraph(torch.cuda.CUDAGraph):
    """A graph that torch captured; it does not tell what it holds."""

    copies = 0


class TorchGraphs:
    """Graphs that torch captures. `torch.cuda.graph` would wait for the device and give all cached
    memory back to the driver before each capture."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, calls: int, call: Callable[[], Any]) -> Graph:
        graph, stream = TorchGraph(), _stream()
        stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(stream):
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    for _ in range(calls):
                        call()
                finally:
                    graph.capture_end()  # says again what made the capture fail
        except Exception as error:
            raise NotCapturable(f"no graph can hold it: {error}") from error
        torch.cuda.current_stream().wait_stream(stream)
        return graph

    def kernels(self, call: Callable[[], Any]) -> int | None:
        """torch does not tell what a graph holds."""
        return None


def _nodes(graph: ctypes.c_void_p, *kinds: int) -> int:
    """How many nodes of a driver's graph are of these kinds."""
    count = ctypes.c_size_t()
    _ask("cuGraphGetNodes", graph, None, ctypes.byref(count))
    nodes = (ctypes.c_void_p * count.value)()
    _ask("cuGraphGetNodes", graph, nodes, ctypes.byref(count))
    kind, result = ctypes.c_int(), 0
    for node in nodes:
        _ask("cuGraphNodeGetType", ctypes.c_void_p(node), ctypes.byref(kind))
        result += kind.value in kinds
    return result


@cache
def _stream() -> torch.cuda.Stream:
    """The one that captures: a product of cuBLAS keeps 32 MB for each stream that it met."""
    return torch.cuda.Stream()


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _ask(name: str, *given: Any) -> None:
    """Call the driver. Raises RuntimeError with the driver's own words."""
    error = getattr(_driver(), name)(*given)
    if error:
        words = ctypes.c_char_p()
        _driver().cuGetErrorString(error, ctypes.byref(words))
        text = words.value.decode() if words.value else "unknown"
        raise RuntimeError(f"{name}: {text} (CUDA error {error})")
