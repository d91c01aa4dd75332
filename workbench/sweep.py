"""Try the configs of one kernel, refuse wrong answers, time what is right:
`python -m workbench.sweep tile_size`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal

from workbench import catalog, predict
from workbench.backend.protocol import Backend, Candidate, Problem, Refusal, Timed
from workbench.compile import Compiled
from workbench.hardware import Device
from workbench.record import Case, Failure, Measured, Outcome, Phase, Record, Run, key_of
from workbench.spec import ITEMSIZE, Impl, Knob, values


@dataclass(frozen=True)
class Sweep:
    """Which kinds of knob vary, and which are tuned anew for each of their values.

    A tile is only as good as the warps and stages it is given: with those fixed, small and large
    tiles are not compared fairly. Every other knob keeps its default.
    """

    vary: Sequence[Knob]
    tune: Sequence[Knob] = ()


@dataclass(frozen=True)
class Plan:
    """All that a sweep will look at: candidates to try and configs refused beforehand."""

    run: Run
    problem: Problem
    sweep: Sweep
    candidates: list[Candidate]
    refused: list[Failure]
    baselines: list[Candidate]
    left_out: int = 0  # legal configs that the model ranked below the `most` asked for


@dataclass(frozen=True)
class Compilation:
    """A candidate has been compiled: its geometry is known, its time is not."""

    candidate: Candidate
    compiled: Compiled
    duplicate: bool  # another candidate has the same machine code


@dataclass(frozen=True)
class Earlier:
    """What the database already holds, by key: nothing of it is obtained again."""

    first: Mapping[str, Outcome] = field(default_factory=dict)
    final: Mapping[str, Outcome] = field(default_factory=dict)
    hot: Mapping[str, Outcome] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """What begins now and may take longer than one config: a `race` or `final` of so many, or
    the winner once more on `hot` data."""

    what: Phase | Literal["race"]
    of: int


class NothingToSweep(ValueError):
    """No config can be tried: the sentence says why."""


def plan(
    run: Run, problem: Problem, sweep: Sweep, impls: Sequence[Impl], device: Device,
    protocol: str, *, only: bool = False, most: int = 0,
) -> Plan:  # fmt: skip
    """Enumerate, refuse, and keep the `most` (0: all) that the model ranks best.

    `only` holds the knobs that would be tuned. Raises NothingToSweep.
    """
    knobs = tuple(sweep.vary) + (() if only else tuple(sweep.tune))
    identity = Identity(run, problem, protocol)
    legal: list[Candidate] = []
    refused: list[Failure] = []
    baselines = [
        identity.candidate(i, i.config(), False) for i in problem.spec.impls if i.backend == "torch"
    ]
    for impl in impls:
        default = impl.default(device.limits, problem.dtype)
        # what runs when nobody chose: the first Impl of the file, at its own default
        first = default if impl is impls[0] else None
        for config in dict.fromkeys((*impl.space(default, knobs), default)):
            candidate = identity.candidate(impl, config, config == first)
            why = _refused(candidate, problem, device)
            if why is None:
                legal.append(candidate)
            else:
                refused.append(identity.failure(candidate, Refusal("refused", why)))
    if not legal:
        raise NothingToSweep(_nothing(problem, refused, knobs))
    kept = thinned(legal, most, sweep.vary, problem, device)
    return Plan(run, problem, sweep, kept, refused, baselines, len(legal) - len(kept))


def _refused(candidate: Candidate, problem: Problem, device: Device) -> str | None:
    """What the kernel itself says against a config. A `refuse` that fails is a reason too."""
    itemsize = ITEMSIZE[problem.dtype]
    try:
        return candidate.impl.refuse(
            candidate.config, device.limits, itemsize=itemsize, **problem.sizes
        )
    except Exception as error:
        return f"`refuse` of {candidate.impl.title} failed ({type(error).__name__}: {error})"


def _nothing(problem: Problem, refused: Sequence[Failure], knobs: Sequence[Knob]) -> str:
    if not refused:
        words = " or ".join(k.__name__ for k in knobs)
        return f"{problem.kernel} declares no knob of the kind {words}; try the sweep `full`."
    reasons = [f.reason for f in refused]
    usual = max(set(reasons), key=reasons.count)
    sizes = ",".join(f"{axis}={extent}" for axis, extent in problem.sizes.items())
    return (
        f"No config of {problem.kernel} can take {sizes} in {problem.dtype} on "
        f"{refused[0].case.device}: {usual}; name other sizes with --sizes."
    )


def thinned(
    legal: Sequence[Candidate], most: int, vary: Sequence[Knob], problem: Problem, device: Device
) -> list[Candidate]:
    """At most `most` candidates: of each value of the varied knobs the ones ranked best, taken in
    turn, so that no value goes untried while another has many. Defaults always stay."""
    if not most or len(legal) <= most:
        return list(legal)
    ranked = sorted(legal, key=lambda c: _expected(c, problem, device))
    groups: dict[tuple[Any, ...], list[Candidate]] = {}
    for candidate in ranked:
        groups.setdefault(group_of(candidate, vary), []).append(candidate)
    kept = [c for c in ranked if c.default]
    depth = 0
    while len(kept) < most:
        layer = [g[depth] for g in groups.values() if len(g) > depth and not g[depth].default]
        kept += layer[: most - len(kept)]
        depth += 1
    chosen = {c.key for c in kept}
    return [c for c in legal if c.key in chosen]


def group_of(candidate: Candidate, vary: Sequence[Knob]) -> tuple[Any, ...]:
    """The values of the varied knobs, with the Impl's name."""
    words = {k.__name__ for k in vary}
    knobs = candidate.impl.knobs()
    config = values(candidate.config).items()
    return (candidate.impl.name, *(v for k, v in config if knobs[k] in words))


def _expected(candidate: Candidate, problem: Problem, device: Device) -> float:
    """Seconds by the model before anything is compiled; infinite where it cannot say."""
    impl, config = candidate.impl, values(candidate.config)
    if impl.work is None:
        return math.inf
    itemsize = ITEMSIZE[problem.dtype]
    warps, stages = config.get("num_warps", 4), config.get("num_stages", 1)
    try:
        work = impl.work(candidate.config, device.limits, itemsize=itemsize, **problem.sizes)
        guess = predict.guess(device, work, problem.dtype, warps=warps, stages=stages)
        return predict.predict(
            device, work, guess, dtype=problem.dtype, stages=stages,
            flops=problem.spec.flops(**problem.sizes),
            bytes_=problem.spec.bytes(problem.sizes, problem.dtype),
        ).predicted_s  # fmt: skip
    except Exception:  # the device lacks a figure, or the kernel's own `work` failed
        return math.inf


@dataclass(frozen=True)
class Identity:
    """Names outcomes: what a key is made of."""

    run: Run
    problem: Problem
    protocol: str

    def candidate(self, impl: Impl, config: Any, default: bool) -> Candidate:
        case = Case(
            impl.spec.name, impl.name, impl.backend, values(config), dict(self.problem.sizes),
            self.problem.dtype, self.run.device,
        )  # fmt: skip
        versions = self.run.environment.versions
        key = key_of(
            case,
            source=catalog.source_hash(catalog.module_of(self.problem.kernel)),
            protocol=self.protocol,
            torch=versions.get("torch", ""),
            triton=versions.get("triton", ""),
            driver=self.run.environment.driver or "",
        )
        return Candidate(case, key, impl, config, default)

    def failure(self, candidate: Candidate, why: Refusal, made: Compiled | None = None) -> Failure:
        return Failure(
            candidate.case, candidate.key, self.run.id, _now(), why.stage, why.reason,
            made.resources if made else None, candidate.default,
        )  # fmt: skip

    def outcome(
        self, candidate: Candidate, found: Timed | Refusal, phase: Phase,
        made: Compiled | None, same_as: Candidate | None = None,
    ) -> Outcome:  # fmt: skip
        if isinstance(found, Refusal):
            return self.failure(candidate, found, made)
        spec, problem = self.problem.spec, self.problem
        return Record(
            case=candidate.case, key=candidate.key, run=self.run.id, at=_now(), phase=phase,
            timing=found.timing, flops=spec.flops(**problem.sizes),
            bytes=spec.bytes(problem.sizes, problem.dtype), checked=found.checked,
            error=found.error, resources=made.resources if made else None,
            default=candidate.default, same_as=values(same_as.config) if same_as else None,
        )  # fmt: skip


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def run(plan: Plan, backend: Backend, earlier: Earlier) -> Iterator[Outcome | Compilation | Step]:
    """Every outcome as soon as it is known. A config that fails is an outcome, not an end.

    What `earlier` holds comes first, marked as of this run, and is not obtained again.
    """
    yield from plan.refused
    known: dict[str, Outcome] = {}
    for candidate in plan.candidates:
        if (old := earlier.first.get(candidate.key)) is not None:
            known[candidate.key] = replace(old, run=plan.run.id, default=candidate.default)
    yield from known.values()
    for found in _Screen(plan, backend, known).outcomes():
        if not isinstance(found, Compilation):
            known[found.key] = found
        yield found
    if not backend.predicts:
        yield from _finals(plan, backend, known, earlier)


class _Screen:
    """Compile, drop duplicates, check and time: everything beside everything else."""

    def __init__(self, plan: Plan, backend: Backend, known: Mapping[str, Outcome]) -> None:
        self._backend = backend
        self._todo = [c for c in plan.candidates if c.key not in known]
        self._identity = Identity(plan.run, plan.problem, backend.protocol)
        self._leaders: dict[str, Candidate] = {}  # by machine code
        self._followers: dict[str, list[tuple[Candidate, Compiled]]] = {}  # by the leader's key
        self._finished: dict[str, Timed | Refusal] = {}  # by the leader's key
        self._waiting: dict[Future[Any], tuple[Candidate, Compiled]] = {}
        self._best: float | None = min(
            (o.time_s for o in known.values() if isinstance(o, Record)), default=None
        )

    def outcomes(self) -> Iterator[Outcome | Compilation]:
        for candidate, made in self._backend.compiled(self._todo):
            if isinstance(made, Refusal):
                yield self._identity.failure(candidate, made)
                continue
            leader = self._leaders.setdefault(made.resources.binary, candidate)
            duplicate = leader is not candidate
            yield Compilation(candidate, made, duplicate)
            if not duplicate:
                future = self._backend.timed(candidate, made, self._best)
                self._waiting[future] = (candidate, made)
            elif leader.key in self._finished:
                yield self._same(leader, candidate, made)
            else:
                self._followers.setdefault(leader.key, []).append((candidate, made))
            for future in [f for f in self._waiting if f.done()]:
                yield from self._ended(future)
        for future in as_completed(list(self._waiting)):
            yield from self._ended(future)

    def _ended(self, future: Future[Any]) -> Iterator[Outcome]:
        candidate, made = self._waiting.pop(future)
        try:
            found = future.result()
        except Exception as error:  # whatever it was, it costs this config and no other
            found = Refusal("measure", f"{type(error).__name__}: {error}")
        self._finished[candidate.key] = found
        if isinstance(found, Timed):
            seconds = _seconds(found)
            self._best = seconds if self._best is None else min(self._best, seconds)
        phase: Phase = "predict" if self._backend.predicts else "screen"
        yield self._identity.outcome(candidate, found, phase, made)
        for follower, its in self._followers.pop(candidate.key, []):
            yield self._same(candidate, follower, its)

    def _same(self, leader: Candidate, follower: Candidate, made: Compiled) -> Outcome:
        phase: Phase = "predict" if self._backend.predicts else "screen"
        found = self._finished[leader.key]
        return self._identity.outcome(follower, found, phase, made, same_as=leader)


def _seconds(found: Timed) -> float:
    t = found.timing
    return t.median_s if isinstance(t, Measured) else t.predicted_s


def _finals(
    plan: Plan, backend: Any, known: Mapping[str, Outcome], earlier: Earlier
) -> Iterator[Outcome | Step]:
    """Race the best of the screen, then set the finalists, the default and the baselines against
    each other; at last the winner on data that the cache may hold."""
    identity = Identity(plan.run, plan.problem, backend.protocol)
    by_key = {c.key: c for c in plan.candidates}
    screened = [
        o for o in known.values()
        if isinstance(o, Record) and o.phase == "screen" and o.same_as is None
    ]  # fmt: skip
    if not screened:
        return
    screened.sort(key=lambda r: r.time_s)
    if old := _standing(screened, plan, earlier):
        yield from (replace(o, run=plan.run.id) for o in old)
        return
    made = {r.key: Compiled(r.resources, "", (), 1) for r in screened if r.resources}
    rules = backend.rules
    racing = [by_key[r.key] for r in screened[: rules.race]][::-1]
    yield Step("race", len(racing))
    times = {r.key: r.time_s for r in screened}
    raced = backend.race(racing, screened[0].time_s)
    for candidate, again in zip(racing, raced, strict=True):
        if isinstance(again, Timed):
            times[candidate.key] = min(_seconds(again), times[candidate.key])
        else:
            del times[candidate.key]
            yield identity.failure(candidate, again, made.get(candidate.key))
    best = sorted((c.key for c in racing if c.key in times), key=lambda k: times[k])
    finalists = _finalists(best[: rules.finalists], times, plan)
    yield Step("final", len(finalists))
    results = backend.final(finalists, [times.get(c.key, 0.0) for c in finalists])
    outcomes = [
        identity.outcome(c, r, "final", made.get(c.key))
        for c, r in zip(finalists, results, strict=True)
    ]
    yield from outcomes
    timed = [o for o in outcomes if isinstance(o, Record) and not o.case.is_baseline]
    if timed:
        winner = by_key[min(timed, key=lambda o: o.time_s).key]
        yield Step("hot", 1)
        found = backend.hot(winner)
        if isinstance(found, Timed):
            yield identity.outcome(winner, found, "hot", made.get(winner.key))


def _finalists(best: Sequence[str], times: Mapping[str, float], plan: Plan) -> list[Candidate]:
    """The best, the default where it has a time, and the library baselines; each once."""
    wanted = {*best, *(c.key for c in plan.candidates if c.default and c.key in times)}
    by_key = {c.key: c for c in plan.candidates}
    rest = [c.key for c in plan.candidates if c.key in wanted and c.key not in best]
    return [*(by_key[k] for k in (*best, *rest)), *plan.baselines]


def _standing(screened: Sequence[Record], plan: Plan, earlier: Earlier) -> list[Outcome]:
    """An earlier final with its hot time, where it stands for this sweep too: it is of one run
    and holds the screen's best, the default and every baseline."""
    defaults = [r.key for r in screened if r.default]
    needed = [screened[0].key, *defaults, *(b.key for b in plan.baselines)]
    old = [earlier.final.get(key) for key in needed]
    runs = {o.run for o in old if isinstance(o, Record)}
    if len(runs) != 1 or not all(isinstance(o, Record) for o in old):
        return []
    held = (*earlier.final.values(), *earlier.hot.values())
    return [o for o in held if isinstance(o, Record) and o.run in runs]


if __name__ == "__main__":  # this copy is `__main__`; the real module is imported by the CLI
    import sys

    from workbench.cli import main

    raise SystemExit(main(["sweep", *sys.argv[1:]]))
