"""Keys: whatever decides an outcome is part of its key, however the outcome was asked for."""

from dataclasses import dataclass, fields, replace

import pytest
from nullside import KERNEL, Asked

from workbench import catalog
from workbench.backend.null import ENVIRONMENT, Null
from workbench.backend.protocol import Problem
from workbench.commands import experiment
from workbench.commands.comparison import Corner
from workbench.commands.measure import Course, Picks
from workbench.commands.operands import Side
from workbench.data.record import Case, Record, Run, key_of
from workbench.data.tuned_cache import Tuned
from workbench.device.hardware import device_named
from workbench.experiments import Arm
from workbench.experiments import Asked as Posed
from workbench.measurement.protocol import Protocol
from workbench.spec import threads, tile
from workbench.sweeps import Sweep
from workbench.tuner.space import Identity, plan

RUN = Run(
    "r", "sweep", "tile_size", "", "2026-11-21T09:30:00+00:00", "toy", {"N": 1024}, "bf16", "h200",
    False, (), (), {}, {},
    replace(ENVIRONMENT, driver="580.65", versions={"torch": "2.13", "triton": "3.9"}),
)  # fmt: skip
RULES = Protocol()
CASE = Case("toy", "blocks", "triton", {"block_n": 16}, {"N": 1024}, "bf16", "h200")


@dataclass(frozen=True)
class Question:
    """All that a key is made of, and some that it is not."""

    text: str = KERNEL
    sizes: int = 1024
    dtype: str = "bf16"
    run: Run = RUN
    rules: Protocol = RULES


def environment(**changed):
    return replace(RUN, environment=replace(RUN.environment, **changed))


QUESTION = Question()
OTHERS = {
    "source": replace(QUESTION, text=KERNEL + "\n# changed\n"),
    "sizes": replace(QUESTION, sizes=2048),
    "dtype": replace(QUESTION, dtype="fp16"),
    "device": replace(QUESTION, run=replace(RUN, device="h100")),
    "driver": replace(QUESTION, run=environment(driver="590.1")),
    "no driver": replace(QUESTION, run=environment(driver=None)),
    "torch": replace(QUESTION, run=environment(versions={"torch": "2.14", "triton": "3.9"})),
    "triton": replace(QUESTION, run=environment(versions={"torch": "2.13", "triton": "3.8"})),
    "protocol": replace(QUESTION, rules=Protocol(window_s=0.02)),
}
ALIKE = {
    "another run": replace(QUESTION, run=replace(RUN, id="s", command="again", started="2027")),
    "another commit": replace(QUESTION, run=environment(commit="3f2a", dirty=True)),
    "another machine": replace(QUESTION, run=environment(cpu="other", os="other", python="3.14")),
}


def posed(asked, folder):
    """The problem, with its text in a file of its own; and a backend with the rules."""
    file = folder / "toy.py"
    folder.mkdir()
    file.write_text(asked.text)
    problem = Problem(str(file), catalog.spec_of(str(file)), {"N": asked.sizes}, asked.dtype)
    return problem, Null(rules=asked.rules)


def of_a_sweep(asked, folder):
    problem, null = posed(asked, folder)
    impls = [i for i in problem.spec.impls if i.backend == "triton"]
    made = plan(asked.run, problem, Sweep([tile], [threads]), impls, device_named("h200"),
                null.protocol)  # fmt: skip
    return [c.key for c in (*made.candidates, *made.baselines)]


def of_a_comparison(asked, folder):
    problem, null = posed(asked, folder)
    corner = Corner(Identity(asked.run, problem, null.protocol), null.device.limits, None)
    bout = corner.bout((Side("blocks"), Side("torch")))
    return [bout.left.key, bout.right.key]


def of_a_measurement(asked, folder):
    problem, null = posed(asked, folder)
    course = Course(Identity(asked.run, problem, null.protocol), null, Picks([], Tuned(), null))
    course.begin()
    return list(course.origins)


def of_an_experiment(asked, folder):
    problem, null = posed(asked, folder)
    arms = [
        Arm(clock, problem.kernel, impl, problem.sizes, problem.dtype, clock=clock)
        for impl in ("blocks", "torch") for clock in ("device", "host")
    ]  # fmt: skip
    about = Posed(problem.kernel, problem.sizes, problem.dtype, null.device, False, {})
    made = [experiment.made(about, [arm], asked.run, null, Tuned()) for arm in arms]
    return [part.candidate.key for each in made for part in each.parts.values()]


WAYS = (of_a_sweep, of_a_comparison, of_a_measurement, of_an_experiment)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("other", OTHERS)
def test_what_decides_an_outcome_changes_all_its_keys(tmp_path, way, other):
    here, there = way(QUESTION, tmp_path / "a"), way(OTHERS[other], tmp_path / "b")
    assert len(here) == len(there) >= 2 and len(set(here)) == len(here), "each has one of its own"
    assert not set(here) & set(there)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("other", ALIKE)
def test_what_decides_nothing_changes_no_key(tmp_path, way, other):
    assert way(QUESTION, tmp_path / "a") == way(ALIKE[other], tmp_path / "b")


@pytest.mark.parametrize("name", [f.name for f in fields(Case)])
def test_every_field_of_a_case_is_part_of_its_key(name):
    value = getattr(CASE, name)
    other = {**value, "more": 1} if isinstance(value, dict) else value + "x"
    assert key_of(CASE, source="s") != key_of(replace(CASE, **{name: other}), source="s")


@pytest.mark.parametrize("name", ["config", "sizes"])
def test_a_knob_and_an_axis_count_by_name_and_by_value(name):
    pairs = [{"a": 1, "b": 2}, {"a": 2, "b": 1}, {"a": 1, "c": 2}, {"a": 1}, {}]
    assert len({key_of(replace(CASE, **{name: pair})) for pair in pairs}) == len(pairs)


def test_a_value_under_another_name_is_another_key():
    assert key_of(CASE, torch="3.9", triton="") != key_of(CASE, torch="", triton="3.9")


@pytest.mark.parametrize("name", [f.name for f in fields(Protocol)])
def test_every_parameter_is_part_of_the_protocols_id(name):
    rules = Protocol()
    assert replace(rules, **{name: getattr(rules, name) + 1}).id != rules.id == Protocol().id


def test_times_under_another_driver_do_not_answer(tmp_path, monkeypatch):
    monkeypatch.setattr("workbench.reports.sweep.page", lambda *given: "<p>page</p>")
    asked = Asked(tmp_path)
    first = {o.key for o in asked.sweep() if isinstance(o, Record)}
    asked.sweep()
    assert not asked.labels("time"), "the same question has its answer"
    monkeypatch.setattr("workbench.backend.null.ENVIRONMENT", replace(ENVIRONMENT, driver="590.1"))
    again = {o.key for o in asked.sweep() if isinstance(o, Record)}
    assert asked.labels("time") and asked.labels("final") and not first & again
