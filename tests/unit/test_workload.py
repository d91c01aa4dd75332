"""Workload files: written, read, damaged, merged; GPU times of a trace; the table; the options."""

import importlib
import importlib.util
import json
import random
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_workloads import damaged, signatures, workloads

from workbench import cli
from workbench.commands import workload_merge, workload_record
from workbench.commands.options import OptionError
from workbench.commands.workload_merge import WorkloadMergeOptions
from workbench.commands.workload_record import WorkloadRecordOptions
from workbench.traces.profilers.running.after_import import AfterImport
from workbench.traces.readers import read as read_trace
from workbench.workload import file as files
from workbench.workload import rank_file
from workbench.workload.errors import WorkloadError
from workbench.workload.file import (
    CountedSignature,
    GpuTimes,
    KernelTime,
    RecordedWorkload,
    canonical,
    merge_workloads,
    parse,
    text_of,
)
from workbench.workload.gpu_time import ProfiledWindow, shares, times_of
from workbench.workload.signature import (
    KernelFunction,
    LaunchSignature,
    PlainArgument,
    TensorArgument,
)
from workbench.workload.table import head_lines, mean_seconds, rows_of, seconds_by_signature

TRACES = "tests/golden/traces/torch_profiler"


def same(a, b):
    """Two workloads hold the same, NaN being NaN."""
    return text_of(a) == text_of(b)


@given(workloads)
def test_a_file_gives_back_what_was_written(workload):
    again = parse(text_of(workload).encode(), "x")
    assert same(again, workload)
    assert [canonical(s.signature) for s in again.signatures] == [
        canonical(s.signature) for s in workload.signatures
    ]


def test_a_file_is_read_from_disk(tmp_path):
    path = tmp_path / "deeper" / "a.workload"
    files.write(path, RecordedWorkload([], [], notes=["a"]))
    assert files.read(path).notes == ["a"]
    with pytest.raises(WorkloadError, match=r"missing.workload cannot be read \(no such file"):
        files.read(tmp_path / "missing.workload")


@settings(max_examples=20)
@given(workloads, st.integers(0, 2**32))
def test_a_thousand_damaged_files_end_in_a_sentence_each(workload, seed):
    """20 files, 50 kinds of damage each: a workload is read, or one sentence says why not."""
    text, random_ = text_of(workload), random.Random(seed)
    for _ in range(50):
        data = damaged(text, random_)
        try:
            again = parse(data, "f.workload")
        except WorkloadError as error:
            message = str(error)
            assert message.startswith("f.workload") and message.endswith(".")
            assert "\n" not in message and len(message) < 400
        else:
            text_of(again)
            rows_of(again)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"workload": 2}, "format 2, and this workbench knows formats up to 1"),
        ({"workload": True}, "has no `workload` version"),
        ({"functions": {}}, "`functions` is not a list"),
        ({"beyond": [[0, 1]]}, "beyond[0] names row 0, which is not there"),
        ({"arguments": [{"int": 1.5}]}, "arguments[0] is 1.5, not a whole number"),
        ({"arguments": [{"strange": 1}]}, "not one of int, float"),
    ],
)
def test_the_sentence_names_the_place(change, words):
    plain = json.loads(text_of(RecordedWorkload([], []))) | change
    with pytest.raises(WorkloadError) as caught:
        parse(json.dumps(plain).encode(), "f.workload")
    assert words in str(caught.value)


def test_deep_nesting_is_refused_without_a_traceback():
    for text in (
        "[" * 100_000,
        '{"workload":1,"arguments":' + '[{"tuple":' * 50 + "[]" + "}]" * 50,
    ):
        with pytest.raises(WorkloadError):
            parse(text.encode(), "f")


@given(st.lists(workloads, max_size=3))
def test_merging_keeps_every_launch(several):
    whole = merge_workloads(several)
    assert whole.launches == sum(each.launches for each in several)
    counts, expected = Counter(), Counter()
    for each in whole.signatures:
        counts[canonical(each.signature)] += each.launches
    for workload in several:
        for each in workload.signatures:
            expected[canonical(each.signature)] += each.launches
    assert counts == expected and len(counts) == len(whole.signatures)
    assert same(merge_workloads([whole]), whole)


@given(signatures, st.integers(1, 9), st.integers(1, 9))
def test_ranks_with_equal_launches_are_one_row(signature, a, b):
    parts = [RecordedWorkload([], [CountedSignature(signature, n)]) for n in (a, b)]
    (each,) = merge_workloads(parts).signatures
    assert each.launches == a + b


def test_a_rank_has_a_file_of_its_own(tmp_path):
    assert rank_file(tmp_path / "run.workload", "3") == tmp_path / "run.rank3.workload"
    assert rank_file(tmp_path / "run", None) == tmp_path / "run"


# GPU time


def function(name, **kwargs):
    return KernelFunction(name, "m", "f.py", "0" * 16, ("x",), **kwargs)


def launches(name, grid, number, warps=None, digits="0"):
    config = {} if warps is None else {"num_warps": PlainArgument("int", warps)}
    of = KernelFunction(name, "m", "f.py", digits * 16, ("x",))
    return CountedSignature(LaunchSignature(of, {}, grid, config=config), number)


def test_times_come_from_a_trace_of_torch_profiler():
    trace = read_trace([f"{TRACES}/tracelens_torch_compile_triton.json.gz"])
    kernels = [a for a in trace.activities if a.kind == 0]
    names = {a.name for a in kernels if a.name.startswith("triton_")}
    times = times_of(trace, names, "steps 2 to 4")
    ours = sum(a.duration for a in kernels if a.name in names)
    assert {k.name for k in times.kernels} == names and len(names) == 4
    assert sum(k.seconds for k in times.kernels) == pytest.approx(ours * 1e-9)
    assert times.total_s == pytest.approx(sum(a.duration for a in kernels) * 1e-9)
    assert times.others[0][0].startswith("Cijk_") and times.others[0][1] > times.others[-1][1]
    assert sum(s for _, s in times.others) + ours * 1e-9 == pytest.approx(times.total_s)
    assert f"{100 * ours * 1e-9 / times.total_s:.1f} % of the GPU time" in shares(times)


def test_the_trace_of_an_a100_has_grid_and_block():
    trace = read_trace([f"{TRACES}/hta_triton_example_a100.json.gz"])
    (time,) = times_of(trace, {"triton_poi_fused_add_cos_sin_0"}, "w").kernels
    assert time.grid == (1, 1, 1) and time.block == (128, 1, 1) and time.launches == 1


class FakeWindow(ProfiledWindow):
    """A window whose profiler writes down when it begins and stops."""

    def __init__(self, steps):
        super().__init__(steps)
        self.log = []

    def _begin(self):
        self.log.append("begin")
        self._profiler = self

    def _stop(self):
        stopped, self._profiler = self._profiler, None
        self.log += ["stop"] if stopped else []


@pytest.mark.parametrize(
    ("wanted", "steps", "log", "window"),
    [
        (2, 5, ["begin", "stop", "begin", "stop"], "steps 2 to 3"),
        (3, 3, ["begin", "stop", "begin", "stop"], "steps 2 to 3"),
        (1, 9, ["begin", "stop", "begin", "stop"], "step 2"),
        (3, 0, ["begin", "stop"], "the program from its first launch on: it marks no steps"),
        (0, 4, [], ""),
    ],
)
def test_the_window_leaves_the_first_step_out(monkeypatch, wanted, steps, log, window):
    monkeypatch.setattr("workbench.workload.gpu_time._has_gpu", lambda: True)
    recorded = FakeWindow(wanted)
    recorded.first_launch(on_gpu=True)
    for _ in range(steps):
        recorded.step()
    recorded.end()
    assert recorded.log == log and recorded._window == window


def test_steps_of_optimizers_end_no_step_once_the_program_marks_its_own(monkeypatch):
    """One optimizer's step, then `workbench.step()`, in each step: both are heard."""
    monkeypatch.setattr("workbench.workload.gpu_time._has_gpu", lambda: True)
    recorded = FakeWindow(2)
    recorded.first_launch(on_gpu=True)
    recorded.step()
    for _ in range(4):
        recorded.mark_step()
    assert recorded._hook is None
    assert recorded.log == ["begin", "stop", "begin", "stop", "begin", "stop"]
    assert recorded._window == "steps 2 to 3"


@pytest.mark.parametrize(
    ("dtype", "values", "needed"),
    [("int64", None, True), ("bool", None, True), ("uint8", (1, 2), False),
     ("int32", (), False), ("float32", None, False), ("bfloat16", None, False)],
)  # fmt: skip
def test_integers_whose_values_were_not_kept_are_needed(dtype, values, needed):
    assert TensorArgument(dtype, (2,), (1,), 16, 0, values).needs_values == needed


def test_time_goes_to_the_signature_with_the_grid_and_the_warps():
    kernels = (
        KernelTime("k", (8, 1, 1), (128, 1, 1), 2, 3.0),
        KernelTime("k", (8, 1, 1), (256, 1, 1), 1, 5.0),
        KernelTime("k", (9, 1, 1), (128, 1, 1), 1, 7.0),  # of no recorded grid: to all
    )
    signatures = [launches("k", (8,), 2, 4), launches("k", (8,), 1, 8, "1"), launches("j", (8,), 4)]
    workload = RecordedWorkload([], signatures, [GpuTimes("w", 20.0, kernels)])
    assert seconds_by_signature(workload) == pytest.approx([3 + 14 / 3, 5 + 7 / 3, 0])
    means = [(3 + 14 / 3) / (2 + 2 / 3), (5 + 7 / 3) / (1 + 1 / 3)]  # of launches in the window
    assert mean_seconds(workload)[:2] == pytest.approx(means) and mean_seconds(workload)[2] is None
    rows = rows_of(workload)
    assert [row.name for row in rows] == ["k", "k", "j"]
    assert sum(row.share for row in rows) == pytest.approx(15 / 20)


def test_without_a_profile_the_most_launches_come_first():
    workload = RecordedWorkload([], [launches("a", (1,), 2), launches("b", (1,), 5)])
    rows = rows_of(workload)
    assert [row.name for row in rows] == ["b", "a"] and rows[0].gpu_s is None


def test_launches_beyond_the_kept_signatures_are_counted_and_named():
    first = launches("a", (1,), 2)
    workload = RecordedWorkload([], [first], omissions=[(first.signature.function, 40)])
    assert rows_of(workload)[0].launches == 42 == workload.launches
    assert any("40 launches had signatures beyond" in line for line in head_lines(workload))


# The command


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ((), "No program is named"),
        (("--", ""), "No program is named"),
        (("a.py",), "a program stands behind --"),
        (("a.py", "--", "b.py"), "a.py is one word too many"),
    ],
)
def test_mistaken_command_lines_are_sentences(target, words):
    with pytest.raises(OptionError, match=words):
        workload_record.run(WorkloadRecordOptions(target=target))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("", "Name what workload does: record, show, merge, tune, run, compare or export"),
        ("tun", "No such command 'tun'"),
        ("tune x --rounds 3", "No such option: --rounds"),
        ("show", "Missing argument"),
        ("merge --out x", "Missing argument"),
        ("export t.json", "Missing argument 'OUT'"),
        ("export t.json x", "Missing option '--to'"),
        ("run -- x", "Missing option '--tuned'"),
        ("record --profile-steps -1 -- x", "Invalid value for '--profile-steps'"),
        ("compare t.json --rounds 1 -- x", "Invalid value for '--rounds'"),
        ("compare -- x", "No table is named"),
    ],
)
def test_mistaken_words_of_workload_are_one_sentence(words, sentence, capsys):
    assert cli.main(["workload", *words.split()]) == 2
    error = capsys.readouterr().err
    assert sentence in error and error.startswith("error: ") and error.count("error") == 1


def test_a_program_behind_two_dashes_keeps_its_own_options(monkeypatch):
    taken = []
    monkeypatch.setattr(workload_record, "run", lambda options: taken.append(options) or 0)
    words = ["workload", "record", "--values", "--", "a.py", "--out", "x", "--", "--debug"]
    assert cli.main(words) == 0
    assert taken[0].program == ("a.py", "--out", "x", "--", "--debug") and taken[0].values
    assert taken[0].command == (
        "workbench workload record --profile-steps 3 --values -- a.py --out x -- --debug"
    )


def test_files_are_merged_and_shown(tmp_path, capsys):
    paths = [tmp_path / "a.workload", tmp_path / "b.workload"]
    for path in paths:
        files.write(path, RecordedWorkload([], [launches("my_kernel", (4,), 3, 4)]))
    out, document = tmp_path / "both.workload", tmp_path / "both.json"
    named = tuple(map(str, paths))
    assert workload_merge.run(WorkloadMergeOptions(named, out, json=document)) == 0
    assert files.read(out).launches == 6
    printed = capsys.readouterr().out
    assert "my_kernel" in printed and "4 warps" in printed and "the call" in printed
    assert json.loads(document.read_text())["kernels"][0]["launches"] == 6


def test_who_looks_for_a_module_does_not_end_the_wait_for_its_import(tmp_path, monkeypatch):
    """torch looks for Triton when it opens the GPU, and imports it later."""
    (tmp_path / "waited_for.py").write_text("x = 1")
    monkeypatch.syspath_prepend(str(tmp_path))
    seen = []
    finder = AfterImport("waited_for", lambda: seen.append(sys.modules["waited_for"].x))
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    for _ in range(2):
        assert importlib.util.find_spec("waited_for") is not None and not seen
    assert importlib.import_module("waited_for").x == 1
    assert seen == [1] and finder not in sys.meta_path
    monkeypatch.delitem(sys.modules, "waited_for")
    importlib.import_module("waited_for")
    assert seen == [1]
