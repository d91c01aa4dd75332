"""MLX's CPU backend as a second reference: its operations compute what our Specs do, and the text
that it would give to Apple's compiler is the one that is emulated here, byte for byte.

Nothing here is timed: MLX's CPU backend is no rival. Where it is not installed these tests say so;
continuous integration installs the extra `metal-test`, and there its absence fails.
"""

import os
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from metal_body import IMPLS

from metal_shim.check import cases
from metal_shim.signature import metal_text
from workbench import catalog
from workbench.backend.emulated import planned
from workbench.measurement.correctness import PreparedProblem, check_outputs

try:
    import mlx.core as mx
except ImportError:
    REASON = "mlx is not installed; pip install 'mlx[cpu]', or the extra metal-test"
    if os.environ.get("CI"):
        raise
    pytest.skip(REASON, allow_module_level=True)

from metal_shim.mlx_backend import _DTYPES, _array, _kernel, _tensor

mx.set_default_device(mx.cpu)
FLOATS = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


def to_mlx(x):
    return _array(x, FLOATS.get(x.dtype, str(x.dtype).removeprefix("torch.")))


def to_torch(y, dtype):
    mx.eval(y)
    return _tensor(y, FLOATS[dtype])


# The text


def text_of_mlx(launch, path):
    """The name and the source of the only custom kernel in the export of one launch."""
    call = launch.call
    template = [(n, _DTYPES[v] if isinstance(v, str) else v) for n, v in call.template.items()]

    def traced(*arrays):
        return _kernel(call.source)(
            inputs=list(arrays),
            template=template,
            grid=launch.grid,
            threadgroup=launch.group,
            output_shapes=[t.shape for t in call.outputs],
            output_dtypes=[_DTYPES[t.dtype] for t in call.outputs],
        )

    mx.export_function(
        str(path), traced, *(mx.zeros(t.shape, _DTYPES[t.dtype]) for t in call.inputs)
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
            for launch in planned(impl, case.config, case.sizes, case.dtype):
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


OPERATIONS = {
    "softmax": lambda x: mx.softmax(x, axis=-1, precise=True),
    "rms_norm": lambda x, w: mx.fast.rms_norm(x, w, 1e-6),
    "layer_norm": lambda x, w, b: mx.fast.layer_norm(x, w, b, 1e-5),
    "matmul": lambda a, b: a @ b,
    "matvec": lambda x, w: x @ w.T,
    "attention": attended,
    "swiglu": gated,
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_of_mlx_computes_what_the_spec_does(name):
    """In fp32, by the Spec's own tolerance against its float64 reference."""
    spec = catalog.spec_of(name)
    for seed, sizes in enumerate(spec.check):
        problem = PreparedProblem.of(spec, sizes, "fp32", "cpu", seed)
        result = OPERATIONS[name](*map(to_mlx, problem.inputs))
        verdict = check_outputs([to_torch(result, torch.float32)], problem)
        assert verdict.wrong is None, f"{name} at {sizes}: {verdict.wrong}"


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
    q, _, cos, sin, _ = PreparedProblem.of(spec, sizes, "fp32", "cpu").inputs
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
    """GGUF's Q4_K blocks as MLX takes them: 4 bits in groups of 32, with the scale d * scale_j and
    the bias -dmin * min_j in fp32. Returns packed words, scales and biases."""
    block = w.reshape(w.shape[0], -1, 144)
    d, dmin = (block[..., i : i + 2].contiguous().view(torch.float16).float() for i in (0, 2))
    first, second, third = (block[..., i : i + 4].int() for i in (4, 8, 12))
    scale = torch.cat([first & 63, (third & 15) | (first >> 6 << 4)], -1)
    minimum = torch.cat([second & 63, (third >> 4) | (second >> 6 << 4)], -1)
    pairs = block[..., 16:].int().unflatten(-1, (4, 1, 32))
    q = torch.cat([pairs & 15, pairs >> 4], -2).flatten(1)
    nibbles = q.unflatten(-1, (-1, 8)).long()
    words = (nibbles << (4 * torch.arange(8))).sum(-1)
    packed = mx.array(words.numpy()).astype(mx.uint32)
    return packed, to_mlx((d * scale).flatten(1)), to_mlx((-(dmin * minimum)).flatten(1))


@pytest.mark.parametrize("sizes", catalog.spec_of("q4_k_dequantize").check, ids=str)
def test_q4_k_is_exact_in_mlx_s_affine_format(sizes):
    spec = catalog.spec_of("q4_k_dequantize")
    w, _ = PreparedProblem.of(spec, sizes, "fp32", "cpu").inputs
    expected = spec.reference(w, torch.ones(sizes["N"], dtype=torch.float32))
    result = mx.dequantize(*affine(w), group_size=32, bits=4)
    assert torch.equal(to_torch(result, torch.float32), expected)


@pytest.mark.parametrize("sizes", catalog.spec_of("q4_k_matmul").check, ids=str)
def test_a_quantized_product_of_mlx_computes_the_same_function(sizes):
    spec = catalog.spec_of("q4_k_matmul")
    problem = PreparedProblem.of(spec, sizes, "fp32", "cpu")
    x, w = problem.inputs
    weights = affine(w)
    result = mx.quantized_matmul(to_mlx(x), *weights, transpose=True, group_size=32, bits=4)
    assert check_outputs([to_torch(result, torch.float32)], problem).wrong is None
    bits = 8 * sum(part.nbytes for part in weights) / (sizes["N"] * sizes["K"])
    ours = 8 * w.numel() / (sizes["N"] * sizes["K"])
    assert (bits, ours) == (6.0, 4.5), "a comparison has to state both"


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
