"""A device that answers for a GPU that is not there, and files that ask for one at their top."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from triton.runtime.driver import driver

from workbench.adapted import travel
from workbench.adapted.travel import AdaptedError, Place
from workbench.compile.stand_in import HiddenTarget, answering_for_gpu, stand_in
from workbench.device.hardware import device_named
from workbench.workload import file as files

pytestmark = pytest.mark.compile

ROOT = Path(__file__).parents[2]
PROGRAM = """
import torch, triton, triton.language as tl

DEVICE = triton.runtime.driver.active.get_active_torch_device()
CORES = torch.cuda.get_device_properties(0).multi_processor_count
TARGET = triton.runtime.driver.active.get_current_target()

@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, i < n) * 2, i < n)

if __name__ == "__main__":
    x = torch.randn(4096, device=DEVICE)
    double[(CORES,)](x, torch.empty_like(x), 4096, BLOCK=64)
"""


@pytest.mark.parametrize(
    ("name", "target", "capability", "cores"),
    [("h200", ("cuda", 90, 32), (9, 0), 132), ("mi300x", ("hip", "gfx942", 64), (9, 4), 304)],
)
def test_a_device_answers_for_the_gpu_until_the_end(name, target, capability, cores):
    before, real = driver._active, torch.cuda.get_device_properties
    with answering_for_gpu(device_named(name)):
        known = driver.active.get_current_target()
        assert (known.backend, known.arch, known.warp_size) == target
        assert driver.active.get_active_torch_device() == torch.device("cpu")
        assert driver.active.utils.get_device_properties(0)["multiprocessor_count"] == cores
        properties = torch.cuda.get_device_properties("cuda")
        assert (properties.major, properties.minor) == capability
        assert properties.multi_processor_count == cores
        assert torch.cuda.get_device_capability(0) == capability
        with torch.cuda.device(None):
            assert torch.cuda.current_device() == 0
    assert driver._active is before and torch.cuda.get_device_properties is real


LAYER = torch.nn.Linear(4, 4)
# how programs name a GPU: each puts a tensor of four numbers there
PLACES = {
    "device=": lambda: torch.ones(4, device="cuda"),
    "a number": lambda: torch.ones(4, device=0),
    "an index": lambda: torch.ones(4, device=torch.device("cuda", 0)),
    "cuda()": lambda: torch.ones(4).cuda(),
    "to()": lambda: torch.ones(4).to("cuda:0"),
    "to(dtype)": lambda: torch.ones(4).to(device="cuda", dtype=torch.bfloat16),
    "a layer": lambda: LAYER.cuda()(torch.ones(4, device="cuda")),
    "a generator": lambda: torch.rand(4, generator=torch.Generator("cuda"), device="cuda"),
    "like another": lambda: torch.ones(4, device=torch.ones(4).device),
}


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU answers for itself")
@pytest.mark.parametrize("place", PLACES)
def test_tensors_that_a_program_puts_on_a_gpu_lie_here_and_say_that_they_lie_there(place):
    real, undo = torch.Generator, stand_in(device_named("h200"), for_program=True)
    try:
        assert torch.cuda.is_available()
        x = PLACES[place]()
        assert x.is_cuda and x.device.type == "cuda" and not x.is_cpu
        assert x.detach().float().numpy().shape == (4,)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(torch.cuda.Stream()):
            start.record()
            end.record()
        torch.cuda.synchronize()
        assert start.elapsed_time(end) != start.elapsed_time(end), "no time was taken"
    finally:
        undo()
    assert not x.is_cuda and not torch.cuda.is_available() and torch.Generator is real


@pytest.mark.parametrize(("dtype", "wanted"), [(None, "float16"), (torch.bfloat16, "bfloat16")])
def test_automatic_dtypes_of_a_gpu_hold_for_its_tensors_here(dtype, wanted):
    with answering_for_gpu(device_named("h200")):
        for autocast in (torch.autocast, torch.amp.autocast):
            with autocast("cuda", dtype=dtype):
                assert str(LAYER(torch.ones(4)).dtype) == f"torch.{wanted}"


@pytest.fixture
def program(tmp_path, monkeypatch):
    monkeypatch.setattr(travel, "gpu_shown", lambda: "")
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU answers for itself")
def test_a_file_that_asks_for_a_gpu_is_imported_with_the_device_that_is_compiled_for(
    program, monkeypatch
):
    monkeypatch.setattr(HiddenTarget, "device", device_named("a100"))
    found = Place(str(program), "__main__", "TARGET").find()
    assert found.arch == 80, "the device that is compiled for"
    assert driver._active is None or not hasattr(driver._active, "stands_in")


def test_other_errors_of_a_file_stay_what_they_are(program):
    program.write_text("raise RuntimeError('its own')")
    with pytest.raises(AdaptedError, match="its own"):
        Place(str(program), "__main__", "double").find()


@pytest.mark.nightly
def test_a_program_that_asks_for_a_gpu_is_recorded_with_a_device_that_answers(program, tmp_path):
    command = [sys.executable, "-m", "workbench", "workload", "record", "--out"]
    words = [str(tmp_path / "run.workload"), "--device", "a100", "--", sys.executable, program]
    subprocess.run([*command, *words], cwd=ROOT, check=True, capture_output=True)
    recorded = files.read(tmp_path / "run.workload")
    (one,) = recorded.signatures
    assert one.signature.grid == (108,), "the cores of an A100"
    assert recorded.processes[0].mode == "caught"
