"""The page of a tuned workload: the saving, and one row per signature."""

from collections.abc import Sequence

from workbench.reports import render


def page(
    device: str,
    error: str,
    sentence: str,
    order: str,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    notes: Sequence[tuple[str, str]],
) -> str:
    """Return the page as HTML.

    Args:
        device: what was tuned for.
        error: of predicted times, in a sentence; empty where a GPU took part.
        sentence: the result.
        order: of the rows, in a sentence.
        headings: of the columns.
        rows: cells of each signature, in the order of its share of the time.
        notes: kernel and result of each signature, in a sentence.
    """
    run = {"kernel": "workload", "engine": "tune", "device": device, "predicted": bool(error)}
    context = {"run": run, "error": error, "sentence": sentence, "order": order}
    return render("workload.html.j2", heads=headings, rows=rows, notes=notes, **context)
