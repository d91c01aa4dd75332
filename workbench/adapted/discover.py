"""Find the tensors that a launch changes, and the values it needs in them, by running it.

Runs in a worker, on the GPU or in Triton's interpreter, so that a fault affects that worker only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from workbench.adapted.moved import moved, worse
from workbench.adapted.travel import AdaptedError


@dataclass(frozen=True)
class Discovered:
    """Outputs of a kernel as its launches showed them."""

    outputs: tuple[str, ...]
    initial: Mapping[str, Initial]  # of all that a launch changes
    first: int  # index of the config whose outputs are expected: the first that ran
    skipped: str | None = None  # why an earlier one did not run
    unmoved: str | None = None  # why the second check uses the same values as the first


def discover(folder: Path, outputs: Sequence[str], device: str, expected: bool) -> Discovered:
    """Launch the first config on copies of the saved tensors, and write its outputs to `answer.pt`
    unless `expected` says that they are there already. Returns what was found. Raises AdaptedError
    where no config launches, or where no tensor or a wrong one is changed.

    A tensor is an output if a launch changes it; a tensor of floats also if it is changed once its
    values are altered, so that an output that already holds the result is found. Integers are never
    altered for this: they may be indices.
    """
    import torch

    call = Call.read(folder)
    saved = {n: x.to(device) for n, x in torch.load(folder / ARGS, weights_only=True).items()}
    launch = FirstLaunch(call, saved)
    first, skipped = launch.begin()
    written = [n for n in call.tensors if launch.changes(n)]
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
    if not expected:
        torch.save(launch.expected(outputs or written, launch.after), folder / EXPECTED)
    initial = {n: launch.initial(n) for n in written}
    if all(initial.get(n, "values") == "nothing" for n in call.tensors):
        initial[written[0]] = "values"  # a launch with no input at all: some tensor names the GPU
    read = [n for n in call.tensors if initial.get(n, "values") != "nothing"]
    unmoved = _second(launch, read, outputs or written, folder)
    return Discovered(tuple(outputs or written), initial, first, skipped, unmoved)


def _second(
    launch: FirstLaunch, read: Sequence[str], outputs: Sequence[str], folder: Path
) -> str | None:
    """Write the values of a second check and the outputs for them, and return None; or return the
    reason why there are none."""
    import torch

    other = {n: moved(x, launch.layout(n)) for n, x in launch.saved.items() if n in read}
    other = {n: x for n, x in other.items() if not same_bits(x, launch.saved[n])}
    if not other:
        return "no tensor of floats that it reads has two different values"
    try:
        result = launch.expected(outputs, launch.run(other))
    except Exception as error:
        return f"{type(error).__name__} on the same values in another order"
    if reason := worse(result, launch.expected(outputs, launch.after)):
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
        self.after: Mapping[str, Any]  # the tensors' memory after a launch on the saved values

    def begin(self) -> tuple[int, str | None]:
        """Launch the first config that launches. Returns its place in the list, and why the ones
        before it did not launch. Raises AdaptedError where none does."""
        reason = None
        for i, entry in enumerate(self._call.entries):
            self._entry = entry
            try:
                self.after = self.run({})
                return i, reason
            except AdaptedError:
                raise
            except Exception as error:
                lines = str(error).strip().splitlines() or [""]
                reason = reason or f"{type(error).__name__}: {lines[-1]}"[:300]
        raise AdaptedError(f"No config of {self._call.name} launches; the first says {reason}")

    def layout(self, name: str) -> Layout:
        """Return the memory layout of a tensor."""
        return self._call.tensors[name]

    def expected(self, names: Sequence[str], memory: Mapping[str, Any]) -> dict[str, Any]:
        """Return these tensors as they are in this memory, dense and on the CPU."""
        return {n: self.layout(n).view(memory[n]).contiguous().cpu() for n in names}

    def run(self, other: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return all memory after a launch on copies of the saved tensors, or of others by name."""
        memory = {n: other.get(n, x).clone() for n, x in self.saved.items()}
        self._launcher.fire(memory, self._entry)
        if any(x.is_cuda for x in memory.values()):
            import torch

            torch.cuda.synchronize()
        return memory

    def changes(self, name: str) -> bool:
        """Return whether a launch writes this tensor."""
        saved = self.saved[name]
        if not same_bits(saved, self.after[name]):
            return True
        if not saved.is_floating_point():
            return False
        altered = (1.0 + (saved.float() == 1)).to(saved.dtype)  # ones, and twos where ones were
        return not same_bits(altered, self.run({name: altered})[name])

    def initial(self, name: str) -> Initial:
        """Return the values that this output must hold before a launch to give the same result."""
        import torch

        saved = self.saved[name]
        if saved.is_floating_point():  # an integer may be a lock or an index, so it is kept
            spoiled = torch.full_like(saved.float(), float("nan")).to(saved.dtype)
            if self._unmoved(self.run({name: spoiled})):
                return "nothing"
        return "values" if bool(as_bytes(saved).any()) else "zeros"

    def _unmoved(self, now: Mapping[str, Any]) -> bool:
        """Return whether all tensors are as after the first launch; gaps between elements do not
        count."""
        views = (
            (self._call.tensors[n].view(now[n]), self._call.tensors[n].view(self.after[n]))
            for n in now
        )
        return all(same_bits(a, b) for a, b in views)


def as_bytes(x: Any) -> Any:
    """Return the values of a tensor as a dense 1-D tensor of bytes, in which NaN equals NaN."""
    import torch

    dense = torch.empty(x.numel(), dtype=x.dtype, device=x.device)  # `contiguous` keeps odd strides
    return dense.copy_(x.reshape(-1)).view(torch.uint8)  # of tensors of one element


def same_bits(a: Any, b: Any) -> bool:
    """Return whether two tensors hold the same bits."""
    import torch

    return bool(torch.equal(as_bytes(a), as_bytes(b)))
