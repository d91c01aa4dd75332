"""Tools of the vendors without one: command lines and refusals as text, failures by what tools
print, and runs from end to end with small programs that write what the real tools wrote."""

import gzip
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from null_backend import Null
from source_pages import PageRow, source_page

from workbench.cli import main
from workbench.commands.options import OptionError
from workbench.commands.profile import ProfileOptions
from workbench.commands.profile_command import chosen_tool
from workbench.commands.profile_counters import counter_groups
from workbench.traces.profilers import (
    Command,
    ProfilerError,
    ToolRun,
    preflight,
    profilers,
    refusal,
    run_tool,
)
from workbench.traces.profilers.names import (
    CHIPS,
    SUBMETRICS,
    CounterError,
    counter,
    list_names,
    names_of,
)
from workbench.traces.profilers.running.child import ChildEnd
from workbench.traces.profilers.running.expected import check_dispatches
from workbench.traces.profilers.running.failures import check_exit, failure, inaccessible_counters
from workbench.traces.profilers.running.machine import Machine
from workbench.traces.profilers.running.permission import CounterPermission, counter_permission
from workbench.traces.profilers.running.workload import MarkedCalls, Workload
from workbench.traces.profilers.xctrace import INSTRUMENTS
from workbench.traces.trace import Dispatch, Trace

pytestmark = pytest.mark.unit

TRACES = Path(__file__).parents[1] / "golden" / "traces"
NVIDIA = ("ncu", "nsys", "sanitizer")
AMD = ("rocprof", "rocprof-compute", "rocprofv3")
PROGRAMS = {
    name: f"/t/{name}"
    for name in ("ncu", "nsys", "compute-sanitizer", "rocprofv3", "rocprof", "rocprof-compute",
                 "xcrun")
}  # fmt: skip
VERSIONS = {"torch": "2.11.0", "triton": "3.6.0"}
FORBIDDEN = CounterPermission(False, "only administrators may read them", "ask one")
MACHINES = {
    "nvidia": Machine("/p/python", "cuda", VERSIONS, {}, PROGRAMS),
    "amd": Machine("/p/python", "hip", VERSIONS, {}, PROGRAMS),
    "macos": Machine("/p/python", "", VERSIONS, {}, PROGRAMS, "darwin"),
    "none": Machine("/p/python", "", VERSIONS, {}, PROGRAMS),
    "missing": Machine("/p/python", "cuda", VERSIONS),
    "missing_amd": Machine("/p/python", "hip", VERSIONS),
    "forbidden": Machine("/p/python", "cuda", VERSIONS, {}, PROGRAMS, counters=FORBIDDEN),
    "no_group": Machine("/p/python", "hip", VERSIONS, {}, PROGRAMS, kfd=False),
}
CALLS = Workload(("/p/python", "R/call.py"), "softmax.rows", None, MarkedCalls(1, True, "_rows", 1))
PROGRAM = Workload(("prog", "--x"), "prog")
NAMES = (
    "SpeedOfLight", "LaunchStats", "Occupancy", "WarpStateStats", "SchedulerStats",
    "MemoryWorkloadAnalysis", "MemoryWorkloadAnalysis_Tables", "InstructionStats",
    "ComputeWorkloadAnalysis", "SourceCounters", "WorkloadDistribution",
)  # fmt: skip
SECTIONS = " ".join(f"--section {name}" for name in NAMES)
CLOCK = "--clock-control none --cache-control all"
MARKS = "--profile-from-start off --nvtx --nvtx-include wb/"
LEFT = "-f -o R/ncu --log-file R/ncu.log"
CMD = "/p/python R/call.py"


def lines(tool, workload=CALLS, machine="nvidia"):
    """All command lines of a tool."""
    profiler, here = profilers()[tool], MACHINES[machine]
    first = profiler.argv(here, workload, Path("R"))
    rest = profiler.further(here, workload, Path("R"))
    return [" ".join(first), *(" ".join(command.argv) for command in rest)]


# Command lines


def test_the_command_lines_of_ncu():
    imported = "/t/ncu --import R/ncu.ncu-rep --csv --print-units base --page"
    assert lines("ncu") == [
        f"/t/ncu {CLOCK} {MARKS} --import-source yes {SECTIONS} {LEFT} {CMD}",
        f"{imported} raw",
        f"{imported} source --print-source sass",
    ]
    with_package = replace(MACHINES["nvidia"], versions={"ncu-report": "2026"})
    assert profilers()["ncu"].further(with_package, CALLS, Path("R")) == []
    more = replace(CALLS, counters=("a.sum", "b.avg"), selection="detailed")
    assert lines("ncu", more)[0] == (
        f"/t/ncu {CLOCK} {MARKS} --set detailed --section WarpStateStats --import-source yes "
        f"--metrics a.sum,b.avg {LEFT} {CMD}"
    )
    source = "--section SourceCounters --import-source yes"
    assert lines("ncu", replace(CALLS, selection="source"))[0] == (
        f"/t/ncu {CLOCK} {MARKS} {source} {LEFT} {CMD}"
    )


def test_the_command_lines_of_the_sanitizer():
    def line(check):
        # what another kernel writes must be seen, else initcheck takes it for uninitialised
        filtered = "" if check == "initcheck" else "--kernel-name kernel_name=_rows "
        return (
            f"/t/compute-sanitizer --tool {check} --error-exitcode 86 --print-limit 100 --xml "
            f"--save R/{check}.xml --log-file R/{check}.log {filtered}{CMD}"
        )

    assert lines("sanitizer") == [
        line(check) for check in ("synccheck", "racecheck", "memcheck", "initcheck")
    ]
    assert profilers()["sanitizer"].variables == {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}


def test_the_command_lines_of_the_other_tools():
    assert lines("nsys") == [
        "/t/nsys profile --trace=cuda,nvtx --sample=none --cpuctxsw=none --cuda-graph-trace=node "
        "--capture-range=cudaProfilerApi --capture-range-end=stop -f true -o R/nsys " + CMD,
        "/t/nsys export --type sqlite -f true -o R/nsys.sqlite R/nsys.nsys-rep",
    ]
    trace = "--kernel-trace --hip-runtime-trace --memory-copy-trace --marker-trace"
    groups = replace(CALLS, counters=("SQ_WAVES,SQ_INSTS", "TCC_HIT_sum"))
    only = "--kernel-include-regex ^_rows --kernel-iteration-range [2-2] --output-format rocpd"
    assert lines("rocprofv3", groups, "amd") == [
        f"/t/rocprofv3 {trace} --output-format rocpd -d R -o trace -- {CMD}",
        f"/t/rocprofv3 --pmc SQ_WAVES SQ_INSTS {only} -d R -o counters0 -- {CMD}",
        f"/t/rocprofv3 --pmc TCC_HIT_sum {only} -d R -o counters1 -- {CMD}",
    ]
    assert lines("rocprof", machine="amd") == [
        f"/t/rocprof --stats --hip-trace --hsa-trace -o R/rocprof.csv {CMD}"
    ]
    assert lines("rocprof-compute", machine="amd") == [
        f"/t/rocprof-compute profile -n wb --path R/rocprof_compute --no-roof -k _rows -- {CMD}"
    ]
    assert lines("xctrace", machine="macos") == [
        "/t/xcrun xctrace record --template Metal System Trace --output R/metal.trace "
        f"--time-limit 8s --no-prompt --launch -- {CMD}",
        "/t/xcrun xctrace export --input R/metal.trace --xpath "
        '/trace-toc/run[@number="1"]/data/table[@schema="metal-gpu-intervals"]',
    ]
    both = replace(CALLS, instruments=INSTRUMENTS)
    more = "--instrument Time Profiler --instrument Allocations --output R/metal.trace"
    assert more in lines("xctrace", both, "macos")[0]


@pytest.mark.parametrize("tool", [*NVIDIA, *AMD, "xctrace"])
def test_a_program_is_run_as_it_is_written(tool, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    machine = replace(MACHINES["none"], programs={**PROGRAMS, "prog": "/bin/prog"})
    line = profilers()[tool].argv(machine, PROGRAM, Path("R"))
    assert line[-2:] == ["/bin/prog", "--x"] and "wb/" not in line
    with pytest.raises(Exception, match=r"There is no program prog"):
        profilers()[tool].argv(MACHINES["none"], PROGRAM, Path("R"))


# Refusals

REFUSED = {
    **{(tool, "none"): "no driver shows one" for tool in (*NVIDIA, *AMD)},
    **{(tool, "macos"): "no driver shows one" for tool in (*NVIDIA, *AMD)},
    **{(tool, "amd"): "NVIDIA GPU" for tool in NVIDIA},
    **{(tool, "nvidia"): "AMD" for tool in AMD},
    **{(tool, "missing"): "not on the path; install" for tool in NVIDIA},
    **{(tool, "missing_amd"): "not on the path" for tool in AMD},
    **{("xctrace", machine): "for macOS" for machine in ("none", "nvidia", "amd")},
    ("xctrace", "macos"): "name a program",
    ("ncu", "forbidden"): "only administrators may read them; ask one",
    ("rocprofv3", "no_group"): "group render",
}


@pytest.mark.parametrize(("tool", "machine"), REFUSED)
def test_a_tool_that_cannot_run_says_so_in_a_sentence(tool, machine):
    with pytest.raises(ProfilerError, match=REFUSED[tool, machine]) as error:
        preflight(profilers()[tool], MACHINES[machine], CALLS)
    assert "\n" not in str(error.value) and str(error.value).endswith(".")


@pytest.mark.parametrize(("machine", "tools"), [("nvidia", NVIDIA), ("amd", AMD)])
def test_a_tool_that_can_run_is_not_refused(machine, tools):
    for tool in tools:
        assert refusal(profilers()[tool], MACHINES[machine], CALLS) is None
    assert refusal(profilers()["xctrace"], MACHINES["macos"], PROGRAM) is None
    assert refusal(profilers()["nsys"], MACHINES["forbidden"], CALLS) is None  # needs no counters


@pytest.mark.parametrize(
    ("machine", "tool", "reason"),
    [
        ("nvidia", "ncu", ""), ("amd", "rocprofv3", ""), ("none", "trace", ""),
        ("forbidden", "trace", "without counters: ncu cannot read counters"),
        ("missing", "trace", "install NVIDIA Nsight Compute"),
        ("no_group", "trace", "group render"),
    ],
)  # fmt: skip
def test_the_default_tool_of_a_kernel(machine, tool, reason):
    name, sentence = chosen_tool(ProfileOptions(target=("softmax",)), MACHINES[machine])
    assert name == tool and reason in sentence and bool(sentence) == bool(reason)


def test_the_default_tool_of_a_kernel_on_a_mac():
    """A capture where the environment allows one; else the command line that records intervals."""
    options, mac = ProfileOptions(target=("softmax",), dtype="fp16"), MACHINES["macos"]
    allowed = replace(mac, variables={"MTL_CAPTURE_ENABLED": "1"})
    name, sentence = chosen_tool(options, allowed)
    assert name == "gputrace" and "no times in it" in sentence
    for variables in ({}, {"MTL_CAPTURE_ENABLED": "0"}):
        with pytest.raises(ProfilerError) as raised:
            chosen_tool(options, replace(mac, variables=variables))
        program = "/p/python -m metal_shim.capture softmax --dtype fp16 --calls 200"
        said = str(raised.value)
        assert f"`workbench profile --tool xctrace -- {program}`" in said
        assert "xctrace record --template 'Metal System Trace' --output metal.trace" in said
        assert f"--launch -- {program}`." in said
    assert chosen_tool(replace(options, with_=("shapes",)), mac)[0] == "trace"
    assert chosen_tool(ProfileOptions(target=("--", "prog")), mac)[0] == "trace"


def test_the_default_tool_of_what_is_asked():
    def of(machine="nvidia", target=("softmax",), **options):
        return chosen_tool(ProfileOptions(target=target, **options), MACHINES[machine])[0]

    assert of(target=("--", "prog")) == "trace" and of(with_=("shapes",)) == "trace"
    assert of("forbidden", metrics="a") == "ncu" and of("amd", metrics="A") == "rocprofv3"
    assert of("forbidden", tool="ncu") == "ncu"


@pytest.mark.parametrize(
    ("restricted", "status", "allowed"),
    [("0", "", True), ("1", "CapEff: 0", False), ("1", "CapEff: 200000", True), (None, "", None)],
)
def test_the_drivers_word_on_counters(tmp_path, restricted, status, allowed):
    if restricted:
        (tmp_path / "params").write_text(f"RmProfilingAdminOnly: {restricted}\n")
    (tmp_path / "status").write_text(f"{status}\n")
    known = counter_permission(tmp_path / "params", tmp_path / "status")
    assert known.is_allowed is allowed and bool(known.remedy) == (allowed is False)


# What tools print

PRINTED = {
    "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission": "CAP_SYS_ADMIN",
    "==WARNING== No kernels were profiled.": "--dry-run",
    "==ERROR== Profiling failed because a driver resource was unavailable.": "dcgmi profile",
    "==ERROR== LibraryNotLoaded": "driver's libraries",
    "==ERROR== Device not supported": "does not support the GPU",
    "OSError: [Errno 28] No space left on device": "--out",
    "==ERROR== unrecognised option '--source-level'. Use --help": "--source-level",
    "rocprofv3: error: unrecognized arguments: --marker-trace": "--marker-trace",
    "==ERROR== Failed to find section: WorkloadDistribution": "WorkloadDistribution",
    "========= Error: No attachable process found. timed-out.": "sandbox",
}


def ended(folder, code=0, files=("f",), workload=CALLS, timed_out=False):
    end = ChildEnd(code, 0, timed_out)
    return ToolRun(workload, folder, end, tuple(Path(f) for f in files))


@pytest.mark.parametrize("text", PRINTED)
def test_each_failure_has_its_sentence_and_remedy(text, tmp_path):
    (tmp_path / "tool.log").write_text(f"==PROF== Connected\n{text}\n")
    for run in (ended(tmp_path, 1), ended(tmp_path, 0, ())):
        with pytest.raises(ProfilerError) as error:
            check_exit(run, "ncu")
        sentence = str(error.value)
        assert PRINTED[text] in sentence and sentence.endswith(".") and "\n" not in sentence


def test_a_tool_that_says_nothing_known(tmp_path):
    check_exit(ended(tmp_path), "ncu")
    with pytest.raises(ProfilerError, match=r"exit code 7.*repeats them without it"):
        check_exit(ended(tmp_path, 7), "ncu")
    with pytest.raises(ProfilerError, match=r"took too long.*hang"):
        check_exit(ended(tmp_path, timed_out=True), "ncu")
    (tmp_path / "tool.log").write_text("strange\x1b[31m\n")
    with pytest.raises(ProfilerError, match=r"left no file.*strange\[31m; `--dry-run`"):
        check_exit(ended(tmp_path, 0, ()), "ncu")
    assert failure("all is well") is None


def test_counters_that_ncu_cannot_access():
    text = "==WARNING== Unable to access the following 2 metrics: a.sum, b.\n"
    assert inaccessible_counters(text) == ["a.sum", "b."]


@given(st.dictionaries(st.sampled_from(["_rows", "_fill", "x"]), st.integers(1, 3)))
def test_exactly_the_marked_dispatches_pass(counts):
    trace = Trace("ncu", dispatches=[Dispatch(n, str(i)) for n, c in counts.items()
                                     for i in range(c)])  # fmt: skip
    if counts == {"_rows": 1}:
        check_dispatches(ended(Path("R")), trace)
        return
    with pytest.raises(ProfilerError) as error:
        check_dispatches(ended(Path("R")), trace)
    assert all(f"{count} x {name}" in str(error.value) for name, count in counts.items())


# Names of counters


@pytest.mark.nightly
@given(st.sampled_from(sorted(CHIPS.values())), st.data())
def test_every_name_of_a_chip_is_taken_as_it_is(chip, data):
    name, kind = data.draw(st.sampled_from(sorted(names_of(chip).items())))
    rollups = ["pct", "ratio", "max_rate"] if kind == "ratio" else ["sum", "avg", "min", "max"]
    parts = [name, data.draw(st.sampled_from(rollups))]
    if kind != "ratio" and data.draw(st.booleans()):
        parts.append(data.draw(st.sampled_from(SUBMETRICS)))
    for named in (name, ".".join(parts)):
        assert counter(named, chip).name == named and not counter(named, chip).sentence
    for wrong in (f"{name}.total", f"{'.'.join(parts[:2])}.per_hour", f"{name}_not_there"):
        with pytest.raises(CounterError, match=r"^[^\n]+\.$"):
            counter(wrong, chip)


@pytest.mark.parametrize(
    ("named", "chip", "name"),
    [
        ("smsp__inst_executed_not_predicated_off.sum", "GH100",
         "smsp__thread_inst_executed_pred_on.sum"),
        ("dram__bytes_read.sum", "GB202", "dram__bytes_op_read.sum"),
        ("dram__bytes_op_write.sum", "GB202", "dram__bytes_op_write.sum"),
        ("dram__bytes_op_write.sum", "GH100", "dram__bytes_write.sum"),
        ("sm__pipe_tensor_op_hmma_cycles_active.avg", "GB100", "sm__inst_executed_pipe_tensor.avg"),
    ],
)  # fmt: skip
def test_names_of_guides_are_translated_and_said(named, chip, name):
    known = counter(named, chip)
    assert known.name == name and (name in known.sentence) == (name != named)
    assert ("no total by warp" in known.sentence) == ("not_predicated_off" in named)


def test_names_of_ncus_own_are_taken():
    for name in ("launch__registers_per_thread", "sass__inst_executed_per_opcode"):
        assert counter(name, "GH100").name == name
    with pytest.raises(CounterError, match="nearest are"):
        counter("launch__x,y", "GH100")


def test_a_wrong_name_has_its_three_nearest():
    with pytest.raises(CounterError) as error:
        counter("smsp__inst_exectued.sum", "GH100")
    assert "GH100 has no counter smsp__inst_exectued.sum; nearest are smsp__inst_executed," in str(
        error.value
    )
    assert str(error.value).count(", ") == 2


def test_groups_of_amd():
    assert counter_groups("A,B  C_sum") == ("A,B", "C_sum")
    for wrong in ("", "A,,B", "A;B", "A $(x)"):
        with pytest.raises(OptionError):
            counter_groups(wrong)


def test_listed_names_hold_the_pattern():
    assert all("stall" in name for name, _ in list_names("GH100", "stall"))
    with pytest.raises(CounterError, match="not a regular expression"):
        list_names("GH100", "(")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--list-metrics", "zzz", "--device", "h200"), "no counter that holds 'zzz'"),
        (("--list-metrics", "stall", "--device", "mi300x"), "no list of ncu's counters for gfx942"),
        (("--tool", "ncu", "--dry-run", "--metrics", "smsp__x.sum", "--device", "h200", "softmax"),
         "nearest are"),
        (("--tool", "ncu", "--tool-option", "set=detaild", "softmax"), "detailed"),
        (("--tool", "trace", "--metrics", "a", "softmax"), "--metrics is of ncu"),
        (("--tool", "ncu", "--tool-option", "checks=all", "softmax"), "checks=all is of sanitizer"),
        (("--tool-option", "instrument=Allocations", "--", "./app"), "Allocations is of xctrace"),
        (
            ("--tool", "xctrace", "--tool-option", "instrument=Leaks", "--", "./app"),
            "instrument takes Time Profiler or Allocations, not 'Leaks'",
        ),
        (("--tool", "sanitizer", "softmax"), "no driver shows one here"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_one_sentence(capsys, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "workbench.commands.profile_command.machine_here", lambda *_: MACHINES["none"]
    )
    assert main(["profile", *words]) == 2
    out, err = capsys.readouterr()
    assert err.startswith("error: ") and err.count("\n") == 1 and said in err and not out


def test_names_are_listed_without_a_gpu(capsys):
    assert main(["profile", "--list-metrics", "issue_stalled_barrier", "--device", "h200"]) == 0
    out = capsys.readouterr().out
    assert "smsp__warps_issue_stalled_barrier " in out and "names of h200 (GH100)" in out


# From end to end, with programs that stand in for the tools

FAKE = """#!{python} -S
import shutil, sys
words = sys.argv[1:]
def value(name):
    return words[words.index(name) + 1]
{body}
"""
FAKE_NCU = """
if "--import" in words:
    print(open({pages!r} + value("--page") + ".csv").read(), end="")
    sys.exit(0)
open(value("--log-file"), "w").write({log!r})
{report}
sys.exit({code})
"""
FAKE_SANITIZER = """
check = value("--tool")
text = {logs!r}.get(check)
if text is not None:
    open(value("--log-file"), "w").write(text)
sys.exit(86 if text and "Invalid" in text else 0)
"""
HEADS = (
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream",
    "Block Size", "Grid Size", "Device", "CC", "gpu__time_duration.sum", "smsp__inst_executed.sum",
)  # fmt: skip
UNITS = (*[""] * 11, "ns", "inst")
WHERE = ("1", "7", "(128, 1, 1)", "(64, 1, 1)", "0", "9.0")


def table_of(*rows):
    """A raw page of ncu, with a name and a counter's text in each row."""
    texts = [(str(at), "5", "python", "h", name, *WHERE, "44,544", value)
             for at, (name, value) in enumerate(rows)]  # fmt: skip
    whole = (HEADS, UNITS, *texts)
    return "".join(",".join(f'"{text}"' for text in row) + "\n" for row in whole)


@pytest.fixture
def command(tmp_path, monkeypatch, capfd):
    """Run `profile softmax` on a machine whose tools are small programs; gives exit code, output,
    errors and the run's files."""

    def run(*words, **bodies):
        programs = {}
        for name, body in bodies.items():
            path = tmp_path / name.replace("_", "-")
            path.write_text(FAKE.format(python=sys.executable, body=body))
            path.chmod(0o755)
            programs[path.name] = str(path)
        machine = Machine(sys.executable, "cuda", VERSIONS, {}, programs)
        monkeypatch.setattr("workbench.commands.profile_command.machine_here", lambda *_: machine)
        monkeypatch.setattr("workbench.commands.profiled_kernel.backend_for", lambda *_: Null())
        monkeypatch.chdir(tmp_path)
        url = f"sqlite:///{tmp_path / 'h.db'}"
        code = main(["profile", "softmax", "--impl", "rows", "--database", url, *words])
        out, err = capfd.readouterr()
        files = {path.name for path in tmp_path.glob("results/*/*")}
        return code, out, err, files

    return run


def ncu_of(folder, *rows, log="==PROF== Connected\n", report=True, code=0, source=""):
    """A program that does as ncu: it writes a log, a report and, with --import, a raw page and a
    source page."""
    (folder / "raw.csv").write_text(table_of(*rows))
    (folder / "source.csv").write_text(source)
    write = 'open(value("-o") + ".ncu-rep", "wb").write(b"NVR" + bytes(1))' if report else ""
    return FAKE_NCU.format(pages=f"{folder}/", log=log, report=write, code=code)


def test_ncu_from_end_to_end(command, tmp_path):
    code, out, err, files = command(ncu=ncu_of(tmp_path, ("null", "1,024")))
    assert code == 0 and not err, (out, err)
    assert "recorded: 1 call of softmax.rows" in out and "without a profiler" in out
    assert files >= {"call.py", "ncu.ncu-rep", "ncu_raw.csv", "report.html", "events.jsonl"}


def test_instructions_are_read_beside_the_counters(command, tmp_path, capfd):
    """Of a report that NVIDIA's package does not read; what the Spec declares is stored, too."""
    rows = [PageRow("LDG.E R4, desc[UR4][R6.64]", 1000, 4, {"wait": 9}), PageRow("EXIT", 24)]
    page = source_page(("null", rows))
    code, out, err, files = command(ncu=ncu_of(tmp_path, ("null", "1,024"), source=page))
    assert code == 0 and not err and "ncu_source.csv" in files, (out, err)
    url = f"sqlite:///{tmp_path / 'h.db'}"
    assert main(["diagnose", "last", "--database", url, "--all"]) == 0
    out = capfd.readouterr().out
    assert "4.0 of 32 lanes are on in a global load or store" in out
    assert "not evaluable: model needs dram__bytes_read.sum\n" in out.replace("; `", "\n")


def test_a_source_page_that_is_damaged_leaves_the_counters(command, tmp_path):
    damaged = source_page(("null", [PageRow("EXIT")])).replace("0x7f00", "0xzz")
    code, out, err, _ = command(ncu=ncu_of(tmp_path, ("null", "1,024"), source=damaged))
    assert code == 0 and not err and "The instructions could not be read" in out, (out, err)


FAILS = {
    "forbidden": ((), {"log": "==ERROR== ERR_NVGPUCTRPERM", "report": False, "code": 1},
                  "NVreg_RestrictProfilingToAdminUsers=0"),
    "none": ((), {"log": "==WARNING== No kernels were profiled.", "report": False},
             "the filter met none"),
    "others": ((("fill", "1"),), {}, "what was recorded is 1 x fill"),
    "absent": ((("null", "n/a"),), {}, "no value for smsp__inst_executed.sum"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAILS)
def test_where_ncu_gives_nothing_trace_is_tried(command, tmp_path, name, monkeypatch):
    """The recording by torch.profiler itself is cut out: there is no GPU to record."""
    rows, more, words = FAILS[name]
    tried = []

    def stop(profiler, *rest, **_):
        if profiler is profilers()["ncu"]:
            return run_tool(profiler, *rest, **_)
        tried.append(profiler.title)
        raise ProfilerError("No GPU.")

    monkeypatch.setattr("workbench.commands.profile_command.run_tool", stop)
    named = ("--metrics", "smsp__inst_executed.sum", "--device", "h200")
    code, _, err, files = command(*named, ncu=ncu_of(tmp_path, *rows, **more))
    assert code == 2 and words in err and "so trace records the kernel" in err
    assert tried == ["torch.profiler"] and "events.jsonl" in files


LOGS = {check: (TRACES / "h200" / f"{check}.log").read_text()
        for check in ("synccheck", "racecheck", "memcheck", "initcheck")}  # fmt: skip
ALL = ("--tool-option", "checks=all")
FAULTY = gzip.decompress((TRACES / "h200" / "oob.log.gz").read_bytes()).decode()


@pytest.mark.parametrize(
    ("logs", "words", "code", "seen", "unseen"),
    [
        (LOGS, (), 0, ["synccheck.log", "initcheck.log"], []),
        ({**LOGS, "racecheck": FAULTY}, (), 1, ["racecheck.log"], ["memcheck.log"]),
        (
            {**LOGS, "racecheck": FAULTY},
            ("--tool-option", "checks=all"),
            1,
            ["memcheck.log", "initcheck.log"],
            [],
        ),
        ({**LOGS, "memcheck": "========= COMPUTE-SANITIZER\n"}, (), 3, ["initcheck.log"], []),
    ],
)
def test_the_verdict_of_the_sanitizer(command, logs, words, code, seen, unseen):
    fake = {"compute_sanitizer": FAKE_SANITIZER.format(logs=logs)}
    got, out, err, files = command("--tool", "sanitizer", *words, **fake)
    assert got == code, (out, err)
    assert set(seen) <= files and not set(unseen) & files
    assert "CheckerResult" not in out and "racecheck" in out
    assert ("514 errors" in out) == (code == 1) and ("inconclusive" in out) == (code == 3)


def test_a_command_beside_another_one_runs_at_once_and_is_waited_for(tmp_path):
    """Each of two commands ends only once the other one runs; a third follows by itself."""
    meet = "import pathlib, sys, time\n" + (
        "mine, other = map(pathlib.Path, sys.argv[1:])\nmine.touch()\n"
        "while not other.exists(): time.sleep(0.01)\nprint(mine.name)"
    )
    names = [tmp_path / "a", tmp_path / "b"]
    commands = [
        Command(
            [sys.executable, "-c", meet, *map(str, pair)], tmp_path / f"{n}.csv", is_parallel=n > 0
        )
        for n, pair in enumerate((names, names[::-1]))
    ]
    commands.append(Command([sys.executable, "-c", "print('c')"], tmp_path / "2.csv"))
    profiler = replace(
        profilers()["ncu"],
        available=lambda *_: None,
        argv=lambda *_: [sys.executable, "-c", ""],
        reads=lambda *_: [],
        further=lambda *_: commands,
    )
    run = run_tool(profiler, MACHINES["nvidia"], CALLS, tmp_path, limit_s=60.0)
    assert [path.read_text().strip() for path in run.files] == ["a", "b", "c"]
    assert run.end.code == 0 and not run.end.timed_out
