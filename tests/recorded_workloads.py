"""Workloads that Hypothesis draws, as a recording would leave them; and damage to their files."""

import json
from typing import get_args

from hypothesis import strategies as st

from workbench.workload import signature as S
from workbench.workload.file import (
    CountedSignature,
    GpuTimes,
    KernelTime,
    Mode,
    RecordedProcess,
    RecordedWorkload,
)

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
small = st.integers(0, 2**31)
extents = st.lists(st.integers(0, 4096), max_size=3).map(tuple)
grids = st.lists(st.integers(1, 2**20), min_size=1, max_size=3).map(tuple)
three = st.tuples(*[st.integers(1, 2**20)] * 3)
seconds = st.floats(0, 1e6, allow_nan=False)


@st.composite
def tensors(draw):
    shape = draw(extents)
    stride = draw(st.tuples(*[st.integers(-4, 4096)] * len(shape)))
    values = st.none() | st.lists(st.integers(-5, 5), max_size=3).map(tuple)
    align = draw(st.sampled_from([1, 2, 4, 8, 16]))
    dtype = draw(st.sampled_from(["float32", "bfloat16", "int64"]))
    return S.TensorArgument(dtype, shape, stride, align, draw(st.integers(0, 9)), draw(values))


plain = st.one_of(
    st.integers(-(2**63), 2**64 - 1).map(lambda v: S.PlainArgument("int", v)),
    st.floats().map(lambda v: S.PlainArgument("float", repr(v))),
    st.booleans().map(lambda v: S.PlainArgument("bool", v)),
    st.just(S.PlainArgument("none", None)),
    *(names.map(lambda v, k=k: S.PlainArgument(k, v)) for k in ("str", "dtype", "function")),
)
descriptors = st.builds(S.DescriptorArgument, tensors(), extents, extents, extents)
arguments = st.recursive(
    plain | tensors() | descriptors,
    lambda inner: st.lists(inner, max_size=3).map(lambda v: S.TupleArgument(tuple(v))),
    max_leaves=4,
)
functions = st.builds(
    S.KernelFunction, names, names, names, names, st.just(("x", "n")), st.just(("n",))
)
config_grids = st.integers(0, 2).flatmap(
    lambda n: st.builds(
        S.ConfigGrids,
        st.just(("BLOCK_M", "BLOCK_N")[:n]),
        st.dictionaries(st.tuples(*[st.integers(1, 256)] * n), grids, max_size=3),
    )
)
signatures = st.builds(
    S.LaunchSignature,
    functions,
    st.dictionaries(names, arguments, max_size=3),
    grids,
    st.dictionaries(names, plain, max_size=2),
    st.sampled_from(get_args(S.Origin)),
    st.dictionaries(names, plain, max_size=2),
    st.integers(1, 60),
    st.booleans(),
    st.none() | st.lists(names, max_size=2).map(tuple),
    st.none() | config_grids,
)
processes = st.builds(
    RecordedProcess, names, st.none() | st.integers(0, 64), st.sampled_from(get_args(Mode)),
    names, names, seconds, st.booleans(), st.dictionaries(names, names, max_size=2),
)  # fmt: skip
times = st.builds(
    GpuTimes, names, seconds,
    st.lists(st.builds(KernelTime, names, three, three, small, seconds), max_size=3).map(tuple),
    st.lists(st.tuples(names, seconds), max_size=2).map(tuple),
)  # fmt: skip
workloads = st.builds(
    RecordedWorkload,
    st.lists(processes, max_size=2),
    st.lists(st.builds(CountedSignature, signatures, small), max_size=4),
    st.lists(times, max_size=2),
    st.lists(st.tuples(functions, small), max_size=2),
    st.lists(names, max_size=2),
)


def damaged(text, random_):
    """A file with a mistake in its bytes or in one of its values."""
    if random_.random() < 0.4:
        data = bytearray(text.encode())
        for _ in range(random_.randint(1, 4)):
            at = random_.randrange(len(data))
            data[at : at + random_.choice([0, 1, 20])] = random_.randbytes(
                random_.choice([0, 1, 3])
            )
        return bytes(data)
    plain = json.loads(text)
    holder = plain
    while True:
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        if not keys:
            break
        key = random_.choice(keys)
        if isinstance(holder[key], (dict, list)) and random_.random() < 0.8:
            holder = holder[key]
            continue
        odd = [None, -1, 2**80, 1e400, "x", [], {}, True, [[]], {"tensor": 1}, 7.5, "\ud800"]
        if random_.random() < 0.2 and isinstance(holder, dict):
            del holder[key]
        else:
            holder[key] = random_.choice(odd)
        break
    return json.dumps(plain).encode()
