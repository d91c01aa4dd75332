"""Records survive JSON exactly, and a measured time never comes back as a predicted one."""

import json
import struct
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.data.record import (
    BufferCounts,
    Case,
    CountedTraffic,
    Environment,
    Failure,
    Measured,
    Predicted,
    Record,
    Resources,
    Run,
    decode_plain,
    dumps,
    encode_plain,
    key_of,
    loads,
)

names = st.text(max_size=12)
keys = st.text(min_size=1, max_size=8).filter(lambda name: name != "type")
counts = st.integers(min_value=0, max_value=2**70)
numbers = st.floats(allow_nan=False)  # infinities and both zeros included
ints = st.dictionaries(keys, st.integers(), max_size=4)
words = st.dictionaries(keys, names, max_size=3)


def maybe(strategy):
    return st.none() | strategy


cases = st.builds(
    Case,
    kernel=names,
    impl=names,
    backend=st.sampled_from(["triton", "metal", "torch"]),
    config=ints,
    sizes=ints,
    dtype=names,
    device=names,
)
measured = st.builds(
    Measured,
    median_s=numbers,
    low_s=numbers,
    high_s=numbers,
    samples_s=st.lists(numbers, max_size=8).map(tuple),
    regime=st.sampled_from(["cold", "hot"]),
    method=st.sampled_from(["events", "graph", "host"]),
    protocol=names,
    rounds=counts,
    sm_mhz=maybe(numbers),
    temperature_c=maybe(numbers),
    power_w=maybe(numbers),
)
predicted = st.builds(
    Predicted,
    predicted_s=numbers,
    model=names,
    compute_s=numbers,
    dram_s=numbers,
    cache_s=numbers,
    latency_s=numbers,
    launch_s=numbers,
    bound=names,
    shortest_s=maybe(numbers),
    longest_s=maybe(numbers),
)
buffers = st.builds(
    BufferCounts,
    name=names,
    requested_read=counts,
    requested_written=counts,
    unique_read=counts,
    unique_written=counts,
    sectors=counts,
    scale=numbers,
)
traffic = st.builds(
    CountedTraffic,
    sizes=ints,
    buffers=st.lists(buffers, max_size=3).map(tuple),
    dispatches=counts,
    threads=counts,
    threadgroups=counts,
    threadgroup_bytes=counts,
    barriers=counts,
    bank_rounds=counts,
)
resources = st.builds(
    Resources,
    binary=names,
    registers=counts,
    spill_bytes=counts,
    shared_bytes=counts,
    threads=counts,
    blocks_per_core=counts,
    occupancy=numbers,
    limiter=names,
    programs=counts,
    waves=numbers,
    tail=numbers,
    load_bits=counts,
    matrix_unit=maybe(names),
    compile_s=numbers,
)
records = st.builds(
    Record,
    case=cases,
    key=names,
    run=names,
    at=names,
    phase=st.sampled_from(["first_pass", "final", "hot", "predict"]),
    timing=measured | predicted,
    flops=counts,
    bytes=counts,
    checked=st.sampled_from(["gpu", "interpreter", "library", "rehearsal"]),
    error=numbers,
    traffic=maybe(traffic),
    resources=maybe(resources),
    default=st.booleans(),
    same_as=maybe(ints),
)
failures = st.builds(
    Failure,
    case=cases,
    key=names,
    run=names,
    at=names,
    stage=st.sampled_from(["refused", "compile", "check", "launch", "measure"]),
    reason=st.text(max_size=60),
    resources=maybe(resources),
    default=st.booleans(),
)
environments = st.builds(
    Environment,
    gpu=maybe(names),
    driver=maybe(names),
    gpu_memory_bytes=maybe(counts),
    power_limit_w=maybe(numbers),
    clock_policy=st.sampled_from(["locked", "default", "unknown"]),
    others_on_gpu=maybe(counts),
    os=names,
    cpu=names,
    python=names,
    versions=words,
    settings=words,
    commit=maybe(names),
    dirty=maybe(st.booleans()),
)
runs = st.builds(
    Run,
    id=names,
    engine=names,
    name=names,
    command=names,
    started=names,
    kernel=names,
    sizes=ints,
    dtype=names,
    device=names,
    predicted=st.booleans(),
    vary=st.lists(names, max_size=3).map(tuple),
    tune=st.lists(names, max_size=3).map(tuple),
    impls=st.dictionaries(keys, ints, max_size=2),
    ceilings=st.dictionaries(keys, st.dictionaries(keys, numbers, max_size=2), max_size=2),
    environment=environments,
    source=names,
)


def bits(value: float) -> bytes:
    return struct.pack("d", value)


@given(records | failures | runs)
def test_whatever_is_written_is_read_back_equal(value):
    line = dumps(value)
    assert loads(line) == value
    assert type(loads(line)) is type(value)
    assert decode_plain(encode_plain(value)) == value


@given(records | failures | runs)
def test_one_object_is_one_line_of_ascii_that_starts_with_its_type(value):
    line = dumps(value)
    assert len(line.encode("ascii").splitlines()) == 1
    assert line.startswith(f'{{"type":"{type(value).__name__}",')


@given(measured)
def test_every_sample_keeps_all_its_bits(timing):
    again = loads(dumps(timing))
    assert [bits(s) for s in again.samples_s] == [bits(s) for s in timing.samples_s]
    assert bits(again.median_s) == bits(timing.median_s)


@given(records)
def test_measured_stays_measured_and_predicted_stays_predicted(record):
    again = loads(dumps(record))
    assert type(again.timing) is type(record.timing)
    assert again.is_measured == record.is_measured == isinstance(record.timing, Measured)
    assert bits(again.time_s) == bits(record.time_s)


@given(measured, predicted)
def test_renaming_the_type_does_not_turn_one_time_into_the_other(clock, model):
    for timing, other in ((clock, "Predicted"), (model, "Measured")):
        with pytest.raises(ValueError, match="lacks a field"):
            decode_plain({**encode_plain(timing), "type": other})


def test_a_measured_time_and_a_predicted_one_share_no_field_that_holds_the_time():
    shared = {f.name for f in fields(Measured)} & {f.name for f in fields(Predicted)}
    assert shared == set()


@given(records, measured)
def test_a_result_of_the_emulator_has_no_measured_time(record, clock):
    """Neither where it is made nor where it is read: no page can show a time that no GPU took."""
    with pytest.raises(ValueError, match="emulator has no measured time"):
        replace(record, checked="emulated", timing=clock)
    claimed = encode_plain(replace(record, checked="gpu", timing=clock))
    with pytest.raises(ValueError, match="emulator has no measured time"):
        decode_plain({**claimed, "checked": "emulated"})


KNOWN = {*Record.__dataclass_fields__, *Case.__dataclass_fields__}


@given(records, keys.filter(lambda name: name not in KNOWN))
def test_fields_of_a_newer_writer_are_ignored(record, name):
    plain = encode_plain(record)
    plain[name] = {"type": "SomethingNewer", "x": 1}
    plain["case"][name] = [1, 2]
    assert decode_plain(plain) == record


@given(records, st.sampled_from(["case", "key", "timing", "flops", "error"]))
def test_a_missing_field_is_named(record, name):
    plain = encode_plain(record)
    del plain[name]
    with pytest.raises(ValueError, match=name):
        decode_plain(plain)


def test_a_field_with_a_default_may_be_missing():
    plain = {"type": "Predicted", "predicted_s": 1.0, "model": "m", "bound": "dram"}
    plain |= dict.fromkeys(("compute_s", "dram_s", "cache_s", "latency_s", "launch_s"), 0.5)
    assert decode_plain(plain).predicted_s == 1.0
    clock = Measured(1.0, 0.9, 1.1, (1.0,), "cold", "events", "p1")
    older = {k: v for k, v in encode_plain(clock).items() if k not in ("rounds", "power_w")}
    assert decode_plain(older) == clock


@given(names.filter(lambda name: name not in {"Record", "Failure", "Run"}))
def test_an_unknown_type_is_refused_by_name(name):
    with pytest.raises(ValueError, match=r"unknown record type|lacks a field"):
        loads(json.dumps({"type": name}))


@pytest.mark.parametrize("line", ["", "{", "nonsense", '{"type":"Record"', '{"type":"Record"}'])
def test_a_line_that_is_no_record_raises_value_error(line):
    with pytest.raises(ValueError):
        loads(line)


@given(cases, names)
def test_a_key_depends_on_values_and_not_on_the_order_of_a_mapping(case, source):
    turned = Case(
        **{
            **{f.name: getattr(case, f.name) for f in fields(case)},
            "config": dict(reversed(case.config.items())),
        }
    )
    assert key_of(case, source=source) == key_of(turned, source=source)
    assert key_of(case, source=source) != key_of(case, source=source + "x")
    assert key_of(loads(dumps(case)), source=source) == key_of(case, source=source)
