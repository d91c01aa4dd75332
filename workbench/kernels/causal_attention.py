"""Causal attention: o = softmax(q k^T / sqrt(D)) v for each head, query i over keys 0 to i.

G query heads share one head of k and v. It is half of what the kernel without the mask does, as
long as no block above the diagonal is touched: block_m queries from m0 on take whole blocks of
keys up to m0 without a mask, then those that the diagonal crosses. What limits it is the same, the
matrix unit and with it the exponentials. But the last queries have S / block_m times the
work of the first, so the long ones come first and the short ones fill the gaps at the end.

A NaN in a key makes NaN of its heads' queries from its own position on; earlier ones, and other
heads and sequences, do not see it.
"""

from dataclasses import dataclass, replace

from workbench.dsl.gluon import UNCHECKED
from workbench.kernels import attention as unmasked
from workbench.spec import AUTO, Spec, Tensor, Tolerance, among, stages, value_or


def reference(q, k, v):
    return unmasked.reference(q, k, v, causal=True)


causal_attention = Spec(
    name="causal_attention",
    inputs={"q": Tensor("B S Hkv*G D"), "k": Tensor("B S Hkv D"), "v": Tensor("B S Hkv D")},
    outputs={"o": Tensor("B S Hkv*G D")},
    reference=reference,
    flops=lambda B, S, Hkv, G, D: 2 * B * Hkv * G * S * (S + 1) * D,
    check=[
        {"B": 1, "S": 1, "Hkv": 1, "G": 1, "D": 64},
        {"B": 1, "S": 141, "Hkv": 1, "G": 2, "D": 72},
        {"B": 1, "S": 96, "Hkv": 2, "G": 1, "D": 96},
        {"B": 1, "S": 65, "Hkv": 1, "G": 1, "D": 128},
        {"B": 2, "S": 128, "Hkv": 1, "G": 1, "D": 64},
        {"B": 2, "S": 33, "Hkv": 1, "G": 1, "D": 64},
        {"B": 1, "S": 130, "Hkv": 1, "G": 2, "D": 192},
        {"B": 1, "S": 66, "Hkv": 1, "G": 1, "D": 256},
    ],
    bench=[
        {"B": 2, "S": 8192, "Hkv": 16, "G": 1, "D": 128},
        {"B": 2, "S": 8192, "Hkv": 16, "G": 1, "D": 64},
        {"B": 8, "S": 2048, "Hkv": 16, "G": 1, "D": 128},
        {"B": 2, "S": 8192, "Hkv": 8, "G": 4, "D": 128},
    ],
    extents=unmasked.attention.extents,
    refusable=unmasked.attention.refusable,
    # The weights are rounded before they meet v, each by up to 2^-12 (fp16) or 2^-9 (bf16) of
    # itself. For the first queries that is of a few values of size 1, which may cancel, while all
    # outputs together have an rms of 0.05 at S = 8192: bf16 was off by 0.053 of it there, on a CPU.
    # All errors together are those of two roundings, of the weights and of the output: 0.0003 and
    # 0.0024 of the rms; twice that and more is allowed.
    tolerance={
        "fp32": Tolerance(relative=1e-5, rms_share=1e-4, rms=1e-4),
        "fp16": Tolerance(relative=1e-3, rms_share=1e-2, rms=1e-3),
        "bf16": Tolerance(relative=8e-3, rms_share=1e-1, rms=5e-3),
    },
)


@dataclass(frozen=True)
class Tiles(unmasked.Tiles):
    group: int = among(1, 4, 16, default=4)  # heads visited together


@dataclass(frozen=True)
class Overlapped(unmasked.Overlapped):
    num_stages: int = stages(2, 3, default=AUTO)  # by the width of a head
    group: int = among(4, 16, default=4)  # heads visited together


@dataclass(frozen=True)
class PingPong(unmasked.PingPong):
    group: int = among(4, 8, 16, default=8)  # heads visited together


def size_pointed(config, limits, *, itemsize, D, **axes):
    """Return the config with its block of keys chosen by the width of a head. With the mask 64 keys
    of 256 columns spill 32 bytes a thread on sm_90, 32 keys nothing."""
    wide = itemsize == 2 and D > 128
    masked = replace(config, block_n=value_or(config.block_n, 32)) if wide else config
    return unmasked.size_pointed(masked, limits, itemsize=itemsize, D=D, **axes)


def size_keys(config, limits, *, itemsize, D, **axes):
    """Return the config with its block of keys and its stages chosen by the width of a head.

    The blocks that the diagonal crosses are written out, four of 32 keys: of 256 columns Triton 3.9
    spills 32 bytes a thread there, with two of 64 keys nothing. Their shared memory has room for
    two stages."""
    keys = value_or(config.block_n, 64 if D > 128 else AUTO)
    depth = value_or(config.num_stages, 2 if D > 128 else 3)
    config = replace(config, block_n=keys, num_stages=depth)
    return unmasked.size_keys(config, limits, itemsize=itemsize, D=D, **axes)


def work(config, limits, *, itemsize, S, **sizes):
    steps = -(-(S + config.block_m) // (2 * config.block_n))  # of a tile in the middle
    whole = unmasked.work(config, limits, itemsize=itemsize, S=S, T=S, **sizes)
    return replace(whole, steps=steps, band=config.group)


def ping_pong_work(config, limits, *, itemsize, S, **sizes):
    whole = unmasked.ping_pong_work(config, limits, itemsize=itemsize, S=S, T=S, **sizes)
    steps = -(-(S + unmasked.TILE_ROWS) // (2 * config.block_n))
    return replace(whole, steps=steps, band=config.group)


@causal_attention.impl(
    Tiles,
    resolve=size_pointed,
    refuse=unmasked.refuse_tiles,
    work=work,
    defaults={
        "fp32": Tiles(64, 16, 8, 2),  # on the vector units
        "fp32:sm_90": Tiles(AUTO, AUTO, 8, 3),
        "sm_80": Tiles(128, 64, 8, 2),
        "sm_89 sm_120": Tiles(128, 32, 8, 2),
        "sm_100": Tiles(128, 64, 8, 3),
        # one stage: of two, Triton 3.6 cannot make code for the targets with buffer loads
        "gfx90a gfx942 gfx950": Tiles(128, 64, 4, 1),
        "gfx1100": Tiles(64, 16, 8, 1),
    },
)
def tiles(q, k, v, *, config, lse=False):
    """One program for block_m queries of a head, pointers into k and v: takes any strides."""
    return unmasked.launch_tiles(q, k, v, config, lse, causal=True)


@causal_attention.impl(
    Overlapped,
    resolve=size_keys,
    refuse=unmasked.refuse_overlapped,
    work=work,
    defaults={"fp32": Overlapped(32, 32, 8, 2), "fp32:sm_90": Overlapped(64, 32, 4, 2)},
)
def overlapped(q, k, v, *, config, lse=False):
    """A block's weights wait one trip for their product with v, which then overlaps the
    exponentials of the next block."""
    return unmasked.launch_overlapped(q, k, v, config, lse, causal=True)


@causal_attention.impl(
    PingPong,
    resolve=unmasked.size_blocks,
    refuse=unmasked.refuse_ping_pong,
    work=ping_pong_work,
    unchecked_reason=UNCHECKED,
)
def ping_pong(q, k, v, *, config, lse=False):
    """Two warp groups take turns: one multiplies while the other takes exponentials. Persistent
    programs, in Gluon."""
    return unmasked.launch_ping_pong(q, k, v, config, lse, causal=True)


unmasked.add_libraries(causal_attention, causal=True)
