"""The lines that diagnoses of counters name: real pages of one H200, and written instructions."""

import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.cli import main
from workbench.code.listing import Instruction
from workbench.code.profiled_code import listing_of
from workbench.code.responsible import LEAST_SHARE, MOST_LINES, responsible_lines
from workbench.code.sass_registers import Definitions, register_use
from workbench.traces.instruction_class import InstructionClass as Kind
from workbench.traces.readers import read
from workbench.traces.rules import evaluate_kernel, kernel_rules
from workbench.traces.trace import Dispatch, InstructionTable

H200 = Path(__file__).parents[1] / "golden" / "traces" / "h200"
PAGE, RAW = H200 / "source_cuda_sass.csv.gz", H200 / "raw_base.csv.gz"
# Rules about the launch, the clock or the Spec: no instruction is responsible.
OF_NO_INSTRUCTION = {
    "deferred_writes",
    "at_ceiling",
    "clock",
    "model",
    "occupancy",
    "small_grid",
    "tail",
}

pytestmark = pytest.mark.unit


def table(*rows, columns=("samples",)):
    """Rows of text, line and values, 16 bytes each from 0x7f00."""
    return InstructionTable(
        columns,
        [0x7F00 + 16 * n for n in range(len(rows))],
        [text for text, _, *_ in rows],
        [f"k.py:{line}" if line else "" for _, line, *_ in rows],
        [tuple(values) or (0.0,) * len(columns) for _, _, *values in rows],
    )


def lines(*rows, columns):
    return responsible_lines(Dispatch("k", instructions=table(*rows, columns=columns)))


def waits(*rows, reason="long_sb", kind=Kind.LOAD_WAITS):
    return lines(*rows, columns=(f"stall_{reason}",)).get(kind.value, ())


# Real pages


def test_real_kernels_name_the_lines_of_their_source():
    add, _, spilled = map(responsible_lines, read([PAGE]).dispatches)
    assert add[Kind.LOAD_WAITS] == (
        "profile_kernels.py:14 (100 % of the waits for loads: LDG.E.128, awaited by FADD)",
    )
    assert Kind.SPILLS not in add and Kind.EXCESS_SECTORS not in add
    assert spilled[Kind.SPILLS] == ("tile_truth.py:26 (97 % of the spill instructions: STL.64)",)


@pytest.mark.parametrize("kind, pattern, head", [
    (Kind.SPILLS, r"(@\S+ +)?(LDL|STL)", "Instructions Executed"),
    (Kind.XU, r"(@\S+ +)?(MUFU|I2F|F2I)", "Instructions Executed"),
    (Kind.SECTORS, r".*", "L2 Theoretical Sectors Global"),
])  # fmt: skip
def test_shares_are_those_of_the_columns_of_the_page(kind, pattern, head):
    """Counted anew by line from the page itself."""
    for dispatch in read([PAGE]).dispatches:
        known = dispatch.instructions
        at = known.heads.index(head)
        counts = Counter()
        for text, place, row in zip(known.texts, known.places, known.values, strict=True):
            if re.match(pattern, text):
                counts[place] += row[at] or 0
        named = responsible_lines(dispatch).get(kind, ())
        assert bool(named) == bool(sum(counts.values()))
        for line, (place, count) in zip(named, counts.most_common(), strict=False):
            share = int(re.search(r"\((\d+) %", line)[1])
            assert share == pytest.approx(100 * count / sum(counts.values()), abs=0.51)
            assert counts[line.split(" (")[0]] == count or line.startswith(place)


def test_diagnose_says_the_lines_and_stored_runs_keep_them(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WORKBENCH_DATABASE", f"sqlite:///{tmp_path / 'runs.db'}")
    out = ["--out", str(tmp_path), "--database", f"sqlite:///{tmp_path / 'runs.db'}"]
    assert main(["diagnose", str(RAW), str(PAGE)]) == 0
    fresh = capsys.readouterr().out
    assert "at tile_truth.py:26 (97 % of the spill instructions: STL.64)" in fresh
    assert main(["read", str(RAW), str(PAGE), *out]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "At tile_truth.py:26 (97 % of the spill instructions: STL.64)." in told
    assert main(["diagnose", "last", *out[2:]]) == 0
    stored = capsys.readouterr().out
    named = [line for line in fresh.splitlines() if line.startswith("   at ")]
    assert named and all(line in stored for line in named)
    page = next(tmp_path.glob("*/report.html")).read_text()
    assert "<code>tile_truth.py:26 (97 % of the spill instructions: STL.64)</code>" in page


# Rules


def test_every_rule_of_counters_names_instructions_or_is_of_none():
    """Each class is of some rule, and no two lists say different things of one."""
    text = {name: Path(f"workbench/traces/rules/{name}.py") for name in kernel_rules()}
    root = Path(__file__).parents[2]
    named = {n for n, path in text.items() if "instructions=" in (root / path).read_text()}
    assert named == set(kernel_rules()) - OF_NO_INSTRUCTION, (
        "a Diagnosis names its `instructions=`, or the rule is entered in OF_NO_INSTRUCTION"
    )
    sources = "".join((root / path).read_text() for path in text.values())
    assert all(f"InstructionClass.{kind.name}" in sources for kind in Kind)


def test_a_diagnosis_has_the_lines_of_its_class_alone():
    metrics = {"spill_share": 0.5, "duration": 1e-3}
    known = {Kind.SPILLS.value: ("a.py:1",), Kind.ATOMICS.value: ("b.py:1",)}
    (match,) = evaluate_kernel(metrics, known)
    assert match.diagnosis.places == ("a.py:1",)
    (match,) = evaluate_kernel(metrics)
    assert match.diagnosis.places == ()


# Classes by what ran


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 10**6)), min_size=1, max_size=40))
def test_the_lines_with_the_most_come_first_and_small_ones_are_left_out(rows):
    counts = Counter()
    for line, count in rows:
        counts[f"k.py:{line}"] += count
    known = lines(*[("LDL R1, [R2]", line, count) for line, count in rows], columns=("executed",))
    named = [text.split(" (")[0] for text in known.get(Kind.SPILLS, ())]
    whole = sum(counts.values())
    assert len(named) <= MOST_LINES and bool(named) == bool(whole)
    shares = [counts[line] / whole for line in named]
    assert shares == sorted(shares, reverse=True)
    assert all(share >= LEAST_SHARE for share in shares[1:])
    left = [n / whole for line, n in counts.items() if line not in named] if whole else []
    assert all(s < LEAST_SHARE or len(named) == MOST_LINES for s in left if named)
    assert not left or max(left) <= min(shares)


@pytest.mark.parametrize("kind, head, text", [
    (Kind.EXCESS_SECTORS, "L2 Theoretical Sectors Global Excessive", "LDG.E.U16 R1, [R2.64]"),
    (Kind.CONFLICTS, "L1 Wavefronts Shared Excessive", "LDS R1, [R2]"),
    (Kind.ATOMICS, "Instructions Executed", "REDG.E.ADD.F32 [R2.64], R1"),
    (Kind.FP64, "Instructions Executed", "DFMA R2, R4, R6, R8"),
    (Kind.FP64, "Instructions Executed", "F2F.F64.F32 R2, R4"),
    (Kind.XU, "Instructions Executed", "@P0 MUFU.EX2 R1, R2"),
])  # fmt: skip
def test_each_class_has_its_instructions(kind, head, text):
    rows = [("FADD R1, R2, R3", 7, 0 if "Excess" in head else 900), (text, 8, 100)]
    (line,) = lines(*rows, columns=(head,))[kind]
    assert line == f"k.py:8 (100 % of the {kind}: {text.removeprefix('@P0 ').split()[0]})"


def test_lanes_that_are_off_are_counted_by_line():
    heads = ("executed", "lanes", "Thread Instructions Executed")
    known = lines(("LDG.E R1, [R2.64]", 3, 100, 800, 3200), ("FADD R1, R1, R1", 4, 50, 50, 400),
                  columns=heads)  # fmt: skip
    assert known[Kind.MASKED_LANES][0].startswith("k.py:3 (100 %")
    assert known[Kind.INACTIVE_LANES][0].startswith("k.py:4 (100 %")


def test_without_columns_or_source_lines_less_is_said():
    assert lines(("LDL R1, [R2]", 3, 5.0), columns=("anything",)) == {}
    assert responsible_lines(Dispatch("k")) == {}
    assert responsible_lines(Dispatch("k", instructions=InstructionTable(("executed",)))) == {}
    (line,) = lines(("FADD R1, R2, R3", 0, 9), ("LDL R1, [R2]", 0, 5), columns=("executed",))[
        Kind.SPILLS
    ]
    assert line.startswith("+0x10 (100 %")


def test_numbers_of_a_damaged_file_count_as_nothing():
    rows = [("LDL R1, [R2]", 3, float("inf")), ("STL [R2], R1", 4, -5.0), ("STL [R2], R1", 5, 1.0)]
    (line,) = lines(*rows, columns=("executed",))[Kind.SPILLS]
    assert line.startswith("k.py:5")


@given(st.lists(st.tuples(
    st.one_of(st.text(max_size=20), st.sampled_from([
        "x /*0090*/ FADD R1, R2, R3;", "BRA 0x7f00", "BRA 0x7f08", "LDG.E.128 R254, [R2.64]",
        '//## File "a", line 3', ".section .text", "@P0 FADD R1, R1, R1", "lower R1, R2",
    ])), st.integers(0, 3), st.floats(0, 10)), max_size=8))  # fmt: skip
def test_any_instructions_have_lines_or_none(rows):
    """A damaged page never ends in an error."""
    heads = ("stall_long_sb", "executed", "lanes", "stall_wait", "# Samples")
    full = [(text, line, *[value] * len(heads)) for text, line, value in rows]
    for named in lines(*full, columns=heads).values():
        assert 1 <= len(named) <= MOST_LINES


def test_a_long_kernel_is_traced_back_a_bounded_way():
    """The load is 5,000 instructions before; in a loop it would be nearer."""
    many = [("FADD R9, R8, R8", 2, 0.0)] * 5000
    rows = [("LDG.E R4, [R2.64]", 1, 0.0), *many, ("FADD R1, R4, R4", 3, 50.0)]
    assert waits(*rows) == ("k.py:3 (100 % of the waits for loads: FADD waits there)",)


# Waits

WAITING = {
    "the load, not what lies between": (
        ("LDG.E.128 R4, desc[UR4][R2.64]", 10, 0), ("IADD3 R9, R8, R8, RZ", 11, 0),
        ("FADD R1, R6, R0", 12, 90), "k.py:10", "LDG.E.128, awaited by FADD at k.py:12"),
    "a guarded load, under which an older one lies": (
        ("LDG.E R4, [R2.64]", 10, 0), ("@P0 LDG.E R4, [R8.64]", 11, 0),
        ("FADD R1, R4, R0", 12, 90), "k.py:11", "LDG.E, awaited by FADD at k.py:12"),
    "what another instruction overwrote is not waited for": (
        ("LDG.E R4, [R2.64]", 10, 0), ("MOV R4, R5", 11, 0),
        ("FADD R1, R4, R0", 12, 90), "k.py:12", "FADD waits there"),
    "a guard that a load gave": (
        ("ATOMG.E.CAS PT, R4, [R2.64], R6, R7", 10, 0), ("NOP", 11, 0),
        ("ISETP.NE.AND P0, PT, R4, RZ, PT", 12, 90), "k.py:10",
        "ATOMG.E.CAS, awaited by ISETP.NE.AND at k.py:12"),
    "a copy by group": (
        ("LDGSTS.E.128 [R1], desc[UR4][R2.64]", 10, 0), ("LDGDEPBAR", 11, 0),
        ("DEPBAR.LE SB0, 0x1", 12, 90), "k.py:10",
        "LDGSTS.E.128, awaited by DEPBAR.LE at k.py:12"),
    "an access that reads late what is overwritten": (
        ("STG.E [R2.64], R4", 10, 0), ("NOP", 11, 0), ("MOV R4, R5", 12, 90), "k.py:10",
        "STG.E, awaited by MOV at k.py:12"),
    "a load of what is overwritten": (
        ("LDG.E R4, [R2.64]", 10, 0), ("NOP", 11, 0), ("MOV R4, R5", 12, 90), "k.py:10",
        "LDG.E, awaited by MOV at k.py:12"),
}  # fmt: skip


@pytest.mark.parametrize("name", WAITING)
def test_a_wait_is_of_what_the_instruction_waits_for(name):
    *rows, place, what = WAITING[name]
    assert waits(*rows) == (f"{place} (100 % of the waits for loads: {what})",)


def test_a_wait_is_traced_around_a_loop():
    """The load at the end of the body is awaited at its head."""
    rows = [("NOP", 1, 0), ("FADD R1, R4, R1", 2, 90), ("LDG.E R4, [R2.64]", 3, 0),
            ("@P0 BRA 0x7f10", 4, 0), ("EXIT", 5, 0)]  # fmt: skip
    assert waits(*rows) == (
        "k.py:3 (100 % of the waits for loads: LDG.E, awaited by FADD at k.py:2)",
    )


def test_barriers_and_arithmetic_have_their_own_waits():
    barrier = [("BAR.SYNC 0x0", 5, 0), ("LDS R1, [R2]", 6, 70)]
    assert waits(*barrier, reason="barrier", kind=Kind.EXCHANGE_WAITS) == (
        "k.py:5 (100 % of the waits at barriers and for shared memory: BAR.SYNC, awaited by LDS "
        "at k.py:6)",
    )
    shared = [("LDS R1, [R2]", 6, 0), ("FADD R3, R1, R1", 7, 70)]
    assert waits(*shared, reason="short_sb", kind=Kind.EXCHANGE_WAITS)[0].startswith("k.py:6")
    chain = [("FFMA R1, R1, R2, R3", 6, 0), ("FFMA R1, R1, R2, R3", 7, 70)]
    assert waits(*chain, reason="wait", kind=Kind.ARITHMETIC_WAITS)[0].startswith("k.py:6")
    assert waits(*chain, reason="wait") == ()


def test_loads_from_tensor_memory_are_told_from_others():
    rows = [("LDTM.x32 R4, tmem[UR4]", 5, 0), ("LDG.E R50, [R2.64]", 6, 0),
            ("FADD R1, R35, R1", 7, 60), ("FADD R1, R50, R1", 8, 50)]  # fmt: skip
    (line,) = waits(*rows, kind=Kind.TENSOR_MEMORY_WAITS)
    assert line.startswith("k.py:5 (100 %") and len(waits(*rows)) == 2


# Registers


def of(text):
    opcode, _, operands = text.partition(" ")
    use = register_use(Instruction(opcode, operands))
    return " ".join(sorted(use.destinations)), " ".join(sorted(use.read))


@pytest.mark.parametrize("text, written, read_", [
    ("IADD3 R4, P0, R2, R3, RZ", "P0 R4", "R2 R3"),
    ("IMAD.WIDE R2, R0, 0x4, R6", "R2 R3", "R0 R6 R7"),
    ("LDG.E.64 R8, desc[UR4][R2.64+0x8]", "R8 R9", "R2 R3 UR4"),
    ("STG.E.128 desc[UR4][R2.64], R12", "", "R12 R13 R14 R15 R2 R3 UR4"),
    ("SHFL.BFLY PT, R3, R2, 0x10, 0x1f", "R3", "R2"),
    ("ISETP.GE.AND P0, PT, R2, R3, P1", "P0", "P1 R2 R3"),
    ("LOP3.LUT P0, RZ, R0, 0x1f, RZ, 0xc0, !PT", "P0", "R0"),
    ("DADD R2, R4, R6", "R2 R3", "R4 R5 R6 R7"),
    ("LDSM.16.M88.4 R8, [R2]", "R10 R11 R8 R9", "R2"),
    ("LDTM.x2 R8, tmem[UR4]", "R8 R9", "UR4"),
    ("LDGSTS.E.BYPASS.128 desc[UR14][R6.64], P1, [R163]", "", "P1 R163 R6 R7 UR14"),
    ("HMMA.16816.F32.BF16 R4, R8, R12, R4", "R4 R5 R6 R7",
     "R10 R11 R12 R13 R4 R5 R6 R7 R8 R9"),
    ("R2UR UR4, R2", "UR4", "R2"),
    ("EXIT", "", ""),
    ("CS2R R4, SRZ", "R4 R5", ""),
])  # fmt: skip
def test_registers_of_an_instruction(text, written, read_):
    assert of(text) == (" ".join(sorted(written.split())), " ".join(sorted(read_.split())))


def test_a_warpgroup_product_writes_its_whole_accumulator():
    written, _ = of("HGMMA.64x256x16.F32.BF16 R24, gdesc[UR8].tnspB, R24, gsb0")
    assert len(written.split()) == 128 and "R151" in written


@given(st.lists(st.sampled_from(["MOV R1, R2", "FADD R2, R1, R1", "@P0 MOV R1, R3"]), max_size=12))
def test_writers_on_a_straight_line_are_the_last_ones(texts):
    """An unguarded write hides all before it; guarded ones do not."""
    rows = [*[(text, 1) for text in texts], ("FADD R9, R1, R1", 2), ("EXIT", 3)]
    expected = []
    for place in reversed(range(len(texts))):
        if "MOV R1" in texts[place]:
            expected.append(place)
            if not texts[place].startswith("@"):
                break
    known = Definitions(listing_of(table(*rows)))
    assert known.writers(len(texts), frozenset({"R1"})) == expected
