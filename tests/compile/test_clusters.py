"""Machine code of clusters of blocks: each loads its own slice, and they meet once."""

import re

import pytest
import torch

from workbench import catalog
from workbench.compile.launches import capture_launches
from workbench.device.hardware import DEVICES

DEVICE = DEVICES["h100"]
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ctas", [2, 4, 8])
def test_a_row_is_loaded_once_and_its_blocks_exchange_once(dtype, ctas):
    impl = catalog.impl_of(catalog.spec_of("softmax"), "clusters")
    sizes = {"M": 512, "N": ctas * 32_768 // DTYPES[dtype].itemsize}  # 32 KB a block
    config = impl.resolved_config(impl.config(ctas=ctas), DEVICE.limits, dtype, sizes)
    x = torch.empty(512, sizes["N"], dtype=DTYPES[dtype], device="meta")
    with capture_launches(DEVICE) as launches:
        impl(x, config=config)
    (launch,) = launches
    ptx = launch.kernel.asm["ptx"]
    assert launch.programs == 512 * ctas and re.search(rf"\.reqnctapercluster\s+{ctas}\b", ptx)
    threads = 32 * config.num_warps
    for access in ("ld", "st"):
        widths = re.findall(rf"\b{access}\.global\S*\.v4\.b32", ptx)
        assert len(widths) * 16 * threads == 32_768
        assert len(re.findall(rf"\b{access}\.global", ptx)) == len(widths)
    places = [ptx.index(text) for text in ("cluster.arrive.relaxed", "cluster.wait", "st.async")]
    assert places == sorted(places) and ptx.count("st.async") == 2  # maximum and sum
    assert ptx.count("cluster.arrive.relaxed") == 1
