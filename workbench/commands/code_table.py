"""Print and write what became of machine code: shared by `compare --triton` and `gate --device`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from workbench.code.code_pair import CodePair, paired, plain_pair, ranked
from workbench.commands.code_store import CodeStore, CompileTask
from workbench.commands.console import say_result
from workbench.commands.run import say_page
from workbench.data.compiled_code import CompiledCode
from workbench.device.error_band import expected_of_code
from workbench.reports.compilers import (
    CodeChanges,
    changed_pairs,
    code_errors,
    conclusion,
    narrow_rows,
    page,
    pair_rows,
    tune_again,
)
from workbench.reports.run_index import write_run_page
from workbench.spec import label

if TYPE_CHECKING:
    from rich.console import Console

    from workbench.backend.compilers import Compilers

SHOWN = 40  # rows in the terminal; the page has all
WIDE, WIDEST = 150, 200  # columns of a terminal that has room for the reasons, and for configs


def pairs_as_compiled(
    store: CodeStore,
    pools: Compilers,
    both: Sequence[tuple[CompileTask, CompileTask]],
    threshold: float,
    tuned: Sequence[str],
) -> Iterator[CodePair]:
    """Yield the pair of each config when both operands are compiled. `tuned` is the date of each
    that was tuned, empty for the others."""
    tasks = [task for pair in both for task in pair]
    results: dict[int, Any] = {}
    for n, result in store.obtain(pools, tasks):
        results[n] = result
        left = n - n % 2
        if left in results and left + 1 in results:
            was, case = tasks[left].job.case, tasks[left + 1].job.case
            before, after = results.pop(left), results.pop(left + 1)
            note = "" if dict(was.config) == dict(case.config) else f"was {label(was.config)}"
            yield paired(case, before, after, threshold, tuned[left // 2], note)


def say_changes(console: Console, changes: CodeChanges) -> None:
    """Print the table, what must be tuned again, and the conclusion."""
    from rich.table import Table
    from rich.text import Text

    rows = changed_pairs(changes.pairs)
    if rows:
        drawn = Table(box=None, pad_edge=False)
        narrow = console.width < WIDE
        shown = rows[:SHOWN]
        content = narrow_rows(shown) if narrow else pair_rows(shown, console.width >= WIDEST)
        for n, heading in enumerate(content["heads"]):
            left = n in content["text"] or n == 0
            folds = left and n > 0 and not narrow
            justify: Literal["left", "right"] = "left" if left else "right"
            drawn.add_column(heading, justify=justify, overflow="fold", no_wrap=not folds)
        for cells, _ in content["rows"]:
            drawn.add_row(*map(Text, cells))
        console.print(drawn)
        if len(rows) > SHOWN:
            console.print(f"{len(rows) - SHOWN} more rows are on the page.")
        for line in code_errors(shown):
            console.print(f"Predicted times of {line}", soft_wrap=True)
    for reason, many in changes.left_out:
        times = f" ({many} times)" if many > 1 else ""
        console.print(f"left out  {reason}{times}", soft_wrap=True)
    for command in tune_again(changes.pairs)[:SHOWN]:
        say_result(console, f"tune again  {command}")
    say_result(console, conclusion(changes), "bold", whole=False)


def expected_plain(pair: CodePair) -> dict[str, object]:
    """Return the seconds between which measured times of a pair are expected, as plain data: two
    numbers of each operand, or null."""
    each = {"before": pair.before, "after": pair.after}
    ends = {
        name: expected_of_code(pair.case, code) if isinstance(code, CompiledCode) else None
        for name, code in each.items()
    }
    return {"expected_s": {name: list(s) if s else None for name, s in ends.items()}}


def finish(console: Console, changes: CodeChanges, folder: Path) -> dict[str, Any]:
    """Print the result, write the page, and return what the JSON document holds of it."""
    say_changes(console, changes)
    file = write_run_page(folder, page(changes))
    say_page(console, file)
    return {
        "before": changes.before,
        "after": changes.after,
        "interrupted": changes.interrupted,
        "pairs": [plain_pair(pair) | expected_plain(pair) for pair in ranked(changes.pairs)],
        "tune_again": tune_again(changes.pairs),
        "left_out": [{"reason": reason, "configs": many} for reason, many in changes.left_out],
        "page": str(file.resolve()),
    }
