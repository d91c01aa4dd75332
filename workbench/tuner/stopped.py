"""The finding of a search that stopped since going on cannot pay: what was left out, and the chance
that it matters."""

from dataclasses import dataclass

from workbench.data.clock import timestamp
from workbench.data.record import Evidence, Finding
from workbench.data.units import amount
from workbench.tuner.space import Plan

WORD = "stopped"  # and the finding's `experiment` is "search"
CHANCE, TRIED, OF = "chance that an untried config is faster", "configs tried", "configs"


@dataclass(frozen=True)
class StoppedSearch:
    """A search that stopped after `tries` of `total` configs."""

    tries: int
    total: int
    chance: float


def stopped_search(plan: Plan, tried: int, chance: float, share: float) -> Finding:
    """Return the finding of a search that stopped at this chance of a config that is faster by more
    than `share`."""
    run, of = plan.run, len(plan.candidates)
    words = "under 1 %" if chance < 0.01 else f"{100 * chance:.0f} %"
    sentence = (
        f"{tried} of {amount(of, 'config')} tried: the chance that one of the others is over "
        f"{100 * share:.0f} % faster is {words}; --search exhaustive measures all."
    )
    numbers = (
        Evidence(CHANCE, chance, "1", "computed"),
        Evidence(TRIED, tried, "1", "computed"),
        Evidence(OF, of, "1", "computed"),
    )
    about = run.id, timestamp(), "search", run.kernel, dict(run.sizes), run.dtype
    return Finding(*about, WORD, sentence, numbers)


def stop_of(finding: Finding) -> StoppedSearch | None:
    """Return the stopped search that a finding tells of, or None if it tells of something else."""
    if (finding.experiment, finding.word) != ("search", WORD):
        return None
    values = {e.name: e.value for e in finding.evidence}
    if not values.keys() >= {CHANCE, TRIED, OF}:
        return None
    return StoppedSearch(int(values[TRIED]), int(values[OF]), values[CHANCE])
