"""Decide what to tune of a workload: which signatures, in which order, and for how long."""

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import prod

from workbench.spec import ITEMSIZE
from workbench.workload.errors import WorkloadError
from workbench.workload.file import RecordedWorkload, canonical
from workbench.workload.signature import LaunchSignature, PlainArgument, TensorArgument, tensors_of
from workbench.workload.table import mean_seconds, seconds_by_signature

LEAST_LAUNCH_S = 2e-6  # of a kernel that moves nothing; an H200 takes about 2 us for an empty one
LEAST_TO_WIN = 0.02  # share of a signature's time that counts as open even at the bandwidth


@dataclass(frozen=True)
class WorkItem:
    """A signature that is tuned, and what it may give back."""

    signature: LaunchSignature
    launches: int
    share: float  # of the time of all recorded Triton kernels
    launch_s: float | None  # mean GPU time of a launch in the profiled steps; None without any
    least_s: float  # time to move its tensors once at the device's bandwidth
    family: str | None = None  # signatures that differ in one extent have one name

    @property
    def winnable_share(self) -> float:
        """Share of all time that lies between this signature and the bandwidth; all of its
        time where none was measured."""
        if self.launch_s is None:
            return self.share
        return self.share * max(LEAST_TO_WIN, 1 - self.least_s / self.launch_s)

    @property
    def digest(self) -> str:
        """Digest of the signature."""
        return signature_digest(self.signature)

    @property
    def title(self) -> str:
        """Name of the kernel; of a size that no launch had, with its key."""
        name = self.signature.function.name
        key = ", ".join(self.signature.key or ())
        return name if self.launches else f"{name}, between: {key}"


def work_list(workload: RecordedWorkload, cover: float, bandwidth: float) -> list[WorkItem]:
    """Return the signatures that have `cover` of the time of the recorded kernels, the longest
    first.

    Args:
        workload: a recording. Without GPU times, a signature counts as its launches by the least
            time of one.
        cover: share of the time, above 0 and at most 1.
        bandwidth: of the device's memory, bytes/s.

    Raises WorkloadError where there is nothing to tune.
    """
    spent = seconds_by_signature(workload)
    timed = any(spent)
    least = [least_s(each.signature, bandwidth) for each in workload.signatures]
    if not timed:
        spent = [s * each.launches for s, each in zip(least, workload.signatures, strict=True)]
    total = math.fsum(spent)
    if total <= 0:
        raise WorkloadError("The workload has no launches that could be tuned; record a program.")
    counted = zip(workload.signatures, spent, mean_seconds(workload), least, strict=True)
    items = [WorkItem(c.signature, c.launches, s / total, m, floor) for c, s, m, floor in counted]
    ordered = sorted(items, key=lambda item: (-item.share, _place(item.signature)))
    kept: list[WorkItem] = []
    for item in ordered:
        if math.fsum(each.share for each in kept) >= cover:
            break
        kept.append(item)
    return _name_families(kept)


def configs_in_use(workload: RecordedWorkload, device: str, bandwidth: float) -> list[WorkItem]:
    """Return the signatures whose config an autotuner chose by measuring on this GPU, `device` by
    its title, and whose time is known. `bandwidth` is that of its memory in bytes/s."""
    devices = {p.device for p in workload.processes if p.mode == "gpu" and p.device}
    if devices != {device}:
        return []
    return [
        item
        for item in work_list(workload, 1.0, bandwidth)
        if item.launch_s is not None
        and item.signature.origin == "autotune"
        and item.signature.tuned
        and item.signature.key is not None
    ]


def least_s(signature: LaunchSignature, bandwidth: float) -> float:
    """Return the time to move each tensor of a launch once, in seconds; at least that of an empty
    launch."""
    storages: dict[int, int] = {}
    for argument in signature.arguments.values():
        for tensor in tensors_of(argument):
            bytes_ = prod(tensor.shape) * _itemsize(tensor)
            storages[tensor.storage] = max(bytes_, storages.get(tensor.storage, 0))
    return max(LEAST_LAUNCH_S, sum(storages.values()) / bandwidth)


def _itemsize(tensor: TensorArgument) -> int:
    digits = "".join(c if c.isdigit() else " " for c in tensor.dtype).split()
    bits = int(digits[0]) if digits else 8
    return ITEMSIZE.get(tensor.dtype, max(1, min(bits, 128) // 8))


def _place(signature: LaunchSignature) -> str:
    return f"{signature.function.name} {signature_text(signature)}"


def signature_digest(signature: LaunchSignature) -> str:
    """Return 16 hex digits of a signature."""
    return hashlib.sha256(canonical(signature).encode()).hexdigest()[:16]


def signature_text(signature: LaunchSignature) -> str:
    """Return the tensors of a signature in one line: `x 1024x64 bf16`."""
    parts = []
    for name, argument in signature.arguments.items():
        for tensor in tensors_of(argument)[:1]:
            parts.append(f"{name} {'x'.join(map(str, tensor.shape)) or 'scalar'} {tensor.dtype}")
    return ", ".join(parts)


# Families


def _name_families(items: Sequence[WorkItem]) -> list[WorkItem]:
    """Return the items with the names of their families: autotuned signatures of one function that
    differ in one extent alone. A family has two members at least."""
    groups: dict[str, list[int]] = defaultdict(list)
    for number, item in enumerate(items):
        if item.signature.origin == "autotune":
            groups[_shapeless(item.signature)].append(number)
    names: dict[int, str] = {}
    for members in groups.values():
        family = _one_extent(items, members)
        if len(family) > 1:
            first = numbers_of(items[family[0]].signature)
            function = items[family[0]].signature.function.name
            extents = "x".join(map(str, first[:3]))
            names |= dict.fromkeys(family, f"{function}-{len(family)}-{extents}")
    return [replace(item, family=names.get(number)) for number, item in enumerate(items)]


def groups_of(items: Sequence[WorkItem]) -> list[list[WorkItem]]:
    """Return the items of each family as one group, and each other one by itself, in order."""
    groups: dict[str, list[WorkItem]] = {}
    for number, item in enumerate(items):
        groups.setdefault(item.family or f" {number}", []).append(item)
    return list(groups.values())


def _one_extent(items: Sequence[WorkItem], members: Sequence[int]) -> list[int]:
    """Return the members that differ from the first in numbers of one ratio alone, as the extents
    do that follow from one size."""
    first = numbers_of(items[members[0]].signature)
    result = []
    for number in members:
        own = numbers_of(items[number].signature)
        ratios = {round(a / b, 6) for a, b in zip(own, first, strict=True) if a != b and b}
        if len(ratios) <= 1:
            result.append(number)
    return result


def numbers_of(signature: LaunchSignature) -> list[int]:
    """Return the extents and whole numbers of a signature in order, strides left out: they
    follow."""
    result = []
    for name, argument in signature.arguments.items():
        if name in signature.config:
            continue
        if isinstance(argument, PlainArgument) and argument.kind == "int":
            result.append(int(argument.value or 0))
        result += [extent for tensor in tensors_of(argument) for extent in tensor.shape]
    return result


def _shapeless(signature: LaunchSignature) -> str:
    """Return a text that is equal for signatures that differ only in numbers."""
    parts: list[object] = [asdict(signature.function)]
    for name, argument in signature.arguments.items():
        if name in signature.config:
            continue
        tensors = [(t.dtype, len(t.shape), t.storage) for t in tensors_of(argument)]
        plain = isinstance(argument, PlainArgument)
        other = argument.value if plain and argument.kind != "int" else None  # type: ignore[union-attr]
        parts.append((name, tensors, other))
    return json.dumps(parts, default=str)


# Budget


def time_for(item: WorkItem, left: Sequence[WorkItem], seconds: float) -> float:
    """Return the seconds that the next item gets of those that are left: its part of what can
    still be won. `left` are the items that are not done, this one among them."""
    whole = math.fsum(each.winnable_share for each in left)
    return seconds * item.winnable_share / whole if whole > 0 else seconds / max(1, len(left))
