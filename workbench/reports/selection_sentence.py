"""Say what a selection of a sweep's records shows: one sentence, its parts, and its remarks."""

from collections.abc import Mapping

from workbench.data.dominance import first_of
from workbench.data.record import Measured, Record, Stage
from workbench.data.selection import (
    MODEL_SHARE,
    Selection,
    class_interval,
    config_name,
    interval_of,
    members,
    rate,
)
from workbench.data.units import amount, reading, rough, three_digits, whole_percent
from workbench.device.error_band import band_words
from workbench.spec import label

NOT_CHECKED = "answer not checked here"  # on this machine nothing can run the kernel
_STAGE_WORDS: Mapping[Stage, str] = {
    "refused": "refused before compiling",
    "compile": "did not compile",
    "check": "gave a wrong result",
    "launch": "did not launch",
    "measure": "could not be timed",
}
_STAGE_VERBS: Mapping[Stage, str] = {**_STAGE_WORDS, "refused": "is refused"}


def modes_text(timing: Measured) -> str:
    """Return two modes as text: `two modes, 61 % at 40 us, 39 % at 125 us; mean 72.6 us`."""
    parts = [f"{m.share * 100:.0f} % at {three_digits(m.median_s * 1e6)} us" for m in timing.modes]
    return f"two modes, {', '.join(parts)}; mean {three_digits(timing.mean_s * 1e6)} us"


def checked_words(record: Record) -> str | None:
    """Return on what a record's result was checked, in a clause; None where it was on all of it."""
    if record.checked == "not here":
        return NOT_CHECKED
    if record.checked_programs is None or record.resources is None:
        return None
    ran, programs = record.checked_programs, record.resources.programs
    if programs == 1:
        return "checked on its one program, no access out of bounds"
    of = f"all {programs:,} programs" if ran == programs else f"{ran:,} of {programs:,} programs"
    return f"checked on {of}, no race, no access out of bounds"


def sentence(result: Selection) -> str:
    """Return the selection as one sentence, with units, ending in a full stop."""
    winner = result.winner
    if winner is None:
        return _nothing(result)
    if not result.is_ranked:
        return front_sentence(result) if result.front else class_sentence(result)
    name = winner.case.label if result.impls > 1 else label(winner.case.config)
    name += f" (the {result.launch_kind})" if winner.default else ""
    reached = rate(winner, result.ridge) + (" predicted" if result.is_predicted else "")
    parts = [", ".join((reached, *_comparison_texts(result)))]
    close, *others = remarks(result)
    parts += [close] if close else []
    if result.is_predicted:
        parts.append(band_words(winner))
    parts += others
    if result.edges:
        # values that were not declared, where a better one may lie
        ends = ((edge, "beyond" if edge.highest else "below") for edge in result.edges)
        *most, last = [f"{edge.field} {word} {edge.value}" for edge, word in ends]
        parts.append(f"extend {', '.join(most)}{' and ' if most else ''}{last}")
    return f"{name}: {'; '.join(parts)}."


def headline(result: Selection) -> str:
    """Return the winner, and how many times as fast it is as what launches took when the
    sweep began, or as the fastest library if that is not known."""
    winner = result.winner
    if result.front:
        return f"{_front_start(result)}."
    if winner is None or not result.is_ranked:
        return sentence(result)
    name = winner.case.label if result.impls > 1 else label(winner.case.config)
    if winner.default:
        return f"{name}: the {result.launch_kind}"
    if result.default is not None:
        return f"{name}: {result.default.ratio:.2f}x as fast as the {result.launch_kind}"
    if not result.baselines:
        return name
    library = result.baselines[0]
    if library.ratio < 1:
        return f"{name}: {whole_percent(library.ratio)} of the speed of {library.record.case.impl}"
    return f"{name}: {library.ratio:.2f}x {library.record.case.impl}"


def remarks(result: Selection) -> list[str]:
    """Return what is to be known beside the winner and its time: first how many configs tie, empty
    where none does."""
    winner = result.winner
    if result.front:
        return _front_rest(result)
    if winner is None or not result.is_ranked:
        return [""]
    n = len(result.ties) + 1
    close = (
        f"{n} configs are predicted within {MODEL_SHARE * 100:.0f} %"
        if result.is_predicted
        else f"{n} configs tie within noise"
    )
    parts = [close if result.ties else ""]
    if (how := checked_words(winner)) is not None:
        parts.append(how)
    if winner.phase == "first_pass":
        parts.append("first-pass times only, as no config reached the final")
    for record in result.unsteady[:1]:
        assert isinstance(record.timing, Measured)
        parts.append(f"{record.case.label} is passed over: {modes_text(record.timing)}")
    if result.other_bits:
        parts.append(f"{amount(result.other_bits, 'config')} with other bits left out")
    if result.baseline_failures:
        names = " and ".join(o.case.impl for o in result.baseline_failures)
        parts.append(f"{names} {'have' if len(result.baseline_failures) > 1 else 'has'} no time")
    return parts


def class_sentence(result: Selection) -> str:
    """Return the class that a prediction selects, with its interval, as one sentence."""
    each = members(result)
    assert result.winner is not None
    names = [r.case.label if result.impls > 1 else label(r.case.config) for r in each]
    low, high = (rough(s) for s in class_interval(result))
    span = f"predicted to take {low} to {high} ({band_words(result.winner)})"
    if len(each) == 1:
        return f"{names[0]}: {span}."
    shown = "; ".join(names[:NAMED])
    more = f"; and {len(names) - NAMED} more" if len(names) > NAMED else ""
    default = next((r for r in each if r.default), None)
    clause = f", the {result.launch_kind} among them," if default else ""
    reason = f"; {result.alike}" if result.alike else ""
    start = f"Any of these {len(each)}{clause} is {span}, and they are not ranked"
    return f"{start}: {shown}{more}{reason}."


def front_sentence(result: Selection) -> str:
    """Return what the counts of emulated runs say: the config to begin with, its interval if it has
    one, and the configs that no other dominates."""
    return f"{'; '.join((_front_start(result), *_front_rest(result)))}."


def _front_start(result: Selection) -> str:
    """Return the config of the front to begin with, its bytes, and its interval if it has one."""
    first = first_of(result.front)
    assert first is not None and first.traffic is not None
    launch = f" (the {result.launch_kind})" if first.default else ""
    words = f"Begin with {config_name(result, first)}{launch}: "
    words += f"{reading(first.traffic.bytes, 'B')} in sectors"
    if isinstance(first, Record) and (span := interval_of(first)):
        ends = " to ".join(map(rough, span))
        return f"{words}, predicted to take {ends} ({band_words(first)})"
    reason = " ".join(result.reason.split()).rstrip(".")
    return f"{words}, no predicted time" + (f" ({reason})" if reason else "")


def _front_rest(result: Selection) -> list[str]:
    """Return clauses about the other configs of the front, and about the default."""
    first = first_of(result.front)
    names = [config_name(result, o) for o in result.front if o is not first]
    more = f"; and {len(names) - NAMED} more" if len(names) > NAMED else ""
    many = f"{len(result.front)} of {amount(result.emulated_configs, 'config')}"
    others = f": this one, {'; '.join(names[:NAMED])}{more}" if names else ""
    verb = "is" if len(result.front) == 1 else "are"
    parts = [f"{many} {verb} on the Pareto front of the counts{others}"]
    assert first is not None and first.traffic is not None
    least: dict[str, int] = {}
    for each in result.front:
        if each.traffic is not None and each.case.impl != first.case.impl:
            moved = each.traffic.bytes
            least[each.case.impl] = min(moved, least.get(each.case.impl, moved))
    for impl, moved in least.items():
        if (ratio := moved / first.traffic.bytes) >= LEAST_RATIO:
            parts.append(f"{impl} moves {ratio:.2g}x as many bytes or more")
    if result.dominates_default:
        parts.append(f"{result.dominates_default} dominates the {result.launch_kind}")
    return [*parts, *([result.alike] if result.alike else [])]


LEAST_RATIO = 1.05  # of bytes, from which on another kernel is said to move more
NAMED = 3  # configs of a class that its sentence names


def _nothing(result: Selection) -> str:
    if not result.configs:
        return "No outcome was recorded, so there is no result."
    if result.front:
        return front_sentence(result)
    stages = ", ".join(f"{n} {_STAGE_WORDS[stage]}" for stage, n in result.failures.items())
    reason = f" ({' '.join(result.reason.split()).rstrip('.')})" if result.reason else ""
    if result.failures.keys() == {"refused"}:  # perhaps all of them, perhaps before Ctrl-C
        return f"No config was timed: {stages}."
    if result.configs == 1:
        return f"The only config failed, so there is no time: {stages}{reason}."
    return f"None of {result.configs} configs gave a time: {stages}{reason}."


def _comparison_texts(result: Selection) -> list[str]:
    """Return the winner's comparisons with the baselines and with the default, as text."""
    words = []
    for baseline in result.baselines[:2]:
        if baseline.ratio < 1:
            words.append(f"{baseline.ratio * 100:.0f} % of {baseline.record.case.impl}")
        else:
            words.append(f"{baseline.ratio:.2f}x {baseline.record.case.impl}")
    if result.default is not None and result.default.record is not result.winner:
        words.append(f"{result.default.ratio:.2f}x the {result.launch_kind}")
    elif result.default_failure is not None:
        verb = _STAGE_VERBS[result.default_failure.stage]
        words.append(f"where the {result.launch_kind} {verb}")
    return words
