"""Operations without a launch: the choice of Impl and config, shapes, types, and refusals."""

import ast
import inspect
import logging
import subprocess
import sys
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from workbench import ops  # noqa: E402
from workbench.adapted import launch  # noqa: E402
from workbench.catalog import kernel_names, spec_of  # noqa: E402
from workbench.catalog.source import code_hash  # noqa: E402
from workbench.data import tuned_cache  # noqa: E402
from workbench.device import calibration  # noqa: E402
from workbench.device.calibration import CalibrationError, measured_cases  # noqa: E402
from workbench.device.correction import best_estimate  # noqa: E402
from workbench.device.cost_model import guess_seconds  # noqa: E402
from workbench.device.hardware import DEVICES  # noqa: E402
from workbench.dsl import attention_backend  # noqa: E402
from workbench.measurement.inputs import torch_dtype  # noqa: E402
from workbench.ops import choice  # noqa: E402
from workbench.ops.text import dtypes_of  # noqa: E402
from workbench.spec import ITEMSIZE, Spec, Tensor, threads, values  # noqa: E402
from workbench.tuner import choice as tuner_choice  # noqa: E402

ROOT = Path(__file__).parents[2]
VERSIONS = {"torch": "2.13.0", "triton": "3.9.0"}
HELD = FakeTensorMode()


def tensors(spec, sizes, dtype="bf16", device="cuda"):
    """Inputs of an operation without memory."""
    with HELD:
        return [
            torch.empty(t.shape(sizes), dtype=torch_dtype(t.dtype or dtype), device=device)
            for t in spec.inputs.values()
        ]


@pytest.fixture
def h200(tmp_path, monkeypatch):
    """A machine with an H200, an empty tuned cache and no calibration."""
    monkeypatch.setattr(calibration, "SHIPPED", tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(tuned_cache, "LOOKED_UP", [])
    monkeypatch.setattr(launch, "device_of", lambda place: DEVICES["h200"])
    monkeypatch.setattr(tuner_choice, "_versions", lambda: VERSIONS)
    monkeypatch.setattr(tuner_choice, "default_path", lambda: tmp_path / "tuned.json")
    return tmp_path / "tuned.json"


def recorded(name, refusing=()):
    """A Spec of the catalogue whose Impls return their name and config instead of a launch; those
    named in `refusing` raise as a launcher does that needs dense rows."""

    def returned(impl):
        def launched(*inputs, config):
            if impl.name in refusing:
                raise ValueError("x must have dense rows")
            return impl.name, config

        return launched

    spec = spec_of(name)
    return replace(spec, impls=[replace(i, launch=returned(i)) for i in spec.impls])


def chosen(spec, sizes, dtype="bf16"):
    launcher, output = choice.first_launch(spec, inputs := tensors(spec, sizes, dtype))
    assert launcher(*inputs) == output, "a warm call launches the same"
    return output


# The choice


HEAD = "kernel,sizes,dtype,impl,phase,median_us"


@pytest.mark.parametrize(
    "text",
    [
        "kernel,impl\nmatmul,tiles\n",
        f"{HEAD}\nsoftmax,M=8\n",
        f"{HEAD}\nsoftmax,M=8 N=8,bf16,rows,final,fast\n",
    ],
)
def test_a_damaged_file_of_measured_cases_is_one_sentence(text, tmp_path, monkeypatch):
    (tmp_path / "sm_90.csv").write_text(text)
    monkeypatch.setattr(calibration, "IMPLS", tmp_path)
    with pytest.raises(CalibrationError, match=r"sm_90.csv is damaged .*install the workbench"):
        measured_cases("sm_90")


def test_every_impl_that_a_measured_size_allows_was_measured_there():
    """An Impl that is newer than the times would never be chosen."""
    limits = DEVICES["h200"].limits
    cases = measured_cases("sm_90")
    for case in cases:
        size = limits, case.dtype, case.sizes
        impls = [i for i in spec_of(case.kernel).impls if i.backend == "triton"]
        allowed = {i.name for i in impls if allows(i, *size)}
        assert allowed <= set(case.impls), case
    assert len(cases) > 80


@pytest.mark.parametrize(
    "kernel, sizes, impl",
    [
        ("softmax", {"M": 8192, "N": 4096}, "rows"),
        ("softmax", {"M": 600, "N": 200_000}, "clusters"),
        ("softmax", {"M": 2000, "N": 30_000}, "looped"),
        ("matmul", {"M": 60, "N": 4096, "K": 4096}, "narrow"),
        ("wkv7", {"B": 64, "T": 1, "H": 40, "N": 64}, "sequential"),
        ("wkv7", {"B": 2, "T": 3000, "H": 40, "N": 64}, "chunked"),
    ],
)
def test_the_impl_that_was_fastest_at_the_nearest_sizes_is_chosen(h200, kernel, sizes, impl):
    name, config = chosen(recorded(kernel), sizes)
    assert name == impl
    limits = DEVICES["h200"].limits
    result = next(i for i in spec_of(kernel).impls if i.name == impl)
    assert result.rejection_reason(config, limits, "bf16", sizes) is None


@pytest.mark.parametrize("name", ["mi300x", "a100"])
@pytest.mark.parametrize(
    ("kernel", "sizes"),
    [
        ("softmax", {"M": 600, "N": 200_000}),
        ("matmul", {"M": 16, "N": 4096, "K": 4096}),
        ("wkv7", {"B": 2, "T": 3000, "H": 40, "N": 64}),
    ],
)
def test_a_device_without_times_takes_what_the_model_expects(
    h200, monkeypatch, caplog, name, kernel, sizes
):
    caplog.set_level(logging.INFO, "workbench")
    device = DEVICES[name]
    monkeypatch.setattr(launch, "device_of", lambda place: device)
    first, _ = chosen(recorded(kernel), sizes)
    assert f"ordered by the analytic model, without a time on {name}" in caplog.text
    expected_s = {}
    for impl in spec_of(kernel).impls:
        if impl.backend == "triton":
            default, _ = tuner_choice.default_of(impl, device.limits, "bf16", sizes)
            if impl.rejection_reason(default, device.limits, "bf16", sizes) is None:
                expected_s[impl.name] = guess_seconds(impl, default, device, "bf16", sizes)
    assert expected_s[first] == min(expected_s.values()) and len(expected_s) > 1


def test_the_calibration_that_is_shipped_orders_impls(h200, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "workbench")
    monkeypatch.setattr(calibration, "SHIPPED", Path(calibration.__file__).parent / "calibrations")
    monkeypatch.setattr(tuner_choice, "expected_launches", lambda problem: ())
    impl, config = chosen(recorded("matmul"), sizes := {"M": 736, "N": 2944, "K": 5888})
    assert "ordered by expected times" in caplog.text and "calibration of h100" in caplog.text
    expected_s = {
        i.name: best_estimate(i, DEVICES["h200"], "bf16", sizes)
        for i in spec_of("matmul").impls
        if i.backend == "triton"
    }
    known = {name: e for name, e in expected_s.items() if e is not None}
    assert known[impl].config == config
    assert known[impl].seconds == min(e.seconds for e in known.values())


def test_a_device_without_figures_takes_the_order_of_the_file(h200, monkeypatch):
    unknown = replace(DEVICES["mi300x"], name="gpu", dram=None)
    monkeypatch.setattr(launch, "device_of", lambda place: unknown)
    assert chosen(recorded("softmax"), {"M": 600, "N": 200_000})[0] == "looped"


def test_what_won_a_sweep_comes_before_what_was_measured_and_what_lost_does_not(h200):
    spec = recorded("softmax")
    sizes = {"M": 8192, "N": 4096}
    impl = next(i for i in spec.impls if i.name == "persistent")
    config = replace(impl.config(), num_warps=4)
    entry = tuned_cache.Entry(
        kernel="softmax", impl="persistent", config=values(config), sizes=sizes, dtype="bf16",
        device="h200", **VERSIONS, source=code_hash(impl), predicted=False, time_s=1e-5,
        low_s=None, high_s=None, regime="cold", protocol="p4", run="r", configs=1,
        at=datetime(2026, 11, 1, tzinfo=UTC).isoformat(),
    )  # fmt: skip
    for won, first in ((False, "rows"), (True, "persistent")):
        with tuned_cache.changing(h200) as kept:
            kept.add(replace(entry, fastest=won, at=f"{entry.at[:18]}{won:d}+00:00"))
        assert chosen(spec, sizes)[0] == first
    assert chosen(spec, sizes) == ("persistent", config)


def test_an_impl_that_refuses_the_tensors_leaves_them_to_the_next_and_the_log_says_so(h200, caplog):
    caplog.set_level(logging.INFO, "workbench")
    sizes = {"M": 8192, "N": 4096}
    assert chosen(recorded("softmax"), sizes)[0] == "rows"
    name, _ = chosen(recorded("softmax", refusing=("rows",)), sizes)
    assert name != "rows" and f"softmax.{name}" in caplog.text and "dense rows" in caplog.text


def test_where_every_impl_refuses_the_sentence_has_the_reasons(h200):
    every = [i.name for i in spec_of("softmax").impls]
    with pytest.raises(
        ops.OperationError, match=r"no Impl takes M=4,N=8 .*rows: x must have dense"
    ):
        chosen(recorded("softmax", refusing=every), {"M": 4, "N": 8})


def test_a_gradient_that_no_impl_takes_is_computed_by_torch(h200):
    spec = spec_of("rms_norm_backward")
    with HELD:
        _, (dx, dw) = choice.first_launch(spec, tensors(spec, {"M": 3, "N": 7}))
    assert (dx.shape, dw.shape, dx.dtype) == ((3, 7), (7,), torch.bfloat16)


def test_several_impls_are_measured_in_numbers_as_wide():
    """In fp32 the fastest of 16 bits may be the slowest: Q4_K of one row took 206 us by `slices`,
    and 24 by `rows`."""
    limits, cases = DEVICES["h200"].limits, measured_cases("sm_90")
    measured = {(case.kernel, ITEMSIZE[case.dtype]) for case in cases}
    for spec in map(spec_of, kernel_names()):
        for dtype in dtypes_of(spec):
            impls = [i for i in spec.impls if i.backend == "triton"]
            most = max(sum(allows(i, limits, dtype, at) for i in impls) for at in spec.bench)
            assert most < 2 or (spec.name, ITEMSIZE[dtype]) in measured, f"{spec.name}, {dtype}"


def allows(impl, limits, dtype, sizes):
    config = impl.default(limits, dtype, sizes)
    return impl.rejection_reason(config, limits, dtype, sizes) is None


def test_measured_impls_exist():
    for case in measured_cases("sm_90"):
        assert set(case.impls) <= {i.name for i in spec_of(case.kernel).impls}


# Shapes


@pytest.mark.parametrize("name", kernel_names())
def test_outputs_without_a_launch_are_those_of_the_spec(name):
    spec = spec_of(name)
    for sizes in (*spec.check, *spec.bench):
        for dtype in dtypes_of(spec):
            with HELD:
                outputs = getattr(ops, name)(*tensors(spec, sizes, dtype))
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            for y, tensor in zip(outputs, spec.outputs.values(), strict=True):
                assert tuple(y.shape) == tensor.shape(sizes)
                assert y.dtype == torch_dtype(tensor.dtype or dtype)
                assert y.device.type == "cuda" and y.is_contiguous()


# Refusals


def of(*shapes, dtype=torch.float32):
    return [torch.zeros(shape, dtype=dtype) for shape in shapes]


@pytest.mark.parametrize(
    "name, inputs, sentence",
    [
        ("softmax", of((3, 3)), "needs an NVIDIA or AMD GPU, but .* on cpu; move them"),
        ("softmax", of((2, 3, 4), dtype=torch.float32), "x is `M N`, and this one has 3 axes"),
        ("softmax", of((3, 3), dtype=torch.float64), "x is float64; convert it to one of float32"),
        ("rms_norm", [*of((3, 3)), *of((3,), dtype=torch.bfloat16)], "w is bfloat16, and float32"),
        ("rms_norm", of((3, 3), (4,)), "x `M N` is 3x3, w `N` is 4; correct one"),
        ("cross_entropy", [*of((3, 3)), *of((3,))], "target is float32, and int64 is wanted"),
        ("attention", of(*[(1, 4, 2, 33)] * 3), "D is one of 64, .* not 33"),
        ("reduce", of((3, 0)), "nothing to compute from"),
    ],
)
def test_a_refusal_is_one_sentence(name, inputs, sentence, h200):
    device = "cpu" if "cpu" in sentence else "cuda"
    with HELD:
        inputs = [torch.empty(x.shape, dtype=x.dtype, device=device) for x in inputs]
        with pytest.raises(ops.OperationError, match=sentence) as error:
            choice.first_launch(spec_of(name), inputs)
    assert str(error.value).startswith(f"workbench.ops.{name}") and str(error.value)[-1] == "."


def test_inputs_of_two_devices_are_refused(h200):
    spec = spec_of("rms_norm")
    x, _ = tensors(spec, {"M": 3, "N": 8})
    _, w = tensors(spec, {"M": 3, "N": 8}, device="cpu")
    with pytest.raises(ops.OperationError, match="w lies on cpu, and x on cuda:0; move it"):
        choice.first_launch(spec, (x, w))


@pytest.mark.parametrize("name", ["decode_attention", "matmul", "wkv7"])
def test_without_a_derivative_an_input_that_requires_a_gradient_is_refused(name):
    spec = spec_of(name)
    first, *others = tensors(spec, spec.check[1], device="cpu")
    with HELD, pytest.raises(ops.OperationError, match=f"{name} has no backward, and . requires"):
        getattr(ops, name)(first.requires_grad_(), *others)
    with HELD, torch.no_grad():
        getattr(ops, name)(first, *others)


def test_a_table_that_requires_a_gradient_is_refused():
    spec = spec_of("rope")
    inputs = tensors(spec, spec.check[1], device="cpu")
    inputs[2].requires_grad_()
    with HELD, pytest.raises(ops.OperationError, match="no gradient for cos"):
        ops.rope(*inputs)


# Names, types, own Specs


def test_each_operation_has_its_signature_and_docstring_at_run_time_and_in_the_stub():
    stub = ast.parse(Path(ops.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    functions = {n.name: n for n in stub.body if isinstance(n, ast.FunctionDef)}
    assert functions.keys() - {"operation_of"} == set(kernel_names())
    for name in kernel_names():
        function = getattr(ops, name)
        assert [a.arg for a in functions[name].args.args] == list(
            inspect.signature(function).parameters
        )
        assert ast.get_docstring(functions[name]) == inspect.getdoc(function)


RIGHT_AND_WRONG = """
from torch import Tensor
from workbench import ops

def block(x: Tensor, w: Tensor) -> Tensor:
    y, h = ops.fused_add_rms_norm(x, x, w)
    return ops.softmax(ops.rms_norm(x=y, w=w) + h)

def wrong(x: Tensor) -> Tensor:
    ops.softmax(x, x)
    ops.silu(x)
    return ops.rope(x, x, x, x, x)
"""


def test_a_type_checker_knows_the_operations(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.pyi").write_text(  # torch's own takes mypy half a minute
        "class Tensor:\n    def __add__(self, other: Tensor) -> Tensor: ...\n"
    )
    (tmp_path / "user.py").write_text(RIGHT_AND_WRONG)
    named = "workbench.api.*,workbench.workload.*"  # by `workbench`
    skipped = f"{named},matplotlib.*,numpy.*,pandas.*,triton.*"
    (tmp_path / "mypy.ini").write_text(
        f"[mypy]\n[mypy-{skipped}]\nfollow_imports = skip\nignore_missing_imports = true\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", "user.py"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False,
        env={"MYPYPATH": f"{ROOT}:{tmp_path}"},
    )  # fmt: skip
    lines = [line.partition(": error: ")[::2] for line in done.stdout.splitlines()]
    assert [(where, text.rpartition("[")[2]) for where, text in lines if text] == [
        ("user.py:10", "call-arg]"),
        ("user.py:11", "attr-defined]"),
        ("user.py:12", "return-value]"),
    ], done.stdout + done.stderr


@dataclass(frozen=True)
class OwnConfig:
    num_warps: int = threads(1, 4, default=2)


def test_a_spec_of_ones_own_becomes_an_operation(h200):
    spec = Spec(
        "test_ops_twice", {"x": Tensor("M*2 N")}, {"y": Tensor("N M", dtype="fp32")},
        lambda x: x, lambda M, N: M, [{"M": 1, "N": 1}], [{"M": 1, "N": 1}],
    )  # fmt: skip

    @spec.impl(OwnConfig)
    def rows(x, *, config):
        return x.new_empty(x.shape[1], len(x) // 2, dtype=torch.float32)

    twice = ops.operation_of(spec)
    with HELD:
        assert twice(torch.empty(6, 5, device="cuda")).shape == (5, 3)
    with pytest.raises(ops.OperationError, match="another name"):
        ops.operation_of(spec)


# Libraries


@pytest.mark.parametrize("name", ["flash", "cudnn"])
def test_a_library_of_attention_is_that_backend_alone(name):
    def enabled():
        cuda = torch.backends.cuda
        return {"flash": cuda.flash_sdp_enabled(), "cudnn": cuda.cudnn_sdp_enabled()}

    before = enabled()
    with attention_backend(name):
        assert enabled() == {n: n == name for n in before}
    assert enabled() == before
