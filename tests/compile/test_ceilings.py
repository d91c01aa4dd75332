"""The machine code of the kernels that ceilings are measured with does what is counted."""

import pytest

from workbench import catalog
from workbench.compile import compile_config
from workbench.device.hardware import DEVICES
from workbench.experiments.analysis.ceilings import groups_of

pytestmark = pytest.mark.compile


@pytest.mark.parametrize(
    ("name", "bits", "matrix"),
    [("cache", "128", False), ("shared", "128", False), ("compute_bf16", "", True)],
)
def test_loops_hold_what_is_counted_and_nothing_else(name, bits, matrix):
    """The reads are as wide as they can be and none is left out; products load nothing, and the
    loop over their sums is there: it was not, where all sums were the same to the compiler."""
    device = DEVICES["h200"]
    sought = {s.name: s for g in groups_of(device, None) for s in g.sought}[name]
    variant = sought.variants[0]
    spec = catalog.spec_of(variant.kernel)
    impl = catalog.impl_of(spec, variant.impl)
    created = compile_config(
        impl, impl.config(**variant.config), variant.sizes, variant.dtype, device, code=True
    )
    (code,) = created.code
    assert set(code.loop_counts.loads) == ({bits} if bits else set())
    assert bool(code.loop_counts.matrix) == matrix and code.loops >= 1 + matrix
    assert created.resources.spill_bytes == 0
    if name == "shared":  # four loads a trip, however often the compiler writes the trip down
        assert code.loop_counts.loads[bits] % 4 == 0
