"""Print and draw the machine code of a kernel or a file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench import catalog
from workbench.code.amd_note import COUNTS
from workbench.code.code_match import CodeComparison, compare_code
from workbench.code.code_reading import MachineCode, code_of_file
from workbench.code.kinds import group_text
from workbench.code.mix import Mix
from workbench.code.ptx_words import elsewhere, matching
from workbench.commands.console import console_for, say_result
from workbench.commands.operands import Operand, config_operand, operands_of, repository_with
from workbench.commands.options import DEFAULT_TARGET, CommandError
from workbench.commands.result import write_result
from workbench.commands.run import check_file, check_writable, gpu_present, require_triton, say_page
from workbench.commands.sizes import check_dtype, sizes_of
from workbench.compile import CompileError, machine_code_of
from workbench.data.clock import folder_of, run_id
from workbench.data.exits import PASSED
from workbench.data.files import write_file
from workbench.data.record import Resources, encode_plain
from workbench.data.units import amount, duration
from workbench.device import hardware
from workbench.reports import write_page
from workbench.reports.code import (
    CodeView,
    change_tables,
    comparison_sentence,
    listing_lines,
    loop_table,
    match_lines,
    page,
    partition_sentence,
    partition_table,
    sample_sentence,
    sample_table,
)
from workbench.reports.figures.code import flow_dot
from workbench.reports.tables import text_table
from workbench.revisions.worktree import WORKING, Worktrees
from workbench.spec import Spec, label, sizes_text, values

if TYPE_CHECKING:
    from rich.console import Console

    from workbench.code.code_samples import StallSamples
    from workbench.commands.code import CodeOptions
    from workbench.traces.trace import Dispatch


PROFILES = (".ncu-rep", ".csv", ".csv.gz")
FILES = (".cubin", ".hsaco", ".amdgcn", ".ptx")
MATCHES = 200  # lines of --find in the terminal


@dataclass(frozen=True)
class _Read:
    """The code of one target, and what is known of it beside."""

    title: str
    device: str
    code: MachineCode
    resources: Resources | None = None
    others: tuple[str, ...] = ()  # launches that are not shown
    profile: tuple[Dispatch, ...] = ()  # that the code was read from


def show_code(options: CodeOptions) -> int:
    """Run the command. Returns its exit code. Raises CommandError, CodeError, ReadError and the
    errors of kernels that are not there."""
    check_writable(options.out)
    check_file(options.json, "--json")
    check_file(options.dot, "--dot")
    if not is_profile(options.target):
        require_triton()
    read = _read(options, options.target, None)
    comparison = None
    if options.find is not None:
        _require_listing(read)
    if options.against is not None:
        other = _read(options, options.target, options.against)
        _require_listing(read)
        _require_listing(other)
        comparison = compare_code(other.code, read.code)
    samples = _samples(options, read)
    view = CodeView(
        title=read.title,
        device=read.device,
        code=read.code,
        facts=_facts(read),
        command=options.command,
        word=options.find or "",
        matches=matching(read.code.listing, options.find) if options.find else (),
        baseline=options.against or "",
        comparison=comparison,
        samples=samples,
        sources=_texts(read),
    )
    console = console_for(options)
    _say(console, view, read, options)
    if options.dot is not None:
        write_file(options.dot, flow_dot(read.code))
        console.print(f"written  {options.dot}", soft_wrap=True)
    folder = folder_of(options.out, run_id("code", Path(options.target).stem))
    file = write_page(folder / "code.html", page(view))
    say_page(console, file)
    return write_result(options, "code", PASSED, code=_plain(view, read), page=str(file.resolve()))


def _samples(options: CodeOptions, read: _Read) -> StallSamples | None:
    """Return the stall samples of the profile that is named, or that the code was read from, if it
    has any. Raises CodeError where those of --samples are of other code."""
    if options.samples is None and not read.profile:
        return None
    from workbench.code.code_samples import has_samples, samples_of
    from workbench.traces.readers import read as read_profile

    if options.samples is not None:
        if read.profile:
            raise CommandError(
                f"{read.title} is a profile with samples of its own; leave out --samples."
            )
        dispatches = read_profile([options.samples]).dispatches
        return samples_of(read.code, dispatches, options.samples.name)
    sampled = [d for d in read.profile if has_samples(d)]
    return samples_of(read.code, sampled, options.target) if sampled else None


def _texts(read: _Read) -> dict[str, str] | None:
    """Return the source texts that a profile holds; None for code that is of none."""
    if not read.profile:
        return None
    tables = [d.instructions for d in read.profile if d.instructions]
    return {file: text for table in tables for file, text in table.sources.items()}


def _require_listing(read: _Read) -> None:
    if not read.code.listing.instructions:
        raise CommandError(f"{read.title} is {read.code.notes[0]}.")


def is_file(target: str) -> bool:
    """Return whether a target is meant as a file of machine code, not as a kernel."""
    return target.endswith(FILES) or (Path(target).is_file() and not target.endswith(".py"))


def _read(options: CodeOptions, target: str, against: str | None) -> _Read:
    """Return the code of the target, or of the config or file that it is compared with."""
    named = target if against is None else against
    if is_profile(named):
        return _profile_code(Path(named), options.launch if against is None else None)
    if options.launch is not None and not is_profile(target):
        raise CommandError(
            f"--launch chooses a launch of a profile, and {target} is not a profile; leave it out."
        )
    if is_file(named):
        code = code_of_file(Path(named))
        return _Read(Path(named).name, code.arch, code)
    if is_file(target) or is_profile(target):
        raise CommandError(f"--against {against} is not a file; name a .cubin or .hsaco file.")
    spec = catalog.spec_of(target)
    check_dtype(spec, options.dtype)
    if against is None:
        operand = config_operand(options.impl, spec) if options.impl else Operand()
        return _compile_operand(options, spec, spec, operand)
    repository = repository_with(target)
    operand, _ = operands_of((against, against), options.impl, spec, repository)
    if operand.revision == WORKING or repository is None:
        return _compile_operand(options, spec, spec, operand)
    with Worktrees(repository) as trees:
        file = repository.relative_path(Path(str(catalog.module_of(target).__file__)))
        version = trees.file(operand.revision, file)
        if version is None:
            raise CommandError(f"{operand.revision} has no file {file}; name a later revision.")
        return _compile_operand(options, spec, catalog.version_of(version), operand)


def is_profile(target: str) -> bool:
    """Return whether a target is a report or page of ncu."""
    return target.endswith(PROFILES)


def _profile_code(path: Path, launch: int | None) -> _Read:
    """Return the code of one kernel of a profile. Raises CodeError and ReadError."""
    from workbench.code.profiled_code import code_of_profile
    from workbench.traces.readers import read as read_profile

    dispatches = read_profile([path]).dispatches
    code, shown, others = code_of_profile(dispatches, launch, path.name)
    number = len(others) + 1
    title = f"{code.name} of {path.name}" if number > 1 else path.name
    device = code.arch if code.arch != "sm" else "an NVIDIA GPU"
    return _Read(title, device, code, others=others, profile=shown)


def _compile_operand(options: CodeOptions, spec: Spec, version: Spec, operand: Operand) -> _Read:
    """Return the code of an operand in a version of the kernel, at the present kernel's sizes."""
    sizes, device = sizes_of(spec, options.sizes), chosen_device(options.device)
    impl, config = operand.choose(version, device.limits, options.dtype, sizes)
    if impl.backend != "triton":
        raise CommandError(f"{impl.title} is not a Triton kernel; name one with --impl.")
    if reason := impl.rejection_reason(config, device.limits, options.dtype, sizes):
        raise CommandError(f"{impl.title} {label(values(config))} is refused: {reason}.")
    revision = f" at {operand.revision}" if operand.revision != WORKING else ""
    title = f"{impl.title} {label(values(config))}".rstrip() + revision
    try:
        launched = machine_code_of(impl, config, sizes, options.dtype, device)
    except CompileError as error:
        reason = str(error).rstrip(".")
        raise CommandError(
            f"{title} does not compile for {device.name} at {sizes_text(sizes)}, {options.dtype}: "
            f"{reason}; name another config with --impl."
        ) from error
    others = tuple(name for name in launched.functions if name != launched.code.name)
    return _Read(title, device.title, launched.code, launched.resources, others)


def chosen_device(name: str | None) -> hardware.Device:
    """Return the named device, else the GPU of this machine, else the default target. Raises
    CommandError where there is none of that name."""
    try:
        if name is None and gpu_present() and (here := hardware.live()) is not None:
            return here
        return hardware.device_named(name or DEFAULT_TARGET)
    except hardware.UnknownDevice as error:
        raise CommandError(f"{error}.") from error


def _facts(read: _Read) -> list[tuple[str, str]]:
    """Return the resources as names and values."""
    code, known = read.code, read.resources
    facts = [("Target", code.arch)]
    if code.registers is not None:
        facts.append(("Registers a thread", str(code.registers)))
    if code.peak_live is not None:
        facts.append(("Most live registers", str(code.peak_live[0])))
    if known is not None:
        facts += [
            ("Shared memory", _size(known.shared_bytes)),
            ("Threads a block", str(known.threads)),
            ("Occupancy", f"{100 * known.occupancy:.0f} %"),
            ("Limited by", known.limiter),
        ]
    facts += _launch_facts(read.profile)
    if code.stack_bytes is not None:
        facts.append(("Stack or scratch", f"{code.stack_bytes} B"))
    facts += [(name, str(code.counts[key])) for key, name in COUNTS.items() if key in code.counts]
    if code.spill_store_bytes is not None:
        facts.append(
            ("Spill stores, loads", f"{code.spill_store_bytes}, {code.spill_load_bytes} B")
        )
    if not code.listing.instructions:
        return facts
    whole = code.whole
    facts.append(("Instructions", str(whole.instructions)))
    facts.append(("Matrix instructions", str(whole.groups.get("matrix", 0))))
    facts.append(("Blocks, loops", f"{len(code.graph.reachable)}, {len(code.graph.all_loops())}"))
    return facts


def _launch_facts(profile: Sequence[Dispatch]) -> Iterator[tuple[str, str]]:
    """Yield the geometry and time of the profiled launch, the longest of several."""
    if not profile:
        return
    longest = max(profile, key=lambda d: d.duration_ns or 0.0)
    grid, block = longest.geometry.grid, longest.geometry.block
    if grid is not None and block is not None:
        yield "Grid", " x ".join(map(str, grid))
        yield "Threads a block", str(math.prod(block))
    if longest.geometry.shared_bytes is not None:
        yield "Shared memory", _size(longest.geometry.shared_bytes)
    if longest.duration_ns is not None:
        yield "Profiled time", duration(longest.duration_ns / 1e9)


def _size(count: int) -> str:
    return f"{count} B" if count < 1024 else f"{count / 1024:.4g} KiB"


def _say(console: Console, view: CodeView, read: _Read, options: CodeOptions) -> None:
    """Print the result: facts, findings, comparison, loops, partitions, matches, listing."""
    code = view.code
    say_result(console, f"{view.title}: machine code for {view.device}", style="bold")
    say_result(console, "; ".join(f"{name} {value}" for name, value in view.facts))
    for number, sentence in code.warnings:
        say_result(console, f"ptxas {number}: {sentence}".replace(" :", ":"), style="yellow")
    if view.comparison is not None:
        say_result(console, comparison_sentence(view.comparison, view.baseline), style="bold")
        for title, table in change_tables(view.comparison):
            console.print(title)
            _print(console, table)
    if view.samples is not None:
        say_result(console, sample_sentence(view.samples), style="bold")
        _print(console, sample_table(code, view.samples))
    if code.listing.instructions:
        _say_listing(console, view, options)
    if read.others:
        others = ", ".join(read.others)
        console.print(f"note  also launched, not shown: {others}", soft_wrap=True, markup=False)
    for note in code.notes:
        console.print(f"note  {note}", soft_wrap=True)


def _say_listing(console: Console, view: CodeView, options: CodeOptions) -> None:
    """Print what the listing shows: loops, mix, partitions, matches, and itself."""
    code = view.code
    if (loops := loop_table(code, view.samples))["rows"]:
        _print(console, loops)
    else:
        console.print("There is no loop; a fully unrolled one looks like any other code.")
    groups = ", ".join(group_text(n, group) for group, n in code.whole.groups.items())
    console.print(f"mix  {groups}", soft_wrap=True)
    if (parts := partition_table(code)) is not None:
        _print(console, parts)
        console.print(partition_sentence(code), soft_wrap=True)
    if view.word:
        _say_matches(console, view)
    if options.text:
        for line in listing_lines(code, view.samples):
            say_result(console, line)


def _say_matches(console: Console, view: CodeView) -> None:
    counts = amount(len(view.matches), "instruction")
    say_result(console, f"{view.word}: {counts}", style="bold")
    for line in match_lines(view.code, view.matches[:MATCHES]):
        say_result(console, f"  {line}")
    if (reason := elsewhere(view.word, view.code.arch)) is not None:
        say_result(console, f"  {reason}")
    if len(view.matches) > MATCHES:
        console.print(f"  {len(view.matches) - MATCHES} more on the page")


def _print(console: Console, table: dict[str, Any]) -> None:
    heads, text = table["heads"], {0, *table.get("text", ())}
    right = [head for n, head in enumerate(heads) if n not in text]
    console.print(text_table(heads, (cells for cells, _ in table["rows"]), right))


def _plain(view: CodeView, read: _Read) -> dict[str, Any]:
    """Return the result as plain data."""
    code = view.code
    known: CodeComparison | None = view.comparison
    return {
        "title": view.title,
        "target": code.arch,
        "function": code.name,
        "binary": code.binary,
        "registers": code.registers,
        "stack_bytes": code.stack_bytes,
        "counts": dict(code.counts),
        "spill_store_bytes": code.spill_store_bytes,
        "spill_load_bytes": code.spill_load_bytes,
        "most_live_registers": code.peak_live[0] if code.peak_live else None,
        "resources": encode_plain(read.resources) if read.resources else None,
        "mix": _plain_mix(code.whole) if code.listing.instructions else None,
        "blocks": len(code.graph.reachable) or None,
        "loops": [
            {
                "head": loop.head,
                "depth": depth,
                "blocks": sorted(loop.blocks),
                **_plain_mix(mix),
                "sample_share": view.samples and view.samples.share(code.places(loop)),
                "stalls": view.samples and _stalls(view.samples, code.places(loop)),
            }
            for depth, loop, mix in code.loops()
        ],
        "samples": view.samples and _plain_samples(view.samples),
        "partitions": None if code.partitions is None else _plain_partitions(code),
        "warnings": [{"number": number, "text": text} for number, text in code.warnings],
        "matches": [{"index": i, "address": op.address, "text": op.text} for i, op in view.matches],
        "comparison": None if known is None else asdict(known),
        "notes": list(code.notes),
    }


def _plain_mix(mix: Mix) -> dict[str, Any]:
    return {
        "instructions": mix.instructions,
        "groups": dict(mix.groups),
        "accesses": [vars(each) for each in mix.accesses],
        "matrix": dict(mix.matrix),
        "matrix_flops": mix.matrix_flops,
    }


def _plain_partitions(code: MachineCode) -> dict[str, Any]:
    known = code.partitions
    assert known is not None
    return {
        "partitions": [
            {"name": p.name, "roles": list(p.roles), "blocks": sorted(p.blocks),
             "barriers": sorted(p.barriers)}
            for p in known.partitions
        ],
        "overlaps": [list(each) for each in known.overlaps],
        "shared_barriers": {hex(offset): list(names) for offset, names in known.shared_barriers},
    }  # fmt: skip


def _stalls(samples: StallSamples, places: Sequence[int]) -> dict[str, float]:
    return dict(samples.main_stalls(places))


def _plain_samples(samples: StallSamples) -> dict[str, Any]:
    return {
        "total": samples.total,
        "launches": samples.launches,
        "instructions": [
            {"index": i, "samples": n, "reason": samples.reason(i), "stalls": _stalls(samples, [i])}
            for i, n in enumerate(samples.counts)
            if n
        ],
    }
