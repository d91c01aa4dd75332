"""Readers' inputs, checks of recordings and processes under profilers, at their limits by hand."""

import argparse
import gzip
import io
import json
import signal
import subprocess
import types
from pathlib import Path

import pytest

from workbench.traces.profilers import (
    Command,
    ProfilerError,
    RecordingStatus,
    ToolRun,
    _beginning,
    _run_beside,
)
from workbench.traces.profilers.running import child, expected, failures, permission, recorder
from workbench.traces.profilers.running.child import ChildEnd
from workbench.traces.profilers.running.proton_recording import ProtonRecording
from workbench.traces.profilers.running.workload import MarkedCalls, StepSchedule, Workload
from workbench.traces.readers.inputs import numbers
from workbench.traces.readers.inputs.source import ReadError, ReadLimits, Source, sources
from workbench.traces.readers.inputs.stream import JsonStream, load_json
from workbench.traces.trace import ActivityKind, Dispatch, Total, Trace

pytestmark = pytest.mark.unit


# Numbers


@pytest.mark.parametrize(
    ("text", "value"),
    [("1,234.5", 1234.5), (" 7 ", 7.0), ("-.5", -0.5), ("1e3", 1000.0), ("N/A", None), ("", None)],
)
def test_a_number_has_separators(text, value):
    assert numbers.number(text) == value


@pytest.mark.parametrize("text", ["1,23", "12,3456", "a", "1 2", "1,2345"])
def test_what_has_other_groups_is_no_number(text):
    with pytest.raises(ValueError, match="is not a number"):
        numbers.number(text)
    assert numbers.number("1.234,5", comma=True) == 1234.5


def test_whole_numbers_end_at_63_bits():
    assert [numbers.integer(t) for t in ("7", "7.00", "1,000", f"{2**63 - 1}.0")] == [
        7, 7, 1000, 2**63 - 1]  # fmt: skip
    for text in ("7.5", f"{2**63}.0", "x", f"-{2**63}.0", None):
        with pytest.raises(ValueError):
            numbers.integer(text)
    assert [numbers.whole(v) for v in ("12", 12, "1.5", "", "-1", "²")] == [12, 12] + [None] * 4


@pytest.mark.parametrize(
    ("value", "ns"),
    [(3, 3000), ("12.345", 12_345), ("12.3", 12_300), ("-1.25", -1250), ("-0.5", -500), ("7", 7000),
     ("1e3", 1_000_000), ("1.2345", 1234), ("1.2355", 1236), (2.5, 2500), ("0.001", 1)],
)  # fmt: skip
def test_microseconds_are_whole_nanoseconds(value, ns):
    assert numbers.ns_of_us(value) == ns


def test_a_time_ends_before_2_to_the_60():
    assert numbers.ns_of_us(f"{2**60 - 1}.0000") == (2**60 - 1) * 1000
    assert numbers.ns_of_us(f"-{2**60 - 1}.123") == -((2**60 - 1) * 1000 + 123)
    for text in (f"{2**60}.0000", f"-{2**60}.123", "nan", "x.123", "1.2.3"):
        with pytest.raises(ValueError, match="is not a time"):
            numbers.ns_of_us(text)


@pytest.mark.parametrize(
    ("unit", "scale"),
    [
        ("Kbyte", (1e3, "byte")),
        ("MB/us", (1e12, "byte/s")),
        ("ms", (1e6, "ns")),
        ("GHz", (1e9, "hz")),
        ("inst", (1.0, "inst")),
        ("byte/block", (1.0, "byte/block")),
        ("%", (1.0, "%")),
        ("sector/ns", (1e9, "sector/s")),
        ("xbyte", (1.0, "xbyte")),
        ("byte/second", (1.0, "byte/s")),
    ],
)
def test_a_unit_has_a_base(unit, scale):
    assert numbers.base_scale(unit) == scale


@pytest.mark.parametrize(
    ("text", "three"),
    [("(128, 1, 1)", (128, 1, 1)), ("128x2x3", (128, 2, 3)), ("1, 2, 3", (1, 2, 3)), ("1,2", None),
     ("1x2x3x4", None), ("9" * 12 + "x1x1", (10**12 - 1, 1, 1)), ("9" * 13 + "x1x1", None)],
)  # fmt: skip
def test_a_shape_has_three_numbers(text, three):
    assert numbers.triple(text) == three
    assert numbers.convert_to_ns(2.0, " MS ") == 2e6 and numbers.convert_to_ns(2.0, "m") is None


# Files under limits


def source(data, limits=None, **more):
    return Source("f.json", Path("f.json"), limits or ReadLimits(), lambda: io.BytesIO(data),
                  more.pop("packed", len(data)), **more)  # fmt: skip


def events_of(data, step, decode=None):
    """Read events from blocks of so many bytes."""
    one = source(data)
    one.blocks = lambda: iter([data[n : n + step] for n in range(0, len(data), step)])
    stream = JsonStream(one)
    batches = list(stream.batches(decode=decode))
    return [event for batch in batches for event in batch], stream, one


EVENTS = [{"a": n, "t": {"x": [n]}} for n in range(5)]


@pytest.mark.parametrize("step", [1, 2, 7, 1000])
def test_events_are_read_from_blocks_of_any_size(step):
    text = json.dumps({"first": 12345, "traceEvents": EVENTS, "last": 1.5}, indent=1).encode()
    for decode in (None, json.loads):
        found, stream, one = events_of(text, step, decode)
        assert found == EVENTS and stream.head == {"first": 12345, "last": "1.5"}
        assert not stream.is_cut and one._events == 5
    for plain in (b"[]", b" { } ", b'{"traceEvents": []}', b'{"traceEvents": [], "a": 1}'):
        found, stream, _ = events_of(plain, step)
        assert found == [] and not stream.is_cut
    found, stream, _ = events_of(json.dumps(EVENTS).encode(), step)
    assert found == EVENTS and stream.head == {}
    for end in ("", ",", ', {"a": 1', ', {"a":'):
        cut = json.dumps(EVENTS)[:-1] + end
        found, stream, _ = events_of(cut.encode(), step)
        assert found == EVENTS and stream.is_cut
    found, stream, _ = events_of(json.dumps({"traceEvents": EVENTS}).encode("utf-16"), step)
    assert found == EVENTS


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [('{"a" 1}', "character 5", "there should be a :"), ('{"a": 1 2}', "character 8", "a ,"),
     ("3", "character 0", "a {"), ('{"traceEvents": [{"a": 1} 2]}', "character 26", "a ,"),
     ('{"a": nul}', "character 6", "Expecting value"), ('{"a": 1', "character 7", "a ,"),
     ('{"traceEvents": [{]}', "character 17", "Expecting property name")],
)  # fmt: skip
def test_damage_has_a_place(text, place, words):
    for step in (1, 100):
        one = source(text.encode())
        one.blocks = lambda step=step: iter(
            [text[n : n + step].encode() for n in range(0, len(text), step)]
        )
        with pytest.raises(ValueError, match=words):
            list(JsonStream(one).batches())
        assert one.place == place


def test_nesting_ends_at_its_depth():
    limits = ReadLimits(depth=4)
    assert load_json(source(b"[[[1]]]", limits)) == [[[1]]]
    assert load_json(source(b'{"a": [{"b": 2.5}]}', limits)) == {"a": [{"b": 2.5}]}
    with pytest.raises(RecursionError):
        load_json(source(b'{"a": [{"b": [2, 3, [], {}]}]}', limits))
    assert load_json(source(b"7", limits)) == 7
    one = source(b"[\n1,\n]", limits)
    with pytest.raises(ValueError):
        load_json(one)
    assert one.place == "line 3"


def test_a_file_ends_at_its_limits(monkeypatch):
    mib = 1 << 20
    limits = ReadLimits(
        memory_bytes=mib, field_bytes=2, events=3, seconds=5.0, streamed_bytes=4 * mib
    )
    assert len(source(b"x" * mib, limits).content()) == mib
    with pytest.raises(ReadError, match="is larger than 1 MiB"):
        source(b"x" * (mib + 1), limits).content()
    assert list(source(b"1234567\n12\n", limits).lines()) == ["1234567\n", "12\n"]
    one = source(b"12\n123456789\n", limits)
    with pytest.raises(ReadError, match="line 2: it is longer than"):
        list(one.lines())
    one = source(b"", limits)
    one.count(3)
    with pytest.raises(ReadError, match="more than 3 events"):
        one.count()
    assert sum(map(len, source(b"x" * 4 * mib, limits).blocks())) == 4 * mib
    with pytest.raises(ReadError, match=r"larger than 0\.00390625 GiB"):
        list(source(b"x" * (4 * mib + 1), limits).blocks())
    clock = iter((10.0, 15.0, 15.1))
    monkeypatch.setattr("workbench.traces.readers.inputs.source.time",
                        types.SimpleNamespace(monotonic=lambda: next(clock)))  # fmt: skip
    one = source(b"", limits, start_s=10.0)
    one.check_time()  # read at 10.0, 0 s later
    one.check_time()  # 5 s later
    with pytest.raises(ReadError, match="took longer than 5 s; record fewer steps"):
        one.check_time()


def test_time_is_asked_after_many_events_or_a_batch(monkeypatch):
    asked = []
    monkeypatch.setattr(Source, "check_time", lambda self: asked.append(self._events))
    one = source(b"")
    for _ in range(4097):
        one.count()
    one.count(2)
    assert asked == [4096, 4099]


def test_what_unpacks_beyond_its_ratio_is_refused():
    mib = 1 << 20
    limits = ReadLimits(ratio=2)
    for packed, is_packed, size, fails in (
        (mib, True, 2 * mib, False), (mib, True, 2 * mib + 1, True), (1, True, mib, False),
        (1, True, mib + 1, True), (1, False, 3 * mib, False), (0, True, mib + 1, True),
    ):  # fmt: skip
        one = source(b"x" * size, limits, packed=packed, is_packed=is_packed)
        if fails:
            with pytest.raises(ReadError, match="unpacks to more than 2 times its size"):
                list(one.blocks())
        else:
            assert sum(map(len, one.blocks())) == size
    small = ReadLimits(unpacked_bytes=10)
    assert len(source(b"x" * 10, small, is_packed=True).content()) == 10
    with pytest.raises(ReadError, match="is larger than"):
        source(b"x" * 11, small, is_packed=True).content()


def test_all_operations_of_a_small_file_are_kept():
    limits = ReadLimits(operations_bytes=100)
    sizes = [(100, False), (101, False), (10, True), (11, True)]
    kept = [source(b"", limits, packed=n, is_packed=p).keeps_operations for n, p in sizes]
    assert kept == [True, False, True, False]
    assert source(b"a\0b").head_text == "" and source(b"\xff\xfea\0").head_text == "a"
    assert source(b"", is_folder=True).head == b""


def test_a_folder_holds_bundles_and_at_most_so_many_files(tmp_path):
    for name in ("b.gputrace/inner.json", "c/x.json", "a.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}", encoding="utf-8")
    (tmp_path / "link.json").symlink_to(tmp_path / "a.json")
    (tmp_path / "d.json.gz").write_bytes(gzip.compress(b"{}"))
    found = sources(tmp_path, ReadLimits(members=4))
    assert [(s.name, s.is_folder, s.is_packed) for s in found] == [
        ("a.json", False, False), ("b.gputrace", True, False), ("x.json", False, False),
        ("d.json.gz", False, True)]  # fmt: skip
    with pytest.raises(ReadError, match="holds more than 3 files"):
        sources(tmp_path, ReadLimits(members=3))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ReadError, match="holds no file"):
        sources(tmp_path / "empty", ReadLimits())
    with pytest.raises(ReadError, match=r"cannot be read \(No such file or directory\)"):
        sources(tmp_path / "none", ReadLimits())


# What a recording must hold


MARKED = Workload((), "softmax.rows", None, MarkedCalls(3, True, "_rows", 2))


def run_of(workload=MARKED, code=0, files=("f",), folder=Path("R"), status=None, **end):
    return ToolRun(workload, folder, ChildEnd(code, **end), tuple(map(Path, files)), status)


def trace_of(**kernels):
    totals = [Total(ActivityKind.KERNEL, name, n, 1.0) for name, n in kernels.items()]
    return Trace("xctrace", totals=[*totals, Total(ActivityKind.CALL, "call", 99, 1.0)])


def test_a_whole_script_has_two_launches_more():
    expected.check_whole(run_of(), trace_of(_rows=4, _rows_more=1))
    with pytest.raises(ProfilerError, match=r"5 launches of _rows .* 4 x _rows, 1 x a"):
        expected.check_whole(run_of(), trace_of(_rows=4, a=1))
    with pytest.raises(ProfilerError, match="recorded is no kernel"):
        expected.check_whole(run_of(), trace_of())
    expected.check_whole(run_of(Workload((), "step.py")), trace_of())


def test_dispatches_are_counted_by_name():
    def dispatches(*names):
        return Trace("ncu", dispatches=[Dispatch(name, str(n)) for n, name in enumerate(names)])

    expected.check_dispatches(run_of(), dispatches(*["_rows"] * 3, *["other"] * 3))
    for names, words in (
        (["_rows"] * 2 + ["other"] * 4, "3 launches of _rows were expected"),
        (["_rows"] * 5, "6 launches were expected of 3 calls of softmax.rows.* 5 x _rows"),
        (["_rows"] * 7, "6 launches were expected"),
        ([*"abcdefg"], "recorded is 1 x a, 1 x b, 1 x c, 1 x d, 1 x e;"),
    ):
        with pytest.raises(ProfilerError, match=words):
            expected.check_dispatches(run_of(), dispatches(*names))
    single = Workload((), "a.b", None, MarkedCalls(1, True, "", 1))
    with pytest.raises(ProfilerError, match=r"1 launch .* of 1 call of a\.b"):
        expected.check_dispatches(run_of(single), dispatches("x", "y"))
    expected.check_dispatches(run_of(Workload((), "step.py")), dispatches("x"))
    with pytest.raises(ProfilerError, match=r"No kernel of step\.py was recorded"):
        expected.check_dispatches(run_of(Workload((), "step.py")), dispatches())


@pytest.mark.parametrize(
    ("code", "words"),
    [(0, "exit code 0"), (128, "exit code 128"), (129, "SIGHUP"), (137, "SIGKILL"),
     (255, "exit code 255")],
)  # fmt: skip
def test_an_exit_code_above_128_is_a_signal(code, words):
    assert expected.ending(code) == words


STEPS = Workload((), "step.py", StepSchedule(2, 3, 1))


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (run_of(timed_out=True), "took too long and was ended"),
        (run_of(STEPS, status=RecordingStatus("ended", 9, "steps", "E", conflict=True)), "itself"),
        (run_of(STEPS, status=RecordingStatus("ended", 9, "", "", conflict=True)), "uses T itself"),
        (run_of(STEPS, status=RecordingStatus("ended", 1)), "made 1 step, and 5 come before"),
        (run_of(Workload((), "a.py"), status=RecordingStatus("ended")), "Nothing of a.py was"),
    ],
)
def test_a_recorder_that_gave_nothing_says_why(run, words):
    with pytest.raises(ProfilerError, match=words):
        expected.check_inside(run, "torch", "T")
    fine = RecordingStatus("ended", 9, "steps", "", conflict=True)
    expected.check_inside(run_of(STEPS, status=fine), "torch", "T")
    expected.check_inside(run_of(STEPS, 7, status=RecordingStatus("ended", 9, "steps")), "t", "T")


def test_a_tool_that_failed_says_so_by_its_words(tmp_path):
    log = tmp_path / "tool.log"
    log.write_text("==ERROR== ERR_NVGPUCTRPERM\n", encoding="utf-8")
    failures.check_exit(run_of(folder=tmp_path), "ncu")  # it has its file
    for bad in (run_of(folder=tmp_path, code=1), run_of(folder=tmp_path, files=())):
        with pytest.raises(ProfilerError, match="lets only administrators read counters"):
            failures.check_exit(bad, "ncu")
    log.write_text("No kernels were profiled", encoding="utf-8")
    with pytest.raises(ProfilerError, match="the filter met none"):
        failures.check_exit(run_of(folder=tmp_path), "ncu")
    log.write_text("\n  the last\x07 words.  \n\n", encoding="utf-8")
    with pytest.raises(
        ProfilerError, match=r"ended with exit code 3 under ncu; `python .*call\.py`"
    ):
        failures.check_exit(run_of(folder=tmp_path, code=3), "ncu")
    failures.check_exit(run_of(folder=tmp_path, code=86), "ncu", (0, 86))
    program = Workload((), "step.py")
    failures.check_exit(run_of(program, folder=tmp_path, code=3), "ncu")
    with pytest.raises(
        ProfilerError, match=r"\(exit code 3\), and its last words are: the last words;"
    ):
        failures.check_exit(run_of(program, folder=tmp_path, code=3, files=()), "ncu")
    log.write_text("", encoding="utf-8")
    with pytest.raises(ProfilerError, match=r"no file for step\.py \(exit code 0\); `--dry-run`"):
        failures.check_exit(run_of(program, folder=tmp_path, files=()), "ncu")
    with pytest.raises(ProfilerError, match="took too long under ncu"):
        failures.check_exit(run_of(folder=tmp_path, timed_out=True), "ncu")
    assert failures.failure("unrecognized option '--x'").startswith("This tool does not know --x,")
    assert len(failures.failure("Failed to find section " + "s" * 300)) < 300
    head = "Unable to access the following"
    text = f"{head} 2 metrics: a, b,\n{head} 1 metric: c"
    assert failures.inaccessible_counters(text) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("params", "status", "allowed"),
    [(None, "", None), ("RmProfilingAdminOnly: 0", "", True),
     ("RmProfilingAdminOnly: 1", "CapEff:\t0000000000200000", True),
     ("RmProfilingAdminOnly: 1", "CapEff:\t00000000005fffff\n", False),
     ("RmProfilingAdminOnly: 1", "CapEff:\t000001ffffffffff", True)],
)  # fmt: skip
def test_who_may_read_counters(tmp_path, params, status, allowed):
    """CAP_SYS_ADMIN is bit 21: 0x200000."""
    if params is not None:
        (tmp_path / "params").write_text(params, encoding="utf-8")
    if allowed is False:
        status = status.replace("5f", "1f")
    (tmp_path / "status").write_text(status, encoding="utf-8")
    found = permission.counter_permission(tmp_path / "params", tmp_path / "status")
    assert found.is_allowed is allowed and bool(found.remedy) == (allowed is False)


@pytest.mark.parametrize(("user", "allowed"), [(0, True), (1000, False)])
def test_root_may_read_counters_where_nothing_says_what_it_may(
    tmp_path, monkeypatch, user, allowed
):
    (tmp_path / "params").write_text("RmProfilingAdminOnly: 1", encoding="utf-8")
    monkeypatch.setattr(permission.os, "geteuid", lambda: user)
    assert (
        permission.counter_permission(tmp_path / "params", tmp_path / "none").is_allowed is allowed
    )


# Children


class Process:
    """A process that ends at the wait of this number, or only when it is killed."""

    def __init__(self, ends_at=1, returncode=0):
        self.ends_at, self.code, self.calls, self.returncode = ends_at, returncode, [], None

    def wait(self, limit=None):
        self.calls.append(("wait", limit))
        if len([c for c in self.calls if c[0] == "wait"]) < self.ends_at:
            raise subprocess.TimeoutExpired("x", limit or 0)
        self.returncode = self.code

    def poll(self):
        return self.returncode

    def send_signal(self, number):
        self.calls.append(("signal", number))

    def kill(self):
        self.calls.append(("kill",))


INTERRUPT = ("signal", signal.SIGINT)


@pytest.mark.parametrize(
    ("ends_at", "code", "calls", "end"),
    [(1, 3, [("wait", 5.0)], ChildEnd(3)), (1, -9, [("wait", 5.0)], ChildEnd(137)),
     (2, 0, [("wait", 5.0), INTERRUPT, ("wait", 10.0)], ChildEnd(0, 0, True)),
     (3, -9, [("wait", 5.0), INTERRUPT, ("wait", 10.0), ("kill",), ("wait", None)],
      ChildEnd(137, 0, True))],
)  # fmt: skip
def test_a_child_is_interrupted_and_then_killed(ends_at, code, calls, end):
    process = Process(ends_at, code)
    assert child.wait_for_child(process, 5.0) == end
    assert process.calls == calls


def test_signals_are_the_childs_own_matter_twice():
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    process = Process()
    with child._Waiting() as waiting:
        handler = signal.getsignal(signal.SIGTERM)
        handler(signal.SIGTERM, None)  # before the child is there
        assert (waiting.first, process.calls) == (signal.SIGTERM, [])
        waiting.begin(process)
        assert process.calls == [INTERRUPT]
        handler(signal.SIGINT, None)  # the child has it, too
        assert process.calls == [INTERRUPT]
        handler(signal.SIGTERM, None)
        assert process.calls == [INTERRUPT, ("kill",)]
        process.returncode = 0
        handler(signal.SIGTERM, None)
        assert process.calls[2:] == [] and waiting.first == signal.SIGTERM
    assert {n: signal.getsignal(n) for n in before} == before
    other = Process()
    with child._Waiting() as waiting:
        waiting.begin(other)
        assert other.calls == []
        waiting._hit(signal.SIGINT, None)
        assert other.calls == []
        waiting._hit(signal.SIGTERM, None)
        assert other.calls == [INTERRUPT] and waiting.first == signal.SIGINT


def test_a_child_has_its_streams_and_variables(monkeypatch, tmp_path):
    started = []
    monkeypatch.setattr(
        child.subprocess, "Popen", lambda argv, **more: started.append((argv, more))
    )
    monkeypatch.setenv("MINE", "1")
    monkeypatch.setattr(child, "bytecode_variables", lambda: {"BYTES": "b"})
    monkeypatch.setattr(child.sys, "stderr", types.SimpleNamespace(fileno=lambda: 22))
    child.start_child(("a", "b"), own=True, more={"MORE": "2"})
    child.start_child(["a"], own=False, aside=True)
    with (tmp_path / "log").open("wb") as file:
        child.start_child(["a"], own=True, aside=True, output=file, more={child.FP_FUSION: "0"})
        (one, first), (_, second), (_, third) = started
        assert one == ["a", "b"] and (first["stdout"], first["stderr"]) == (None, None)
        assert {"MINE": "1", "MORE": "2", "BYTES": "b", child.FP_FUSION: "1"}.items() <= first[
            "env"
        ].items()
        assert (second["stdout"], second["stderr"]) == (22, None)
        assert "BYTES" not in second["env"] and second["env"]["TMPDIR"]
        assert (third["stdout"], third["stderr"]) == (file, subprocess.STDOUT)
        assert third["env"][child.FP_FUSION] == "0"

    def refuses(*_, **more):
        raise FileNotFoundError(2, "No such file")

    monkeypatch.setattr(child.subprocess, "Popen", refuses)
    with pytest.raises(child.ChildError, match=r"none cannot be started \(no such file\)"):
        child.start_child(["none"], own=True)


def test_commands_beside_another_run_while_it_does(monkeypatch, tmp_path):
    calls = []
    monkeypatch.setattr(
        "workbench.traces.profilers.start_child",
        lambda argv, **more: calls.append(("start", argv[0])) or argv[0],
    )
    monkeypatch.setattr(
        "workbench.traces.profilers.wait_for_child", lambda c, s: calls.append(("wait", c, s))
    )
    known = [
        Command(["a"], tmp_path / "a", is_parallel=True),
        Command(["b"], tmp_path / "b", lambda: False, is_parallel=True),
        Command(["c"], None, is_parallel=True),
        Command(["d"], tmp_path / "d", is_parallel=True),
        Command(["e"], tmp_path / "e"),
        Command(["f"], tmp_path / "f", is_parallel=True),
    ]
    with _run_beside(known, 3.0, True, {}):
        calls.append("main")
    assert calls == [("start", "a"), ("start", "d"), "main", ("wait", "d", 3.0), ("wait", "a", 3.0)]
    (tmp_path / "long.log").write_bytes(b"x" * ((1 << 20) + 1))
    assert len(_beginning(tmp_path / "long.log")) == 1 << 20
    assert _beginning(tmp_path / "none.log") == ""


# Recorders


class Tool:
    """A recording that keeps its calls, of which one may fail."""

    def __init__(self, fails=""):
        self.calls, self.fails = [], fails

    def __getattr__(self, name):
        def call():
            self.calls.append(name)
            if name == self.fails:
                raise RuntimeError("it broke\nhere")

        return call

    def facts(self):
        return {"recorded": "program"}


@pytest.fixture
def host(tmp_path, monkeypatch):
    set_ = []
    monkeypatch.setattr(recorder.signal, "signal", lambda *words: set_.append(words))

    def make(fails=""):
        tool = Tool(fails)
        made = recorder.Host(tmp_path, tool)
        return made, tool, lambda: json.loads((tmp_path / recorder.STATUS).read_text()), set_

    return make


def test_a_recording_begins_once_and_ends_once(host):
    made, tool, status, set_ = host()
    made.step()  # before it began: counted, not recorded
    assert tool.calls == []
    made.begin()
    made.begin()
    assert tool.calls == ["begin"] and status()["state"] == "recording"
    made.step()
    made.keep_error(KeyError("x"))
    made.end()
    made.end()
    made.step()
    assert tool.calls == ["begin", "step", "end"]
    assert status() == {"state": "ended", "steps": 2, "fault": "", "exception": "KeyError",
                        "recorded": "program"}  # fmt: skip
    assert set_ == [(signal.SIGINT, signal.SIG_IGN)]


def test_a_recording_that_never_began_is_unused(host):
    made, tool, status, _ = host()
    made.leave()
    assert tool.calls == [] and status()["state"] == "unused" and status()["exception"] == ""


@pytest.mark.parametrize("fails", ["begin", "step", "end"])
def test_a_fault_of_the_profiler_is_kept(host, fails):
    made, tool, status, _ = host(fails)
    made.begin()
    made.step()
    made.step()
    made.end()
    assert status()["fault"] == "RuntimeError: it broke"
    assert tool.calls == ["begin", "step", "step", "end"]


def test_a_fork_records_nothing(host, monkeypatch):
    made, tool, _, _ = host()
    made.begin()
    monkeypatch.setattr(recorder.os, "getpid", lambda: -1)
    made.step()
    made.end()
    assert tool.calls == ["begin"]


@pytest.mark.parametrize(("error", "signals"), [(KeyboardInterrupt(), 1), (ValueError(), 0)])
def test_a_program_that_was_interrupted_ends_by_that_signal(host, monkeypatch, error, signals):
    made, _, _, set_ = host()
    killed = []
    monkeypatch.setattr(recorder.os, "kill", lambda *words: killed.append(words))
    made.keep_error(error)
    made.leave()
    assert killed == [(recorder.os.getpid(), signal.SIGINT)] * signals
    assert ((signal.SIGINT, signal.SIG_DFL) in set_) == bool(signals)


def test_options_of_a_recorder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [
        "torch",
        "--folder",
        "out",
        "--wait",
        "1",
        "--active",
        "2",
        "--shapes",
        "--stepping",
        "--data",
        "trace",
    ]
    known = vars(recorder._options(words))
    assert known == {"tool": "torch", "folder": tmp_path / "out", "wait": 1, "warmup": None,
                     "active": 2, "shapes": True, "memory": False, "stacks": False,
                     "stepping": True, "data": "trace"}  # fmt: skip


def proton(monkeypatch, **given):
    """Return a recording of Proton with what it asks of a stand-in."""
    options = dict(folder=Path("F"), data="tree", active=None, wait=1, warmup=1, stepping=False)
    calls = []
    fake = types.ModuleType("triton.profiler")
    for name in ("start", "enter_scope", "exit_scope", "finalize"):
        setattr(fake, name, lambda *a, name=name, **m: calls.append((name, *a, *m.values())) or 7)
    import triton

    monkeypatch.setitem(__import__("sys").modules, "triton.profiler", fake)
    monkeypatch.setattr(triton, "profiler", fake, raising=False)
    return ProtonRecording(argparse.Namespace(**options | given)), calls


START, STOP = ("start", "F/proton", "tree", "triton"), ("finalize", 7)


@pytest.mark.parametrize(
    ("given", "steps", "calls", "recorded"),
    [
        ({}, 3, [START, STOP], "program"),
        ({"active": 2}, 9, [START, STOP], "program"),
        (
            {"active": 2, "stepping": True},
            9,
            [START, ("enter_scope", "wb"), ("exit_scope",), STOP],
            "steps",
        ),
        ({"active": 2}, 1, [], ""),
        ({"active": 1, "wait": 0, "warmup": 0}, 1, [START, STOP], "program"),
        (
            {"data": "inside", "active": 1, "stepping": True},
            5,
            [("start", "F/proton", "instrumentation", "trace"), STOP],
            "program",
        ),
    ],
)
def test_proton_records_the_steps_of_a_schedule(monkeypatch, given, steps, calls, recorded):
    made, seen = proton(monkeypatch, **given)
    made.begin()
    for _ in range(steps):
        made.step()
    made.end()
    assert seen == calls and made.facts()["recorded"] == recorded
    assert made.facts()["conflict"] is False


def test_proton_begins_at_its_first_step_and_ends_behind_its_last(monkeypatch):
    """One step to wait and one to warm up: it begins as the second ends, and ends two later."""
    made, seen = proton(monkeypatch, active=2)
    made.begin()
    counted = []
    for _ in range(5):
        made.step()
        counted.append(len(seen))
    assert counted == [0, 1, 1, 2, 2]


def test_proton_that_is_switched_off_says_so(monkeypatch):
    made, _ = proton(monkeypatch)
    monkeypatch.setattr("triton.profiler.start", lambda *_, **more: None)
    with pytest.raises(RuntimeError, match="switched off"):
        made.begin()
