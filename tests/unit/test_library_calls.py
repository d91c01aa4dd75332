"""What libraries compute for a Spec, as torch.compile would take it, and where they are refused."""

import pytest

from workbench import catalog
from workbench.device.hardware import find_device
from workbench.dsl import CompiledCall
from workbench.measurement.correctness import PreparedProblem, check_outputs
from workbench.measurement.reference import output_tuple

pytestmark = pytest.mark.unit
H200 = find_device("h200").limits


def compiled_impls():
    """Return the Impls whose call torch.compile takes."""
    every = (*catalog.kernel_names(), *catalog.names_in(catalog.VARIANTS))
    return [i for name in every for i in catalog.spec_of(name).impls
            if isinstance(i.launch, CompiledCall)]  # fmt: skip


@pytest.mark.parametrize("impl", compiled_impls(), ids=lambda impl: impl.title)
def test_the_call_that_is_compiled_gives_the_expected_outputs(impl):
    spec, tried = impl.spec, 0
    dtype = "fp32" if "fp32" in spec.tolerance else sorted(spec.tolerance)[-1]
    for sizes in sorted(spec.check, key=lambda sizes: spec.bytes(sizes, dtype))[:3]:
        if impl.rejection_reason(impl.config(), H200, dtype, sizes) is None:
            problem = PreparedProblem.make(spec, sizes, dtype, "cpu", tried)
            result = check_outputs(output_tuple(impl.launch._call(*problem.inputs)), problem)
            assert result.wrong is None, f"{dtype} {sizes} {result.wrong}"
            tried += 1
    assert tried


@pytest.mark.parametrize(
    ("kernel", "device", "dtype", "sizes", "words"),
    [
        ("fp8_block_matmul", "h200", "bf16", {"M": 4, "N": 128, "K": 512}, None),
        ("fp8_block_matmul", "h200", "bf16", {"M": 5, "N": 128, "K": 512}, "a multiple of 16"),
        ("fp8_block_matmul", "h200", "bf16", {"M": 4, "N": 128, "K": 640}, "a multiple of 16"),
        ("fp8_block_matmul", "b200", "bf16", {"M": 4, "N": 128, "K": 512}, "on Hopper alone"),
        ("attention", "h200", "bf16", {}, None),
        ("attention", "h200", "fp32", {}, "16 bits only"),
        ("decode_attention", "h200", "fp32", {}, "16 bits only"),
    ],
)
def test_a_library_is_refused_where_it_cannot_run(kernel, device, dtype, sizes, words):
    spec, limits = catalog.spec_of(kernel), find_device(device).limits
    at = {**spec.bench[0], **sizes}
    reasons = [i.rejection_reason(i.config(), limits, dtype, at) for i in spec.impls
               if i.backend == "torch"]  # fmt: skip
    if words is None:
        assert None in reasons
    else:
        assert any(words in str(reason) for reason in reasons)
