"""Tuned tables: written, read, merged by git, damaged; the nearest entry of a family."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_workloads import damaged, names

from workbench.data.tuned_cache import TunedError, text_of
from workbench.workload.pinned import nearest
from workbench.workload.tuned_table import (
    FORMAT,
    MeasuredTime,
    PinnedEntry,
    newest_entries,
    parse,
    read,
    write,
)

keys = st.lists(st.integers(1, 2**20).map(str) | names.map(repr), max_size=3).map(tuple)
times = st.lists(st.floats(0, 1, allow_nan=False), min_size=3, max_size=3).map(
    lambda t: MeasuredTime(sorted(t)[1], min(t), max(t))
)
configs = st.dictionaries(names, st.integers(1, 512) | st.booleans() | st.none(), max_size=3)
entries = st.builds(
    PinnedEntry, *[names] * 7, keys, configs, times, times, st.none() | names, names, names
)
tables = st.lists(entries, max_size=6)


@given(tables)
def test_a_table_gives_back_what_was_written(several):
    again = parse(text_of(newest_entries(several), FORMAT).encode(), "t")
    newest = {}
    for entry in sorted(several, key=lambda e: e.at):
        newest[entry.place] = entry
    assert again == sorted(newest.values(), key=lambda e: e.place)
    assert newest_entries(again[::-1]) == again


@given(tables, st.randoms())
def test_the_order_of_entries_changes_nothing_and_each_is_a_line(several, random_):
    unique = list({e.place: e for e in several}.values())
    text = text_of(newest_entries(unique), FORMAT)
    random_.shuffle(unique)
    assert text_of(newest_entries(unique), FORMAT) == text
    assert sum(line.startswith('{"arch"') for line in text.splitlines()) == len(unique)


@settings(max_examples=20)
@given(tables, st.integers(0, 2**32))
def test_a_thousand_damaged_tables_end_in_a_sentence_each(several, seed):
    text, random_ = text_of(several, FORMAT), random.Random(seed)
    for _ in range(50):
        try:
            again = parse(damaged(text, random_), "t.json")
        except TunedError as error:
            message = str(error)
            assert message.startswith("t.json") and message.endswith(".") and "\n" not in message
        else:
            text_of(again, FORMAT)


def test_what_is_no_table_is_a_sentence(tmp_path):
    with pytest.raises(TunedError, match="cannot be read"):
        read(tmp_path / "none.json")
    with pytest.raises(TunedError, match="format 9, and this workbench knows formats up to 1"):
        parse(json.dumps({"tuned_table": 9}).encode(), "t")
    path = tmp_path / "t.json"
    write(path, [])
    assert read(path) == []


def entry(key, family="f"):
    time = MeasuredTime(1.0, 1.0, 1.0)
    return PinnedEntry("sm_90", "", "", "", "m", "f", "0", key, {}, time, time, family, "", "")


def test_nearest_is_inside_of_one_family_alone():
    several = [entry((str(n), "torch.float16")) for n in (16, 64, 4096)]
    several.append(entry(("100", "torch.float16"), None))  # of no family
    several.append(entry(("128", "torch.bfloat16")))
    for size, wanted in ((16, 16), (30, 16), (40, 64), (100, 64), (3000, 4096), (4096, 4096)):
        assert nearest(several, (str(size), "torch.float16")).key[0] == str(wanted)
    for outside in (("15", "torch.float16"), ("4097", "torch.float16"), ("16", "torch.float32")):
        assert nearest(several, outside) is None
    assert nearest(several, ("16",)) is None and nearest([], ("16",)) is None
