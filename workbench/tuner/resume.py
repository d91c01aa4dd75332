"""Find in the database the outcomes that a plan need not obtain again."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from workbench.backend.joining import alike
from workbench.data.database import History
from workbench.data.record import Failure, Outcome, Phase, Record, Run
from workbench.measurement.candidate import Candidate
from workbench.tuner.selection import ConfigKey, config_key
from workbench.tuner.space import Earlier, Plan


def earlier_outcomes(history: History, plan: Plan, retry_failures: bool = False) -> Earlier:
    """Return the stored outcomes of a plan's configs that need not be obtained again. With
    `retry_failures` every config without a time is tried again."""
    phase: Phase = "predict" if plan.run.predicted else "first_pass"
    first = {
        key: outcome
        for key, outcome in _find(history, plan.candidates, phase).items()
        if isinstance(outcome, Record) or (not retry_failures and _lasting(outcome))
    }
    if plan.run.predicted:
        return Earlier(first)
    finals = _find(history, [*plan.candidates, *plan.baselines], "final")
    known = Earlier(first, finals, _find(history, plan.candidates, "hot"))
    return _of_alike_gpus(history, plan.run, known) if plan.run.references else known


def _of_alike_gpus(history: History, run: Run, known: Earlier) -> Earlier:
    """Return the outcomes without the times of GPUs whose library references are not those of the
    run's GPU to within 3 %, or are unknown: all of a table is ranked together."""
    runs = {o.run for of in (known.first, known.final, known.hot) for o in of.values()}
    stored = {name: history.stored_run(name) for name in runs}
    near = {name for name, old in stored.items() if old and alike(old.references, run.references)}

    def kept(of: Mapping[str, Outcome]) -> dict[str, Outcome]:
        return {k: o for k, o in of.items() if isinstance(o, Failure) or o.run in near}

    return replace(known, first=kept(known.first), final=kept(known.final), hot=kept(known.hot))


def _find(history: History, candidates: Sequence[Candidate], phase: Phase) -> dict[str, Outcome]:
    """Return the newest stored outcome of each candidate, by its key; if there is none, that of the
    key which schema 1 gave the same config, marked as such."""
    stored = history.find([c.key for c in candidates], phase)
    missing = {c.older_key: c.key for c in candidates if c.key not in stored and c.older_key}
    older = history.find(list(missing), phase)
    renamed = {missing[k]: replace(o, key=missing[k], older_key=True) for k, o in older.items()}
    return {**renamed, **stored}


def covering_run(history: History, plan: Plan, earlier: Earlier) -> Run | None:
    """Return the stored run of exactly those configs of this plan that are known, with the same
    default; None where they are of several runs, or where the run chose among others, too."""
    known = [c for c in plan.candidates if c.key in earlier.first]  # as many as a budget allowed
    runs = {earlier.first[c.key].run for c in known}
    if not plan.run.predicted:
        runs |= {earlier.final[b.key].run for b in plan.baselines if b.key in earlier.final}
    if len(runs) != 1:
        return None
    run = history.stored_run(runs.pop())
    if run is None:
        return None
    ours, theirs = ((r.vary, r.tune, r.same_bits_as) for r in (plan.run, run))
    if ours != theirs or history.state(run.id) != "complete":
        return None
    tried = {_choice(o) for o in history.outcomes(run.id) if not o.case.is_baseline}
    return run if tried == {*map(_choice, known), *map(_choice, plan.refused)} else None


def _choice(one: Candidate | Outcome) -> tuple[ConfigKey, bool]:
    """Return what a run may choose: a config, and whether it is the default."""
    return config_key(one.case), one.default


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
    again; one that was lost twice in the same way is."""
    if outcome.cause is not None:
        return outcome.attempts > 1
    if _LOST.search(outcome.reason):  # stored before outcomes had a cause
        return False
    return outcome.stage in ("compile", "check", "launch")


_LOST = re.compile(r"took longer than [\d.]+ s|its process died")
