"""Free space for text in a picture."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

CHAR = 6.1  # px, mean width of a letter in 11 px text
Place = tuple[float, float]
Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass
class Room:
    """Free space for text: boxes that are taken, points that text should not cover, and dots along
    lines that it should not cross where it can be avoided."""

    width: float
    height: float
    left: float
    top: float
    boxes: list[Box] = field(default_factory=list)
    dots: list[Place] = field(default_factory=list)
    line_dots: list[Place] = field(default_factory=list)

    def cross(self, start: Place, end: Place) -> None:
        """Register a line."""
        self.line_dots += _dots(start, end, 6)

    def ring(self, start: Place, ring: Place) -> None:
        """Register a ring and the arrow to it, several dots each: no text should hide them."""
        self.dots += [ring] * 3 + _dots(start, ring, 8)[1:-1]

    def take(self, x: float, y: float, text: str) -> None:
        """Register a text at its left baseline."""
        self.boxes.append((x, y - 10, x + CHAR * len(text), y + 3))

    def find(self, at: Place, text: str, gap: float = 8, far: bool = False) -> Place | None:
        """Reserve a free place beside a point and return its left baseline in px. With `far` places
        some way off count, too. None where each place hides three or more points."""
        (x, y), wide = at, CHAR * len(text)
        left, middle, right = x - gap - wide, x - wide / 2, x + gap
        places: list[Place] = [
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
        best = min(places, key=lambda place: self._cost(place, wide))
        if self._cost(best, wide) == math.inf:
            return None
        self.take(*best, text)
        return best

    def _cost(self, at: Place, wide: float) -> float:
        """Return how much a text hides: points cost 6 and lines 1; infinite where it hides three
        points or does not fit."""
        box = (at[0], at[1] - 10, at[0] + wide, at[1] + 3)
        hidden = _count_inside(box, self.dots)
        if hidden > 2 or self._is_outside(box) or any(_meet(box, other) for other in self.boxes):
            return math.inf
        return 6 * hidden + _count_inside(box, self.line_dots)

    def _is_outside(self, box: Box) -> bool:
        right, bottom = self.left + self.width, self.top + self.height
        return box[0] < self.left + 2 or box[2] > right or box[1] < self.top or box[3] > bottom


def _dots(start: Place, end: Place, step: float) -> list[Place]:
    """Return places along a line, its ends included, at most about `step` px apart."""
    steps = max(1, int(math.dist(start, end) / step))
    (x, y), (right, down) = start, (end[0] - start[0], end[1] - start[1])
    return [(x + right * n / steps, y + down * n / steps) for n in range(steps + 1)]


def _count_inside(box: Box, dots: Iterable[Place]) -> int:
    return sum(box[0] < a < box[2] and box[1] < b < box[3] for a, b in dots)


def _meet(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
