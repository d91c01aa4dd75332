"""Console output: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from workbench.commands.progress import EVERY_S, ProgressLines, redirection
from workbench.data.files import is_output
from workbench.data.units import amount, console_microseconds
from workbench.spec import label

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from workbench.backend.protocol import Problem
    from workbench.data.record import Outcome, Record, Run
    from workbench.tuner.engine import TimeBreakdown
    from workbench.tuner.finals import Step
    from workbench.tuner.portfolio import Portfolio
    from workbench.tuner.space import Plan

BAR = 12  # characters
COUNTED = ("compiled", "duplicate", "wrong", "failed", "measured", "predicted", "unpredicted")
CONCLUDED = ("measured", "predicted", "unpredicted", "duplicate", "wrong", "failed", "refused")
STEPS = {
    "halving": "halving of {}",
    "final": "final of {}",
    "hot": "the winner, hot",
    "sanitize": "compute-sanitizer on {}",
    "energy": "energy of {}",
    "libraries": "{} libraries in turns with the winner",
}


# Control characters but for line ends and tabs, half characters, and characters that turn the
# direction of what follows: a terminal obeys them, and text from a file must not command it.
_COMMANDS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


class Output(Protocol):
    """Options that say where a command's result goes."""

    @property
    def json(self) -> Path | None:
        """File for the JSON document; `-` is standard output."""

    @property
    def quiet(self) -> bool:
        """Whether to print only the result."""


def is_stdout(path: Path | None) -> bool:
    """Return whether an option names standard output, which then is for its content alone."""
    return path is not None and is_output(path)


def clean(text: str) -> str:
    """Return text without the characters that a terminal obeys: escape sequences show as letters,
    and do nothing."""
    return _COMMANDS.sub("", text)


def say(text: str, err: bool = False) -> None:
    """Print a line to standard output, or to standard error; all output of commands goes through
    this or through a console of this module."""
    to = redirection()
    out = sys.stdout if to is None else to.output
    print(clean(text), file=sys.stderr if err else out)


def note(text: str) -> None:
    """Print a note of one line to standard error."""
    say(f"note: {' '.join(text.splitlines())}", err=True)


class _Clean:
    """Renderables whose text is cleaned after it is laid out, and before it is styled."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = parts

    def __rich_console__(self, console: Console, options: Any) -> Iterator[Any]:
        from rich.segment import Segment

        for part in self.parts:
            for segment in console.render(part, options):
                if segment.control:
                    yield segment
                else:
                    yield Segment(clean(segment.text), segment.style)


class _Cleaning:
    """A hook of a console that cleans all that it prints."""

    def process_renderables(self, renderables: list[Any]) -> list[Any]:
        """Return what is printed instead: the same, cleaned."""
        return [_Clean([part]) for part in renderables]


def plain_console(stderr: bool = False) -> Console:
    """Return a console that interprets neither markup nor control characters, which the compiler's
    messages and imported data could contain. A file or a pipe gets a width of 240 columns, so that
    nothing is truncated."""
    from rich.console import Console

    # Rich displays what it prints in a notebook, and writes nothing of it to `file`.
    plain = {"highlight": False, "markup": False, "emoji": False, "force_jupyter": False}
    plain["stderr"] = stderr
    if (to := redirection()) is not None:
        # Kernels of Jupyter set FORCE_COLOR, but what goes to a caller is text.
        plain |= {"file": to.output, "force_terminal": False}  # type: ignore[dict-item]
    console = Console(**plain)  # type: ignore[arg-type]
    if not console.is_terminal:
        console = Console(**plain, width=240)  # type: ignore[arg-type]
    console.push_render_hook(_Cleaning())  # type: ignore[arg-type]
    return console


def console_for(options: Output) -> Console:
    """Return the console of a command. With `--quiet` it prints nothing but `say_result`. See
    `prints_aside`."""
    console = plain_console(stderr=prints_aside(options))
    console.quiet = options.quiet
    return console


def prints_aside(options: Output) -> bool:
    """Return whether a command prints to standard error, as standard output is that of
    `--json -`, `--events-file -` or `--markdown -`."""
    named = options.json, getattr(options, "events_file", None), getattr(options, "markdown", None)
    return any(map(is_stdout, named))


def say_result(console: Console, text: str, style: str | None = None, whole: bool = True) -> None:
    """Print a line of the result, also where `--quiet` was given; `whole` ones are not wrapped, so
    that they can be copied."""
    with aloud(console):
        console.print(text, style=style, soft_wrap=whole)


@contextmanager
def aloud(console: Console) -> Iterator[None]:
    """Return a context manager in which a quiet console prints: for the result itself."""
    quiet, console.quiet = console.quiet, False
    try:
        yield
    finally:
        console.quiet = quiet


def start_live(console: Console, draw: Callable[[], Text]) -> Live:
    """Return a display below all other output, which shows what `draw` returns, five times a
    second, and which its end removes."""
    from rich.live import Live

    live = Live(
        get_renderable=draw,
        console=console,
        refresh_per_second=5,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    live.start()
    return live


class SweepConsole:
    """The output of a sweep. With `quiet`, only the result and the path of the page."""

    def __init__(self, quiet: bool, stderr: bool = False) -> None:
        self.console = plain_console(stderr)
        self.console.soft_wrap = not self.console.is_terminal  # whole lines for a file or a pipe
        self.quiet = quiet
        self._redirection = redirection()
        self._live: Any = None
        self._lines: ProgressLines | None = None  # where no terminal is
        self._line = ProgressLine()

    def begin(self, run: Run, plan: Plan, earlier: int, failed: int = 0) -> None:
        """Print the problem and the device, then start the bar. Of the `earlier` outcomes so many
        have `failed`."""
        from workbench.device.hardware import METAL, backend_of

        if self.quiet:
            return
        style = "bold yellow" if run.predicted else "bold"
        impls = [c.impl for c in plan.candidates if c.impl is not None]
        from_code = bool(impls) and all(impl.work is None for impl in impls)
        self.console.print(plan_line(run, from_code), style=style)
        if run.predicted and backend_of(run.device) == METAL:
            self.console.print(_silence_note(plan.problem, run.device))
        if reasons := {impl.name: impl.unchecked_reason for impl in impls if impl.unchecked_reason}:
            every = len(reasons) == len({impl.name for impl in impls})
            whose = "Results" if every else f"Results of {', '.join(reasons)}"
            text = f"{whose} are not checked here: {next(iter(reasons.values()))}"
            self.console.print(text, style="bold yellow")
        sizes = [f"{k} = {v}" for k, v in run.sizes.items()]
        self.console.print(f"{', '.join([run.kernel, *sizes, run.dtype])}; sweep {run.name}")
        counts = f"{amount(len(plan.candidates), 'config')} to try"
        if plan.left_out:
            counts += f" (the model's best of {len(plan.candidates) + plan.left_out})"
        if plan.failures:
            counts += f", {len(plan.failures)} refused beforehand"
        if earlier:
            counts += f", {earlier} known from earlier runs"
        if failed:
            counts += f" ({failed} of them failed; --fresh tries all again)"
        self.console.print(counts)
        self._line = ProgressLine(len(plan.candidates), earlier)
        self._show()
        if self.console.is_terminal and not self.console.is_dumb_terminal:
            self._live = start_live(self.console, self._draw)
        elif self._redirection is None:
            self._lines = ProgressLines(lambda: self._line.plain, self.console.print, EVERY_S)

    def first_recommendation(self, sentence: str, done: int, total: int) -> None:
        """Print what is the best so far, long before all configs are tried."""
        if not self.quiet:
            text = f"First recommendation, after {done} of {total} configs: {sentence}"
            self.console.print(text, style="bold")

    def so_far(self, best: Record, measured: int) -> None:
        """Print the best config of those that were measured so far."""
        if not self.quiet:
            time_us = console_microseconds(best.time_s)
            text = f"So far, of {measured} configs: {best.case.label}, {time_us}"
            self.console.print(text)

    def print_joining(self, known: int) -> None:
        """Print how many configs another process obtained meanwhile."""
        self._line.earlier += known
        if not self.quiet:
            self.console.print(f"{known} more were obtained by another process.")

    def again(self, run: Run, failed: int = 0) -> None:
        """Print that an earlier run holds every outcome, of which so many have `failed`."""
        if not self.quiet:
            self.console.print(plan_line(run), style="bold yellow" if run.predicted else "bold")
            without = f", where {failed} configs have no time" if failed else ""
            self.console.print(
                f"Nothing was left to obtain after the run {run.id}{without}; --fresh redoes it."
            )

    def warn(self, message: str) -> None:
        """Print a note to standard error about a problem that affects no outcome."""
        note(message)

    def portfolio(self, chosen: Portfolio, file: Path) -> None:
        """Print the smallest set of configs that serves all sizes, and the config for each size."""
        from workbench.reports.tables import text_table

        many, sizes = len(chosen.members), len(chosen.served)
        least = "" if chosen.exact else " (a smaller set may exist: the search was cut short)"
        self.console.print(
            f"{many} config{'s' * (many > 1)} serve{'s' * (many == 1)} {sizes} sizes within "
            f"{100 * chosen.within:.0f} % of each one's best, by the times of "
            f"the first pass{least}.",
            style="bold",
        )
        rows = (
            (size, served.member, f"{100 * (served.ratio - 1):.1f} %")
            for size, served in chosen.served.items()
        )
        heads = ("sizes", "config", "off its best")
        self.console.print(text_table(heads, rows, heads[-1:]))
        self.console.print(f"portfolio  {file}", soft_wrap=True)

    def _draw(self) -> Text:
        unicode = self.console.encoding.startswith("utf")
        return self._line.draw(self.console.width - 1, "━─" if unicode else "#-")

    def update_counts(self, counts: Mapping[str, int]) -> None:
        """Update the counts of the live line."""
        self._line.counts = dict(counts)
        self._show()

    def saw(self, outcome: Outcome, counts: Mapping[str, int]) -> None:
        """Update the live line after one more outcome."""
        self._line.saw(outcome)
        self.update_counts(counts)

    def step(self, step: Step) -> None:
        """Show that all configs have been tried and a longer step begins."""
        self._line.step = STEPS[step.name].format(step.total)
        self._show()

    def _show(self) -> None:
        """Show the progress of a sweep that was called from Python."""
        if self._redirection is not None:
            line = self._line
            self._redirection.show(line.words, line.done_count, line.total)

    def end(self) -> None:
        """Remove the bar, or print no more lines of progress."""
        if self._lines is not None:
            self._lines.end()
            self._lines = None
        if self._live is not None:
            self._live.stop()
            self._live = None

    def print_stop(self) -> None:
        """Print how many configs were done at Ctrl-C, and that their outcomes are kept."""
        self.end()
        if not self.quiet:
            done = f"{self._line.done_count} of {self._line.total} configs"
            self.console.print(f"Stopped after {done}; the same command obtains the rest.")

    def conclude(
        self,
        sentence: str,
        counts: Mapping[str, int],
        breakdown: TimeBreakdown,
        page: Path,
        events: Path | None,
    ) -> None:
        """Print the result and the paths of its files, whole, so that they can be copied."""
        if not self.quiet:
            self.console.print(_words(counts, CONCLUDED))
            if "timed" in breakdown.seconds:
                self.console.print(breakdown_line(breakdown))
        self.console.print(sentence, style="bold")
        if not self.quiet and events is not None:
            self.console.print(f"events  {events}", soft_wrap=True)
        self.console.print(f"report  {page.resolve()}", soft_wrap=True)


@contextmanager
def doing(console: Console, message: str) -> Iterator[None]:
    """Return a context manager that shows `message` and the elapsed seconds on one live line, which
    is removed at the end. Without a terminal the line is printed once and stays."""
    if (to := redirection()) is not None:
        to.show(message)
    if console.quiet:
        yield
        return
    if not console.is_terminal or console.is_dumb_terminal:
        console.print(message, soft_wrap=True)
        yield
        return
    from rich.text import Text

    started = time.monotonic()

    def line() -> Text:
        spent = int(time.monotonic() - started)
        text = Text(f"{spent // 60}:{spent % 60:02d}  {message}", no_wrap=True, end="")
        text.truncate(console.width - 1, overflow="ellipsis")
        return text

    live = start_live(console, line)
    try:
        yield
    finally:
        live.stop()


def breakdown_line(breakdown: TimeBreakdown) -> str:
    """Return the time breakdown as text: `31.2 s: start 4.1, wait 6.0, check 3.2, timed 12.9, flush
    4.0, idle 1.0; 1210 configs a minute to the complete table`."""
    parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in breakdown.seconds.items())
    line = f"{sum(breakdown.seconds.values()):.1f} s: {parts}"
    if breakdown.configs_per_minute is not None:
        line += f"; {breakdown.configs_per_minute:.0f} configs a minute to the complete table"
    return line


class ProgressLine:
    """The live line: progress, counts of outcomes, the best so far, and the time left."""

    def __init__(self, total: int = 0, earlier: int = 0) -> None:
        self.total, self.earlier = total, earlier
        self.counts: Mapping[str, int] = {}
        self.step = ""  # what runs after all configs have been tried
        self.best: Record | None = None
        self._seen: set[str] = set()
        self._started = time.monotonic()

    @property
    def done_count(self) -> int:
        """Number of configs that have an outcome."""
        return min(len(self._seen), self.total)

    def saw(self, outcome: Outcome) -> None:
        """Update the best so far; final times outrank the first pass, which took fewer samples."""
        from workbench.data.record import Record

        if outcome.case.is_baseline:
            return
        if isinstance(outcome, Record) or outcome.stage != "refused":
            self._seen.add(outcome.key)
        if isinstance(outcome, Record) and outcome.phase != "hot":
            ranked = (outcome.phase == "final", -outcome.time_s)
            if self.best is None or ranked > (self.best.phase == "final", -self.best.time_s):
                self.best = outcome

    @property
    def words(self) -> str:
        """Return counts, the best so far and the time left."""
        parts = [self.step or _words(self.counts, COUNTED) or "starting workers"]
        return "  ".join(part for part in (*parts, *self._best(), self._time_left()) if part)

    @property
    def plain(self) -> str:
        """Return the line without the bar, for where no terminal is."""
        spent = int(time.monotonic() - self._started)
        return f"{spent // 60}:{spent % 60:02d}  {self.done_count}/{self.total}  {self.words}"

    def draw(self, width: int, bar: str = "━─") -> Text:
        """Return the line in at most `width` cells. The least important parts are dropped first:
        the config of the best, the bar, and then the end of the counts."""
        from rich.text import Text

        state = self.step or _words(self.counts, COUNTED) or "starting workers"
        known = [f"{self.done_count}/{self.total}", state, *self._best(), self._time_left()]
        config = f"({label(self.best.case.config)})" if self.best else ""
        parts = [part for part in known if part]
        line = Text(no_wrap=True, overflow="ellipsis", end="")
        room = width - len("  ".join(parts))
        if room >= BAR + 2:
            full = BAR * self.done_count // max(1, self.total)
            line.append(bar[0] * full, "green").append(bar[1] * (BAR - full), "dim").append("  ")
            room -= BAR + 2
        if config and room > len(config):
            parts[2] += f" {config}"
        elif room < 0:
            parts[1] = parts[1][: max(0, len(parts[1]) + room - 3)] + "..."
        line.append("  ".join(parts))
        line.truncate(width)
        return line

    def _best(self) -> list[str]:
        from workbench.data.selection import interval_of

        if self.best is None or interval_of(self.best):  # an interval names no best
            return []
        sign = "" if self.best.is_measured else "~"
        return [f"best {sign}{self.best.time_s * 1e6:.1f} us"]

    def _time_left(self) -> str:
        new = self.done_count - self.earlier
        if self.step or new <= 0:
            return ""
        spent = time.monotonic() - self._started
        left = round(spent / new * (self.total - self.done_count))
        return f"{left // 60}:{left % 60:02d} left"


def _words(counts: Mapping[str, int], words: tuple[str, ...]) -> str:
    return ", ".join(f"{counts[w]} {w}" for w in words if counts.get(w))


def _silence_note(problem: Problem, device: str) -> str:
    """Return what a sweep for an Apple GPU will not say."""
    from workbench.device.apple_model import unsaid
    from workbench.device.hardware import find_device

    spec, sizes = problem.spec, problem.sizes
    work = spec.flops(**sizes), spec.bytes(sizes, problem.dtype)
    return unsaid(find_device(device), problem.dtype, *work)


def plan_line(run: Run, from_code: bool = False) -> str:
    """Return the first line: measured on this GPU, or predicted for another device; by the model of
    code where the kernel declares no work (`from_code`)."""
    from workbench.device.apple_model import EMULATED
    from workbench.device.cost_model import CODE_MODELS
    from workbench.device.error_band import device_words
    from workbench.device.hardware import METAL, backend_of

    models = " ".join(CODE_MODELS) if from_code else ""
    error = device_words(run.device, run.kernel, models)
    model = "from the compiled code" if from_code else "by the analytic model"
    if run.predicted and backend_of(run.device) == METAL:
        return f"Times are predicted for {run.device}: {EMULATED}. {error}"
    if run.predicted:
        return (
            f"Times are predicted: no GPU took part. Compiled for {run.device}, checked in "
            f"Triton's interpreter, timed {model}. {error}"
        )
    return f"Times are measured on {run.environment.gpu or run.device}."
