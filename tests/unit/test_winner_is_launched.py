"""What a sweep finds is what runs: from the sweep of each kernel of the library to a launch without
a config in another process. No GPU takes part: the backend is made up, and launchers are recorded.
"""

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from null_backend import ENVIRONMENT, Fate, Null

from workbench import catalog
from workbench.commands.console import SweepConsole
from workbench.commands.sweep import SweepOptions
from workbench.commands.sweep_command import SweepCommand
from workbench.data.environment import fingerprint
from workbench.data.tuned_cache import Tuned
from workbench.device.hardware import DEVICES
from workbench.spec import values
from workbench.tuner.choice import choice_of, choices_of

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
VERSIONS = fingerprint(None, None).versions
H200 = DEVICES["h200"]

# The launcher and the config that are about to run are noted in place of the launch.
LAUNCH = """
import json, sys
import torch
from workbench import catalog
from workbench.adapted import launch
from workbench.device.hardware import DEVICES
from workbench.measurement.inputs import torch_dtype
from workbench.ops import choice
from workbench.spec import values

launch.device_of = lambda place: DEVICES["h200"]
choice._check_place = lambda spec, place: None

def ran(kernel, dtype, sizes):
    spec, seen = catalog.spec_of(kernel), []
    names = {impl.launch: impl.name for impl in spec.impls}
    choice.partial = lambda launcher, config: (
        lambda *inputs: seen.append((names[launcher], values(config)))
    )
    with torch._subclasses.FakeTensorMode():
        inputs = [
            torch.empty(t.shape(sizes), dtype=torch_dtype(t.dtype or dtype))
            for t in spec.inputs.values()
        ]
        choice.first_launch(spec, inputs)
    return seen[0]

print(json.dumps({k: ran(k, *at) for k, at in json.load(sys.stdin).items()}))
"""


def fate(candidate):
    """A time for each config that depends on nothing that the workbench knows."""
    digest = hashlib.sha256(candidate.case.label.encode()).digest()
    return Fate(time_s=1e-3 * (1 + digest[0] / 64 + digest[1] / 2**14), noise=1e-5)


def dtype_of(kernel):
    """The dtype that the kernel is made for."""
    return "fp8" if kernel.startswith("fp8") else "bf16"


def swept(kernel, folder, home, **more):
    """Sweep 16 configs of a kernel, chosen at random, that differ in their tiles alone if it has
    any: of the largest spaces thousands of configs are refused otherwise."""
    knobs = {knob for impl in catalog.spec_of(kernel).impls for knob in impl.knobs().values()}
    name = "tile_size" if "tile" in knobs else "full"
    more = {"budget": "16", "search": "random", "only": name != "full", **more}
    more.setdefault("dtype", dtype_of(kernel))
    options = SweepOptions(name, kernel, out=folder, database=f"sqlite:///{folder}/h.db", **more)
    null = Null(fate)
    null.environment = replace(ENVIRONMENT, versions=VERSIONS)
    file = home / "kernel-workbench" / "tuned.json"
    command = SweepCommand(options, SweepConsole(quiet=True), lambda *_: null, tuned_file=file)
    assert command.go() == 0
    return command


@pytest.fixture
def no_pages(monkeypatch):
    monkeypatch.setattr("workbench.reports.sweep.page", lambda *a, **more: "<p>page</p>")


@pytest.mark.parametrize(
    "kernels",
    [("softmax",), pytest.param(catalog.kernel_names(), marks=pytest.mark.nightly)],
    ids=("one", "all"),
)
def test_the_winner_of_every_kernel_of_the_library_is_what_a_new_process_launches(
    tmp_path, no_pages, kernels
):
    won, sizes = {}, {}
    for kernel in kernels:
        command = swept(kernel, tmp_path / "r", tmp_path)
        winner = command.selection.winner
        won[kernel] = [winner.case.impl, dict(winner.case.config)]
        sizes[kernel] = winner.case.dtype, dict(winner.case.sizes)
        tuned = Tuned.load(tmp_path / "kernel-workbench" / "tuned.json")
        first = tuned.matching(kernel)[0]
        assert [first.impl, dict(first.config)] == won[kernel] and first.key in tuned.fastest()
    child = subprocess.run(
        [sys.executable, "-c", LAUNCH],
        input=json.dumps(sizes),
        env={**os.environ, "XDG_DATA_HOME": str(tmp_path), "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert child.returncode == 0, child.stderr
    assert json.loads(child.stdout) == won


@pytest.mark.parametrize("kernel", ["softmax", "lora", "copy"])
def test_todays_launches_are_in_the_final_whatever_is_swept(tmp_path, no_pages, kernel):
    """With a search that knows nothing, and of one Impl: before anything is tuned, and after."""
    spec = catalog.spec_of(kernel)
    sizes = dict(spec.bench[0])
    file = tmp_path / "kernel-workbench" / "tuned.json"
    at = H200, "bf16", sizes
    own = next(i for i in reversed(spec.impls) if i.backend == "triton")
    for more in ({}, {"impl": (own.name,)}, {"only": False}):
        before = choices_of(spec, *at, path=file, versions=VERSIONS)
        command = swept(kernel, tmp_path / "r", tmp_path, fresh=True, **more)
        finals = [
            (o.case.impl, dict(o.case.config)) for o in command.outcomes
            if getattr(o, "phase", "") == "final"
        ]  # fmt: skip
        asked = before if "impl" not in more else [before[0], choice_of(own, *at, path=file)]
        for choice in asked[: 1 if "impl" in more else None]:
            assert (choice.impl.name, values(choice.config)) in finals
        default = command.selection.default
        assert default is not None
        assert default.record.case.impl == before[0].impl.name
        assert dict(default.record.case.config) == values(before[0].config)
        after = choices_of(spec, *at, path=file, versions=VERSIONS)[0]
        fastest = min(
            (o for o in command.outcomes if getattr(o, "phase", "") == "final" and o.case.config),
            key=lambda o: o.time_s,
        )
        assert (after.impl.name, values(after.config)) == (
            fastest.case.impl, dict(fastest.case.config),
        )  # fmt: skip
