"""The parts of a workload, each with two of everything and at its limits, against hand counts."""

import json
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Literal

import drawn_numbers
import numpy as np
import pytest
import torch
import triton
from drawn_numbers import launch, tensor
from table_text import text_of

from workbench.data import tuned_cache
from workbench.data.plain import (
    Count,
    Damage,
    Format,
    Grid,
    Seconds,
    Whole,
    read_as,
    row_of,
)
from workbench.data.tuned_cache import TunedError
from workbench.workload import (
    exported,
    families,
    gate,
    gpu_time,
    grids,
    identity,
    observed,
    pinned,
    plan,
    program_runs,
    ranks,
    rebuilt,
    recorder,
    step_marks,
    table,
    triton_hooks,
    tuned_table,
    tuning,
)
from workbench.workload import file as workload_file
from workbench.workload import signature as S
from workbench.workload.errors import WorkloadError
from workbench.workload.program_runs import NamedOutput, OutputDifference, ProgramRun
from workbench.workload.tuned_table import MeasuredTime, PinnedEntry

pytestmark = pytest.mark.unit


def entry(number=1, **more):
    given = {
        "arch": "sm_90",
        "device": "NVIDIA H200",
        "triton": triton.__version__,
        "torch": "2.11.0",
        "module": "mine",
        "function": "add",
        "text_hash": "a" * 16,
        "key": ("1024", "torch.float32"),
        "config": {"BLOCK": 64 * number, "num_warps": 4},
        "before_s": MeasuredTime(4e-5, 3e-5, 5e-5),
        "after_s": MeasuredTime(2e-5, 1e-5, 3e-5),
        "family": None,
        "protocol": "p1",
        "at": f"2026-11-0{number}T00:00:00+00:00",
    } | more
    return PinnedEntry(**given)


# Files that are damaged in one place


ODD = (None, True, -1, 0, 7, 2**64, 2**63, 0.5, -0.5, "x", [], ["x"], {}, [[1]], [1, 2, 3, 4])


def places(plain, at=()):
    """Yield the path of every value of a document."""
    items = plain.items() if isinstance(plain, dict) else enumerate(plain)
    for key, value in list(items):
        yield (*at, key)
        if isinstance(value, (dict, list)):
            yield from places(value, (*at, key))


def damages(text, read):
    """Return what reading says of a document with each value replaced by each odd one, left out,
    or with another key beside it: one line a place."""
    plain = json.loads(text)
    lines = {}
    for path in places(plain):
        said = []
        for odd in (*ODD, KeyError, OSError):
            copy = json.loads(text)
            holder = copy
            for key in path[:-1]:
                holder = holder[key]
            if odd is KeyError:
                del holder[path[-1]]
            elif odd is OSError and isinstance(holder, dict):
                holder["more"] = 1
            else:
                holder[path[-1]] = odd if odd is not OSError else 1
            try:
                result = read(json.dumps(copy).encode(), "f")
                said.append("same" if result == read(text.encode(), "f") else "read")
            except (WorkloadError, TunedError) as error:
                text_ = str(error).partition("; ")[0].removeprefix("f is damaged ")
                said.append(re.sub(r" is .*, not (.*\))$", r" is not \1", text_))
        short = ".".join(str(part) for part in path)
        lines[short] = list(dict.fromkeys(said))
    return lines


def test_every_value_of_a_workload_file_is_read_strictly():
    """Each place is refused by a sentence that names it, for at least two of the odd values."""
    first = launch("add", 16, 8, options={"num_ctas": S.PlainArgument("int", 1)}, tuned=False)
    block = S.TupleArgument((S.PlainArgument("bool", True), S.PlainArgument("none", None)))
    shaped = S.DescriptorArgument(tensor((4, 4)), (4, 4), (4, 1), (2, 2))
    values = replace(tensor((2,), "int64", 1), values=(3, 5))
    first = replace(first, arguments={**first.arguments, "t": block, "d": shaped, "v": values,
                                      "o": S.PlainArgument("dtype", "fp16")})  # fmt: skip
    process = workload_file.RecordedProcess(
        "a.py", 1, "gpu", "H200", "2026", 2.5, True, {"torch": "2"}
    )
    time = workload_file.KernelTime("add", (1, 1, 1), (128, 1, 1), 3, 1e-5)
    window = workload_file.GpuTimes("step 2", 0.01, (time,), (("gemm", 0.002),))
    whole = workload_file.RecordedWorkload(
        [process],
        [workload_file.CountedSignature(first, 3)],
        [window],
        [(first.function, 2)],
        ["n"],
    )
    text = workload_file.text_of(whole)
    assert workload_file.parse(text.encode(), "f") == whole
    lines = damages(text, workload_file.parse)
    del lines["written_by"]
    golden = drawn_numbers.damage_lines(lines)
    assert golden == drawn_numbers.stored_damage("workload_file")


def test_every_value_of_a_tuned_table_is_read_strictly():
    one = entry(family="f", arguments={"n": "7", "x": "float32[8]"})
    text = tuned_cache.text_of([one], tuned_table.FORMAT)
    lines = damages(text, tuned_table.parse)
    golden = drawn_numbers.damage_lines(lines)
    assert golden == drawn_numbers.stored_damage("tuned_table")


@pytest.mark.parametrize(("value", "right"), [
    (2**64 - 1, True), (2**64, False), (-(2**63), True), (-(2**63) - 1, False), (True, False),
])  # fmt: skip
def test_whole_numbers_have_64_bits(value, right):
    if right:
        assert read_as(Whole, value, "n") == value
    else:
        with pytest.raises(Damage, match=f"n is {value}, not a whole number"):
            read_as(Whole, value, "n")


def test_limits_of_plain_data():
    assert read_as(Count, 0, "n") == 0 and read_as(tuple[Count, ...], [0, 5], "n") == (0, 5)
    assert read_as(tuple[Whole, ...], [-1], "n") == (-1,) and read_as(Seconds, 0, "s") == 0.0
    assert read_as(Count | None, None, "n") is None and read_as(Grid, [1, 2, 3], "g") == (1, 2, 3)
    for kind, value in (
        (Count, -1), (Count, 2**64), (tuple[Count, ...], [1, -1]), (tuple[Count, ...], "ab"),
        (tuple[Count, Count], [1]), (Grid, []), (Grid, [1, 2, 3, 4]), (Count | None, -1),
        (Seconds, math.inf), (Seconds, math.nan), (Seconds, -1e-9), (Seconds, True),
        (Literal[True], 1), (Literal["a", "b"], "c"), (bool, 1), (str, 1),
        (Mapping[str, int], [1]), (Mapping[str, int], {"a": "b"}), (int | bool | str, 0.5),
    ):  # fmt: skip
        with pytest.raises(Damage, match="here"):
            read_as(kind, value, "here")
    assert read_as(Literal[1, True], True, "o") is True and row_of("ab", 1, "e") == "b"
    for number in (2, -1):
        with pytest.raises(Damage, match=f"e names row {number}, which is not there"):
            row_of("ab", number, "e")
    form = Format("m", 1, "kind", WorkloadError, "name another")
    for version, words in ((2, "has format 2"), (True, "no `m` version"), ("1", "no `m` version")):
        with pytest.raises(WorkloadError, match=words):
            form.parse(json.dumps({"m": version}).encode(), "f")
    assert form.parse(b'{"m": 1}', "f") == {"m": 1}
    for data in (b"\xff", b"[1]", b"{"):
        with pytest.raises(WorkloadError, match="f is not a kind: it"):
            form.parse(data, "f")


# Runs of a whole program


def runs(*rows):
    """Return runs of (pinned, round, wall, first, steps)."""
    return [ProgramRun(*row) for row in rows]


BOTH = runs((False, 0, 10.0, 2.0, (1.0, 3.0, 2.0)), (True, 0, 9.0, 1.0, (0.5, 1.5)),
            (True, 1, 8.0, 1.5, (1.0,)), (False, 1, 7.0, 4.0, (2.0,)))  # fmt: skip


def test_times_of_runs_are_those_of_steps_where_all_have_them():
    assert program_runs.unit_of(BOTH) == "step" and program_runs.unit_of([]) == "run"
    assert program_runs.times_of(BOTH, True) == [1.0, 1.0]
    assert program_runs.times_of(BOTH, False) == [2.0, 2.0]
    mixed = [*BOTH[:3], replace(BOTH[3], steps_s=())]
    assert program_runs.unit_of(mixed) == "run" and mixed[3].time_s == 7.0
    assert program_runs.times_of(mixed, True) == [9.0, 8.0]
    half = runs((True, 2, 1.0, None, ()), (False, 3, 1.0, None, ()))
    assert program_runs.whole_rounds([*BOTH, *half]) == BOTH
    assert program_runs.first_step(BOTH).middle == pytest.approx(math.sqrt(0.5 * 0.375), rel=0.2)
    for bad in (None, 0.0):
        assert program_runs.first_step([replace(BOTH[0], first_s=bad), *BOTH[1:]]) is None
    assert program_runs.first_step([]) is None


def rounds(ratios, base=1.0):
    return [ProgramRun(pinned, n, base * (r if pinned else 1.0), None, ())
            for n, r in enumerate(ratios) for pinned in (False, True)]  # fmt: skip


def test_a_verdict_needs_two_rounds_and_the_number_of_an_interval():
    assert program_runs.verdict_of(rounds([1.0]), 0.01) is None
    assert program_runs.verdict_of(rounds([0.0, 1.0]), 0.01) is None, "a time of 0 s is none"
    least = program_runs.stats.least_for(0.95)
    few = program_runs.verdict_of(rounds([0.5] * (least - 1)), 0.01)
    assert few.word == "INCONCLUSIVE"
    assert few.reason == f"{least - 1} rounds are too few for an interval: {least} are needed"
    assert program_runs.verdict_of(rounds([0.5] * least), 0.01).word == "FAST"
    assert program_runs.verdict_of(rounds([1.0] * least), 0.01).word == "SAME"
    assert program_runs.verdict_of(rounds([2.0] * least), 0.01).word == "SLOW"
    noisy = [1.0 + 0.05 * (-1) ** n for n in range(2 * least)]
    open_ = program_runs.verdict_of(rounds(noisy), 0.01)
    assert open_.word == "INCONCLUSIVE"
    assert open_.reason.endswith(", and not within the 1.00% that were requested")


def test_marks_of_processes_are_read_rank_0_first(tmp_path):
    np.save(tmp_path / "y.npy", np.array([1.0, 2.0]))

    def marks(name, *rows, tail=""):
        text = "".join(json.dumps(row) + "\n" for row in rows) + tail
        (tmp_path / f"{name}.marks").write_text(text)

    assert program_runs.read_marks(tmp_path) == ((), None, [])
    marks("1", {"began": 1.0, "rank": 1}, *[{"step": float(n)} for n in range(9)])
    head = {"began": 100.0, "rank": 0}
    marks("2", head, {"waited": 2.0}, {"step": 105.0}, {"waited": 0.5}, {"step": 106.0},
          {"output": "y", "file": "y.npy", "shape": [2]}, {"step": 108.0},
          {"output": "z", "file": None, "shape": [3, 1]}, tail='{"step": 1')  # fmt: skip
    marks("3", head)
    steps, first, outputs = program_runs.read_marks(tmp_path)
    assert (steps, first) == ((1.0, 2.0), 2.5)
    assert [(o.name, o.shape) for o in outputs] == [("y", (2,)), ("z", (3, 1))]
    assert outputs[0].values.tolist() == [1.0, 2.0] and outputs[1].values is None
    for path in tmp_path.glob("*.marks"):
        path.unlink()
    marks("4", {"began": 1.0, "rank": None})
    assert program_runs.read_marks(tmp_path) == ((), None, [])
    marks("5", {"began": 1.0, "rank": None}, {"step": 3.0})
    assert program_runs.read_marks(tmp_path) == ((), 2.0, [])


def out(name, *values, shape=None):
    array = None if values == (None,) else np.array(values)
    return NamedOutput(name, shape or (len(values),), array)


def test_differences_are_the_largest_of_all_calls_of_a_name():
    without = [out("y", 1.0, -4.0), out("y", 2.0), out("z", 0.0), out("y", 1.0, shape=(3,))]
    with_ = [out("y", 1.5, -4.0), out("z", 3.0), out("y", 3.0), out("y", 9.0), out("y", None)]
    found = program_runs.differences(without, with_)
    assert found == [
        OutputDifference("y", 2, 2, 1.0, 0.5),
        OutputDifference("z", 1, 0, 3.0, math.inf),
    ]
    assert program_runs.differences([out("e")], [out("e")]) == [
        OutputDifference("e", 1, 0, 0.0, 0.0)
    ]
    same = program_runs.differences([out("a", 0.0)], [out("a", 0.0)])
    assert same == [OutputDifference("a", 1, 0, 0.0, 0.0)]
    inf, nan = math.inf, math.nan
    for a, b, off, scale in (
        ((nan, 2.0), (nan, 1.0), 1.0, 2.0), ((inf, -3.0), (inf, -3.0), 0.0, 3.0),
        ((inf,), (1.0,), inf, 0.0), ((1.0,), (nan,), inf, 1.0), ((1.0,), (inf,), inf, 1.0),
    ):  # fmt: skip
        assert program_runs.largest_difference(np.array(a), np.array(b)) == (off, scale)
    worst = program_runs.worst_of(found, [OutputDifference("y", 1, 1, 0.5, 2.0),
                                          OutputDifference("w", 1, 0, 0.1, 0.2)])  # fmt: skip
    assert worst == [OutputDifference("y", 3, 3, 1.0, 2.0), found[1],
                     OutputDifference("w", 1, 0, 0.1, 0.2)]  # fmt: skip
    repeats = [OutputDifference("y", 2, 0, 0.25, 0.1), OutputDifference("z", 0, 2, 0.0, 0.0)]
    again = program_runs.add_repeats(found, repeats)
    assert [each.repeated for each in again] == [0.25, None]


# Marks of steps, and the gate


def test_marks_are_written_by_the_process_that_began_them(tmp_path, monkeypatch):
    clock = iter([10.0, 11.0, 13.5, 14.0, 20.0])
    waited = []
    monkeypatch.setattr(step_marks, "now", lambda: next(clock))
    monkeypatch.setattr(step_marks, "_synchronize", lambda: waited.append("gpu"))
    monkeypatch.setattr(gate, "wait", waited.append)
    monkeypatch.setattr(step_marks, "MOST_BYTES", 24)
    monkeypatch.setenv("RANK", "3")
    marks = step_marks.StepMarks(step_marks.MarkOptions(str(tmp_path), gate=True))
    assert list(tmp_path.iterdir()) == []
    marks.step()
    marks.step()
    marks.output("y", torch.tensor([1.0, 2.0], dtype=torch.float64))
    marks.output("z", 5)
    marks.output("w", torch.tensor([1.0], dtype=torch.bfloat16))
    (path,) = tmp_path.glob("*.marks")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows[:4] == [{"began": 10.0, "rank": 3}, {"waited": 2.5}, {"step": 14.0}, {"step": 20.0}]
    assert waited == [tmp_path, "gpu", "gpu"]
    assert [(r["output"], r["shape"], r["file"] is None) for r in rows[4:]] == [
        ("y", [2], False), ("z", [], False), ("w", [1], True)]  # fmt: skip
    kept = [np.load(tmp_path / r["file"]) for r in rows[4:6]]
    assert kept[0].dtype == np.float64 and kept[0].tolist() == [1.0, 2.0] and kept[1] == 5
    for wrong in ("text", [1j]):
        with pytest.raises(TypeError, match="a tensor or a number of real values, not"):
            marks.output("x", wrong)
    marks._process += 1  # a forked one
    marks._waits = True
    marks.step()
    marks.output("q", 1)
    marks.wait()
    assert len(path.read_text().splitlines()) == 7 and len(waited) == 3


def test_each_so_many_launches_of_a_kernel_are_a_step():
    steps = []
    counter = step_marks.StepLaunches(
        step_marks.MarkOptions("f", "add", 3), SimpleNamespace(step=lambda: steps.append(1))
    )
    for number in range(7):
        counter.note_launch(SimpleNamespace(__name__="add"), (), {}, (1,), None)
        counter.note_launch(SimpleNamespace(__name__="other"), (), {}, (1,), None)
        assert len(steps) == (number + 1) // 3
    counter.launched_by_inductor(SimpleNamespace(fn=SimpleNamespace(__name__="add")), ())
    counter.launched_by_inductor(SimpleNamespace(fn=SimpleNamespace(__name__="add")), ())
    assert len(steps) == 3


def test_the_gpu_is_waited_for_where_it_is_in_use(monkeypatch):
    calls = []
    cuda = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True,
                           is_current_stream_capturing=lambda: False,
                           synchronize=lambda: calls.append(1))  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    step_marks._synchronize()
    assert calls == [1]
    for name, value in (("is_available", False), ("is_initialized", False),
                        ("is_current_stream_capturing", True)):  # fmt: skip
        before = getattr(cuda, name)
        setattr(cuda, name, lambda value=value: value)
        step_marks._synchronize()
        setattr(cuda, name, before)
    monkeypatch.delitem(sys.modules, "torch")
    step_marks._synchronize()
    assert calls == [1]


def test_a_gate_is_closed_until_it_is_opened(tmp_path):
    import fcntl

    one = gate.Gate(tmp_path)

    def locked():
        with (tmp_path / gate.FILE).open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    assert locked() and not one.waited_for and not (tmp_path / gate.OPENED).exists()
    (tmp_path / "7.waiting").touch()
    assert one.waited_for
    one.open()
    assert not locked() and (tmp_path / gate.OPENED).exists()
    gate.wait(tmp_path)
    assert len(list(tmp_path.glob("*.waiting"))) == 2
    (tmp_path / gate.OPENED).unlink()
    with pytest.raises(SystemExit, match="belongs to has ended"):
        gate.wait(tmp_path)


# A pinned table


CONFIGS = [triton.Config({"BLOCK": block}, num_warps=warps) for block, warps in ((64, 4), (128, 8))]


def autotuner(**more):
    return SimpleNamespace(**({"arg_names": ["x", "BLOCK"], "configs": CONFIGS,
                               "prune_configs": lambda kwargs: CONFIGS[1:]} | more))  # fmt: skip


FUNCTION = S.KernelFunction("add", "mine", "mine.py", "a" * 16, ("x", "n"))


def chosen(entries, key, policy="first", tuner=None, arch="sm_90", function=FUNCTION):
    lookups = []
    pinned_table = pinned.PinnedTable(entries, policy, arch, lookups.append)
    config = pinned_table.choice(tuner or autotuner(), function, key, {})
    assert lookups == pinned_table.lookups and lookups[0].key == pinned.key_texts(key)
    name = f"mine.add {list(lookups[0].key)}"
    assert pinned_table.choices == ({} if config is None else {name: lookups[0].config})
    text = None if config is None else (config.kwargs["BLOCK"], config.num_warps)
    return lookups[0].result, lookups[0].given, text


KEY = (1024, "torch.float32")


def test_a_lookup_says_what_became_of_it():
    second = entry(config={"BLOCK": 128, "num_warps": 8})
    assert chosen([entry(), second], KEY) == ("hit", "table", (64, 4))
    assert chosen([second], KEY) == ("hit", "table", (128, 8))
    other = entry(config={"BLOCK": 32, "num_warps": 2, "num_stages": None})
    assert chosen([other], KEY) == ("hit", "table", (32, 2))
    miss = ("first", (128, 8))
    assert chosen([entry(config={"TILE": 1})], KEY) == ("refused", *miss)
    assert chosen([entry(text_hash="b")], KEY) == ("changed", *miss)
    assert chosen([entry(triton="2.0")], KEY) == ("other triton", *miss)
    assert chosen([entry(text_hash="b"), entry()], KEY) == ("hit", "table", (64, 4))
    assert chosen([entry(arch="sm_80")], KEY) == ("other device", *miss)
    assert chosen([entry(key=("2048", "torch.float32"))], KEY) == ("absent", *miss)
    assert chosen([entry(arch="sm_80", key=("1", "torch.float32"))], KEY) == ("absent", *miss)
    assert chosen([], KEY, "tune") == ("absent", "tune", None)
    with pytest.raises(
        pinned.PinError, match=r"no config of add for 1024, torch.float32 on sm_90;"
    ):
        chosen([], KEY, "error")


def test_a_config_of_the_function_keeps_its_hook_and_another_needs_none():
    hooked = [triton.Config({"BLOCK": 64}, num_warps=4, pre_hook=print), CONFIGS[1]]
    tuner = autotuner(configs=hooked)
    assert pinned.config_of(entry(), tuner) is hooked[0]
    assert pinned.config_of(entry(config={"BLOCK": 32}), tuner) is None
    assert pinned.config_of(entry(config={"num_warps": 4}), tuner) is None
    made = pinned.config_of(entry(config={"BLOCK": 64, "num_warps": 8}), autotuner())
    assert made not in CONFIGS and made.all_kwargs()["num_warps"] == 8
    assert pinned.first_config(autotuner(), {}) is CONFIGS[1]
    assert pinned.first_config(autotuner(prune_configs=lambda k: []), {}) is CONFIGS[0]

    def fails(kwargs):
        raise RuntimeError

    assert pinned.first_config(autotuner(prune_configs=fails), {}) is CONFIGS[0]


def test_the_nearest_key_is_inside_a_family_and_nearest_in_ratio():
    some = [
        entry(key=(n, "64", "torch.float32"), family="f", config={"BLOCK": b, "num_warps": 4})
        for n, b in (("1024", 64), ("4096", 128))
    ]
    alone = entry(key=("2100", "64", "torch.float32"))
    for number, place in ((1024, 0), (2047, 0), (2049, 1), (4096, 1), (1023, None), (4097, None)):
        near = pinned.nearest([*some, alone], (str(number), "64", "torch.float32"))
        assert near == (None if place is None else some[place])
    assert pinned.nearest(some, ("2048", "64", "torch.float32")) == some[0], "equal: by the key"
    for other in (("2048", "65", "torch.float32"), ("2048", "64", "torch.float16"),
                  ("2048", "64"), ("2048", "True", "torch.float32")):  # fmt: skip
        assert pinned.nearest(some, other) is None
    key = (2049, 64, "torch.float32")
    assert chosen(some, key, "nearest") == ("absent", "nearest", (128, 4))
    assert chosen([replace(e, text_hash="b") for e in some], key, "nearest") == (
        "absent", "first", (128, 8))  # fmt: skip
    assert pinned._number("9" * 19) == int("9" * 19) and pinned._number("9" * 20) is None
    assert pinned._number("-1") is None and pinned._number("²") is None
    assert pinned._distance(("8", "x", "2"), ("2", "x", "16")) == 5.0
    assert pinned._distance(("0", "x"), ("4", "x")) == 2.0


def test_keys_are_values_and_then_dtypes():
    assert pinned.key_texts((8, "a", True, "torch.float32", "torch.int8")) == (
        "8", "'a'", "True", "torch.float32", "torch.int8")  # fmt: skip
    assert pinned.key_texts(("torch.float32",)) == ("torch.float32",)
    assert pinned.key_texts(()) == () and pinned.key_texts((1.5,)) == ("1.5",)
    assert pinned.key_texts(("a.b", 1)) == ("'a.b'", "1")


def test_each_function_is_reported_once(caplog):
    one = pinned.PinnedTable([], "first", "sm_90")
    for key in ((1, "torch.float32"), (2, "torch.float32")):
        one.choice(autotuner(), FUNCTION, key, {})
    one.choice(autotuner(), replace(FUNCTION, name="scale"), KEY, {})
    assert [r.getMessage() for r in caplog.records] == [
        "tuned table: mine.add: ['1', 'torch.float32'] is not in it: the first config of the list",
        "tuned table: mine.scale: ['1024', 'torch.float32'] is not in it: the first config of the "
        "list",
    ]
    digest = one.digest()
    assert len(digest) == 16 and digest == pinned.digest_of(dict(reversed(one.choices.items())))
    assert digest != pinned.digest_of({})


def test_one_table_is_pinned_at_a_time_and_all_is_as_before():
    from triton.runtime.autotuner import Autotuner

    real = Autotuner.run
    with pinned.PinnedTable([], "first", "sm_90") as one:
        assert Autotuner.run is real
        one.install()
        assert Autotuner.run is not real and pinned.PinnedTable.active is one
        with pytest.raises(WorkloadError, match="pinned already"):
            pinned.PinnedTable([], "first", "sm_90").install()
        bound = SimpleNamespace(run=1)
        one._bound.append(bound)
        pinned.PinnedTable([], "first", "sm_90").remove()
        assert Autotuner.run is not real
    assert Autotuner.run is real and pinned.PinnedTable.active is None
    assert vars(bound) == {} and one._bound == []
    for policy in ("nearest", "first", "tune", "error"):
        pinned.check_policy(policy)
    with pytest.raises(WorkloadError, match="no policy 'x' for a miss; there are nearest, f"):
        pinned.check_policy("x")


def test_a_cache_looks_a_key_up_once(monkeypatch):
    asked = []
    monkeypatch.setattr(pinned, "function_of", lambda tuner: asked.append("function") or FUNCTION)
    one = SimpleNamespace(choice=lambda tuner, function, key, more: asked.append(key) or "config")
    cache = pinned.PinnedCache(one, SimpleNamespace(cache={(1,): "old"}))
    assert (1,) in cache and (2,) not in cache and asked == []
    monkeypatch.setattr(pinned.PinnedTable, "active", one)
    assert (2,) in cache and (2,) in cache and "text" not in cache and (3,) in cache
    assert asked == ["function", (2,), (3,)] and cache[2,] == "config"
    one.choice = lambda *_: None
    assert (4,) not in cache and (4,) not in dict(cache)


def test_the_architecture_is_asked_once_and_is_empty_without_a_gpu(monkeypatch):
    from triton.runtime.driver import driver

    class Active:
        answers = [90, "gfx942", RuntimeError("0 active drivers")]  # noqa: RUF012

        def get_current_target(self):
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return SimpleNamespace(arch=answer)

    monkeypatch.setattr(type(driver), "active", Active())
    tables = [pinned.PinnedTable([], "first", None) for _ in range(3)]
    assert [t.arch for t in tables] == ["sm_90", "gfx942", ""] == [t.arch for t in tables]


# Exports


def test_a_table_as_python_runs_and_gives_its_configs():
    some = [
        entry(2, key=("2048",)),
        entry(1),
        entry(1, function="a-b", module="mine"),
        entry(1, function="a b"),
        entry(1, config={"BLOCK": 8, "num_stages": None}, key=()),
    ]
    text = exported.python_text(some)
    space = {}
    exec(text, space)
    assert [n for n in space if n.startswith("configs")] == [
        "configs_a_b_sm_90", "configs_a_b_sm_90_2", "configs_add_sm_90"]  # fmt: skip
    add = space["configs_add_sm_90"]
    assert list(add) == [(), ("1024", "torch.float32"), ("2048",)]
    assert {k: (c.kwargs, c.num_warps) for k, c in add.items()} == {
        (): ({"BLOCK": 8}, 4), ("1024", "torch.float32"): ({"BLOCK": 64}, 4),
        ("2048",): ({"BLOCK": 128}, 4)}  # fmt: skip
    assert "    # 20 us, before 40; 2026-11-01T00:00:00+00:00\n" in text
    taken = {"configs_f", "configs_f_2"}
    assert exported._free_name("f", taken) == "configs_f_3" and "configs_f_3" in taken


MOE = {"a_ptr": "bfloat16[64, 4096]", "b_ptr": "bfloat16[8, 3584, 4096]", "top_k": "2",
       "sorted_token_ids_ptr": "int32[128]", "expert_ids_ptr": "int32[8]"}  # fmt: skip
MOE_CONFIG = tuple((n, 1) for n in exported.MOE_CONFIG)


@pytest.mark.parametrize(
    ("change", "config", "place"),
    [
        ({}, MOE_CONFIG, ("E=8,N=1792,device_name=NVIDIA_H200.json", 64)),
        (
            {"use_fp8_w8a8": "True", "use_int8_w8a8": "False"},
            MOE_CONFIG,
            ("E=8,N=1792,device_name=NVIDIA_H200,dtype=fp8_w8a8.json", 64),
        ),
        (
            {"a_ptr": "float32[7, 4096]", "group_n": "128", "group_k": "64"},
            MOE_CONFIG,
            ("E=8,N=1792,device_name=NVIDIA_H200,dtype=float32,block_shape=[128,64].json", 7),
        ),
        (
            {"group_n": "128", "group_k": "0"},
            MOE_CONFIG,
            ("E=8,N=1792,device_name=NVIDIA_H200.json", 64),
        ),
        (
            {"top_k": "1", "MUL_ROUTED_WEIGHT": "False"},
            MOE_CONFIG,
            ("E=8,N=1792,device_name=NVIDIA_H200.json", 64),
        ),
        ({"top_k": "1"}, MOE_CONFIG, "it is the second product of its layer"),
        ({"b_ptr": "bfloat16[8, 3583, 4096]"}, MOE_CONFIG, "its b_ptr has not the shape of"),
        ({"b_ptr": "bfloat16[8, 4096]"}, MOE_CONFIG, "its b_ptr has not the shape of"),
        ({"a_ptr": "None"}, MOE_CONFIG, "its a_ptr and b_ptr are not tensors"),
        ({"b_ptr": "bfloat16[0]"}, MOE_CONFIG, "its a_ptr and b_ptr are not tensors"),
        ({}, MOE_CONFIG[1:], "its config lacks one of BLOCK_SIZE_M,"),
    ],
)
def test_entries_of_experts_have_a_file(change, config, place):
    one = entry(arguments=MOE | change, config=dict(config), device="NVIDIA H200")
    found = exported.moe_place(one)
    assert found == place or (isinstance(found, str) and found.startswith(place))


def test_experts_are_written_by_batch_and_others_left_out(tmp_path):
    some = [entry(n, arguments=MOE | {"a_ptr": f"bfloat16[{batch}, 4096]"},
                  config=dict.fromkeys(exported.MOE_CONFIG, n), device="AMD MI300X/1")
            for n, batch in ((3, 64), (1, 8), (2, 64))]  # fmt: skip
    odd = entry(4, device="H100")
    result = exported.export_vllm_moe([*some, odd], tmp_path)
    (path,) = result.files
    assert path.name == "E=8,N=1792,device_name=AMD_MI300X_1.json"
    written = json.loads(path.read_text())
    assert list(written) == ["8", "64"] and written["64"]["BLOCK_SIZE_M"] == 3
    assert result.exported_entries == 2 and [e for e, _ in result.left_out] == [odd]


def test_of_entries_with_one_place_the_newest_is_kept(tmp_path):
    tuned_table.write(path := tmp_path / "t.json", [entry(2), entry(1), entry(1, function="scale")])
    assert [e.config["BLOCK"] for e in tuned_table.read(path)] == [128, 64]
    assert entry(protocol="predicted by x").is_predicted and not entry(protocol="p").is_predicted
    bounds = (([1, 1, 1], True), ([1, 1.1, 2], False), ([2, 1, 1.9], False), ([1, 1, 0.9], False))
    for value, right in bounds:
        plain = dict(zip(("median", "low", "high"), value, strict=True))
        if right:
            assert read_as(tuned_table.Interval, plain, "t") == MeasuredTime(*map(float, value))
        else:
            with pytest.raises(Damage, match="not a median in its interval"):
                read_as(tuned_table.Interval, plain, "t")
    arguments = {
        "x": tensor((4, 2)),
        "n": S.PlainArgument("int", 3),
        "f": S.PlainArgument("float", "0.5"),
        "t": S.TupleArgument(()),
    }
    texts = {"f": "0.5", "n": "3", "x": "bfloat16[4, 2]"}
    assert tuned_table.argument_texts(arguments) == texts


# Launches that are made again


def held(shape, stride, dtype="float32", align=16, storage=0, values=None):
    return S.TensorArgument(dtype, shape, stride, align, storage, values)


def test_tensors_have_their_layout_and_dense_ones_of_a_storage_are_one():
    memory = {}
    one = rebuilt._tensor(held((4, 3), (3, 1)), memory)
    assert rebuilt._tensor(held((4, 3), (3, 1)), memory) is one
    assert rebuilt._tensor(held((4, 3), (3, 1), storage=1), memory) is not one
    strided = [rebuilt._tensor(held((4, 3), (5, 1)), memory) for _ in range(2)]
    assert strided[0] is not strided[1] and strided[0].stride() == (5, 1)
    assert strided[0].untyped_storage().nbytes() == 4 * (1 + 3 * 5 + 2 * 1)
    shifted = rebuilt._tensor(held((4,), (1,), align=8, storage=2), memory)
    assert shifted.storage_offset() == 2
    assert rebuilt._tensor(held((4,), (1,), "float64", 8, 3), memory).storage_offset() == 1
    whole = rebuilt._tensor(held((2, 2), (2, 1), "int64", 16, 4, (1, 2, 3, 4)), memory)
    assert whole.tolist() == [[1, 2], [3, 4]] and whole.dtype == torch.int64
    assert 0.02 < float(rebuilt._random_values(4000, torch.float32, None, 1).std()) < 0.09
    assert rebuilt._random_values(4, torch.float32, (1,), 1).tolist() == [0.0] * 4
    for dtype, shape in (("float99", (2,)), ("float32", (0, 2)), ("nn", (2,))):
        with pytest.raises(rebuilt.NotRebuilt, match="cannot be made"):
            rebuilt._tensor(held(shape, (1,) * len(shape), dtype), {})


def test_random_floats_repeat_after_a_period(monkeypatch):
    monkeypatch.setattr(rebuilt, "PERIOD", 5)
    drawn = [rebuilt._random_values(n, torch.float32, None, 7).tolist() for n in (4, 5, 6, 11)]
    assert [len(d) for d in drawn] == [4, 5, 6, 11]
    assert drawn[3] == (drawn[1] * 3)[:11] and drawn[2] == (drawn[1] * 2)[:6]


@pytest.mark.parametrize(
    ("shape", "stride", "dense"),
    [
        ((4, 3), (3, 1), True),
        ((4, 3), (1, 4), True),
        ((4, 3), (4, 1), False),
        ((1, 3), (9, 1), True),
        ((2, 3, 4), (12, 4, 1), True),
        ((2, 3, 4), (4, 8, 1), True),
        ((5,), (2,), False),
        ((), (), True),
    ],
)
def test_dense_tensors(shape, stride, dense):
    assert rebuilt._dense(held(shape, stride)) is dense


def rebuilt_launch(*configs, shapes=None):
    made = tuple(triton.Config({"BLOCK": b}, num_warps=w) for b, w in configs)
    shapes = shapes or tuple(((b,), (b, 1, 1)) for b in (16, 32, 64, 128, 256))
    return rebuilt.RebuiltLaunch(None, ((), {}), made, rebuilt.RecordedGrid(("BLOCK",), shapes))


def texts(launch):
    return [(c.kwargs["BLOCK"], c.num_warps) for c in launch.configs if c.num_stages == 3]


def test_a_winner_at_an_end_gets_neighbours_beyond_it():
    launch = rebuilt_launch((32, 4), (64, 4), (64, 8))
    first, second, third = launch.configs
    assert texts(rebuilt.widen_search(launch, first)) == [*texts(launch), (16, 4), (32, 2)]
    assert texts(rebuilt.widen_search(launch, third)) == [*texts(launch), (128, 8), (64, 16)]
    assert (128, 4) in texts(rebuilt.widen_search(launch, second))
    stages = [c.num_stages for c in rebuilt.widen_search(launch, first).configs]
    assert stages == [3, 3, 3, 3, 3, 2, 4] and {c.num_stages for c in launch.configs} == {3}
    few = rebuilt_launch((32, 1), (64, 32), shapes=(((32,), (1,)), ((64,), (1,))))
    assert [c.num_stages for c in rebuilt.widen_search(few, few.configs[0]).configs] == [3, 3, 2, 4]
    assert rebuilt._steps("num_warps", 32) == (16,) and rebuilt._steps("num_warps", 1) == (2,)
    assert rebuilt._steps("num_warps", 16) == (8, 32)
    assert rebuilt._steps("num_stages", 8) == (7,) and rebuilt._steps("num_stages", 1) == (2,)
    assert rebuilt._steps("num_stages", 7) == (6, 8)
    assert rebuilt._steps("BLOCK", 64) == (32, 128) and rebuilt._steps("GROUP", 64) == ()


def test_a_launch_is_limited_to_its_own_config_and_the_wanted():
    launch = rebuilt_launch((32, 4), (64, 4), (64, 8))
    wanted = [{"BLOCK": 64, "num_warps": 8}, {"BLOCK": 32}, {"BLOCK": 128, "num_warps": 2,
               "num_stages": None}]  # fmt: skip
    limited = rebuilt.limit_configs(launch, wanted)
    assert (
        texts(limited) == [(32, 4), (64, 8), (128, 2)] and limited.configs[1] is launch.configs[2]
    )
    with pytest.raises(rebuilt.NotRebuilt, match="the grid of a config is not known"):
        rebuilt.limit_configs(launch, [{"BLOCK": 512}])
    assert rebuilt.limit_configs(launch, []).configs == launch.configs[:1]
    assert launch.grid({"BLOCK": 64}) == (64, 1, 1)


def test_grids_of_a_plain_launch_are_by_its_tiles():
    config = {"BLOCK": S.PlainArgument("int", 64), "FLAG": S.PlainArgument("bool", True),
              "num_warps": S.PlainArgument("int", 4)}  # fmt: skip
    plain = launch("add", 128, 8, grids=None, config=config)
    assert rebuilt._grid(plain) == rebuilt.RecordedGrid(("BLOCK",), (((64,), (2, 1, 1)),))
    grids_ = S.ConfigGrids(("BLOCK_M",), {(64,): (2,), (32,): (4,)})
    assert rebuilt._grid(launch("add", 128, 8, grids=grids_)).shapes == (
        ((32,), (4,)),
        ((64,), (2,)),
    )


# Grids by config


def test_grids_have_limits(monkeypatch):
    configs = [{"BLOCK_M": m, "num_warps": w} for m in (32, 64) for w in (4, 8)]

    def of(call, **more):
        return grids.grids_of(call, {}, configs)

    found = of(lambda at: (at["BLOCK_M"],))
    assert found.knobs == ("BLOCK_M",) and found.shape({"BLOCK_M": 64}) == (64,)
    assert set(found.shapes) == {(16,), (32,), (64,), (128,)}
    assert found.shape({"BLOCK_M": 8}) is None and found.shape({}) is None
    assert of(lambda at: (at["BLOCK_M"] + at["num_warps"],)).knobs == ("BLOCK_M", "num_warps")
    for bad in ((), (1, 1, 1, 1), (0,), (1, -1)):
        assert of(lambda at, bad=bad: bad) is None
    assert of(lambda at: (1, 2, 3)).shapes == {(): (1, 2, 3)}
    monkeypatch.setattr(grids, "MOST_SHAPES", 4)
    assert of(lambda at: (at["BLOCK_M"],)) is not None
    monkeypatch.setattr(grids, "MOST_SHAPES", 3)
    assert of(lambda at: (at["BLOCK_M"],)) is None
    monkeypatch.setattr(grids, "MOST_CALLS", 2)
    calls = []
    of(lambda at: (calls.append(1) or 1,))
    assert len(calls) == 2


def test_neighbours_are_one_step_of_a_power_of_two():
    table_ = {
        ("BLOCK_N", 8): (4, 8, 16),
        ("BLOCK_N", 1): (1, 2),
        ("BM", 4): (2, 4, 8),
        ("BLOCK_N", 6): (6,),
        ("BLOCK_N", 0): (0,),
        ("BMX", 4): (4,),
        ("tile_k", 2): (1, 2, 4),
        ("GROUP_M", 8): (8,),
        ("BLOCK_N", -4): (-4,),
    }
    assert {at: grids.neighbours(*at) for at in table_} == table_


# What a launch is described by


def test_arguments_are_described_by_kind():
    def add(): ...

    jit = SimpleNamespace(arg_names=(), fn=add)
    kinds = {
        "bool": True, "int": 7, "float": 0.5, "none": None, "str": "s", "function": jit,
        "other": object(),
    }  # fmt: skip
    for kind, value in kinds.items():
        assert observed.describe(value, {}, False).kind == kind
    constexpr = type("constexpr", (), {"value": 5})()
    assert observed.describe(constexpr, {}, False) == S.PlainArgument("int", 5)
    assert observed.describe(np.float32(0.5), {}, False) == S.PlainArgument("float", "0.5")
    dtype = type("dtype", (), {"name": "fp16"})()
    assert observed.describe(dtype, {}, False) == S.PlainArgument("dtype", "fp16")
    x, storages = torch.arange(8, dtype=torch.int32), {}
    one = observed.describe((x, x[1:], x.clone()), storages, True)
    assert [t.storage for t in one.items] == [0, 0, 1] and len(storages) == 2
    assert one.items[1].align == 4 and one.items[0].align == 16
    assert one.items[1].values == tuple(range(1, 8)) and one.items[0].shape == (8,)
    assert observed.describe(x, {}, False).values is None
    assert observed.describe(x.float(), {}, True).values is None
    block = SimpleNamespace(base=x.view(2, 4), shape=[2, 4], strides=[4, 1], block_shape=[1, 4])
    described = observed.describe(block, {}, True)
    assert (described.stride, described.block_shape, described.base.values) == (
        (4, 1),
        (1, 4),
        None,
    )
    most = torch.zeros(observed.MOST_VALUES + 1, dtype=torch.int8)
    assert observed.describe(most, {}, True).values is None
    assert len(observed.describe(most[1:], {}, True).values) == observed.MOST_VALUES
    assert (
        observed.describe(torch.zeros(2, dtype=torch.int8, device="meta"), {}, True).values is None
    )


def test_keys_of_launches_are_equal_where_layouts_are():
    x, y = torch.zeros(64), torch.zeros(64)

    def key(*args, **kwargs):
        return observed.key_function(args, kwargs)(args, kwargs, (1,))

    assert key(x, y, 3) == key(y, x, 3) != key(x, x, 3)
    assert key(x[4:36], y) == key(x[8:40], y) != key(x[5:37], y), "16 bytes are aligned"
    assert key(x[:32]) != key(x[:33]) and key(x.view(8, 8)) != key(x.view(8, 8).t())
    assert key(x, 1) != key(x, True) and key(x, 1) != key(x, 1.0) and key(x, n=1) != key(x, n=2)
    assert key(x, [1]) == key(x, [1]) != key(x, [2]) and key(x) != key(x.to(torch.int32))
    assert observed.slow_key((x,), {"n": 1}) != observed.slow_key((x,), {"n": 2})


# Where time goes


def activity(name, duration, grid=None, block=None):
    return SimpleNamespace(name=name, duration=duration,
                           geometry=SimpleNamespace(grid=grid, block=block))  # fmt: skip


def test_times_of_a_window_are_by_kernel_and_grid(monkeypatch):
    monkeypatch.setattr(gpu_time, "OTHERS", 2)
    rows = [
        activity("add", 10, (2, 1, 1), (128, 1, 1)),
        activity("gemm", 50),
        activity("add", 30, (2, 1, 1), (128, 1, 1)),
        activity("add", 5, (4, 1, 1), (128, 1, 1)),
        activity("copy", 7),
        activity("copy", 7),
        activity("fill", 1),
        activity("mul", 100),
    ]

    class Activities(list):
        def select(self, kind):
            return range(len(self))

    times = gpu_time.times_of(SimpleNamespace(activities=Activities(rows)), {"add", "mul"}, "steps")
    assert [
        (k.name, k.grid, k.block, k.launches, round(k.seconds * 1e9)) for k in times.kernels
    ] == [
        ("mul", (0, 0, 0), (0, 0, 0), 1, 100),
        ("add", (2, 1, 1), (128, 1, 1), 2, 40),
        ("add", (4, 1, 1), (128, 1, 1), 1, 5),
    ]
    assert [(n, round(s * 1e9)) for n, s in times.others] == [("gemm", 50), ("copy", 14)]
    assert times.total_s == pytest.approx(210e-9)
    assert gpu_time.shares(times) == (
        "Triton kernels have 69.0 % of the GPU time of steps: 0.000 of 0.000 ms, in 4 launches."
    )
    assert " 0.0 % of the GPU time of w: " in gpu_time.shares(gpu_time.GpuTimes("w", 0.0, ()))


def window_of(monkeypatch, wanted, fails=()):
    """Return a window on a profiler by hand, and its calls."""
    calls = []

    def act(name):
        calls.append(name)
        if name in fails:
            raise RuntimeError(f"{name} fails\nmore")

    window = gpu_time.ProfiledWindow(wanted)
    monkeypatch.setattr(gpu_time, "_has_gpu", lambda: True)
    profiler = SimpleNamespace(start=lambda: act("start"), stop=lambda: act("stop"))
    monkeypatch.setattr("torch.profiler.profile", lambda **given: profiler)
    monkeypatch.setattr(gpu_time, "_trace_of", lambda profiler: act("read") or "trace")
    monkeypatch.setattr(gpu_time, "times_of", lambda trace, names, text: text)
    return window, calls


def test_a_window_begins_after_the_first_step_and_ends_after_the_last(monkeypatch):
    window, calls = window_of(monkeypatch, 2)
    window.first_launch(False)
    assert calls == []
    window.first_launch(True)
    assert calls == ["start"] and window._hook is not None
    window.mark_step()
    assert calls == ["start", "stop", "start"] and window._hook is None
    window.mark_step()
    assert window._window == "step 2" and calls[3:] == []
    window.full()
    window.mark_step()
    assert window._window == "steps 2 to 3" and calls[3:] == ["stop", "read"]
    window.mark_step()
    window.end()
    assert calls[5:] == [] and window.times(()) == "steps 2 to 3" and window.notes == []


def test_a_window_without_steps_ends_when_it_is_full(monkeypatch):
    window, calls = window_of(monkeypatch, 5)
    window.first_launch(True)
    window.full()
    assert calls == ["start", "stop", "read"]
    assert window.times(()) == "its first 20,000 launches: it marked no step until then"
    none, calls = window_of(monkeypatch, 0)
    none.first_launch(True)
    none.full()
    none.end()
    assert calls == [] and none.times(()) is None
    late, calls = window_of(monkeypatch, 1)
    late.end()
    assert calls == [] and late.times(()) is None


@pytest.mark.parametrize("name", ["start", "stop", "read"])
def test_a_profiler_that_fails_is_a_note(monkeypatch, name):
    window, calls = window_of(monkeypatch, 1, fails=(name,))
    window.first_launch(True)
    window.end()
    window.step()
    assert window.notes == [f"GPU times are missing: RuntimeError: {name} fails"]
    assert window.times(()) is None and calls[-1] == name


# The table of a workload


def test_the_gpu_time_of_a_kernel_goes_to_the_signatures_with_its_grid_and_warps():
    def counted(m, warps, launches, grid):
        config = {"BLOCK_M": S.PlainArgument("int", 64), "num_warps": S.PlainArgument("int", warps)}
        return workload_file.CountedSignature(
            replace(launch("add", m, 8, config=config), grid=grid), launches)  # fmt: skip

    some = [counted(64, 4, 10, (1,)), counted(128, 4, 30, (2, 1)), counted(129, 8, 5, (2,)),
            counted(130, 4, 0, (2, 1, 1))]  # fmt: skip
    times = [workload_file.KernelTime("add", *of) for of in (
        ((1, 1, 1), (128, 1, 1), 4, 8.0), ((2, 1, 1), (64, 2, 1), 3, 6.0),
        ((2, 1, 1), (512, 1, 1), 2, 4.0), ((9, 9, 9), (1, 1, 1), 9, 45.0))]  # fmt: skip
    window = workload_file.GpuTimes("w", 100.0, tuple(times))
    whole = workload_file.RecordedWorkload([], some, [window], [])
    shared = [45.0 * n / 45 for n in (10, 30, 5, 0)]
    spent = table.seconds_by_signature(whole)
    assert spent == pytest.approx([8.0 + shared[0], 6.0 + shared[1], 4.0 + shared[2], 0.0])
    means = table.mean_seconds(whole)
    many = [4 + 2.0, 3 + 6.0, 2 + 1.0]
    assert means[:3] == pytest.approx([s / n for s, n in zip(spent, many, strict=False)])
    assert means[3] is None
    (row,) = table.rows_of(whole)
    assert (row.launches, row.signatures, row.configs, row.needs_values) == (45, 4, 2, 1)
    assert row.config == "BLOCK_M 64, 4 warps" and row.share == pytest.approx(0.63)
    assert row.gpu_s == pytest.approx(63.0) and row.origin == "autotune, 3 configs"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "autotune, 3 configs"),
        ({"choices": 1}, "autotune"),
        ({"tuned": False}, "the first of autotune's 3"),
        ({"tuned": False, "choices": 1}, "autotune, 1 config"),
        ({"origin": "call", "choices": 1}, "the call"),
        ({"origin": "inductor", "choices": 2}, "torch.compile, 2 configs"),
        ({"origin": "heuristics", "tuned": False, "choices": 1}, "heuristics"),
    ],
)
def test_where_a_config_comes_from(change, words):
    assert table.origin_text(launch("add", 64, 8, **change)) == words


def test_the_head_of_a_table_says_what_is_missing():
    def process(mode, complete, device=""):
        return workload_file.RecordedProcess(
            f"{mode}.py", None, mode, device, "", 1.0, complete, {}
        )

    some = [
        process("gpu", True, "H200"),
        process("gpu", False, "H100"),
        process("caught", False, "x"),
        process("interpreted", True),
    ]
    function = launch("add", 8, 8).function
    whole = workload_file.RecordedWorkload(
        some,
        [workload_file.CountedSignature(launch("add", 8, 8), 1500)],
        [],
        [(function, 1000), (replace(function, name="b"), 234)],
        ["a note"],
    )
    lines = table.head_lines(whole)
    assert lines[0] == (
        "caught.py, gpu.py, interpreted.py: 2,734 launches, 1 distinct signatures, 4 processes; "
        "H100, H200."
    )
    assert lines[1].startswith("There was no GPU") and lines[2].startswith(
        "Launches ran in Triton's"
    )
    assert lines[3].startswith("2 of 4 processes did not end by themselves")
    assert lines[4] == "1,234 launches had signatures beyond those that are kept."
    assert lines[5:] == ["a note"]
    one = workload_file.RecordedWorkload([process("gpu", True)], [], [], [])
    assert table.head_lines(one) == ["gpu.py: 0 launches, 0 distinct signatures."]
    ctas = {"num_ctas": S.PlainArgument("int", 2), "maxnreg": S.PlainArgument("none", None)}
    assert table.config_text(launch("a", 8, 8, config=ctas)) == "num_ctas 2"
    ctas["num_ctas"] = S.PlainArgument("int", 1)
    assert table.config_text(launch("a", 8, 8, config=ctas)) == "as the library chooses"


# Plans, families and savings


def item(share, launch_s, least_s, m=64, **more):
    return plan.WorkItem(launch("add", m, 8, **more), 1, share, launch_s, least_s, "f")


def test_what_can_be_won_lies_above_the_bandwidth():
    assert item(0.5, None, 1.0).winnable_share == 0.5
    assert item(0.5, 4.0, 1.0).winnable_share == 0.375
    assert item(0.5, 4.0, 4.0).winnable_share == item(0.5, 4.0, 9.0).winnable_share == 0.5 * 0.02
    some = [item(0.5, 4.0, 1.0), item(0.5, 8.0, 1.0)]
    assert plan.time_for(some[0], some, 10.0) == pytest.approx(10 * 0.375 / 0.8125)
    none = [item(0.0, None, 1.0)] * 4
    assert plan.time_for(none[0], none, 10.0) == 2.5 and plan.time_for(none[0], [], 10.0) == 10.0


def test_the_least_time_moves_each_storage_once():
    one = launch("add", 1024, 64)  # x and y share 131,072 bytes; i has 8,192
    assert plan.least_s(one, 1e9) == pytest.approx(139_264e-9)
    assert plan.least_s(one, 1e15) == 2e-6
    sizes = {"bfloat16": 2, "float8_e4m3fn": 1, "complex256": 16, "int64": 8, "bool": 1, "int4": 1}
    assert {d: plan._itemsize(tensor((1,), d)) for d in sizes} == sizes


def test_a_work_list_ends_where_its_share_is_reached():
    some = [
        workload_file.CountedSignature(launch("add", m, 8), n)
        for m, n in ((64, 1), (128, 2), (256, 5))
    ]
    whole = workload_file.RecordedWorkload([], some, [], [])
    for cover, count in ((0.625, 1), (0.626, 2), (0.875, 2), (0.876, 3), (1.0, 3)):
        assert len(plan.work_list(whole, cover, 1e15)) == count
    shares = [each.share for each in plan.work_list(whole, 1.0, 1e15)]
    assert shares == [0.625, 0.25, 0.125]
    with pytest.raises(WorkloadError, match="no launches that could be tuned"):
        plan.work_list(workload_file.RecordedWorkload([], [], [], []), 1.0, 1e15)


def result(signature, status, block=64, before=4e-5, after=2e-5):
    return tuning.TunedSignature(
        plan.signature_digest(signature), status, "", (("BLOCK_M", block),),
        MeasuredTime(before, before, before), MeasuredTime(after, after, after))  # fmt: skip


def test_gaps_of_a_family_are_served_where_they_were_measured():
    members = [item(0.1, None, s, m) for m, s in ((4096, 8e-6), (256, 2e-6), (1024, 4e-6))]
    by_size = [members[1], members[2], members[0]]

    def all_of(*statuses, blocks=(64, 64, 64)):
        return {plan.signature_digest(m.signature): result(m.signature, s, b)
                for m, s, b in zip(by_size, statuses, blocks, strict=True)}  # fmt: skip

    kept = all_of("kept", "kept", "kept")
    found = list(families.gaps(members, kept))
    assert [(g.first, g.second) for g in found] == [tuple(by_size[:2]), tuple(by_size[1:])]
    assert all(g.is_served(kept) and g.middle is None for g in found)
    assert [m.family for m in families.measured_families(members, kept)] == ["f"] * 3
    failed = all_of("kept", "failed", "kept")
    assert [g.reason for g in families.gaps(members, failed)] == [
        "a size at its end could not be tuned"
    ] * 2
    assert not any(g.is_served(failed) for g in families.gaps(members, failed))
    assert [m.family for m in families.measured_families(members, failed)] == ["f/1", "f/2", "f/3"]
    other = all_of("kept", "kept", "faster", blocks=(64, 64, 128))
    first, second = families.gaps(members, other)
    assert first.is_served(other) and first.middle is None and not second.is_served(other)
    assert [dict(c) for c in second.middle.configs] == [{"BLOCK_M": 64}, {"BLOCK_M": 128}]
    assert second.middle.item.least_s == pytest.approx((4e-6 * 8e-6) ** 0.5)
    numbers = plan.numbers_of(second.middle.item.signature)
    assert numbers[0] == 2048
    middle = second.middle.item.signature
    for status, served, names in (
        ("faster", True, ["f"] * 4),
        ("failed", False, ["f/1", "f/1", "f/2"]),
    ):
        all_ = {**other, plan.signature_digest(middle): result(middle, status)}
        assert second.is_served(all_) is served
        assert [m.family for m in families.measured_families(members, all_)] == names
    assert families.measured_families([], kept) == []
    unlike = all_of("kept", "kept", "kept", blocks=(64, 128, 128))
    assert [g.middle is not None for g in families.gaps(members, unlike)] == [True, False]


def test_savings_and_choices_of_a_family():
    one, other = launch("add", 64, 8), launch("add", 128, 8)
    results = [(0.5, result(one, "faster")), (0.25, result(other, "kept", after=4e-5)),
               (0.25, replace(result(other, "kept"), before_s=None))]  # fmt: skip
    assert tuning.saving(results) == pytest.approx(0.25)
    times = {"a": {"x": 1.0, "y": 1.02}, "b": {"x": 1.02, "y": 1.0}}
    chosen_ = tuning.family_choices(times, {"a": "y"})
    (served,) = {chosen_["b"]}
    assert chosen_["a"] == ("y" if times["a"]["y"] <= times["a"][served] else served)
    assert tuning.family_choices(times, {"a": "z"})["a"] == served
    assert tuning.family_choices({}, {"a": "u"}) == {"a": "u"}
    equal = {"a": {"x": 1.0, "y": 1.0}, "b": {"x": 1.0, "y": 5.0}}
    assert tuning.family_choices(equal, {"a": "y", "b": "y"}) == {"a": "y", "b": "x"}


# Ranks


def test_ranks_that_differ_are_named():
    assert ranks.difference([{"f": "1"}, {"g": "2"}, {"f": "1", "g": "2"}]) == ""
    text = ranks.difference([{"a": "1"}, {"f": "1"}, {"f": "1"}, {"f": "2"}], "Hosts")
    assert text.startswith("Hosts 1 and 3 launch different configs of f: 1 and 2 (digests ")
    digests = [pinned.digest_of({"f": n}) for n in "12"]
    assert f"(digests {digests[0]} and {digests[1]})" in text


def test_all_ranks_are_compared_by_digest_first(monkeypatch):
    sent = []

    class Distributed:
        available = initialized = True
        others: list = []  # noqa: RUF012

        def is_available(self):
            return self.available

        def is_initialized(self):
            return self.initialized

        def get_world_size(self):
            return 2

        def all_gather_object(self, into, value):
            sent.append(value)
            into[:] = [value, self.others.pop(0)]

    there = Distributed()
    monkeypatch.setitem(sys.modules, "torch.distributed", there)
    one = SimpleNamespace(digest=lambda: "d", choices={"f": "1"})
    there.others = ["d"]
    assert ranks.verify_ranks(one) == 2 and sent == ["d"]
    there.others = ["e", {"g": "2"}]
    assert ranks.verify_ranks(one) == 2 and sent[1:] == ["d", {"f": "1"}]
    there.others = ["e", {"f": "2"}]
    with pytest.raises(pinned.PinError, match="Ranks 0 and 1 launch different configs of f"):
        ranks.verify_ranks(one)
    there.initialized = False
    assert ranks.verify_ranks(one) == 1
    there.initialized, there.available = True, False
    assert ranks.verify_ranks(one) == 1


def test_ranks_are_verified_at_powers_of_two_and_before_the_group_ends(monkeypatch):
    asked, steps, destroyed = [], [], []
    monkeypatch.setattr(ranks, "verify_ranks", lambda table: asked.append(len(asked)))
    monkeypatch.setattr(ranks, "add_step_hook", steps.append)

    def destroy(*args, **kwargs):
        destroyed.append((args, kwargs))
        return "done"

    module = SimpleNamespace(destroy_process_group=destroy)
    package = SimpleNamespace(destroy_process_group=destroy)
    monkeypatch.setitem(sys.modules, ranks.DISTRIBUTED, module)
    monkeypatch.setitem(sys.modules, "torch.distributed", package)
    one = object.__new__(pinned.PinnedTable)
    monkeypatch.setattr(pinned.PinnedTable, "active", one)
    ranks.verify_often(one)
    counts = []
    for _ in range(9):
        steps[0]()
        counts.append(len(asked))
    assert counts == [1, 2, 2, 3, 3, 3, 3, 4, 4]
    assert module.destroy_process_group is package.destroy_process_group is not destroy
    assert module.destroy_process_group() == "done" and len(asked) == 5
    module.destroy_process_group("group")
    module.destroy_process_group(group="group")
    assert len(asked) == 5
    module.destroy_process_group(group=None)
    assert len(asked) == 6 and len(destroyed) == 4
    try:
        raise KeyError
    except KeyError:
        module.destroy_process_group()
    monkeypatch.setattr(pinned.PinnedTable, "active", None)
    module.destroy_process_group()
    steps[0]()
    assert len(asked) == 6 and len(destroyed) == 6


# The recorder


@pytest.fixture
def recording(tmp_path, monkeypatch):
    hooks = SimpleNamespace(
        install=lambda: None, remove=lambda: None, grid=None, skips_launches=True
    )
    monkeypatch.setattr(recorder, "TritonHooks", lambda sink: hooks)
    monkeypatch.setattr(recorder, "describe", observed.describe)
    options = recorder.RecordOptions(profile_steps=0)
    one = recorder.LaunchRecorder(tmp_path / "w.json", options)
    monkeypatch.setattr(one, "_launch_signature", lambda kernel, args, kwargs, shape: replace(
        launch(kernel.jit.__name__, 8, 8), grid=(*shape, *args)))  # fmt: skip
    return one


def jit_named(name):
    return SimpleNamespace(__name__=name, arg_names=("n",))


def test_launches_are_counted_by_signature_up_to_a_number(recording, monkeypatch):
    monkeypatch.setattr(recorder, "MOST_SIGNATURES", 2)
    monkeypatch.setattr(recorder, "MOST_KEYS", 2)
    add, scale = jit_named("add"), jit_named("scale")
    for number in (1, 1, 2, 1, 3, 4, 3):
        recording.note_launch(add, (number,), {}, (1,), triton_hooks.NOBODY)
    recording.note_launch(scale, (1,), {}, 7, triton_hooks.NOBODY)
    whole = recording.workload(False)
    assert [(c.signature.grid, c.launches) for c in whole.signatures] == [((1, 1), 3), ((1, 2), 1)]
    assert [(f.name, n) for f, n in whole.omissions] == [("add", 3), ("scale", 1)]
    assert whole.launches == 8 == recording._seen and recording._kept_keys <= 2
    kernels = recording._all_kernels()
    assert len(kernels) == 2 and sum(len(k.counters) for k in kernels) <= 2


def test_a_launch_that_cannot_be_described_is_counted_alone(recording, monkeypatch):
    def fails(*_):
        raise ValueError("odd\nmore")

    monkeypatch.setattr(recording, "_launch_signature", fails)
    for _ in range(2):
        recording.note_launch(jit_named("add"), (1,), {}, (1,), triton_hooks.NOBODY)
    whole = recording.workload(True)
    assert whole.signatures == [] and [(f.name, n) for f, n in whole.omissions] == [("add", 2)]
    assert whole.notes == ["Launches of add are only counted: ValueError: odd"]


def test_a_recording_begins_once_ends_once_and_forgets_in_a_fork(recording, tmp_path, monkeypatch):
    monkeypatch.setattr(recorder.os, "register_at_fork", lambda **given: None)
    other = recorder.LaunchRecorder(
        tmp_path / "other.json", recorder.RecordOptions(profile_steps=0)
    )
    with recording:
        assert recorder.LaunchRecorder.active is recording and recording.path.exists()
        with pytest.raises(WorkloadError, match=r"w.json is being recorded already"):
            other.__enter__()
        other.end()
        assert not other._ended.is_set() and not other.path.exists()
        recording.note_launch(jit_named("add"), (1,), {}, (1,), triton_hooks.NOBODY)
        before = recording.path
        recording._reset_after_fork()
        assert recording.path.name == f"w.{recorder.os.getpid()}.json"
        assert recording._seen == 0 and recording.workload(False).signatures == []
        recording.path = before
        recording.note_launch(jit_named("add"), (1,), {}, (1,), triton_hooks.NOBODY)
    assert recorder.LaunchRecorder.active is None and recording._ended.is_set()
    stored = workload_file.read(before)
    assert stored.processes[0].complete and stored.launches == 1
    recording.note_launch(jit_named("add"), (1,), {}, (1,), triton_hooks.NOBODY)
    recording.end()
    assert workload_file.read(before).launches == 1
    recording._reset_after_fork()
    assert recording.path == before


def test_a_file_is_written_again_after_launches(recording, monkeypatch, capsys):
    waits = []
    recording._ended = SimpleNamespace(wait=lambda s: waits.append(s) or len(waits) > 4)
    spent = [0.001, 0.05]
    monkeypatch.setattr(recording, "_write", lambda complete: setattr(
        recording, "_written", recording._seen) or recording._wake() or spent.pop(0))  # fmt: skip
    recording._wake = lambda: setattr(recording, "_seen", 5 if len(spent) == 2 else recording._seen)
    recording._seen = 1
    recording._write_often()
    assert waits == [1.0, 1.0, 5.0, 5.0, 5.0] and spent == []


def test_what_chose_a_config_is_recorded(recording):
    def of(by, named, options, constexprs=()):
        kernel = recorder._Kernel(None, by, identity=replace(FUNCTION, constexprs=constexprs))
        return recording._chosen_config(kernel, named, options)

    tuner = SimpleNamespace(best_config=triton.Config({"BLOCK": 64}, num_warps=8, num_stages=2))
    origin, config = of(triton_hooks.Chooser(tuner), {"BLOCK": 32, "n": 1}, {"num_stages": 5})
    assert origin == "autotune" and (
        config["BLOCK"],
        config["num_warps"],
        config["num_stages"],
    ) == (32, 8, 5)
    heuristics = SimpleNamespace(values={"EVEN": 1, "ODD": 2})
    assert of(triton_hooks.Chooser(None, heuristics), {"EVEN": True, "n": 1}, {"num_warps": 4}) == (
        "heuristics", {"EVEN": True, "num_warps": 4})  # fmt: skip
    named = {"BLOCK": 64, "TILE_K": True, "WIDTH": 8, "GROUP_M": 8, "chunk": 4}
    assert of(triton_hooks.NOBODY, named, {"num_warps": 2}, tuple(named)) == (
        "call", {"BLOCK": 64, "GROUP_M": 8, "chunk": 4, "num_warps": 2})  # fmt: skip


def test_where_launches_ran(recording, monkeypatch):
    assert recording._where() == ("gpu", "")
    interpreted = type("InterpretedFunction", (), {})
    compiled = type("JITFunction", (), {})

    def kernels(*of):
        recording._kernels = {n: {0: SimpleNamespace(jit=one())} for n, one in enumerate(of)}
        return recording._where()

    assert kernels(interpreted, interpreted) == ("interpreted", "CPU")
    assert kernels(interpreted, compiled) == ("caught", "")
    recording._hooks.skips_launches = False
    assert kernels(compiled) == ("gpu", "")
    cuda = SimpleNamespace(is_initialized=lambda: True, get_device_name=lambda: "H200")
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, __version__="2.9"))
    assert kernels(compiled) == ("gpu", "H200")
    monkeypatch.setenv("RANK", "4")
    process = recording._described_process(True)
    assert (process.rank, process.complete, process.versions["torch"]) == (4, True, "2.9")
    monkeypatch.setenv("RANK", "x")
    assert recording._described_process(False).rank is None


# Hooks


def test_arguments_have_their_names_and_defaults():
    def add(x, y, n=4, BLOCK=8): ...

    jit = SimpleNamespace(arg_names=["x", "y", "n", "BLOCK"], fn=add)
    assert triton_hooks.named_arguments(jit, (1, 2), {"BLOCK": 16, "num_warps": 4}) == {
        "x": 1, "y": 2, "n": 4, "BLOCK": 16}  # fmt: skip
    assert triton_hooks.named_arguments(jit, (1,), {}) == {"x": 1, "n": 4, "BLOCK": 8}
    tuner = SimpleNamespace(arg_names=["x", "n"], keys=["n", "m"])
    assert triton_hooks.tuner_key(tuner, {"x": torch.zeros(1), "n": 4, "z": torch.zeros(1)}) == (
        "4", "torch.float32")  # fmt: skip


def test_the_first_config_is_launched_where_nothing_can_be_timed():
    calls = []
    config = triton.Config(
        {"BLOCK": 64}, num_warps=8, pre_hook=lambda named: calls.append(named["x"])
    )
    tuner = SimpleNamespace(
        arg_names=["x"],
        configs=[config, CONFIGS[0]],
        prune_configs=lambda kwargs: [],
        fn=SimpleNamespace(run=lambda *a, **k: (a, k["BLOCK"], k["num_warps"])),
    )
    assert triton_hooks._first_config(tuner, (5,), {"grid": 1}) == ((5,), 64, 8)
    assert calls == [5] and tuner.nargs is None and tuner.best_config is config
    tuner.prune_configs = lambda kwargs: [CONFIGS[1]]
    assert triton_hooks._first_config(tuner, (5,), {}) == ((5,), 128, 8)
    assert calls == [5]


def test_choices_of_inductor_are_counted_after_they_were_compiled():
    many = triton_hooks.inductor_choices
    assert many(SimpleNamespace(configs=[1, 2, 3])) == 3
    assert many(SimpleNamespace(configs=None, compile_results=[1, 2])) == 2
    assert many(SimpleNamespace(configs=None)) == 1
    launcher = SimpleNamespace(config="second")
    for launchers, config in (([launcher], "second"), ([], "first")):
        tuner = SimpleNamespace(
            launchers=launchers,
            configs=["first"],
            triton_meta={"signature": {"a": 1, "B": 2, "c": 3}},
            fn=SimpleNamespace(constexprs=[1]),
            _interpret_args_grid=lambda args, c: (args, (c,)),
        )
        found = triton_hooks.inductor_arguments(tuner, [7, 8])
        assert found == ({"a": 7, "c": 8}, (config,), config)


# Names and hashes of functions


def test_a_hash_is_of_the_code_and_of_what_it_calls():
    text = '''
LIMIT = 3
def inner(x):
    """Return twice x."""
    return 2 * x
def other(x):
    return inner(x) + LIMIT
'''

    def hashed(change=lambda text: text):
        space = {"__name__": "mine"}
        source = change(text)
        exec(source, space)
        parts = source.split("def ")
        jits = {}
        for name, part in (("inner", parts[1]), ("other", parts[2])):
            fn = space[name]
            jits[name] = SimpleNamespace(
                fn=fn, arg_names=("x",), src="def " + part, params=None, __module__="mine"
            )
            space[name] = jits[name]
        return identity.text_hash(jits["other"])

    first = hashed()
    assert len(first) == 16
    for same in (
        lambda t: t.replace("twice", "two times"),
        lambda t: t.replace("2 * x", "2*x  # c"),
    ):
        assert hashed(same) == first
    for changed in (
        lambda t: t.replace("LIMIT = 3", "LIMIT = 4"),
        lambda t: t.replace("2 * x", "3 * x"),
        lambda t: t.replace("+ LIMIT", "- LIMIT"),
    ):
        assert hashed(changed) != first
    params = [
        SimpleNamespace(name="x", is_constexpr=False),
        SimpleNamespace(name="n", is_constexpr=True),
    ]
    assert identity.constexprs_of(SimpleNamespace(params=params)) == {"n"}
    noted = {"x": "tensor", "n": "tl.constexpr"}
    interpreted = type("Interpreted", (), {"fn": staticmethod(lambda x, n: None)})()
    interpreted.fn.__annotations__ = noted
    assert identity.constexprs_of(interpreted) == {"n"}
    assert identity._is_library("torch.nn") and not identity._is_library("torchvision")


def test_a_middle_of_two_sizes_is_described():
    first = drawn_numbers.between.middle(launch("add", 64, 8), launch("add", 256, 8))
    assert text_of(first.grid) == "(2, 1, 1)" and first.key == ("128", "8")


@pytest.mark.parametrize(("benchmarking", "warmup"), [(False, False), (True, False), (False, True)])
def test_launches_by_which_a_tuner_times_or_warms_up_are_not_recorded(benchmarking, warmup):
    launches = []
    sink = SimpleNamespace(note_launch=lambda *launch: launches.append(launch))
    hooks = triton_hooks.TritonHooks(sink)
    hooks._caught, hooks._context.benchmarking = False, benchmarking
    run = hooks._jit_run(lambda *args, **kwargs: "launched")
    assert run("function", 1, grid=(4,), warmup=warmup) == "launched"
    expected = [("function", (1,), {}, (4,), triton_hooks.NOBODY)]
    assert launches == ([] if benchmarking or warmup else expected)


def test_a_view_of_another_dtype_is_described_by_what_triton_reads():
    """`triton.reinterpret` wraps a tensor: its shape, strides and storage are the tensor's."""
    x = torch.zeros(6, 4, dtype=torch.int8)[:, :2]
    wrapped = triton.reinterpret(x, triton.language.float8e5)
    storages = {}
    plain, seen = (observed.describe(each, storages, False) for each in (x, wrapped))
    assert (seen.shape, seen.stride) == ((6, 2), (4, 1)) and seen.storage == plain.storage
    assert len(storages) == 1
