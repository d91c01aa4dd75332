"""Choose the Impl and the config of a launch that names none, from stored times.

Launches, `workbench.ops` and sweeps call this module and nothing else, so that what a sweep found
is what runs. The config of an Impl is, in this order:

1. the one in the tuned cache for these sizes, or for the nearest sizes in the same bucket
   (`Tuned.find`);
2. of a kernel that the user has not calibrated here, the fastest at sizes like these by the times
   in `calibrations/launches` of the device's architecture;
3. the one that the device's calibration expects to be the fastest at these sizes;
4. the default, or if that is refused the nearest to it that is not.

The Impl is, in this order:

1. the one that won the last sweep of these sizes, or of the nearest in the same bucket;
2. the one whose config is the fastest by the times in `calibrations/launches`; else, where
   `calibrations/impls` has the device's architecture, the first by its times at sizes within half
   an octave; else, where the times of all Impls are known (tuned, or expected by a
   calibration), the fastest; else the first by the times at the nearest measured sizes; else the
   first by the analytic model, before compiling;
3. where the model lacks a figure, the first in the kernel's file.

A tuned table of a workload is of a program's own `@triton.autotune` functions, which have no Impl:
`workload/pinned.py` looks it up by their keys, and no launch has an entry in both.
"""

import logging
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from workbench.catalog.source import code_hash, file_hash
from workbench.data.tuned_cache import Entry, Tuned, TunedError, damage_text, default_path, distance
from workbench.data.units import rough
from workbench.device.calibration import (
    CalibrationError,
    MeasuredCase,
    is_calibrated_here,
    measured_cases,
)
from workbench.device.correction import CLEAR, best_estimate, is_shipped
from workbench.device.cost_model import guess_seconds
from workbench.device.hardware import Device
from workbench.device.launch_times import ExpectedLaunch, LaunchProblem, expected_launches
from workbench.device.launch_trees import launch_features
from workbench.spec import ITEMSIZE, Impl, Limits, Sizes, Spec, sizes_text, values

LOGGER = logging.getLogger("workbench")
NEAR = 0.5  # octaves over all axes
LIKE_THESE = "the times measured at sizes like these"


@dataclass(frozen=True)
class LaunchChoice:
    """An Impl with the config of a launch at certain sizes, and where they come from."""

    impl: Impl
    config: Any
    text: str
    entry: Entry | None = None  # of the tuned cache, whose config it is
    expected_s: float | None = None  # by the calibration of the device
    ratio: float | None = None  # expected time over that of the fastest config of all Impls
    unread: bool = False  # the tuned cache or the calibration could not be read

    @property
    def time_s(self) -> float | None:
        """Seconds that were measured with the config, or that a calibration expects; None if
        neither is known."""
        return self.entry.time_s if self.entry else self.expected_s


def choices_of(
    spec: Spec,
    device: Device,
    dtype: str,
    sizes: Sizes,
    *,
    path: Path | None = None,
    versions: Mapping[str, str] | None = None,
    refused: list[str] | None = None,
) -> list[LaunchChoice]:
    """Return the Triton Impls of a Spec that take these sizes, each with the config of a launch,
    the one that runs first. `refused` gets why each of the others does not.

    `path` is the tuned cache, by default the user's own, and `versions` are those of torch and
    Triton, by default of this process.
    """
    choices = []
    for impl in spec.impls:
        if impl.backend != "triton":
            continue
        choice = choice_of(impl, device, dtype, sizes, path=path, versions=versions)
        reason = impl.rejection_reason(choice.config, device.limits, dtype, sizes)
        if reason is None:
            choices.append(choice)
        elif refused is not None:
            refused.append(f"{impl.name}: {reason}")
    return order(spec, choices, device, dtype, sizes)


def order(
    spec: Spec, choices: Sequence[LaunchChoice], device: Device, dtype: str, sizes: Sizes
) -> list[LaunchChoice]:
    """Return the choices of a Spec's Impls, the one that runs first."""
    ranks, source = _ranking(spec, choices, device, dtype, sizes)
    by_rank = [c for _, c in sorted(zip(ranks, choices, strict=True), key=lambda one: one[0])]
    won = [(c.entry, c) for c in choices if c.entry is not None and c.entry.fastest]
    if won:  # of the nearest sizes, in the newest sweep of them
        newest = sorted(won, key=lambda one: one[0].at, reverse=True)
        _, first = min(newest, key=lambda one: distance(one[0].sizes, sizes))
        by_rank = [first, *(c for c in by_rank if c is not first)]
        source = f"the sweep that {first.impl.name} won"
    more = f"; Impls are ordered by {source}" if len(choices) > 1 else ""
    return [replace(choice, text=f"{choice.text}{more}") for choice in by_rank]


def choice_of(
    impl: Impl,
    device: Device,
    dtype: str,
    sizes: Sizes,
    *,
    path: Path | None = None,
    versions: Mapping[str, str] | None = None,
) -> LaunchChoice:
    """Return the config of a launch of one Impl: tuned, calibrated or default, in this order."""
    default, name = default_of(impl, device.limits, dtype, sizes)
    nothing = LaunchChoice(impl, default, name)
    try:
        cache = _tuned_cache(path or default_path())
    except TunedError as error:
        return replace(nothing, text=f"{name}; {error}", unread=True)
    software = _versions() if versions is None else versions
    if (entry := tuned_entry(cache, impl, device, dtype, sizes, software)) is None:
        measured = _measured_launch(nothing, device, dtype, sizes)
        return measured or _calibrate(nothing, device, dtype, sizes)
    config, failure = fitting(impl, entry, device.limits, sizes)
    since = f"tuned {entry.at[:10]} on {device.name} for {sizes_text(entry.sizes)}"
    if config is None:
        return replace(nothing, text=f"{name}; the one {since} is refused: {failure}")
    if dict(entry.sizes) != dict(sizes):
        since += f", the nearest to {sizes_text(sizes)}"
    return LaunchChoice(impl, config, since, entry)


def tuned_entry(
    cache: Tuned, impl: Impl, device: Device, dtype: str, sizes: Sizes, versions: Mapping[str, str]
) -> Entry | None:
    """Return the entry of the tuned cache whose config a launch of an Impl takes."""
    at = (impl.spec.name, impl.name, sizes, dtype, device.name)
    return cache.find(*at, versions, sources_of(impl))


def sources_of(impl: Impl) -> tuple[str, str]:
    """Return the hashes of an Impl in keys of the tuned cache: of its code, and of its file as in
    schema 1."""
    return code_hash(impl), file_hash(impl)


def _measured_launch(
    default: LaunchChoice, device: Device, dtype: str, sizes: Sizes
) -> LaunchChoice | None:
    """Return the config of an Impl that is the fastest by the times measured at sizes like these;
    None where there are none, or the user has a calibration of the kernel on this device."""
    impl = default.impl
    launches = [
        one
        for one in _expected_launches(impl.spec, device, dtype, sizes)
        if one.impl == impl.name and one.config.keys() == impl.choices().keys()
    ]
    for expected in launches:
        config = impl.config(**expected.config)
        if impl.rejection_reason(config, device.limits, dtype, sizes) is None:
            if expected.has_defaults and _is_untimed_variant(default, config, launches):
                config = default.config
            name = default.text if config == default.config else "chosen for these sizes"
            text = (
                f"{name} by {LIKE_THESE}; nothing tuned for {sizes_text(sizes)} in {dtype} on "
                f"{device.name}"
            )
            return replace(default, config=config, text=text, ratio=expected.ratio)
    return None


def _is_untimed_variant(
    default: LaunchChoice, config: Any, launches: Sequence[ExpectedLaunch]
) -> bool:
    """Return whether the default was timed at no size, and only differs from a config in knobs that
    its Impl sets by the sizes: their rules were made where no table has times."""
    usual = values(default.config)
    if any(dict(one.config) == usual for one in launches):
        return False
    other = values(config)
    return all(knob in default.impl.auto for knob in usual if usual[knob] != other[knob])


def _expected_launches(
    spec: Spec, device: Device, dtype: str, sizes: Sizes
) -> Sequence[ExpectedLaunch]:
    """Return the configs of all Impls by the times measured at sizes like these, the fastest first;
    none where the user has a calibration, which comes first even where it cannot be read."""
    try:
        if not is_shipped(spec) or is_calibrated_here(device.name, spec.name, dtype):
            return ()
    except CalibrationError:  # `_calibrate` says it
        return ()
    impls = {impl.name: impl for impl in spec.impls if impl.backend == "triton"}

    def describe(name: str, knobs: Mapping[str, int]) -> dict[str, float] | None:
        impl = impls.get(name)
        if impl is None or impl.choices().keys() != knobs.keys():
            return None
        return launch_features(impl, impl.config(**knobs), device, dtype, sizes)

    at = device.name, device.limits.arch, spec.name, dtype, tuple(sizes.items())
    return expected_launches(LaunchProblem(*at, describe))


def _calibrate(default: LaunchChoice, device: Device, dtype: str, sizes: Sizes) -> LaunchChoice:
    """Return the config that the calibration of the device expects to be the fastest at these
    sizes; the default where it has nothing of the Impl at sizes like these."""
    nothing = f"nothing tuned for {sizes_text(sizes)} in {dtype} on {device.name}"
    try:
        estimate = best_estimate(default.impl, device, dtype, sizes)
    except CalibrationError as error:
        return replace(default, text=f"{default.text}; {error}", unread=True)
    if estimate is None:
        return replace(default, text=f"{default.text}; {nothing}")
    name = default.text if estimate.config == default.config else "chosen for these sizes"
    source = f"the calibration of {estimate.device}"
    text = f"{name} by {source}, which expects {rough(estimate.seconds)}; {nothing}"
    return replace(default, config=estimate.config, text=text, expected_s=estimate.seconds)


def default_of(impl: Impl, limits: Limits, dtype: str, sizes: Sizes) -> tuple[Any, str]:
    """Return the config that runs if nothing is tuned, and its name: the default, or if that is
    refused the config that differs from it by the fewest steps and is not. If each is refused, or
    `refuse` fails, it is still the default: the launch then raises the error."""
    default = impl.default(limits, dtype, sizes)
    # sorted, for what was AUTO may lie between two choices
    choices, usual = {n: sorted(some) for n, some in impl.choices().items()}, values(default)

    def failure_of(config: Any) -> str | None:
        return impl.rejection_reason(config, limits, dtype, sizes)

    def steps(config: Any) -> int:
        return sum(
            abs(bisect_left(among, getattr(config, knob)) - bisect_left(among, usual[knob]))
            for knob, among in choices.items()
        )

    if (refused := failure_of(default)) is not None:
        for config in sorted(impl.space(default), key=steps):
            if failure_of(config) is None:
                return config, f"the nearest to the default, which is refused ({refused})"
    return default, "the default"


def fitting(impl: Impl, entry: Entry, limits: Limits, sizes: Sizes) -> tuple[Any, str]:
    """Return the entry's config if it can run at these sizes; else None and the reason."""
    choices = impl.choices()
    if entry.config.keys() != choices.keys():
        return None, f"its fields are not those of {impl.config.__name__}"
    config = impl.resolved_config(impl.config(**entry.config), limits, entry.dtype, sizes)
    failure_of = impl.rejection_reason(config, limits, entry.dtype, sizes)
    return (None, failure_of) if failure_of else (config, "")


@cache
def _versions() -> Mapping[str, str]:
    """Return the versions as sweeps record them. Takes about 0.1 s, once a process."""
    from workbench.data.environment import fingerprint

    return fingerprint(None, None).versions


def _tuned_cache(path: Path) -> Tuned:
    """Return the tuned cache, read again only if the file has changed. Raises TunedError."""
    try:
        described = path.stat()
    except OSError:
        return Tuned.load(path)
    return _read(path, (described.st_mtime_ns, described.st_size, described.st_ino))


@lru_cache(maxsize=1)
def _read(path: Path, stamp: tuple[int, int, int]) -> Tuned:
    result = Tuned.load(path)
    if result.damage_notes:
        LOGGER.warning("%s", damage_text(path, result.damage_notes))
    return result


# The order of Impls that no sweep compared


def _ranking(
    spec: Spec, choices: Sequence[LaunchChoice], device: Device, dtype: str, sizes: Sizes
) -> tuple[list[float], str]:
    """Return a number for each choice, the least of the best, and what it is from."""
    if all(c.entry for c in choices):
        return [c.time_s or math.inf for c in choices], "their tuned times"
    launches = _expected_launches(spec, device, dtype, sizes)
    if launches:
        by_impl = {one.impl: one.ratio for one in reversed(launches)}
        return [c.ratio or by_impl.get(c.impl.name, math.inf) for c in choices], LIKE_THESE
    case = _nearest(spec, device, dtype, sizes)
    if all(c.time_s for c in choices) and not (case and _is_near(case, dtype, sizes)):
        return [c.time_s or math.inf for c in choices], "expected times"
    if case:
        return _measured_order(case, choices), "the times measured at the nearest sizes"
    guesses = [guess_seconds(c.impl, c.config, device, dtype, sizes) for c in choices]
    if all(map(math.isfinite, guesses)):
        return guesses, f"the analytic model, without a time on {device.name}"
    return [0.0] * len(choices), "the kernel's file"


def _nearest(spec: Spec, device: Device, dtype: str, sizes: Sizes) -> MeasuredCase | None:
    """Return the measured case nearest to these sizes in ratio, of this dtype if there are any,
    else of one as wide: what is fast in 16 bits may be the slowest in fp32. None where there are
    neither, and on a device of another architecture."""
    cases = [
        case
        for case in measured_cases(device.limits.arch, spec.name)
        if case.sizes.keys() == sizes.keys() and ITEMSIZE[case.dtype] == ITEMSIZE[dtype]
    ]
    return min(cases, key=lambda one: (one.dtype != dtype, one.octaves(sizes)), default=None)


def _is_near(case: MeasuredCase, dtype: str, sizes: Sizes) -> bool:
    """Return whether what was measured counts more than what a calibration expects."""
    return dtype == case.dtype and case.octaves(sizes) <= NEAR


def _measured_order(case: MeasuredCase, choices: Sequence[LaunchChoice]) -> list[float]:
    """Return a number for each choice: its rank in the case. One that was not timed there comes
    first where it is expected to be clearly faster than the first that was, else last."""
    timed = {choice.impl.name: choice for choice in choices if choice.impl.name in case.impls}
    first = next((timed[name] for name in case.impls if name in timed), None)

    def rank(choice: LaunchChoice) -> float:
        if choice.impl.name in timed:
            return float(case.impls.index(choice.impl.name))
        least_s = (first.expected_s if first else None) or 0.0
        clear = choice.expected_s is not None and choice.expected_s < least_s / (1 + CLEAR)
        return -1 / choice.expected_s if clear and choice.expected_s else math.inf

    return [rank(choice) for choice in choices]
