"""What is read from compiled code, against what NVIDIA's and LLVM's own tools say of the same
files. Where the files come from: `tests/golden/README.md`."""

import gzip
import re
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.compile import amdgcn_registers, cubin_registers, read_amdgcn, read_ptx

GOLDEN = Path(__file__).parents[1] / "golden"
CUBINS = sorted(path.stem for path in GOLDEN.glob("*.cubin"))


def text(name):
    return gzip.decompress((GOLDEN / f"{name}.gz").read_bytes()).decode()


def assembler(name):
    """Registers, stack frame, spill stores and spill loads as `ptxas -v` told them."""
    log = (GOLDEN / f"{name}.ptxas.txt").read_text()
    words = ("bytes stack frame", "bytes spill stores", "bytes spill loads")
    frame, stores, loads = (int(re.search(rf"(\d+) {word}", log)[1]) for word in words)
    return int(re.search(r"Used (\d+) registers", log)[1]), frame, stores, loads


def dumped(name):
    """Registers and stack as `cuobjdump --dump-resource-usage` told them."""
    result = re.search(r"REG:(\d+) STACK:(\d+)", (GOLDEN / f"{name}.resources.txt").read_text())
    return int(result[1]), int(result[2])


# Machine code of NVIDIA


def test_the_golden_cubins_hold_every_kind():
    frames = [assembler(name)[1] for name in CUBINS]
    assert min(frames) == 0 and 8 in frames and max(frames) > 1000


@pytest.mark.parametrize("name", CUBINS)
def test_registers_and_frame_are_those_of_the_assembler(name):
    result = cubin_registers((GOLDEN / f"{name}.cubin").read_bytes())
    assert result == assembler(name)[:2] == dumped(name)


@pytest.mark.parametrize("name", CUBINS)
def test_a_frame_means_spills_and_spills_mean_a_frame(name):
    _, frame, stores, loads = assembler(name)
    assert (frame > 0) == (stores > 0) == (loads > 0)


@pytest.mark.parametrize("image", [b"", b"\x7fELF", b"MZ" + bytes(100), bytes(64)])
def test_what_is_no_elf_image_is_refused(image):
    with pytest.raises(ValueError, match="not an ELF image"):
        cubin_registers(image)


def test_an_image_without_the_section_is_refused():
    image = (GOLDEN / f"{CUBINS[0]}.cubin").read_bytes()
    with pytest.raises(ValueError, match=r"no section \.nv\.info"):
        cubin_registers(image.replace(b"\0.nv.info\0", b"\0.nv.onfi\0"))


def test_an_image_that_is_silent_about_registers_is_refused():
    image = (GOLDEN / f"{CUBINS[0]}.cubin").read_bytes()
    silent = image.replace(struct.pack("<BBH", 4, 0x2F, 8), struct.pack("<BBH", 4, 0x2E, 8))
    with pytest.raises(ValueError, match="says nothing of its registers"):
        cubin_registers(silent)


# Text of both makers


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("matmul.sm_80.ptx", ("mma", 128)),
        ("matmul.sm_90.ptx", ("wgmma", 128)),
        ("matmul.sm_100.ptx", ("tcgen05", 128)),
        ("copy.sm_90.ptx", (None, 128)),
    ],
)
def test_matrix_unit_and_load_width_of_ptx(name, expected):
    assert read_ptx(text(name)) == expected


@pytest.mark.parametrize(
    ("name", "unit", "bits"),
    [
        ("matmul.gfx942.amdgcn", "mfma", 128),
        ("matmul_spills.gfx942.amdgcn", "mfma", 128),
        ("matmul.gfx1100.amdgcn", "wmma", 128),
        ("copy.gfx942.amdgcn", None, 128),
        ("copy_ragged.gfx942.amdgcn", None, 16),
    ],
)
def test_matrix_unit_load_width_and_registers_of_amd_assembly(name, unit, bits):
    listing = text(name)
    assert read_amdgcn(listing) == (unit, bits)
    registers, scratch = amdgcn_registers(listing)
    words = re.search(r"; TotalNumVgprs: (\d+)", listing) or re.search(
        r"; NumVgprs: (\d+)", listing
    )
    assert registers == int(words[1])
    assert scratch == int(re.search(r"; ScratchSize: (\d+)", listing)[1])
    spilled = int(re.search(r"\.vgpr_spill_count: (\d+)", listing)[1])
    assert (scratch > 0) == (spilled > 0) == ("spills" in name)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ld.global.v4.b32 {%r1,%r2,%r3,%r4}, [%rd1];", 128),
        ("ld.global.L1::evict_last.v2.b64 {%rd1,%rd2}, [%rd3];", 128),
        ("@%p1 ld.global.b16 { %rs1 }, [ %rd1 + 0 ];", 16),
        ("ld.global.nc.v8.b32 {%r1}, [%rd1];", 256),
        ("ld.shared.v4.b32 {%r1,%r2,%r3,%r4}, [%r9];", 0),
        ("st.global.v4.b32 [%rd1], {%r1,%r2,%r3,%r4};", 0),
        ("cp.async.cg.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x10, %r2;", 128),
        ("cp.async.ca.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x4, %r2;", 32),
    ],
)
def test_load_widths_of_ptx(line, expected):
    assert read_ptx(line) == (None, expected)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("global_load_dwordx4 v[0:3], v4, s[0:1]", 128),
        ("global_load_dword v0, v4, s[0:1]", 32),
        ("buffer_load_dwordx2 v[0:1], v4, s[0:3], 0 offen", 64),
        ("global_load_b128 v[0:3], v4, s[0:1]", 128),
        ("buffer_load_u16 v0, v4, s[0:3], 0 offen", 16),
        ("buffer_load_ushort v0, v4, s[0:3], 0 offen", 16),
        ("global_load_ubyte v0, v4, s[0:1]", 8),
        ("global_load_d16_hi_b16 v0, v4, s[0:1]", 16),
        ("global_store_dwordx4 v4, v[0:3], s[0:1]", 0),
        ("ds_load_b128 v[0:3], v4", 0),
    ],
)
def test_load_widths_of_amd_assembly(line, expected):
    assert read_amdgcn(line) == (None, expected)


def test_assembly_without_metadata_is_refused():
    with pytest.raises(ValueError, match="says nothing of its registers"):
        amdgcn_registers("s_endpgm")


@given(st.integers(1, 512), st.integers(0, 1 << 20))
def test_amd_metadata_is_read_wherever_it_stands(registers, scratch):
    metadata = f".vgpr_count:     {registers}\n .private_segment_fixed_size: {scratch}\n"
    assert amdgcn_registers(f"s_endpgm\n{metadata}") == (registers, scratch)


def cubin(functions):
    """The least of an ELF image that holds the resources of these functions: (registers, frame)."""
    names = b"\0.nv.info\0.shstrtab\0"
    info = b"".join(
        struct.pack("<BBHIIBBHII", 4, 0x2F, 8, n, registers, 4, 0x11, 8, n, frame)
        for n, (registers, frame) in enumerate(functions)
    )  # fmt: skip
    table = 64 + len(info) + len(names)
    header = bytearray(64)
    header[:4] = b"\x7fELF"
    struct.pack_into("<Q", header, 0x28, table)
    struct.pack_into("<HHH", header, 0x3A, 64, 3, 2)
    sections = [
        struct.pack("<IIQQQQIIQQ", name, 0, 0, 0, offset, size, 0, 0, 0, 0)
        for name, offset, size in (
            (0, 0, 0), (1, 64, len(info)), (10, 64 + len(info), len(names)),
        )
    ]  # fmt: skip
    return bytes(header) + info + names + b"".join(sections)


@given(st.lists(st.tuples(st.integers(1, 255), st.integers(0, 4096)), min_size=1, max_size=5))
def test_a_cubin_of_several_functions_needs_what_the_largest_needs(functions):
    assert cubin_registers(cubin(functions)) == tuple(map(max, zip(*functions, strict=True)))
