"""The main job on a package without some of its parts: a sweep, and the tuning of one's own
function, from the command line to the page, for a GPU that is not here."""

import json
import re

import pytest
from nightly import nightly
from without_parts import ROOT, copy_without, run_there

from workbench.data.parts import PARTS

pytestmark = pytest.mark.newest
OTHERS = [name for name in PARTS if name != "kernels"]
MINE = """\
import torch
import triton
import triton.language as tl

import workbench as wb


@triton.jit
def scale(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2.0 * tl.load(x + at, at < n), at < n)


if __name__ == "__main__":
    x = torch.ones(4096)
    tuned = wb.tune(
        scale,
        (x, torch.empty_like(x), x.numel()),
        grid=lambda meta: (triton.cdiv(4096, meta["BLOCK"]),),
        configs=[triton.Config({"BLOCK": block}) for block in (256, 1024)],
        device="h200",
        database="sqlite:///history.db",
        progress=False,
    )
    assert tuned.predicted and tuned.page.exists()
    print(tuned.kwargs["BLOCK"])
"""
WORDS = ["--arg", "x=fp32[4096]", "--arg", "y=fp32[4096]", "--arg", "n=4096",
         "--grid", "cdiv(n, BLOCK)", "--config", "BLOCK=256", "--config", "BLOCK=1024"]  # fmt: skip
FOR = ["--device", "h200", "--database", "sqlite:///history.db"]


def workbench(home, *words):
    """Run a command on a copy, and return its result; it ends with exit code 0."""
    result = run_there(home, "-m", "workbench", *words, *FOR, "--json", "result.json")
    assert result.returncode == 0, result.stderr
    return json.loads((home / "result.json").read_text())


def sweeps(home, kernel="softmax", budget="3"):
    """Sweep a kernel, and return the id of the run, whose page is there."""
    swept = workbench(home, "sweep", kernel, "--budget", budget, "--no-events")
    (run,) = swept["runs"]
    assert run["predicted"] and (home / run["page"]).exists()
    return run["run"]["id"]


def tunes_a_function(home):
    """Tune a plain function by the API."""
    (home / "mine.py").write_text(MINE)
    result = run_there(home, "mine.py")
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() in ("256", "1024")


def test_without_the_other_parts_a_kernel_is_swept(tmp_path):
    sweeps(copy_without(OTHERS, tmp_path))


def test_without_any_part_a_function_is_tuned(tmp_path):
    tunes_a_function(copy_without(PARTS, tmp_path))


@nightly
@pytest.mark.parametrize("name", PARTS)
def test_without_one_part_the_main_job_is_done(name, tmp_path):
    home = copy_without([name], tmp_path)
    tunes_a_function(home)
    workbench(home, "tune", "mine.py:scale", *WORDS)
    if name != "kernels":
        runs = [sweeps(home), sweeps(home, budget="4")]
        compared = run_there(home, "-m", "workbench", "compare", *runs, *FOR[2:])
        assert compared.returncode in (0, 3) and re.search(r"report +\S+html", compared.stdout)


@nightly
def test_without_our_kernels_one_of_an_installed_package_is_swept(tmp_path):
    home = copy_without(["kernels"], tmp_path)
    (home / "theirs").mkdir()
    (home / "theirs" / "__init__.py").touch()
    text = (ROOT / "workbench" / "kernels" / "copy.py").read_text("utf-8")
    (home / "theirs" / "their_copy.py").write_text(text, "utf-8")
    info = home / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[workbench.kernels]\ntheir_copy = theirs.their_copy\n")
    sweeps(home, "their_copy")
