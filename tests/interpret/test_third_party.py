"""Kernels of liger-kernel and fla-core that Triton's own interpreter cannot run: right answers. And
all that their operations launch is adopted with an answer to check configs by."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import workbench.workload
from workbench import dsl  # noqa: F401  # mends the interpreter
from workbench.adapted import write
from workbench.adapted.discover import discover
from workbench.adapted.kept import ARGS
from workbench.adapted.travel import AdaptedError
from workbench.workload.file import read
from workbench.workload.rebuilt import rebuild_launch

pytestmark = [
    pytest.mark.interpret,
    pytest.mark.newest,
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, ("liger_kernel", "fla"))),
        reason="liger-kernel and fla-core are not installed: pip install -e '.[workload-test]'",
    ),
]


def agree(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_norms_and_activations_give_what_torch_gives():
    """They take `eps` as a Python float, or tanh of libdevice."""
    from liger_kernel import ops

    torch.manual_seed(0)
    x, y, w, b = torch.randn(8, 64), torch.randn(8, 64), torch.randn(64), torch.randn(64)
    agree(ops.rms_norm_forward(x, w, 1e-6, 0.0, "llama", None)[0], F.rms_norm(x, (64,), w, 1e-6))
    agree(ops.layer_norm_forward(x, w, b, 1e-6)[0], F.layer_norm(x, (64,), w, b, 1e-6))
    agree(ops.swiglu_forward(x, y)[-1], F.silu(x) * y)
    agree(ops.geglu_forward(x, y)[-1], F.gelu(x, approximate="tanh") * y)
    images, scale, shift = torch.randn(2, 8, 32), torch.randn(8), torch.randn(8)
    wanted = F.group_norm(images, 4, scale, shift, 1e-5)
    agree(ops.group_norm_forward(images, 8, 4, scale, shift, 1e-5)[0], wanted)


def test_chunked_attention_gives_what_its_recurrence_gives(tmp_path):
    """Their loops use the index as a tensor, and their autotuners have no GPU to time on."""
    from fla.ops.gla import chunk_gla
    from fla.ops.gla.naive import naive_recurrent_gla
    from fla.ops.hgrn import chunk_hgrn
    from fla.ops.hgrn.naive import naive_recurrent_hgrn
    from fla.ops.simple_gla import chunk_simple_gla
    from fla.ops.simple_gla.naive import naive_recurrent_simple_gla

    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 64, 1, 16) for _ in range(3))
    g = -torch.rand(1, 64, 1, 16)
    with workbench.workload.record(tmp_path / "a.workload"):  # an autotuner takes its first config
        by_element, _ = chunk_gla(q, k, v, g)
        gated, _ = chunk_hgrn(q[:, :, 0], g[:, :, 0])
        by_head, _ = chunk_simple_gla(q, k, v, g[..., 0])
    torch.testing.assert_close(by_element, naive_recurrent_gla(q, k, v, g)[0], rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(
        by_head, naive_recurrent_simple_gla(q, k, v, g[..., 0])[0], rtol=1e-2, atol=1e-2
    )
    torch.testing.assert_close(
        gated, naive_recurrent_hgrn(q[:, :, 0], g[:, :, 0])[0], rtol=1e-3, atol=1e-3
    )


OPERATIONS = Path(__file__).parents[1] / "workload_operations.py"
# Of 64 tokens hgrn has one chunk, and this kernel begins at the second one.
WITHOUT_EFFECT = {"chunk_hgrn_fwd_kernel_o"}


@pytest.mark.nightly  # 58 functions in the interpreter: 120 s for each library
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("library", "functions"), [("liger", 31), ("fla", 27)])
def test_launches_of_their_operations_are_adopted_with_an_answer(tmp_path, library, functions):
    """Recorded as a compiled program launches them; the answers are the interpreter's."""
    path = tmp_path / "a.workload"
    plain = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    subprocess.run([sys.executable, OPERATIONS, library, path], env=plain, check=True, timeout=300)
    launches = [s.signature for s in read(path).signatures]
    signatures = {(s.function.module, s.function.name): s for s in launches}
    assert len(signatures) == functions
    for (module, name), signature in signatures.items():
        # another process has their texts with what the interpreter replaces in them
        launch = rebuild_launch(signature, trust=True)
        configs = list(launch.configs)
        call, memory = write.call_of(launch.kernel, launch.arguments, launch.grid, configs, 0)
        (folder := tmp_path / f"{module}.{name}").mkdir()
        call.write(folder)
        torch.save(memory, folder / ARGS)
        try:
            result = discover(folder, (), "cpu", False, None)
        except AdaptedError as error:
            assert name in WITHOUT_EFFECT and "changed none of its tensors" in str(error)
        else:
            assert result.outputs and not result.skip_reason and not result.odd
