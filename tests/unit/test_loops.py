"""What machine code does inside its loops: on listings made here, whose loops are known, and on
AMD's assembly as Triton wrote it. Listings of NVIDIA's code as it was compiled are read in
`tests/compile/test_arms.py`, where there is a disassembler."""

import gzip
import itertools
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.code.loops import code_of, code_of_amdgcn, code_of_sass

GOLDEN = Path(__file__).parents[1] / "golden"

SASS = {
    "load": "LDG.E.128 R4, desc[UR4][R2.64]",
    "async": "LDGSTS.E.BYPASS.LTC128B.128 [R243+0x800], [R24.64], P0",
    "tile": "@UP0 UTMALDG.2D [UR12], [UR10]",
    "store": "@!P0 STG.E.128 desc[UR4][R2.64], R4",
    "shared": "LDSM.16.M88.4 R4, [R2]",
    "matrix": "HGMMA.64x256x16.F32.BF16 R24, gdesc[UR4].tnspB, R24, gsb0",
    "vector": "FFMA R4, R5, R6, R4",
    "special": "MUFU.EX2 R4, R5",
    None: "IADD3 R2, P0, R2, 0x80, RZ",
}
KIND = {"load": "128", "async": "async 128", "tile": "descriptor"}


class Written:
    """A listing as it grows, and what is in it: in all, inside loops, and how many loops."""

    def __init__(self):
        self.lines, self.behind, self.labels = [], [], itertools.count()
        self.whole, self.inside, self.loops = Counter(), Counter(), 0

    def label(self):
        return f".L_x_{next(self.labels)}"

    def op(self, text, to=None):
        (self.lines if to is None else to).append(f"        /*0000*/   {text} ;")

    def body(self, parts, inside, to=None):
        """Writes the parts, and says whether any of them is counted."""
        counted = False
        for part in parts:
            counted |= self.part(part, inside, to)
        return counted

    def part(self, part, inside, to):
        kind, parts = part if isinstance(part, tuple) else (part, ())
        lines = self.lines if to is None else to
        if kind in SASS:
            self.op(SASS[kind], to)
            self.whole[kind] += 1
            self.inside[kind] += inside
            return kind is not None
        label = self.label()
        if kind == "loop":
            lines.append(f"{label}:")
            self.op(SASS[None], to)  # two loops with one head count as one
            counted = self.body(parts, True, to)
            self.op(f"@P0 BRA `({label})", to)
            self.loops += counted
            return counted
        if kind == "if":
            self.op(f"@!P1 BRA `({label})", to)
            counted = self.body(parts, inside, to)
            lines.append(f"{label}:")
            return counted
        back, far = self.label(), []  # "far": behind the end of the kernel, and back
        self.op(f"@!P1 BRA `({label})", to)
        lines.append(f"{back}:")
        far.append(f"{label}:")
        counted = self.body(parts, inside, far)
        self.op(f"BRA `({back})", far)
        self.behind += far
        return counted

    def text(self):
        trap = self.label()
        end = ["        /*0000*/   EXIT ;", *self.behind, f"{trap}:"]
        return "\n".join([*self.lines, *end, f"        /*0000*/   BRA `({trap});"])


def parts():
    leaf = st.sampled_from(list(SASS))
    return st.lists(
        st.recursive(
            leaf,
            lambda inner: st.tuples(
                st.sampled_from(["loop", "if", "far"]), st.lists(inner, max_size=4)
            ),
            max_leaves=12,
        ),
        max_size=6,
    )


def as_counter(counts):
    kinds = {v: k for k, v in KIND.items()}
    result = Counter({kinds[k]: n for k, n in counts.loads.items()})
    result["store"], result["shared"], result["matrix"] = (
        counts.stores, counts.shared_loads, counts.matrix,
    )  # fmt: skip
    result["vector"], result["special"] = counts.vector, counts.special
    return +result


def without_none(counter):
    return Counter({kind: n for kind, n in counter.items() if kind is not None and n})


@given(parts())
def test_every_instruction_is_counted_where_it_runs(program):
    written = Written()
    written.body(program, False)
    code = code_of_sass(written.text(), "sm_90")
    assert code.readable and code.loops == written.loops
    assert as_counter(code.whole) == without_none(written.whole)
    assert as_counter(code.loop_counts) == without_none(written.inside)
    assert not [words for words in code.unknown if "jumps" in words]


def lines(*ops):
    return "\n".join(op if op.endswith(":") else f"   /*0010*/   {op} ;" for op in ops)


def test_loads_ahead_of_the_loop_are_none_of_it():
    code = code_of_sass(
        lines(SASS["async"], SASS["async"], ".L_x_1:", SASS["matrix"], SASS["async"],
              "@P0 BRA `(.L_x_1)", SASS["store"], "EXIT"), "sm_90"
    )  # fmt: skip
    assert code.whole.loads == {"async 128": 3} and code.loop_counts.loads == {"async 128": 1}
    assert (code.loops, code.loop_counts.matrix, code.loop_counts.stores) == (1, 1, 0)


def test_a_loop_that_only_waits_is_none():
    wait = [".L_x_1:", "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R2", "@!P0 BRA `(.L_x_1)"]
    assert code_of_sass(lines(SASS["load"], *wait, "EXIT"), "sm_90").loops == 0


def test_no_loop_is_said_to_be_unknown():
    code = code_of_sass(lines(*[SASS["load"]] * 64, "EXIT"), "sm_90")
    assert code.loops == 0 and code.loop_counts.global_loads == 0 and code.whole.global_loads == 64
    assert any("no loop" in text for text in code.unknown)


@pytest.mark.parametrize("jump", ["BRX R2 -0x2d60", "CALL.ABS.NOINC R2", "BRA `(nowhere)"])
def test_a_jump_to_an_unknown_place_is_said(jump):
    code = code_of_sass(lines(SASS["load"], jump, SASS["matrix"], "EXIT"), "sm_100")
    assert any(jump.split(" ")[0] in text for text in code.unknown)
    assert code.whole.matrix == 1, "what nobody is seen to reach counts too"


def test_the_targets_of_a_jump_by_table_are_read():
    table = 'BRX R2 -0x10   (*"BRANCH_TARGETS .L_x_1,.L_x_2"*)'
    code = code_of_sass(
        lines(".L_x_1:", SASS["load"], table, ".L_x_2:", SASS["store"], "EXIT"), "sm_100"
    )
    assert code.loops == 1 and code.loop_counts.loads == {"128": 1} and code.loop_counts.stores == 0
    assert not [text for text in code.unknown if "jumps" in text]


def test_a_called_function_is_no_loop():
    code = code_of_sass(
        lines(".L_x_1:", SASS["load"], "CALL.REL.NOINC `($__internal_0_$div)", "@P0 BRA `(.L_x_1)",
              "EXIT", "$__internal_0_$div:", SASS["vector"], "RET.REL.NODEC R2 `(kernel)"), "sm_90"
    )  # fmt: skip
    assert code.loops == 1 and code.loop_counts.loads == {"128": 1} and code.whole.vector == 1


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("LDG.E R2, desc[UR4][R2.64]", {"32": 1}),
        ("@P0 LDG.E.U16.CONSTANT R2, [R2.64]", {"16": 1}),
        ("LDG.E.EF.64 R2, [R2.64+0x8]", {"64": 1}),
        ("LD.E.128 R4, [R2]", {"128": 1}),
        ("LDG.E.S8 R2, [R2.64]", {"8": 1}),
        ("UBLKCP.S.G [UR8], [UR4], UR6", {"descriptor": 1}),
        ("LDC.64 R2, c[0x0][0x230]", {}),
        ("ULDC.64 UR8, c[0x0][0x210]", {}),
        ("LDL.64 R2, [R1]", {}),
        ("LDGDEPBAR", {}),
        ("UTMASTG.2D [UR8], [UR4]", {}),
    ],
)
def test_global_loads_of_nvidia(op, expected):
    assert code_of_sass(lines(op, "EXIT"), "sm_90").whole.loads == expected


@pytest.mark.parametrize(
    ("op", "matrix", "vector"),
    [
        ("HMMA.16816.F32.BF16 R4, R8, R10, R4", 1, 0),
        ("IMMA.16832.S8.S8 R4, R8, R10, R4", 1, 0),
        ("QGMMA.64x128x32.F32.E4M3.E4M3 R24, gdesc[UR4], R24", 1, 0),
        ("UTCHMMA gdesc[UR12], gdesc[UR14], tmem[UR24], tmem[UR10], idesc[UR11], UP0", 1, 0),
        ("UTCBAR [UR23], URZ", 0, 0),
        ("FADD R4, R5, R6", 0, 1),
        ("HFMA2.BF16_V2 R4, R5, R6, R7", 0, 1),
        ("HFMA2.MMA R4, -RZ, RZ, 0, 0", 0, 0),  # how an immediate gets into a register
        ("IMAD.MOV.U32 R4, RZ, RZ, R5", 0, 0),
    ],
)
def test_arithmetic_of_nvidia(op, matrix, vector):
    result = code_of_sass(lines(op, "EXIT"), "sm_90").whole
    assert (result.matrix, result.vector) == (matrix, vector)


def test_bytes_of_a_thread():
    code = code_of_sass(lines(SASS["load"], SASS["async"], "LDG.E.U16 R2, [R2]", "EXIT"), "sm_90")
    assert code.whole.load_bytes == 34 and code.loop_counts.load_bytes == 0
    assert code_of_sass(lines(SASS["tile"], "EXIT"), "sm_90").whole.load_bytes is None


def golden(name):
    return gzip.decompress((GOLDEN / f"{name}.gz").read_bytes()).decode()


@pytest.mark.parametrize(
    ("name", "loops", "whole", "inside"),
    [  # global loads, loads of shared memory, matrix instructions
        ("matmul.gfx942.amdgcn", 1, ({"128": 16}, 32, 64), ({"128": 8}, 16, 32)),
        ("matmul.gfx1100.amdgcn", 1, ({"128": 12}, 48, 24), ({"128": 4}, 16, 8)),
        ("matmul_spills.gfx942.amdgcn", 1, ({"128": 64}, 128, 512), ({"128": 32}, 64, 256)),
        ("copy.gfx942.amdgcn", 0, ({"128": 1}, 0, 0), ({}, 0, 0)),
        ("copy_ragged.gfx942.amdgcn", 0, ({"16": 4}, 0, 0), ({}, 0, 0)),
    ],
)
def test_assembly_of_amd_as_it_was_compiled(name, loops, whole, inside):
    text = golden(name)
    code = code_of_amdgcn(text, name.split(".")[1])
    assert code.readable and code.loops == loops == text.count("Inner Loop Header")
    for result, expected in ((code.whole, whole), (code.loop_counts, inside)):
        assert (result.loads, result.shared_loads, result.matrix) == expected
    assert whole[2] == text.count("\tv_mfma") + text.count("\tv_wmma")


def test_two_instructions_in_a_line_of_amd_are_two():
    text = """
.LBB0_1:
        v_dual_fmac_f32 v1, v2, v3 :: v_dual_mul_f32 v4, v5, v6
        v_exp_f32_e32 v1, v1
        global_load_b128 v[0:3], v4, s[0:1]
        ds_load_b128 v[0:3], v4
        s_load_b64 s[0:1], s[2:3], 0x0
        s_cbranch_scc1 .LBB0_1
        buffer_store_b64 v[0:1], v2, s[0:3], 0 offen
        s_endpgm
        s_code_end
"""
    code = code_of_amdgcn(text, "gfx1100")
    inside = code.loop_counts
    assert (inside.vector, inside.special, inside.shared_loads) == (2, 1, 1)
    assert inside.loads == {"128": 1} and inside.stores == 0 and code.whole.stores == 1
    assert any("scalar loads" in words for words in code.unknown)


@pytest.mark.parametrize("asm", [{}, {"ttir": "module"}, {"amdgcn": "; nothing"}])
def test_what_cannot_be_read_says_so(asm):
    code = code_of(asm, "sm_90")
    assert not code.readable and len(code.unknown) == 1
    assert code.whole.global_loads == code.loop_counts.global_loads == 0
