"""Parts of `workbench.ops` and of adapted kernels at their limits, each value by hand."""

import inspect
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from workbench.adapted import (
    cell,
    kept,
    launch,
    moved,
    pruned,
    sample_check,
    sampled,
    travel,
    write,
)
from workbench.adapted.call import Layout
from workbench.adapted.traced import LaunchFault, Memory, ProgramsWait, ProgramTrace
from workbench.code.ttgir import NotModelled
from workbench.ops import choice, operation, text
from workbench.spec import Spec, Tensor

pytestmark = pytest.mark.unit


def spec_of(outputs=("y",), inputs=("x",), name="k", reference=None, **more):
    return Spec(
        name, {n: Tensor("N") for n in inputs}, {n: Tensor("N") for n in outputs},
        reference or (lambda *given: given[0]), lambda N: 0, [], [], **more,
    )  # fmt: skip


# The text of an operation


@pytest.fixture
def documented(monkeypatch):
    """Returns a Spec whose reference is in a file with this docstring, and these constants."""

    def made(doc, spec=None, **constants):
        module = ModuleType("documented", doc)
        vars(module).update(constants)
        monkeypatch.setitem(sys.modules, "documented", module)
        spec = spec or spec_of()
        spec.reference.__module__ = "documented"
        return spec

    monkeypatch.setattr(text, "dtypes_of", lambda spec: ["fp16", "bf16"])
    return made


def test_the_meaning_is_a_paragraph_and_the_formula_that_it_ends_with(documented):
    assert text._meaning(documented("First.\n\nSecond.\n\nThird.")) == "First."
    assert text._meaning(documented("It is:\n\n    x + 1\n\nThird.")) == "It is:\n\n    x + 1"
    assert text._meaning(documented("It is:")) == "It is:"
    assert text._meaning(documented(None)) == "k" == text._meaning(documented(""))


def test_a_docstring_names_each_tensor(documented):
    spec = documented("Scales x by EPS.", spec_of(("y", "z"), ("x", "w")), EPS=0.5, LIMIT=2.0, N=3)
    assert text.docstring_of(spec) == (
        "Scales x by EPS.\n\nEPS = 0.5.\n\n"
        "Args:\n    x: `N`, fp16, bf16.\n    w: `N`, fp16, bf16.\n\n"
        "Returns:\n    y: `N`, as x.\n    z: `N`, as x.\n\n"
        "Raises:\n    OperationError: The operation does not take these tensors.\n\n"
        "It has no backward, and refuses inputs that require a gradient."
    )
    several = text.signature_of(spec)
    assert list(several.parameters) == ["x", "w"]
    assert several.return_annotation == tuple[torch.Tensor, torch.Tensor]
    assert text.signature_of(spec_of()).return_annotation is torch.Tensor


@pytest.mark.parametrize(
    ("letters", "line"),
    [
        (63, "def k({0}: Tensor, x: Tensor) -> Tensor:"),  # 100 letters
        (64, "def k(\n    {0}: Tensor, x: Tensor\n) -> Tensor:"),
        (77, "def k(\n    {0}: Tensor, x: Tensor\n) -> Tensor:"),
        (78, "def k(\n    {0}: Tensor,\n    x: Tensor,\n) -> Tensor:"),
    ],
)
def test_a_stub_is_written_in_lines_of_a_hundred(documented, letters, line):
    name = "a" * letters
    spec = documented("It is.", spec_of(inputs=(name, "x")))
    lines = text._function(spec)
    expected = line.format(name)
    assert lines.startswith(expected + '\n    """It is.\n\n')
    longest = max(len(each) for each in expected.splitlines())
    assert longest <= 100
    assert text.stub({"k": spec, "m": spec}).count(expected) == 2


# Launchers


@pytest.mark.parametrize(("outputs", "several"), [(("y",), False), (("y", "z"), True)])
def test_an_operation_gives_one_output_or_a_tuple(monkeypatch, outputs, several):
    spec = spec_of(outputs, reference=lambda x: (x,) * len(outputs) if several else x)
    x, empty = torch.ones(3, dtype=torch.float16), torch.ones(0)
    launcher, output = choice._reference(spec, [x], {"N": 3})
    assert isinstance(output, tuple) is several and isinstance(launcher(x), tuple) is several
    first = output[0] if several else output
    assert first.dtype == torch.float16 and first.tolist() == [1.0] * 3
    launcher, output = choice._nothing(spec, [empty], {"N": 0})
    assert isinstance(output, tuple) is several and isinstance(launcher(empty), tuple) is several
    assert isinstance(operation._fake(spec)(x), tuple) is several


@pytest.mark.parametrize("sizes", [(2, 0), (0, 2), (2, 2)])
def test_any_output_with_elements_needs_a_launch(monkeypatch, sizes):
    monkeypatch.setattr(choice, "outputs_of", lambda spec, inputs: tuple(map(torch.empty, sizes)))
    with pytest.raises(choice.OperationError, match="at N=0 there is nothing to compute from"):
        choice._nothing(spec_of(("y", "z")), [], {"N": 0})


def test_impls_of_the_interpreter_are_those_that_take_the_sizes(monkeypatch):
    def impl(name, backend="triton", unchecked=False, reason=None):
        return SimpleNamespace(name=name, backend=backend, unchecked_reason=unchecked,
                               rejection_reason=lambda *at: reason)  # fmt: skip

    impls = [impl("lib", "torch"), impl("new", unchecked=True), impl("no", reason="too large"),
             impl("a"), impl("b")]  # fmt: skip
    monkeypatch.setattr(choice, "INTERPRETED", True)
    monkeypatch.setattr(choice.launch, "limits_of", lambda place: "limits")
    monkeypatch.setattr(choice, "default_of", lambda impl, *at: (f"config {impl.name}", "text"))
    refused = []
    spec = SimpleNamespace(impls=impls)
    found = choice._choices(spec, torch.device("cpu"), "fp16", {"N": 1}, refused)
    assert [(c.impl.name, c.config) for c in found] == [("a", "config a"), ("b", "config b")]
    assert refused == ["no: too large"]


def test_shapes_are_kept_up_to_the_most(monkeypatch):
    looked = []
    monkeypatch.setattr(launch, "LOOKED_UP", looked)
    monkeypatch.setattr(launch, "MOST", 2)
    monkeypatch.setattr(launch, "_choice", lambda impl, inputs: f"config {inputs}")
    impl, other = SimpleNamespace(launch_configs={}), SimpleNamespace(launch_configs={})
    for at in (1, 2):
        assert launch.choose(impl, at, at) == f"config {at}"
    assert list(impl.launch_configs) == [1, 2]
    launch.choose(impl, 3, 3)
    assert list(impl.launch_configs) == [3]
    launch.choose(other, 4, 4)
    assert (
        len(looked) == 2 and looked[0] is impl.launch_configs and looked[1] is other.launch_configs
    )


def test_an_operation_keeps_its_launchers_where_they_are_cleared(monkeypatch):
    looked, made = [], []
    monkeypatch.setattr(operation, "LOOKED_UP", looked)
    monkeypatch.setattr(operation, "MOST", 2)
    monkeypatch.setattr(
        operation, "first_launch",
        lambda spec, inputs, more: (
            made.append(len(inputs[0])) or ((lambda x: x + 1), inputs[0] + 1)
        ),
    )  # fmt: skip
    chosen = {}
    launched = operation._launching(spec_of(), chosen)
    assert looked[0] is chosen
    for n in (1, 2, 1, 3, 3):
        assert launched(torch.zeros(n)).tolist() == [1.0] * n
    assert made == [1, 2, 3] and len(chosen) == 1


@pytest.mark.parametrize(
    ("gradients", "computed"), [((None, None), 0), ((None, 1), 1), ((1, 1), 1)]
)
def test_a_backward_of_no_gradient_computes_nothing(gradients, computed):
    asked = []
    derivative = SimpleNamespace(formula=lambda *given: asked.append(given) or ("a", "b"))
    _, backward = operation._formula(spec_of(inputs=("x", "w")), derivative)
    ctx = SimpleNamespace(needs_input_grad=(True, False), saved_tensors=("s",))
    found = backward(ctx, *gradients)
    assert len(asked) == computed and found == (("a", "b") if computed else (None, None))
    assert asked == [((True, False), ("s",), gradients)] * computed


# Configs that are left


class Predicting:
    """Predicts the number of a config as seconds."""

    made: list = []  # noqa: RUF012  # cleared by its test

    def __init__(self, kernel, device, given, grid):
        self.made.append((given, grid))

    def predict(self, config):
        if isinstance(config, Exception):
            raise config
        return SimpleNamespace(predicted_s=float(config)), None


def test_the_best_predicted_configs_are_left(monkeypatch):
    monkeypatch.setattr(pruned, "PredictedCall", Predicting)
    kernel = SimpleNamespace(__name__="k", arg_names=["x", "n", "BLOCK"])
    Predicting.made.clear()
    prune = pruned.pruner(kernel, "device", 2)
    assert prune([3, 1], {"x": 1}, grid="g") == [3, 1] and not Predicting.made
    more = {"grid": "g", "BLOCK": 8, "num_warps": 4}
    assert prune([3, 1, 2], {"x": 1}, **more) == [1, 2]
    assert Predicting.made == [({"x": 1, "BLOCK": 8}, "g")]
    assert prune([3, ValueError("no"), 2, 1], {}, grid="g") == [1, 2]
    odd = [3, NotModelled("no"), 1]
    assert prune(odd, {}, grid="g") == odd
    broken = [ValueError("a"), ValueError("b"), ValueError("c")]
    assert prune(broken, {}, grid="g") == broken


def test_an_output_that_is_written_less_than_usual_is_at_fault(monkeypatch):
    call = SimpleNamespace(outputs=("a", "b"), shares={"b": 0.5}, partial=())
    shares = {}
    monkeypatch.setattr(sample_check, "shares_of", lambda *given: shares)
    monkeypatch.setattr(sample_check, "NEAR_ALL", 0.5)
    for each, said in (
        ({}, None), ({"a": 0.5, "b": 0.25}, None),
        ({"a": 0.4375}, "a is written in 43.8 % of its elements, and not all of "
         "them; the sum of partial results is compared with partial=('a',)"),
        ({"b": 0.125}, "b is written in 12.5 % of its elements, as the first config "
         "that ran; the sum of partial results is compared with partial=('b',)"),
    ):  # fmt: skip
        shares.clear()
        shares.update(each)
        assert sample_check._fault_of(call, None) == said
    beyond = SimpleNamespace(tensors=[SimpleNamespace(excess=0, argument="a"),
                                      SimpleNamespace(excess=1200, argument="b")])  # fmt: skip
    said = "it writes 1,200 elements past the end of b; is a mask missing?"
    assert sample_check._fault_of(call, beyond) == said


@pytest.mark.parametrize(
    ("shape", "fits"),
    [((1,), True), ((2, 3, 4), True), ((), False), ((1, 1, 1, 1), False), ((2, 0), False),
     ((-1, -1), False), ((-1,), False)],
)  # fmt: skip
def test_a_grid_has_one_to_three_numbers_above_zero(monkeypatch, shape, fits):
    function = next(f for _, f in inspect.getmembers(write, inspect.isfunction)
                    if "it must be one to three numbers > 0" in inspect.getsource(f))  # fmt: skip
    monkeypatch.setattr(write, "_heuristics", lambda kernel: [])
    monkeypatch.setattr(write, "_parameters", lambda kernel: {})
    config = SimpleNamespace(all_kwargs=dict)
    given = {"kernel": None, "named": {}, "grid": shape, "config": config}
    names = list(inspect.signature(function).parameters)
    if fits:
        assert function(*(given[name] for name in names)) == shape
        return
    with pytest.raises(travel.AdaptedError, match="must be one to three numbers > 0"):
        function(*(given[name] for name in names))


def test_heuristics_around_a_function_are_counted():
    def plain():
        pass

    jitted = SimpleNamespace(fn=plain)
    assert travel._layers(plain) == 0 == travel._layers(jitted)
    one = SimpleNamespace(values={"A": 1}, fn=jitted)
    assert travel._layers(one) == 1
    assert travel._layers(SimpleNamespace(values={"B": 1}, fn=one)) == 2


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.float8_e4m3fn]
)
def test_elements_of_each_width_are_moved_and_kept(dtype):
    memory = torch.arange(1.0, 9.0).to(dtype)
    name = str(dtype).removeprefix("torch.")
    layout = Layout((8,), (1,), name, lead=0, plain=True)
    other = moved.shuffle_memory(memory, layout)
    assert other.dtype == dtype and other.double().tolist() != memory.double().tolist()
    assert sorted(other.double().tolist()) == sorted(memory.double().tolist())


def test_a_result_is_that_of_the_values_that_all_agree():
    saved = {"x": torch.ones(2), "w": torch.zeros(2)}
    other = {"x": torch.ones(2), "w": torch.ones(2)}
    own = SimpleNamespace(
        args=saved, moved_inputs=other, expected_outputs="first", moved_outputs="second"
    )
    ask = kept.Kept._expected_of
    assert ask(own, {n: x.double() for n, x in saved.items()}) == "first"
    assert ask(own, {n: x.double() for n, x in other.items()}) == "second"
    with pytest.raises(travel.AdaptedError, match="unknown for these x, w"):
        ask(own, {"x": torch.zeros(2), "w": torch.zeros(2)})


def test_a_function_of_a_file_is_left_where_it_is(tmp_path, monkeypatch):
    def function():
        pass

    monkeypatch.setattr(cell, "base", lambda function: function)
    assert cell.function_in_file(function, tmp_path) is function and cell._is_in_file(function)
    for file in (None, str(tmp_path / "gone.py")):
        monkeypatch.setattr(cell.inspect, "getsourcefile", lambda plain, file=file: file)
        assert not cell._is_in_file(function)
        monkeypatch.setattr(cell, "_parts", lambda plain, written: iter(["def function(): ..."]))
        made = cell.function_in_file(function, tmp_path)
        assert made is not function and made.__name__ == "function"
    (written,) = (tmp_path / "cells").glob("*.py")
    assert written.read_text() == "def function(): ..." and written.stem.startswith("function_")


def test_edges_of_a_tensor_behind_a_plain_argument_are_found():
    arguments = [SimpleNamespace(name="n", tensor=None), SimpleNamespace(name="x", tensor="x")]
    layout = SimpleNamespace(shape=(3, 5), stride=(5, 1))
    found = sampled._edges(SimpleNamespace(arguments=arguments, tensors={"x": layout}))
    assert list(found) == ["x"]
    assert found["x"].tolist()[:7] == [0, 14, 7, 10, 4, 4, 10]
    assert len(found["x"]) == 7 + sampled.RANDOM
    assert all(0 <= n < 15 for n in found["x"].tolist())


@pytest.mark.parametrize(("wanted", "kept_"), [((0, 3, 4, 9), [0, 3]), ((), [])])
def test_elements_beyond_a_tensor_are_not_asked_for(monkeypatch, wanted, kept_):
    def footprint(ttgir, grid, given, requested):
        return requested("x", 4).tolist(), requested("other", 4).tolist()

    monkeypatch.setattr(sampled, "footprint_of", footprint)
    assert sampled.examine_code("", (1,), None, {"x": wanted}) == (kept_, [])


# What programs did


def test_accesses_end_with_their_most():
    x = torch.zeros(8)
    trace = ProgramTrace("k", [Memory.locate("x", x)], 2)
    with pytest.raises(ProgramsWait):
        for _ in range(3):
            trace.note("load", x.data_ptr(), True)
    assert trace.count == 3


def test_first_programs_are_those_of_the_first_config_that_launches(monkeypatch, tmp_path):
    """The first two configs fail, the third takes 1 s for its first program and 2 and 4 later."""
    entries = [SimpleNamespace(grid=(2, 3), n=n) for n in range(4)]
    call = SimpleNamespace(entries=entries)
    plans, fails = [], [LaunchFault("first"), ValueError("no")]

    class Launcher:
        def __init__(self, call):
            self.trace = SimpleNamespace(seconds=[1.0, 2.0, 4.0])

        def fire(self, memory, entry, plan):
            plans.append((entry.n, list(plan.numbers)))
            if fails:
                raise fails.pop(0)

    monkeypatch.setattr(sampled, "Launcher", Launcher)
    monkeypatch.setattr(sampled.Call, "read", lambda folder: call)
    monkeypatch.setattr(torch, "load", lambda path, weights_only: {"x": torch.ones(1)})
    function = sampled.first_programs
    assert function(tmp_path) == sampled.FirstPrograms(2, 6, 3.0)
    assert plans == [(0, [0, 3, 5]), (1, [0, 3, 5]), (2, [0, 3, 5])]
    fails[:] = [ValueError("no")] * 4
    assert function(tmp_path) is None
    fails[:] = [ValueError("no"), LaunchFault("second"), LaunchFault("third"), ValueError("no")]
    with pytest.raises(LaunchFault, match="second"):
        function(tmp_path)


def test_numbers_of_configs_are_named_by_what_all_are():
    def entry(values, kwargs):
        return SimpleNamespace(values=values, kwargs=kwargs, pre_hook=None)

    both = [entry({"A": n, "B": n}, {"A": n, "B": bool(n)}) for n in (0, 1)]
    found = dict(write.meanings(both))
    assert (found["A"], found["B"]) == ("int", "bool")
    half = [entry({"A": 1}, {"A": 1}), entry({}, {"A": 2})]
    assert dict(write.meanings(half))["A"] == "(1, 1), (None, 2)"
    mixed = [entry({"A": 1}, {"A": 1}), entry({"A": 0}, {"A": True})]
    assert dict(write.meanings(mixed))["A"] == "(0, True), (1, 1)"
