"""A Spec whose inputs, shapes and reference are those of a task's own functions.

Shapes are not written in a task: its functions are called at two small sizes, and each extent that
is an axis, a number of axes multiplied, or a part of one in both is written so.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations_with_replacement
from math import gcd, prod
from typing import Any

import torch

from workbench.evaluation.tasks.text import TaskError
from workbench.measurement.inputs import TORCH_NAMES
from workbench.spec import Extent, Sizes, Spec, Tensor, Tolerance, sizes_text, solve_sizes

NAMES = {torch_name: name for name, torch_name in TORCH_NAMES.items()} | {
    name: name for name in ("int64", "int32", "int16", "int8", "uint8", "bool")
}
MOST_BYTES = 1 << 18  # of the tensors of a problem to check; it is interpreted 17 times
MOST_STEP = 128  # the largest multiple that sizes to check keep of an axis


@dataclass(frozen=True)
class TaskCall:
    """One call of a task's functions at some sizes."""

    tensors: Mapping[str, Any]  # inputs by name
    outputs: tuple[Any, ...] = ()
    changed_inputs: tuple[str, ...] = ()  # inputs that the reference writes to


def _every(count: int) -> Callable[..., int]:
    return lambda **sizes: count


@dataclass(frozen=True)
class TaskSpec(Spec):
    """A Spec of a task. `make` returns all inputs of one call; `call` calls a submission's function
    with the arguments of its format."""

    make: Callable[[Sizes, int], Mapping[str, Any]] = lambda sizes, seed: {}
    call: Callable[[Any, Mapping[str, Any], Sizes], Any] = lambda function, tensors, sizes: None
    objects: Callable[[Mapping[str, Any], Sizes, tuple[Any, ...]], str | None] | None = None
    constraint: Callable[[Sizes], str | None] = lambda sizes: None

    def refuse(self, sizes: Sizes) -> str | None:
        """Return in one sentence why the task does not allow these sizes, or None."""
        return super().refuse(sizes) or self.constraint(sizes)

    def joint_inputs(self, sizes: Sizes, dtype: str, seed: int) -> tuple[Any, ...]:
        """Return all inputs of a call, as the task makes them. Raises TaskError."""
        tensors = self.make(sizes, seed)
        for name, tensor in self.inputs.items():
            if tuple(tensors[name].shape) != tensor.shape(sizes):
                shape, axes = tuple(tensors[name].shape), tensor.axes
                raise TaskError(
                    f"The task makes {name} of the shape {shape} at {sizes_text(sizes)}, which is "
                    f"not {axes}; name other sizes."
                )
        kind = getattr(torch, TORCH_NAMES.get(dtype, dtype))
        return tuple(
            tensors[n].to(kind) if t.dtype is None else tensors[n] for n, t in self.inputs.items()
        )

    def objection(self, inputs: Sequence[Any], sizes: Sizes | None, outputs: Sequence[Any]) -> str:
        """Return what the task's own check says against outputs, or nothing."""
        if self.objects is None or sizes is None:
            return ""
        tensors = {n: x.clone() for n, x in zip(self.inputs, inputs, strict=True)}
        reason = self.objects(tensors, sizes, tuple(x.clone() for x in outputs))
        return f"the task's check refuses it: {' '.join(reason.split())[:300]}" if reason else ""

    def call_submission(self, function: Any, inputs: Sequence[Any]) -> Any:
        """Call a submission with inputs of the Spec. Returns its outputs."""
        sizes = solve_sizes(self.inputs, inputs)
        return self.call(function, dict(zip(self.inputs, inputs, strict=True)), sizes)


@dataclass(frozen=True)
class TaskFunctions:
    """What a format reads from a task. Each function gets sizes; `reference`, `call` and `objects`
    the inputs, too."""

    name: str
    make: Callable[[Sizes, int], Mapping[str, Any]]
    reference: Callable[[Mapping[str, Any], Sizes], Any]
    call: Callable[[Any, Mapping[str, Any], Sizes], Any]
    objects: Callable[[Mapping[str, Any], Sizes, tuple[Any, ...]], str | None] | None = None
    constraint: Callable[[Sizes], str | None] = lambda sizes: None
    follows: bool = False  # floats have the dtype of the call, not one of their own


def spec_from(
    functions: TaskFunctions,
    timed: Sequence[Sizes],
    named: Sequence[Sizes],
    tolerance: Mapping[str, Tolerance],
    steps: Mapping[str, int],
) -> TaskSpec:
    """Return the Spec of a task, by calls at two small sizes. `steps` are what the extents of each
    axis are multiples of; `named` are sizes to check, if the task names small ones.

    Raises TaskError where a shape does not follow from the axes.
    """
    first, second = _probes(functions, timed[0], steps)
    one, two = (_call_small(functions, sizes) for sizes in (first, second))
    pairs = {n: (x, two.tensors[n]) for n, x in one.tensors.items()}
    inputs = {n: _tensor(n, pair, first, second, functions.follows) for n, pair in pairs.items()}
    seen = {axis for t in inputs.values() for axis in t.axes.split()}
    free = [axis for axis in first if axis in seen]  # an axis alone, by which sizes are known
    if gone := [axis for axis in first if axis not in seen and first[axis] != second[axis]]:
        fixed = {**steps, **{axis: timed[0][axis] for axis in gone}}
        return spec_from(functions, timed, named, tolerance, fixed)
    outs = zip(one.outputs, two.outputs, strict=True)
    outputs = {
        f"y{i}" if len(one.outputs) > 1 else "y": _tensor(
            f"output {i}", pair, first, second, functions.follows
        )
        for i, pair in enumerate(outs)
    }
    rest = {axis: timed[0][axis] for axis in first if axis not in free}
    same = [s for s in (*timed, *named) if all(s[a] == n for a, n in rest.items())]
    at = [{axis: sizes[axis] for axis in free} for sizes in same]
    bench, check = at[: sum(s in same for s in timed)], at[sum(s in same for s in timed) :]

    def whole(sizes: Sizes) -> Sizes:
        return {**rest, **sizes}

    def reference(*wide: Any) -> Any:
        sizes = solve_sizes(inputs, wide)
        return _wide(functions, dict(zip(inputs, wide, strict=True)), whole(sizes), inputs)

    spec = TaskSpec(
        functions.name,
        inputs={n: replace(t, make=_refuse_single_input) for n, t in inputs.items()},
        outputs=outputs,
        reference=reference,
        flops=_flops(functions, first, second, outputs, rest),
        check=check or bench[:1],
        bench=bench,
        tolerance=tolerance,
        extents={a: _extent(steps.get(a, 1), bench, a) for a in free},
        mutates=tuple(sorted({*one.changed_inputs, *two.changed_inputs})),
        make=lambda sizes, seed: functions.make(whole(sizes), seed),
        call=lambda function, tensors, sizes: functions.call(function, tensors, whole(sizes)),
        objects=functions.objects
        and (lambda tensors, sizes, out: functions.objects(tensors, whole(sizes), out)),
        constraint=lambda sizes: functions.constraint(whole(sizes)),
    )
    small = [s for s in check if spec.held_bytes(s, "fp32") <= 2 * MOST_BYTES]
    return replace(spec, check=small or _small(spec, first, second, free))


def _refuse_single_input(*_: Any) -> Any:
    raise TaskError("The inputs of a task are made together.")


def _extent(step: int, bench: Sequence[Sizes], axis: str) -> Extent:
    values = {sizes[axis] for sizes in bench}
    if len(values) == 1 and values == {step}:
        return Extent(choices=(step,))
    return Extent(multiple=step)


def _call_small(functions: TaskFunctions, sizes: Sizes) -> TaskCall:
    """Call a task's functions at small sizes. Raises TaskError where they fail."""
    try:
        tensors = dict(functions.make(sizes, 1))
        inputs = {n: x.clone() for n, x in tensors.items()}
        versions = {n: x._version for n, x in inputs.items()}
        outputs = functions.reference(inputs, sizes)
    except TaskError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        raise TaskError(
            f"The reference of the task {functions.name} fails at {sizes_text(sizes)} "
            f"({type(error).__name__}: {text})."
        ) from error
    outputs = tuple(outputs) if isinstance(outputs, (tuple, list)) else (outputs,)
    if not outputs or any(not isinstance(x, torch.Tensor) for x in outputs):
        raise TaskError(f"The reference of the task {functions.name} returns no tensors.")
    storages = {x.untyped_storage().data_ptr() for x in outputs if x.numel()}
    changed = tuple(
        n
        for n, x in inputs.items()
        if x._version != versions[n] or (x.numel() and x.untyped_storage().data_ptr() in storages)
    )
    return TaskCall(tensors, outputs, changed)


def _wide(
    functions: TaskFunctions, wide: Mapping[str, Any], sizes: Sizes, inputs: Mapping[str, Tensor]
) -> Any:
    """Return the reference in float64 of inputs that were widened to it; where it computes in
    another dtype by its own word, that of the inputs' own values."""
    try:
        result = functions.reference({n: x.clone() for n, x in wide.items()}, sizes)
        several = result if isinstance(result, (tuple, list)) else (result,)
        if all(x.dtype == torch.float64 or not x.is_floating_point() for x in several):
            return result
    except Exception:  # of its own dtypes: it is called as the task calls it
        several = ()
    own = {
        n: x.to(getattr(torch, TORCH_NAMES.get(t.dtype or "fp32", t.dtype or "float32")))
        for (n, t), x in zip(inputs.items(), wide.values(), strict=True)
    }
    result = functions.reference(own, sizes)
    several = result if isinstance(result, (tuple, list)) else (result,)
    return tuple(x.double() if x.is_floating_point() else x for x in several)


# Shapes


def _probes(
    functions: TaskFunctions, timed: Sizes, steps: Mapping[str, int]
) -> tuple[dict[str, int], dict[str, int]]:
    """Return two small sizes that a task takes, with another extent of each free axis."""
    first, second = {}, {}
    for place, (axis, extent) in enumerate(timed.items()):
        step = steps.get(axis, 1)
        many = max(1, extent // step)
        first[axis] = step * min(many, 2 + place % 3)
        second[axis] = step * min(many, 5 + place % 4)
    for sizes in (first, second):
        if reason := functions.constraint(sizes):
            raise TaskError(f"The task {functions.name}: {reason}; no small sizes fulfil that.")
    return first, second


def _tensor(name: str, pair: tuple[Any, Any], first: Sizes, second: Sizes, follows: bool) -> Tensor:
    one, two = pair
    if one.dim() != two.dim() or one.dtype != two.dtype:
        raise TaskError(f"The task gives {name} another form at other sizes.")
    axes = [_axis(name, a, b, first, second) for a, b in zip(one.shape, two.shape, strict=True)]
    own = NAMES.get(str(one.dtype).removeprefix("torch."))
    if own is None:
        raise TaskError(f"The task's {name} is of {one.dtype}; a Spec cannot have that dtype.")
    return Tensor(" ".join(axes), None if follows and one.is_floating_point() else own)


def _axis(name: str, one: int, two: int, first: Sizes, second: Sizes) -> str:
    """Return an extent as the product of axes and a number. Raises TaskError."""
    if one == two:
        return str(one)
    moved = [axis for axis in first if first[axis] != second[axis]]
    for count in (1, 2, 3):
        for some in combinations_with_replacement(moved, count):
            ratios = [
                Fraction(extent, prod(sizes[axis] for axis in some))
                for extent, sizes in ((one, first), (two, second))
            ]
            if ratios[0] == ratios[1]:
                up, down = ratios[0].numerator, ratios[0].denominator
                return (
                    "*".join(some) + (f"*{up}" if up > 1 else "") + (f"/{down}" if down > 1 else "")
                )
    raise TaskError(
        f"The shape of the task's {name} ({one} and {two} at {sizes_text(first)} and "
        f"{sizes_text(second)}) is not a product of its axes, so no other sizes can be checked."
    )


def _small(spec: Spec, first: Sizes, second: Sizes, free: Sequence[str]) -> list[dict[str, int]]:
    """Return up to three small sizes to check, of which the last is the largest that is quick."""
    sizes = [{axis: s[axis] for axis in free} for s in (first, second)]
    last = dict(sizes[1])
    for _ in range(8):
        larger = spec.nearest_sizes({a: min(2 * n, spec.bench[0][a]) for a, n in last.items()})
        if larger == last or spec.held_bytes(larger, "fp32") > MOST_BYTES or spec.refuse(larger):
            break
        last = larger
    unique = {tuple(s.items()): s for s in (*sizes, last) if not spec.refuse(s)}
    return list(unique.values())


def steps_within(
    timed: Sizes, axes: Mapping[str, int], bytes_at: Callable[[Sizes], int]
) -> dict[str, int]:
    """Return the multiple that sizes to check keep of each axis: powers of two that divide it, as
    large as small problems allow."""
    steps = {axis: gcd(n, axes.get(axis, MOST_STEP)) for axis, n in timed.items()}
    while bytes_at({a: min(5 * n, timed[a]) for a, n in steps.items()}) > MOST_BYTES:
        axis = max(steps, key=lambda name: steps[name])
        if steps[axis] % 2:
            break
        steps[axis] //= 2
    return steps


# FLOPs


def _flops(
    functions: TaskFunctions,
    first: Sizes,
    second: Sizes,
    outputs: Mapping[str, Tensor],
    rest: Sizes,
) -> Callable[..., int]:
    """Return FLOPs as a function of the sizes: those of the reference's matrix products, where they
    are one product of axes, and else one for each element of the outputs."""

    def elements(**sizes: int) -> int:
        return sum(prod(t.shape(sizes)) for t in outputs.values())

    counts = [_count_flops(functions, sizes) for sizes in (first, second)]
    if not all(counts):
        return elements
    try:
        text = _axis("work", *counts, first, second)
    except TaskError:
        return elements
    return lambda **sizes: max(elements(**sizes), Tensor(text).shape({**rest, **sizes})[0])


def _count_flops(functions: TaskFunctions, sizes: Sizes) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    tensors = functions.make(sizes, 1)
    with FlopCounterMode(display=False) as counter:
        functions.reference(dict(tensors), sizes)
    return int(counter.get_total_flops())


def widths(tolerances: Mapping[str, tuple[float, float]]) -> Iterator[tuple[str, Tolerance]]:
    """Yield the tolerance of each dtype from a relative and an absolute one: the absolute one
    counts in units of the output's rms, as outputs of any scale are held to it."""
    for name, (relative, absolute) in tolerances.items():
        yield name, Tolerance(relative, absolute)
