"""The events file: whole lines survive a kill, a full disk and whatever else is in the file."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import workbench
from workbench.data import events
from workbench.data.events import (
    EventLog,
    EventsError,
    KernelDispatched,
    OpCompleted,
    RunFinished,
    read,
)
from workbench.data.record import Case, Environment, Failure, Measured, Predicted, Record, Run

ROOT = Path(workbench.__file__).parents[1]
AT = "2026-11-21T09:30:00+01:00"
CASE = Case("matmul", "tiles", "triton", {"block_m": 128}, {"M": 64, "N": 8}, "bf16", "h200")
CLOCK = Measured(1.5e-5, 1.4e-5, 1.6e-5, (1.4e-5, 1.5e-5, 1.6e-5), "cold", "events", "p1")
MODEL = Predicted(1e-5, "m1", 9e-6, 1e-6, 1e-6, 1e-7, 1e-6, "compute")
RECORD = Record(CASE, "k1", "r1", AT, "first_pass", CLOCK, 10, 20, "gpu", 0.25)
FAILURE = Failure(CASE, "k2", "r1", AT, "compile", "out of shared memory: 300 kB of 227 kB")
ENVIRONMENT = Environment(
    "NVIDIA H200", "570.1", 1 << 37, 700.0, "unknown", 0, "Linux 6.1", "cpu", "3.11.7",
    {"torch": "2.13.0"}, {}, "c0ffee", False,
)  # fmt: skip
RUN = Run(
    id="r1",
    engine="sweep",
    name="tile_size",
    command="workbench sweep tile_size",
    started=AT,
    kernel="matmul",
    sizes={"M": 64},
    dtype="bf16",
    device="h200",
    predicted=False,
    vary=("tile",),
    tune=(),
    impls={"tiles": {"knobs": {"block_m": "tile"}}},
    ceilings={},
    environment=ENVIRONMENT,
)
DISPATCHED = KernelDispatched(
    AT, "r1", "matmul.tiles", {"block_m": 128}, (32, 8), 256, 98304, 168, 0.25
)
COMPLETED = OpCompleted(AT, "r1", "sweep/tile_size/matmul/tiles/128/screen", 15.0, None, False)
FINISHED = RunFinished(AT, "r1", "complete", {"records": 2, "failures": 1})
ALL = [RUN, DISPATCHED, COMPLETED, RECORD, replace(RECORD, timing=MODEL), FAILURE, FINISHED]


def write_all(path: Path, what=ALL) -> None:
    with EventLog(path) as log:
        for event in what:
            log.write(event)


def test_every_kind_of_event_comes_back_equal(tmp_path):
    path = tmp_path / "made" / "on the way" / "events.jsonl"
    write_all(path)
    assert read(path) == events.Events(ALL, [])
    lines = path.read_text().splitlines()
    assert [next(iter(json.loads(line))) for line in lines] == ["type"] * len(ALL)


def test_none_as_path_writes_nowhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_all(None)
    assert list(tmp_path.iterdir()) == []


def test_a_second_log_appends(tmp_path):
    write_all(tmp_path / "e.jsonl")
    write_all(tmp_path / "e.jsonl")
    assert read(tmp_path / "e.jsonl").events == ALL * 2


def test_an_event_is_on_disk_when_write_returns(tmp_path):
    log = EventLog(tmp_path / "e.jsonl")
    log.write(RECORD)
    assert read(tmp_path / "e.jsonl").events == [RECORD]
    log.close()
    log.close()
    with pytest.raises(ValueError, match="closed"):
        log.write(RECORD)


def test_an_event_that_json_cannot_hold_writes_nothing(tmp_path):
    with EventLog(tmp_path / "e.jsonl") as log:
        with pytest.raises(TypeError):
            log.write(replace(FINISHED, counts={"records": object()}))
        log.write(RECORD)
    assert read(tmp_path / "e.jsonl") == events.Events([RECORD], [])


# Torn and foreign lines


def test_appending_after_a_torn_line_keeps_every_good_line(tmp_path):
    path = tmp_path / "e.jsonl"
    write_all(path)
    whole = path.read_bytes()
    start_of_last = whole[:-1].rfind(b"\n") + 1
    for cut in range(start_of_last + 1, len(whole)):
        path.write_bytes(whole[:cut])
        write_all(path, [RECORD, FAILURE])
        result = read(path)
        if cut == len(whole) - 1:  # only the newline was lost: the event itself is whole
            assert result == events.Events([*ALL, RECORD, FAILURE], [])
        else:
            assert result.events == [*ALL[:-1], RECORD, FAILURE]
            assert [bad.number for bad in result.bad] == [len(ALL)]


def test_a_torn_last_line_is_reported_as_cut_short(tmp_path):
    path = tmp_path / "e.jsonl"
    write_all(path, [RUN, RECORD])
    path.write_bytes(path.read_bytes()[:-30])
    result = read(path)
    assert result.events == [RUN]
    assert result.bad[0].number == 2 and "cut short" in result.bad[0].reason


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"\x00\xff\xfe\x80junk", "UTF-8"),
        ('{"type":"RunFinished","at":"é'.encode()[:-1], "UTF-8"),
        (b"hello", "not JSON"),
        (b"[1,2]", "not a JSON object"),
        (b"17", "not a JSON object"),
        (b'{"at":"now"}', "not a JSON object with a type"),
        (b'{"type":["Record"]}', "not a JSON object with a type"),
        (b'{"type":"Surprise","x":1}', "unknown event type 'Surprise'"),
        (b'{"type":"Case","kernel":"k"}', "unknown event type 'Case'"),
        (b'{"type":"Record"}', "lacks a field"),
        (b'{"type":"RunFinished","at":"t","run":"r","state":"complete"}', "counts"),
        (b'{"type":"OpCompleted","at":"t"}', "lacks the field 'run'"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"type":"Record","case":{"type":[]}}', "unhashable"),
        (b'{"type":"RunFinished","at":"t","run":"r","state":1,"counts":{}}', "state"),
        (b'{"type":"RunFinished","at":"t","run":"r","state":"failed","counts":3}', "counts"),
    ],
)
def test_a_bad_line_is_reported_and_its_neighbours_are_kept(tmp_path, line, reason):
    path = tmp_path / "e.jsonl"
    write_all(path, [RUN])
    with open(path, "ab") as file:
        file.write(line + b"\n")
    write_all(path, [RECORD])
    result = read(path)
    assert result.events == [RUN, RECORD]
    assert [bad.number for bad in result.bad] == [2]
    assert reason in result.bad[0].reason


def test_an_event_with_the_wrong_kind_inside_is_a_bad_line(tmp_path):
    path = tmp_path / "e.jsonl"
    write_all(path, [RECORD, RUN, replace(RECORD, timing=MODEL)])
    plain = [json.loads(line) for line in path.read_text().splitlines()]
    plain[0]["case"] = "matmul"
    plain[1]["environment"] = None
    plain[2]["timing"]["predicted_s"] = "fast"
    path.write_text("".join(json.dumps(p) + "\n" for p in plain))
    result = read(path)
    assert result.events == []
    assert [bad.reason.split(" is ")[0] for bad in result.bad] == [
        "the field case of a Record",
        "the field environment of a Run",
        "the field predicted_s of a Predicted",
    ]


def test_fields_of_a_newer_writer_are_dropped_and_its_words_are_bad_lines(tmp_path):
    """No page knows what to do with a phase that it has never heard of."""
    path = tmp_path / "e.jsonl"
    write_all(path, [RECORD, FINISHED, RECORD, FAILURE, FINISHED])
    plain = [json.loads(line) for line in path.read_text().splitlines()]
    plain[0] |= {"mood": {"type": "New"}}
    plain[1] |= {"mood": 1}
    plain[2] |= {"phase": "warm"}
    plain[3] |= {"stage": "dreamt"}
    plain[4] |= {"state": "paused"}
    path.write_text("".join(json.dumps(p) + "\n" for p in plain))
    result = read(path)
    assert result.events == [RECORD, FINISHED]
    assert [bad.reason.split(" is ")[0] for bad in result.bad] == [
        "the field phase of a Record",
        "the field stage of a Failure",
        "the field state of a RunFinished",
    ]


@given(junk=st.binary(max_size=200), at=st.integers(0, 2))
def test_junk_anywhere_never_raises(tmp_path_factory, junk, at):
    path = tmp_path_factory.mktemp("junk") / "e.jsonl"
    write_all(path, [RUN, RECORD])
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:at], junk + b"\n", *lines[at:]]))
    assert read(path).events == [RUN, RECORD]


def test_windows_line_ends_and_blank_lines_are_no_matter(tmp_path):
    path = tmp_path / "e.jsonl"
    write_all(path, [RUN, RECORD])
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n\r\n"))
    assert read(path) == events.Events([RUN, RECORD], [])


# Faults of the machine

WRITER = """
import sys
from dataclasses import replace
sys.path.insert(0, {tests!r})
from test_events import RECORD, Measured
from workbench.data.events import EventLog
clock = replace(RECORD.timing, samples_s=tuple(i * 1e-7 for i in range(2000)))
with EventLog({path!r}) as log:
    for n in range(10**9):
        log.write(replace(RECORD, key=str(n), timing=clock))
        if n == 20:
            print("going", flush=True)
"""


@pytest.mark.parametrize("delay_s", [0.0, 0.013, 0.05])
def test_kill_9_loses_at_most_the_line_being_written(tmp_path, delay_s):
    path = tmp_path / "e.jsonl"
    code = WRITER.format(tests=str(Path(__file__).parent), path=str(path))
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT)
    assert child.stdout.readline() == b"going\n"
    time.sleep(delay_s)
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    child.stdout.close()

    before = read(path)
    assert len(before.bad) <= 1 and all("cut short" in bad.reason for bad in before.bad)
    assert [e.key for e in before.events] == [str(n) for n in range(len(before.events))]
    assert len(before.events) > 20
    write_all(path, [FAILURE])
    assert read(path).events == [*before.events, FAILURE]


@pytest.mark.nightly
def test_two_processes_on_one_file_mix_no_lines(tmp_path):
    path = tmp_path / "e.jsonl"
    code = WRITER.format(tests=str(Path(__file__).parent), path=str(path)).replace("10**9", "150")
    children = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, cwd=ROOT)
        for _ in range(2)
    ]
    assert [child.wait() for child in children] == [0, 0]
    result = read(path)
    assert result.bad == [] and len(result.events) == 300


def small_writes(monkeypatch, capacity: int) -> None:
    """A disk that takes `capacity` more bytes, the last of them in the middle of a write."""
    left, real = capacity, os.write

    def write(file, data):
        nonlocal left
        if left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = real(file, bytes(data[:left]))
        left -= done
        return done

    monkeypatch.setattr(events.os, "write", write)


def test_a_disk_that_fills_in_the_middle_of_a_line(tmp_path, monkeypatch):
    path = tmp_path / "e.jsonl"
    with EventLog(path) as log:
        log.write(RUN)
        with monkeypatch.context() as full:
            small_writes(full, 100)
            with pytest.raises(EventsError, match=r"no space left.*; free some space"):
                log.write(RECORD)
        assert read(path).events == [RUN]
        log.write(FAILURE)  # somebody made room
    result = read(path)
    assert result.events == [RUN, FAILURE]
    assert [bad.number for bad in result.bad] == [2]


def test_a_write_that_needs_several_calls_is_whole(tmp_path, monkeypatch):
    real = os.write
    monkeypatch.setattr(events.os, "write", lambda file, data: real(file, bytes(data[:7])))
    write_all(tmp_path / "e.jsonl")
    assert read(tmp_path / "e.jsonl") == events.Events(ALL, [])


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_device_that_is_always_full():
    with EventLog("/dev/full") as log, pytest.raises(EventsError, match="no space left"):
        log.write(RECORD)


LIMITED = """
import resource, sys
sys.path.insert(0, {tests!r})
from test_events import RECORD, RUN, EventLog, EventsError
with EventLog({path!r}) as log:
    log.write(RUN)
    size = {path_size}
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    try:
        log.write(RECORD)
    except EventsError as error:
        print(error)
"""


def test_the_system_itself_cuts_a_line(tmp_path):
    """A limit on the file's size makes a real write end in the middle, as a full disk does."""
    path = tmp_path / "e.jsonl"
    size = f"__import__('os').path.getsize({str(path)!r}) + 50"
    code = LIMITED.format(tests=str(Path(__file__).parent), path=str(path), path_size=size)
    message = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert message.stdout.startswith(f"cannot write the events file {path}: file too large; ")
    assert message.stderr == ""
    result = read(path)
    assert result.events == [RUN] and [bad.number for bad in result.bad] == [2]


def one_sentence(error: pytest.ExceptionInfo, path: Path) -> bool:
    text = str(error.value)
    return "\n" not in text and str(path) in text and "; " in text


@pytest.mark.parametrize("make", ["folder", "file in the way", "file in the way, deeper"])
def test_a_place_that_cannot_be_written_is_refused_in_one_sentence(tmp_path, make):
    (tmp_path / "file").write_text("x")
    path = {
        "folder": tmp_path,
        "file in the way": tmp_path / "file" / "e.jsonl",
        "file in the way, deeper": tmp_path / "file" / "a" / "e.jsonl",
    }[make]
    with pytest.raises(EventsError, match="cannot open the events file") as error:
        EventLog(path)
    assert one_sentence(error, path)
    assert (tmp_path / "file").read_text() == "x"


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.EDQUOT])
def test_a_folder_without_the_right_to_write(tmp_path, monkeypatch, code):
    """Permission bits do not bind root, so the operating system's answer is put in its place."""

    def refuse(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(events.os, "open", refuse)
    with pytest.raises(EventsError) as error:
        EventLog(tmp_path / "e.jsonl")
    assert one_sentence(error, tmp_path / "e.jsonl")


@pytest.mark.parametrize("name", ["missing.jsonl", "."])
def test_reading_what_is_not_a_file(tmp_path, name):
    with pytest.raises(EventsError, match="cannot read the events file") as error:
        read(tmp_path / name)
    assert one_sentence(error, tmp_path / name)


def test_reading_needs_neither_torch_nor_a_database():
    heavy = "{'torch', 'triton', 'sqlalchemy'}"
    code = f"import workbench.data.events, sys; print({heavy} & {{*sys.modules}})"
    message = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert message.stdout == "set()\n", message.stderr


def test_two_logs_of_one_file_lose_no_line(tmp_path):
    first, second = EventLog(tmp_path / "e.jsonl"), EventLog(tmp_path / "e.jsonl")
    for log in (first, second, first):
        log.write(RECORD)
    assert read(tmp_path / "e.jsonl").events == [RECORD] * 3
