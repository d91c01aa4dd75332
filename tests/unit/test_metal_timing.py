"""Decisions of a measurement on a Metal device, on a clock that the tests set."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from workbench.measurement import rounds
from workbench.measurement.candidate import Untimed
from workbench.measurement.metal_timing import (
    MetalEntrant,
    MetalProtocol,
    chain_length,
    measured_time,
    net_s,
    warm_up,
)

RULES = MetalProtocol()


@dataclass
class SetCall:
    """A call whose chains take what `slowness` makes of them."""

    call_s: float
    dispatches: int = 1
    overhead_s: float = 2e-4
    dispatch_s: float = 3e-6
    slowness: object = lambda chain: 1.0  # of each chain, by its number
    chains: list = field(default_factory=list)

    def seconds(self, calls):
        self.chains.append(calls)
        number = len(self.chains)
        work = calls * (self.call_s + self.dispatches * self.dispatch_s)
        return self.overhead_s + work * self.slowness(number)


@given(st.floats(1e-8, 1.0))
def test_a_chain_is_as_long_as_the_table_says(call_s):
    calls = chain_length(call_s, RULES)
    if call_s < RULES.short_s:
        assert 20 <= calls <= 1000
    assert calls in (20, 1000) or calls == 1 or calls * call_s >= RULES.chain_s
    assert (calls - 1) * call_s < RULES.chain_s or calls == 20


@given(st.floats(2e-5, 0.05), st.integers(1, 4))
def test_the_time_of_a_call_is_found_again(call_s, dispatches):
    """Overheads of evaluation and dispatch cancel, whatever they are."""
    call = SetCall(call_s, dispatches)
    assume(call_s > dispatches * call.dispatch_s + call.overhead_s / 20)
    entrant = MetalEntrant.warm_up(call, SetCall(0.0), RULES)
    window = entrant.begin(0.03).window()
    assert window.samples_s == pytest.approx([call_s] * len(window.samples_s), rel=1e-6)
    assert entrant.warm.has_settled


@given(st.integers(1, 12))
def test_the_warm_up_ends_when_two_medians_agree(slow):
    """A clock that gets faster by 10 % a window for `slow` windows is waited for."""
    per = RULES.warm_samples
    call = SetCall(1e-3, slowness=lambda chain: 1.1 ** max(0, slow - (chain - 2) // per))
    warm = warm_up(call, RULES)
    assert warm.has_settled and slow + 1 <= warm.windows <= slow + 2


def test_a_warm_up_that_never_settles_makes_a_time_unstable():
    call = SetCall(1e-3, slowness=lambda chain: 1.5 if chain // RULES.warm_samples % 2 else 1.0)
    warm = warm_up(call, RULES)
    assert not warm.has_settled and warm.windows == RULES.warm_most
    window = MetalEntrant(call, SetCall(0.0), warm).begin(0.1, 8).window()
    assert not measured_time([window], warm, RULES, "cold", stable=True).stable
    settled = replace(warm, has_settled=True)
    assert measured_time([window], settled, RULES, "cold", stable=True).stable


@pytest.mark.parametrize("call_s", [0.0, 1e-7, 1e-6])
def test_a_call_that_the_host_hides_has_no_time(call_s):
    with pytest.raises(Untimed, match="too short for it"):
        MetalEntrant.warm_up(SetCall(call_s), SetCall(0.0), RULES)


def test_a_sample_is_never_below_a_nanosecond():
    assert net_s(1.0, 2.0, 10) == 1e-9 and net_s(3.0, 1.0, 10) == 0.2


def test_two_clocks_are_never_ranked():
    """The clock is a part of the protocol's id, and that of every key."""
    other = MetalProtocol(clock="command buffer")
    assert other.id != RULES.id and RULES.id == MetalProtocol().id
    window = rounds.Window((1e-3,) * 8)
    warm = warm_up(SetCall(1e-3), RULES)
    timing = measured_time([window], warm, other, "cold", True)
    assert (timing.method, timing.protocol) == ("command buffer", other.id)


def test_turns_reverse_and_every_call_takes_part_in_each_round():
    calls = {name: SetCall(1e-3 * (1 + at)) for at, name in enumerate("abc")}
    clock = [0.0]

    def now():
        clock[0] += 1e-3
        return clock[0]

    entrants = {
        name: MetalEntrant.warm_up(call, SetCall(0.0), RULES) for name, call in calls.items()
    }
    windows = rounds.play(entrants, RULES, now=now)
    assert {len(taken) for taken in windows.values()} == {len(windows["a"])}
    assert len(windows["a"]) >= RULES.rounds and len(windows["a"]) % 2 == 0
