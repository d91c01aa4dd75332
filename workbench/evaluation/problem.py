"""The facts of a Spec that an evaluation needs, from the process that holds the reference."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from workbench import catalog
from workbench.backend.checking import import_trusted
from workbench.catalog.declared import flops_fault, size_fault
from workbench.data.user_code import user_code
from workbench.evaluation.calls import SOME, hidden_sizes, larger_sizes
from workbench.spec import ITEMSIZE, Sizes, Spec, WorkbenchError, sizes_text

OBSERVED_S = 5.0  # for one call of a reference that is observed


class SpecError(WorkbenchError, ValueError):
    """A Spec cannot be evaluated at these sizes or in this dtype; one sentence says why."""


@dataclass(frozen=True)
class SpecFacts:
    """What an evaluation needs to know of a Spec. Bytes and FLOPs are those of `timed`."""

    name: str
    named_sizes: tuple[Mapping[str, int], ...]  # sizes to check
    hidden_sizes: tuple[Mapping[str, int], ...]  # sizes that the file does not name
    timed_sizes: Mapping[str, int]
    bytes: int
    flops: int
    mutates: tuple[str, ...] = ()  # inputs that a launch may change
    refusable: tuple[Mapping[str, int], ...] = ()  # of all sizes, those that an Impl may refuse
    larger: tuple[Mapping[str, int], ...] = ()  # near the sizes to time, as far as time allows
    libraries: tuple[str, ...] = ()  # names of the baselines


@dataclass(frozen=True)
class KnownCosts(Spec):
    """A Spec with known costs at one set of sizes alone: its code is in another process."""

    known_bytes: int = 0

    def bytes(self, sizes: Mapping[str, int], dtype: str) -> int:
        """Return the least bytes that must move."""
        return self.known_bytes

    @staticmethod
    def make(facts: SpecFacts) -> KnownCosts:
        """Return the Spec that has the costs of these facts, and no tensors."""
        return KnownCosts(
            facts.name,
            inputs={},
            outputs={},
            reference=_no_reference,
            flops=lambda **sizes: facts.flops,
            check=(),
            bench=(facts.timed_sizes,),
            known_bytes=facts.bytes,
        )


def _no_reference(*inputs: Any) -> Any:
    raise RuntimeError("the reference is in another process")


def spec_facts(kernel: str, dtype: str, timed: Mapping[str, int] | None, seed: int) -> SpecFacts:
    """Return the facts of a kernel's Spec; `timed` are the sizes to time, by default its first.
    Raises CatalogError or SpecError."""
    spec = import_trusted(kernel)
    if dtype not in spec.tolerance:
        raise SpecError(catalog.name_hint("dtype", dtype, spec.tolerance))
    sizes = dict(spec.bench[0]) if timed is None else dict(timed)
    example = sizes_text(spec.bench[0])
    if reason := size_fault(spec, sizes):
        raise SpecError(
            f"--sizes {sizes_text(sizes)}: the sizes {reason}; write --sizes {example}."
        )
    if reason := flops_fault(spec, sizes):
        raise SpecError(f"{reason}.")
    named, hidden = [dict(s) for s in spec.check], hidden_sizes(spec, dtype, seed)
    itemsize = ITEMSIZE[dtype]
    return SpecFacts(
        spec.name,
        tuple(named),
        tuple(hidden),
        sizes,
        reference_bytes(spec, sizes, dtype, seed % (1 << 31)),
        spec.flops(**sizes),
        tuple(spec.mutates),
        tuple(s for s in (*named, *hidden) if spec.refusable(itemsize=itemsize, **s)),
        tuple(larger_sizes(spec, dtype, sizes)),
        tuple(impl.name for impl in spec.impls if impl.backend == "torch"),
    )


def reference_bytes(spec: Spec, sizes: Sizes, dtype: str, seed: int) -> int:
    """Return the bytes that the reference reads of its inputs and writes, and all of them where
    that is not known. Floats have no values, unless the reference needs them and they are few."""
    from workbench.measurement import inputs
    from workbench.measurement.reads import Reads
    from workbench.measurement.reference import output_tuple

    every = spec.bytes(sizes, dtype)
    is_small = spec.held_bytes(sizes, dtype) <= SOME[0] and spec.flops(**sizes) <= SOME[1]
    for without_floats in () if spec.has_stored_outputs else (True, False)[: 1 + is_small]:
        reads = Reads(without_floats, OBSERVED_S)
        with suppress(Exception), user_code(f"the reference of the Spec {spec.name}"):
            with reads:
                at = (spec, sizes, dtype, "cpu", seed)
                given = inputs.make(*at, lacks_values=without_floats)
                wide = [x.double() if x.is_floating_point() else x for x in given]
            with reads.watch(spec, wide):
                outputs = output_tuple(spec.reference(*wide))
            reads.end(spec, outputs)
            most, certain = reads.bytes(spec, sizes, dtype)
            if most == certain:
                return min(every, most)
    return every
