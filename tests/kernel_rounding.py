"""What may be lost where a kernel's arithmetic is fp32, as it is in Triton's interpreter: one
rounding of each output to its dtype, and what fp32 itself loses.

A Spec's tolerances are for every GPU, whose matrix units round what they multiply, and some keep
13 bits of a sum. The interpreter multiplies and adds in fp32 whatever the inputs are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from workbench.measurement.correctness import PreparedProblem
from workbench.spec import TOLERANCE, Impl, Tolerance

# Half a step of each, as the last conversion rounds to the nearest.
STEP = {"fp16": 2.0**-11, "bf16": 2.0**-8}

# What fp32 loses in kernels whose Spec has no line for fp32 or one that is wider than fp32.
FP32: Mapping[str, Tolerance] = {
    # sums of K products, as matmul's
    "fp8_matmul": Tolerance(relative=1e-5, rms_share=5e-5),
    "fp8_block_matmul": Tolerance(relative=1e-5, rms_share=5e-5),
    # 66 tokens, of which each may double what was lost before: 64 * 2^-24
    "wkv6": Tolerance(relative=1e-5, rms_share=5e-5),
    "wkv7": Tolerance(relative=1e-5, rms_share=5e-5),
}

# Impls that round before they are done, in the interpreter too, and the dtypes in which it shows:
# there the Spec's own tolerance, whose reason it is, stands.
WEIGHTS = "fp16 bf16"  # of attention, before they meet v, and their gradients; unpacked ones
UPDATE = "fp16 bf16"  # u = x A^T
HALVES = "fp16"  # weights are unpacked as fp16 where x is fp16, and as fp32 elsewhere
ROUNDED_BETWEEN: Mapping[str, str] = {
    "attention.tiles": WEIGHTS,
    "attention.overlapped": WEIGHTS,
    "attention_backward.two_passes": WEIGHTS,
    "attention_backward.copied": WEIGHTS,
    "causal_attention.tiles": WEIGHTS,
    "causal_attention.overlapped": WEIGHTS,
    "causal_attention_backward.two_passes": WEIGHTS,
    "causal_attention_backward.copied": WEIGHTS,
    "decode_attention.splits": WEIGHTS,
    "lora.tiles": UPDATE,
    "lora.persistent": UPDATE,
    "q4_k_matmul.tiles": HALVES,
    "q4_k_matmul.ordered": HALVES,
    "q4_k_matmul.slices": HALVES,
    "q4_k_matmul.unpack_first": WEIGHTS,
}
# Impls that write half of a sum to the output, read it back and write the whole: each is rounded,
# and the half may have several times the rms of the whole.
ROUNDED_TWICE = ("wkv6.chunked", "wkv7.chunked")


def narrowed(impl: Impl, problem: PreparedProblem) -> PreparedProblem:
    """The same problem, with the tolerance of one rounding wherever that is the narrower one."""
    spec = problem.spec
    if problem.dtype in ROUNDED_BETWEEN.get(impl.title, "").split():
        return problem
    fp32 = FP32.get(spec.name) or spec.tolerance.get("fp32", TOLERANCE["fp32"])
    tolerance = {
        dtype: least(given, rounded(impl, STEP.get(dtype, 0.0), fp32))
        for dtype, given in {**spec.tolerance, "fp32": fp32}.items()
    }
    return replace(problem, spec=replace(spec, tolerance=tolerance, fp32_outputs={}))


def rounded(impl: Impl, step: float, fp32: Tolerance) -> Tolerance:
    """What fp32 loses and what a step of the output does."""
    if impl.title in ROUNDED_TWICE:
        return Tolerance(2 * step + fp32.relative, 4 * step + fp32.rms_share)
    return Tolerance(step + fp32.relative, fp32.rms_share)


def least(one: Tolerance, other: Tolerance) -> Tolerance:
    """The narrower of two in both respects, with the first one's bound of all errors together."""
    return Tolerance(
        min(one.relative, other.relative), min(one.rms_share, other.rms_share), one.rms
    )
