"""A GPU that takes no time: its clock, its calls and their noise on a virtual clock of their own.

What an H200 under its power cap does (docs/facts.md), and worse: it boosts while it was idle, falls
under the cap when loaded, wanders by some percent within a tenth of a second, drifts, is throttled
for moments, and now and then a sample takes ten times as long.
"""

import math
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
from scipy.signal import lfilter

from workbench.measurement.rounds import Window

BOOST_MHZ = 1980.0  # nominal: the seconds of a FakeArm are at this clock


@dataclass(frozen=True)
class Weather:
    """How unsteady a FakeGpu is."""

    capped: float = 0.78  # of the boost clock, once loaded
    cap_s: float = 0.15  # in which the cap bites, and an idle GPU recovers
    wander: float = 0.022  # standard deviation: a range of 5 % is usual
    wander_s: float = 0.07  # in which it forgets
    drift: float = 0.02  # amplitude ...
    drift_s: float = 20.0  # ... and period of a slow swing
    throttled: float = 0.55  # of the clock while throttled
    throttle_every_s: float = 2.0
    throttle_s: float = 0.03
    outliers: float = 0.002  # share of samples that take ten times as long
    noise: float = 0.004  # of a sample
    correlation: float = 0.5  # lag 1 of the noise

    @classmethod
    def wait_idle(cls, **but):
        """No unsteadiness but what is named."""
        still = {"capped": 1.0, "wander": 0.0, "drift": 0.0, "throttle_s": 0.0, "outliers": 0.0}
        return cls(**(still | {"noise": 0.0} | but))


class FakeGpu:
    """One device: `now` is its virtual time, and whatever runs on it makes that time pass."""

    def __init__(self, seed, weather=None):
        self.weather = weather or Weather()
        self.rng = np.random.default_rng(seed)
        self.now_s = 0.0
        self.phase = self.rng.uniform(0, 2 * math.pi)
        self.last = np.zeros(1)  # state of the noise filter
        self.load = 0.0  # 0 idle for long, 1 under the cap
        self.wandered = self.weather.wander * self.rng.standard_normal()
        self.throttle_at = self._next_throttle()

    def now(self):
        return self.now_s

    def idle(self, seconds):
        """Rest: the clock recovers."""
        self._pass(seconds, busy=False)

    def _next_throttle(self):
        if not self.weather.throttle_s:
            return math.inf
        return self.now_s + self.rng.exponential(self.weather.throttle_every_s)

    def _pass(self, seconds, busy):
        w = self.weather
        self.now_s += seconds
        near = math.exp(-seconds / w.cap_s)
        self.load = (1 - near) + near * self.load if busy else near * self.load
        keep = math.exp(-seconds / w.wander_s)
        fresh = w.wander * math.sqrt(1 - keep**2)
        self.wandered = keep * self.wandered + fresh * self.rng.standard_normal()
        if self.now_s > self.throttle_at + w.throttle_s:
            self.throttle_at = self._next_throttle()

    def clock(self):
        """Share of the boost clock, now."""
        w = self.weather
        swing = w.drift * math.sin(2 * math.pi * self.now_s / w.drift_s + self.phase)
        share = (1 - (1 - w.capped) * self.load) * (1 + self.wandered + swing)
        return share * (w.throttled if self.now_s >= self.throttle_at else 1.0)

    def run(self, seconds, count, memory, pinned):
        """Times of `count` calls back to back, and the mean clock in MHz. `pinned`: a share of the
        clock that these calls alone run at."""
        w = self.weather
        first = self.clock() * pinned
        guess = seconds * count * (memory + (1 - memory) / first)
        self._pass(guess, busy=True)
        clocks = np.linspace(first, self.clock() * pinned, count)
        fresh = math.sqrt(1 - w.correlation**2)
        white = self.rng.standard_normal(count)
        noise, self.last = lfilter([fresh], [1, -w.correlation], white, zi=self.last)
        times = seconds * (memory + (1 - memory) / clocks) * np.exp(w.noise * noise)
        times[self.rng.random(count) < w.outliers] *= 10
        return times, float(clocks.mean()) * BOOST_MHZ


@dataclass
class FakeVariant:
    """A call that takes `seconds` at the boost clock; the share `memory` of them does not depend on
    the clock. `sensor`: whether the clock can be read."""

    gpu: FakeGpu
    seconds: float
    memory: float = 0.0
    pinned: float = 1.0
    sensor: bool = True

    def begin(self, seconds, least=1):
        taken = self.window(seconds, least)
        return SimpleNamespace(window=lambda: taken)

    def window(self, seconds, least=1):
        count = max(least, math.ceil(seconds / self.seconds))
        times, mhz = self.gpu.run(self.seconds, count, self.memory, self.pinned)
        return Window(tuple(times.tolist()), mhz if self.sensor else None)
