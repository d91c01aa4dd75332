"""Run programs of a launch in Triton's interpreter, and watch every access to memory.

Each address that a mask lets through is compared with the memory of the tensors, reads too. At the
end, elements that two programs stored to, or that one read and another one stored to, are races,
unless the launch has atomic operations, by which programs may order their accesses. Such a launch
must give the same with its programs in reversed order (`Launcher.fire_both_ways`).
"""

from __future__ import annotations

import inspect
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from workbench.adapted.travel import AdaptedError
from workbench.dsl.interpreter import RoundedProducts

Place = tuple[int, int, int]
FAR = 1 << 30  # bytes between an address and every tensor, beyond which none of them is meant


class LaunchFault(AdaptedError):
    """A launch reads or writes out of bounds, or its programs race: the answer to its config."""


class ProgramsWait(Exception):
    """A program waits for what another one writes, and that one has not run."""


@dataclass(frozen=True)
class Memory:
    """The memory of one tensor in this process."""

    name: str
    begin: int  # address
    end: int
    item: int  # bytes of an element

    @staticmethod
    def locate(name: str, view: Any) -> Memory:
        """Return the memory from the first to the last element of a torch tensor."""
        span = 1 + sum((n - 1) * s for n, s in zip(view.shape, view.stride(), strict=True))
        item = view.element_size()
        return Memory(name, view.data_ptr(), view.data_ptr() + span * item, item)


@dataclass
class Accesses:
    """Accesses of one tensor: by program, the elements that it loaded or stored to."""

    loads: list[tuple[int, Any, int]] = field(default_factory=list)  # with the stores before it
    stores: list[tuple[int, Any, Any]] = field(default_factory=list)  # with the values stored
    atomics: list[Any] = field(default_factory=list)

    @property
    def read_first(self) -> bool:
        """Return whether a program loaded an element that it had not stored to."""
        import numpy as np

        for program, element, before in self.loads:
            mine = [at for other, at, _ in self.stores[:before] if other == program]
            if not mine or not np.isin(element, np.concatenate(mine)).all():
                return True
        return False

    def elements(self) -> Any:
        """Return the elements that were changed, ascending."""
        import numpy as np

        parts = [at for _, at, _ in self.stores] + self.atomics
        return np.unique(np.concatenate(parts)) if parts else np.empty(0, dtype=np.int64)


class ProgramTrace:
    """What the programs of one launch did to memory."""

    def __init__(self, name: str, memories: Iterable[Memory], most: int | None = None) -> None:
        """Begin a launch of the kernel `name` on these tensors, of at most so many accesses."""
        self.name, self.most, self.count = name, most, 0
        self._memories = sorted(memories, key=lambda m: m.begin)
        self.accesses: dict[str, Accesses] = defaultdict(Accesses)
        self.program = 0  # the one that runs
        self.twice: list[str] = []  # equal values that two programs wrote, in clauses
        self.ran: list[int] = []
        self.seconds: list[float] = []  # CPU time of each of them

    @property
    def has_atomics(self) -> bool:
        """Return whether any program used an atomic operation."""
        return any(each.atomics for each in self.accesses.values())

    def begin(self, program: int) -> None:
        """Begin a program, by its number."""
        self.program = program
        self.ran.append(program)
        RoundedProducts.begin()

    def note(self, kind: str, pointers: Any, mask: Any, values: Any = None) -> None:
        """Note one access. Raises LaunchFault where it is out of bounds, and ProgramsWait where
        there are too many."""
        import numpy as np

        self.count += 1
        if self.most is not None and self.count > self.most:
            raise ProgramsWait
        at = np.broadcast_to(pointers, np.broadcast_shapes(np.shape(pointers), np.shape(mask)))
        on = np.broadcast_to(np.asarray(mask, dtype=bool), at.shape)
        address = at[on].astype(np.int64)
        if not address.size:
            return
        memory = self._memory(kind, address)
        element = (address - memory.begin) // memory.item
        each = self.accesses[memory.name]
        if kind == "load":
            each.loads.append((self.program, element, len(each.stores)))
        elif kind == "atomic":
            each.atomics.append(np.unique(element))
        else:
            bits = np.broadcast_to(values, at.shape)[on]
            each.stores.append((self.program, element, bits))

    def _memory(self, kind: str, address: Any) -> Memory:
        low, high = int(address.min()), int(address.max())
        for memory in self._memories:
            if memory.begin <= low and high < memory.end:
                return memory
        raise LaunchFault(self._bounds_message(kind, address))

    def _bounds_message(self, kind: str, address: Any) -> str:
        import numpy as np

        inside = np.zeros(len(address), dtype=bool)
        for memory in self._memories:
            inside |= (address >= memory.begin) & (address < memory.end)
        where, what = _line(), "reads" if kind == "load" else "writes"
        if inside.all():
            return f"{self.name} {what} several tensors by one pointer{where}."
        first = int(address[~inside][0])
        if not self._memories:
            return f"{self.name} {what} memory of no tensor{where}."
        near = min(self._memories, key=lambda m: max(m.begin - first, first - m.end + 1))
        for memory in self._memories:  # the tensor that the other elements of this access are of
            if ((address >= memory.begin) & (address < memory.end)).any():
                near = memory
        if max(near.begin - first, first - near.end) > FAR:
            return (
                f"{self.name} {what} out of bounds, far from all of its tensors, in program "
                f"{self.program:,}{where}; is a mask missing, an index wrong, or a loaded integer "
                "an address, which means nothing in another process?"
            )
        index = (first - near.begin) // near.item
        count = (near.end - near.begin) // near.item
        return (
            f"{self.name} {what} out of bounds: element {index:,} of {near.name}, which has "
            f"{count:,}, in program {self.program:,}{where}; is a mask missing, or an index wrong?"
        )

    def conflict(self) -> str | None:
        """Return two programs that race and where, or None."""
        if self.has_atomics:
            return None
        match = (
            self._conflict_of(name, each) for name, each in self.accesses.items() if each.stores
        )
        return next(filter(None, match), None)

    def _conflict_of(self, name: str, each: Accesses) -> str | None:
        import numpy as np

        element = np.concatenate([at for _, at, _ in each.stores])
        bits = np.concatenate([values for *_, values in each.stores])
        programs = np.concatenate([np.full(len(at), p) for p, at, _ in each.stores])
        order = np.argsort(element, kind="stable")
        element, bits, programs = element[order], bits[order], programs[order]
        same = (np.diff(element) == 0) & (np.diff(programs) != 0)
        unequal = same & (_bits(bits)[1:] != _bits(bits)[:-1])
        if unequal.any():
            i = int(np.flatnonzero(unequal)[0])
            pair = f"{int(programs[i]):,} and {int(programs[i + 1]):,}"
            return self._sentence(pair, f"write different values to element {element[i]:,}", name)
        if same.any():
            i = int(np.flatnonzero(same)[0])
            pair = f"{int(programs[i]):,} and {int(programs[i + 1]):,}"
            self.twice.append(
                f"programs write equal values to one element, such as {pair} to element "
                f"{element[i]:,} of {name}"
            )
        for program, loaded, _ in each.loads:
            i = np.searchsorted(element, loaded)
            hit = (i < len(element)) & (element[np.minimum(i, len(element) - 1)] == loaded)
            others = hit & (programs[np.minimum(i, len(element) - 1)] != program)
            if others.any():
                k = int(np.flatnonzero(others)[0])
                pair = f"{program:,} reads and {int(programs[i[k]]):,}"
                return self._sentence(pair, f"writes element {int(loaded[k]):,}", name)
        return None

    def _sentence(self, pair: str, what: str, name: str) -> str:
        return (
            f"{self.name} has a race: program {pair} {what} of {name}, and nothing orders them; "
            "give each element one program, or use atomic operations."
        )


def _bits(values: Any) -> Any:
    """Return numbers as integers of their width, in which NaN equals NaN."""
    import numpy as np

    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")


def _line() -> str:
    """Return the line of the kernel that is running, in a clause; empty where it is unknown."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        own = frame.f_code.co_filename
        if "workbench" not in frame.f_globals.get("__name__", "workbench").split(".")[0] and (
            "/triton/" not in own and "/numpy/" not in own
        ):
            return f", line {frame.f_lineno}"
        frame = frame.f_back
    return ""


@dataclass
class ProgramPlan:
    """Which programs of a launch run, in which order, and for how long."""

    numbers: Sequence[int] | None = None  # None: all, ascending
    budget_s: float | None = None  # after which no further one begins
    is_reversed: bool = False

    def order(self, programs: int) -> Iterable[int]:
        """Return the numbers of the programs that run, in order."""
        numbers = range(programs) if self.numbers is None else self.numbers
        return reversed(numbers) if self.is_reversed else numbers


class _Active:
    """The launch that is traced in this process."""

    trace: ProgramTrace | None = None
    plan = ProgramPlan()


@contextmanager
def trace_programs(trace: ProgramTrace, plan: ProgramPlan | None = None) -> Iterator[ProgramTrace]:
    """Return a context manager in which a launch in the interpreter runs the planned programs and
    notes their accesses. It raises LaunchFault at its end where they race."""
    _Active.trace, _Active.plan = trace, plan or ProgramPlan()
    try:
        yield trace
    finally:
        _Active.trace = None
    if (conflict := trace.conflict()) is not None:
        raise LaunchFault(conflict)


def watch_interpreter() -> None:
    """Patch the interpreter of this process, once: its builder tells the trace of each access, and
    its grids run the planned programs. To be called before anything else watches its launches."""
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    if hasattr(builder.create_masked_load, "is_traced"):
        return
    builder.create_masked_load = _noting(builder.create_masked_load, "load", 1, None)
    builder.create_masked_store = _noting(builder.create_masked_store, "store", 2, 1)
    builder.create_atomic_rmw = _noting(builder.create_atomic_rmw, "atomic", 3, None, 1)
    builder.create_atomic_cas = _noting(builder.create_atomic_cas, "atomic", None, None)
    interpreter.GridExecutor.__call__ = _run_planned(interpreter.GridExecutor.__call__)


def _noting(
    real: Callable[..., Any], kind: str, mask: int | None, value: int | None, pointers: int = 0
) -> Callable[..., Any]:
    """Return a method of the builder that notes its access; the numbers are places of operands."""

    @wraps(real)
    def access(self: Any, *operands: Any, **named: Any) -> Any:
        if (trace := _Active.trace) is not None:
            on = True if mask is None else operands[mask].data
            values = None if value is None else operands[value].data
            trace.note(kind, operands[pointers].data, on, values)
        return real(self, *operands, **named)

    access.is_traced = True  # type: ignore[attr-defined]
    return access


def _run_planned(real: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(real)
    def run(executor: Any, *args: Any, **kwargs: Any) -> Any:
        if _Active.trace is None:
            return real(executor, *args, **kwargs)
        return _run_programs(executor, _Active.trace, _Active.plan, args, kwargs)

    return run


def _run_programs(
    executor: Any, trace: ProgramTrace, plan: ProgramPlan, args: Any, kwargs: Mapping[str, Any]
) -> None:
    """Run the planned programs, as `GridExecutor.__call__` of Triton 3.6 to 3.9 runs all."""
    from triton.runtime import interpreter

    known = inspect.getfullargspec(executor.fn)
    named = {k: v for k, v in kwargs.items() if k in known.args or k in known.kwonlyargs}
    on_host, named_on_host = executor._init_args_hst(args, named)
    for hook in executor.pre_run_hooks:
        hook(*on_host, **named_on_host)
    scope = interpreter._patch_lang(executor.fn)
    try:
        given = inspect.getcallargs(executor.fn, *on_host, **named_on_host)
        values = {
            name: value if name in executor.constexprs else interpreter._implicit_cvt(value)
            for name, value in given.items()
        }
        grid = executor.grid(values) if callable(executor.grid) else executor.grid
        _run_each(executor.fn, values, (*grid, 1, 1)[:3], trace, plan)
    finally:
        if scope is not None:
            scope.restore()
    executor._restore_args_dev(args, on_host, named, named_on_host)


def _run_each(
    function: Any, values: Mapping[str, Any], grid: Place, trace: ProgramTrace, plan: ProgramPlan
) -> None:
    from triton.runtime.interpreter import interpreter_builder

    x, y, z = map(int, grid)
    interpreter_builder.set_grid_dim(x, y, z)
    started = time.process_time()  # other work on this machine does not count
    for number in plan.order(x * y * z):
        interpreter_builder.set_grid_idx(number % x, number // x % y, number // (x * y))
        trace.begin(number)
        began = time.process_time()
        function(**values)
        trace.seconds.append(time.process_time() - began)
        if plan.budget_s is not None and time.process_time() - started > plan.budget_s:
            return
