"""Make the launch that lies between two tuned sizes of a family.

A size between two tuned ones gets the config of the nearer one. Whether that config is any good
there is not known until it is tried, so the size in the middle is measured as well.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement

from workbench.workload.errors import WorkloadError
from workbench.workload.signature import (
    ConfigGrids,
    DescriptorArgument,
    LaunchSignature,
    PlainArgument,
    RecordedArgument,
    TensorArgument,
    TupleArgument,
    tensors_of,
)

ALIGNED = 16  # Triton compiles other code for whole numbers that 16 divides

Knobs = Mapping[str, int]


class NoMiddle(WorkloadError):
    """No launch between two sizes can be made; one clause."""


@dataclass(frozen=True)
class Scale:
    """How the numbers of a signature that differ go from one size to the one in the middle."""

    unit: int  # of the first signature: each number that differs is a multiple of it
    middle: int  # in place of the unit

    def number(self, first: int, second: int) -> int:
        """Return a number of the middle size from those of the two sizes. Raises NoMiddle for one
        that does not grow with the others."""
        if first == second:
            return first
        result, rest = divmod(first * self.middle, self.unit)
        if rest or not min(first, second) < result < max(first, second):
            raise NoMiddle("its sizes do not grow in one ratio")
        return result


def middle(first: LaunchSignature, second: LaunchSignature) -> LaunchSignature:
    """Return the launch of the size between two members of a family, the geometric mean where the
    numbers allow it, with the config of the first. Raises NoMiddle, with the reason as a clause."""
    scale = _scale(list(_differing(first, second)))
    arguments = {
        name: _argument(argument, second.arguments[name], scale)
        for name, argument in first.arguments.items()
    }
    grids = _grids(first, second, arguments)
    held = {n: v.value for n, v in first.config.items()}
    if (grid := grids.shape(held)) is None:
        raise NoMiddle("the grid of its config is not known")
    parts = zip(first.key or (), second.key or (), strict=True)
    key = tuple(_key_part(a, b, scale) for a, b in parts)
    return replace(first, arguments=arguments, grid=grid, grids=grids, key=key)


# Numbers


def _differing(first: LaunchSignature, second: LaunchSignature) -> Iterator[tuple[int, int]]:
    """Yield the extents and whole numbers that differ."""
    for name, argument in first.arguments.items():
        other = second.arguments.get(name)
        pairs = zip(_numbers(argument), _numbers(other), strict=True)
        yield from ((a, b) for a, b in pairs if a != b)


def _numbers(argument: RecordedArgument | None) -> list[int]:
    if isinstance(argument, PlainArgument):
        return [int(argument.value or 0)] if argument.kind == "int" else []
    if isinstance(argument, TupleArgument):
        return [number for item in argument.items for number in _numbers(item)]
    return [n for tensor in tensors_of(argument) for n in tensor.shape] if argument else []


def _scale(pairs: list[tuple[int, int]]) -> Scale:
    """Return the scale of numbers that all differ in one ratio."""
    ratios = {(a // math.gcd(a, b), b // math.gcd(a, b)) for a, b in pairs if a > 0 and b > 0}
    if len(ratios) != 1 or not all(a > 0 and b > 0 for a, b in pairs):
        raise NoMiddle("its sizes do not grow in one ratio")
    ((low, high),) = ratios
    common = math.gcd(*(a // low for a, _ in pairs))
    first, second = common * low, common * high
    step = math.gcd(first, second, ALIGNED)
    while step:
        near = round(math.sqrt(first * second) / step) * step
        if min(first, second) < near < max(first, second):
            return Scale(first, near)
        step //= 2
    raise NoMiddle("no size lies between its sizes")


# Arguments


def _argument(a: RecordedArgument, b: RecordedArgument, scale: Scale) -> RecordedArgument:
    if isinstance(a, TensorArgument) and isinstance(b, TensorArgument):
        return _tensor(a, b, scale)
    if isinstance(a, TupleArgument) and isinstance(b, TupleArgument):
        items = zip(a.items, b.items, strict=True)
        return TupleArgument(tuple(_argument(x, y, scale) for x, y in items))
    if isinstance(a, DescriptorArgument) and isinstance(b, DescriptorArgument):
        base = _tensor(a.base, b.base, scale)
        shape = tuple(map(scale.number, a.shape, b.shape))
        return replace(a, base=base, shape=shape, stride=_stride(a, b, shape, scale))
    if isinstance(a, PlainArgument) and isinstance(b, PlainArgument):
        if a.kind == b.kind == "int":
            return replace(a, value=scale.number(int(a.value or 0), int(b.value or 0)))
        if a == b:
            return a
    raise NoMiddle("its arguments differ in more than sizes")


def _tensor(a: TensorArgument, b: TensorArgument, scale: Scale) -> TensorArgument:
    if len(a.shape) != len(b.shape) or (a.dtype, a.storage) != (b.dtype, b.storage):
        raise NoMiddle("its tensors differ in more than sizes")
    shape = tuple(map(scale.number, a.shape, b.shape))
    if a.values is not None and (shape != a.shape or a.values != b.values):
        raise NoMiddle("it has an integer tensor, and its values at other sizes are not known")
    return replace(a, shape=shape, stride=_stride(a, b, shape, scale), align=min(a.align, b.align))


def _stride(
    a: TensorArgument | DescriptorArgument,
    b: TensorArgument | DescriptorArgument,
    shape: tuple[int, ...],
    scale: Scale,
) -> tuple[int, ...]:
    """Return the strides: those of a dense tensor where both are dense in one order."""
    order = sorted(range(len(shape)), key=lambda place: (a.stride[place], a.shape[place]))
    if all(tuple(t.stride) == _dense(t.shape, order) for t in (a, b)):
        return _dense(shape, order)
    return tuple(map(scale.number, a.stride, b.stride))


def _dense(shape: tuple[int, ...], order: list[int]) -> tuple[int, ...]:
    stride, size = [0] * len(shape), 1
    for place in order:
        stride[place], size = size, size * shape[place]
    return tuple(stride)


def _key_part(a: str, b: str, scale: Scale) -> str:
    if a == b:
        return a
    if not (a.isdecimal() and b.isdecimal()):
        raise NoMiddle("its key differs in more than sizes")
    return str(scale.number(int(a), int(b)))


# Grid


@dataclass(frozen=True)
class Term:
    """A number that a grid may have, for the sizes of a signature and the knobs of a config."""

    value: Callable[[int, Knobs], int]  # by the place of the signature: first, second, middle


def _grids(
    first: LaunchSignature, second: LaunchSignature, arguments: Mapping[str, RecordedArgument]
) -> ConfigGrids:
    """Return the grids of the middle size: of the formulas that give every recorded grid of both
    sizes, if all give the same there. A formula is a whole number of the launch, one divided by a
    knob and rounded up, or a product of two of these. Raises NoMiddle."""
    known = [first.grids, second.grids]
    if known[0] is None or known[1] is None or known[0].knobs != known[1].knobs:
        raise NoMiddle("the grids of its configs were not recorded")
    names, points = known[0].knobs, sorted(set(known[0].shapes) & set(known[1].shapes))
    ranks = {len(grids.shapes[p]) for grids in known if grids for p in points}
    if len(ranks) != 1:
        raise NoMiddle("its grid has more axes at one size than at the other")
    sizes = [_launch_numbers(signature.arguments) for signature in (first, second)]
    terms = _terms([*sizes, _launch_numbers(arguments)], names)
    knobs = [dict(zip(names, point, strict=True)) for point in points]
    axes = []
    for axis in range(ranks.pop()):
        wanted = [[grids.shapes[p][axis] for p in points] for grids in known if grids]
        axes.append(_axis(terms, knobs, wanted))
    return ConfigGrids(names, dict(zip(points, zip(*axes, strict=True), strict=True)))


def _launch_numbers(arguments: Mapping[str, RecordedArgument]) -> list[int]:
    """Return the whole numbers of a launch in order, and of each tensor the elements and rows."""
    result = [1]
    for argument in arguments.values():
        numbers = _numbers(argument)
        result += numbers
        for tensor in tensors_of(argument):
            result += [math.prod(tensor.shape), math.prod(tensor.shape[:-1])]
    return result


def _terms(sizes: list[list[int]], names: tuple[str, ...]) -> list[Term]:
    """Return the numbers that differ somewhere, and each divided by each knob."""
    different = dict.fromkeys(zip(*sizes, strict=True))
    terms = [Term(lambda at, _, of=of: of[at]) for of in different]  # type: ignore[misc]
    terms += [
        Term(lambda at, knobs, of=of, name=name: -(-of[at] // knobs[name]))  # type: ignore[misc]
        for of in different
        for name in names
    ]
    return terms


def _axis(terms: list[Term], knobs: Sequence[Knobs], wanted: list[list[int]]) -> list[int]:
    """Return one axis of the middle size's grid by config."""
    columns = [[[t.value(at, k) for k in knobs] for at in range(3)] for t in terms]
    fitting = set()
    for a, b in combinations_with_replacement(range(len(columns)), 2):
        values = [
            [x * y for x, y in zip(columns[a][at], columns[b][at], strict=True)] for at in range(3)
        ]
        if values[:2] == wanted:
            fitting.add(tuple(values[2]))
    if len(fitting) != 1:
        reason = "follows from its sizes in several ways" if fitting else "is not a formula of them"
        raise NoMiddle(f"its grid {reason}")
    return list(fitting.pop())
