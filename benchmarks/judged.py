"""What `workbench evaluate --spec` says of honest kernels: every Triton Impl of the library, by its
file, and 30 plain kernels as people and programs write them. None may be rejected.

    python benchmarks/judged.py --device h200 --out judged.json
    python benchmarks/judged.py --only plain

Prints a row for each kernel that is not correct on evidence, with the rule that stays a claim, and
the counts. It takes some 8 s a kernel on two cores, without a GPU.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import workbench
from workbench import catalog

KERNELS = Path(catalog.__file__).parent / "kernels"

SPEC = '''"""{name}"""
import torch

from workbench.spec import Spec, Tensor, Tolerance


def reference({inputs}):
    return {reference}


{name} = Spec(
    name="{name}",
    inputs={{{tensors}}},
    outputs={{"y": Tensor("{output}")}},
    reference=reference,
    flops=lambda {axes}: {flops},
    check=[{check}],
    bench=[{bench}],
    tolerance={{"fp32": Tolerance(1e-4, 1e-5)}},
)
'''
FILE = '''"""{name}"""
import torch
import triton
import triton.language as tl
from spec_{name} import {name}


{kernels}


@{name}.impl()
def mine({inputs}):
{launch}
'''
ELEMENTS = """@triton.jit
def kernel({pointers}, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
{loads}
    tl.store(y_ptr + at, {device}, mask=inside)"""
ROWS = """@triton.jit
def kernel(x_ptr, y_ptr, N, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * N + n, mask=n < N, other={other})
{device}"""
WHOLE = "    tl.store(y_ptr + row * N + n, y, mask=n < N)"
ONE = "    tl.store(y_ptr + row, y)"
UNARY = {  # name: reference, device code
    "relu": ("x.clamp(min=0)", "tl.maximum(x, 0.0)"),
    "leaky": ("torch.where(x > 0, x, 0.1 * x)", "tl.where(x > 0, x, 0.1 * x)"),
    "silu": ("x * torch.sigmoid(x)", "x * tl.sigmoid(x)"),
    "sigmoid": ("torch.sigmoid(x)", "1.0 / (1.0 + tl.exp(-x))"),
    "square": ("x * x", "x * x"),
    "softsign": ("x / (1 + x.abs())", "x / (1.0 + tl.abs(x))"),
    "gelu": ("torch.nn.functional.gelu(x)", "0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))"),
    "hardtanh": ("x.clamp(-1, 1)", "tl.minimum(tl.maximum(x, -1.0), 1.0)"),
    "cosine": ("torch.cos(x)", "tl.cos(x)"),
}
BINARY = {
    "add": ("x + w", "x + w"),
    "axpy": ("2 * x + w", "2.0 * x + w"),
    "gate": ("x * torch.sigmoid(w)", "x * tl.sigmoid(w)"),
    "larger": ("torch.maximum(x, w)", "tl.maximum(x, w)"),
    "distance": ("(x - w) ** 2", "(x - w) * (x - w)"),
}
OF_ROWS = {  # name: reference, lines, whether a row is returned, other
    "row_sum": ("x.sum(1)", "y = tl.sum(x, 0)", False, "0.0"),
    "row_max": ("x.amax(1)", "y = tl.max(x, 0)", False, "-float('inf')"),
    "row_mean": ("x.mean(1)", "y = tl.sum(x, 0) / N", False, "0.0"),
    "row_norm": ("x.norm(dim=1)", "y = tl.sqrt(tl.sum(x * x, 0))", False, "0.0"),
    "centre": ("x - x.mean(1, keepdim=True)", "y = x - tl.sum(x, 0) / N", True, "0.0"),
    "rms": (
        "x * torch.rsqrt((x * x).mean(1, keepdim=True) + 1e-6)",
        "y = x * tl.rsqrt(tl.sum(x * x, 0) / N + 1e-6)", True, "0.0",
    ),
    "layer": (
        "torch.nn.functional.layer_norm(x, x.shape[1:])",
        "mean = tl.sum(x, 0) / N; d = tl.where(n < N, x - mean, 0.0); "
        "y = d * tl.rsqrt(tl.sum(d * d, 0) / N + 1e-5)", True, "0.0",
    ),
    "soft": (
        "torch.softmax(x, 1)",
        "e = tl.exp(x - tl.max(x, 0)); y = e / tl.sum(e, 0)", True, "-float('inf')",
    ),
    "log_soft": (
        "torch.log_softmax(x, 1)",
        "m = tl.max(x, 0); y = x - m - tl.log(tl.sum(tl.exp(x - m), 0))", True, "-float('inf')",
    ),
    "scan": ("x.cumsum(1)", "y = tl.cumsum(x, 0)", True, "0.0"),
    "l1": ("x / x.abs().sum(1, keepdim=True)", "y = x / tl.sum(tl.abs(x), 0)", True, "0.0"),
}  # fmt: skip
TURNED = """@triton.jit
def kernel(x_ptr, y_ptr, M, N, BM: tl.constexpr, BN: tl.constexpr):
    m = (tl.program_id(0) * BM + tl.arange(0, BM))[:, None]
    n = (tl.program_id(1) * BN + tl.arange(0, BN))[None, :]
    inside = (m < M) & (n < N)
    x = tl.load(x_ptr + m * N + n, mask=inside)
    tl.store(y_ptr + n * M + m, x, mask=inside)"""
PRODUCT = """@triton.jit
def kernel(x_ptr, w_ptr, y_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = (tl.program_id(0) * BM + tl.arange(0, BM))[:, None]
    n = (tl.program_id(1) * BN + tl.arange(0, BN))[None, :]
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        x = tl.load(x_ptr + m * K + k[None, :], mask=(m < M) & (k[None, :] < K), other=0.0)
        w = tl.load(w_ptr + k[:, None] * N + n, mask=(k[:, None] < K) & (n < N), other=0.0)
        total += tl.dot(x, w, input_precision="ieee")
    tl.store(y_ptr + m * N + n, total, mask=(m < M) & (n < N))"""
PARTS = """@triton.jit
def parts(x_ptr, p_ptr, N, BLOCK: tl.constexpr):
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * N + n, mask=n < N, other=0.0)
    tl.store(p_ptr + tl.program_id(0) * tl.num_programs(1) + tl.program_id(1), tl.sum(x, 0))


@triton.jit
def whole(p_ptr, y_ptr, P, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    part = tl.load(p_ptr + tl.program_id(0) * P + at, mask=at < P, other=0.0)
    tl.store(y_ptr + tl.program_id(0), tl.sum(part, 0))"""
ATOMIC = """@triton.jit
def kernel(x_ptr, y_ptr, N, BLOCK: tl.constexpr):
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * N + n, mask=n < N, other=0.0)
    tl.atomic_add(y_ptr + tl.program_id(0), tl.sum(x, 0))"""
STRIDES = """@triton.jit
def kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    for start in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + at, mask=at < n)
        tl.store(y_ptr + at, x * 3.0, mask=at < n)"""
LOOP = """@triton.jit
def kernel(x_ptr, y_ptr, N, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, N, BLOCK):
        n = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + row * N + n, mask=n < N, other=0.0)
    tl.store(y_ptr + row, tl.sum(total, 0))"""
GRID = "(triton.cdiv(x.numel(), 256),)"
OTHERS = {  # name: reference, kernels, launcher, tensors, output
    "turned": ("x.t().contiguous()", TURNED,
               "M, N = x.shape\ny = x.new_empty(N, M)\n"
               "kernel[(triton.cdiv(M, 32), triton.cdiv(N, 32))](x, y, M, N, BM=32, BN=32)\n"
               "return y", "x", "N M"),
    "product": ("x @ w", PRODUCT,
                "(M, K), N = x.shape, w.shape[1]\ny = x.new_empty(M, N)\n"
                "grid = lambda meta: (triton.cdiv(M, meta['BM']), triton.cdiv(N, meta['BN']))\n"
                "kernel[grid](x, w, y, M, N, K, BM=32, BN=32, BK=32)\nreturn y", "xw", "M N"),
    "two_launches": ("x.sum(1)", PARTS,
                     "M, N = x.shape\nP = triton.cdiv(N, 64)\n"
                     "p, y = x.new_empty(M, P), x.new_empty(M)\nparts[(M, P)](x, p, N, BLOCK=64)\n"
                     "whole[(M,)](p, y, P, BLOCK=triton.next_power_of_2(P))\nreturn y", "x", "M"),
    "atomic": ("x.sum(1)", ATOMIC,
               "M, N = x.shape\ny = torch.zeros(M, device=x.device, dtype=x.dtype)\n"
               "kernel[(M, triton.cdiv(N, 64))](x, y, N, BLOCK=64)\nreturn y", "x", "M"),
    "strides": ("3 * x", STRIDES,
                "y = torch.empty_like(x)\nkernel[(64,)](x, y, x.numel(), BLOCK=256)\nreturn y",
                "x", "M N"),
    "loop": ("x.sum(1)", LOOP,
             "M, N = x.shape\ny = x.new_empty(M)\nkernel[(M,)](x, y, N, BLOCK=64)\nreturn y",
             "x", "M"),
}  # fmt: skip


def plain() -> Iterator[tuple[str, str, str]]:
    """Yield the name, the Spec and the file of each plain kernel."""
    for names, table in (("x", UNARY), ("xw", BINARY)):
        for name, (reference, device) in table.items():
            loads = "\n".join(f"    {n} = tl.load({n}_ptr + at, mask=inside)" for n in names)
            pointers = ", ".join(f"{n}_ptr" for n in names)
            kernel = ELEMENTS.format(pointers=pointers, loads=loads, device=device)
            given = ", ".join(names)
            launch = f"y = torch.empty_like(x)\nkernel[{GRID}]({given}, y, x.numel(), BLOCK=256)\n"
            yield name, _spec(name, reference, names, "M N"), _file(name, kernel, launch, names)
    for name, (reference, lines, is_row, other) in OF_ROWS.items():
        device = "\n".join(f"    {line}" for line in lines.split("; "))
        kernel = ROWS.format(other=other, device=device + "\n" + (WHOLE if is_row else ONE))
        y = "torch.empty_like(x)" if is_row else "x.new_empty(x.shape[0])"
        block = "triton.next_power_of_2(x.shape[1])"
        launch = f"y = {y}\nkernel[(x.shape[0],)](x, y, x.shape[1], BLOCK={block})\n"
        spec = _spec(name, reference, "x", "M N" if is_row else "M")
        yield name, spec, _file(name, kernel, launch, "x")
    for name, (reference, kernels, launch, names, output) in OTHERS.items():
        spec = _spec(name, reference, names, output, product=name == "product")
        yield name, spec, _file(name, kernels, launch.removesuffix("return y"), names)


def _spec(name: str, reference: str, names: str, output: str, product: bool = False) -> str:
    axes = "M, N, K" if product else "M, N"
    of = {"x": "M K", "w": "K N"} if product else dict.fromkeys("xw", "M N")
    tensors = ", ".join(f'"{n}": Tensor("{of[n]}")' for n in names)
    sizes = [(4, 64, 32), (5, 77, 40), (37, 300, 70)], (8192, 4096, 1024)
    text = [str(dict(zip("MNK", s, strict=True) if product else zip("MN", s[:2], strict=True)))
            for s in (*sizes[0], sizes[1])]  # fmt: skip
    return SPEC.format(
        name=name, inputs=", ".join(names), reference=reference, tensors=tensors, output=output,
        axes=axes, flops="2 * M * N * K" if product else "2 * M * N", check=", ".join(text[:3]),
        bench=text[3],
    )  # fmt: skip


def _file(name: str, kernels: str, launch: str, names: str) -> str:
    lines = "\n".join(f"    {line}" for line in f"{launch.strip()}\nreturn y".splitlines())
    return FILE.format(name=name, kernels=kernels, inputs=", ".join(names), launch=lines)


def cases(only: str | None, by_path: bool, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the title of each kernel with the arguments of its evaluation."""
    if only != "library":
        for name, task, text in plain():
            (folder / f"spec_{name}.py").write_text(task)
            (folder / f"{name}.py").write_text(text)
            yield f"plain.{name}", {
                "kernel": folder / f"{name}.py", "spec": folder / f"spec_{name}.py",
                "dtype": "fp32",
            }  # fmt: skip
    if only != "plain":
        for kernel in catalog.kernel_names():
            spec = catalog.spec_of(kernel)
            dtype = "fp32" if "fp32" in spec.tolerance else next(iter(spec.tolerance))
            for impl in spec.impls:
                if impl.backend == "triton":
                    file = KERNELS / f"{kernel}.py" if by_path else kernel
                    given = {"kernel": file, "spec": kernel, "impl": impl.name, "dtype": dtype}
                    yield impl.title, given


def main() -> None:
    """Judge all, print the table and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", help="for example h200; the GPU of this machine by default")
    parser.add_argument("--only", choices=("plain", "library"))
    parser.add_argument("--by-path", action="store_true", help="read the library's files, too")
    parser.add_argument("--match", default="", help="titles that hold this text")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows: list[tuple[str, str, list[str], str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        for title, more in cases(given.only, given.by_path, Path(folder)):
            if given.match not in title:
                continue
            begin = time.monotonic()
            try:
                try:
                    result = workbench.evaluate(**more, device=given.device, progress=False)
                except workbench.WorkbenchError:  # its products are of 16-bit inputs
                    more["dtype"] = "bf16"
                    result = workbench.evaluate(**more, device=given.device, progress=False)
                claims, word = result.claims, result.verdict
                reason = result.reason or (
                    str(result)
                    and next(
                        (r["reason"] for r in result.rules if r["shown"] == "claim"),
                        next((r["reason"] for r in result.rules if r["state"] == "not run"), ""),
                    )
                )
            except workbench.WorkbenchError as error:
                claims, word, reason = (), "no verdict", str(error)
            seconds = time.monotonic() - begin
            rows.append((title, word, list(claims), reason, seconds))
            if word != "correct":
                print(f"{title:40} {word:10} {', '.join(claims):30} {reason}", flush=True)
            if given.out:
                given.out.write_text(json.dumps(rows, indent=0))
    for kind in ("plain.", ""):
        some = [r for r in rows if r[0].startswith("plain.") == bool(kind)]
        counts = Counter(word for _, word, *_ in some)
        print(kind or "library", len(some), dict(counts), f"{sum(r[4] for r in some):.0f} s")


if __name__ == "__main__":
    main()
