"""The error of workloads and tuned tables."""

from workbench.spec import WorkbenchError


class WorkloadError(WorkbenchError):
    """A workload cannot be made, read or written, or a tuned table cannot be used; one sentence,
    with what to do next."""
