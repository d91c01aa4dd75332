"""Turn the results of a tuning into entries of a tuned table."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from workbench.device.hardware import Device
from workbench.workload.families import measured_families
from workbench.workload.plan import WorkItem, groups_of
from workbench.workload.tuned_table import PinnedEntry, argument_texts
from workbench.workload.tuning import Tuned, TunedSignature, keep_config


def add_middles(items: Sequence[WorkItem], results: Mapping[str, TunedSignature]) -> list[Tuned]:
    """Return the items with their results and the sizes between members of families, each with its
    family in a table. A family that is not complete is none yet."""
    whole: list[WorkItem] = []
    others: list[WorkItem] = []
    for group in groups_of(items):
        known = [item for item in group if item.digest in results]
        if len(known) == len(group) and group[0].family is not None:
            whole += measured_families(group, results)
        else:
            others += [replace(item, family=None) for item in known]
    return [(item, results[item.digest]) for item in (*others, *whole)]


def entries_of(
    tuned: Sequence[Tuned], used: Sequence[WorkItem], device: Device, predicts: bool
) -> list[PinnedEntry]:
    """Return the entries of the table: what is faster; keys whose config in use stays, so that
    nothing is timed at a program's start; and of keys that were not tuned the config that Triton
    chose in the recording, of `used`. Predicted are what is faster, and the families of that."""
    status = "predicted" if predicts else "faster"
    families = {i.family for i, r in tuned if r.status == status and i.family is not None}
    chosen = [
        (item, result)
        for item, result in tuned
        if item.signature.key is not None
        and None not in (result.before_s, result.after_s)
        and (
            result.status == status
            or (result.status == "kept" and (not predicts or item.family in families))
        )
    ]
    if not predicts:
        known = [_place(item) for item, _ in chosen]
        chosen += [(item, keep_config(item)) for item in used if _place(item) not in known]
    return [_entry(item, result, device) for item, result in chosen]


def _place(item: WorkItem) -> tuple[Any, ...]:
    function = item.signature.function
    return function.module, function.name, item.signature.key


def _entry(item: WorkItem, result: TunedSignature, device: Device) -> PinnedEntry:
    import torch
    import triton

    assert result.before_s is not None and result.after_s is not None
    function = item.signature.function
    return PinnedEntry(
        device.limits.arch,
        device.title,
        str(triton.__version__),
        str(torch.__version__),
        function.module,
        function.name,
        result.text_hash,
        item.signature.key or (),
        dict(result.config),
        result.before_s,
        result.after_s,
        item.family,
        result.protocol,
        result.at,
        arguments=argument_texts(item.signature.arguments),
    )
