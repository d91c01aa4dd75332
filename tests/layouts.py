"""Layouts in Triton's TTGIR: how many threads of a block hold the same element of a tensor.

Where a tensor changes its layout by way of shared memory, each thread that holds an element stores
it; several of them store it to the same place, which compute-sanitizer reports as a race.
"""

from __future__ import annotations

import ast
import re
from math import prod

DEFINED = re.compile(r"^(#\w+) = (#ttg\.(?:blocked|linear)<\{.*\}>)", re.M)
CHANGED = re.compile(r"ttg\.convert_layout %\S+ : tensor<([\dx]+)x\w+, (.+)> -> tensor<")
SLICED = re.compile(r"#ttg\.slice<\{dim = (\d+), parent = (.+)\}>$")


def stored_twice(text: str, threads: int) -> list[str]:
    """Return the changes of layout whose source has elements that several threads hold, but not all
    of them: then nothing need be exchanged."""
    defined = dict(DEFINED.findall(text))
    results = []
    for line in text.splitlines():
        if found := CHANGED.search(line):
            shape = [int(n) for n in found[1].split("x")]
            copies = copies_of(found[2], shape, defined)
            if 1 < copies < threads:
                results.append(f"{copies} threads hold each element of {line.strip()}")
    return results


def copies_of(layout: str, shape: list[int], defined: dict[str, str]) -> int:
    """Return the number of threads that hold the same element of a tensor of this layout."""
    dims: list[int | None] = list(shape)
    sliced: list[int] = []
    while found := SLICED.match(layout):
        sliced.append(int(found[1]))
        layout = found[2]
    for dim in sliced:  # the outermost slice was taken last
        dims.insert(dim, None)
    text = defined[layout]
    named = {n: ast.literal_eval(v) for n, v in re.findall(r"(\w+) = (\[[^=]*\])", text)}
    if "linear" in text:
        bases = named["lane"] + named["warp"]
        kept = [[n for n, d in zip(b, dims, strict=True) if d is not None] for b in bases]
        return 1 << sum(not any(basis) for basis in kept)
    each = zip(
        dims, named["sizePerThread"], named["threadsPerWarp"], named["warpsPerCTA"], strict=True
    )
    return prod(
        lanes * warps if dim is None else max(1, lanes * warps * size // max(dim, size))
        for dim, size, lanes, warps in each
    )
