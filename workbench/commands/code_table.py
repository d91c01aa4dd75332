"""Print and write what became of machine code, for the commands that compare two versions by it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.commands.code_run import CodeRun
from workbench.commands.console import say_result
from workbench.commands.result import RunResult
from workbench.commands.run import say_page
from workbench.reports.run_index import write_run_page
from workbench.reports.tables import text_table
from workbench.reports.versions import (
    NARROW,
    WIDE,
    WIDEST,
    CodeChanges,
    changed_pairs,
    changes_page,
    code_errors,
    conclusion,
    pair_rows,
    tune_again,
)

if TYPE_CHECKING:
    from rich.console import Console

SHOWN = 40  # rows in the terminal; the page has all
NAMES_FIT, REASONS_FIT, CONFIGS_FIT = 80, 150, 200  # columns of a terminal that has room for them


def say_changes(console: Console, changes: CodeChanges) -> None:
    """Print the table, what must be tuned again, and the conclusion."""
    rows = changed_pairs(changes.pairs)
    if rows:
        narrow, shown = console.width < REASONS_FIT, rows[:SHOWN]
        columns = NARROW if narrow else WIDEST if console.width >= CONFIGS_FIT else WIDE
        content = pair_rows(shown, columns)
        heads = content["heads"]
        right = [head for n, head in enumerate(heads) if n and n not in content["text"]]
        whole = [heads[0], *(heads[2:] if narrow else right)]  # a long name goes on below
        if console.width < NAMES_FIT:
            whole = []
        cells = (row for row, _ in content["rows"])
        console.print(text_table(heads, cells, right, whole))
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


def finish(console: Console, stored: CodeRun) -> tuple[CodeChanges, RunResult]:
    """Print the result of a run that has ended and write its page. Returns what was compared, and
    the run."""
    changes = stored.changes
    say_changes(console, changes)
    file = write_run_page(stored.folder, changes_page(changes)).resolve()
    say_page(console, file)
    return changes, stored.result(file)
