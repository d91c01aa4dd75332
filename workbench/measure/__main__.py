"""`python -m workbench.measure KERNEL`."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from workbench.cli import main

    raise SystemExit(main(["measure", *sys.argv[1:]]))
