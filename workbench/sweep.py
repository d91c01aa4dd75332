"""`python -m workbench.sweep NAME` is `workbench sweep NAME`."""

import sys

if __name__ == "__main__":  # worker processes import this module, too, and no command line
    from workbench.__main__ import main

    raise SystemExit(main(["sweep", *sys.argv[1:]]))
