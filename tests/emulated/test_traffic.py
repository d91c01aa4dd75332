"""Bytes are counted exactly: unique ones are the Spec's least, requested ones a scheme's."""

import pytest
from metal_body import IMPLS, LIMITS
from metal_bugs import launch

from metal_shim.emulate import EmulationOptions, emulate_launch, emulation
from metal_shim.host import threadgroup_bytes
from workbench import catalog
from workbench.backend.metal.emulated import CountedPlace, _emulated_runs, _totals
from workbench.measurement import inputs

# Sizes that the default config divides, so that no tile is ragged. Where the work of an Impl is not
# what its instructions request (lanes that unpack Q4_K read a block's numbers several times), the
# unique bytes alone are compared.
DIVIDED = {
    "softmax": {"M": 4, "N": 4096},
    "rms_norm": {"M": 4, "N": 4096},
    "layer_norm": {"M": 4, "N": 4096},
    "matmul": {"M": 128, "N": 64, "K": 32},
    "matvec": {"M": 2, "N": 8, "K": 512},
    "q4_k_matmul": {"M": 16, "N": 64, "K": 256},
    "lora": {"M": 128, "N": 64, "K": 32, "r": 16},
    "patch_embed": {"M": 128, "N": 64, "K": 32, "P": 64},
    "wkv6": {"B": 1, "T": 4, "H": 2, "N": 64},
    "wkv7": {"B": 1, "T": 4, "H": 2, "N": 64},
    "read_only": {"N": 12288},
    "compute_only": {"N": 4096},
    "streamed_fma": {"N": 4096, "F": 4},
}
LENGTHS = {"streamed_fma": "F"}  # of an input of bytes whose length is read, and no value
UNIQUE_ALONE = ("q4_k_matmul",)
SAMPLERS = ("sample_topk_topp", "sample_top_p")  # of two launches, and what they read is data
ONE_LAUNCH = [impl for impl in IMPLS.values() if impl.spec.name not in SAMPLERS]
each_of_one_launch = pytest.mark.parametrize("impl", ONE_LAUNCH, ids=lambda impl: impl.title)


def run_of(impl, sizes, dtype, counting=False):
    spec = impl.spec
    given = inputs.make(spec, sizes, dtype, "cpu", 0)
    config = impl.default(LIMITS, dtype, sizes)
    with emulation(EmulationOptions(counting=counting)) as runs:
        impl(*given, config=config)
    (run,) = runs
    named = {n: b for n, b in run.traffic.buffers.items() if not n.endswith("_shape")}
    return config, run, named.values()


def read_whole(sizes):
    """Whether all inputs are read: of a table of P positions, M patches may need fewer."""
    return "P" not in sizes or sizes["P"] <= sizes["M"]


@each_of_one_launch
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_unique_bytes_are_the_least(impl, dtype):
    for sizes in filter(read_whole, (*impl.spec.check, DIVIDED[impl.spec.name])):
        _, _, buffers = run_of(impl, sizes, dtype)
        unread = sizes.get(LENGTHS.get(impl.spec.name), 0)
        assert sum(b.unique_read for b in buffers) == impl.spec.bytes_read(sizes, dtype) - unread
        assert sum(b.unique_written for b in buffers) == impl.spec.bytes_written(sizes, dtype)


@pytest.mark.parametrize(
    "impl", [i for i in ONE_LAUNCH if i.spec.name not in UNIQUE_ALONE], ids=lambda i: i.title
)
def test_requested_bytes_are_those_of_the_scheme(impl):
    sizes = DIVIDED[impl.spec.name]
    config, _, buffers = run_of(impl, sizes, "fp16")
    (work,) = impl.work_of(config, LIMITS, "fp16", sizes)
    moved = sum(b.requested_read + b.requested_written for b in buffers)
    assert moved == work.tiles * (work.steps * work.load_bytes + work.store_bytes)


@pytest.mark.parametrize(("sampler", "passes"), [("sample_topk_topp", 0), ("sample_top_p", 1)])
def test_samplers_read_logits_once_where_the_candidates_suffice(sampler, passes):
    """Beside that, top-p alone reads them once for their mass."""
    sizes = {"B": 2, "V": 4096}
    (impl,) = (i for i in IMPLS.values() if i.spec.name == sampler)
    config = impl.default(LIMITS, "fp16", sizes)
    logits, *others = inputs.make(impl.spec, sizes, "fp16", "cpu", 0)
    with emulation(EmulationOptions()) as runs:
        impl(8 * logits, *others, config=config)
    partials, merge = (run.traffic.buffers for run in runs)
    read, candidates = logits.numel() * 2, 4 * config.kept * 2 * 4096 // config.slice
    assert partials["x"].requested_read == partials["x"].unique_read == read
    assert merge["x"].requested_read == passes * read
    assert partials["keys"].requested_written == partials["index"].unique_written == candidates
    assert merge["keys"].unique_read == candidates
    (work,) = impl.work_of(config, LIMITS, "fp16", sizes)
    lists = 2 * candidates + 8 * work.tiles
    assert work.tiles * work.load_bytes == (1 + passes) * read + lists
    assert work.tiles * work.store_bytes == lists


@each_of_one_launch
def test_threadgroup_memory_is_what_the_declarations_say(impl):
    _, run, _ = run_of(impl, DIVIDED[impl.spec.name], "fp16")
    used = run.traffic.threadgroup_bytes
    declared = threadgroup_bytes(run.call.source, run.call.template)
    assert used == declared <= 32_768


@pytest.mark.parametrize(
    ("index", "sectors"), [("at", 8), ("2 * at", 16), ("at * 8 % 128", 32), ("0", 2)]
)
def test_sectors_are_counted_for_each_instruction(index, sectors):
    """64 threads are two SIMD-groups; x lies at a multiple of 32 bytes."""
    body = f"\n    y[at] = x[{index}];\n"
    with emulation(EmulationOptions(counting=True)) as runs:
        emulate_launch(launch("sectors", body))
    assert runs[0].traffic.buffers["x"].sectors == sectors
    assert runs[0].traffic.buffers["y"].sectors == 8


@pytest.mark.parametrize(("stride", "rounds"), [(1, 2), (2, 4), (32, 64), (33, 2)])
def test_bank_rounds_are_those_of_32_banks(stride, rounds):
    body = f"""
    threadgroup float s[{64 * stride}];
    s[lid * {stride}] = 0;
    y[at] = 0;
    """
    with emulation(EmulationOptions(counting=True)) as runs:
        emulate_launch(launch("banks", body))
    assert runs[0].traffic.bank_rounds == rounds


def test_a_run_has_no_time():
    """What an emulated run returns cannot be plotted as a measurement."""
    with emulation(EmulationOptions()) as runs:
        emulate_launch(launch("timeless", "\n    y[at] = x[at];\n"))
    names = {*vars(runs[0]), *vars(runs[0].traffic), *vars(runs[0].traffic.buffers["x"])}
    assert not [n for n in names if n.endswith(("_s", "seconds", "time"))]


@pytest.mark.parametrize("kind", ["char4", "short2", "uint4"])
def test_a_vector_of_integers_is_one_access(kind):
    """32 loads of 4 bytes are 4 sectors of 32, and of 16 bytes 16."""
    width = int(kind[-1])
    parts = " + ".join(f"v[{i}]" for i in range(width))
    body = f"const {kind} v = ((const device {kind}*)x)[lid & 31]; y[at] = float({parts});"
    with emulation(EmulationOptions(counting=True)) as runs:
        emulate_launch(launch(f"vector {kind}", body, group=32))
    x = runs[0].traffic.buffers["x"]
    size = {"char4": 4, "short2": 4, "uint4": 16}[kind]
    assert x.requested_read == 32 * size and x.sectors == size


@pytest.mark.parametrize(
    ("impl", "config", "small", "large"),
    [
        # a loop over K, and stores behind it that do not grow with it
        ("simdgroup", {"block_m": 32, "block_n": 32}, (32, 32, 64), (64, 32, 256)),
        ("tiled", {"tile": 16}, (16, 32, 64), (48, 32, 160)),
    ],
)
def test_totals_of_a_small_run_are_carried_over_to_larger_sizes(impl, config, small, large):
    """They equal what is counted there, though the small run's loop has a quarter of the steps."""
    spec = catalog.spec_of("matmul")
    own = next(i for i in spec.impls if i.name == impl and i.backend == "metal")
    whole = own.config(**config)
    before, after = (dict(zip("MNK", sizes, strict=True)) for sizes in (small, large))
    place = CountedPlace(own, whole, LIMITS, "fp16")
    runs = [_emulated_runs(own, whole, sizes, "fp16") for sizes in (before, after)]
    counted = _totals(runs[1])
    assert place.totals(runs[0], before, after) == pytest.approx(counted) and min(counted) > 0
