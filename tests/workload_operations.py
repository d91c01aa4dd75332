"""Forward operations of liger-kernel and fla-core, called on the CPU as a program calls them.

Both come with the extra `workload-test`. Nothing is run on a GPU: their launches are recorded.
"""

import torch


def _x(*shape, dtype=torch.float32):
    return torch.randn(*shape).to(dtype)


def _labels(n, v):
    return torch.randint(0, v, (n,))


def liger():
    """Every forward operation of liger_kernel.ops in Triton that one process can call on the CPU,
    by name. Left out: those of several GPUs (vocab_parallel_cross_entropy, the tensor-parallel
    cross entropy), `mlp`, which asserts CUDA tensors, and `tiled_mlp`, which calls a module."""
    from liger_kernel import ops as L

    B, T, H, V = 2, 16, 64, 128
    n = B * T
    one = torch.ones(1)
    return {
        "attn_res": lambda: L.attn_res_forward(_x(3, B, T, H), _x(H), _x(H), 1e-6),
        "cross_entropy": lambda: L.LigerCrossEntropyFunction.apply(
            _x(n, V), _labels(n, V), None, -100, 0.0, 0.0, "mean", None, False
        ),
        "dyt": lambda: L.LigerDyTFunction.apply(_x(n, H), one, _x(H), _x(H)),
        "embedding": lambda: L.LigerEmbeddingFunction.apply(_x(V, H), _labels(n, V)),
        "fused_add_rms_norm": lambda: L.fused_add_rms_norm_forward(
            _x(n, H), _x(n, H), _x(H), 1e-6, 0.0, "llama"
        ),
        "fused_ce_tvd": lambda: L.LigerFusedCETVDFunction.apply(_x(n, V), _x(n, V), _labels(n, V)),
        "fused_linear_cross_entropy": lambda: L.LigerFusedLinearCrossEntropyFunction.apply(
            _x(n, H), _x(V, H), _labels(n, V)
        ),
        "fused_linear_jsd": lambda: L.LigerFusedLinearJSDFunction.apply(
            _x(n, H), _x(V, H), _x(n, H), _x(V, H), None, 0.5
        ),
        "fused_linear_kl_div": lambda: L.LigerFusedLinearKLDivFunction.apply(
            _x(n, H), _x(V, H), torch.softmax(_x(n, V), -1)
        ),
        "geglu": lambda: L.geglu_forward(_x(n, H), _x(n, H)),
        "group_norm": lambda: L.group_norm_forward(_x(B, 8, H), 8, 4, _x(8), _x(8), 1e-5),
        "jsd": lambda: L.LigerJSDFunction.apply(_x(n, V), _x(n, V), None, 0.5, -100),
        "kl_div": lambda: L.LigerKLDivLossFunction.apply(_x(n, V), _x(n, V), "batchmean"),
        "layer_norm": lambda: L.layer_norm_forward(_x(n, H), _x(H), _x(H), 1e-6),
        "llama4_rope": lambda: L.LigerLlama4RopeFunction.apply(
            _x(B, T, 4, 32), _x(B, T, 2, 32), torch.polar(torch.ones(T, 16), _x(T, 16))
        ),
        "mhc_coeffs": lambda: L.LigerMHCCoeffsFunction.apply(
            _x(B, T, 4, H, dtype=torch.bfloat16), _x(4 * H, 24), _x(24), one, one, one, False, 20,
            1e-6, 0.0, 1e-6, 2.0,
        ),
        "mhc_post_res": lambda: L.LigerMHCPostResFunction.apply(
            _x(B, T, 4, H), _x(B, T, H), _x(B, T, 4), _x(B, T, 4, 4)
        ),
        "mhc_pre": lambda: L.LigerMHCPreFunction.apply(_x(B, T, 4, H), _x(B, T, 4)),
        "modulated_rms_norm": lambda: L.modulated_rms_norm_forward(
            _x(n, H), _x(H), _x(n, H), _x(n, H), 1e-6, 0.0, "llama"
        ),
        "multi_token_attention": lambda: L.LigerMultiTokenAttentionFunction.apply(
            _x(B, 4, T, T), _x(4, 4, 3, 3), None, 1, 1
        ),
        "neighborhood_attention": lambda: L.LigerFusedNeighborhoodAttentionFunction.apply(
            _x(B, 4, T, 32), _x(B, 4, T, 32), _x(B, 4, T, 32), 7, 1
        ),
        "poly_norm": lambda: L.poly_norm_forward(_x(n, H), _x(3), one, 1e-6),
        "qwen2vl_mrope": lambda: L.LigerQwen2VLMRopeFunction.apply(
            _x(B, 4, T, 32), _x(B, 2, T, 32), _x(3, B, T, 32), _x(3, B, T, 32), [4, 6, 6]
        ),
        "relu_squared": lambda: L.relu_squared_forward(_x(n, H)),
        "rms_norm": lambda: L.rms_norm_forward(_x(n, H), _x(H), 1e-6, 0.0, "llama", None),
        "rope": lambda: L.rope_forward(
            _x(B, 4, T, 32), _x(B, 2, T, 32), _x(1, T, 32), _x(1, T, 32)
        ),
        "softmax": lambda: L.LigerSoftmaxFunction.apply(_x(n, H)),
        "sparsemax": lambda: L.LigerSparsemaxFunction.apply(_x(n, H), -1),
        "swiglu": lambda: L.swiglu_forward(_x(n, H), _x(n, H)),
        "tvd": lambda: L.LigerTVDLossFunction.apply(
            torch.softmax(_x(n, V), -1), torch.softmax(_x(n, V), -1), None, "batchmean"
        ),
    }  # fmt: skip


def fla():
    """Ten forward operations of fla-core, by name."""
    from fla.ops import (
        delta_rule,
        gated_delta_rule,
        gla,
        gsa,
        hgrn,
        linear_attn,
        retention,
        rwkv6,
        rwkv7,
        simple_gla,
    )  # fmt: skip

    B, T, H, K = 1, 64, 2, 32

    def x(*shape):
        return torch.randn(*(shape or (B, T, H, K)), dtype=torch.bfloat16)

    def decay(*shape):
        return -torch.rand(*(shape or (B, T, H, K)))

    return {
        "delta_rule": lambda: delta_rule.chunk_delta_rule(x(), x(), x(), x(B, T, H)),
        "gated_delta_rule": lambda: gated_delta_rule.chunk_gated_delta_rule(
            x(), x(), x(), decay(B, T, H), x(B, T, H)
        ),
        "gla": lambda: gla.chunk_gla(x(), x(), x(), decay()),
        "gsa": lambda: gsa.chunk_gsa(x(), x(), x(), x(), decay()),
        "hgrn": lambda: hgrn.chunk_hgrn(x(B, T, K), decay(B, T, K)),
        "linear_attn": lambda: linear_attn.chunk_linear_attn(x(), x(), x()),
        "retention": lambda: retention.chunk_retention(x(), x(), x()),
        "rwkv6": lambda: rwkv6.chunk_rwkv6(x(), x(), x(), decay(), x(H, K)),
        "rwkv7": lambda: rwkv7.chunk_rwkv7(x(), decay(), x(), x(), x(), x()),
        "simple_gla": lambda: simple_gla.chunk_simple_gla(x(), x(), x(), decay(B, T, H)),
    }


if __name__ == "__main__":  # python workload_operations.py liger|fla FILE
    import sys

    import workbench.workload

    torch.manual_seed(0)
    with workbench.workload.record(sys.argv[2], values=True):
        for operation in {"liger": liger, "fla": fla}[sys.argv[1]]().values():
            operation()
