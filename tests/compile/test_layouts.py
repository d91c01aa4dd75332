"""`lora_delta.fused` changes no layout in which a few threads hold the same element: each of them
would store it to the same place of shared memory, and compute-sanitizer's racecheck reports that
(docs/facts.md)."""

import pytest
from kernel_cases import H200, dtypes_of, spread
from layouts import copies_of, stored_twice
from stopped import ttgir_of

from workbench import catalog
from workbench.device.hardware import DEVICES
from workbench.measurement import inputs


@pytest.mark.nightly
def test_no_element_is_stored_by_two_threads():
    impl = catalog.impl_of(catalog.spec_of("lora_delta"), "fused")
    spec, dtypes = impl.spec, dtypes_of(impl, H200)
    every = [(impl.default(H200, d, at), at, d) for at in spec.check for d in dtypes]
    every += spread(impl, [(at, d) for at in spec.bench[:1] for d in dtypes], H200)
    compiled = 0
    for config, sizes, dtype in every:
        if impl.rejection_reason(config, H200, dtype, sizes):
            continue
        tensors = inputs.shapes(spec, sizes, dtype)
        for text in ttgir_of(impl, config, tensors, DEVICES["h200"]):
            result = stored_twice(text, 32 * config.num_warps)
            assert not result, f"{config} at {sizes} in {dtype}: {result[0]}"
            compiled += 1
    assert compiled > len(dtypes)


def test_threads_that_hold_the_same_element_are_counted():
    block = "sizePerThread = [1, 1, 1], threadsPerWarp = [1, 4, 8], warpsPerCTA = [1, 8, 1]"
    bases = "register = [[2, 0]], lane = [[0, 0], [0, 1]], warp = [[0, 0], [1, 0]]"
    named = {"#a": f"#ttg.blocked<{{{block}}}>", "#b": f"#ttg.linear<{{{bases}}}>"}
    assert copies_of("#a", [4, 32, 8], named) == 1
    assert copies_of("#a", [4, 8, 8], named) == 4  # 32 threads along an axis of 8
    assert copies_of("#ttg.slice<{dim = 2, parent = #a}>", [4, 32], named) == 8
    assert copies_of("#b", [4, 2], named) == 4
    assert copies_of("#ttg.slice<{dim = 1, parent = #b}>", [4], named) == 8
    text = "\n".join(f"{n} = {v}" for n, v in named.items())
    text += (
        "\n%1 = ttg.convert_layout %0 : tensor<4x32xf32, #ttg.slice<{dim = 2, parent = #a}>> -> "
    )
    assert len(stored_twice(text + "tensor<4x32xf32, #b>", 256)) == 1
