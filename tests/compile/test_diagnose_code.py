"""Rules of machine code: each holds on a kernel in which its cause was planted, none on healthy
ones; for GPUs that are not here. By day each kernel for one of them, by turns.
"""

import gzip
import json
from pathlib import Path

import planted_kernels
import pytest
from nightly import nightly

from workbench.cli import main
from workbench.data.code_facts import CodeFacts
from workbench.device.hardware import DEVICES
from workbench.traces.rules import code_rules

GOLDEN = Path(__file__).parents[1] / "golden" / "code"
TABLES = {"planted": planted_kernels.ELEMENTS, "planted_product": planted_kernels.PRODUCTS}
PLANTED = [
    pytest.param(file, impl, rule, device, marks=() if place % len(devices) == number else nightly)
    for file, table in TABLES.items()
    for place, (impl, (rule, devices)) in enumerate(table.items())
    for number, device in enumerate(devices)
]
# Proven on listings and PTX of Triton in place of a kernel: 25 s of ptxas, or a specialised kernel.
ELSEWHERE = {"compiler_warning", "partition_overlap"}
BY_DAY = (("matmul", "h200"), ("softmax", "mi300x"))
HEALTHY = [
    pytest.param(kernel, device, marks=() if (kernel, device) in BY_DAY else nightly)
    for kernel in ("softmax", "matmul", "rms_norm", "copy", "layer_norm")
    for device in ("h200", "mi300x")
]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return planted_kernels.written(tmp_path_factory.mktemp("planted"))


def document(capsys, *words):
    code = main(["diagnose", *map(str, words), "--json", "result.json"])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    for line in (line for line in printed.out.splitlines() if "~" in line):
        assert "times the predicted)" in line or "(never validated" in line, (
            "a time needs its error"
        )
    return json.loads(Path("result.json").read_text())


@pytest.mark.parametrize("file, impl, rule, device", PLANTED)
def test_a_rule_holds_on_the_kernel_in_which_it_was_planted(
    capsys, files, file, impl, rule, device
):
    result = document(capsys, files[file], "--impl", impl, "--device", device)
    held = {each["rule"]: each for each in result["diagnoses"]}
    assert rule in held
    each = held[rule]
    assert each["gain_s"] is None and each["advice"] and each["evidence"]
    assert all(known["kind"] == "computed" for known in each["evidence"])
    if impl in planted_kernels.LINES:
        assert set(each["places"]) & set(planted_kernels.line_of(files[file], impl))


def test_every_rule_of_code_is_planted():
    assert {planted.values[2] for planted in PLANTED} | ELSEWHERE == set(code_rules())


@pytest.mark.parametrize(("kernel", "device"), HEALTHY)
def test_healthy_kernels_have_no_cause(capsys, kernel, device):
    result = document(capsys, kernel, "--device", device)
    assert [each["rule"] for each in result["diagnoses"]] == ["model"], "what limits it is no cause"
    missing = {each["rule"] for each in result["not_evaluable"]} & set(code_rules())
    amd = {"compiler_warning", "no_async_copy"} if device == "mi300x" else set()
    assert missing == {"partition_overlap"} | amd


def test_warnings_of_ptxas_are_a_cause(capsys, tmp_path):
    path = tmp_path / "mmspill.ptx"
    path.write_bytes(gzip.decompress((GOLDEN / "mmspill_cuda_90.ptx.gz").read_bytes()))
    held = {each["rule"]: each for each in document(capsys, path)["diagnoses"]}
    assert set(held) == {"spills_in_loop", "compiler_warning"}
    assert "C7511" in held["compiler_warning"]["sentence"]
    assert held["spills_in_loop"]["places"][0].startswith("kern.py:")


@pytest.mark.nightly
def test_all_devices_are_one_line_a_finding(capsys, files):
    code = main(["diagnose", str(files["planted"]), "--impl", "strided", "--device", "all"])
    out = capsys.readouterr().out
    triton = [name for name, device in DEVICES.items() if device.limits.arch != "metal"]
    lines = [line for line in out.splitlines() if "narrow accesses at planted.py:" in line]
    assert code == 0 and [line.split()[0] for line in lines] == triton and len(triton) >= 10
    assert out.count("tl.multiple_of") == 1, "advice is printed once"


@pytest.mark.nightly
def test_a_device_that_a_config_does_not_fit_is_said_beside_the_others(capsys):
    words = ("matmul", "--impl", "tiles:block_m=256,num_stages=4", "--device", "all")
    reasons = document(capsys, *words)["devices"]
    assert reasons["mi300x"] != "compiled" and "compiled" in reasons.values()


def test_a_config_that_fits_nowhere_is_one_sentence(capsys):
    code = main(["diagnose", "matmul", "--impl", "tiles:block_m=4096", "--device", "h200"])
    err = capsys.readouterr().err
    assert code == 2 and "cannot be compiled for h200" in err and err.count("\n") == 1


def test_the_library_has_no_private_facts():
    """A fact that a rule may lack is stated with what would tell it."""
    optional = {n for n, f in CodeFacts.__dataclass_fields__.items() if f.default is None}
    from workbench.data.code_facts import FACTS

    assert optional == set(FACTS)
