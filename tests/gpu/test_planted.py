"""Words of planted kernels by ncu's counters on the GPU that is here."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from planted_words import expected, launched, metrics_of

from workbench.device import hardware
from workbench.traces.profilers.ncu import SECTIONS
from workbench.traces.profilers.running.permission import counter_permission
from workbench.traces.rules import evaluate_kernel, word_of

if hardware.live() is None:
    pytest.skip("torch sees no GPU here", allow_module_level=True)
ROOT = Path(__file__).parents[2]
LEAST = 0.95  # of the words that must be right: 19 of 20


@pytest.mark.alone
@pytest.mark.skipif(shutil.which("ncu") is None, reason="ncu is not here")
@pytest.mark.skipif(counter_permission().is_allowed is False, reason="counters are forbidden here")
def test_the_words_of_planted_kernels_are_their_causes(tmp_path):
    report = tmp_path / "planted.ncu-rep"
    marks = ["--profile-from-start", "off", "--nvtx", "--nvtx-include", "wb/"]
    sections = [word for section in SECTIONS for word in ("--section", section)]
    line = ["ncu", "--clock-control", "none", "--cache-control", "all", *marks, *sections]
    line += ["--import-source", "yes", "-f", "-o", str(report)]
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [*line, sys.executable, str(ROOT / "tests" / "planted_counters.py")],
        capture_output=True, text=True, check=False, timeout=280,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    wrong = {}
    known = expected()
    for name, metrics in metrics_of(report, launched(done.stdout)).items():
        word = word_of(evaluate_kernel(metrics))
        if (word.name if word else None) not in known[name][0]:
            wrong[name] = word.name if word else None
    print("wrong", wrong)
    assert not [name for name in wrong if name.startswith("healthy")], wrong
    assert len(wrong) <= (1 - LEAST) * len(known), wrong
