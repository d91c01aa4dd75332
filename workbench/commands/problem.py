"""Parse kernels, sizes, dtypes and searches of a command line, before any work."""

from __future__ import annotations

import math
from importlib import import_module
from typing import TYPE_CHECKING

from workbench import catalog
from workbench.backend.protocol import Backend, Problem
from workbench.commands.options import CommandError
from workbench.commands.run import target_backend
from workbench.commands.sizes import check_dtype, sizes_of
from workbench.data.parts import require_part
from workbench.device import hardware
from workbench.spec import Impl, Spec, sizes_text
from workbench.sweeps import Sweep
from workbench.tuner.first_pass import SearchPlan
from workbench.tuner.search import Budget, StopRule, Strategy
from workbench.tuner.space import Plan

if TYPE_CHECKING:
    from workbench.commands.sweep import SweepOptions

MOST = {True: 208, False: 1000}  # configs tried at most, by default: predicted, measured


def find_sweep(name: str) -> Sweep:
    """Return the sweep of that file name. Raises CommandError with the nearest names."""
    known = catalog.names_in("workbench.sweeps")
    if name not in known:
        raise CommandError(catalog.name_hint("sweep", name, known))
    sweep = import_module(f"workbench.sweeps.{name}").SWEEP
    assert isinstance(sweep, Sweep)
    return sweep


def check_sweep(name: str, sweep: Sweep, device: str | None) -> None:
    """Raise CommandError where the sweep is for kernels of another kind than the device's, and
    UnknownDevice."""
    if device is not None:
        hardware.find_device(device)
    if sweep.backend and target_backend(device) != sweep.backend:
        example = "m2max" if sweep.backend == hardware.METAL else "h200"
        raise CommandError(
            f"The sweep {name} is for {sweep.backend.capitalize()} kernels; for this device name "
            f"{sweep.instead}, or an Apple GPU, as in --device {example}."
        )


def problems_of(options: SweepOptions) -> tuple[list[Problem], list[Impl]]:
    """Return the problems to sweep, one for each size, and the Impls. Raises CommandError or
    CatalogError."""
    spec = catalog.spec_of(options.kernel)
    check_dtype(spec, options.dtype)
    every = [sizes_of(spec, text) for text in options.sizes] or [sizes_of(spec, None)]
    impls = [catalog.impl_of(spec, name) for name in dict.fromkeys(options.impl)]
    language = "Metal" if target_backend(options.device) == hardware.METAL else "Triton"
    own = own_impls(spec, language.lower())
    for impl in impls:
        if impl not in own:
            raise CommandError(
                f"{impl.title} is not a {language} kernel and has nothing to sweep; name one of: "
                f"{', '.join(i.name for i in own)}."
            )
    kernel, dtype = options.kernel, options.dtype
    each = {sizes_text(sizes): Problem(kernel, spec, sizes, dtype) for sizes in every}
    return list(each.values()), impls or own


def own_impls(spec: Spec, backend: str) -> list[Impl]:
    """Return the Impls of an operation that run on devices of this backend: its Metal kernels for
    "metal", its Triton kernels for any other. Raises CommandError where it has none of them."""
    language = "metal" if backend == hardware.METAL else "triton"
    own = [impl for impl in spec.impls if impl.backend == language]
    if not own and language == "metal":
        require_part("metal")
        known = ", ".join(catalog.names_in(catalog.METAL))
        raise CommandError(f"{spec.name} has no Metal kernel; these operations have one: {known}.")
    if not own:
        raise CommandError(
            f"{spec.name} has only Metal kernels; name an Apple GPU, as in --device m2max."
        )
    return own


def search_plan_of(options: SweepOptions, started: float) -> SearchPlan | None:
    """Return the search of `--budget` and `--search`, or None if neither is given. Raises
    SearchError or CommandError."""
    if options.budget is None and options.search is None:
        return None
    budget = Budget.parse(options.budget) if options.budget else Budget()
    return SearchPlan(find_strategy(options.search or "model"), budget, started)


def find_strategy(name: str) -> Strategy:
    """Return the strategy of this name. Raises CommandError with the nearest names."""
    known = [s.value for s in Strategy]
    if name not in known:
        raise CommandError(catalog.name_hint("search", name, known))
    return Strategy(name)


def default_search(plan: Plan, backend: Backend) -> SearchPlan:
    """Return the search of a sweep without options. A small space is measured whole. Of a larger
    one the strategy model chooses what to measure, until going on cannot pay, and MOST[False]
    configs at most. Where the bits of the default are requested only the second holds, as a faster
    config may have others. The strategy also orders the whole space where times are predicted, so
    that the best are among the first."""
    if backend.device.backend == hardware.METAL:
        return SearchPlan()
    if backend.predicts:
        return SearchPlan(Strategy.MODEL)
    few = MOST[False] if plan.run.same_bits_as else StopRule.least
    if len(plan.candidates) <= few:
        return SearchPlan()
    until = None if plan.run.same_bits_as else StopRule()
    return SearchPlan(Strategy.MODEL, Budget(configs=MOST[False]), stop_rule=until)


def predicted_configs(search: SearchPlan | None) -> int:
    """Return the number of configs to predict, 0 for all: without measured times the search cannot
    learn, so the model's best are taken at once."""
    if search is None:
        return MOST[True]
    return 0 if math.isinf(search.budget.configs) else int(search.budget.configs)
