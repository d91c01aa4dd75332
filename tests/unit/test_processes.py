"""What the parent makes of answers from the pool: each config answered once, whoever fails."""

from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.backend.processes import Duplicate, claim_key, compile_all
from workbench.backend.protocol import Problem
from workbench.compile import Compiled, CompiledDuplicate
from workbench.data.record import Case, Resources
from workbench.measurement.candidate import Candidate, Refusal

pytestmark = pytest.mark.unit

DEVICE = SimpleNamespace(name="none")
RESOURCES = Resources("", 32, 0, 0, 128, 1, 1.0, "blocks", 1, 1.0, 0.0, 128, None, 9.0)


class Pool:
    """Decides what becomes of its jobs once the last has come: `starts` is the order in which they
    claim, `ends` that in which they answer, `codes` what they would become, `fates` their end."""

    def __init__(self, codes, fates, starts, ends):
        self.codes, self.fates, self.starts, self.ends = codes, fates, starts, ends
        self.jobs, self.order, self.alone = [], [], Counter()

    def submit(self, task, job, timeout_s):
        future = Future()
        number = job.candidate.case.config["block"]
        if job.claims is None:
            self.alone[number] += 1
            self.select(future, number)
            return future
        self.jobs.append((future, number, job))
        if len(self.jobs) == len(self.codes):
            self.run()
        return future

    def run(self):
        answers = {}
        for at in self.starts:
            future, number, job = self.jobs[at]
            self.order.append(number)
            if claim_key(job.claims, self.codes[number], job.owner):
                answers[at] = lambda future=future, number=number: self.select(future, number)
            else:
                owner = (job.claims / self.codes[number]).readlink()
                duplicate = Duplicate(CompiledDuplicate(self.codes[number], 0.5), str(owner))
                answers[at] = lambda future=future, duplicate=duplicate: future.set_result(
                    duplicate
                )
        for at in self.ends:
            answers[at]()

    def select(self, future, number):
        """As a job does that goes all the way."""
        fate, code = self.fates[number], self.codes[number]
        if fate == "dies":
            future.set_exception(ChildProcessError("its process died (exit code -9)"))
        elif fate == "refused":
            future.set_result(Refusal("compile", "needs too much"))
        else:  # "more": with launches after those that the key names
            key = code + ("+" if fate == "more" else "")
            future.set_result(Compiled(RESOURCES, code, (1,), 1, key))


@dataclass(frozen=True)
class Config:
    block: int


def candidate(number):
    config = {"block": number}
    case = Case("toy", "one", "triton", config, {"N": 1}, "fp32", "none")
    return Candidate(case, str(number), SimpleNamespace(name="one"), Config(number))


@st.composite
def pools(draw):
    count = draw(st.integers(1, 12))
    codes = draw(st.lists(st.sampled_from("abc"), min_size=count, max_size=count))
    kinds = st.sampled_from(("good", "good", "dies", "refused", "more"))
    fates = draw(st.lists(kinds, min_size=count, max_size=count))
    numbers = st.permutations(range(count))
    return Pool(codes, fates, draw(numbers), draw(numbers))


@given(pools())
def test_every_config_is_answered_once_and_a_twin_after_its_leader(pool):
    everything = [candidate(n) for n in range(len(pool.codes))]
    problem = Problem("toy", None, {"N": 1}, "fp32")
    leaders, answered = set(), []
    for wanted, result in compile_all(pool, problem, everything, DEVICE):
        number = int(wanted.key)
        answered.append(number)
        fate, code = pool.fates[number], pool.codes[number]
        if isinstance(result, Refusal):
            assert fate in ("dies", "refused")
            assert (result.cause, result.attempts) == (
                ("crash", 2) if fate == "dies" else (None, 1)
            )
        elif result.duplicate:
            assert (code, result.kernel) == (result.ttgir, code) and code in leaders
            assert result.resources.compile_s == 0.5, "the time until it was known to be one"
        else:
            assert fate in ("good", "more") and result.kernel == code
            leaders.add(result.ttgir)
    assert sorted(answered) == list(range(len(pool.codes)))
    for number, times in pool.alone.items():  # one that died is tried once more
        assert times == 1 or (pool.fates[number] == "dies" and times == 2)
    first = {pool.codes[n]: n for n in reversed(pool.order)}
    for number in pool.alone:  # nothing is compiled twice but where its leader made no such code
        assert pool.fates[first[pool.codes[number]]] != "good"
