"""The command `python -m metal_shim.check`, the compiler's lookup and the cache."""

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from metal_bugs import launch

from metal_shim import check, compiler, host
from metal_shim.emulate import (
    CheckName,
    EmulationFinding,
    EmulationOptions,
    EndlessRun,
    LaunchRejected,
    emulate_launch,
    emulation,
)
from metal_shim.kernel import metal_kernel
from workbench import catalog
from workbench.device.hardware import DEVICES
from workbench.kernels import read_only
from workbench.measurement import correctness

ROOT = Path(__file__).parents[2]


def command(*words):
    done = subprocess.run(
        [sys.executable, "-m", "metal_shim.check", *words],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr and "measured" not in done.stdout.lower()
    return done


def reported(spec):
    check.check_spec(spec, report := check.CheckReport())
    return report


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is of Linux")
def test_a_full_disk_is_one_sentence():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "metal_shim.check", "--limits"],
            cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 2 and done.stderr.startswith("error: the output cannot be written")
    assert done.stderr.count("\n") == 1


def test_ctrl_c_is_130(monkeypatch, capsys):
    def interrupted(name):
        raise KeyboardInterrupt

    monkeypatch.setattr(check.catalog, "spec_of", interrupted)
    assert check.main(["softmax", "--again"]) == 130 and capsys.readouterr().err == "stopped\n"


def test_a_clean_kernel():
    done = command("read_only", "--again")
    assert done.returncode == 0 and not done.stderr  # no progress, as no terminal is there
    names = [line.split()[0] for line in done.stdout.splitlines()[1:6]]
    assert names == [*(name.value for name in CheckName), "results"]
    assert "emulated on a CPU; Apple's compiler and GPU took no part" in done.stdout


def test_a_clean_check_is_kept_until_a_file_changes(monkeypatch, tmp_path, capsys):
    """What is kept is printed without torch, whose import takes a second."""
    ran = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(check, "check_spec", lambda *given: ran.append(given))
    monkeypatch.setattr(check, "check_corners", lambda *given: None)
    assert check.main(["read_only"]) == 0 and len(ran) == 1
    kept = capsys.readouterr().out + check.UNCHANGED + "\n"
    assert check.main(["read_only"]) == 0 and len(ran) == 1
    assert capsys.readouterr().out == kept
    line = (
        "import sys; from metal_shim import check; assert not check.main(['read_only']); "
        "assert 'torch' not in sys.modules"
    )
    again = subprocess.run([sys.executable, "-c", line], cwd=ROOT, capture_output=True, text=True)
    assert again.stdout == kept, again.stderr
    assert check.main(["read_only", "--again"]) == 0 and len(ran) == 2
    headers = tmp_path / "include"
    shutil.copytree(compiler.INCLUDE, headers)
    monkeypatch.setattr(compiler, "INCLUDE", headers)
    assert check.main(["read_only"]) == 0 and len(ran) == 3
    (headers / "mlx_utils").write_text("// another")
    assert check.main(["read_only"]) == 0 and len(ran) == 4


def test_findings_and_kernels_of_other_files_are_not_kept(monkeypatch, tmp_path):
    def find(spec, report, progress):
        report.wrong = ["softmax.lanes: y is wrong"]
        ran.append(spec.name)

    ran = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(check, "check_spec", find)
    monkeypatch.setattr(check, "check_corners", lambda *given: None)
    assert [check.main(["read_only"]) for _ in range(2)] == [1, 1] and len(ran) == 2
    assert check._verdict_file(str(ROOT / "workbench" / "kernels" / "softmax.py")) is None


@pytest.mark.nightly  # checks a kernel once more, 3 s
def test_each_dispatch_has_its_geometry():
    spec = catalog.spec_of("sample_topk_topp")
    report = reported(replace(spec, check=[{"B": 3, "V": 2781}]))
    printed = list(check.lines(report, spec.name))
    at = printed.index(next(line for line in printed if line.startswith("dispatches of ")))
    kernels = [line.strip() for line in printed[at + 1 :] if line.startswith("  s")]
    assert kernels == [
        "sample_topk_topp_partials: grid of 96x3x1 threads, threadgroups of 96x1x1, "
        "cut from 128x1x1 to the grid, "
        "0 bytes of threadgroup memory",
        "sample_topk_topp_merge: grid of 1536x1x1 threads, threadgroups of 512x1x1, "
        "320 bytes of threadgroup memory",
    ]
    assert len([line for line in printed if line.strip().startswith("keys ")]) == 2


def test_a_kernel_without_a_metal_impl_and_one_that_is_missing(capsys):
    for name, says in (("copy", "copy has no Metal impl"), ("sofmax", "did you mean softmax")):
        assert check.main([name]) == 2
        printed = capsys.readouterr()
        assert says in printed.err and not printed.out


def test_limits(capsys):
    assert check.main(["--limits"]) == 0
    assert "whether Apple's compiler takes the text" in capsys.readouterr().out
    assert check.main([]) == 2


def test_a_run_without_end_is_the_last_of_its_impl(monkeypatch):
    def endless(*given):
        raise EndlessRun(EmulationFinding(CheckName.SYNCCHECK, "no end after 60 s", "kernel"))

    monkeypatch.setattr(correctness, "check", endless)
    report = reported(catalog.spec_of("softmax"))
    impls = ["simd_rows", "lanes", "online"]
    assert report.endless == impls and report.runs == 12 and not report.is_clean
    said = list(check.lines(report, "softmax"))
    assert said[-3:] == [f"{i}: a run did not end; the runs after it were skipped" for i in impls]


def test_ctrl_c_prints_what_was_found(monkeypatch, capsys):
    def interrupted(spec, report, progress):
        report.runs, report.wrong = 2, ["softmax.lanes: y is wrong"]
        raise KeyboardInterrupt

    monkeypatch.setattr(check, "check_spec", interrupted)
    assert check.main(["softmax", "--again"]) == 130
    assert "results    1 wrong result: softmax.lanes: y is wrong" in capsys.readouterr().out


def test_a_fault_is_counted_under_its_check():
    """The kernel's own body, with its barriers taken out."""
    spec = catalog.spec_of("read_only")
    (impl,) = check.metal_impls(spec)
    source = impl.launch.__globals__["SIMD_CHUNKS"].source
    body = source.body.replace("high = block_max<NSG>", "part[0] = high; high = block_max<NSG>")
    broken = metal_kernel("broken", inputs="x", outputs="y", body=body, header=source.header)

    def launched(x, *, config):
        y = x.new_empty(x.shape[0] // read_only.CHUNK, device="meta")
        template = dict(T=x.dtype, TG=config.threads, CHUNK=read_only.CHUNK)
        return broken(x, like=y, grid=(config.threads, 1, 1), group=config.threads, **template)

    report = reported(replace(spec, impls=[replace(impl, launch=launched)]))
    assert not report.is_clean and len(report.findings[CheckName.RACECHECK]) == report.runs
    (line,) = [x for x in check.lines(report, "read_only") if x.startswith("racecheck")]
    assert f"{report.runs} findings: broken, line" in line and "race on threadgroup memory" in line


def test_a_wrong_result_is_reported():
    spec = catalog.spec_of("compute_only")
    (impl,) = check.metal_impls(spec)
    report = reported(
        replace(spec, impls=[replace(impl, launch=lambda x, config: torch.zeros_like(x))])
    )
    assert len(report.wrong) == report.runs and not report.is_clean


def test_a_compiler_that_is_missing_is_one_sentence(monkeypatch):
    monkeypatch.setattr(compiler, "CANDIDATES", ())
    monkeypatch.setattr(compiler, "_zig", lambda: None)
    with pytest.raises(compiler.CompilerMissing, match="apt-get install clang-19"):
        compiler.find_compiler()
    with pytest.raises(compiler.CompilerMissing, match="/bin/true is not clang"):
        compiler.find_compiler("/bin/true")


def test_programs_are_kept_by_all_that_they_depend_on(monkeypatch, tmp_path):
    monkeypatch.setattr(compiler, "cache_folder", lambda: tmp_path)
    one, two = (launch("cached", f"\n    y[at] = {n};\n") for n in (1, 2))
    tools = compiler.find_compiler()
    first = compiler.compile_text(host.host_text(one.call), tools)
    assert compiler.compile_text(host.host_text(one.call), tools) == first
    before = first.stat().st_mtime_ns
    assert compiler.compile_text(host.host_text(two.call), tools) != first
    other = replace(tools, version="another version")
    assert compiler.compile_text(host.host_text(one.call), other) != first
    assert first.stat().st_mtime_ns == before
    assert not [p for p in tmp_path.iterdir() if p.is_dir()]  # nothing temporary is left


def test_a_cache_that_cannot_be_made_is_one_sentence(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(compiler, "cache_folder", lambda: tmp_path / "file" / "metal")
    with pytest.raises(compiler.CacheUnusable, match="cannot be made"):
        compiler.compile_text("another text", compiler.find_compiler())


def test_a_full_disk_of_the_cache_is_no_fault_of_the_kernel():
    full = "echo 'ld: final link failed: No space left on device' >&2; exit 1"
    with pytest.raises(compiler.CacheUnusable, match="is full; free some space"):
        compiler._run("sh", "-c", full)


def test_the_wheel_ziglang_is_the_last_choice(monkeypatch):
    zig = compiler.MetalCompiler(("zig", "clang"), ("zig", "c++"), "zig 0")
    monkeypatch.setattr(compiler, "_zig", lambda: zig)
    assert compiler.find_compiler() is not zig
    monkeypatch.setattr(compiler, "CANDIDATES", ("no-such-clang",))
    assert compiler.find_compiler() is zig


def test_a_kernel_names_its_own_clang():
    with (
        emulation(EmulationOptions(compiler="no-such-clang")),
        pytest.raises(compiler.CompilerMissing, match="no-such-clang is not clang"),
    ):
        emulate_launch(launch("named", "\n    y[at] = 1;\n"))


DOUBLED = metal_kernel(
    "doubled", inputs="x", outputs="y", body="y[thread_position_in_grid.x] = x[0] * 2;"
)


@pytest.mark.parametrize(
    ("inputs", "like", "says"),
    [
        ((), torch.empty(1), r"has 1 inputs \(x\), not 0"),
        ((torch.ones(1),) * 2, torch.empty(1), "not 2"),
        ((torch.ones(1),), (torch.empty(1),) * 2, r"has 1 outputs \(y\), not 2"),
        ((torch.ones(1, device="meta"),), torch.empty(1), "x is on meta; call .cpu"),
        ((torch.ones(1, dtype=torch.float64),), torch.empty(1), "torch.float64, the dtype of x"),
        ((torch.ones(1),), torch.empty(1, dtype=torch.complex64), "the dtype of y"),
        ((torch.ones(0),), torch.empty(1), "empty array"),
    ],
)
def test_arguments_that_do_not_fit_are_one_sentence(inputs, like, says):
    with pytest.raises(LaunchRejected, match=says):
        DOUBLED(*inputs, like=like, grid=(1, 1, 1), group=1)


@pytest.mark.parametrize("kind", ["long", "ulong"])
@pytest.mark.parametrize(
    "function", ["simd_sum", "simd_prefix_inclusive_sum", "simd_broadcast_first"]
)
def test_functions_of_a_simdgroup_take_no_64_bit_integers(function, kind):
    wide = launch("wide", f"\n    y[at] = {function}({kind}(at));\n")
    with pytest.raises(LaunchRejected, match="no 64-bit integers; exchange uint2"):
        emulate_launch(wide)


@pytest.mark.parametrize(("grid", "group"), [((0, 1, 1), 1), ((4, 1, 1), 0), ((1 << 32, 1, 1), 32)])
def test_grids_that_no_device_takes_are_refused(grid, group):
    with pytest.raises(LaunchRejected, match=r"at least 1|2\^32"):
        DOUBLED(torch.ones(1), like=torch.empty(1), grid=grid, group=group)


def test_names_are_checked_where_a_kernel_is_declared():
    with pytest.raises(ValueError, match="'a-b' is not a valid name"):
        metal_kernel("a-b", inputs="x", outputs="y", body="")


def test_a_metal_impl_is_refused_on_other_devices():
    spec = catalog.spec_of("softmax")
    impl = catalog.impl_of(spec, "simd_rows")
    for device in DEVICES.values():
        sizes = spec.check[0]
        config = impl.default(device.limits, "fp16", sizes)
        reason = impl.rejection_reason(config, device.limits, "fp16", sizes)
        assert "needs an Apple GPU; `python -m metal_shim.check softmax`" in reason


def test_the_example_of_the_docs_is_right_and_clean(monkeypatch):
    page = (ROOT / "docs" / "metal.md").read_text(encoding="utf-8")
    page = page.partition("## Add a Metal kernel")[2]
    (block,) = re.findall(r"```python\n(.*?)```", page, flags=re.S)
    spec = catalog.spec_of("copy")
    before = list(spec.impls)
    module = ModuleType("metal_shim.kernels.copy")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # its dataclass looks it up
    try:
        exec(block, module.__dict__)
        report = reported(spec)
    finally:
        spec.impls[:] = before
    assert report.is_clean and report.runs == 48, list(check.lines(report, "copy"))


def test_the_docs_list_the_limits_that_the_command_prints():
    page = " ".join((ROOT / "docs" / "metal.md").read_text(encoding="utf-8").split())
    for words in ("Apple's compiler", "registers", "simd_sum", "tensor_ops", "first finding"):
        assert words in page


def test_on_a_mac_the_object_with_the_lines_stays_and_atos_reads_it(monkeypatch, tmp_path):
    """By stand-ins for the compiler and for atos, whose answers have the form of Apple's."""
    commands = []

    def run(*command):
        commands.append(command)
        Path(command[command.index("-o") + 1]).write_text("built")

    monkeypatch.setattr(compiler, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(compiler, "_run", run)
    monkeypatch.setattr(sys, "platform", "darwin")
    program = compiler.compile_text("a text", compiler.MetalCompiler(("cc",), ("c++",), "clang 19"))
    kernel, link = commands[-2:]
    assert str(program.with_suffix(".o")) in kernel and str(program.with_suffix(".o")) in link
    assert program.with_suffix(".o").read_text() == "built"
    assert link[1:4] == ("-shared", "-undefined", "dynamic_lookup")
    tool = tmp_path / "atos"
    tool.write_text('#!/bin/sh\necho "msl_entry (in kernel.so) (mine.metal:$(($# + 2)))"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert compiler.line_of(program, 0x1234, "mine") == 5 + 14 + 2  # options, places
