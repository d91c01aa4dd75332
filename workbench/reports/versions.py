"""Page of machine code before and after: two versions of the compiler, or two of a kernel."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.code.code_pair import MEANINGS, ORDER, CodePair, pairs_of, prediction_of, ranked
from workbench.data.clock import epoch_of
from workbench.data.comparison import ComparisonResult, Part, compared_part
from workbench.data.compiled_code import CodeVersions, CompiledCode
from workbench.data.impl_check import WORDS, worst_first
from workbench.data.record import Comparison, Outcome, Resources, Run, encode_plain
from workbench.data.units import amount, quantity
from workbench.data.verdict import STOPPED
from workbench.device.error_band import devices_words
from workbench.reports import render
from workbench.reports.tables import Columns, table
from workbench.spec import label, sizes_text

KIND = "code"  # of the runs that this page draws; `code.py` draws a listing
TITLES = {"compare": "Two compilers", "gate": "Changed kernels", "bisect": "Commits of a kernel"}
BAD = ("FAILS", "WORSE")


@dataclass(frozen=True)
class CodeChanges:
    """What a run of kind `code` compared."""

    run: Run
    pairs: Sequence[CodePair]
    seconds: float
    interrupted: bool = False

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
    return CodeChanges(run, pairs_of(run, outcomes, comparisons), seconds, state != "complete")


def code_result(changes: CodeChanges, words: Sequence[str] = ()) -> ComparisonResult:
    """Return the result of machine code. `words` are what else decides; the code of no config is
    the same."""
    pairs, versions = ranked(changes.pairs), changes.versions
    ended = [STOPPED] * changes.interrupted + ["SAME"] * (not pairs)
    more = {
        "interrupted": changes.interrupted,
        "tune_again": tune_again(pairs),
        "left_out": [{"reason": reason, "configs": many} for reason, many in changes.left_out],
    }
    names, parts = (versions.before, versions.after), [_part(pair) for pair in pairs]
    return ComparisonResult(
        "machine code", *names, conclusion(changes), parts, [*words, *ended], more
    )


def _part(pair: CodePair) -> Part:
    both, name = (pair.before, pair.after), f"{case_name(pair)} on {pair.case.device}"
    names = ("worse", "better", "tuned", "predicted_ratio", "unmeasured")
    facts = {"code": pair.word, **{each: getattr(pair, each) for each in names}}
    verdict = encode_plain(pair.measured)
    return compared_part(name, pair.decided, pair.reasons, both, verdict=verdict, **facts)


def page(
    run: Run, outcomes: Sequence[Outcome], comparisons: Sequence[Comparison], state: str | None
) -> str:
    """Return the page of a run as HTML."""
    return changes_page(changes_of(run, outcomes, comparisons, state))


def changes_page(changes: CodeChanges) -> str:
    """Return the page as HTML."""
    pairs = ranked(changes.pairs)
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
        rows=pair_rows(changed_pairs(pairs), config=True, whole=True),
        same=sum(pair.word == "SAME" for pair in pairs),
        commands=tune_again(pairs),
        measured=was_measured(pairs),
        errors=code_errors(changed_pairs(pairs)),
    )


def first_word(changes: CodeChanges, pairs: Sequence[CodePair]) -> str:
    """Return the worst word of the page: WRONG before all words of code, of pairs that are
    ranked."""
    if any(check.state == "wrong" for check in changes.versions.checks):
        return WORDS["wrong"]
    return next((pair.word for pair in pairs), "SAME")


def changed_pairs(pairs: Sequence[CodePair]) -> list[CodePair]:
    """Return the pairs whose code differs, what got worse first."""
    return [pair for pair in ranked(pairs) if pair.word != "SAME"]


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
    if changes.interrupted and len(pairs) == versions.configs and each == "config":
        known = amount(sum(pair.measured is not None for pair in pairs), "verdict")
        text += f" The measurement was stopped; {known} so far."
    elif changes.interrupted:
        so_far = f"{len(pairs)} of {versions.configs}" if versions.configs else f"{len(pairs)}"
        text += f" It was stopped after {so_far}; the same command goes on from there."
    if was_measured(pairs):
        return text + _verdicts(pairs)
    return text + " Nothing ran: WORSE is suspected, and a GPU decides." * ("WORSE" in counts)


def code_errors(pairs: Sequence[CodePair]) -> list[str]:
    """Return the error of the pairs' predicted times as a sentence for each device that has any."""
    timed = {(pair.case.device, pair.case.kernel) for pair in pairs if pair.is_predicted}
    return devices_words(sorted(timed))


def was_measured(pairs: Sequence[CodePair]) -> bool:
    """Return whether a GPU was asked about any of the pairs."""
    return any(pair.measured or pair.unmeasured for pair in pairs)


def _verdicts(pairs: Sequence[CodePair]) -> str:
    """Return in one sentence what a GPU said of the suspected pairs."""
    tried = [pair for pair in pairs if pair.measured or pair.unmeasured]
    counts = Counter(pair.measured.word if pair.measured else "without a time" for pair in tried)
    words = ", ".join(f"{n} {word}" for word, n in counts.most_common())
    others = sum(pair.word == "WORSE" for pair in pairs) - len(tried)
    rest = f"; {others} on other devices remain suspected" if others else ""
    return f" Measured on the {tried[0].case.device} that is here: {words}{rest}."


def measured_text(pair: CodePair) -> str:
    """Return ratio, interval and word of the verdict on a pair, or why it has none."""
    if pair.measured is None:
        return pair.unmeasured
    time = pair.measured.time
    return f"{time.middle:.3f}x ({time.low:.3f} to {time.high:.3f}) {pair.measured.word}"


def tune_again(pairs: Sequence[CodePair]) -> list[str]:
    """Return the commands that tune again each tuned config whose machine code differs."""
    texts = []
    for pair in ranked(pairs):
        if pair.tuned and pair.word != "SAME":
            case = pair.case
            words = ["python", "-m", "workbench.sweep", "tile_size", "--kernel", case.kernel,
                     "--impl", case.impl, "--sizes", sizes_text(case.sizes), "--dtype",
                     case.dtype]  # fmt: skip
            texts.append(f"{shlex.join(words)}  # {case.device}, {pair.word}, tuned {pair.tuned}")
    return texts


def word_table(changes: CodeChanges) -> dict[str, Any]:
    """Return how many configs of each device have which word."""
    counts = Counter((pair.case.device, pair.word) for pair in changes.pairs)
    present = [w for w in ORDER if any(word == w for _, word in counts)]
    words = [(word, lambda device, word=word: str(counts[device, word])) for word in present]
    return table([("device", str), *words], changes.versions.devices)


KERNEL, SHARED, MIX = "kernel", "shared, KiB", "instruction mix"
MEASURED, CHANGED = "measured", "what changed"
TEXTS = (KERNEL, "device", MEASURED, CHANGED, MIX)  # set to the left


def pair_rows(pairs: Sequence[CodePair], config: bool, whole: bool = False) -> dict[str, Any]:
    """Return one row a pair, with the config if asked; `a > b` is before and after. `whole` rows
    also have the shared memory and the instruction mix of the hot loop."""
    left_out = set() if was_measured(pairs) else {MEASURED}
    left_out |= set() if whole else {SHARED, MIX}
    columns = [(head, cell) for head, cell in COLUMNS if head not in left_out]
    if config:
        columns[1] = (KERNEL, case_name)
    text = tuple(n for n, (head, _) in enumerate(columns) if head in TEXTS)
    return table(columns, pairs, bad=lambda pair: pair.word in BAD, text=text)


def impl_name(pair: CodePair) -> str:
    """Return the name of a pair's Impl: `matmul.tiles (tuned)`."""
    return f"{pair.case.kernel}.{pair.case.impl}" + (" (tuned)" if pair.tuned else "")


def case_name(pair: CodePair) -> str:
    """Return the name of a pair's Impl with config, sizes and dtype."""
    case = pair.case
    return f"{impl_name(pair)} {label(case.config)}; {sizes_text(case.sizes, ' ')} {case.dtype}"


def mix_text(pair: CodePair) -> str:
    """Return the instructions of both hot loops by kind: `matrix 8, integer 30 > 41`; those of all
    code, in brackets, where one has no loop."""
    both = [o.code for o in (pair.before, pair.after) if o.code]
    loops = [f.loop for f in both if f.loop]
    whole = len(loops) < len(both)
    mixes = [f.groups for f in both] if whole else [loop.groups for loop in loops]
    texts = []
    for kind in dict.fromkeys(kind for mix in mixes for kind in mix):
        counts = [str(mix.get(kind, 0)) for mix in mixes]
        texts.append(f"{kind} {counts[0] if len(set(counts)) == 1 else ' > '.join(counts)}")
    text = ", ".join(texts)
    return f"({text})" if whole and text else text


NARROW = ("", "kernel", "device", "registers", "scratch", "occup. %", "loop", "predicted")


def narrow_rows(pairs: Sequence[CodePair]) -> dict[str, Any]:
    """Return the same rows for a narrow terminal: no config, no reasons, and the ratio of the
    predicted times."""
    measured, rows = was_measured(pairs), []
    for pair, (cells, bad) in zip(pairs, pair_rows(pairs, config=False)["rows"], strict=True):
        ratio = pair.predicted_ratio
        verdict = [measured_text(pair)] if measured else []
        rows.append(([*cells[:7], "-" if ratio is None else f"~{ratio:.2f}x", *verdict], bad))
    more = ["measured"] if measured else []
    return {"heads": [*NARROW, *more], "rows": rows, "text": (1, 2, *(8 for _ in more))}


def _both(pair: CodePair, cell: Callable[[CompiledCode, Resources], str]) -> str:
    """Return a cell before and after; one text where both are equal."""
    both = pair.before, pair.after
    texts = [cell(o.code, o.resources) if o.code and o.resources else "-" for o in both]
    return " > ".join(dict.fromkeys(texts))


def _predicted_text(pair: CodePair) -> str:
    known = [prediction_of(o) for o in (pair.before, pair.after)]
    texts = [f"~{quantity(one.predicted_s, 's')}" if one else "-" for one in known]
    return " > ".join(dict.fromkeys(texts))


def _loop(code: CompiledCode, _: Resources) -> str:
    return str(code.loop.instructions) if code.loop else "-"


COLUMNS: Columns = (
    ("", lambda pair: pair.word),
    (KERNEL, impl_name),
    ("device", lambda pair: pair.case.device),
    ("registers", lambda pair: _both(pair, lambda _, r: str(r.registers))),
    ("scratch, B", lambda pair: _both(pair, lambda _, r: str(r.spill_bytes))),
    (SHARED, lambda pair: _both(pair, lambda _, r: f"{r.shared_bytes / 1024:.4g}")),
    ("occupancy, %", lambda pair: _both(pair, lambda _, r: f"{100 * r.occupancy:.0f}")),
    ("loop", lambda pair: _both(pair, _loop)),
    ("predicted", _predicted_text),
    (MEASURED, measured_text),
    (CHANGED, lambda pair: pair.reasons or "other instructions"),
    (MIX, mix_text),
)
