"""Page of machine code before and after: two versions of the compiler, or two of a kernel."""

import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.code.compared_pair import (
    ORDER,
    ComparedPair,
    compared_pairs,
    prediction_of,
    rank_pairs,
)
from workbench.data.clock import epoch_of
from workbench.data.compiled_code import CodeVersions, CompiledCode
from workbench.data.impl_check import WORDS, worst_first
from workbench.data.record import Comparison, Outcome, Resources, Run
from workbench.data.units import amount, quantity
from workbench.device.error_band import devices_words
from workbench.reports import render
from workbench.reports.pair_texts import (
    MEANINGS,
    config_name,
    is_predicted,
    measured_text,
    name_with_sizes,
    what_changed,
)
from workbench.reports.tables import Columns, table
from workbench.spec import sizes_text

KIND = "code"  # of the runs that this page draws; `code.py` draws a listing
TITLES = {"compare": "Two compilers", "gate": "Changed kernels", "bisect": "Commits of a kernel"}
BAD = ("FAILS", "WORSE")


@dataclass(frozen=True)
class CodeChanges:
    """What a run of kind `code` compared."""

    run: Run
    pairs: Sequence[ComparedPair]
    seconds: float
    is_interrupted: bool = False

    @property
    def versions(self) -> CodeVersions:
        """Return the two versions, and what was to be compared."""
        assert self.run.versions is not None
        return self.run.versions

    @property
    def left_out(self) -> list[tuple[str, int]]:
        """Return what cannot be compared and how often, the most frequent first."""
        return Counter(self.versions.left_out).most_common()


def changes_of(
    run: Run, outcomes: Sequence[Outcome], comparisons: Sequence[Comparison], state: str | None
) -> CodeChanges:
    """Return what a run of kind `code` compared, by all that was stored of it."""
    ended_s = max((epoch_of(each.at) for each in (*outcomes, *comparisons)), default=0.0)
    seconds = max(0.0, ended_s - epoch_of(run.started))
    pairs = compared_pairs(run, outcomes, comparisons)
    return CodeChanges(run, pairs, seconds, state != "complete")


def page(
    run: Run, outcomes: Sequence[Outcome], comparisons: Sequence[Comparison], state: str | None
) -> str:
    """Return the page of a run as HTML."""
    return changes_page(changes_of(run, outcomes, comparisons, state))


def changes_page(changes: CodeChanges) -> str:
    """Return the page as HTML."""
    pairs = rank_pairs(changes.pairs)
    return render(
        "versions.html.j2",
        changes=changes,
        versions=changes.versions,
        title=TITLES[changes.run.engine],
        at=changes.run.started,
        command=changes.run.command,
        checks=worst_first(changes.versions.checks),
        word=first_word(changes, pairs),
        sentence=conclusion(changes),
        words=word_table(changes),
        meanings=[(word, MEANINGS[word]) for word in ORDER],
        rows=pair_rows(changed_pairs(pairs), COLUMNS),
        same=sum(pair.word == "SAME" for pair in pairs),
        commands=tune_again(pairs),
        measured=was_measured(pairs),
        errors=code_errors(changed_pairs(pairs)),
    )


def first_word(changes: CodeChanges, pairs: Sequence[ComparedPair]) -> str:
    """Return the worst word of the page, of ranked pairs: WRONG before all words of code."""
    if any(check.state == "wrong" for check in changes.versions.checks):
        return WORDS["wrong"]
    return next((pair.word for pair in pairs), "SAME")


def changed_pairs(pairs: Sequence[ComparedPair]) -> list[ComparedPair]:
    """Return the pairs whose code differs, what got worse first."""
    return [pair for pair in rank_pairs(pairs) if pair.word != "SAME"]


def conclusion(changes: CodeChanges) -> str:
    """Return the result in two or three sentences."""
    pairs, versions = changes.pairs, changes.versions
    counts = Counter(pair.word for pair in pairs)
    devices = amount(len({pair.case.device for pair in pairs}), "device")
    words = ", ".join(f"{counts[word]} {word}" for word in ORDER if counts[word])
    each = "commit" if changes.run.engine == "bisect" else "config"
    text = f"{amount(len(pairs), each)} on {devices}, {versions.before} to {versions.after}"
    text += f": {words}." if words else ": nothing to compare."
    if versions.unchanged:
        verb = "was" if versions.unchanged == 1 else "were"
        text += f" {amount(versions.unchanged, 'config')} of the same source {verb} not compiled."
    if again := tune_again(pairs):
        text += f" {amount(len(again), 'tuned config')} must be tuned again."
    if changes.is_interrupted and len(pairs) == versions.configs and each == "config":
        known = amount(sum(pair.verdict is not None for pair in pairs), "verdict")
        text += f" The measurement was stopped; {known} so far."
    elif changes.is_interrupted:
        so_far = f"{len(pairs)} of {versions.configs}" if versions.configs else f"{len(pairs)}"
        text += f" It was stopped after {so_far}; the same command goes on from there."
    if was_measured(pairs):
        return text + _verdicts(pairs)
    return text + " Nothing ran: WORSE is suspected, and a GPU decides." * ("WORSE" in counts)


def code_errors(pairs: Sequence[ComparedPair]) -> list[str]:
    """Return the error of the pairs' predicted times as a sentence for each device that has any."""
    timed = {(pair.case.device, pair.case.kernel) for pair in pairs if is_predicted(pair)}
    return devices_words(sorted(timed))


def was_measured(pairs: Sequence[ComparedPair]) -> bool:
    """Return whether a GPU was asked about any of the pairs."""
    return any(map(measured_text, pairs))


def _verdicts(pairs: Sequence[ComparedPair]) -> str:
    """Return in one sentence what a GPU said of the suspected pairs."""
    tried = [pair for pair in pairs if measured_text(pair)]
    counts = Counter(pair.verdict.word if pair.verdict else "without a time" for pair in tried)
    words = ", ".join(f"{n} {word}" for word, n in counts.most_common())
    others = sum(pair.word == "WORSE" for pair in pairs) - len(tried)
    rest = f"; {others} on other devices remain suspected" if others else ""
    return f" Measured on the {tried[0].case.device} that is here: {words}{rest}."


def tune_again(pairs: Sequence[ComparedPair]) -> list[str]:
    """Return the commands that tune again each tuned config whose machine code differs."""
    texts = []
    for pair in rank_pairs(pairs):
        tuned = pair.comparison.tuned
        if tuned and pair.word != "SAME":
            case = pair.case
            words = ["python", "-m", "workbench.sweep", "tile_size", "--kernel", case.kernel,
                     "--impl", case.impl, "--sizes", sizes_text(case.sizes), "--dtype",
                     case.dtype]  # fmt: skip
            texts.append(f"{shlex.join(words)}  # {case.device}, {pair.word}, tuned {tuned}")
    return texts


def word_table(changes: CodeChanges) -> dict[str, Any]:
    """Return how many configs of each device have which word."""
    counts = Counter((pair.case.device, pair.word) for pair in changes.pairs)
    present = [w for w in ORDER if any(word == w for _, word in counts)]
    words = [(word, lambda device, word=word: str(counts[device, word])) for word in present]
    return table([("device", str), *words], changes.versions.devices)


KERNEL, MIX = "kernel", "instruction mix"
MEASURED, CHANGED = "measured", "what changed"
TEXTS = (KERNEL, "device", MEASURED, CHANGED, MIX)  # set to the left


def pair_rows(pairs: Sequence[ComparedPair], columns: Columns) -> dict[str, Any]:
    """Return one row per pair; `a > b` is before and after."""
    shown = [c for c in columns if c[0] != MEASURED or was_measured(pairs)]
    text = tuple(n for n, (head, _) in enumerate(shown) if head in TEXTS)
    return table(shown, pairs, bad=lambda pair: pair.word in BAD, text=text)


def mix_text(pair: ComparedPair) -> str:
    """Return the instructions of both hot loops by kind: `matrix 8, integer 30 > 41`; those of all
    code, in brackets, where one has no loop."""
    both = [o.code for o in pair.outcomes if o.code]
    loops = [f.loop for f in both if f.loop]
    whole = len(loops) < len(both)
    mixes = [f.groups for f in both] if whole else [loop.groups for loop in loops]
    texts = []
    for kind in dict.fromkeys(kind for mix in mixes for kind in mix):
        counts = [str(mix.get(kind, 0)) for mix in mixes]
        texts.append(f"{kind} {counts[0] if len(set(counts)) == 1 else ' > '.join(counts)}")
    text = ", ".join(texts)
    return f"({text})" if whole and text else text


def changed_text(pair: ComparedPair) -> str:
    """Return what differs in the machine code; empty where it is not known."""
    if pair.change is None:
        return ""
    same = "the same machine code" if pair.change.word == "SAME" else "other instructions"
    return what_changed(pair) or same


def _both(pair: ComparedPair, cell: Callable[[CompiledCode | None, Resources], str]) -> str:
    """Return a cell before and after; one text where both are equal."""
    texts = [cell(o.code, o.resources) if o.resources else "-" for o in pair.outcomes]
    return " > ".join(dict.fromkeys(texts))


def _predicted_text(pair: ComparedPair) -> str:
    known = [prediction_of(o) for o in pair.outcomes]
    texts = [f"~{quantity(one.predicted_s, 's')}" if one else "-" for one in known]
    return " > ".join(dict.fromkeys(texts))


def _loop(code: CompiledCode | None, _: Resources) -> str:
    return str(code.loop.instructions) if code and code.loop else "-"


def _ratio_text(pair: ComparedPair) -> str:
    ratio = pair.predicted_ratio
    return "-" if ratio is None else f"~{ratio:.2f}x"


COLUMNS: Columns = (
    ("", lambda pair: pair.word),
    (KERNEL, config_name),
    ("device", lambda pair: pair.case.device),
    ("registers", lambda pair: _both(pair, lambda _, r: str(r.registers))),
    ("scratch, B", lambda pair: _both(pair, lambda _, r: str(r.spill_bytes))),
    ("shared, KiB", lambda pair: _both(pair, lambda _, r: f"{r.shared_bytes / 1024:.4g}")),
    ("occupancy, %", lambda pair: _both(pair, lambda _, r: f"{100 * r.occupancy:.0f}")),
    ("loop", lambda pair: _both(pair, _loop)),
    ("predicted", _predicted_text),
    (MEASURED, measured_text),
    (CHANGED, changed_text),
    (MIX, mix_text),
)
# of a terminal: without shared memory and instruction mix; without the config, too; and without the
# reasons, for the narrowest, with the ratio of the predicted times
WIDEST = (*COLUMNS[:5], *COLUMNS[6:11])
WIDE = (COLUMNS[0], (KERNEL, name_with_sizes), *WIDEST[2:])
_SHORT = {"scratch, B": "scratch", "occupancy, %": "occup. %"}
NARROW: Columns = (
    *((_SHORT.get(head, head), cell) for head, cell in WIDE[:7]),
    ("predicted", _ratio_text),
    (MEASURED, measured_text),
)
