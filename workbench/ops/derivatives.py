"""Derivatives of operations: what a forward pass keeps, and the gradients of its inputs.

A gradient is computed by a kernel of the workbench where one fits, through its operator, and by
operations of torch otherwise.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from workbench.spec import Tensor

Tensors = Sequence[torch.Tensor]
Gradients = Sequence[torch.Tensor | None]

ops: Any = torch.ops.workbench


@dataclass(frozen=True)
class Derivative:
    """The backward of one operation.

    `keep(inputs, outputs)` returns the tensors that the backward needs. `formula(needed, kept,
    gradients)` returns a gradient for each input, or None where it needs none; a gradient of an
    output is None where nothing depends on it, but not all of them are. `constant` names inputs
    that have no gradient. `extras` are further outputs that the backward needs: the launchers
    write them where the keyword of that name is True, only where a gradient is to be prepared.
    """

    keep: Callable[[Tensors, Tensors], Tensors]
    formula: Callable[[Sequence[bool], Tensors, Gradients], Gradients]
    constant: tuple[str, ...] = ()
    extras: Mapping[str, Tensor] = field(default_factory=dict)


DERIVATIVES: dict[str, Derivative] = {}


def derivative(
    keep: Callable[[Tensors, Tensors], Tensors], **options: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator of the formula of the operation that the function is named after;
    `options` are the other fields of its Derivative."""

    def add(formula: Callable[..., Any]) -> Callable[..., Any]:
        DERIVATIVES[formula.__name__] = Derivative(keep, formula, **options)
        return formula

    return add


def keep_inputs(inputs: Tensors, outputs: Tensors) -> Tensors:
    """Return the inputs: all that most formulas need."""
    return inputs


def widen(x: torch.Tensor) -> torch.Tensor:
    """Return 16-bit floats as fp32, in which the kernels compute; others as they are."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


@derivative(lambda inputs, outputs: outputs)
def softmax(needed: Sequence[bool], kept: Tensors, gradients: Gradients) -> Gradients:
    """Return dx = y (g - sum(g y)), by torch's own kernel."""
    (y,), (g,) = kept, gradients
    return (torch.ops.aten._softmax_backward_data(g, y, -1, y.dtype),)


# Norms


@derivative(keep_inputs)
def rms_norm(needed: Sequence[bool], kept: Tensors, gradients: Gradients) -> Gradients:
    """Return dx and dw of the kernel `rms_norm_backward`."""
    dx, dw = ops.rms_norm_backward(*kept, gradients[0])
    return dx, dw


@derivative(keep_inputs)
def layer_norm(needed: Sequence[bool], kept: Tensors, gradients: Gradients) -> Gradients:
    """Return dx, dw and db of the kernel `layer_norm_backward`."""
    x, w, _ = kept
    dx, dw, db = ops.layer_norm_backward(x, w, gradients[0])
    return dx, dw, db


@derivative(lambda inputs, outputs: (outputs[1], inputs[2]))
def fused_add_rms_norm(needed: Sequence[bool], kept: Tensors, gradients: Gradients) -> Gradients:
    """Return the gradient of the sum h = x + r, which is that of x and of r, and dw."""
    (h, w), (g, g_h) = kept, gradients
    if g is None:
        return g_h, g_h, None
    dh, dw = ops.rms_norm_backward(h, w, g)
    if g_h is not None:
        dh = dh + g_h
    return dh, dh, dw


@derivative(keep_inputs)
def group_norm(needed: Sequence[bool], kept: Tensors, gradients: Gradients) -> Gradients:
    """Return the gradients of y = (z weight + bias + s v) g, with z the normalised x and s the sum
    of r k bonus over a head."""
    from workbench.kernels.group_norm import EPS

    x, r, k, v, gate, weight, bias, bonus = map(widen, kept)
    assert gradients[0] is not None  # the only output
    dy = widen(gradients[0])
    centred = x - x.mean(-1, keepdim=True)
    scale = torch.rsqrt(centred.square().mean(-1, keepdim=True) + EPS)
    z, s = centred * scale, (r * k * bonus).sum(-1, keepdim=True)
    dt = dy * gate
    ds = (dt * v).sum(-1, keepdim=True)
    dz = dt * weight
    dx = scale * (dz - dz.mean(-1, keepdim=True) - z * (dz * z).mean(-1, keepdim=True))
    created = (
        *(dx, ds * k * bonus, ds * r * bonus, dt * s, dy * (z * weight + bias + s * v)),
        *((dt * z).sum(0), dt.sum(0), (ds * r * k).sum(0)),
    )
    return tuple(d.to(x.dtype) for d, x in zip(created, kept, strict=True))


# Elements


@derivative(lambda inputs, outputs: inputs[2:], constant=("cos", "sin"))
def rope(needed: Sequence[bool], kept: Tensors, gradients: Gradients) -> Gradients:
    """Return the gradients of q and k: rotated back, by the same kernel with the sines negated."""
    (cos, sin, position), (g_q, g_k) = kept, gradients
    dq = dk = None
    if g_q is None:
        assert g_k is not None
        _, dk = ops.rope(g_k[:, :1], g_k, cos, -sin, position)
    elif g_k is None:
        dq, _ = ops.rope(g_q, g_q[:, :1], cos, -sin, position)
    else:
        dq, dk = ops.rope(g_q, g_k, cos, -sin, position)
    return dq, dk, None, None, None


@derivative(keep_inputs)
def swiglu(needed: Sequence[bool], kept: Tensors, gradients: Gradients) -> Gradients:
    """Return the gradients of both halves of x, with s = sigmoid(gate): g up s (1 + gate (1 - s))
    and g gate s."""
    assert gradients[0] is not None  # the only output
    gate, up = widen(kept[0]).chunk(2, dim=-1)
    g, s = widen(gradients[0]), torch.sigmoid(gate)
    dx = torch.cat((g * up * s * (1 + gate * (1 - s)), g * gate * s), dim=-1)
    return (dx.to(kept[0].dtype),)


@derivative(lambda inputs, outputs: (*inputs, outputs[1]))
def cross_entropy(needed: Sequence[bool], kept: Tensors, gradients: Gradients) -> Gradients:
    """Return the gradient of the logits: of the loss by the kernel `cross_entropy_backward`, of lse
    their softmax times its gradient."""
    (logits, target, lse), (g, g_lse) = kept, gradients
    d = None if g is None else ops.cross_entropy_backward(logits, target, lse, g)
    if g_lse is not None:
        share = torch.exp(widen(logits) - lse[:, None]) * g_lse[:, None]
        d = share.to(logits.dtype) if d is None else (d + share).to(logits.dtype)
    return d, None


# Attention. Its forward pass hands over the logs of the sums of exponentials.

LOGS = {"lse": Tensor("B Hkv*G S", dtype="fp32")}


def keep_all(inputs: Tensors, outputs: Tensors) -> Tensors:
    """Return the inputs and the outputs."""
    return *inputs, *outputs


def takes_torch(kept: Tensors) -> bool:
    """Return whether torch's kernel is taken: in fp32 ours takes 2.5 to 5.6 times as long on an
    H200. Torch's gives other bits from call to call, so ours runs where these must not differ."""
    is_wide = bool(kept[0].is_cuda) and kept[0].dtype == torch.float32
    return is_wide and not torch.are_deterministic_algorithms_enabled()


def _torch_gradients(kept: Tensors, gradient: torch.Tensor | None, causal: bool) -> Gradients:
    """Return dq, dk and dv by torch's memory-efficient kernel."""
    from workbench.kernels import attention_backward

    by_torch: Any = attention_backward.torch_gradients  # kernels' files have no types
    result: Gradients = by_torch(*kept, gradient, causal=causal)
    return result


@derivative(keep_all, extras=LOGS)
def attention(needed: Sequence[bool], kept: Tensors, gradients: Gradients) -> Gradients:
    """Return dq, dk and dv of the kernel `attention_backward`, in fp32 of torch's."""
    if takes_torch(kept):
        return _torch_gradients(kept, gradients[0], causal=False)
    return tuple(ops.attention_backward(*kept, gradients[0]))


@derivative(keep_all, extras=LOGS)
def causal_attention(needed: Sequence[bool], kept: Tensors, gradients: Gradients) -> Gradients:
    """Return dq, dk and dv of the kernel `causal_attention_backward`, in fp32 of torch's."""
    if takes_torch(kept):
        return _torch_gradients(kept, gradients[0], causal=True)
    return tuple(ops.causal_attention_backward(*kept, gradients[0]))


# LoRA. The products are torch's: those of the gradient read W and B along their other axis, which
# our fast Impls cannot (a tensor descriptor needs dense rows), and dx and da share g B.


@derivative(keep_inputs)
def lora(needed: Sequence[bool], kept: Tensors, gradients: Gradients) -> Gradients:
    """Return dx = g W + SCALE (g B) A, dW = g^T x, dA = SCALE (g B)^T x and dB = SCALE g^T (x A^T).
    A frozen W costs nothing."""
    (x, w, a, b), (g,) = kept, gradients
    assert g is not None  # the only output
    dx, da, db = _low_rank(x, a, b, g, [needed[i] for i in (0, 2, 3)])
    if needed[0]:
        dx = torch.addmm(dx, g, w)
    return dx, g.mT @ x if needed[1] else None, da, db


@derivative(keep_inputs)
def lora_delta(needed: Sequence[bool], kept: Tensors, gradients: Gradients) -> Gradients:
    """Return dx = SCALE (g B) A, dA = SCALE (g B)^T x and dB = SCALE g^T (x A^T)."""
    (x, a, b), (g,) = kept, gradients
    assert g is not None  # the only output
    return _low_rank(x, a, b, g, needed)


def _low_rank(
    x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, g: torch.Tensor, needed: Sequence[bool]
) -> tuple[Any, Any, Any]:
    """Return the gradients of x, A and B by way of the update, each if it is needed."""
    from workbench.kernels.lora import SCALE

    shrunk = SCALE * (g @ b) if needed[0] or needed[1] else g
    dx = shrunk @ a if needed[0] else None
    da = shrunk.mT @ x if needed[1] else None
    db = g.mT @ (SCALE * (x @ a.mT)) if needed[2] else None
    return dx, da, db
