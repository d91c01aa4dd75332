r"""Programs over packages of others with custom Metal kernels, each unchanged, for `--mlx`:

    pip install --no-deps mlx-recurrence==0.3.0 rwkv-metal==0.4.0 mlx-turboquant==0.0.2 \\
        mlx-lm==0.32.2
    python -m metal_shim.check --mlx tests/mlx_programs.py recurrence rwkv turboquant losses

Nothing of the packages lies here. Results and gradients are compared with the packages' own
references. Packages whose `__init__` needs more than MLX are imported without it.
"""

import importlib
import importlib.util
import sys
import types

import mlx.core as mx

PACKAGES = {
    "recurrence": "mlx_recurrence",
    "rwkv": "rwkv_metal",
    "turboquant": "mlx_turboquant",
    "losses": "mlx_lm",
}


def package_of(*names):
    """Packages by name without what their `__init__` imports."""
    for name in names:
        above, _, own = name.rpartition(".")
        module = types.ModuleType(name)
        if above:
            module.__path__ = [f"{folder}/{own}" for folder in sys.modules[above].__path__]
        else:
            module.__path__ = list(importlib.util.find_spec(name).submodule_search_locations)
        sys.modules[name] = module


def near(one, other, most=1e-3):
    scale = mx.maximum(mx.abs(other).max(), 1e-6)
    assert mx.abs(one - other).max() / scale < most


def same_with_gradients(one, other, given):
    near(one(*given), other(*given))
    numbers = tuple(range(len(given)))
    for mine, theirs in zip(
        mx.grad(lambda *x: one(*x).square().sum(), argnums=numbers)(*given),
        mx.grad(lambda *x: other(*x).square().sum(), argnums=numbers)(*given),
        strict=True,
    ):
        near(mine, theirs)


def recurrence():
    package = importlib.import_module("mlx_recurrence")
    normal, uniform = mx.random.normal, mx.random.uniform
    B, L, H, Dh, N = 1, 32, 2, 32, 16
    state = (normal((B, L, H, Dh)), uniform(shape=(B, L, H)), normal((B, L, H, N)),
             normal((B, L, H, N)), -uniform(shape=(H, N)))  # fmt: skip
    same_with_gradients(package.ssd_scan, package.ssd_scan_reference, state)
    linear = (*(normal((B, L, H, Dh)) for _ in range(3)), uniform(shape=(B, L, H)))
    same_with_gradients(package.gla_scan, package.gla_scan_reference, linear)
    gated = (uniform(shape=(B, L, 64)), normal((B, L, 64)))
    same_with_gradients(package.rglru_scan, package.rglru_scan_reference, gated)


def rwkv():
    package_of("rwkv_metal")
    wkv7 = importlib.import_module("rwkv_metal.kernel.wkv7")
    shape = (1, 32, 2, 64)
    r, k, v, a, b = (0.1 * mx.random.normal(shape) for _ in range(5))
    given = (r, mx.random.uniform(0.5, 1, shape), k, v, a, b)
    same_with_gradients(wkv7.wkv7_train, wkv7.wkv7_train_py, given)
    near(wkv7.wkv7_infer(*given, mx.zeros((1, 2, 64, 64)))[0], wkv7.wkv7_train_py(*given))


def turboquant():
    package_of("mlx_turboquant", "mlx_turboquant.kernels")
    product = importlib.import_module("mlx_turboquant.kernels.qmm").turbo_qmm
    M, N, K, G = 3, 8, 128, 64
    x, levels = mx.random.normal((M, K)), mx.random.normal((16,))
    numbers = mx.random.randint(0, 16, (N, K))
    shifts = 4 * mx.arange(8, dtype=mx.uint32)
    packed = (numbers.reshape(N, -1, 8).astype(mx.uint32) << shifts).sum(-1)
    scales = mx.random.uniform(shape=(N, K // G))
    weights = levels[numbers] * mx.repeat(scales, G, axis=1)
    near(product(x, packed, scales, levels, 4, G, N, K), x @ weights.T)


def losses():
    """The fused losses of mlx-lm 0.32.2 have a race in threadgroup memory (its issue 1700)."""
    package_of("mlx_lm", "mlx_lm.tuner")
    utils = types.ModuleType("mlx_lm.utils")
    utils.can_run_metal = mx.metal.is_available
    sys.modules["mlx_lm.utils"] = utils
    loss = importlib.import_module("mlx_lm.tuner.losses").kl_div_loss
    q, p = mx.random.normal((1, 2, 5000)), mx.random.normal((1, 2, 5000))
    mx.eval(loss(q, p), mx.grad(lambda q: loss(q, p).sum())(q))


if __name__ == "__main__":
    mx.random.seed(0)
    for name in sys.argv[1:]:
        globals()[name]()
