"""The file that a Mac's owner sends back: one good one is imported, and no damaged one ever is.

Damage is done at three depths: to the bytes, to the lines with a new checksum, and to single values
with a new checksum, as somebody would who means harm.
"""

import gzip
import hashlib
import json
import random
import re
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench import cli
from workbench.data import returned
from workbench.data.database import open_history
from workbench.data.environment import UNKNOWN
from workbench.data.events import EventLog, RunFinished, line_of
from workbench.data.record import Case, Evidence, Failure, Finding, Measured, Record, Run, key_of
from workbench.data.returned import ReturnedError, hide_paths, pack, unpack

AT = "2026-11-24T12:00:00.000000+00:00"
DEVICES = ["m2max", "m1"]


def run_of(name="full"):
    environment = replace(
        UNKNOWN,
        gpu="Apple M2 Max",
        os="macOS 15.1 arm64",
        versions={"workbench": "0.1.0", "mlx": "0.32.4"},
        settings={"power": "ac", "low_power_mode": "0", "gpu_cores": "38"},
    )
    dram = {"value": 3.4e11, "unit": "B/s", "source": "copy.mlx", "kind": "measured"}
    return Run(
        id="20261124-120000-bring_back-softmax-0f5b", engine="bring_back", name=name,
        command=returned.COMMAND, started=AT, kernel="", sizes={}, dtype="fp16", device="m2max",
        predicted=False, vary=(), tune=(), impls={}, ceilings={"dram_measured": dram},
        environment=environment,
    )  # fmt: skip


def events_of(name="full"):
    run = run_of(name)
    config = {"threads": 256, "values": 16}
    case = Case("softmax", "simd_rows", "metal", config, {"M": 8192, "N": 4096}, "fp16", "m2max")
    samples = (3.9e-4, 4.0e-4, 4.1e-4)
    timing = Measured(4.0e-4, 3.9e-4, 4.1e-4, samples, "cold", "eval", "mlx1-abcdef",
                      window_sizes=(3,), compile_s=0.2)  # fmt: skip
    record = Record(case, key_of(case), run.id, AT, "final", timing, 10, 20, "gpu", 0.2)
    mlx = replace(case, impl="mlx", backend="mlx", config={})
    failure = Failure(mlx, key_of(mlx), run.id, AT, "measure", "the call is too short for it")
    evidence = (Evidence("cases", 90.0, "1", "computed"),)
    finding = Finding(run.id, AT, "metal_checks", "softmax", {}, "", "right", "90 cases.", evidence)
    return [run, record, failure, finding, RunFinished(AT, run.id, "complete", {"final": 1})]


GOOD = pack(events_of(), rehearsal=False)
LINES = gzip.decompress(GOOD).splitlines(keepends=True)[:-1]


def signed(lines, /, **more):
    """A file of these lines with a checksum that is right."""
    body = b"".join(lines)
    digest = hashlib.sha256(body).hexdigest()
    end = {"type": returned.END, "lines": len(lines), "sha256": digest, "rehearsal": False, **more}
    return gzip.compress(body + json.dumps(end).encode() + b"\n", mtime=0)


class Place:
    """A history and a file to load into it, by the command line."""

    def __init__(self, folder):
        self.folder, self.url = folder, f"sqlite:///{folder / 'history.db'}"
        self.path = folder / "results_m2max_2026-11-24.jsonl.gz"

    def load(self, data, capsys, path=None):
        """Exit code and printed text of `workbench history --load`."""
        (path or self.path).write_bytes(data)
        line = ["history", "--load", str(path or self.path), "--database", self.url]
        code = cli.main(line)
        said = capsys.readouterr()
        return code, said.out + said.err

    def stored(self):
        """Runs, outcomes and findings of the history."""
        with open_history(self.url) as history:
            runs = history.runs()
            findings = [f for run in runs for f in history.findings(run.id)]
            return runs, [o for run in runs for o in history.outcomes(run.id)], findings


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def test_a_good_file_is_imported_once(place, capsys):
    code, said = place.load(GOOD, capsys)
    assert code == 0 and "5 events imported" in said, said
    run, record, failure, finding, _ = events_of()
    assert place.stored() == ([run], [record, failure], [finding])
    assert place.load(GOOD, capsys)[0] == 0 and len(place.stored()[1]) == 2
    assert re.search(r"400 (µs|us)", said) and "m2max" in said


def test_another_run_with_its_id_is_not_replaced(place, capsys):
    place.load(GOOD, capsys)
    other = pack([replace(run_of(), started=AT.replace("12:00", "13:00"))], rehearsal=False)
    code, said = place.load(other, capsys)
    assert code == 2 and "another run with the id" in said and len(place.stored()[0]) == 1


# Damage


def line(number, change):
    """The lines with one value changed: `change` gets the object of a line."""
    plain = json.loads(LINES[number])
    result = change(plain)
    changed = plain if result is None else result
    return [*LINES[:number], json.dumps(changed).encode() + b"\n", *LINES[number + 1 :]]


def put(*path_and_value):
    *path, last, value = path_and_value

    def change(plain):
        for step in path:
            plain = plain[step]
        plain[last] = value

    return change


def raw(number, old, new):
    """The lines with a piece of text replaced, which `json.dumps` would not write."""
    assert old in LINES[number]
    return [*LINES[:number], LINES[number].replace(old, new, 1), *LINES[number + 1 :]]


NAN, INFINITE, LARGE = float("nan"), float("inf"), 10**400
BAD_TEXTS = (
    "/Users/alice/x",
    "~/secret/x",
    "..\\..\\x",
    "\x1b[2J",
    "a\nb",
    "\u202e",
    "é",
    "x" * 601,
    "C:\\Users\\a",
)
HARM = {
    "no lines": [],
    "no run": LINES[1:],
    "two runs": [LINES[0], *LINES],
    "run last": [*LINES[1:], LINES[0]],
    "empty line": [*LINES, b"\n"],
    "not json": [*LINES, b"{\n"],
    "a list": [*LINES, b"[1]\n"],
    "deep": [*LINES, b"[" * 5000 + b"]" * 5000 + b"\n"],
    "double key": raw(1, b'"phase":', b'"phase":"final","phase":'),
    "not ascii": raw(1, b"simd_rows", "simd_röws".encode()),
    "nan": line(1, put("error", NAN)),
    "infinite": line(1, put("timing", "median_s", INFINITE)),
    "huge": line(1, put("flops", LARGE)),
    "huge text": raw(1, b'"flops":10', b'"flops":1e999'),
    "negative time": line(1, put("timing", "median_s", -4e-4)),
    "outside": line(1, put("timing", "median_s", 9e-4)),
    "text for number": line(1, put("timing", "median_s", "4e-4")),
    "bool for number": line(1, put("flops", True)),
    "number for text": line(1, put("case", "kernel", 7)),
    "no samples": line(1, put("timing", "samples_s", [])),
    "many samples": line(1, put("timing", "samples_s", [4e-4] * 5000)),
    "other clock": line(1, put("timing", "method", "events")),
    "other protocol": line(1, put("timing", "protocol", "p4-abcdef")),
    "emulated": line(1, put("checked", "emulated")),
    "rehearsed": line(1, put("checked", "rehearsal")),
    "extra key": line(1, put("hostname", "x")),
    "inner extra key": line(1, put("case", "user", "alice")),
    "missing key": line(1, lambda plain: plain.pop("seed") and None),
    "other device": line(1, put("case", "device", "h200")),
    "triton": line(1, put("case", "backend", "triton")),
    "odd knob": line(1, put("case", "config", {"a/b": 1})),
    "odd key": line(1, put("key", "../../x")),
    "other run": line(1, put("run", "20261124-120000-other-0f5b")),
    "predicted": line(1, put("timing", {"type": "Predicted"})),
    "unknown type": line(1, put("type", "Sneaky")),
    "type of another": line(1, put("timing", "type", "Ratio")),
    "type is a list": line(1, put("timing", "type", [1])),
    "a profile": [*LINES, b'{"type":"Profile"}\n'],
    "a path as id": line(0, put("id", "../../etc/passwd")),
    "hidden id": line(0, put("id", ".hidden")),
    "unknown device": line(0, put("device", "h200")),
    "engine": line(0, put("engine", "sweep")),
    "rehearsal": line(0, put("name", "rehearsal")),
    "predicted run": line(0, put("predicted", True)),
    "command": line(0, put("command", "rm -rf x")),
    "source": line(0, put("source", "x.py")),
    "files": line(0, put("files", [{"name": "x"}])),
    "setting": line(0, put("environment", "settings", {"HOME": "x"})),
    "version": line(0, put("environment", "versions", {"alice": "1"})),
    "no date": line(0, put("started", "yesterday")),
    "bad ceiling": line(0, put("ceilings", "dram_measured", "value", -1.0)),
    "finding with a chart": line(3, put("charts", [{"type": "Chart"}])),
    "odd unit": line(3, put("evidence", 0, "value", NAN)),
    "end of another": line(4, put("run", "other")),
    **{f"text {n}": line(2, put("reason", text)) for n, text in enumerate(BAD_TEXTS)},
    **{f"name {n}": line(0, put("environment", "gpu", text)) for n, text in enumerate(BAD_TEXTS)},
}


def damaged_bytes(seed):
    """The good file with bytes flipped, cut, repeated, or put in."""
    dice = random.Random(seed)
    data = bytearray(GOOD)
    at = dice.randrange(len(data))
    kind = dice.choice(("flip", "flip", "cut", "put", "repeat", "drop"))
    if kind == "flip":
        for _ in range(dice.randint(1, 4)):
            data[dice.randrange(10, len(data))] ^= 1 << dice.randrange(8)
    elif kind == "cut":
        del data[at:]
    elif kind == "put":
        data[at:at] = dice.randbytes(dice.randint(1, 9))
    elif kind == "repeat":
        data += GOOD if dice.random() < 0.5 else b"\0"
    else:
        del data[at : at + dice.randint(1, 9)]
    return bytes(data)


BOMB = gzip.compress(b"0" * (64 << 20), mtime=0)
WHOLE = {
    "empty": b"",
    "text": b"hello\n",
    "bomb": BOMB,
    "two bombs": BOMB + BOMB,
    "large": random.Random(0).randbytes((1 << 20) + 1),
    "not signed": gzip.compress(b"".join(LINES)),
    "wrong count": signed(LINES, lines=4),
    "wrong checksum": signed(LINES, sha256="0" * 64),
    "rehearsal": signed(LINES, rehearsal=True),
    "rehearsal as text": signed(LINES, rehearsal="no"),
    "more in the end": signed(LINES, note="x"),
    "end twice": signed([*LINES, b'{"type":"BringBackEnd"}\n']),
}
DAMAGED = {
    **{f"harm: {name}": signed(lines) for name, lines in HARM.items()},
    **{f"file: {name}": data for name, data in WHOLE.items()},
    **{f"bytes {seed}": damaged_bytes(seed) for seed in range(140)},
}


def test_no_damaged_file_is_accepted(tmp_path):
    """Each is refused with one printable sentence."""
    assert len(DAMAGED) >= 200
    path = tmp_path / "results.jsonl.gz"
    for name, data in DAMAGED.items():
        path.write_bytes(data)
        with pytest.raises(ReturnedError) as error:
            unpack(path, DEVICES)
        said = str(error.value).replace(str(tmp_path), "F")
        assert re.fullmatch(r"F[^\n]{30,200}\.", said) and said.isprintable(), f"{name}: {said!r}"


SHOWN = [name for at, name in enumerate(DAMAGED) if not name.startswith("bytes") or at % 8 == 0]


@pytest.mark.nightly
def test_no_damaged_file_is_imported_by_the_command(place, capsys):
    """Each ends in one line and exit code 2, without a traceback, and nothing is kept."""
    for name in SHOWN:
        code, said = place.load(DAMAGED[name], capsys)
        assert code == 2, f"{name}: {said}"
        assert re.fullmatch(r"error: [^\n]{10,300}\n", said.replace(str(place.folder), "F")), (
            f"{name}: {said!r}"
        )
        assert "Traceback" not in said and "\x1b" not in said
    assert place.stored() == ([], [], [])


def test_a_bomb_is_not_unpacked(tmp_path):
    """Whatever is in it, and however well it is signed."""
    for data in (BOMB, signed([*LINES, b" " * (64 << 20) + b"1\n"])):
        path = tmp_path / "results.jsonl.gz"
        path.write_bytes(data)
        assert len(data) < returned.MOST_BYTES
        with pytest.raises(ReturnedError, match="unpacks to more than 32 MB"):
            unpack(path, DEVICES)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 1 << 30), st.sampled_from(b'0123456789-"{}[],:.eE/\\~\x1b\xff\n Nn')
        ),
        min_size=1,
        max_size=3,
    )
)
def test_lines_that_were_changed_and_signed_again_end_in_a_sentence_or_in_sound_values(changes):
    """With a right checksum another digit is another number, and nobody can tell."""
    body = bytearray(b"".join(LINES))
    for at, byte in changes:
        body[at % len(body)] = byte
    path = FOLDER / "changed.jsonl.gz"
    path.write_bytes(signed([bytes(body)], lines=bytes(body).count(b"\n")))
    try:
        events = unpack(path, DEVICES)
    except ReturnedError as error:
        assert "\n" not in str(error) and str(error).isprintable()
        return
    text = b"".join(map(line_of, events))
    assert len(events) == len(LINES) and b"NaN" not in text and b"Infinity" not in text


FOLDER = Path(tempfile.mkdtemp(prefix="returned-"))


# What is no such file


def test_a_file_in_the_making_has_no_checksum_and_is_refused(place, capsys):
    """Neither a rehearsal nor a true run can be loaded as plain events."""
    for name in ("full", "rehearsal"):
        path = place.folder / f"{name}.jsonl"
        with EventLog(path) as log:
            for event in events_of(name):
                log.write(event)
        code, said = place.load(path.read_bytes(), capsys, path)
        assert code == 2 and "checksum" in said
    assert place.stored() == ([], [], [])


@pytest.mark.parametrize("kind", ["missing", "folder"])
def test_a_file_that_cannot_be_read(place, capsys, kind):
    if kind == "folder":
        place.path.mkdir()
    code = cli.main(["history", "--load", str(place.path), "--database", place.url])
    assert code == 2 and "error: " in capsys.readouterr().err


def test_plain_events_in_gzip_are_not_taken_for_such_a_file(place, capsys):
    """They have no checksum; the sentence says what is missing."""
    code, said = place.load(gzip.compress(b"".join(LINES)), capsys, place.folder / "events.bin")
    assert code == 2 and "checksum" in said


# Writing


@given(st.text(max_size=80))
def test_a_text_is_written_without_paths_and_can_be_read(text):
    written = hide_paths(text)
    assert written == hide_paths(written) and written.isascii() and written.isprintable()
    assert returned.text_fault(written) is None


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("cannot open /Users/alice/x.py, line 3", "cannot open ..., line 3"),
        ("at '/tmp/a/b' it fell", "at '...' it fell"),
        ("a/b and 3 B/s stay", "a/b and 3 B/s stay"),
        ("~/x/y", "..."),
        ("C:\\Users\\alice\\x", "..."),
    ],
)
def test_paths_are_left_out(text, written):
    assert hide_paths(text) == written


def test_a_file_that_is_too_large_is_not_written():
    dice = random.Random(0)
    finding = events_of()[3]
    many = [replace(finding, sentence=dice.randbytes(290).hex()) for _ in range(5000)]
    with pytest.raises(ReturnedError, match="are the most"):
        pack([run_of(), *many], rehearsal=False)
