"""Exit codes of every command. docs/commands.md lists them."""

PASSED = 0
FAILED = 1  # a comparison is SLOW, or a result is wrong
COULD_NOT_RUN = 2  # an error in one sentence, or nothing gave a time
UNDECIDED = 3  # a comparison is INCONCLUSIVE, or SLOW by the times of two stored runs alone
INTERNAL = 4  # a fault of the workbench itself
INTERRUPTED = 130  # Ctrl-C


def stopped_by(signal_number: int) -> int:
    """Return the exit code after a signal, as shells give it: 143 after SIGTERM."""
    return 128 + signal_number
