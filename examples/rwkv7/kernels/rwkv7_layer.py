"""A whole RWKV-7 layer: the parts that `rwkv7_attention_linear`, `wkv7`, `rwkv7_attention_output`
and `rwkv7_ffn` are, one behind the other, so that their times can be set against its time.

At H = 40 heads of 64 and P = 32 it is a layer of the model with 2.9 billion parameters, of which 32
make the model: 4 matrices of 2560 x 2560, two of 2560 x 10240 and the narrow ones, 176 MB in bf16.
What the parts leave out is left out here, too.
"""

import rwkv7_attention_linear as before
import rwkv7_attention_output as behind
import rwkv7_ffn as ffn

from workbench.kernels import token_shift, wkv6, wkv7
from workbench.spec import Spec, Tensor, Tolerance

N = before.N
LINEAR, HEADS = 7, 10  # of `vectors`: where those of the output, and of the feed-forward begin


def apart(vectors, mix, square):
    """What belongs to attention_linear, to attention_output, and to the feed-forward part."""
    heads = vectors[LINEAR:HEADS].unflatten(1, (-1, N))
    return (
        (vectors[:LINEAR], mix[:6], square[:3]),
        (heads, square[3]),
        (vectors[HEADS:], mix[6:]),
    )


def reference(x, last, first, state, vectors, mix, square, down, up, key, value):
    """The meaning, at whatever float dtype comes in."""
    linear, output, fed = apart(vectors, mix, square)
    *inputs, g = before.reference(x, last[0], first, *linear, down, up)
    y, after = wkv7.reference(*inputs, state.to(x.dtype))
    r, _, k, v, _, _ = inputs
    flat = (t.reshape(-1, *y.shape[2:]) for t in (y, r, k, v, g.view(y.shape)))
    x = behind.reference(*flat, x.reshape(-1, x.shape[-1]), *output).view(x.shape)
    return ffn.reference(x, last[1], *fed, key, value), after.to(state.dtype)


rwkv7_layer = Spec(
    name="rwkv7_layer",
    inputs={
        "x": Tensor(before.WIDE, make=before.normals),
        "last": Tensor("2 B H*64", make=before.normals),
        "first": Tensor(before.WIDE, make=before.normals),
        "state": Tensor("B H 64 64", dtype="fp32", make=wkv7.normal),
        "vectors": Tensor("12 H*64", make=before.values_near_one),
        "mix": Tensor("7 H*64", make=token_shift.fractions),
        "square": Tensor("4 H*64 H*64", make=before.weights),
        "down": Tensor("18*P H*64", make=before.weights),
        "up": Tensor("18*P H*64", make=before.ups),
        "key": Tensor("4*H*64 H*64", make=before.weights),
        "value": Tensor("H*64 4*H*64", make=before.weights),
    },
    outputs={"out": Tensor(before.WIDE), "after": Tensor("B H 64 64", dtype="fp32")},
    reference=reference,
    flops=lambda B, T, H, P: (
        before.rwkv7_attention_linear.flops(B=B, T=T, H=H, P=P)
        + wkv7.wkv7.flops(B=B, T=T, H=H, N=N)
        + behind.rwkv7_attention_output.flops(M=B * T, H=H)
        + ffn.rwkv7_ffn.flops(B=B, T=T, H=H)
    ),
    check=[{"B": 1, "T": 3, "H": 1, "P": 1}],
    bench=[
        {"B": 1, "T": 1024, "H": 40, "P": 32},
        {"B": 1, "T": 1, "H": 40, "P": 32},
        {"B": 64, "T": 1, "H": 40, "P": 32},
    ],
    # The state is an fp32 tensor made of rounded products whatever the dtype, so that the line for
    # fp32 is as wide as that for bf16. In bf16 some ten roundings lie between x and the results.
    tolerance={
        "fp32": Tolerance(relative=2e-2, rms_share=1e-1),
        "fp16": Tolerance(relative=2e-2, rms_share=4e-2),
        "bf16": Tolerance(relative=2e-2, rms_share=1e-1),
    },
)


def whole(recur, x, last, first, state, vectors, mix, square, down, up, key, value):
    """The layer, with this recurrence."""
    linear, output, fed = apart(vectors, mix, square)
    some = before.Warps()
    *inputs, g = before.parts(x, last[0], first, *linear, down, up, config=some)
    y, after = recur(*inputs, state)
    r, _, k, v, _, _ = inputs
    flat = (t.view(-1, *y.shape[2:]) for t in (y, r, k, v, g.view(y.shape)))
    out = behind.parts(*flat, x.reshape(-1, x.shape[-1]), *output, config=some).view(x.shape)
    return ffn.parts(out, last[1], *fed, key, value, config=some), after


def size_values(config, limits, *, itemsize, B, T, H, P):
    return wkv6.size_values(config, limits, itemsize=itemsize, B=B, T=T, H=H, N=N)


def size_stages(config, limits, *, itemsize, B, T, H, P):
    return wkv7.size_stages(config, limits, itemsize=itemsize, B=B, T=T, H=H, N=N)


def refuse_chunked(config, limits, *, itemsize, B, T, H, P):
    return before.refuse_parts(
        before.Warps(), limits, itemsize=itemsize, H=H
    ) or wkv7.refuse_chunked(config, limits, itemsize=itemsize, B=B, T=T, H=H, N=N)


def refuse_sequential(config, limits, *, itemsize, B, T, H, P):
    return before.refuse_parts(
        before.Warps(), limits, itemsize=itemsize, H=H
    ) or wkv6.refuse_sequential(config, limits, itemsize=itemsize, B=B, T=T, H=H, N=N)


@rwkv7_layer.impl(
    wkv6.Chunked,
    resolve=size_values,
    refuse=refuse_chunked,
    work=before.untold,
    defaults=wkv7.chunked.defaults,
)
def chunked(x, *more, config):
    """With `wkv7.chunked`, for many tokens. The config is that of the recurrence."""
    return whole(lambda *inputs: wkv7.chunked(*inputs, config=config), x, *more)


@rwkv7_layer.impl(
    wkv7.Sequential, resolve=size_stages, refuse=refuse_sequential, work=before.untold
)
def sequential(x, *more, config):
    """With `wkv7.sequential`, for one token. The config is that of the recurrence."""
    return whole(lambda *inputs: wkv7.sequential(*inputs, config=config), x, *more)
