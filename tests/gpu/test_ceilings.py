"""What ceilings are measured with gives right answers on the GPU that is here, at the sizes that
are timed; and what is copied between host and device arrives."""

import pytest
import torch

from workbench import catalog
from workbench.commands.ceilings_command import HostCopies
from workbench.device import hardware
from workbench.experiments.analysis.ceilings import LINKS, groups_of
from workbench.measurement.correctness import PreparedProblem, check

pytestmark = pytest.mark.gpu

DEVICE = hardware.live()
if DEVICE is None:
    pytest.skip("torch sees no GPU here", allow_module_level=True)


def variants():
    """Of every ceiling but DRAM's, whose kernels have tests of their own."""
    groups = groups_of(DEVICE, None)[1:]
    return [variant for group in groups for sought in group.sought for variant in sought.variants]


@pytest.mark.parametrize(
    "variant", variants(), ids=lambda variant: f"{variant.kernel}-{variant.name}"
)
def test_every_arm_is_right_at_the_size_that_is_timed(variant):
    spec = catalog.spec_of(variant.kernel)
    impl = catalog.impl_of(spec, variant.impl)
    config = impl.config(**variant.config)
    reason = impl.rejection_reason(config, DEVICE.limits, variant.dtype, variant.sizes)
    if reason is not None:
        pytest.skip(f"{variant.name} is refused here: {reason}")
    assert (
        check(impl, config, PreparedProblem.make(spec, variant.sizes, variant.dtype, "cuda")).wrong
        is None
    )


def test_a_chain_of_dependent_launches_is_whole_in_a_graph_too():
    from workbench.measurement.graphs import graphs

    spec = catalog.spec_of("empty_chain")
    impl, kept = catalog.impl_of(spec, "links"), []
    x = torch.zeros(LINKS, device="cuda")
    pdl = impl.rejection_reason(impl.config(pdl=1), DEVICE.limits, "fp32", {"L": LINKS}) is None
    config = impl.config(pdl=int(pdl))
    impl(x, config=config)
    graph = graphs().capture(1, lambda: kept.append(impl(x, config=config)))
    for _ in range(20):
        kept[0].fill_(-1.0)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(kept[0], torch.arange(LINKS, device="cuda", dtype=torch.float32))


def test_what_is_copied_arrives():
    copies = HostCopies()
    try:
        result = copies()
    finally:
        copies.close()
    assert len(result) == 36 and all(copied.right and copied.timing for copied in result)
