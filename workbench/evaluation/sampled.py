"""Run programs of a plan's launch near the sizes to time, in Triton's interpreter.

A kernel may be right at the small sizes to check and do nothing at large ones. Of one launch, some
programs are run, and what they write is compared; where a call has several launches, or adds to
what it wrote, all programs are run at smaller sizes.
"""

import inspect
import random
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from workbench.catalog.source import load_kernel
from workbench.measurement.candidate import Candidate, Refusal
from workbench.spec import sizes_text

PROGRAMS = 24
NAMED = 24  # programs at most that numbers of the device code name
PART = 0.5  # of the elements that each would write if all wrote as many
LIMIT_S = 4.0  # of CPU, for programs; the first one is always finished


@dataclass(frozen=True)
class SampledRun:
    """How many programs were right, of how many, and if they wrote their part of each output."""

    programs: int
    total: int
    error: float
    is_whole: bool = True


def run_some(
    kernel: str, candidate: Candidate, sizes: Mapping[str, int], dtype: str, seed: int, every: bool
) -> SampledRun | Refusal:
    """Launch `every` program of a replayed config, or some, on inputs that are made here, and
    compare what they write. Returns how many were right, or a Refusal."""
    from workbench.measurement.correctness import PreparedProblem, check_outputs, launch

    impl = load_kernel(kernel).impl(candidate.case.impl, "")
    config = impl.config(**candidate.case.config)
    problem = PreparedProblem.make(impl.spec, sizes, dtype, "cpu", seed)
    from workbench.evaluation.gpu_rules import Bounds

    chosen, Bounds.is_sampled = _Chosen(seed, every), not every
    try:
        with chosen:
            launched = launch(impl, config, problem.inputs)
    finally:
        Bounds.is_sampled = False
    if launched.fault is not None:
        return Refusal(
            "check", f"at {sizes_text(sizes)} {launched.fault.reason}", rule=launched.fault.rule
        )
    compared = [check_outputs(launched.outputs, problem)] if every else []
    least = 1.0
    if not every:
        compared, least = _check_written(launched.outputs, problem)
    worst = max(compared, key=lambda checked: checked.error)
    if worst.wrong:
        return Refusal("check", f"at {sizes_text(sizes)} {worst.wrong}", rule="sizes")
    is_whole = least >= PART * chosen.run / max(1, chosen.programs)
    return SampledRun(chosen.run, chosen.programs, worst.error, is_whole)


def _check_written(outputs: Any, problem: Any) -> tuple[list[Any], float]:
    """Return the check of each output's elements that were written, and the least share of them."""
    import torch

    from workbench.measurement import reference
    from workbench.measurement.correctness import _bits, _compare_output, _poison, fault_check
    from workbench.measurement.rules import Fault

    if wrong := reference.returned_fault(problem.spec, outputs, problem.expected_outputs):
        return [fault_check(Fault("form", wrong))], 1.0
    results, shares = [], []
    for name, actual, expected in zip(
        problem.spec.outputs, outputs, problem.expected_outputs, strict=True
    ):
        poison = torch.empty_like(actual.reshape(-1)[:1])
        _poison(poison)
        written = (_bits(actual) != _bits(poison)).view(actual.shape)
        shares.append(int(written.count_nonzero()) / max(1, written.numel()))
        results.append(_compare_output(name, actual[written], expected[written], problem))
    return results, min(shares)


class _Chosen:
    """Context manager in which launches run some of their programs."""

    def __init__(self, seed: int, every: bool) -> None:
        self._chance, self._every = random.Random(seed), every
        self.run = self.programs = 0

    def __enter__(self) -> None:
        from triton.runtime.interpreter import GridExecutor, interpreter_builder

        self._real = real = GridExecutor.__call__

        def run_programs(executor: Any, *args: Any, **kwargs: Any) -> Any:
            grid = (*executor.grid, 1, 1)[:3]
            count = grid[0] * grid[1] * grid[2]
            self.programs += count
            fn = executor.fn
            chosen = range(count) if self._every else self._numbers(count)
            places = {_place(n, grid) for n in chosen}
            if not self._every:
                places |= set(named_places(fn, (*args, *kwargs.values()), grid, self._chance))
            executor.fn = _Some(fn, places, interpreter_builder, self._every)
            try:
                return real(executor, *args, **kwargs)
            finally:
                self.run += executor.fn.run
                executor.fn = fn

        GridExecutor.__call__ = run_programs

    def _numbers(self, count: int) -> set[int]:
        some = self._chance.sample(range(count), min(PROGRAMS, count))
        return {0, count - 1, *some}

    def __exit__(self, *_: object) -> None:
        from triton.runtime.interpreter import GridExecutor

        GridExecutor.__call__ = self._real


def named_places(
    fn: Any, arguments: Iterable[Any], grid: tuple[int, int, int], chance: random.Random
) -> list[tuple[int, int, int]]:
    """Return the programs, NAMED at most, whose index a number in the code of a device function or
    in its arguments may single out, as `if row == 5000` does: at that index of an axis and beside
    it, and at the block of that index. The other indices are random."""
    sizes = [n for n in arguments if type(n) is int]
    numbers = [n for n in dict.fromkeys([*_constants(fn, set()), *sizes]) if n > 1]
    near = [*numbers, *(n + 1 for n in numbers)]
    near += [n // size for size in sizes if size > 1 for n in numbers]
    near += [n - 1 for n in numbers]
    places: dict[tuple[int, int, int], None] = {}
    for index in dict.fromkeys(near):
        for axis, most in enumerate(grid):
            if most > 1 and 0 <= index < most:
                place = [chance.randrange(extent) for extent in grid]
                place[axis] = index
                places[place[0], place[1], place[2]] = None
    return list(places)[:NAMED]


def _constants(fn: Any, seen: set[int]) -> Iterator[int]:
    """Yield the whole numbers in the code of a function and of those that it calls, and those of
    the names that it reads."""
    fn = getattr(fn, "fn", fn)
    code = getattr(fn, "__code__", None)
    if code is None or id(code) in seen:
        return
    seen.add(id(code))
    yield from (n for n in code.co_consts if type(n) is int)
    for name in code.co_names:
        value = fn.__globals__.get(name)
        number = getattr(value, "value", value)  # of a tl.constexpr
        if type(number) is int:
            yield number
        yield from _constants(value, seen)


def _place(number: int, grid: tuple[int, ...]) -> tuple[int, int, int]:
    """Return a program's index in the order of the interpreter's loops: the last is the inner."""
    first, rest = divmod(number, grid[1] * grid[2])
    return (first, *divmod(rest, grid[2]))


class _Some:
    """A device function that does nothing in programs that were not chosen."""

    def __init__(
        self, fn: Any, chosen: set[tuple[int, int, int]], builder: Any, every: bool
    ) -> None:
        self._fn, self._chosen, self._builder, self._every = fn, chosen, builder, every
        self.run, self._end = 0, time.process_time() + LIMIT_S
        self.__name__, self.__globals__ = fn.__name__, fn.__globals__
        self.__signature__ = inspect.signature(fn)

    def __call__(self, **args: Any) -> None:
        if tuple(self._builder.grid_idx) not in self._chosen:
            return
        if self.run and not self._every and time.process_time() > self._end:
            return
        self.run += 1
        self._fn(**args)
