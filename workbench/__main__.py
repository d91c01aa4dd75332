"""`python -m workbench COMMAND` is `workbench COMMAND`."""

from workbench.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
