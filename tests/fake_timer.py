"""A timer of functions on a GPU that takes no time: calls carry their own seconds."""

from types import SimpleNamespace

from fake_gpu import FakeGpu, FakeVariant, Weather
from null_backend import ENVIRONMENT

from workbench.data import stats
from workbench.data.record import Measured
from workbench.device.hardware import device_named
from workbench.measurement.functions import TimedGpu
from workbench.measurement.protocol import Protocol

SHORT = Protocol(rounds=4, most_rounds=4, window_s=1e-4, settle_window_s=1e-4)


class FakeCall:
    """A call that takes so many seconds, and gives this result."""

    def __init__(self, seconds, result=0, error=None):
        self.seconds, self.result, self.error, self.count = seconds, result, error, 0

    def __call__(self):
        self.count += 1
        if self.error is not None:
            raise self.error
        return self.result


class FakeTimer:
    """Implements `functions.Timer`; takes `many` sets of inputs."""

    def __init__(self, many=2):
        self.rules, self.many, self.made = SHORT, many, []
        self.gpu = FakeGpu(1, Weather.wait_idle())

    def sets(self, make, owners):
        self.owners = owners
        self.made = [make(number) for number in range(self.many)]
        return self.made, False

    def difference(self, expected, result):
        return None if expected == result else f"{result} is not {expected}"

    def entrant(self, calls, flushed):
        variant = FakeVariant(self.gpu, calls[0].seconds, sensor=False)
        return SimpleNamespace(begin=variant.begin, estimate_s=calls[0].seconds)

    def summarise(self, entrant, windows, bound_s, also):
        taken = [window.samples_s for window in windows]
        median = stats.median([s for window in taken for s in window])
        if median < bound_s:
            raise RuntimeError("below what the device can reach")
        low, high = stats.windowed_interval(taken)
        samples = tuple(s for window in taken for s in window)
        head = (median, low, high, samples, "cold", "graph", self.rules.id)
        return Measured(*head, rounds=len(windows), state="sustained", **also)

    def read(self):
        return 1500.0

    def summary(self, readings):
        return {"sm_mhz": stats.median(readings)}


def fake_gpu(timer):
    """The GPU that a decorated function is timed on."""
    return TimedGpu(device_named("h200"), ENVIRONMENT, f"fake-{id(timer)}", timer)
