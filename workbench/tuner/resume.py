"""Find in the database the outcomes that a plan need not obtain again."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from workbench.data.database import History
from workbench.data.machine_failure import is_of_machine
from workbench.data.record import Failure, Outcome, Phase, Record, Run
from workbench.data.references import alike
from workbench.data.selection import config_key
from workbench.measurement.candidate import Candidate
from workbench.tuner.space import Earlier, Plan
from workbench.tuner.stopped import stop_of


def earlier_outcomes(history: History, plan: Plan) -> Earlier:
    """Return the stored outcomes of a plan's configs that need not be obtained again."""
    phase: Phase = "predict" if plan.run.predicted else "first_pass"
    first = {
        key: outcome
        for key, outcome in _find(history, plan.candidates, phase).items()
        if isinstance(outcome, Record) or _lasting(outcome)
    }
    if plan.run.predicted:
        return Earlier(first)
    stopped = _chance_left(history, plan, first)
    finals = _own_results(_find(history, [*plan.candidates, *plan.baselines], "final"))
    hot = _own_results(_find(history, plan.candidates, "hot"))
    earlier = Earlier(first, finals, hot, chance_left=stopped)
    return _drop_unlike_gpus(history, plan.run, earlier) if plan.run.references else earlier


def _chance_left(history: History, plan: Plan, outcomes: Mapping[str, Outcome]) -> float | None:
    """Return the chance at which the search stopped in the run of all known outcomes, where that
    run had as many candidates as this plan; else None."""
    if len(runs := {o.run for o in outcomes.values()}) != 1:
        return None
    stops = [stop for f in history.findings(runs.pop()) if (stop := stop_of(f)) is not None]
    return next(
        (s.chance for s in stops if (s.tries, s.total) == (len(outcomes), len(plan.candidates))),
        None,
    )


def _drop_unlike_gpus(history: History, run: Run, past: Earlier) -> Earlier:
    """Return the outcomes without the times of GPUs whose library references are not those of the
    run's GPU to within 3 %, or are unknown: all of a table is ranked together."""
    runs = {o.run for each in (past.first, past.final, past.hot) for o in each.values()}
    stored = {name: history.stored_run(name) for name in runs}
    near = {name for name, old in stored.items() if old and alike(old.references, run.references)}
    stopped = past.chance_left if near >= {o.run for o in past.first.values()} else None

    def keep(each: Mapping[str, Outcome]) -> dict[str, Outcome]:
        return {k: o for k, o in each.items() if isinstance(o, Failure) or o.run in near}

    first, final, hot = (keep(each) for each in (past.first, past.final, past.hot))
    return replace(past, first=first, final=final, hot=hot, chance_left=stopped)


def _own_results(outcomes: Mapping[str, Outcome]) -> dict[str, Outcome]:
    """Return the outcomes without failures of the machine."""
    return {
        key: outcome
        for key, outcome in outcomes.items()
        if isinstance(outcome, Record) or not is_of_machine(outcome.reason)
    }


def _find(history: History, candidates: Sequence[Candidate], phase: Phase) -> dict[str, Outcome]:
    """Return the newest stored outcome of each candidate, by its key; if there is none, that of the
    key which schema 1 gave the same config, marked as such."""
    stored = history.find([c.key for c in candidates], phase)
    missing = {c.older_key: c.key for c in candidates if c.key not in stored and c.older_key}
    older = history.find(list(missing), phase)
    renamed = {missing[k]: replace(o, key=missing[k], older_key=True) for k, o in older.items()}
    cases = {c.key: c.case for c in candidates}  # whose numbers of words print as the words
    return {**renamed, **{key: replace(o, case=cases[key]) for key, o in stored.items()}}


def covering_run(history: History, plan: Plan, earlier: Earlier) -> Run | None:
    """Return the stored run of exactly those configs of this plan that are known; None where they
    are of several runs, or where the run chose among others, too. Today's launches may be others
    than they were then, since that run was tuned; without any the default must be the same."""
    known = [c for c in plan.candidates if c.key in earlier.first]  # as many as a budget allowed
    runs = {earlier.first[c.key].run for c in known}
    if not plan.run.predicted:
        runs |= {earlier.final[b.key].run for b in plan.baselines if b.key in earlier.final}
    if len(runs) != 1:
        return None
    run = history.stored_run(runs.pop())
    if run is None:
        return None
    mine, theirs = ((r.vary, r.tune, r.same_bits_as) for r in (plan.run, run))
    if mine != theirs or history.state(run.id) != "complete":
        return None
    tried = {
        config_key(o.case): o.default for o in history.outcomes(run.id) if not o.case.is_baseline
    }
    ours = {config_key(c.case): c.default for c in known}
    ours |= {config_key(f.case): f.default for f in plan.failures}
    if not plan.launches:
        return run if tried == ours else None
    launched = Counter(impl for _, impl, _ in tried.keys() - ours.keys())
    alone = max(launched.values(), default=0) <= 1  # then that of its Impl
    same_impls = run.impls.keys() == plan.run.impls.keys()
    return run if alone and same_impls and ours.keys() <= tried.keys() else None


def measured_ceilings(history: History, earlier: Earlier) -> Mapping[str, Mapping[str, Any]]:
    """Return the ceilings that were measured in the run of the earlier outcomes."""
    old = next((o for known in (earlier.final, earlier.first) for o in known.values()), None)
    if old is None:
        return {}
    run = history.stored_run(old.run)
    ceilings = run.ceilings if run else {}
    return {name: ceilings[name] for name in ceilings if name.endswith("_measured")}


def _lasting(outcome: Failure) -> bool:
    """Return whether an earlier failure is reused. A process that was lost once may not be lost
    again; one that was lost twice in the same way is, unless the machine lost it."""
    if is_of_machine(outcome.reason):
        return False
    if outcome.cause is not None:
        return outcome.attempts > 1
    if _LOST.search(outcome.reason):  # stored before outcomes had a cause
        return False
    return outcome.stage in ("compile", "check", "launch")


_LOST = re.compile(r"took longer than [\d.]+ s|its process died")
