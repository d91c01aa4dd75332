"""`wb.prune` beside Triton's own autotuner."""

import logging

import pytest
import torch
import triton
import triton.language as tl

import workbench as wb
from workbench.spec import WorkbenchError

pytestmark = pytest.mark.compile


@triton.jit
def scaled(x, y, M, N, BM: tl.constexpr, BN: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)[:, None]
    n = tl.program_id(1) * BN + tl.arange(0, BN)[None]
    inside = (m < M) & (n < N)
    tl.store(y + m * N + n, tl.load(x + m * N + n, inside) * 2, inside)


@triton.jit
def until(x, y, BM: tl.constexpr):
    k = 0
    while tl.load(x + k) > 0:
        k += 1
    tl.store(y + tl.arange(0, BM), k)


CONFIGS = [
    *(triton.Config({"BM": m, "BN": 256}, num_warps=w) for m in (1, 16) for w in (4, 8)),
    triton.Config({"BM": 1, "BN": 3}),  # does not compile
]


def cover(meta):
    return triton.cdiv(meta["M"], meta["BM"]), triton.cdiv(meta["N"], meta["BN"])


def pruned(kernel, configs, *args, grid=cover, most=2):
    function = wb.prune(kernel, "h200", most=most)["early_config_prune"]
    return function(configs, dict(zip(kernel.arg_names, args, strict=False)), grid=grid)


def test_the_best_predicted_configs_are_left():
    x = torch.empty(4096, 4096, dtype=torch.bfloat16)
    left = pruned(scaled, CONFIGS, x, torch.empty_like(x), 4096, 4096)
    assert len(left) == 2 and all(config in CONFIGS[2:4] for config in left), "large tiles"
    assert pruned(scaled, CONFIGS[:2], x, x, 4096, 4096) == CONFIGS[:2], "nothing to leave out"


def test_nothing_is_left_out_where_no_time_can_be_derived(caplog):
    configs = [triton.Config({"BM": b}) for b in (16, 32, 64)]
    given = torch.zeros(64), torch.empty(64, dtype=torch.int32)
    with caplog.at_level(logging.WARNING, logger="workbench"):
        assert pruned(until, configs, *given, grid=(1,)) == configs
    assert "no config is left out" in caplog.text and "not given" in caplog.text


def test_a_device_and_a_number_are_needed(monkeypatch):
    with pytest.raises(WorkbenchError, match="name a device"):
        wb.prune(scaled)
    with pytest.raises(WorkbenchError, match="most=0 leaves no config"):
        wb.prune(scaled, "h200", most=0)
