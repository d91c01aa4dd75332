"""Tuned configs: the file that keeps them, what of a sweep goes in, and what a launch takes out."""

import ast
import json
import logging
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import MISSING, asdict, dataclass, fields, replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace

import pytest
import synthetic
from hypothesis import given
from hypothesis import strategies as st

from workbench import cli
from workbench.adapted import launch
from workbench.adapted.call import WordNumber
from workbench.catalog.source import code_hash, file_hash
from workbench.commands.tuned import code, merge
from workbench.data import tuned_cache
from workbench.data.clock import epoch_of
from workbench.data.record import Record
from workbench.data.selection import config_key, select
from workbench.data.tuned_cache import Entry, Tuned, TunedError, bucket, changing, read, write
from workbench.device.hardware import DEVICES
from workbench.spec import Spec, Tensor, among, stages, threads, tile
from workbench.tuner import choice
from workbench.tuner.choice import sources_of
from workbench.tuner.tuned import entries_of, remember

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
RUN, OUTCOMES = synthetic.matmul()
VERSIONS = {"torch": "2.11.0", "triton": "3.6.0"}
SIZES = {"M": 4096, "N": 4096, "K": 4096}
BASE = entries_of(RUN, OUTCOMES, {"tiles": "aa", "persistent": "bb"})

# Entries


def entries():
    """Entries that collide in their keys, and differ in all else."""
    days = st.dates(min_value=date(1970, 1, 3)).map(lambda d: f"{d.isoformat()}T09:30:00+00:00")
    return st.builds(
        Entry,
        kernel=st.sampled_from(["matmul", "softmax"]),
        impl=st.sampled_from(["tiles", "rows"]),
        config=st.dictionaries(st.sampled_from(["block_m", "num_warps"]), st.integers(1, 512)),
        sizes=st.fixed_dictionaries({"M": st.integers(0, 9), "N": st.sampled_from([1, 1 << 40])}),
        dtype=st.sampled_from(["bf16", "fp32"]),
        device=st.sampled_from(["h200", "AMD ünknown"]),
        torch=st.just("2.11.0"),
        triton=st.sampled_from(["3.6.0", "3.9.0"]),
        source=st.just("aa"),
        predicted=st.booleans(),
        time_s=st.floats(1e-9, 1e3),
        low_s=st.none() | st.floats(1e-9, 1e3),
        high_s=st.none() | st.floats(1e-9, 1e3),
        regime=st.just("cold, sustained"),
        protocol=st.just("p"),
        run=st.just("r"),
        at=days,
        configs=st.integers(1, 999),
        ties=st.lists(st.dictionaries(st.just("block_m"), st.integers(1, 9)), max_size=2).map(
            tuple
        ),
        same_bits_as_default=st.sampled_from([None, True, False]),
        bits_class=st.sampled_from(["", "A", "AB"]),
        bits_classes=st.none() | st.integers(1, 99),
        bits_configs=st.none() | st.integers(1, 99),
        repeats=st.sampled_from([None, True, False]),
        same_bits_as=st.sampled_from(["", "default"]),
    )


def held(*batches):
    tuned_ = Tuned()
    for batch in batches:
        for entry in batch:
            tuned_.add(entry)
    return tuned_.entries


@given(st.lists(entries(), max_size=8))
def test_a_file_gives_back_what_was_written(tmp_path_factory, some):
    path = tmp_path_factory.mktemp("t") / "tuned.json"
    kept = held(some)
    write(path, kept.values())
    assert Tuned.load(path).entries == kept


@given(st.lists(entries(), max_size=6), st.lists(entries(), max_size=6))
def test_merging_keeps_the_newest_in_any_order(one, other):
    both = held(one, other)
    assert both == held(other, one) == held(one, other, one)
    for entry in (*one, *other):
        assert epoch_of(both[entry.key].at) >= epoch_of(entry.at)


def test_there_is_no_file_yet(tmp_path):
    assert Tuned.load(tmp_path / "tuned.json").entries == {}
    with pytest.raises(TunedError, match="cannot be read"):
        read(tmp_path / "tuned.json")


# Finding


@given(st.integers(1, 1 << 60))
def test_a_bucket_is_the_nearest_power_of_two_in_ratio(extent):
    result = bucket({"M": extent})["M"]
    assert result.bit_count() == 1 and bucket({"M": result}) == {"M": result}
    assert abs(math.log2(extent) - math.log2(result)) <= 0.5 + 1e-9


@given(st.integers(1, 1 << 60), st.integers(1, 1 << 60))
def test_buckets_keep_the_order(a, b):
    low, high = sorted((a, b))
    assert bucket({"M": low})["M"] <= bucket({"M": high})["M"]


def result(tuned_, **changed):
    wanted = {
        "kernel": "matmul", "impl": "tiles", "sizes": SIZES, "dtype": "bf16", "device": "h200",
        "versions": VERSIONS, "sources": ("aa",),
    }  # fmt: skip
    return tuned_.find(**{**wanted, **changed})


def an_entry(**changed):
    entry = next(e for e in BASE if e.impl == "tiles")
    return replace(entry, device="h200", **changed)


def test_exact_sizes_come_first_then_the_nearest_of_the_bucket():
    exact, near = an_entry(), an_entry(sizes={**SIZES, "M": 5000}, time_s=1.0)
    far = an_entry(sizes={**SIZES, "M": 3000}, time_s=2.0)
    tuned_ = Tuned({e.key: e for e in (far, near, exact)})
    assert result(tuned_) == exact
    assert result(tuned_, sizes={**SIZES, "M": 4900}) == near
    assert result(tuned_, sizes={**SIZES, "M": 3100}) == far
    assert result(tuned_, sizes={**SIZES, "M": 8192}) is None


def test_of_two_that_are_equally_near_the_newer_stands():
    dates = ("2026-11-20T09:30:00+00:00", "2026-11-25T09:30:00+00:00")
    for older, newer in (("M", "N"), ("N", "M")):
        near = [
            an_entry(sizes={**SIZES, axis: 5000}, at=at)
            for axis, at in zip((older, newer), dates, strict=True)
        ]
        assert result(Tuned({e.key: e for e in near})) == near[1]
        assert result(Tuned({e.key: e for e in reversed(near)})) == near[1]


@pytest.mark.parametrize(
    "changed",
    [
        {"kernel": "softmax"}, {"impl": "persistent"}, {"dtype": "fp16"}, {"device": "h100"},
        {"versions": {**VERSIONS, "torch": "2.12"}}, {"versions": {**VERSIONS, "triton": "3.7"}},
        {"sources": ("ab",)}, {"sizes": {"M": 4096, "N": 4096}},
    ],
    ids=str,
)  # fmt: skip
def test_another_question_has_another_answer(changed):
    entry = an_entry()
    assert result(Tuned({entry.key: entry})) == entry
    assert result(Tuned({entry.key: entry}), **changed) is None


QUESTION = {
    "kernel": "softmax", "impl": "persistent", "sizes": {"M": 1}, "dtype": "fp16",
    "device": "h100", "torch": "2.12", "triton": "3.7", "source": "ab", "predicted": True,
}  # fmt: skip


@pytest.mark.parametrize("name", [f.name for f in fields(Entry)])
def test_an_entry_is_replaced_by_another_answer_to_its_own_question_alone(name):
    """Whatever else two entries differ in, they answer the same."""
    entry = an_entry()
    other = replace(entry, **{name: QUESTION.get(name, "other")})
    assert other != entry and (other.key != entry.key) == (name in QUESTION)


def test_a_prediction_is_kept_apart_and_never_launched():
    measured = an_entry()
    predicted = an_entry(predicted=True, at="2027-01-01T00:00:00+00:00")
    tuned_ = Tuned(held([measured, predicted]))
    assert len(tuned_.entries) == 2 and result(tuned_) == measured
    assert result(Tuned(held([predicted]))) is None


# Damage


GOOD = {"tuned": 1, "entries": [json.loads(json.dumps(asdict(e))) for e in BASE]}


def spoilt(**changed):
    return {"tuned": 1, "entries": [GOOD["entries"][0], {**GOOD["entries"][0], **changed}]}


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"\xff\xfe", b"[" * 100_000, b"1" * 9999, b"[]", b'{"tuned": 1}',
        b'{"tuned": 2, "entries": []}', b'{"tuned": true, "entries": []}',
        b'{"tuned": 1, "entries": 3}',
    ],
    ids=lambda content: content[-60:],
)  # fmt: skip
def test_a_bad_file_is_one_sentence_and_stays_as_it_is(tmp_path, content):
    path, mine = tmp_path / "bad.json", tmp_path / "mine.json"
    path.write_bytes(content)
    write(mine, BASE)
    for change in (lambda: merge(path, mine), lambda: remember_in(path)):
        with pytest.raises(TunedError) as text:
            change()
        assert str(path) in str(text.value) and "\n" not in str(text.value)
    assert path.read_bytes() == content and read(mine) == BASE


SPOILT = [
    {"config": {"block_m": "12"}}, {"config": {"block_m": True}}, {"config": None},
    {"config": {"block_m": 1.5}}, {"config": {"block_m": None}}, {"config": {"block_m": 1 << 70}},
    {"config": {"x) or exit(": 1}}, {"sizes": {"M": -1}}, {"sizes": {"M": 1.5}},
    {"time_s": 0.0}, {"time_s": float("inf")}, {"time_s": None}, {"low_s": "x"},
    {"at": "yesterday"}, {"at": 3}, {"predicted": "no"}, {"configs": None},
    {"run": "line\nbreak"}, {"ties": [1]}, {"kernel": 1}, {"device": "\x1b[2J"},
    {"dtype": "\ud800"},
]  # fmt: skip


@pytest.mark.parametrize("changed", SPOILT, ids=ascii)
def test_a_damaged_entry_costs_itself_only(tmp_path, capsys, changed):
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(spoilt(**changed)))
    held_ = Tuned.load(path)
    assert list(held_.entries.values()) == BASE[:1] and len(held_.damage_notes) == 1
    (name,) = changed
    assert held_.damage_notes[0].startswith(f"entries[1].{name}")
    assert cli.main(["tuned", "--file", str(path)]) == 0
    text = capsys.readouterr()
    assert "1 entry that cannot be used" in text.err and text.err.count("\n") == 1
    assert "matmul" in text.out
    assert merge(path, tmp_path / "mine.json") == (1, 1)
    with changing(path) as tuned_:
        tuned_.add(BASE[1])
    assert read(path) == BASE and Tuned.load(path).damage_notes == []


@pytest.mark.parametrize("changed", SPOILT, ids=ascii)
def test_what_could_not_be_read_is_not_written(tmp_path, changed):
    path = tmp_path / "t.json"
    write(path, BASE)
    before = path.read_bytes()
    with pytest.raises(TunedError, match="nothing is kept"):
        write(path, [*BASE, replace(BASE[0], **changed)])
    assert path.read_bytes() == before


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=4,
)


@given(
    st.lists(st.dictionaries(st.sampled_from([f.name for f in fields(Entry)]), JUNK), max_size=3)
)
def test_whatever_a_file_holds_its_good_entries_are_read_and_can_be_written(tmp_path_factory, some):
    path = tmp_path_factory.mktemp("t") / "t.json"
    plain = [{**GOOD["entries"][0], **changed} for changed in some]
    path.write_text(json.dumps({"tuned": 1, "entries": [*plain, GOOD["entries"][1], *some]}))
    known = Tuned.load(path)
    assert BASE[1] in known.entries.values()
    write(path, known.entries.values())
    assert Tuned.load(path) == Tuned(known.entries, [])


@pytest.mark.parametrize("value", [True, "wide", 0.5, None])
def test_a_winner_with_an_odd_knob_leaves_the_file_readable(tmp_path, value):
    path = tmp_path / "t.json"
    write(path, BASE[:1])
    odd = [
        replace(o, case=replace(o.case, config={**o.case.config, "block_m": value}))
        if o.case.impl == "tiles" else o
        for o in OUTCOMES
    ]  # fmt: skip
    with pytest.raises(TunedError, match=r"not kept: matmul\.tiles\.config\.block_m is"):
        remember(RUN, odd, a_spec(), path)
    assert "persistent" in {e.impl for e in read(path)} and not Tuned.load(path).damage_notes


def test_a_winner_whose_number_prints_as_a_word_is_kept(tmp_path):
    """FLATTEN=False of a function's config is the number 0."""
    path = tmp_path / "t.json"
    word = WordNumber(128, "False")
    spoken = [
        replace(o, case=replace(o.case, config={**o.case.config, "block_m": word}))
        if o.case.impl == "tiles" else o
        for o in OUTCOMES
    ]  # fmt: skip
    assert {e.impl for e in remember(RUN, spoken, a_spec(), path)} == {e.impl for e in read(path)}
    (entry,) = (e for e in read(path) if e.impl == "tiles")
    assert type(entry.config["block_m"]) is int and entry.config["block_m"] == 128


def remember_in(path):
    return remember(RUN, OUTCOMES, a_spec(), path)


@pytest.mark.parametrize("name", [f.name for f in fields(Entry) if f.default is MISSING])
def test_an_entry_must_be_whole(tmp_path, name):
    path = tmp_path / "t.json"
    entry = {k: v for k, v in GOOD["entries"][0].items() if k != name}
    path.write_text(json.dumps({"tuned": 1, "entries": [entry]}))
    assert Tuned.load(path).damage_notes == [f"entries[0] lacks `{name}`"]


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TunedError, match="cannot be written"):
        remember_in(tmp_path / "file" / "tuned.json")


def test_nothing_is_written_after_an_exception(tmp_path):
    path = tmp_path / "t.json"
    with pytest.raises(ZeroDivisionError), changing(path) as tuned_:
        tuned_.add(BASE[0])
        raise ZeroDivisionError
    assert not path.exists()


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    with changing(tmp_path / "link.json") as tuned_:
        tuned_.add(BASE[0])
    assert (tmp_path / "link.json").is_symlink() and read(tmp_path / "real.json") == [BASE[0]]


def add_some(path, number):
    for i in range(10):
        with changing(path) as tuned_:
            tuned_.add(replace(BASE[0], sizes={"M": 100 * number + i}))


def test_processes_that_write_at_once_lose_nothing(tmp_path):
    path, context = tmp_path / "t.json", multiprocessing.get_context("fork")
    workers = [context.Process(target=add_some, args=(path, n)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(read(path)) == 40


WRITER = """
import sys
from dataclasses import replace
from pathlib import Path
from workbench.data.tuned_cache import changing, read
path, n = Path(sys.argv[1]), 0
base = read(path)[0]
while True:
    n += 1
    with changing(path) as tuned:
        tuned.add(replace(base, sizes={"M": n % 500 + 1}, configs=n))
    print(n, flush=True)
"""


def test_kill_9_never_leaves_half_a_file(tmp_path):
    path = tmp_path / "t.json"
    write(path, BASE)
    for attempt in range(4):
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, path], cwd=ROOT, stdout=subprocess.PIPE
        )
        assert child.stdout.readline()
        time.sleep(0.011 * attempt)
        os.kill(child.pid, signal.SIGKILL)
        child.communicate()
        assert read(path)
    with changing(path) as tuned_:  # the dead writer's lock is gone
        tuned_.add(BASE[0])


class Stopped(BaseException):
    """Whatever may end a process between two steps: a signal, or a fault of the machine."""


def fails_at(monkeypatch, step, error):
    """The step of a write that ends it: before its first byte, half way, before it is on the disk,
    or before the rename."""
    real = Path.open

    def ends(*given):
        raise error

    class Half:
        """A file that takes half of a text."""

        def __init__(self, file):
            self.file = file
            if step == "open":
                file.close()
                raise error

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def write(self, text):
            self.file.write(text[: len(text) // 2])
            self.file.flush()
            raise error

    def halved(path, mode="r", **more):
        file = real(path, mode, **more)
        return Half(file) if "x" in mode else file

    if step in ("open", "write"):
        monkeypatch.setattr(Path, "open", halved)
    elif step == "sync":
        monkeypatch.setattr(os, "fsync", ends)
    else:
        monkeypatch.setattr(Path, "replace", ends)


STEPS = ("open", "write", "sync", "rename")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), Stopped()], ids=repr)
def test_a_write_that_is_cut_short_leaves_the_old_file_whole(tmp_path, monkeypatch, step, error):
    path = tmp_path / "t.json"
    write(path, BASE[:1])
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        fails_at(patch, step, error)
        with pytest.raises(TunedError if isinstance(error, OSError) else Stopped):
            write(path, BASE)
    assert path.read_bytes() == before
    write(path, BASE)  # and what was left behind is in nobody's way
    assert read(path) == BASE


def test_who_reads_during_a_write_sees_the_old_file(tmp_path, monkeypatch):
    path, seen = tmp_path / "t.json", []
    write(path, BASE[:1])
    real = os.fsync

    def looks(handle):
        seen.append(len(read(path)))
        return real(handle)

    monkeypatch.setattr(os, "fsync", looks)
    write(path, BASE)
    assert seen == [1, 2], "before the rename, and after it"


# From a sweep


def test_each_impl_of_a_measured_run_has_its_own_winner():
    assert [e.impl for e in BASE] == ["persistent", "tiles"]
    whole = select(RUN, OUTCOMES).winner
    best = next(e for e in BASE if e.impl == whole.case.impl)
    assert best.config == whole.case.config and best.time_s == whole.time_s
    for e in BASE:
        finals = [
            o for o in OUTCOMES
            if isinstance(o, Record) and o.phase == "final" and o.case.impl == e.impl
        ]  # fmt: skip
        assert e.config in [dict(o.case.config) for o in finals]
        assert e.low_s <= e.time_s <= e.high_s and e.regime.startswith("cold, ")
        assert (e.torch, e.triton, e.device) == ("2.11.0", "3.6.0", RUN.device)


def test_screens_alone_are_no_answer():
    assert entries_of(*synthetic.matmul(finals=False), {}) == []
    assert entries_of(*synthetic.empty(), {}) == entries_of(*synthetic.all_failed(), {}) == []


@given(
    bits=st.lists(st.sampled_from([None, "aa", "bb", "cc"]), min_size=200, max_size=200),
    seeds=st.sampled_from([(1,), (1, 2), (1, 2, 3)]),
    repeats=st.sampled_from([None, True, True, False]),
    required=st.sampled_from(["", "default"]),
)
def test_an_entry_says_whether_its_bits_are_those_of_the_default(bits, seeds, repeats, required):
    of = {config_key(o.case): n for n, o in enumerate(OUTCOMES)}
    own = {n: (seeds[n // 2 % len(seeds)], bits[n % len(bits)]) for n in of.values()}
    given_ = [o for o in OUTCOMES if o.case.impl == "tiles"]
    created = [
        replace(
            o,
            seed=own[of[config_key(o.case)]][0],
            bits=own[of[config_key(o.case)]][1],
            repeats=repeats if o.phase == "final" else None,
        )
        if isinstance(o, Record)
        else o
        for o in given_
    ]
    run = replace(RUN, same_bits_as=required)
    (default,) = {config_key(o.case) for o in created if o.default}
    before = own[of[default]]
    for entry in entries_of(run, created, {}):
        key = next(k for k in of if k[1:] == ("tiles", tuple(sorted(entry.config.items()))))
        seed, mine = own[of[key]]
        comparable = mine and before[1] and seed == before[0]
        same = mine == before[1] if comparable else None
        assert entry.same_bits_as_default is (False if repeats is False else same)
        assert entry.same_bits_as == required and entry.repeats is repeats
        assert not required or same
        assert (entry.bits_class != "") == (mine is not None)
        records = {config_key(o.case) for o in created if isinstance(o, Record)}
        alike = sum(own[of[k]] == (seed, mine) for k in records)
        if mine is not None:
            assert 1 <= entry.bits_configs <= alike and entry.bits_classes <= 3
        tuned_cache.plain_entry(entry)


def test_a_config_is_compared_with_the_default_of_its_own_impl():
    records = [o for o in OUTCOMES if isinstance(o, Record)]
    marked = [replace(o, seed=1, bits="aa", default=False) for o in records]
    (entry,) = [e for e in entries_of(RUN, marked, {}) if e.impl == "persistent"]
    assert entry.same_bits_as_default is None, "its default is not known"
    other = next(o.case.config for o in marked if o.case.impl == "persistent")
    (entry,) = [
        e for e in entries_of(RUN, marked, {}, {"persistent": other}) if e.impl == "persistent"
    ]
    assert entry.same_bits_as_default is True and entry.bits_class == "A"


def test_a_predicted_winner_is_marked_and_has_no_interval():
    created = entries_of(*synthetic.matmul(predicted=True), {})
    assert created and all(e.predicted and e.low_s is None and e.regime == "" for e in created)


def test_what_won_the_newest_sweep_is_the_fastest_of_its_sizes(tmp_path):
    """In whatever order entries come in, and for these sizes alone."""
    path = tmp_path / "t.json"
    first = {e.impl: e for e in remember_in(path)}
    (winner,) = [e for e in first.values() if e.fastest]
    assert winner.config == dict(select(RUN, OUTCOMES).winner.case.config)
    loser = next(e for e in first.values() if not e.fastest)
    later = replace(loser, fastest=True, at="2027-01-01T00:00:00+00:00")
    elsewhere = replace(loser, fastest=True, sizes={"M": 1, "N": 1, "K": 1})
    for added in ([later, winner, elsewhere], [winner, elsewhere, later]):
        tuned_ = Tuned()
        for entry in added:
            tuned_.add(entry)
        assert tuned_.fastest() == {later.key, elsewhere.key}
        first = next(e for e in tuned_.matching("matmul") if e.sizes == RUN.sizes)
        assert first.key == later.key


def test_the_list_has_the_fastest_impl_first_and_says_so(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    path = tmp_path / "t.json"
    winner = next(e for e in remember_in(path) if e.fastest)
    assert cli.main(["tuned", "--file", str(path)]) == 0
    rows = [row for row in capsys.readouterr().out.splitlines() if row.startswith("matmul.")]
    assert rows[0].startswith(f"matmul.{winner.impl} ") and "fastest Impl" in rows[0]
    assert len(rows) == 2 and "fastest Impl" not in rows[1]


# Launching


@dataclass(frozen=True)
class Tiles:
    block_m: int = tile(16, 256, default=32)
    num_warps: int = threads(4, 8, default=4)
    num_stages: int = stages(2, 4, default=3)
    group_m: int = among(1, 8, default=8)


def a_spec():
    return Spec(
        name="matmul",
        inputs={
            "a": Tensor("M K"), "b": Tensor("K N"), "bias": Tensor("1 N", dtype="fp32"),
        },
        outputs={"c": Tensor("M N")},
        reference=lambda a, b, bias: a,
        flops=lambda M, N, K: M * N * K,
        check=[SIZES],
        bench=[SIZES],
    )  # fmt: skip


def an_impl(**words):
    return a_spec().impl(Tiles, name="tiles", **words)(lambda *inputs, config: config)


def tensors(m=64, n=128, k=32, dtype="bf16", kind="cuda"):
    """What a launch looks at of its inputs."""
    torch = pytest.importorskip("torch")
    names = {"bf16": torch.bfloat16, "fp32": torch.float32, "complex": torch.complex64}
    shapes = ((m, k), (k, n), (1, n))
    return [
        SimpleNamespace(
            shape=shape, dtype=names["fp32" if i == 2 else dtype], device=torch.device(kind, 0)
        )
        for i, shape in enumerate(shapes)
    ]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A machine with an H200 and an empty file of tuned configs."""
    monkeypatch.setattr("workbench.data.tuned_cache.LOOKED_UP", [])
    monkeypatch.setattr(launch, "LOOKED_UP", tuned_cache.LOOKED_UP)
    monkeypatch.setattr(launch, "device_of", lambda place: DEVICES["h200"])
    monkeypatch.setattr(choice, "_versions", lambda: VERSIONS)
    monkeypatch.setattr("workbench.dsl.INTERPRETED", False)
    monkeypatch.setattr(choice, "default_path", lambda: tmp_path / "tuned.json")
    return tmp_path / "tuned.json"


BEST = {"block_m": 256, "num_warps": 8, "num_stages": 2, "group_m": 1}


def keep(path, impl, **changed):
    words = {"sizes": {"M": 64, "N": 128, "K": 32}, "config": BEST, "source": code_hash(impl)}
    with changing(path) as tuned_:
        tuned_.add(an_entry(**{**words, **changed}))


def test_a_launch_without_a_config_uses_the_tuned_one_and_says_so_once(here, caplog):
    caplog.set_level(logging.INFO, "workbench")
    impl = an_impl()
    keep(here, impl)
    for _ in range(3):
        assert impl(*tensors()) == Tiles(**BEST)
    assert caplog.messages == [
        "matmul.tiles: block_m 256, 8 warps, 2 stages, group_m 1; "
        "tuned 2026-11-21 on h200 for M=64,N=128,K=32"
    ]
    assert impl(*tensors(m=70)) == Tiles(**BEST)
    assert caplog.messages[-1].endswith("M=64,N=128,K=32, the nearest to M=70,N=128,K=32")


def test_a_launch_uses_what_schema_1_tuned_until_the_file_changes(here):
    impl = an_impl()
    keep(here, impl, source=file_hash(impl))
    assert impl(*tensors()) == Tiles(**BEST)
    keep(here, impl, source="another file's", sizes={"M": 512, "N": 128, "K": 32})
    assert impl(*tensors(m=512)) == Tiles()


def test_a_config_that_is_given_is_used(here, caplog):
    caplog.set_level(logging.INFO, "workbench")
    impl = an_impl()
    keep(here, impl)
    assert impl(*tensors(), config=Tiles(16)) == Tiles(16)
    assert not caplog.records and not impl.launch_configs


def test_a_library_takes_no_config(here):
    library = a_spec().impl(backend="torch", name="torch")(lambda *inputs: "c")
    assert library(*tensors()) == "c" and not library.launch_configs


@pytest.mark.parametrize("kind", ["cpu", "meta"])
def test_without_a_gpu_it_is_the_default_in_silence(here, caplog, kind):
    caplog.set_level(logging.INFO, "workbench")
    impl = an_impl()
    keep(here, impl)
    assert impl(*tensors(kind=kind)) == impl(1, 2) == impl() == Tiles()
    assert not caplog.records


def test_the_interpreter_takes_the_default_in_silence(here, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "workbench")
    monkeypatch.setattr("workbench.dsl.INTERPRETED", True)
    impl = an_impl()
    keep(here, impl)
    assert impl(*tensors()) == Tiles() and not caplog.records


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({}, "nothing tuned for M=64,N=128,K=32 in bf16 on h200"),
        ({"m": 65}, "nothing tuned for M=65"),
        ({"dtype": "complex"}, "do not say which dtype"),
    ],
)
def test_without_an_entry_it_is_the_devices_default(here, caplog, changed, reason):
    caplog.set_level(logging.INFO, "workbench")
    impl = an_impl(defaults={"sm_90": Tiles(64)})
    keep(here, impl, dtype="fp32")
    assert impl(*tensors(**changed)) == Tiles(64)
    assert "; the default; " in caplog.text and reason in caplog.text


def refuse_large(config, limits, *, itemsize, M, N, K):
    return f"{itemsize} bytes times {config.block_m} are too many" if config.block_m > 64 else None


def broken(config, limits, **at):
    raise KeyError("ours")


def test_a_default_that_is_refused_gives_way_to_the_nearest_config_that_is_not(here, caplog):
    caplog.set_level(logging.INFO, "workbench")
    impl = an_impl(refuse=refuse_large, defaults={"sm_90": Tiles(256, num_stages=4)})
    assert impl(*tensors()) == Tiles(64, num_stages=4)
    assert "; the nearest to the default, which is refused (2 bytes times 256" in caplog.text
    assert "; nothing tuned for M=64" in caplog.text


@pytest.mark.parametrize("refuse", [lambda *_, **at: "nothing fits here", broken])
def test_where_no_config_is_known_to_fit_it_is_the_default(here, refuse):
    assert an_impl(refuse=refuse)(*tensors()) == Tiles()


def test_sizes_that_contradict_the_spec_leave_the_default(here, caplog):
    caplog.set_level(logging.INFO, "workbench")
    impl, created = an_impl(), tensors()
    keep(here, impl)
    created[1].shape = (33, 128)
    assert impl(*created) == Tiles() and "which sizes" in caplog.text
    assert impl(*tensors()[:2]) == Tiles()  # too few
    assert launch.sizes_of(impl.spec, tensors()) == {"M": 64, "K": 32, "N": 128}


@given(st.fixed_dictionaries({axis: st.integers(0, 9999) for axis in "MNK"}))
def test_sizes_come_back_from_the_shapes_that_they_give(sizes):
    spec = a_spec()
    shaped = [SimpleNamespace(shape=t.shape(sizes)) for t in spec.inputs.values()]
    assert launch.sizes_of(spec, shaped) == sizes
    hidden = replace(spec, outputs={"c": Tensor("M N H")})
    assert launch.sizes_of(hidden, shaped) is None


@pytest.mark.parametrize(
    ("config", "refuse", "reason"),
    [
        (BEST, refuse_large, "is refused: 2 bytes times 256 are too many"),
        (BEST, broken, "`refuse` of matmul.tiles failed (KeyError"),
        ({"block_m": 64}, None, "its fields are not those of Tiles"),
        ({**BEST, "more": 1}, None, "its fields are not those of Tiles"),
    ],
)
def test_a_tuned_config_that_cannot_run_leaves_the_default(here, caplog, config, refuse, reason):
    caplog.set_level(logging.INFO, "workbench")
    impl = an_impl(**({"refuse": refuse} if refuse else {}))
    keep(here, impl, config=config)
    assert impl(*tensors()) == Tiles() and reason in caplog.text


def test_a_damaged_file_is_a_warning_and_the_default(here, caplog):
    here.write_text("{")
    assert an_impl()(*tensors()) == Tiles()
    (text,) = caplog.records
    assert text.levelname == "WARNING" and "is not JSON" in text.getMessage()


def test_what_this_process_writes_is_used_at_once(here):
    impl = an_impl()
    assert impl(*tensors()) == Tiles()
    keep(here, impl)
    assert impl(*tensors()) == Tiles(**BEST)


def test_a_program_with_ever_new_shapes_keeps_few(here, monkeypatch):
    monkeypatch.setattr(launch, "MOST", 5)
    impl = an_impl()
    for m in range(1, 40):
        impl(*tensors(m=m))
    assert len(impl.launch_configs) <= 5 and len(tuned_cache.LOOKED_UP) == 1


def test_a_copy_of_an_impl_chooses_for_itself(here):
    impl = an_impl()
    impl(*tensors())
    assert impl.launch_configs and not replace(impl, name="other").launch_configs


SAYS = """
import logging, sys
from types import SimpleNamespace
from workbench.adapted import launch
from workbench.adapted.call import WordNumber
impl = SimpleNamespace(title="matmul.tiles")
{before}
launch.log_choice(impl, SimpleNamespace(block_m=16), "tuned")
"""


@pytest.mark.parametrize(
    ("before", "lines"),
    [
        ("", 1),
        ("logging.getLogger('workbench').setLevel('WARNING')", 0),
        ("logging.basicConfig()", 0),
        ("logging.basicConfig(level='INFO')", 1),
        ("launch.log_choice(impl, SimpleNamespace(), 'x'); logging.basicConfig(level='INFO')", 2),
    ],
)
def test_the_line_goes_to_standard_error_unless_logging_was_set_up(before, lines):
    done = subprocess.run(
        [sys.executable, "-c", SAYS.format(before=before)],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "" and len(done.stderr.splitlines()) == lines


# The command


def text(capsys, *arguments):
    code_ = cli.main(["tuned", *map(str, arguments)])
    words = capsys.readouterr()
    return code_, words.out + words.err


@pytest.fixture
def filled(tmp_path):
    path = tmp_path / "t.json"
    write(path, BASE)
    return path


def test_the_list_shows_all_that_an_entry_was_found_for(filled, capsys):
    code_, words = text(capsys, "--file", filled)
    assert code_ == 0
    for word in ("matmul.tiles", "M=4096 N=4096 K=4096", "bf16", RUN.device, "triton 3.6.0",
                 "2026-11-21", "8 warps"):  # fmt: skip
        assert word in words
    assert "Nothing is tuned" in text(capsys, "softmax", "--file", filled)[1]


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ({}, "unknown"),
        ({"same_bits_as_default": True, "same_bits_as": "default"}, "as default, required"),
        ({"same_bits_as_default": False, "bits_class": "B", "bits_classes": 3, "bits_configs": 1},
         "not as default; B of 3, 1 config"),
        ({"same_bits_as_default": False, "repeats": False}, "vary"),
    ],
)  # fmt: skip
def test_the_list_says_whether_bits_change(tmp_path, capsys, monkeypatch, known, words):
    path = tmp_path / "t.json"
    write(path, [an_entry(**known)])
    monkeypatch.setenv("COLUMNS", "300")
    assert f" {words} " in text(capsys, "--file", path)[1]
    assert f"; bits {words}" in text(capsys, "matmul", "--code", "--file", path)[1]


def test_export_and_import_are_inverse(filled, tmp_path, capsys):
    there, mine = tmp_path / "there.json", tmp_path / "mine.json"
    assert text(capsys, "matmul", "--impl", "tiles", "--file", filled, "--export", there)[0] == 0
    assert text(capsys, "--import", there, "--file", mine)[1].startswith("1 of 1 entries")
    assert text(capsys, "--import", there, "--file", mine)[1].startswith("0 of 1 entries")
    assert read(mine) == [e for e in BASE if e.impl == "tiles"]


def test_forgetting_needs_a_name_and_drops_what_is_listed(filled, capsys):
    code_, words = text(capsys, "--file", filled, "--forget")
    assert code_ == 2 and "--forget needs a kernel" in words and len(read(filled)) == len(BASE)
    text(capsys, "matmul", "--impl", "tiles", "--file", filled, "--forget")
    assert read(filled) == [e for e in BASE if e.impl != "tiles"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--code", "matmul", "--forget"], "are two things"),
        (["--import", "x.json", "matmul"], "takes a file whole"),
        (["--import", "no.json"], "no.json cannot be read"),
        (["--export", "{file}"], "the file of tuned configs itself"),
        (["--export", "/no/such/x.json"], "/no/such/x.json cannot be written"),
    ],
)
def test_mistakes_are_one_sentence(filled, capsys, arguments, words):
    arguments = [a.format(file=filled) for a in arguments]
    code_, sentence = text(capsys, *arguments, "--file", filled)
    assert (
        code_ == 2
        and words in sentence
        and sentence.startswith("error: ")
        and sentence.count("\n") == 1
    )
    assert read(filled) == BASE


@given(st.lists(entries(), min_size=1, max_size=6))
def test_printed_code_of_a_users_kernel_has_the_fields_and_says_so(some):
    """Its file is not known: nothing can be captured."""
    kept = [replace(e, kernel=f"my_{e.kernel}") for e in held(some).values()]
    words = code(kept)
    assert words.count("the file that was swept is not here; name it") == len(kept)
    lists = [node.value.elts for node in ast.parse(words).body]
    assert len(lists) == len({(e.kernel, e.impl) for e in kept})
    calls = [ast.unparse(call) for elements in lists for call in elements]
    for e in kept:
        meta = {k: v for k, v in e.config.items() if k != "num_warps"}
        warps = f", num_warps={e.config['num_warps']}" if "num_warps" in e.config else ""
        assert f"triton.Config({meta}{warps})" in calls


def test_every_impl_of_the_final_has_an_entry_and_the_winner_is_marked(tmp_path):
    """Whether or not the default was in the final: nothing that won is lost."""
    path, spec = tmp_path / "tuned.json", a_spec()
    default = [o for o in OUTCOMES if o.default]
    finals = [o for o in default if isinstance(o, Record) and o.phase == "final"]
    assert finals
    failed = replace(synthetic.failure(RUN, default[0], "compile", "no"), default=True)
    rest = [o for o in OUTCOMES if o not in default]
    for outcomes in (OUTCOMES, rest, [*rest, failed]):
        stored = {e.impl: e for e in remember(RUN, outcomes, spec, path)}
        won = select(RUN, outcomes).winner
        assert stored.keys() == {"tiles", "persistent"}
        assert [e.impl for e in stored.values() if e.fastest] == [won.case.impl]
        assert stored[won.case.impl].config == dict(won.case.config)


def test_a_launch_of_another_impl_takes_part_and_may_stay_the_fastest(tmp_path):
    """A sweep of one Impl names the best of that one; the launch that was faster stays marked."""
    alone = replace(RUN, impls={"persistent": RUN.impls["persistent"]})
    best = {e.impl: e for e in entries_of(RUN, OUTCOMES, {})}
    for faster in ("tiles", "persistent"):
        finals = [o for o in OUTCOMES if isinstance(o, Record) and o.phase == "final"]
        theirs = next(o for o in finals if dict(o.case.config) == best["tiles"].config
                      and o.case.impl == "tiles")  # fmt: skip
        took = synthetic.measured(theirs.time_s * (0.1 if faster == "tiles" else 10))
        launched = [replace(theirs, default=True, timing=replace(took, state="sustained"))]
        own = [replace(o, default=False) for o in OUTCOMES if o.case.impl == "persistent"]
        result = {e.impl: e for e in entries_of(alone, [*own, *launched], {})}
        assert select(alone, [*own, *launched]).winner.case.impl == "persistent"
        assert select(alone, [*own, *launched]).default.record is launched[0]
        assert result.keys() == {"tiles", "persistent"}
        assert [e.impl for e in result.values() if e.fastest] == [faster]


def test_an_impl_is_known_by_its_code_and_as_in_schema_1_by_its_file():
    from workbench.kernels.softmax import softmax

    impl = softmax.impls[0]
    assert sources_of(impl) == (code_hash(impl), file_hash(impl))
