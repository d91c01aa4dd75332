"""Time the check of each Metal kernel, its programs compiled: all cases, and the corners alone.

    python benchmarks/metal_check.py [KERNEL ...]

Each is checked twice, and the second time counts.
"""

from __future__ import annotations

import sys
import time

from metal_shim.check import CheckReport, check_corners, check_spec
from workbench import catalog


def seconds_of(name: str) -> tuple[CheckReport, float, float]:
    """Return the report of a kernel, and the seconds of its cases and of its corners."""
    spec, report = catalog.spec_of(name), CheckReport()
    start = time.perf_counter()
    check_spec(spec, report)
    between = time.perf_counter()
    check_corners(spec, report)
    return report, between - start, time.perf_counter() - between


if __name__ == "__main__":
    for kernel in sys.argv[1:] or catalog.names_in(catalog.METAL):
        seconds_of(kernel)
        done, cases_s, corners_s = seconds_of(kernel)
        print(
            f"{kernel:<17} {done.runs:>4} runs {cases_s:6.2f} s, {done.corners:>3} dispatches at "
            f"bench sizes {corners_s:5.2f} s, {'clean' if done.is_clean else 'findings'}",
            flush=True,
        )
