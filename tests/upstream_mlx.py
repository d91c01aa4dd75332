"""Run whole kernels of MLX's own Metal library, as they are, in the emulator: each clean in four
schedules, and right.

    python tests/upstream_mlx.py

Their texts are the headers that the package mlx brings (mlx/include, MIT licence; `pip install
'mlx[cpu]'`), and nothing of them lies here. Results are compared with torch. The exit code is 1
where a kernel has a finding that is not expected, or a wrong result. `emulated/test_mlx.py` runs
the same cases.
"""

import importlib.util
import re
import sys
from collections import namedtuple
from pathlib import Path

import torch

from metal_shim.emulate import (
    SCHEDULES,
    EmulationError,
    EmulationOptions,
    LaunchRejected,
    emulation,
)
from metal_shim.kernel import MetalKernel
from metal_shim.whole import whole_source

KERNELS = "mlx/backend/metal/kernels"
FP32 = torch.float32
Case = namedtuple(
    "Case", "file function inputs expected grid group template constants", defaults=({},)
)


def include_folder():
    """The folder of the headers of the installed package."""
    spec = importlib.util.find_spec("mlx")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("mlx is not installed; pip install 'mlx[cpu]'")
    return Path(next(iter(spec.submodule_search_locations)), "include")


def source_of(case, root):
    """The kernel of an unmodified header, after `PRELUDE`."""
    text = (root / KERNELS / case.file).read_text()
    own = re.sub(r'#include "[^"\n]+"', "", text)  # a header that is not here is in PRELUDE
    shared = (root / KERNELS / "steel" / "utils.h").read_text()
    return whole_source(own, case.function, PRELUDE + shared, case.constants)


# In place of MLX's utils.h, whose complex numbers and logging the emulator does not take: what the
# kernels below use of it.
PRELUDE = """
#define METAL_FUNC inline
#define SOFTMAX_N_READS 4
#define CROSS_ENTROPY_N_READS 4
#define MLX_MTL_PRAGMA_UNROLL
#define STEEL_PRAGMA_UNROLL
#define STEEL_CONST static constant constexpr const
struct complex64_t { float real, imag; };
template <bool C, typename A, typename B> struct ConditionalType { using type = B; };
template <typename A, typename B> struct ConditionalType<true, A, B> { using type = A; };
template <typename U> struct Limits;
template <> struct Limits<float> {
  static constexpr constant float max = INFINITY, min = -INFINITY;
  static constexpr constant float finite_max = FLT_MAX, finite_min = -FLT_MAX;
};
template <typename T, typename U> T ceildiv(T n, U m) { return (n + m - 1) / m; }
template <typename I>
I elem_to_loc(I at, const constant int* shape, const constant int64_t* strides, int ndim) {
  I place = 0;
  for (int i = ndim - 1; i >= 0; i--) { place += at % shape[i] * I(strides[i]); at /= shape[i]; }
  return place;
}
"""


torch.manual_seed(0)


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


def scalar(value):
    return int32(value)[0]


def int64(*values):
    return torch.tensor(values, dtype=torch.int64)


def real(value):
    return torch.tensor(float(value))


def rows():
    M, N = 3, 200
    x = 4 * torch.randn(M, N)
    soft, total = (torch.softmax(x, -1),), (torch.logsumexp(x, -1),)
    reads = dict(T=FP32, AccT=FP32, N_READS=4)
    given, few, many = (x, scalar(N)), ((M * 64, 1, 1), 64), ((M * 1024, 1, 1), 1024)
    yield Case("softmax.h", "softmax_single_row", given, soft, *few, reads)
    yield Case("softmax.h", "softmax_looped", given, soft, *many, reads)
    yield Case("logsumexp.h", "logsumexp", given, total, *few, reads)
    yield Case("logsumexp.h", "logsumexp_looped", given, total, *many, reads)
    targets = torch.randint(0, N, (M,), dtype=torch.int32)
    loss = (torch.nn.functional.cross_entropy(x, targets.long(), reduction="none"),)
    yield Case("cross_entropy.h", "cross_entropy", (x, targets, scalar(N)), loss, *many, reads)
    yield Case("arange.h", "arange", (real(3), real(0.5)), (3 + torch.arange(40) / 2,),
               (40, 1, 1), 40, dict(T=FP32))  # fmt: skip


def products(K, N, name="gemv"):
    """A matrix of N rows times a vector; `gemv_t` takes the matrix transposed."""
    mat, vec = torch.randn(N, K), torch.randn(K)
    held = mat if name == "gemv" else mat.T.contiguous()
    given = (held, vec, vec, scalar(K), scalar(N), scalar(held.shape[1]), real(1), real(0))
    given = (*given, scalar(1), int32(1), int64(0), int64(0), int64(0), scalar(1))
    BM, BN, SM, SN, TM, TN = (4, 1, 1, 32, 4, 4) if name == "gemv" else (1, 2, 8, 4, 4, 4)
    block = BM * SM * TM if name == "gemv" else BN * SN * TN
    group = (32, BN, BM)
    grid = (32 * -(-N // block), BN, BM)
    template = dict(T=FP32, BM=BM, BN=BN, SM=SM, SN=SN, TM=TM, TN=TN, nc=False, axpby=False)
    yield Case("gemv.h", name, given, (mat @ vec,), grid, group, template,
               dict(gemv_wide_has_batch=0, gemv_wide_do_axpby=0))  # fmt: skip


def attentions():
    H, G, N, D = 4, 2, 50, 64
    q, k, v = torch.randn(H, 1, D), torch.randn(H // G, N, D), torch.randn(H // G, N, D)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k.repeat_interleave(G, 0), v.repeat_interleave(G, 0)
    )
    size = torch.tensor(D)
    given = (q, k, v, scalar(G), scalar(N), size * N, size, size * N, size, real(D**-0.5))
    names = ("has_mask", "query_transposed", "do_causal", "bool_mask", "float_mask", "has_sinks")
    off = dict.fromkeys((*names, "blocks"), 0)
    yield Case("sdpa_vector.h", "sdpa_vector", given, (expected,),
               (H * 1024, 1, 1), 1024, dict(T=FP32, D=D, V=D), off)  # fmt: skip


CLEAN = (*rows(), *products(96, 32), *products(96, 32, "gemv_t"), *attentions())
# 30 rows are no multiple of a block: the last threads move back and write rows of their neighbours
# again, the same values
(RAGGED,) = products(96, 30)


def fault(case, root, same_value=()):
    """What is wrong with a kernel, or None."""
    kernel = MetalKernel(source_of(case, root), same_value)
    for schedule in SCHEDULES:
        try:
            with emulation(EmulationOptions(schedule)):
                launched = kernel(
                    *case.inputs, like=case.expected, grid=case.grid, group=case.group,
                    **case.template,
                )  # fmt: skip
        except (EmulationError, LaunchRejected) as error:
            return str(error)
        actual = (launched,) if isinstance(launched, torch.Tensor) else launched
        for one, other in zip(actual, case.expected, strict=True):
            if not torch.allclose(one, other, rtol=1e-4, atol=2e-5):
                return f"off by {float((one - other).abs().max()):.3g}"
    return None


def main():
    root = include_folder()
    results = [(case.function, fault(case, root)) for case in CLEAN]
    results.append(("gemv, 30 rows", fault(RAGGED, root, ("out_vec",))))
    for name, wrong in results:
        print(f"{name:<20} {wrong or 'clean and right'}")
    race = fault(RAGGED, root) or "no finding, though a race is expected"
    print(f"gemv, 30 rows        without same_value: {race}")
    return any(wrong for _, wrong in results) or "race" not in race


if __name__ == "__main__":
    sys.exit(main())
