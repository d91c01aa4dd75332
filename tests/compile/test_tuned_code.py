"""What `tuned --code` prints launches the kernels' own functions, with equal machine code."""

import re

import pytest
import triton
from kernel_cases import triton_impls

from workbench import catalog
from workbench.catalog.source import code_hash
from workbench.commands.new_kernel import write_kernel
from workbench.commands.tuned import code
from workbench.compile import CompileError, compile_launches
from workbench.compile.launches import capture_launches
from workbench.data.tuned_cache import Entry
from workbench.device.hardware import DEVICES
from workbench.spec import values

pytestmark = [pytest.mark.compile, pytest.mark.newest]

DEVICE = DEVICES["h200"]


@pytest.mark.parametrize(
    "title",
    [
        "matmul.tiles",
        "softmax.rows",
        pytest.param("sample_topk_topp.group_maxima", marks=pytest.mark.nightly),
    ],
)
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
        with capture_launches(DEVICE) as again:
            function[grid](*args, **rest, **given)
        assert not set(rest) & {*launch.constants, *launch.options}
        assert again[0].kernel.hash == launch.kernel.hash


def test_ones_own_file_is_found_by_its_code_or_named(tmp_path, monkeypatch):
    path, _ = write_kernel("my_gelu", tmp_path)
    (impl, *_) = catalog.spec_of(str(path)).impls
    head = ("my_gelu", "blocks", {"block_n": 512, "num_warps": 2}, {"N": 4096}, "bf16", "h200")
    tail = (True, 1e-6, None, None, "", "analytic", "r", "2026-01-01T00:00:00+00:00", 3)
    own, other = (Entry(*head, "2.13.0", "3.9.0", h, *tail) for h in (code_hash(impl), "another"))
    taken = 'triton.Config({"BLOCK_N": 512}, num_warps=2)'
    assert taken in code([other], path)
    monkeypatch.chdir(tmp_path)
    assert taken in code([own])
    assert "name it: workbench tuned path/to/my_gelu.py --code" in code([other])


def test_a_knob_that_a_launch_does_not_hand_on_says_what_to_write(tmp_path):
    path, _ = write_kernel("silu_of_mine", tmp_path)
    text = path.read_text()
    knob = "block_x: int = tile(1, 2, default=1)\n    num_warps: int"
    for name, changed, sentence in (
        ("less", text.replace("block_n", "block"), "no BLOCK_N: meta(config) passes only knobs"),
        ("more", text.replace("num_warps: int", knob), "gives BLOCK_X, and its function has no"),
    ):
        file = tmp_path / f"{name}.py"
        file.write_text(changed)
        (impl, *_) = catalog.spec_of(str(file)).impls
        with pytest.raises(CompileError, match=re.escape(sentence)):
            compile_launches(impl, impl.config(), {"N": 64}, "bf16", DEVICE)
