"""Recorders, children and readers' inputs, with fakes that note what is called; by hand."""

import contextlib
import gzip
import json
import signal
import sqlite3
import sys
import time
from types import ModuleType, SimpleNamespace

import pytest

from workbench.commands.profile_command import unreadable_lines
from workbench.traces.profilers.running import child, expected
from workbench.traces.profilers.running.child import ChildEnd
from workbench.traces.profilers.running.expected import (
    check_dispatches,
    check_marked_calls,
    check_whole,
    ending,
)
from workbench.traces.profilers.running.proton_recording import ProtonRecording
from workbench.traces.profilers.running.torch_recording import TorchRecording, _operators
from workbench.traces.readers.inputs import database
from workbench.traces.readers.inputs.ncu import table_lines
from workbench.traces.readers.inputs.numbers import (
    base_scale,
    integer,
    ns_of_us,
    number,
    triple,
    whole,
)
from workbench.traces.readers.inputs.source import ReadError, ReadLimits, Source, sources
from workbench.traces.readers.inputs.stream import JsonStream, load_json
from workbench.traces.readers.inputs.xml import parse
from workbench.traces.trace import ActivityKind, Dispatch, Total, Trace

pytestmark = pytest.mark.unit


# Proton


@pytest.fixture
def proton(monkeypatch):
    """Proton, which notes what it is asked."""
    log = []
    module = ModuleType("triton.profiler")
    module.start = lambda name, **how: log.append(("start", how)) or module.session
    module.finalize = lambda session: log.append(("finalize", session))
    module.enter_scope = lambda name: log.append(("enter", name))
    module.exit_scope = lambda: log.append(("exit",))
    module.session, module.log = 7, log
    import triton

    monkeypatch.setitem(sys.modules, "triton.profiler", module)
    monkeypatch.setattr(triton, "profiler", module, raising=False)
    return module


def options(tmp_path, data="tree", active=None, stepping=False, wait=0, warmup=0, **more):
    return SimpleNamespace(folder=tmp_path, data=data, active=active, stepping=stepping, wait=wait,
                           warmup=warmup, **more)  # fmt: skip


def stepped(recording, steps):
    """Return what is called at each step."""
    recording.begin()
    for _ in range(steps):
        recording.step()
    recording.end()
    return recording.facts()["recorded"]


STARTED = ("start", {"data": "tree", "hook": "triton"})


def test_proton_records_the_whole_program(proton, tmp_path):
    assert stepped(ProtonRecording(options(tmp_path)), 3) == "program"
    assert proton.log == [STARTED, ("finalize", 7)]


@pytest.mark.parametrize(
    ("wait", "warmup", "active", "steps", "calls"),
    [
        (0, 0, 2, 3, [0, 2]), (1, 1, 2, 5, [2, 4]), (2, 1, 1, 4, [3, 4]), (1, 1, 2, 3, [2, None]),
        (1, 1, 2, 1, []),
    ],
)  # fmt: skip
def test_proton_records_the_steps_of_a_schedule(
    proton, tmp_path, wait, warmup, active, steps, calls
):
    recording = ProtonRecording(options(tmp_path, "tree", active, True, wait, warmup))
    recording.begin()
    at = [(0, name) for name, *_ in proton.log]
    for step in range(1, steps + 1):
        before = len(proton.log)
        recording.step()
        at += [(step, name) for name, *_ in proton.log[before:]]
    recording.end()
    begun, done = [*calls, None, None][:2]
    wanted = [(begun, "start"), (begun, "enter")] if begun is not None else []
    wanted += [(done, "exit"), (done, "finalize")] if done is not None else []
    assert at == wanted
    assert [name for name, *_ in proton.log].count("finalize") == bool(calls)


def test_proton_records_inside_of_kernels_from_the_begin_on(proton, tmp_path):
    recording = ProtonRecording(options(tmp_path, "inside", 1, True, 1, 1))
    assert stepped(recording, 4) == "program"
    inside = ("start", {"backend": "instrumentation", "data": "trace"})
    assert proton.log == [inside, ("finalize", 7)]
    proton.session = None
    with pytest.raises(RuntimeError, match="switched off"):
        ProtonRecording(options(tmp_path)).begin()


# torch.profiler


@pytest.mark.parametrize(
    ("schedule", "recorded", "plain"),
    [
        ((0, 0, 2), [1.0], [2.0, 3.0, 4.0, 5.0]),  # the first step is not timed
        ((1, 1, 2), [2.0, 3.0], [4.0, 5.0]),
        ((3, 1, 1), [4.0], [1.0, 2.0, 5.0]),
        ((2, 0, 9), [2.0, 3.0, 4.0, 5.0], [1.0]),
    ],
)
def test_seconds_of_steps_are_those_with_the_profiler_and_without(schedule, recorded, plain):
    one = TorchRecording.__new__(TorchRecording)
    one._schedule, one._took_s = schedule, [1.0, 2.0, 3.0, 4.0, 5.0]
    assert one._step_seconds() == (recorded, plain)


@pytest.mark.parametrize(
    ("stepping", "schedule", "begun"),
    [(False, None, "whole"), (True, None, "whole"), (False, (0, 0, 1), "steps"),
     (False, (0, 1, 1), "whole"), (False, (1, 0, 1), "whole"), (True, (1, 1, 1), "steps")],
)  # fmt: skip
def test_the_whole_is_recorded_until_the_first_step(
    monkeypatch, tmp_path, stepping, schedule, begun
):
    wait, warmup, active = schedule or (0, 0, None)
    given = options(tmp_path, "tree", active, stepping, wait, warmup)
    one, log = TorchRecording(given), []
    for name in ("_begin_whole", "_begin_steps", "_refuse_others"):
        monkeypatch.setattr(one, name, lambda name=name: log.append(name))
    one.begin()
    assert log == ["_refuse_others", f"_begin_{begun}"]


def test_a_step_ends_the_time_before_the_first_and_times_those_after_it(monkeypatch, tmp_path):
    clock = iter((10.0, 11.0, 20.0, 21.0, 35.0, 36.0))
    fake = SimpleNamespace(perf_counter=lambda: next(clock))
    monkeypatch.setattr("workbench.traces.profilers.running.torch_recording.time", fake)
    one, log = TorchRecording(options(tmp_path, "tree", 1, False, 1, 1)), []

    def begin():
        log.append("begin")
        one._steps = SimpleNamespace(step=lambda: log.append("step"))

    monkeypatch.setattr(one, "_begin_steps", begin)
    monkeypatch.setattr(one, "_end_whole", lambda: log.append("end"))
    for _ in range(3):
        one.step()
    assert log == ["end", "begin", "step", "step", "step"] and one._took_s == [9.0, 14.0]
    whole_program = TorchRecording(options(tmp_path))
    monkeypatch.setattr("workbench.traces.profilers.running.torch_recording.time", time)
    whole_program.step()
    assert whole_program._took_s == [] and whole_program._steps is None


def test_rows_of_operators_are_in_seconds_without_python_s_frames():
    def event(key, **more):
        counts = {f"{own}{name}": n * 1e6 for n, (own, name) in enumerate(
            (("", "cpu_time_total"), ("self_", "cpu_time_total"), ("", "device_time_total"),
             ("self_", "device_time_total")), 1)}  # fmt: skip
        return SimpleNamespace(key=key, count=3, device_type=SimpleNamespace(name="CUDA"),
                               self_cpu_memory_usage=8, self_device_memory_usage=16,
                               input_shapes=[[2, 3]], **counts, **more)  # fmt: skip

    frames = [
        SimpleNamespace(name="main.py(3)", is_python_function=True),
        SimpleNamespace(name="add"),
    ]
    events = [event("add"), event("main.py(3)"), event("step", is_user_annotation=True)]
    profiler = SimpleNamespace(
        events=lambda: frames, key_averages=lambda group_by_input_shape: events
    )
    first, second = _operators(profiler, True)
    assert (first["cpu_s"], first["self_cpu_s"], first["device_s"]) == pytest.approx((1, 2, 3))
    assert first["self_device_s"] == pytest.approx(4) and first["calls"] == 3
    assert (first["device"], first["shapes"], first["is_range"]) == ("cuda", "[[2, 3]]", False)
    assert second["is_range"] is True and "shapes" not in _operators(profiler, False)[0]


def test_events_without_a_readable_name_leave_the_table_and_are_counted(tmp_path, monkeypatch):
    """torch 2.13's frames of Python, now and then: the trace is written, they are counted. Those
    that torch itself gives in this run leave the list first, so that exactly two are bad."""
    import torch
    from torch.profiler import profile

    bad = SimpleNamespace(name=lambda: b"\xf8\x91".decode(), stack=list)
    stop = profile.stop

    def has_text(event):
        with contextlib.suppress(UnicodeDecodeError):
            return (event.name(), event.stack()) is not None
        return False

    def spoiled(profiler):
        stop(profiler)
        own = profiler.profiler.kineto_results
        events, end = [bad, *filter(has_text, own.events()), bad], own.experimental_event_tree
        given = {"save": own.save, "trace_start_ns": own.trace_start_ns, "events": lambda: events}
        profiler.profiler.kineto_results = SimpleNamespace(experimental_event_tree=end, **given)

    monkeypatch.setattr(profile, "stop", spoiled)
    recording = TorchRecording(options(tmp_path, shapes=False, memory=False, stacks=True))
    recording._begin_whole()
    torch.ones(8).add(1)
    recording.end()
    assert recording.facts()["unreadable"] == 2 and recording.facts()["recorded"] == "program"
    assert (tmp_path / "torch.pt.trace.json").stat().st_size > 1000
    assert "aten::add" in (tmp_path / "operators.json").read_text()
    assert "2 events had names" in unreadable_lines(SimpleNamespace(unreadable=2))[0]
    assert unreadable_lines(SimpleNamespace(unreadable=0)) == unreadable_lines(None) == []


# Children and their signals


class Process:
    """A child that notes its signals; `waits` says which waits it outlasts."""

    def __init__(self, outlasts=0, returncode=0):
        self.log, self.outlasts, self.returncode, self.running = [], outlasts, returncode, True

    def wait(self, limit=None):
        self.log.append(("wait", limit))
        if self.outlasts:
            self.outlasts -= 1
            raise child.subprocess.TimeoutExpired("x", limit)

    def send_signal(self, number):
        self.log.append(number)

    def kill(self):
        self.log.append("kill")

    def poll(self):
        return None if self.running else 0


@pytest.mark.parametrize(
    ("outlasts", "log", "timed_out"),
    [
        (0, [("wait", 5.0)], False),
        (1, [("wait", 5.0), signal.SIGINT, ("wait", 10.0)], True),
        (2, [("wait", 5.0), signal.SIGINT, ("wait", 10.0), "kill", ("wait", None)], True),
    ],
)
def test_a_child_that_outlasts_its_limit_is_interrupted_then_killed(outlasts, log, timed_out):
    process = Process(outlasts)
    assert child._wait(process, 5.0) is timed_out and process.log == log


def test_signals_are_the_child_s_matter_until_the_third():
    process, waiting = Process(), child._Waiting()
    waiting._hit(signal.SIGINT, None)  # before there is a child
    assert waiting.first == signal.SIGINT and process.log == []
    waiting.begin(process)
    assert process.log == [signal.SIGINT]
    waiting._hit(signal.SIGINT, None)  # a terminal has sent it to the child, too
    assert process.log == [signal.SIGINT]
    waiting._hit(signal.SIGTERM, None)
    assert process.log == [signal.SIGINT, "kill"] and waiting.first == signal.SIGINT
    other, quiet = Process(), child._Waiting()
    quiet.begin(other)
    assert other.log == []
    quiet._hit(signal.SIGTERM, None)
    quiet._hit(signal.SIGINT, None)
    quiet._hit(signal.SIGINT, None)
    assert other.log == [signal.SIGINT, "kill"] and quiet.first == signal.SIGTERM
    other.running = False
    quiet._hit(signal.SIGINT, None)
    assert other.log == [signal.SIGINT, "kill"]


@pytest.mark.parametrize(("code", "shown"), [(0, 0), (3, 3), (-2, 130), (-9, 137)])
def test_a_child_s_end_is_as_a_shell_says_it(code, shown):
    waiting = SimpleNamespace(first=2)
    assert child._end_of(Process(0, code), waiting, True) == ChildEnd(shown, 2, True)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exit code 0"),
        (128, "exit code 128"),
        (129, "SIGHUP"),
        (137, "SIGKILL"),
        (255, "exit code 255"),
    ],
)
def test_an_end_is_named_by_its_signal(code, words):
    assert ending(code) == words


# What was expected of a recording


def traced(*names, ranges=0, totals=0):
    """Return a trace of kernels, a launch for each, the first `ranges` of them in marked ranges."""
    trace = Trace("torch.profiler")
    for n, name in enumerate(names):
        trace.activities.add(ActivityKind.CALL, "launch", 100 * n, 100 * n + 9, correlation=n)
        trace.activities.add(ActivityKind.KERNEL, name, 100 * n + 50, 100 * n + 60, "0", "7", "", n)
        if n < ranges:
            trace.activities.add(ActivityKind.RANGE, expected.RANGE, 100 * n, 100 * n + 50)
    trace.totals += [Total(ActivityKind.KERNEL, "sum", totals, 1.0)] * bool(totals)
    return trace


def run(calls=2, kernel="mine", launches=None, on_gpu=True, data="tree", status=None, marked=True):
    own = SimpleNamespace(calls=calls, kernel=kernel, launches=launches, uses_gpu=on_gpu)
    workload = SimpleNamespace(marks=own if marked else None, title="k.i", data=data)
    return SimpleNamespace(workload=workload, status=status)


@pytest.mark.parametrize(
    ("call", "trace", "words"),
    [
        (run(), traced("mine_1", "mine_2", ranges=2), None),
        (run(), traced("mine_1", "mine_2", "mine_3", ranges=2), None),  # the third is of a warm-up
        (run(), traced("mine_1", "mine_2", ranges=1),
        "2 calls of k.i were marked, and the trace has 1 range"),
        (run(3), traced("mine_1", "mine_2", ranges=2), "3 calls"),
        (run(), traced("mine_1", "other", ranges=2), "2 launches of mine were expected"),
        (run(launches=1), traced("mine_1", "mine_2", ranges=2), None),
        (run(launches=2), traced("mine_1", "mine_2", ranges=2),
        "4 launches were expected of 2 calls"),
        (run(kernel="", on_gpu=False), traced("a", "b", ranges=2), None),
        (run(), traced(ranges=2), "2 calls of k.i were marked, and the trace has 0 ranges"),
        (run(data="inside"), traced("mine"), "has no scopes inside"),
        (run(data="inside"), traced("mine", ranges=1), None),
        (run(marked=False), traced(), None),
        (run(marked=False, status=SimpleNamespace(gpu_used=True)), traced(),
        "used the GPU, and no"),
        (run(marked=False, status=SimpleNamespace(gpu_used=False)), traced(), None),
        (run(marked=False, status=SimpleNamespace(gpu_used=True)), traced("a"), None),
    ],
)  # fmt: skip
def test_a_trace_has_the_marked_calls(call, trace, words):
    if words is None:
        check_marked_calls(call, trace)
    else:
        with pytest.raises(expected.ProfilerError) as error:
            check_marked_calls(call, trace)
        assert words in str(error.value)


@pytest.mark.parametrize(
    ("names", "totals", "enough"),
    [(4, 0, True), (3, 0, False), (0, 4, True), (0, 3, False), (1, 3, True)],
)
def test_the_whole_script_launches_two_more_than_are_marked(names, totals, enough):
    trace, call = traced(*["sum of mine"] * names, totals=totals), run(kernel="sum")
    if enough:
        check_whole(call, trace)
        return check_whole(run(marked=False), traced())
    with pytest.raises(expected.ProfilerError, match="4 launches of sum were expected"):
        check_whole(call, trace)


def test_dispatches_are_those_of_the_calls():
    trace = Trace("ncu", dispatches=[Dispatch("mine_1"), Dispatch("mine_2")])
    check_dispatches(run(), trace)
    check_dispatches(run(marked=False), trace)
    for call, words in ((run(3), "3 launches of mine"), (run(launches=2), "4 launches")):
        with pytest.raises(expected.ProfilerError, match=words):
            check_dispatches(call, trace)
    with pytest.raises(expected.ProfilerError, match="No kernel of k"):
        check_dispatches(run(marked=False), Trace("ncu"))


# Inputs of readers


def source_of(path, **limits):
    (one,) = sources(path, ReadLimits(**limits))
    return one


def refused(words, call):
    with pytest.raises(ReadError) as error:
        call()
    assert words in str(error.value), str(error.value)


def test_a_file_of_the_largest_size_is_read(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"x" * 100)
    assert source_of(path, memory_bytes=100).content() == b"x" * 100
    refused("it is larger than 0 MiB", lambda: source_of(path, memory_bytes=99).content())
    assert list(source_of(path, streamed_bytes=100).blocks()) == [b"x" * 100]
    refused("larger than", lambda: list(source_of(path, streamed_bytes=99).blocks()))
    assert list(source_of(path, field_bytes=25).lines()) == ["x" * 100]
    refused("line 1: it is longer", lambda: list(source_of(path, field_bytes=24).lines()))
    assert source_of(path, operations_bytes=100).keeps_operations
    assert not source_of(path, operations_bytes=99).keeps_operations
    packed = tmp_path / "b.gz"
    packed.write_bytes(gzip.compress(b"y" * 10_000, mtime=0))
    ten = 10 * packed.stat().st_size
    assert source_of(packed, operations_bytes=ten).keeps_operations
    assert not source_of(packed, operations_bytes=ten - 1).keeps_operations
    assert source_of(packed, unpacked_bytes=10_000).content() == b"y" * 10_000
    refused("larger than", lambda: source_of(packed, unpacked_bytes=9999).content())


def test_events_and_seconds_are_counted(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_bytes(b"x")
    one = source_of(path, events=3)
    for _ in range(3):
        one.count()
    refused("it has more than 3 events", one.count)
    looked = []
    slow = source_of(path)
    monkeypatch.setattr(Source, "check_time", lambda self: looked.append(self._events))
    slow.count(2)
    for _ in range(4096):
        slow.count()
    assert looked == [2, 4096]
    monkeypatch.undo()
    late = source_of(path, seconds=5.0)
    late.start_s = time.monotonic() - 6.0
    refused("it took longer than 5 s", late.check_time)
    late.start_s = time.monotonic() - 4.0
    late.check_time()


def test_json_and_xml_have_a_depth(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"a": [[1]]}', encoding="utf-8")
    assert load_json(source_of(path, depth=4)) == {"a": [[1]]}
    assert load_json(source_of(path, depth=3)) == {"a": [[1]]}
    with pytest.raises(RecursionError):
        load_json(source_of(path, depth=2))
    xml, seen = tmp_path / "a.xml", []
    xml.write_text("<a x='1'> one <b>two</b>three</a>", encoding="utf-8")
    parse(source_of(xml, depth=2), lambda *a: seen.append(a), lambda *a: seen.append(a))
    assert seen == [("a", {"x": "1"}), ("b", {}), ("b", "two"), ("a", "one three")]
    refused("nested too deeply", lambda: parse(source_of(xml, depth=1), *[lambda *a: None] * 2))


def test_views_are_read_where_that_is_wanted(tmp_path):
    path = tmp_path / "a.db"
    with sqlite3.connect(path) as connection:
        connection.execute('CREATE TABLE "plain" (a, b)')
        connection.execute("INSERT INTO plain VALUES (1, 2), (3, 4)")
        connection.execute("CREATE VIEW seen AS SELECT b AS c, a FROM plain")
    connection.close()
    with database.tables(source_of(path)) as known:
        assert known.columns("plain") == ["a", "b"] and known.columns("absent") == []
        assert list(known.rows("plain", ("x", "b"), ("y",), ("a", "b"))) == [
            (2, None, 1),
            (4, None, 3),
        ]
        assert list(known.rows("seen", ("c",))) == [] == list(known.rows("absent", ("c",)))
        assert list(known.rows("seen", ("c",), views=True)) == [(2,), (4,)]
    assert database.has_table(source_of(path), "pla") and not database.has_table(
        source_of(path), "zz"
    )
    assert database.quote_name('a"b') == '"a""b"'


def test_quoted_lines_are_told_from_what_a_program_prints(tmp_path):
    path, messages = tmp_path / "a.csv", []
    path.write_text(
        '==PROF== begun\nsaid "1"\n"a","b\nc"\n==WARNING== odd\n"d"\nmore\n', encoding="utf-8"
    )
    assert list(table_lines(source_of(path), messages)) == ['"a","b\n', 'c"\n', '"d"\n']
    assert messages == ["ncu warning: odd"]


@pytest.mark.parametrize(
    ("words", "events", "head", "cut"),
    [
        ('{"a": 1, "traceEvents": [{"n": 1}, {"n": 2.5}], "b": "x"}', 2, {"a": 1, "b": "x"}, False),
        ('[{"n": 1},{"n": 2}]', 2, {}, False), ('[{"n": 1},{"n": 2}', 2, {}, True),
        ('[{"n": 1},{"n": ', 1, {}, True), ("[]", 0, {}, False), ("{}", 0, {}, False),
        ('{"traceEvents": [], "c": [1]}', 0, {"c": [1]}, False),
        ('{"traceEvents": 5}', 0, {"traceEvents": 5}, False),
        ('{"traceEvents": [{"n": 1}', 1, {}, True),
    ],
)  # fmt: skip
def test_a_stream_of_events_is_read_to_its_end(tmp_path, words, events, head, cut):
    path = tmp_path / "a.json"
    path.write_text(words, encoding="utf-8")
    stream = JsonStream(source_of(path))
    found = [event for batch in stream.batches() for event in batch]
    assert len(found) == events and stream.head == head and stream.is_cut is cut
    assert [event["n"] for event in found[1:]] in ([], [2], ["2.5"])


@pytest.mark.parametrize(
    "words", ['{"a" 1}', '{"a": 1 "b": 2}', "[1 2]", '{"traceEvents": [1], 5}', "{"]
)
def test_other_damage_is_an_error(tmp_path, words):
    path = tmp_path / "a.json"
    path.write_text(words, encoding="utf-8")
    with pytest.raises(ValueError):  # its words are the decoder's
        list(JsonStream(source_of(path)).batches())


def test_many_events_come_in_batches_that_hold_each_once(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"n": n, "pad": "x" * 40} for n in range(9000)]), encoding="utf-8")
    for decode in (None, json.loads):
        batches = list(JsonStream(source_of(path)).batches(decode=decode))
        assert [e["n"] for batch in batches for e in batch] == list(range(9000))
        assert len(batches[0]) == 4096


def test_numbers_are_as_profilers_write_them():
    assert [number(text) for text in ("1,234.5", "1e3", " 7 ", "n/a", "-2")] == [
        1234.5,
        1e3,
        7,
        None,
        -2,
    ]
    assert number("1.234,5", comma=True) == 1234.5 and integer("1,024.00") == 1024
    assert [whole(x) for x in ("12", 12, "1.5", "-1", None, "²")] == [
        12,
        12,
        None,
        None,
        None,
        None,
    ]
    assert integer(str(2**63 - 1)) == 2**63 - 1 and integer("9223372036854775807.0") == 2**63 - 1
    many = "9" * 400
    for wrong in ("9223372036854775808.0", "1.5", "x", None, many, f"-{many}", str(2**63)):
        with pytest.raises(ValueError, match="is no"):
            integer(wrong)
    with pytest.raises(ValueError, match="larger than any number"):
        number(many)
    assert whole(many) is None and number("1e308") == 1e308
    assert [ns_of_us(x) for x in (3, "3.125", "3.12", "3", "-3.5", 1.5, "1e3",
    "12345678.9012")] == [
        3000, 3125, 3120, 3000, -3500, 1500, 1_000_000, 12_345_678_901]  # fmt: skip
    for wrong in ("x", "1e300", "inf", many, f"{many}.125", int(many)):
        with pytest.raises(ValueError, match="is not a time"):
            ns_of_us(wrong)
    assert base_scale("Kbyte/s") == (1e3, "byte/s") and base_scale("Gbyte/us") == (1e15, "byte/s")
    assert base_scale("us") == (1e3, "ns") and base_scale("%") == (1.0, "%")
    assert base_scale("Mcycle/block") == (1e6, "cycle/block") and base_scale("xbyte") == (
        1.0,
        "xbyte",
    )
    assert triple("(128, 1, 2)") == triple("128x1x2") == triple("128,1,2") == (128, 1, 2)
    assert triple("1x2") is None and triple("1x2x1234567890123") is None
    assert triple("1x2x123456789012") == (1, 2, 123456789012)
