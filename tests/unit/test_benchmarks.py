"""The benchmark scripts start, and what is pure in them computes what it says."""

import ast
import json
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import synthetic
from hypothesis import given
from hypothesis import strategies as st

from workbench import catalog
from workbench.data.record import Evidence, Finding, dumps
from workbench.spec import values

pytestmark = pytest.mark.unit

FOLDER = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = (
    "autotune",
    "spread",
    "short",
    "verdicts",
    "faults",
    "resume",
    "gap",
    "kernels",
    "sanitize",
    "experiments",
    "reading",
    "workload_loop",
    "cluster",
    "main_loop",
    "launch_times",
    "ops_choice",
)
KERNELS = {"matmul": 256, "softmax": 100, "rms_norm": 100, "copy": 100}
POSITIVE = st.floats(1e-7, 1.0)


@pytest.fixture(scope="module", autouse=True)
def path():
    sys.path.insert(0, str(FOLDER))
    yield
    sys.path.remove(str(FOLDER))


@pytest.mark.parametrize("name", SCRIPTS)
def test_help(name, tmp_path):
    done = subprocess.run(
        [sys.executable, str(FOLDER / f"{name}.py"), "--help"], cwd=tmp_path, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "--out" in done.stdout


@pytest.mark.parametrize("name", [*SCRIPTS, "peers", "runs", "workload_observed"])
def test_importing_a_script_loads_neither_torch_nor_triton(name, tmp_path):
    """A worker imports its parent's main module before it can choose Triton's interpreter."""
    code = f"import sys; sys.path.insert(0, {str(FOLDER)!r}); import {name}; "
    code += "print([m for m in ('torch', 'triton') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_what_a_launch_chose_is_held_to_the_answer_of_the_sweep():
    import main_loop

    answer = "warp_groups 128x256x64, 4 stages, lag 0 (the default): 704 TFLOP/s, 1.03x torch."
    chosen = "matmul.warp_groups: 128x256x64, 4 stages, lag 0; tuned 2026-11-26 on h100"
    assert main_loop.is_kept(answer, chosen)
    assert not main_loop.is_kept(answer, chosen.replace("warp_groups", "tiles"))
    assert not main_loop.is_kept(answer, chosen.replace("4 stages", "3 stages"))
    assert not main_loop.is_kept(answer, chosen.replace("128x256x64", "128x128x64"))
    one = "block_n 1024, 4 warps: 4268 GB/s, 1.02x torch; 2 configs tie within noise."
    assert main_loop.is_kept(one, "copy.blocks: block_n 1024, 4 warps; tuned 2026-11-26 on h100")


# Lists


@pytest.mark.parametrize(("name", "count"), KERNELS.items())
def test_a_list_is_as_long_as_it_says_whatever_the_device(name, count):
    import autotune

    spec = catalog.spec_of(str(FOLDER / "lists" / f"{name}.py"))
    listed = autotune.configs_of(spec, spec.bench[0])
    assert len(set(listed)) == len(listed) == count
    assert spec.impls[0].config() in listed, "the default is one of the list"


@pytest.mark.parametrize("name", KERNELS)
def test_a_config_is_the_same_on_both_sides(name):
    pytest.importorskip("triton")
    import autotune

    spec = catalog.spec_of(str(FOLDER / "lists" / f"{name}.py"))
    for config in autotune.configs_of(spec, spec.bench[0]):
        plain = values(config)
        assert autotune.config_values(autotune.triton_config(plain)) == plain


def test_the_faulty_space_is_forty_good_configs_and_one_of_each_fault():
    import autotune
    import faults

    module = catalog.module_of(str(FOLDER / "faulty_kernel.py"))
    space = autotune.configs_of(module.faulty, module.faulty.bench[0])
    bad = [c.fault for c in space if c.fault]
    assert len(space) - len(bad) == 40
    assert sorted(bad) == sorted(module.FAULTS) == sorted(faults.TELLING)


@pytest.mark.parametrize("name", ["compute", "memory"])
def test_a_slowdown_is_what_it_is_called(name):
    import verdicts

    module = catalog.module_of(verdicts.OWN)
    pair = verdicts.PAIRS[name]
    impl = catalog.impl_of(module.slowdown, name)
    left, right = (impl.config(**operand.config) for operand in (pair.left, pair.rights["2 %"]))
    more = right.trips / left.trips - 1 if name == "compute" else right.percent / 100
    assert more == pytest.approx(0.02)


def test_trips_are_specialised_alike():
    """Triton compiles multiples of 16 apart from other numbers: then more than trips would vary."""
    import verdicts

    config = catalog.impl_of(catalog.spec_of(verdicts.OWN), "compute").choices()
    assert all(trips % 16 == 0 for trips in config["trips"])


# Figures


@given(done=st.integers(1, 256), first=st.floats(0, 60), each=POSITIVE)
def test_a_tuning_cut_short_is_projected_to_all_configs(done, first, each):
    import autotune
    from runs import Ended

    began = 1000.0 + first
    results = {"of": 256, "done": done, "failed": 0, "began": began, "at": began + each * done}
    timed = autotune.autotuner_times(results, Ended(None, 1000.0, 99.0, ""))
    assert timed["table_s"] == pytest.approx(first + 256 * each, rel=1e-6, abs=1e-6)
    assert not timed["whole"]


def test_a_tuning_without_a_config_has_no_time():
    import autotune
    from runs import Ended

    for result in (None, {"of": 256, "done": 0}):
        assert "table_s" not in autotune.autotuner_times(
            result, Ended(1, 0.0, 1.0, "Traceback\nno GPU\n")
        )


@given(st.lists(POSITIVE, min_size=2), st.floats(0.1, 10))
def test_spread_knows_no_unit_and_is_zero_for_equals_alone(medians, unit):
    import spread

    result = spread.spread_of(medians)
    assert result == pytest.approx(spread.spread_of([m * unit for m in medians]), abs=1e-6)
    assert (result == 0) == (len(set(medians)) == 1)


@given(st.floats(1e-6, 1e-4), st.floats(-0.5, 0.5))
def test_within_three_percent_or_a_tenth_of_a_microsecond(theirs, off):
    import short

    mine = theirs * (1 + off)
    if abs(off) < 0.0299 or abs(mine - theirs) < 0.099e-6:
        assert short.holds(mine, theirs)
    if abs(off) > 0.0301 and abs(mine - theirs) > 0.101e-6:
        assert not short.holds(mine, theirs)


@pytest.mark.parametrize(
    ("kind", "word", "expected"),
    [
        ("A/A", "SAME", False), ("A/A", "INCONCLUSIVE", False), ("A/A", "SLOW", True),
        ("A/A", "FAST", True), ("A/A", "CLOCK", True), ("2 %", "SLOW", False),
        ("2 %", "SAME", True), ("2 %", "CLOCK", True), ("2 %", "INCONCLUSIVE", True),
    ],
)  # fmt: skip
def test_what_counts_as_wrong(kind, word, expected):
    import verdicts

    assert verdicts.wrong(kind, {"word": word}) == expected


@given(st.sets(st.sampled_from(["compute", "memory", "matmul"]), min_size=1), st.floats(1, 1000))
def test_the_seconds_are_shared_out_whole(names, seconds):
    import verdicts

    assert sum(verdicts.shares(sorted(names), seconds).values()) == pytest.approx(seconds)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 1), st.floats(1e-7, 1e-3))))
def test_the_kernel_launched_most_often_is_the_one_that_is_timed(seen):
    import peers

    result = peers.usual([peers.Launch(*one) for one in seen])
    names = [name for name, _, _ in seen]
    assert len(result) == max((names.count(n) for n in names), default=0)
    assert len({one.name for one in result}) <= 1


# What events say


def course(began_s=1_800_000_000.0):
    """A synthetic sweep whose outcomes come one second after the other."""
    run, outcomes = synthetic.matmul()
    at = [datetime.fromtimestamp(began_s + 1 + i, UTC).isoformat() for i in range(len(outcomes))]
    return run, [replace(o, at=when) for o, when in zip(outcomes, at, strict=True)], began_s


def test_the_table_is_complete_with_the_last_screen_and_not_with_the_final():
    from runs import Ended, sweep_course

    run, events, began_s = course()
    result = sweep_course(Ended(0, began_s, 999.0, ""), [run, *events])
    screens = [
        getattr(e, "phase", "first_pass") == "first_pass" and getattr(e, "stage", None) != "refused"
        for e in events
    ]
    assert result.table_s == pytest.approx(1 + max(i for i, s in enumerate(screens) if s))
    finals = [i for i, e in enumerate(events) if getattr(e, "phase", "") == "final"]
    assert result.final_s == pytest.approx(1 + max(finals))
    assert result.winner is not None and not result.winner.case.is_baseline
    assert result.configs == sum(screens)


def test_a_table_that_was_cut_short_has_no_time():
    from runs import Ended, sweep_course

    _, events, began_s = course()
    result = sweep_course(Ended(None, began_s, 9.0, ""), events[:50])
    assert result.table_s is None and result.final_s is None and result.winner is None


@given(cut=st.integers(0, 324))
def test_what_an_earlier_run_measured_does_not_count_again(cut):
    import resume
    from runs import Ended, sweep_course

    _, events, began_s = course()
    first = sweep_course(Ended(None, began_s, 0.0, ""), events[:cut])
    began_again_s = began_s + cut + 0.5
    ended = Ended(0, began_again_s, 0.0, "")
    second = sweep_course(ended, events)  # known ones come first, as they were
    again = resume.timed_keys(second, began_again_s)
    assert not resume.timed_keys(first) & again
    assert resume.timed_keys(first) | again == resume.timed_keys(second)
    assert resume.tried_keys(first) <= resume.tried_keys(second)


def test_outcomes_are_counted_while_the_file_is_written(tmp_path):
    import resume

    _, events, _ = course()
    path = tmp_path / "events.jsonl"
    assert resume.stored_configs(path) == 0
    path.write_text("".join(dumps(e) + "\n" for e in events[:100]))
    kept = [e for e in events[:100] if getattr(e, "stage", None) != "refused"]
    assert resume.stored_configs(path) == len(kept)


# Processes


def test_a_process_is_ended_at_its_limit():
    from runs import run_command

    ended = run_command([sys.executable, "-c", "input()"], 60)
    assert ended.code == 1, "there is no standard input to wait for"
    ended = run_command(["sleep", "infinity"], 0.2)
    assert ended.code is None, "it was ended, for it never ends by itself"


def test_what_a_process_said_last_is_kept():
    from runs import WORDS, run_command

    ended = run_command([sys.executable, "-c", "print('x' * 9000); print('the end')"], 60)
    assert len(ended.text) == WORDS
    assert ended.reason == "exit 0: the end"


def test_an_answer_is_whole_or_absent(tmp_path):
    from runs import write_reply

    path = tmp_path / "answer.json"
    write_reply(str(path), {"a": 1})
    with pytest.raises(TypeError):
        write_reply(str(path), {"a": object()})
    assert path.read_text() == '{"a": 1}'


# Tasks in processes of their own, and options


def trees():
    """The scripts, parsed."""
    return {file.name: ast.parse(file.read_text()) for file in FOLDER.glob("*.py")}


def calls_of(tree, name):
    return [
        node for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == name
    ]  # fmt: skip


def test_every_task_takes_what_it_is_given():
    every, found = trees(), 0
    for tree in every.values():
        for call in calls_of(tree, "task"):
            script, name = (ast.literal_eval(a) for a in call.args[:2])
            (function,) = (
                n for n in every[script].body if isinstance(n, ast.FunctionDef) and n.name == name
            )
            takes = {a.arg for a in (*function.args.args, *function.args.kwonlyargs)}
            assert takes == {k.arg for k in call.keywords} | {"answer"}, (script, name)
            found += 1
    assert found >= 4


def test_every_option_that_is_read_is_declared():
    for name, tree in trees().items():
        declared = {
            ast.literal_eval(k.value)
            for call in calls_of(tree, "add_argument")
            for k in call.keywords if k.arg == "dest"
        } | {
            ast.literal_eval(call.args[0]).lstrip("-").replace("-", "_")
            for call in calls_of(tree, "add_argument")
        }  # fmt: skip
        used = [n for n in ast.walk(tree) if isinstance(n, ast.Attribute)]
        used = [n for n in used if isinstance(n.value, ast.Name) and n.value.id == "wanted"]
        stored = {n.attr for n in used if isinstance(n.ctx, ast.Store)}
        assert {n.attr for n in used} <= declared | stored, name


# Goals


def test_every_goal_finds_its_peer_and_its_number():
    import kernels

    lines = kernels.peers()
    for goals in (kernels.GOALS, kernels.PRODUCTS):
        assert len({goal.name for goal in goals}) == len(goals)
    for goal in kernels.GOALS:
        peer = kernels.best_peer(goal, lines)
        assert goal.peer is None or peer is not None, goal.name
        final = {name: {"us": 1.0, "ours": False} for name in kernels.LINKS.values()}
        linked = kernels.link_of(goal, final, lines)
        assert linked is None or goal.kernel not in ("wkv6", "wkv7"), goal.name


def test_goals_name_kernels_axes_and_inputs_that_exist():
    import kernels

    for goal in (*kernels.GOALS, *kernels.PRODUCTS):
        spec = catalog.spec_of(goal.kernel)
        assert set(goal.sizes) == set(spec.axes), goal.name
        assert {*goal.fixed_inputs, *filter(None, [goal.column_major_input])} <= set(spec.inputs), (
            goal.name
        )
        assert spec.refuse(goal.sizes) is None and goal.dtype in spec.tolerance


def test_a_line_of_the_table():
    import kernels

    goal = next(g for g in kernels.GOALS if g.name == "softmax 8192x4096 bf16")
    final = {
        "rows": {"us": 33.0, "ours": True},
        "torch": {"us": 99.0, "ours": False},
        "liger": {"us": 2 * 34.71, "ours": False},
    }
    row = {"final": final}
    text = dict(zip(kernels.HEADS, kernels.cells(goal, row, kernels.peers()), strict=True))
    assert (text["ours us"], text["Impl"], text["library"]) == (33.0, "rows", "liger")
    assert text["ours/library"] == pytest.approx(33.0 / (2 * 34.71))
    # liger took twice its stored time, so quack would have, too
    assert (text["best public kernel"], text["link"]) == ("quack", "liger")
    assert text["ours/best"] == pytest.approx(33.0 / (2 * 34.6))
    assert (text["asked"], text["met"]) == ("1", "yes")
    lost = kernels.cells(goal, {"reason": "its process ended with -6"}, kernels.peers())
    assert lost[1] is None and "ended" in lost[2] and lost[kernels.HEADS.index("met")] is None


def test_without_a_link_there_is_no_ratio():
    import kernels

    goal = next(g for g in kernels.GOALS if g.kernel == "wkv7")
    row = {"final": {"chunked": {"us": 1.0, "ours": True}}}
    text = dict(zip(kernels.HEADS, kernels.cells(goal, row, kernels.peers()), strict=True))
    assert text["ours/best"] is None and text["met"] is None
    assert text["its us, in a run of its own"] > 0


def test_the_fastest_of_ours_and_libraries_that_are_near_enter_the_final():
    import kernels

    ours = {"a": 10.0, "b": 15.0, "c": 11.0, "d": 13.0, "e": 12.0}
    first_pass = ours | {"torch": 30.0, "slow": 50.0}
    assert kernels.choose_finalists(first_pass, set(ours)) == {"a", "c", "d", "e", "torch"}
    assert kernels.choose_finalists({}, {"a"}) == set()
    assert kernels.geomean([1.0, 4.0]) == pytest.approx(2.0) and kernels.geomean([]) is None


# Experiments and ceilings

NOW = "2026-11-21T12:00:00+00:00"
RATES = st.floats(1e9, 1e16)
WORDS = st.sampled_from(["memory-bound", "serialised", "refused", "undecided"])


def ran(word=None, wall_s=7.0, reason=None, **ceilings):
    """A command as it stands in the JSON file."""
    times = {"C": [3.0, 2.9, 3.1], "A": [2.0, 1.9, 2.1], "B": [1.0, 0.9, 1.1]}
    result = [{"kernel": "copy", "word": word, "sentence": "So.", "times": times}] if word else []
    return {"exit": 0, "wall_s": wall_s, "why": reason, "run": "r", "on": None, "failures": [],
            "findings": result, "ceilings": ceilings}  # fmt: skip


def ceiling(value, beside=None, unit="B/s", **more):
    yard = {"library": {"name": "torch.clone", "value": beside}} if beside else {}
    return {"value": value, "unit": unit, **yard, **more}


def goal(result, start, times=20):
    import experiments

    rows = {row[0]: row[1:] for row in experiments.goals(result, ["e2e", "expected"], times)}
    return next(cells for name, cells in rows.items() if name.startswith(start))


@given(times=st.integers(1, 25), cut=st.integers(0, 100))
def test_what_is_cut_short_is_cut_alike_for_each_planted_kernel(times, cut):
    import experiments

    steps = experiments.steps(times)
    assert len({step.key for step in steps}) == len(steps)
    planted = [step.key.split("/")[1] for step in steps if step.part == "planted"]
    counts = [planted[:cut].count(kernel) for kernel in experiments.TRUTHS]
    assert max(counts) - min(counts) <= 1 and planted.count("copy") == times
    assert [s.key for s in experiments.steps(times, ["suite/e2e"])] == ["suite/e2e"]
    assert all("planted" in s.key for s in experiments.steps(times, ["planted"]))


def test_planted_kernels_have_arms_and_rows_go_by_the_names_that_evidence_has():
    import experiments

    from workbench.experiments import memory_vs_compute as mvc

    class Timed:
        def evidence(self, name, group):
            return name if group == "times" else None

    for kernel in experiments.TRUTHS:
        catalog.spec_of(kernel)
        assert all(mvc.part_spec(kernel, mvc.part_name(kernel, part)) for part in mvc.PARTS)
    text = mvc._rows(dict.fromkeys(("whole", *mvc.PARTS, "launch"), Timed()))
    assert set(experiments.VARIANTS.values()) <= set(text)
    assert set(experiments.TRUTHS.values()) <= set(mvc.ADVICE)


@given(st.lists(WORDS, max_size=6), st.integers(1, 6))
def test_a_planted_kernel_is_right_only_where_every_word_is(words, times):
    import experiments

    results = {f"planted/copy/{n}": ran(word) for n, word in enumerate(words)}
    row = experiments.planted_rows(results)[0]
    right = words.count("memory-bound")
    assert row[:4] == ["copy", "memory-bound", len(words), right]
    text, met = goal(results, "copy is", times)
    assert (met == "no") == (right < len(words))
    assert (met == "yes") == (right == len(words) >= times)
    assert (text is None) == (not words)


def test_a_command_that_gave_nothing_is_a_wrong_answer_and_says_why():
    import experiments

    results = {
        "planted/copy/1": ran("memory-bound"),
        "planted/copy/2": ran(reason="exit 2: No GPU."),
    }
    results["planted/copy/3"] = ran("memory-bound", reason="its times are predicted")
    row = experiments.planted_rows(results)[0]
    assert row[2:4] == [3, 1] and "1 without an answer (exit 2: No GPU.)" in row[4]
    assert goal(results, "copy is", 3)[1] == "no"


@given(st.lists(RATES, min_size=1, max_size=3), RATES)
def test_a_ceiling_is_held_against_the_best_yardstick_at_its_least(values, beside):
    import experiments

    runs = {f"ceilings/{n}": ran(dram_copy=ceiling(v, beside)) for n, v in enumerate(values)}
    row = experiments.ceiling_rows(runs)[0]
    best = max(beside, experiments.GIVEN["dram_copy"])
    assert row[-2] == pytest.approx(min(values) / best)
    assert goal(runs, "dram_copy")[1] == ("yes" if row[-2] >= experiments.SHARE else "no")
    apart = None if len(values) < 3 else 100 * (max(values) / min(values) - 1)
    assert row[5] == (apart if apart is None else pytest.approx(apart))
    near = None if apart is None else "yes" if apart <= experiments.SPREAD else "no"
    assert goal(runs, "3 runs")[1] == near


def test_ceilings_of_the_cpu_are_a_goal_of_their_own():
    runs = {
        f"ceilings/{n}": ran(dram_copy=ceiling(4e12), h2d_pinned=ceiling(5e10 + n * 1e9))
        for n in range(3)
    }
    assert goal(runs, "3 runs") == ["0.00 % at most (dram_copy)", "yes"]
    assert goal(runs, "... of those") == ["4.00 % at most (h2d_pinned)", "no"]
    runs["ceilings/1"]["ceilings"].pop("dram_copy")
    assert goal(runs, "3 runs") == [None, None]


def test_a_ceiling_that_failed_its_check_meets_no_goal_and_a_launch_is_the_faster_the_better():
    import experiments

    good = ceiling(4.4e12, 4.3e12)
    failed = ran(dram_copy={**good, "failed": True, "why": "it lies below"})
    runs = {"ceilings/1": ran(dram_copy=good), "ceilings/2": failed}
    assert goal({"ceilings/1": ran(dram_copy=good)}, "dram_copy")[1] == "yes"
    assert goal(runs, "dram_copy")[1] == "no"
    assert experiments.ceiling_rows(runs)[0][-1] == "it lies below"
    assert experiments.reference_share("launch", ceiling(2e-6, 1e-6, "s")) == pytest.approx(0.5)
    lost = experiments.ceiling_rows({"ceilings/1": ran(reason="exit 2: No GPU.")})
    assert lost[0][0] == "run 1" and lost[0][-1] == "exit 2: No GPU."


@given(st.lists(st.tuples(POSITIVE, st.floats(0, 0.1)), min_size=3, max_size=3))
def test_a_part_may_be_slower_than_the_whole_by_the_noise_alone(spans):
    import experiments

    times = {
        variant: [t, t * (1 - noise), t * (1 + noise)]
        for variant, (t, noise) in zip("CAB", spans, strict=True)
    }
    apart = any(times[part][1] > times["C"][2] for part in "AB")
    assert experiments.holds(times) == (not apart)
    assert experiments.holds({**times, "A": [times["A"][0], None, None]}) is None
    assert experiments.holds({"C": times["C"]}) is None


def test_one_kernel_whose_part_is_slower_than_it_misses_the_goal_of_all():
    slow = ran("refused")
    slow["findings"] = [*ran("balanced")["findings"], *slow["findings"]]
    assert goal({"suite/memory_vs_compute": slow}, "C + noise") == ["2 of 2", "yes"]
    slow["findings"][1]["times"]["A"] = [4.0, 3.9, 4.1]
    assert goal({"suite/memory_vs_compute": slow}, "C + noise") == ["1 of 2", "no"]
    slow["findings"][0]["times"].pop("C")
    assert goal({"suite/memory_vs_compute": slow}, "C + noise")[1] == "no"
    slow["findings"].pop()
    assert goal({"suite/memory_vs_compute": slow}, "C + noise") == [None, None]


def test_the_suite_has_a_time_only_when_all_of_it_ran():
    one, other = ran("seen", wall_s=100.0), ran("seen", wall_s=199.0)
    assert goal({"suite/e2e": one}, "all experiments") == [100.0, None]
    assert goal({"suite/e2e": one, "suite/expected": other}, "all experiments") == [299.0, "yes"]
    late = {"suite/e2e": ran("seen", wall_s=101.0), "suite/expected": ran("seen", wall_s=200.0)}
    assert goal(late, "all experiments")[1] == "no"
    lost = {"suite/e2e": one, "suite/expected": ran(reason="exit 2")}
    assert goal(lost, "all experiments")[1] is None


def test_what_a_run_said_is_read_from_its_events():
    import experiments
    from runs import Ended

    run, _ = synthetic.matmul()
    measured = {"value": 4e12, "unit": "B/s", "kind": "measured", "source": "ours"}
    gauged = replace(run, engine="ceilings", ceilings={"dram": {}, "dram_copy_measured": measured})
    text = experiments.text(Ended(0, 0.0, 9.0, ""), [gauged])
    assert text["ceilings"] == {"dram_copy": {"value": 4e12, "unit": "B/s"}} and text["why"] is None
    times = [
        Evidence(name, 1.0, "s", "measured", 0.9, 1.1, "times")
        for name in experiments.VARIANTS.values()
    ]
    result = Finding(
        "r", NOW, "memory_vs_compute", "copy", {}, "bf16", "balanced", "So.", (*times,)
    )
    text = experiments.text(Ended(0, 0.0, 9.0, ""), [run, result])
    assert text["findings"][0]["times"] == {variant: [1.0, 0.9, 1.1] for variant in "CAB"}
    assert text["on"]["device"] == run.device and json.loads(json.dumps(text)) == text
    assert "exit 2" in experiments.text(Ended(2, 0.0, 9.0, "No GPU."), [run])["why"]
    assert "nothing" in experiments.text(Ended(0, 0.0, 9.0, ""), [run])["why"]
    _, outcomes = synthetic.matmul(predicted=True)
    events = [run, *outcomes, result]
    assert "predicted" in experiments.text(Ended(0, 0.0, 9.0, ""), events)["why"]
    assert experiments.text(Ended(0, 0.0, 9.0, ""), events, predicts=True)["why"] is None


def test_only_a_file_of_the_same_device_is_gone_on_with(tmp_path):
    import experiments

    path = tmp_path / "experiments.json"
    assert experiments.earlier(str(path), "h200") == {"device": "h200", "steps": {}}
    path.write_text('{"device": "h200", "steps": {"suite/e2e": {}}}')
    assert "suite/e2e" in experiments.earlier(str(path), "h200")["steps"]
    for text, device in ((path.read_text(), None), ("[]", "h200"), ("{", "h200")):
        path.write_text(text)
        with pytest.raises(ValueError, match="--out"):
            experiments.earlier(str(path), device)


def test_each_command_runs_once_and_none_after_the_end():
    import experiments

    steps, kept = experiments.steps(2), []

    def keep(key, result):
        kept.append(key)

    experiments.course(steps, time.perf_counter() + 60, lambda step: ran("seen"), keep)
    assert sorted(kept) == sorted(step.key for step in steps)
    experiments.course(steps, time.perf_counter() - 1, lambda step: ran("seen"), keep)
    assert len(kept) == len(steps)


# What compute-sanitizer says

WORDS = """\
========= COMPUTE-SANITIZER
@@begin softmax.rows
@@end 4
@@begin matmul.tiles
========= Invalid __global__ read of size 16 bytes
=========     at _tiles+0x1b0
=========     by thread (32,0,0) in block (1,0,0)
========= Invalid __global__ read of size 16 bytes
@@failed RuntimeError: an illegal memory access
========= Target application returned an error
========= ERROR SUMMARY: 2 errors
"""


def test_findings_belong_to_the_impl_that_was_begun_last():
    import sanitize

    result = sanitize.findings(WORDS.splitlines(keepends=True))
    assert sanitize.clean(result["softmax.rows"])
    assert sanitize.verdict(result["softmax.rows"]) == "clean at 4 sizes"
    bad = result["matmul.tiles"]
    assert len(bad["findings"]) == 2 and not sanitize.clean(bad)
    assert sanitize.verdict(bad) == "2 findings: Invalid __global__ read of size # bytes"
    assert "by thread (32,0,0)" in bad["report"][2]
    lost = sanitize.findings(["@@begin copy.blocks\n"])["copy.blocks"]
    assert not sanitize.clean(lost) and "ended" in sanitize.verdict(lost)


def test_parts_of_the_cluster_benchmark_that_ended_well_are_not_run_again():
    import cluster

    assert cluster.unfinished_parts({}, False) == ["compile", "two", "one", "killed"]
    known = {"compile": {"exit": None}, "two": {"exit": 0}, "one": {"exit": 2}}
    assert cluster.unfinished_parts(known, False) == ["compile", "one", "killed"]
    assert cluster.unfinished_parts(known, True) == ["one", "killed"]
    runs = {
        n: {"exit": None, "wall_s": 9.0, "at_work_s": None, "tables": {}} for n in ("one", "two")
    }
    (line,) = cluster.verdict(runs)
    assert "cut off" in line


def test_the_missed_figures_of_the_loop_come_first():
    import workload_loop

    queue = workload_loop.queue_of(workload_loop.PROGRAMS, missed=True)
    assert queue[0] == ("fla_layers", "stock") and ("compiled_block", "compare") in queue
    assert queue.index(("fla_layers", "tune")) > queue.index(("fla_layers", "record"))
    every = workload_loop.queue_of(workload_loop.PROGRAMS, missed=False)
    assert len(every) == 15 and set(queue) <= set(every)


def test_entries_above_their_budget_of_lines_are_named():
    import line_budget

    now = {name: line_budget.EntryCounts(lines=lines) for name, lines in (("a", 9), ("b", 12))}
    assert line_budget.excesses(now, {"a": 9, "b": 12}) == []
    assert line_budget.excesses(now, {"a": 8, "b": 13}) == [
        "workbench/a has 1 lines more than its budget in line_budget.tsv."
    ]
    assert len(line_budget.excesses(now, {"a": 9})) == 1, "an entry without a budget"
    text = line_budget.table(now, {"a": 9})
    assert text.splitlines()[1].split()[:3] == ["b", "12", "0"] and text.split()[-2:] == ["21", "9"]
