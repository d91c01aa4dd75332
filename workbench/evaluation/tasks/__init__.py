"""Tasks of other formats: each is turned into a Spec that judges, and a submission into a kernel's
file that `evaluate` takes.

A format is recognised by its files. The task is the judge's: processes that are trusted import it.
The submission is text here, and no process that decides imports it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from workbench.evaluation.tasks import flashinfer_bench, gpu_mode, kernelbench
from workbench.evaluation.tasks.text import SPEC_FILE, TaskError, TaskFiles, kernel_text, portable

FORMATS: tuple[tuple[str, Callable[[Path], bool], Callable[[Path, Path], TaskFiles]], ...] = (
    ("flashinfer-bench", flashinfer_bench.is_task, flashinfer_bench.files),
    ("GPU MODE", gpu_mode.is_task, gpu_mode.files),
    ("KernelBench", kernelbench.is_task, kernelbench.files),
)


@dataclass(frozen=True)
class PreparedTask:
    """A task and a submission as files of the workbench."""

    format: str
    spec: Path
    kernel: Path
    audited_text: bytes  # the submission's text, without what a task's format adds
    entry: str  # function or class of the submission that is called
    dtype: str  # of the Spec


def task_format(task: Path) -> str | None:
    """Return the format of a task's file or folder; None where it is in none of them."""
    return next((name for name, is_task, _ in FORMATS if is_task(task)), None)


def prepare_task(task: Path, submission: Path, folder: Path) -> PreparedTask:
    """Write a task and a submission to `folder`, and return where they are. Raises TaskError
    where one is in no known format."""
    if not task.exists():
        raise TaskError(f"There is no task {task}; name the judge's file or its folder.")
    title = task_format(task)
    if title is None:
        names = ", ".join(name for name, *_ in FORMATS)
        raise TaskError(
            f"{task} is in no known format of a task ({names}); docs/evaluate.md lists the files "
            "of each."
        )
    given = next(files for name, _, files in FORMATS if name == title)(task, submission)
    trusted, own = folder / "trusted", folder / "submission"  # whose files the checker never sees
    for place in (trusted, own):
        place.mkdir()
        for name, data in given.trusted_files.items():
            (place / name).write_bytes(data)
    for name, data in given.helpers.items():
        path = own / name
        if not path.resolve().is_relative_to(own.resolve()) or path.exists():
            raise TaskError(f"{submission} holds a file named {name}; give it another name.")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    kernel = own / f"submission_{given.format}.py"
    kernel.write_bytes(kernel_text(given))
    audited = portable(given.submission)
    return PreparedTask(title, trusted / SPEC_FILE, kernel, audited, given.entry, given.dtype)
