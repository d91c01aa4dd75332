"""The arms of `memory_vs_compute` in machine code: traffic without arithmetic, arithmetic without
traffic; and the reader of loops on NVIDIA's code as it was compiled."""

import gzip
import re
from functools import cache
from pathlib import Path

import pytest
from nightly import at_night

from workbench import catalog
from workbench.code.loops import code_of
from workbench.compile import compile_config
from workbench.compile.proof import dishonest
from workbench.device.hardware import DEVICES
from workbench.experiments import Context
from workbench.experiments import memory_vs_compute as mvc

GOLDEN = Path(__file__).parents[1] / "golden"
# truths that are known; AMD's assembly needs no disassembler, so it is soon there
PLANTED = ("copy", "compute_only", "empty", "matmul_one_stage", "matmul")
CASES = [*((k, "h200") for k in mvc.EXPERIMENT.kernels), *((k, "mi300x") for k in PLANTED)]
BY_DAY = [CASES[0], ("copy", "mi300x"), ("compute_only", "mi300x")]


@cache
def compiled(kernel, device):
    """What the whole and its parts became at the first size to time, by the arm's name."""
    target, result = DEVICES[device], {}
    for variant in mvc.variants(Context(kernel, None, "bf16", target, predicts=True)):
        if variant.name in ("whole", *mvc.PARTS):
            impl = catalog.impl_of(catalog.spec_of(variant.kernel), variant.impl)
            config = impl.config(**variant.config)
            result[variant.name] = compile_config(
                impl, config, variant.sizes, variant.dtype, target, code=True
            )
    return result


def codes(result, *names):
    return [result[name].code for name in names]


@pytest.mark.parametrize("case", at_night(CASES, BY_DAY.__contains__), ids="-".join)
def test_the_machine_code_proves_the_arms(case):
    result = compiled(*case)
    assert dishonest(*codes(result, "whole", *mvc.PARTS)) == []
    assert [each.resources.spill_bytes for each in result.values()] == [0, 0, 0]
    whole, traffic = (result[name].resources for name in ("whole", "traffic"))
    assert (traffic.load_bits, traffic.programs) == (whole.load_bits, whole.programs)


def test_the_loops_of_matmul_have_what_its_config_says():
    """128x256x64 in bf16 with 256 threads: 12 loads of 16 bytes a thread and step, and four
    matrix instructions of K = 16."""
    whole, traffic, arithmetic = (code for (code,) in codes(compiled("matmul", "h200"), "whole",
                                                            *mvc.PARTS))  # fmt: skip
    assert (
        whole.loop_counts.load_bytes
        == traffic.loop_counts.load_bytes
        == (128 + 256) * 64 * 2 // 256
    )
    assert whole.loop_counts.matrix == 4 and arithmetic.loop_counts.matrix % 4 == 0
    assert traffic.whole.matrix == 0 and arithmetic.loop_counts.global_loads == 0
    assert traffic.loop_counts.vector == (128 + 256) * 64 // 256, "each element is added once"


def test_arms_that_are_something_else_are_found_out():
    result = compiled(*CASES[0])
    whole, traffic, arithmetic = codes(result, "whole", *mvc.PARTS)
    for variants, text in (
        ((whole, arithmetic), "matrix instructions"),
        ((arithmetic, arithmetic), "loads inside its loop are not"),
        ((traffic, whole), "global loads inside its loop"),
        ((traffic, traffic), "has 0 matrix instructions"),
    ):
        assert any(text in reason for reason in dishonest(whole, *variants)), text


@pytest.mark.parametrize("name", ["copy.sm_90", "matmul.sm_90"])
def test_cubins_hold_what_their_ptx_says(name):
    code = code_of({"cubin": (GOLDEN / f"{name}.cubin").read_bytes()}, "sm_90")
    ptx = gzip.decompress((GOLDEN / f"{name}.ptx.gz").read_bytes()).decode()
    loop = looped(ptx)
    for counts, text in ((code.whole, ptx), (code.loop_counts, loop)):
        loads = len(re.findall(r"cp\.async\.c[ag]\.shared|ld\.global", text))
        assert counts.global_loads == loads
        assert counts.matrix == text.count("wgmma.mma_async.sync")
        assert counts.stores == text.count("st.global")
    assert code.loops == (1 if loop else 0)


def looped(ptx):
    """The lines from a label to a branch back to it, the only loop there is; else nothing."""
    lines, labels = ptx.splitlines(), {}
    for at, line in enumerate(lines):
        if label := re.match(r"(\$\w+):", line):
            labels[label[1]] = at
        jump = re.search(r"bra(?:\.uni)?\s+(\$\w+)", line)
        if jump and jump[1] in labels:
            return "\n".join(lines[labels[jump[1]] : at])
    return ""


def test_what_is_no_cubin_is_unknown():
    code = code_of({"cubin": b"\x7fELF and no more"}, "sm_90")
    assert not code.readable and "could not be disassembled" in code.unknown[0]
