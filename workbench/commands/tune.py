"""Tune a plain @triton.jit or @triton.autotune function with its own arguments, no Spec needed.

    from workbench.adapter import tune
    best = tune(kernel, (x, y, out, n), grid=grid, configs=[triton.Config({"BLOCK": 256}), ...])
    kernel[grid](x, y, out, n, **best.kwargs)

The function becomes a one-file kernel in `results/adapted/`, which everything else works on:
sweep, checks, isolation, history, page. Workers import the function from its file, so what that
file runs at its top level must stand under `if __name__ == "__main__":`.
"""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypedDict, Unpack

from workbench.adapted import autotuned, write
from workbench.adapted.call import ANSWER, ARGS, Call
from workbench.adapted.discover import Found, discover
from workbench.adapted.referenced import answer_of, answered_again
from workbench.adapted.travel import AdaptedError, Importing, unpack
from workbench.backend.workers import LOST, Workers
from workbench.catalog import unknown
from workbench.commands.console import Terminal
from workbench.commands.options import Question, gpu_present, ready, writable
from workbench.commands.sweep import Session
from workbench.data.database import open_history
from workbench.spec import Tolerance, label
from workbench.tuner.selection import answer, sentence

DISCOVER_TIMEOUT_S = 300.0

# How far an answer may lie from the first config's: one step of the dtype, for both were rounded
# to it, and beside zero the share of the output's rms that fp32 sums in another order differ by,
# as in kernels/matmul.py. Whole numbers must be equal.
STEPS: Mapping[str, Tolerance] = {
    "fp64": Tolerance(1e-12, 1e-12),
    "fp32": Tolerance(1e-5, 5e-5),
    "fp16": Tolerance(1e-3, 1e-4),
    "bf16": Tolerance(8e-3, 1e-4),
    "fp8": Tolerance(0.125, 1e-4),
    "fp8_fnuz": Tolerance(0.125, 1e-4),
    "fp8_e5m2": Tolerance(0.25, 1e-4),
    "fp8_e5m2_fnuz": Tolerance(0.25, 1e-4),
}
EXACT = Tolerance(0.0)

_log = logging.getLogger("workbench")


class Options(TypedDict, total=False):
    """What may be said beyond function, arguments, grid and configs."""

    kwargs: Mapping[str, Any]  # arguments that the launch gives by name
    outputs: Sequence[str]  # names of the tensors that the function writes; else found by running
    reference: Callable[..., Any]  # takes the same arguments, floats as float64; gives the outputs
    flops: int  # of one launch; 0 unless named
    tolerance: Tolerance  # for outputs of floats, in place of the usual one of their dtype
    device: str  # compile and predict for this device, as `--device` does
    budget: str  # as `--budget`; all configs unless named
    out: Path  # folder for results
    database: str  # URL of the history
    fresh: bool  # obtain again what the history holds
    quiet: bool  # say the answer and the page's path alone


@dataclass(frozen=True)
class Best:
    """The winner of a tuning."""

    config: Any  # triton.Config
    seconds: float  # of one launch: measured, or by the model where `predicted`
    predicted: bool
    said: str  # the answer in one sentence
    page: Path
    kernel: Path  # the one-file kernel: `workbench sweep full --kernel` takes it again

    @property
    def kwargs(self) -> dict[str, Any]:
        """All that a launch takes by keyword, `num_warps` and `num_stages` among it."""
        return dict(self.config.all_kwargs())


def tune(
    kernel: Any, args: Sequence[Any], *, grid: write.Grid, configs: Sequence[Any] | None = None,
    **options: Unpack[Options],
) -> Best:  # fmt: skip
    """Find the best config for these arguments, by measuring on the GPU that is here or, with
    `device` or without a GPU, by compiling, interpreting and predicting.

    `grid` is what stands in `kernel[grid]`; `configs` are `triton.Config`s, by default those of
    `@triton.autotune`, whose cache is then filled so that the next launch uses the winner. The
    user's tensors are not written to. Raises AdaptedError where the function cannot be taken over
    or no config gave a right answer, KeyboardInterrupt after Ctrl-C, and what a sweep raises.
    """
    if Importing.file is not None:
        raise AdaptedError(f"{Importing.file} calls tune() as it is imported")
    if odd := sorted(set(options) - set(Options.__annotations__)):
        raise AdaptedError(unknown("option of tune", odd[0], Options.__annotations__))
    ready()
    out = Path(options.get("out", "results"))
    writable(out)
    given = (tuple(args), dict(options.get("kwargs", {})))
    tuner = autotuned.autotuner_of(kernel)
    chosen, notes = _configs(tuner, given, configs)
    with _main_unseen():
        path, call, more = take_over(kernel, given, grid, chosen, options)
        for note in (*notes, *more):
            _log.warning("%s: %s", call.name, note)
        best = _swept(path, call, chosen, out, options)
    if tuner is not None:
        autotuned.remember(tuner, given, best.config)
    return best


def _configs(
    tuner: Any | None, given: autotuned.Arguments, configs: Sequence[Any] | None
) -> tuple[list[Any], list[str]]:
    none: list[str] = []
    if configs is not None:
        found, notes = list(configs), none
    elif tuner is not None:
        found, notes = autotuned.configs_of(tuner, given)
    else:
        found, notes = [], none
    if not found:
        raise AdaptedError("There are no configs to try; name them: configs=[triton.Config(...)].")
    return found, notes


def take_over(
    kernel: Any, given: autotuned.Arguments, grid: write.Grid, configs: Sequence[Any],
    options: Options,
) -> tuple[Path, Call, list[str]]:  # fmt: skip
    """Write the function as a one-file kernel. Returns its path, the call, and notes.

    One launch on copies, in a worker, shows which tensors are written. Raises AdaptedError.
    """
    import torch

    call, memory = write.call_of(kernel, given, grid, configs, int(options.get("flops", 0)))
    tuner = autotuned.autotuner_of(kernel)
    for name in tuner.reset_to_zero if tuner is not None else ():
        memory[name].zero_()
    home = Path(options.get("out", "results")) / "adapted"
    home.mkdir(parents=True, exist_ok=True)
    outputs, reference = tuple(options.get("outputs", ())), options.get("reference")
    if odd := [n for n in outputs if n not in call.tensors]:
        raise AdaptedError(unknown(f"tensor among the arguments of {call.name}", odd[0], memory))
    with TemporaryDirectory(dir=home, prefix=".") as name:
        stage = Path(name, "kernel")
        stage.mkdir()
        call.write(stage)
        torch.save(memory, stage / ARGS)
        found = _discovered(stage, outputs, options.get("device"), reference is not None)
        call = _completed(call, found, options.get("tolerance"))
        if reference is not None:
            torch.save(answer_of(reference, given, call), stage / ANSWER)
            found = answered_again(stage, reference, given, call, found)
        rules = (grid, reference or dict(call.entries[found.first].values))
        mark = write.fingerprint(call, kernel, rules, memory, options.get("device") or "gpu")
        call.write(stage)
        write.write_file(call, stage, mark)
        folder = home / write.folder_name(call, mark)
        shutil.rmtree(folder, ignore_errors=True)
        stage.rename(folder)
    return folder / f"{call.name}.py", call, _notes(call, found, reference is not None)


def _discovered(stage: Path, outputs: tuple[str, ...], device: str | None, answered: bool) -> Found:
    live = device is None and gpu_present()
    with Workers(1, interpreted=not live) as workers:
        where = "cuda" if live else "cpu"
        asked = workers.submit(
            discover, stage, outputs, where, answered, timeout_s=DISCOVER_TIMEOUT_S
        )
        try:
            found: Found = asked.result()
        except LOST as error:
            raise AdaptedError(
                f"The first launch of the function {error}; put a config that works first in the "
                "list, or give smaller tensors."
            ) from None
    return found


def _completed(call: Call, found: Found, wanted: Tolerance | None) -> Call:
    """The call with what its first launch showed."""
    kinds = [call.tensors[n].dtype for n in (*found.outputs, *call.tensors)]
    dtype = next((k for k in kinds if k in STEPS), kinds[0])
    own = {k: wanted or STEPS[k] if k in STEPS else EXACT for k in (dtype, *kinds)}
    tolerance = {k: (t.relative, t.of_rms) for k, t in own.items()}
    return replace(
        call, outputs=found.outputs, initial=found.initial, dtype=dtype, tolerance=tolerance
    )


def _notes(call: Call, found: Found, referenced: bool) -> list[str]:
    notes: list[str] = []
    if not referenced:
        first = label(call.entries[found.first].values)
        notes.append(f"right means: agrees with {first}; name a reference= to check more than that")
    if found.unmoved:
        notes.append(f"the second check is on the same values as the first: {found.unmoved}")
    if found.skipped:
        notes.append(f"configs listed before that one do not launch: {found.skipped}")
    for knob in call.knobs:
        meant = {e.values[knob.name]: unpack(e.kwargs.get(knob.name)) for e in call.entries}
        meant = {number: value for number, value in meant.items() if value != number}
        if said := ", ".join(f"{k} is {v!r}" for k, v in sorted(meant.items())):
            notes.append(f"of {knob.name}, {said}")
    return notes


def _swept(path: Path, call: Call, configs: Sequence[Any], out: Path, options: Options) -> Best:
    """Sweep the adapted kernel and read the winner."""
    device = options.get("device")
    predicted = device is not None or not gpu_present()
    every = str(len(call.entries)) if predicted else None
    asked = Question(
        "full", str(path), dtype=call.dtype, device=device, out=out,
        budget=options.get("budget", every), database=options.get("database"),
        fresh=options.get("fresh", False),
    )  # fmt: skip
    session = Session(asked, Terminal(options.get("quiet", False)))
    if session.go() != 0:
        raise KeyboardInterrupt
    run = session.outcomes[-1].run
    with open_history(asked.database) as history:
        found = answer(history.run(run), history.outcomes(run))
    page = out / run / "report.html"
    if found.winner is None:
        raise AdaptedError(f"{sentence(found)} The reasons stand in {page}.")
    values = dict(found.winner.case.config)
    at = write.numbers_of(configs).index(values)
    return Best(configs[at], found.winner.time_s, found.predicted, sentence(found), page, path)


@contextmanager
def _main_unseen() -> Iterator[None]:
    """Inside, new workers do not import the user's script, as they would import any parent's: an
    interpreting one must choose before Triton is imported, and a script may have no guard."""
    main = vars(sys.modules["__main__"])
    before: dict[str, Any] = {n: main[n] for n in ("__file__", "__spec__") if n in main}
    main.pop("__file__", None)
    main["__spec__"] = None
    try:
        yield
    finally:
        main.update(before)


__all__ = ["AdaptedError", "Best", "Options", "tune"]
