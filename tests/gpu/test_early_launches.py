"""Launches that may begin before the one before them has ended, in graphs in which that one is no
kernel of Triton: a memset, a copy, or kernels of torch."""

import pytest
import torch

from workbench import catalog
from workbench.device import hardware
from workbench.measurement import inputs

if (HERE := hardware.live()) is None or HERE.limits.arch != "sm_90":
    pytest.skip("no GPU on which launches begin early", allow_module_level=True)
CASES = {
    "matmul.warp_groups": ({"M": 1536, "N": 2048, "K": 1024}, "bf16"),
    "fp8_matmul.warp_groups": ({"M": 1024, "N": 1536, "K": 2048}, "fp8"),
    "lora.warp_groups": ({"M": 512, "N": 1536, "K": 1024, "r": 16}, "bf16"),
    "q4_k_matmul.slices": ({"M": 1, "N": 4096, "K": 4096}, "fp16"),
}


def memset(x, given):
    x.view(torch.uint8).zero_()


def copy(x, given):
    x.copy_(given)


def kernel(x, given):
    x.copy_((given.float() * 2).to(x.dtype))


BEFORE = {"memset": memset, "copy": copy, "kernel": kernel}


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("title", CASES)
def test_a_launch_in_a_graph_reads_what_the_node_before_it_wrote(title, before):
    sizes, dtype = CASES[title]
    spec = catalog.spec_of(title.split(".")[0])
    impl = catalog.impl_of(spec, title.split(".")[1])
    config = impl.default(HERE.limits, dtype, sizes)
    x, *others = inputs.make(spec, sizes, dtype, "cuda")
    given = x.clone()
    BEFORE[before](x, given)
    wanted = impl(x, *others, config=config)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(3):
            BEFORE[before](x, given)
            y = impl(x, *others, config=config)
            x.view(torch.uint8).fill_(1)  # what a launch that does not wait would read
    for _ in range(20):
        y.view(torch.uint8).fill_(2)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(y.view(torch.uint8), wanted.view(torch.uint8))
