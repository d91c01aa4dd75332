"""Pinned configs: what the table holds is launched, and nothing is timed."""

import logging

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.jit import JITFunction

import workbench.workload
from workbench.workload.errors import WorkloadError
from workbench.workload.identity import function_of
from workbench.workload.pinned import PinnedTable
from workbench.workload.ranks import PinError
from workbench.workload.tuned_table import MeasuredTime, PinnedEntry, write


def kernel(x, n, BLOCK: tl.constexpr):
    pass


@pytest.fixture
def launched(monkeypatch):
    """What is launched: `JITFunction.run` is replaced, as no GPU is here."""
    calls = []
    monkeypatch.setattr(JITFunction, "run", lambda self, *a, **k: calls.append(k))
    return calls


@pytest.fixture
def timed():
    return []


@pytest.fixture
def tuned(timed):
    def do_bench(call, quantiles):
        call()
        timed.append(1)
        return [1.0] * 3

    configs = [triton.Config({"BLOCK": b}, num_warps=w) for b in (64, 128) for w in (4, 8)]
    return triton.autotune(configs, key=["n"], do_bench=do_bench)(triton.jit(kernel))


def entry(tuned, n, block, warps=8, **changes):
    time = MeasuredTime(1e-6, 1e-6, 1e-6)
    function = function_of(tuned)
    values = {
        "arch": "sm_90", "device": "NVIDIA H200", "triton": triton.__version__, "torch": "",
        "module": function.module, "function": function.name, "text_hash": function.text_hash,
        "key": (str(n), "torch.float32"), "config": {"BLOCK": block, "num_warps": warps},
        "before_s": time, "after_s": time, "family": None, "protocol": "p4", "at": "2026",
    }  # fmt: skip
    return PinnedEntry(**{**values, **changes})


@pytest.fixture
def pin(tmp_path):
    tables = []

    def pinned(*entries, policy="tune"):
        write(path := tmp_path / "tuned.json", entries)
        tables.append(workbench.workload.pin(path, policy, arch="sm_90"))
        return tables[-1]

    yield pinned
    for table in tables:
        table.remove()
    assert PinnedTable.active is None


def last(launched):
    return launched[-1]["BLOCK"], launched[-1]["num_warps"]


def test_a_config_of_the_table_is_launched_without_a_clock(tuned, launched, timed, pin):
    pin(entry(tuned, 100, 128), entry(tuned, 200, 64, 4))
    for _ in range(3):
        for n, wanted in ((100, (128, 8)), (200, (64, 4))):
            tuned[(1,)](torch.empty(4), n)
            assert last(launched) == wanted
    assert len(launched) == 6 and not timed
    assert tuned.best_config is tuned.configs[0]


def test_a_config_that_the_list_lacks_is_launched_too(tuned, launched, timed, pin):
    pin(entry(tuned, 100, 512, 2))
    tuned[(1,)](torch.empty(4), 100)
    assert last(launched) == (512, 2) and not timed


@pytest.mark.parametrize(
    ("policy", "wanted", "benchmarks"), [("tune", None, 4), ("first", (64, 4), 0)]
)
def test_a_key_that_the_table_lacks_is_decided_by_policy(
    tuned, launched, timed, pin, policy, wanted, benchmarks
):
    pin(entry(tuned, 100, 128), policy=policy)
    tuned[(1,)](torch.empty(4), 300)
    assert len(timed) == benchmarks and (wanted is None or last(launched) == wanted)
    tuned[(1,)](torch.empty(4), 100)
    assert last(launched) == (128, 8) and len(timed) == benchmarks


def test_the_policy_error_names_function_key_and_device(tuned, launched, pin):
    pin(entry(tuned, 100, 128), policy="error")
    with pytest.raises(PinError, match=r"no config of kernel for 300, torch.float32 on sm_90"):
        tuned[(1,)](torch.empty(4), 300)
    assert not launched


def test_the_policy_nearest_stays_inside_of_a_family(tuned, launched, timed, pin):
    family = [entry(tuned, n, b, family="f") for n, b in ((64, 64), (1024, 128))]
    pin(*family, policy="nearest")
    for n, wanted in ((100, (64, 8)), (900, (128, 8)), (2000, (64, 4)), (8, (64, 4))):
        tuned[(1,)](torch.empty(4), n)  # outside of it the first config
        assert last(launched) == wanted
    assert not timed


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"text_hash": "0" * 16}, "the function has changed"), ({"triton": "1.0"}, "of Triton 1.0")],
)
def test_a_stale_entry_is_a_miss_and_is_reported_once(
    tuned, launched, timed, pin, caplog, changes, words
):
    stale = [entry(tuned, n, 128, **changes) for n in (100, 200)]
    pin(*stale, policy="first")
    with caplog.at_level(logging.WARNING, "workbench"):
        for n in (100, 200, 100):
            tuned[(1,)](torch.empty(4), n)
            assert last(launched) == (64, 4)
    assert len(caplog.records) == 1 and words in caplog.text


def test_entries_of_another_device_are_not_used(tuned, launched, timed, pin):
    pin(entry(tuned, 100, 128, arch="sm_80"), policy="first")
    tuned[(1,)](torch.empty(4), 100)
    assert last(launched) == (64, 4)


def test_a_config_of_a_hook_that_is_not_in_the_list_is_a_miss(tuned, launched, pin):
    tuned.configs[1].pre_hook = lambda args: args
    pin(entry(tuned, 100, 512), entry(tuned, 200, 64, 8), policy="first")
    for n, wanted in ((100, (64, 4)), (200, (64, 8))):
        tuned[(1,)](torch.empty(4), n)
        assert last(launched) == wanted


def test_an_unknown_knob_of_the_table_is_a_miss(tuned, launched, pin, caplog):
    pin(entry(tuned, 100, 128, config={"BLOK": 1}), policy="first")
    tuned[(1,)](torch.empty(4), 100)
    assert last(launched) == (64, 4) and "this function cannot have its config" in caplog.text


def test_equal_choices_have_one_digest(tuned, launched, pin):
    digests = []
    for block in (128, 128, 64):
        tuned.cache = {}
        with pin(entry(tuned, 100, block)) as table:
            tuned[(1,)](torch.empty(4), 100)
        digests.append(table.digest())
    assert digests[0] == digests[1] != digests[2]


def test_removed_it_leaves_triton_to_itself(tuned, launched, timed, pin):
    pin(entry(tuned, 100, 128)).remove()
    tuned[(1,)](torch.empty(4), 100)
    assert len(timed) == 4
    with pin() as table, pytest.raises(WorkloadError, match="pinned already"):
        pin()
    assert table.choices == {}


def test_a_key_that_the_cache_holds_takes_tritons_own_way(tuned, launched, pin):
    """Nothing of the table runs then, and a recording that begins later sees each launch."""
    stock = type(tuned).run
    with pin(entry(tuned, 100, 128), policy="error") as table:
        tuned[(1,)](torch.empty(4), 100)
        assert tuned.run.__func__ is stock and len(table.lookups) == 1
        tuned[(1,)](torch.empty(4), 100)
        assert len(table.lookups) == 1
        table.unbind()
        assert tuned.run.__func__ is not stock
        tuned[(1,)](torch.empty(4), 100)
    assert tuned.run.__func__ is stock and last(launched) == (128, 8)


def test_a_recording_of_a_pinned_program_sees_what_chose_the_config(tuned, launched, pin, tmp_path):
    from workbench.workload.file import read
    from workbench.workload.recorder import LaunchRecorder

    pin(entry(tuned, 100, 128))
    tuned[(1,)](torch.empty(4), 100)
    with workbench.workload.record(path := tmp_path / "a.workload"):
        LaunchRecorder.active._hooks._caught = False
        for _ in range(3):
            tuned[(1,)](torch.empty(4), 100)
    (each,) = read(path).signatures
    assert each.launches == 3 and each.signature.origin == "autotune"


def test_the_arguments_of_the_launch_reach_the_functions_own_pruning(tuned, launched, pin):
    seen = []
    tuned.early_config_prune = lambda configs, nargs, **kwargs: seen.append(kwargs) or configs[2:]
    pin(policy="first")
    tuned[(1,)](torch.empty(4), n=100)
    assert seen[0]["n"] == 100 and last(launched) == (128, 4)


def test_an_unknown_policy_is_a_sentence(tmp_path):
    write(tmp_path / "t.json", [])
    with pytest.raises(WorkloadError, match="no policy 'fastest' for a miss; there are nearest,"):
        workbench.workload.pin(tmp_path / "t.json", "fastest")
