"""How fast are our kernels beside the best public ones? The table of goals, on one NVIDIA H200.

Each case is one final of our Impls at their default configs and the libraries' own, on the same
inputs. The best public kernel was measured elsewhere (data/peers_h200.json), so its time is never
divided by: its ratio to a library that runs in both is, which is called the link. Where no library
runs in both there is no ratio.

    python benchmarks/kernels.py --out kernels.json
    python benchmarks/kernels.py --only softmax norm --final-s 3
    python benchmarks/kernels.py --products --out products.json
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

from runs import HERE, ROOT, Compile, fill_cache, save, say, show

PEER_FILE = HERE / "data" / "peers_h200.json"
COPY = 4240e9  # bytes a second that a copy of 1 GiB of bf16 reaches there
LINKS = {
    "liger": "liger", "torch.compile": "torch.compile", "torch.mm": "torch",
    "torch.softmax": "torch", "torch.layer_norm": "torch", "torch.eager": "torch",
    "peft.eager": "torch", "torch._scaled_mm": "torch._scaled_mm", "sdpa.cudnn": "cudnn",
    "cublas.addmm_only": "product", "cublas.base_only": "product",
}  # fmt: skip  # a stored peer's name, and that of the same call in a final of ours
FINALISTS = 4  # of ours: the best at the power limit was fourth in the bursts of the first pass
FAR = 4.0  # times the best: so slow a library's version is not timed again


@dataclass(frozen=True)
class Goal:
    """One case: a kernel at real sizes, and what is asked of it."""

    kernel: str
    sizes: Mapping[str, int]
    dtype: str = "bf16"
    peer: tuple[str, Mapping[str, Any]] | None = None  # which line of the peers' file
    peer_name: str | None = None  # which peer of the line, where not the best
    factor: float | None = None  # of the peer's time
    us: float | None = None  # or at most this
    copy_share: float | None = None  # or this share of the rate of a copy
    # inputs that are alike everywhere
    fixed_inputs: Mapping[str, float] = field(default_factory=dict)
    excluded_impls: tuple[str, ...] = ()  # libraries' versions that take seconds
    product: Mapping[str, int] | None = None  # torch's matmul of these sizes, timed in turns
    column_major_input: str | None = None  # the input that lies by columns
    # a library in the same final, and the share of its time
    library_share: tuple[str, float] | None = None

    @property
    def name(self) -> str:
        """`softmax 8192x4096 bf16`."""
        also = "".join(f" {k}={v:g}" for k, v in self.fixed_inputs.items() if k in ("k", "p"))
        also += f" {self.column_major_input} by columns" if self.column_major_input else ""
        return f"{self.kernel} {'x'.join(map(str, self.sizes.values()))} {self.dtype}{also}"


def rows(kernel: str, what: str, M: int, N: int, **goal: Any) -> Goal:
    return Goal(kernel, {"M": M, "N": N}, peer=(what, {"M": M, "N": N}), **goal)


def product(M: int, N: int, K: int) -> Goal:
    at = {"M": M, "N": N, "K": K}
    return Goal("matmul", at, peer=("gemm", {**at, "lay": "nn"}), factor=1 / 0.92)


def fp8(kernel: str, n: int) -> Goal:
    at = {"M": n, "N": n, "K": n}
    return Goal(kernel, at, "fp8", peer=("gemm", at), factor=1 / 0.97)


def q4(M: int, N: int, K: int, **goal: Any) -> Goal:
    at = {"M": M, "N": N, "K": K}
    return Goal("q4_k_matmul", at, "fp16", peer=("q4_gemm", at), **goal)


def wkv(version: int, B: int, T: int, factor: float) -> Goal:
    at = {"B": B, "T": T, "H": 40, "N": 64}
    what = f"wkv{version}" + ("_decode" if T == 1 else "")
    return Goal(f"wkv{version}", at, peer=(what, at), factor=factor, excluded_impls=("torch",))


def sample(B: int, k: int, us: float | None) -> Goal:
    fixed = {"k": k, "p": 0.9, "temperature": 1.0} if k else {"p": 0.9, "temperature": 1.0}
    at = {"V": 128_256, "B": B, "k": k, "p": 0.9}
    kernel = "sample_topk_topp" if k else "sample_top_p"
    sizes = {"B": B, "V": 128_256}
    return Goal(kernel, sizes, peer=("sample", at), us=us, fixed_inputs=fixed)


def attention(
    B: int, S: int, D: int, causal: int, share: float, heads: tuple[int, int] | None = None
) -> Goal:
    """At most this share of cuDNN's time in the same final. Of 16 heads, where none are given, the
    times of public kernels are stored."""
    Hkv, G = heads or (16, 1)
    sizes = {"B": B, "S": S, "Hkv": Hkv, "G": G, "D": D, **({} if causal else {"T": S})}
    at = {"B": B, "S": S, "H": 16, "D": D, "causal": causal}
    kernel = "causal_attention" if causal else "attention"
    stored = None if heads else ("attn_fwd", at)
    return Goal(kernel, sizes, peer=stored, library_share=("cudnn", share))


def attention_gradients(
    B: int, S: int, Hkv: int, G: int, D: int, dtype: str = "bf16"
) -> list[Goal]:
    """Return a goal of each mask: at most 1.10 of cuDNN's time in the same final, which fp32 has
    not."""
    sizes = {"B": B, "S": S, "Hkv": Hkv, "G": G, "D": D}
    beside = ("cudnn", 1.10) if dtype == "bf16" else None
    return [
        Goal("attention_backward", {**sizes, "T": S}, dtype, library_share=beside),
        Goal("causal_attention_backward", sizes, dtype, library_share=beside),
    ]


def goals_at(kernel: str, axes: str, dtype: str, *sizes: Sequence[int]) -> list[Goal]:
    """Return a goal for each of these sizes, of which nothing is asked."""
    return [Goal(kernel, dict(zip(axes.split(), at, strict=True)), dtype) for at in sizes]


def delta(d: int, r: int, us: float) -> Goal:
    at = {"M": 64, "K": d, "N": d, "r": r}
    return Goal("lora_delta", at, "fp32", peer=("lora_delta", at), us=us)


GOALS = (
    rows("softmax", "softmax", 8192, 4096, factor=1.0),
    rows("softmax", "softmax", 2048, 32_768, factor=1.0),
    rows("softmax", "softmax", 1024, 131_072, factor=1.05),
    rows("softmax", "softmax", 32_768, 1024, copy_share=0.95),
    rows("softmax", "softmax", 512, 262_144, copy_share=0.88),
    rows("rms_norm", "rms_norm", 8192, 8192, factor=1.0),
    rows("rms_norm", "rms_norm", 8192, 4096),
    rows("rms_norm", "rms_norm", 2048, 32_768),
    rows("rms_norm", "rms_norm", 32, 4096),
    rows("rms_norm", "rms_norm", 1, 5120, us=2.0),
    rows("fused_add_rms_norm", "fused_add_rms_norm", 8192, 8192, factor=1.0),
    rows("fused_add_rms_norm", "fused_add_rms_norm", 8192, 4096),
    rows("fused_add_rms_norm", "fused_add_rms_norm", 2048, 32_768),
    rows("fused_add_rms_norm", "fused_add_rms_norm", 1, 5120),
    rows("layer_norm", "layer_norm", 8192, 4096, factor=0.95),
    rows("layer_norm", "layer_norm", 8192, 8192, factor=0.95),
    rows("layer_norm", "layer_norm", 2048, 32_768, factor=0.95),
    *(product(n, n, n) for n in (1024, 2048, 2560, 4096, 8192, 16_384)),
    product(8192, 8192, 512), product(8192, 8192, 1024), product(4096, 4096, 14_336),
    product(16, 4096, 4096), product(64, 4096, 4096), product(128, 8192, 8192),
    product(1000, 3000, 1500), product(232_064, 768, 768),
    Goal("matmul", {"M": 2560, "N": 10_240, "K": 2560}, library_share=("torch", 1.02)),
    Goal("matmul", {"M": 1536, "N": 8960, "K": 1536}, library_share=("torch", 1.02)),
    fp8("fp8_matmul", 4096), fp8("fp8_matmul", 8192), fp8("fp8_block_matmul", 4096),
    q4(1, 2560, 2560, us=4.0), q4(1, 14_336, 4096, us=12.5), q4(1, 28_672, 8192, us=36.0),
    q4(4, 2560, 2560, us=4.4), q4(4, 14_336, 4096, us=13.75), q4(4, 28_672, 8192, us=39.6),
    *(q4(M, N, 4096, factor=0.95) for N in (4096, 14_336) for M in (16, 64)),
    Goal("q4_k_matmul", {"M": 512, "N": 14_336, "K": 4096}, "fp16", library_share=("product", 1.0),
         product={"M": 512, "N": 14_336, "K": 4096}),
    wkv(7, 8, 4096, 0.80), wkv(7, 1, 4096, 0.80), wkv(6, 8, 4096, 0.80), wkv(6, 1, 4096, 0.80),
    wkv(7, 64, 1, 0.90), wkv(6, 64, 1, 0.90),
    sample(1, 50, 15.0), sample(8, 50, 18.0), sample(64, 50, 45.0), sample(256, 50, 130.0),
    sample(1, 0, 25.0), sample(64, 0, 80.0),
    Goal("lora", {"M": 8192, "N": 4096, "K": 4096, "r": 16},
         peer=("lora", {"M": 8192, "K": 4096, "N": 4096, "r": 8}), peer_name="cublas.base_only",
         factor=1.05, product={"M": 8192, "N": 4096, "K": 4096}),
    *(Goal("lora", {"M": 512, "N": 4096, "K": 4096, "r": r},
           library_share=("product", 1.06), product={"M": 512, "N": 4096, "K": 4096})
      for r in (8, 16, 64)),
    Goal("lora", {"M": 16, "N": 4096, "K": 4096, "r": 16},
         peer=("lora", {"M": 16, "K": 4096, "N": 4096, "r": 16}), us=15.5),
    delta(512, 8, 4.0), delta(1024, 8, 4.0), delta(2048, 8, 6.0),
    *(delta(1024, r, 4.0) for r in (4, 16, 32, 64)),
    Goal("patch_embed", {"M": 928_256, "N": 768, "K": 768, "P": 196},
         peer=("patch_embed", {"M": 928_256, "K": 768, "N": 768}), factor=1.05,
         product={"M": 928_256, "N": 768, "K": 768}),
    attention(2, 8192, 128, 0, 0.93), attention(2, 8192, 128, 1, 0.85),
    attention(8, 2048, 128, 0, 0.94), attention(8, 2048, 128, 1, 0.85),
    attention(2, 8192, 64, 0, 0.97), attention(2, 8192, 64, 1, 1.0, (16, 1)),
    *(attention(16, 1024, D, 0, 1.0, (16, 1)) for D in (72, 80, 96)),
    attention(4, 3001, 128, 0, 1.0, (16, 1)), attention(4, 3001, 128, 1, 1.0, (16, 1)),
    attention(2, 8192, 128, 0, 1.0, (8, 4)), attention(2, 8192, 128, 1, 1.0, (8, 4)),
    *(attention(*at[:2], D, causal, 1.0, at[2:]) for D in (192, 256) for causal in (0, 1)
      for at in ((2, 8192, 8, 1), (8, 2048, 8, 1), (2, 4096, 4, 4))),
    attention(1, 12288, 256, 1, 1.0, (8, 1)), attention(8, 279, 256, 0, 1.0, (16, 1)),
    *(goal for at in ((2, 4096, 16, 1, 128), (4, 2048, 16, 1, 128), (2, 4096, 16, 1, 64),
                      (2, 4096, 8, 4, 128)) for goal in attention_gradients(*at)),
    Goal("decode_attention", {"B": 64, "Hkv": 8, "G": 4, "D": 128, "T": 8192},
         peer=("attn_decode", {"B": 64, "Hq": 32, "Hkv": 8, "D": 128, "KV": 8192}), factor=1.0,
         fixed_inputs={"lens": 8192}),
    rows("swiglu", "swiglu", 8192, 14_336, factor=1.0),
    rows("swiglu", "swiglu", 64, 14_336),
    Goal("rope", {"S": 8192, "Hq": 32, "Hkv": 8, "D": 128},
         peer=("rope", {"T": 8192, "Hq": 32, "Hkv": 8, "D": 128}), factor=0.95),
    # Nothing is asked: `workbench.ops` chooses among several Impls by what is measured here.
    *goals_at("softmax", "M N", "fp32", (8192, 4096), (32_768, 1024), (2048, 32_768), (512, 65_536),
        (1024, 131_072)),
    *goals_at("rms_norm", "M N", "fp32", (8192, 4096), (2048, 32_768), (32, 4096)),
    *goals_at("fused_add_rms_norm", "M N", "fp32", (8192, 4096), (2048, 32_768), (32, 4096)),
    *goals_at("layer_norm", "M N", "fp32", (8192, 4096), (2048, 32_768), (32, 4096)),
    *goals_at("matmul", "M N K", "fp32", (1024, 1024, 1024), (4096, 4096, 4096), (16, 4096, 4096),
        (64, 4096, 4096), (256, 4096, 4096), (1000, 3000, 1500)),
    *goals_at("q4_k_matmul", "M N K", "fp32", (1, 2560, 2560), (1, 14_336, 4096), (4, 14_336, 4096),
        (16, 2560, 2560), (16, 14_336, 4096), (64, 14_336, 4096), (512, 14_336, 4096)),
    *goals_at("attention", "B S Hkv G D T", "fp32", (2, 2048, 16, 1, 64, 2048)),
    *goals_at("causal_attention", "B S Hkv G D", "fp32", (2, 2048, 16, 1, 64)),
    *(goal for D in (64, 128) for goal in attention_gradients(2, 2048, 16, 1, D, "fp32")),
    *goals_at("lora", "M N K r", "fp32", (8192, 4096, 4096, 16), (512, 4096, 4096, 16),
        (16, 4096, 4096, 16)),
    *goals_at("lora_delta", "M K N r", "bf16", (64, 512, 512, 8), (64, 1024, 1024, 8),
        (64, 2048, 2048, 8), (64, 1024, 1024, 64)),
    *(goal for kernel in ("wkv6", "wkv7") for goal in
      goals_at(kernel, "B T H N", "fp32", (8, 4096, 40, 64), (1, 4096, 40, 64), (64, 1, 40, 64))),
    *goals_at("patch_embed", "M N K P", "fp32", (50_176, 768, 768, 196)),
    *(goal for dtype in ("bf16", "fp32") for goal in (
        *goals_at("cross_entropy", "M V", dtype, (4096, 128_256), (16, 128_256), (8192, 32_000)),
        *goals_at("cumsum", "M N", dtype, (4096, 8192), (8, 4_194_304)),
        *goals_at("grouped_matmul", "G T N K", dtype, (8, 8192, 14_336, 4096),
            (64, 16_384, 2816, 2048), (64, 512, 2816, 2048)),
        *goals_at("matvec", "M N K", dtype, (1, 2560, 2560), (1, 14_336, 4096), (4, 14_336, 4096),
            (16, 14_336, 4096)),
        *goals_at("reduce", "M N", dtype, (8192, 8192), (1, 67_108_864), (1_048_576, 64)))),
)  # fmt: skip

# Products of which no size is won by padding: squares, long and short K, and layers of models at
# few and many rows. Each with b by rows and by columns, as torch's weights lie.
SIZES_OF_PRODUCTS = (
    *((n, n, n) for n in (1024, 1536, 2048, 2560, 3072, 4096, 5120, 6144, 8192)),
    (8192, 8192, 512), (8192, 8192, 1024), (4096, 4096, 14_336), (232_064, 768, 768),
    *((M, 4096, 4096) for M in (16, 64, 512, 2048, 8192)),
    *((M, 14_336, 4096) for M in (16, 128, 1024, 4096)),
    *((M, 4096, 14_336) for M in (64, 512, 2048)),
    (128, 8192, 8192), (1024, 8192, 8192),
    (2560, 10_240, 2560), (1536, 8960, 1536), (1280, 5120, 1664),
)  # fmt: skip
PRODUCTS = tuple(
    Goal(
        "matmul",
        {"M": M, "N": N, "K": K},
        library_share=("torch", 1.03),
        column_major_input=columns,
    )
    for M, N, K in SIZES_OF_PRODUCTS
    for columns in (None, "b")
)


# What was asked


def peer_line(goal: Goal, lines: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]] | None:
    """Return the stored peers of the goal's case, the fastest first; None where none are stored."""
    if goal.peer is None:
        return None
    what, at = goal.peer
    for line in lines:
        same = line["what"] == what and line["dtype"] == goal.dtype and "std" not in line["at"]
        if same and all(line["at"].get(k) == v for k, v in at.items()):
            return list(line["peers"])
    return None


def best_peer(goal: Goal, lines: Sequence[Mapping[str, Any]]) -> tuple[str, float] | None:
    """Return name and microseconds of the peer that the goal names, or of the best."""
    for peer in peer_line(goal, lines) or ():
        if goal.peer_name in (None, peer["name"]):
            return peer["name"], peer["us"]
    return None


def link_of(
    goal: Goal, final: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]
) -> tuple[str, float] | None:
    """Return the fastest stored peer that is in the final, too, and its time in the final over
    the stored one; None where none is in both."""
    for peer in peer_line(goal, lines) or ():
        name = LINKS.get(peer["name"])
        if "us" in final.get(name, {}):
            return peer["name"], final[name]["us"] / peer["us"]
    return None


def limit_us(goal: Goal, moved: int | None) -> float | None:
    """Return the goal in microseconds; None where it is a ratio or none was set."""
    if goal.us is not None:
        return goal.us
    if goal.copy_share is None or moved is None:
        return None
    return moved / (goal.copy_share * COPY) * 1e6


def pick_goals(words: Sequence[str], goals: Sequence[Goal]) -> list[Goal]:
    """Return the goals whose names hold one of the words; all where there are no words."""
    return [g for g in goals if not words or any(w in g.name for w in words)]


# In a process of its own, which is replaced where the GPU is lost


def measure(context: argparse.Namespace, goals: Sequence[Goal], known: dict[str, Any]) -> None:
    """Time what is not yet known; the file is written after each case."""
    import torch

    from workbench.measurement.preflight import gpu_lock, lock_name

    with gpu_lock(lock_name(torch.cuda.current_device()), lambda text: None):
        for goal in goals:
            if goal.name in known["cases"]:
                continue
            if time.time() > context.until:
                return
            known["at"] = goal.name
            save(context.out, known)
            started = time.perf_counter()
            try:
                row = time_goal(goal, context.final_s, context.compiled)
            except Exception as error:
                row = {"reason": f"{type(error).__name__}: {error}"[:300]}
                torch.cuda.synchronize()  # raises where the GPU is lost: the parent goes on
            row |= {"took_s": time.perf_counter() - started, "on": f"{date.today()}"}
            known["cases"][goal.name] = row
            save(context.out, known)
            print(line_of(goal, row, peers()), flush=True)
            torch.cuda.empty_cache()


def time_goal(goal: Goal, final_s: float, compiled: bool) -> dict[str, Any]:
    """A screen of each way to compute it, then one final of the fastest."""
    from workbench import catalog
    from workbench.measurement import worker
    from workbench.measurement.candidate import Refusal
    from workbench.measurement.protocol import Protocol

    try:
        spec = catalog.spec_of(goal.kernel)
    except catalog.CatalogError as error:
        return {"missing": str(error)}
    if sorted(goal.sizes) != sorted(spec.axes):
        return {"missing": f"{goal.kernel} has the axes {', '.join(spec.axes)}"}
    created = dict(spec.inputs)
    for name, value in goal.fixed_inputs.items():
        if name in created:
            created[name] = replace(created[name], make=Same(value))
    if goal.column_major_input:
        created[goal.column_major_input] = replace(
            created[goal.column_major_input], make=column_major_normals
        )
    kept, row = dict(spec.inputs), {"bytes": spec.bytes(goal.sizes, goal.dtype), "refused": {}}
    ours = {i.name for i in spec.impls if i.backend == "triton"}
    spec.inputs.update(created)  # type: ignore[attr-defined]
    try:
        protocol = replace(Protocol(), final_s=final_s)
        worker.begin(worker.MeasureJob(goal.kernel, dict(goal.sizes), goal.dtype, protocol))
        choices = choices_of(spec, goal, compiled, row["refused"])
        row["first_pass"] = first_pass(choices, row["refused"])
        finalists = choose_finalists(row["first_pass"], ours)
        entering = [c for c in choices if c.case.impl in finalists]
        results, _ = worker.final(
            entering, [row["first_pass"][c.case.impl] / 1e6 for c in entering]
        )
    finally:
        spec.inputs.update(kept)  # type: ignore[attr-defined]
    row["final"] = {}
    for choice, result in zip(entering, results, strict=True):
        case = choice.case
        if isinstance(result, Refusal):
            row["refused"][case.impl] = result.reason
            continue
        t = result.timing
        row["final"][case.impl] = {
            "us": t.median_s * 1e6, "low_us": t.low_s * 1e6, "high_us": t.high_s * 1e6,
            "config": dict(case.config), "ours": case.impl in ours, "method": t.method,
            "stable": t.stable, "sm_mhz": t.sm_mhz, "error": result.error,
        }  # fmt: skip
    if goal.product is not None:
        row["turns"] = time_in_turns(goal, row["final"], protocol)
    return row


def time_in_turns(goal: Goal, final: Mapping[str, Any], protocol: Any) -> dict[str, Any]:
    """Time the best of ours and the product that it contains in turns, on their own inputs."""
    from workbench.measurement import worker
    from workbench.measurement.candidate import Candidate, Refusal

    mine = fastest(final, ours=True)
    if mine is None:
        return {}
    job = worker.MeasureJob(goal.kernel, dict(goal.sizes), goal.dtype, protocol)
    product = worker.MeasureJob("matmul", dict(goal.product or {}), goal.dtype, protocol)
    tasks = [
        worker.WorkerTask(job, Candidate.create(mine, final[mine]["config"])),
        worker.WorkerTask(product, Candidate.create("torch", {})),
    ]
    results, _ = worker.measure_interleaved(tasks)
    timings: dict[str, Any] = {}
    for name, task in zip((mine, "product"), results, strict=True):
        result = task.result
        timings[name] = (
            {"reason": result.reason}
            if isinstance(result, Refusal)
            else {"us": result.timing.median_s * 1e6, "ours": name == mine}
        )
    return timings


@dataclass(frozen=True)
class Same:
    """Makes an input that has one value everywhere."""

    value: float

    def __call__(self, shape: Any, dtype: Any, device: str, generator: Any) -> Any:
        import torch

        return torch.full(shape, self.value, device=device).to(dtype)


def column_major_normals(shape: Any, dtype: Any, device: str, generator: Any) -> Any:
    """Make normal numbers in a matrix that lies by columns."""
    import torch

    rows = torch.randn(shape[::-1], generator=generator, device=device, dtype=torch.float32)
    return rows.to(dtype).T


def choices_of(spec: Any, goal: Goal, compiled: bool, refused: dict[str, Any]) -> list[Any]:
    """Our Impls at their defaults, and the libraries' versions."""
    from workbench.device import hardware
    from workbench.measurement.candidate import Candidate
    from workbench.spec import values

    device = hardware.live()
    assert device is not None
    choices = []
    for impl in spec.impls:
        if impl.backend == "triton":
            config = impl.default(device.limits, goal.dtype, goal.sizes)
            if reason := impl.rejection_reason(config, device.limits, goal.dtype, goal.sizes):
                refused[impl.name] = reason
            else:
                choices.append(Candidate.create(impl.name, values(config)))
        elif (
            impl.backend == "torch"
            and impl.name not in goal.excluded_impls
            and (compiled or impl.name != "torch.compile")
        ):
            choices.append(Candidate.create(impl.name, {}))
    return choices


def first_pass(choices: Sequence[Any], refused: dict[str, Any]) -> dict[str, float]:
    """Microseconds by a short look at each; what is wrong or fails is told in `refused`."""
    from workbench.measurement import worker
    from workbench.measurement.candidate import Refusal

    results: dict[str, float] = {}
    for choice in choices:
        result, _ = worker.first_pass(choice, min(results.values()) / 1e6 if results else None)
        if isinstance(result, Refusal):
            refused[choice.case.impl] = result.reason
        else:
            results[choice.case.impl] = result.timing.median_s * 1e6
    return results


def choose_finalists(times: Mapping[str, float], ours: set[str]) -> set[str]:
    """The fastest of ours, and every library that is not far behind."""
    ranked = sorted(times, key=times.__getitem__)
    mine = [name for name in ranked if name in ours][:FINALISTS]
    best = times[ranked[0]] if ranked else 0.0
    return {*mine, *(n for n in ranked if n not in ours and times[n] <= FAR * best)}


# The table

HEADS = ["kernel and sizes", "ours us", "Impl", "library us", "library", "ours/library",
         "best public kernel", "its us, in a run of its own", "link", "ours/best", "asked",
         "met", "on"]  # fmt: skip


def peers() -> list[dict[str, Any]]:
    """Return the lines of the peers' file."""
    return list(json.loads(PEER_FILE.read_text())["lines"])


def fastest(final: Mapping[str, Any], ours: bool) -> str | None:
    """Return the fastest of ours or of the libraries; None where none has a time."""
    names = [n for n in final if final[n].get("ours") is ours and "us" in final[n]]
    return min(names, key=lambda n: final[n]["us"], default=None)


def ratio_to_peer(
    goal: Goal, row: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]
) -> tuple[str, float] | None:
    """Return the link and our time over that of the best public kernel, by way of the link: both
    sides of each quotient are of one run."""
    peer = best_peer(goal, lines)
    final = row.get("turns") or row.get("final", {})
    mine, link = fastest(final, ours=True), link_of(goal, final, lines)
    if peer is None or mine is None or link is None:
        return None
    name, scale = link
    return name, final[mine]["us"] / (peer[1] * scale)


def cells(goal: Goal, row: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return one line of the table."""
    peer, ratio = best_peer(goal, lines), ratio_to_peer(goal, row, lines)
    final = row.get("final", {})
    mine, lib = fastest(final, ours=True), fastest(final, ours=False)
    us, lib_us = (final[name]["us"] if name else None for name in (mine, lib))
    goal_us = limit_us(goal, row.get("bytes"))
    goal_text = f"{goal_us:.4g} us" if goal_us else f"{goal.factor:.4g}" if goal.factor else None
    beside = None
    if goal.library_share is not None:
        name, share = goal.library_share
        goal_text = f"{share:.4g} of {name}"
        turns = row.get("turns") or {}
        both = turns if name in turns else final
        best = fastest(both, ours=True)
        there = best and "us" in both.get(name, {})
        beside = both[best]["us"] / both[name]["us"] if there else None
        if there and both is turns:
            us, lib_us, lib = turns[best]["us"], turns[name]["us"], f"{name}, in turns"
    reason = row.get("missing") or row.get("reason") or "; ".join(
        f"{n}: {w}" for n, w in row.get("refused", {}).items()
    )  # fmt: skip
    return [
        goal.name, us, mine or (reason or "not run")[:60], lib_us, lib,
        us / lib_us if us and lib_us else None, *(peer or (None, None)),
        ratio[0] if ratio else None, ratio[1] if ratio else None, goal_text,
        goal_verdict(goal, us, goal_us, beside or (ratio[1] if ratio else None)), row.get("on"),
    ]  # fmt: skip


def goal_verdict(
    goal: Goal, us: float | None, goal_us: float | None, ratio: float | None
) -> str | None:
    """Return `yes` or `no`; None without a goal, or without what it is compared with."""
    if us is not None and goal_us is not None:
        return "yes" if us <= goal_us else "no"
    factor = goal.factor if goal.library_share is None else goal.library_share[1]
    if ratio is None or factor is None:
        return None
    return "yes" if ratio <= factor else "no"


def line_of(goal: Goal, row: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> str:
    """A line of progress."""
    text = dict(zip(HEADS, cells(goal, row, lines), strict=True))
    parts = (f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in text.items() if v)
    return f"{row.get('took_s', 0.0):5.1f} s  " + ", ".join(parts)


def geomean(ratios: Sequence[float]) -> float | None:
    """None of nothing."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None


def table(goals: Sequence[Goal], known: Mapping[str, Any]) -> None:
    """Everything, and what holds for several cases together."""
    lines = peers()
    results = [cells(g, known["cases"].get(g.name, {}), lines) for g in goals]
    show(HEADS, results)
    at = HEADS.index("ours/library")
    ratios = [c[at] for g, c in zip(goals, results, strict=True) if g.kernel == "matmul" and c[at]]
    if ratios:
        print(f"matmul: geometric mean of ours/library {geomean(ratios):.3f} of {len(ratios)}")
    words = [c[HEADS.index("met")] for c in results]
    print(f"met {words.count('yes')}, not met {words.count('no')}, of {len(words)} cases")


def prewarm(goals: Sequence[Goal], context: argparse.Namespace) -> None:
    """Compile all defaults in many processes."""
    from workbench import catalog

    wanted = []
    for goal in goals:
        try:
            spec = catalog.spec_of(goal.kernel)
        except catalog.CatalogError:
            continue
        if sorted(goal.sizes) == sorted(spec.axes):
            wanted += [
                Compile(goal.kernel, impl.name, dict(goal.sizes), goal.dtype)
                for impl in spec.impls
                if impl.backend == "triton"
            ]
    say(f"compiling {len(wanted)} defaults")
    fill_cache(wanted, context.processes, max(1.0, context.until - time.time()))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=[], help="cases whose names hold these words")
    parser.add_argument("--products", action="store_true", help="60 products instead of the goals")
    parser.add_argument("--seconds", type=float, default=570.0, help="no case is begun after")
    parser.add_argument("--final-s", type=float, default=1.5, help="longest final of one case")
    parser.add_argument("--compiled", action="store_true", help="torch.compile too: slow to begin")
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--out", default="kernels.json", help="JSON file; what it holds is kept")
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    goals = pick_goals(wanted.only, PRODUCTS if wanted.products else GOALS)
    known = read(wanted.out)
    if wanted.until is not None:
        measure(wanted, goals, known)
        return
    wanted.until = time.time() + wanted.seconds
    prewarm([g for g in goals if g.name not in known["cases"]], wanted)
    command = [
        sys.executable,
        str(HERE / "kernels.py"),
        *sys.argv[1:],
        "--until",
        str(wanted.until),
    ]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    while True:
        # the compilers' own setting, without which nothing that they compiled is found
        environment = {"TRITON_DEFAULT_FP_FUSION": "1", **os.environ, "PYTHONPATH": path}
        code = run(command, environment, wanted.until + 60 - time.time())
        known = read(wanted.out)
        lost = known.get("at")
        if code == 0 or lost is None or lost in known["cases"] or time.time() > wanted.until:
            break
        known["cases"].setdefault(lost, {"reason": f"its process ended with {code}"})
        save(wanted.out, known)
    table(goals, known)


def run(command: Sequence[str], environment: Mapping[str, str], limit_s: float) -> int | None:
    """The exit code, or None where it was ended at the limit."""
    try:
        return subprocess.run(
            command, env=environment, timeout=max(limit_s, 1), check=False
        ).returncode
    except subprocess.TimeoutExpired:
        return None


def read(path: str) -> dict[str, Any]:
    """What an earlier run left."""
    where = Path(path)
    return json.loads(where.read_text()) if where.exists() else {"cases": {}}


if __name__ == "__main__":
    main()
