"""Images, notes, registers and layouts of machine code, built and counted by hand."""

import struct

import numpy as np
import pytest

from workbench.code import amd_note, machine_code
from workbench.code.listing import Instruction, Listing
from workbench.code.sass_registers import Definitions, register_use
from workbench.code.ttgir import TensorType, types_in
from workbench.code.ttgir_layouts import Layouts, LayoutSpread

pytestmark = pytest.mark.unit


def elf(*sections):
    """Return an ELF image of named sections; the names' own is the last one."""
    names, texts = b"\0", []
    for name, _, content in (*sections, (b".shstrtab", 3, b"")):
        texts.append((len(names), content))
        names += name + b"\0"
    contents = [content for _, _, content in sections] + [names]
    kinds = [kind for _, kind, _ in sections] + [3]
    body, headers = b"", b""
    for (name, _), kind, content in zip(texts, kinds, contents, strict=True):
        headers += struct.pack(
            "<IIQQQQIIQQ", name, kind, 0, 0, 64 + len(body), len(content), 0, 0, 0, 0
        )
        body += content
    head = b"\x7fELF".ljust(0x28, b"\0") + struct.pack("<Q", 64 + len(body))
    head = head.ljust(0x3A, b"\0") + struct.pack("<HHH", 64, len(contents), len(contents) - 1)
    return head.ljust(64, b"\0") + body + headers


def info(*records):
    return b"".join(
        struct.pack("<BBH", form, kind, size) + rest for form, kind, size, rest in records
    )


def test_sections_have_names_and_contents():
    image = elf((b".a", 1, b"one"), (b".bss", 8, b""), (b".b", 1, b"two2"))
    names = [(n, c) for n, c in machine_code.elf_sections(image)]
    assert names[:2] == [(b".a", b"one"), (b".b", b"two2")] and names[2][0] == b".shstrtab"
    for bad in (b"\x7fELG" + image[4:], image[:63], b""):
        with pytest.raises(ValueError, match="not an ELF image"):
            list(machine_code.elf_sections(bad))
    with pytest.raises(ValueError, match=r"no section \.c"):
        machine_code._elf_section(image, b".c")


def test_registers_of_a_cubin_are_the_most_of_its_functions():
    word = struct.Struct("<II").pack
    records = [(4, 0x2F, 8, word(1, 40)), (3, 0x2F, 999, b""), (4, 0x11, 8, word(1, 16)),
               (4, 0x2F, 8, word(2, 168)), (4, 0x2F, 4, b"\xff" * 4), (4, 0x12, 8, word(1, 999)),
               (4, 0x11, 8, word(2, 8)), (4, 0x2F, 8, word(3, 32))]  # fmt: skip
    image = elf((b".nv.info", 1, info(*records)))
    assert machine_code.cubin_registers(image) == (168, 16)
    cut = elf((b".nv.info", 1, info(*records[:1]) + b"\x04\x2f\x08"))
    assert machine_code.cubin_registers(cut) == (40, 0)
    for none in (elf((b".nv.info", 1, info(records[2]))), elf((b".nv.info", 1, b""))):
        with pytest.raises(ValueError, match="says nothing of its registers"):
            machine_code.cubin_registers(none)


def test_widest_loads_of_ptx_and_of_amd_assembly():
    ptx = {
        "ld.global.b32 %r1": (None, 32), "ld.global.L1::evict.v4.b32 {": (None, 128),
        "ld.global.v2.f64 {": (None, 128), "st.global.v4.b32 [": (None, 0),
        "ld.global.u8 %r; ld.global.v2.b16 {": (None, 32),
        "cp.async.cg.shared.global [ %r1 + 0 ], [ %rd + 0 ], 0x10, 0x10": (None, 128),
        "cp.async.ca.shared.global [ %r1 + 0 ], [ %rd + 0 ], 8": (None, 64),
        "mma.sync.aligned": ("mma", 0), "wgmma.mma_async.sync; mma.sync": ("wgmma", 0),
        "tcgen05.mma.cta; wgmma.mma_async": ("tcgen05", 0),
    }  # fmt: skip
    assert {text: machine_code.read_ptx(text) for text in ptx} == ptx
    amd = {
        "global_load_dwordx4 v[0:3]": (None, 128), "buffer_load_dword v0": (None, 32),
        "global_load_b128 v": (None, 128), "flat_load_b32 v": (None, 32),
        "global_load_ushort v": (None, 16), "global_load_ubyte v": (None, 8),
        "global_load_d16_b16 v": (None, 16), "global_load_u16 v": (None, 16),
        "global_load_i8 v": (None, 8), "global_load_lds v": (None, 0),
        "v_mfma_f32 global_load_dwordx2 a; global_load_dword b": ("mfma", 64),
        "v_wmma_f32": ("wmma", 0), "ds_read_b128": (None, 0),
    }  # fmt: skip
    assert {text: machine_code.read_amdgcn(text) for text in amd} == amd
    text = ".vgpr_count: 96\n.private_segment_fixed_size: 24\n"
    assert machine_code.amdgcn_registers(text) == (96, 24)
    assert machine_code.amdgcn_registers(".vgpr_count: 8") == (8, 0)
    with pytest.raises(ValueError, match="says nothing"):
        machine_code.amdgcn_registers(".sgpr_count: 8")


# The note of an hsaco, byte by byte of the MessagePack specification


PLAIN = {
    b"\x00": 0, b"\x7f": 127, b"\xe0": -32, b"\xff": -1, b"\xc0": None, b"\xc2": False,
    b"\xc3": True, b"\xa0": "", b"\xbf" + b"x" * 31: "x" * 31, b"\xd9\x02ab": "ab",
    b"\xda\x00\x02ab": "ab", b"\xdb\x00\x00\x00\x02ab": "ab", b"\xc4\x01a": b"a",
    b"\xc5\x00\x01a": b"a", b"\xc6\x00\x00\x00\x01a": b"a", b"\xcc\xff": 255, b"\xcd\x01\x00": 256,
    b"\xce\x00\x01\x00\x00": 65536, b"\xcf" + b"\x00" * 7 + b"\x07": 7, b"\xd0\xff": -1,
    b"\xd1\xff\xfe": -2, b"\xd2\xff\xff\xff\xfd": -3, b"\xd3" + b"\xff" * 8: -1,
    b"\xca\x3f\x00\x00\x00": 0.5, b"\xcb\x3f\xe0" + b"\x00" * 6: 0.5, b"\x90": [], b"\x80": {},
    b"\x92\x01\x02": [1, 2], b"\x9f" + b"\x01" * 15: [1] * 15, b"\x82\xa1a\x01\xa1b\x02": {"a": 1,
    "b": 2}, b"\xdc\x00\x02\x01\x02": [1, 2], b"\xdd\x00\x00\x00\x01\x05": [5],
    b"\xde\x00\x01\xa1a\x01": {"a": 1}, b"\xdf\x00\x00\x00\x01\xa1a\x01": {"a": 1},
    b"\x8f" + b"".join(bytes([n, n]) for n in range(15)): {n: n for n in range(15)},
}  # fmt: skip


@pytest.mark.parametrize("data", PLAIN)
def test_each_kind_of_value_is_read_to_its_end(data):
    value, end = amd_note.read_value(data + b"\x01")
    assert value == PLAIN[data] and type(value) is type(PLAIN[data]) and end == len(data)


@pytest.mark.parametrize(
    ("data", "words"),
    [(b"\xc1", "unknown kind 0xc1"), (b"\xc7\x01\x01a", "0xc7"), (b"\xc9" + b"\0" * 9, "0xc9"),
     (b"\xd4\x01a", "0xd4"), (b"\xd8" + b"\0" * 17, "0xd8"), (b"\xa2a", "cut off"),
     (b"\x92\x01", "cut off"), (b"\x91" * 17, "nested deeper"), (b"\xd9\x03ab", "cut off")],
)  # fmt: skip
def test_values_that_a_note_never_has_are_refused(data, words):
    with pytest.raises(ValueError, match=words):
        amd_note.read_value(data)


def test_the_deepest_nesting_is_read():
    value, end = amd_note.read_value(b"\x91" * 15 + b"\x07")
    assert end == 16
    while isinstance(value, list):
        (value,) = value
    assert value == 7


def packed(value):
    """Return a value in MessagePack."""
    if isinstance(value, dict):
        return bytes([0x80 | len(value)]) + b"".join(packed(p) for kv in value.items() for p in kv)
    if isinstance(value, list):
        return bytes([0x90 | len(value)]) + b"".join(map(packed, value))
    if isinstance(value, str):
        return b"\xd9" + bytes([len(value)]) + value.encode()
    return b"\xcd" + struct.pack(">H", value)


def note(owner, kind, content):
    padded = owner + b"\0" * (-len(owner) % 4), content + b"\0" * (-len(content) % 4)
    return struct.pack("<III", len(owner), len(content), kind) + padded[0] + padded[1]


def hsaco(known, owner=b"AMDGPU\0", kind=32):
    some = (
        note(b"GNU\0", 32, b"odd")
        + note(b"AMDGPU\0", 7, b"odd12")
        + note(owner, kind, packed(known))
    )
    return elf(
        (b".text", 1, b"code"), (b".note.x", 7, note(b"GNU\0", 3, b"abc")), (b".note", 7, some)
    )


def test_the_note_of_the_first_kernel_is_read():
    kernels = [{".name": "add", ".vgpr_count": 96, ".sgpr_count": 40, ".wave64": "x"},
               {".name": "mul", ".vgpr_count": 8}]  # fmt: skip
    known = {"amdhsa.kernels": kernels, "amdhsa.target": "amdgcn-amd-amdhsa--gfx942"}
    found = amd_note.note_of(hsaco(known))
    assert found == amd_note.KernelNote("add", "gfx942", {"vgpr_count": 96, "sgpr_count": 40})
    for bad, words in ((known | {"amdhsa.target": "x"}, "nothing of target"), (known | {
        "amdhsa.kernels": [{".name": "a"}]}, "nothing of target"), (known | {"amdhsa.kernels": []},
        "damaged .IndexError"), ({}, "damaged .KeyError")):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            amd_note.note_of(hsaco(bad))
    for image in (hsaco(known, kind=31), hsaco(known, owner=b"AMDGPV\0"), elf((b".text", 1, b""))):
        with pytest.raises(ValueError, match="no note of AMD"):
            amd_note.note_of(image)
    text = ".agpr_count: 4\n.sgpr_count:  100\n.vgpr_spill_count: 0\n.vgpr_count: 7\n"
    assert amd_note.counts_of_text(text) == {
        "agpr_count": 4, "sgpr_count": 100, "vgpr_spill_count": 0}  # fmt: skip


# Registers


def op(text, predicate=""):
    opcode, _, operands = text.partition(" ")
    return Instruction(opcode, operands, predicate)


def span(kind, first, count):
    return {f"{kind}{first + n}" for n in range(count)}


R = "R"
USES = {
    "IADD3 R4, P0, R2, R3, RZ": ({"R4", "P0"}, {"R2", "R3"}),
    "IADD3 R4, P0, P1, R2, R3": ({"R4", "P0", "P1"}, {"R2", "R3"}),
    "IADD3.X R4, P0, P1, P2, R3": ({"R4", "P0", "P1"}, {"P2", "R3"}),
    "ISETP.GE P0, PT, R2, R3, PT": ({"P0"}, {"R2", "R3"}),
    "ISETP.GE P0, P1, R2, R3, P2": ({"P0", "P1"}, {"R2", "R3", "P2"}),
    "LOP3.LUT P0, R4, R2, R3, RZ": ({"P0", "R4"}, {"R2", "R3"}),
    "LDG.E.128 R4, desc[UR4][R2.64]": (span(R, 4, 4), {"UR4", "R2", "R3"}),
    "LDG.E.64 R4, [R2]": (span(R, 4, 2), {"R2"}),
    "LDG.E R4, [R2]": ({"R4"}, {"R2"}),
    "LDG.E.ENL2.256 R8, [R2.64]": (span(R, 8, 8), {"R2", "R3"}),
    "STG.E.128 [R2.64], R4": (set(), {"R2", "R3", *span(R, 4, 4)}),
    "STG.E [R2], R4": (set(), {"R2", "R4"}),
    "STS.64 [R2], R4": (set(), {"R2", "R4", "R5"}),
    "LDSM.16.M88.4 R4, [R2]": (span(R, 4, 4), {"R2"}),
    "LDSM.16.M88.2 R4, [R2]": (span(R, 4, 2), {"R2"}),
    "LDSM.16.M88 R4, [R2]": ({"R4"}, {"R2"}),
    "LDTM.x8 R4, tmem[UR4]": (span(R, 4, 8), {"UR4"}),
    "LDTM.16dp256bit.x2 R4, tmem[UR4]": (span(R, 4, 8), {"UR4"}),
    "LDTM.16dp128bit.x2 R4, tmem[UR4]": (span(R, 4, 4), {"UR4"}),
    "LDTM R4, tmem[UR4]": ({"R4"}, {"UR4"}),
    "HGMMA.64x64x16.F32 R24, gdesc[UR4]": (span(R, 24, 32), {"UR4"}),
    "HGMMA.64x64x16.F16 R24, gdesc[UR4]": (span(R, 24, 16), {"UR4"}),
    "HMMA.16816.F32 R4, R8, R12, R4": (
        span(R, 4, 4),
        {*span(R, 8, 4), "R12", "R13", *span(R, 4, 4)},
    ),
    "HMMA.16816.F16 R4, R8, R12, R4": (
        span(R, 4, 2),
        {*span(R, 8, 4), "R12", "R13", *span(R, 4, 4)},
    ),
    "IMAD.WIDE R4, R2, R3, R6": ({"R4", "R5"}, {"R2", "R3", "R6", "R7"}),
    "DFMA R4, R2, R6, R8": ({"R4", "R5"}, {*span(R, 2, 2), *span(R, 6, 4)}),
    "DSETP.GT P0, PT, R2, R4, PT": ({"P0"}, span(R, 2, 4)),
    "I2F.F64 R4, R2": ({"R4", "R5"}, {"R2"}),
    "CS2R R4, SRZ": ({"R4", "R5"}, set()),
    "CS2R.32 R4, SRZ": ({"R4"}, set()),
    "ULDC.64 UR4, c[0x0][0x118]": ({"UR4", "UR5"}, set()),
    "ATOMG.ADD.64 R4, [R2.64], R6": ({"R4", "R5"}, {"R2", "R3", "R6", "R7"}),
    "BRA 0x100": (set(), set()),
    "MOV R4, R5": ({"R4"}, {"R5"}),
}


@pytest.mark.parametrize("text", USES)
def test_registers_that_an_instruction_writes_and_reads(text):
    use = register_use(op(text, "@!P6"))
    assert (set(use.destinations), set(use.read)) == (USES[text][0], USES[text][1] | {"P6"})


def listing(after, *texts):
    return Listing([op(*t) if isinstance(t, tuple) else op(t) for t in texts], after)


def test_writers_are_those_that_control_flow_leads_from():
    """4 reads R4: 3 may have written it; 2 has, by one way, and 1 by the other."""
    after = [[1, 2], [3], [3], [4], [5], [0]]
    code = listing(after, "MOV R4, R9", "MOV R4, R8", "MOV R4, R7", ("MOV R4, R6", "@P0"),
                   "IADD3 R1, R4, R5, RZ", "MOV R5, R4")  # fmt: skip
    found = Definitions(code)
    assert found.writers(4, frozenset({"R4"})) == [3, 2, 1]
    assert found.writers(4, frozenset({"R4", "R5"})) == [3, 2, 1, 5]
    assert found.writers(1, frozenset({"R4"})) == [0] and found.writers(4, frozenset({"R77"})) == []
    assert (
        found.nearest(4, lambda n: n in (0, 1)) == 1 and found.nearest(4, lambda n: n > 9) is None
    )
    assert found.nearest(4, lambda n: n == 4) == 4, "around the loop"
    reads = frozenset({"R5"})
    assert found.nearest_reader(3, reads, lambda n: True) is None
    assert found.nearest_reader(5, frozenset({"R4"}), lambda n: True) == 4
    assert found.nearest_reader(0, frozenset({"R4"}), lambda n: n != 5) == 4


# Layouts


BLOCKED = ("#ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [4, 8], warpsPerCTA = [2, 1], "
           "order = [1, 0]}>")  # fmt: skip
MMA = "#ttg.nvidia_mma<{versionMajor = 3, warpsPerCTA = [4, 1], instrShape = [16, 64, 16]}>"


def layouts(**named):
    return Layouts({f"#{n}": text for n, text in named.items()}, 4, 32)


def test_layouts_are_spread_over_elements_lanes_and_warps():
    some = layouts(b=BLOCKED, m=MMA)
    assert some.spread("#b", 2) == LayoutSpread((1, 4), (4, 8), (2, 1), (1, 0))
    assert some.spread("#m", 2) == LayoutSpread((2, 16), (8, 4), (4, 1), (1, 0))
    small = "#ttg.nvidia_mma<{warpsPerCTA = [2, 2], instrShape = [16, 4]}>"
    assert some.spread(small, 2).each == (2, 2)
    assert some.spread("#ttg.nvidia_mma<{warpsPerCTA = [2, 2], instrShape = []}>", 2).each == (2, 2)
    for dim, other in ((0, ((4,), (8,), (1,), (0,))), (1, ((1,), (4,), (2,), (0,)))):
        assert some.spread(f"#ttg.slice<{{dim = {dim}, parent = #b}}>", 1) == LayoutSpread(*other)
    for index, other in ((0, ((2, 4), (8, 4), (4, 1))), (1, ((4, 1), (4, 8), (1, 1)))):
        text = f"#ttg.dot_op<{{opIdx = {index}, parent = #m, kWidth = 2}}>"
        assert some.spread(text, 2) == LayoutSpread(*other, (1, 0))
    assert some.spread("#odd", 2) == LayoutSpread((1, 1), (1, 32), (1, 4), (1, 0))
    linear = ("#ttg.linear<{register = [[0, 1], [0, 2], [8, 0]], lane = [[0, 4], [0, 8], [1, 0], "
              "[2, 0], [4, 0]], warp = [[16, 0], [0, 0]], block = []}>")  # fmt: skip
    assert some.spread(linear, 2) == LayoutSpread((2, 4), (8, 4), (2, 1), (1, 0))
    rises = "#ttg.linear<{register = [[1, 0]], lane = [[0, 1]], warp = [], block = []}>"
    assert some.spread(rises, 2) == LayoutSpread((2, 1), (1, 2), (1, 1), (0, 1))
    chain = layouts(a="#c", c=BLOCKED)
    assert chain.text("#a") == BLOCKED and chain.text("#none") == "#none"


def test_registers_of_a_tensor_and_accesses_of_a_warp():
    some = layouts(b=BLOCKED)
    # a tile has 1 * 4 * 2 rows and 4 * 8 * 1 columns, and a thread 1 * 4 of its elements
    shapes = {(8, 32): 4, (16, 32): 8, (9, 33): 16, (4, 2): 2, (): 1, (1, 64): 8}
    assert {s: some.registers(TensorType(s, "f32", "#b")) for s in shapes} == shapes


def test_accesses_are_numbered_by_warp_and_tile():
    some = layouts(b=BLOCKED)
    (kind,) = types_in("tensor<16x32x!tt.ptr<f32>, #b>")
    assert some.run(kind, 4 * np.arange(512).reshape(16, 32)) == 4, "16 bytes"
    assert some.run(kind, 4 + 4 * np.arange(512).reshape(16, 32)) == 1, "begins at no 8 bytes"
    assert some.run(kind, 8 * np.arange(512).reshape(16, 32)) == 1, "every other element"
    group = some.accesses(kind, 4)
    assert group.shape == (16, 32)
    rows = np.array([0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3])
    assert (group == rows[:, None]).all()
