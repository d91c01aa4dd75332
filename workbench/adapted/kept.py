"""Tensors of an adapted kernel's folder: the user's arguments, and the expected outputs."""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from workbench.adapted.call import ARGS, EXPECTED, MOVED_ARGS, MOVED_EXPECTED, PROBES, WRITTEN, Call
from workbench.adapted.moved import equal
from workbench.adapted.travel import AdaptedError
from workbench.measurement.inputs import torch_dtype


class Kept:
    """The tensors of the folder, read once in a process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def args(self) -> Mapping[str, Any]:
        """Values that the user gave, by name."""
        return self._read(ARGS)

    @cached_property
    def expected_outputs(self) -> Mapping[str, Any]:
        """Expected outputs, by name."""
        return self._read(EXPECTED)

    @cached_property
    def moved_inputs(self) -> Mapping[str, Any]:
        """Other values of some tensors, for a second check; empty if there are none."""
        return self._read(MOVED_ARGS) if (self._folder / MOVED_ARGS).is_file() else {}

    @cached_property
    def moved_outputs(self) -> Mapping[str, Any]:
        """Expected outputs for the values in `moved_inputs`, by name."""
        return self._read(MOVED_EXPECTED)

    @cached_property
    def written_elements(self) -> Mapping[str, Any]:
        """Which elements of the expected outputs are known, by name; all of other names."""
        return self._read(WRITTEN) if (self._folder / WRITTEN).is_file() else {}

    @cached_property
    def probes(self) -> Mapping[str, list[int]]:
        """Elements whose writers run in every config, by argument."""
        return self._read(PROBES) if (self._folder / PROBES).is_file() else {}

    def _read(self, name: str) -> Mapping[str, Any]:
        import torch

        result: Mapping[str, Any] = torch.load(self._folder / name, weights_only=True)
        return result

    def input(self, name: str, shape: Any, dtype: Any, device: Any, generator: Any) -> Any:
        """Return the saved values; for any seed but 0, floats in another order. Integers stay:
        indices and masks have a meaning. Raises AdaptedError at other extents."""
        saved = self.args[name]
        if generator.initial_seed() != 0:
            saved = self.moved_inputs.get(name, saved)
        if tuple(saved.shape) != tuple(shape):
            raise AdaptedError(f"{name} was given as {tuple(saved.shape)}, not {tuple(shape)}")
        return saved.to(device, copy=True)

    def reference(self, call: Call) -> Callable[..., Any]:
        """Return a reference function with the stored outputs, floats in float64. The function
        raises AdaptedError for values other than those that were saved."""

        def reference(*tensors: Any) -> tuple[Any, ...]:
            if call.unchecked:
                raise AdaptedError(
                    f"No outputs of {call.name} are known to compare with, as it was adapted where "
                    "nothing could run it; call tune() where its GPU is."
                )
            if self.written_elements:
                raise AdaptedError(
                    f"Some programs of {call.name} ran where no GPU was, and of the other outputs "
                    "nothing is known; call tune() where its GPU is."
                )
            device, given = tensors[0].device, dict(zip(call.inputs, tensors, strict=True))
            expected = self._expected_of({n: given[n] for n in self.moved_inputs})
            result = (expected[n].to(device) for n in call.outputs)
            return tuple(x.double() if x.is_floating_point() else x for x in result)

        return reference

    def _expected_of(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        pairs = (self.args, "expected_outputs"), (self.moved_inputs, "moved_outputs")
        for saved, expected in pairs:
            if all(equal(x, saved[n]) for n, x in given.items()):
                result: Mapping[str, Any] = getattr(self, expected)
                return result
        raise AdaptedError(f"The expected result is unknown for these {', '.join(given)}.")


class GivenIntegers(Mapping[str, Any]):
    """The tensors of integers among the arguments of a call, flat from where the pointer points, by
    the name of the argument; the folder is read when one is asked for."""

    def __init__(self, call: Call, kept: Kept) -> None:
        self._kept = kept
        names = {a.name: a.tensor for a in call.arguments if a.descriptor is None}
        self._tensors = {
            argument: (name, call.tensors[name])
            for argument, name in names.items()
            if name is not None and not torch_dtype(call.tensors[name].dtype).is_floating_point
        }
        self._read: dict[str, Any] = {}

    def __getitem__(self, argument: str) -> Any:
        name, layout = self._tensors[argument]
        if argument not in self._read:
            flat = self._kept.args[name].reshape(-1)[layout.lead :]
            self._read[argument] = flat.long().numpy()
        return self._read[argument]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)
