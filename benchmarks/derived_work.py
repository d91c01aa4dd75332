"""Compare the work that is derived from the code of the library's kernels with what they declare.

    python benchmarks/derived_work.py [KERNEL ...]

Each Triton Impl is compiled for an H200 at the default config and the first size of its Spec. Bytes
are held against `Spec.bytes`, FLOPs of products against those of the tiles that `work` declares. It
prints the table of docs/facts.md; no GPU takes part.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from workbench import catalog
from workbench.code.code_work import launch_work
from workbench.code.ttgir import NotModelled
from workbench.compile import CompileError, compile_launches, resources_of_each
from workbench.device.hardware import device_named
from workbench.spec import Impl

DEVICE = "h200"
NEAR = 0.1  # share by which derived and declared work may differ
# Why derived bytes differ from the least of a call.
TWICE = "its second launch reads q, k, v and do again"
LOW_RANK = "its launches pass the sums of the low rank through memory"
REASONS = {
    "attention_backward.copied": TWICE,
    "attention_backward.two_passes": TWICE,
    "causal_attention_backward.copied": TWICE,
    "causal_attention_backward.two_passes": TWICE,
    "cumsum.slices": "its second launch reads the input again",
    "empty.once": "it does not read its input",
    "lora.persistent": LOW_RANK,
    "lora.split_k": "its launches pass partial sums through memory",
    "lora.tiles": LOW_RANK,
    "lora_delta.split_k": "its second launch declares its product as vector operations",
    "q4_k_matmul.slices": "it sums groups of inputs by the matrix unit, too",
    "q4_k_matmul.unpack_first": "its first launch writes the unpacked weights to memory",
    "wkv6.chunked": "its launches pass the chunks' sums through memory",
    "wkv7.chunked": "its launches pass the chunks' sums through memory",
}


@dataclass(frozen=True)
class DerivedWork:
    """Derived over declared work of an Impl, or why there is none."""

    title: str
    bytes_ratio: float = 0.0
    flops_ratio: float | None = None  # None: it declares no products
    not_modelled: str = ""

    @property
    def agrees(self) -> bool:
        """Return whether both ratios are within a tenth of one."""
        ratios = [self.bytes_ratio, *([] if self.flops_ratio is None else [self.flops_ratio])]
        return not self.not_modelled and all(abs(r - 1) <= NEAR for r in ratios)


def works(kernels: Sequence[str] = ()) -> Iterator[DerivedWork]:
    """Yield the work of every Impl that takes the device and the first size of its Spec."""
    device = device_named(DEVICE)
    for name in kernels or catalog.kernel_names():
        spec = catalog.spec_of(name, metal=False)
        dtype = "bf16" if "bf16" in spec.tolerance else next(iter(spec.tolerance))
        for impl in spec.impls:
            config = impl.default(device.limits, dtype, spec.bench[0])
            refused = impl.rejection_reason(config, device.limits, dtype, spec.bench[0])
            if impl.backend == "triton" and refused is None:
                yield compare_work(impl, config, dtype)


def compare_work(impl: Impl, config: object, dtype: str) -> DerivedWork:
    """Return the derived over the declared work of one Impl."""
    device, sizes, spec = device_named(DEVICE), dict(impl.spec.bench[0]), impl.spec
    try:
        launches, _ = compile_launches(impl, config, sizes, dtype, device)
        each = [
            launch_work(
                launch.kernel.asm["ttgir"],
                launch.grid,
                launch.launch_arguments,
                device,
                resources,
                getattr(launch.kernel.metadata, "num_stages", 1),
            )
            for launch, resources in zip(launches, resources_of_each(launches, device), strict=True)
        ]
    except (NotModelled, CompileError) as reason:
        return DerivedWork(impl.title, not_modelled=str(reason))
    products = sum(
        2 * work.dot[0] * work.dot[1] * work.dot[2] * work.products * work.steps * work.tiles
        for work in impl.work_of(config, device.limits, dtype, sizes) or ()
        if work.dot
    )
    moved = sum(work.least_bytes for work in each) / spec.bytes(sizes, dtype)
    flops = sum(work.flops for work in each)
    return DerivedWork(impl.title, moved, flops / products if products else None)


def main(given: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kernels", nargs="*", metavar="KERNEL", help="default: all")
    kernels, known = parser.parse_args(given).kernels, catalog.kernel_names()
    for name in set(kernels) - set(known):
        parser.error(catalog.name_hint("kernel", name, known))
    print("| Impl | bytes | FLOPs of products | |\n|---|---|---|---|")
    for work in works(kernels):
        if work.not_modelled:
            print(f"| {work.title} | | | not derived: {work.not_modelled} |")
            continue
        flops = "" if work.flops_ratio is None else f"{work.flops_ratio:.2f}"
        reason = "" if work.agrees else REASONS.get(work.title, "?")
        print(f"| {work.title} | {work.bytes_ratio:.2f} | {flops} | {reason} |")


if __name__ == "__main__":
    main()
