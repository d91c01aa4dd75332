"""The result of compared pairs, by times or by machine code: for the document and the exit code."""

from collections.abc import Sequence

from workbench.code.compared_pair import ComparedPair, rank_pairs
from workbench.data.comparison import ComparisonResult, Part, compared_part
from workbench.data.record import encode_plain
from workbench.data.verdict import STOPPED
from workbench.reports import compare
from workbench.reports.pair_texts import config_name, missing_verdict, problem_name, reasons
from workbench.reports.versions import CodeChanges, conclusion, tune_again


def times_result(
    shown_pairs: Sequence[ComparedPair], names: tuple[str, str], words: Sequence[str] = ()
) -> ComparisonResult:
    """Return the result of comparisons of measured times, whose sides have these names. `words`
    are what else decides."""
    parts = [part_of(pair) for pair in shown_pairs]
    return ComparisonResult("times", *names, compare.conclusion(shown_pairs), parts, words)


def code_result(changes: CodeChanges, words: Sequence[str] = ()) -> ComparisonResult:
    """Return the result of machine code. `words` are what else decides; the code of no config is
    the same."""
    pairs, versions = rank_pairs(changes.pairs), changes.versions
    ended = [STOPPED] * changes.is_interrupted + ["SAME"] * (not pairs)
    more = {
        "interrupted": changes.is_interrupted,
        "tune_again": tune_again(pairs),
        "left_out": [{"reason": reason, "configs": many} for reason, many in changes.left_out],
    }
    names, parts = (versions.before, versions.after), [part_of(pair) for pair in pairs]
    return ComparisonResult(
        "machine code", *names, conclusion(changes), parts, [*words, *ended], more
    )


def part_of(pair: ComparedPair) -> Part:
    """Return the pair as one part of a comparison's document."""
    both, verdict = (pair.before, pair.after), {"verdict": encode_plain(pair.verdict)}
    if not pair.is_by_code or pair.change is None:
        return compared_part(problem_name(pair), pair.word, reasons(pair), both, **verdict)
    name = f"{config_name(pair)} on {pair.case.device}"
    change = {"code": pair.word, "worse": pair.change.worse, "better": pair.change.better}
    facts = {"tuned": pair.comparison.tuned, "predicted_ratio": pair.predicted_ratio}
    facts |= {"unmeasured": missing_verdict(pair)}
    return compared_part(name, pair.final_word, reasons(pair), both, **verdict, **change, **facts)
