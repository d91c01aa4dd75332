"""Results of the API: what every one of them offers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.api.call import Called
from workbench.api.outcome_table import outcome_table, time_text
from workbench.commands.result import RunResult, json_text
from workbench.data.files import write_file
from workbench.data.record import Failure, Measured, Outcome, Predicted, Record, Run
from workbench.device.error_band import factor_words
from workbench.spec import WorkbenchError, sizes_text

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class BestConfig:
    """A config with its time. `record` holds all else that is known of it."""

    record: Record

    @property
    def kernel(self) -> str:
        """Name of the kernel."""
        return self.record.case.kernel

    @property
    def impl(self) -> str:
        """Name of the Impl."""
        return self.record.case.impl

    @property
    def config(self) -> Mapping[str, int]:
        """Value of each knob by its name; empty for a library baseline."""
        return self.record.case.config

    @property
    def sizes(self) -> Mapping[str, int]:
        """Extent of each axis by its name."""
        return self.record.case.sizes

    @property
    def timing(self) -> Measured | Predicted:
        """The time with its interval and protocol, or with the terms of the model."""
        return self.record.timing

    @property
    def predicted(self) -> bool:
        """Whether the time is the model's: no GPU took part."""
        return not self.record.is_measured

    @property
    def time_s(self) -> float:
        """Seconds of one call: the median if measured, the model's if `predicted`."""
        return self.record.time_s

    @property
    def gbps(self) -> float:
        """Least bytes of a call over its time, in GB/s."""
        return self.record.bytes / self.time_s / 1e9

    @property
    def tflops(self) -> float:
        """FLOPs of a call over its time, in TFLOP/s."""
        return self.record.flops / self.time_s / 1e12

    def __repr__(self) -> str:
        case = self.record.case
        at = f"{sizes_text(case.sizes)}, {case.dtype}"
        return f"<{self.kernel} {case.label} at {at}: {time_text(self.record)} on {case.device}>"

    def _repr_html_(self) -> str:
        from workbench.api.notebook import card

        case = self.record.case
        kind = f"{'predicted' if self.predicted else 'measured'} on {case.device}"
        sentence = f"{self.kernel} {case.label}: {time_text(self.record)}"
        return card(kind, self.predicted, sentence, outcome_table([self.record], []))


class Result:
    """The result of a command.

    It shows itself in a notebook: the answer, a figure, and the first ten rows. A predicted time is
    marked as such everywhere, and stands in a column of its own.
    """

    def __init__(self, called: Called) -> None:
        """Take the result of a command."""
        self._called = called

    @property
    def runs(self) -> tuple[RunResult, ...]:
        """Runs of the command, each with its outcomes, its page and its events file."""
        return self._called.result.runs

    @property
    def run(self) -> Run:
        """The last run. Raises WorkbenchError where the command obtained none."""
        return self._last.run

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """Records and failures of all runs."""
        return tuple(outcome for run in self.runs for outcome in run.outcomes)

    @property
    def records(self) -> tuple[Record, ...]:
        """Outcomes with a time."""
        return tuple(o for o in self.outcomes if isinstance(o, Record))

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Outcomes without a time; each has a stage and a reason."""
        return tuple(o for o in self.outcomes if isinstance(o, Failure))

    @property
    def predicted(self) -> bool:
        """Whether times are predicted: no GPU took part."""
        return any(result.run.predicted for result in self.runs)

    @property
    def exit_code(self) -> int:
        """Exit code that the command line ends with; docs/commands.md lists them."""
        return self._called.result.exit_code

    @property
    def sentence(self) -> str:
        """The answer in one sentence."""
        return self._called.text.strip().splitlines()[-1] if self._called.text.strip() else ""

    @property
    def page(self) -> Path:
        """Page of the last run, an HTML file. Raises WorkbenchError where there is none."""
        page = self._last.page
        if page is None:
            raise WorkbenchError(f"`{self._called.result.command}` drew no page of this run.")
        return page

    def frame(self) -> pandas.DataFrame:
        """Return the outcomes as a DataFrame, one row each; docs/api.md lists the columns."""
        from workbench.api.frames import outcomes_frame

        return outcomes_frame(self.outcomes)

    def plot(self) -> Figure:
        """Return the figure, drawn on white by matplotlib; `figure.savefig(path)` stores it. Raises
        WorkbenchError where there is nothing to draw."""
        from workbench.api.figures import notebook_figure
        from workbench.reports import light_inks, use_inks

        inks = light_inks()
        with use_inks(inks):
            figure = self._figure()
        if figure is None:
            raise WorkbenchError("There is nothing to draw: this result has no number.")
        return notebook_figure(figure, inks)

    def plain(self) -> dict[str, Any]:
        """Return the JSON document of the command as plain data; docs/commands.md describes it."""
        plain: dict[str, Any] = json.loads(json_text(self._called.result.document()))
        return plain

    def json(self, path: str | Path | None = None) -> str:
        """Return the JSON document of the command, and write it to `path` if one is named. Raises
        FileError where it cannot be written."""
        text = json_text(self._called.result.document())
        if path is not None:
            write_file(Path(path), text, make_folder=True)
        return text

    def __str__(self) -> str:
        """Return what the command line prints."""
        return self._called.text.rstrip("\n")

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.sentence}>"

    def _repr_html_(self) -> str:
        from workbench.api.notebook import html_of

        return html_of(self)

    @property
    def _last(self) -> RunResult:
        if not self.runs:
            raise WorkbenchError(
                f"`{self._called.result.command}` obtained no run with these options."
            )
        return self.runs[-1]

    @property
    def _kind(self) -> str:
        """How the numbers were obtained, and on which device; empty without a run."""
        devices = ", ".join(dict.fromkeys(result.run.device for result in self.runs))
        if not devices:
            return ""
        if self.predicted:
            error = factor_words(self.records)
            is_repeated = not error or "times the predicted" in self.sentence
            return f"predicted for {devices}: no GPU took part{'' if is_repeated else f'; {error}'}"
        return f"measured on {devices}"

    def _figure(self) -> Figure | None:
        """Return the figure in the colours of `reports.colour`; None without a number."""
        return None

    def _table(self) -> tuple[Sequence[str], list[Sequence[str]]]:
        """Return the heads and the cells of the table in a notebook."""
        return outcome_table(self.records, self.failures)


def only(best: Sequence[BestConfig], what: str) -> BestConfig:
    """Return the best config of the one problem. Raises WorkbenchError for none or several: times
    at different sizes are not ranked against each other."""
    if len(best) == 1:
        return best[0]
    if not best:
        raise WorkbenchError(f"No config gave a time: {what}")
    raise WorkbenchError(
        f"There is a best config for each of {len(best)} sizes and dtypes; `bests` lists them."
    )
