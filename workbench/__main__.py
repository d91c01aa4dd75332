"""`python -m workbench COMMAND` is `workbench COMMAND`."""

from workbench.cli import run

if __name__ == "__main__":
    raise SystemExit(run())
