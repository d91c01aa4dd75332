"""The sentence for each way in which a tool fails, by a pattern in what it prints. Tools end with
exit code 0 after most of them."""

import re

from workbench.traces.profilers import ProfilerError, ToolRun
from workbench.traces.profilers.running.call_script import SCRIPT
from workbench.traces.profilers.running.expected import ending

MOST = 160  # characters of a tool's own words

FAILURES = {
    r"ERR_NVGPUCTRPERM": "The driver lets only administrators read counters (ERR_NVGPUCTRPERM); "
    "run with CAP_SYS_ADMIN, or load the nvidia module with "
    "NVreg_RestrictProfilingToAdminUsers=0.",
    r"driver resource was unavailable": "Another collector holds the GPU's counters (a driver "
    "resource was unavailable); pause DCGM with `dcgmi profile --pause`, or end the other "
    "profiler.",
    r"LibraryNotLoaded": "The driver's profiling library cannot be loaded here "
    "(LibraryNotLoaded), as in a sandbox; run on a host or in a container that has the driver's "
    "libraries.",
    r"Device not supported|[Uu]nsupported GPU": "This tool does not support the GPU here (Device "
    "not supported); install the version that came out with the GPU, or run outside of the "
    "sandbox.",
    r"No space left on device|[Dd]isk (?:is )?full": "The disk is full; name another folder with "
    "--out.",
    r"unrecogni[sz]ed (?:option|argument)s?:? '?(?P<what>[^'\s]+)": "This tool does not know "
    "{what}, so it is older or newer than the command line; install the one of the present CUDA "
    "toolkit or ROCm.",
    r"(?:Unable|Failed) to find (?:section|set)s?:? '?(?P<what>\w+)": "This tool has no section "
    "{what}, so it is older than the command line; install the one of the present CUDA toolkit.",
    r"No kernels were profiled": "The tool ended without a kernel (No kernels were profiled): "
    "the range or the filter met none; `--dry-run` prints both.",
    r"Target application terminated before first instrumented API call": "The program ended "
    "before it used the GPU; name a program that launches a kernel.",
    r"No attachable process found": "The tool could not attach to the program (No attachable "
    "process found); run it outside of the sandbox.",
}
ABSENT = re.compile(r"Unable to access the following (\d+) metrics?: ([^\n]*)")


def failure(text: str) -> str | None:
    """Return what a tool's text says of a failure, in one sentence with its remedy, or None."""
    for pattern, sentence in FAILURES.items():
        if match := re.search(pattern, text):
            what = match.groupdict().get("what")
            return sentence.format(what=what[:MOST]) if what else sentence
    return None


def inaccessible_counters(text: str) -> list[str]:
    """Return the counters that ncu says it cannot access; the rest of its report stands."""
    return [name.strip() for m in ABSENT.finditer(text) for name in m[2].split(",") if name.strip()]


def check_exit(run: ToolRun, tool: str, passed: tuple[int, ...] = (0,)) -> None:
    """Raise ProfilerError where a tool or the script of ours under it failed; a program of the
    user's may end as it likes, if the files are there."""
    title = run.workload.title
    if run.end.timed_out:
        raise ProfilerError(
            f"{title} took too long under {tool} and was ended; kernels that wait for one another "
            "hang when they are replayed, so choose smaller sizes or `--tool trace`."
        )
    sentence = failure(run.text)
    usable = bool(run.files) and "No kernels were profiled" not in run.text
    if sentence is not None and (run.end.code or not usable):
        raise ProfilerError(sentence)
    if run.workload.marks and run.end.code not in passed:
        script = run.folder / SCRIPT
        raise ProfilerError(
            f"The calls of {title} ended with {ending(run.end.code)} under {tool}; `python "
            f"{script}` repeats them without it."
        )
    if not run.files:
        raise ProfilerError(
            f"{tool} left no file for {title} ({ending(run.end.code)}){_last_words(run.text)}; "
            "`--dry-run` prints its command line, to be run by hand."
        )


def _last_words(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    words = "".join(c for c in lines[-1] if c.isprintable())[:MOST].rstrip(".") if lines else ""
    return f", and its last words are: {words}" if words else ""
