"""What measuring computes of few numbers, each worked out by hand: bits, guards, copies, graphs."""

import math
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from metal_shim import rehearsal
from workbench.measurement import (
    back_to_back,
    bench,
    correctness,
    energy,
    graphs,
    handover,
    metal_worker,
    mutated,
    observed,
    packed,
    probe,
    reference,
    rounds,
    stream,
    transfers,
)
from workbench.measurement.bench import Bench, BenchTime, graph_calls, set_count
from workbench.measurement.candidate import Refusal
from workbench.measurement.correctness import (
    GUARD,
    Poisoned,
    PreparedProblem,
    _aliasing,
    _unwritten,
    bits_of,
    compare_values,
    is_traced,
    poison_outputs,
)
from workbench.measurement.metal_timing import MetalProtocol
from workbench.measurement.mutated import Copies, Working
from workbench.measurement.protocol import BOOST, Protocol
from workbench.measurement.rotation import Rotation
from workbench.measurement.rounds import Window
from workbench.measurement.stream import FirstCall
from workbench.spec import Spec, Tensor, Tolerance, solve_sizes

pytestmark = pytest.mark.unit


# Bits and guards


def digest_of(tensors):
    """Return the hash of words by Python's whole numbers, without torch."""
    wide, digest = 1 << 64, 0

    def weights(count):
        return [((n + 1) * 0x9E3779B97F4A7C1) % wide | 1 for n in range(count)]

    def weighed(values):
        return sum(v * w for v, w in zip(values, weights(len(values)), strict=True))

    for size, data in tensors:
        data = bytes(data)
        if len(data) % 8 == 0:
            size = 8
        words = [int.from_bytes(data[n : n + size], "little", signed=size > 1)
                 for n in range(0, len(data), size)]  # fmt: skip
        rows = [words[n : n + 4096] for n in range(0, len(words) // 4096 * 4096, 4096)]
        columns = [sum(row[n] for row in rows) for n in range(4096)]
        for part in (columns, [sum(row) for row in rows], words[len(rows) * 4096 :]):
            digest = (digest * 0x100000001B3 + weighed(part)) % wide
    return f"{digest:016x}"


@pytest.mark.parametrize(
    ("dtype", "count"),
    [(torch.int16, 3), (torch.int16, 4), (torch.int32, 5), (torch.int32, 6), (torch.uint8, 9),
     (torch.int64, 2), (torch.int16, 2 * 4096 + 3)],
)  # fmt: skip
def test_the_hash_of_bits_is_what_whole_numbers_give(dtype, count):
    x = (torch.arange(count) * 40_503 % 251 + 1).to(dtype)
    size = x.element_size()
    data = x.view(torch.uint8).tolist()
    assert bits_of([x]) == digest_of([(size, data)])
    assert bits_of([x, x]) == digest_of([(size, data)] * 2)


def test_words_that_begin_beside_eight_bytes_are_read_as_they_are():
    x = torch.arange(6, dtype=torch.int32)
    half = x[1:5]  # 16 bytes, 4 beside a word of 8
    weights = [(n * 0x9E3779B97F4A7C1) % (1 << 64) | 1 for n in (1, 2, 3, 4)]
    total = sum(v * w for v, w in zip((1, 2, 3, 4), weights, strict=True)) % (1 << 64)
    assert bits_of([half]) == f"{total:016x}"


@pytest.mark.parametrize(("apart", "before"), [(0, 1024), (1, 1025), (3, 1027), (4, 1024)])
def test_a_copied_input_lies_at_its_offset_between_two_bands(apart, before):
    """Elements of 4 bytes: one lies 4 bytes behind an address that 16 divides, three 12."""
    x = torch.arange(20, dtype=torch.float32)[apart : apart + 15]
    memory = Poisoned()
    own = memory.copy(x, "x")
    assert own.tolist() == x.tolist()
    (flat, first, count, whose) = memory._blocks[0]
    assert (first, count, len(flat)) == (before, 15, before + 15 + GUARD)
    assert whose == "its input x" and own.storage_offset() == before and GUARD == 1024
    for place, operand in ((0, "before"), (before - 1, "before"), (before + 15, "behind"),
                           (len(flat) - 1, "behind")):  # fmt: skip
        held = flat[place].item()
        flat[place] = 1.0
        assert memory.trespass() == f"the launch wrote {operand} the memory of its input x"
        flat.view(torch.int32)[place] = 0x7FE5A5A5
        assert held != held and memory.trespass() is None


def test_a_copied_input_keeps_strides_and_an_expanded_one_is_dense():
    rows = torch.arange(12.0).reshape(3, 4)[:, :2]  # strides 4 and 1, span 10
    memory = Poisoned()
    assert memory.copy(rows, "rows").stride() == (4, 1) and memory._blocks[0][2] == 10
    wide = memory.copy(torch.ones(1, 3).expand(2, 3), "wide")
    assert wide.stride() == (3, 1) and memory._blocks[1][2] == 6
    assert memory.copy(torch.empty(0, 3), "none").shape == (0, 3) and memory._blocks[2][2] == 0
    meta = torch.empty(2, device="meta")
    assert memory.copy(meta, "meta") is meta and len(memory._blocks) == 3


@pytest.mark.parametrize("is_beside", [False, True])
def test_memory_is_written_where_any_of_it_changed(monkeypatch, is_beside):
    flag, calls = torch.zeros((), dtype=torch.bool), []
    monkeypatch.setattr(correctness, "_pinned_flag", lambda: flag)
    memory = Poisoned((lambda call: calls.append(call())) if is_beside else None)
    assert not memory.is_written() and calls == []
    with memory:
        first, second = torch.empty(3), torch.empty(2, dtype=torch.int32)
    assert not memory.is_written() and len(calls) == (3 if is_beside else 0)
    second[1] = 7
    assert memory.is_written()
    second.view(torch.uint8).fill_(0xA5)
    first[0] = 1.0
    assert memory.is_written()


def test_fresh_memory_of_a_mode_is_guarded_and_all_other_is_not():
    memory = Poisoned()
    with memory:
        x = torch.empty(4)
        torch.empty(2, device="meta")
        torch.zeros(3)
        torch.empty_strided((2, 2), (1, 2))
    assert [given[2:] for given in memory._blocks] == [(4, "its output")]
    assert x.isnan().all() and x.storage_offset() == GUARD


def spec_of(**outputs):
    return Spec("k", {"x": Tensor("N")}, outputs, None, lambda N: 0, [], [])


def test_outputs_that_are_missing_are_left_to_the_check_of_their_number():
    spec = spec_of(y=Tensor("N"), z=Tensor("N"))
    ours = spec.impl(name="ours")(lambda x: x)
    assert _aliasing((torch.ones(3),), (torch.zeros(3),), ours) is None


def test_the_share_of_wrong_elements_counts_those_beyond_the_tolerance_only():
    """Off by one tolerance, by two and by four: two of four are wrong, the worst by 4."""
    tolerance = {"fp64": Tolerance(relative=0.25, rms_share=0.0)}
    expected = torch.ones(4, dtype=torch.float64)
    actual = expected + torch.tensor([0.25, 0.5, 0.0, 1.0], dtype=torch.float64)
    checked = compare_values("y", actual, expected, tolerance, "fp64")
    assert checked.wrong == (
        "y is wrong in 50 % of its elements, off by up to 4 tolerances; the first is [1]: 1.5 "
        "where 1 was expected"
    )


def test_a_part_that_is_not_written_is_said_with_its_share():
    actual = torch.tensor([5, 6, 7, 8], dtype=torch.int32)
    actual.view(torch.uint8)[8:] = 0xA5
    expected = torch.tensor([5, 6, 9, 10], dtype=torch.int32)
    said = _unwritten("y", actual, actual != expected, expected)
    assert said == (
        "y is wrong in 50 % of its elements: y is written in 50 % of its elements; the first that "
        "is not is [2], where 9 was expected"
    )
    other = expected.clone()
    other[0] = 4  # wrong, but written
    assert _unwritten("y", actual, actual != other, other) is None
    actual.view(torch.uint8).fill_(0xA5)
    assert _unwritten("y", actual, actual != expected, expected) is None  # nothing is written
    three = torch.tensor([1, 2, 3, 4], dtype=torch.int32)
    three.view(torch.uint8)[12:] = 0xA5
    said = _unwritten("y", three, torch.tensor([False, False, False, True]), expected)
    assert "y is wrong in 25 % of its elements: y is written in 75 %" in said


def test_infinities_and_nan_belong_in_their_places():
    tolerance = {"fp64": Tolerance(relative=0.5, rms_share=0.0)}
    inf, nan = math.inf, math.nan

    def compared(actual, expected):
        both = (torch.tensor(x, dtype=torch.float64) for x in (actual, expected))
        return compare_values("y", *both, tolerance, "fp64").wrong

    assert compared([inf, -inf, nan, 1.0], [inf, -inf, nan, 1.0]) is None
    for actual, at in (([-inf, -inf, nan, 1.0], 0), ([inf, -inf, inf, 1.0], 2),
                       ([inf, -inf, nan, nan], 3), ([inf, 1.0, nan, 1.0], 1),
                       ([inf, -inf, 1.0, 1.0], 2)):  # fmt: skip
        wrong = compared(actual, [inf, -inf, nan, 1.0])
        assert wrong.startswith("y is wrong in 25 % of its elements, NaN or infinity out of place")
        assert f"the first is [{at}]" in wrong


@pytest.mark.parametrize(
    ("dtype", "least"),
    [(torch.float16, 2.0**-24), (torch.bfloat16, 2.0**-126), (torch.float32, 2.0**-126)],
)
def test_beside_zero_a_denormal_of_fp16_or_the_least_normal_number_is_allowed(dtype, least):
    assert correctness._least(dtype) == least


def test_right_outputs_are_kept_for_two_configs_and_found_by_their_bits(monkeypatch):
    tolerance = {"fp32": Tolerance(relative=0.5, rms_share=0.0)}
    spec = replace(spec_of(y=Tensor("N"), z=Tensor("N")), tolerance=tolerance)
    expected = (torch.ones(2, dtype=torch.float64), 2 * torch.ones(2, dtype=torch.float64))
    problem = PreparedProblem(spec, "fp32", (), expected)
    one, two = torch.ones(2), 2 * torch.ones(2)
    first = correctness.check_outputs((one, two), problem)
    assert first.error == 0.0 and first.bits == bits_of([one, two])
    compared = []
    real = compare_values
    monkeypatch.setattr(
        correctness, "compare_values", lambda *given: compared.append(given[0]) or real(*given)
    )
    assert correctness.check_outputs((one.clone(), two), problem) is first and not compared
    second = correctness.check_outputs((one, two * 1.25), problem)
    assert second.error == pytest.approx(0.5) and compared == ["y", "z"]
    correctness.check_outputs((one * 1.25, two), problem)
    assert len(problem.right) == 2
    correctness.check_outputs((one, two), problem)  # the oldest is forgotten
    assert compared == ["y", "z"] * 3
    wrong = correctness.check_outputs((one, two * 2), problem)
    assert wrong.error == 2.0 and "z is wrong" in wrong.wrong and len(problem.right) == 2


def test_outputs_in_the_memory_of_an_input_are_not_filled():
    x, y = torch.ones(3), torch.ones(3)
    assert not poison_outputs((y, x), (x,)) and y.tolist() == [1.0] * 3
    assert poison_outputs((y,), (x,)) and y.isnan().all() and x.tolist() == [1.0] * 3


def test_a_launch_restores_an_input_that_it_changed_and_names_the_first():
    spec = Spec("k", {"a": Tensor("N"), "b": Tensor("N")}, {"y": Tensor("N")}, None,
                lambda N: 0, [], [])  # fmt: skip

    def changing(a, b):
        a.add_(1), b.add_(1)
        return torch.empty(3).fill_(7)

    given = torch.zeros(3), torch.ones(1).expand(3)
    impl = spec.impl(name="changing", backend="triton")(changing)
    held = correctness.launch(impl, impl.config(), [given[0], torch.ones(3)])
    assert held.fault.rule == "inputs" and "its input a;" in held.fault.reason
    assert given[0].tolist() == [0.0] * 3 and held.outputs[0].tolist() == [7.0] * 3
    both = spec.impl(name="both", mutates=("a", "b"))(changing)
    held = correctness.launch(both, both.config(), [given[0], torch.ones(3)])
    assert held.fault is None and given[0].tolist() == [0.0] * 3
    one = spec.impl(name="one", mutates=("a",))(changing)
    held = correctness.launch(one, one.config(), [given[0], torch.ones(3)])
    assert "its input b;" in held.fault.reason


def test_only_a_library_s_compiled_call_is_traced():
    spec = spec_of(y=Tensor("N"))
    call = correctness.CompiledCall.__new__(correctness.CompiledCall)
    library = spec.impl(name="library", backend="torch")(lambda x: x)
    ours = spec.impl(name="ours")(lambda x: x)
    assert not is_traced(library) and not is_traced(ours)
    assert is_traced(replace(library, launch=call)) and not is_traced(replace(ours, launch=call))


# Sets, calls and samples


@pytest.mark.parametrize(
    ("problem", "span", "sets"),
    [(1, 128, (128, False)), (1, 128.5, (256, True)), (1, 1, (2, False)), (2, 4, (2, False)),
     (2, 5, (3, False)), (0, 3, (3, False))],
)  # fmt: skip
def test_more_than_128_sets_are_256_with_flushes(problem, span, sets):
    assert set_count(problem, span) == sets


def test_sets_of_which_a_call_moves_little_do_not_fill_the_memory():
    gib = 1 << 30
    assert set_count(gib, 2e8, gib) == (2, False)
    assert set_count(10**7, 2e8, 10**8) == (20, False)
    assert set_count(10**7, 2e8, gib) == (2, True), "20 GiB of sets: the cache is flushed instead"
    assert set_count(10**5, 2e8, gib) == (2, True)


@pytest.mark.parametrize(
    ("span_s", "call_s", "sets", "flushed", "calls"),
    [(1e-3, 1e-4, 3, False, 12), (9e-4, 1e-4, 3, False, 9), (1e-3, 1e-4, 20, True, 10),
     (1e-3, 1e-4, 7, True, 7), (1.0, 1e-9, 3, False, 2001), (9.995e-4, 0.0, 2, False, 1000),
     (2.5e-6, 1e-9, 1, False, 3)],
)  # fmt: skip
def test_calls_of_a_graph_fill_its_span_in_whole_rounds(span_s, call_s, sets, flushed, calls):
    assert graph_calls(span_s, call_s, sets, flushed) == calls


class Turns:
    """A rotation that notes what is asked of it."""

    def __init__(self, waits=False, first=3e-5, samples=(2e-5, 4e-5)):
        self.log, self.waits = [], waits
        self.first, self.taken = first, list(samples)
        self.host_s, self.copies, self.flush, self.impl = 5e-5, None, None, "impl"
        self.sets = [1, 2]

    def restored_call(self):
        self.log.append("call")

    def learn(self):
        self.log.append("learn")
        return FirstCall(self.first, 1e-5, self.waits)

    def step(self):
        return "step"

    def samples(self, count):
        self.log.append(("samples", count))
        return self.taken

    def learn_issue(self, seconds):
        self.log.append(("issue", seconds))

    def forget(self):
        self.log.append("forget")


@pytest.fixture
def quiet(monkeypatch):
    """A bench without a GPU; what is asked of the host's clock is noted."""
    asked = []
    monkeypatch.setattr(bench, "wait", lambda: None)
    monkeypatch.setattr(bench, "reset_persisting_lines", lambda: asked.append("reset"))
    monkeypatch.setattr(
        bench, "host_samples",
        lambda step, count, clock=None: asked.append((step, count, clock)) or [7e-5, 6e-5],
    )  # fmt: skip
    one = Bench.__new__(Bench)
    one.protocol, one._graphs, one.clock, one._restore_flush = (
        Protocol(graph_below_s=2e-5),
        None,
        "clock",
        None,
    )
    one.refused = []
    one._refuse_other_streams = lambda rotation, seconds: one.refused.append(seconds)
    return SimpleNamespace(bench=one, asked=asked)


@pytest.mark.parametrize(
    ("rotation", "seconds", "log"),
    [
        (Turns(), 2e-5, ["call", "learn", ("samples", 2)]),  # at the limit of graphs
        (Turns(samples=(1.9e-5, 3e-5)), 1.9e-5,
         ["call", "learn", ("samples", 2), ("issue", 1.9e-5)]),
        (Turns(first=1e-5), 1e-5, ["call", "learn", ("samples", 2), ("issue", 1e-5)]),
        (Turns(waits=True, first=1e-6), 6e-5, ["call", "learn", ("issue", 6e-5)]),
    ],
)  # fmt: skip
def test_a_first_time_is_the_least_and_short_calls_learn_what_the_host_takes(
    quiet, rotation, seconds, log
):
    assert quiet.bench.first_time(rotation) == seconds and quiet.bench.refused == [seconds]
    assert rotation.log == log
    assert quiet.asked == ["reset"] + ([("step", 2, None)] if rotation.waits else [])


def test_launches_are_those_of_a_graph_that_is_made_once(quiet, monkeypatch):
    made = []
    drawing = SimpleNamespace(launches=lambda call: call() or ["a", "b"])
    monkeypatch.setattr(bench, "graphs", lambda: made.append(1) or drawing)
    one, rotation = quiet.bench, Turns()
    assert one.launches(rotation) == ["a", "b"] == one.launches(rotation) and made == [1]
    assert rotation.log == ["call", "forget"] * 2
    assert one.launches(Turns(waits=True)) is None


@pytest.mark.parametrize(("least", "possible"), [(2.0, True), (2.0000001, False)])
def test_a_time_at_its_bound_is_possible(least, possible):
    one = Bench.__new__(Bench)
    one.protocol, one.bound_s, one.hot_bound_s = Protocol(bound=0.5), least, 0.0
    timed = SimpleNamespace(method="graph", rotation=SimpleNamespace(issued_s=None))
    with nullcontext() if possible else pytest.raises(bench.Impossible):
        assert one.summarise(timed, [Window((1.0,))] * 6, "cold").median_s == 1.0


@pytest.mark.parametrize(("copies", "host_s"), [(None, 5e-5), (3e-5, 8e-5)])
def test_samples_of_a_graph_share_its_time_among_its_calls(monkeypatch, copies, host_s):
    begun = []

    def begin(step, count, clock):
        begun.append((step, count, clock))
        return SimpleNamespace(seconds=lambda: [8e-5, 4e-5])

    monkeypatch.setattr(bench, "begin_samples", begin)
    held = SimpleNamespace(host_s=copies, seconds=1e-6) if copies else None
    rotation = SimpleNamespace(copies=held, flush="flush", turn_over="turn over", sets=[1, 2])
    timed = BenchTime("graph", rotation, 4, 1e-5, "clock", SimpleNamespace(replay="replay"))
    assert timed.samples(3) == [2e-5, 1e-5]
    (step, count, clock) = begun[0]
    assert (step.call, count, clock) == ("replay", 3, None)
    assert (step.host_s, step.device_s) == (pytest.approx(host_s), pytest.approx(4e-5))
    assert step.flush == ("turn over" if copies else "flush")


def test_the_time_of_restores_is_subtracted_pair_by_pair(monkeypatch):
    begun, log = [], []

    def begin(step, count, clock):
        begun.append((step.device_s, count))
        for _ in range(count):
            step.call()
        return SimpleNamespace(seconds=lambda: [9e-5, 1e-5, 8e-5, 2e-5])

    monkeypatch.setattr(bench, "begin_samples", begin)
    rotation = SimpleNamespace(copies=SimpleNamespace(seconds=3e-6), flush=None, sets=[1])
    whole, restores = (SimpleNamespace(replay=lambda n=n: log.append(n)) for n in "wr")
    timed = BenchTime("graph", rotation, 4, 1e-5, None, whole, restores)
    assert timed.samples(2) == [pytest.approx(2e-5), pytest.approx(1.5e-5)]
    assert log == ["w", "r", "w", "r"] and begun == [(pytest.approx(1.2e-5), 4)]


def test_a_window_has_as_many_samples_as_fill_it_and_the_least(monkeypatch):
    counts = []

    def begin(step, count, clock):
        counts.append(count)
        return SimpleNamespace(seconds=lambda: [1e-5] * count)

    monkeypatch.setattr(bench, "begin_samples", begin)
    rotation = SimpleNamespace(copies=None, flush=None, sets=[1], issued_step=lambda s: s)
    clock = SimpleNamespace(mhz=lambda: 1500.0)
    timed = BenchTime("events", rotation, 1, 0.25, clock)
    assert timed.window(1.0) == Window((1e-5,) * 4, 1500.0)
    assert timed.window(1.01, 2).samples_s == (1e-5,) * 5
    assert timed.window(0.0).samples_s == (1e-5,) and timed.window(0.0, 3).samples_s == (1e-5,) * 3
    assert replace(timed, clock=None).window(0.0).sm_mhz is None


# Calls in rotation


@pytest.fixture
def still(monkeypatch):
    """Nothing waits, and each issued call takes one second more than the one before."""
    from workbench.measurement import rotation

    waits = []
    monkeypatch.setattr(rotation, "wait", lambda: waits.append(1))

    def issue_s(call):
        call()
        return float(len(waits))

    monkeypatch.setattr(rotation, "issue_s", issue_s)
    return waits


class Restoring:
    """Copies whose restores are counted."""

    def __init__(self, seconds=0.0):
        self.restored, self.host_s, self.seconds = 0, 2e-5, seconds

    def restore(self):
        self.restored += 1

    def call_inputs(self, inputs, turn):
        return (*inputs, turn)


@pytest.mark.parametrize(
    ("device_s", "issued"), [(1e-3, 1), (5e-4, 2), (2e-3, 1), (1e-4, 9), (1.6e-4, 6), (0.0, 9)]
)
def test_the_host_s_time_is_learnt_from_calls_on_the_first_set(still, device_s, issued):
    called = []
    rotation = Rotation(lambda x, config: called.append(x) or x, None, [("a",), ("b",), ("c",)])
    rotation._turn, rotation.copies = 5, None
    rotation._issue_times.append(99.0)
    rotation.learn_issue(device_s)
    assert called == ["a"] * (1 + issued) and rotation._turn == 5
    assert len(still) == issued + 2 and len(rotation._issue_times) == issued
    assert rotation.issued_s == 2.0 + (issued - 1) / 2  # the first is the second that waits


def test_outputs_are_kept_by_set_and_copies_by_turn(still):
    rotation = Rotation(lambda *x, config: x, None, [("a",), ("b",)], copies=Restoring())
    for _ in range(3):
        rotation.restored_call()
    assert rotation.outputs == {0: ("a", 2), 1: ("b", 1)} and rotation.copies.restored == 3
    rotation.learn_issue(1.0)
    assert rotation.copies.restored == 5
    assert Rotation(None, None, []).issued_s is None


@pytest.mark.parametrize(
    ("copies", "flush", "turn", "flushed"),
    [(False, True, 0, 1), (False, True, 1, 0), (False, True, 2, 1), (True, True, 1, 1),
     (True, True, 2, 1), (True, False, 0, 0)],
)  # fmt: skip
def test_a_flush_comes_before_a_new_round_or_behind_a_restore(copies, flush, turn, flushed):
    done = []
    rotation = Rotation(None, None, [1, 2], (lambda: done.append(1)) if flush else None,
                        Restoring() if copies else None)  # fmt: skip
    rotation._turn = turn
    rotation.turn_over()
    assert (len(done) == flushed and not copies) or rotation.copies.restored == 1
    step = rotation.step(3e-6)
    assert step.flush == rotation.turn_over and step.device_s == 3e-6
    assert step.host_s == pytest.approx(7e-5 if copies else 5e-5)
    assert rotation.issued_step(1e-6).call == rotation.issue
    assert Rotation(None, None, [1]).step().flush is None


@pytest.mark.parametrize(("waits", "host_s"), [(False, 3e-6), (True, 5e-5)])
def test_a_call_that_waits_says_nothing_of_the_host(monkeypatch, waits, host_s):
    from workbench.measurement import rotation as module

    monkeypatch.setattr(module, "first_call", lambda step: FirstCall(1e-5, 3e-6, waits))
    rotation = Rotation(None, None, [1])
    assert rotation.learn() == FirstCall(1e-5, 3e-6, waits)
    assert (rotation.waits, rotation.host_s) == (waits, host_s)


def test_the_peak_of_memory_is_that_beyond_what_is_held(monkeypatch, still):
    cuda = SimpleNamespace(memory_allocated=lambda: 100, max_memory_allocated=lambda: 350,
                           reset_peak_memory_stats=lambda: order.append("reset"))  # fmt: skip
    monkeypatch.setattr(torch, "cuda", cuda)
    order = []
    rotation = Rotation(lambda x, config: order.append("call") or x, None, [("a",)])
    rotation.outputs[0] = ("old",)
    assert rotation.peak_bytes() == 250 and order == ["reset", "call"] and still == [1]


# Copies of inputs that a launch changes


def test_copies_are_given_in_turn_and_restored_at_once(monkeypatch):
    monkeypatch.setattr(mutated, "first_call", lambda step: FirstCall(1e-6, 2e-6, False))
    x, y, z = torch.ones(2), torch.zeros(3), torch.full((2,), 5.0)
    copies = Copies.create({0: x, 2: z}, 3)
    assert (copies.count, copies.seconds, copies.host_s) == (3, 1e-6, 2e-6)
    taken = [copies.call_inputs((x, y, z), turn) for turn in range(7)]
    memory = [given[0].data_ptr() for given in taken]
    assert memory[:3] == memory[3:6] and len(set(memory)) == 3 and memory[6] == memory[0]
    assert all(given[1] is y for given in taken) and x.data_ptr() not in memory
    taken[1][0].fill_(9)
    taken[2][2].fill_(9)
    copies.restore()
    assert taken[1][0].tolist() == [1.0, 1.0] and taken[2][2].tolist() == [5.0, 5.0]
    less = copies.first(2)
    assert less.count == 2 and less.call_inputs((x, y, z), 3)[0].data_ptr() == memory[1]


@pytest.mark.parametrize(("count", "step"), [(0, 128), (1, 128), (128, 128), (129, 256)])
def test_each_copy_begins_at_512_bytes(count, step):
    x = torch.ones(count)
    assert mutated._step(x) == step
    assert mutated.stack_copies(x, 3).shape == (3, count)
    assert mutated.stack_copies(torch.ones(2, 3).T, 2).stride() == (128, 1, 3)


@pytest.mark.parametrize(
    ("wanted", "free", "count", "room"),
    [(1, 1 << 20, 1, 1), (2, 1 << 20, 2, 2), (3, 1 << 20, 3, 4), (5, 1 << 20, 5, 8),
     (5, 2 * 512 * 2, 2, 2), (5, 2 * 512 * 2 - 1, 1, 1), (5, 0, 1, 1)],
)  # fmt: skip
def test_room_is_made_for_a_power_of_two_within_half_of_the_memory(
    monkeypatch, wanted, free, count, room
):
    monkeypatch.setattr(mutated, "first_call", lambda step: FirstCall(1e-6, 2e-6, False))
    monkeypatch.setattr(mutated, "free_bytes", lambda: free)
    made = []
    real = mutated.stack_copies
    monkeypatch.setattr(mutated, "stack_copies", lambda x, n: made.append(n) or real(x, n))
    working = Working({"x": torch.ones(4), "y": torch.ones(4)})
    assert working.copies(("y",), wanted).count == count and made == [room]
    assert working.copies(("y",), wanted) is working.copies(("y",), wanted)
    assert working.copies(("y",), 1).count == 1 and made == [room]


# Graphs


class TorchStream:
    """A stream that notes who it waits for."""

    def __init__(self, log, name):
        self.log, self.name, self.cuda_stream = log, name, 3

    def wait_stream(self, other):
        self.log.append(f"{self.name} waits for {other.name}")

    def synchronize(self):
        self.log.append(f"{self.name} ends")


@pytest.fixture
def streams(monkeypatch):
    """Streams and graphs of torch that note what they do."""
    log = []
    current, own = TorchStream(log, "current"), TorchStream(log, "own")

    class Made:
        def capture_begin(self, pool, capture_error_mode):
            log.append(f"begin {pool} {capture_error_mode}")

        def capture_end(self):
            log.append("end")

        def replay(self):
            log.append("replay")

    cuda = SimpleNamespace(stream=lambda stream: nullcontext(), current_stream=lambda: current,
                           graph_pool_handle=lambda: "pool")  # fmt: skip
    fake = SimpleNamespace(cuda=cuda, version=SimpleNamespace(hip=None))
    monkeypatch.setattr(graphs, "torch", fake)
    monkeypatch.setattr(graphs, "TorchGraph", Made)
    monkeypatch.setattr(graphs, "_stream", lambda: own)
    monkeypatch.setattr(graphs, "second_stream", lambda: TorchStream(log, "second"))
    return SimpleNamespace(log=log, fake=fake)


def test_torch_captures_between_two_waits(streams):
    made = graphs.TorchGraphs()
    made.capture(2, lambda: streams.log.append("call"))
    assert streams.log == ["own waits for current", "begin pool thread_local", "call", "call",
                           "end", "current waits for own"]  # fmt: skip
    del streams.log[:]
    with pytest.raises(graphs.NotCapturable, match="no graph can hold it: division by zero"):
        made.capture(1, lambda: 1 / 0)
    assert streams.log == ["own waits for current", "begin pool thread_local", "end"]
    assert made.kernels(None) is None and made.launches(None) is None


@pytest.mark.parametrize("hip", [None, "6"])
def test_a_call_beside_runs_as_a_graph_on_cuda_and_by_itself_on_hip(monkeypatch, streams, hip):
    streams.fake.version.hip = hip
    capture = SimpleNamespace(
        capture=lambda calls, call: call() or streams.log.append(f"captured {calls}")
        or SimpleNamespace(replay=lambda: streams.log.append("replay"))
    )  # fmt: skip
    monkeypatch.setattr(graphs, "_driver_graphs", lambda: capture)
    graphs.run_beside(lambda: streams.log.append("call"))
    cuda = ["call", "captured 1", "replay", "second ends"]
    assert streams.log == (["call", "second ends"] if hip else cuda)
    monkeypatch.setattr(graphs, "TorchGraphs", lambda: "torch")
    monkeypatch.setattr(graphs, "DriverGraphs", lambda: "driver")
    assert graphs.graphs() == ("torch" if hip else "driver")
    asked = []
    monkeypatch.setattr(graphs, "_ask", asked.append)
    graphs.reset_persisting_lines()
    assert asked == ([] if hip else ["cuCtxResetPersistingL2Cache"])


# Streams


@pytest.mark.parametrize(
    ("host_s", "device_s", "lag_s"), [(1e-5, 0.0, 1.2e-5), (1e-5, 2e-6, 1e-5), (1e-5, 2e-5, 0.0)]
)
def test_the_host_is_behind_by_a_fifth_more_than_it_takes(host_s, device_s, lag_s):
    assert stream.TimerStep(None, host_s, device_s).lag_s == pytest.approx(lag_s)


def test_a_timer_s_step_is_the_least_difference_above_a_tenth_of_a_nanosecond():
    assert stream.least_step_s([3e-6, 1e-6, 1.00001e-6, 1.5e-6]) == pytest.approx(0.5e-6)
    assert stream.least_step_s([1e-6, 1.0002e-6]) == pytest.approx(2e-10)
    with pytest.raises(ValueError, match="stands still"):
        stream.least_step_s([1e-6, 1e-6])


# Energy


class Steps:
    """A counter and a load on one clock: the counter gains 1 J at each whole tenth of a second, and
    a call is done each 0.05 s. A look at the clock takes nothing, a pause 1 ms."""

    def __init__(self):
        self.ms, self.fed, self.drained, self.estimate_s, self.regime = 0, [], 0, 0.05, "cold"
        self.source = "counter"

    def millijoules(self):
        return 1000 * (self.ms // 100)

    def feed(self):
        self.fed.append(self.ms)
        return self.ms // 50

    def drain(self):
        self.drained += 1

    def pause(self):
        self.ms += 1

    def now(self):
        return self.ms / 1000


@pytest.mark.parametrize(
    ("rules", "window"),
    [
        # 0.3 s of three steps before it: the update at 0.3 s is past its start; then 0.4 s, and the
        # update behind them
        (energy.Rules(steps=1, least_s=0.4, least_calls=1, lead_steps=3, lead_s=0.0), (0.3, 0.8)),
        (energy.Rules(steps=6, least_s=0.0, least_calls=1, lead_steps=0, lead_s=0.25), (0.3, 1.0)),
        (energy.Rules(steps=1, least_s=0.0, least_calls=9, lead_steps=0, lead_s=0.0), (0.1, 0.6)),
    ],
)
def test_a_window_of_energy_lasts_its_steps_seconds_and_calls(rules, window):
    step = Steps()
    meter = energy.Meter(step, energy.Clock(step.now, step.pause), rules)
    meter.step_s = 0.1
    taken = meter.window(step)
    start, end = window
    assert taken.lasted_s == pytest.approx(end - start)
    assert taken.joules == pytest.approx(10 * (end - start))
    assert taken.calls == pytest.approx(20 * (end - start), abs=0.05)
    assert step.drained == 1 and step.ms >= round(end * 1000)


def test_what_is_done_is_counted_between_two_looks():
    progress = [(1.0, 0), (2.0, 4), (4.0, 8)]
    for at_s, calls in ((0.0, 0), (1.0, 0), (1.5, 2), (2.0, 4), (3.0, 6), (4.0, 8), (9.0, 8)):
        assert energy.done_at(progress, at_s) == calls


@pytest.mark.parametrize("fails", [0, 1, 2, 3])
def test_a_window_is_taken_again_twice_where_the_counter_fell(fails):
    tries = []

    def take():
        tries.append(1)
        if len(tries) <= fails:
            raise energy.WentBack("fell")
        return "window"

    with pytest.raises(energy.WentBack) if fails == 3 else nullcontext():
        assert energy._again(take, 2) == "window"
    assert len(tries) == min(fails + 1, 3)


def test_the_energy_of_windows_is_their_median():
    windows = [energy.EnergyWindow(j, s, c) for j, s, c in
               ((2.0, 1.0, 4.0), (9.0, 2.0, 6.0), (4.0, 4.0, 2.4))]  # fmt: skip
    found = energy.energy_of(windows, 50.0, 0.1, "counter", "warm")
    assert found.joules == 1.5 and found.power_w == 2.0 and found.window_s == 2.0
    assert (found.calls, found.windows, found.idle_w, found.regime) == (12, 3, 50.0, "warm")
    assert found.window_joules == (0.5, 1.5, pytest.approx(4 / 2.4))
    assert energy.energy_of(windows, 50.0, 0.1, "counter", "cold").regime == "cold"


# Rounds


class Timed:
    """An entrant of windows that all have one median."""

    def __init__(self, seconds):
        self.seconds, self.begun = seconds, []

    def begin(self, seconds, least=1):
        self.begun.append(seconds)
        return SimpleNamespace(window=lambda: Window((self.seconds,)))


def test_each_window_of_the_state_boost_follows_a_pause():
    rests, entrants = [], {"a": Timed(1.0), "b": Timed(2.0)}
    rules = replace(BOOST, first_pause_s=5.0, pause_s=0.5, window_s=0.25, rounds=3)
    windows = rounds.rested_windows(entrants, rules, rests.append)
    assert rests == [5.0] + [0.5] * 6 and entrants["a"].begun == [0.25] * 3
    assert [w.samples_s for w in windows["b"]] == [(2.0,)] * 3
    assert rounds.rested_windows({}, rules, rests.append) == {} and len(rests) == 7


@pytest.mark.parametrize(
    ("word", "noise", "is_decided"),
    [("SAME", 0.01, True), ("SAME", 0.0101, False), ("SLOWER", 0.5, True),
     ("INCONCLUSIVE", 0.0, False)],
)  # fmt: skip
def test_a_verdict_is_final_where_the_noise_reaches_the_threshold(word, noise, is_decided):
    result = SimpleNamespace(word=word, noise=noise, requested_threshold=0.01)
    assert rounds._is_final(result) is is_decided


def test_pairs_of_rounds_are_geometric_means_of_both():
    windows = [Window((s,), mhz) for s, mhz in ((1.0, 1.0), (4.0, 4.0), (9.0, 1.0), (4.0, 1.0))]
    assert rounds._times(windows, [0, 2]) == [2.0, 6.0]
    ratio = rounds._cycles(windows, [replace(w, sm_mhz=2 * w.sm_mhz) for w in windows], [0, 2], 0.5)
    assert ratio.middle == pytest.approx(2.0)
    assert (
        rounds._cycles(windows, [replace(windows[0], sm_mhz=None), *windows[1:]], [0], 0.5) is None
    )


def test_windows_follow_one_another_without_a_pause():
    """A window lasts from the end of the one before; one that knows its duration keeps it."""
    log = []

    def entrant(name, lasted_s):
        def begin(seconds):
            log.append(f"begin {name} {seconds}")
            window = Window((1.0,), lasted_s=lasted_s)
            return SimpleNamespace(window=lambda: log.append(f"end {name}") or window)

        return name, SimpleNamespace(begin=begin)

    looks = iter((0.0, 3.0, 7.0, 12.0))
    some = (entrant(n, s) for n, s in (("a", None), ("b", 0.5), ("c", None)))
    taken = list(rounds.stream(some, 0.25, lambda: next(looks)))
    assert [(key, window.lasted_s) for key, window in taken] == [("a", 3.0), ("b", 0.5), ("c", 5.0)]
    assert log == ["begin a 0.25", "begin b 0.25", "end a", "begin c 0.25", "end b", "end c"]
    assert list(rounds.stream([], 1.0, lambda: 0.0)) == []


def test_an_interval_at_the_precision_of_the_protocol_is_narrow():
    """The interval of these eight medians by order is all of them: 1 to 3, a half of 2."""
    medians = [1.0, 3.0] * 4
    assert rounds.stats.median_interval(medians) == (1.0, 3.0)
    low, high = rounds.stats.interval(medians)
    wider = (high - low) / 2 / 2.0
    assert wider == pytest.approx(0.5) or wider > 0.5
    exact = replace(Protocol(), precise=max(0.5, wider))
    assert rounds._narrow(medians, exact)
    assert not rounds._narrow(medians, replace(exact, precise=0.499))


def test_a_pair_of_rounds_with_a_throttled_window_is_left_out():
    """Twelve pairs of 1 s and 2 s; in the second, a window of the right operand is slow."""
    left = [Window((1.0,), 1000.0)] * 24
    right = [Window((2.0,), 1000.0)] * 24
    right[3] = Window((9.0,), 700.0)
    found = rounds.decide(left, left, right, Protocol(throttled=0.75), 0.01)
    assert (found.word, found.time.middle, found.rounds) == ("SLOW", 2.0, 24)
    assert found.time.high == found.cycles.low == 2.0
    slow = [Window((2.0,), 1000.0 if n % 2 else 100.0) for n in range(24)]
    found = rounds.decide(left, left, slow, Protocol(throttled=0.75), 0.01)
    assert found.word == "INCONCLUSIVE"
    assert found.reason == ("too few of 24 rounds ran at the usual clock: the GPU was throttled")


# Values between processes


@pytest.mark.parametrize(
    ("shape", "strides", "bytes_", "fits"),
    [((2, 3), (3, 1), 24, True), ((2, 3), (1, 2), 24, True), ((0, 3), (3, 1), 0, True),
     ((), (), 4, True), ((2, 3), (0, 1), 12, True), ((2, 3), (3, 1), 20, False),
     ((2,), (3, 1), 16, False), ((2, 3), (3, -1), 24, False), ((2.0, 3), (3, 1), 24, False),
     ((-1, 3), (3, 1), 0, False), ((True, 3), (3, 1), 12, False)],
)  # fmt: skip
def test_bytes_that_travel_have_the_extent_of_their_shape(shape, strides, bytes_, fits):
    values = packed.Packed("float32", shape, strides, bytes(bytes_))
    with nullcontext() if fits else pytest.raises(packed.Unpackable):
        made = packed.unpack_tensor(values)
        assert tuple(made.shape) == shape and made.stride() == strides


def test_a_tensor_comes_back_with_its_strides():
    x = torch.arange(12, dtype=torch.int16).reshape(3, 4).T[1:, :2]
    values = packed.pack_tensor(x)
    assert (values.dtype, values.shape, values.strides) == ("int16", (3, 2), (1, 4))
    assert len(values.data) == 2 * (1 + 2 * 1 + 1 * 4)
    assert torch.equal(packed.unpack_tensor(values), x)
    for dtype in ("nothing", "Tensor", ""):
        with pytest.raises(packed.Unpackable, match="there is no dtype"):
            packed.unpack_tensor(replace(values, dtype=dtype))


def test_expected_values_lie_in_no_memory_of_the_inputs():
    x = torch.ones(2, dtype=torch.float64)
    made = torch.zeros(2, dtype=torch.float64)
    spec = replace(spec_of(y=Tensor("N"), z=Tensor("N")), reference=lambda x: (x, made))
    first, second = reference.reference_outputs(spec, (x,), {"N": 2})
    assert first.tolist() == [1.0, 1.0] and first.data_ptr() != x.data_ptr()
    assert second.data_ptr() == made.data_ptr()


@pytest.mark.parametrize(
    ("output", "fault"),
    [
        (torch.ones(2, dtype=torch.complex128), "as torch.complex128 in the layout torch.strided"),
        (
            torch.ones(2, dtype=torch.float64).to_sparse(),
            "as torch.float64 in the layout torch.sparse_coo",
        ),
        (torch.ones(2, dtype=torch.float64, device="meta"), "on meta, while its inputs are on cpu"),
        (torch.ones(2), "in torch.float32, no more exact than a kernel"),
        (torch.ones(3, dtype=torch.float64), "the shape (3,), where its axes 'N' say (2,); ret"),
        (torch.ones(2, dtype=torch.int64), None),
    ],
)
def test_outputs_of_a_reference_are_dense_numbers_where_its_inputs_are(output, fault):
    spec = replace(spec_of(y=Tensor("N")), reference=lambda x: output)
    if fault is None:
        assert reference.reference_outputs(spec, (torch.ones(2),), {"N": 2})[0].tolist() == [1, 1]
        return
    with pytest.raises(reference.SpecFault) as error:
        reference.reference_outputs(spec, (torch.ones(2),), {"N": 2})
    assert f"the reference of the Spec k at N=2 gives y {fault}"[4:] in str(error.value)


def test_outputs_of_a_launch_are_as_many_dense_tensors_on_the_device():
    spec = spec_of(y=Tensor("N"), z=Tensor("N"))
    x, wide = torch.ones(2), torch.ones(2, 2)
    fault = reference.returned_fault
    assert fault(spec, (x, x), (x, x)) is None
    assert fault(spec, (x,), (x, x)) == (
        "the launch returned 1 outputs where 2 were expected (the Spec declares y, z)")  # fmt: skip
    assert fault(spec, (x, wide), (x, x)) == (
        "z has shape (2, 2) where (2,) was expected (the Spec's axes 'N')")  # fmt: skip
    assert fault(spec, (x, x.to("meta")), (x, x)) == "z is on meta where the inputs are on cpu"
    assert "z is not dense: its layout is torch.sparse_coo" in fault(
        spec, (x, x.to_sparse()), (x, x))  # fmt: skip
    assert "returned 3 where the Spec declares y, z; return tensors" in fault(spec, (x, 3), (x, x))
    assert "returned no tensor where" in fault(spec, (x, [3]), (x, x))
    assert solve_sizes({"x": Tensor("N M")}, (wide,)) == {"N": 2, "M": 2}


def test_the_time_of_a_rehearsal_follows_from_its_name_and_turn():
    """The first byte of SHA-256 of `a 1` is 0x4d... worked out by hashlib here, too."""
    import hashlib

    driver = rehearsal.RehearsalDriver()
    call = rehearsal.RehearsalCall(driver, 1e-4, "a")
    for turn in (1, 2):
        byte = hashlib.sha256(f"a {turn}".encode()).digest()[0]
        work_s = 10 * (rehearsal.DISPATCH_S + 1e-4) * (1 + 1e-3 * (byte / 255 - 0.5))
        before = driver.now()
        assert call.seconds(10) == pytest.approx(rehearsal.EVALUATION_S + work_s, rel=1e-12)
        assert driver.now() - before == pytest.approx(rehearsal.EVALUATION_S + work_s)


def test_bytes_that_are_copied_are_the_largest_size(monkeypatch):
    """Sizes of 64 and 256 bytes: 32 random words, of which the first 8 are sent, too."""
    sent = []
    monkeypatch.setattr(transfers, "SIZES", (64, 256))
    monkeypatch.setattr(
        transfers, "_Copy",
        SimpleNamespace(create=lambda d, p, data: sent.append(data)
                        or SimpleNamespace(begin=lambda seconds, least: None)),
    )  # fmt: skip
    transfers._entrants.__wrapped__()
    assert sent[-1].untyped_storage().nbytes() == 256 and len(sent[0]) == 64
    assert transfers.SIZES == (64, 256) and len(set(sent[-1].tolist())) > 50


@pytest.mark.parametrize(("right", "timed"), [(True, True), (False, False)])
def test_a_copy_that_did_not_arrive_has_no_time(right, timed):
    entrant = SimpleNamespace(has_arrived=lambda: right)
    windows = [Window((1.0, 2.0)), Window((3.0,))]
    copied = transfers._copy_result(("d2h", False, 64), entrant, windows)
    assert (copied.direction, copied.is_pinned, copied.bytes, copied.right) == (
        "d2h",
        False,
        64,
        right,
    )
    assert (copied.timing is not None) is timed
    if timed:
        assert copied.timing.median_s == 2.0 and copied.timing.window_sizes == (2, 1)
        assert (copied.timing.regime, copied.timing.method, copied.timing.rounds) == (
            "hot",
            "host",
            2,
        )


def test_where_any_axis_shares_memory_an_input_is_not_copied_into(monkeypatch):
    monkeypatch.setattr(handover, "_places", {})
    wide = torch.ones(1, 3).expand(2, 3)
    assert handover._place_input(0, wide) is wide and handover._places == {}
    turned = torch.ones(3, 1).expand(3, 2)
    assert handover._place_input(0, turned) is turned and handover._places == {}


# Operators of launchers


def test_operators_inside_a_launch_are_its_own(monkeypatch):
    """A launch inside another one is still one: what torch does in either is left out."""
    from triton.runtime import interpreter

    from workbench import dsl

    class Grid:
        def __init__(self, name, inside):
            self.fn, self.inside = SimpleNamespace(__name__=name), inside

        def __call__(self, x):
            self.inside(x)
            return x.neg()

    monkeypatch.setattr(dsl, "INTERPRETED", True)
    monkeypatch.setattr(interpreter, "GridExecutor", Grid)
    real, seen = Grid.__call__, observed.Observed()
    x, inner = torch.ones(2), Grid("inner", lambda x: x.mul(2))
    outer = Grid("outer", lambda x: (inner(x), x.mul(3)))
    with observed.observing(seen):
        x.add(1)
        outer(x)
        x.sub(1)
    assert seen.launches == ["outer", "inner"] and seen.operators == ["add", "sub"]
    assert Grid.__call__ is real
    monkeypatch.setattr(dsl, "INTERPRETED", False)
    with observed.observing(seen):
        assert Grid.__call__ is real


# A Mac's process


@pytest.fixture
def mac(monkeypatch):
    """Checks by errors of their sizes on a clock that goes on by one second at each look."""
    log = []

    def checked(impl, config, sizes):
        if sizes["N"] == 13:
            raise RuntimeError("the driver fails")
        wrong = "it is 3 off" if sizes["N"] == 12 else None
        return correctness.Checked(1 / sizes["N"], wrong, "values" if wrong else None)

    def of(spec, sizes, dtype, device, seed):
        log.append((dict(sizes), dtype, device, seed))
        return type("Problem", (dict,), {"inputs": ("x",)})(sizes)

    monkeypatch.setattr(metal_worker, "check", checked)
    monkeypatch.setattr(metal_worker, "PreparedProblem", SimpleNamespace(make=of))
    monkeypatch.setattr(metal_worker, "_results", {})
    monkeypatch.setattr(metal_worker, "CHECKED_FLOPS", 100)
    monkeypatch.setattr(metal_worker, "CHECKED_BYTES", 50)
    looks = iter((0.0, 7.0, 9.0))

    def run(sizes, *, check=({"N": 2}, {"N": 4}), mutates=(), refused=(), flops=1, bytes_=1):
        spec = SimpleNamespace(
            check=check, flops=lambda N: flops, held_bytes=lambda s, dtype: bytes_
        )
        impl = type("Impl", (), {
            "mutates": mutates, "title": "k.a", "__call__": lambda self, x, config: log.append(x),
            "rejection_reason": lambda self, *at: "no" if at[-1]["N"] in refused else None,
        })()  # fmt: skip
        monkeypatch.setattr(metal_worker, "resolve_task", lambda task: (spec, impl, "config"))
        task = metal_worker.MetalTask(
            "k", SimpleNamespace(key="key"), sizes, "fp32", SimpleNamespace(limits=None)
        )
        driver = SimpleNamespace(now=lambda: next(looks), checked_by="gpu")
        return metal_worker._check(task, driver, 5)

    return SimpleNamespace(run=run, log=log)


@pytest.mark.parametrize(
    ("more", "sizes"),
    [
        ({}, [2, 4, 8]),
        ({"flops": 100, "bytes_": 50}, [2, 4, 8]),  # at both limits
        ({"flops": 101}, [2, 4]),
        ({"bytes_": 51}, [2, 4]),
        ({"refused": (2,)}, [4, 8]),
        ({"check": ({"N": 8}, {"N": 4})}, [8, 4]),  # its own is among them
    ],
)
def test_a_mac_checks_at_its_sizes_and_at_the_task_s_where_it_is_small(mac, more, sizes):
    found = mac.run({"N": 8}, **more)
    tried = [entry for entry in mac.log if entry != "x"]
    assert tried == [({"N": n}, "fp32", "cpu", 5) for n in sizes]
    assert found.check.error == 1 / min(sizes) and (found.compile_s, found.checker) == (5.0, "gpu")
    assert mac.log.count("x") == 2  # the first call compiles, at the first size


def test_a_mac_says_at_which_sizes_a_check_fails(mac):
    assert mac.run({"N": 8}, check=({"N": 2}, {"N": 12}, {"N": 4})) == Refusal(
        "check", "at N=12 it is 3 off", rule="values")  # fmt: skip
    assert [entry[0] for entry in mac.log if entry != "x"] == [{"N": 2}, {"N": 12}]
    assert mac.run({"N": 8}, check=({"N": 13},), mutates=("x",)) == Refusal(
        "launch", "at N=13: RuntimeError: the driver fails")  # fmt: skip
    assert mac.run({"N": 8}, check=(), flops=101).reason == (
        "it takes none of the sizes to check, so its result is unchecked")  # fmt: skip
    found = mac.run({"N": 8}, mutates=("x",))
    assert found.compile_s == 0.0 and found.check.error == 0.5


def test_a_mac_keeps_the_check_of_a_config(monkeypatch):
    made = []
    monkeypatch.setattr(metal_worker, "_results", {})
    monkeypatch.setattr(metal_worker, "_check", lambda task, *given: made.append(task) or len(made))
    tasks = [SimpleNamespace(kernel=k, candidate=SimpleNamespace(key=key))
             for k, key in (("k", "a"), ("k", "b"), ("m", "a"), ("k", "a"))]  # fmt: skip
    assert [metal_worker.check_task(task, None, 0) for task in tasks] == [1, 2, 3, 1]


@pytest.mark.parametrize(
    ("regime", "median_s", "brief", "timed"),
    [("cold", 2.0, True, True), ("cold", 1.999, True, False), ("hot", 0.1, True, True),
     ("cold", 2.0, False, True)],
)  # fmt: skip
def test_a_mac_s_time_at_its_bound_is_possible(monkeypatch, regime, median_s, brief, timed):
    monkeypatch.setattr(metal_worker, "_bound_s", lambda task: 4.0)
    asked = []

    def measured(windows, warm, rules, regime, stable, compile_s):
        asked.append((windows, warm, regime, stable, compile_s))
        return SimpleNamespace(median_s=median_s)

    monkeypatch.setattr(metal_worker, "measured_time", measured)
    monkeypatch.setattr(metal_worker.rounds, "stable", lambda windows, rules: False)
    checked = metal_worker.CheckedTask(correctness.Checked(0.5, bits="b"), 3.0, "gpu")
    result = metal_worker._time_call(
        SimpleNamespace(regime=regime), checked, SimpleNamespace(warm="warm"), ["w"],
        SimpleNamespace(bound=0.5), 8, brief,
    )  # fmt: skip
    assert asked == [(["w"], "warm", regime, brief, 3.0)]
    assert isinstance(result, metal_worker.Timed) is timed
    if timed:
        assert (result.error, result.check, result.bits, result.seed) == (0.5, "gpu", "b", 8)
    else:
        assert result.reason.startswith("2 s is below the roofline bound of 4 s")


def test_a_mac_s_tasks_keep_their_places(monkeypatch):
    """The first is wrong, the second cannot be prepared, the others take turns."""
    wrong, unable = Refusal("check", "wrong"), Refusal("launch", "unable")
    fine = metal_worker.CheckedTask(correctness.Checked(0.5), 1.0, "gpu")
    monkeypatch.setattr(
        metal_worker, "check_task", lambda task, driver, seed: wrong if task == 0 else fine
    )
    monkeypatch.setattr(
        metal_worker, "_entrant", lambda task, *given: unable if task == 1 else f"entrant {task}"
    )
    played, timed = [], []
    monkeypatch.setattr(
        metal_worker.rounds, "play",
        lambda entrants, turns, now: played.append((entrants, turns, now)) or
        {at: f"windows {at}" for at in entrants},
    )  # fmt: skip
    monkeypatch.setattr(
        metal_worker, "_time_call", lambda *given: timed.append(given) or f"time {given[0]}"
    )
    rules = MetalProtocol()
    driver = SimpleNamespace(now="now")
    for most in (None, 4):
        assert metal_worker.measure_tasks(range(4), rules, most, driver, 8) == [
            wrong, unable, "time 2", "time 3"]  # fmt: skip
    few = replace(rules, rounds=2, least_rounds=2, most_rounds=4)
    assert [turns for _, turns, _ in played] == [rules, few]
    assert played[0][0] == {2: "entrant 2", 3: "entrant 3"} and played[0][2] == "now"
    assert timed[0] == (2, fine, "entrant 2", "windows 2", rules, 8, False)
    assert timed[2][-1] is True
    monkeypatch.setattr(metal_worker, "mlx_driver", lambda: driver)
    assert metal_worker.measure_tasks([0], rules, None, None, 8) == [wrong]


def test_a_mac_s_comparison_says_which_operand_has_no_time(monkeypatch):
    wrong, other = Refusal("check", "wrong"), Refusal("measure", "gave no time", own=False)
    fine = metal_worker.CheckedTask(correctness.Checked(0.5), 1.0, "gpu")
    made = []

    def entrant(task, *given):
        made.append(task)
        return metal_worker.MetalEntrant.__new__(metal_worker.MetalEntrant)

    monkeypatch.setattr(metal_worker, "_entrant", entrant)
    monkeypatch.setattr(metal_worker, "check_task", lambda task, *given: task.check)
    left, right = (SimpleNamespace(check=fine, name=n) for n in ("left", "right"))
    bad = SimpleNamespace(check=wrong, name="bad")
    driver, rules = SimpleNamespace(now="now"), MetalProtocol()
    ask = metal_worker.compare_tasks
    assert ask(left, bad, 0.01, rules, driver, 8) == metal_worker.MetalPair(other, wrong, None)
    assert ask(bad, right, 0.01, rules, driver, 8) == metal_worker.MetalPair(wrong, other, None)
    del made[:]
    played = SimpleNamespace(left=["l"], right=["r"], verdict="verdict")
    asked = []
    monkeypatch.setattr(
        metal_worker.rounds, "compare", lambda *given: asked.append(given[3:]) or played
    )
    times = {"left": metal_worker.Timed(None, 0.0, "gpu"), "right": wrong}
    monkeypatch.setattr(metal_worker, "_time_call", lambda task, *given: times[task.name])
    assert ask(left, right, 0.01, rules, driver, 8) == metal_worker.MetalPair(
        times["left"], wrong, None)  # fmt: skip
    assert made == [left, left, right] and asked == [(rules, 0.01, "now")]
    times["right"] = times["left"]
    assert ask(left, right, 0.01, rules, driver, 8).verdict == "verdict"


# Where seconds end


def test_a_comparison_whose_seconds_are_over_is_decided_once(monkeypatch):
    """The clock stands still and no second is given: the fewest pairs of rounds, and one look."""
    looks, real = [], rounds.decide
    monkeypatch.setattr(rounds, "decide", lambda *given: looks.append(1) or real(*given))
    rules = replace(Protocol(), compare_s=0.0, settle_s=0.0, compare_rounds=48, doublings=2)
    found = rounds.compare(Timed(1.0), Timed(1.0), Timed(1.0), rules, 0.0, lambda: 0.0)
    fewest = 2 * rounds.stats.least_for(rounds.verdict.confidence_of(rules.looks))
    assert len(found.left) == len(found.again) == len(found.right) == fewest and looks == [1]


@pytest.mark.parametrize(("estimate_s", "calls", "piece_s"), [(1e-4, 4, 4e-4), (1e-9, 5, 1e-6)])
def test_a_piece_lasts_as_long_as_its_calls(estimate_s, calls, piece_s):
    load = back_to_back.BackToBack.__new__(back_to_back.BackToBack)
    load.estimate_s, load._calls = estimate_s, calls
    assert load.piece_s == pytest.approx(piece_s)


def test_a_load_runs_cold_without_flushes_and_not_at_all_with_copies(monkeypatch):
    rotation = SimpleNamespace(copies=None, flush=None, call="call")
    timed = SimpleNamespace(estimate_s=1e-3, rotation=rotation, graph=None, calls=2, method="host")
    load = back_to_back.BackToBack(timed)
    assert (load.regime, load._piece, load._waits) == ("cold", "call", True)
    rotation.flush, timed.graph = "flush", SimpleNamespace(replay="replay")
    load = back_to_back.BackToBack(timed)
    assert (load.regime, load._piece) == ("warm", "replay")
    rotation.copies = "copies"
    with pytest.raises(energy.EnergyError, match="changes its inputs"):
        back_to_back.BackToBack(timed)


def test_copies_of_other_inputs_stay_as_more_are_made(monkeypatch):
    monkeypatch.setattr(mutated, "first_call", lambda step: FirstCall(1e-6, 2e-6, False))
    monkeypatch.setattr(mutated, "free_bytes", lambda: 1 << 20)
    working = Working({"x": torch.ones(4), "y": torch.ones(4)})
    x, y = working.copies(("x",), 1), working.copies(("y",), 1)
    assert working.copies(("x",), 2).count == 2
    assert working.copies(("y",), 1) is y and working.copies(("x",), 1) is not x


def test_the_device_is_waited_for_where_any_input_is_on_it(monkeypatch):
    class On:
        def __init__(self, kind):
            self.device = SimpleNamespace(type=kind)

    spec = Spec("k", {"a": Tensor("N"), "b": Tensor("N")}, {"y": Tensor("N")}, None,
                lambda N: 0, [], [])  # fmt: skip
    impl = spec.impl(name="one", mutates=("a", "b"), backend="torch")(lambda a, b: a)
    monkeypatch.setattr(Poisoned, "copy", lambda self, x, name: x)
    waits = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append(1))
    for kinds, waited in ((("cpu", "cuda"), 1), (("cpu", "cpu"), 0), (("cuda", "cuda"), 1)):
        correctness.launch(impl, impl.config(), [On(kind) for kind in kinds])
        assert len(waits) == waited
        del waits[:]


def test_the_same_bits_of_another_dtype_or_shape_are_others():
    one, other = torch.ones(2), torch.ones(2).view(torch.int32)
    assert not correctness._same_bits(one, other) and correctness._same_bits(one, torch.ones(2))
    assert not correctness._same_bits(one, torch.ones(1, 2))
    assert not correctness._same_bits(one, torch.ones(2, device="meta"))


@pytest.mark.parametrize(
    ("dtype", "value"),
    [(torch.int16, 0x25), (torch.uint8, 0x25), (torch.int32, -0x5A5A5A5B),
     (torch.int64, -0x5A5A5A5B)],
)  # fmt: skip
def test_poison_of_memory_with_gaps_fits_its_dtype(dtype, value):
    whole = torch.zeros(4, 2, dtype=dtype)
    correctness._poison(whole[:, 0])
    assert whole.tolist() == [[value, 0]] * 4


@pytest.mark.parametrize(
    ("ticks", "mhz"),
    [((0, 0, 1, 5), 5000.0), ((0, 0, 5, 1), 200.0), ((0, 0, 0, 5), None), ((0, 0, 5, 0), None),
     ((5, 0, 4, 5), None)],
)  # fmt: skip
def test_a_clock_needs_a_tick_and_a_cycle(ticks, mhz):
    assert probe.Ticks(*ticks, 0).mhz(1.0) == mhz
    assert mhz is None or probe.Ticks(*ticks, 0).mhz(10.0) == mhz / 10


@pytest.mark.parametrize("intervals", [2, 8])
def test_a_step_is_read_from_one_update_more_than_intervals(intervals):
    step = Steps()
    meter = energy.Meter(
        step, energy.Clock(step.now, step.pause), energy.Rules(intervals=intervals)
    )
    assert meter.find_step() == pytest.approx(0.1) == meter.step_s
    assert step.ms == 100 * (intervals + 1)


@pytest.mark.parametrize(("regime", "cold_bytes"), [("cold", 77), ("hot", 0)])
def test_a_mac_s_call_is_warm_and_cold_by_its_regime(monkeypatch, regime, cold_bytes):
    asked = []
    monkeypatch.setattr(
        metal_worker, "resolve_task", lambda task: ("spec", SimpleNamespace(title="k.a"), "config")
    )
    monkeypatch.setattr(metal_worker.inputs, "make", lambda *given: asked.append(given[:4]) or "x")
    monkeypatch.setattr(
        metal_worker.MetalEntrant, "warm_up", lambda call, empty, rules: (call, empty, rules)
    )
    driver = SimpleNamespace(prepare=lambda *given: asked.append(given) or "call",
                             empty=lambda: "empty")  # fmt: skip
    task = SimpleNamespace(regime=regime, sizes={"N": 2}, dtype="fp32")
    rules = SimpleNamespace(cold_bytes=77)
    assert metal_worker._entrant(task, rules, driver) == ("call", "empty", rules)
    assert asked[0] == ("spec", {"N": 2}, "fp32", "cpu")
    assert asked[1][1:] == ("config", "x", cold_bytes)
    driver.prepare = lambda *given: 1 / 0
    failed = Refusal("launch", "ZeroDivisionError: division by zero")
    assert metal_worker._entrant(task, rules, driver) == failed
