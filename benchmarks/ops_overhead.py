"""Measure what a warm call of an operation costs the host above a launch of its kernel alone.

    python benchmarks/ops_overhead.py                              on a GPU
    TRITON_INTERPRET=1 python benchmarks/ops_overhead.py --stub    without one: the Python part

`launch` is the Impl's own launcher with the config that the operation chose, which allocates the
outputs and launches. `--stub` puts in its place a function that allocates the outputs alone, so
that the difference is what the operation adds: the dispatcher of torch and the lookup of the
choice. Times are of the host, in microseconds a call, on tensors so small that the GPU keeps up:
the least of many rounds of some calls, with a wait between rounds.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from workbench.catalog import spec_of
from workbench.measurement.inputs import make
from workbench.ops.choice import first_launch
from workbench.ops.derivatives import DERIVATIVES
from workbench.ops.operation import operation_of
from workbench.ops.shapes import outputs_of
from workbench.spec import Spec

KERNELS = ("softmax", "rms_norm", "lora", "rope", "wkv7", "group_norm")
CALLS = 20  # of a round
HEADS = ("operation", "inputs", "launch us", "operation us", "above us", "with gradient us")


def stub_spec(spec: Spec) -> Spec:
    """The same operation, whose Impls allocate their outputs and launch nothing."""

    like: list[torch.Tensor] = []

    def launch(*inputs: torch.Tensor, config: Any) -> Any:
        if not like:
            like.extend(outputs_of(spec, inputs))
        outputs = tuple(map(torch.empty_like, like))
        return outputs if len(outputs) > 1 else outputs[0]

    impls = [replace(impl, launch=launch) for impl in spec.impls if impl.backend == "triton"]
    stub = replace(spec, name=f"{spec.name}_stub", impls=impls)
    if (known := DERIVATIVES.get(spec.name)) is not None:
        DERIVATIVES[stub.name] = known
    return stub


def host_us(call: Callable[..., Any], inputs: tuple[torch.Tensor, ...], rounds: int) -> float:
    """Least host time of a call, in microseconds."""
    gpu, least = inputs[0].is_cuda, float("inf")
    for _ in range(rounds):
        if gpu:
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(CALLS):
            call(*inputs)
        least = min(least, (time.perf_counter() - start) / CALLS)
    return least * 1e6


def row(name: str, stub: bool, rounds: int) -> tuple[Any, ...]:
    """One line of the table."""
    import workbench.ops

    spec = spec_of(name)
    dtype = "fp32" if stub else "bf16"
    inputs = make(spec, spec.check[-1], dtype, "cpu" if stub else "cuda")
    call = getattr(workbench.ops, name)
    if stub:
        spec = stub_spec(spec)
        call = operation_of(spec)
    launcher, _ = first_launch(spec, inputs)
    with torch.no_grad():
        bare, plain = (host_us(f, inputs, rounds) for f in (launcher, call))
    graded = ""
    if name in DERIVATIVES:
        first = inputs[0].clone().requires_grad_()
        graded = f"{host_us(call, (first, *inputs[1:]), rounds):.1f}"
    return name, len(inputs), f"{bare:.1f}", f"{plain:.1f}", f"{plain - bare:.1f}", graded


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stub", action="store_true", help="launch nothing; needs no GPU")
    parser.add_argument("--rounds", type=int, default=500)
    options = parser.parse_args()
    if not options.stub and not torch.cuda.is_available():
        print("torch sees no GPU; TRITON_INTERPRET=1 and --stub measure the Python part")
        return 2
    print(f"torch {torch.__version__}, {'a CPU' if options.stub else torch.cuda.get_device_name()}")
    print("| " + " | ".join(HEADS) + " |")
    print("|---" * len(HEADS) + "|")
    for name in KERNELS:
        print("| " + " | ".join(map(str, row(name, options.stub, options.rounds))) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
