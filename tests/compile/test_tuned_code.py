"""What `tuned --code` prints launches the kernels' own functions, with equal machine code."""

import pytest
import triton
from kernel_cases import triton_impls

from workbench.commands.tuned_code import code
from workbench.compile import compile_launches
from workbench.compile.launches import captured
from workbench.data.tuned_cache import Entry
from workbench.device.hardware import DEVICES
from workbench.spec import values

pytestmark = [pytest.mark.compile, pytest.mark.newest]

DEVICE = DEVICES["h200"]


@pytest.mark.parametrize("title", ["matmul.tiles", "softmax.rows", "sample_topk_topp.group_maxima"])
def test_a_printed_config_launches_its_function(title, monkeypatch):
    from triton.runtime.jit import JITFunction

    impl = next(i for i in triton_impls() if i.title == title)
    sizes, dtype = impl.spec.bench[0], "bf16"
    config = impl.default(DEVICE.limits, dtype, sizes)
    head = (impl.spec.name, impl.name, values(config), sizes, dtype, DEVICE.name)
    tail = (False, 1e-6, 1e-6, 1e-6, "cold, sustained", "p4", "r", "2026-01-01T00:00:00+00:00", 3)
    scope = {"triton": triton}
    exec(code([Entry(*head, "2.13.0", "3.9.0", "aa", *tail)]), scope)
    printed = [value[0] for value in scope.values() if isinstance(value, list)]
    calls, real = [], JITFunction.run

    def spied(self, *args, grid, warmup, **kwargs):
        calls.append((self, args, grid, kwargs))
        return real(self, *args, grid=grid, warmup=warmup, **kwargs)

    monkeypatch.setattr(JITFunction, "run", spied)
    launches, _ = compile_launches(impl, config, sizes, dtype, DEVICE)
    monkeypatch.setattr(JITFunction, "run", real)
    assert len(printed) == len(launches) == len(calls)
    for launch, own, (function, args, grid, kwargs) in zip(launches, printed, calls, strict=True):
        given = own.all_kwargs()
        rest = {n: v for n, v in kwargs.items() if n not in given}
        with captured(DEVICE) as again:
            function[grid](*args, **rest, **given)
        assert not set(rest) & {*launch.constants, *launch.options}
        assert again[0].kernel.hash == launch.kernel.hash
