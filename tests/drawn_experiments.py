"""Tables of what experiments time and conclude, of drawn times: measured, predicted and missing."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from table_text import text_of
from variant_results import AT, context, failed, text, took

from workbench.device.hardware import find_device
from workbench.experiments import (
    Context,
    ExperimentError,
    Variant,
    VariantResult,
    experiment_names,
    find_experiment,
)
from workbench.experiments.analysis import ceilings

DRAWS = 6  # of results of one kernel
MAC = "m2max"


def kernels_of(name: str) -> tuple[str, ...]:
    """Return kernels that an experiment takes."""
    own = find_experiment(name).kernels
    return own or ("softmax", "matmul", "rms_norm")


def contexts(name: str, kernel: str) -> Iterator[Context]:
    """Yield a GPU that is measured, one that is predicted, and a Mac where it is of use."""
    experiment = find_experiment(name)
    yield context(kernel, experiment.dtype)
    yield context(kernel, experiment.dtype, predicts=True)
    if experiment.is_emulated:
        yield replace(context(kernel, experiment.dtype, predicts=True), device=find_device(MAC))


def drawn(dice: random.Random, variant: Variant, predicts: bool) -> VariantResult:
    """Return a time near others, far from them or none."""
    if dice.random() < 0.05:
        return failed(variant, dice.choice(("it broke", "it needs more shared memory")))
    time_s = 1e-5 * dice.choice((1.0, 1.0, 1.003, 1.01, 1.3, 2.0, 8.0))
    launches = dice.choice((1, 1, 3))
    if predicts:
        return text(variant, time_s, launches)
    return took(variant, time_s, half=dice.choice((0.001, 0.02)), kernels=launches,
                peak_bytes=dice.choice((None, 1 << 20)), bytes_=1 << 22, flops=1 << 24,
                made="_kernel", launches=launches)  # fmt: skip


def experiment_table(name: str) -> Iterator[str]:
    """Yield the variants of an experiment and what it says of drawn results."""
    experiment, dice = find_experiment(name), random.Random(name)
    for kernel in kernels_of(name):
        for at in contexts(name, kernel):
            try:
                variants = list(experiment.variants(at))
            except ExperimentError as error:
                yield f"{kernel} {at.device.name}: {error}"
                continue
            yield f"{kernel} {at.device.name} {at.predicts}"
            yield from (f"  {text_of(each)}" for each in variants)
            for _ in range(DRAWS):
                results = {v.name: drawn(dice, v, at.predicts) for v in variants}
                yield from concluded(name, at, results)


def concluded(name: str, at: Context, results: dict[str, VariantResult]) -> Iterator[str]:
    """Yield the findings of an experiment, or why there is none."""
    try:
        found = find_experiment(name).analyse(at, results)
    except ExperimentError as error:
        yield f"    {error}"
        return
    for each in found:
        yield f"    {text_of(each.finding('run', AT, name, at))}"


def ceilings_table() -> Iterator[str]:
    """Yield what is timed for the ceilings of devices, and what is concluded of drawn times."""
    dice = random.Random(11)
    for name in ("h200", "b200", "a100", "mi300x", "rtx4090"):
        device = find_device(name)
        for group in ceilings.groups_of(device, dice.choice((None, 24 << 30, 80 << 30))):
            yield f"{name} {text_of(group)}"
            results = {v.name: drawn(dice, v, False) for v in group.variants}
            found = ceilings.evaluate(group.sought, results, device.limits, {})
            yield f"  {text_of(found)}"
        yield text_of(ceilings.stated_ceilings(device))


TABLES: dict[str, Callable[[], Iterator[str]]] = {
    **{
        f"experiment_{name}": partial(experiment_table, name)
        for name in experiment_names()
        if name != "memory_vs_compute"
    },  # reads the code of its arms: test_memory_vs_compute
    "ceilings_timed": ceilings_table,
}
