"""Profile a kernel or your own program with a tool, and read what it leaves."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from typing import Literal

from workbench.commands import field
from workbench.commands.field import SIZES, argument, flag, more, option
from workbench.commands.options import OptionError, Options, TakesProgram

Recorded = Literal["shapes", "memory", "stacks"]


def read_steps(value: str | Iterable[int] | None) -> str | None:
    """Return the numbers of steps with commas between. Raises OptionError where they are not
    three, of which the last is 1 or more."""
    if value is None:
        return None
    text = value if isinstance(value, str) else ",".join(map(str, value))
    if not re.fullmatch(r"[0-9]+,[0-9]+,0*[1-9][0-9]*", text, re.ASCII):
        raise OptionError(
            f"--steps {text} is not WAIT,WARMUP,ACTIVE; write --steps 0,1,3 to record three steps "
            "after one warm-up."
        )
    return text


TOOLS = (
    "ncu, trace, proton, sanitizer, nsys, rocprofv3, rocprof, rocprof-compute, xctrace, gputrace"
)


class ProfileOptions(TakesProgram, field.RunOutput, Options):
    tool: str | None = option(None, f"{TOOLS}. Default: ncu of a kernel on NVIDIA, else trace.")
    impl: str | None = option(None, "For a kernel: tiles or tiles:block_m=128. Default: the first.")
    sizes: str | None = option(None, f"For a kernel: {SIZES}.")
    dtype: str | None = option(None, "For a kernel: fp32, fp16 or bf16, which is the default.")
    calls: int | None = option(None, "For a kernel: calls to record.", min=1, max=100_000)
    steps: str | None = more(
        None,
        "For a program with workbench.step(): steps to skip, to warm up and to record, 0,1,3.",
        read=read_steps,
        metavar="WAIT,WARMUP,ACTIVE",
    )
    with_: tuple[Recorded, ...] = field.word_list(
        Recorded, "--with", "trace: shapes of inputs, memory of operators, Python's stacks."
    )
    metrics: str | None = option(None, "ncu, rocprofv3: counters to add, A,B.")
    tool_option: tuple[str, ...] = more(
        (),
        "ncu: set=detailed; proton: data=trace; sanitizer: checks=all; xctrace: "
        "instrument=Allocations. Repeated.",
        metavar="KEY=VALUE",
    )
    list_metrics: bool = more(False, "Print ncu's counters that hold a pattern.", "--list-metrics")
    device: str | None = more(None, "For --list-metrics, --metrics: the device of the names.")
    dry_run: bool = flag("Print what would be run and read.", "--dry-run", stored=False)
    target: tuple[str, ...] = argument("A kernel; or -- and a program.", (), "KERNEL|-- PROGRAM")

    @property
    def require(self) -> tuple[str, ...]:
        """Nothing: the time without a profiler counts other processes on the GPU."""
        return ()

    def tool_values(self, key: str) -> tuple[str, ...]:
        """Return the values of a key of `--tool-option`."""
        pairs = (text.partition("=") for text in self.tool_option)
        return tuple(value for name, _, value in pairs if name == key)

    def tool_value(self, key: str) -> str:
        """Return the last value of a key of `--tool-option`, or an empty text."""
        return "".join(self.tool_values(key)[-1:])

    @property
    def kernel(self) -> str | None:
        """Kernel as named, or None. Raises OptionError where there are several."""
        words = self.operands
        if len(words) > 1:
            raise OptionError(
                f"{words[1]} is one word too many; a program stands behind --: workbench profile "
                f"-- {shlex.join(words)[:200]}."
            )
        return words[0] if words else None


def run(options: ProfileOptions) -> int:
    """Run the command. Returns its exit code."""
    from workbench.commands.console import console_for
    from workbench.commands.profile_command import ProfileCommand

    return ProfileCommand(options, console_for(options)).go()
