"""Libraries' versions: what they answer, where they run on a CPU, and that they are versions of
their own and not the reference, which nothing could then contradict."""

from dataclasses import replace

import pytest
from kernel_cases import H200, applicable, kernels

from workbench import catalog
from workbench.measurement.correctness import PreparedProblem, check
from workbench.spec import Tolerance

LIBRARIES = [
    impl
    for name in kernels()
    for impl in catalog.spec_of(name).impls
    if impl.backend == "torch" and "compile" not in impl.name
]
# Their arithmetic is whole numbers to the last bit, which can be written down in one way alone;
# `properties/` hold the reference to other words.
EXACT = ("q4_k_quantize.torch", "sample_top_p.torch", "sample_topk_topp.torch")
# What torch has for GPUs alone; other packages' versions refuse where they are not installed.
ON_GPUS = (
    "flash", "cudnn", "liger", "fla", "fla.chunk", "fla.recurrent", "torch._scaled_mm",
    "torch._grouped_mm",
)  # fmt: skip
# A version that rounds between its steps, as calls one by one do, may be so far off.
BETWEEN = Tolerance(relative=3e-2, rms_share=3e-2)


@pytest.mark.parametrize("impl", LIBRARIES, ids=lambda impl: impl.title)
def test_a_library_is_not_the_reference(impl):
    ours, theirs = impl.spec.reference.__code__, impl.launch.__code__
    assert impl.title in EXACT or "reference" not in theirs.co_names
    assert (ours.co_code, ours.co_names) != (theirs.co_code, theirs.co_names)


HERE = [impl for impl in LIBRARIES if impl.name not in ON_GPUS]


@pytest.mark.parametrize("impl", HERE, ids=lambda impl: impl.title)
def test_a_library_is_right_at_check_sizes(impl):
    """In the widest dtype that it takes."""
    for i, sizes in enumerate(impl.spec.check):
        dtype = next(d for d in impl.spec.tolerance if takes(impl, sizes, d))
        problem = PreparedProblem.make(impl.spec, sizes, dtype, "cpu", seed=i)
        if dtype != "fp32":
            tolerance = dict.fromkeys(impl.spec.tolerance, BETWEEN)
            problem = replace(problem, spec=replace(impl.spec, tolerance=tolerance))
        result = check(impl, impl.config(), problem)
        assert result.wrong is None, f"{impl.title} {dtype} {sizes}: {result.wrong}"


def takes(impl, sizes, dtype):
    return applicable(impl, impl.config(), sizes, dtype, H200) is None
