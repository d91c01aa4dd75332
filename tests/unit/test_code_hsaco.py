"""An hsaco without its assembly: resources by its note, the listing by llvm-objdump.

The golden image, its assembly and llvm-objdump's text are of one kernel, so that each must say what
the others say.
"""

import gzip
import json
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.code import amd_listing
from workbench.code.amd_note import DEEPEST, counts_of_text, note_of, read_value
from workbench.code.code_reading import CodeError, code_of_assembly, code_of_hsaco
from workbench.code.listing import DisassemblyError
from workbench.code.machine_code import amdgcn_registers, elf_sections

GOLDEN = Path(__file__).parents[1] / "golden" / "code"

pytestmark = pytest.mark.unit


def golden(name):
    return gzip.decompress((GOLDEN / f"{name}.gz").read_bytes())


IMAGE = golden("mm_hip_gfx90a.hsaco")


@pytest.mark.parametrize("name", ["mm_hip_gfx90a", "mmspill_hip_gfx942"])
def test_the_note_says_what_the_assembly_says(name):
    text, note = golden(f"{name}.amdgcn").decode(), note_of(golden(f"{name}.hsaco"))
    registers = note.counts["vgpr_count"], note.counts["private_segment_fixed_size"]
    assert registers == amdgcn_registers(text)
    expected = counts_of_text(text)
    assert len(expected) == 4 and expected.items() <= note.counts.items()
    assert (note.name, note.arch) == ("matmul_kernel", name.rsplit("_", 1)[-1])


def test_the_listing_of_objdump_is_that_of_the_assembly():
    theirs = code_of_assembly(golden("mm_hip_gfx90a.amdgcn").decode(), None)
    listing = amd_listing.read_objdump(golden("mm_hip_gfx90a.objdump.txt").decode())
    short = [op.opcode.removesuffix("_e32").removesuffix("_e64") for op in listing.instructions]
    plain = [op.opcode.removesuffix("_e32").removesuffix("_e64")
             for op in theirs.listing.instructions]  # fmt: skip
    assert short == plain
    assert listing.successors == theirs.listing.successors and not listing.lost_jumps
    addresses = [op.address for op in listing.instructions]
    assert addresses == sorted(set(addresses)) and addresses[0] == 0x1700
    assert listing.functions == ["matmul_kernel"]


def test_without_a_disassembler_resources_remain(monkeypatch):
    monkeypatch.setattr(amd_listing, "find_tool", lambda: None)
    code = code_of_hsaco(IMAGE, "k.amdgcn")
    assert (code.registers, code.stack_bytes, code.counts["sgpr_count"]) == (214, 0, 27)
    assert not code.listing.instructions and not code.loops() and code.whole.instructions == 0
    (note,) = code.notes
    assert "no llvm-objdump is on PATH" in note and "put k.amdgcn" in note and "gfx90a" in note


def tool(folder, script):
    path = folder / amd_listing.TOOL
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (tmp_path / "k.hsaco").write_bytes(IMAGE)
    (tmp_path / "text").write_bytes(golden("mm_hip_gfx90a.objdump.txt"))
    return tmp_path


def workbench(capfd, *words):
    from workbench import cli

    pytest.importorskip("triton")
    status = cli.main([*words])
    out, err = capfd.readouterr()
    return status, out + err


def test_the_command_lists_what_objdump_prints(here, capfd):
    tool(here, f"echo $* > {here}/words; cat {here}/text")
    status, text = workbench(capfd, "code", "k.hsaco", "--find", "v_mfma", "--json", "r.json")
    assert status == 0 and "v_mfma: 96 instructions" in text and "Scalar registers 27" in text
    assert "--mcpu=gfx90a" in (here / "words").read_text()
    result = json.loads((here / "r.json").read_text())["code"]
    assert result["mix"]["instructions"] == 1190 and len(result["loops"]) == 1
    assert result["counts"]["vgpr_count"] == result["registers"] == 214


@pytest.mark.parametrize(
    "script, words",
    [
        ("exit 1", "does not know gfx90a"),
        ("echo \"'gfx90a' is not a recognized processor\" >&2", "does not know gfx90a"),
        ("echo nothing", "finds no instruction"),
        ("printf '\\200 \\377'; kill -6 $$", "does not know gfx90a"),
    ],
)
def test_a_disassembler_that_fails_leaves_the_resources(here, capfd, script, words):
    tool(here, script)
    status, text = workbench(capfd, "code", "k.hsaco", "--json", "r.json")
    assert status == 0 and words in text and "Registers a thread 214" in text
    assert "Instructions" not in text and "There is no loop" not in text
    result = json.loads((here / "r.json").read_text())
    assert result["code"]["mix"] is None and result["code"]["blocks"] is None
    page = Path(result["page"]).read_text()
    assert words in page and "h-loops" not in page
    for command in (["code", "k.hsaco", "--find", "v_mfma"], ["diagnose", "k.hsaco"],
                    ["code", "k.hsaco", "--against", "k.hsaco"]):  # fmt: skip
        status, text = workbench(capfd, *command)
        assert status == 2 and words in text and "Traceback" not in text


def test_a_disassembler_that_cannot_start_is_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr(amd_listing, "find_tool", lambda: str(tmp_path / "none"))
    with pytest.raises(DisassemblyError, match="FileNotFoundError"):
        amd_listing.disassembled_hsaco(IMAGE, "gfx90a")


# Damaged and hostile notes

CONTENT = next(data for name, data in elf_sections(IMAGE) if name == b".note")


@given(st.integers(0, len(CONTENT) - 1), st.binary(min_size=1, max_size=9))
def test_a_damaged_note_is_read_or_refused_in_a_sentence(place, bytes_):
    damaged = CONTENT[:place] + bytes_ + CONTENT[place + len(bytes_) :]
    image = IMAGE.replace(CONTENT, damaged[: len(CONTENT)])
    try:
        note_of(image)
    except ValueError as error:
        assert str(error)


@given(st.integers(0, len(IMAGE)))
def test_a_truncated_image_is_refused_in_a_sentence(length):
    with pytest.raises(CodeError, match="compile it again"):
        code_of_hsaco(IMAGE[:length][:-1], "k.amdgcn")


@given(st.binary(max_size=40))
def test_any_bytes_are_a_value_or_refused(data):
    try:
        _, end = read_value(data)
    except (ValueError, IndexError, struct.error):
        return
    assert 0 < end <= len(data)


def packed(value):
    """A value in MessagePack, in its widest form."""
    if isinstance(value, str):
        text = value.encode()
        return b"\xdb" + struct.pack(">I", len(text)) + text
    if isinstance(value, list):
        return b"\xdd" + struct.pack(">I", len(value)) + b"".join(map(packed, value))
    if isinstance(value, dict):
        pairs = b"".join(packed(k) + packed(v) for k, v in value.items())
        return b"\xdf" + struct.pack(">I", len(value)) + pairs
    if isinstance(value, bool) or value is None:
        return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
    return b"\xd3" + struct.pack(">q", value)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(VALUES)
def test_values_are_those_that_were_packed(value):
    data = packed(value)
    assert read_value(data) == (value, len(data))
    with pytest.raises((ValueError, IndexError, struct.error)):
        read_value(data[:-1])


@pytest.mark.parametrize(
    "data, value",
    [
        (b"\x07", 7), (b"\xff", -1), (b"\xcc\xff", 255), (b"\xcd\x01\x00", 256),
        (b"\xce\x00\x01\x00\x00", 65536), (b"\xd0\x80", -128), (b"\xd1\xff\x00", -256),
        (b"\xa2ab", "ab"), (b"\xd9\x02ab", "ab"), (b"\xda\x00\x02ab", "ab"), (b"\xc4\x01a", b"a"),
        (b"\x92\x01\xc0", [1, None]), (b"\xdc\x00\x01\xc3", [True]), (b"\x81\xa1a\x01", {"a": 1}),
        (b"\xde\x00\x01\xa1a\xc2", {"a": False}), (b"\xca\x3f\x80\x00\x00", 1.0),
    ],
)  # fmt: skip
def test_short_forms_of_the_format(data, value):
    assert read_value(data) == (value, len(data))


@pytest.mark.parametrize(
    "data",
    [b"\x91" * 5000 + b"\x01", b"\xdd\xff\xff\xff\xff", b"\xdf\x7f\xff\xff\xff\x01",
     b"\xc1",
     b"\xd4\x01\x01", b"\x91" * (DEEPEST + 1) + b"\x01"]
)  # fmt: skip
def test_hostile_values_are_refused_at_once(data):
    with pytest.raises(ValueError, match="its note"):
        read_value(data)
