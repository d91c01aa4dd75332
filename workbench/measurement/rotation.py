"""Call one Impl on rotating sets of inputs, with a restore or flush before each where needed."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from workbench.measurement.mutated import Copies
from workbench.measurement.reference import output_tuple
from workbench.measurement.stream import (
    FirstCall,
    Flush,
    TimerStep,
    event_samples,
    first_call,
    issue_s,
    wait,
)
from workbench.spec import Impl

MOST_ISSUED = 9  # calls that are issued one by one to learn the host's time, and
ISSUE_S = 1e-3  # the device time that they may take together
KEPT_ISSUED = 64  # the newest host times of timed calls: by then no call allocates its outputs


@dataclass
class Rotation:
    """Calls that rotate over input sets and keep as many outputs alive, so that no output is
    rewritten while the cache still holds it."""

    impl: Impl | Callable[..., Any]  # a function takes `config`, too
    config: Any
    sets: list[tuple[Any, ...]]
    flush: Flush | None = None
    copies: Copies | None = None  # of the inputs that a call changes, and
    mutates: Sequence[str] = ()  # their names
    host_s: float = 50e-6  # host seconds to enqueue one call and its events
    waits: bool = False  # a call returns only when the GPU is done
    is_traced: bool = False  # code of torch.compile, as `correctness.is_traced` says
    # of the last call on each set since `forget`, by the set's number
    outputs: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    _turn: int = 0
    _issue_times: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_ISSUED))

    def call(self) -> None:
        """Call the Impl on the next set."""
        at = self._turn % len(self.sets)
        inputs = self.sets[at]
        if self.copies is not None:
            inputs = self.copies.call_inputs(inputs, self._turn)
        self.outputs[at] = output_tuple(self.impl(*inputs, config=self.config))
        self._turn += 1

    def issue(self) -> None:
        """Call the Impl on the next set, and record the host seconds that this takes: under 0.2 us
        more, so it is not used where the host's clock takes the time of a call."""
        self._issue_times.append(issue_s(self.call))

    @property
    def issued_s(self) -> float | None:
        """Host seconds to issue one call, the median of those by `issue`; None before the first.
        Of a call that waits for the GPU, the seconds until it returns."""
        return median(self._issue_times) if self._issue_times else None

    def learn_issue(self, device_s: float) -> None:
        """Record the host seconds to issue a call of about `device_s`, from a few calls on the
        first set, each on an idle device, whose queue is empty. The one before them allocates the
        memory that those after it reuse: an allocation by the driver takes as long as many
        launches."""
        self._issue_times.clear()
        turn = self._turn
        for number in range(1 + max(1, min(MOST_ISSUED, int(ISSUE_S / max(device_s, 1e-9))))):
            self._turn = 0
            if self.copies is not None:
                self.copies.restore()
            wait()
            if number:
                self.issue()
            else:
                self.call()
        wait()
        self._turn = turn

    def restored_call(self) -> None:
        """Restore the inputs, then call the Impl on the next set."""
        if self.copies is not None:
            self.copies.restore()
        self.call()

    def peak_bytes(self) -> int:
        """Return the peak of GPU memory in bytes during one call, beyond the memory held before
        it."""
        import torch

        self.forget()
        before = int(torch.cuda.memory_allocated())
        torch.cuda.reset_peak_memory_stats()
        self.restored_call()
        wait()
        return int(torch.cuda.max_memory_allocated()) - before

    def forget(self) -> None:
        """Release all outputs."""
        self.outputs.clear()

    def turn_over(self) -> None:
        """Restore the inputs that the next calls change, and flush after that; without a restore,
        flush where the next call would start the rotation again."""
        if self.copies is not None:
            self.copies.restore()
        again = self.copies is not None or self._turn % len(self.sets) == 0
        if self.flush is not None and again:
            self.flush()

    def step(self, device_s: float = 0.0) -> TimerStep:
        """Return one call as one sample; `device_s` are its approximate seconds on the device."""
        return self._step(self.call, device_s)

    def issued_step(self, device_s: float) -> TimerStep:
        """Return `step` for the time between events; the host seconds of each are recorded."""
        return self._step(self.issue, device_s)

    def _step(self, call: Callable[[], None], device_s: float) -> TimerStep:
        before = self.turn_over if self.flush or self.copies else None
        host_s = self.host_s + (self.copies.host_s if self.copies else 0.0)
        return TimerStep(call, host_s, device_s, before)

    def learn(self) -> FirstCall:
        """Return the result of one call behind a held stream, and record `waits` and `host_s`."""
        result = first_call(self.step())
        self.waits = result.waits
        if not result.waits:
            self.host_s = result.host_s
        return result

    def samples(self, count: int, device_s: float = 0.0) -> list[float]:
        """Return the seconds of each of `count` calls between events; a call takes about
        `device_s`."""
        return event_samples(self.step(device_s), count)
