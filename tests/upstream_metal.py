"""Run kernels of mlx-lm, as they are, in the emulator: each clean in four schedules, and right.

    pip download --no-deps mlx-lm==0.32.2
    python tests/upstream_metal.py mlx_lm-0.32.2-py3-none-any.whl

Their text is read from the wheel (MIT licence), and nothing of it lies here. The package is never
installed, since it needs MLX and transformers: its modules are imported with a stand-in for MLX
that records what they pass to `mx.fast.metal_kernel`. Results are compared with torch. The exit
code is 1 where a kernel has a finding or a wrong result.
"""

import importlib
import sys
import types
from collections import namedtuple
from unittest.mock import MagicMock

import torch

from metal_shim.check import DEVICE
from metal_shim.emulate import SCHEDULES, EmulationError, EmulationOptions, emulation
from metal_shim.kernel import metal_kernel
from workbench import catalog
from workbench.device.hardware import UNCOMPILED
from workbench.kernels.wkv7 import wkv7
from workbench.measurement import inputs

MODULES = (
    "models.rwkv7", "models.ssm", "models.gated_delta", "kernels.qk_norm", "kernels.qk_norm_rope",
    "kernels.rms_norm_sigmoid_gate", "kernels.norm_add_norm", "kernels.post_expert_norm_combine",
    "kernels.expert_routing",
)  # fmt: skip
FP32 = torch.float32
EPS = torch.tensor(1e-6)
SIZES = {"B": 2, "T": 17, "H": 2, "N": 64}  # of wkv7
LIMITS = UNCOMPILED[DEVICE].limits

Case = namedtuple("Case", "kernel inputs expected grid group template")


def recorded(wheel):
    """The arguments of each `mx.fast.metal_kernel` of the modules, by the kernel's name."""
    result, mx = {}, MagicMock()
    mx.fast.metal_kernel = lambda **given: result.setdefault(given["name"], given)
    mx.compile = lambda function=None, **_: function or (lambda inner: inner)
    nn = MagicMock(Module=object)
    root = types.ModuleType("mlx")
    root.__path__, root.core, root.nn = [], mx, nn
    sys.modules.update({"mlx": root, "mlx.core": mx, "mlx.nn": nn, "mlx.nn.layers": MagicMock()})
    sys.modules.update({"mlx.nn.layers.distributed": MagicMock(), "mlx.utils": MagicMock()})
    for name in ("mlx_lm", "mlx_lm.kernels", "mlx_lm.models"):  # without running __init__
        package = types.ModuleType(name)
        package.__path__ = [f"{wheel}/{name.replace('.', '/')}"]
        sys.modules[name] = package
    sys.path_importer_cache.clear()
    for name in MODULES:
        importlib.import_module(f"mlx_lm.{name}")
    return result


def rms(x):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + EPS)


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


def recurrences():
    B, T, H, N = SIZES.values()
    r, w, k, v, kk, a, state = inputs.make(wkv7, SIZES, "fp32", "cpu", 0)
    expected = wkv7.reference(r, w, k, v, kk, a, state)
    given = (r, w.exp(), k, v, -kk, kk * a, state, int32(T)[0])
    yield Case("wkv7_kernel", given, expected, (32, N, B * H), (32, 4, 1), dict(InT=FP32, H=H, D=N))

    n, h, d, s, G = 2, 4, 16, 64, 2
    X, A, D, dt = torch.randn(n, 1, h, d), torch.randn(h), torch.randn(h), torch.rand(n, 1, h)
    left, right = torch.randn(n, 1, h // G, s), torch.randn(n, 1, h // G, s)
    state = torch.randn(n, h, d, s)
    wide = [m[:, 0].repeat_interleave(G, 1)[:, :, None] for m in (left, right)]
    step = dt[:, 0, :, None, None]
    last = (-A.exp()[:, None, None] * step).exp() * state + X[:, 0, ..., None] * step * wide[0]
    y = ((last * wide[1]).sum(-1) + X[:, 0] * D[:, None])[:, None]
    template = dict(T=FP32, U=FP32, Dh=d, Ds=s, H=h, G=G)
    given = (X, A, left, right, D, dt, state)
    yield Case("ssm_kernel", given, (y, last), (32, d, h * n), (32, 8, 1), template)


def delta_rules():
    B, T, Hk, Hv, Dk, Dv = 2, 5, 2, 4, 64, 32
    q, k = torch.randn(B, T, Hk, Dk) / 8, torch.randn(B, T, Hk, Dk) / 8
    v, beta, state = torch.randn(B, T, Hv, Dv), torch.rand(B, T, Hv), torch.randn(B, Hv, Dv, Dk)
    template = dict(InT=FP32, StT=FP32, Dk=Dk, Dv=Dv, Hk=Hk, Hv=Hv)
    for name, g in (("", torch.rand(B, T, Hv)), ("_vec", torch.rand(B, T, Hv, Dk))):
        last, ys = state, []
        for t in range(T):
            key, query = (x[:, t].repeat_interleave(Hv // Hk, 1)[:, :, None] for x in (k, q))
            last = last * g[:, t].view(B, Hv, 1, -1)
            delta = (v[:, t] - (last * key).sum(-1)) * beta[:, t, :, None]
            last = last + key * delta[..., None]
            ys.append((last * query).sum(-1))
        given = (q, k, v, g, beta, state, int32(T)[0])
        expected, grid = (torch.stack(ys, 1), last), (32, Dv, B * Hv)
        yield Case(f"gated_delta_step{name}", given, expected, grid, (32, 4, 1), template)


def norms():
    M, D, TG = 3, 1000, 96
    x, stream = torch.randn(M, D), torch.randn(M, D)
    a, b, w, u = (torch.randn(D) for _ in range(4))
    added = a * stream + b * rms(x * w)
    template = dict(T=FP32, D=D, TG=TG)
    scaled, given = dict(**template, POST_SCALE=True), (x, stream, a, b, w, EPS)
    grid = (M * TG, 1, 1)
    both = (added, rms(added) * u)
    yield Case("norm_add_norm", (*given, u, EPS), both, grid, TG, scaled)
    yield Case("norm_add", given, both[:1], grid, TG, scaled)
    yield Case("norm_add_norm_pre_norm", (added, u, EPS), both[1:], grid, TG, template)
    K, TG = 4, 192
    experts, shares = torch.randn(M, K, D), torch.rand(M, K)
    joined = (rms(experts * w) * shares[..., None]).sum(1)
    given, template = (experts, shares, w, EPS), dict(T=FP32, D=D, K=K, TG=TG)
    yield Case("post_expert_norm_combine", given, (joined,), (M * TG, 1, 1), TG, template)


def heads():
    M, HQ, HK, D = 3, 4, 2, 64
    x = torch.randn(M, 2 * (HQ + HK) * D)
    normed = rms(x[:, : (HQ + HK) * D].view(M, HQ + HK, D))
    q, k = normed[:, :HQ] * 0.5, normed[:, HQ:]
    grid, template = (M * (HQ + HK) * 32, 1, 1), dict(T=FP32, D=D, HQ=HQ, HK=HK)
    given = (x, torch.tensor(0.5), EPS)
    yield Case("qk_norm", given, (q, k), grid, 256, template)
    base = 13.2877
    exponents = -(torch.arange(D // 2) / (D // 2)) * base
    angle = (torch.arange(M) + 7)[:, None, None] * 2.0**exponents
    turned = [
        torch.stack((e * angle.cos() - o * angle.sin(), o * angle.cos() + e * angle.sin()), -1)
        for e, o in ((y[..., ::2], y[..., 1::2]) for y in (q, k))
    ]
    given = (*given, int32(7), int32(M)[0], torch.tensor(base))
    expected, template = tuple(y.flatten(-2) for y in turned), dict(**template, OFFSET_STRIDE=0)
    yield Case("qk_norm_rope", given, expected, grid, 256, template)
    B, H, L, D = 2, 3, 5, 48
    x, g = torch.randn(B, H, L, D), torch.randn(B, L, H * D)
    y = rms(x).transpose(1, 2).reshape(B, L, -1) * g.sigmoid()
    rows = (B * L * H * 32, 1, 1)
    yield Case("rms_norm_sigmoid_gate", (x, g, EPS), (y,), rows, 256, dict(T=FP32, D=D))


def routing():
    M, E, K = 6, 72, 4
    logits, bias = torch.randn(M, E), torch.randn(E) / 4
    score = (logits * 1.5).sigmoid()
    chosen = (score + bias).topk(K).indices
    shares = score.gather(1, chosen)
    given = (logits, bias, torch.tensor(1.5), torch.tensor(1e-9), torch.tensor(2.0))
    expected = (chosen.int(), shares / shares.sum(1, keepdim=True) * 2)
    yield Case("expert_routing", given, expected, (M * 32, 1, 1), 256, dict(E=E, K=K))


def launched_by(case, text):
    """The outputs of a launch of this kernel."""
    names = (" ".join(text[f"{kind}_names"]) for kind in ("input", "output"))
    given = dict(zip(("inputs", "outputs"), names, strict=True))
    header = text.get("header", "")
    kernel = metal_kernel(case.kernel, **given, body=text["source"], header=header)
    launched = kernel(
        *case.inputs, like=case.expected, grid=case.grid, group=case.group, **case.template
    )
    return (launched,) if isinstance(launched, torch.Tensor) else launched


def fault(case, text):
    """What is wrong with a kernel, or None."""
    for schedule in SCHEDULES:
        try:
            with emulation(EmulationOptions(schedule)):
                actual = launched_by(case, text)
        except EmulationError as error:
            return str(error)
        for one, other in zip(actual, case.expected, strict=True):
            if not torch.allclose(one, other, rtol=1e-4, atol=2e-5):
                return f"off by {float((one - other).abs().max()):.3g}"
    return None


def beside_ours(text):
    """The largest difference between the wkv7 of mlx-lm and ours, from the same inputs."""
    given = inputs.make(wkv7, SIZES, "fp32", "cpu", 0)
    ours = catalog.impl_of(catalog.spec_of("wkv7"), "lanes")
    with emulation(EmulationOptions()):
        one = launched_by(next(recurrences()), text)
        other = ours(*given, config=ours.default(LIMITS, "fp32", SIZES))
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))


def main(wheel):
    torch.manual_seed(0)
    texts = recorded(wheel)
    makers = (recurrences, delta_rules, norms, heads, routing)
    cases = [case for maker in makers for case in maker()]
    faults = [(case.kernel, fault(case, texts[case.kernel])) for case in cases]
    for name, wrong in faults:
        print(f"{name:<26} {wrong or 'clean and right'}")
    print(f"wkv7_kernel against wkv7.lanes: at most {beside_ours(texts['wkv7_kernel']):.2g} apart")
    return any(wrong for _, wrong in faults)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("name the wheel of mlx-lm, as in: tests/upstream_metal.py mlx_lm-0.32.2.whl")
    sys.exit(main(sys.argv[1]))
