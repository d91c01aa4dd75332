"""Machine code one can read: blocks, loops, mix, live registers, partitions, words, differences.

The golden listings are of nvdisasm and LLVM as they were written; the figures beside them are those
of the tools: nvdisasm's graphs, ptxas' report and LLVM's metadata.
"""

import gzip
import itertools
import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.code.code_match import compare_code
from workbench.code.code_reading import CodeError, MachineCode, code_of_assembly
from workbench.code.code_samples import samples_of
from workbench.code.flow import dominated_blocks, dominators, flow_graph, reachable
from workbench.code.kinds import GROUPS, access_of, group_of, group_text, matrix_flops
from workbench.code.listing import Instruction, read_amdgcn_listing, read_sass
from workbench.code.live import amd_live, nvidia_live, registers_of
from workbench.code.mix import mix_of
from workbench.code.partitions import specialisation
from workbench.code.ptx_lines import correct_lines
from workbench.code.ptx_words import elsewhere, matching
from workbench.reports.code import CodeView, comparison_sentence, listing_lines, page
from workbench.reports.figures.code import flow_dot, flow_svg
from workbench.traces.readers import read as read_profile
from workbench.traces.trace import Dispatch, InstructionTable

GOLDEN = Path(__file__).parents[1] / "golden" / "code"

pytestmark = pytest.mark.unit


def golden(name):
    return gzip.decompress((GOLDEN / f"{name}.gz").read_bytes()).decode()


def sass(name, arch="sm_90"):
    listing = read_sass(golden(name))
    graph = flow_graph(listing)
    return MachineCode(
        listing.functions[0], arch, listing, graph, name, None, None,
        partitions=specialisation(listing, graph),
    )  # fmt: skip


PTX = """
.file 1 "/k.py"
.loc 1 26 16
// begin inline asm
.loc 1 26 16
mov.u16 %rs1, 0x0;
.loc 1 27 16
@%p1 ld.global.b16 { %rs1 }, [ %rd20 + 0 ];
// end inline asm
.loc 1 27 5
// begin inline asm
.loc 1 27 5
st.global.b16 [ %rd1 ], %rs1;
// end inline asm
.loc 2 9 9, function_name $L, inlined_at 1 31 4
ld.global.b32 %r1, [%rd3];
"""


def test_lines_within_inline_assembly_are_those_of_their_statement():
    sass = """
//## File "/k.py", line 27
/*0000*/ LDG.E.U16 R1, desc[UR6][R2.64] ;
/*0010*/ STG.E.U16 desc[UR6][R2.64], R1 ;
/*0020*/ FADD R1, R1, R2 ;
//## File "/k.py", line 31
/*0030*/ LDG.E R1, desc[UR6][R2.64] ;
"""
    listing = read_sass(sass)
    correct_lines(listing, PTX)
    assert [op.source.line for op in listing.instructions] == [26, 27, 27, 31]


@pytest.mark.parametrize(
    "name, instructions, matrix, blocks, loop",
    [
        ("mm_cuda_80", 1160, ("HMMA", 128), 6, 296),
        ("mm_cuda_90", 840, ("HGMMA", 8), 5, 164),
        ("mm_cuda_100", 964, ("UTCHMMA", 8), 32, 152),
        ("mm_cuda_120", 1032, ("HMMA", 128), 7, 245),
        ("mmspill_cuda_90", 1288, ("HGMMA", 8), 5, 324),
        ("add_cuda_90", 56, None, 2, 0),
    ],
)
def test_figures_of_listings_are_those_of_the_tools(name, instructions, matrix, blocks, loop):
    code = sass(f"{name}.nvdisasm_g.txt")
    assert code.whole.instructions == instructions
    names = {op.opcode.split(".")[0] for op in code.listing.instructions}
    assert code.whole.groups.get("matrix", 0) == (matrix[1] if matrix else 0)
    assert matrix is None or matrix[0] in names
    assert len(code.graph.reachable) == blocks  # of `nvdisasm -bbcfg`
    sizes = [mix.instructions for _, _, mix in code.loops()]
    assert max(sizes, default=0) == loop
    assert "other" not in code.whole.groups or code.whole.groups["other"] <= 1


@pytest.mark.parametrize(
    "name, blocks, labels, more",
    [
        ("ws0_cuda_100.nvdisasm_gi.txt", 78, {"NOP"}, 3),
        ("ws1_cuda_100.nvdisasm_gi.txt", 112, {"NOP", "BRX"}, 4),
        ("mm_cuda_100.nvdisasm_g.txt", 32, set(), 0),
    ],
)
def test_nvdisasm_also_begins_a_block_at_labels_that_no_jump_names(name, blocks, labels, more):
    code = sass(name)
    listing, reached = code.listing, [code.graph.blocks[n] for n in code.graph.reachable]
    inside = [i for b in reached for i in range(b.start + 1, b.end) if i in listing.labels]
    assert (len(reached), len(inside)) == (blocks, more)  # their sum is that of -bbcfg
    assert {listing.instructions[i].opcode for i in inside} == labels
    assert all(listing.successors[i - 1] == [i] for i in inside)
    waits = [i for i in inside if listing.instructions[i].opcode == "NOP"]
    assert all(listing.instructions[i - 1].opcode.startswith("BSYNC") for i in waits)


def test_spills_are_counted_as_ptxas_made_them():
    groups = sass("mmspill_cuda_90.nvdisasm_g.txt").whole.groups
    assert groups["spills"] == 257 + 193  # STL and LDL


@pytest.mark.parametrize(
    "name, registers, scratch",
    [("mm_hip_gfx942", 210, 0), ("mmspill_hip_gfx942", 512, 856), ("mm_hip_gfx1100", 256, None)],
)
def test_assembly_of_amd(name, registers, scratch):
    text = golden(f"{name}.amdgcn")
    code = code_of_assembly(text, None)
    assert code.registers == registers and scratch in (None, code.stack_bytes)
    assert len(code.loops()) == text.count("Loop Header")
    assert code.whole.groups["matrix"] == len(re.findall(r"\tv_(?:mfma|wmma)", text))
    most, _ = code.peak_live
    assert 0.9 * registers <= most <= registers
    assert any("697" in note for note in code.notes) == name.startswith("mmspill")
    assert "other" not in code.whole.groups


def test_live_registers_are_read_at_their_instructions():
    listing = read_sass(golden("mm_cuda_90.nvdisasm_g.txt"))
    counts = nvidia_live(golden("mm_cuda_90.lrm_count.txt"), listing)
    assert len(counts) == len(listing.instructions) and max(counts) == 211
    first = next(i for i, op in enumerate(listing.instructions) if op.opcode.startswith("HGMMA"))
    assert counts[first] == 203
    with pytest.raises(ValueError, match="other instructions"):
        nvidia_live(
            golden("mm_cuda_90.lrm_count.txt"), read_sass(golden("add_cuda_90.nvdisasm_g.txt"))
        )


def test_a_warp_specialised_kernel_is_told_from_a_plain_one():
    plain, special = (sass(f"ws{n}_cuda_100.nvdisasm_gi.txt") for n in (0, 1))
    assert (plain.whole.instructions, special.whole.instructions) == (1121, 1009)
    assert plain.partitions is None
    parts = {p.name: p for p in special.partitions.partitions}
    assert parts["default"].roles == ("epilogue",)
    assert [parts[n].roles for n in "012"] == [("matrix",), ("tensor loads",), ()]
    # as many as `nvdisasm -cfg` draws
    assert sorted(parts[n].labels for n in "012") == [2, 8, 11]
    assert special.partitions.overlaps == ()
    shared = dict(special.partitions.shared_barriers)
    assert shared[0x20000] == ("default", "1") and shared[0x20020] == ("default", "0", "1")


@pytest.mark.parametrize(
    "first, second, special",
    [
        ("UTMALDG.2D [UR8], [UR6]", "UTCHMMA gdesc[UR4], gdesc[UR6]", True),
        ("STG.E.128 desc[UR4][R2.64], R4", "IADD3 R2, R3, R4, RZ", False),  # a plain switch
        ("MOV R2, R3", "IADD3 R2, R3, R4, RZ", False),
    ],
)
def test_a_jump_by_a_number_alone_makes_no_partitions(first, second, special):
    jump = 'BRX R2 -0x20 (*"BRANCH_TARGETS .L_1,.L_2"*)'
    rows = [jump, ".L_1:", first, "EXIT", ".L_2:", second, "EXIT"]
    lines = [row if row.endswith(":") else f"  /*0010*/  {row} ;" for row in rows]
    listing = read_sass("\n".join(lines))
    assert (specialisation(listing, flow_graph(listing)) is not None) == special


def test_source_lines_are_those_of_the_kernel_also_where_a_function_is_inlined():
    listing = read_sass(golden("ws1_cuda_100.nvdisasm_gi.txt"))
    assert {Path(op.source.file).name for op in listing.instructions if op.source} == {"kern2.py"}
    amd = read_amdgcn_listing(golden("mm_hip_gfx942.amdgcn"))
    assert {Path(op.source.file).name for op in amd.instructions if op.source} == {"kern.py"}


@pytest.mark.parametrize(
    "word, count", [("tcgen05.ld", 1), ("tcgen05.ld.sync.aligned", 1), ("tcgen05.mma", 4),
                    ("LDTM", 1), ("cp.async.bulk.tensor", 4), ("setmaxnreg", 10),
                    ("ldmatrix", 0), ("no_such_word", 0)],
)  # fmt: skip
def test_words_of_ptx_find_instructions(word, count):
    listing = read_sass(golden("ws1_cuda_100.nvdisasm_gi.txt"))
    found = matching(listing, word)
    assert len(found) == count
    assert all(listing.instructions[i] is op for i, op in found)


def test_words_that_a_target_lacks_name_a_device_that_has_them():
    assert "this code is for sm_90; add --device b200" in elsewhere("tcgen05.ld", "sm_90")
    assert "Only Hopper (sm_90) has wgmma" in elsewhere("wgmma", "sm_100a")
    assert elsewhere("tcgen05", "sm_103a") is elsewhere("wgmma", "sm_90") is None
    assert elsewhere("LDG", "sm_80") is elsewhere("tcgen05.ld", "gfx942") is None


@pytest.mark.parametrize(
    "opcode, arch, flops",
    [
        ("HGMMA.64x128x16.F32", "sm_90", 2 * 64 * 128 * 16),
        ("HMMA.16816.F32", "sm_80", 2 * 16 * 8 * 16),
        ("UTCHMMA", "sm_100", None),
        ("v_mfma_f32_32x32x8_bf16", "gfx942", 2 * 32 * 32 * 8),
        ("v_mfma_f32_4x4x4_16b_f16", "gfx942", 2 * 4 * 4 * 4 * 16),
        ("v_wmma_f32_16x16x16_f16", "gfx1100", 2 * 16**3),
    ],
)
def test_work_of_matrix_instructions(opcode, arch, flops):
    op = Instruction(opcode, "")
    assert group_of(op, arch) == "matrix" and matrix_flops(op) == flops


@pytest.mark.parametrize(
    "opcode, arch, access",
    [
        ("LDG.E.128", "sm_90", ("global load", 16)),
        ("LDG.E.U16", "sm_90", ("global load", 2)),
        ("UTMALDG.2D", "sm_90", ("global load", None)),
        ("STS.64", "sm_90", ("shared store", 8)),
        ("LDSM.16.M88.4", "sm_90", ("shared load", 16)),
        ("STL.128", "sm_90", ("spill", 16)),
        ("IMAD", "sm_90", None),
        ("global_load_dwordx4", "gfx942", ("global load", 16)),
        ("ds_write2_b64", "gfx942", ("shared store", 16)),
        ("ds_read_u16_d16_hi", "gfx90a", ("shared load", 2)),
        ("scratch_store_dwordx3", "gfx942", ("spill", 12)),
    ],
)
def test_bytes_of_accesses(opcode, arch, access):
    assert access_of(Instruction(opcode, ""), arch) == access


# Properties of any listing

LABELS = [f".L_{n}" for n in range(4)]
STATEMENTS = st.one_of(
    st.sampled_from(["v_add_u32 v{}, v{}, v{}", "v_mfma_f32_4x4x1_16b_f32 v[{}:{}], v1, v2, 0"]),
    st.sampled_from(["v_fmac_f32 v{}, v{}, v{}", "global_store_dwordx2 v{}, v[{}:{}], s[0:1]"]),
    st.sampled_from(LABELS).map(lambda label: f"s_cbranch_scc1 {label}"),
    st.sampled_from(LABELS).map(lambda label: f"s_branch {label}"),
    st.sampled_from(LABELS).map(lambda label: f"{label}:"),
    st.just("s_endpgm"),
)


@st.composite
def listings(draw):
    lines, used = ["f:"], set()
    for statement in draw(st.lists(STATEMENTS, min_size=1, max_size=24)):
        if statement.endswith(":"):
            if statement in used:
                continue
            used.add(statement)
            lines.append(statement)
        else:
            low, high = sorted(draw(st.tuples(st.integers(0, 7), st.integers(0, 7))))
            first = draw(st.integers(0, 7))
            order = (low, high, 0) if "[{}:" in statement[:30] else (first, low, high)
            lines.append("\t" + statement.format(*order))
    lines += [f"{label}:" for label in LABELS if f"{label}:" not in used]
    return read_amdgcn_listing("\n".join([*lines, "\ts_endpgm"]))


@given(listings())
def test_blocks_partition_the_instructions(listing):
    graph = flow_graph(listing)
    spans = [(b.start, b.end) for b in graph.blocks]
    assert [i for a, b in spans for i in range(a, b)] == list(range(len(listing.instructions)))
    for block in graph.blocks:
        inner = range(block.start, block.end - 1)
        assert all(listing.successors[i] == [i + 1] for i in inner)
        assert {graph.blocks[n].start for n in block.successors} == set(
            listing.successors[block.end - 1]
        )


@given(listings())
def test_loops_nest_and_hold_every_cycle(listing):
    graph = flow_graph(listing)
    loops = [loop.blocks for _, loop in graph.all_loops()]
    for a, b in itertools.combinations(loops, 2):
        assert a < b or b < a or not a & b
    after = {b.number: b.successors for b in graph.blocks}
    for n in graph.reachable:
        assert any(n in loop for loop in loops) == (n in reachable(after, after[n]))
    assert all(inner.blocks < loop.blocks for _, loop in graph.all_loops() for inner in loop.inner)


@given(listings())
def test_dominators_agree_with_ways_that_leave_a_block_out(listing):
    graph = flow_graph(listing)
    immediate = dominators(graph)
    after = {b.number: b.successors for b in graph.blocks}
    for n in graph.reachable:
        without = reachable(after, [0], without=n)
        assert dominated_blocks(immediate, n) - {-1} == graph.reachable - without


@given(listings())
@settings(deadline=None)
def test_liveness_agrees_with_a_naive_fixpoint(listing):
    effects = [registers_of(op) for op in listing.instructions]
    live, changed = [0] * len(effects), True
    while changed:
        changed = False
        for i, (written, read) in enumerate(effects):
            out = 0
            for n in listing.successors[i]:
                out |= live[n]
            new = out & ~written | read
            changed |= new != live[i]
            live[i] = new
    naive = [(live[i] | effects[i][0]).bit_count() for i in range(len(effects))]
    assert amd_live(listing, flow_graph(listing)) == naive


@given(listings())
def test_a_mix_counts_each_instruction_once(listing):
    mix = mix_of(listing.instructions, "gfx942")
    assert sum(mix.groups.values()) == mix.instructions == len(listing.instructions)
    assert set(mix.groups) <= set(GROUPS)


# Stall samples of a profile


TRACES = GOLDEN.parent / "traces" / "h200"


def profiled(name="source_sass.csv.gz"):
    return read_profile([TRACES / name]).dispatches


@pytest.mark.parametrize("page", ["source_sass.csv.gz", "source_cuda_sass.csv.gz"])
def test_samples_stand_at_the_instructions_that_ncu_names(page):
    code, dispatches = sass("h200_mm.nvdisasm_gi.txt"), profiled(page)
    samples = samples_of(code, dispatches, page)
    table = dispatches[1].instructions
    assert samples.total == table.total("# Samples") == 18_007
    first, at = min(table.addresses), table.heads.index("# Samples")
    for address, row in zip(table.addresses, table.values, strict=True):
        assert samples.counts[(address - first) // 16] == (row[at] or 0)
    ((_, loop, _),) = code.loops()
    assert samples.share(code.places(loop)) == pytest.approx(0.919, abs=5e-4)
    assert samples.share(range(len(samples.counts))) == 1
    most = max(range(len(samples.counts)), key=samples.counts.__getitem__)
    assert samples.reason(most) == "barrier"  # the largest of its stall columns
    twice = samples_of(code, [*dispatches, dispatches[1]], page)
    assert (twice.total, twice.launches) == (2 * samples.total, 2)


@pytest.mark.parametrize(
    "change, words",
    [
        (("FADD R13, R13, R17", "FADD R13, R13, R18"), "at 0x1e0 of add it has `FADD"),
        (("FADD R13, R13, R17", "FMUL R13, R13, R17"), "this code `FMUL R13, R13, R17`"),
        (("@!P1 LDG", "@P1 LDG"), "at 0x1a0"),
        (("BRA `(.L_x_0)", "BRA `(.text.add)"), "at 0x290"),
        (("\n        /*0280*/                   EXIT ;", ""), "and this code `no instruction`"),
    ],
)  # fmt: skip
def test_samples_of_other_code_are_refused_at_the_first_difference(change, words):
    listing = read_sass(golden("h200_add.nvdisasm_gi.txt").replace(*change, 1))
    code = MachineCode("add", "sm_90", listing, flow_graph(listing), "", 26, 0)
    with pytest.raises(CodeError, match="are of other code") as error:
        samples_of(code, profiled(), "p.csv")
    assert words in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("name, words", [("raw_base.csv.gz", "no stall samples"),
                                         ("details.csv.gz", "SourceCounters")])  # fmt: skip
def test_a_profile_without_samples_gets_the_command_that_records_them(name, words):
    with pytest.raises(CodeError, match=words):
        samples_of(sass("h200_add.nvdisasm_gi.txt"), profiled(name), name)


def test_samples_of_another_vendor_are_refused():
    with pytest.raises(CodeError, match="NVIDIA"):
        samples_of(code_of_assembly(golden("mm_hip_gfx942.amdgcn"), None), profiled(), "p.csv")


@given(st.permutations(["desc[UR4][R2.64]", "P4", "[R49+0x18000]"]), st.booleans(),
       st.integers(0, 2**40))  # fmt: skip
def test_forms_of_one_instruction_are_equal_whatever_the_version_prints(operands, reuse, base):
    text = "LDGSTS.E.BYPASS.128 [R49+0x18000], desc[UR4][R2.64], P4"
    listing = read_sass(f"f:\n/*0000*/ {text} ;\n.L_1:\n/*0010*/ @P0 BRA `(.L_1) ;\n/*0020*/ NOP ;")
    code = MachineCode("f", "sm_90", listing, flow_graph(listing), "", 8, 0)
    other = f"LDGSTS.E.BYPASS.128 {',  '.join(operands)}{'.reuse' * reuse}"
    table = InstructionTable(("samples",), [base, base + 16], [other, f"@P0   BRA {base + 16:#x}"],
                             ["", ""], [(3.0,), (float("nan"),)])  # fmt: skip
    samples = samples_of(code, [Dispatch("f", instructions=table)], "r")
    assert samples.counts == (3, 0, 0) and not any(map(samples.reason, range(3)))


def test_samples_are_on_the_page_and_in_the_text():
    code = sass("h200_mm.nvdisasm_gi.txt")
    samples = samples_of(code, profiled(), "p.csv")
    text = page(CodeView("k", "d", code, [], "workbench code x", samples=samples))
    assert "18,007 stall samples of one launch" in text and "<i class=h3>   2801 15.6 %</i>" in text
    assert "91.9 %" in text and "tile_truth.py:26" in text
    plain = page(CodeView("k", "d", code, [], "workbench code x"))
    assert "Stall samples" not in plain and "<i class" not in plain
    lines = [line for line in listing_lines(code, samples) if "2801 15.6 %" in line]
    assert len(lines) == 1 and lines[0].endswith("@!PT LDS RZ, [RZ]")


# Differences and pages


def test_the_same_code_has_no_differences():
    code = sass("mm_cuda_90.nvdisasm_g.txt")
    result = compare_code(code, code)
    assert result.same_binary and result.same_code and not result.mix and not result.loops
    assert "same" in comparison_sentence(result, "itself")


def test_differences_are_matched_by_block_and_loop():
    before, after = (sass(f"{name}_cuda_90.nvdisasm_g.txt") for name in ("mm", "mmspill"))
    result = compare_code(before, after)
    assert not result.same_binary and not result.same_code
    ((head, other, changes),) = result.loops
    assert head == other == 2  # the pipelined loop of both
    assert {"spills": (0, 144)}.items() <= {c.name: (c.before, c.after) for c in changes}.items()
    assert all(
        0 < pair.equal < 1 for pair in result.blocks if None not in (pair.before, pair.after)
    )
    assert {p.before for p in result.blocks} | {p.after for p in result.blocks} >= {0, 1, 2}


def test_a_new_block_is_found_where_it_is():
    text = (
        "f:\n\tv_add_u32 v0, v1, v2\n\ts_cbranch_scc1 .L_1\n{}"
        ".L_1:\n\tds_read_b64 v[0:1], v2\n\ts_endpgm"
    )
    codes = []
    for extra in (
        "\tv_exp_f32 v1, v2\n",
        "\tv_exp_f32 v1, v2\n\ts_cbranch_scc1 .L_1\n\tv_rcp_f32 v1, v2\n",
    ):
        listing = read_amdgcn_listing(text.format(extra))
        codes.append(MachineCode("f", "gfx942", listing, flow_graph(listing), extra, 8, 0))
    result = compare_code(*codes)
    assert [(p.before, p.after) for p in result.blocks] == [(1, 1), (None, 2)]
    assert result.equal_blocks == 2


@pytest.mark.parametrize("name", ["ws1_cuda_100.nvdisasm_gi.txt", "mmspill_cuda_90.nvdisasm_g.txt"])
def test_pages_are_small_and_their_links_lead_somewhere(name):
    code = sass(name)
    text = page(CodeView("<script>x</script>", "d", code, [("a", "b")], "workbench code x"))
    assert len(text.encode()) <= 600_000 and "<script>x" not in text
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    links = set(re.findall(r'href="#([^"]+)"', text))
    assert links <= set(ids)
    listed = {word for word in links if re.fullmatch(r"i\d+", word)}
    assert listed, "runs of a source line that are in the listing are links to it"
    assert f"B{max(code.graph.reachable)} " in text
    plural = "|".join(group for group in (*GROUPS, "instructions") if group.endswith("s"))
    assert not re.search(rf"\b1 ({plural})\b", text)


@given(st.integers(0, 9999), st.sampled_from(GROUPS))
def test_one_instruction_of_a_group_is_not_several(n, group):
    text = group_text(n, group)
    assert text.startswith(f"{n} ") and (text == f"{n} {group}") == (n != 1 or group[-1] != "s")


def test_the_largest_page_is_small():
    code = code_of_assembly(golden("mmspill_hip_gfx942.amdgcn"), None)
    text = page(CodeView("k", "d", code, [], "workbench code x"))
    assert len(text.encode()) <= 600_000
    ids = set(re.findall(r' id="([^"]+)"', text))
    assert set(re.findall(r'href="#([^"]+)"', text)) <= ids
    assert flow_svg(code) is None and "too many to draw" in text
    assert len(listing_lines(code)) == len(code.listing.instructions) + len(code.graph.blocks)


def test_dot_names_every_edge_once():
    code = sass("ws1_cuda_100.nvdisasm_gi.txt")
    edges = re.findall(r"B(\d+) -> B(\d+);", flow_dot(code))
    graph = code.graph
    assert edges == [
        (str(n), str(m)) for n in sorted(graph.reachable) for m in graph.blocks[n].successors
    ]


# The command, on files that need no disassembler


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "k.amdgcn").write_text(golden("mm_hip_gfx942.amdgcn"))
    return tmp_path


def workbench(capfd, *words):
    from workbench import cli

    status = cli.main(["code", *words])
    out, err = capfd.readouterr()
    return status, out + err


def test_the_command_reads_a_file(here, capfd):
    pytest.importorskip("triton")
    status, text = workbench(
        capfd, "k.amdgcn", "--json", "r.json", "--dot", "g.dot", "--find", "v_mfma"
    )
    assert status == 0 and "v_mfma: 96 instructions" in text
    result = json.loads((here / "r.json").read_text())["code"]
    assert result["registers"] == 210 and len(result["loops"]) == 1
    assert len(result["matches"]) == 96 and Path(here / "g.dot").read_text().startswith("digraph")
    status, text = workbench(capfd, "k.amdgcn", "--against", "k.amdgcn", "--text", "--quiet")
    assert status == 0 and "The binary is the same" in text and text.count("v_mfma_") >= 96


@pytest.mark.parametrize(
    "content, words",
    [
        (None, "no such file"),
        (b"", "neither a cubin"),
        (b"\x00\xff" * 500, "neither a cubin"),
        (b"\x7fELF" + bytes(60), "another machine"),
        (b"\x7fELF" + bytes(14) + b"\xe0\x00" + bytes(44), "its note is damaged"),
        (b'\t.amdgcn_target "amdgcn-amd-amdhsa--gfx942"\n', "no instruction"),
    ],
)
def test_files_that_cannot_be_read_get_one_sentence(here, capfd, content, words):
    pytest.importorskip("triton")
    if content is not None:
        (here / "x.cubin").write_bytes(content)
    status, text = workbench(capfd, "x.cubin")
    assert status == 2 and words in text and "Traceback" not in text


@pytest.mark.parametrize(
    "words, message",
    [
        (("matmul", "--device", "h2000"), "no device is named"),
        (("matmul", "--impl", "tils"), "tils"),
        (("no_kernel",), "no_kernel"),
        (("k.amdgcn", "--against", "tiles"), "is not a file"),
    ],
)
def test_requests_that_cannot_be_met(here, capfd, words, message):
    pytest.importorskip("triton")
    status, text = workbench(capfd, *words)
    assert status == 2 and message in text and "Traceback" not in text
