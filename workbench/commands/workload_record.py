"""Run a program, and record which Triton kernels it launches."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.commands import field
from workbench.commands.console import console_for, note, prints_aside, say_result
from workbench.commands.field import more, option
from workbench.commands.options import Options, TakesProgram
from workbench.data.exits import stopped_by

if TYPE_CHECKING:
    from workbench.traces.profilers.running.child import ChildEnd
    from workbench.workload.file import RecordedWorkload


class WorkloadRecordOptions(TakesProgram, Options):
    out: Path = field.file_option(Path("run.workload"), "The workload file.")
    profile_steps: int = more(3, "Steps whose GPU time is recorded; 0 for none.", min=0)
    values: bool = more(False, "Keep the values of small integer tensors.", "--values")
    device: str | None = option(None, "The device that stands in for a missing GPU: h200.")
    quiet: bool = field.quiet("Print only the table.")
    json: Path | None = field.json()
    target: tuple[str, ...] = field.program()


USAGE = "workbench workload record -- python train.py"


def run(options: WorkloadRecordOptions) -> int:
    """Run a program whose processes record themselves, and merge their files. Returns the exit code
    of the program. Raises WorkloadError where no process launches a kernel."""
    import tempfile

    from workbench.commands.run import check_file
    from workbench.commands.workload_show import show
    from workbench.device.hardware import device_named
    from workbench.traces.profilers.running.child import run_child
    from workbench.traces.profilers.running.expected import ending
    from workbench.traces.profilers.running.workload import title_of
    from workbench.workload.errors import WorkloadError
    from workbench.workload.file import write
    from workbench.workload.program import handed_on
    from workbench.workload.program_runner import program_words, startup_variables
    from workbench.workload.recorder import RecordOptions
    from workbench.workload.startup import sitecustomize

    options.check_program(USAGE)
    if options.device is not None:
        device_named(options.device)  # raises for an unknown one
    file = options.out
    check_file(file, "--out")
    check_file(options.json, "--json")
    words = program_words(options.program)
    recording = RecordOptions(options.profile_steps, options.values, options.device)
    file.absolute().parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{file.name}.parts-", dir=file.absolute().parent))
    end = run_child(
        words,
        own=False,
        aside=prints_aside(options),
        more=startup_variables({sitecustomize.VARIABLE: handed_on(folder.absolute(), recording)}),
    )
    code = stopped_by(end.stop_signal) if end.stop_signal else end.code
    workload = recorded_in(folder)
    if workload is None:
        shutil.rmtree(folder, ignore_errors=True)
        raise WorkloadError(no_workload_reason(options, end))
    write(file, workload)
    shutil.rmtree(folder, ignore_errors=True)
    code = show(options, workload, code)
    if end.code and not end.stop_signal:
        note(f"{title_of(options.program)} ended with {ending(end.code)}.")
    say_result(console_for(options), f"workload  {file.resolve()}")
    return code


def recorded_in(folder: Path) -> RecordedWorkload | None:
    """Return what the processes of a program recorded; None where no process launched a kernel. A
    file that cannot be read costs its process."""
    from workbench.workload.errors import WorkloadError
    from workbench.workload.file import merge_workloads, read

    workloads = []
    for path in sorted(folder.glob("*.workload")):
        try:
            workloads.append(read(path))
        except WorkloadError as error:
            note(str(error))
    launched = [each for each in workloads if each.launches]
    return merge_workloads(launched) if launched else None


def no_workload_reason(options: WorkloadRecordOptions, end: ChildEnd) -> str:
    """Return why there is no workload, in one sentence."""
    from workbench.data.environment import gpu_shown
    from workbench.traces.profilers.running.expected import ending
    from workbench.traces.profilers.running.workload import title_of

    title = title_of(options.program)
    failed = f", and it ended with {ending(end.code)}" if end.code else ""
    if end.code and options.device is None and not gpu_shown():
        return (
            f"No Python process of {title} launched a Triton kernel{failed}. There is no GPU here; "
            "if the program asks for one, as what it printed says, let a device answer: --device "
            "h200."
        )
    return (
        f"No Python process of {title} launched a Triton kernel{failed}; check that the part that "
        "launches runs, and that Python is not started with -S, -E or -I."
    )
