"""Check the configs of a large launch on some of its programs.

All programs of a launch of real size take minutes in Triton's interpreter. Here the first and the
last one run, those that write the edges of the outputs, and some between; what they write is
compared with what is expected on exactly these elements. What all programs would write follows from
the addresses in the code (`compile/program_writes.py`).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from workbench.adapted.call import ARGS, EXPECTED, PROBES, WRITTEN, Call, Initial, Layout
from workbench.adapted.discover import Discovered, OutputUse, byte_tensor, passed_twice
from workbench.adapted.kept import Kept
from workbench.adapted.kernel import Launcher
from workbench.adapted.traced import LaunchFault, ProgramPlan, ProgramTrace
from workbench.adapted.travel import AdaptedError
from workbench.code.code_work import distinct_bytes
from workbench.code.program_values import LaunchArguments
from workbench.code.ttgir import NotModelled
from workbench.compile.launches import capture_launches
from workbench.compile.program_writes import NOBODY, Footprint, footprint_of
from workbench.device.hardware import Device
from workbench.dsl.interpreter import RoundedProducts
from workbench.measurement.packed import Packed

WHOLE_S = 1.0  # launches that take longer in the interpreter are sampled
FIRST_S, OTHER_S = 4.0, 2.0  # after which no further program of the first config, or others, begins
RANDOM = 6  # programs, and elements of an output, between the ends
PROBED = 24  # elements of an output whose writers run in every config
SEED = 7
SUM = "is not checked: only some programs that add to it run; tune a smaller launch to check it"
UNMOVED = "of a launch of this size only some programs run, once"


@dataclass(frozen=True)
class FirstPrograms:
    """How long a launch takes in the interpreter, by three of its programs."""

    first: int  # place of the config in the list
    programs: int
    seconds: float  # of one program, in the mean

    @property
    def whole_s(self) -> float:
        """Return the estimated seconds of all programs."""
        return self.programs * self.seconds


def import_function(folder: Path) -> bool:
    """Import the function of a call in a worker. Returns True. Raises the errors of its file."""
    return Launcher(Call.read(folder)).kernel is not None


def first_programs(folder: Path) -> FirstPrograms | None:
    """Run three programs of the first config that launches, in an interpreting worker. Returns
    None where none does. Raises LaunchFault where each config that launches is at fault."""
    import torch

    call, saved = Call.read(folder), torch.load(folder / ARGS, weights_only=True)
    launcher, faults = Launcher(call), list[LaunchFault]()
    for i, entry in enumerate(call.entries):
        programs = math.prod(entry.grid)
        numbers = sorted({0, programs // 2, programs - 1})
        try:
            launcher.fire({n: x.clone() for n, x in saved.items()}, entry, ProgramPlan(numbers))
        except LaunchFault as fault:
            faults.append(fault)
            continue
        except Exception:  # the launch of all programs tells why
            continue
        assert launcher.trace is not None  # it ran in the interpreter
        seconds = launcher.trace.seconds
        later = seconds[1:] or seconds  # the first one imports and compiles Python
        return FirstPrograms(i, programs, sum(later) / len(later))
    if faults:
        raise faults[0]
    return None


def first_footprint(folder: Path, device: Device, first: int) -> Footprint | None:
    """Compile a config for `device` in a worker and return what all its programs write; None where
    that does not follow from its code."""
    call = Call.read(folder)
    return examine_code(*_compiled_launch(call, folder, device, first), _edges(call))


def accessed_bytes(folder: Path, device: Device, first: int) -> tuple[int, int] | None:
    """Compile a config for `device` in a worker and return the distinct bytes that all its programs
    read and those that they write; None where these do not follow from its code."""
    with suppress(NotModelled):
        launch = _compiled_launch(Call.read(folder), folder, device, first)
        read, written = map(round, distinct_bytes(*launch))
        return read, written
    return None


def _compiled_launch(
    call: Call, folder: Path, device: Device, first: int
) -> tuple[str, Sequence[int], LaunchArguments]:
    """Return the TTGIR of a config that is compiled for `device`, its grid and its arguments."""
    import torch

    from workbench.adapted.kept import GivenIntegers
    from workbench.measurement.inputs import torch_dtype

    memory = {
        name: torch.empty(layout.extents, dtype=torch_dtype(layout.dtype), device="meta")
        for name, layout in call.tensors.items()
    }
    with capture_launches(device) as launches:
        Launcher(call).fire(memory, call.entries[first])
    contents = GivenIntegers(call, Kept(folder))
    given = replace(launches[0].launch_arguments, contents=contents)
    return launches[0].kernel.asm["ttgir"], launches[0].grid, given


def examine_code(
    ttgir: str, grid: Sequence[int], given: LaunchArguments, elements: Mapping[str, Any]
) -> Footprint | None:
    """Return what all programs write, and which write these elements; None where that does not
    follow from the code."""
    import numpy as np

    def requested_elements(argument: str, count: int) -> Any:
        wanted = np.asarray(elements.get(argument, ()), dtype=np.int64)
        return wanted[wanted < count]

    with suppress(NotModelled):
        return footprint_of(ttgir, grid, given, requested_elements)
    return None


def _edges(call: Call) -> dict[str, Any]:
    """Return elements of each tensor by its argument: corners, the middle, random ones."""
    import numpy as np

    dice = np.random.default_rng(SEED)
    results = {}
    for argument in call.arguments:
        if argument.tensor is None:
            continue
        layout = call.tensors[argument.tensor]
        last = [n - 1 for n in layout.shape]
        places = [[0] * len(last), last, [n // 2 for n in last]]
        for axis in range(len(last)):  # the ends of every edge
            places += [[n * (i == axis) for i, n in enumerate(last)]]
            places += [[n * (i != axis) for i, n in enumerate(last)]]
        places += [[int(dice.integers(n + 1)) for n in last] for _ in range(RANDOM)]
        at = np.array([np.dot(p, layout.stride) for p in places if p], dtype=np.int64)
        results[argument.name] = at if at.size else np.zeros(1, dtype=np.int64)
    return results


def numbers_of(footprint: Footprint | None, programs: int) -> list[int]:
    """Return the programs that run, the most telling first: writers of the elements that were asked
    about, both of two that store to one element, the ends, and random ones."""
    import numpy as np

    dice = np.random.default_rng(SEED)
    match: list[int] = []
    for tensor in footprint.tensors if footprint else ():
        match += tensor.shared_element[1:] if tensor.shared_element else ()
    for writers in footprint.writers.values() if footprint else ():
        match += writers
    match += [0, programs - 1, min(1, programs - 1)]
    match += [int(dice.integers(programs)) for _ in range(RANDOM)]
    return [n for n in dict.fromkeys(match) if n != NOBODY]


def discover_sample(
    folder: Path,
    outputs: Sequence[str],
    footprint: Footprint | None,
    first: int,
    answered: bool,
    declared: Iterable[str] | None,
) -> Discovered:
    """Run some programs of the first config on copies of the saved tensors, and write what they
    give to `answer.pt` unless it is `answered` already. Returns what they do to the tensors. Raises
    AdaptedError as `discover` does."""
    import torch

    call, saved = Call.read(folder), torch.load(folder / ARGS, weights_only=True)
    memory = {n: x.clone() for n, x in saved.items()}
    launcher, entry = Launcher(call), call.entries[first]
    programs = math.prod(entry.grid)
    numbers = numbers_of(footprint, programs)
    launcher.fire(memory, entry, ProgramPlan(numbers, FIRST_S))
    trace = launcher.trace
    assert trace is not None  # it ran in the interpreter
    written = [n for n in call.tensors if n in trace.accesses and _changes(trace, n)]
    if unwritten := [n for n in outputs if n not in written]:
        raise AdaptedError(
            f"{call.name} does not write {', '.join(unwritten)}, which `outputs` names; "
            f"it writes {', '.join(written) or 'no tensor that it was given'}."
        )
    if not written:
        raise AdaptedError(f"{len(trace.ran)} programs of {call.name} wrote to no tensor.")
    compared = tuple(outputs) or tuple(written)
    shares = shares_of(call, footprint)
    uses = {n: OutputUse(shares.get(n, 1.0), trace.accesses[n].read_first) for n in written}
    if declared is None:
        declared = [n for n, use in uses.items() if not use.clean]
    declared = {*declared, *passed_twice(call), *call.partial}
    odd = {n: u for n, u in uses.items() if n in compared and n not in declared and not u.clean}
    if not answered:
        for name, use in odd.items():
            raise AdaptedError(use.sentence(call.name, name))
        views = {n: call.tensors[n].view(memory[n]).contiguous() for n in compared}
        torch.save(views, folder / EXPECTED)
        masks = {n: _mask(call.tensors[n], trace.accesses[n].elements()) for n in compared}
        torch.save(masks, folder / WRITTEN)
    torch.save(_probes(call, trace, written), folder / PROBES)
    initial: dict[str, Initial] = {
        n: "nothing"
        if n in odd or (uses[n].clean and n not in declared)
        else ("values" if bool(byte_tensor(saved[n]).any()) else "zeros")
        for n in written
    }
    notes = (*trace.twice, *(f"{n} {SUM}" for n in compared if trace.accesses[n].atomics))
    return Discovered(compared, initial, first, None, UNMOVED, odd, RoundedProducts.bits, notes)


def _changes(trace: ProgramTrace, name: str) -> bool:
    each = trace.accesses[name]
    return bool(each.stores or each.atomics)


def shares_of(call: Call, footprint: Footprint | None) -> dict[str, float]:
    """Return the share of each tensor's elements that all programs write, where it is known."""
    if footprint is None:
        return {}
    names = {a.name: a.tensor for a in call.arguments if a.tensor is not None}
    return {
        names[t.argument]: min(1.0, t.elements / max(1, math.prod(call.tensors[name].shape)))
        for t in footprint.tensors
        if (name := names.get(t.argument)) is not None
    }


def _probes(call: Call, trace: ProgramTrace, written: Sequence[str]) -> dict[str, list[int]]:
    """Return elements that the programs wrote, whose writers run in every config, by argument."""
    results = {}
    for argument in call.arguments:
        if argument.tensor is None or argument.tensor not in written:
            continue
        each = trace.accesses[argument.tensor]
        firsts = [int(at[i]) for _, at, _ in each.stores for i in (0, -1) if len(at)]
        spread = firsts[:: max(1, -(-len(firsts) // PROBED))]
        results[argument.name] = list(dict.fromkeys((*firsts[:2], *spread, *firsts[-2:])))
    return results


def _mask(layout: Layout, elements: Any) -> Any:
    """Return which elements of a tensor were written, in its own shape."""
    import torch

    whole = torch.zeros(layout.extents, dtype=torch.bool)
    whole.view(-1)[torch.from_numpy(elements) + layout.lead] = True
    return layout.view(whole).contiguous()


@dataclass(frozen=True)
class SampleResult:
    """What some programs of a config wrote."""

    programs: int  # that ran
    elements: Mapping[str, Packed]  # of each output, counted from its pointer
    values: Mapping[str, Packed]


__all__ = [
    "LaunchFault", "accessed_bytes", "discover_sample", "examine_code", "first_footprint",
    "first_programs",
]  # fmt: skip
