"""Parts of adapted kernels and of operations, each with two of everything, against hand counts."""

import math
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from workbench.adapted import (
    autotuned,
    call,
    cell,
    discover,
    kernel,
    launch,
    moved,
    referenced,
    sample_check,
    sampled,
    traced,
    travel,
    write,
)
from workbench.adapted.call import Argument, Call, ConfigEntry, Knobs, Layout
from workbench.adapted.discover import Discovered, OutputUse
from workbench.adapted.kept import GivenIntegers, Kept
from workbench.adapted.traced import Accesses, LaunchFault, Memory, ProgramPlan, ProgramTrace
from workbench.adapted.travel import AdaptedError, Place
from workbench.catalog import spec_of
from workbench.commands.options import OptionError
from workbench.commands.tune_function import _complete_call as completed
from workbench.commands.tune_words import function_of
from workbench.compile.program_writes import NOBODY
from workbench.compile.stand_in import answering_for_gpu
from workbench.device.hardware import DEVICES
from workbench.kernels import lora
from workbench.kernels.group_norm import EPS
from workbench.measurement.candidate import Refusal
from workbench.ops import choice, derivatives, operation, shapes, text
from workbench.ops.shapes import OperationError

pytestmark = pytest.mark.unit


# What programs do to memory


def trace_of(*memories):
    """Return a trace over tensors of so many fp32 elements, 64 elements apart."""
    made = [Memory(name, 256 * n, 256 * n + 4 * count, 4)
            for n, (name, count) in enumerate(memories, start=1)]  # fmt: skip
    return ProgramTrace("add", reversed(made))


def at(tensor, *elements):
    return np.array([256 * tensor + 4 * e for e in elements])


def test_memory_ends_with_the_last_element():
    x = torch.zeros(4, 6)
    for view, count in ((x, 24), (x[:, :2], 20), (x[1:3, ::2], 11), (x.t(), 24)):
        memory = Memory.locate("x", view)
        assert (memory.begin, memory.end) == (view.data_ptr(), view.data_ptr() + 4 * count)
    assert Memory.locate("h", x.half()).item == 2


def test_accesses_are_elements_of_the_tensor_that_they_lie_in():
    trace = trace_of(("x", 8), ("y", 4))
    trace.begin(3)
    trace.note("load", at(1, 0, 7, 9), np.array([True, True, False]))
    trace.note("store", at(2, 3, 0), np.array([True, True]), np.array([1.0, 2.0], np.float32))
    trace.note("atomic", at(2, 1, 1, 2), True)
    trace.note("load", at(5, 0), np.array([False]))
    (loaded,) = trace.accesses["x"].loads
    assert (loaded[0], loaded[1].tolist(), loaded[2]) == (3, [0, 7], 0)
    (stored,) = trace.accesses["y"].stores
    assert stored[1].tolist() == [3, 0] and stored[2].tolist() == [1.0, 2.0]
    assert trace.accesses["y"].atomics[0].tolist() == [1, 2] and trace.has_atomics
    assert trace.accesses["y"].elements().tolist() == [0, 1, 2, 3]
    assert trace.accesses["x"].elements().tolist() == [] and trace.ran == [3]
    trace.note("store", np.array(256 * 2), np.array([[True], [True]]), np.float32(5.0))
    assert trace.accesses["y"].stores[1][1].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("kind", "address", "words"),
    [
        (
            "load",
            (256 + 32,),
            "add reads out of bounds: element 8 of x, which has 8, in program 1,234",
        ),
        (
            "store",
            (512 - 4,),
            "add writes out of bounds: element -1 of y, which has 4, in program 1,234",
        ),
        ("load", (512 - 8,), "element -2 of y"),
        ("load", (512 - 100,), "element -25 of y"),
        ("load", (256 + 32 + 96,), "element 32 of x"),
        ("load", (512 + 16,), "element 4 of y"),
        ("load", (256, 512), "add reads several tensors by one"),
        ("load", (256, 256 + 32), "element 8 of x"),
        ("store", (528 + (1 << 30),), "element 268,435,460 of y"),
        (
            "store",
            (529 + (1 << 30),),
            "add writes out of bounds, far from all of its tensors, in program 1,234",
        ),
    ],
)
def test_an_address_out_of_bounds_is_named_by_the_nearest_tensor(kind, address, words):
    trace = trace_of(("x", 8), ("y", 4))
    trace.begin(1234)
    with (
        pytest.raises(LaunchFault, match=r"^" + words.replace("(", r"\("))
        if words.startswith("add")
        else pytest.raises(LaunchFault, match=words)
    ):
        trace.note(kind, np.array(address), True, np.zeros(len(address), np.float32))
    none = ProgramTrace("add", [])
    with pytest.raises(LaunchFault, match="add reads memory of no tensor"):
        none.note("load", np.array([1]), True)


def stored(trace, program, elements, values, tensor=1):
    trace.begin(program)
    trace.note("store", at(tensor, *elements), True, np.array(values, np.float32))


def test_programs_that_write_different_values_race():
    trace = trace_of(("x", 8), ("y", 4))
    stored(trace, 0, (0, 1), (1.0, 2.0))
    stored(trace, 1, (1, 2), (2.0, 3.0))
    stored(trace, 1, (2,), (9.0,))
    assert trace.conflict() is None, "equal values, and two stores of one program"
    stored(trace, 2000, (2,), (4.0,))
    assert trace.conflict() == (
        "add has a race: program 1 and 2,000 write different values to element 2 of x, and nothing "
        "orders them; give each element one program, or use atomic operations."
    )
    trace.note("atomic", at(2, 0), True)
    assert trace.conflict() is None
    nan = trace_of(("x", 8))
    for program in (0, 1):
        stored(nan, program, (0,), (math.nan,))
    assert nan.conflict() is None


def test_a_program_that_reads_what_another_writes_races():
    for loaded, words in (
        ((3, 4), None),
        ((7, 2), "program 5 reads and 1 writes element 2 of x"),
        ((0,), None),
        ((1,), "program 5 reads and 0 writes element 1 of x"),
    ):
        trace = trace_of(("x", 8))
        stored(trace, 0, (1,), (1.0,))
        stored(trace, 1, (2,), (1.0,))
        stored(trace, 5, (3, 4), (1.0, 1.0))
        trace.note("load", at(1, *loaded), True)
        found = trace.conflict()
        assert found is None if words is None else words in found


def test_what_is_loaded_before_the_program_stored_it_is_read_first():
    each = Accesses()
    assert not each.read_first
    each.stores = [(0, np.array([1, 2]), None), (1, np.array([3]), None)]
    for loads, first in (
        ([(0, np.array([1, 2]), 1)], False),
        ([(0, np.array([1, 3]), 2)], True),
        ([(0, np.array([1]), 0)], True),
        ([(1, np.array([3]), 1)], True),
        ([(1, np.array([3]), 2)], False),
        ([(0, np.array([2]), 2), (1, np.array([1]), 2)], True),
    ):
        each.loads = loads
        assert each.read_first is first


def test_a_plan_orders_its_programs_and_ends_with_its_budget(monkeypatch):
    from triton.runtime import interpreter

    assert list(ProgramPlan().order(3)) == [0, 1, 2]
    assert list(ProgramPlan([4, 1], is_reversed=True).order(9)) == [1, 4]
    places, dims = [], []
    builder = SimpleNamespace(
        set_grid_dim=lambda *d: dims.append(d), set_grid_idx=lambda *p: places.append(p)
    )
    monkeypatch.setattr(interpreter, "interpreter_builder", builder)
    clock = iter(range(100))
    monkeypatch.setattr(traced, "time", SimpleNamespace(process_time=lambda: float(next(clock))))
    trace = trace_of(("x", 8))
    traced._run_each(lambda: None, {}, (2, 3, 2), trace, ProgramPlan())
    assert dims == [(2, 3, 2)] and trace.ran == list(range(12)) and trace.seconds == [1.0] * 12
    assert places[:3] == [(0, 0, 0), (1, 0, 0), (0, 1, 0)] and places[5:7] == [(1, 2, 0), (0, 0, 1)]
    for budget, ran in ((2.9, 1), (3.0, 2), (6.0, 3), (5.9, 2)):  # 3 s a program by this clock
        trace = trace_of(("x", 8))
        clock = iter(range(100))
        traced._run_each(lambda: None, {}, (9, 1, 1), trace, ProgramPlan(None, budget))
        assert len(trace.ran) == ran
    with (
        pytest.raises(LaunchFault, match="race"),
        traced.trace_programs(trace_of(("x", 8))) as trace,
    ):
        stored(trace, 0, (0,), (1.0,))
        stored(trace, 1, (0,), (2.0,))
    assert traced._Active.trace is None


# Calls of users


def call_on(tensors, grid=(4,), arguments=None, **more):
    """Return a call of `add` with one tensor an argument."""
    arguments = arguments or tuple(Argument(n, True, None, n) for n in tensors)
    entries = more.pop(
        "entries", (ConfigEntry({"BLOCK": 64, "num_warps": 4}, {"BLOCK": 64}, grid),)
    )
    return Call("add", Place("/f.py", "f", "add"), arguments, tensors, entries,
                (Knobs("BLOCK", (64,)), Knobs("num_warps", (4,))), **more)  # fmt: skip


def test_memory_of_a_layout_reaches_from_its_lead_to_its_last_element():
    plain, odd = Layout((3, 4), (4, 1), "fp32"), Layout((3, 4), (8, 2), "fp32", 2, False)
    assert plain.extents == (3, 4) and odd.extents == (2 + 1 + 2 * 8 + 3 * 2,)
    memory = torch.arange(25.0)
    assert odd.view(memory)[2, 3] == 2 + 22 and plain.view(memory) is memory
    assert odd.view(torch.arange(30.0)[5:])[0, 0] == 7
    one = call_on({"x": plain, "y": odd, "z": plain}, initial={"y": "nothing", "z": "zeros"})
    assert one.inputs == ("x", "z") and one.mutates == ("z",)
    assert one.entry({"BLOCK": 64, "num_warps": 4}) is one.entries[0]
    assert one.entry({"BLOCK": 64}) is None


@pytest.mark.parametrize(
    ("accessed", "read", "certain"),
    [
        (None, 2 << 24, 1 << 20),
        ((2 << 20, 1 << 20), 2 << 20, 3 << 20),
        ((33 << 20, 1 << 20), 2 << 24, 33 << 20),
        ((2 << 20, 1 << 10), 2 << 20, (2 << 20) + (1 << 10)),
        ((2 << 24, 1 << 10), 2 << 24, (2 << 24) + (1 << 10)),
    ],
)
def test_bytes_that_a_launch_leaves_out_are_not_counted(accessed, read, certain, tmp_path):
    """Unknown, a part of what is read, all but 3 %; a part of what is written, with a part of what
    is read and with all of it."""
    x, y = Layout((1 << 24,), (1,), "bf16"), Layout((1 << 19,), (1,), "bf16")
    call = call_on(
        {"x": x, "y": y}, outputs=("y",), initial={"y": "nothing"}, dtype="bf16",
        moved_bytes=accessed, unchecked="nothing runs",
    )  # fmt: skip
    spec = kernel.spec_of(call, tmp_path, "nowhere")
    at = spec.check[0], "bf16"
    assert (spec.bytes_read(*at), spec.certain_bytes(*at)) == (read, certain)


def test_small_tensors_count_whole_where_nothing_is_known(tmp_path):
    x = Layout((4096,), (1,), "bf16")
    call = call_on({"x": x, "y": x}, outputs=("y",), initial={"y": "nothing"}, dtype="bf16")
    spec = kernel.spec_of(call, tmp_path, "nowhere")
    assert spec.certain_bytes(spec.check[0], "bf16") == 2 * 2 * 4096


def test_the_layout_and_the_memory_of_a_tensor():
    x = torch.arange(24.0).view(4, 6)
    assert write.layout_of("x", x) == Layout((4, 6), (6, 1), "fp32", 0, True)
    part = x[1:, 1:4]
    layout = write.layout_of("x", part)
    assert layout == Layout((3, 3), (6, 1), "fp32", (x.data_ptr() + 28) % 16 // 4, False)
    memory = write.memory_of(part, layout)
    assert (
        torch.equal(layout.view(memory), part)
        and memory[: layout.lead].tolist() == [0.0] * layout.lead
    )
    assert write.memory_of(x, write.layout_of("x", x)).data_ptr() != x.data_ptr()
    for bad, words in ((x.to(torch.complex64), "x is of torch.complex64; supported are"),
                       (x[:0], "x holds no values"), (x.to("meta"), "x holds no values"),
                       (x.to_sparse(), "x holds no values")):  # fmt: skip
        with pytest.raises(AdaptedError, match=words):
            write.layout_of("x", bad)
    assert write.dtype_name(torch.bfloat16) == "bf16" and write.dtype_name(torch.complex64) is None


def test_tensors_that_share_a_part_of_their_memory_are_pairs():
    x, y = torch.zeros(16), torch.zeros(4)
    names = ["a", "b", "c", "d"]
    for values, pairs in (
        ((x[:8], x[8:]), []), ((x[:9], x[8:]), [("a", "b")]), ((x[8:], x[:9]), [("b", "a")]),
        ((x, x), []), ((x[:4], y, x[3:5], 7), [("a", "c")]), ((x[::2], x[14:]), [("a", "b")]),
        ((x[::2], x[15:]), []), ((x[:0], x), []),
    ):  # fmt: skip
        assert write.overlaps((values, {}), names) == pairs


def test_numbers_of_configs_leave_out_what_is_equal():
    def config(block, warps=4, stages=3, hook=None, **more):
        return triton.Config(
            {"BLOCK": block}, num_warps=warps, num_stages=stages, pre_hook=hook, **more
        )

    some = [config(64), config(128, 8, maxnreg=64), config(64)]
    assert write.numbers_of(some) == [
        {"BLOCK": 64, "num_warps": 4, "num_stages": 3, "maxnreg": 0},
        {"BLOCK": 128, "num_warps": 8, "num_stages": 3, "maxnreg": 64},
        {"BLOCK": 64, "num_warps": 4, "num_stages": 3, "maxnreg": 0}]  # fmt: skip
    hooked = write.numbers_of([config(64), config(64, hook=print)])
    assert [at["pre_hook"] for at in hooked] == [0, 1]
    assert "pre_hook" not in write.numbers_of([config(64, hook=print), config(8, hook=print)])[0]
    other = [config(64), triton.Config({"TILE": 8})]
    assert [(at["BLOCK"], at["TILE"]) for at in write.numbers_of(other)] == [(0, 0), (1, 1)]


def add_kernel(x, n, BLOCK=8): ...


JIT = SimpleNamespace(arg_names=["x", "n", "BLOCK"], fn=add_kernel)


def test_a_grid_is_computed_as_a_launch_would():
    config = triton.Config({"BLOCK": 64})
    assert write.grid_of(JIT, {"n": 100}, lambda at: (-(-at["n"] // at["BLOCK"]), 2), config) == (
        2,
        2,
    )
    assert write.grid_of(JIT, {"n": 4}, (3, 4, 5), config) == (3, 4, 5)
    plain = SimpleNamespace(kwargs={}, all_kwargs=dict)
    assert write.grid_of(JIT, {"n": 4}, lambda at: (at["BLOCK"],), plain) == (8,)
    outer = SimpleNamespace(values={"EVEN": lambda at: at["n"] % 2}, fn=JIT)
    assert write.grid_of(outer, {"n": 5}, lambda at: (at["EVEN"] + 1,), config) == (2,)
    for bad in ((), (1, 1, 1, 1), (0,), (-1, -1), (2, 0)):
        with pytest.raises(AdaptedError, match="it must be one to three numbers > 0"):
            write.grid_of(JIT, {}, bad, config)
    with pytest.raises(AdaptedError, match=r"The grid fails for .* \(KeyError: 'm'\)"):
        write.grid_of(JIT, {}, lambda at: at["m"], config)

    def misspelt(at):
        raise OptionError("--grid names BLOK.")

    with pytest.raises(OptionError, match=r"^--grid names BLOK\.$"):
        write.grid_of(JIT, {}, misspelt, config)


def test_configs_that_cannot_be_taken_are_said():
    configs = [triton.Config({"BLOCK": b}) for b in (64, 128, 64)]
    entries, knobs = write.entries_of(
        JIT, {"x": 1, "n": 256}, lambda at: (256 // at["BLOCK"],), configs
    )
    assert [(e.values["BLOCK"], e.grid) for e in entries] == [(64, (4,)), (128, (2,))]
    assert knobs[0] == Knobs("BLOCK", (64, 128)) and [k.name for k in knobs] == [
        "BLOCK", "num_warps", "num_stages"]  # fmt: skip
    for config, named, words in (
        (triton.Config({"TILE": 1}), {}, "TILE"), (configs[0], {"BLOCK": 8}, "BLOCK is given both"),
        (triton.Config({"waves_per_eu": 2, "class": 1}), {}, "class"),
    ):  # fmt: skip
        with pytest.raises(AdaptedError, match=words):
            write.entries_of(JIT, named, (1,), [config])
    odd = triton.Config({"BLOCK": 1})
    odd.ir_override = "file"
    with pytest.raises(AdaptedError, match="an ir_override"):
        write.entries_of(JIT, {}, (1,), [odd])


def test_options_of_the_compiler_in_a_launch_go_to_every_config():
    """`kernel[grid](x, n, num_warps=8, enable_fp_fusion=False)` is a launch as any other."""
    given = [1], {"n": 256, "num_warps": 8, "enable_fp_fusion": False}
    plain, fixed = write.split_options(JIT, given)
    assert plain == ([1], {"n": 256}) and fixed == {"num_warps": 8, "enable_fp_fusion": False}
    config = triton.Config({"BLOCK": 64}, num_warps=8)
    ((entry,), _) = write.entries_of(JIT, {"x": 1, "n": 256}, (4,), [config], fixed)
    assert entry.kwargs["enable_fp_fusion"] is False and entry.kwargs["num_warps"] == 8
    assert entry.values == {"BLOCK": 64, "num_warps": 8, "num_stages": 3}
    with pytest.raises(AdaptedError, match="num_warps is given both as argument and by a config"):
        write.entries_of(JIT, {}, (4,), [triton.Config({"BLOCK": 64}, num_warps=4)], fixed)


def test_tensors_of_an_absent_gpu_lie_here_and_its_driver_is_active():
    """What packages do as they are imported: tables on the GPU, a count of active drivers."""
    from triton.backends import backends

    with answering_for_gpu(DEVICES["h200"]):
        x = torch.tensor([1.0], device="cuda")
        every = (x, x.cuda(), x.to("cuda:0"), torch.empty(2, device=torch.device("cuda")))
        assert {each.device.type for each in every} == {"cpu"}
        assert backends["nvidia"].driver.is_active()
    assert not backends["nvidia"].driver.is_active()
    with pytest.raises((AssertionError, RuntimeError)):
        torch.tensor([1.0], device="cuda")


def test_wrappers_around_a_function_are_looked_through():
    inner = SimpleNamespace(fn=add_kernel)
    assert kernel.unwrap(SimpleNamespace(fn=SimpleNamespace(fn=inner))) is inner
    assert kernel.unwrap(inner) is inner


def test_a_package_that_turns_triton_off_is_imported_with_a_gpu_that_stands_in(tmp_path):
    package = tmp_path / "off_pack"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from triton.backends import backends\n"
        "import triton\n"
        "is_on = backends['nvidia'].driver.is_active()\n"
        "jit = triton.jit if is_on else lambda f: f\n"
    )
    (package / "kernel.py").write_text("from off_pack import jit\n@jit\ndef f(x): ...\n")
    assert Place(str(package / "kernel.py"), "off_pack.kernel", "f").find().arg_names == ["x"]
    travel.forget("off_pack")
    sys.path.remove(str(tmp_path))


def test_tolerances_are_two_steps_of_what_operands_are_rounded_to():
    on = {n: Layout((4,), (1,), k) for n, k in (("x", "fp16"), ("y", "bf16"), ("i", "int32"))}
    result = Discovered(("x", "y", "i"), {}, 0)
    assert completed(call_on(on), result, None).tolerance == {
        "fp16": (1e-3, 1e-4), "bf16": (8e-3, 1e-4), "int32": (0.0, 0.0)}  # fmt: skip
    rounded = completed(call_on(on), replace(result, mantissa_bits=10), None).tolerance
    assert rounded == {"fp16": (1e-3, 2 / 1024), "bf16": (8e-3, 2 / 1024), "int32": (0.0, 0.0)}


def test_values_travel_and_come_back():
    some = (True, 7, 0.5, "s", None, (1, (2, "x")), tl.float32)
    for value in some:
        assert travel.unpack(travel.pack(value, "it")) == value
    assert travel.pack([1, 2], "it") == {"tuple": [1, 2]}
    assert travel.unpack(travel.pack(tl.constexpr(3), "it")).value == 3
    for bad in (object(), tl.pointer_type(tl.float32), {"a": 1}):
        with pytest.raises(AdaptedError, match=r"^it is .*, which does not travel"):
            travel.pack(bad, "it")


def test_places_of_functions_are_found_again(tmp_path):
    place = Place.locate(call_on)
    assert place.name == "call_on" and place.find().__code__ is call_on.__code__
    with pytest.raises(AdaptedError, match="is not found at the top level of"):
        Place.locate(lambda: None)
    with pytest.raises(AdaptedError, match=r"is not a function; give a @triton\.jit function"):
        travel.base(5)
    package = tmp_path / "outer_pack" / "inner_pack"
    package.mkdir(parents=True)
    (tmp_path / "outer_pack" / "__init__.py").write_text("")
    (package / "__init__.py").write_text("def f(): return 5\n")
    (package / "mod_pack.py").write_text("def g(): return 6\n")
    here = Place(str(package / "mod_pack.py"), "outer_pack.inner_pack.mod_pack", "g")
    assert here._depth() == 2 and here.find()() == 6
    whole = Place(str(package / "__init__.py"), "outer_pack.inner_pack", "f")
    assert whole._depth() == 2 and whole.find()() == 5
    script = tmp_path / "script_pack.py"
    script.write_text("def h(): return 7\n")
    assert Place(str(script), "__main__", "h").find()() == 7
    bad = tmp_path / "bad_pack.py"
    bad.write_text("1 / 0\n")
    with pytest.raises(AdaptedError, match=r"bad_pack.py cannot be imported in a worker \(ZeroDiv"):
        Place(str(bad), "__main__", "h").find()
    assert travel.Importing.file is None


def test_a_file_of_a_package_is_found_where_the_package_cannot_be_imported(tmp_path):
    """`workbench tune FILE.py:FUNCTION` of a repository whose package lacks what it imports."""
    inner = tmp_path / "big_pack" / "ops_pack"
    inner.mkdir(parents=True)
    (tmp_path / "big_pack" / "__init__.py").write_text("import no_such_module_here\n")
    (inner / "__init__.py").write_text("raise RuntimeError('no such library')\n")
    (tmp_path / "big_pack" / "shared.py").write_text("SEVEN = 7\n")
    kernel = inner / "kernel.py"
    kernel.write_text("from ..shared import SEVEN\ndef f(): return SEVEN\n")
    assert travel.module_in_package(kernel) == "big_pack.ops_pack.kernel"
    assert travel.module_in_package(tmp_path / "kernel.py") is None
    found_here = function_of(f"{kernel}:f")
    assert found_here() == 7 and Place.locate(found_here).module == "big_pack.ops_pack.kernel"
    kernel.write_text("from ..shared import no_such_name\n")
    other = Place(str(kernel), "big_pack.ops_pack.kernel", "f")
    for name in [name for name in sys.modules if name.startswith("big_pack")]:
        del sys.modules[name]
    with pytest.raises(AdaptedError, match=r"no_such_module_here'\); install what it imports\.$"):
        other.find()  # the first of the two reasons: what the whole package lacks
    assert not any(name.startswith("big_pack") for name in sys.modules)
    sys.path.remove(str(tmp_path))


def test_functions_are_described_by_what_they_do():
    def make(number, text="return n + 1"):
        space = {"__name__": "mine", "LIMIT": number, "np": np}
        exec(f"def f(n):\n    {text}\n", space)
        return travel.describe(space["f"])

    assert make(1) == make(1) == make(2) != make(1, "return n + 2")
    assert make(1, "return n + LIMIT") != make(2, "return n + LIMIT")
    assert (
        travel.describe(np) == "numpy"
        and travel.describe(torch.zeros(2, 3)) == "torch.float32(2, 3)"
    )
    assert travel.describe([1, {"a": 2}]) == ("1", (("a", "2"),))
    assert travel.describe(torch.Tensor) == "torch.Tensor"  # an annotation; it has a shape, too
    inner = travel.describe(lambda: lambda: np.pi)
    assert inner != travel.describe(lambda: lambda: np.e)


# Discovery by hand: launches that a function plays


class Played:
    """Stands for a Launcher: `act` changes the memory of a launch."""

    act = None

    def __init__(self, call):
        self.call, self.trace = call, None

    def fire(self, memory, entry, plan=None):
        self.trace = Played.act(self, memory, entry, plan)


def found(monkeypatch, tmp_path, act, outputs=(), expected=False, declared=(), entries=2, **saved):
    """Return what discovering says of launches of `add` on these tensors."""
    saved = saved or {"x": torch.arange(1.0, 5.0), "y": torch.zeros(4)}
    layouts = {n: write.layout_of(n, x) for n, x in saved.items()}
    configs = tuple(ConfigEntry({"BLOCK": n}, {}, (4,)) for n in range(entries))
    call_on(layouts, entries=configs).write(tmp_path)
    torch.save(saved, tmp_path / call.ARGS)
    monkeypatch.setattr(Played, "act", act)
    monkeypatch.setattr(discover, "Launcher", Played)
    return discover.discover(tmp_path, outputs, "cpu", expected, declared)


def doubles(self, memory, entry, plan):
    memory["y"].copy_(2 * memory["x"])


def test_the_tensor_that_a_launch_changes_is_its_output(monkeypatch, tmp_path):
    result = found(monkeypatch, tmp_path, doubles)
    assert result == Discovered(("y",), {"y": "nothing"}, 0)
    assert torch.load(tmp_path / call.EXPECTED)["y"].tolist() == [2.0, 4.0, 6.0, 8.0]
    other = torch.load(tmp_path / call.MOVED_ARGS)["x"]
    assert sorted(other.tolist()) == [1.0, 2.0, 3.0, 4.0] != other.tolist()
    assert torch.equal(torch.load(tmp_path / call.MOVED_EXPECTED)["y"], 2 * other)
    there = {"x": torch.arange(1.0, 5.0), "y": 2 * torch.arange(1.0, 5.0)}
    assert found(monkeypatch, tmp_path, doubles, **there).outputs == ("y",), "it holds the result"
    ones = {"x": torch.full((4,), 0.5), "y": torch.ones(4)}
    result = found(monkeypatch, tmp_path, doubles, **ones)
    assert result.outputs == ("y",)
    assert result.repeat_reason == "no tensor of floats that it reads has two different values"


def test_outputs_that_are_read_or_written_in_part_are_odd(monkeypatch, tmp_path):
    def adds(self, memory, entry, plan):
        memory["y"].add_(memory["x"])

    def half(self, memory, entry, plan):
        memory["y"][:2] = memory["x"][:2]

    with pytest.raises(AdaptedError, match="add reads y before it writes it, and nothing says"):
        found(monkeypatch, tmp_path, adds)
    with pytest.raises(AdaptedError, match="add writes y in 50 % of its elements, and the others"):
        found(monkeypatch, tmp_path, half)
    for act, use in ((adds, OutputUse(1.0, True)), (half, OutputUse(0.5, False))):
        result = found(monkeypatch, tmp_path, act, expected=True)
        assert result.odd == {"y": use} and result.initial == {"y": "nothing"}
        result = found(monkeypatch, tmp_path, act, declared=("y",))
        assert result.odd == {} and result.initial == {"y": "zeros"}
        result = found(monkeypatch, tmp_path, act, declared=None)
        assert result.odd == {} and result.initial == {"y": "zeros"}
    held = {"x": torch.arange(1.0, 5.0), "y": torch.full((4,), 2.0)}
    assert found(monkeypatch, tmp_path, adds, declared=None, **held).initial == {"y": "values"}
    clean = OutputUse(1.0, False)
    assert clean.clean and not OutputUse(0.99, False).clean and not OutputUse(1.0, True).clean


def test_outputs_that_are_named_must_be_written(monkeypatch, tmp_path):
    with pytest.raises(
        AdaptedError, match="add does not write x, which `outputs` names; it writes y"
    ):
        found(monkeypatch, tmp_path, doubles, outputs=("x", "y"))

    def nothing(self, memory, entry, plan): ...

    with pytest.raises(AdaptedError, match="changed none of its tensors"):
        found(monkeypatch, tmp_path, nothing)
    with pytest.raises(AdaptedError, match="it writes no tensor that it was given"):
        found(monkeypatch, tmp_path, nothing, outputs=("y",))

    def counts(self, memory, entry, plan):
        memory["n"].fill_(1)

    integers = {"x": torch.arange(4.0), "n": torch.ones(4, dtype=torch.int32)}
    with pytest.raises(AdaptedError, match="changed none"):
        found(monkeypatch, tmp_path, counts, **integers)
    integers["n"] = torch.zeros(4, dtype=torch.int32)
    assert found(monkeypatch, tmp_path, counts, **integers).outputs == ("n",)

    def both(self, memory, entry, plan):
        memory["y"].copy_(2 * memory["x"])
        memory["z"].copy_(3 * memory["x"])

    three = {"x": torch.arange(1.0, 5.0), "y": torch.zeros(4), "z": torch.zeros(4)}
    result = found(monkeypatch, tmp_path, both, outputs=("z",), **three)
    assert result.outputs == ("z",) and result.initial == {"y": "nothing", "z": "nothing"}


def test_the_first_config_that_launches_is_expected_and_why_others_did_not(monkeypatch, tmp_path):
    def second(self, memory, entry, plan):
        if entry.values["BLOCK"] == 0:
            raise error
        doubles(self, memory, entry, plan)

    for error, skipped in (
        (RuntimeError("no\nroom"), "RuntimeError: room"),
        (LaunchFault("it races."), "it races"),
        (AssertionError("n is odd"), "add stops: AssertionError: n is odd"),
    ):
        result = found(monkeypatch, tmp_path, second)
        assert (result.first, result.skip_reason) == (1, skipped)
        kind = discover.NotInterpreted if isinstance(error, RuntimeError) else AdaptedError
        with pytest.raises(kind):
            found(monkeypatch, tmp_path, second, entries=1)
    error = AdaptedError("sentence")
    with pytest.raises(AdaptedError, match=r"^sentence$"):
        found(monkeypatch, tmp_path, second)


def test_a_second_check_that_gives_nan_is_left_out(monkeypatch, tmp_path):
    def sorted_only(self, memory, entry, plan):
        memory["y"].copy_((memory["x"].diff(prepend=memory["x"][:1] - 1)).sqrt())

    result = found(monkeypatch, tmp_path, sorted_only)
    assert result.repeat_reason == "y gets NaN or infinities from the same values in another order"

    def fails(self, memory, entry, plan):
        assert memory["x"].sum() != 10 or memory["x"][0] == 1.0, "not sorted"
        doubles(self, memory, entry, plan)

    result = found(monkeypatch, tmp_path, fails)
    assert result.repeat_reason == "AssertionError on the same values in another order"


def test_a_launch_without_inputs_has_one_that_holds_poison(monkeypatch, tmp_path):
    def fills(self, memory, entry, plan):
        memory["y"].fill_(3.0)

    result = found(monkeypatch, tmp_path, fills, y=torch.zeros(4))
    assert result.initial == {"y": "values"}
    assert torch.load(tmp_path / call.ARGS)["y"].isnan().all()


def test_fillings_bits_and_differences():
    assert discover.filled_like(torch.zeros(2), discover.SAFE).tolist() == [1.75] * 2
    assert discover.filled_like(torch.zeros(2), discover.POISON).isnan().all()
    ints = torch.zeros(2, dtype=torch.int32)
    assert discover.filled_like(ints, discover.SAFE).tolist() == [1, 1]
    assert discover.filled_like(ints, discover.POISON).tolist() == [0, 0]
    nan = torch.tensor([math.nan, 1.0])
    assert discover.same_bits(nan, nan.clone()) and not discover.same_bits(nan, torch.ones(2))
    before = torch.tensor([1.0, -1.0, math.nan, math.inf])  # the rms of what is finite is sqrt(1/2)
    limit = 0.01 + 0.01 * math.sqrt(0.5)
    for by, differs in ((0.99 * limit, False), (1.01 * limit, True)):
        now = before + torch.tensor([by, 0.0, 0.0, 0.0])
        assert discover._differs(now, before).tolist() == [differs, False, False, False]
    now = torch.tensor([1.0, -1.0, 0.0, -math.inf])
    assert discover._differs(now, before).tolist() == [False, False, True, True]
    assert discover._differs(ints + torch.tensor([0, 1]), ints).tolist() == [False, True]
    call_ = call_on(
        {"x": Layout((2,), (1,), "fp32")},
        arguments=(
            Argument("a", True, None, "x"),
            Argument("b", True, None, "x"),
            Argument("n", True, 3),
        ),
    )
    assert discover.passed_twice(call_) == ["x"]


def test_values_are_moved_where_that_changes_no_meaning():
    x = torch.arange(64.0)
    other = moved.shuffle_memory(x, Layout((64,), (1,), "fp32"))
    assert sorted(other.tolist()) == x.tolist() != other.tolist() and x[5] == 5
    assert torch.equal(moved.shuffle_memory(x.int(), Layout((64,), (1,), "int32")), x.int())
    assert torch.equal(moved.shuffle_memory(x, Layout((8, 64), (0, 1), "fp32", 0, False)), x)
    gaps = moved.shuffle_memory(x, Layout((16,), (2,), "fp32", 3, False))
    assert torch.equal(gaps[:3], x[:3]) and torch.equal(gaps[34:], x[34:])
    assert torch.equal(gaps[4:34:2], x[4:34:2]) and not torch.equal(gaps[3:34:2], x[3:34:2])
    assert sorted(gaps[3:34:2].tolist()) == x[3:34:2].tolist()
    assert not torch.equal(moved.shuffle_memory(x, Layout((1, 64), (0, 1), "fp32", 0, False)), x)
    few, more = {"y": torch.tensor([1.0, math.inf])}, {"y": torch.tensor([math.nan, math.inf])}
    assert moved.worse(more, few).startswith("y gets NaN") and moved.worse(few, more) is None
    assert moved.worse(few, few) is None and moved.worse({"n": x.int()}, {"n": x.int()}) is None
    assert moved.equal(torch.tensor([1.0, math.nan]).double(), torch.tensor([1.0, math.nan]))
    assert not moved.equal(torch.tensor([1.0, 2.0]).double(), torch.tensor([1.0, math.nan]))


# Launches of which some programs run


def tensor_writes(argument, elements, shared=(), beyond=0):
    return SimpleNamespace(
        argument=argument, elements=elements, shared_element=shared, excess=beyond
    )


def test_the_programs_that_tell_most_run_first():
    footprint = SimpleNamespace(
        tensors=[tensor_writes("x", 4, (9, 5, 6)), tensor_writes("y", 4)],
        writers={"x": [3, NOBODY, 5], "y": [7]},
    )
    numbers = sampled.numbers_of(footprint, 100)
    assert numbers[:7] == [5, 6, 3, 7, 0, 99, 1] and len(numbers) == len(set(numbers))
    assert all(0 <= n < 100 for n in numbers) and len(numbers) > 7
    assert sampled.numbers_of(None, 1) == [0] and set(sampled.numbers_of(None, 2)) == {0, 1}
    assert sampled.FirstPrograms(0, 10, 0.25).whole_s == 2.5


def test_three_programs_tell_how_long_a_launch_takes(monkeypatch, tmp_path):
    layouts = {"x": Layout((4,), (1,), "fp32")}
    entries = tuple(ConfigEntry({"BLOCK": n}, {}, (3, 7 * n + 1)) for n in range(3))
    call_on(layouts, entries=entries).write(tmp_path)
    torch.save({"x": torch.zeros(4)}, tmp_path / call.ARGS)
    asked = []

    def act(self, memory, entry, plan):
        asked.append(list(plan.numbers))
        if entry.values["BLOCK"] < faulty:
            raise fault
        return SimpleNamespace(seconds=[9.0, 2.0, 4.0][: len(asked[-1])])

    monkeypatch.setattr(Played, "act", act)
    monkeypatch.setattr(sampled, "Launcher", Played)
    faulty, fault = 0, ValueError()
    assert sampled.first_programs(tmp_path) == sampled.FirstPrograms(0, 3, 3.0)
    faulty = 1
    assert sampled.first_programs(tmp_path) == sampled.FirstPrograms(1, 24, 3.0)
    assert asked == [[0, 1, 2], [0, 1, 2], [0, 12, 23]]
    faulty = 3
    assert sampled.first_programs(tmp_path) is None
    fault = LaunchFault("it races.")
    with pytest.raises(LaunchFault, match="it races"):
        sampled.first_programs(tmp_path)
    call_on(layouts, entries=(ConfigEntry({"BLOCK": 5}, {}, (1,)),)).write(tmp_path)
    assert sampled.first_programs(tmp_path) == sampled.FirstPrograms(0, 1, 9.0)


def test_edges_of_a_tensor_are_its_corners_its_middle_and_random_elements():
    one = call_on({"x": Layout((5, 3), (10, 2), "fp32", 0, False)},
                  arguments=(Argument("x", True, None, "x"), Argument("n", True, 5)))  # fmt: skip
    (name,) = edges = sampled._edges(one)
    elements = edges[name].tolist()
    assert name == "x" and elements[:3] == [0, 44, 2 * 10 + 1 * 2]
    assert elements[3:7] == [40, 4, 4, 40] and len(elements) == 7 + sampled.RANDOM
    assert all(e % 2 == 0 and e // 10 < 5 and e % 10 <= 4 for e in elements)
    shares = sampled.shares_of(
        one, SimpleNamespace(tensors=[tensor_writes("x", 10), tensor_writes("n", 1)])
    )
    assert shares == {"x": pytest.approx(10 / 15)} and sampled.shares_of(one, None) == {}
    assert sampled.shares_of(one, SimpleNamespace(tensors=[tensor_writes("x", 99)])) == {"x": 1.0}


def sample_trace(read_first=False, atomics=False, elements=(1, 3)):
    each = Accesses(stores=[(0, np.array(elements), None)])
    each.loads = [(0, np.array(elements[:1]), 0)] if read_first else []
    each.atomics = [np.array([1])] if atomics else []
    return SimpleNamespace(accesses={"y": each}, ran=[0, 5], twice=[])


@pytest.mark.parametrize(
    ("more", "share", "declared", "use"),
    [
        ({}, 4, (), None),
        ({"read_first": True}, 4, (), OutputUse(1.0, True)),
        ({}, 2, (), OutputUse(0.5, False)),
        ({}, 2, ("y",), None),
        ({"read_first": True}, 4, None, None),
        ({"atomics": True}, 4, None, None),
    ],
)
def test_what_some_programs_write_is_an_output(monkeypatch, tmp_path, more, share, declared, use):
    layouts = {n: Layout((4,), (1,), "fp32") for n in "xy"}
    call_on(layouts).write(tmp_path)
    torch.save({"x": torch.arange(4.0), "y": torch.zeros(4)}, tmp_path / call.ARGS)

    def act(self, memory, entry, plan):
        memory["y"][:] = 7.0
        assert plan.budget_s == sampled.FIRST_S and plan.numbers[:2] == [0, 3]
        return sample_trace(**more)

    monkeypatch.setattr(Played, "act", act)
    monkeypatch.setattr(sampled, "Launcher", Played)
    footprint = SimpleNamespace(tensors=[tensor_writes("y", share)], writers={})
    given = (tmp_path, (), footprint, 0)
    if use is not None:
        with pytest.raises(AdaptedError, match=r"add (reads y before|writes y in 50 %)"):
            sampled.discover_sample(*given, False, declared)
    result = sampled.discover_sample(*given, use is not None, declared)
    assert result.odd == ({} if use is None else {"y": use}) and result.outputs == ("y",)
    clean = use is not None or not ("read_first" in more or declared)
    assert result.notes == ((f"y {sampled.SUM}",) if more.get("atomics") else ())
    assert result.initial == {"y": "nothing" if clean else "zeros"} and result.repeat_reason
    assert torch.load(tmp_path / call.PROBES) == {"y": [1, 3]}
    if use is None:
        assert torch.load(tmp_path / call.EXPECTED)["y"].tolist() == [7.0] * 4
        assert torch.load(tmp_path / call.WRITTEN)["y"].tolist() == [False, True, False, True]
    with pytest.raises(
        AdaptedError, match="add does not write x, which `outputs` names; it writes y"
    ):
        sampled.discover_sample(tmp_path, ("x",), footprint, 0, True, ())


def test_a_tensor_that_is_two_arguments_is_an_input_of_a_sampled_launch_too(monkeypatch, tmp_path):
    """An operation in place, `f(x, x)`: nobody has to name what it needs."""
    both = tuple(Argument(n, True, None, "y") for n in ("source", "target"))
    call_on({"y": Layout((4,), (1,), "fp32")}, arguments=both).write(tmp_path)
    torch.save({"y": torch.arange(4.0)}, tmp_path / call.ARGS)
    monkeypatch.setattr(Played, "act", lambda self, *_: sample_trace(read_first=True))
    monkeypatch.setattr(sampled, "Launcher", Played)
    footprint = SimpleNamespace(tensors=[tensor_writes("target", 4)], writers={})
    result = sampled.discover_sample(tmp_path, (), footprint, 0, False, ())
    assert result.initial == {"y": "values"} and not result.odd


def test_probes_are_spread_over_the_stores(monkeypatch):
    monkeypatch.setattr(sampled, "PROBED", 4)
    one = call_on({n: Layout((99,), (1,), "fp32") for n in "xy"})
    each = Accesses(stores=[(0, np.array([10 * n, 5, 10 * n + 1]), None) for n in range(6)])
    each.stores.append((9, np.array([], dtype=int), None))
    trace = SimpleNamespace(accesses={"y": each})
    firsts = [0, 1, 10, 11, 20, 21, 30, 31, 40, 41, 50, 51]
    assert sampled._probes(one, trace, ["y"]) == {
        "y": [*firsts[:2], *(f for f in firsts[::3] if f not in (0, 1)), 50, 51]
    }


def test_addresses_of_all_programs_are_judged_before_some_run():
    one = call_on(
        {n: Layout((100,), (1,), "fp32") for n in "xy"}, outputs=("y",), shares={"y": 0.5}
    )

    def fault(elements, beyond=0, call_=one):
        return sample_check._fault_of(
            call_, SimpleNamespace(tensors=[tensor_writes("y", elements, beyond=beyond)])
        )

    assert fault(50) is None and fault(100) is None and sample_check._fault_of(one, None) is None
    said = "y is written in 49 % of its elements, as the first config that ran; the sum of partial "
    assert fault(49) == said + "results is compared with partial=('y',)"
    assert fault(99, call_=replace(one, shares={})) == (
        "y is written in 99 % of its elements, and not all of them; the sum of "
        "partial results is compared with partial=('y',)"
    )
    assert fault(50, 1234) == "it writes 1,234 elements past the end of y; is a mask missing?"


def test_what_some_programs_wrote_is_compared_where_it_is_known():
    layout = Layout((4,), (2,), "fp32", 1, False)
    one = call_on({"y": layout}, outputs=("y",), initial={"y": "nothing"})
    memory = {"y": torch.arange(10.0)}
    result = sample_check._result(one, memory, sample_trace(elements=(0, 2, 5)))
    assert result.programs == 2
    assert sample_check.unpack_tensor(result.values["y"]).tolist() == [1.0, 3.0, 6.0]
    kept = SimpleNamespace(
        written_elements={}, expected_outputs={"y": torch.tensor([1.5, 2.5, 3.5, 4.5])}
    )
    actual, expected = sample_check._both_values(kept, one, "y", result, result.values["y"])
    assert actual.tolist() == [1.0, 3.0] and expected.tolist() == [1.5, 2.5], "5 is in a gap"
    kept.written_elements = {"y": torch.tensor([False, True, True, True])}
    actual, expected = sample_check._both_values(kept, one, "y", result, result.values["y"])
    assert actual.tolist() == [3.0] and expected.dtype == torch.float64
    assert sample_check._result(one, memory, sample_trace(atomics=True)).values == {}
    assert sample_check._result(one, memory, sample_trace(read_first=True)) == Refusal(
        "check", "y is read before it is written"
    )
    given = replace(one, initial={"y": "values"})
    assert sample_check._result(given, memory, sample_trace(read_first=True)).programs == 2


# The folder of an adapted kernel


def test_kept_tensors_are_given_and_their_results_known(tmp_path):
    x, n = torch.tensor([1.0, 2.0]), torch.tensor([[5, 6]], dtype=torch.int32)
    torch.save({"x": x, "n": n}, tmp_path / call.ARGS)
    torch.save({"y": 2 * x}, tmp_path / call.EXPECTED)
    torch.save({"x": x + 1}, tmp_path / call.MOVED_ARGS)
    torch.save({"y": 2 * x + 2}, tmp_path / call.MOVED_EXPECTED)
    kept = Kept(tmp_path)
    layouts = {
        "x": Layout((2,), (1,), "fp32"),
        "n": Layout((1, 2), (2, 1), "int32"),
        "y": Layout((2,), (1,), "fp32"),
    }
    one = call_on(
        layouts,
        outputs=("y",),
        initial={"y": "nothing"},
        arguments=(
            Argument("px", True, None, "x"),
            Argument("pn", True, None, "n"),
            Argument("k", True, 3),
        ),
    )
    first, other = torch.Generator().manual_seed(0), torch.Generator().manual_seed(1)
    assert kept.input("x", (2,), None, "cpu", first).tolist() == [1.0, 2.0]
    assert kept.input("x", (2,), None, "cpu", other).tolist() == [2.0, 3.0]
    assert kept.input("n", (1, 2), None, "cpu", other).tolist() == [[5, 6]]
    with pytest.raises(AdaptedError, match=r"x was given as \(2,\), not \(3,\)"):
        kept.input("x", (3,), None, "cpu", first)
    reference = kept.reference(one)
    assert reference(x.double(), n)[0].tolist() == [2.0, 4.0]
    assert reference((x + 1).double(), n)[0].tolist() == [4.0, 6.0]
    with pytest.raises(AdaptedError, match="The expected result is unknown for these x"):
        reference((x + 2).double(), n)
    with pytest.raises(AdaptedError, match="No outputs of add are known"):
        kept.reference(replace(one, unchecked="why"))(x, n)
    integers = GivenIntegers(one, kept)
    assert list(integers) == ["pn"] and len(integers) == 1 and integers["pn"].tolist() == [5, 6]
    assert kept.written_elements == {} and kept.probes == {}
    torch.save({"y": torch.tensor([True, False])}, tmp_path / call.WRITTEN)
    with pytest.raises(AdaptedError, match="of the other outputs nothing is known"):
        Kept(tmp_path).reference(one)(x, n)
    again = call_on({"n": Layout((2,), (1,), "int32", 1, False)})
    torch.save({"n": torch.tensor([4, 5, 6])}, tmp_path / call.ARGS)
    assert GivenIntegers(again, Kept(tmp_path))["n"].tolist() == [5, 6]


def test_extents_have_the_names_of_the_users_integers():
    arguments = (
        Argument("x", True, None, "x"),
        Argument("rows", True, 8),
        Argument("cols", True, 4),
        Argument("also", True, 4),
        Argument("one", True, 1),
        Argument("flag", True, True),
        Argument("sizes", True, 16),
    )
    layouts = {"x": Layout((8, 4), (4, 1), "fp32"), "y": Layout((16,), (2,), "int32", 0, False)}
    one = call_on(layouts, arguments=arguments, outputs=("y",), initial={"y": "zeros"})
    assert kernel.extent_names(one) == {8: "rows"}
    assert kernel.axes("x", layouts["x"], {8: "rows"}) == ["rows", "x1"]
    assert kernel.sizes_of(one) == {"rows": 8, "x1": 4, "y_span": 31, "y0": 16}
    assert kernel.unread(one) == ("y",)
    floats = replace(one, tensors={**layouts, "y": replace(layouts["y"], dtype="fp32")})
    assert (
        kernel.unread(floats) == ("y",)
        and kernel.unread(replace(floats, initial={"y": "values"})) == ()
    )
    assert kernel.unread(replace(one, initial={"y": "values"})) == ("y",)
    limits = DEVICES["h200"].limits
    config = kernel.config_type(one)(BLOCK=64, num_warps=4)
    assert kernel.refusal_of_call(one, {"N": 1}, config, limits, itemsize=4, N=1) is None
    assert kernel.refusal_of_call(one, {"N": 1}, config, limits, itemsize=4, N=2).startswith(
        "the grids were"
    )
    other = SimpleNamespace(BLOCK=32, num_warps=4)
    for grid, axis in (((1, 65_536), "second"), ((1, 1, 65_536), "third")):
        assert axis in kernel.refused_grid(grid, limits)
    assert kernel.refused_grid((1 << 30, 65_535, 65_535), limits) is None
    assert other.BLOCK == 32


# A reference of the user's


def test_a_reference_gives_the_outputs_in_order():
    layouts = {
        "x": Layout((2,), (1,), "fp32"),
        "y": Layout((2,), (1,), "fp32"),
        "n": Layout((2,), (1,), "int32"),
    }
    one = call_on(layouts, outputs=("y", "n"))
    x = torch.tensor([1.0, 2.0])
    given = ((x, None, 3), {})

    def right(x, y, k):
        assert x.dtype == torch.float64
        return x * k, (x > 1).int()

    results = referenced.expected_of(right, given, one)
    assert results["y"].tolist() == [3.0, 6.0] and results["n"].tolist() == [0, 1]
    for wrong, words in (
        (lambda *_: (x,), r"does not return y \(2,\), n \(2,\), in this order"),
        (lambda *_: 1 / 0, r"The reference fails \(ZeroDivisionError"),
        (lambda *_: (x, x), r"returns n as torch.float32, and the launch writes torch.int32"),
    ):  # fmt: skip
        with pytest.raises(AdaptedError, match=words):
            referenced.expected_of(wrong, given, one)
    both = call_on(layouts, outputs=("y",))
    args = ((x, torch.tensor([4.0, 0.0]), x.int()), {})
    memory = {"x": x, "y": args[0][1], "n": x.int()}
    found_ = Discovered(("y",), {"y": "nothing"}, 0, odd={"y": OutputUse(1.0, True)})
    adds = referenced.keep_read_outputs(lambda x, y, n: x + y, args, both, memory, found_)
    assert adds.initial == {"y": "values"} and adds.odd == {}
    leaves = referenced.keep_read_outputs(lambda x, y, n: x * 2, args, both, memory, found_)
    assert leaves == found_


def test_configs_of_an_autotuner_are_pruned_and_what_is_ignored_is_said():
    def tuner(**more):
        return SimpleNamespace(
            **(
                {
                    "configs": [1, 2, 3],
                    "arg_names": ["x", "n"],
                    "early_config_prune": None,
                    "perf_model": None,
                    "user_defined_pre_hook": None,
                    "user_defined_post_hook": None,
                }
                | more
            )
        )

    given = ((7, 8), {})
    assert autotuned.configs_of(tuner(), given) == ([1, 2, 3], [])
    pruned = tuner(
        early_config_prune=lambda configs, named, **kw: [c for c in configs if c < named["n"] - 5]
    )
    assert autotuned.configs_of(pruned, given) == ([1, 2], [])
    with pytest.raises(AdaptedError, match="leaves no config"):
        autotuned.configs_of(tuner(early_config_prune=lambda *_, **__: []), given)
    for name in ("user_defined_pre_hook", "user_defined_post_hook", "perf_model"):
        configs, notes = autotuned.configs_of(tuner(**{name: print}), given)
        assert len(configs) == 3 and len(notes) == 1
    configs, notes = autotuned.configs_of(tuner(early_config_prune=lambda *_, **__: 1 / 0), given)
    assert len(configs) == 3 and "early_config_prune failed here (ZeroDivisionError" in notes[0]


def test_a_function_of_a_cell_is_written_with_what_it_names(tmp_path):
    assert cell.function_in_file(call_on, tmp_path) is call_on

    def parts(name, value):
        return "\n".join(cell._name_source(name, value, {}))

    assert parts("np", np) == "import numpy as np" and parts("N", 3) == "N = 3"
    assert parts("C", tl.constexpr(4)).endswith("C = triton.language.constexpr(4)")
    assert parts("f", math.sqrt) == "from math import sqrt as f"
    with pytest.raises(AdaptedError, match=r"^x, which the function's cell names, is list"):
        parts("x", [1])


# Operations


def operation_spec(name="toy", **inputs):
    spec = spec_of("softmax")
    from workbench.spec import Tensor

    return replace(spec, name=name, inputs={n: Tensor(*t) for n, t in inputs.items()},
                   outputs={"y": Tensor("M M*K/2")}, impls=[])  # fmt: skip


def test_extents_are_solved_from_products_and_quotients():
    spec = operation_spec(x=("M*K N",), w=("K N*4",))
    x, w = torch.zeros(6, 5), torch.zeros(2, 20)
    assert shapes.extents_of(spec, (x, w)) == {"M": 3, "K": 2, "N": 5}
    assert shapes.shape_of(spec.outputs["y"], {"M": 3, "K": 3}) == (3, 4)
    assert [tuple(y.shape) for y in shapes.outputs_of(spec, (x, w))] == [(3, 3)]
    for bad in ((torch.zeros(7, 5), w), (x, torch.zeros(2, 21))):
        with pytest.raises(
            OperationError, match="the shapes contradict each other: x `M\\*K N` is"
        ):
            shapes.extents_of(spec, bad)
    halves = operation_spec(x=("N/2",), w=("N",))
    assert shapes.extents_of(halves, (torch.zeros(3), torch.zeros(6))) == {"N": 6}
    with pytest.raises(OperationError, match="contradict"):
        shapes.extents_of(halves, (torch.zeros(3), torch.zeros(7)))
    behind = operation_spec(w=("N",), x=("N/2",))
    assert shapes.extents_of(behind, (torch.zeros(7), torch.zeros(3))) == {"N": 7}
    assert (
        shapes._solve_extent("N/2", 3, {}) == {"N": 6} and shapes._solve_extent("8/N", 4, {}) == {}
    )
    assert shapes._solve_extent("M*N", 3, {}) == {} and shapes._solve_extent("M*3", 9, {}) == {
        "M": 3
    }
    assert shapes._factors([("", "M"), ("*", "4"), ("/", "2"), ("/", "K")], {"M": 3, "K": 5}) == (
        12,
        10,
    )


def test_inputs_of_another_form_are_refused_in_one_sentence():
    spec = operation_spec(x=("M N",), i=("M", "int32"))
    x, i = torch.zeros(2, 3), torch.zeros(2, dtype=torch.int32)
    assert shapes.check_inputs(spec, (x, i)) == torch.float32
    for bad, words in (
        ((x[0], i), "x is `M N`, and this one has 1 axes; reshape it"),
        ((x, i.long()), "i is int64, and int32 is wanted here; convert it"),
        ((x.int(), i), "x is int32; convert it to one of"),
        ((x, i.to("meta")), "i lies on meta, and x on cpu; move it there"),
    ):  # fmt: skip
        with pytest.raises(OperationError, match=words):
            shapes.check_inputs(spec, bad)
    assert launch.sizes_of(spec, (x,)) is None and launch.sizes_of(spec, (x[0], i)) is None
    assert launch.sizes_of(spec, (x, i[:1])) is None
    assert (
        launch.dtype_of(spec, (x.bfloat16(), i)) == "bf16"
        and launch.dtype_of(spec, (x.cfloat(), i)) is None
    )


def test_schemas_signatures_and_stubs():
    one = operation_spec(x=("M N",), i=("M", "int32"))
    assert operation.schema_of(one) == "toy(Tensor x, Tensor i) -> Tensor"
    two = replace(one, outputs={**one.outputs, "z": one.outputs["y"]})
    assert operation.schema_of(two) == "toy(Tensor x, Tensor i) -> (Tensor, Tensor)"
    doc = text.docstring_of(one)
    assert "x: `M N`, " in doc and "i: `M`, int32." in doc and "y: `M M*K/2`, as x." in doc
    assert doc.endswith("It has no backward, and refuses inputs that require a gradient.")
    first = text._function(two).splitlines()
    assert first[0] == "def toy(x: Tensor, i: Tensor) -> tuple[Tensor, Tensor]:"
    for length, lines in ((100, 1), (101, 3)):
        rest = length - len("def (x: Tensor, i: Tensor) -> Tensor:")
        stub = text._function(replace(one, name="n" * rest)).splitlines()
        assert len(stub[0]) == length if lines == 1 else stub[0].endswith("(")
        assert stub[lines].lstrip().startswith('"""')
    many = {f"input_{n}": ("M N",) for n in range(6)}
    assert "    input_0: Tensor,\n    input_1: Tensor,\n" in text._function(operation_spec(**many))
    inside = operation_spec(**{f"x{n}": ("M N",) for n in range(8)})
    assert "\n    x0: Tensor, x1: Tensor, " in text._function(replace(inside, name="n" * 30))
    assert text._derivative(
        operation_spec("rope", q=("M",), cos=("M",), sin=("M",), p=("M", "int32"))
    ) == ("It has gradients for q.")


def test_derivatives_are_those_of_torch(monkeypatch):
    """Each formula beside autograd of the same function in float64."""
    dice = torch.Generator().manual_seed(3)

    def draw(*shape):
        return torch.randn(*shape, generator=dice, dtype=torch.float64, requires_grad=True)

    def check(name, forward, inputs, needed=None, constant=()):
        outputs = forward(*inputs)
        several = outputs if isinstance(outputs, tuple) else (outputs,)
        grads = [torch.randn(y.shape, generator=dice, dtype=torch.float64) for y in several]
        leaves = [x for n, x in enumerate(inputs) if x.requires_grad and n not in constant]
        for mask in (
            [True] * len(grads),
            *([n == k for n in range(len(grads))] for k in range(len(grads)) if len(grads) > 1),
        ):
            some = [(y, g) for y, g, on in zip(several, grads, mask, strict=True) if on]
            expected = torch.autograd.grad([y for y, _ in some], leaves, [g for _, g in some],
                                           retain_graph=True, allow_unused=True)  # fmt: skip
            with torch.no_grad():
                formula = derivatives.DERIVATIVES[name]
                kept = formula.keep(inputs, several)
                given = [g if on else None for g, on in zip(grads, mask, strict=True)]
                found_ = formula.formula([x.requires_grad for x in inputs], kept, given)
            ours = [
                found_[n] for n, x in enumerate(inputs) if x.requires_grad and n not in constant
            ]
            for e, o in zip(expected, ours, strict=True):
                if e is None:
                    assert o is None or not o.any()
                else:
                    assert torch.allclose(o, e, rtol=1e-9, atol=1e-9), name

    def rms(x, w, eps=1e-6):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * w

    def layer(x, w, b):
        return torch.nn.functional.layer_norm(x, x.shape[-1:], w, b)

    def grads_of(function, count):
        def backward(*given):
            inputs = [t.detach().requires_grad_() for t in given[:count]]
            with torch.enable_grad():
                y = function(*inputs)
            return torch.autograd.grad(y, inputs, given[-1])

        return backward

    def xent_backward(logits, target, lse, g):
        share = torch.exp(logits - lse[:, None])
        share[torch.arange(len(target)), target] -= 1
        return share * g[:, None]

    def rotate(q, k, cos, sin, position):
        c, s = cos[position][:, None], sin[position][:, None]

        def one(x):
            a, b = x.chunk(2, -1)
            return torch.cat((a * c - b * s, b * c + a * s), -1)

        return one(q), one(k)

    monkeypatch.setattr(derivatives, "ops", SimpleNamespace(
        rms_norm_backward=grads_of(rms, 2),
        layer_norm_backward=lambda x, w, g: grads_of(layer, 3)(x, w, torch.zeros_like(w), g),
        cross_entropy_backward=xent_backward, rope=rotate))  # fmt: skip
    x, w, b = draw(3, 6), draw(6), draw(6)
    check("softmax", lambda x: torch.softmax(x, -1), (x,))
    check("rms_norm", rms, (x, w))
    check("layer_norm", layer, (x, w, b))
    check("fused_add_rms_norm", lambda x, r, w: (rms(x + r, w), x + r), (x, draw(3, 6), w))
    check("swiglu", lambda x: torch.nn.functional.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1], (x,))

    def cross(logits, target):
        lse = torch.logsumexp(logits, -1)
        return lse - logits[torch.arange(len(target)), target], lse

    check("cross_entropy", cross, (x, torch.tensor([1, 5, 0])))
    scale = lora.SCALE
    a, bb, base = draw(2, 6), draw(4, 2), draw(4, 6)

    def delta(x, a, b):
        return scale * (x @ a.mT) @ b.mT

    check("lora_delta", delta, (x, a, bb))
    check("lora", lambda x, w, a, b: x @ w.mT + delta(x, a, b), (x, base, a, bb))
    for frozen in range(4):
        inputs = [t.detach() if n == frozen else t for n, t in enumerate((x, base, a, bb))]
        check("lora", lambda x, w, a, b: x @ w.mT + delta(x, a, b), inputs)
    for frozen in range(3):
        check(
            "lora_delta",
            delta,
            [t.detach() if n == frozen else t for n, t in enumerate((x, a, bb))],
        )

    def group(x, r, k, v, gate, weight, bias, bonus):
        centred = x - x.mean(-1, keepdim=True)
        z = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + EPS)
        s = (r * k * bonus).sum(-1, keepdim=True)
        return (z * weight + bias + s * v) * gate

    five = [draw(3, 2, 8) for _ in range(5)]
    check("group_norm", group, (*five, draw(2, 8), draw(2, 8), draw(2, 8)))
    cos, sin = torch.rand(5, 2).double(), torch.rand(5, 2).double()
    position = torch.tensor([0, 4, 2])
    check("rope", rotate, (draw(3, 2, 4), draw(3, 1, 4), cos, sin, position))
    assert derivatives.widen(x.detach().half()).dtype == torch.float32
    assert derivatives.widen(x) is x


def test_warm_calls_are_kept_by_shape_and_alignment(monkeypatch):
    monkeypatch.setattr(operation, "ALIKE", 2)
    monkeypatch.setattr(operation, "SHAPES", 2)
    chosen = {}
    warm = operation.WarmCalls(chosen)
    x, y = torch.zeros(64), torch.zeros(64)

    def keep(*inputs):
        chosen[operation._key(inputs)] = f"launcher of {[tuple(i.shape) for i in inputs]}"
        warm.keep(inputs)
        return warm.launcher_of(inputs)

    assert warm.launcher_of((x, y)) is None
    assert keep(x, y) == "launcher of [(64,), (64,)]" == warm.launcher_of((torch.zeros(64), x))
    assert warm.launcher_of((x, y[:32])) is None and warm.launcher_of((x[:32], y)) is None
    assert warm.launcher_of((x, torch.zeros(65)[1:])) is None, "an odd address"
    assert warm.launcher_of((torch.zeros(64, dtype=torch.half), x)) is None
    warm.keep((torch.zeros(66)[2:], y))
    assert keep(x, y[:32]) is not None and keep(x, y[:16]) is None, "two of one shape are kept"
    graded = torch.zeros(8, requires_grad=True)
    assert keep(graded) is None
    with torch.no_grad():
        assert warm.launcher_of((graded,)) == "launcher of [(8,)]"
    assert len(warm._by_shape) == 2 and keep(x[:4]) is not None and len(warm._by_shape) == 1

    class Other(torch.Tensor): ...

    assert warm.launcher_of((torch.zeros(4).as_subclass(Other),)) is None


def test_launchers_are_kept_up_to_a_number_and_an_operation_has_one_name(monkeypatch):
    monkeypatch.setattr(operation, "MOST", 2)
    chosen, first = {}, []
    monkeypatch.setattr(operation, "first_launch", lambda spec, inputs, more: first.append(1) or (
        lambda *i: "warm", "cold"))  # fmt: skip
    launched = operation._launching(None, chosen)
    x = torch.zeros(64)
    said = [launched(x[:n]) for n in (4, 4, 8, 12, 4)]
    assert said == ["cold", "warm", "cold", "cold", "cold"] and len(chosen) == 2
    with pytest.raises(
        OperationError, match=r"There is an operation workbench\.ops\.softmax already"
    ):
        operation.operation_of(spec_of("softmax"))


def test_an_empty_output_is_not_launched_and_something_from_nothing_is_refused(monkeypatch):
    spec = operation_spec(x=("M N", None), w=("K",))
    launcher, out = choice._nothing(spec, (torch.zeros(0, 3), torch.zeros(2)), {"M": 0})
    assert out.shape == (0, 0) and launcher(torch.zeros(0, 3), torch.zeros(4)).shape == (0, 0)
    with pytest.raises(OperationError, match="at M=2 there is nothing to compute from"):
        choice._nothing(spec, (torch.zeros(2, 0), torch.zeros(2)), {"M": 2})
    for place, right in (("cuda", True), ("cpu", False), ("meta", False)):
        if right:
            choice._check_place(spec, place)
        else:
            with pytest.raises(OperationError, match=f"inputs are on {place}"):
                choice._check_place(spec, place)
    monkeypatch.setattr(choice, "INTERPRETED", True)
    choice._check_place(spec, "cpu")
