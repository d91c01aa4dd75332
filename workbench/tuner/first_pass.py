"""Time every config once: compiled ahead, checked, and timed in the order that a search chooses."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from typing import Any

from workbench.backend.measuring import GpuGone
from workbench.backend.offline import prediction
from workbench.backend.protocol import Backend
from workbench.backend.workers import PATIENCE, cpu_count
from workbench.compile import Compiled
from workbench.data.record import Measured, Outcome, Phase, Record
from workbench.measurement.candidate import Candidate, Refusal, Timed
from workbench.spec import WorkbenchError
from workbench.tuner.search import Budget, StopRule, Strategy, search_of
from workbench.tuner.space import Plan, RecordFactory

FINAL_S = 15.0  # halving, final benchmark and hot time of matmul on an H200 took 9 to 14 s
LIBRARIES_S = 3.0  # for slow libraries, once the winner is known; ready ones take 1 to 2 s


@dataclass(frozen=True)
class SearchPlan:
    """Strategy and budget of a search."""

    strategy: Strategy = Strategy.EXHAUSTIVE
    budget: Budget = field(default_factory=Budget)
    start_s: float = field(default_factory=time.monotonic)  # the budget's seconds count from here
    final_s: float = FINAL_S
    stop_rule: StopRule | None = None  # of the default search alone; None: only the budget ends it

    def left_s(self) -> float:
        """Return the seconds left for the first pass, without those reserved for halving and final
        benchmark."""
        whole = self.budget.seconds
        return self.start_s + max(whole / 2, whole - self.final_s) - time.monotonic()

    def libraries_s(self) -> float:
        """Return the seconds that are left for slow libraries once the winner is known."""
        left_s = self.start_s + self.budget.seconds - time.monotonic()
        return max(0.0, min(LIBRARIES_S, left_s))

    def share(self, many: int) -> SearchPlan:
        """Return this plan for the first of `many` problems that share the remaining seconds
        equally."""
        now = time.monotonic()
        left = (self.start_s + self.budget.seconds - now) / many
        return replace(self, start_s=now, budget=replace(self.budget, seconds=left))

    def is_spent(self, measured: int) -> bool:
        """Return whether the budget is spent."""
        return self.left_s() <= 0 or self.budget.is_spent(0.0, measured)


BATCH = 3  # configs given to the compilers at once, for each CPU, where a search decides the order
# ... and where nothing is measured: the search learns from what is compiled, and sooner
PREDICTED_BATCH = 2
STOPPING_BATCH = 1  # ... and where the search may stop: what is compiled ahead is then lost


# Reported for each compiled candidate: its launch geometry is known, its time is not.
Dispatch = tuple[Candidate, Compiled]


class FirstPass:
    """Compile, drop duplicates, check and time. Compiling runs ahead; the search chooses what is
    timed next among what is compiled, and that begins when the previous outcome has been stored."""

    def __init__(
        self,
        plan: Plan,
        backend: Backend,
        outcomes: Mapping[str, Outcome],
        search: SearchPlan,
        chance_left: float | None = None,
    ) -> None:
        """Plan the pass. With `chance_left` an earlier run stopped by the rule of the default
        search, and all that it tried is known."""
        self._plan, self._backend, self._search_plan = plan, backend, search
        self._factory = RecordFactory(plan.run, plan.problem, backend.protocol)
        self._phase: Phase = "predict" if backend.predicts else "first_pass"
        self._by_key = {c.key: c for c in plan.candidates}
        self._search = search_of(search.strategy, plan.candidates, predicts=backend.predicts)
        self._leaders: dict[str, Candidate] = {}  # by machine code
        self._duplicates: dict[str, list[tuple[Candidate, Compiled]]] = {}  # by the leader's key
        self._results: dict[str, Timed | Refusal] = {}  # by the leader's key
        self._check_queue: deque[tuple[Candidate, Compiled, Candidate]] = deque()  # with its leader
        self._same: dict[Future[Any], Candidate] = {}  # the leader of a duplicate being checked
        self._ready: dict[str, tuple[Candidate, Compiled]] = {}
        self._waiting: dict[Future[Any], tuple[Candidate, Compiled]] = {}
        self._inbox: SimpleQueue[Any] = SimpleQueue()  # compilations, futures, ends of batches
        self._compiling = 0  # streams of batches that have not ended
        self._open_count = 0  # configs that were given to the compilers and have not come back
        self._is_stopped = False
        self._tries = 0
        # configs whose process was lost: each is tried once more, alone
        self._losses: deque[tuple[Candidate, Compiled, Refusal]] = deque()
        self._best: float | None = None
        self.wait_s = 0.0
        self._skips: set[str] = set()  # keys of known outcomes
        # What launches run today and the previous best are in the final benchmark: they come first,
        # so that a search or a budget that ends soon has measured them.
        best = plan.run.previous_best
        sure = [self._by_key[k] for k in plan.launches if k in self._by_key]
        sure += [c for c in plan.candidates if c.default or best.get(c.impl.name) == c.case.config]
        self._sure = {c.key: c for c in sure}  # while they were not begun
        self._keys: set[str] = set()  # keys of those that were compiled, or need not be
        self.chance_left = chance_left if search.stop_rule else None
        self._learn(outcomes)
        self.first = self._first_batch()

    def _first_batch(self) -> list[Candidate]:
        return [] if self._is_settled else self._batch()

    @property
    def _is_settled(self) -> bool:
        # known outcomes count, so that a second run with the same budget finds it spent
        return self._search_plan.budget.is_spent(0.0, self._tries) or self.chance_left is not None

    def skip(self, outcomes: Mapping[str, Outcome], chance_left: float | None = None) -> None:
        """Do not obtain these, whose outcomes became known before anything was timed. What is being
        compiled goes on, unless all of it is known."""
        if self._search_plan.stop_rule:
            self.chance_left = chance_left
        self._learn(outcomes)
        if self._is_settled:
            self.first = []
        elif self.first and all(c.key in self._skips for c in self.first):
            self.first = self._first_batch()

    def _learn(self, outcomes: Mapping[str, Outcome]) -> None:
        """Count the results of earlier runs as measured, and register their machine code."""
        self._skips |= outcomes.keys()
        self._sure = {k: c for k, c in self._sure.items() if k not in outcomes}
        for key, old in outcomes.items():
            record = old if isinstance(old, Record) else None
            self._search.tell(self._by_key[key], record.time_s if record else None)
            if record is not None and record.same_as is not None:
                continue
            self._tries += 1
            if record is None:
                continue
            self._best = min(record.time_s, self._best or math.inf)
            if record.resources is not None:
                self._leaders[record.resources.binary] = self._by_key[key]
                self._results[key] = Timed(
                    record.timing, record.error, record.checked, moved_bytes=record.bytes
                )

    def _batch(self) -> list[Candidate]:
        """Return the next candidates to compile: all, unless measured times decide the order."""
        changes = self._search_plan.strategy in (Strategy.MODEL, Strategy.TPE)
        batch = PREDICTED_BATCH if self._backend.predicts else BATCH
        if self._search_plan.stop_rule:
            batch = STOPPING_BATCH
        size = batch * cpu_count() if changes else len(self._by_key)
        results = [c for c in self._sure.values() if c.key not in self._keys | self._skips]
        self._keys |= {c.key for c in results} | self._skips
        while points := self._search.order(size - len(results)):
            results += [p for p in points if p.key not in self._keys]
        self._keys |= {c.key for c in results}
        return results

    def outcomes(self) -> Iterator[Outcome | Dispatch]:
        """Yield each compilation and each outcome as soon as it is known, until all or the budget
        is done."""
        self._compile(self.first)
        try:
            while self._busy or self._losses:
                if self._search_plan.is_spent(self._tries) or self._is_vain():
                    self._is_stopped = True
                    self._ready.clear()
                    self._check_queue.clear()
                    if not self._waiting:
                        yield from self._retry_lost()
                        return
                elif self._wants_more:
                    self._compile(self._batch())
                yield from self._next() if self._busy else self._tried_again()
        except GpuGone:  # the config that ran on it, and others whose process was lost
            yield from self._given_up()
            raise
        finally:
            self._is_stopped = True

    @property
    def _wants_more(self) -> bool:
        # by configs, as one that compiles for seconds would hold back all that its batch waits for:
        # with two batches of 16 at most, 15 compilers of an H100's host were idle for 4 of 10 s
        few = max(self._open_count, len(self._ready)) < cpu_count()
        return few and not self._is_stopped

    @property
    def _busy(self) -> bool:
        return bool(self._compiling or self._ready or self._waiting or self._check_queue)

    def _tried_again(self) -> Iterator[Outcome]:
        """Try a config whose process was lost once more, alone and with a larger limit. What ends
        it a second time in the same way stands."""
        candidate, compiled, first = self._losses[0]
        result = _result_of(self._backend.time(candidate, compiled, self._best, PATIENCE))
        if isinstance(result, Refusal) and result.cause == first.cause:
            result = replace(result, attempts=first.attempts + 1)
        self._losses.popleft()
        yield from self._final_result(candidate, compiled, result or first)

    def _next(self) -> Iterator[Outcome | Dispatch]:
        """Start timing one candidate if the backend has room for it, else wait for the next
        event."""
        while not self._inbox.empty():
            yield from self._came(self._inbox.get())
        if self._check_queue and len(self._waiting) < self._backend.room:
            candidate, compiled, leader = self._check_queue.popleft()
            future = self._backend.duplicate(candidate, compiled, leader.key)
            self._same[future] = leader
            self._wait_for(future, candidate, compiled)
        elif self._ready and len(self._waiting) < self._backend.room:
            self._time()
        elif self._compiling or self._waiting:
            started = time.monotonic()
            with suppress(Empty):
                came = self._inbox.get(timeout=min(60.0, max(0.0, self._search_plan.left_s())))
                if not self._waiting:
                    self.wait_s += time.monotonic() - started
                yield from self._came(came)

    def _time(self) -> None:
        ready = [candidate for candidate, _ in self._ready.values()]
        sure = next((c for c in ready if c.key in self._sure), None)
        chosen = sure or self._search.ask(ready) or ready[0]
        candidate, compiled = self._ready.pop(chosen.key)
        self._sure.pop(candidate.key, None)
        future = self._backend.time(candidate, compiled, self._best)
        self._tries += 1
        self._wait_for(future, candidate, compiled)

    def _wait_for(self, future: Future[Any], candidate: Candidate, compiled: Compiled) -> None:
        self._waiting[future] = (candidate, compiled)
        future.add_done_callback(self._inbox.put)

    def _compile(self, batch: list[Candidate]) -> None:
        """Start a thread that passes on the results of the compilers."""
        if not batch:
            return
        self._compiling += 1
        self._open_count += len(batch)

        def take() -> None:
            try:
                stream = self._backend.compile(batch)
                for one in stream:
                    self._inbox.put(one)
                    if self._is_stopped:
                        getattr(stream, "close", lambda: None)()
                        break
            except BaseException as error:  # of a cluster also Stopped, which is not an Exception
                self._inbox.put(error)
            self._inbox.put(None)

        threading.Thread(target=take, daemon=True).start()

    def _came(self, came: Any) -> Iterator[Outcome | Dispatch]:
        if came is None:
            self._compiling -= 1
        elif isinstance(came, Future):
            yield from self._take_result(came)
        elif isinstance(came, BaseException):
            raise came
        else:
            self._open_count -= 1
            yield from self._receive(*came)

    def _receive(
        self, candidate: Candidate, compiled: Compiled | Refusal
    ) -> Iterator[Outcome | Dispatch]:
        if candidate.key in self._skips:  # known since it was given to the compilers
            return
        if isinstance(compiled, Refusal):
            self._tell(candidate, compiled)
            yield self._factory.failure(candidate, compiled)
            return
        leader = self._leaders.setdefault(compiled.binary, candidate)
        yield candidate, replace(compiled, duplicate=leader is not candidate)
        if leader is candidate:
            self._search.revise(candidate, self._predict(candidate, compiled))
            self._ready[candidate.key] = (candidate, compiled)
        elif leader.key in self._results:
            self._pass_on(leader, [(candidate, compiled)])
        else:
            self._duplicates.setdefault(leader.key, []).append((candidate, compiled))

    def _predict(self, candidate: Candidate, compiled: Compiled) -> float:
        """Return the seconds that the model predicts from the real resources of the machine
        code."""
        try:
            result = prediction(self._plan.problem, candidate, compiled, self._backend.device)
        except Exception:  # the device lacks a figure, or the kernel's own `work` failed
            return math.inf
        return result.predicted_s

    def _take_result(self, future: Future[Any]) -> Iterator[Outcome]:
        candidate, compiled = self._waiting.pop(future)
        result = _result_of(future)
        leader = self._same.pop(future, None)
        if leader is not None and result is None:  # its launches differ
            self._ready[candidate.key] = (candidate, compiled)
        elif leader is not None and isinstance(result, Timed):
            yield self._duplicate_outcome(leader, candidate, compiled, result)
        elif isinstance(result, Refusal) and result.cause:
            self._sure.pop(candidate.key, None)  # tried again at the end, whatever ends the search
            self._losses.append((candidate, compiled, result))
        elif result is not None:
            yield from self._final_result(candidate, compiled, result)

    def _is_vain(self) -> bool:
        """Return whether the rule of the default search says that going on cannot pay."""
        stop = self._search_plan.stop_rule
        if stop is None:
            return False
        if self.chance_left is None and self._tries >= stop.least and not self._sure:
            chance = self._search.chance_left(stop.share)
            self.chance_left = chance if chance <= stop.chance else None
        return self.chance_left is not None

    def _retry_lost(self) -> Iterator[Outcome]:
        """Try configs whose process was lost once more, unless the budget leaves no time for it."""
        while self._losses and not self._search_plan.is_spent(self._tries):
            yield from self._tried_again()
        yield from self._given_up()

    def _given_up(self) -> Iterator[Outcome]:
        """Report configs whose process was lost, where the budget leaves no second attempt."""
        while self._losses:
            yield from self._final_result(*self._losses.popleft())

    def _final_result(
        self, candidate: Candidate, compiled: Compiled, result: Timed | Refusal
    ) -> Iterator[Outcome]:
        """Report the result of a candidate and of its duplicates."""
        self._results[candidate.key] = result
        if isinstance(result, Timed):
            self._best = min(seconds_of(result), self._best or math.inf)
        self._tell(candidate, result)
        yield self._factory.outcome(candidate, result, self._phase, compiled)
        if duplicates := self._duplicates.pop(candidate.key, []):
            self._pass_on(candidate, duplicates)

    def _pass_on(self, leader: Candidate, duplicates: list[tuple[Candidate, Compiled]]) -> None:
        """Let duplicates be checked. Where their leader failed, the first of them is tried itself
        and leads the others: the host code that launches equal machine code may differ."""
        if isinstance(self._results[leader.key], Timed):
            self._check_queue.extend((*duplicate, leader) for duplicate in duplicates)
            return
        (first, compiled), *others = duplicates
        self._leaders[compiled.binary] = first
        self._ready[first.key] = (first, compiled)
        self._duplicates[first.key] = others

    def _duplicate_outcome(
        self, leader: Candidate, duplicate: Candidate, compiled: Compiled, checked: Timed
    ) -> Outcome:
        """Return the outcome of a duplicate that was checked: the leader's time, its own result."""
        timed = self._results[leader.key]
        assert isinstance(timed, Timed)
        result = replace(checked, timing=timed.timing)
        self._tell(duplicate, result)
        return self._factory.outcome(duplicate, result, self._phase, compiled, same_as=leader)

    def _tell(self, candidate: Candidate, result: Timed | Refusal) -> None:
        time_s = seconds_of(result) if isinstance(result, Timed) else None
        self._sure.pop(candidate.key, None)  # a duplicate, or one that did not compile
        self._search.tell(candidate, time_s)


def _result_of(future: Future[Any]) -> Timed | Refusal | None:
    try:
        result: Timed | Refusal | None = future.result()
    except WorkbenchError:  # such as SourceChanged, which ends the sweep
        raise
    except Exception as error:  # any other error fails this config alone
        result = Refusal("measure", f"{type(error).__name__}: {error}")
    return result


def seconds_of(result: Timed) -> float:
    """Return the seconds of one call, measured or predicted."""
    t = result.timing
    assert t is not None, "a duplicate has the time of its leader"
    return t.median_s if isinstance(t, Measured) else t.predicted_s
