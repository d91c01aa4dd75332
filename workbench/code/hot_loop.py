"""Read the instructions of a kernel by kind, and of its hot loop."""

from collections.abc import Mapping
from functools import lru_cache

from workbench.code.flow import FlowGraph, Loop, flow_graph
from workbench.code.listing import Listing, disassemble, read_amdgcn_listing, read_sass
from workbench.code.mix import Mix, mix_of
from workbench.data.compiled_code import HotLoop


# Devices of one architecture share their code, and follow each other: nvdisasm takes 0.4 s.
@lru_cache(maxsize=16)
def read_instructions(image: bytes | str, arch: str) -> tuple[Mapping[str, int], HotLoop | None]:
    """Return the instructions of a kernel by kind, and its hot loop. Raises OSError, ValueError or
    SubprocessError where it cannot be disassembled."""
    if isinstance(image, str):
        listing = read_amdgcn_listing(image)
    else:
        listing = read_sass(disassemble(image))
    groups = mix_of(listing.instructions, arch).groups
    return groups, hot_loop(listing, flow_graph(listing), arch)


def hot_loop(listing: Listing, graph: FlowGraph, arch: str) -> HotLoop | None:
    """Return the innermost loop with the most matrix instructions, then with the most memory
    accesses and instructions; None where the listing has no loop with one of these."""

    def mix_of_loop(loop: Loop) -> Mix:
        blocks = [graph.blocks[n] for n in sorted(loop.blocks)]
        ops = [op for b in blocks for op in listing.instructions[b.start : b.end]]
        return mix_of(ops, arch)

    def working(loop: Loop) -> bool:  # one that only waits for a barrier does no work
        mix = mix_of_loop(loop)
        return any(_rank(mix)[:2]) or "float" in mix.groups

    mixes = [
        mix_of_loop(loop)
        for _, loop in graph.all_loops()
        if working(loop) and not any(map(working, loop.inner))
    ]
    if not mixes:
        return None
    hot = max(mixes, key=_rank)
    loads = [a.bytes for a in hot.accesses if a.kind in ("global load", "shared load")]
    known = [bytes_ for bytes_ in loads if bytes_ is not None]
    total = sum(known) if len(known) == len(loads) else None
    return HotLoop(hot.instructions, dict(hot.groups), total)


def _rank(mix: Mix) -> tuple[int, int, int]:
    accesses = sum(access.count for access in mix.accesses)
    return mix.groups.get("matrix", 0), accesses, mix.instructions
