"""Write the result of a gate as Markdown, for `gate --markdown`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workbench.commands.options import GateOptions
from workbench.data.files import write_files
from workbench.data.impl_check import ImplCheck
from workbench.revisions.changed_kernels import LeftOut


def write_comment(
    options: GateOptions,
    exit_code: int,
    left_out: Sequence[LeftOut],
    checks: Sequence[ImplCheck] = (),
    **parts: Any,
) -> None:
    """Write the Markdown where `--markdown` says, if it does. `parts` are the fields of a
    GateResult that say what was compared. Raises FileError where the file cannot be written."""
    if options.markdown is None:
        return
    from workbench.reports.pull_request import GateResult, markdown

    listed = [(left.what, left.reason) for left in left_out]
    result = GateResult(
        options.baseline, exit_code, options.command, listed, checks=checks, **parts
    )
    write_files([(options.markdown, markdown(result))], make_folders=True)
