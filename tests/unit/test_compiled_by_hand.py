"""What is read of and written with compiled code: addresses of blocks, ptxas, lines, hashes and the
comparison of two kernels, by hand."""

import subprocess
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from workbench import compile as compiled
from workbench.code import code_match, ptx_lines, ptxas, ttgir
from workbench.code.block_descriptors import BlockDescriptor, names_in
from workbench.code.code_match import BlockPair, Change
from workbench.code.kinds import ASYNC
from workbench.code.listing import Instruction, Listing, SourceLine
from workbench.code.mix import mix_of
from workbench.compile import code_identity
from workbench.data.compiled_code import HotLoop

pytestmark = pytest.mark.unit


# Blocks of a tensor descriptor


def test_addresses_of_a_block_end_at_the_tensor():
    """Two programs: a tensor of 3 rows and 5 columns of 4 bytes, blocks of 2 x 4."""
    one = BlockDescriptor(np.array([1000, 5000]), (3, 5), (20, 4))
    pointers, inside = one.block((np.array([0, 2]), np.array([0, 3])), (2, 4))
    assert pointers.shape == inside.shape == (2, 2, 4)
    assert pointers[0].tolist() == [[1000, 1004, 1008, 1012], [1020, 1024, 1028, 1032]]
    assert inside[0].all() and inside[1].tolist() == [[True, True, False, False], [False] * 4]
    assert pointers[1].tolist() == [[5052, 5056, 5000, 5000], [5000] * 4]
    _, before = one.block((np.array([-1]), np.array([-2])), (2, 4))
    assert before[0].tolist() == [[False] * 4, [False, False, True, True]]
    for at, base in (((1,), 1000), ((1, None), 1000), ((1, 1), None)):
        with pytest.raises(ttgir.NotModelled, match="depends on data"):
            BlockDescriptor(base, (3, 5), (20, 4)).block(at, (2, 4))
    assert names_in("a[%x, %y] b[] c[%z]") == [["%x", "%y"], [], ["%z"]]


def test_bytes_of_elements_by_their_name():
    table = {"bf16": 2, "f32": 4, "i64": 8, "i1": 1, "f8E4M3FN": 1, "ptr<bf16>": 8, "index": 4}
    assert {name: ttgir.element_bytes(name) for name in table} == table
    (kind,) = ttgir.types_in("x : tensor<16x4x!tt.ptr<bf16>, #b>")
    assert (kind.shape, kind.count, kind.item_bytes, kind.is_float) == ((16, 4), 64, 2, False)
    (kind,) = ttgir.types_in("tensor<8xbf16, #b>")
    assert (kind.shape, kind.is_float, kind.layout) == ((8,), True, "#b")


# ptxas


REPORT = """ptxas info    : Function properties for f
    8 bytes stack frame, 16 bytes spill stores, 12 bytes spill loads
ptxas info    : Function properties for g
    24 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : (C7511) Potential Performance Loss: wgmma is serialized
ptxas info    : (C7511) Potential Performance Loss: wgmma is serialized
kernel.ptx, line 3; warning : odd
"""
PTX = "// x\n.version 8.4\n.target sm_90a, debug\n"


@pytest.fixture
def tool(monkeypatch):
    """The commands that were run, and what they answer."""
    one = SimpleNamespace(asked=[], code=0, text=REPORT)

    def run(command, **more):
        one.asked.append((command, more))
        if not one.code:
            with open(command[-1], "wb") as file:
                file.write(b"image")
        return subprocess.CompletedProcess(command, one.code, "", one.text)

    monkeypatch.setattr(ptxas.subprocess, "run", run)
    monkeypatch.setattr(ptxas, "_path", lambda target, newest: f"{target} {newest}")
    return one


def test_the_report_of_ptxas_is_of_the_largest_function(tool):
    report = ptxas.run_ptxas(PTX)
    assert report == ptxas.PtxasReport(b"image", 24, 4, 8, (("C7511", "Potential Performance Loss: "
                                       "wgmma is serialized"), ("", "odd")))  # fmt: skip
    command, more = tool.asked[0]
    assert command[:4] == ["sm_90a False", "-v", "-lineinfo", "--gpu-name=sm_90a"]
    assert more == {"capture_output": True, "text": True, "timeout": 120, "check": False}
    ptxas.run_ptxas(PTX, newest=True)
    assert tool.asked[1][0][0] == "sm_90a True" and ptxas._spills("none") == (0, 0, 0)


def test_ptx_that_ptxas_rejects_is_its_first_error(tool):
    tool.code = 255
    for text, words in (("info\nkernel.ptx, line 7; error   : bad\nptxas fatal   : stops",
                         "kernel.ptx, line 7; error   : bad"), ("a\nptxas fatal   : stops",
                         "ptxas fatal   : stops"), ("odd", "ptxas ended with 255")):  # fmt: skip
        tool.text = text
        with pytest.raises(ptxas.PtxasError) as error:
            ptxas.run_ptxas(PTX)
        assert str(error.value) == words
    assert ptxas.target_of("no target") is None
    with pytest.raises(ptxas.PtxasError, match=r"names no \.target"):
        ptxas.run_ptxas("no target")


# Lines of PTX


LINES = """.file 1 "a.py"
.file 2 "b.py"
 ld.global.b32 %r0;
.loc 1 10 3
 ld.global.b32 %r1;
// begin inline asm
.loc 1 11 3
.loc 1 12 3
 @%p1 ld.global.v4.b32 %r2;
 st.global.b32 [%rd1], %r2;
// end inline asm
.loc 1 20 1, function_name x, inlined_at 2 30 5
 cp.async.cg.shared.global [%r1], [%rd1], 16;
// begin inline asm
.loc 2 40 1
 @!%p2 ld.global.b32 %r3;
.loc 1 41 1
 ld.global.b32 %r3;
// end inline asm
 ld.global.b32 %r4;
 ld.shared.b32 %r5;
"""


def test_lines_in_inline_assembly_are_those_of_its_begin_in_the_same_file():
    a, b = (lambda n, f=f: SourceLine(f, n) for f in ("a.py", "b.py"))
    assert ptx_lines.stated_lines(LINES) == {
        ("load", a(10)): Counter({10: 1}), ("load", a(12)): Counter({11: 1}),
        ("store", a(12)): Counter({11: 1}), (ASYNC, b(30)): Counter({30: 1}),
        ("load", b(40)): Counter({40: 1}), ("load", a(41)): Counter({41: 2}),
    }  # fmt: skip
    ops = [Instruction(o, "R4, [R2]", source=s) for o, s in (("LDG.E", a(12)), ("STG.E", a(12)),
           ("LDG.E", a(10)), ("LDG.E", a(99)), ("LDG.E", None), ("IADD3", a(12)),
           ("LDGSTS.E", b(30)),
           ("STG.E", a(10)))]  # fmt: skip
    code = Listing(list(ops))
    ptx_lines.correct_lines(code, LINES)
    assert [o.source and o.source.line for o in code.instructions] == [
        *(11, 11, 10, 99, None, 12, 30, 10),
    ]


# Two kernels


def test_blocks_are_matched_by_their_opcodes():
    def pairs(left, right):
        found = code_match._align(
            [tuple(b.split()) for b in left], [tuple(b.split()) for b in right]
        )
        return [(p.before, p.after, round(p.equal, 4)) for p in found]

    assert pairs(["A B", "C"], ["A B", "C"]) == [(0, 0, 1.0), (1, 1, 1.0)]
    assert pairs(["X", "A B"], ["A B"]) == [(0, None, 0.0), (1, 0, 1.0)]
    assert pairs(["A B"], ["X", "A B"]) == [(None, 0, 0.0), (0, 1, 1.0)]
    assert pairs(["A B C D"], ["A B X Y"]) == [(0, 0, 0.5)]
    assert pairs(["A B C D"], ["A X Y Z"]) == [(0, None, 0.0), (None, 0, 0.0)]
    assert pairs(["A B"], ["B A"]) == [(0, 0, 0.999)]
    assert pairs(["A.x B"], ["A.y B"]) == [(0, 0, 0.999)]
    assert pairs(["A B C", "A B D"], ["A B D E", "A B C E"]) == [
        *((0, 1, round(6 / 7, 4)), (1, 0, round(6 / 7, 4))),
    ]
    assert pairs(["A B", "A C"], ["A X", "A Y"]) == [(0, 0, 0.5), (1, 1, 0.5)]
    assert code_match._share((), ()) == 0.0 and code_match._share(("A",) * 3, ("A",)) == 0.5


def test_changes_are_groups_that_differ():
    def mix(*opcodes):
        return mix_of([Instruction(o, "") for o in opcodes], "sm_90")

    found = code_match._changes(mix("FADD", "LDG.E", "FADD"), mix("FADD", "LDG.E", "BAR.SYNC"))
    names = {c.name: (c.before, c.after) for c in found}
    assert "instructions" not in names and (2, 1) in names.values() and (0, 1) in names.values()
    assert len(names) == 2
    assert code_match._changes(mix("FADD"), mix())[0] == Change("instructions", 1, 0)
    assert code_match._changes(mix("FADD"), mix("FMUL")) == ()


def test_resources_of_both_kernels_are_all_stated():
    def code(n, peak):
        whole = SimpleNamespace(instructions=n + 5)
        graph = SimpleNamespace(reachable=set(range(n + 6)), all_loops=lambda: [None] * (n + 7))
        return SimpleNamespace(registers=n, stack_bytes=n + 1, spill_store_bytes=n + 2,
                               spill_load_bytes=n + 3, peak_live=peak, whole=whole,
                               graph=graph)  # fmt: skip

    rows = code_match._resources(code(10, (14, 99)), code(20, None))
    assert [(r.name, r.before, r.after) for r in rows] == [
        ("registers", 10, 20), ("stack, B", 11, 21), ("spill stores, B", 12, 22),
        ("spill loads, B", 13, 23), ("most live registers", 14, None), ("instructions", 15, 25),
        ("blocks", 16, 26), ("loops", 17, 27)]  # fmt: skip


def test_loops_that_differ_are_matched_by_their_blocks():
    """Loops at 1 and 4 of the first are those at 4 and 1 of the second, whose order is another."""

    def loop(head, *blocks):
        return SimpleNamespace(head=head, blocks=frozenset(blocks))

    def code(loops, opcodes):
        blocks = [SimpleNamespace(number=n) for n in range(6)]
        return SimpleNamespace(arch="sm_90", loops=lambda: [(0, each, None) for each in loops],
                               graph=SimpleNamespace(blocks=blocks, reachable=set(range(6))),
                               instructions=lambda one: [Instruction(o, "") for o in opcodes[
                               one.head]])  # fmt: skip

    first = code([loop(1, 1, 2), loop(4, 4)], {1: ["FADD"], 4: ["FADD", "FADD"]})
    second = code(
        [loop(1, 1), loop(4, 4, 5), loop(0, 0)], {1: ["FADD"] * 3, 4: ["FADD"], 0: ["BRA"]}
    )
    pairs = [
        BlockPair(1, 4, 1.0),
        BlockPair(2, 5, 1.0),
        BlockPair(4, 1, 0.9),
        BlockPair(0, None, 0),
    ]
    found = code_match._loops(first, second, pairs)
    assert [(a, b) for a, b, _ in found] == [(4, 1), (None, 0)]
    assert found[0][2][0] == Change("instructions", 2, 3)


# Spills


@pytest.mark.parametrize(
    "spills, groups, counted",
    [(0, {}, True), (8, {}, False), (8, {"spills": 1}, True), (128, {}, False), (129, {}, True)],
)
def test_few_spills_that_the_hot_loop_does_not_touch_are_not_of_its_trips(
    monkeypatch, spills, groups, counted
):
    def read(image, arch):
        return {"spills": 9}, HotLoop(10, groups, None)

    monkeypatch.setattr(compiled, "read_instructions", read)
    assert compiled._spills_in_loop(b"", spills, "sm_90") == counted
    monkeypatch.setattr(compiled, "read_instructions", lambda image, arch: ({}, None))
    assert compiled._spills_in_loop(b"", spills, "sm_90"), "it has no loop"

    def fail(image, arch):
        raise OSError("no nvdisasm")

    monkeypatch.setattr(compiled, "read_instructions", fail)
    assert compiled._spills_in_loop(b"", spills, "sm_90")


# Hashes


def test_the_hash_of_code_is_of_what_a_gpu_executes(monkeypatch):
    sections = {b"one": [(b".text.f", b"code"), (b".debug", b"x")]}
    sections |= {b"two": [(b".debug", b"y"), (b".text.f", b"code")],
                 b"three": [(b".text.f", b"other")], b"none": [(b".debug", b"code")]}  # fmt: skip
    monkeypatch.setattr(code_identity, "elf_sections", lambda image: sections[image])
    monkeypatch.setattr(code_identity, "cubin_registers", lambda image: (32, 0))

    def launch(image, grid=(1, 1, 1), warps=4, shared=0, arguments=()):
        meta = SimpleNamespace(num_warps=warps, shared=shared)
        kernel = SimpleNamespace(asm={"cubin": image}, metadata=meta)
        return SimpleNamespace(kernel=kernel, grid=grid, arguments=arguments)

    plain = code_identity.hash_of_code([launch(b"one")])
    assert plain == code_identity.hash_of_code([launch(b"two")])
    others = [[launch(b"three")], [launch(b"one", (2, 1, 1))], [launch(b"one", warps=8)],
              [launch(b"one", shared=1)], [launch(b"one", arguments=(1,))], [launch(b"one")] * 2,
              []]  # fmt: skip
    assert len({plain, *map(code_identity.hash_of_code, others)}) == 8
    with pytest.raises(ValueError, match="holds no code"):
        code_identity.hash_of_code([launch(b"none")])
    monkeypatch.setattr(code_identity, "cubin_registers", lambda image: (40, 0))
    assert code_identity.hash_of_code([launch(b"one")]) != plain
    assert code_identity._image({"cubin": b"c"}) == b"c"
    assert code_identity._image({"amdgcn": "a", "hsaco": b"h"}) == "a"


def test_the_address_of_the_entry_in_a_descriptor_is_left_out(monkeypatch):
    long = bytes(range(code_identity.DESCRIPTOR))
    moved = bytearray(long)
    moved[code_identity.ENTRY.start] ^= 255
    held = []
    monkeypatch.setattr(code_identity, "elf_sections", lambda image: [(b".text", b"c"), (b".rodata",
                        image), (b".comment", b"z")])  # fmt: skip
    for data in (long, bytes(moved), long + b"x", bytes(moved) + b"x"):
        held.append(list(code_identity._executed_sections(data)))
    assert held[0] == held[1] and held[2] != held[3]
    assert [name for name, _ in held[0]] == [b".rodata", b".text"]
    entry = code_identity.ENTRY
    assert len(held[0][0][1]) == code_identity.DESCRIPTOR - (entry.stop - entry.start)
