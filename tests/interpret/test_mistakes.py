"""Where a Spec contradicts its reference, or a launch its Spec, the right one of them is blamed."""

import pytest
from mistaken_kernels import LAUNCH_FAULTS, SPEC_FAULTS, write
from nightly import by_turns

from workbench.backend.checking import (
    CheckCall,
    CheckRequest,
    compare_outputs,
    join,
    launch_calls,
    make_inputs,
)
from workbench.catalog.source import load_kernel
from workbench.commands.new_kernel import write_kernel
from workbench.measurement.candidate import Candidate, Refusal
from workbench.spec import SpecFault, values

CONFIG = Candidate.create("blocks", {"block_n": 256, "num_warps": 4})


def checked(folder, changes, dtype="fp32"):
    """The largest error of the changed starter, or why its result is wrong."""
    return checked_file(write(folder, changes), CONFIG, dtype)


def checked_file(path, config, dtype):
    """The largest error, or why the result is wrong: all three tasks, here in one process."""
    kernel = str(path)
    calls = tuple(CheckCall.create(sizes, 5) for sizes in load_kernel(kernel).spec.check)
    request = CheckRequest(kernel, dtype, calls)
    result = launch_calls(kernel, config, make_inputs(request))
    if not isinstance(result, Refusal):
        result = join(request, compare_outputs(request, result))
    return result.reason if isinstance(result, Refusal) else result.error


def test_the_starter_itself_is_right_in_every_dtype(tmp_path):
    for dtype in ("fp32", "fp16", "bf16"):
        assert checked(tmp_path, {}, dtype) <= 1


NAMES = ("a_gelu", "a_relu", "a_sigmoid", "a_tanh", "softmax_of_mine", "a_transpose", "a_gemm",
         "flash")  # fmt: skip


@pytest.mark.parametrize("name, dtype", by_turns(NAMES, ("fp32", "fp16", "bf16")))
def test_a_file_to_start_from_is_right(name, dtype, tmp_path):
    path, _ = write_kernel(name, tmp_path)
    (impl, *_) = load_kernel(str(path)).spec.impls
    assert checked_file(path, Candidate.create(impl.name, values(impl.config())), dtype) <= 1


def test_arithmetic_on_bf16_itself_is_right(tmp_path):
    raw = "n < N).to(tl.float32)\n"
    changes = {raw: "n < N)\n", "x * tl.sigmoid(x)": "x + x", "x * torch.sigmoid(x)": "x + x"}
    assert checked(tmp_path, changes, "bf16") <= 1


@pytest.mark.parametrize("mistake", SPEC_FAULTS)
def test_the_spec_is_blamed_and_no_kernel(mistake, tmp_path):
    changes, part = SPEC_FAULTS[mistake]
    with pytest.raises(SpecFault) as caught:
        checked(tmp_path, changes)
    sentence = str(caught.value)
    assert part in sentence and "the Spec mine" in sentence and "\n" not in sentence
    assert sentence.endswith("no kernel was tried.")


@pytest.mark.parametrize("mistake", LAUNCH_FAULTS)
def test_the_launch_is_held_to_the_spec(mistake, tmp_path):
    changes, part = LAUNCH_FAULTS[mistake]
    sentence = checked(tmp_path, changes)
    assert isinstance(sentence, str) and part in sentence and "\n" not in sentence
