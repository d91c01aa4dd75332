"""Keys: whatever decides an outcome is part of its key, however the outcome was asked for."""

import hashlib
import sqlite3
import sys
from dataclasses import dataclass, fields, replace

import pytest
from null_backend import ENVIRONMENT, Null
from nullside import KERNEL, Place

from workbench import catalog
from workbench.backend.processes import compile_all
from workbench.backend.protocol import Problem
from workbench.backend.workers import Workers
from workbench.catalog.source import SourceChanged, code_hash, load_kernel
from workbench.commands import experiment_command
from workbench.commands.comparison import PairMaker
from workbench.commands.measure_command import ProblemGroup
from workbench.commands.operands import Operand
from workbench.commands.selected import Selected
from workbench.data.record import Case, Measured, Record, Run, key_of
from workbench.data.tuned_cache import Tuned
from workbench.device.hardware import device_named
from workbench.experiments import Context, Variant
from workbench.measurement.candidate import Candidate, Timed
from workbench.measurement.protocol import Protocol
from workbench.spec import Spec, Tensor, threads, tile
from workbench.sweeps import Sweep
from workbench.tuner.space import RecordFactory, plan_sweep

RUN = Run(
    id="r",
    engine="sweep",
    name="tile_size",
    command="",
    started="2026-11-21T09:30:00+00:00",
    kernel="toy",
    sizes={"N": 1024},
    dtype="bf16",
    device="h200",
    predicted=False,
    vary=(),
    tune=(),
    impls={},
    ceilings={},
    environment=replace(ENVIRONMENT, driver="580.65", versions={"torch": "2.13", "triton": "3.9"}),
)
RULES = Protocol()
CASE = Case("toy", "blocks", "triton", {"block_n": 16}, {"N": 1024}, "bf16", "h200")


@dataclass(frozen=True)
class KeyParts:
    """All that a key is made of, and some that it is not."""

    text: str = KERNEL
    sizes: int = 1024
    dtype: str = "bf16"
    run: Run = RUN
    rules: Protocol = RULES


def environment(**changed):
    return replace(RUN, environment=replace(RUN.environment, **changed))


PARTS = KeyParts()
OTHERS = {
    "reference": replace(PARTS, text=KERNEL.replace("lambda x: x", "lambda x: x + 0")),
    "sizes": replace(PARTS, sizes=2048),
    "dtype": replace(PARTS, dtype="fp16"),
    "device": replace(PARTS, run=replace(RUN, device="h100")),
    "driver": replace(PARTS, run=environment(driver="590.1")),
    "no driver": replace(PARTS, run=environment(driver=None)),
    "torch": replace(PARTS, run=environment(versions={"torch": "2.14", "triton": "3.9"})),
    "triton": replace(PARTS, run=environment(versions={"torch": "2.13", "triton": "3.8"})),
    "protocol": replace(PARTS, rules=Protocol(window_s=0.02)),
    "settings": replace(PARTS, run=environment(settings={"DISABLE_PTXAS_OPT": "1"})),
    "other settings": replace(PARTS, run=environment(settings={"PTXAS_OPTIONS": "-O1"})),
}
ALIKE = {
    # workers choose it themselves
    "interpreter": replace(PARTS, run=environment(settings={"TRITON_INTERPRET": "1"})),
    "a comment": replace(PARTS, text=KERNEL + "\n# changed\n"),
    "a docstring": replace(PARTS, text=KERNEL.replace("A kernel that nothing runs", "Changed")),
    "a launcher's docstring": replace(
        PARTS,
        text=KERNEL.replace("    raise NotImp", '    """Changed."""\n    raise NotImp'),
    ),
    "a rejection": replace(PARTS, text=KERNEL.replace("if N % 16:", "if N % 32:")),
    "sizes to time": replace(PARTS, text=KERNEL.replace('{"N": 1024}', '{"N": 2048}')),
    "another run": replace(PARTS, run=replace(RUN, id="s", command="again", started="2027")),
    "another commit": replace(PARTS, run=environment(commit="3f2a", dirty=True)),
    "another machine": replace(PARTS, run=environment(cpu="other", os="other", python="3.14")),
}


def prepared(context, folder):
    """The problem, with its text in a file of its own; and a backend with the rules."""
    file = folder / "toy.py"
    folder.mkdir()
    file.write_text(context.text)
    problem = Problem(str(file), catalog.spec_of(str(file)), {"N": context.sizes}, context.dtype)
    return problem, Null(rules=context.rules)


def of_a_sweep(context, folder):
    problem, null = prepared(context, folder)
    impls = [i for i in problem.spec.impls if i.backend == "triton"]
    created = plan_sweep(
        context.run, problem, Sweep([tile], [threads]), impls, device_named("h200"), null.protocol
    )
    return [c.key for c in (*created.candidates, *created.baselines)]


def of_a_comparison(context, folder):
    problem, null = prepared(context, folder)
    factory = RecordFactory(context.run, problem, null.protocol)
    compared = PairMaker(factory, null.device.limits, None).pair(
        (Operand("blocks"), Operand("torch"))
    )
    return [compared.left.key, compared.right.key]


def of_a_measurement(context, folder):
    problem, null = prepared(context, folder)
    course = ProblemGroup(
        RecordFactory(context.run, problem, null.protocol), null, Selected([], Tuned(), null)
    )
    course.plan()
    return list(course.origins)


def of_an_experiment(context, folder):
    problem, null = prepared(context, folder)
    variants = [
        Variant(clock, problem.kernel, impl, problem.sizes, problem.dtype, clock=clock)
        for impl in ("blocks", "torch")
        for clock in ("device", "host")
    ]
    about = Context(problem.kernel, problem.sizes, problem.dtype, null.device, False, {})
    created = [
        experiment_command.prepare(about, [variant], context.run, null, Tuned())
        for variant in variants
    ]
    return [part.candidate.key for each in created for part in each.tasks.values()]


WAYS = (of_a_sweep, of_a_comparison, of_a_measurement, of_an_experiment)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("other", OTHERS)
def test_what_decides_an_outcome_changes_all_its_keys(tmp_path, way, other):
    here, there = way(PARTS, tmp_path / "a"), way(OTHERS[other], tmp_path / "b")
    assert len(here) == len(there) >= 2 and len(set(here)) == len(here), "each has one of its own"
    assert not set(here) & set(there)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("NotImplementedError", "ValueError"),
        ("    return x\n", "    return x + 0\n"),
        ("refuse=refuse)", 'refuse=refuse, mutates=("x",))'),
    ],
    ids=["launcher", "library", "mutates"],
)
def test_a_launcher_decides_the_keys_of_its_own_impl_alone(tmp_path, way, was, now):
    changed = replace(PARTS, text=KERNEL.replace(was, now))
    here, there = set(way(PARTS, tmp_path / "a")), set(way(changed, tmp_path / "b"))
    assert here & there and here != there


HELPED = {
    "imported at the top": ("import key_helper", "return key_helper.scaled(x)"),
    "a name of it": ("from key_helper import scaled", "return scaled(x)"),
    "all names of it": ("from key_helper import *", "return scaled(x)"),
    "imported in the launcher": ("", "from key_helper import scaled; return scaled(x)"),
    "where it is there": (
        "try:\n    from key_helper import scaled\nexcept ImportError:\n    scaled = None",
        "return scaled(x)",
    ),
}


@pytest.mark.parametrize(("top", "body"), HELPED.values(), ids=HELPED)
@pytest.mark.parametrize("inner", [False, True], ids=["itself", "what it imports"])
def test_a_helper_module_of_a_kernel_is_part_of_its_key(tmp_path, monkeypatch, top, body, inner):
    """It is read as its kernel is: parsed, without comments, with what it imports in turn."""
    text = KERNEL.replace("    raise NotImplementedError", f"    {body}")
    text = text.replace("from workbench.spec", f"{top}\nfrom workbench.spec", 1)
    keys = []
    for number, change in enumerate(("return x", "return x  # so", "return 2 * x")):
        folder = tmp_path / str(number)
        folder.mkdir()
        code = f"def scaled(x):\n    {change}\n"
        (folder / "key_inner.py").write_text(code)
        (folder / "key_helper.py").write_text("from key_inner import scaled\n" if inner else code)
        with monkeypatch.context() as patch:
            patch.syspath_prepend(str(folder))
            keys.append(of_a_sweep(replace(PARTS, text=text), folder / "kernel")[0])
        for name in ("key_helper", "key_inner"):
            sys.modules.pop(name, None)
    assert keys[0] == keys[1] != keys[2]


def test_the_encoding_of_a_file_is_no_code(tmp_path):
    """As editors on Windows save it, and with the letters of Latin-1 in a comment."""
    latin = b"# -*- coding: latin-1 -*-\n# \xe9\n" + KERNEL.encode()
    files = {"plain": KERNEL.encode(), "mark": b"\xef\xbb\xbf" + KERNEL.encode(), "latin": latin}
    keys = set()
    for name, data in files.items():
        (tmp_path / f"{name}.py").write_bytes(data)
        keys.add(code_hash(catalog.spec_of(str(tmp_path / f"{name}.py")).impls[0]))
    assert len(keys) == 1 and keys != {""}


def test_a_helper_in_the_package_of_a_kernel_is_part_of_its_key(tmp_path, monkeypatch):
    text = KERNEL.replace("    raise NotImplementedError", "    return scaled(x)")
    text = text.replace("from workbench.spec", "from .near import scaled\nfrom workbench.spec", 1)
    keys = []
    for number, change in enumerate(("return x", "return x  # so", "return 2 * x")):
        package = tmp_path / f"key_package_{number}"
        package.mkdir()
        (package / "__init__.py").write_text("")
        (package / "near.py").write_text(f"def scaled(x):\n    {change}\n")
        (package / "toy.py").write_text(text)
        monkeypatch.syspath_prepend(str(tmp_path))
        spec = catalog.spec_of(f"key_package_{number}.toy")
        keys.append(code_hash(spec.impls[0]))
    assert keys[0] == keys[1] != keys[2]


def test_a_worker_runs_no_other_code_than_was_planned(tmp_path):
    """A file that changes during a sweep: its new times would be stored under the old key."""
    file = tmp_path / "toy.py"
    file.write_text(KERNEL)
    planned = code_hash(catalog.spec_of(str(file)).impls[0])
    assert load_kernel(str(file)).impl("blocks", planned).name == "blocks"
    assert load_kernel(str(file)).impl("blocks", "").name == "blocks", "where the code has no file"
    other = tmp_path / "other" / "toy.py"
    other.parent.mkdir()
    other.write_text(KERNEL.replace("raise NotImplementedError", "return x"))
    with pytest.raises(SourceChanged, match=r"blocks changed during the run; .* run the command"):
        load_kernel(str(other)).impl("blocks", planned)


def test_a_sweep_whose_kernel_changes_ends_with_a_sentence(tmp_path):
    """In real workers: they import the file after it was planned and changed."""
    file = tmp_path / "toy.py"
    file.write_text(KERNEL)
    spec = catalog.spec_of(str(file))
    problem = Problem(str(file), spec, {"N": 1024}, "bf16")
    candidate = RecordFactory(RUN, problem, "model").candidate(
        spec.impls[0], spec.impls[0].config(), True
    )
    file.write_text(KERNEL.replace("raise NotImplementedError", "return x"))
    with Workers(1) as pool, pytest.raises(SourceChanged, match="changed during the run"):
        list(compile_all(pool, problem, [candidate], device_named("h200")))


@pytest.mark.parametrize(("moved", "bytes_"), [(None, (6, 4, 2)), (3, (3, 1, 2)), (1, (1, 0, 1))])
def test_a_record_has_the_bytes_that_a_call_moved(moved, bytes_):
    spec = Spec("k", {"x": Tensor("2 N")}, {"y": Tensor("N")}, lambda x: x, lambda N: 0, [], [])
    factory = RecordFactory(RUN, Problem("k", spec, {"N": 1}, "bf16"), "p3")
    timing = Measured(1e-6, 1e-6, 1e-6, (1e-6,), "cold", "graph", "p3")
    timed = Timed(timing, 0.1, "gpu", moved_bytes=moved)
    record = factory.outcome(Candidate.create("one", {}), timed, "final", None)
    assert (record.bytes, record.bytes_read, record.bytes_written) == bytes_


def test_what_schema_1_stored_is_found_under_its_key_and_marked(tmp_path, monkeypatch):
    place, plans = Place(tmp_path), []
    monkeypatch.setattr("workbench.reports.sweep.page", lambda *given, **more: "<p>page</p>")
    real = plan_sweep
    monkeypatch.setattr(
        "workbench.commands.sweep_command.plan_sweep",
        lambda *given, **more: plans.append(real(*given, **more)) or plans[-1],
    )
    outcomes = [o for o in place.sweep(predicts=True) if isinstance(o, Record)]
    assert outcomes and not any(o.older_key for o in outcomes)
    keys = {c.key: c.older_key for c in plans[0].candidates}
    with sqlite3.connect(tmp_path / "history.db") as db:
        for key, older in keys.items():
            db.execute(
                "UPDATE outcomes SET key = ?, payload = replace(payload, ?, ?) WHERE key = ?",
                (older, key, older, key),
            )
        db.execute("DELETE FROM outcomes WHERE key = ?", (older,))  # one is asked for anew
    again = [o for o in place.sweep(predicts=True) if isinstance(o, Record)]
    assert len(place.labels("time")) == 1, "the others are known"
    assert {o.key for o in again} == {o.key for o in outcomes}
    assert [o.older_key for o in again].count(False) == 1


def test_the_older_key_is_the_one_that_schema_1_gave(tmp_path):
    """Of the whole file's text, under the protocol's former name."""
    problem, null = prepared(PARTS, tmp_path / "a")
    factory = RecordFactory(RUN, problem, null.protocol)
    impl = problem.spec.impls[0]
    candidate = factory.candidate(impl, impl.config(), True)
    text = hashlib.sha256(KERNEL.encode()).hexdigest()[:16]
    software = {"torch": "2.13", "triton": "3.9", "driver": "580.65"}
    older = key_of(candidate.case, source=text, protocol="p3-ebbcb8", **software)
    assert candidate.older_key == older != candidate.key


def test_the_protocol_of_schema_1_keeps_its_name():
    """As it stands in what version 0.1.0 measured: tests/golden/stored."""
    assert Protocol().older_id == "p3-ebbcb8"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("other", ALIKE)
def test_what_decides_nothing_changes_no_key(tmp_path, way, other):
    assert way(PARTS, tmp_path / "a") == way(ALIKE[other], tmp_path / "b")


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
    monkeypatch.setattr("workbench.reports.sweep.page", lambda *given, **more: "<p>page</p>")
    wanted = Place(tmp_path)
    first = {o.key for o in wanted.sweep() if isinstance(o, Record)}
    wanted.sweep()
    assert not wanted.labels("time"), "the same question has its answer"
    monkeypatch.setattr("null_backend.ENVIRONMENT", replace(ENVIRONMENT, driver="590.1"))
    again = {o.key for o in wanted.sweep() if isinstance(o, Record)}
    assert wanted.labels("time") and wanted.labels("final") and not first & again
