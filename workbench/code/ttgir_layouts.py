"""How TTGIR's layouts spread a tensor over threads: elements of a thread, accesses of a warp."""

import re
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from workbench.code.ttgir import TensorType

WIDEST = 16  # bytes of one thread's access


@dataclass(frozen=True)
class LayoutSpread:
    """Elements of a thread next to one another, lanes and warps along each axis; `order` has the
    axis that varies fastest first."""

    each: tuple[int, ...]
    lanes: tuple[int, ...]
    warps: tuple[int, ...]
    order: tuple[int, ...]


class Layouts:
    """The layouts of one kernel."""

    def __init__(self, named: dict[str, str], warps: int, lanes: int) -> None:
        self._named, self._warps, self._lanes = named, warps, lanes
        self._spreads: dict[tuple[str, int], LayoutSpread] = {}

    def text(self, layout: str) -> str:
        """Return a layout with its names replaced by what they stand for."""
        for _ in range(4):
            match = re.search(r"#(?!ttg|ttng)[\w]+", layout)
            if not match or match.group() not in self._named:
                break
            layout = layout.replace(match.group(), self._named[match.group()], 1)
        return layout

    def spread(self, layout: str, rank: int) -> LayoutSpread:
        """Return how a layout spreads a tensor of this rank."""
        key = layout, rank
        if key not in self._spreads:
            self._spreads[key] = self._spread(self.text(layout), rank)
        return self._spreads[key]

    def _spread(self, text: str, rank: int) -> LayoutSpread:
        rising = tuple(reversed(range(rank)))
        if text.startswith("#ttg.slice"):
            return self._slice(text, rank)
        if text.startswith("#ttg.blocked"):
            keys = ("sizePerThread", "threadsPerWarp", "warpsPerCTA", "order")
            return LayoutSpread(*(_numbers(text, key) for key in keys))
        if text.startswith(("#ttg.nvidia_mma", "#ttg.amd_mfma", "#ttg.amd_wmma")) and rank == 2:
            shape = _numbers(text, "instrShape")
            wide = shape[1] if len(shape) > 1 else 8
            warps = _numbers(text, "warpsPerCTA") or _span(text, "warp", rank)
            return LayoutSpread((2, max(2, wide // 4)), (8, self._lanes // 8), warps, rising)
        if text.startswith("#ttg.dot_op") and rank == 2:
            return self._operand(text, rank)
        if text.startswith("#ttg.linear"):
            return _linear(text, rank)
        ones = (1,) * (rank - 1)
        return LayoutSpread((1,) * rank, (*ones, self._lanes), (*ones, self._warps), rising)

    def _slice(self, text: str, rank: int) -> LayoutSpread:
        match = re.search(r"dim = (\d+)", text)
        assert match is not None  # every slice has one
        dim = int(match.group(1))
        parent = self._spread(text[text.index("parent = ") + 9 :], rank + 1)

        def drop_dim(t: tuple[int, ...]) -> tuple[int, ...]:
            return t[:dim] + t[dim + 1 :]

        order = tuple(a - (a > dim) for a in parent.order if a != dim)
        return LayoutSpread(
            drop_dim(parent.each), drop_dim(parent.lanes), drop_dim(parent.warps), order
        )

    def _operand(self, text: str, rank: int) -> LayoutSpread:
        """Return how an operand of a product that is held in registers is spread."""
        parent = self._spread(text[text.index("parent = ") + 9 :], rank)
        if "opIdx = 0" in text:
            lanes = (8, self._lanes // 8)
            return LayoutSpread((2, 4), lanes, (parent.warps[0], 1), parent.order)
        return LayoutSpread((4, 1), (self._lanes // 8, 8), (1, parent.warps[1]), parent.order)

    def registers(self, kind: TensorType) -> int:
        """Return the elements of a tensor that each thread holds."""
        if not kind.shape:
            return 1
        s = self.spread(kind.layout, len(kind.shape))
        axes = zip(kind.shape, s.each, s.lanes, s.warps, strict=False)
        return prod(-(-n // (e * lanes * w)) * min(e, n) for n, e, lanes, w in axes)

    def warp_copies(self, kind: TensorType) -> float:
        """Return the warps that hold each element of a tensor, in the mean. Lanes of one warp that
        hold the same element load it by one instruction."""
        s = self.spread(kind.layout, len(kind.shape))
        axes = zip(kind.shape, s.each, s.lanes, strict=False)
        lanes = prod(min(lanes, max(1, n // each)) for n, each, lanes in axes)
        held = self.registers(kind) * self._warps * lanes
        return max(1.0, held / kind.count)

    @lru_cache(maxsize=4096)  # noqa: B019 (lives as long as the walk of one kernel)
    def accesses(self, kind: TensorType, run: int) -> Any:
        """Return for each element of a tensor of pointers the number of the warp's instruction that
        accesses it. Of `run` elements beside one another a thread accesses no more at once."""
        s = self.spread(kind.layout, len(kind.shape))
        first = s.order[0]
        wide = min(s.each[first], run)
        group = np.zeros(kind.shape, dtype=np.int64)
        scale = 1
        for d, extent in enumerate(kind.shape):
            at = np.arange(extent)
            tile = s.each[d] * s.lanes[d] * s.warps[d]
            inner = at % s.each[d] // (wide if d == first else 1)
            warp = at // (s.each[d] * s.lanes[d]) % s.warps[d]
            number = (at // tile * s.warps[d] + warp) * s.each[d] + inner
            shape = [1] * len(kind.shape)
            shape[d] = -1
            group = group + number.reshape(shape) * scale
            scale *= int(number.max()) + 1
        return group

    def run(self, kind: TensorType, address: Any) -> int:
        """Return the elements, a power of two of at most 16 bytes, of which every so many lie
        beside one another, the first at a multiple of their bytes, along the axis that a layout
        spreads first. `address` has the bytes of each."""
        size, first = max(1, int(kind.item_bytes)), self.spread(kind.layout, address.ndim).order[0]
        rows = np.moveaxis(address, first, -1)
        run = min(WIDEST // size, rows.shape[-1] & -rows.shape[-1])
        while run > 1:
            each = rows.reshape(*rows.shape[:-1], -1, run)
            starts = each[..., 0] % (run * size) == 0
            if bool(starts.all()) and bool((np.diff(each) == size).all()):
                break
            run //= 2
        return int(run)


def _numbers(text: str, key: str) -> tuple[int, ...]:
    match = re.search(key + r" = \[([^\]]*)\]", text)
    return tuple(int(n) for n in match.group(1).split(",") if n.strip()) if match else ()


def _bases(text: str, key: str) -> list[list[int]]:
    match = re.search(key + r" = \[(.*?)\](?:, \w+ =|\})", text)
    inner = re.findall(r"\[([\d, ]+)\]", match.group(1) + "]") if match else []
    return [[int(n) for n in base.split(",")] for base in inner]


def _span(text: str, key: str, rank: int) -> tuple[int, ...]:
    """Return the extents that the bases of a layout, which are powers of two, span."""
    size = [1] * rank
    for steps in _bases(text, key):
        if any(steps):
            size[max(range(rank), key=lambda d, s=steps: s[d] > 0)] *= 2  # type: ignore[misc]
    return tuple(size)


def _linear(text: str, rank: int) -> LayoutSpread:
    first = _bases(text, "register")[:1]
    rises = tuple(range(rank)) if first and first[0][0] else tuple(reversed(range(rank)))
    each = tuple(min(8, n) for n in _span(text, "register", rank))
    return LayoutSpread(each, _span(text, "lane", rank), _span(text, "warp", rank), rises)
