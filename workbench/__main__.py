"""`python -m workbench COMMAND` is `workbench COMMAND`.

Worker processes import the main module of the command that started them. Neither this one nor
`workbench.sweep` imports the command line before it is called.
"""


def main() -> int:
    """Run the command line and return its exit code."""
    from workbench.cli import run

    return run()


if __name__ == "__main__":
    raise SystemExit(main())
