"""Call one Metal kernel on the Metal device, for a profiler: `python -m metal_shim.capture softmax
--calls 200`, or with --trace, as `workbench profile softmax --tool gputrace` runs it.

A capture has a JSON file beside it: the commit, the GPU, macOS, the dispatches, and places for the
figures that Xcode shows and a person enters. Times during a capture mean nothing. Not run yet.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from metal_shim.check import DEVICE, metal_impls, run_command
from workbench import catalog
from workbench.backend.metal.emulated import plan_launches
from workbench.commands.operands import Operand, operands_of
from workbench.commands.sizes import check_dtype, sizes_of
from workbench.data.clock import timestamp
from workbench.data.environment import fingerprint
from workbench.data.exits import PASSED
from workbench.data.files import write_file
from workbench.data.mac import Mac, read_mac
from workbench.device.hardware import UNCOMPILED
from workbench.measurement import inputs
from workbench.spec import Impl, Sizes, values

XCODE = (  # what Xcode's debugger shows of a capture, and no file tells
    "threadgroup_utilisation_percent",
    "simd_group_efficiency_percent",
    "l1_read_transactions",
    "l2_read_transactions",
)


def archive(mac: Mac, impl: Impl, config: Any, sizes: Sizes, dtype: str) -> dict[str, Any]:
    """Return what lies beside a capture: its commit, GPU and macOS, the kernel and its dispatches,
    and `entered_by_hand`, whose figures are None until somebody reads them in Xcode."""
    known = fingerprint(None, Path(__file__).parent)
    dispatches = [
        {"function": launch.call.source.name, "grid": launch.grid, "threadgroup": launch.group}
        | {"threadgroup_bytes": launch.threadgroup_bytes}
        for launch in plan_launches(impl, config, sizes, dtype)
    ]
    return {
        "taken": timestamp(),
        "commit": known.commit,
        "dirty": known.dirty,
        "gpu": mac.chip,
        "gpu_cores": mac.gpu_cores,
        "os": known.os,
        "kernel": impl.spec.name,
        "impl": impl.name,
        "config": values(config),
        "sizes": dict(sizes),
        "dtype": dtype,
        "dispatches": dispatches,
        "entered_by_hand": dict.fromkeys(XCODE),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns 0, 2 where nothing could be called, or 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m metal_shim.capture", description=__doc__)
    parser.add_argument("kernel", help="name of an operation, or the path of its file")
    parser.add_argument("--impl", help="as `lanes` or `lanes:rows=8`; default: the first")
    parser.add_argument("--sizes", help="as M=4096,N=4096; default: the first to time")
    parser.add_argument("--dtype", default="fp16")
    parser.add_argument("--calls", type=int, default=1)
    parser.add_argument("--trace", type=Path, help="the .gputrace to write; it must not exist")
    return run_command(lambda: _call(parser.parse_args(arguments)), "stopped", RuntimeError)


def _call(options: argparse.Namespace) -> int:
    spec, limits = catalog.spec_of(options.kernel), UNCOMPILED[DEVICE].limits
    check_dtype(spec, options.dtype)
    sizes = sizes_of(spec, options.sizes)
    operand = Operand(metal_impls(spec)[0].name)
    if options.impl:
        operand = operands_of((options.impl, options.impl), None, spec, None)[0]
    impl, config = operand.choose(spec, limits, options.dtype, sizes)
    if not import_module("metal_shim.kernel").metal_device():
        raise RuntimeError("MLX has no Metal device here; run it on a Mac.")
    given = inputs.make(spec, sizes, options.dtype, "cpu")

    def call() -> None:
        for _ in range(options.calls):
            impl(*given, config=config)

    impl(*given, config=config)  # Apple's compiler runs now
    if options.trace is None:
        call()
        return PASSED
    import_module("metal_shim.mlx_backend").capture(str(options.trace), call)
    entry = archive(read_mac(), impl, config, sizes, options.dtype)
    write_file(options.trace.with_suffix(".json"), json.dumps(entry, indent=1) + "\n")
    return PASSED


if __name__ == "__main__":
    sys.exit(main())
