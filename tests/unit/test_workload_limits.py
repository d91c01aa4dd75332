"""Sizes between two sizes, plans, grids and recordings at their limits, by hand."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from drawn_numbers import launch, tensor

from workbench.data.files import FileError
from workbench.workload import between, gpu_time, grids, observed, pinned, plan, rebuilt, recorder
from workbench.workload import file as workload_file
from workbench.workload import signature as S

pytestmark = pytest.mark.unit

INT, NONE = S.PlainArgument("int", 8), S.PlainArgument("int", None)
KINDS = (INT, S.PlainArgument("float", "0.5"), tensor((8,)), S.TupleArgument((INT,)),
         S.DescriptorArgument(tensor((8, 4)), (8, 4), (4, 1), (4, 4)))  # fmt: skip
DOUBLED = between.Scale(8, 16)  # to a size between 8 and 32


# Between two sizes


@pytest.mark.parametrize("one", KINDS)
@pytest.mark.parametrize("other", KINDS)
def test_arguments_of_two_kinds_have_no_middle(one, other):
    if one is other:
        assert between._argument(one, other, DOUBLED) == one
    else:
        with pytest.raises(between.NoMiddle, match="its arguments differ in more than sizes"):
            between._argument(one, other, DOUBLED)


def test_arguments_in_the_middle_have_its_numbers():
    big = S.PlainArgument("int", 32)
    assert between._argument(INT, big, DOUBLED) == S.PlainArgument("int", 16)
    assert between._numbers(NONE) == [0] and between._numbers(None) == []
    assert between._numbers(S.TupleArgument((INT, big))) == [8, 32]
    rows = S.DescriptorArgument(tensor((8, 4)), (8, 4), (4, 1), (4, 4))
    more = S.DescriptorArgument(tensor((32, 4)), (32, 4), (4, 1), (4, 4))
    half = S.DescriptorArgument(tensor((16, 4)), (16, 4), (4, 1), (4, 4))
    assert between._argument(rows, more, DOUBLED) == half
    some = replace(tensor((8,), "int64"), values=(1,) * 8)
    assert between._argument(some, some, DOUBLED) == some
    for other in (replace(some, values=(2,) * 8), replace(tensor((32,), "int64"), values=None)):
        with pytest.raises(between.NoMiddle, match="integer tensor"):
            between._argument(some, other, DOUBLED)
    for other in (tensor((8, 1)), tensor((8,), "float32"), tensor((8,), storage=3)):
        with pytest.raises(between.NoMiddle, match="its tensors differ in more than sizes"):
            between._argument(tensor((8,)), other, DOUBLED)
    low = replace(tensor((32,)), align=4)
    assert between._argument(tensor((8,)), low, DOUBLED) == replace(tensor((16,)), align=4)


@pytest.mark.parametrize(
    ("pairs", "unit", "middle"),
    [([(64, 256)], 64, 128), ([(64, 128)], 64, 96), ([(16, 48)], 16, 32), ([(16, 32)], 16, 24),
     ([(4, 6)], 4, 5), ([(1024, 16), (2048, 32)], 1024, 128), ([(64, 256), (96, 384)], 32, 64)],
)  # fmt: skip
def test_the_middle_is_the_geometric_mean_on_the_coarsest_step(pairs, unit, middle):
    assert between._scale(pairs) == between.Scale(unit, middle)


@pytest.mark.parametrize(
    ("pairs", "words"),
    [([(8, 16), (8, 24)], "in one ratio"), ([(0, 8)], "in one ratio"), ([(8, 0)], "in one ratio"),
     ([(8, 16), (0, 4)], "in one ratio"), ([(4, 5)], "no size lies"), ([(2, 1)], "no size lies")],
)  # fmt: skip
def test_sizes_without_a_middle(pairs, words):
    with pytest.raises(between.NoMiddle, match=words):
        between._scale(pairs)


def test_a_number_grows_with_the_others_and_stays_between():
    assert [DOUBLED.number(*pair) for pair in ((8, 32), (24, 96), (5, 5), (32, 128))] == [
        *(16, 48, 5, 64)
    ]
    for pair in ((8, 16), (16, 8), (4, 8), (8, 9)):
        with pytest.raises(between.NoMiddle, match="in one ratio"):
            DOUBLED.number(*pair)
    assert between.Scale(8, 12).number(4, 8) == 6
    with pytest.raises(between.NoMiddle, match="in one ratio"):
        between.Scale(8, 12).number(3, 8)  # 4.5


def test_parts_of_a_key_in_the_middle():
    assert between._key_part("8", "32", DOUBLED) == "16"
    assert between._key_part("fp16", "fp16", DOUBLED) == "fp16"
    for pair in (("8", "x"), ("x", "8"), ("a", "b")):
        with pytest.raises(between.NoMiddle, match="its key differs in more than sizes"):
            between._key_part(*pair, DOUBLED)


def test_strides_are_dense_in_the_order_of_both():
    def stride(one, other, shape):
        a, b = (S.TensorArgument("float32", s, t, 16, 0) for s, t in (one, other))
        return between._stride(a, b, shape, DOUBLED)

    rows = ((8, 4), (4, 1))
    assert stride(rows, ((32, 4), (4, 1)), (16, 4)) == (4, 1)
    assert stride(((4, 8), (8, 1)), ((4, 32), (32, 1)), (4, 16)) == (16, 1)
    assert stride(((8, 4), (1, 8)), ((32, 4), (1, 32)), (16, 4)) == (1, 16)
    assert stride(((8, 4), (5, 1)), ((32, 4), (5, 1)), (16, 4)) == (5, 1)
    assert between._dense((2, 3, 4), [2, 0, 1]) == (4, 8, 1)


def test_a_grid_of_the_middle_is_of_the_one_formula_that_fits():
    def axis(wanted, sizes=((1, 64), (1, 256), (1, 128)), blocks=(16, 32)):
        terms = between._terms([list(s) for s in sizes], ("B",))
        return between._axis(terms, [{"B": b} for b in blocks], wanted)

    assert axis([[4, 2], [16, 8]]) == [8, 4]
    assert axis([[64, 64], [256, 256]]) == [128, 128] and axis([[1, 1], [1, 1]]) == [1, 1]
    odd = ((1, 63), (1, 255), (1, 127))
    assert axis([[4, 2], [16, 8]], odd) == [8, 4], "rounded up"
    with pytest.raises(between.NoMiddle, match="is not a formula"):
        axis([[5, 2], [16, 8]])
    two = ((1, 64, 64), (1, 256, 256), (1, 128, 160))
    with pytest.raises(between.NoMiddle, match="in several ways"):
        axis([[4, 2], [16, 8]], two)


def test_grids_of_both_sizes_are_needed():
    def grids_(shapes, knobs=("BLOCK_M",)):
        return launch("add", 64, 8, grids=None if shapes is None else S.ConfigGrids(knobs, shapes))

    one, other = grids_({(32,): (2,)}), grids_({(32,): (8, 1)})
    for pair in ((grids_(None), one), (one, grids_(None)), (one, grids_({(32,): (2,)}, ("N",)))):
        with pytest.raises(between.NoMiddle, match="were not recorded"):
            between._grids(*pair, {})
    for pair in ((one, other), (one, grids_({(64,): (1,)}))):
        with pytest.raises(between.NoMiddle, match="more axes"):
            between._grids(*pair, {})
    assert between._launch_numbers({"x": tensor((6, 4)), "n": INT}) == [1, 6, 4, 24, 6, 8]


# A plan


def test_a_family_is_of_two_autotuned_sizes_in_one_ratio():
    def names(*signatures):
        items = [plan.WorkItem(s, 1, 0.1, None, 1.0) for s in signatures]
        return [each.family for each in plan._name_families(items)]

    first, second = launch("add", 64, 8), launch("add", 128, 8)
    assert names(first, second, launch("add", 192, 8)) == ["add-3-64x8x64"] * 3
    assert names(first) == [None] and names(first, launch("mul", 128, 8)) == [None, None]
    assert names(first, launch("add", 128, 8, origin="call")) == [None, None]
    assert names(first, launch("add", 128, 24), second) == ["add-2-64x8x64", None, "add-2-64x8x64"]


def test_a_storage_counts_as_its_largest_tensor():
    one = launch("add", 1, 1)
    one = replace(one, arguments={"x": tensor((1000,)), "y": tensor((3000,)), "z": tensor((2000,)),
                                  "w": tensor((0,), storage=1)})  # fmt: skip
    assert plan.least_s(one, 1e9) == pytest.approx(6e-6)
    assert plan.least_s(one, 3.1e9) == 2e-6 and plan.least_s(one, 2.9e9) > 2e-6
    sizes = {"int136": 16, "int128": 16, "int120": 15, "int16": 2, "int1": 1, "odd": 1, "int12": 1}
    assert {d: plan._itemsize(tensor((1,), d)) for d in sizes} == sizes
    text = {"x": tensor((3, 4)), "s": tensor(()), "n": INT}
    assert plan.signature_text(replace(one, arguments=text)) == (
        "x 3x4 bfloat16, s scalar bfloat16"
    )
    config = {"n": INT}
    assert plan.numbers_of(replace(one, arguments=text | {"k": NONE}, config=config)) == [3, 4, 0]


def test_configs_in_use_are_those_that_an_autotuner_timed_on_this_gpu():
    def process(device, mode="gpu"):
        return workload_file.RecordedProcess("a.py", None, mode, device, "2026", 1.0, True, {})

    def chosen(*processes, timed=True, **more):
        one = launch("add", 64, 8, **more)
        time = workload_file.KernelTime("add", one.grid, (128, 1, 1), 4, 8e-6)
        window = workload_file.GpuTimes("steps", 1e-3, (time,), ())
        whole = workload_file.RecordedWorkload(
            list(processes), [workload_file.CountedSignature(one, 4)], [window] if timed else [], []
        )
        return [i.launch_s for i in plan.configs_in_use(whole, "H200", 1e12)]

    here = process("H200")
    assert chosen(here, tuned=True) == [pytest.approx(2e-6)]
    assert chosen(here, process("", "gpu"), process("CPU", "interpreted")) != []
    for processes in (
        (),
        (process("H100"),),
        (here, process("H100")),
        (process("H200", "caught"),),
    ):
        assert chosen(*processes) == []
    assert chosen(here, timed=False) == chosen(here, tuned=False) == chosen(here, key=None) == []
    assert chosen(here, origin="call") == []


# Grids


def test_points_are_the_configs_and_then_their_neighbours_each_once():
    configs = [{"BM": 2, "w": 4}, {"BM": 2, "w": 4}, {"BM": 8, "w": True}, {"BM": 4, "w": 8}]
    points = [(p["BM"], p["w"]) for p in grids._points(["BM", "w"], configs)]
    assert points == [(2, 4), (4, 8), (1, 4), (4, 4), (2, 8), (8, 8)]
    seen = []
    found = grids.grids_of(lambda at: seen.append(dict(at)) or (at["n"],), {"n": 5}, [
        {"BM": 2, "name": "x", "flag": True}])  # fmt: skip
    assert found == S.ConfigGrids((), {(): (5,)})
    assert seen[0] == {"n": 5, "BM": 2, "name": "x", "flag": True} and len(seen) == 3
    assert grids.grids_of(lambda at: (2,), {}, []) is None
    assert grids.grids_of([3, 4], {}, []) == S.ConfigGrids((), {(): (3, 4)})


def test_grids_are_by_the_fewest_knobs_that_decide_them():
    known = {(1, 1, 5): (1,), (1, 2, 5): (2,), (2, 1, 5): (1,), (2, 2, 5): (2,)}
    assert grids._fewest_knobs("abc", known) == S.ConfigGrids(("b",), {(1,): (1,), (2,): (2,)})
    known[2, 2, 5] = (3,)
    assert grids._fewest_knobs("abc", known).knobs == ("a", "b")
    assert grids._fewest_knobs("abc", {}) is None


# A recording


@pytest.fixture
def recording(tmp_path, monkeypatch):
    hooks = SimpleNamespace(
        install=lambda: None, remove=lambda: None, grid=None, skips_launches=True
    )
    monkeypatch.setattr(recorder, "TritonHooks", lambda sink: hooks)
    return recorder.LaunchRecorder(tmp_path / "w.json", recorder.RecordOptions(0))


def test_a_file_is_written_again_for_a_hundredth_of_the_time(recording, monkeypatch, capsys):
    waits, written = [], []

    def wait(seconds):
        waits.append(seconds)
        recording._seen += len(waits) != 2  # nothing was launched before the second time
        return len(waits) > 4

    def write(complete):
        recording._written = recording._seen
        written.append(complete)
        return (0.005, 0.02)[len(written) - 1]

    monkeypatch.setattr(recording, "_ended", SimpleNamespace(wait=wait))
    monkeypatch.setattr(recording, "_write", write)
    with pytest.raises(IndexError):  # the third write, of which there is no time
        recording._write_often()
    assert waits == [1.0, 1.0, 1.0, 2.0] and written == [False, False, False]

    def fails(complete):
        raise FileError("f", "full")

    waits.clear()
    recording._seen += 1
    monkeypatch.setattr(recording, "_write", fails)
    recording._write_often()
    assert len(waits) == 1
    assert capsys.readouterr().err.startswith("note: f cannot be written (full); name a ")


def test_a_launch_of_the_same_types_uses_the_function_of_its_key(recording, monkeypatch):
    made = []

    def key_function(args, kwargs):
        made.append((args, kwargs))
        return lambda a, k, grid: (grid, *a, *k.values())

    monkeypatch.setattr(recorder, "key_function", key_function)
    monkeypatch.setattr(recording, "_launch_signature", lambda kernel, args, kwargs, shape: replace(
        launch("add", 8, 8), grid=(*shape, len(args), *map(int, args))))  # fmt: skip
    jit = SimpleNamespace(__name__="add", arg_names=("n",))
    by = recorder.Chooser(None, None, False)
    for words in ((1,), (1,), (2,), (1, 2), ("5",), ("5",)):
        recording.note_launch(jit, words, {}, (3,), by)
    assert [args for args, _ in made] == [(1,), (1, 2), ("5",)]
    assert [(c.signature.grid, c.launches) for c in recording.workload(False).signatures] == [
        *(((3, 1, 1), 2), ((3, 1, 2), 1), ((3, 2, 1, 2), 1), ((3, 1, 5), 2)),
    ]
    kernel = recording._kernels[by][id(jit)]
    assert list(kernel.usual) == [(1, 0), (2, 0)] and len(kernel.keys) == 3


def test_an_error_of_a_description_is_its_first_200_characters(recording):
    for text in ("x" * 300, "more"):
        recording._count_alone(SimpleNamespace(__name__="f"), ValueError(f" {text}\nsecond"))
    recording._count_alone(7, ValueError(""))
    assert recording._window.notes == [
        f"Launches of f are only counted: ValueError: {'x' * 200}",
        "Launches of int are only counted: ValueError: ",
    ]
    assert [c.launches for c in recording._beyond.values()] == [2, 1]


@pytest.mark.parametrize(
    ("argv", "name"), [(["a/b.py", "c"], "b.py"), ([""], "python"), ([], "python")]
)
def test_a_process_has_the_name_of_its_script(recording, monkeypatch, argv, name):
    monkeypatch.setattr(recorder.sys, "argv", argv)
    monkeypatch.setenv("RANK", "3" if argv else "x")
    process = recording._described_process(False)
    assert (process.program, process.rank) == (name, 3 if argv else None)


# A pinned table, a launch, a tensor without an address, a profiler


def test_an_autotuner_gets_the_cache_of_the_table_that_is_pinned(monkeypatch):
    from triton.runtime.autotuner import Autotuner

    calls = []
    monkeypatch.setattr(Autotuner, "run", lambda self, *words: calls.append(words))
    tuner = Autotuner.__new__(Autotuner)
    tuner.cache = {}
    caches = []
    for _ in range(2):
        with pinned.PinnedTable([], "first", "sm_90") as one:
            one.install()
            for _ in range(2):
                Autotuner.run(tuner, 1)
                caches.append(tuner.cache)
            assert caches[-1].table is one and one._bound == [tuner, tuner]
    assert caches[0] is caches[1] and caches[2] is caches[3] and caches[1] is not caches[2]
    assert calls == [(1,)] * 4 and "run" not in vars(tuner)


def test_heuristics_are_read_through_all_that_stands_around_a_function():
    inner = SimpleNamespace(values={"C": 3}, fn=SimpleNamespace(values="no mapping"))
    outer = SimpleNamespace(fn=SimpleNamespace(values={"A": 1, "B": 2}, fn=inner))
    assert list(rebuilt._heuristics(outer)) == [{"A": 1, "B": 2}, {"C": 3}]
    pair = S.TupleArgument((INT, S.PlainArgument("bool", True)))
    assert rebuilt._value(pair, {}, "p") == (8, True)
    config = rebuilt.RecordedGrid((), (((), (1, 1, 1)),))
    launch_ = rebuilt.RebuiltLaunch(None, ((), {}), tuple("abc"), config)
    assert rebuilt.limit_configs(launch_, []).configs == ("a",)


def test_a_tensor_without_an_address_lies_at_0():
    def fails():
        raise RuntimeError

    assert observed._address(SimpleNamespace(data_ptr=fails)) == 0
    assert observed._address(SimpleNamespace()) == 0
    assert observed._address(SimpleNamespace(data_ptr=lambda: 24)) == 24


def test_a_step_after_the_end_or_before_the_first_launch_begins_nothing(monkeypatch):
    window = gpu_time.ProfiledWindow(2)
    monkeypatch.setattr(window, "_begin", lambda: pytest.fail("begins"))
    window.step()
    window._ended, window._profiler, window._steps = True, "profiler", 0
    window.step()
    assert window._window == "" and window._steps == 1
    for torch, used in ((None, False), (False, False), (True, True)):
        there = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda torch=torch: torch))
        monkeypatch.setitem(gpu_time.sys.modules, "torch", None if torch is None else there)
        assert gpu_time._has_gpu() is used
