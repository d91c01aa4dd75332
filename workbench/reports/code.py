"""Page of machine code: resources, loops, control flow, partitions, source lines, listing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.code.code_match import Change, CodeComparison
from workbench.code.code_reading import MachineCode, register_name
from workbench.code.kinds import group_of, group_text
from workbench.code.listing import Instruction, SourceLine
from workbench.code.mix import Mix
from workbench.data.units import amount, percent
from workbench.reports import render
from workbench.reports.figures.code import block_depths, block_text, flow_svg, live_svg, place_text
from workbench.reports.tables import Columns, Table, table

if TYPE_CHECKING:
    from markupsafe import Markup

    from workbench.code.code_samples import StallSamples

LISTED = 2200  # instructions of the listing on a page, which keeps it below 600 kB
LONGEST = 200  # characters of an instruction or of a line of source
MAIN = 2  # reasons to stall that a row names
LEAST_STALL = 0.05  # share of a row's samples, from which on a second reason is named
TOP = 12  # instructions with the most samples, in a table of their own
WARM = ((0.05, "h3"), (0.02, "h2"), (0.005, "h1"))  # colour by share of all samples
HOT = {"matrix": "m", "global loads": "g", "global stores": "g", "tensor memory": "g",
       "shared loads": "h", "shared stores": "h", "spills": "p", "barriers": "w"}  # fmt: skip


@dataclass(frozen=True)
class CodeView:
    """Everything that a page shows of one kernel."""

    title: str  # kernel and config, or the file
    device: str
    code: MachineCode
    facts: Sequence[tuple[str, str]]  # resources, name and value
    command: str
    word: str = ""  # of --find
    matches: Sequence[tuple[int, Instruction]] = ()
    baseline: str = ""
    comparison: CodeComparison | None = None
    samples: StallSamples | None = None
    sources: Mapping[str, str] | None = None  # texts that a profile holds; else they are on disk


def page(view: CodeView) -> str:
    """Return the page as HTML."""
    code = view.code
    sources = {op.source for op in code.listing.instructions if op.source}
    lines = {s: n for n, s in enumerate(sorted(sources, key=lambda s: (s.file, s.line)))}
    return render(
        "code.html.j2",
        view=view,
        code=code,
        loops=loop_table(code, view.samples),
        sampled=sample_table(code, view.samples) if view.samples else None,
        sample_sentence=sample_sentence(view.samples) if view.samples else "",
        mix=mix_table(code.whole),
        accesses=table(ACCESSES, code.whole.accesses),
        flow=flow_svg(code),
        live=live_svg(code),
        register_name=register_name(code.arch),
        partitions=partition_table(code),
        partition_sentence=partition_sentence(code),
        against_sentence=(
            comparison_sentence(view.comparison, view.baseline) if view.comparison else ""
        ),
        changes=change_tables(view.comparison) if view.comparison else [],
        matches=[(i, _where(code, i, op), op.text[:LONGEST]) for i, op in view.matches],
        sources=_sources(view, lines),
        blocks=_listing(code, lines, view.samples),
        left_out=max(0, len(code.listing.instructions) - LISTED),
    )


# Tables, which the terminal prints too


def loop_table(code: MachineCode, samples: StallSamples | None = None) -> Table:
    """Return one row a loop: place, depth, instructions, mix, bytes and matrix work, and its share
    of the samples where they are known."""

    def name(row: Any) -> str:
        depth, loop, _ = row
        place = place_text(code, code.graph.blocks[loop.head])
        return f"{'  ' * depth}{'↳ ' * bool(depth)}B{loop.head} at {place}"

    def span(row: Any) -> str:
        lines = {op.source.line for op in code.instructions(row[1]) if op.source}
        return f"{min(lines)} to {max(lines)}" if lines else ""

    sampled: Columns = ()
    if samples is not None:
        sampled = (
            ("samples", lambda row: _share_text(samples, code.places(row[1]))),
            ("main stalls", lambda row: stall_text(samples, code.places(row[1]))),
        )
    columns: Columns = (
        ("loop", name),
        ("blocks", lambda row: str(len(row[1].blocks))),
        ("instructions", lambda row: str(row[2].instructions)),
        ("mix", lambda row: _groups(row[2])),
        ("global loads, B", lambda row: bytes_text(row[2], "global load")),
        ("shared loads, B", lambda row: bytes_text(row[2], "shared load")),
        ("matrix", lambda row: matrix_text(row[2])),
        ("lines", span),
        *sampled,
    )
    return table(columns, list(code.loops()), text=(3, 6, 9))


def _share_text(samples: StallSamples, places: Sequence[int]) -> str:
    return f"{100 * samples.share(places):.1f} %"


def stall_text(samples: StallSamples, places: Sequence[int]) -> str:
    """Return the main reasons to stall at instructions, each with its share of their samples."""
    first, *rest = samples.main_stalls(places)[:MAIN] or [("", 0.0)]
    main = [first, *(each for each in rest if each[1] >= LEAST_STALL)]
    return ", ".join(f"{reason} {percent(share)}" for reason, share in main if reason)


def _groups(mix: Mix) -> str:
    order = sorted(mix.groups.items(), key=lambda each: -each[1])
    return ", ".join(group_text(n, group) for group, n in order[:7])


def bytes_text(mix: Mix, kind: str) -> str:
    """Return the bytes that a thread moves by accesses of a kind, each instruction once."""
    each = [a for a in mix.accesses if a.kind == kind]
    count = sum(a.bytes or 0 for a in each)
    if any(a.width is None for a in each):
        return f"{count} and by descriptor" if count else "by descriptor"
    return str(count)


def matrix_text(mix: Mix) -> str:
    """Return the matrix instructions of a mix, with their operations where the opcode tells."""
    if not mix.matrix:
        return ""
    names = ", ".join(f"{n} {name}" for name, n in list(mix.matrix.items())[:3])
    return f"{names}: {mix.matrix_flops:,} FLOP" if mix.matrix_flops else names


def sample_table(code: MachineCode, samples: StallSamples) -> Table:
    """Return one row for each of the TOP instructions with the most samples."""
    places = sorted(range(len(samples.counts)), key=lambda i: (-samples.counts[i], i))[:TOP]
    ops = code.listing.instructions
    columns: Columns = (
        ("most sampled", lambda i: _where(code, i, ops[i])),
        ("samples", lambda i: str(samples.counts[i])),
        ("share", lambda i: _share_text(samples, [i])),
        ("main stalls", lambda i: stall_text(samples, [i])),
        ("instruction", lambda i: ops[i].text[:LONGEST]),
    )
    return table(columns, [i for i in places if samples.counts[i]], text=(3, 4))


def sample_sentence(samples: StallSamples) -> str:
    """Return how many samples there are, and of how many launches."""
    launches = f"{samples.launches} profiled launches" if samples.launches > 1 else "one launch"
    return f"{samples.total:,} stall samples of {launches} of this code"


def mix_table(mix: Mix) -> Table:
    """Return one row a group of instructions, with its share."""
    columns: Columns = (
        ("instructions", lambda row: row[0]),
        ("count", lambda row: str(row[1])),
        ("share", lambda row: f"{100 * row[1] / max(mix.instructions, 1):.1f} %"),
    )
    return table(columns, list(mix.groups.items()))


ACCESSES: Columns = (
    ("access", lambda a: a.kind),
    ("B a thread", lambda a: "descriptor" if a.width is None else str(a.width)),
    ("count", lambda a: str(a.count)),
    ("B in all", lambda a: "" if a.bytes is None else str(a.bytes)),
)


PARTITIONS: Columns = (
    ("partition", lambda p: p.name),
    ("role", lambda p: ", ".join(p.roles) or "waits or ends"),
    ("blocks", lambda p: str(len(p.blocks))),
    ("labelled blocks", lambda p: str(p.labels)),
    ("mbarriers at", lambda p: ", ".join(f"{b:#x}" for b in sorted(p.barriers))),
)


def partition_table(code: MachineCode) -> Table | None:
    """Return one row a partition of a warp-specialised kernel, or None for a plain one."""
    return table(PARTITIONS, code.partitions.partitions, text=(1, 4)) if code.partitions else None


def partition_sentence(code: MachineCode) -> str:
    """Return what the partitions share, in one or two sentences."""
    split = code.partitions
    if split is None:
        return "The kernel is not warp-specialised: no jump leads to parts with different roles."
    overlap = "; ".join(f"{a} and {b} share {amount(n, 'block')}" for a, b, n in split.overlaps)
    shared = ", ".join(f"{b:#x} ({', '.join(names)})" for b, names in split.shared_barriers)
    first = f"Partitions overlap: {overlap}." if overlap else "No two partitions share a block."
    return f"{first} Shared mbarriers: {shared}." if shared else f"{first} No mbarrier is shared."


BLOCKS: Columns = (
    ("block", lambda block: _pair(block.before, block.after)),
    ("opcodes in common", lambda block: f"{100 * block.equal:.0f} %" if block.equal else ""),
    ("change", lambda block: _block_changes(block.changes)),
)


def change_tables(result: CodeComparison) -> list[tuple[str, Table]]:
    """Return the tables of a comparison, each with its title."""
    every = [("Resources", result.resources), ("Mix", result.mix)]
    every += [(f"Loop {_pair(before, after)}", each) for before, after, each in result.loops]
    tables = [(title, table(CHANGES, changes)) for title, changes in every]
    tables.append(("Blocks that differ", table(BLOCKS, result.blocks, text=(2,))))
    return [(title, shown) for title, shown in tables if shown["rows"]]


def _block_changes(changes: Sequence[Change]) -> str:
    words = ", ".join(f"{c.name} {c.before} to {c.after}" for c in changes)
    return words or "other opcodes or another order"


def _pair(before: int | None, after: int | None) -> str:
    if before is None:
        return f"B{after}, new"
    return f"B{before}, gone" if after is None else f"B{before} to B{after}"


def _difference(change: Change) -> str:
    if change.before is None or change.after is None or change.after == change.before:
        return ""
    return f"{change.after - change.before:+d}"


def _number_text(value: int | None) -> str:
    return "not known" if value is None else str(value)


CHANGES: Columns = (
    ("", lambda each: each.name),
    ("against", lambda each: _number_text(each.before)),
    ("this", lambda each: _number_text(each.after)),
    ("change", _difference),
)


def comparison_sentence(result: CodeComparison, against: str) -> str:
    """Return the result of a comparison in one sentence."""
    if result.same_binary:
        return f"The binary is the same as that of {against}."
    if result.same_code:
        return f"Every block has the same opcodes as in {against}; operands or metadata differ."
    of = result.equal_blocks + len(result.blocks)
    have = "has" if result.equal_blocks == 1 else "have"
    return (
        f"{result.equal_blocks} of {amount(of, 'block')} {have} the same opcodes as in {against}."
    )


# Source and listing, linked both ways


def _runs(code: MachineCode) -> dict[SourceLine, list[tuple[int, int]]]:
    """Return the runs of instructions, first and last, that belong to each source line."""
    runs: dict[SourceLine, list[tuple[int, int]]] = {}
    ops = code.listing.instructions
    start = 0
    for i in range(1, len(ops) + 1):
        if i == len(ops) or ops[i].source != ops[start].source:
            if (source := ops[start].source) is not None:
                runs.setdefault(source, []).append((start, i - 1))
            start = i
    return runs


def _sources(view: CodeView, lines: dict[SourceLine, int]) -> list[dict[str, Any]]:
    """Return one row a source line: text, instructions, and links to them."""
    code, samples = view.code, view.samples
    runs, texts = _runs(code), dict[str, list[str]]()
    ops = code.listing.instructions
    shown = {b.start + i for b in code.graph.blocks if b.number in _listed_blocks(code)
             for i in range(b.end - b.start)}  # fmt: skip
    rows = []
    for source, number in lines.items():
        if source.file not in texts:
            texts[source.file] = _text_of(source.file, view.sources)
        text = texts[source.file]
        own = [i for first, last in runs[source] for i in range(first, last + 1)]
        kinds = [group_of(ops[i], code.arch) for i in own]
        hot = [group_text(kinds.count(g), g) for g in HOT if g in kinds]
        rows.append({
            "id": number,
            "place": f"{Path(source.file).name}:{source.line}",
            "text": text[source.line - 1][:LONGEST] if 0 < source.line <= len(text) else "",
            "count": len(own),
            "hot": ", ".join(hot),
            "share": _share_text(samples, own) if samples else "",
            "warmth": _warmth(samples.share(own)) if samples else "",
            "look": next((HOT[g] for g in HOT if g in kinds), ""),
            "runs": [(a, b, a in shown)
                     for a, b in sorted(runs[source], key=lambda run: run[0] - run[1])[:6]],
            "more": max(0, len(runs[source]) - 6),
        })  # fmt: skip
    return rows


def _text_of(file: str, sources: Mapping[str, str] | None) -> list[str]:
    """Return the lines of a Python source file; empty where it is not here, or is another kind. A
    profile names files without their folders, so its own texts alone are taken."""
    if sources is not None:
        return sources.get(file, "").splitlines()
    path = Path(file)
    try:
        if path.suffix != ".py" or path.stat().st_size > 1 << 20:
            return []
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except (OSError, ValueError):
        return []


def _listed_blocks(code: MachineCode) -> set[int]:
    """Return the blocks whose instructions are on the page: all, or where there are more than
    LISTED instructions, those in the innermost loops first."""
    depths = block_depths(code)
    room, shown = LISTED, set[int]()
    for block in sorted(code.graph.blocks, key=lambda b: (-depths.get(b.number, -1), b.start)):
        if room > 0:
            shown.add(block.number)
            room -= block.end - block.start
    return shown


def _listing(
    code: MachineCode, lines: dict[SourceLine, int], samples: StallSamples | None
) -> list[dict[str, Any]]:
    """Return the blocks with their instructions as markup."""
    depths, shown = block_depths(code), _listed_blocks(code)
    return [
        {
            "number": b.number,
            "title": f"B{b.number} at {place_text(code, b)}: {block_text(code, b)}",
            "depth": depths.get(b.number, 0),
            "reached": b.number in depths,
            "after": b.successors,
            "text": _block_markup(code, (b.start, b.end), lines, samples)
            if b.number in shown
            else None,
        }
        for b in code.graph.blocks
    ]


def _warmth(share: float) -> str:
    """Return the class of a share of the samples, by which a line is coloured; empty for little."""
    return next((look for least, look in WARM if share >= least), "")


def _sample_text(samples: StallSamples, place: int) -> str:
    """Return the samples of an instruction and their share, in a column of 14."""
    count = samples.counts[place]
    return f"{count:7d} {100 * samples.share([place]):4.1f} %" if count else " " * 14


def _reason_text(samples: StallSamples, place: int) -> str:
    """Return the main reason to stall of an instruction, in a column of 20."""
    return f" {samples.reason(place):<19}"


def _block_markup(
    code: MachineCode,
    span: tuple[int, int],
    lines: dict[SourceLine, int],
    samples: StallSamples | None,
) -> Markup:
    from markupsafe import Markup, escape

    start, end = span
    parts = []
    before: SourceLine | None = None
    for i in range(start, end):
        op = code.listing.instructions[i]
        place = f"{i:5d}" if op.address is None else f"{op.address:05x}"
        live = f"{code.live[i]:4d}" if code.live else ""
        link = "     "
        if op.source and (op.source != before or i == start):
            link = f'<a id="i{i}" href="#s{lines[op.source]}">{op.source.line:5d}</a>'
        before = op.source
        look = HOT.get(group_of(op, code.arch))
        text = str(escape(op.text[:LONGEST]))
        if samples is not None:
            warmth = _warmth(samples.share([i]))
            column = _sample_text(samples, i)
            live += f"<i class={warmth}>{column}</i>" if warmth else column
            live += str(escape(_reason_text(samples, i)))
        parts.append(f"{link} {place}{live}  " + (f"<b class={look}>{text}</b>" if look else text))
    return Markup("\n".join(parts))


def _where(code: MachineCode, index: int, op: Instruction) -> str:
    """Return the place of an instruction: block, address and source line."""
    block = next(b for b in code.graph.blocks if b.start <= index < b.end)
    place = f"#{index}" if op.address is None else f"{op.address:04x}"
    line = f", {Path(op.source.file).name}:{op.source.line}" if op.source else ""
    return f"B{block.number} {place}{line}"


def match_lines(code: MachineCode, matches: Sequence[tuple[int, Instruction]]) -> list[str]:
    """Return one line of text for each found instruction."""
    return [f"{_where(code, i, op):<32} {op.text}" for i, op in matches]


def listing_lines(code: MachineCode, samples: StallSamples | None = None) -> list[str]:
    """Return the whole listing as lines of text, by block: source line, place, live registers,
    samples."""
    result = []
    for block in code.graph.blocks:
        leads = ", ".join(f"B{n}" for n in block.successors)
        reached = "" if block.number in code.graph.reachable else ", not reached"
        title = f"B{block.number} at {place_text(code, block)}: {block_text(code, block)}"
        result.append(f"{title}{reached}{'; then ' * bool(leads)}{leads}")
        for i in range(block.start, block.end):
            op = code.listing.instructions[i]
            place = f"{i:5d}" if op.address is None else f"{op.address:05x}"
            live = f"{code.live[i]:4d}" if code.live else ""
            line = op.source.line if op.source else ""
            live += _sample_text(samples, i) + _reason_text(samples, i) if samples else ""
            result.append(f"  {line:>5} {place}{live}  {op.text}")
    return result
