"""Error bands of the analytic model: how far measured times of a device lay from its predictions.

A band belongs to a device and a class of kernels, and stands in the device's file;
`benchmarks/bands.py` computes it from the tables in `benchmarks/data`. A kernel that was never
compared has the band of its kind, which is of all kernels that were: with a matrix instruction,
without one, or as short as a launch; or timed from its code, where it declares no work. A device
without bands was never compared with the model.
"""

from collections.abc import Iterable, Mapping, Sequence

from workbench.data.record import Case, Measured, Predicted, Record, Resources
from workbench.data.units import rough
from workbench.device.bounds import bound_s
from workbench.device.cost_model import CODE_MODELS
from workbench.device.hardware import DEVICES, UNCOMPILED, Band, BandKind, Device

LAUNCH_SIZED_S = 4e-6  # predicted times up to this are mostly the launch itself
BOUND = "roofline bound"  # in place of a model's name: the least time that the device allows
NEVER = "never validated on this device"
# Kinds of the bands of times that are predicted from code, by the model.
CODE_KINDS: Mapping[str, tuple[BandKind, ...]] = {
    CODE_MODELS[0]: ("code product", "code"),
    CODE_MODELS[1]: ("issued code",),
}
EXPECTED = "expected if measured"  # head of the column of `expected_words`


def kind_of(record: Record) -> BandKind:
    """Return the kind of kernel that a record is of."""
    model = "" if isinstance(record.timing, Measured) else record.timing.model
    return _kind(record.time_s, record.resources, model)


def _kind(predicted_s: float, resources: Resources | None, model: str) -> BandKind:
    if model == CODE_MODELS[1]:
        return "issued code"
    if model == CODE_MODELS[0]:
        return "code product" if resources and resources.matrix_unit else "code"
    if predicted_s <= LAUNCH_SIZED_S:
        return "launch"
    return "product" if resources and resources.matrix_unit else "stream"


def is_bound(record: Record) -> bool:
    """Return whether a record's time is the roofline bound, which no call can undercut: it predicts
    no measured time, and has no band."""
    return isinstance(record.timing, Predicted) and record.timing.model == BOUND


def band_of(record: Record) -> Band | None:
    """Return the band of a predicted record: of its kernel, else of its kind of kernel; None where
    its device was never compared."""
    return _band(record.case, kind_of(record))


def _band(case: Case, kind: BandKind) -> Band | None:
    device = _find_device(case.device)
    bands = device.bands if device else ()
    own = (band for band in bands if band.kind is None and case.kernel in band.kernels)
    # a user's kernel may be named like ours
    own_band = None if "code" in kind else next(own, None)
    return own_band or next((band for band in bands if band.kind == kind), None)


def estimate_band(device: Device) -> Band | None:
    """Return the band of times that are predicted uncompiled; None for a device never compared."""
    return next((band for band in device.bands if band.kind == "estimate"), None)


def code_band(device: Device, resources: Resources, model: str) -> Band | None:
    """Return the band of times that are predicted from compiled code, without declared work; None
    where the device was never compared."""
    kind = _kind(0.0, resources, model)
    return next((band for band in device.bands if band.kind == kind), None)


def ends_of(
    band: Band | None, predicted_s: float, least_s: float = 0.0
) -> tuple[float, float] | None:
    """Return the seconds between which a measured time is expected, neither of them less than
    `least_s`, which no call can undercut; None without a band."""
    if band is None:
        return None
    return max(band.low * predicted_s, least_s), max(band.high * predicted_s, least_s)


def band_words(record: Record) -> str:
    """Return the error of a record's predicted time in a clause: `measured times of attention are
    0.81 to 1.6 times the predicted`, or `never validated on this device`."""
    if (band := band_of(record)) is None:
        return NEVER
    return f"measured times of {band.title} are {_range(band)} times the predicted"


def expected_s(record: Record) -> tuple[float, float] | None:
    """Return the seconds between which a measured time of a predicted record is expected: the
    prediction times the ends of its band, but no less than the roofline bound. None for a measured
    record, for a prediction that is an interval of its own, and where the device was never
    compared."""
    timing = record.timing
    if isinstance(timing, Measured) or timing.interval_s is not None or is_bound(record):
        return None
    device, least_s = _find_device(record.case.device), 0.0
    if device:
        least_s = bound_s(device, record.bytes, record.flops, record.case.dtype)
    if "code" in kind_of(record) and least_s > record.time_s:
        least_s = 0.0  # a function may read less than its tensors hold
    return ends_of(band_of(record), record.time_s, least_s)


def error_words(case: Case, timing: Predicted, resources: Resources | None) -> str:
    """Return the error of a predicted time, as `factor_words` does of records."""
    band = _band(case, _kind(timing.predicted_s, resources, timing.model))
    return f"measured times are {_range(band)} times the predicted" if band else NEVER


def expected_words(record: Record) -> str:
    """Return the cell under `EXPECTED`: `140 µs to 290 µs`, or `never validated on this device`;
    empty for a measured record."""
    if record.is_measured or is_bound(record):
        return ""
    ends = expected_s(record)
    return NEVER if ends is None else " to ".join(map(rough, ends))


def factor_words(records: Iterable[Record]) -> str:
    """Return the error of predicted numbers that stand together, for a head, a key or an axis; true
    beside times and rates: `measured times are 0.66 to 1.4 times the predicted`, or
    `never validated on this device`; the classes of kernels where their bands differ. Empty where
    nothing is predicted."""
    bands = dict.fromkeys(band_of(r) for r in records if not r.is_measured and not is_bound(r))
    known_bands = [band for band in bands if band is not None]
    if not known_bands:
        return NEVER if bands else ""
    if len(bands) == 1:
        return f"measured times are {_range(known_bands[0])} times the predicted"
    each = [f"{_range(band)} for {band.title}" for band in known_bands]
    others = [f"others {NEVER}"] if None in bands else []
    return f"measured over predicted: {', '.join(each + others)}"


def devices_words(times: Iterable[tuple[str, str]]) -> list[str]:
    """Return the error of predicted times, each given by its device and kernel, as a sentence for
    each device: `h200: Measured over ...`."""
    kernels: dict[str, list[str]] = {}
    for device, kernel in times:
        kernels.setdefault(device, []).append(kernel)
    return [f"{device}: {device_words(device, ', '.join(own))}" for device, own in kernels.items()]


def device_words(name: str, kernels: str = "", model: str = "") -> str:
    """Return the error of predictions for a device in one sentence: of these kernels, which are
    separated by commas as in `Run.kernel`, or of all; by the models that `model` names, or by
    any."""
    device = _find_device(name)
    if device is None or not device.bands:
        return f"The model was {NEVER}."
    compiled = [band for band in device.bands if band.kind != "estimate"]
    kinds = [kind for name, own in CODE_KINDS.items() if name in model for kind in own]
    if kinds:
        compiled = [band for band in compiled if band.kind in kinds]
    elif model:
        compiled = [band for band in compiled if "code" not in (band.kind or "")]
    chosen = _kernel_bands(compiled, set(kernels.split(", "))) if kernels else compiled
    bands = [f"{_range(b)} for {b.title} ({b.times:,} times)" for b in chosen]
    if not bands:
        return f"The model was {NEVER}."
    return (
        "Measured over predicted time, 5th to 95th percentile (all, if fewer than 20): "
        f"{'; '.join(bands)}."
    )


def _kernel_bands(bands: Sequence[Band], kernels: set[str]) -> list[Band]:
    """Return the bands of these kernels, and those of kinds if any of them has none of its own."""
    own = [b for b in bands if b.kind is None and kernels & {*b.kernels}]
    if kernels <= {kernel for band in own for kernel in band.kernels}:
        return own
    return own + [b for b in bands if b.kind]


def _range(band: Band) -> str:
    return f"{band.low:.2g} to {band.high:.2g}"


def _find_device(name: str) -> Device | None:
    return DEVICES.get(name) or UNCOMPILED.get(name)
