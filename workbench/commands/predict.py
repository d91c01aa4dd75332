"""Name the fastest configs of a kernel by predicted time, without a GPU and without a sweep."""

from __future__ import annotations

from dataclasses import MISSING
from pathlib import Path

from workbench.commands import field
from workbench.commands.field import DTYPE, KERNEL, SIZES, argument, option
from workbench.commands.options import Options


class PredictOptions(Options):
    kernel: str = argument(f"{KERNEL} Or a function: path/to/mine.py:kernel.", MISSING, "KERNEL")
    impl: tuple[str, ...] = option((), "This Impl only; may be repeated. Default: all Triton.")
    sizes: str | None = option(None, f"{SIZES}. Default: the kernel's first.")
    dtype: str = option("bf16", DTYPE)
    device: str | None = option(None, "Predict for this device; by default for the GPU here.")
    arg: tuple[str, ...] = option(
        (), "Of a function: x=bf16[8192,4096], i=int64[4096]<32000 or n=4096; once an argument."
    )
    grid: str = option("", "Of a function: 'cdiv(M, BM), cdiv(N, BN)'.")
    config: tuple[str, ...] = option(
        (), "Of a function: BM=64,num_warps=4; repeated. Default: those of @triton.autotune."
    )
    config_from: str | None = field.config_from()
    quiet: bool = field.quiet()
    json: Path | None = field.json()


def run(options: PredictOptions, process_ends: bool = False) -> int:
    """Run the command. Returns its exit code. A process that `process_ends` with it never uses
    Triton later, so it imports kernels' files without."""
    from workbench.commands.predict_ranking import predict

    return predict(options, process_ends)
