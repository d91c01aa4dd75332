"""Damaged and hostile files end in one sentence, or in a result; nothing of theirs is run."""

import gzip
import io
import json
import pickle
import sqlite3
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.traces.readers import read, read_source
from workbench.traces.readers.inputs.numbers import base_scale, integer, ns_of_us, number, triple
from workbench.traces.readers.inputs.source import ReadError, ReadLimits, sources

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import reading  # noqa: E402

pytestmark = pytest.mark.unit

FILES = reading.contents(most=60_000)
EVENT = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1.5, "dur": 2.0,
         "args": {"device": 0, "stream": 7, "correlation": 1}}  # fmt: skip


def trace_text(events=(EVENT,), **head):
    return json.dumps({"schemaVersion": 1, "deviceProperties": [], **head, "traceEvents": events})


def written(folder, name, content):
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def refused(path, **limits):
    """The sentence with which a file is refused."""
    with pytest.raises(ReadError) as error:
        read([path], ReadLimits(**limits))
    sentence = str(error.value)
    assert Path(path).name in sentence and sentence.endswith(".") and "\n" not in sentence
    return sentence


# Mutations


@pytest.mark.parametrize("seed", range(4))
def test_mutations_of_all_formats_end_in_a_sentence_or_a_result(seed):
    """A sample; `benchmarks/reading.py damaged` makes 1,000 over all files and sizes."""
    global_files = reading.contents
    reading.contents = lambda most=None: FILES
    try:
        ends = reading.read_damaged(len(FILES), seed)
    finally:
        reading.contents = global_files
    assert ends["faults"] == [] and set(ends["ends"]) == {"result", "sentence"}


@pytest.mark.parametrize("kind", sorted(reading.MUTATIONS))
def test_each_mutation_changes_a_file(kind):
    chance = reading.random.Random(1)
    data = b"ab 12 cd 34 " * 20
    assert any(reading.MUTATIONS[kind](data, chance) != data for _ in range(5))


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_in_a_sentence(tmp_path_factory, data):
    path = written(tmp_path_factory.mktemp("any"), "any.bin", data)
    refused(path)


def test_a_file_that_ends_within_its_events_gives_those_that_are_whole(tmp_path):
    text = trace_text([EVENT] * 50)
    trace = read([written(tmp_path, "cut.json", text[: len(text) // 2])])
    assert 10 < len(trace.activities) < 40 and "ends within" in trace.notes[0]


@pytest.mark.parametrize(
    "change",
    [{"ts": "abc"}, {"ts": None}, {"name": 5}, {"args": {"correlation": "x"}}, {"dur": [1]},
     {"args": {"correlation": 10**30}}, {"ts": 1e300}, {"ts": True}],
)  # fmt: skip
def test_a_damaged_event_is_left_out_and_named_by_its_number(tmp_path, change):
    events = [EVENT, EVENT, EVENT | change, EVENT]
    trace = read([written(tmp_path, "bad.json", trace_text(events))])
    assert len(trace.activities) == 3
    assert "1 of 4 device activities left out" in trace.notes[0] and "event 3" in trace.notes[0]


def test_over_a_quarter_of_damaged_events_is_refused(tmp_path):
    events = [EVENT, EVENT | {"ts": "abc"}, EVENT | {"ts": None}, EVENT]
    sentence = refused(written(tmp_path, "bad.json", trace_text(events)))
    assert "2 of 4 device activities" in sentence and "record again" in sentence


def test_a_negative_duration_is_left_out(tmp_path):
    events = [*[EVENT] * 3, EVENT | {"dur": -3}]
    trace = read([written(tmp_path, "t.json", trace_text(events))])
    assert len(trace.activities) == 3
    assert "1 of 4 device activities left out, as they end before they start" in trace.notes[0]


@pytest.mark.parametrize("events", [[], [{"ph": "M", "name": "process_name"}]])
def test_no_event_is_an_error_with_its_reason(tmp_path, events):
    assert "ran on a device" in refused(written(tmp_path, "empty.json", trace_text(events)))


def test_an_empty_file_is_an_error(tmp_path):
    assert "is empty" in refused(written(tmp_path, "t.json", b""))


# Streams of events, however they are cut into blocks

ARGUMENTS = st.dictionaries(
    st.text(max_size=5), st.text(max_size=8) | st.integers(0, 9), max_size=3
)
EVENTS = st.lists(
    st.tuples(st.text(max_size=12), st.integers(1, 10**9), st.integers(0, 10**3), ARGUMENTS),
    min_size=1,
    max_size=12,
)


@given(EVENTS, st.sampled_from([None, 0, 1, 4]), st.integers(1, 200), st.booleans())
def test_a_stream_gives_each_event_once(tmp_path_factory, events, indent, block, is_list):
    """Names may hold brackets, quotes and separators; blocks may end anywhere."""
    made = [
        EVENT | {"name": name, "ts": ts / 1000, "dur": dur / 1000, "args": {**more, "device": 0}}
        for name, ts, dur, more in events
    ]
    text = json.dumps(made if is_list else json.loads(trace_text(made)), indent=indent)
    path = written(tmp_path_factory.mktemp("stream"), "t.json", text)
    from workbench.traces.readers.inputs import source as module

    whole, module.BLOCK_BYTES = module.BLOCK_BYTES, block
    try:
        trace = read([path])
    finally:
        module.BLOCK_BYTES = whole
    times = [(a.start, a.duration) for a in trace.activities]
    assert times == [(ns_of_us(str(t / 1000)), ns_of_us(str(d / 1000))) for _, t, d, _ in events]


# Numbers


@given(st.integers(-(10**18), 10**18))
def test_times_are_exact(ns):
    sign, digits = "-" * (ns < 0), f"{abs(ns):04d}"
    assert ns_of_us(f"{sign}{digits[:-3]}.{digits[-3:]}") == ns


@given(st.integers(0, 10**15), st.integers(0, 99))
def test_thousands_and_decimal_commas(whole, part):
    assert number(f"{whole:,}.{part:02d}") == pytest.approx(whole + part / 100)
    comma = f"{whole:,}".replace(",", ".") + f",{part:02d}"
    assert number(comma, comma=True) == pytest.approx(whole + part / 100)


@pytest.mark.parametrize("text", ["", "n/a", "N/A", "nan", "-", "(!) n/a"])
def test_what_is_absent_is_never_zero(text):
    assert number(text) is None


@pytest.mark.parametrize("text", ["1e999x", "abc", "0x10", "1 2"])
def test_what_is_no_number_is_refused(text):
    with pytest.raises(ValueError, match="not a number"):
        number(text)


@pytest.mark.parametrize("text", ["1.5", "x", "", "1e40"])
def test_what_is_no_whole_number_is_refused(text):
    with pytest.raises((ValueError, ArithmeticError)):
        integer(text)


@pytest.mark.parametrize(
    ("unit", "scale", "base"),
    [("Kbyte", 1e3, "byte"), ("Ghz", 1e9, "hz"), ("usecond", 1e3, "ns"), ("us", 1e3, "ns"),
     ("Tbyte/s", 1e12, "byte/s"), ("%", 1.0, "%"), ("byte/block", 1.0, "byte/block"),
     ("byte/ns", 1e9, "byte/s"), ("inst/cycle", 1.0, "inst/cycle")],
)  # fmt: skip
def test_units_lose_their_prefix(unit, scale, base):
    assert base_scale(unit) == (pytest.approx(scale), base)


def test_sizes_of_three():
    assert triple("(128, 1, 1)") == (128, 1, 1) and triple("8x4x1") == (8, 4, 1)
    assert triple("") is None and triple("(1, 2)") is None


# Packed files, folders, standard input


def test_packed_files_and_folders_are_read(tmp_path):
    text = trace_text()
    plain = read([written(tmp_path, "t.json", text)])
    packed = written(tmp_path, "t.bin", gzip.compress(text.encode()))
    with zipfile.ZipFile(tmp_path / "t.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("inner/t.json", text)
    for path in (packed, tmp_path / "t.zip"):
        assert read([path]).activities[0].start == plain.activities[0].start
    folder = tmp_path / "folder"
    folder.mkdir()
    written(folder, "t.json", text)
    written(folder, "notes.txt", "hello")
    trace = read([folder])
    assert len(trace.activities) == 1 and "notes.txt" in trace.notes[-1]


def test_standard_input_is_read(monkeypatch):
    class Input:
        buffer = io.BytesIO(trace_text().encode())

    monkeypatch.setattr(sys, "stdin", Input)
    assert len(read(["-"]).activities) == 1


def test_text_of_16_bits_is_read(tmp_path):
    path = written(tmp_path, "t.json", trace_text().encode("utf-16"))
    assert len(read([path]).activities) == 1


@pytest.mark.parametrize("name", ["/etc/x.json", "../x.json", "a/../../x.json", "C:\\x.json"])
def test_members_outside_of_their_folder_are_refused(tmp_path, name):
    with zipfile.ZipFile(tmp_path / "slip.zip", "w") as file:
        file.writestr(zipfile.ZipInfo(name), trace_text())
    assert "outside" in refused(tmp_path / "slip.zip")


def test_nested_and_crowded_zip_files_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "nested.zip", "w") as file:
        file.writestr("inner.zip", b"PK")
    assert "another zip" in refused(tmp_path / "nested.zip")
    with zipfile.ZipFile(tmp_path / "many.zip", "w") as file:
        for i in range(6):
            file.writestr(f"{i}.json", "x")
    assert "more than 5" in refused(tmp_path / "many.zip", members=5)


@pytest.mark.parametrize("kind", ["gz", "zip"])
def test_bombs_are_refused(tmp_path, kind):
    text = trace_text()[:-2] + " " * 8_000_000 + "]}"
    path = tmp_path / f"bomb.{kind}"
    if kind == "gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("t.json", text)
    assert "200 times" in refused(path)


def test_limits_hold(tmp_path):
    many = written(tmp_path, "many.json", trace_text([EVENT] * 200))
    assert "more than 100 events" in refused(many, events=100)
    assert "larger than" in refused(many, streamed_bytes=5000)
    deep = written(tmp_path, "deep.json", '[{"frame": {"name": "ROOT"}, "metrics": ' + "[" * 300)
    refused(deep)
    nested = '[{"frame": {"name": "ROOT"}, "metrics": {}, "x": ' + "[" * 300 + "]" * 300 + "}]"
    assert "nested too deeply" in refused(written(tmp_path, "nested.json", nested))


# Hostile content


@pytest.mark.parametrize(
    "doctype", ['<!DOCTYPE a [<!ENTITY b "x">]>', '<!DOCTYPE a SYSTEM "file:///etc/hostname">']
)
def test_a_doctype_is_refused_at_its_first_token(tmp_path, doctype):
    bomb = f'<?xml version="1.0"?>{doctype}<ComputeSanitizerOutput></ComputeSanitizerOutput>'
    assert "DOCTYPE" in refused(written(tmp_path, "x.xml", bomb))


class Dangerous:
    def __reduce__(self):
        return (Path.touch, (Path("was_run"),))


def test_pickles_are_never_loaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, "snapshot.pickle", pickle.dumps(Dangerous()))
    assert "export_memory_timeline" in refused(path)
    assert not (tmp_path / "was_run").exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("r.nsys-rep", "nsys export --type sqlite"),
        ("r.qdstrm", "QdstrmImporter"),
        ("r.pftrace", "--output-format rocpd"),
    ],
)
def test_closed_files_are_refused_with_the_command_that_helps(tmp_path, name, words):
    assert words in refused(written(tmp_path, name, b"\x0a\x00\x01\x02binary"))


@pytest.mark.parametrize(
    ("name", "words"), [("r.gputrace", "Xcode"), ("r.trace", "xctrace export")]
)
def test_bundles_are_refused_with_the_command_that_helps(tmp_path, name, words):
    (tmp_path / name).mkdir()
    written(tmp_path / name, "index", b"x")
    assert words in refused(tmp_path / name)


def test_reports_of_ncu_need_their_package(tmp_path, monkeypatch):
    import workbench.traces.readers.ncu_report as module

    monkeypatch.setattr(module, "find_spec", lambda name: None)
    sentence = refused(written(tmp_path, "r.ncu-rep", b"NVR\0\0\0"))
    assert "ncu --import r.ncu-rep --csv --page raw" in sentence


KERNELS = "CREATE VIEW kernels AS "
SELECT = "SELECT 'k' AS name, 1 AS start, 2 AS end"


@pytest.mark.parametrize(
    ("view", "words"),
    [
        (
            f"{KERNELS} WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) "
            "SELECT 'k' AS name, x AS start, x AS end FROM c",
            "not authorized",
        ),
        (f"{KERNELS} {SELECT} FROM kernels", "circularly defined"),
        (f"{KERNELS} SELECT load_extension('x') AS name, 1 AS start, 2 AS end", "unsafe use"),
    ],
)
def test_the_sql_of_a_file_runs_under_limits(tmp_path, view, words):
    path = tmp_path / "hostile.db"
    with sqlite3.connect(path) as base:
        base.execute("CREATE TABLE rocpd_kernel_dispatch_0a(id)")
        base.execute(view)
    base.close()
    assert words in refused(path, query_seconds=3)


def test_a_slow_query_is_stopped(tmp_path):
    path = tmp_path / "slow.db"
    numbers = "(" + " UNION ALL ".join(f"SELECT {i} AS x" for i in range(40)) + ")"
    tables = ", ".join(f"{numbers} AS t{i}" for i in range(6))
    with sqlite3.connect(path) as base:
        base.execute("CREATE TABLE rocpd_kernel_dispatch_0a(id)")
        base.execute(f"{KERNELS} SELECT 'k' AS name, sum(t0.x) AS start, 2 AS end FROM {tables}")
    base.close()
    assert "took longer than" in refused(path, query_seconds=0.2)


def test_an_export_of_nsys_may_hold_no_view(tmp_path):
    """Its tables are tables; a view of their name is the file's own SQL, and is not asked."""
    path = tmp_path / "view.sqlite"
    with sqlite3.connect(path) as base:
        base.execute("CREATE TABLE StringIds(id, value)")
        base.execute("CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS SELECT 1 AS start, 2 AS end")
    base.close()
    assert "nothing to show" in refused(path)


def test_names_are_text(tmp_path):
    name = "k<script>alert(1)</script>\x1b[31m\x07\u202e"
    trace = read([written(tmp_path, "t.json", trace_text([EVENT | {"name": name}]))])
    assert trace.activities[0].name == "k<script>alert(1)</script>[31m"
    with pytest.raises(ReadError) as error:
        read([written(tmp_path, "a\x1b[31m.json", "nothing")])
    assert "\x1b" not in str(error.value)


def test_a_file_is_known_by_its_content_alone(tmp_path):
    trace = read([written(tmp_path, "looks.csv", trace_text())])
    assert trace.tool == "torch.profiler"


def test_a_path_that_is_not_there_is_named(tmp_path):
    refused(tmp_path / "absent.json")
    (source,) = sources(written(tmp_path, "t.json", trace_text()), ReadLimits())
    assert read_source(source).files[0].name == "t.json"
