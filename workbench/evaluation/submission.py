"""Describe the code under test, in a process that may run it. The results are plain values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from workbench import catalog
from workbench.catalog.source import load_kernel
from workbench.compile import CompileError, functions_launched
from workbench.device.hardware import Device
from workbench.dsl import CORES_OF_A_CPU
from workbench.measurement.candidate import Candidate, Refusal
from workbench.spec import Impl, Limits, Sizes, Spec, Work, WorkbenchError, values


class SubmissionError(WorkbenchError, ValueError):
    """A file holds nothing that can be evaluated; one sentence says why."""


@dataclass(frozen=True)
class Wanted:
    """The Impl and the config to evaluate, as the user named them."""

    kernel: str  # name, module or path
    impl: str | None
    knobs: Mapping[str, int]
    dtype: str


@dataclass(frozen=True)
class Submission:
    """The code under test as its own process describes it. No verdict relies only on it."""

    kernel: str  # name of the Spec
    impl: str
    config: Mapping[str, int]
    code: str  # hash
    rejections: tuple[str | None, ...]  # for each of the sizes, why the config cannot run there
    works: tuple[Work, ...] | None  # of a call at the first of the sizes
    libraries: tuple[str, ...]  # names of the baselines that take the first of the sizes
    mutates: tuple[str, ...] = ()  # inputs that it declares to change
    blocker: str = ""  # why its results cannot be checked without a GPU

    @property
    def title(self) -> str:
        """Return the name of the Impl in messages."""
        return f"{self.kernel}.{self.impl}"

    @property
    def candidate(self) -> Candidate:
        """Return the config as workers receive it."""
        named = Candidate.create(self.impl, self.config)
        return replace(named, key=self.title, code=self.code)


def describe(wanted: Wanted, limits: Limits, sizes: Sequence[Sizes]) -> Submission:
    """Import a kernel's file and return the description of one config of it at these sizes. Raises
    SubmissionError where the file has no such Impl or config."""
    module = catalog.module_of(wanted.kernel)
    spec = catalog.spec_of(wanted.kernel)
    impl = _impl(spec, wanted, module.__name__)
    if unknown := [name for name in wanted.knobs if name not in impl.knobs()]:
        raise SubmissionError(catalog.name_hint(f"knob of {impl.title}", unknown[0], impl.knobs()))
    declared = replace(impl.declared_default(limits, wanted.dtype), **wanted.knobs)
    config = impl.resolved_config(declared, limits, wanted.dtype, sizes[0])
    rejected = tuple(impl.rejection_reason(config, limits, wanted.dtype, at) for at in sizes)
    libraries = [
        other.name
        for other in spec.impls
        if other.backend == "torch"
        and other.rejection_reason(other.config(), limits, wanted.dtype, sizes[0]) is None
    ]
    return Submission(
        spec.name,
        impl.name,
        values(config),
        load_kernel(wanted.kernel).hashes[impl.name],
        rejected,
        None if rejected[0] else impl.work_of(config, limits, wanted.dtype, sizes[0]),
        tuple(libraries),
        impl.mutates,
        impl.unchecked_reason,
    )


def _impl(spec: Spec, wanted: Wanted, module: str) -> Impl:
    """Return the Impl that was named, or the first one of this module: a file may add its own to
    the Spec of another one."""
    if wanted.impl is not None:
        return catalog.impl_of(spec, wanted.impl)
    triton = [impl for impl in spec.impls if impl.backend == "triton"]
    if not triton:
        raise catalog.CatalogError(
            f"{spec.name} has only Metal kernels, which `python -m metal_shim.check` checks; "
            "evaluate a Triton kernel."
        )
    own = [impl for impl in triton if getattr(impl.launch, "__module__", "") == module]
    return (own or triton)[0]


def functions_of(
    kernel: str, candidate: Candidate, sizes: Sequence[Sizes], dtype: str, device: Device
) -> list[tuple[str, ...]] | Refusal:
    """Return the names of the device functions that a call launches at each of these sizes, from
    meta tensors and without a GPU, or a Refusal where one does not compile."""
    impl = load_kernel(kernel).impl(candidate.case.impl, candidate.code)
    config: Any = impl.config(**candidate.case.config)
    # as the interpreter's launcher sees them: on how many cores a launch depends
    limits = replace(device.limits, cores=CORES_OF_A_CPU)
    device = replace(device, limits=limits)
    try:
        return [functions_launched(impl, config, at, dtype, device) for at in sizes]
    except CompileError as error:
        return Refusal("compile", str(error))
