"""Try the configs of one kernel, refuse wrong answers, time what is right:
`python -m workbench.sweep tile_size`."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from typing import Any, Literal

from workbench import catalog, predict
from workbench.backend.offline import prediction
from workbench.backend.protocol import Backend, Candidate, Problem, Refusal, Timed
from workbench.compile import Compiled
from workbench.hardware import Device
from workbench.record import Case, Failure, Measured, Outcome, Phase, Record, Run, key_of
from workbench.search import Budget, Point, Strategy, search_of
from workbench.spec import ITEMSIZE, Impl, Knob, values
from workbench.workers import cpu_count


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
    incumbent: frozenset[str] = frozenset()  # keys of configs that were found best before


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


FINAL_S = 15.0  # race, final and hot time of matmul on an H200 took 9 to 14 s


@dataclass(frozen=True)
class Hunt:
    """How a space is searched: by which strategy, and how much may be spent on it."""

    strategy: Strategy = Strategy.EXHAUSTIVE
    budget: Budget = field(default_factory=Budget)
    started: float = field(default_factory=time.monotonic)  # the budget's seconds count from here
    final_s: float = FINAL_S

    def left_s(self) -> float:
        """Seconds left for trying configs: what the race and the final take comes off first."""
        whole = self.budget.seconds
        return self.started + max(whole / 2, whole - self.final_s) - time.monotonic()

    def share(self, many: int) -> Hunt:
        """This hunt for the first of so many problems that share what is left of the seconds."""
        now = time.monotonic()
        left = (self.started + self.budget.seconds - now) / many
        return replace(self, started=now, budget=replace(self.budget, seconds=left))

    def over(self, measured: int) -> bool:
        """Whether nothing more should be tried."""
        return self.left_s() <= 0 or self.budget.spent(0.0, measured)


@dataclass
class Split:
    """Where a sweep's wall time went, in seconds. `compile` is not part of it: that ran beside."""

    seconds: dict[str, float] = field(default_factory=dict)
    configs_per_minute: float | None = None  # from the start to the complete table
    _spent: dict[str, float] = field(default_factory=dict)  # on this side before
    _begun: float = field(default_factory=time.monotonic)

    def begin(self, backend: Backend) -> None:
        """Another problem is ready to be swept."""
        self._spent, self._begun = dict(backend.spent), time.monotonic()
        self.seconds, self.configs_per_minute = {}, None

    def table(self, counts: Mapping[str, int], started: float) -> None:
        """Every config has been tried."""
        tried = sum(counts[k] for k in ("measured", "wrong", "failed") if k in counts)
        if self.configs_per_minute is None and "compiled" in counts:
            self.configs_per_minute = 60 * tried / (time.monotonic() - started)

    def end(self, backend: Backend, wait_s: float, started: float) -> None:
        """`start`: until the first config could be tried; `wait`: the GPU waited for the compiler;
        `check`; `timed`: between the clock's two readings; `flush`: made ready, flushed the cache,
        settled the clock; `idle`: the rest, in which outcomes were stored."""
        now = time.monotonic()
        spent = {k: v - self._spent.get(k, 0.0) for k, v in backend.spent.items()}
        found = {"start": self._begun - started, "wait": wait_s, **spent}
        found["idle"] = max(0.0, now - started - sum(found.values()))
        self.seconds = found


BATCH = 3  # configs given to the compilers at once, for each CPU, where a search decides the order


class Engine:
    """One sweep under way. `first` is what will be compiled first, `outcomes` the sweep itself."""

    def __init__(self, plan: Plan, backend: Backend, earlier: Earlier, hunt: Hunt) -> None:
        self._plan, self._backend, self._earlier = plan, backend, earlier
        self._known: dict[str, Outcome] = {
            c.key: replace(old, run=plan.run.id, default=c.default)
            for c in plan.candidates
            if (old := earlier.first.get(c.key)) is not None
        }
        self._screen = _Screen(plan, backend, self._known, hunt)

    @property
    def first(self) -> list[Candidate]:
        """What is compiled first; empty when all is known."""
        return self._screen.first

    @property
    def wait_s(self) -> float:
        """How long the GPU had nothing to do because nothing was compiled yet."""
        return self._screen.wait_s

    @property
    def finished(self) -> bool:
        """Whether all is known, so that nothing has to be obtained."""
        if self.first:
            return False
        return self._backend.predicts or not self._screened() or bool(self._old_finals())

    def outcomes(self) -> Iterator[Outcome | Compilation | Step]:
        """Every outcome as soon as it is known. A config that fails is an outcome, not an end.

        What was known comes first, marked as of this run, and is not obtained again.
        """
        yield from self._plan.refused
        yield from list(self._known.values())
        for found in self._screen.outcomes():
            if not isinstance(found, Compilation):
                self._known[found.key] = found
            yield found
        if not self._backend.predicts and (screened := self._screened()):
            old = self._old_finals()
            yield from old or _Finals(self._plan, self._backend, self._earlier, screened).outcomes()

    def _screened(self) -> list[Record]:
        """Records of the screen, fastest first."""
        found = [
            o for o in self._known.values()
            if isinstance(o, Record) and o.phase == "screen" and o.same_as is None
        ]  # fmt: skip
        return sorted(found, key=lambda r: r.time_s)

    def _old_finals(self) -> list[Outcome]:
        """An earlier final with its hot time, where it stands for this sweep too: it is of one run,
        holds the default and every baseline, and that run knew all of this screen, or its final
        holds the screen's best. (The race may have found others faster than the screen's best.)"""
        screened, finals = self._screened(), self._earlier.final
        best = screened[0].key
        sure = [r.key for r in screened if r.default] + [b.key for b in self._plan.baselines]
        known = [self._earlier.first[r.key] for r in screened if r.key in self._earlier.first]
        runs = {o.run for o in known}
        if best in finals:
            runs = {finals[best].run}
        old = [o for key in sure if isinstance(o := finals.get(key), Record)]
        if len(runs) != 1 or len(known) != len(screened) or len(old) != len(sure):
            return []
        held = (*finals.values(), *self._earlier.hot.values())
        ours = [o for o in held if isinstance(o, Record) and o.run in runs]
        if not ours or not {o.run for o in old} <= runs:
            return []
        return [replace(o, run=self._plan.run.id) for o in ours]


def run(
    plan: Plan, backend: Backend, earlier: Earlier, hunt: Hunt | None = None
) -> Iterator[Outcome | Compilation | Step]:
    """A whole sweep: see `Engine.outcomes`."""
    return Engine(plan, backend, earlier, hunt or Hunt()).outcomes()


class _Screen:
    """Compile, drop duplicates, check and time. Compiling runs ahead; what is timed next is the
    search's choice among what is compiled, and it begins when its forerunner has been stored."""

    def __init__(
        self, plan: Plan, backend: Backend, known: Mapping[str, Outcome], hunt: Hunt
    ) -> None:
        self._plan, self._backend, self._hunt = plan, backend, hunt
        self._identity = Identity(plan.run, plan.problem, backend.protocol)
        self._phase: Phase = "predict" if backend.predicts else "screen"
        self._by_key = {c.key: c for c in plan.candidates}
        self._points = {c.key: _point(c, plan.problem, backend.device) for c in plan.candidates}
        self._search = search_of(hunt.strategy, list(self._points.values()))
        self._leaders: dict[str, Candidate] = {}  # by machine code
        self._followers: dict[str, list[tuple[Candidate, Compiled]]] = {}  # by the leader's key
        self._finished: dict[str, Timed | Refusal] = {}  # by the leader's key
        self._ready: dict[str, tuple[Candidate, Compiled]] = {}
        self._waiting: dict[Future[Any], tuple[Candidate, Compiled]] = {}
        self._inbox: SimpleQueue[Any] = SimpleQueue()  # compilations, futures, ends of batches
        self._compiling = 0  # batches
        self._stopped = False
        self._measured = 0
        self._best: float | None = None
        self.wait_s = 0.0
        self._learn(known)
        # what is known counts, so that the same budget asked again is spent already
        self.first = [] if hunt.budget.spent(0.0, self._measured) else self._batch(known)

    def _learn(self, known: Mapping[str, Outcome]) -> None:
        """What earlier runs found counts as measured, and its machine code too."""
        for key, old in known.items():
            record = old if isinstance(old, Record) else None
            self._search.tell(self._points[key], record.time_s if record else None)
            if record is not None and record.same_as is not None:
                continue
            self._measured += 1
            if record is None:
                continue
            self._best = min(record.time_s, self._best or math.inf)
            if record.resources is not None:
                self._leaders[record.resources.binary] = self._by_key[key]
                self._finished[key] = Timed(record.timing, record.error, record.checked)

    def _batch(self, known: Mapping[str, Outcome] = {}) -> list[Candidate]:
        """The next to compile: all of them, unless what is measured decides what comes next."""
        changes = self._hunt.strategy in (Strategy.MODEL, Strategy.TPE)
        size = BATCH * cpu_count() if changes else len(self._points)
        found: list[Candidate] = []
        while points := self._search.order(size - len(found)):
            found += [self._by_key[p.key] for p in points if p.key not in known]
        return found

    def outcomes(self) -> Iterator[Outcome | Compilation]:
        self._compile(self.first)
        try:
            while self._compiling or self._ready or self._waiting:
                if self._hunt.over(self._measured):
                    self._stopped = True
                    self._ready.clear()
                    if not self._waiting:
                        return
                elif self._compiling <= 1 and len(self._ready) < cpu_count() and not self._stopped:
                    self._compile(self._batch())
                yield from self._next()
        finally:
            self._stopped = True

    def _next(self) -> Iterator[Outcome | Compilation]:
        """Time one if there is room for it, and else wait for what comes."""
        while not self._inbox.empty():
            yield from self._came(self._inbox.get())
        if self._ready and len(self._waiting) < self._backend.room:
            self._time()
        elif self._compiling or self._waiting:
            started = time.monotonic()
            with suppress(Empty):
                came = self._inbox.get(timeout=min(60.0, max(0.0, self._hunt.left_s())))
                if not self._waiting:
                    self.wait_s += time.monotonic() - started
                yield from self._came(came)

    def _time(self) -> None:
        ready = [self._points[key] for key in self._ready]
        point = self._search.ask(ready) or ready[0]
        candidate, made = self._ready.pop(point.key)
        future = self._backend.timed(candidate, made, self._best)
        self._waiting[future] = (candidate, made)
        self._measured += 1
        future.add_done_callback(self._inbox.put)

    def _compile(self, batch: list[Candidate]) -> None:
        """In a thread of its own, which only takes what the compilers give."""
        if not batch:
            return
        self._compiling += 1

        def take() -> None:
            try:
                stream = self._backend.compiled(batch)
                for one in stream:
                    self._inbox.put(one)
                    if self._stopped:
                        getattr(stream, "close", lambda: None)()
                        break
            except Exception as error:
                self._inbox.put(error)
            self._inbox.put(None)

        threading.Thread(target=take, daemon=True).start()

    def _came(self, came: Any) -> Iterator[Outcome | Compilation]:
        if came is None:
            self._compiling -= 1
        elif isinstance(came, Future):
            yield from self._ended(came)
        elif isinstance(came, Exception):
            raise came
        else:
            yield from self._made(*came)

    def _made(
        self, candidate: Candidate, made: Compiled | Refusal
    ) -> Iterator[Outcome | Compilation]:
        point = self._points[candidate.key]
        if isinstance(made, Refusal):
            self._search.tell(point, None)
            yield self._identity.failure(candidate, made)
            return
        leader = self._leaders.setdefault(made.resources.binary, candidate)
        yield Compilation(candidate, made, leader is not candidate)
        if leader is candidate:
            self._search.revise(point, self._predicted(candidate, made))
            self._ready[candidate.key] = (candidate, made)
        elif leader.key in self._finished:
            yield self._same(leader, candidate, made)
        else:
            self._followers.setdefault(leader.key, []).append((candidate, made))

    def _predicted(self, candidate: Candidate, made: Compiled) -> float:
        """Seconds by the model now that the machine code is known."""
        try:
            found = prediction(self._plan.problem, candidate, made, self._backend.device)
        except Exception:  # the device lacks a figure, or the kernel's own `work` failed
            return math.inf
        return found.predicted_s

    def _ended(self, future: Future[Any]) -> Iterator[Outcome]:
        candidate, made = self._waiting.pop(future)
        try:
            found = future.result()
        except Exception as error:  # whatever it was, it costs this config and no other
            found = Refusal("measure", f"{type(error).__name__}: {error}")
        self._finished[candidate.key] = found
        if isinstance(found, Timed):
            self._best = min(_seconds(found), self._best or math.inf)
        self._tell(candidate, found)
        yield self._identity.outcome(candidate, found, self._phase, made)
        for follower, its in self._followers.pop(candidate.key, []):
            yield self._same(candidate, follower, its)

    def _same(self, leader: Candidate, follower: Candidate, made: Compiled) -> Outcome:
        found = self._finished[leader.key]
        self._tell(follower, found)
        return self._identity.outcome(follower, found, self._phase, made, same_as=leader)

    def _tell(self, candidate: Candidate, found: Timed | Refusal) -> None:
        time_s = _seconds(found) if isinstance(found, Timed) else None
        self._search.tell(self._points[candidate.key], time_s)


def _point(candidate: Candidate, problem: Problem, device: Device) -> Point:
    knobs = tuple(values(candidate.config).items())
    predicted = _expected(candidate, problem, device)
    return Point(candidate.key, candidate.impl.name, knobs, predicted)


def _seconds(found: Timed) -> float:
    t = found.timing
    return t.median_s if isinstance(t, Measured) else t.predicted_s


class _Finals:
    """Race the best of the screen, then set the finalists, the default, the incumbent and the
    baselines against each other; at last the winner on data that the cache may hold."""

    def __init__(
        self, plan: Plan, backend: Any, earlier: Earlier, screened: Sequence[Record]
    ) -> None:
        self._plan, self._backend = plan, backend
        self._incumbent = earlier.incumbent
        self._identity = Identity(plan.run, plan.problem, backend.protocol)
        self._by_key = {c.key: c for c in plan.candidates}
        self._made = {r.key: Compiled(r.resources, "", (), 1) for r in screened if r.resources}
        self._times = {r.key: r.time_s for r in screened}
        self._ranked = [r.key for r in screened]

    def outcomes(self) -> Iterator[Outcome | Step]:
        yield from self._race()
        finalists = self._finalists()
        yield Step("final", len(finalists))
        results = self._backend.final(finalists, [self._times.get(c.key, 0.0) for c in finalists])
        outcomes = [
            self._identity.outcome(c, r, "final", self._made.get(c.key))
            for c, r in zip(finalists, results, strict=True)
            if isinstance(r, Timed) or r.own
        ]
        yield from outcomes
        timed = [o for o in outcomes if isinstance(o, Record) and not o.case.is_baseline]
        if timed:
            winner = self._by_key[min(timed, key=lambda o: o.time_s).key]
            yield Step("hot", 1)
            found = self._backend.hot(winner)
            if isinstance(found, Timed):
                yield self._identity.outcome(winner, found, "hot", self._made.get(winner.key))

    def _race(self) -> Iterator[Outcome | Step]:
        rules = self._backend.rules
        racing = [self._by_key[key] for key in self._ranked[: rules.race]]
        yield Step("race", len(racing))
        estimates = [self._times[c.key] for c in racing]
        raced = self._backend.race(racing, estimates, rules.finalists)
        times = {}
        for candidate, again in zip(racing, raced, strict=True):
            if isinstance(again, Timed):
                times[candidate.key] = _seconds(again)
            elif again.own:
                del self._times[candidate.key]
                yield self._identity.failure(candidate, again, self._made.get(candidate.key))
        kept = [key for key in self._ranked[: rules.race] if key in self._times]
        # times of the race, taken in turns, are compared with each other and not with the screen's
        self._ranked = sorted(times, key=times.__getitem__) if times else kept
        self._times |= times

    def _finalists(self) -> list[Candidate]:
        """The best, the default and the incumbent where they have a time, and the library
        baselines; each once."""
        best = self._ranked[: self._backend.rules.finalists]
        also = {c.key for c in self._plan.candidates if c.default} | self._incumbent
        rest = [k for k in self._by_key if k in also and k in self._times and k not in best]
        return [*(self._by_key[k] for k in (*best, *rest)), *self._plan.baselines]


if __name__ == "__main__":  # this copy is `__main__`; the real module is imported by the CLI
    import sys

    from workbench.cli import main

    raise SystemExit(main(["sweep", *sys.argv[1:]]))
