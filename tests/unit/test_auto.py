"""Knobs whose default depends on the sizes (AUTO): resolved before anything else sees them."""

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workbench import catalog
from workbench.adapted.launch import resolve
from workbench.device.hardware import DEVICES
from workbench.dsl import pretend
from workbench.spec import AUTO, Spec, Tensor, among, label, threads, tile, values

ROWS = ("softmax", "rms_norm", "layer_norm", "fused_add_rms_norm")
H200 = DEVICES["h200"].limits
EVERY = [impl for name in catalog.kernel_names() for impl in catalog.spec_of(name).impls]
OPEN = [impl for impl in EVERY if impl.auto]
each_open = pytest.mark.parametrize("impl", OPEN, ids=lambda impl: impl.title)
lengths, columns = st.integers(1, 1 << 20), st.integers(1, 1 << 15)


@each_open
@pytest.mark.parametrize("name", ["h200", "b200", "mi300x", "rx7900xtx"])
def test_no_default_leaves_anything_open(impl, name):
    limits = DEVICES[name].limits
    for sizes in (*impl.spec.check, *impl.spec.bench):
        for dtype in impl.spec.tolerance:
            result = impl.default(limits, dtype, sizes)
            assert not impl.is_open(result)
            assert AUTO not in [getattr(result, name) for name in impl.auto]


def test_every_other_default_is_among_the_choices():
    """At every size, on each of the devices, in each dtype."""
    wrong = [
        (impl.title, name, sizes, dtype)
        for impl in EVERY
        for name in ("h200", "b200", "mi300x", "rx7900xtx")
        for sizes in (*impl.spec.check, *impl.spec.bench)
        for dtype in impl.spec.tolerance
        for default in [values(impl.default(DEVICES[name].limits, dtype, sizes))]
        if not impl.auto and any(default[k] not in of for k, of in impl.choices().items())
    ]
    assert len(OPEN) < len(EVERY) and not wrong


@each_open
def test_auto_is_no_choice(impl):
    assert not any(AUTO in choices for choices in impl.choices().values())
    assert all(not impl.is_open(config) for config in impl.space(impl.config()))


@each_open
@given(data=st.data())
def test_a_field_that_is_named_stays_and_one_that_is_open_is_chosen(impl, data):
    drawn = {
        name: data.draw(st.sampled_from((*choices, AUTO) if name in impl.auto else choices))
        for name, choices in impl.choices().items()
    }
    sizes = data.draw(st.sampled_from([*impl.spec.check, *impl.spec.bench]))
    dtype = data.draw(st.sampled_from(list(impl.spec.tolerance)))
    result = values(impl.resolved_config(impl.config(**drawn), H200, dtype, sizes))
    assert all(result[name] == value for name, value in drawn.items() if value != AUTO)
    # a count of parts may lie between two choices; what tiles and warps may be is declared
    knobs = impl.knobs()
    assert all(
        result[name] in impl.choices()[name] if knobs[name] != "among" else result[name] >= 0
        for name in impl.auto
    )


@each_open
def test_a_launch_resolves_by_its_inputs_as_a_sweep_does_by_sizes(impl):
    from workbench.measurement import inputs

    for sizes in impl.spec.bench:
        for dtype in impl.spec.tolerance:
            created = inputs.shapes(impl.spec, sizes, dtype)
            with pretend(H200):
                result = resolve(impl, impl.config(), created)
            assert result == impl.resolved_config(impl.config(), H200, dtype, sizes)


def test_inputs_that_do_not_tell_the_sizes_are_refused_in_a_sentence():
    softmax = catalog.impl_of(catalog.spec_of("softmax"), "rows")
    with pytest.raises(ValueError, match=r"softmax.rows: .*block_m, num_warps depends on them"):
        resolve(softmax, softmax.config(), (torch.empty(2, 3, 4, device="meta"),))


def test_an_open_field_without_a_rule_is_refused_where_it_is_declared():
    spec = Spec("s", {"x": Tensor("N")}, {"y": Tensor("N")}, lambda x: x, lambda N: N, [], [])

    @dataclass(frozen=True)
    class Config:
        block_n: int = tile(16, 64, default=AUTO)

    with pytest.raises(ValueError, match=r"leaves block_n to the sizes"):
        spec.impl(Config)(lambda x, *, config: x)


def test_minus_one_may_be_an_ordinary_choice():
    spec = Spec("s", {"x": Tensor("N")}, {"y": Tensor("N")}, lambda x: x, lambda N: N, [], [])

    @dataclass(frozen=True)
    class Config:
        direction: int = among(-1, 1, default=-1)
        num_warps: int = threads(1, 8, default=4)

    created = spec.impl(Config)(lambda x, *, config: x)
    assert created.auto == () and not created.is_open(Config())
    assert created.default(H200, "bf16", {"N": 1}) == Config()
    assert label(values(Config())) == "direction -1, 4 warps"


# The rule of `rows`, in softmax and the norms


@pytest.fixture(scope="module", params=ROWS)
def kernel(request):
    return catalog.module_of(request.param), catalog.impl_of(catalog.spec_of(request.param), "rows")


def sized(impl, M, N):
    return impl.resolved_config(impl.config(), H200, "bf16", {"M": M, "N": N})


@given(M=lengths, N=columns)
def test_a_thread_is_given_enough_and_not_too_much(kernel, M, N):
    module, impl = kernel
    result = sized(impl, M, N)
    each = result.block_m * module.pad_up(N) / (32 * result.num_warps)
    least = 8 if H200.cores >= M else 16  # two wide loads, or one where a core has one row
    assert each >= least or result.num_warps == 1
    assert result.num_warps >= 4 or N < 2048
    reason = impl.rejection_reason(result, H200, "bf16", {"M": M, "N": N})
    assert (reason is None) == (each <= (64 if result.num_warps < 32 else 32))


@given(N=columns)
def test_few_rows_have_a_program_each(kernel, N):
    module, impl = kernel
    assert sized(impl, 1000, N).block_m == 1
    assert sized(impl, 1 << 15, N).block_m * module.pad_up(N) >= min(2048, 16 * module.pad_up(N))


def test_rows_of_4096_and_8192_run_as_they_were_measured(kernel):
    _, impl = kernel
    for N in (4096, 8192):
        result = sized(impl, 8192, N)
        assert (result.block_m, result.num_warps) == (1, 8)


@pytest.mark.parametrize(
    "M, N, K, parts",
    [(1, 2560, 2560, 4), (16, 4096, 4096, 4), (32, 4096, 4096, 2), (64, 4096, 4096, 1),
     (1, 14336, 4096, 1), (1, 256, 256, 1)],
)  # fmt: skip
def test_parts_of_k_leave_two_programs_a_core(M, N, K, parts):
    impl = catalog.impl_of(catalog.spec_of("q4_k_matmul"), "tiles")
    assert impl.default(H200, "fp16", {"M": M, "N": N, "K": K}).splits == parts


@pytest.mark.parametrize("M, device, blocks", [(2, "h200", 4), (3, "h200", 2), (16, "mi300x", 4)])
def test_rows_of_x_leave_room_for_so_many_blocks(M, device, blocks):
    """A default is one that the Impl takes, where up to 16 rows are."""
    impl, limits = catalog.impl_of(catalog.spec_of("q4_k_matmul"), "rows"), DEVICES[device].limits
    sizes = {"M": M, "N": 4096, "K": 4096}
    config = impl.default(limits, "fp32", sizes)
    assert config.block_b == blocks
    assert impl.rejection_reason(config, limits, "fp32", sizes) is None


def test_parts_of_a_product_fill_the_cores():
    split_k = catalog.impl_of(catalog.spec_of("matmul"), "split_k")
    config = replace(split_k.config(), block_m=64, block_n=128, block_k=128, split=AUTO)
    for cores, parts in ((132, 4), (64, 2), (16, 1)):
        limits = replace(H200, cores=cores)
        at = {"M": 64, "N": 4096, "K": 4096}  # 32 tiles of 32 steps
        assert split_k.resolved_config(config, limits, "bf16", at).split == parts
