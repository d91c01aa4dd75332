"""What is said of two compared outcomes, on pages, in comments, terminals and documents."""

from collections.abc import Mapping

from workbench.code.compared_pair import ComparedPair, has_facts, prediction_of
from workbench.data.record import Failure, Outcome, Record
from workbench.spec import label, sizes_text

MEANINGS: Mapping[str, str] = {
    "FAILS": "compiles before and not after",
    "WORSE": "something that costs time got worse; suspected, until a GPU decides",
    "CHANGED": "other machine code, and nothing that got clearly worse or better",
    "NEITHER": "compiles neither before nor after",
    "BETTER": "something got better, and nothing worse",
    "FIXED": "compiles after and not before",
    "SAME": "the same machine code, launched in the same way",
}


def problem_name(pair: ComparedPair) -> str:
    """Return a name that is unique in the run: `matmul tiles, M=4096 N=4096 K=4096, bf16`."""
    c = pair.comparison
    impl = pair.after.case.impl if pair.after else ""
    return f"{c.kernel} {impl}, {sizes_text(c.sizes, ' ')}, {c.dtype}"


def name_with_sizes(pair: ComparedPair) -> str:
    """Return the name of the Impl with sizes and dtype: `matmul.tiles (tuned); M=1 N=64 bf16`."""
    return config_name(pair, with_config=False)


def config_name(pair: ComparedPair, *, with_config: bool = True) -> str:
    """Return the name of the Impl with config, sizes and dtype."""
    impl = f".{pair.case.impl}" if pair.outcomes else ""
    config = f" {label(pair.case.config)}" if pair.outcomes and with_config else ""
    name = f"{pair.comparison.kernel}{impl}{' (tuned)' * bool(pair.comparison.tuned)}{config}"
    return f"{name}; {sizes_text(pair.comparison.sizes, ' ')} {pair.comparison.dtype}"


def is_predicted(pair: ComparedPair) -> bool:
    """Return whether a time is predicted of the code before or after."""
    return any(map(prediction_of, pair.outcomes))


def troubles(pair: ComparedPair) -> str:
    """Return why outcomes have no time, each reason with the operand's name."""
    named = zip(pair.names, (pair.before, pair.after), strict=True)
    return "; ".join(
        f"{name}: {'it was not measured' if o is None else o.reason.rstrip('.')}"
        for name, o in named
        if not isinstance(o, Record)
    )


def missing_verdict(pair: ComparedPair) -> str:
    """Return why a GPU that was asked gave no verdict."""
    times = pair.timed_pair if pair.is_by_code else pair
    if times is None or times.verdict:
        return ""
    return times.comparison.reason or troubles(times)


def measured_text(pair: ComparedPair) -> str:
    """Return ratio, interval and word of the verdict, or why there is none; empty where no GPU was
    asked."""
    if pair.verdict is None:
        return missing_verdict(pair)
    time = pair.verdict.time
    return f"{time.middle:.3f}x ({time.low:.3f} to {time.high:.3f}) {pair.verdict.word}"


def missing_reason(outcome: Outcome) -> str:
    """Return the reason why an outcome has no facts of its machine code."""
    return outcome.reason if isinstance(outcome, Failure) else "its machine code is not stored"


def what_changed(pair: ComparedPair) -> str:
    """Return in one line what got worse in the machine code, then what got better, the config
    before and the commit; or why it does not compile."""
    if pair.change is None:
        return ""
    lost = [o for o in (pair.after, pair.before) if o and pair.is_by_code and not has_facts(o)]
    if lost:
        return missing_reason(lost[0])
    worse, better = (", ".join(each) for each in (pair.change.worse, pair.change.better))
    was, commit = pair.outcomes[0].case.config, pair.comparison.commit
    config = f"was {label(was)}" if dict(was) != dict(pair.case.config) else ""
    both = [worse or better, f"better: {better}" if better and worse else ""]
    return "; ".join(filter(None, (*both, config, commit and f"at {commit}")))


def reasons(pair: ComparedPair) -> str:
    """Return the reasons of the pair's word."""
    if pair.is_by_code:
        return what_changed(pair)
    return pair.verdict.reason if pair.verdict else troubles(pair)
