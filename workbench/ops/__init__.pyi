# Written by docs/generate.py from the Specs; do not edit.

from collections.abc import Callable
from typing import Any

from torch import Tensor

from workbench.spec import Spec, WorkbenchError

class OperationError(WorkbenchError, ValueError): ...

def operation_of(spec: Spec) -> Callable[..., Any]: ...
def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention: o = softmax(q k^T / sqrt(D)) v, for each head, over all keys.

    Args:
        q: `B S Hkv*G D`, fp32, fp16, bf16.
        k: `B T Hkv D`, fp32, fp16, bf16.
        v: `B T Hkv D`, fp32, fp16, bf16.

    Returns:
        o: `B S Hkv*G D`, as q.

    Raises:
        OperationError: The operation does not take these tensors.

    It has gradients for q, k, v.
    """

def attention_backward(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, do: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of attention: from q, k, v, the forward pass' o and lse, and do = dL/do to dq, dk and
    dv, for each head, over all keys.

    Args:
        q: `B S Hkv*G D`, fp32, fp16, bf16.
        k: `B T Hkv D`, fp32, fp16, bf16.
        v: `B T Hkv D`, fp32, fp16, bf16.
        o: `B S Hkv*G D`, fp32, fp16, bf16.
        lse: `B Hkv*G S`, fp32.
        do: `B S Hkv*G D`, fp32, fp16, bf16.

    Returns:
        dq: `B S Hkv*G D`, as q.
        dk: `B T Hkv D`, as q.
        dv: `B T Hkv D`, as q.

    Raises:
        OperationError: The operation does not take these tensors.

    It has no backward, and refuses inputs that require a gradient.
    """

def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention: o = softmax(q k^T / sqrt(D)) v for each head, query i over keys 0 to i.

    Args:
        q: `B S Hkv*G D`, fp32, fp16, bf16.
        k: `B S Hkv D`, fp32, fp16, bf16.
        v: `B S Hkv D`, fp32, fp16, bf16.

    Returns:
        o: `B S Hkv*G D`, as q.

    Raises:
        OperationError: The operation does not take these tensors.

    It has gradients for q, k, v.
    """

def causal_attention_backward(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, do: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of causal attention: from q, k, v, the forward pass' o and lse, and do = dL/do to dq,
    dk and dv, for each head, query i over keys 0 to i.

    Args:
        q: `B S Hkv*G D`, fp32, fp16, bf16.
        k: `B S Hkv D`, fp32, fp16, bf16.
        v: `B S Hkv D`, fp32, fp16, bf16.
        o: `B S Hkv*G D`, fp32, fp16, bf16.
        lse: `B Hkv*G S`, fp32.
        do: `B S Hkv*G D`, fp32, fp16, bf16.

    Returns:
        dq: `B S Hkv*G D`, as q.
        dk: `B S Hkv D`, as q.
        dv: `B S Hkv D`, as q.

    Raises:
        OperationError: The operation does not take these tensors.

    It has no backward, and refuses inputs that require a gradient.
    """

def channel_mix(k: Tensor) -> Tensor:
    """Squared ReLU, y = max(k, 0)^2: the step between the two products of RWKV's channel mixing.

    Args:
        k: `M F`, fp32, fp16, bf16.

    Returns:
        y: `M F`, as k.

    Raises:
        OperationError: The operation does not take these tensors.

    It has no backward, and refuses inputs that require a gradient.
    """

def compute_only(x: Tensor) -> Tensor:
    """1024 fused multiply-adds on each element: x <- a x + b, over and over, then one store.

    A = 0.999023, B = 0.000976562.

    Args:
        x: `N`, fp32, fp16, bf16.

    Returns:
        y: `N`, as x.

    Raises:
        OperationError: The operation does not take these tensors.

    It has no backward, and refuses inputs that require a gradient.
    """

def copy(x: Tensor) -> Tensor:
    """Copy: y = x, element by element.

    Args:
        x: `N`, fp32, fp16, bf16.

    Returns:
        y: `N`, as x.

    Raises:
        OperationError: The operation does not take these tensors.

    It has no backward, and refuses inputs that require a gradient.
    """

def cross_entropy(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Cross entropy of each row of logits with one target: loss = lse - logits[target], where
    lse = log(sum(exp(logits))), in fp32 whatever the dtype of the logits. Both are returned: the
    gradient is cheap to get from lse. A target outside 0..V-1 (-100, say) is ignored: its loss is 0.

    Args:
        logits: `M V`, fp32, fp16, bf16.
        target: `M`, int64.

    Returns:
        loss: `M`, fp32.
        lse: `M`, fp32.

    Raises:
        OperationError: The operation does not take these tensors.

    It has gradients for logits.
    """

def cross_entropy_backward(logits: Tensor, target: Tensor, lse: Tensor, g: Tensor) -> Tensor:
    """Gradient of cross entropy: d = (exp(logits - lse) - [v = target]) * g, row by row, where lse is
    the forward pass' log of the sum and g the gradient of the row's loss. Rows whose target lies
    outside 0..V-1 (-100, say) are ignored: their gradient is 0, and they are not read.

    Args:
        logits: `M V`, fp32, fp16, bf16.
        target: `M`, int64.
        lse: `M`, fp32.
        g: `M`, fp32.

    Returns:
        d: `M V`, as logits.

    Raises:
        OperationError: The operation does not take these tensors.

    It has no backward, and refuses inputs that require a gradient.
    """

def cumsum(x: Tensor) -> Tensor:
    """Running sums along the last axis: y[m, n] = x[m, 0] + ... + x[m, n], added up in fp32.

    Args:
        x: `M N`, fp32, fp16, bf16.

    Returns:
        y: `M N`, as x.

    Raises:
        OperationError: The operation does not take these tensors.

    It has no backward, and refuses inputs that require a gradient.
    """

def decode_attention(q: Tensor, k: Tensor, v: Tensor, lens: Tensor) -> Tensor:
    """Attention of one new token a sequence: o = softmax(q k^T / sqrt(D)) v over the keys so far.

    Args:
        q: `B Hkv*G D`, fp32, fp16, bf16.
        k: `B T Hkv D`, fp32, fp16, bf16.
        v: `B T Hkv D`, fp32, fp16, bf16.
        lens: `B`, int32.

    Returns:
        o: `B Hkv*G D`, as q.

    Raises:
        OperationError: The operation does not take these tensors.

    It has no backward, and refuses inputs that require a gradient.
    """

def empty(x: Tensor) -> Tensor:
    """One zero: y = 0. What is left of a kernel when it neither reads nor computes: its launch.

    Args:
        x: `1`, fp32, fp16, bf16.

    Returns:
        y: `1`, as x.

    Raises:
        OperationError: The operation does not take these tensors.

    It has no backward, and refuses inputs that require a gradient.
    """

def fp8_block_matmul(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Tensor:
    """Matrix product of 8-bit floats with a scale for every 128 numbers of a row of a and for every
    128 x 128 block of b: c[m, n] = sum over blocks s of K of scale_a[m, s] * scale_b[n / 128, s] *
    sum over k in s of a[m, k] * b[n, k], written in bf16.

    Args:
        a: `M K`, fp8.
        b: `N K`, fp8.
        scale_a: `M K/128`, fp32.
        scale_b: `N/128 K/128`, fp32.

    Returns:
        c: `M N`, bf16.

    Raises:
        OperationError: The operation does not take these tensors.

    It has no backward, and refuses inputs that require a gradient.
    """

def fp8_matmul(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Tensor:
    """Matrix product of 8-bit floats with a scale for each row of a and of b: a linear layer,
    c[m, n] = scale_a[m] * scale_b[n] * sum over k of a[m, k] * b[n, k], written in bf16.

    Args:
        a: `M K`, fp8.
        b: `N K`, fp8.
        scale_a: `M`, fp32.
        scale_b: `N`, fp32.

    Returns:
        c: `M N`, bf16.

    Raises:
        OperationError: The operation does not take these tensors.

    It has no backward, and refuses inputs that require a gradient.
    """

def fused_add_rms_norm(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Residual addition and RMS norm in one pass: h = x + r, y = h / sqrt(mean(h^2) + eps) * w.

    EPS = 1e-06.

    Args:
        x: `M N`, fp32, fp16, bf16.
        r: `M N`, fp32, fp16, bf16.
        w: `N`, fp32, fp16, bf16.

    Returns:
        y: `M N`, as x.
        h: `M N`, as x.

    Raises:
        OperationError: The operation does not take these tensors.

    It has gradients for x, r, w.
    """

def group_norm(
    x: Tensor,
    r: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    weight: Tensor,
    bias: Tensor,
    bonus: Tensor,
) -> Tensor:
    """What RWKV-7 does to the output of its recurrence, head by head:

    y = ((x - mean(x)) / sqrt(var(x) + eps) * weight + bias + sum(r * k * r_k) * v) * g

    EPS = 0.00064.

    Args:
        x: `M H N`, fp32, fp16, bf16.
        r: `M H N`, fp32, fp16, bf16.
        k: `M H N`, fp32, fp16, bf16.
        v: `M H N`, fp32, fp16, bf16.
        g: `M H N`, fp32, fp16, bf16.
        weight: `H N`, fp32, fp16, bf16.
        bias: `H N`, fp32, fp16, bf16.
        bonus: `H N`, fp32, fp16, bf16.

    Returns:
        y: `M H N`, as x.

    Raises:
        OperationError: The operation does not take these tensors.

    It has gradients for x, r, k, v, g, weight, bias, bonus.
    """

def grouped_matmul(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    """Matrix products of ragged groups of rows, in one launch: c[r] = a[r] @ b[g] for the rows r of
    group g, which end before ends[g] (int32, never falling; the last one is T). A layer of experts, its
    T rows sorted by expert, is two or three of these.

    Args:
        a: `T K`, fp32, fp16, bf16.
        b: `G K N`, fp32, fp16, bf16.
        ends: `G`, int32.

    Returns:
        c: `T N`, as a.

    Raises:
        OperationError: The operation does not take these tensors.

    It has no backward, and refuses inputs that require a gradient.
    """

def layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Layer norm over the last axis: y = (x - mean(x)) / sqrt(var(x) + eps) * w + b.

    EPS = 1e-05.

    Args:
        x: `M N`, fp32, fp16, bf16.
        w: `N`, fp32, fp16, bf16.
        b: `N`, fp32, fp16, bf16.

    Returns:
        y: `M N`, as x.

    Raises:
        OperationError: The operation does not take these tensors.

    It has gradients for x, w, b.
    """

def layer_norm_backward(x: Tensor, w: Tensor, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of layer norm: from x, w and dy = dL/dy to dx = dL/dx, dw = dL/dw and db = dL/db.

    Args:
        x: `M N`, fp32, fp16, bf16.
        w: `N`, fp32, fp16, bf16.
        dy: `M N`, fp32, fp16, bf16.

    Returns:
        dx: `M N`, as x.
        dw: `N`, as x.
        db: `N`, as x.

    Raises:
        OperationError: The operation does not take these tensors.

    It has no backward, and refuses inputs that require a gradient.
    """

def lora(x: Tensor, w: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """LoRA, a linear layer with a low-rank update: y = x W^T + SCALE (x A^T) B^T.

    SCALE = 2.

    Args:
        x: `M K`, fp32, fp16, bf16.
        w: `N K`, fp32, fp16, bf16.
        a: `r K`, fp32, fp16, bf16.
        b: `N r`, fp32, fp16, bf16.

    Returns:
        y: `M N`, as x.

    Raises:
        OperationError: The operation does not take these tensors.

    It has gradients for x, w, a, b.
    """

def lora_delta(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Only the update of LoRA: y = SCALE (x A^T) B^T, for x of M x K, A of r x K and B of N x r.

    SCALE = 2.

    Args:
        x: `M K`, fp32, fp16, bf16.
        a: `r K`, fp32, fp16, bf16.
        b: `N r`, fp32, fp16, bf16.

    Returns:
        y: `M N`, as x.

    Raises:
        OperationError: The operation does not take these tensors.

    It has gradients for x, a, b.
    """

def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Matrix product: c = a @ b, accumulated in fp32.

    Args:
        a: `M K`, fp32, fp16, bf16.
        b: `K N`, fp32, fp16, bf16.

    Returns:
        c: `M N`, as a.

    Raises:
        OperationError: The operation does not take these tensors.

    It has no backward, and refuses inputs that require a gradient.
    """

def matvec(x: Tensor, w: Tensor) -> Tensor:
    """Product of a few rows with a weight matrix: y = x @ w^T, as a language model decodes.

    Args:
        x: `M K`, fp32, fp16, bf16.
        w: `N K`, fp32, fp16, bf16.

    Returns:
        y: `M N`, as x.

    Raises:
        OperationError: The operation does not take these tensors.

    It has no backward, and refuses inputs that require a gradient.
    """

def patch_embed(x: Tensor, w: Tensor, bias: Tensor, position: Tensor) -> Tensor:
    """Patch embedding of a vision transformer: y = x W^T + bias + position, the two additions fused.

    Args:
        x: `M K`, fp32, fp16, bf16.
        w: `N K`, fp32, fp16, bf16.
        bias: `N`, fp32, fp16, bf16.
        position: `P N`, fp32, fp16, bf16.

    Returns:
        y: `M N`, as x.

    Raises:
        OperationError: The operation does not take these tensors.

    It has no backward, and refuses inputs that require a gradient.
    """

def q4_k_dequantize(w: Tensor, gain: Tensor) -> Tensor:
    """Weights out of GGUF's Q4_K blocks: y[n] = gain[n] * weights of row n.

    Args:
        w: `N K/256*144`, uint8.
        gain: `N`, fp32, fp16, bf16.

    Returns:
        y: `N K`, as gain.

    Raises:
        OperationError: The operation does not take these tensors.

    It has no backward, and refuses inputs that require a gradient.
    """

def q4_k_matmul(x: Tensor, w: Tensor) -> Tensor:
    """Product with 4-bit weights: y = x @ w^T, where w lies as GGUF's Q4_K blocks, read as they are.

    Args:
        x: `M K`, fp32, fp16, bf16.
        w: `N K/256*144`, uint8.

    Returns:
        y: `M N`, as x.

    Raises:
        OperationError: The operation does not take these tensors.

    It has no backward, and refuses inputs that require a gradient.
    """

def q4_k_quantize(x: Tensor) -> Tensor:
    """Weights into GGUF's Q4_K blocks: 4.5 bits a weight, in blocks of 256 along a row.

    Args:
        x: `N K`, fp32, fp16, bf16.

    Returns:
        w: `N K/256*144`, uint8.

    Raises:
        OperationError: The operation does not take these tensors.

    It has no backward, and refuses inputs that require a gradient.
    """

def read_only(x: Tensor) -> Tensor:
    """The largest element of every 4096: y[c] = max(x[4096 c : 4096 (c + 1)]).

    Args:
        x: `N`, fp32, fp16, bf16.

    Returns:
        y: `N/4096`, as x.

    Raises:
        OperationError: The operation does not take these tensors.

    It has no backward, and refuses inputs that require a gradient.
    """

def reduce(x: Tensor) -> Tensor:
    """Sums over the last axis: y[m] = sum of x[m, :], in fp32.

    Args:
        x: `M N`, fp32, fp16, bf16.

    Returns:
        y: `M`, fp32.

    Raises:
        OperationError: The operation does not take these tensors.

    It has no backward, and refuses inputs that require a gradient.
    """

def rms_norm(x: Tensor, w: Tensor) -> Tensor:
    """RMS norm over the last axis: y = x / sqrt(mean(x^2) + eps) * w.

    EPS = 1e-06.

    Args:
        x: `M N`, fp32, fp16, bf16.
        w: `N`, fp32, fp16, bf16.

    Returns:
        y: `M N`, as x.

    Raises:
        OperationError: The operation does not take these tensors.

    It has gradients for x, w.
    """

def rms_norm_backward(x: Tensor, w: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of RMS norm: from x, w and dy = dL/dy to dx = dL/dx and dw = dL/dw.

    Args:
        x: `M N`, fp32, fp16, bf16.
        w: `N`, fp32, fp16, bf16.
        dy: `M N`, fp32, fp16, bf16.

    Returns:
        dx: `M N`, as x.
        dw: `N`, as x.

    Raises:
        OperationError: The operation does not take these tensors.

    It has no backward, and refuses inputs that require a gradient.
    """

def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
    """Rotary position embedding of queries and keys in one launch, halves paired as in GPT-NeoX:
    with x = [a | b] along D, y = [a cos - b sin | b cos + a sin], the angles by the token's position.

    Args:
        q: `S Hq D`, fp32, fp16, bf16.
        k: `S Hkv D`, fp32, fp16, bf16.
        cos: `S D/2`, fp32, fp16, bf16.
        sin: `S D/2`, fp32, fp16, bf16.
        position: `S`, int32.

    Returns:
        q_rotated: `S Hq D`, as q.
        k_rotated: `S Hkv D`, as q.

    Raises:
        OperationError: The operation does not take these tensors.

    It has gradients for q, k.
    """

def sample_top_p(logits: Tensor, p: Tensor, temperature: Tensor, seed: Tensor) -> Tensor:
    """One token for each row of logits: temperature, then only top-p, then one draw.

    Args:
        logits: `B V`, fp32, fp16, bf16.
        p: `B`, fp32.
        temperature: `B`, fp32.
        seed: `B`, int64.

    Returns:
        token: `B`, int64.

    Raises:
        OperationError: The operation does not take these tensors.

    It has no backward, and refuses inputs that require a gradient.
    """

def sample_topk_topp(
    logits: Tensor, k: Tensor, p: Tensor, temperature: Tensor, seed: Tensor
) -> Tensor:
    """One token for each row of logits: temperature, then top-k, then top-p, then one draw.

    Args:
        logits: `B V`, fp32, fp16, bf16.
        k: `B`, int32.
        p: `B`, fp32.
        temperature: `B`, fp32.
        seed: `B`, int64.

    Returns:
        token: `B`, int64.

    Raises:
        OperationError: The operation does not take these tensors.

    It has no backward, and refuses inputs that require a gradient.
    """

def softmax(x: Tensor) -> Tensor:
    """Softmax over the last axis: y = exp(x - max(x)) / sum(exp(x - max(x))).

    Args:
        x: `M N`, fp32, fp16, bf16.

    Returns:
        y: `M N`, as x.

    Raises:
        OperationError: The operation does not take these tensors.

    It has gradients for x.
    """

def swiglu(x: Tensor) -> Tensor:
    """SwiGLU: y = silu(gate) * up, where x = [gate | up] side by side, as one projection writes them.

    Args:
        x: `M 2*N`, fp32, fp16, bf16.

    Returns:
        y: `M N`, as x.

    Raises:
        OperationError: The operation does not take these tensors.

    It has gradients for x.
    """

def token_shift(x: Tensor, last: Tensor, mix: Tensor) -> Tensor:
    """Token shift of RWKV: y[i, t] = x[t] + (x[t - 1] - x[t]) * mix[i], one mix for each projection.

    Args:
        x: `B T D`, fp32, fp16, bf16.
        last: `B D`, fp32, fp16, bf16.
        mix: `X D`, fp32, fp16, bf16.

    Returns:
        y: `X B T D`, as x.

    Raises:
        OperationError: The operation does not take these tensors.

    It has no backward, and refuses inputs that require a gradient.
    """

def transpose(x: Tensor) -> Tensor:
    """Transpose: y[n, m] = x[m, n].

    Args:
        x: `M N`, fp32, fp16, bf16.

    Returns:
        y: `N M`, as x.

    Raises:
        OperationError: The operation does not take these tensors.

    It has no backward, and refuses inputs that require a gradient.
    """

def triad(a: Tensor, b: Tensor) -> Tensor:
    """Triad: y = a + 0.5 b, element by element.

    Args:
        a: `N`, fp32, fp16, bf16.
        b: `N`, fp32, fp16, bf16.

    Returns:
        y: `N`, as a.

    Raises:
        OperationError: The operation does not take these tensors.

    It has no backward, and refuses inputs that require a gradient.
    """

def wkv6(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, u: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """The recurrence of RWKV-6. Each head keeps a state S of N keys by N values; for each token

    Args:
        r: `B T H N`, fp32, fp16, bf16.
        w: `B T H N`, fp32, fp16, bf16.
        k: `B T H N`, fp32, fp16, bf16.
        v: `B T H N`, fp32, fp16, bf16.
        u: `H N`, fp32, fp16, bf16.
        state: `B H N N`, fp32.

    Returns:
        y: `B T H N`, as r.
        last: `B H N N`, fp32.

    Raises:
        OperationError: The operation does not take these tensors.

    It has no backward, and refuses inputs that require a gradient.
    """

def wkv7(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, kk: Tensor, a: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """The recurrence of RWKV-7. Each head keeps a state S of N values by N keys; for each token

    Args:
        r: `B T H N`, fp32, fp16, bf16.
        w: `B T H N`, fp32, fp16, bf16.
        k: `B T H N`, fp32, fp16, bf16.
        v: `B T H N`, fp32, fp16, bf16.
        kk: `B T H N`, fp32, fp16, bf16.
        a: `B T H N`, fp32, fp16, bf16.
        state: `B H N N`, fp32.

    Returns:
        y: `B T H N`, as r.
        last: `B H N N`, fp32.

    Raises:
        OperationError: The operation does not take these tensors.

    It has no backward, and refuses inputs that require a gradient.
    """
