"""The feed-forward part of an RWKV-7 layer, which RWKV calls channel mixing: layer norm, token
shift, a product to 4 C channels, squared ReLU, and a product back to the residual stream.

Norm, shift and squared ReLU are the workbench's kernels, products and the last sum torch's. Left
out: the copy of the last token that the next call shifts in. Channels at which the squared ReLU is
zero are multiplied like all others.
"""

import torch
from rwkv7_attention_linear import (
    WIDE,
    N,
    Warps,
    normalize,
    normals,
    refuse_parts,
    shift_tokens,
    untold,
    values_near_one,
    weights,
)
from torch.nn.functional import linear

from workbench.kernels import channel_mix, layer_norm, token_shift
from workbench.spec import Spec, Tensor, Tolerance


def reference(x, last, vectors, mix, key, value):
    """The meaning, at whatever float dtype comes in."""
    mixed = token_shift.reference(layer_norm.reference(x, *vectors), last, mix)[0]
    return x + channel_mix.reference(mixed @ key.T) @ value.T


rwkv7_ffn = Spec(
    name="rwkv7_ffn",
    inputs={
        "x": Tensor(WIDE, make=normals),
        "last": Tensor("B H*64", make=normals),
        "vectors": Tensor("2 H*64", make=values_near_one),
        "mix": Tensor("1 H*64", make=token_shift.fractions),
        "key": Tensor("4*H*64 H*64", make=weights),
        "value": Tensor("H*64 4*H*64", make=weights),
    },
    outputs={"out": Tensor(WIDE)},
    reference=reference,
    # and per channel: 7 of the norm, 3 of the shift, 8 of the squared ReLU, one of the sum
    flops=lambda B, T, H: B * T * (16 * (N * H) ** 2 + 19 * N * H),
    check=[{"B": 1, "T": 1, "H": 1}, {"B": 2, "T": 5, "H": 1}, {"B": 1, "T": 3, "H": 2}],
    bench=[
        {"B": 1, "T": 1024, "H": 40},
        {"B": 1, "T": 1, "H": 40},
        {"B": 64, "T": 1, "H": 40},
    ],
    # each of five calls in a row rounds what it writes, and the square doubles what it is given
    tolerance={
        "fp32": Tolerance(relative=1e-4, rms_share=1e-4),
        "fp16": Tolerance(relative=2e-3, rms_share=1e-2),
        "bf16": Tolerance(relative=1e-2, rms_share=6e-2),
    },
)


@rwkv7_ffn.impl(Warps, refuse=refuse_parts, work=untold)
def parts(x, last, vectors, mix, key, value, *, config):
    """Norm, shift, product, squared ReLU, and the product that adds to x: a call each."""
    B, T, C = x.shape
    mixed = shift_tokens(normalize(x, *vectors, config), last, mix, config)[0]
    tiles = channel_mix.Tiles(block_m=1, block_f=256 * config.num_warps, num_warps=config.num_warps)
    k = channel_mix.tiles(linear(mixed.view(B * T, C), key), config=tiles)
    return torch.addmm(x.reshape(B * T, C), k, value.T).view(B, T, C)
