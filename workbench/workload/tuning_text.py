"""What is told of a tuning: the work list, a row for each result, and the saving."""

from collections.abc import Sequence
from typing import Any

from workbench.data.units import amount, duration, percent
from workbench.spec import label
from workbench.workload.plan import WorkItem, signature_text
from workbench.workload.table import config_text
from workbench.workload.tuned_table import PREDICTED
from workbench.workload.tuning import Tuned, TunedSignature, saving

LEAST_TIME = "launches x least time to move the tensors"  # stands for GPU time that is not recorded
PLAN_HEADINGS = ("kernel", "signature", "launches", "share", "to win", "config now", "family")
RIGHT = ("launches", "share", "to win", "before", "after")  # headings of numbers
DONE_HEADINGS = ("kernel", "signature", "share", "result", "config", "before", "after")
LAST = ("num_warps", "num_stages")  # of a config, in the order of other tables


def is_timed(items: Sequence[WorkItem]) -> bool:
    """Return whether the recording has GPU times, by which items have their shares."""
    return any(item.launch_s is not None for item in items)


def weight_of(items: Sequence[WorkItem]) -> str:
    """Return what the shares of items are parts of."""
    time = "the recorded kernels' time"
    return time if is_timed(items) else f"{time}, taken as {LEAST_TIME}"


def plan_line(items: Sequence[WorkItem], device: str) -> str:
    """Return the line above the work list."""
    source = "GPU time" if is_timed(items) else f"{LEAST_TIME}, not measured"
    return f"{amount(len(items), 'signature')} for {device}, by {source}:"


def plan_cells(item: WorkItem) -> tuple[str, ...]:
    """Return the cells of an item of the work list."""
    return (
        item.signature.function.name,
        signature_text(item.signature),
        f"{item.launches:,}",
        percent(item.share),
        percent(item.winnable_share),
        config_text(item.signature) or "-",
        item.family or "-",
    )


def plain_item(item: WorkItem) -> dict[str, Any]:
    """Return an item of the work list as plain data."""
    names = ("launches", "share", "launch_s", "least_s", "family")
    return {
        "kernel": item.signature.function.name,
        "signature": signature_text(item.signature),
        **{name: getattr(item, name) for name in names},
        "to_win": item.winnable_share,
    }


def done_cells(item: WorkItem, result: TunedSignature) -> tuple[str, ...]:
    """Return the cells of a result. A predicted time has a tilde."""
    mark = "~" if PREDICTED in result.protocol or result.status == "predicted" else ""
    times = (result.before_s, result.after_s)
    numbers: dict[str, Any] = dict(result.config)
    shown = {n: numbers.pop(n) for n in LAST if n in numbers}
    shown = {n: v for n, v in (numbers | shown).items() if v is not None and n != "num_ctas"}
    status = result.status if result.checked else f"{result.status}, not checked here"
    return (
        item.title,
        signature_text(item.signature),
        percent(item.share) if item.launches else "-",
        status,
        (label(shown) if shown else "") or "-",
        *(f"{mark}{duration(t.median)}" if t is not None else "-" for t in times),
    )


def result_sentence(
    items: Sequence[WorkItem],
    done: Sequence[Tuned],
    device: str,
    predicts: bool,
    written: int | None,
) -> str:
    """Return how many signatures have a faster config, what that saves, what is left, and how many
    entries are `written`; None: there is no table."""
    share = saving([(item.share, result) for item, result in done])
    word, tilde = ("Predicted", "~") if predicts else ("Measured", "")
    better = sum(result.speedup > 1 for _, result in done)
    failed = sum(result.status == "failed" for _, result in done)
    have = "has" if better == 1 else "have"
    text = (
        f"{word} for {device}: {better} of {len(items)} signatures {have} a faster config, "
        f"which saves {tilde}{percent(share)} of {weight_of(items)}"
    )
    if (step := sum((i.launch_s or 0.0) * i.launches for i in items)) > 0:
        text += f", {tilde}{duration(share * step)} of {duration(step)}"
    if failed:
        text += f"; {failed} could not be tuned"
    if left := len(items) - len(done):
        text += f"; {left} {'is' if left == 1 else 'are'} left"
    if written is None:
        return f"{text}. Nothing was measured, so no table is written."
    return f"{text}. {written} {'entry is' if written == 1 else 'entries are'} in the table."
