"""Small functions of commands, of the tuner and of machine code at their limits, by hand."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import synthetic

from workbench.backend.cluster import spread
from workbench.commands import bring_back, code_report
from workbench.compile.facts import HotCode
from workbench.data import selection
from workbench.data.record import Measured, Record
from workbench.reports import selection_sentence

pytestmark = pytest.mark.unit


# Who wins


RUN, OUTCOMES = synthetic.matmul()
FINALS = [o for o in OUTCOMES if isinstance(o, Record) and o.phase == "final"]


def timed(record, median, low, high, windows=(), **more):
    timing = replace(record.timing, median_s=median, low_s=low, high_s=high, samples_s=windows)
    return replace(record, timing=replace(timing, modes=(), left_out=0), **more)


@pytest.mark.parametrize(
    ("median", "low", "high", "tie"),
    [(2.0, 1.1, 3.0, True), (2.0, 1.2, 3.0, False), (1.005, 1.2, 1.3, True),
     (1.006, 1.2, 1.3, False), (0.5, 0.4, 0.9, True), (1.1, 0.4, 0.8, False),
     (2.0, 0.4, 0.9, True)],
)  # fmt: skip
def test_intervals_that_touch_and_medians_within_half_a_percent_tie(median, low, high, tie):
    fastest = timed(FINALS[0], 1.0, 0.9, 1.1, run="one")
    other = timed(FINALS[1], median, low, high, run="other")
    assert isinstance(other.timing, Measured)
    assert selection._cannot_tell(other, fastest) is tie


def test_letters_are_counted_as_columns_of_a_sheet():
    names = {0: "A", 25: "Z", 26: "AA", 27: "AB", 51: "AZ", 52: "BA", 701: "ZZ", 702: "AAA"}
    assert {n: selection._letters(n) for n in names} == names


def test_a_knob_extends_where_a_value_beyond_gives_another_kernel():
    one = FINALS[0]
    sizes = replace(one.case, sizes={"M": 256, "N": 512})
    small, threads = replace(one, case=sizes, resources=None), replace(
        one.resources, threads=512)  # fmt: skip
    assert [selection._extends("block_m", v, False, small) for v in (1, 2)] == [False, True]
    assert [selection._extends("block_m", v, True, small) for v in (255, 256, 257)] == [
        *(True, False, False),
    ]
    assert selection._extends("block_q", 9999, True, small)
    assert selection._extends("num_stages", 9999, True, small)
    assert [selection._extends("num_warps", v, True, small) for v in (16, 17)] == [True, False]
    assert selection._extends("num_warps", 99, True, replace(one, resources=threads))
    threads = replace(threads, threads=513)
    assert not selection._extends("num_warps", 1, True, replace(one, resources=threads))


def test_bits_are_equal_where_both_were_checked_on_the_same_inputs():
    one = [replace(FINALS[0], seed=s, bits=b, repeats=True) for s, b in ((1, "a"), (2, "b"))]

    def same(*pairs, **more):
        return selection.same_bits(one, [replace(FINALS[1], seed=s, bits=b, repeats=True, **more)
                                         for s, b in pairs])  # fmt: skip

    assert same((1, "a"), (2, "b")) is True and same((1, "a"), (3, "c")) is True
    assert same((1, "a"), (2, "c")) is same((1, "b")) is False
    assert same((3, "a")) is same((1, "")) is same() is None
    unstable = replace(FINALS[1], seed=1, bits="a", repeats=False)
    assert selection.same_bits(one, [unstable]) is False
    assert selection.same_bits([unstable], one) is False


def test_results_are_checked_on_programs():
    one = FINALS[0]

    def words(ran, programs):
        resources = replace(one.resources, programs=programs)
        ran_ = replace(one, checked="here", checked_programs=ran, resources=resources)
        return selection_sentence.checked_words(ran_)

    assert words(1, 1) == "checked on its one program, no access out of bounds"
    assert words(2, 2) == "checked on all 2 programs, no race, no access out of bounds"
    assert words(2, 3000) == "checked on 2 of 3,000 programs, no race, no access out of bounds"
    assert words(None, 2) is None
    assert (
        selection_sentence.checked_words(replace(one, checked="not here"))
        == selection_sentence.NOT_CHECKED
    )


@pytest.mark.parametrize(("flops", "text"), [(799, "100 GB/s"), (800, "0.8 TFLOP/s")])
def test_the_rate_is_of_the_memory_below_the_ridge(flops, text):
    one = timed(FINALS[0], 1e-9, 1e-9, 1e-9, flops=flops, bytes=100)
    assert selection.memory_bound(one, 8.0) is (flops == 799)
    assert selection.rate(one, 8.0).split()[1] == text.split()[1]
    assert float(selection.rate(one, 8.0).split()[0].replace(",", "")) == pytest.approx(
        100.0 if flops == 799 else 0.8
    )


def test_the_ridge_is_of_both_ceilings_or_8():
    both = {"compute": {"value": 9e14}, "dram": {"value": 4e12}}
    assert selection.ridge_of(replace(RUN, ceilings=both)) == 225.0
    for name in both:
        only = {name: both[name]}
        assert selection.ridge_of(replace(RUN, ceilings=only)) == 8.0


def test_two_configs_of_one_machine_code_are_the_same():
    one = replace(FINALS[0], same_as=None)
    case, code_ = one.case, replace(one.resources, binary="b")

    def other(config=case.config, impl=case.impl, binary="b", **more):
        return replace(one, case=replace(case, config=config, impl=impl),
                       resources=replace(code_, binary=binary), **more)  # fmt: skip

    one = replace(one, resources=code_)
    moved = {**case.config, "num_warps": 16}
    assert selection.same_code(one, other()) and not selection.same_code(one, other(moved))
    assert selection.same_code(one, other(moved, same_as=case.config))
    assert selection.same_code(other(moved, same_as=case.config), one)
    assert not selection.same_code(one, other(impl="another"))
    assert selection.same_code(one, other(moved, "another", same_as=case.config))
    assert not selection.same_code(one, other(moved, "another", "c", same_as=case.config))
    bare = replace(one, resources=None)
    assert not selection.same_code(bare, replace(other(moved, "another", same_as=case.config),
                                                 resources=None))  # fmt: skip
    backend = replace(one, case=replace(case, backend="other"))
    assert not selection.same_code(one, backend)


# Machine code


def test_the_instructions_of_a_function_are_those_that_its_call_leads_to():
    """0 calls 4, which calls 7; 2 calls 7, too, which the first call reached."""
    opcodes = ("CALL.REL", "IADD", "CALL", "EXIT", "FADD", "CALL", "RET", "FMUL", "RET")
    after = {0: (1, 4), 1: (2,), 2: (3, 7), 3: (), 4: (5,), 5: (6, 7), 6: (), 7: (8,), 8: ()}
    listing = SimpleNamespace(
        instructions=[SimpleNamespace(opcode=o) for o in opcodes], successors=after
    )
    hot = HotCode(SimpleNamespace(listing=listing))
    assert hot.callees([0]) == {4: 0, 5: 0, 6: 0, 7: 0, 8: 0}
    assert hot.callees([2, 1]) == {7: 2, 8: 2} and hot.callees([1, 3]) == {}
    assert hot.callees([5]) == {7: 5, 8: 5}


# Threads of a cluster, the revision of a kernel, a Mac's answers


def test_threads_have_until_one_time_to_end(monkeypatch):
    calls, clock = [], iter((100.0, 101.0, 100.0 + spread.STOP_S + 1))
    monkeypatch.setattr(spread, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    one = spread.Spread(SimpleNamespace(stop=lambda: calls.append("stop")), print)
    one._threads = [SimpleNamespace(join=calls.append)] * 2
    one._end()
    assert calls == ["stop", spread.STOP_S - 1, 0.0] and one._over


def test_a_gpu_begins_its_part_of_the_jobs_that_wait():
    one = spread.Spread(None, print)
    one._waiting.extend(range(4))
    assert (one.gpus, one.share) == (1, 5)
    one._serving = ["a", "b"]
    assert (one.gpus, one.share) == (2, 3)
    one._serving = list("abcdefg")
    assert one.share == 1


@pytest.mark.parametrize("revision", [code_report.WORKING, "HEAD~1"])
@pytest.mark.parametrize("repository", [True, False])
def test_the_code_of_this_tree_needs_no_worktree(monkeypatch, revision, repository):
    monkeypatch.setattr(code_report.catalog, "spec_of", lambda name: f"spec of {name}")
    monkeypatch.setattr(code_report, "check_dtype", lambda *_: None)
    operand = SimpleNamespace(revision=revision)
    monkeypatch.setattr(code_report, "operands_of", lambda *_: (operand, None))
    monkeypatch.setattr(
        code_report, "repository_with", lambda target: "here" if repository else None
    )
    monkeypatch.setattr(code_report, "_compile_operand", lambda *words: words)

    def worktrees(repository):
        raise LookupError(repository)

    monkeypatch.setattr(code_report, "Worktrees", worktrees)
    options = SimpleNamespace(launch=None, dtype="bf16", impl=None)
    if revision == code_report.WORKING or not repository:
        spec = "spec of softmax"
        assert code_report._read(options, "softmax", "x") == (options, spec, spec, operand)
    else:
        with pytest.raises(LookupError, match="here"):
            code_report._read(options, "softmax", "x")


@pytest.mark.parametrize(
    ("error", "word"), [(1.0, "same"), (1.01, "different"), (1e12, "different")]
)
def test_the_emulator_agrees_up_to_the_tolerance(monkeypatch, error, word):
    asked = []
    backend = SimpleNamespace(
        device="m3", ask=lambda call, task, limit_s: asked.append((task, limit_s)) or error
    )
    run = SimpleNamespace()
    one = bring_back.BringBack(backend, run, bring_back.BringBackPlan())
    candidate = SimpleNamespace(key="k")
    problem = SimpleNamespace(dtype="fp16")
    monkeypatch.setattr(one, "_candidates", lambda *_: (problem, [candidate, "other"]))
    counted = bring_back.Compiled.__new__(bring_back.Compiled)
    object.__setattr__(counted, "traffic", SimpleNamespace(bytes=3000))
    monkeypatch.setattr(bring_back, "count_task", lambda *_: counted)
    answer = one._compare_emulator("softmax")
    assert answer[0] == word and answer[1] == f"The emulator and the device give {word} results."
    values = [(e.name, e.value) for e in answer[2]]
    assert values == [("largest difference over its tolerance", min(error, 1e9)),
                      ("counted bytes of a call", 3000.0)]  # fmt: skip
    one._times["k"] = SimpleNamespace(time_s=2.0)
    assert [e.value for e in one._compare_emulator("softmax")[2]][2:] == [1500.0]
    assert asked[0][1] == bring_back.TASK_S and asked[0][0].kernel == "softmax"
