"""Compare two operands on the GPU, two stored runs, or two traces."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from workbench import catalog
from workbench.backend.protocol import Problem
from workbench.code.compared_pair import compared_pairs
from workbench.commands.comparison import (
    Pair,
    PairMaker,
    compare_pair,
    comparison_of,
    draw_comparisons,
    require_gpu,
    say_begin,
    show_comparison,
)
from workbench.commands.console import say_result
from workbench.commands.operands import (
    Operand,
    are_traces,
    is_run,
    kernel_of,
    operands_of,
    repository_with,
)
from workbench.commands.options import CommandError
from workbench.commands.pair_results import times_result
from workbench.commands.result import RunResult, write_comparison, write_result
from workbench.commands.run import (
    Opener,
    OpenResources,
    Recorder,
    any_backend,
    check_also,
    check_outputs,
    draw_ended_run,
    execute,
    new_run,
    repository_of,
    resources,
    say_page,
)
from workbench.commands.sizes import check_dtype, sizes_of
from workbench.commands.stored import stored_runs
from workbench.data import verdict
from workbench.data.clock import folder_of, run_id, timestamp
from workbench.data.comparison import ComparisonResult, Kind, Part, compared_part
from workbench.data.exits import INTERRUPTED
from workbench.data.record import Measured, Outcome, Profile, Record, Run, encode_plain
from workbench.data.selection import select
from workbench.data.units import duration
from workbench.data.verdict import SUSPECTED
from workbench.device import hardware
from workbench.device.error_band import factor_words
from workbench.reports.run_index import write_run_page
from workbench.revisions.worktree import Repository, Worktrees
from workbench.spec import label, sizes_text
from workbench.tuner.space import RecordFactory

if TYPE_CHECKING:
    from rich.console import Console

    from workbench.commands.compare import CompareOptions


@dataclass
class CompareCommand:
    """One comparison from the options to the page."""

    options: CompareOptions
    console: Console
    open_backend: Opener = any_backend

    def go(self) -> int:
        """Run to the end. Returns the exit code of the verdict (see `verdict.exit_code`), or 130
        after Ctrl-C. Raises CommandError where an option does not fit the operands."""
        options = self.options
        kind = next(each for each in KINDS if each.accepts(options))
        refused = {name: s for name, s in kind.refusals.items() if getattr(options, name)}
        if refused:
            sentence = next(iter(refused.values()))
            flags = {name: f"--{name.replace('_', '-')}" for name in refused}
            flags |= {"also": f"--also {' '.join(options.also)}"}
            alike = [flags[name] for name in refused if refused[name] == sentence]
            raise CommandError(sentence.format(" and ".join(alike)))
        if not kind.place:
            return self.compare_operands()
        module, _, name = kind.place.rpartition(".")
        compare = getattr(import_module(f"workbench.commands.{module}"), name)
        return int(compare(options, self.console))

    def compare_operands(self) -> int:
        """Compare two Impls, configs or revisions on the GPU. Returns the exit code. Raises
        CommandError where they are not two of one kernel."""
        options = self.options
        if not (options.left and options.right):
            raise CommandError(
                "Name two operands, such as tiles and tiles:num_warps=4; or two compilers with "
                "--triton 3.6.0 3.9.0."
            )
        if len(options.kernel) > 1:
            raise CommandError("Operands are of one kernel; name one with --kernel.")
        kernel = kernel_of(options.left, options.right, next(iter(options.kernel), None))
        spec = catalog.spec_of(kernel)
        check_dtype(spec, options.dtype)
        problem = Problem(kernel, spec, sizes_of(spec, options.sizes), options.dtype)
        repository = repository_with(kernel)
        texts = (options.left, options.right)
        operands = operands_of(texts, options.impl, spec, repository)
        check_outputs(options)
        require_gpu(self.open_backend)
        folder = repository_of(kernel)
        with resources(options, lambda: self.open_backend(None, folder)) as opened:
            check_also(opened.backend, options.also)
            return self._go(problem, operands, repository, opened)

    def _go(
        self,
        problem: Problem,
        operands: tuple[Operand, Operand],
        repository: Repository | None,
        opened: OpenResources,
    ) -> int:
        options, backend = self.options, opened.backend
        versions = operands[0].revision != operands[1].revision
        whole = replace(options, kernel=(problem.kernel,), sizes=sizes_text(problem.sizes))
        name = "versions" if versions else "impls"
        run = new_run("compare", name, whole.command, backend, [problem])
        folder = folder_of(options.out, run.id)
        file = catalog.module_of(problem.kernel).__file__
        factory = RecordFactory(run, problem, backend.protocol)

        def obtain(recorder: Recorder) -> None:
            compared = compare_pair(pair, recorder, options.threshold, "energy" in options.also)
            show_comparison(self.console, compared, recorder.run)

        profiles: tuple[Profile, ...] = ()
        with ExitStack() as stack:
            trees = stack.enter_context(Worktrees(repository)) if repository else None
            maker = PairMaker(factory, backend.device.limits, trees)
            pair = maker.pair(operands, Path(file) if file else None)
            say_begin(self.console, run, options.threshold)
            recorder = opened.recorder(run)
            state = execute(recorder, obtain, lambda r: draw_comparisons(r, folder))
            if "profile" in options.also and state == "complete":
                draw_comparisons(recorder, folder)  # it is there whatever becomes of the profiler
                backend.close()  # its process holds memory and the GPU's lock
                profiles, stopped = self._profile(pair, recorder)
                state = "interrupted" if stopped else state
        if state == "interrupted":
            return write_result(options, "compare", INTERRUPTED, [recorder.result()])
        page = draw_ended_run(recorder, lambda r: draw_comparisons(r, folder, profiles))
        say_page(self.console, page)
        run_result = replace(recorder.result(page), profiles=profiles)
        pairs = compared_pairs(recorder.run, recorder.outcomes, recorder.comparisons)
        result = times_result(pairs, pair.names)
        return write_comparison(options, "compare", result, [run_result])

    def _profile(self, pair: Pair, recorder: Recorder) -> tuple[tuple[Profile, ...], bool]:
        """Profile both operands; returns their profiles, and whether Ctrl-C ended it early."""
        from workbench.commands import config_profiles as profiling

        options, configs = self.options, []
        for candidate in (pair.left, pair.right):
            own = [o for o in recorder.outcomes if o.key == candidate.key]
            kernel = candidate.version or pair.problem.kernel
            configs += profiling.timed_configs(kernel, own, [candidate.impl])
        titles = {pair.left.key: pair.names[0], pair.right.key: pair.names[1]}
        return profiling.profile_run(configs, recorder.result(), options, self.console, titles)


# Stored runs


@dataclass(frozen=True)
class StoredRuns:
    """Two stored runs with their outcomes, and the winners of both at each size that they share."""

    runs: tuple[Run, Run]
    outcomes: tuple[Sequence[Outcome], Sequence[Outcome]]
    pairs: Sequence[tuple[Record, Record]]


def compare_runs(options: CompareOptions, console: Console) -> int:
    """Compare the winners of two stored runs, at each size that both hold. They were not
    interleaved, so the result is at most a suspicion: nothing is measured, and nothing is stored
    beyond the page. Of two predicted runs there is no verdict.

    Returns the exit code. Raises CommandError, HistoryError or verdict.Incomparable where they
    cannot be compared.
    """
    check_outputs(options)
    stored = _stored_pairs(options)
    kinds = [[r.is_measured for r in pair] for pair in stored.pairs]
    if any(left != right for left, right in kinds):
        raise CommandError(
            f"One of {options.left} and {options.right} is measured and the other is predicted; "
            "name two runs of one kind."
        )
    compare, several = _suspicion if kinds[0][0] else _compare_predictions, len(stored.pairs) > 1
    parts = []
    for pair in stored.pairs:
        at = f" at {sizes_text(pair[0].case.sizes)}" if several else ""
        parts.append(compare(pair, at, options.threshold))
    lines = [part["reason"] for part in parts]
    page = _stored_page(options, stored, lines)
    for line in lines:
        say_result(console, line, "bold", whole=False)
    say_page(console, page)
    kind: Kind = "stored times" if kinds[0][0] else "predicted times"
    result = ComparisonResult(kind, options.left, options.right, " ".join(lines), parts)
    records = [record for pair in stored.pairs for record in pair]
    run = RunResult(stored.runs[1], records, page=page)
    return write_comparison(options, "compare", result, [run])


def _suspicion(pair: tuple[Record, Record], at: str, threshold: float) -> Part:
    """Return what two measured times let one suspect."""
    left, right = (r.timing for r in pair)
    assert isinstance(left, Measured) and isinstance(right, Measured)
    result = verdict.suspicion(left, right, threshold)
    word = f"{SUSPECTED}{result.word}"
    text = f"Suspected {result.word}{at}: {result.reason}. {_operand_times(pair)}."
    return compared_part(pair[1].case.label, word, text, pair, verdict=encode_plain(result))


def _compare_predictions(pair: tuple[Record, Record], at: str, _: float) -> Part:
    """Return two predicted times beside each other: no verdict follows from them."""
    ratio = pair[1].time_s / pair[0].time_s
    text = (
        f"Right over left {ratio:.3f}x{at}, predicted, so no verdict. {_operand_times(pair)}; "
        f"{factor_words(pair)}."
    )
    return compared_part(pair[1].case.label, "INCONCLUSIVE", text, pair, predicted_ratio=ratio)


def _operand_times(pair: tuple[Record, Record]) -> str:
    """Return config and time of both runs' winners."""
    each = (f"{r.case.label}, {'' if r.is_measured else '~'}{duration(r.time_s)}" for r in pair)
    return "Left: {}; right: {}".format(*each)


def _stored_pairs(options: CompareOptions) -> StoredRuns:
    """Return both runs. Raises CommandError where they share no problem."""
    with stored_runs(options.database) as history:
        left, right = (history.run(which) for which in (options.left, options.right))
        outcomes = history.outcomes(left.id), history.outcomes(right.id)
    both = (left, right)
    shared: list[Mapping[str, int] | None] = [None]
    if not options.sizes and not all(run.sizes for run in both):
        timed = ([o.case.sizes for o in some if isinstance(o, Record)] for some in outcomes)
        at = [{sizes_text(sizes): sizes for sizes in some} for some in timed]
        shared = [sizes for name, sizes in at[0].items() if name in at[1]] or [None]
    pairs = []
    for sizes in shared:
        first, second = (
            _winner(run, some, options, sizes) for run, some in zip(both, outcomes, strict=True)
        )
        _check_alike(options, first, second)
        pairs.append((first, second))
    return StoredRuns(both, outcomes, pairs)


def _check_alike(options: CompareOptions, left: Record, right: Record) -> None:
    for what in ("kernel", "device", "dtype", "sizes"):
        a, b = getattr(left.case, what), getattr(right.case, what)
        if a != b:
            raise CommandError(
                f"{options.left} and {options.right} differ in {what} ({_text(a)} and {_text(b)}); "
                "name runs of one problem on one device."
            )


def _winner(
    run: Run, every: Sequence[Outcome], options: CompareOptions, at: Mapping[str, int] | None
) -> Record:
    """Return the winner of a run, of `--impl` if it is named, at these sizes or those named."""
    sizes = _sizes(run, options) if at is None else at
    outcomes = [o for o in every if options.impl is None or o.case.impl == options.impl]
    dtype = run.dtype if "," not in run.dtype else options.dtype
    won = select(replace(run, sizes=sizes, dtype=dtype), outcomes).winner
    if won is None:
        raise CommandError(
            f"{run.id} holds no time that could be compared; name a run of `sweep` or `measure`."
        )
    return won


def _sizes(run: Run, options: CompareOptions) -> Mapping[str, int]:
    """Return the sizes to compare at. Those of `--sizes` are read by the kernel's Spec. Its file is
    executed for that, so one that the database names needs `--trust`, except a built-in kernel: an
    imported run could name any file."""
    if not options.sizes:
        if not run.sizes:
            raise CommandError(f"{run.id} holds several sizes; name one with --sizes.")
        return run.sizes
    if run.source not in catalog.kernel_names() and not options.trust:
        raise CommandError(
            f"--sizes needs the kernel of {run.id}, and reading it executes {run.source!r}, as the "
            "database names it; add --trust if you trust that file, or leave out --sizes."
        )
    return sizes_of(catalog.spec_of(run.source), options.sizes)


def _stored_page(options: CompareOptions, stored: StoredRuns, lines: Sequence[str]) -> Path:
    from workbench.reports.compare import page
    from workbench.reports.figures.curve_data import paired_curves

    run = replace(
        stored.runs[1],
        id=run_id("compare", stored.runs[1].kernel),
        engine="compare",
        name="runs",
        command=options.command,
        started=timestamp(),
    )
    outcomes, comparisons = list[Outcome](), []
    for n, pair in enumerate(stored.pairs):
        # the same config in both runs has the same key, but the page needs two different keys
        both = [replace(r, key=f"{n}{place}") for place, r in enumerate(pair)]
        names = (f"{r.case.impl} {label(r.case.config)} of {r.run}" for r in pair)
        outcomes += both
        comparisons.append(comparison_of(run, list(zip(both, names, strict=True)), None))
    curves = paired_curves(stored.runs, stored.outcomes)
    html = page(run, outcomes, comparisons, " ".join(lines), curves=curves)
    return write_run_page(folder_of(options.out, run.id), html)


def _text(value: object) -> str:
    return sizes_text(value) if isinstance(value, dict) else str(value)


# Kinds of operands


@dataclass(frozen=True)
class OperandKind:
    """One kind of operands: which options name it, which it refuses, and what compares it."""

    accepts: Callable[[CompareOptions], bool]
    refusals: Mapping[str, str]  # by option: a sentence with {} for all options that have it
    place: str  # module and function that compares, by the options and the console


def _is_for_apple(options: CompareOptions) -> bool:
    apple = [name for name in options.device if hardware.backend_of(name) == hardware.METAL]
    return bool(options.left and options.right and len(apple) == len(options.device) == 1)


NO_DEVICE = (
    "--device is for --triton, or names one Apple GPU, whose Metal kernels are emulated; to "
    "predict for another device use `workbench measure --device`."
)
NO_EXPECTATION = "--expect compares counters; name two files of ncu, or two runs of `profile`."
NO_OPERANDS = "--triton compares two compilers; leave out LEFT and RIGHT."
TRITON_RULE = "--triton compares machine code; leave out {}."
DEVICE_RULE = "With --device both operands are emulated and nothing runs on a GPU; leave out {}."
TRACE_RULE = "Traces are compared without measuring; leave out {}."
RUN_RULE = (
    "Two stored runs are compared without measuring; leave out {}, or name two operands to run on "
    "the GPU."
)

KINDS = (  # the first that accepts
    OperandKind(
        lambda options: options.triton is not None,
        {
            **dict.fromkeys(("left", "right"), NO_OPERANDS),
            **dict.fromkeys(("also", "require", "trust"), TRITON_RULE),
        },
        "compiler_comparison.compare_compilers",
    ),
    OperandKind(
        _is_for_apple,
        dict.fromkeys(("also", "expect", "impl"), DEVICE_RULE),
        "metal_comparison.compare_on_emulator",
    ),
    OperandKind(
        are_traces,
        {"device": NO_DEVICE, **dict.fromkeys(("also", "events_file"), TRACE_RULE)},
        "trace_comparison.compare_traces",
    ),
    OperandKind(
        lambda options: is_run(options.left) and is_run(options.right),
        {
            "device": NO_DEVICE,
            "expect": NO_EXPECTATION,
            **dict.fromkeys(("also", "events_file"), RUN_RULE),
        },
        "compare_command.compare_runs",
    ),
    OperandKind(lambda options: True, {"device": NO_DEVICE, "expect": NO_EXPECTATION}, ""),
)
