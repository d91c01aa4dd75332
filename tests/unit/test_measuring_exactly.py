"""What measuring computes of few numbers, each worked out by hand: bits, guards, copies, graphs."""

import math
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from workbench.measurement import bench, correctness, graphs, mutated, stream
from workbench.measurement.bench import Bench, BenchTime, graph_calls, set_count
from workbench.measurement.correctness import (
    GUARD,
    PreparedProblem,
    Poisoned,
    _borrowed,
    _unwritten,
    bits_of,
    compare_values,
    is_traced,
    poison_outputs,
)
from workbench.measurement.mutated import Copies, Working
from workbench.measurement.protocol import Protocol
from workbench.measurement.rotation import Rotation
from workbench.measurement.rounds import Window
from workbench.measurement.stream import FirstCall
from workbench.spec import Spec, Tensor, Tolerance

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
    own = memory.copied(x, "x")
    assert own.tolist() == x.tolist()
    (flat, first, count, whose) = memory._given[0]
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
    assert memory.copied(rows, "rows").stride() == (4, 1) and memory._given[0][2] == 10
    wide = memory.copied(torch.ones(1, 3).expand(2, 3), "wide")
    assert wide.stride() == (3, 1) and memory._given[1][2] == 6
    assert memory.copied(torch.empty(0, 3), "none").shape == (0, 3) and memory._given[2][2] == 0
    meta = torch.empty(2, device="meta")
    assert memory.copied(meta, "meta") is meta and len(memory._given) == 3


def test_memory_is_written_where_any_of_it_changed(monkeypatch):
    assert not Poisoned().written()
    flag = torch.zeros((), dtype=torch.bool)
    monkeypatch.setattr(correctness, "_pinned_flag", lambda: flag)
    for beside in (None, lambda call: beside_calls.append(call()) or None):
        beside_calls = []
        memory = Poisoned(beside)
        assert not memory.written() and beside_calls == []
        with memory:
            first, second = torch.empty(3), torch.empty(2, dtype=torch.int32)
        assert not memory.written()
        assert len(beside_calls) == (0 if beside is None else 3)
        second[1] = 7
        assert memory.written()
        second.view(torch.uint8).fill_(0xA5)
        first[0] = 1.0
        assert memory.written()


def test_fresh_memory_of_a_mode_is_guarded_and_all_other_is_not():
    memory = Poisoned()
    with memory:
        x = torch.empty(4)
        torch.empty(2, device="meta")
        torch.zeros(3)
        torch.empty_strided((2, 2), (1, 2))
    assert [given[2:] for given in memory._given] == [(4, "its output")]
    assert x.isnan().all() and x.storage_offset() == GUARD


def spec_of(**outputs):
    return Spec("k", {"x": Tensor("N")}, outputs, None, lambda N: 0, [], [])


def test_outputs_that_are_missing_are_left_to_the_check_of_their_number():
    spec = spec_of(y=Tensor("N"), z=Tensor("N"))
    ours = spec.impl(name="ours")(lambda x: x)
    assert _borrowed((torch.ones(3),), (torch.zeros(3),), ours) is None


def test_the_share_of_wrong_elements_counts_those_beyond_the_tolerance_only():
    """Off by one tolerance, by two and by four: two of four are wrong, the worst by 4."""
    tolerance = {"fp64": Tolerance(relative=0.25, of_rms=0.0)}
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
    tolerance = {"fp64": Tolerance(relative=0.5, of_rms=0.0)}
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
    tolerance = {"fp32": Tolerance(relative=0.5, of_rms=0.0)}
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
    one.protocol, one._graphs, one.clock, one._behind = Protocol(graph_below_s=2e-5), None, "clock", None
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
        assert one.measured(timed, [Window((1.0,))] * 6, "cold").median_s == 1.0


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

    def given(self, inputs, turn):
        return (*inputs, turn)


@pytest.mark.parametrize(
    ("device_s", "issued"), [(1e-3, 1), (5e-4, 2), (2e-3, 1), (1e-4, 9), (1.6e-4, 6), (0.0, 9)]
)
def test_the_host_s_time_is_learnt_from_calls_on_the_first_set(still, device_s, issued):
    called = []
    rotation = Rotation(lambda x, config: called.append(x) or x, None, [("a",), ("b",), ("c",)])
    rotation._turn, rotation.copies = 5, None
    rotation._issued.append(99.0)
    rotation.learn_issue(device_s)
    assert called == ["a"] * (1 + issued) and rotation._turn == 5
    assert len(still) == issued + 2 and len(rotation._issued) == issued
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
    assert len(done) == flushed and not copies or rotation.copies.restored == 1
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
    rotation._kept[0] = ("old",)
    assert rotation.peak_bytes() == 250 and order == ["reset", "call"] and still == [1]


# Copies of inputs that a launch changes


def test_copies_are_given_in_turn_and_restored_at_once(monkeypatch):
    monkeypatch.setattr(mutated, "first_call", lambda step: FirstCall(1e-6, 2e-6, False))
    x, y, z = torch.ones(2), torch.zeros(3), torch.full((2,), 5.0)
    copies = Copies.of({0: x, 2: z}, 3)
    assert (copies.count, copies.seconds, copies.host_s) == (3, 1e-6, 2e-6)
    taken = [copies.given((x, y, z), turn) for turn in range(7)]
    memory = [given[0].data_ptr() for given in taken]
    assert memory[:3] == memory[3:6] and len(set(memory)) == 3 and memory[6] == memory[0]
    assert all(given[1] is y for given in taken) and x.data_ptr() not in memory
    taken[1][0].fill_(9)
    taken[2][2].fill_(9)
    copies.restore()
    assert taken[1][0].tolist() == [1.0, 1.0] and taken[2][2].tolist() == [5.0, 5.0]
    less = copies.first(2)
    assert less.count == 2 and less.given((x, y, z), 3)[0].data_ptr() == memory[1]


@pytest.mark.parametrize(("count", "step"), [(0, 128), (1, 128), (128, 128), (129, 256)])
def test_each_copy_begins_at_512_bytes(count, step):
    x = torch.ones(count)
    assert mutated._step(x) == step
    assert mutated.stacked(x, 3).shape == (3, count)
    assert mutated.stacked(torch.ones(2, 3).T, 2).stride() == (128, 1, 3)


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
    real = mutated.stacked
    monkeypatch.setattr(mutated, "stacked", lambda x, n: made.append(n) or real(x, n))
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
    monkeypatch.setattr(graphs, "_beside", lambda: capture)
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
