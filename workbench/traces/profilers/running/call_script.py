"""The script of one call: a program that calls one kernel, for a profiler or by hand."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from workbench.spec import Sizes, sizes_text

SCRIPT = "call.py"
RANGE = "wb"  # name of the range around each marked call


@dataclass(frozen=True)
class OneCall:
    """A call of one Impl at one config, or of the Spec's reference where `impl` is None."""

    kernel: str  # name, dotted module, or the absolute path of a file
    title: str  # softmax.rows
    impl: str | None
    config: Mapping[str, int]
    sizes: Sizes
    dtype: str
    gpu: str  # `cuda`, `hip`, or empty for the CPU
    calls: int
    mutates: tuple[str, ...] = ()  # inputs that a call changes: restored before each


def script_of(call: OneCall, version: str) -> str:
    """Return the text of the script.

    The first call loads the code, the second is for a profiler that warms up; then `calls` calls
    stand in a range each, between two `workbench.step()`s and, on NVIDIA, cudaProfilerStart and
    Stop.
    """
    blocks = [_head(call, version), _setup(call), *_functions(call), _calls(call)]
    return "\n".join("\n".join(lines) for lines in blocks) + "\n"


def _head(call: OneCall, version: str) -> list[str]:
    dotted = "." in call.kernel and "/" not in call.kernel
    title = f"{call.title}, {sizes_text(call.sizes)}, {call.dtype}"
    title = title.replace("\\", "/").replace('"', "'")
    return [
        f'"""Call {title} on the {"GPU" if call.gpu else "CPU"}, for a profiler.',
        "",
        f"Written by `workbench profile` {version}. It also runs by itself: python {SCRIPT}",
        '"""',
        "",
        *(["import sys", ""] if dotted else []),
        "import torch",
        "",
        "import workbench",
        "from workbench import catalog",
        "from workbench.measurement import inputs",
        "",
        *([f"sys.path.append({os.getcwd()!r})"] if dotted else []),
    ]


def _setup(call: OneCall) -> list[str]:
    device = "cuda" if call.gpu else "cpu"
    lines = [f"spec = catalog.spec_of({call.kernel!r})"]
    if call.impl is not None:
        config = ", ".join(f"{name}={value!r}" for name, value in call.config.items())
        lines += [f"impl = catalog.impl_of(spec, {call.impl!r})", f"config = impl.config({config})"]
    lines.append(
        f"tensors = inputs.make(spec, {dict(call.sizes)!r}, {call.dtype!r}, {device!r}, seed=0)"
    )
    if call.mutates:
        lines += [
            f"changed = [list(spec.inputs).index(name) for name in {list(call.mutates)!r}]",
            "kept = {at: tensors[at].clone() for at in changed}",
        ]
    return lines


def _functions(call: OneCall) -> list[list[str]]:
    launch = "impl(*tensors, config=config)" if call.impl else "spec.reference(*tensors)"
    functions = [["", "", "def call():", f"    return {launch}"]]
    if call.mutates:
        loop = ["    for at, values in kept.items():", "        tensors[at].copy_(values)"]
        functions.append(["", "", "def restore():", *loop])
    return [*functions, ["", ""]]


def _calls(call: OneCall) -> list[str]:
    wait = ["torch.cuda.synchronize()"] if call.gpu else []
    restore = ["restore()"] if call.mutates else []
    nvidia = call.gpu == "cuda"
    inner = [
        *restore,
        *([f'torch.cuda.nvtx.range_push("{RANGE}")'] if nvidia else []),
        f'with torch.profiler.record_function("{RANGE}"):',
        "    call()",
        *(["torch.cuda.nvtx.range_pop()"] if nvidia else []),
    ]
    return [
        "call()  # loads the code",
        *wait,
        "workbench.step()",
        *restore,
        "call()  # a profiler warms up",
        *wait,
        "workbench.step()",
        *(["torch.cuda.cudart().cudaProfilerStart()"] if nvidia else []),
        f"for _ in range({call.calls}):",
        *(f"    {line}" for line in inner),
        *wait,
        *(["torch.cuda.cudart().cudaProfilerStop()"] if nvidia else []),
        "workbench.step()",
    ]
