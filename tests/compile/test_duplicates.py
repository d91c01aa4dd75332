"""Configs that are recognised as alike after TTGIR have the same machine code, and none is lost.

By day kernels of two kinds are compiled for one of two targets each.
"""

import sys
from dataclasses import replace
from itertools import product
from math import prod
from types import SimpleNamespace

import pytest
from duplicate_kernels import written
from nightly import at_night, by_turns

from workbench import catalog
from workbench.backend.processes import COMPILE_TIMEOUT_S, compile_all
from workbench.backend.protocol import Problem
from workbench.backend.workers import Workers
from workbench.compile import (
    Compiled,
    CompiledDuplicate,
    CompileError,
    compile_config,
    compile_unless_duplicate,
)
from workbench.compile.dedup import Dedup, _mentions_words, store_skipped
from workbench.data.record import Case
from workbench.device.hardware import DEVICES
from workbench.measurement.candidate import Candidate, Refusal
from workbench.spec import values

TARGETS = ("mi300x", "h200")
LATER = {"h200": ("llir", "ptx", "cubin"), "mi300x": ("llir", "amdgcn", "hsaco")}
MOST = 8  # configs of one space that are compiled
# Of each kind one: streaming, rows in registers, a loop, a product, descriptors, several launches.
KINDS = (
    "copy.blocks", "softmax.rows", "rms_norm.looped", "matmul.tiles", "matmul.persistent",
    "matmul.split_k",
)  # fmt: skip


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def scaled(tmp_path):
    return catalog.spec_of(str(written(tmp_path)))


def backend_of(name):
    from triton.backends.amd.compiler import HIPBackend
    from triton.backends.nvidia.compiler import CUDABackend

    return CUDABackend if DEVICES[name].backend == "cuda" else HIPBackend


def depth_is_early(name):
    return not _mentions_words(backend_of(name), LATER[name], ("num_stages",))


def legal(impl, device, sizes, dtype):
    """Configs of the least tiles: some of them have equal keys, where eight from all over the space
    have none, and they are compiled in half of the time."""
    default = impl.default(device.limits, dtype, sizes)
    every = [
        config
        for config in impl.space(default)
        if impl.rejection_reason(config, device.limits, dtype, sizes) is None
    ]
    return sorted(every, key=elements)[:MOST]


def elements(config):
    return prod(n for name, n in values(config).items() if name.startswith("block_"))


def in_full(impl, configs, sizes, dtype, device):
    """What each config becomes; those that do not compile are left out."""
    created = {}
    for config in configs:
        try:
            created[config] = compile_config(impl, config, sizes, dtype, device)
        except CompileError:
            continue
    return created


def assert_equal_keys_are_equal_code(compiled):
    code = {}
    for result in compiled.values():
        code.setdefault(result.ttgir, set()).add(result.resources.binary)
    assert all(len(binaries) == 1 for binaries in code.values())


BY_DAY = (("softmax.rows", "mi300x"), ("matmul.split_k", "h200"))


@pytest.mark.parametrize(
    "case", at_night(product(KINDS, TARGETS), BY_DAY.__contains__), ids="-".join
)
def test_equal_keys_are_equal_machine_code_in_kernels_of_every_kind(case):
    title, name = case
    impl = catalog.impl_of(catalog.spec_of(title.partition(".")[0]), title.partition(".")[2])
    sizes = impl.spec.bench[0] if len(impl.spec.bench[0]) < 3 else {"M": 512, "N": 512, "K": 512}
    device = DEVICES[name]
    created = in_full(impl, legal(impl, device, sizes, "bf16"), sizes, "bf16", device)
    assert len(created) > 1
    if (title, name) == ("matmul.split_k", "h200"):
        assert len({result.ttgir for result in created.values()}) < len(created), "some are alike"
    assert_equal_keys_are_equal_code(created)


@pytest.mark.parametrize(("which", "name"), by_turns(["once", "looped", "given"], list(TARGETS)))
def test_equal_keys_are_equal_machine_code_where_depth_or_arguments_vary(scaled, which, name):
    impl, device, sizes = catalog.impl_of(scaled, which), DEVICES[name], scaled.bench[0]
    created = in_full(impl, list(impl.space(impl.config())), sizes, "fp32", device)
    assert_equal_keys_are_equal_code(created)
    keys = {result.ttgir for result in created.values()}
    binaries = {result.resources.binary for result in created.values()}
    if which == "given":
        assert len(binaries) == 3  # one file of machine code, called with three numbers
    elif depth_is_early(name):
        assert len(keys) == len(binaries)
    if which == "once":
        assert len(binaries) == 6


@pytest.mark.parametrize("name", TARGETS)
def test_a_depth_that_later_stages_read_parts_configs(scaled, name, monkeypatch):
    """Triton 3.6 reads it again for AMD: so might any version."""
    kind, device, sizes = backend_of(name), DEVICES[name], scaled.bench[0]
    real = kind.make_llir

    def make_llir(*args):
        assert next(a for a in args if hasattr(a, "num_stages")).num_stages > 0
        return real(*args)

    kept = staticmethod if isinstance(vars(kind)["make_llir"], staticmethod) else (lambda f: f)
    monkeypatch.setattr(kind, "make_llir", kept(make_llir))
    _mentions_words.cache_clear()
    try:
        impl = catalog.impl_of(scaled, "given")
        created = in_full(impl, [impl.config(16, depth) for depth in (1, 2)], sizes, "fp32", device)
    finally:
        _mentions_words.cache_clear()
    assert len({result.ttgir for result in created.values()}) == len(created) == 2


def test_code_that_cannot_be_read_is_taken_to_read_everything():
    assert _mentions_words(backend_of("h200"), ("a_stage_of_tomorrow",), ("num_stages",))
    assert _mentions_words(backend_of("h200"), ("llir",), ("instrumentation_mode",)), "by a helper"


class Claims:
    """In this process alone."""

    def __init__(self):
        self.keys = []

    def __call__(self, key):
        self.keys.append(key)
        return self.keys.count(key) == 1


def claiming(impl, configs, device, claims):
    """What each config becomes, in Triton's memory and cache as the caller left them."""
    task = impl.spec.bench[0], "fp32", device
    return {config: compile_unless_duplicate(impl, config, *task, claims) for config in configs}


def cold(monkeypatch, folder, impl):
    """From now on nothing has been compiled."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
    forget(impl)


def forget(impl):
    """Drop what Triton keeps in memory of the kernels in this file."""
    for value in vars(sys.modules[impl.launch.__module__]).values():
        if hasattr(value, "device_caches"):
            value.device_caches.clear()


def test_a_twin_stops_before_llvm_and_names_the_key_of_the_first(scaled, monkeypatch):
    impl, device = catalog.impl_of(scaled, "once"), DEVICES["h200"]
    kind, ran = backend_of("h200"), []
    real = kind.make_llir
    monkeypatch.setattr(kind, "make_llir", lambda *args: ran.append(1) or real(*args))
    monkeypatch.setattr("workbench.compile.dedup._mentions_words", lambda *wanted: False)
    configs = [impl.config(num_stages=depth) for depth in (1, 2, 3)]
    first, *others = claiming(impl, configs, device, Claims()).values()
    assert isinstance(first, Compiled) and not first.duplicate
    assert [(type(o), o.key) for o in others] == [(CompiledDuplicate, first.ttgir)] * 2
    assert len(ran) == 1


def test_what_is_cached_is_taken_from_there_and_its_twins_stop(scaled, tmp_path):
    if not depth_is_early("h200"):
        pytest.skip("this Triton parts configs by depth")
    impl, device = catalog.impl_of(scaled, "once"), DEVICES["h200"]
    configs = [impl.config(num_stages=depth) for depth in (1, 2)]
    first = compile_config(impl, configs[0], scaled.bench[0], "fp32", device)
    for clear in (forget, lambda impl: None):  # from the disk, then from memory
        clear(impl)
        cached, duplicate = claiming(impl, configs, device, Claims()).values()
        assert (cached.ttgir, cached.resources.binary) == (first.ttgir, first.resources.binary)
        assert duplicate.key == first.ttgir
    assert isinstance(claiming(impl, configs[:1], device, lambda key: False)[configs[0]], Compiled)
    for note in (tmp_path / "cache").glob("*/workbench-*.key"):
        note.unlink()
    result = claiming(impl, configs, device, Claims())
    assert all(isinstance(this, Compiled) for this in result.values()), "whose it is, is unknown"


@pytest.mark.nightly
@pytest.mark.parametrize("order", [1, -1])
def test_configs_of_several_launches_are_alike_only_if_all_launches_are(
    scaled, order, tmp_path, monkeypatch
):
    """Each launch is one of other configs too."""
    if not depth_is_early("h200"):
        pytest.skip("this Triton parts configs by depth")
    impl, device = catalog.impl_of(scaled, "steps"), DEVICES["h200"]
    configs, claims = list(impl.space(impl.config()))[::order], Claims()
    result, full = {}, {}
    for i, config in enumerate(configs):
        cold(monkeypatch, tmp_path / f"shared{i}", impl)
        result |= claiming(impl, [config], device, claims)
        cold(monkeypatch, tmp_path / f"alone{i}", impl)
        full |= in_full(impl, [config], scaled.bench[0], "fp32", device)
    code = {c: (f.launches, f.resources.binary) for c, f in full.items()}
    created = {f.ttgir: code[c] for c, f in result.items() if isinstance(f, Compiled)}
    for config, this in result.items():
        if isinstance(this, Compiled):
            assert (this.launches, this.resources.binary) == code[config]
        elif this.key in created:  # else it is the beginning of others alone: compiled by itself
            assert created[this.key] == code[config]
    assert sum(isinstance(this, CompiledDuplicate) for this in result.values()) >= 2


@pytest.mark.parametrize(("name", "target"), by_turns(("once", "steps"), ("h200", "mi300x")))
def test_a_real_launch_of_a_twin_finds_its_code_in_tritons_cache(
    scaled, tmp_path, monkeypatch, name, target
):
    """What a measuring process launches was compiled before, whichever config it was made for."""
    if not depth_is_early(target):
        pytest.skip("this Triton parts configs by depth")
    impl, device, claims = catalog.impl_of(scaled, name), DEVICES[target], Claims()
    compiled, twins = tmp_path / "compiled", {}
    compiled.mkdir()
    for config in impl.space(impl.config()):
        forget(impl)
        at = impl, config, scaled.bench[0], "fp32", device
        this = compile_unless_duplicate(*at, claims, compiled)
        if isinstance(this, CompiledDuplicate) and this.skipped_launches:
            twins[config] = this
    assert twins
    kind, ran = backend_of(target), []
    first = f"make_{LATER[target][0]}"
    real, is_static = getattr(kind, first), isinstance(vars(kind)[first], staticmethod)

    def counted(*args):
        ran.append(1)
        return real(*args)

    monkeypatch.setattr(kind, first, staticmethod(counted) if is_static else counted)
    for config, twin in twins.items():
        assert all(store_skipped(launch, compiled) for launch in twin.skipped_launches)
        forget(impl)
        again = compile_config(impl, config, scaled.bench[0], "fp32", device)
        assert not ran, "nothing went to LLVM"
        cold(monkeypatch, tmp_path / f"alone {config}", impl)
        alone = compile_config(impl, config, scaled.bench[0], "fp32", device)
        assert ran and again.resources.binary == alone.resources.binary
        assert replace(again.resources, compile_s=0) == replace(alone.resources, compile_s=0)
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
        ran.clear()


# A pool


@pytest.fixture(scope="module")
def pool():
    with Workers(2) as workers:
        yield workers


def through(pool, scaled, which, folder):
    """What the pool makes of every config, in the order in which answers come."""
    impl, device = catalog.impl_of(scaled, which), DEVICES["h200"]
    candidates = [
        Candidate(
            Case("scaled", which, "triton", values(c), scaled.bench[0], "fp32", "h200"),
            f"{which}{i}", impl, c,
        )
        for i, c in enumerate(impl.space(impl.config()))
    ]  # fmt: skip
    problem = Problem(str(folder / "scaled.py"), scaled, scaled.bench[0], "fp32")
    answers = list(compile_all(pool, problem, candidates, device, COMPILE_TIMEOUT_S))
    assert sorted(c.key for c, _ in answers) == sorted(c.key for c in candidates)
    return {candidate.config: result for candidate, result in answers}


@pytest.mark.parametrize("which", ["once", "given", "steps"])
def test_a_pool_makes_each_code_once_and_gives_it_to_all(pool, scaled, which, tmp_path):
    result = through(pool, scaled, which, tmp_path)
    impl, sizes = catalog.impl_of(scaled, which), scaled.bench[0]
    full = in_full(impl, result, sizes, "fp32", DEVICES["h200"])
    seen = set()
    for config, this in result.items():
        assert this.resources.binary == full[config].resources.binary
        assert (this.launches, this.grid) == (full[config].launches, full[config].grid)
        assert this.resources.binary in seen or not this.duplicate
        seen.add(this.resources.binary)
    if depth_is_early("h200") and which == "once":
        assert sum(f.duplicate for f in result.values()) == len(result) - len(seen)


def test_no_config_is_lost_with_the_one_that_claimed_its_code(pool, scaled, tmp_path):
    result = through(pool, scaled, "fatal", tmp_path)
    by_depth = {config.num_stages: this for config, this in result.items()}
    assert isinstance(by_depth[4], Compiled)
    died = [this for this in result.values() if isinstance(this, Refusal)]
    assert died and all("process died" in this.reason for this in died)


class Code:
    """A module of the compiler's, by its text alone."""

    def __init__(self, text):
        self.text = text

    def str_nodebug(self):
        return self.text


def key_of(*launches, options=None):
    """The gate's key of launches: (text, arguments, grid, what was noted)."""
    dedup = Dedup()
    for text, arguments, grid, noted in launches:
        dedup.begin(arguments, grid)
        dedup.meet(Code(text), noted, object(), SimpleNamespace(**(options or {"n": 1})), ["llir"])
    return dedup.key


LAUNCH = ("add", "x", (4, 1, 1), {"shared": 0})


@pytest.mark.parametrize(
    "other",
    [
        ("sub", "x", (4, 1, 1), {"shared": 0}), ("add", "y", (4, 1, 1), {"shared": 0}),
        ("add", "x", (1, 4, 1), {"shared": 0}), ("add", "x", (4, 1, 1), {"shared": 8}),
    ],
    ids=["code", "arguments", "grid", "noted"],
)  # fmt: skip
def test_launches_that_differ_in_anything_have_two_keys(other):
    assert key_of(LAUNCH) == key_of(LAUNCH) != key_of(other)
    assert key_of(LAUNCH, other) not in (key_of(other, LAUNCH), key_of(LAUNCH), key_of(other))
    assert key_of(LAUNCH) != key_of(LAUNCH, options={"n": 2})


@pytest.mark.parametrize(("code", "is_lost"), [("-9", True), ("-11", True), ("255", False)])
def test_a_compiler_that_was_ended_from_outside_is_a_lost_process(
    scaled, monkeypatch, code, is_lost
):
    """Not a fault of the config: it is tried again."""
    import workbench.compile

    def ended(*given):
        raise RuntimeError(f"PTXAS error: PTXAS error\n`ptxas` failed with error code {code}")

    monkeypatch.setattr(workbench.compile, "capture_launches", ended)
    impl, limits = scaled.impls[0], DEVICES["h200"].limits
    config = impl.default(limits, "bf16", scaled.bench[0])
    with pytest.raises(ChildProcessError if is_lost else CompileError):
        compile_config(impl, config, scaled.bench[0], "bf16", DEVICES["h200"])
