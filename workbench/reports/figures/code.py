"""Draw the control flow of machine code as SVG and DOT, and its live registers as a strip.

Blocks stand in the order of their addresses, further right for each loop around them. Jumps forward
are arcs on the right, jumps back on the left, each in a lane of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from workbench.code.code_reading import MachineCode
from workbench.code.flow import Block
from workbench.code.kinds import group_text
from workbench.code.mix import mix_of
from workbench.data.units import amount

if TYPE_CHECKING:
    from markupsafe import Markup

DRAWN = 200  # blocks at most
ROW, BOX, WIDTH, INDENT, LANE = 30, 22, 640, 18, 9  # CSS pixels
SHOWN = ("matrix", "global loads", "global stores", "tensor memory", "shared loads",
         "shared stores", "spills", "special")  # fmt: skip
STRIP = 1000, 120  # CSS pixels of the strip of live registers


def block_depths(code: MachineCode) -> dict[int, int]:
    """Return the number of loops around each reached block."""
    loops = [loop for _, loop in code.graph.all_loops()]
    return {n: sum(n in loop.blocks for loop in loops) for n in code.graph.reachable}


def block_text(code: MachineCode, block: Block) -> str:
    """Return the contents of a block in words: its instructions, then the groups that matter."""
    mix = mix_of(code.listing.instructions[block.start : block.end], code.arch)
    parts = [group_text(mix.groups[g], g) for g in SHOWN if g in mix.groups]
    return ", ".join([amount(mix.instructions, "instruction"), *parts[:3]])


def place_text(code: MachineCode, block: Block) -> str:
    """Return the address of a block, or the number of its first instruction."""
    address = code.listing.instructions[block.start].address
    return f"#{block.start}" if address is None else f"{address:04x}"


def flow_svg(code: MachineCode) -> Markup | None:
    """Return the control flow as inline SVG, or None where it has more than DRAWN blocks."""
    from markupsafe import Markup, escape

    blocks = [b for b in code.graph.blocks if b.number in code.graph.reachable]
    if len(blocks) > DRAWN:
        return None
    row = {b.number: k for k, b in enumerate(blocks)}
    depths = block_depths(code)
    jumps = [
        (row[b.number], row[n]) for b in blocks for n in b.successors if row[n] != row[b.number] + 1
    ]
    lanes = dict(zip(jumps, _lanes(jumps), strict=True))
    back = max((lanes[j] for j in jumps if j[1] <= j[0]), default=-1) + 1
    forward = max((lanes[j] for j in jumps if j[1] > j[0]), default=-1) + 1
    left = 16 + LANE * back
    right = left + WIDTH + INDENT * max(depths.values(), default=0)
    width, height = right + 24 + LANE * forward, ROW * len(blocks) + 8
    parts = []
    for k, block in enumerate(blocks):
        x, y, deep = left + INDENT * depths[block.number], 4 + ROW * k, depths[block.number]
        if row.get(block.number + 1) == k + 1 and block.number + 1 in block.successors:
            middle = min(x, left + INDENT * depths[block.number + 1]) + 40
            parts.append(f'<path class="edge" d="M{middle} {y + BOX}v{ROW - BOX}"/>')
        text = f"B{block.number}  {place_text(code, block)}  {block_text(code, block)}"
        parts.append(
            f'<a href="#b{block.number}"><rect class="d{min(deep, 3)}" x="{x}" y="{y}" rx="3" '
            f'width="{right - x}" height="{BOX}"/><text x="{x + 8}" y="{y + 15}">{escape(text)}'
            f"</text></a>"
        )
    for one, other in jumps:
        parts.append(_arc(one, other, lanes[one, other], left, right, blocks, depths))
    marker = (
        '<defs><marker id="tip" viewBox="0 0 6 6" refX="6" refY="3" markerWidth="6" '
        'markerHeight="6" orient="auto"><path class="tip" d="M0 0 6 3 0 6z"/></marker></defs>'
    )
    return Markup(
        f'<svg class="flow" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="group" aria-label="control flow">{marker}{"".join(parts)}</svg>'
    )


def _arc(
    one: int,
    other: int,
    lane: int,
    left: int,
    right: int,
    blocks: Sequence[Block],
    depths: dict[int, int],
) -> str:
    """Return one jump as a path: on the left where it goes back."""
    start, end = 4 + ROW * one + BOX - 6, 4 + ROW * other + 6
    look = 'class="edge" marker-end="url(#tip)"'
    if other > one:
        across = right + 10 + LANE * lane
        return f'<path {look} d="M{right} {start}H{across}V{end}H{right}"/>'
    across = left - 10 - LANE * lane
    source, target = (left + INDENT * depths[blocks[k].number] for k in (one, other))
    return (
        f'<path class="edge back" marker-end="url(#tip)" d="M{source} {start}H{across}V{end}'
        f'H{target}"/>'
    )


def _lanes(jumps: Sequence[tuple[int, int]]) -> list[int]:
    """Return a lane for each jump, so that jumps of one side cross no other in their lane."""
    taken: dict[bool, list[list[tuple[int, int]]]] = {True: [], False: []}
    result = [0] * len(jumps)
    for k in sorted(range(len(jumps)), key=lambda k: abs(jumps[k][1] - jumps[k][0])):
        low, high = sorted(jumps[k])
        used = taken[jumps[k][1] > jumps[k][0]]
        free = (n for n, spans in enumerate(used) if all(high < a or low > b for a, b in spans))
        result[k] = lane = next(free, len(used))
        if lane == len(used):
            used.append([])
        used[lane].append((low, high))
    return result


def flow_dot(code: MachineCode) -> str:
    """Return the control flow as DOT, for Graphviz."""
    return "\n".join(_dot_lines(code)) + "\n"


def _dot_lines(code: MachineCode) -> Iterator[str]:
    name = code.name.replace("\\", "\\\\").replace('"', '\\"')
    yield f'digraph "{name}" {{'
    yield '  node [shape=box fontname="monospace" fontsize=10];'
    depths = block_depths(code)
    for block in code.graph.blocks:
        if block.number not in code.graph.reachable:
            continue
        label = f"B{block.number} {place_text(code, block)}\\n{block_text(code, block)}"
        style = ' style="bold"' if depths[block.number] else ""
        yield f'  B{block.number} [label="{label}"{style}];'
        yield from (f"  B{block.number} -> B{n};" for n in block.successors)
    yield "}"


def live_svg(code: MachineCode) -> Markup | None:
    """Return the live registers along the listing as inline SVG; None where they are not known."""
    from markupsafe import Markup

    if not code.live:
        return None
    width, height = STRIP
    last = max(b.end for b in code.graph.blocks if b.number in code.graph.reachable)
    most = max(code.registers or 0, max(code.live), 1)
    across, up = width / last, height / most
    loops = "".join(
        f'<rect class="in-loop" x="{b.start * across:.1f}" y="0" height="{height}" '
        f'width="{(b.end - b.start) * across:.1f}"/>'
        for n, depth in sorted(block_depths(code).items())
        if depth
        for b in [code.graph.blocks[n]]
    )
    path = f"M0 {height}"
    before = None
    for i, count in enumerate(code.live[:last]):
        if count != before:
            path += f"H{i * across:.1f}V{height - count * up:.1f}"
        before = count
    path += f"H{width}V{height}z"
    line = height - (code.registers or 0) * up
    return Markup(
        f'<svg class="live" viewBox="0 -2 {width} {height + 4}" width="{width}" '
        f'preserveAspectRatio="none" height="{height + 4}" role="img" '
        f'aria-label="live registers along the listing">{loops}<path class="area" d="{path}"/>'
        f'<path class="limit" d="M0 {line:.1f}H{width}"/></svg>'
    )
