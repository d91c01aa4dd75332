"""Judge one kernel: is it correct, how fast is it, and which rule does it break?"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from workbench.commands import field
from workbench.commands.field import DEVICE, SIZES, argument, flag, option
from workbench.commands.options import Options

Sanitizer = Literal["sanitizer"]


class EvaluateOptions(Options):
    kernel: str | None = argument("A kernel's name, package.module, or file.", None)
    spec: str | None = option(
        None, "Kernel whose Spec judges it. Default: the one in the file, which is trusted."
    )
    impl: str | None = option(None, "tiles or tiles:block_m=128. Default: the file's first.")
    sizes: str | None = option(None, f"Sizes to time: {SIZES}. Default: the Spec's first.")
    dtype: str | None = option(None, "fp32, fp16 or bf16. Default: bf16, or the task's.")
    device: str | None = option(None, DEVICE)
    task: Path | None = option(
        None, "Judge a submission to a task of KernelBench, GPU MODE or flashinfer-bench."
    )
    require: tuple[Sanitizer, ...] = field.word_list(
        Sanitizer, "--require", "sanitizer: one call passes racecheck and memcheck."
    )
    accept_claims: bool = flag("`plausible` is exit code 0.", "--accept-claims")
    verify: Path | None = option(None, "Judge the kernel of this verdict's JSON file again.")
    reuse: Path | None = option(None, "Return this file's verdict if the contents are the same.")
    events_file: Path | None = field.file_option(
        None, "Events file (JSONL) to append to.", "--events-file"
    )
    events: bool = field.events()
    quiet: bool = field.quiet()
    json: Path | None = field.json("Write the verdict to this file; - is standard output.")
    annotate: bool = field.annotate()
    sarif: Path | None = field.sarif()


def run(options: EvaluateOptions) -> int:
    """Run the command. Returns its exit code: 0 if the kernel is correct, 1 if it breaks a rule, 3
    if that is undecided."""
    from workbench.commands.evaluate_kernel import evaluate

    return evaluate(options)
