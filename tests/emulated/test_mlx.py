"""MLX's CPU backend as a second reference: its operations compute what our Specs do, and the text
that it would give to Apple's compiler is the one that is emulated here, byte for byte.

Nothing here is timed: MLX's CPU backend is no rival. Where it is not installed these tests say so;
`.ci/run` fails without it.
"""

import os
import re
import struct
from collections import Counter

import pytest
import torch
import upstream_mlx
from hypothesis import given, settings
from hypothesis import strategies as st
from metal_body import IMPLS

from metal_shim.check import cases
from metal_shim.rehearsal import REHEARSED, SameProcess
from metal_shim.signature import metal_text
from workbench import catalog
from workbench.backend.metal.emulated import plan_launches
from workbench.backend.metal.metal import MetalLive
from workbench.backend.protocol import Problem, TimingTask
from workbench.commands.run import new_run
from workbench.device.hardware import UNCOMPILED
from workbench.measurement.candidate import Timed
from workbench.measurement.correctness import PreparedProblem, check, check_outputs
from workbench.measurement.metal_timing import MetalProtocol
from workbench.spec import NoKnobs
from workbench.tuner.space import RecordFactory

try:
    import mlx.core as mx
except ImportError:
    REASON = "mlx is not installed; pip install 'mlx[cpu]', or the extra metal-test"
    pytest.skip(REASON, allow_module_level=True)

from metal_shim.kernel import WORDS
from metal_shim.mlx_backend import (
    MLX_DTYPES,
    MlxCall,
    MlxDriver,
    capture,
    chain,
    dispatch,
    rotation,
    tensor_of,
)
from metal_shim.mlx_backend import array_of as to_mlx
from metal_shim.operations import OPERATIONS, mlx_impl, quantize_inputs

mx.set_default_device(mx.cpu)
FLOATS = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


def to_torch(y, dtype):
    mx.eval(y)
    return tensor_of(y, WORDS[dtype])


# The text


def text_of_mlx(launch, path):
    """The name and the source of the only custom kernel in the export of one launch."""
    call = launch.call

    def traced(*arrays):
        return dispatch(call, launch.grid, launch.group, *arrays)

    mx.export_function(
        str(path), traced, *(mx.zeros(t.shape, MLX_DTYPES[t.dtype]) for t in call.inputs)
    )
    _, _, rest = path.read_bytes().partition(b"CustomKernel")
    (length,) = struct.unpack_from("<Q", rest)
    name = rest[8 : 8 + length]
    (size,) = struct.unpack_from("<Q", rest, 8 + length)
    return name.decode(), rest[16 + length : 16 + length + size].decode()


@pytest.mark.parametrize("impl", IMPLS.values(), ids=IMPLS)
def test_the_text_is_mlx_s_byte_for_byte(impl, tmp_path):
    """At every size to check, the ones below 8 elements among them, in three dtypes."""
    number = 0
    for case in cases(impl.spec):
        if case.impl is impl:
            for launch in plan_launches(impl, case.config, case.sizes, case.dtype):
                number += 1
                path = tmp_path / f"{number}.mlxfn"
                assert text_of_mlx(launch, path) == (launch.call.function, metal_text(launch.call))
    assert number >= len(impl.spec.check)


# The semantics


def attended(q, k, v):
    """MLX's arrays are B H S D, and ours B S H D."""
    by_head = [x.transpose(0, 2, 1, 3) for x in (q, k, v)]
    scale = q.shape[-1] ** -0.5
    result = mx.fast.scaled_dot_product_attention(*by_head, scale=scale)
    return result.transpose(0, 2, 1, 3)


def gated(x):
    gate, up = mx.split(x, 2, axis=-1)
    return gate * mx.sigmoid(gate) * up


OTHERS = {"attention": attended, "swiglu": gated}


# In 16 bits MLX's CPU backend rounds in between here, so some tolerances apart are right. Of
# layer_norm it rounds the mean: up to 1,400 tolerances off, which is no reference.
APART = {"attention": 3, "swiglu": 2, "patch_embed": 2}
TIMED = [
    (name, dtype)
    for name in OPERATIONS
    for dtype in FLOATS
    if name != "layer_norm" or dtype is torch.float32
]


@pytest.mark.parametrize(("name", "dtype"), TIMED, ids=lambda v: FLOATS.get(v, v))
def test_the_version_that_is_timed_computes_what_the_spec_does(name, dtype):
    """By the Spec's own tolerance of the dtype against its float64 reference, as a kernel of
    ours."""
    spec = catalog.spec_of(name)
    impl = mlx_impl(spec)
    for seed, sizes in enumerate(spec.check):
        problem = PreparedProblem.make(spec, sizes, FLOATS[dtype], "cpu", seed)
        checked = check(impl, impl.config(), problem)
        most = 1 if dtype is torch.float32 else APART.get(name, 1)
        assert checked.error <= most, f"{name} at {sizes}: {checked.wrong}"


@pytest.mark.parametrize("dtype", FLOATS, ids=FLOATS.get)
@pytest.mark.parametrize("name", OTHERS)
def test_an_operation_of_mlx_computes_what_the_spec_does(name, dtype):
    """By the Spec's own tolerance of the dtype against its float64 reference."""
    most = 1 if dtype is torch.float32 else APART[name]
    spec = catalog.spec_of(name)
    for seed, sizes in enumerate(spec.check):
        problem = PreparedProblem.make(spec, sizes, FLOATS[dtype], "cpu", seed)
        result = OTHERS[name](*map(to_mlx, problem.inputs))
        verdict = check_outputs([to_torch(result, dtype)], problem)
        assert verdict.error <= most, f"{name} at {sizes}: {verdict.wrong}"


# MLX's own kernels, whole and unmodified, from the headers of its package


@pytest.mark.parametrize("case", upstream_mlx.CLEAN, ids=lambda case: case.function)
def test_a_whole_kernel_of_mlx_is_clean_and_right(case):
    assert upstream_mlx.fault(case, upstream_mlx.include_folder()) is None


def test_the_ragged_product_of_mlx_writes_equal_values_twice():
    """A race, unless the output is declared to take such writes."""
    root = upstream_mlx.include_folder()
    fault = upstream_mlx.fault(upstream_mlx.RAGGED, root)
    assert "race on device memory out_vec[26]" in fault and "result[tm]" in fault
    assert upstream_mlx.fault(upstream_mlx.RAGGED, root, ("out_vec",)) is None


ODD = st.sampled_from([float("nan"), float("inf"), float("-inf"), 0.0, 1.0, -3.0])


@settings(max_examples=40, deadline=None)
@given(st.lists(ODD, min_size=1, max_size=9))
def test_rows_that_are_not_finite_are_nan_in_both(row):
    """Rows with NaN or +inf, or of -inf alone, are NaN; others are finite."""
    spec = catalog.spec_of("softmax")
    ours = spec.reference(torch.tensor([row], dtype=torch.float64))
    theirs = to_torch(mx.softmax(mx.array([row]), axis=-1, precise=True), torch.float32)
    assert torch.equal(ours.isnan(), theirs.isnan())
    assert torch.allclose(ours.float(), theirs, equal_nan=True, atol=1e-6)


def test_rope_is_the_one_that_is_not_interleaved():
    """`traditional=True` pairs neighbours; our Spec pairs the halves of a head."""
    spec = catalog.spec_of("rope")
    sizes = {"S": 19, "Hq": 5, "Hkv": 2, "D": 34}
    q, _, cos, sin, _ = PreparedProblem.make(spec, sizes, "fp32", "cpu").inputs
    position = torch.arange(19, dtype=torch.int32)
    ours, _ = spec.reference(q, q, cos, sin, position)
    x = to_mlx(q).transpose(1, 0, 2)[None]
    for traditional in (False, True):
        options = dict(traditional=traditional, base=10_000.0, scale=1.0, offset=0)
        rotated = mx.fast.rope(x, 34, **options)[0].transpose(1, 0, 2)
        near = torch.allclose(to_torch(rotated, torch.float32), ours, atol=2e-5)
        assert near is not traditional


# Q4_K as MLX's affine format


def affine(w):
    """Return GGUF's Q4_K blocks in MLX's affine format: 4 bits in groups of 32, with the scale d *
    scale_j and the bias -dmin * min_j in fp32, as packed words, scales and biases.

    The layout of a block is that of `block_q4_K` in ggml: d, dmin, 12 bytes of 6-bit scales and
    minima, 128 bytes of nibbles.
    """
    block = w.reshape(w.shape[0], -1, 144)
    d, dmin = (block[..., i : i + 2].contiguous().view(torch.float16).float() for i in (0, 2))
    first, second, third = (block[..., i : i + 4].int() for i in (4, 8, 12))
    scale = torch.cat([first & 63, (third & 15) | (first >> 6 << 4)], -1)
    minimum = torch.cat([second & 63, (third >> 4) | (second >> 6 << 4)], -1)
    pairs = block[..., 16:].int().unflatten(-1, (4, 1, 32))
    nibbles = torch.cat([pairs & 15, pairs >> 4], -2).flatten(1).unflatten(-1, (-1, 8)).long()
    packed = (nibbles << (4 * torch.arange(8))).sum(-1)
    return [mx.array(packed.numpy()).astype(mx.uint32),
            to_mlx((d * scale).flatten(1)), to_mlx((-(dmin * minimum)).flatten(1))]  # fmt: skip


@pytest.mark.parametrize("sizes", catalog.spec_of("q4_k_dequantize").check, ids=str)
def test_q4_k_is_exact_in_mlx_s_affine_format(sizes):
    spec = catalog.spec_of("q4_k_dequantize")
    w, _ = PreparedProblem.make(spec, sizes, "fp32", "cpu").inputs
    expected = spec.reference(w, torch.ones(sizes["N"], dtype=torch.float32))
    result = mx.dequantize(*affine(w), group_size=32, bits=4)
    assert torch.equal(to_torch(result, torch.float32), expected)


@pytest.mark.parametrize("sizes", catalog.spec_of("q4_k_matmul").check, ids=str)
def test_a_quantized_product_of_mlx_computes_the_same_function(sizes):
    spec = catalog.spec_of("q4_k_matmul")
    problem = PreparedProblem.make(spec, sizes, "fp32", "cpu")
    x, w = problem.inputs
    weights = affine(w)
    result = mx.quantized_matmul(to_mlx(x), *weights, transpose=True, group_size=32, bits=4)
    assert check_outputs([to_torch(result, torch.float32)], problem).wrong is None
    bits = 8 * sum(part.nbytes for part in weights) / (sizes["N"] * sizes["K"])
    ours = 8 * w.numel() / (sizes["N"] * sizes["K"])
    assert (bits, ours) == (6.0, 4.5), "a comparison has to state both"


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_the_baseline_of_q4_k_has_the_bits_and_the_dtype_that_users_have(dtype):
    """4 bits, and 2 x 16 for 64 weights. The weights are others than Q4_K's: the check
    adds the difference, without which the result is wrong."""
    spec = catalog.spec_of("q4_k_matmul")
    problem = PreparedProblem.make(spec, {"M": 3, "N": 40, "K": 512}, dtype, "cpu")
    x, *weights = quantize_inputs(problem.inputs)
    assert 8 * sum(part.nbytes for part in weights) == 4.5 * 40 * 512
    assert {part.dtype for part in (x, *weights[1:])} == {MLX_DTYPES[dtype]}
    assert check(mlx_impl(spec), NoKnobs(), problem).wrong is None
    y = OPERATIONS["q4_k_matmul"].run(x, *weights)
    assert y.dtype == MLX_DTYPES[dtype]
    plain = tensor_of(y, dtype).to(problem.inputs[0].dtype)
    assert check_outputs([plain], problem).error > 5


# Samplers: mlx-lm's rule in our words (mlx_lm/sample_utils.py), with temperature 1


def kept_by_top_p(probabilities, p):
    """The tokens that mlx-lm keeps: those that have less than p of all mass above them, which is
    where the sum of the ascending probabilities exceeds 1 - p."""
    ascending = mx.argsort(probabilities)
    below = mx.cumsum(probabilities[ascending])
    kept = mx.where(below > 1 - p, ascending.astype(mx.int32), -1)
    return {int(token) for token in kept.tolist()} - {-1}


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 9999), st.integers(2, 300), st.floats(0.05, 0.95))
def test_top_p_keeps_the_tokens_of_the_spec_s_rule(seed, count, p):
    """A token is dropped when the mass above it is at least p of the total. Logits are distinct."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randperm(count, generator=generator).double() / 40
    mass = torch.softmax(logits, 0)
    order = mass.argsort(descending=True)
    above = mass[order].cumsum(0) - mass[order]
    margin = (above - p).abs().min()
    if margin > 1e-5:  # else fp32 and float64 may round to different sides
        ours = {int(token) for token in order[above < p]}
        assert kept_by_top_p(mx.array(mass.float().numpy()), p) == ours


def test_draws_of_the_spec_and_of_mlx_have_the_same_frequencies():
    """20,000 draws of each from one row: of the same tokens, as often up to chance. Their
    generators differ, so tokens cannot be compared one by one."""
    draws, p = 20_000, 0.8
    logits = torch.tensor([2.0, 1.5, 1.1, 0.8, 0.3, 0.0, -0.4, -1.0, -2.0])
    kept = kept_by_top_p(mx.softmax(to_mlx(logits)), p)
    seeds = torch.arange(draws) * 7919 - 5
    rows, ones = logits.double().repeat(draws, 1), torch.ones(draws, dtype=torch.float64)
    ours = catalog.spec_of("sample_top_p").reference(rows, p * ones, ones, seeds)
    masked = mx.array([x if i in kept else float("-inf") for i, x in enumerate(logits.tolist())])
    theirs = mx.random.categorical(masked, num_samples=draws, key=mx.random.key(3))
    mine = torch.bincount(ours.long(), minlength=9).double()
    other = torch.bincount(torch.tensor(theirs.tolist()), minlength=9).double()
    assert {*mine.nonzero()[:, 0].tolist()} == {*other.nonzero()[:, 0].tolist()} == kept
    squares = ((mine - other) ** 2 / (mine + other).clamp(min=1)).sum()
    assert squares < 40, "for 8 degrees of freedom chance gives more once in 300,000"


# The traps of timing


def softmax_call(rows=64):
    x = mx.random.normal((rows, 1024))
    mx.eval(x)
    return [OPERATIONS["softmax"].run], [[[x]]]


def test_nothing_is_computed_before_its_value_is_asked_for():
    """`mx.synchronize` alone would time an idle device: it waits for what was begun, and a lazy
    operation was not."""
    a = mx.random.normal((512, 512))
    mx.eval(a)
    before = mx.get_active_memory()
    product = a @ a
    mx.synchronize()
    assert mx.get_active_memory() - before < product.nbytes
    mx.eval(product)
    assert mx.get_active_memory() - before >= product.nbytes


def operations_of(array, path):
    """How often each operation stands in the graph that an array is evaluated from."""
    mx.export_to_dot(str(path), array)
    names = re.findall(r'label ="(\w+)", shape=rectangle', path.read_text())
    return Counter(names)


@settings(max_examples=8, deadline=None)
@given(calls=st.integers(1, 30), sets=st.integers(1, 4))
def test_a_chain_holds_every_call_once(calls, sets, tmp_path_factory):
    """Equal calls stay, each behind the one before it: that is what is evaluated and timed."""
    steps, (arrays,) = softmax_call()
    token = chain(steps, [arrays] * sets, calls)
    graph = operations_of(token, tmp_path_factory.mktemp("graph") / "graph.dot")
    assert graph["Softmax"] == calls and graph["Depends"] == calls - 1, graph


def test_a_compiled_function_would_drop_equal_calls(tmp_path):
    """The trap that a chain avoids: two equal softmaxes, of which one is computed."""
    x = mx.random.normal((8, 8))

    def computed(function):
        graph = operations_of(function(x), tmp_path / "graph.dot")
        return sum(count * name.count("Exp") for name, count in graph.items())

    def twice(x):
        return mx.exp(x) + mx.exp(x)

    assert (computed(twice), computed(mx.compile(twice))) == (2, 1)


def test_inputs_in_rotation_have_memory_of_their_own():
    x = mx.zeros((1 << 18,))
    mx.eval(x)
    before = mx.get_active_memory()
    sets = rotation([[x]], 10 * x.nbytes)
    assert len(sets) == 10 and mx.get_active_memory() - before >= 9 * x.nbytes
    assert len(rotation([[x]], 0)) == 1


def test_a_call_counts_its_dispatches_and_takes_time():
    call = MlxCall(*softmax_call())
    assert call.dispatches == 1 and call.seconds(3) > 0


# Everything of a measurement but the kernel: MLX's CPU backend has no custom ones


@pytest.fixture
def stand_in(monkeypatch):
    """A Metal device whose kernels are MLX's own softmax on the CPU."""

    def kernel(source):
        def launch(inputs, output_shapes, output_dtypes, **how):
            if source.name == "empty":
                return [inputs[0][:1] + 0]
            assert source.name.startswith("softmax") and how["grid"][0] >= how["threadgroup"][0]
            return [mx.softmax(inputs[0].astype(mx.float32), axis=-1).astype(output_dtypes[0])]

        return launch

    monkeypatch.setattr("metal_shim.mlx_backend.mlx_kernel", kernel)
    monkeypatch.setattr("metal_shim.kernel.metal_device", lambda: True)


def test_a_launch_is_prepared_once_and_called_on_inputs_in_rotation(stand_in, tmp_path):
    spec, sizes = catalog.spec_of("softmax"), {"M": 16, "N": 512}
    impl = catalog.impl_of(spec, "simd_rows")
    config = impl.default(UNCOMPILED["m2max"].limits, "fp16", sizes)
    problem = PreparedProblem.make(spec, sizes, "fp16", "cpu")
    size = problem.inputs[0].nbytes
    call = MlxDriver().prepare(impl, config, problem.inputs, cold_bytes=3 * size)
    assert len(call.sets) == 3 and call.dispatches == 1
    token = chain(call.steps, call.sets, 7)
    assert operations_of(token, tmp_path / "graph.dot")["Softmax"] == 7
    (first,) = call.steps[0](*call.sets[0][0])
    (other,) = call.steps[0](*call.sets[2][0])
    assert mx.array_equal(first, other)
    assert check_outputs([to_torch(first, torch.float16)], problem).wrong is None
    assert impl(*problem.inputs, config=config).shape == (16, 512)  # nothing records any more


def test_a_kernel_is_checked_and_timed_beside_mlx_from_end_to_end(stand_in):
    """With MLX's own clock. Times on a CPU that others use mean nothing, so none is refused."""
    rules = MetalProtocol(chain_s=1e-3, least_calls=4, warm_most=3, window_s=2e-3, rounds=2,
                          most_rounds=2, cold_bytes=1 << 20, least_share=0, bound=0)  # fmt: skip
    backend = MetalLive(None, mac=REHEARSED, driver=MlxDriver(), process=SameProcess(), rules=rules)
    spec, sizes = catalog.spec_of("softmax"), {"M": 64, "N": 4096}
    problem = Problem("softmax", spec, sizes, "fp32")
    run = new_run("measure", "x", "x", backend, [problem])
    factory = RecordFactory(run, problem, backend.protocol)
    own, library = catalog.impl_of(spec, "simd_rows"), mlx_impl(spec)
    default = own.default(backend.device.limits, "fp32", sizes)
    candidates = [factory.candidate(i, c, False) for i, c in ((own, default), (library, NoKnobs()))]
    results = backend.measure_interleaved([TimingTask(problem, c) for c in candidates])
    for result, candidate in zip(results, candidates, strict=True):
        assert isinstance(result.result, Timed), result
        record = factory.outcome(candidate, result.result, "final", result.compilation)
        assert record.timing.regime == "cold" and record.timing.method == "eval"
        assert len(record.timing.samples_s) == sum(record.timing.window_sizes)
    assert run.environment.settings["MLX_ENABLE_TF32"] == os.environ["MLX_ENABLE_TF32"] == "0"


def test_a_capture_without_a_metal_device_is_refused():
    """`start_capture` itself returns in silence there."""
    with pytest.raises(RuntimeError, match="no Metal device"):
        capture("x.gputrace", lambda: None)
