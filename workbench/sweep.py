"""`python -m workbench.sweep NAME` is `workbench sweep NAME`."""

import sys

from workbench.cli import main

if __name__ == "__main__":
    raise SystemExit(main(["sweep", *sys.argv[1:]]))
