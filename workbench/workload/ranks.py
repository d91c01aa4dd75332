"""Compare the pinned choices of all ranks of torch.distributed.

Ranks that launch one function with one key must have one config, or their sums have other orders.
What only some of the ranks launch, as the stages of a pipeline do, is not a difference.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workbench.workload.errors import WorkloadError
from workbench.workload.step_hooks import add_step_hook

if TYPE_CHECKING:
    from workbench.workload.pinned import PinnedTable

DISTRIBUTED = "torch.distributed.distributed_c10d"


class PinError(WorkloadError):
    """A key is not in the tuned table, and the policy is `error`."""


def verify_ranks(table: PinnedTable) -> int:
    """Compare the choices of all ranks: a collective operation, which each rank must call. First
    digests alone are sent. Returns the number of ranks; 1 where torch.distributed is not in use.

    Raises PinError, on each rank, where two ranks chose differently for one key.
    """
    distributed = _process_group()
    if distributed is None:
        return 1
    ranks: int = distributed.get_world_size()
    digests: list[Any] = [None] * ranks
    distributed.all_gather_object(digests, table.digest())
    if len(set(digests)) > 1:
        choices: list[Any] = [None] * ranks
        distributed.all_gather_object(choices, table.choices)
        if text := difference(choices):
            raise PinError(text)
    return ranks


def difference(choices: Sequence[Mapping[str, str]], kind: str = "Ranks") -> str:
    """Return the first difference between the choices of ranks as a sentence, with the digests of
    both; empty where all that several ranks chose is equal. `kind` is what they are called."""
    first: dict[str, tuple[int, str]] = {}
    for rank, of in enumerate(choices):
        for name, config in sorted(of.items()):
            other, known = first.setdefault(name, (rank, config))
            if known != config:
                return (
                    f"{kind} {other} and {rank} launch different configs of {name}: {known} and "
                    f"{config} (digests {digest_of(choices[other])} and {digest_of(of)}); give "
                    "each the same table and policy, and not the policy `tune`."
                )
    return ""


def digest_of(choices: Mapping[str, str]) -> str:
    """Return 16 hex digits of choices."""
    text = json.dumps(sorted(choices.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def verify_often(table: PinnedTable) -> None:
    """Verify the ranks of this process' program by itself: at `workbench.step()` 1, 2, 4, 8 and so
    on, and before the process group is destroyed."""
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        if steps & (steps - 1) == 0 and table.is_active:
            verify_ranks(table)

    add_step_hook(step)
    if DISTRIBUTED in sys.modules:
        _verify_before_destroy(table)
    else:
        from workbench.traces.profilers.running.after_import import AfterImport

        sys.meta_path.insert(0, AfterImport(DISTRIBUTED, lambda: _verify_before_destroy(table)))


def _verify_before_destroy(table: PinnedTable) -> None:
    """Verify before `destroy_process_group`, unless an exception ends the program: then other ranks
    may not come."""
    module: Any = sys.modules[DISTRIBUTED]
    destroy = module.destroy_process_group

    def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
        whole = not args and kwargs.get("group") is None
        try:
            if whole and table.is_active and sys.exc_info()[0] is None:
                verify_ranks(table)
        finally:  # gloo aborts a process that exits with a group: SIGABRT in place of exit code 1
            result = destroy(*args, **kwargs)
        return result

    holders: list[Any] = [module, sys.modules.get("torch.distributed")]
    for holder in holders:
        if getattr(holder, "destroy_process_group", None) is destroy:
            holder.destroy_process_group = destroy_process_group


def _process_group() -> Any | None:
    """Return torch.distributed where its process group is there."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed
