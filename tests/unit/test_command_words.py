"""Tables, operands, displays and searches of commands at their limits, by hand."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import synthetic
from drawn_numbers import launch

from workbench import catalog
from workbench.api import progress
from workbench.commands import operands, operators, problem, profile_command
from workbench.commands.operands import Operand, OperandError, knobs_of
from workbench.data.record import Record
from workbench.tuner.first_pass import SearchPlan
from workbench.tuner.search import Budget, StopRule, Strategy
from workbench.workload import engine, plan, tuning_text
from workbench.workload.tuned_table import MeasuredTime
from workbench.workload.tuning import TunedSignature

pytestmark = pytest.mark.unit


def cells(table):
    """Return the heads and the rows of a table."""
    columns = [[str(c) for c in column.cells] for column in table.columns]
    return [str(column.header) for column in table.columns], list(zip(*columns, strict=True))


# Operators of a program


def operator(name, own, device="cpu", is_range=False, on_gpu=0.0, moved=(0.0, 0.0), **more):
    numbers = dict(
        zip(operators.NUMBERS, (2.0, 2 * own, own, 2 * on_gpu, on_gpu, *moved), strict=True)
    )
    return {"name": name, "device": device, "is_range": is_range, **numbers, **more}


def test_operators_are_by_their_own_time_of_the_gpu_where_one_was_used():
    rows = [operator("a", 3.0), operator("b", 1.0), operator("kernel", 9.0, "cuda"),
            operator("range", 9.0, is_range=True)]  # fmt: skip
    heads, table = cells(operators.operator_table(rows))
    assert heads == ["operator", "calls", "CPU itself", "share", "CPU total"]
    assert [(r[0], r[1], r[3]) for r in table] == [("a", "2", "75 %"), ("b", "2", "25 %")]
    shaped = operator("c", 0.5, on_gpu=0.25, shapes="[4]", moved=(-2048.0, 0.0))
    heads, table = cells(operators.operator_table([*rows, shaped]))
    assert heads == ["operator", "calls", "GPU itself", "share", "GPU total", "CPU itself", "share",
                     "CPU total", "memory itself", "shapes"]  # fmt: skip
    assert [r[0] for r in table] == ["c", "a", "b"] and table[0][3] == "100 %"
    assert table[0][8].startswith("-2") and table[0][9] == "[4]" and table[1][9] == ""
    many = [operator(f"{n:02}" + "x" * 60 * (n == 0), 1.0) for n in range(22)]
    _, table = cells(operators.operator_table(many))
    assert len(table) == 21 and table[20][:2] == ("2 more", "4") and table[20][3] == "9 %"
    assert len(table[0][0]) == 60 and table[0][0].endswith("x...")
    assert operators.short("y" * 60) == "y" * 60
    _, table = cells(operators.operator_table(many[:20]))
    assert len(table) == 20


# Operands


def test_knobs_are_whole_numbers_of_nine_digits():
    assert knobs_of("o", " a = 1 ,b=999999999") == {"a": 1, "b": 999999999}
    for text in ("a", "=1", "a=", "a=-1", "a=1.5", "a=1000000000", "a=²", "a=1,"):
        with pytest.raises(OperandError, match="o is not a config"):
            knobs_of("o", text)


def test_the_kernel_is_that_of_both_operands():
    names = {("rows", "tiles", "own"): "own", ("rows", "tiles", None): "matmul",
             ("softmax.rows", "torch", None): "softmax",
             ("x", "softmax.rows:a=1.5", None): "softmax",
             ("softmax.a", "softmax.b", None): "softmax",
             ("nowhere.a", "b", None): "matmul"}  # fmt: skip
    assert {at: operands.kernel_of(*at) for at in names} == names
    with pytest.raises(OperandError, match="are of two kernels"):
        operands.kernel_of("softmax.rows", "matmul.tiles", None)
    runs = ("20261124-120000", "20261124-120000-x", "20261124-1200001", "x20261124-120000")
    assert [operands.is_run(text) for text in runs] == [True, True, False, False]


def test_an_operand_is_an_impl_a_config_or_a_revision():
    spec = catalog.spec_of("softmax")
    name = spec.impls[0].name
    here = SimpleNamespace(title=lambda: "r", commit=lambda text: "c" if text == "HEAD~1" else None)
    sides = f"{name}:num_warps=8", "HEAD~1"
    one, other = operands.operands_of(sides, f"{name}:num_warps=4", spec, here)
    assert one == Operand(name, {"num_warps": 8}) and other == Operand(
        name, {"num_warps": 4}, "HEAD~1"
    )
    both = operands.operands_of(("WORKING", f"softmax.{name}"), None, spec, None)
    assert both == (Operand(), Operand(name))
    for text, repository, words in (("HEAD~1", None, "in no git repository"), ("odd", here,
            "no commit of r"), ("20261124-120000", here, "is a stored run")):  # fmt: skip
        with pytest.raises(OperandError, match=words):
            operands.operands_of((name, text), None, spec, repository)
    with pytest.raises(OperandError, match="impl of softmax"):
        operands.operands_of((name, name), "odd", spec, here)
    with pytest.raises(OperandError, match="impl of softmax"):
        operands.config_operand("odd:a=1", spec)


def test_titles_are_as_short_as_tells_them_apart():
    def title(*pairs):
        sides = tuple(Operand(revision=r) for _, _, r in pairs)
        impls = tuple(SimpleNamespace(name=n) for n, _, _ in pairs)
        configs = tuple(SimpleNamespace(**c) for _, c, _ in pairs)
        return operands.titles(sides, impls, configs)

    here, x, y = operands.WORKING, {"num_warps": 4}, {"num_warps": 8}
    assert title(("a", x, here), ("b", {}, here)) == ("a 4 warps", "b")
    assert title(("a", x, "v1"), ("a", x, here)) == ("a at v1", f"a at {here}")
    assert title(("a", x, "v1"), ("a", y, here)) == ("a 4 warps at v1", f"a 8 warps at {here}")
    assert title(("a", x, "v1"), ("a", x, "v1")) == ("a 4 warps at v1", "a 4 warps at v1")
    assert title(("a", x, "v1"), ("b", x, "v2")) == ("a 4 warps at v1", "b 4 warps at v2")


# Displays


def test_a_line_without_a_terminal_is_printed_each_ten_seconds(monkeypatch, capsys):
    clock = [0.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    line = progress.TerminalLine("sweep")
    for at, done, total in ((0.0, 1, 4), (9.9, 2, 4), (10.0, 3, 0), (19.9, 4, 4), (20.0, 4, 4)):
        clock[0] = at
        line.show("more", done, total)
    line.end()
    assert capsys.readouterr().err == "sweep  1/4  more\nsweep  more\nsweep  4/4  more\n"


def test_a_bar_is_drawn_five_times_a_second_and_removed(monkeypatch):
    clock, drawn = [0.0], []
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    handle = SimpleNamespace(update=lambda html: drawn.append(html))
    module = SimpleNamespace(
        HTML=str, display=lambda html, display_id: drawn.append(html) or handle
    )
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    bar = progress.NotebookBar("<t>")
    bar.end()
    assert drawn == []
    for at in (0.0, 0.19, 0.2, 0.39, 0.41):
        clock[0] = at
        bar.show(f"at {at}", 1, 2)
    bar.end()
    assert [t.rpartition("at ")[2][:4] for t in drawn[:3]] == ["0.0<", "0.2<", "0.41"]
    assert drawn[3:] == [""] and '<progress value="1" max="2" ' in drawn[0] and "1/2 at" in drawn[0]
    plain = progress.bar_html("<t>", "a&b", 1, 0)
    assert "<progress  " in plain and "&lt;t&gt;: a&amp;b</div>" in plain


def test_a_place_has_its_display(monkeypatch):
    monkeypatch.setattr(progress, "runs_in_notebook", lambda: False)
    terminal = [False]
    monkeypatch.setattr(progress.sys, "stderr", SimpleNamespace(isatty=lambda: terminal[0]))

    def kinds():
        return [type(progress.progress_display("t", w)).__name__ for w in (False, None, True)]

    assert kinds() == ["NoneType", "NoneType", "TerminalLine"]
    terminal[0] = True
    assert kinds() == ["NoneType", "TerminalLine", "TerminalLine"]
    monkeypatch.setattr(progress, "runs_in_notebook", lambda: True)
    assert kinds() == ["NoneType", "NotebookBar", "NotebookBar"]


# Searches


@pytest.mark.parametrize(
    ("backend", "predicts", "bits", "many", "search"),
    [("metal", False, "", 9999, SearchPlan(start_s=0)),
     ("cuda", True, "", 9, SearchPlan(Strategy.MODEL, start_s=0)),
     ("cuda", False, "", 96, SearchPlan(start_s=0)),
     ("cuda", False, "", 97, SearchPlan(Strategy.MODEL, Budget(configs=1000), 0, None, StopRule())),
     ("cuda", False, "default", 1000, SearchPlan(start_s=0)),
     ("cuda", False, "default", 1001, SearchPlan(Strategy.MODEL, Budget(configs=1000), 0))],
)  # fmt: skip
def test_small_spaces_are_measured_whole(backend, predicts, bits, many, search):
    one = SimpleNamespace(run=SimpleNamespace(same_bits_as=bits), candidates=[None] * many)
    device = SimpleNamespace(backend=backend)
    found = problem.default_search(one, SimpleNamespace(device=device, predicts=predicts))
    assert (found.strategy, found.budget, found.stop_rule) == (
        search.strategy,
        search.budget,
        search.stop_rule,
    )


def test_searches_are_of_the_options():
    def of(budget, search):
        return problem.search_plan_of(SimpleNamespace(budget=budget, search=search), 5.0)

    assert of(None, None) is None
    assert of("7", None) == SearchPlan(Strategy.MODEL, Budget(configs=7), 5.0)
    assert of(None, "random") == SearchPlan(Strategy.RANDOM, Budget(), 5.0)
    counts = [problem.predicted_configs(s) for s in (None, of("7", None), of("9s", None))]
    assert counts == [208, 7, 0]


# Recordings


@pytest.mark.parametrize(
    ("recorded", "plain", "some"), [(2, 2, True), (1, 2, False), (2, 1, False)]
)
def test_slowdowns_are_of_two_steps_of_each(recorded, plain, some):
    status = SimpleNamespace(recorded_step_s=[3e-3, 1e-3][:recorded], plain_step_s=[1e-3] * plain)
    lines = profile_command.slowdown_lines(status)
    assert len(lines) == some
    if some:
        assert lines[0].startswith("a recorded step took 2 ms and one without the profiler 1 ms")
        assert lines[0].endswith("(medians of 2 and 2)")


def test_what_was_recorded_is_said():
    schedule = SimpleNamespace(wait=1, warmup=2, active=3)

    def said(steps=9, recorded="steps", marked=None, own=schedule, stopped=False, none=False):
        times = {"recorded_step_s": (), "plain_step_s": ()}
        status = None if none else SimpleNamespace(recorded=recorded, steps=steps, **times)
        work = SimpleNamespace(marks=marked, title="t", schedule=own)
        result = SimpleNamespace(
            status=status, workload=work, end=SimpleNamespace(stop_signal=stopped)
        )
        return profile_command.recorded_lines(None, result)

    assert said() == ["recorded: steps 3 to 5 of 9"]
    assert said(5) == ["recorded: steps 3 to 5 of 6, in which it ended"]
    assert said(4) == ["recorded: steps 3 to 4 of 5, in which it ended"]
    assert said(6) == ["recorded: steps 3 to 5 of 6"] and said(none=True) == []
    assert said(marked=SimpleNamespace(calls=2)) == ["recorded: 2 calls of t"]
    never = "; it never called workbench.step()"
    assert said(recorded="whole") == [f"recorded: the whole of t{never}"]
    assert said(recorded="whole", own=None) == ["recorded: the whole of t"]
    assert said(recorded="whole", stopped=True) == [f"recorded: t until it was stopped{never}"]


# Results of a tuned workload


def item(launches=3, launch_s=1e-5):
    return plan.WorkItem(launch("add", 64, 8), launches, 0.25, launch_s, 2e-6, None)


def test_cells_of_a_result():
    def row(of, **more):
        time = MeasuredTime(4e-5, 3e-5, 5e-5)
        config = ("num_warps", 4), ("BLOCK", 64), ("num_ctas", 1)
        given = {"digest": "d", "status": "faster", "reason": "r", "config": config,
                 "before_s": time, "after_s": None, "protocol": "p"}  # fmt: skip
        return tuning_text.done_cells(of, TunedSignature(**given | more))

    first = row(item())
    assert first[0] == "add" and first[2:4] == ("25 %", "faster") and first[6] == "-"
    assert first[4] == "BLOCK 64, 4 warps" and first[5] == "40 µs"
    assert row(item(), status="predicted")[5] == "~40 µs"
    assert row(item(), protocol=f"{tuning_text.PREDICTED} by x")[5] == "~40 µs"
    between = row(item(0), checked=False, config=())
    assert between[0] == "add, between: 64, 8" and between[2:5] == (
        "-",
        "faster, not checked here",
        "-",
    )


def test_a_plan_says_what_its_shares_are_of():
    many = [item(1500), item(2, None)]
    assert tuning_text.plan_line(many, "H200") == "2 signatures for H200, by GPU time:"
    assert "1,500" in tuning_text.plan_cells(many[0])
    line = tuning_text.plan_line([item(1, None)], "H200")
    assert line.startswith("1 signature for H200, by launches x least time")
    assert tuning_text.weight_of([item()]) == "the recorded kernels' time"
    assert tuning_text.weight_of([item(1, None)]).startswith("the recorded kernels' time, taken as")


def test_a_time_holds_its_median_between_its_ends():
    record = next(o for o in synthetic.matmul()[1] if isinstance(o, Record))
    timing = replace(record.timing, median_s=2.0, low_s=2.5, high_s=1.5)
    assert engine.time_of(replace(record, timing=timing)) == MeasuredTime(2.0, 2.0, 2.0)
    timing = replace(timing, low_s=1.5, high_s=3.0)
    assert engine.time_of(replace(record, timing=timing)) == MeasuredTime(2.0, 1.5, 3.0)
