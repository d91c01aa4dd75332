"""`python -m workbench.sweep NAME` is `workbench sweep NAME`."""

import sys

from workbench.cli import run

if __name__ == "__main__":
    raise SystemExit(run(["sweep", *sys.argv[1:]]))
