"""Machine code out of a profile of ncu, against nvdisasm's own listing of the same kernels."""

import gzip
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.cli import main
from workbench.code.code_reading import CodeError
from workbench.code.flow import flow_graph
from workbench.code.listing import read_sass
from workbench.code.profiled_code import code_of_dispatch, code_of_profile, listing_of
from workbench.reports.code import CodeView, page
from workbench.traces.readers import read
from workbench.traces.trace import CounterValue, Dispatch, InstructionTable

GOLDEN = Path(__file__).parents[1] / "golden"
H200 = GOLDEN / "traces" / "h200"
PAGE = H200 / "source_cuda_sass.csv.gz"
DISASSEMBLED = {0: "h200_add.nvdisasm_gi.txt.gz", 1: "h200_mm.nvdisasm_gi.txt.gz"}

pytestmark = pytest.mark.unit


def disassembled(name):
    return read_sass(gzip.decompress((GOLDEN / "code" / name).read_bytes()).decode())


@pytest.mark.parametrize("number", DISASSEMBLED)
def test_the_listing_of_a_profile_is_that_of_nvdisasm(number):
    """Opcodes, offsets, source lines, blocks and loops."""
    ours = listing_of(read([PAGE]).dispatches[number].instructions)
    theirs = disassembled(DISASSEMBLED[number])
    count = len(ours.instructions)
    for a, b in zip(ours.instructions, theirs.instructions[:count], strict=True):
        assert (a.address, a.opcode, a.predicate) == (b.address, b.opcode, b.predicate)
        if a.source is not None:  # padding has none
            assert b.source is not None
            assert (a.source.file, a.source.line) == (Path(b.source.file).name, b.source.line)
    graphs = flow_graph(ours), flow_graph(theirs)
    blocks = [[(x.start, x.end, x.successors) for x in graph.blocks] for graph in graphs]
    assert blocks[0] == blocks[1]
    assert graphs[0].all_loops() == graphs[1].all_loops() and not ours.lost_jumps


def test_the_code_with_the_most_samples_is_shown_and_others_are_named():
    dispatches = read([PAGE]).dispatches
    code, shown, others = code_of_profile(dispatches, None, "p")
    assert len(code.listing.instructions) == 1576 and shown == (dispatches[2],)
    assert others == ("add (--launch 0)", "mm (--launch 1)")
    code, shown, others = code_of_profile([*dispatches, dispatches[0]], 3, "p")
    assert code.name == "add" and len(shown) == 2 and len(others) == 2
    for launch in (-1, 3):
        with pytest.raises(CodeError, match=r"name one of 0, 1, 2"):
            code_of_profile(dispatches, launch, "p")
    with pytest.raises(CodeError, match="SourceCounters"):
        code_of_profile([Dispatch("k")], None, "p")


def test_target_and_registers_are_of_the_counters():
    counters = {
        name: CounterValue(name, value, "", str(value), "ok")
        for name, value in {
            "device__attribute_compute_capability_major": 10.0,
            "device__attribute_compute_capability_minor": 3.0,
            "launch__registers_per_thread": 77.0,
        }.items()
    }
    table = InstructionTable(("samples",), [64], ["EXIT"], [""], [(1.0,)])
    code = code_of_dispatch(Dispatch("k", instructions=table, counters=counters))
    assert (code.arch, code.registers, code.stack_bytes, code.live) == ("sm_103", 77, None, ())
    assert code_of_dispatch(Dispatch("k", instructions=table)).arch == "sm"


@given(st.lists(st.tuples(st.text(max_size=30), st.text(max_size=20)), max_size=8),
       st.integers(0, 2**40))  # fmt: skip
def test_any_text_of_a_profile_is_a_listing_or_a_refusal(rows, base):
    addresses = [base + 16 * n for n in range(len(rows))]
    rest = [text for text, _ in rows], [place for _, place in rows], [(1.0,) for _ in rows]
    table = InstructionTable(("samples",), addresses, *rest)
    known = listing_of(table).instructions
    assert len(known) <= 2 * len(rows)
    if known:
        assert code_of_dispatch(Dispatch("k", instructions=table)).graph.blocks


# The command


def run(*words, tmp_path, code=0):
    document = tmp_path / "code.json"
    assert main(["code", *map(str, words), "--out", str(tmp_path), "--json", str(document)]) == code
    return json.loads(document.read_text()) if code == 0 else None


def test_code_of_a_profile_has_samples_and_stalls_by_loop_and_instruction(tmp_path, capsys):
    known = run(PAGE, "--text", tmp_path=tmp_path)["code"]
    out = capsys.readouterr().out
    assert "177,548 stall samples of one launch" in out and "main stalls" in out
    assert "also launched, not shown: add (--launch 0), mm (--launch 1)" in out
    (loop,) = known["loops"]
    assert loop["sample_share"] == pytest.approx(0.984, abs=1e-3)
    assert next(iter(loop["stalls"])) == "lg_throttle" and sum(loop["stalls"].values()) < 1
    (line,) = [text for text in out.splitlines() if "STL.64 [R1+0x288], R158" in text][-1:]
    assert re.match(r" +26 02a20 +11113  6.3 % long_scoreboard", line)
    text = next(tmp_path.glob("*/code.html")).read_text()
    assert "main stalls" in text and "11113" in text


def test_two_kernels_of_one_profile_are_compared(tmp_path, capsys):
    other = tmp_path / "other.csv.gz"
    other.write_bytes(PAGE.read_bytes())
    known = run(PAGE, "--launch", 1, "--against", other, tmp_path=tmp_path)["code"]
    assert known["comparison"]["same_code"] is False and known["function"] == "mm"


@pytest.mark.parametrize("words, sentence", [
    ((PAGE, "--samples", PAGE), "leave out --samples"),
    ((PAGE, "--launch", 9), "has no instructions of launch 9"),
    (("softmax", "--launch", 0), "--launch chooses a launch of a profile"),
    ((H200 / "raw_base.csv.gz",), "holds no instructions of kernels"),
    ((PAGE, "--against", "tiles"), "is not a file"),
])  # fmt: skip
def test_what_does_not_go_together_is_refused_in_one_sentence(tmp_path, capsys, words, sentence):
    run(*words, tmp_path=tmp_path, code=2)
    error = capsys.readouterr().err
    assert sentence in " ".join(error.split()) and "Traceback" not in error


def test_source_texts_are_those_of_the_profile_never_of_this_folder(tmp_path, monkeypatch):
    """A profile names files without their folders."""
    monkeypatch.chdir(tmp_path)
    Path("k.py").write_text("text of another file\n")
    rows = ["LDG.E R1, [R2.64]", "EXIT"]
    table = InstructionTable(("samples",), [0, 16], rows, ["k.py:1", "k.py:2"], [(1.0,), (0.0,)],
                             {"k.py": "first line\n<second> line\n"})  # fmt: skip
    code = code_of_dispatch(Dispatch("k", instructions=table))
    view = CodeView("k", "d", code, [], "workbench code x", sources=table.sources)
    assert "first line" in page(view) and "&lt;second&gt; line" in page(view)
    bare = page(CodeView("k", "d", code, [], "workbench code x", sources={}))
    assert "another file" not in bare
