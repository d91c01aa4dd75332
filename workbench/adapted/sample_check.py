"""Run some programs of one config of a large launch, and compare what they wrote."""

import math
from typing import Any

from workbench.adapted.call import Call
from workbench.adapted.discover import POISON, filled_like
from workbench.adapted.kept import Kept
from workbench.adapted.sampled import OTHER_S, SampleResult, numbers_of, shares_of
from workbench.adapted.traced import LaunchFault, ProgramPlan, ProgramTrace
from workbench.backend.checking import import_trusted, replaced_function
from workbench.catalog.source import load_kernel
from workbench.compile.program_writes import Footprint
from workbench.data.errors import first_sentence
from workbench.data.user_code import user_code
from workbench.measurement.candidate import Candidate, Refusal
from workbench.measurement.correctness import Checked, compare_values
from workbench.measurement.packed import pack_tensor, unpack_tensor
from workbench.spec import label

LIMIT_S = 300.0
NEAR_ALL = 1 - 1e-9


def launch_sample(
    kernel: str, candidate: Candidate, footprint: Footprint | None
) -> SampleResult | Refusal:
    """Run some programs of a config in an interpreting worker, and return what they wrote, or a
    Refusal where an address, a race or the kernel itself is at fault."""
    known = load_kernel(kernel)
    impl: Any = known.impl(candidate.case.impl, candidate.code)
    config, launcher = impl.config(**candidate.case.config), impl.launcher
    call, entry = launcher.call, launcher.call.entry(candidate.case.config)
    if (fault := _fault_of(call, footprint)) is not None:
        return Refusal("check", fault)
    memory = {
        name: filled_like(x, POISON) if call.initial.get(name) == "nothing" else x.clone()
        for name, x in impl.store.args.items()
    }
    plan = ProgramPlan(numbers_of(footprint, math.prod(entry.grid)), OTHER_S)
    try:
        with user_code(f"the launch of {impl.title}", LIMIT_S):
            launcher.fire_both_ways(memory, entry, plan)
    except LaunchFault as fault:
        return Refusal("check", str(fault).rstrip("."))
    except Exception as error:
        reason = f"the interpreter stopped {label(vars(config))}: {first_sentence(error)}"
        return Refusal("check", reason)
    return _result(call, memory, launcher.trace)


def _fault_of(call: Call, footprint: Footprint | None) -> str | None:
    """Return what is wrong with the addresses of all programs, or None."""
    for tensor in footprint.tensors if footprint else ():
        if tensor.excess:
            of = f"{tensor.excess:,} elements past the end of {tensor.argument}"
            return f"it writes {of}; is a mask missing?"
    shares = shares_of(call, footprint)
    for name in whole_outputs(call):
        share, usual = shares.get(name, 1.0), call.shares.get(name, 1.0)
        if share < NEAR_ALL * usual:
            rest = "as the first config that ran" if usual < 1 else "and not all of them"
            rest += f"; the sum of partial results is compared with partial=({name!r},)"
            return f"{name} is written in {100 * share:.3g} % of its elements, {rest}"
    return None


def whole_outputs(call: Call) -> list[str]:
    """Return the outputs of which single elements can be compared: no sums of partial results."""
    return [name for name in call.outputs if name not in call.partial]


def _result(call: Call, memory: Any, trace: ProgramTrace) -> SampleResult | Refusal:
    import torch

    elements, values = {}, {}
    for name in whole_outputs(call):
        each = trace.accesses.get(name)
        if each is None or each.atomics:  # a sum of many programs, of which some ran
            continue
        if each.read_first and call.initial.get(name) == "nothing":
            return Refusal("check", f"{name} is read before it is written")
        layout = call.tensors[name]
        at = torch.from_numpy(each.elements())
        elements[name] = pack_tensor(at)
        values[name] = pack_tensor(memory[name].reshape(-1)[at + layout.lead].contiguous())
    return SampleResult(len(trace.ran), elements, values)


def compare_sample(kernel: str, result: SampleResult) -> Checked | Refusal | None:
    """Compare what some programs wrote with what is expected of these elements, in the checker.
    Returns None where nothing is known of any of them."""
    spec = import_trusted(kernel)
    impl: Any = spec.impls[0]
    verdicts = []
    for name, packed_values in result.values.items():
        actual, expected = _both_values(impl.store, impl.launcher.call, name, result, packed_values)
        if actual.numel():
            dtype = spec.outputs[name].dtype
            verdicts.append(compare_values(name, actual, expected, spec.tolerance, dtype))
    if (function := replaced_function()) is not None:
        reason = f"importing the kernel's file replaces {function}, on which checks rely"
        return Refusal("check", reason, rule="functions")
    if not verdicts:
        return None
    worst = max(verdicts, key=lambda v: v.error)
    if worst.wrong:
        return Refusal("check", worst.wrong, rule=worst.rule)
    return Checked(worst.error, programs=result.programs)


def _both_values(
    kept: Kept, call: Call, name: str, result: SampleResult, packed_values: Any
) -> tuple[Any, Any]:
    """Return the values of an output that can be compared, and what is expected of them."""
    import torch

    layout = call.tensors[name]
    places = torch.full(layout.extents, -1, dtype=torch.int64)
    view = layout.view(places)
    view.copy_(torch.arange(view.numel()).view(view.shape))
    at = places.reshape(-1)[unpack_tensor(result.elements[name]) + layout.lead]
    actual, inside = unpack_tensor(packed_values), at >= 0
    if name in kept.written_elements:
        inside &= kept.written_elements[name].reshape(-1)[at.clamp(min=0)]
    expected = kept.expected_outputs[name].reshape(-1)[at[inside]]
    wide = expected.double() if expected.is_floating_point() else expected
    return actual[inside], wide
