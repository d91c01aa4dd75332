"""Try the configs of a kernel, reject wrong results, time the others, write a page."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

from workbench.commands import field
from workbench.commands.field import DEVICE, DTYPE, argument, more, option
from workbench.commands.options import OptionError, Options
from workbench.data.parts import require_part

SWEEP = "tile_size"  # unless another is named


Requirement = Literal["same-bits", "sanitizer", "idle-gpu"]


class SweepOptions(field.RunOutput, Options):
    PROGRAM: ClassVar[tuple[str, ...]] = ("python", "-m", "workbench.sweep")

    name: str = argument(
        "A kernel, for the sweep tile_size. Or a sweep: tile_size, block_size, pipeline or full.",
        "",
        "KERNEL|SWEEP",
    )
    kernel: str = option("", "The kernel, if the first word is a sweep. Default: matmul.")
    impl: tuple[str, ...] = option((), "This Impl only; may be repeated. Default: all Triton.")
    sizes: tuple[str, ...] = option(
        (), "M=4096,N=4096,K=4096; repeated: tuned jointly for all of them."
    )
    dtype: str = option("bf16", DTYPE)
    device: str | None = option(None, DEVICE)
    only: bool = more(False, "Keep the knobs to tune at their default.", "--only")
    budget: str | None = option(None, "30s, 2m, or 200 (configs): stop then with the best so far.")
    search: str | None = more(None, "Which configs come first: exhaustive, model, random, tpe.")
    also: tuple[field.Also, ...] = field.also("the winner")
    require: tuple[Requirement, ...] = field.word_list(
        Requirement,
        "--require",
        "same-bits: as a launch's; sanitizer: racecheck and memcheck pass; idle-gpu: refuse "
        "while others use the GPU.",
    )
    workers: str | None = field.workers()
    fresh: bool = field.fresh()

    def resolve_names(self) -> SweepOptions:
        """Return the options with the sweep as `name` and the kernel as `kernel`. Raises
        OptionError where the first word is neither, or where one of the two is given twice."""
        from workbench import catalog  # `--help` does not need it

        word, sweeps = self.name, catalog.names_in("workbench.sweeps")
        if word and word not in sweeps:
            if not catalog.is_kernel(word):
                require_part("kernels")
                known = [*sweeps, *catalog.known_kernels()]
                hint = catalog.example("kernel", word, "")
                raise OptionError(hint or catalog.name_hint("sweep or kernel", word, known))
            if self.kernel:
                raise OptionError(
                    f"The kernel is given twice, as {word} and as --kernel {self.kernel}; leave "
                    "one out."
                )
            return replace(self, name=SWEEP, kernel=word)
        return replace(self, name=word or SWEEP, kernel=self.kernel or "matmul")


def run(options: SweepOptions) -> int:
    """Run the command. Returns its exit code."""
    options, prewarm = options.resolve_names(), None
    if not options.device and not options.workers:  # this process needs a measuring process
        from workbench.backend.prewarm import begin_prewarm  # before the slow imports

        prewarm = begin_prewarm(options.kernel)
    from workbench.commands.console import SweepConsole, prints_aside
    from workbench.commands.sweep_command import SweepCommand

    console = SweepConsole(options.quiet, stderr=prints_aside(options))
    return SweepCommand(options, console, prewarm=prewarm).go()
