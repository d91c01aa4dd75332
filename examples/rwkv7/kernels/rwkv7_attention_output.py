"""The part of an RWKV-7 layer behind its recurrence: group norm, bonus and gate, which are one
kernel, and the product with a C x C matrix that leads back to the residual stream.

The kernel is the workbench's, product and sum torch's, in one call.
"""

import torch
from rwkv7_attention_linear import N, Warps, normals, untold, values_near_one, weights

from workbench.kernels import group_norm
from workbench.spec import Spec, Tensor, Tolerance


def reference(y, r, k, v, g, x, vectors, square):
    """The meaning, at whatever float dtype comes in."""
    heads = group_norm.reference(y, r, k, v, g, *vectors)
    return x + heads.reshape(x.shape) @ square.T


HEADS = Tensor("M H 64", make=normals)
rwkv7_attention_output = Spec(
    name="rwkv7_attention_output",
    inputs={
        **{name: HEADS for name in ("y", "r", "k", "v", "g")},
        "x": Tensor("M H*64", make=normals),
        "vectors": Tensor("3 H 64", make=values_near_one),  # weight, bias, bonus
        "square": Tensor("H*64 H*64", make=weights),
    },
    outputs={"out": Tensor("M H*64")},
    reference=reference,
    flops=lambda M, H: 2 * M * (N * H) ** 2 + 15 * M * N * H,
    check=[{"M": 1, "H": 1}, {"M": 7, "H": 1}, {"M": 3, "H": 3}],
    bench=[{"M": 1024, "H": 40}, {"M": 1, "H": 40}, {"M": 64, "H": 40}],
    # the heads are rounded before the product, whose sums inherit that
    tolerance={
        "fp32": Tolerance(relative=1e-4, rms_share=1e-4),
        "fp16": Tolerance(relative=2e-3, rms_share=5e-3),
        "bf16": Tolerance(relative=1e-2, rms_share=4e-2),
    },
)


@rwkv7_attention_output.impl(Warps, work=untold)
def parts(y, r, k, v, g, x, vectors, square, *, config):
    """The heads in one launch, then the product that adds to x."""
    each = group_norm.Heads(block_h=8 * config.num_warps, num_warps=config.num_warps)
    heads = group_norm.heads(y, r, k, v, g, *vectors, config=each)
    return torch.addmm(x, heads.view(x.shape), square.T)
