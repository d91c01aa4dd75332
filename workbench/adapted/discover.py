"""Find the tensors that a launch changes, and the values it needs in them, by running it.

Runs in a worker, on the GPU or in Triton's interpreter, so that a fault affects that worker only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.adapted.call import (
    ARGS,
    EXPECTED,
    MOVED_ARGS,
    MOVED_EXPECTED,
    Call,
    ConfigEntry,
    Initial,
    Layout,
)
from workbench.adapted.kernel import Launcher
from workbench.adapted.moved import shuffle_memory, worse
from workbench.adapted.traced import LaunchFault
from workbench.adapted.travel import AdaptedError
from workbench.dsl.interpreter import RoundedProducts


class NotInterpreted(AdaptedError):
    """Triton's interpreter cannot run a kernel; the message is its reason."""


@dataclass(frozen=True)
class OutputUse:
    """What a launch does to a tensor that it writes."""

    written_share: float  # share of its elements
    read: bool  # the result depends on what it held before

    @property
    def clean(self) -> bool:
        """Whether the result is the same whatever the tensor held before."""
        return self.written_share == 1 and not self.read

    def sentence(self, kernel: str, name: str) -> str:
        """Return what is wrong with an output that is not clean, and what to do."""
        named = f"inputs=({name!r},), --input {name}"
        if self.written_share < 1:
            return (
                f"{kernel} writes {name} in {100 * self.written_share:.3g} % of its elements, and "
                f"the others keep what they held; let the grid cover {name}, or, if the launch "
                f"needs what it holds, name it: {named}; if it holds partial results, as many as a "
                f"config has blocks, their sum is compared: partial=({name!r},), --partial {name}."
            )
        return (
            f"{kernel} reads {name} before it writes it, and nothing says what it holds then; if "
            f"the launch needs what {name} holds, name it: {named}."
        )


@dataclass(frozen=True)
class Discovered:
    """Outputs of a kernel as its launches showed them."""

    outputs: tuple[str, ...]
    initial: Mapping[str, Initial]  # of all that a launch changes
    first: int  # index of the config whose outputs are expected: the first that ran
    skip_reason: str | None = None  # why an earlier one did not run
    repeat_reason: str | None = None  # why the second check uses the same values as the first
    # outputs that a launch reads or writes in part, and that nobody declared to be inputs, too
    odd: Mapping[str, OutputUse] = field(default_factory=dict)
    mantissa_bits: int | None = None  # bits of the mantissa to which it rounds operands of products
    # equal values that two programs write; outputs that are not checked, as sums of some programs
    notes: tuple[str, ...] = ()


def discover(
    folder: Path,
    outputs: Sequence[str],
    device: str,
    expected: bool,
    declared: Collection[str] | None = (),
) -> Discovered:
    """Launch the first config on copies of the saved tensors, and write its outputs to `answer.pt`
    unless `expected` says that they are there already. Returns what was found. Raises AdaptedError
    where no config launches, where no tensor or a wrong one is changed, or where nobody says what
    is expected of an output that a launch reads or writes in part.

    A tensor is an output if a launch changes it; a tensor of floats also if it is changed once its
    values are altered, so that an output that already holds the result is found. Integers are
    altered for this only where `outputs` names them: they may be indices. An output is poisoned
    before each check, unless it is `declared` to be an input, too. With None the first config
    decides that, as it does for the launches of a program that ran.
    """
    import torch

    from workbench.measurement.correctness import poison_outputs

    call = Call.read(folder)
    saved = {n: x.to(device) for n, x in torch.load(folder / ARGS, weights_only=True).items()}
    launch = FirstLaunch(call, saved)
    first, skipped = launch.begin()
    written = [n for n in call.tensors if launch.changes(n, n in outputs)]
    if unwritten := [n for n in outputs if n not in written]:
        raise AdaptedError(
            f"{call.name} does not write {', '.join(unwritten)}, which `outputs` names; "
            f"it writes {', '.join(written) or 'no tensor that it was given'}."
        )
    if not written:
        raise AdaptedError(
            f"A launch of {call.name} changed none of its tensors, so no result can be checked; "
            "name those that it writes: outputs=('out',)."
        )
    compared, uses = outputs or written, {n: launch.use(n) for n in written}
    if declared is None:
        declared = [n for n, use in uses.items() if not use.clean]
    declared = {*declared, *passed_twice(call), *call.partial}
    odd = {n: u for n, u in uses.items() if n in compared and n not in declared and not u.clean}
    if not expected:
        for name, use in odd.items():
            raise AdaptedError(use.sentence(call.name, name))
        torch.save(launch.expected_outputs(compared, launch.after), folder / EXPECTED)
    initial: dict[str, Initial] = {
        n: "nothing" if n in odd or (uses[n].clean and n not in declared) else launch.contents(n)
        for n in written
    }
    if all(initial.get(n, "values") == "nothing" for n in call.tensors):
        # a launch with no input at all: some tensor names the GPU, and holds poison
        initial[written[0]] = "values"
        poisoned = {written[0]: launch.saved[written[0]].clone()}
        poison_outputs(list(poisoned.values()), [])
        torch.save({n: x.cpu() for n, x in {**launch.saved, **poisoned}.items()}, folder / ARGS)
    read = [n for n in call.tensors if initial.get(n, "values") != "nothing"]
    unmoved = _second(launch, read, compared, folder)
    rounded = RoundedProducts.bits
    notes = tuple(launch.twice)
    return Discovered(tuple(compared), initial, first, skipped, unmoved, odd, rounded, notes)


def passed_twice(call: Call) -> list[str]:
    """Return the tensors that are two arguments of the launch: it reads one, and writes another."""
    named = [a.tensor for a in call.arguments if a.tensor is not None]
    return [n for n in call.tensors if named.count(n) > 1]


def _second(
    launch: FirstLaunch, read: Sequence[str], outputs: Sequence[str], folder: Path
) -> str | None:
    """Write the values of a second check and the outputs for them, and return None; or return the
    reason why there are none."""
    import torch

    other = {n: shuffle_memory(x, launch.layout(n)) for n, x in launch.saved.items() if n in read}
    other = {n: x for n, x in other.items() if not same_bits(x, launch.saved[n])}
    if not other:
        return "no tensor of floats that it reads has two different values"
    try:
        result = launch.expected_outputs(outputs, launch.run(other))
    except Exception as error:
        return f"{type(error).__name__} on the same values in another order"
    if reason := worse(result, launch.expected_outputs(outputs, launch.after)):
        return reason
    torch.save({n: x.cpu() for n, x in other.items()}, folder / MOVED_ARGS)
    torch.save(result, folder / MOVED_EXPECTED)
    return None


class FirstLaunch:
    """Launches of one config on copies of the saved tensors."""

    def __init__(self, call: Call, saved: Mapping[str, Any]) -> None:
        self._call, self.saved = call, saved
        self._launcher = Launcher(call)
        self._entry: ConfigEntry
        self.twice: list[str] = []
        self.after: Mapping[str, Any]  # the tensors' memory after a launch on the saved values

    def begin(self) -> tuple[int, str | None]:
        """Launch the first config that launches. Returns its place in the list, and why the ones
        before it did not launch. Raises AdaptedError where none does."""
        reason, faults = None, list[str]()
        for i, entry in enumerate(self._call.entries):
            self._entry = entry
            try:
                self.after = self.run({})
            except LaunchFault as fault:
                faults.append(str(fault))
            except AdaptedError:
                raise
            except Exception as error:
                lines = str(error).strip().splitlines() or [""]
                reason = reason or f"{type(error).__name__}: {lines[-1]}"[:300]
                if isinstance(error, AssertionError):  # the kernel's own word on its arguments
                    faults.append(f"{self._call.name} stops: {reason}.")
            else:
                self.twice = self._launcher.trace.twice if self._launcher.trace else []
                return i, (faults[0].rstrip(".") if faults else reason)
        if faults:
            raise AdaptedError(faults[0])
        kind = AdaptedError if self._is_on_gpu else NotInterpreted
        raise kind(f"No config of {self._call.name} launches; the first says {reason}")

    def layout(self, name: str) -> Layout:
        """Return the memory layout of a tensor."""
        return self._call.tensors[name]

    def expected_outputs(self, names: Sequence[str], memory: Mapping[str, Any]) -> dict[str, Any]:
        """Return what is compared of these tensors in this memory, dense and on the CPU."""
        views = {n: self.layout(n).view(memory[n]).contiguous().cpu() for n in names}
        return {n: self._call.compared_output(n, view) for n, view in views.items()}

    def run(self, other: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return all memory after a launch on copies of the saved tensors, or of others by name."""
        memory = {n: other.get(n, x).clone() for n, x in self.saved.items()}
        self._launcher.fire(memory, self._entry)
        if self._is_on_gpu:
            import torch

            torch.cuda.synchronize()
        return memory

    @property
    def _is_on_gpu(self) -> bool:
        return any(x.is_cuda for x in self.saved.values())

    def changes(self, name: str, integers: bool) -> bool:
        """Return whether a launch writes this tensor. Only `integers` alters integers for this."""
        saved = self.saved[name]
        if not same_bits(saved, self.after[name]):
            return True
        if saved.is_floating_point():
            altered = (1.0 + (saved.float() == 1)).to(saved.dtype)  # ones, and twos for ones
        elif integers:
            altered = filled_like(saved, SAFE)
        else:
            return False
        return not same_bits(altered, self.run({name: altered})[name])

    def use(self, name: str) -> OutputUse:
        """Return what a launch does to a tensor that it writes, by two launches on other values:
        elements that keep both of them are not written."""
        fills = [filled_like(self.saved[name], way) for way in (SAFE, POISON)]
        runs = [self.run({name: fill}) for fill in fills]
        views = [self._view(name, run[name]) for run in runs]
        kept = [bits(v) == bits(self._view(name, f)) for v, f in zip(views, fills, strict=True)]
        unwritten = kept[0] & kept[1]
        share = 1.0 - float(unwritten.double().mean())
        before = self._view(name, self.after[name])
        read = any(bool((_differs(v, before) & ~unwritten).any()) for v in views)
        others = [n for n in self.saved if n != name]
        moved_others = (
            bool(_differs(self._view(n, run[n]), self._view(n, self.after[n])).any())
            for run in runs
            for n in others
        )
        return OutputUse(share, read or any(moved_others))

    def contents(self, name: str) -> Initial:
        """Return what an output that is also an input must hold before a launch."""
        return "values" if bool(byte_tensor(self.saved[name]).any()) else "zeros"

    def _view(self, name: str, memory: Any) -> Any:
        """Return a tensor in this memory, without the gaps between its elements."""
        return self._call.tensors[name].view(memory).contiguous()


SAFE, POISON = "safe", "poison"
NEAR = 1e-2  # relative, and of the rms: sums in another order differ by less


def filled_like(x: Any, way: str) -> Any:
    """Return memory like `x` filled with one value: a finite one, or poison. Integers are 1 and 0,
    which are safe as indices."""
    import torch

    if x.is_floating_point():
        value = 1.75 if way == SAFE else float("nan")  # 1.75 is exact in every dtype
        return torch.full_like(x.float(), value).to(x.dtype)
    return torch.full_like(x, way == SAFE)


def bits(x: Any) -> Any:
    """Return a dense tensor as integers of its width, in which NaN equals NaN."""
    import torch

    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    return x.view(whole)


def _differs(now: Any, before: Any) -> Any:
    """Return where two results differ by more than sums in another order do."""
    if not now.is_floating_point():
        return bits(now) != bits(before)
    a, e = now.double(), before.double()
    finite = e.isfinite()
    size = e.where(finite, e.new_zeros(()))
    scale = size.square().mean().sqrt()
    near = finite & ((a - e).abs() <= NEAR * e.abs() + NEAR * scale)  # all is near infinity
    return ~(near | (bits(now) == bits(before)) | (a.isnan() & e.isnan()))


def byte_tensor(x: Any) -> Any:
    """Return the values of a tensor as a dense 1-D tensor of bytes, in which NaN equals NaN."""
    import torch

    dense = torch.empty(x.numel(), dtype=x.dtype, device=x.device)  # `contiguous` keeps odd strides
    return dense.copy_(x.reshape(-1)).view(torch.uint8)  # of tensors of one element


def same_bits(a: Any, b: Any) -> bool:
    """Return whether two tensors hold the same bits."""
    import torch

    return bool(torch.equal(byte_tensor(a), byte_tensor(b)))
