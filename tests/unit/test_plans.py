"""Plans of launches: the text of a launcher, the text of device code, and the reader of plans. What
is refused here is never imported, and never `correct` on evidence."""

import json
import linecache
import random
import sys
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from cheats import SPEC, Cheat
from strict_cheats import STRICT

from workbench import catalog
from workbench.commands import evaluate_kernel
from workbench.commands.evaluate import EvaluateOptions
from workbench.commands.options import CommandError
from workbench.data import frozen
from workbench.evaluation import gpu_rules
from workbench.evaluation.device_text import device_file_text
from workbench.evaluation.digests import files_digests
from workbench.evaluation.launcher_text import defined_names, opaque_reason
from workbench.evaluation.plan import (
    DeviceName,
    DeviceText,
    FillStep,
    LaunchPlan,
    LaunchStep,
    NotReplayable,
    PlannedCall,
    PlannedConstant,
    PlannedFunction,
    PlannedMemory,
    PlannedTuple,
    PlannedView,
    fault_of,
)
from workbench.evaluation.verdict import RuleResult, shown_by, verdict_of
from workbench.measurement.rules import RULES

DEFINED = {"scaled_rows": defined_names(SPEC.read_bytes())}


# The text of a launcher


def text_of(cheat, folder):
    return cheat.write(folder).read_bytes()


@pytest.mark.parametrize("each", STRICT, ids=lambda each: each.cheat.name)
def test_a_launcher_that_could_do_something_else_is_a_claim(each, tmp_path):
    reason = opaque_reason(text_of(each.cheat, tmp_path), DEFINED)
    assert bool(reason) == (each.shown == "text"), reason
    assert reason is None or (reason.startswith("line ") and "\n" not in reason)


def test_an_honest_launcher_is_none(tmp_path):
    assert opaque_reason(text_of(Cheat("honest", (), {}), tmp_path), DEFINED) is None


@pytest.mark.parametrize(("text", "part"), [
    ("from other import x", "imports other.x"), ("import other", "imports other"),
    ("from . import x", "imports from a package"), ("from torch import *", "imports torch.*"),
    ("from scaled_rows import torch as t", "imports scaled_rows.torch"),
    ("__name__ = 'x'", "gives __name__ another"), ("len = 1", "gives len another"),
    ("x: int = 1\nx.y = 2", "assigns to what is not a name"), ("while 1: pass", "holds While"),
    ("def f(x):\n    global y\n    y = 1\nz = f", "holds Global"), 
    ("x = (y := 1)", "NamedExpr"),
    ("def f(x):\n    try:\n        return 1\n    finally:\n        x()\nz = f", "Try"),
    ("def f(x):\n    return x._version\nz = f", "uses the attribute _version"),
    ("def f(x):\n    return getattr(x, 'is_meta')\nz = f", "names getattr"),
    ("import torch\ndef f():\n    return torch.cuda\nz = f", "uses torch.cuda"),
    ("import torch\nx = torch.empty(3)", "keeps what torch.empty returns"),
    ("import os\ndef f():\n    return os.environ\nz = f", "uses the attribute environ"),
    ("def f(x):\n    return x.device.type\nz = f", "uses the attribute type"),
    ("def f(x, y):\n    return x.device == y\nz = f", "uses the attribute device"),
    ("K = [1]\ndef f(x):\n    return x(K)\nz = f", "passes K to a call"),
    ("K = {}\ndef f(x):\n    K[x] = 1\nz = f", "changes an element"),
    ("def f(x):\n    x += [1]\nz = f", "changes in place"), ("\0", "not valid Python"),
    ("(" * 500, "not valid Python"), ("class A(int): pass", "derives a class"),
    ("def f(): yield 1\nz = f", "Yield"), ("def f(x):\n    raise x\nz = f", "raises"),
    ("def f(x):\n    return f'{x}'\nz = f", "JoinedStr"),
    ("import math as triton\n@triton.jit\ndef f(x): pass", "decorates f by another"),
    ("def jit(f): return f\n@jit\ndef g(x): pass", "decorates g by another"),
    ("from os import system as x\nx = 1", "defines x twice"),
    ("class A:\n    @staticmethod\n    def f(x): return x\n", "decorates a method"),
])  # fmt: skip
def test_the_reason_names_what_is_on_no_list(text, part):
    reason = opaque_reason(text.encode(), DEFINED)
    assert reason is not None and part in reason


@pytest.mark.parametrize("text", [
    "import os\nimport torch\nx = 3\n", "def f(x):\n    return exec(x)\n",  # nobody calls it
    "K = [1, 2]\ndef f(x):\n    return [K[0], len(K), x in K, *[k for k in K]]\nz = f\n",
    "def f(x, y):\n    if x.device != y.device:\n        raise ValueError(f'{x}')\nz = f\n",
    "def f(x):\n    n = x.numel()\n    n *= 2\n    a = []\n    a.append(n)\n    a[0] = 1\nz = f\n",
    "def f(x):\n    def g(m):\n        return m['B']\n    return lambda m: g(m)\nz = f\n",
    "class A:\n    x: int\n    @property\n    def f(self): return self.x\n",
    "# -*- coding: latin-1 -*-\nx = '\\xe9'\n", "\ufeffx = 1\n",
])  # fmt: skip
def test_what_a_plan_records_whole_is_no_reason(text):
    assert opaque_reason(text.encode(), DEFINED) is None


def test_names_that_a_module_imports_are_not_its_own():
    assert defined_names(b"import os\nfrom a import b\nx, y = 1, 2\ndef f(): pass\n") == {
        "x", "y", "f",
    }  # fmt: skip


# Device code


TL = {"tl": DeviceName("language", "triton.language")}


def device(body, names=TL, arguments="x_ptr, N, B: tl.constexpr", **options):
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return DeviceText("k", f"def k({arguments}):\n{lines}", names, options)


def test_device_code_is_written_anew():
    text = DeviceText(
        "k",
        '@exec("1")\ndef k(x: "tl.constexpr", y=(1, 2.5), *, z=TWO) -> None:\n    "def k():"\n'
        "    if y is None:\n        'it'\n    hl.store(x, hl.cast(z, None) + load(x), mask=None)\n",
        {"hl": DeviceName("language", "triton.language.core"), "TWO": DeviceName("constexpr", 2),
         "load": DeviceName("language", "triton.language.core.load")},
        {"noinline": True, "do_not_specialize": ("y", 1)},
    )  # fmt: skip
    written, names = device_file_text([replace(text, text=text.text.removeprefix('@exec("1")\n'))])
    assert names == ("k",) and "TWO = tl.constexpr(2)" in written
    assert written.endswith(
        "@triton.jit(noinline=True, do_not_specialize=['y', 1])\n"
        "def k(x: tl.constexpr, y=(1, 2.5), *, z=TWO):\n    if y is None:\n        pass\n"
        "    tl.store(x, tl.cast(z, None) + tl.load(x), mask=None)\n"
    )
    decorated, _ = device_file_text([text])
    assert "exec" not in decorated


def test_functions_of_one_name_and_constants_get_names_of_their_own():
    one = DeviceText("k", "def k(x):\n    return C\n", {"C": DeviceName("constant", 1)})
    two = DeviceText("k", "def k(x):\n    return C + f(x)\n",
                     {"C": DeviceName("constant", 2), "f": DeviceName("function", 0)})  # fmt: skip
    written, names = device_file_text([one, two])
    assert names == ("k", "k_2") and "C = 1\nC_2 = 2\n" in written
    assert "return C_2 + k(x)" in written


@pytest.mark.parametrize("body", [
    "x_ptr.handle", "x_ptr.__class__", "().__class__", "open('x')", "__import__('os')", "exec('1')",
    "getattr(x_ptr, 'handle')", "np.load('x')", "tl.core", "tl.tensor(1, 2)", "tl.semantic",
    "tl.inline_asm_elementwise('', '', [], tl.int32, True, 1)", "tl.target_info.is_cuda()",
    "tl.static_print(1)", "tl.device_print('x')", "tl.extra.cuda.smid()", "float(N)",
    "int(x_ptr)", "x_ptr.value",
    "[i for i in (1, 2)]", "(lambda: 1)()", "f'{N}'", "x_ptr.to(tl.int32, _semantic=1)", 
    "tl.f(**N)", "(y := 1)", "{1: 2}", "{1}", "N in (1, 2)", "N is 1", "tl", "tl.math", "b'x'",
    "tl.pointer_type(tl.int8)", "tl.call_extern()", "tl.map_elementwise(1)", "libdevice.clock()",
    "tl.load.__globals__",
])  # fmt: skip
def test_device_code_has_no_way_out(body):
    names = {**TL, "np": DeviceName("language", "numpy"),
             "libdevice": DeviceName("language", "triton.language.extra.libdevice")}  # fmt: skip
    with pytest.raises(NotReplayable, match=r"."):
        device_file_text([device(f"y = {body}", names)])


@pytest.mark.parametrize(("body", "late"), [
    ("for i in range(3):\n    x_ptr + i\ny = i", True),
    ("i = 0\nfor i in range(3):\n    pass\nif i > 1:\n    pass", True),
    ("for j in range(2):\n    for i in range(3):\n        pass\n    x_ptr + i", True),
    ("for j in range(2):\n    y = i\n    for i in range(3):\n        pass", True),
    ("for i in range(3):\n    pass\ni += 1", True),
    ("for i in range(3):\n    pass\nwhile i < 3:\n    i = 4", True),
    ("for i in range(3):\n    pass\nfor j in range(i):\n    pass", True),
    ("for i in range(3):\n    i += 1\nfor i in range(2):\n    y = i", False),
    ("for i in range(3):\n    pass\ni = 2\ny = i", False),
])  # fmt: skip
def test_the_variable_of_a_loop_ends_with_it(body, late):
    body = body.replace("x_ptr + i", "y = i")
    if not late:
        assert device_file_text([device(body)])
        return
    with pytest.raises(NotReplayable, match="uses i, the variable of a loop, after it"):
        device_file_text([device(body)])


@pytest.mark.parametrize("body", [
    "x_ptr.y = 1", "x_ptr[0] = 1", "import os", "from os import system", "global N", "del N",
    "try:\n    N\nexcept Exception:\n    N", "with tl.x:\n    N", "def g():\n    return 1",
    "class A:\n    pass", "for i in range(3):\n    pass\nelse:\n    N", "yield N", "tl = 1",
    "for i, j in N:\n    pass", "y: tl.int32 = 1", "N + 1", "raise N", "async def g(): pass",
    "y: exec('1') = 1", "triton = 1", "precision_of = N", "*y, z = N", "__builtins__ = 1",
])  # fmt: skip
def test_statements_that_device_code_may_not_hold(body):
    with pytest.raises(NotReplayable):
        device_file_text([device(body)])


@pytest.mark.parametrize("arguments", [
    "*x", "**x", "x, /", "x=exec('1')", "x=[].append(1)", "x: tl.int32", "x: 'i64'",
    "x: exec('1')", "x: 'exec(1)'", "tl", "x=open", "x=tl",
])  # fmt: skip
def test_arguments_that_a_plan_does_not_hold(arguments):
    with pytest.raises(NotReplayable):
        device_file_text([device("pass", arguments=arguments)])


@pytest.mark.parametrize("text", [
    DeviceText("k", "def j(x): pass", {}), DeviceText("k", "k = 1", {}), DeviceText("k", "(", {}),
    DeviceText("k", "def k(x): pass\nimport os", {}), DeviceText("k", "async def k(x): pass", {}),
    DeviceText("a b", "def a(x): pass", {}), DeviceText("class", "def k(x): pass", {}),
    DeviceText("k", "def k(x): return y", {"y": DeviceName("function", 7)}),
    DeviceText("k", "def k(x): return y", {"y": DeviceName("language", "os.system")}),
    DeviceText("k", "def k(x): return y", {"y": DeviceName("dtype", "__doc__")}),
    DeviceText("k", "def k(x): return y", {"y": DeviceName("constant", ([],))}),
    DeviceText("k", "def k(x): pass", {"y\n=1": DeviceName("constant", 1)}),
    DeviceText("k", "def k(x): pass", {}, {"repr": True}),
    DeviceText("k", "def k(x): pass", {}, {"do_not_specialize": (None,)}),
    DeviceText("k", "def k(x):\n    return x" + " + x" * 9000, {}),
])  # fmt: skip
def test_texts_that_are_no_device_functions(text):
    with pytest.raises(NotReplayable):
        device_file_text([text])


# Plans


X = PlannedView(0, "float32", (4, 8), (8, 1), 0)
Y = PlannedView(1, "float32", (4, 8), (8, 1), 0)
LAUNCH = LaunchStep(0, (4,), {"x": X, "n": PlannedConstant(8)}, {"num_warps": 4})
CALL = PlannedCall((X,), (PlannedMemory("float32", 32),), (LAUNCH,), (Y,))
PLAN = LaunchPlan((DeviceText("k", "def k(x, n): pass", {}),), (CALL,))


def test_a_plan_is_held_to_its_inputs():
    assert fault_of(PLAN, [(X,)]) is None
    assert fault_of(PLAN, [(replace(X, shape=(4, 9)),)]) == "its inputs are others"
    assert fault_of(PLAN, []) == "it has 1 calls in place of 0"
    assert PLAN.digest != replace(PLAN, calls=()).digest and len(PLAN.digest) == 64


@pytest.mark.parametrize(("call", "part"), [
    (replace(CALL, outputs=(replace(Y, offset=4),)), "beyond its memory"),
    (replace(CALL, outputs=(replace(Y, shape=(5, 8)),)), "beyond its memory"),
    (replace(CALL, outputs=(replace(Y, strides=(-8, 1)),)), "negative"),
    (replace(CALL, outputs=(replace(Y, offset=-128),)), "negative"),
    (replace(CALL, outputs=(replace(Y, offset=2),)), "within an element"),
    (replace(CALL, outputs=(replace(Y, base=2),)), "of no memory"),
    (replace(CALL, outputs=(replace(Y, base=-1),)), "of no memory"),
    (replace(CALL, outputs=(replace(Y, dtype="float64"),)), "beyond its memory"),
    (replace(CALL, outputs=(replace(Y, dtype="__class__"),)), "is none"),
    (replace(CALL, outputs=(replace(Y, strides=(1,)),)), "is none"),
    (replace(CALL, outputs=()), "no output"),
    (replace(CALL, memory=(PlannedMemory("float32", 1 << 40),)), "too much memory"),
    (replace(CALL, memory=(PlannedMemory("uint8", (64 << 26) + 1),)), "too much memory"),
    (replace(CALL, memory=(PlannedMemory("object", 8),)), "allocates"),
    (replace(CALL, steps=(replace(LAUNCH, options={"launch_pdl": True}),)), "waits for nothing"),
    (replace(CALL, steps=(LAUNCH,) * 5000), "5000 steps"),
    (replace(CALL, steps=(replace(LAUNCH, function=1),)), "no function of its own"),
    (replace(CALL, steps=(replace(LAUNCH, grid=()),)), "its grid"),
    (replace(CALL, steps=(replace(LAUNCH, grid=(0,)),)), "its grid"),
    (replace(CALL, steps=(replace(LAUNCH, options={"warmup": True}),)), "option warmup"),
    (replace(CALL, steps=(replace(LAUNCH, options={"num_warps": True}),)), "option num_warps"),
    (replace(CALL, steps=(replace(LAUNCH, arguments={"f": PlannedFunction(9)}),)), "a function of"),
    (replace(CALL, steps=(replace(LAUNCH, arguments={"f": "x"}),)), "not a value of a plan"),
    (replace(CALL, steps=(replace(LAUNCH, arguments={"f": PlannedTuple((
        replace(X, offset=4),))}),)), "beyond its memory"),
    (replace(CALL, steps=(FillStep(replace(Y, offset=8), 0),)), "beyond its memory"),
])  # fmt: skip
def test_a_plan_names_no_memory_beside_its_own(call, part):
    fault = fault_of(replace(PLAN, calls=(call,)), [(X,)])
    assert fault is not None and part in fault


# The interpreter follows a GPU


def test_each_program_runs_once_in_any_order():
    every = [(x, y, z) for x in range(3) for y in range(5) for z in range(2)]
    orders = []
    for seed in range(20):
        gpu_rules.ProgramOrder.choose((3, 5, 2), random.Random(seed))
        order = [gpu_rules.ProgramOrder.place(*place) for place in every]
        assert sorted(order) == every
        orders.append(tuple(order))
    usual = orders.count(tuple(every))
    assert 4 < usual < 16 and len(set(orders)) > 4
    gpu_rules.ProgramOrder.choose((1,), random.Random(1))
    assert gpu_rules.ProgramOrder.place(0, 0, 0) == (0, 0, 0)


class Handle:
    """A value of Triton's interpreter, as far as the rules look at it."""

    def __init__(self, data, dtype=None):
        self.data, self.dtype = np.asarray(data), SimpleNamespace(scalar=dtype)


def test_integers_over_zero_and_far_shifts_are_those_of_nvidia():
    class Builder:
        def create_sdiv(self, a, b):
            return Handle(a.data // b.data)

        def create_shl(self, a, b):
            return Handle(a.data << b.data)

    gpu_rules._replace(Builder, "create_sdiv", lambda a, b: b == 0, gpu_rules._ones)
    gpu_rules._replace(Builder, "create_shl", gpu_rules._is_far, lambda a, b: a * 0)
    seven = Handle(np.array([7, 7], np.int32))
    divided = Builder().create_sdiv(seven, Handle(np.array([0, 2], np.int32)))
    assert divided.data.tolist() == [-1, 3]
    shifted = Builder().create_shl(seven, Handle(np.array([32, 1], np.int32)))
    assert shifted.data.tolist() == [0, 14]


def test_floats_beyond_all_integers_are_the_nearest_one():
    def real(self, source, kind):
        with np.errstate(all="ignore"):
            return Handle(source.data.astype(np.int32))

    kind = SimpleNamespace(scalar=SimpleNamespace(
        primitive_bitwidth=32, is_int_signed=lambda: True))  # fmt: skip
    source = Handle(np.array([3e9, -3e9, np.nan, -1.75], np.float32))
    converted = gpu_rules._saturate(real)(None, source, kind)
    assert converted.data.tolist() == [2**31 - 1, -(2**31), 0, -1]


def test_inexact_results_are_a_step_off_and_exact_ones_are_not():
    def real(self, operand):
        return Handle(np.exp(operand.data))

    x = np.linspace(0, 4, 999, dtype=np.float32)
    nudged = gpu_rules._nudge(real, "exp")(None, Handle(x)).data
    off = np.abs(nudged.view(np.int32) - np.exp(x).view(np.int32))
    assert off[0] == 0 and nudged[0] == 1.0 and set(off[1:]) == {1}
    up = float((nudged > np.exp(x)).mean())
    assert 0.2 < up < 0.8


def test_addresses_outside_of_the_tensors_stop_a_program(monkeypatch):
    monkeypatch.setattr(gpu_rules.Bounds, "ranges", [(1000, 1064), (5000, 5064)])
    inside = np.array([1000, 1060, 5060], np.uint64)
    gpu_rules._check_addresses(inside, 4, 0)
    for odd in (996, 1062, 1064, 5064, 0, 1 << 63):
        addresses = np.array([1000, odd], np.uint64)
        with pytest.raises(gpu_rules.UntrueHint, match="reads outside"):
            gpu_rules._check_addresses(addresses, 4, 0)
    gpu_rules._check_addresses(np.array([5064 + 100], np.uint64), 4, 1024)
    with pytest.raises(gpu_rules.UntrueHint, match="writes outside"):
        gpu_rules._check_addresses(np.array([5064 + 1024], np.uint64), 4, 1024)


def test_hints_that_are_not_so_stop_a_program():
    gpu_rules._check_multiple(64, 16)
    gpu_rules._check_assumption(True)
    with pytest.raises(gpu_rules.UntrueHint):
        gpu_rules._check_multiple(65, [16])
    with pytest.raises(gpu_rules.UntrueHint):
        gpu_rules._check_assumption(np.array([True, False]))


# Files as they were


def test_files_are_imported_as_they_were_read(tmp_path, monkeypatch):
    for name in ("get_code", "get_data"):
        monkeypatch.setattr(SourceFileLoader, name, getattr(SourceFileLoader, name))
    monkeypatch.setattr(frozen, "_frozen", {})
    path = tmp_path / "mine.py"
    path.write_text("x = 'bytecode'\n")
    stale = compile("x = 'bytecode'\n", str(path), "exec")
    frozen.import_from_text.__wrapped__()
    loader = SourceFileLoader("mine", str(path))
    path.write_text("x = 'the text'\n")
    held: dict = {}
    exec(loader.get_code("mine"), held)
    assert held["x"] == "the text" and stale.co_consts[0] == "bytecode"
    assert not (tmp_path / "__pycache__").exists()
    monkeypatch.setattr(frozen, "import_from_text", lambda: None)
    frozen.freeze({str(path): b"x = 'before'\n"})
    path.write_text("x = 'after'\n")
    exec(loader.get_code("mine"), held)
    assert held["x"] == "before" and linecache.getline(str(path), 1) == "x = 'before'\n"
    installed = SourceFileLoader("catalog", catalog.__file__)
    assert installed.get_code("catalog").co_filename == catalog.__file__
    linecache.cache.pop(str(path))


# Words and stored verdicts


def strict(*results):
    kept = [RuleResult(rule.name, "kept") for rule in RULES if not rule.gpu]
    return verdict_of([*results, *shown_by(kept, "evidence")], 0.5, strict=True)


def test_a_strict_verdict_says_by_what_each_rule_is_kept():
    assert strict().word == "correct" and strict().claims == ()
    claimed = strict(RuleResult("launches", "kept", "why", "claim"))
    assert claimed.word == "plausible" and claimed.claims == ("launches",)
    assert strict(RuleResult("sizes", "not run", "it refuses")).word == "correct"  # evidence comes
    unsized = verdict_of([RuleResult("values", "kept", "", "evidence")], strict=True)
    assert unsized.word == "undecided"
    assert strict(RuleResult("values", "broken", "wrong")).word == "rejected"
    trusted = verdict_of([RuleResult("values", "kept")])
    assert trusted.word == "correct" and not trusted.strict


def test_a_stored_verdict_is_judged_again_by_its_own_words(tmp_path):
    stored = {"command": "evaluate", "file": "a.py", "spec": "b.py", "impl": "mine", "seed": 3,
              "config": {"block_n": 64, "num_warps": 4}, "sizes": {"M": 3}, "dtype": "fp32",
              "device": "h200", "predicted": True, "verdict": "correct", "digests": {"plan": "a"},
              "rule": None, "hidden_sizes": [], "exit_code": 0}  # fmt: skip
    path = tmp_path / "v.json"
    path.write_text(json.dumps(stored))
    assert evaluate_kernel.stored_verdict(path) == stored
    options = evaluate_kernel.options_of(stored, EvaluateOptions(None, verify=path))
    assert (options.kernel, options.spec, options.impl) == (
        "a.py", "b.py", "mine:block_n=64,num_warps=4")  # fmt: skip
    assert (options.sizes, options.dtype, options.device) == ("M=3", "fp32", "h200")
    moved = evaluate_kernel.options_of(stored, EvaluateOptions("c.py", spec="d.py"))
    assert (moved.kernel, moved.spec) == ("c.py", "d.py")
    assert evaluate_kernel.differing(stored, stored) == []
    now = {**stored, "verdict": "rejected", "digests": {"plan": "b", "spec": "c"}}
    assert evaluate_kernel.differing(stored, now) == ["verdict", "plan", "spec"]
    for odd in ("", "[]", "{}", json.dumps({**stored, "seed": "3"}),
                json.dumps({**stored, "digests": None}),
                json.dumps({**stored, "exit_code": "0"}), "[" * 9999):  # fmt: skip
        path.write_text(odd)
        with pytest.raises(CommandError):
            evaluate_kernel.stored_verdict(path)


def test_digests_tell_files_apart():
    one = files_digests({"/a/spec.py": b"1"}, {"/a/mine.py": b"2"})
    assert one == files_digests({"/b/spec.py": b"1"}, {"/b/mine.py": b"2"})  # wherever they lie
    assert one["submission"] != files_digests({}, {"/a/mine.py": b"3"})["submission"]
    assert files_digests({}, {})["spec"] is None
    assert Path(sys.executable).exists() and one["versions"]["triton"]
