"""Time calls of the user's functions on the GPU of this process."""

import gc
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from workbench.data.errors import first_sentence
from workbench.data.record import Measured
from workbench.device.bounds import cache_bytes
from workbench.measurement.bench import Bench, BenchTime, set_count
from workbench.measurement.clocks import Clocks
from workbench.measurement.functions import MOST_MEMORY, Call, Make, TimedGpu
from workbench.measurement.probe import sm_clock
from workbench.measurement.protocol import Protocol
from workbench.measurement.reference import output_tuple
from workbench.measurement.rotation import Rotation
from workbench.measurement.rounds import Window
from workbench.measurement.stream import Flush
from workbench.measurement.worker import describe


class CallBench(Bench):
    """A bench without a Spec: it times rotations that are made elsewhere."""

    def __init__(self, cache_bytes: int, protocol: Protocol, clock: Any) -> None:
        """Take the bytes of the last-level cache, the protocol and the reader of the SM clock."""
        self.cache_bytes, self.protocol, self.clock = cache_bytes, protocol, clock
        self.bound_s = self.hot_bound_s = 0.0
        self._restore_flush = self._graphs = None


class GpuTimer:
    """A `Timer` of torch's current GPU."""

    def __init__(self, cache_bytes: int, rules: Protocol | None = None) -> None:
        """Take the bytes of the last-level cache, and the protocol."""
        self.rules = rules or Protocol()
        self._sensors = Clocks(torch.cuda.current_device())
        self._bench = CallBench(cache_bytes, self.rules, sm_clock(self._sensors))
        self._flush: Flush | None = None

    def sets(self, make: Make, owners: int) -> tuple[list[Mapping[str, Call]], bool]:
        """Return the sets of inputs, and whether to flush; see `Timer`."""
        gc.collect()
        before = torch.cuda.memory_allocated()
        first = make(0)
        set_bytes = torch.cuda.memory_allocated() - before
        if set_bytes <= 0:  # its inputs are there already, the same in each set
            return [first], True
        count, flushed = set_count(
            set_bytes // owners, self.rules.cache_multiple * self._bench.cache_bytes
        )
        room = int(MOST_MEMORY * torch.cuda.mem_get_info()[0] / set_bytes)
        if room + 1 < count:
            count, flushed = room + 1, True
        return [first, *(make(number) for number in range(1, count))], flushed

    def difference(self, expected: Any, result: Any) -> str | None:
        """Return how two results differ; see `Timer`. Tensors are compared with torch's tolerance
        of their dtype."""
        try:
            torch.testing.assert_close(
                output_tuple(result), output_tuple(expected), check_stride=False, equal_nan=True
            )
        except (AssertionError, TypeError) as error:
            return first_sentence(error).removeprefix("AssertionError: ")
        return None

    def entrant(self, calls: Sequence[Call], flushed: bool) -> BenchTime:
        """Return calls as an entrant; see `Timer`."""
        if flushed and self._flush is None:
            self._flush = Flush(self._bench.cache_bytes)
        sets = [(call,) for call in calls]
        rotation = Rotation(
            lambda call, config: call(), None, sets, self._flush if flushed else None
        )
        return self._bench.choose_method(rotation, self._bench.first_time(rotation))

    def summarise(
        self, entrant: Any, windows: Sequence[Window], bound_s: float, also: Mapping[str, Any]
    ) -> Measured:
        """Return the time from windows; see `Timer`."""
        self._bench.bound_s = bound_s
        timing = self._bench.summarise(entrant, windows, "cold", "sustained", **also)
        entrant.rotation.forget()
        return timing

    def read(self) -> Any:
        """Return a reading of the sensors."""
        return self._sensors.read()

    def summary(self, readings: Sequence[Any]) -> Mapping[str, Any]:
        """Return what the sensors say."""
        return self._sensors.summary(readings)


def gpu_here() -> TimedGpu | None:
    """Return the GPU of this process, which it opens; None where torch sees none."""
    described = describe(None)
    if described is None:
        return None
    device, environment, lock = described
    return TimedGpu(device, environment, lock, GpuTimer(cache_bytes(device)))
