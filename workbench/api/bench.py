"""Time functions over sizes, several providers beside each other."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import update_wrapper
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar

from workbench.api.arguments import MappedSizes, Words, sizes_mappings
from workbench.api.call import call_in_process
from workbench.api.timing_results import BenchResult
from workbench.commands.measure import MeasureOptions
from workbench.commands.options import OptionError

P = ParamSpec("P")
R = TypeVar("R")
PROVIDER = "provider"  # the argument that names the provider


@dataclass(frozen=True)
class Costs:
    """What a call costs at least, as functions of the sizes, and the dtype of its arithmetic."""

    bytes: Callable[..., int] | None = None
    flops: Callable[..., int] | None = None
    dtype: str = "bf16"


class BenchFunction(Generic[P, R]):
    """A decorated function. Calling it calls the function; `run` times it."""

    def __init__(
        self,
        function: Callable[P, R],
        sizes: Sequence[Mapping[str, int]],
        providers: tuple[str, ...],
        costs: Costs,
        check: bool,
    ) -> None:
        """Take a function and what `bench` was given. Raises OptionError where they do not fit."""
        self._function, self._providers = function, providers
        self._sizes, self._costs, self._check = sizes, costs, check
        self.name = function.__name__
        update_wrapper(self, function)
        _check_signature(function, sizes, bool(providers))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function."""
        return self._function(*args, **kwargs)

    def run(
        self,
        *,
        sizes: MappedSizes | None = None,
        device: str | None = None,
        require: Words = (),
        out: str | Path = "results",
        database: str | None = None,
        progress: bool | None = None,
    ) -> BenchResult:
        """Time every provider at every size on the GPU of this process, on cold data and in turns;
        return the times.

        Args:
            sizes: in place of those of the decorator.
            device: the roofline bound of this device alone, from the declared bytes and FLOPs;
                nothing is run.
            require: `"idle-gpu"`: refuse to measure while other processes use the GPU.
            out: folder for the page and the events file.
            database: URL of the database; SQLite in the user's data folder by default.
            progress: False for no display of progress.

        Raises WorkbenchError where there is no GPU and no device is named.
        """
        every = sizes_mappings(sizes) if sizes is not None else self._sizes
        options = MeasureOptions(
            self.name, device=device, require=require, out=Path(out), database=database
        )
        module = import_module("workbench.commands.bench")
        benched = module.BenchedFunction(
            name=self.name,
            function=self._function,
            make=self._make,
            sizes=every,
            owners=len(self._providers) or 1,
            dtype=self._costs.dtype,
            bytes=self._costs.bytes,
            flops=self._costs.flops,
            check=self._check,
        )
        command = module.BenchCommand(benched, options)
        return BenchResult(call_in_process(options, self.name, command.go, progress))

    def _make(self, sizes: Mapping[str, int]) -> Mapping[str, Callable[[], Any]]:
        """Return the call of each provider. Raises OptionError where the function gives others."""
        import torch

        function: Callable[..., Any] = self._function
        if not self._providers:
            calls = function(**sizes)
            if not isinstance(calls, Mapping) or not calls:
                raise OptionError(
                    f"{self.name} returns no mapping from providers to calls; return one, or name "
                    "providers=[...] and take the argument `provider`."
                )
        else:
            seed = torch.initial_seed()
            calls = {}
            for provider in self._providers:
                torch.manual_seed(seed)  # the same inputs for each
                calls[provider] = function(**sizes, provider=provider)
        for provider, call in calls.items():
            if not callable(call):
                raise OptionError(
                    f"{self.name} gives {type(call).__name__} for {provider}, not a function; "
                    "return a call to time: lambda: kernel(x)."
                )
        return {str(provider): call for provider, call in calls.items()}


def bench(
    sizes: MappedSizes,
    providers: Sequence[str] = (),
    *,
    bytes: Callable[..., int] | None = None,
    flops: Callable[..., int] | None = None,
    dtype: str = "bf16",
    check: bool = True,
) -> Callable[[Callable[P, R]], BenchFunction[P, R]]:
    """Decorate a function that makes inputs for given sizes and returns the calls to time.

        @wb.bench({"N": [2**20, 2**22, 2**24]}, bytes=lambda N: 3 * 4 * N)
        def add(N):
            x, y = torch.rand(2, N, device="cuda")
            return {"torch": lambda: x + y, "triton": lambda: triton_add(x, y)}

        add.run().plot()

    A call may launch anything: torch, Triton, a library. It is the counterpart of
    `triton.testing.perf_report`, with the protocol of a final benchmark: cold data, the clock
    settled, providers in turns, and a 95 % interval for each median.

    Args:
        sizes: sizes of the calls; lists in a mapping are combined.
        providers: if named, the function takes `provider` and returns the one call of it; random
            inputs have the same values for each provider.
        bytes: least bytes of a call, of the sizes: for rates and the roofline bound.
        flops: FLOPs of a call, of the sizes.
        dtype: dtype of the arithmetic, for the roofline bound.
        check: compare the result of each provider with that of the first, by
            `torch.testing.assert_close`; one that differs gets no time.

    Raises WorkbenchError where the function does not take the axes of the sizes.
    """
    every, costs = sizes_mappings(sizes), Costs(bytes, flops, dtype)

    def decorate(function: Callable[P, R]) -> BenchFunction[P, R]:
        return BenchFunction(function, every, tuple(providers), costs, check)

    return decorate


def _check_signature(
    function: Callable[..., Any], sizes: Sequence[Mapping[str, int]], provider: bool
) -> None:
    """Raise OptionError where a function cannot be called with these sizes."""
    arguments = {**(sizes[0] if sizes else {}), **({PROVIDER: ""} if provider else {})}
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        raise OptionError(
            f"{function.__name__} cannot be called with {', '.join(arguments)} ({error}); give it "
            "an argument for each axis of the sizes."
        ) from None
