"""Free space for text in a picture."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

CHAR = 6.1  # px, mean width of a letter in 11 px text


@dataclass
class Room:
    """Free space for text: boxes that are taken, points that text should not cover, and dots along
    lines that it should not cross where it can be avoided."""

    width: float
    height: float
    left: float
    top: float
    taken: list[tuple[float, float, float, float]] = field(default_factory=list)
    dots: list[tuple[float, float]] = field(default_factory=list)
    along: list[tuple[float, float]] = field(default_factory=list)

    def cross(self, x0: float, y0: float, x1: float, y1: float) -> None:
        """Register a line."""
        steps = max(1, int(math.hypot(x1 - x0, y1 - y0) / 6))
        self.along += [
            (x0 + (x1 - x0) * n / steps, y0 + (y1 - y0) * n / steps) for n in range(steps + 1)
        ]

    def ring(self, start: tuple[float, float], ring: tuple[float, float]) -> None:
        """Register a ring and the arrow to it, several dots each: no text should hide them."""
        self.dots += [ring] * 3
        long = math.dist(start, ring)
        steps = max(1, int(long / 8))
        self.dots += [
            (
                start[0] + (ring[0] - start[0]) * n / steps,
                start[1] + (ring[1] - start[1]) * n / steps,
            )
            for n in range(1, steps)
        ]

    def take(self, x: float, y: float, text: str) -> None:
        """Register a text at its left baseline."""
        self.taken.append((x, y - 10, x + CHAR * len(text), y + 3))

    def find(
        self, x: float, y: float, text: str, gap: float = 8, far: bool = False
    ) -> tuple[float, float] | None:
        """Reserve a free place beside a point and return its left baseline in px. With `far` places
        some way off count, too. None where each place hides three or more points."""
        wide = CHAR * len(text)
        left, middle, right = x - gap - wide, x - wide / 2, x + gap
        places = [
            (right, y + 4),
            (left, y + 4),
            (middle, y - gap - 2),
            (middle, y + gap + 11),
            (right, y - gap),
            (left, y - gap),
            (right, y + gap + 9),
            (left, y + gap + 9),
        ]
        for away in (30, 48, 66) if far else ():
            places += [
                (middle, y - away),
                (middle, y + away + 8),
                (x + away, y - away / 2),
                (x + away, y + away / 2),
                (x - away - wide, y + away / 2),
            ]
        best: tuple[float, float, float] | None = None
        for px, py in places:
            box = (px, py - 10, px + wide, py + 3)
            if self._outside(box) or any(_meet(box, other) for other in self.taken):
                continue
            hidden = _inside(box, self.dots)
            cost = 6 * hidden + _inside(box, self.along)
            if hidden < 3 and (best is None or cost < best[0]):
                best = (cost, px, py)
        if best is None:
            return None
        self.take(best[1], best[2], text)
        return best[1], best[2]

    def _outside(self, box: tuple[float, float, float, float]) -> bool:
        right, bottom = self.left + self.width, self.top + self.height
        return box[0] < self.left + 2 or box[2] > right or box[1] < self.top or box[3] > bottom


def _inside(box: tuple[float, float, float, float], dots: Iterable[tuple[float, float]]) -> int:
    return sum(box[0] < a < box[2] and box[1] < b < box[3] for a, b in dots)


def _meet(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
