"""Every kernel's default, compiled for GPUs that are not here: it fits, spills nothing, uses the
matrix unit, and loads as wide as it can."""

import pytest
from kernel_cases import ITEMSIZE, Case, applicable, first_applicable, triton_impls

from workbench.compile import CompileError, compile_config
from workbench.hardware import DEVICES

UNITS = {"a100": "mma", "h200": "wgmma", "b200": "tcgen05", "mi300x": "mfma", "rx7900xtx": "wmma"}
WIDE = ("fp16", "bf16")  # on all targets; fp32 on one
MEMORY_BOUND = 10  # FLOP a byte: every GPU of the table reaches more


def compiled_cases():
    """Every Impl for every target: its default, at the first size to time that accepts it."""
    for name in UNITS:
        limits = DEVICES[name].limits
        for impl in triton_impls():
            for dtype in (*WIDE, "fp32") if name == "h200" else WIDE:
                case, config = chosen(impl, dtype, limits)
                yield pytest.param(name, case, config, id=f"{name}-{impl.title}-{dtype}")


def chosen(impl, dtype, limits):
    """The default, at the first size to time that accepts it."""
    default = impl.default(limits, dtype)
    for sizes in impl.spec.bench:
        if applicable(impl, default, sizes, dtype, limits) is None:
            return Case(impl, sizes, dtype), default
    raise AssertionError(f"{impl.title} refuses its own {dtype} default on {limits.arch}")


def unit_of(impl, config, device, sizes, dtype):
    """The matrix unit that a launch should use: that of 16-bit products, where it has a product."""
    at = {"itemsize": ITEMSIZE[dtype], **sizes}
    product = impl.work is not None and impl.work(config, device.limits, **at).dot is not None
    return UNITS[device.name] if product and dtype != "fp32" else None


@pytest.mark.parametrize(("name", "case", "config"), list(compiled_cases()))
def test_the_default_suits_its_target(name, case, config):
    impl, device = case.impl, DEVICES[name]
    found = compile_config(impl, config, case.sizes, case.dtype, device).resources
    assert found.spill_bytes == 0
    assert 0 < found.registers <= device.limits.registers_per_thread
    assert found.shared_bytes <= device.limits.shared_bytes
    assert found.blocks_per_core >= 1
    unit = unit_of(impl, config, device, case.sizes, case.dtype)
    if unit:
        assert found.matrix_unit == unit
    spec = impl.spec
    if spec.flops(**case.sizes) < MEMORY_BOUND * spec.bytes(case.sizes, case.dtype):
        assert found.load_bits >= 128


def test_what_does_not_fit_is_refused_in_a_sentence():
    impl = next(i for i in triton_impls() if i.title == "matmul.tiles")
    config = impl.config(block_m=256, block_n=256, block_k=128, num_warps=16, num_stages=4)
    sizes = impl.spec.bench[0]
    assert first_applicable(impl, sizes, "bf16", DEVICES["a100"].limits) != config
    with pytest.raises(CompileError, match="shared memory"):
        compile_config(impl, config, sizes, "bf16", DEVICES["a100"])


@pytest.mark.parametrize("name", ["h200", "mi300x"])
def test_ragged_extents_and_shapes_alone_compile_too(name):
    for impl in triton_impls():
        device, sizes = DEVICES[name], impl.spec.check[2]
        config = first_applicable(impl, sizes, "fp16", device.limits)
        if config is not None:  # descriptors refuse ragged rows
            assert compile_config(impl, config, sizes, "fp16", device).resources.registers > 0
