"""A sweep on the null side: a kernel that nothing runs, and a session that asks it.

As a program it is a sweep to kill: `python tests/nullside.py KERNEL OUT DATABASE MANY`, where the
first MANY configs are timed at once, and the next one hangs for ever.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from null_backend import Fate, Null

from workbench.commands.console import SweepConsole
from workbench.commands.sweep import SweepOptions
from workbench.commands.sweep_command import SweepCommand
from workbench.data.database import open_history
from workbench.data.events import Event, KernelDispatched, OpCompleted, read
from workbench.data.record import Failure, Outcome, Record, Run

SPEC = """toy = Spec(
    name="toy",
    inputs={"x": Tensor("N")},
    outputs={"y": Tensor("N")},
    reference=lambda x: x,
    flops=lambda N: N,
    check=[{"N": 7}],
    bench=[{"N": 1024}],
)
"""
LIBRARY = """@toy.impl(backend="torch", name="torch")
def library(x):
    return x
"""
KERNEL = f'''"""A kernel that nothing runs: 4 x 3 configs, one of them refused, and a baseline."""

from dataclasses import dataclass

from workbench.spec import Spec, Tensor, threads, tile

{SPEC}

@dataclass(frozen=True)
class Blocks:
    block_n: int = tile(16, 128, default=32)
    num_warps: int = threads(1, 4, default=2)


def refuse(config, limits, *, itemsize, N):
    if config.block_n == 128 and config.num_warps == 1:
        return "128 elements are too many for one warp"
    if N % 16:
        return "N must be a multiple of 16"


@toy.impl(Blocks, refuse=refuse)
def blocks(x, *, config):
    raise NotImplementedError


{LIBRARY}'''
CONFIGS = 11  # that are not refused


def entries(events: list[Event]) -> list[Event]:
    """The events of a file that its database holds too, and the end: no dispatches, no times."""
    return [e for e in events if not isinstance(e, (KernelDispatched, OpCompleted))]


def kernel_in(folder: Path) -> Path:
    """Write the kernel."""
    path = folder / "toy.py"
    path.write_text(KERNEL)
    return path


class Place:
    """A folder with a kernel, a database and results, and sweeps in it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.out = folder, folder / "results"
        self.kernel = kernel_in(folder)
        self.url = f"sqlite:///{folder / 'history.db'}"
        self.code = -1
        self.null = Null()
        self.session: SweepCommand

    def sweep(
        self, fate: Callable[[Any], Fate] = lambda c: Fate(), *,
        predicts: bool = False, begin_error: str | None = None, **more: Any,
    ) -> list[Outcome]:  # fmt: skip
        """Sweep once; gives the outcomes."""
        self.null = Null(fate, predicts=predicts, begin_error=begin_error)
        wanted = SweepOptions(**{**self.words(), **more})
        self.session = SweepCommand(
            wanted, SweepConsole(quiet=True), lambda device, folder: self.null,
            tuned_file=self.folder / "tuned.json",
        )  # fmt: skip
        self.code = self.session.go()
        return self.session.outcomes

    def words(self) -> dict[str, Any]:
        return {"name": "tile_size", "kernel": str(self.kernel), "out": self.out,
                "database": self.url}  # fmt: skip

    def logged(self) -> list[Any]:
        """Runs and outcomes of all events files, in their order."""
        results = [read(p) for p in sorted(self.out.glob("*/events.jsonl"))]
        assert not any(one.bad for one in results)
        return [e for one in results for e in one.events if isinstance(e, (Run, Record, Failure))]

    def stored(self) -> list[Outcome]:
        """The outcomes of the newest run in the database."""
        with open_history(self.url) as history:
            return history.outcomes(history.run("last").id)

    def labels(self, what: str) -> list[str]:
        """Configs that the side was asked to `compile`, `time`, `race`, `final` or `hot`."""
        return [name for word, name in self.null.requests if word == what]


def main(kernel: str, out: str, database: str, many: str) -> int:
    question = SweepOptions("tile_size", kernel, out=Path(out), database=database)
    timed = lambda: [what for what, _ in null.requests if what == "time"]  # noqa: E731
    null = Null(lambda candidate: Fate(hangs=len(timed()) > int(many)))
    opener = lambda device, folder: null  # noqa: E731
    tuned = Path(out).parent / "tuned.json"
    return SweepCommand(question, SweepConsole(quiet=False), opener, tuned_file=tuned).go()


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
