"""Which tensors a launch changes, and what it needs to find in them: seen by running it.

Runs in a worker, on the GPU or in Triton's interpreter, so that a fault costs that worker alone.
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
    """What the launches showed."""

    outputs: tuple[str, ...]
    initial: Mapping[str, Initial]  # of all that a launch changes
    first: int  # the config of the list whose answer was taken: the first that ran
    skipped: str | None = None  # why an earlier one did not
    unmoved: str | None = None  # why the second check is on the same values as the first


def discover(folder: Path, outputs: Sequence[str], device: str, expected: bool) -> Discovered:
    """Launch the first config on copies of the saved tensors, and write what comes out to
    `answer.pt`, unless it is there: `answered`. Raises AdaptedError.

    A tensor is an output when a launch changes it; a tensor of floats also when it is changed
    once its values are others, so that an output that already holds the answer is found. Integers
    are never altered to find out: they may be indices.
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
            f"A launch of {call.name} changed none of its tensors, so no answer can be checked; "
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
    """Write the values of a second check and what comes out of them, and return None; or say why
    there are none."""
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
        before it did not. Raises AdaptedError where none does."""
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
        """How a tensor lies in memory."""
        return self._call.tensors[name]

    def expected(self, names: Sequence[str], memory: Mapping[str, Any]) -> dict[str, Any]:
        """These tensors as they lie in this memory, dense and on the CPU."""
        return {n: self.layout(n).view(memory[n]).contiguous().cpu() for n in names}

    def run(self, other: Mapping[str, Any]) -> Mapping[str, Any]:
        """All memory after a launch on copies of the saved tensors, or of others by name."""
        memory = {n: other.get(n, x).clone() for n, x in self.saved.items()}
        self._launcher.fire(memory, self._entry)
        if any(x.is_cuda for x in memory.values()):
            import torch

            torch.cuda.synchronize()
        return memory

    def changes(self, name: str) -> bool:
        """Whether a launch writes this tensor."""
        saved = self.saved[name]
        if not same_bits(saved, self.after[name]):
            return True
        if not saved.is_floating_point():
            return False
        altered = (1.0 + (saved.float() == 1)).to(saved.dtype)  # ones, and twos where ones were
        return not same_bits(altered, self.run({name: altered})[name])

    def initial(self, name: str) -> Initial:
        """What this output must hold before a launch, so that the same comes out."""
        import torch

        saved = self.saved[name]
        if saved.is_floating_point():  # an integer may be a lock or an index: not to be spoiled
            spoiled = torch.full_like(saved.float(), float("nan")).to(saved.dtype)
            if self._unmoved(self.run({name: spoiled})):
                return "nothing"
        return "values" if bool(as_bytes(saved).any()) else "zeros"

    def _unmoved(self, now: Mapping[str, Any]) -> bool:
        """Whether all tensors are as after the first launch; gaps between elements do not count."""
        views = (
            (self._call.tensors[n].view(now[n]), self._call.tensors[n].view(self.after[n]))
            for n in now
        )
        return all(same_bits(a, b) for a, b in views)


def as_bytes(x: Any) -> Any:
    """The values of a tensor as bytes, in which NaN equals NaN."""
    import torch

    dense = torch.empty(x.numel(), dtype=x.dtype, device=x.device)  # `contiguous` keeps odd strides
    return dense.copy_(x.reshape(-1)).view(torch.uint8)  # of tensors of one element


def same_bits(a: Any, b: Any) -> bool:
    """Whether two tensors hold the same bits."""
    import torch

    return bool(torch.equal(as_bytes(a), as_bytes(b)))
