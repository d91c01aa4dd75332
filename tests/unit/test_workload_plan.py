"""The work list of a workload, the budget, families, the journal, and recorded grids."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_workloads import workloads

from workbench.commands.options import OptionError
from workbench.commands.workload_tune import WorkloadTuneOptions
from workbench.commands.workload_tuning import check_tuning
from workbench.workload.errors import WorkloadError
from workbench.workload.file import (
    CountedSignature,
    GpuTimes,
    KernelTime,
    RecordedProcess,
    RecordedWorkload,
)
from workbench.workload.grids import grids_of
from workbench.workload.pinned import pin_table
from workbench.workload.plan import configs_in_use, time_for, work_list
from workbench.workload.rebuilt import NotRebuilt, function_here
from workbench.workload.signature import (
    KernelFunction,
    LaunchSignature,
    PlainArgument,
    TensorArgument,
)
from workbench.workload.tuned_table import MeasuredTime, PinnedEntry, write
from workbench.workload.tuning import (
    TunedSignature,
    TuningJournal,
    family_choices,
    keep_config,
    saving,
)

FUNCTION = KernelFunction("f", "m", "/nowhere/m.py", "0" * 16, ("x", "n"))


def counted(n, launches=1):
    x = TensorArgument("float32", (n,), (1,), 16, 0)
    arguments = {"x": x, "n": PlainArgument("int", n)}
    return CountedSignature(
        LaunchSignature(FUNCTION, arguments, (1,), origin="autotune", key=(str(n),)), launches
    )


def result(digest, before, after, status="faster"):
    times = (MeasuredTime(t, t, t) for t in (before, after))
    return TunedSignature(digest, status, "r", (("B", 1),), *times)


@given(workloads, st.floats(0.1, 1))
def test_the_work_list_covers_the_share_in_order(workload, cover):
    try:
        items = work_list(workload, cover, 4e12)
    except WorkloadError:
        assert not workload.launches or not any(s.launches for s in workload.signatures)
        return
    shares = [item.share for item in items]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares[:-1]) < cover and sum(shares) <= 1 + 1e-9
    assert sum(time_for(item, items, 60.0) for item in items) == pytest.approx(60)


def test_signatures_of_one_size_are_a_family():
    items = work_list(RecordedWorkload([], [counted(1 << 22), counted(1 << 24)]), 1, 4e12)
    assert len({item.family for item in items}) == 1 and items[0].family
    (alone,) = work_list(RecordedWorkload([], [counted(64)]), 1, 4e12)
    assert alone.family is None


def test_a_member_keeps_the_config_in_use_where_it_is_the_best():
    times = {"a": {"x": 1.0, "y": 1.02}, "b": {"x": 2.0, "y": 1.0}}
    assert family_choices(times, {"a": "x", "b": "x"}) == {"a": "x", "b": "y"}


def test_a_saving_is_weighted_by_time():
    done = [(0.5, result("a", 2.0, 1.0)), (0.5, result("b", 1.0, 1.0, "kept"))]
    assert saving(done) == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("device", "tuned", "entries"), [("H200", True, 1), ("H100", True, 0), ("H200", False, 0)]
)
def test_a_config_that_triton_chose_on_this_gpu_is_in_use(device, tuned, entries):
    signature = counted(64, 6).signature
    signature = replace(signature, tuned=tuned, config={"B": PlainArgument("int", 16)})
    process = RecordedProcess("p", None, "gpu", "H200", "", 1.0, True, {})
    times = [GpuTimes("w", 9e-6, (KernelTime("f", (1, 1, 1), (128, 1, 1), 3, 9e-6),))]
    workload = RecordedWorkload([process], [CountedSignature(signature, 6)], times)
    items = configs_in_use(workload, device, 4e12)
    assert len(items) == entries
    for item in items:
        stays = keep_config(item)
        assert stays.config == (("B", 16),) and stays.after_s.median == pytest.approx(3e-6)


def test_a_journal_survives_a_torn_line(tmp_path):
    journal = TuningJournal(tmp_path / "a" / "j.jsonl")
    journal.add(result("a", 2.0, 1.0))
    with journal.path.open("a") as file:
        file.write('\n{"digest": "b", "sta')
    again = TuningJournal(journal.path)
    again.load()
    assert again.results == journal.results
    again.add(result("c", 1.0, 1.0))
    last = TuningJournal(journal.path)
    last.load()
    assert set(last.results) == {"a", "c"}


def test_grids_are_kept_for_the_knobs_that_decide_them():
    configs = [{"BLOCK_M": b, "GROUP": g} for b in (64, 128) for g in (1, 8)]
    grids = grids_of(lambda m: (-(-m["n"] // m["BLOCK_M"]),), {"n": 1000}, configs)
    assert grids.knobs == ("BLOCK_M",)
    assert grids.shapes == {(b,): (-(-1000 // b),) for b in (32, 64, 128, 256)}
    assert grids_of((3, 2), {}, configs).shape({"BLOCK_M": 7}) == (3, 2)


def test_a_file_that_is_not_the_recorded_one_is_not_imported(tmp_path):
    file = tmp_path / "m.py"
    file.write_text("raise SystemExit\ndef f(other): ...\n")
    for at, words in ((str(file), "holds no function f"), ("/nowhere/m.py", "cannot be read")):
        with pytest.raises(NotRebuilt, match=words):
            function_here(replace(FUNCTION, file=at), trust=False)


def test_the_reason_of_a_failed_import_ends_with_its_remedy(tmp_path):
    file = tmp_path / "m.py"
    file.write_text(f"def f(x, n): ...\nraise RuntimeError({'no such device, ' * 20!r})\n")
    with pytest.raises(NotRebuilt, match="put what it runs at its top level under `if __name__ =="):
        function_here(replace(FUNCTION, file=str(file), module="m"), trust=True)


@pytest.mark.parametrize(
    ("change", "words"), [({"budget": "5"}, "--budget"), ({"cover": 0.0}, "--cover")]
)
def test_options_are_checked(change, words):
    with pytest.raises(OptionError, match=words):
        check_tuning(WorkloadTuneOptions(("a",), dry_run=True, **change))


def test_predicted_entries_are_not_pinned(tmp_path, caplog):
    time = MeasuredTime(1e-6, 1e-6, 1e-6)
    head = ("sm_90", "H200", "3.6.0", "2.13", "m", "f", "0" * 16, ("1",), {"B": 1})
    entry = PinnedEntry(*head, time, time, None, "predicted by analytic", "2026")
    write(tmp_path / "t.json", [entry, replace(entry, protocol="v4", key=("2",))])
    with pin_table(tmp_path / "t.json", "first", "sm_90"):
        assert "1 predicted entries are not pinned" in caplog.text
