"""Page of machine code before and after: two versions of the compiler, or two of a kernel."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.code.code_pair import MEANINGS, ORDER, CodePair, ranked
from workbench.data.compiled_code import CompiledCode
from workbench.data.impl_check import WORDS, ImplCheck, worst_first
from workbench.data.units import amount, quantity
from workbench.device.error_band import devices_words
from workbench.reports import render
from workbench.spec import label, sizes_text

BAD = ("FAILS", "WORSE")


@dataclass(frozen=True)
class CodeChanges:
    """Everything that a page shows."""

    title: str
    before: str  # "Triton 3.6.0", or a revision
    after: str
    devices: Sequence[str]
    pairs: Sequence[CodePair]
    left_out: Sequence[tuple[str, int]]  # reason, number of configs
    command: str
    at: str
    seconds: float
    interrupted: bool = False
    of: int = 0  # configs to compile, where it was interrupted
    unchanged: int = 0  # configs that were not compiled, as their source is the same
    checks: Sequence[ImplCheck] = ()  # of the results of changed Impls


def page(changes: CodeChanges) -> str:
    """Return the page as HTML."""
    pairs = ranked(changes.pairs)
    return render(
        "compilers.html.j2",
        changes=changes,
        checks=worst_first(changes.checks),
        word=first_word(changes, pairs),
        conclusion=conclusion(changes),
        words=word_table(changes),
        meanings=[(word, MEANINGS[word]) for word in ORDER],
        rows=pair_rows(changed(pairs), config=True, whole=True),
        same=sum(pair.word == "SAME" for pair in pairs),
        commands=tune_again(pairs),
        left_out=changes.left_out,
        measured=was_measured(pairs),
        errors=code_errors(changed(pairs)),
    )


def first_word(changes: CodeChanges, pairs: Sequence[CodePair]) -> str:
    """Return the worst word of the page: WRONG before all words of code, of pairs that are
    ranked."""
    if any(check.state == "wrong" for check in changes.checks):
        return WORDS["wrong"]
    return next((pair.word for pair in pairs), "SAME")


def changed(pairs: Sequence[CodePair]) -> list[CodePair]:
    """Return the pairs whose code differs, what got worse first."""
    return [pair for pair in ranked(pairs) if pair.word != "SAME"]


def conclusion(changes: CodeChanges) -> str:
    """Return the result in two or three sentences."""
    pairs = changes.pairs
    counts = Counter(pair.word for pair in pairs)
    devices = amount(len({pair.case.device for pair in pairs}), "device")
    words = ", ".join(f"{counts[word]} {word}" for word in ORDER if counts[word])
    text = f"{amount(len(pairs), 'config')} on {devices}, {changes.before} to {changes.after}"
    text += f": {words}." if words else ": nothing to compare."
    if changes.unchanged:
        verb = "was" if changes.unchanged == 1 else "were"
        text += f" {amount(changes.unchanged, 'config')} of the same source {verb} not compiled."
    if again := tune_again(pairs):
        text += f" {amount(len(again), 'tuned config')} must be tuned again."
    if changes.interrupted and len(pairs) == changes.of:
        known = amount(sum(pair.measured is not None for pair in pairs), "verdict")
        text += f" The measurement was stopped; {known} so far."
    elif changes.interrupted:
        text += (
            f" It was stopped after {len(pairs)} of {changes.of}; the same command goes on from "
            "there."
        )
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
    present = [w for w in ORDER if any(pair.word == w for pair in changes.pairs)]
    rows = []
    for device in changes.devices:
        counts = Counter(pair.word for pair in changes.pairs if pair.case.device == device)
        rows.append(([device, *(str(counts[word]) for word in present)], False))
    return {"heads": ["device", *present], "rows": rows}


KERNEL, SHARED, MIX = "kernel", "shared, KiB", "instruction mix"
MEASURED, CHANGED = "measured", "what changed"


@dataclass(frozen=True)
class PairColumn:
    """A column of the table of pairs; `text` is set to the left and may be broken."""

    heading: str
    cell: Callable[[CodePair], str]
    text: bool = False


def pair_rows(pairs: Sequence[CodePair], config: bool, whole: bool = False) -> dict[str, Any]:
    """Return one row a pair, with the config if asked; `a > b` is before and after. `whole` rows
    also have the shared memory and the instruction mix of the hot loop."""
    left_out = set() if was_measured(pairs) else {MEASURED}
    left_out |= set() if whole else {SHARED, MIX}
    columns = [column for column in COLUMNS if column.heading not in left_out]
    name = case_name if config else impl_name
    rows = [
        ([name(p) if c.heading == KERNEL else c.cell(p) for c in columns], p.word in BAD)
        for p in pairs
    ]
    text = tuple(n for n, column in enumerate(columns) if column.text)
    return {"heads": [column.heading for column in columns], "rows": rows, "text": text}


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
    both = [f for f in (pair.before, pair.after) if isinstance(f, CompiledCode)]
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
    wide = pair_rows(pairs, config=False)
    rows = []
    for pair, (cells, bad) in zip(pairs, wide["rows"], strict=True):
        ratio = pair.predicted_ratio
        verdict = [measured_text(pair)] if was_measured(pairs) else []
        rows.append(([*cells[:7], "-" if ratio is None else f"~{ratio:.2f}x", *verdict], bad))
    if was_measured(pairs):
        return {"heads": [*NARROW, "measured"], "rows": rows, "text": (1, 2, 8)}
    return {"heads": list(NARROW), "rows": rows, "text": (1, 2)}


def _both(pair: CodePair, cell: Callable[[CompiledCode], str]) -> str:
    """Return a cell before and after; one text where both are equal."""
    texts = [cell(f) if isinstance(f, CompiledCode) else "-" for f in (pair.before, pair.after)]
    return texts[0] if texts[0] == texts[1] else " > ".join(texts)


def _predicted(facts: CompiledCode) -> str:
    return f"~{quantity(facts.predicted.predicted_s, 's')}" if facts.predicted else "-"


COLUMNS = (
    PairColumn("", lambda pair: pair.word),
    PairColumn(KERNEL, impl_name, text=True),
    PairColumn("device", lambda pair: pair.case.device, text=True),
    PairColumn("registers", lambda pair: _both(pair, lambda f: str(f.resources.registers))),
    PairColumn("scratch, B", lambda pair: _both(pair, lambda f: str(f.resources.spill_bytes))),
    PairColumn(
        SHARED, lambda pair: _both(pair, lambda f: f"{f.resources.shared_bytes / 1024:.4g}")
    ),
    PairColumn(
        "occupancy, %", lambda pair: _both(pair, lambda f: f"{100 * f.resources.occupancy:.0f}")
    ),
    PairColumn(
        "loop", lambda pair: _both(pair, lambda f: str(f.loop.instructions) if f.loop else "-")
    ),
    PairColumn("predicted", lambda pair: _both(pair, _predicted)),
    PairColumn(MEASURED, measured_text, text=True),
    PairColumn(CHANGED, lambda pair: pair.reasons or "other instructions", text=True),
    PairColumn(MIX, mix_text, text=True),
)
