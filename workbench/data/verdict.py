"""Judge the ratio of two operands. Pure functions of records, no torch, no clock."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist

from workbench.data import stats
from workbench.data.exits import COULD_NOT_RUN, FAILED, INTERRUPTED, PASSED, UNDECIDED
from workbench.data.record import Comparison, Measured, Ratio, Record, Verdict, Word
from workbench.spec import WorkbenchError

NO_VERDICT, SUSPECTED, STOPPED = "", "suspected ", "interrupted"
# The words that a comparison, a part of it, a check of results or an expected change can end in
EXIT: Mapping[str, int] = {
    **dict.fromkeys(("SAME", "FAST", "CLOCK", "CHANGED", "NEITHER", "BETTER", "FIXED"), PASSED),
    **dict.fromkeys(("suspected SAME", "suspected FAST", "suspected CLOCK"), PASSED),
    **dict.fromkeys(("right", "unchecked", "met"), PASSED),
    **dict.fromkeys(("INCONCLUSIVE", "suspected INCONCLUSIVE", "suspected SLOW"), UNDECIDED),
    **dict.fromkeys(("WORSE", "other reference", "unproven", "not measured"), UNDECIDED),
    **dict.fromkeys(("SLOW", "wrong", "not met"), FAILED),
    **dict.fromkeys((NO_VERDICT, "FAILS"), COULD_NOT_RUN),
    STOPPED: INTERRUPTED,
}
# Worst first: a proven regression outweighs a comparison that could not run or decide.
WORST = (INTERRUPTED, FAILED, COULD_NOT_RUN, UNDECIDED, PASSED)


class Incomparable(WorkbenchError, ValueError):
    """Two stored results cannot be compared."""


def confidence_of(looks: int, confidence: float = 0.95) -> float:
    """Return the confidence of the interval at each of several looks, so that all of them hold
    jointly.

    The same level is used at each look, as Pocock (1977) proposed. His constants are for equally
    spaced looks; here they double, so the level is Bonferroni's, which holds for any: 1 - (1 - c) /
    looks.
    """
    return 1 - (1 - confidence) / looks


def noise_of(again: Ratio) -> float:
    """Return the noise floor from the ratio of two operands that run the same code: the far end of
    its interval, so that few rounds cannot make it look small. 0.01 is one percent."""
    return max(again.high - 1, 1 / again.low - 1)


def verdict(
    time: Ratio, cycles: Ratio | None, requested_threshold: float, noise: float, rounds: int
) -> Verdict:
    """Return the verdict on the ratios of right over left, at the larger of `requested_threshold`
    and `noise`.

    SLOW: time and cycles both wholly above 1 + threshold. FAST: both wholly below its inverse.
    CLOCK: so in time, but not in cycles. SAME: time wholly between. Where the clock is unknown
    (`cycles` is None), time decides alone, and `reason` says so. Raises Incomparable where the
    requested threshold is not a share from 0 to below 1.
    """
    if not 0 <= requested_threshold < 1:
        raise Incomparable(
            f"a threshold of {requested_threshold:g} is not a share from 0 to below 1"
        )
    threshold = max(requested_threshold, noise)
    in_time, in_cycles = _operand(time, threshold), _operand(cycles, threshold) if cycles else None
    word: Word = "INCONCLUSIVE"
    if in_time == "inside":
        word = "SAME"
    elif in_time in ("above", "below"):
        if cycles is None or in_cycles == in_time:
            word = "SLOW" if in_time == "above" else "FAST"
        elif not _reaches(cycles, threshold, in_time):
            word = "CLOCK"
    reason = _reason(word, time, cycles, threshold, noise > requested_threshold)
    return Verdict(word, time, cycles, threshold, requested_threshold, noise, rounds, reason)


def compare_predictions(left: Record, right: Record, same_launches: bool) -> Word:
    """Return the verdict on two predictions: SAME where both make the same launches, FAST or SLOW
    where their intervals do not overlap, else INCONCLUSIVE. Raises Incomparable for times that have
    no interval of a model."""
    spans = []
    for timing in (left.timing, right.timing):
        if isinstance(timing, Measured) or timing.shortest_s is None or timing.longest_s is None:
            raise Incomparable("only predictions that state an interval can be compared")
        spans.append((timing.shortest_s, timing.longest_s))
    (left_low, left_high), (right_low, right_high) = spans
    if same_launches:
        return "SAME"
    if right_low > left_high:
        return "SLOW"
    return "FAST" if right_high < left_low else "INCONCLUSIVE"


def _operand(ratio: Ratio, threshold: float) -> str:
    """Return where an interval lies: "above", "below", "inside" the thresholds, "across" one."""
    if ratio.low > 1 + threshold:
        return "above"
    if ratio.high < 1 / (1 + threshold):
        return "below"
    inside = ratio.low >= 1 / (1 + threshold) and ratio.high <= 1 + threshold
    return "inside" if inside else "across"


def _reaches(ratio: Ratio, threshold: float, operand: str) -> bool:
    """Return whether part of an interval lies beyond the threshold in that direction."""
    return ratio.high > 1 + threshold if operand == "above" else ratio.low < 1 / (1 + threshold)


def _reason(word: Word, time: Ratio, cycles: Ratio | None, threshold: float, noisy: bool) -> str:
    limit = f"{threshold:.2%}".replace("%", " %")
    source = ", the noise of the same code run twice" if noisy else ""
    result = f"the ratio of times is {_ratio_text(time)}"
    if cycles is not None:
        result += f" and of cycles {_ratio_text(cycles)}"
    elif word in ("SLOW", "FAST"):
        result += ", the clock unknown"
    says = {
        "SLOW": f"wholly slower, beyond the threshold of {limit}{source}",
        "FAST": f"wholly faster, beyond the threshold of {limit}{source}",
        "SAME": f"in time wholly within the threshold of {limit}{source}",
        "CLOCK": f"beyond the threshold of {limit}{source} only in time: the clock differed",
        "INCONCLUSIVE": f"across the threshold of {limit}{source}",
    }
    return f"{result}: {says[word]}"


def _ratio_text(ratio: Ratio) -> str:
    return f"{ratio.middle:.4f} ({ratio.low:.4f} to {ratio.high:.4f})"


def sentence(result: Verdict, left_name: str, right_name: str) -> str:
    """Return the verdict as a sentence: "B is 2.0 % slower than A (1.8 to 2.2 %), ...", ending in a
    dot."""
    off, limit = _difference(result.time), f"{result.threshold * 100:.2g} %"
    noisy = " (its noise here)" if result.noise > result.requested_threshold else ""
    if result.word == "SAME":
        return f"{right_name} and {left_name} take the same time within {limit}{noisy}: {off}."
    if result.word == "INCONCLUSIVE":
        return (
            f"{right_name} against {left_name} could not be decided at {limit}{noisy} in "
            f"{result.rounds} rounds: {off}."
        )
    if result.word == "CLOCK":
        return (
            f"{right_name} is {off} than {left_name} in time, but not in clock cycles: "
            "the clock differed, not the code."
        )
    return f"{right_name} is {off} than {left_name}, beyond the threshold of {limit}{noisy}."


def _difference(ratio: Ratio) -> str:
    """Return `2.0 % slower (1.8 to 2.2 %)`; if the interval includes 1, its ends have signs."""
    if ratio.low > 1 or ratio.high < 1:
        slower = ratio.low > 1
        near, far = sorted(_percent(end, slower) for end in (ratio.low, ratio.high))
        word = "slower" if slower else "faster"
        return f"{_percent(ratio.middle, slower):.1f} % {word} ({near:.1f} to {far:.1f} %)"
    ends = f"{100 * (ratio.low - 1):+.1f} to {100 * (ratio.high - 1):+.1f} %"
    return f"{100 * (ratio.middle - 1):+.1f} % ({ends})"


def _percent(ratio: float, slower: bool) -> float:
    """Return how much slower in percent of the time, or how much faster in percent of the rate."""
    return 100 * (ratio - 1 if slower else 1 / ratio - 1)


# Stored runs


def suspicion(
    left: Measured, right: Measured, requested_threshold: float, noise: float = 0.0
) -> Verdict:
    """Return the verdict on two stored times; it is only suspected, as they were not interleaved.
    The interval of the ratio spans the far ends of the two medians' own intervals. Raises
    Incomparable where protocol, regime, state or method differ."""
    for name in ("protocol", "regime", "state", "method"):
        a, b = getattr(left, name), getattr(right, name)
        if a != b:
            raise Incomparable(
                f"the two results differ in {name} ({a} and {b}), so their times say nothing "
                "about each other: measure both again with `workbench compare`"
            )
    time = Ratio(
        right.median_s / left.median_s, right.low_s / left.high_s, right.high_s / left.low_s
    )
    cycles = None
    if left.sm_mhz and right.sm_mhz:
        by = right.sm_mhz / left.sm_mhz
        cycles = Ratio(time.middle * by, time.low * by, time.high * by)
    result = verdict(
        time, cycles, requested_threshold, noise, rounds=min(left.rounds, right.rounds)
    )
    reason = f"{result.reason}; the runs were apart in time, so this is a suspicion at best"
    return replace(result, reason=reason)


# Suites


def holm(verdicts: Sequence[Verdict], looks: int, confidence: float = 0.95) -> list[Verdict]:
    """Return the verdicts of a suite: a SLOW or FAST that Holm's step-down does not confirm among
    so many comparisons becomes INCONCLUSIVE; the rest stay. `looks` is how often each comparison
    could have stopped (`Protocol.looks`)."""
    p_values = [p_value(v, looks, confidence) for v in verdicts]
    borne_out = stats.holm(p_values, 1 - confidence)
    kept: list[Verdict] = []
    for v, p, stays in zip(verdicts, p_values, borne_out, strict=True):
        if v.word in ("SLOW", "FAST") and not stays:
            reason = (
                f"{v.reason}; among {len(verdicts)} comparisons p = {p:.2g} is too little for that"
            )
            v = replace(v, word="INCONCLUSIVE", reason=reason)
        kept.append(v)
    return kept


def p_value(result: Verdict, looks: int, confidence: float = 0.95) -> float:
    """Return the probability of ratios as far beyond the threshold, in time and in cycles, if they
    are not, at any of the looks. From the interval (Altman and Bland, BMJ 2011;343:d2304), on logs.
    """
    level = NormalDist().inv_cdf((1 + confidence_of(looks, confidence)) / 2)
    limit = math.log1p(result.threshold)
    ratios = [ratio for ratio in (result.time, result.cycles) if ratio is not None]
    if len({ratio.middle > 1 for ratio in ratios}) > 1:
        return 1.0  # slower in one and faster in the other is neither
    worst = 0.0
    for ratio in ratios:
        beyond = abs(math.log(ratio.middle)) - limit
        error = math.log(ratio.high / ratio.low) / (2 * level)
        one_sided = NormalDist().cdf(-beyond / error) if error else float(beyond <= 0)
        worst = max(worst, min(1.0, 2 * looks * one_sided))
    return worst


def exit_code(words: Iterable[str]) -> int:
    """Return the worst exit code of these words; COULD_NOT_RUN where nothing was compared."""
    codes = {EXIT[word] for word in words}
    return next((code for code in WORST if code in codes), COULD_NOT_RUN)


def holm_verdicts(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Return comparisons, their verdicts corrected for their number (`holm`) if several."""
    decided = [c for c in comparisons if c.verdict is not None]
    if len(decided) < 2:
        return list(comparisons)
    looks = max(c.looks for c in decided)
    results = iter(holm([c.verdict for c in decided if c.verdict is not None], looks))
    return [c if c.verdict is None else replace(c, verdict=next(results)) for c in comparisons]
