"""Machine code out of a profile: ncu stores the instructions of the kernels that it counted, with
their source lines, but no binary."""

import hashlib
import re
from collections.abc import Iterator, Sequence

from workbench.code.code_reading import CodeError, MachineCode
from workbench.code.flow import flow_graph
from workbench.code.listing import Listing, read_sass
from workbench.code.partitions import specialisation
from workbench.data.record import group_by
from workbench.traces.trace import Dispatch, InstructionTable

MAJOR, MINOR = (f"device__attribute_compute_capability_{part}" for part in ("major", "minor"))
_LABEL = re.compile(r"`\([^)]*\)\s*")
_ADDRESS = re.compile(r"\b0x[0-9a-f]+\b")
_FORM = re.compile(r"/\*|\*/|//|;")  # what has a meaning in the form of nvdisasm
_JUMP = re.compile(r"(?:@!?U?P\w+\s+)?(?:BRA|CALL|BSSY|JMP)\b")
NO_LIVE = (
    "a profile holds no binary, so live registers, the bytes of spills and ptxas' warnings are not "
    "known"
)


def listing_of(table: InstructionTable) -> Listing:
    """Return the instructions of a profile as a listing, in the order of their addresses, with
    offsets in place of addresses."""
    by_address = {address: row for row, address in reversed(list(enumerate(table.addresses)))}
    rows = [by_address[address] for address in sorted(by_address)]  # each address once
    if not rows:
        return Listing()
    return read_sass("\n".join(_lines(table, rows)))


def _lines(table: InstructionTable, rows: Sequence[int]) -> Iterator[str]:
    """Yield the lines of a listing in the form of nvdisasm."""
    first, last = (table.addresses[rows[n]] for n in (0, -1))
    texts = {row: _FORM.sub(" ", _LABEL.sub("", table.texts[row])) for row in rows}
    known = {table.addresses[row] for row in rows}
    targets = {
        int(each, 16)
        for text in texts.values()
        if _JUMP.match(text)
        for each in _ADDRESS.findall(text)
    } & known

    def label(match: re.Match[str]) -> str:
        at = int(match[0], 16)
        return f"`(.L_{at - first:x})" if at in targets and first <= at <= last else match[0]

    place = ""
    for row in rows:
        address, text = table.addresses[row], texts[row]
        if address in targets:
            yield f".L_{address - first:x}:"
        if table.places[row] and table.places[row] != place:
            place = table.places[row]
            file, _, number = place.rpartition(":")
            yield f'//## File "{file}", line {number}'
        line = _ADDRESS.sub(label, text) if _JUMP.match(text) else text
        yield f"/*{address - first:04x}*/ {line} ;"


def code_of_profile(
    dispatches: Sequence[Dispatch], launch: int | None, file: str
) -> tuple[MachineCode, tuple[Dispatch, ...], tuple[str, ...]]:
    """Return the code of one kernel of a profile, that of a launch by its number from 0 or else of
    the launches with the most samples; the launches with this code; and the names of the kernels
    with other code. Raises CodeError where the profile holds no instructions."""
    known = [(n, d) for n, d in enumerate(dispatches) if d.instructions and d.instructions.texts]
    if not known:
        raise CodeError(
            f"{file} holds no instructions of kernels; record with `ncu --section SourceCounters "
            "--import-source yes`."
        )
    numbers = [n for n, _ in known]
    if launch is not None and launch not in numbers:
        text = ", ".join(map(str, numbers[:20]))
        raise CodeError(f"{file} has no instructions of launch {launch}; name one of {text}.")
    groups = group_by(known, lambda each: _identity(each[1]))
    if launch is None:
        chosen = max(groups, key=lambda key: sum(_weight(d) for _, d in groups[key]))
    else:
        chosen = next(k for k, each in groups.items() if launch in [n for n, _ in each])
    others = tuple(
        f"{each[0][1].name} (--launch {each[0][0]})" for k, each in groups.items() if k != chosen
    )
    shown = tuple(d for _, d in groups[chosen])
    return code_of_dispatch(shown[0]), shown, others


def code_of_dispatch(dispatch: Dispatch) -> MachineCode:
    """Return the code of a dispatch with instructions. Raises CodeError where none can be read."""
    assert dispatch.instructions is not None
    listing = listing_of(dispatch.instructions)
    if not listing.instructions:
        raise CodeError(f"no instruction of {dispatch.name} can be read; export the report anew.")
    graph = flow_graph(listing)
    lost = ", ".join(sorted(set(listing.lost_jumps)))
    jumps = [f"it has jumps with unknown targets ({lost}), so loops may have been missed"]
    return MachineCode(
        name=dispatch.name,
        arch=_arch(dispatch),
        listing=listing,
        graph=graph,
        binary=_identity(dispatch),
        registers=_registers(dispatch),
        stack_bytes=None,
        partitions=specialisation(listing, graph),
        notes=(NO_LIVE, *(jumps if lost else [])),
    )


def _identity(dispatch: Dispatch) -> str:
    """Return a hash of a dispatch's instructions at their offsets."""
    table = dispatch.instructions
    assert table is not None
    text = "\n".join(op.text for op in listing_of(table).instructions)
    return hashlib.sha256(f"{dispatch.name}\n{text}".encode()).hexdigest()[:16]


def _weight(dispatch: Dispatch) -> float:
    """Return by how much a launch counts: its samples, else its time."""
    table = dispatch.instructions
    assert table is not None
    heads = ("# Samples", "Warp Stall Sampling (All Samples)", "samples")
    return next((total for head in heads if (total := table.total(head))), 0.0)


def _arch(dispatch: Dispatch) -> str:
    """Return the target as `sm_90`; `sm` where the file does not tell."""
    counters = [dispatch.counters.get(name) for name in (MAJOR, MINOR)]
    parts = [int(c.value) for c in counters if c is not None and c.value is not None]
    return f"sm_{parts[0]}{parts[1]}" if len(parts) == 2 else "sm"


def _registers(dispatch: Dispatch) -> int | None:
    if dispatch.geometry.registers is not None:
        return dispatch.geometry.registers
    counter = dispatch.counters.get("launch__registers_per_thread")
    return int(counter.value) if counter is not None and counter.value is not None else None
