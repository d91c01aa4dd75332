"""Products of fp32 in bf16 parts (`dsl.precision_of`): their errors, small numbers, the greatest.

The Specs' tolerances are wider, as wide as for sums on vector units.
"""

import pytest
import torch

from workbench import catalog
from workbench.device import hardware

if (HERE := hardware.live()) is None or HERE.limits.arch != "sm_90":
    pytest.skip("no GPU on which fp32 is multiplied in parts", allow_module_level=True)
IMPLS = ("tiles", "narrow", "split_k", "persistent", "padded", "stream_k")
SIZES = {"M": 256, "N": 384, "K": 2048}


def launched(name, a, b):
    impl = catalog.impl_of(catalog.spec_of("matmul"), name)
    config = impl.default(HERE.limits, "fp32", {"M": len(a), "N": b.shape[1], "K": len(b)})
    return impl(a, b, config=config).double()


def rms(x):
    return float(x.square().mean().sqrt())


def factors(scale=1.0):
    generator = torch.Generator("cuda").manual_seed(7)
    M, N, K = SIZES.values()
    a = torch.randn(M, K, generator=generator, device="cuda") * scale
    return a, torch.randn(K, N, generator=generator, device="cuda")


@pytest.mark.parametrize("by_columns", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("name", IMPLS)
def test_errors_are_those_of_fp32(name, by_columns):
    """bf16x3 and tf32 would be off by 1e-5 and 3e-4; cuBLAS's sums are by some 6e-7."""
    a, b = factors()
    b = b.T.contiguous().T if by_columns else b
    exact = a.double() @ b.double()
    assert rms(launched(name, a, b) - exact) < 4e-7 * rms(exact)


@pytest.mark.parametrize("power, most", [(-60, 4e-7), (-105, 4e-7), (-115, 4e-6), (-124, 2e-3)])
def test_small_numbers_lose_the_bits_that_no_part_holds(power, most):
    a, b = factors(2.0**power)
    exact = a.double() @ b.double()
    assert rms(launched("tiles", a, b) - exact) < most * rms(exact)


def test_numbers_up_to_the_greatest_of_bf16_stay_finite():
    eye = torch.eye(256, device="cuda")
    kept = launched("tiles", 3.395e38 * eye, eye)
    assert torch.equal(kept.float(), 3.395e38 * eye)
    assert not launched("tiles", 3.4028e38 * eye, eye).isfinite().all()
