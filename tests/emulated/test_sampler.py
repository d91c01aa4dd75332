"""The CPU's sampler of `cpu_vs_gpu` beside the Metal kernels: the same tokens, two dispatches."""

from pathlib import Path

import pytest
import torch
from metal_body import LIMITS
from nightly import at_night

from workbench import catalog
from workbench.experiments import cpu_vs_gpu
from workbench.measurement import inputs
from workbench.variants import sample_logits

ROOT = Path(__file__).parents[2]
IMPL = catalog.impl_of(catalog.spec_of("sample_topk_topp"), "partials_and_merge")
SIZES = [{"B": B, "V": V} for V in cpu_vs_gpu.VOCABULARIES for B in cpu_vs_gpu.ROWS]


def both(sizes, dtype, scale, context):
    """Tokens of the CPU and of the emulated kernels, and the dispatches of these."""
    (logits,) = inputs.make(sample_logits.sample_logits, sizes, dtype, "cpu", 7)
    logits = logits * scale
    config = IMPL.default(LIMITS, dtype, sizes)
    settings = sample_logits.settings(len(logits), logits.device)
    with context as runs:
        tokens = IMPL(logits, *settings, config=config)
    return sample_logits.on_the_cpu(logits), tokens, config, runs


@pytest.mark.parametrize("sizes", at_night(SIZES, lambda sizes: sizes == SIZES[0]), ids=str)
def test_the_cpu_and_the_metal_kernels_draw_the_same_tokens(sizes, contexts):
    for i, (dtype, scale) in enumerate((("fp32", 8), ("fp16", 1), ("bf16", 8))):
        expected, tokens, _, _ = both(sizes, dtype, scale, contexts()[i])
        assert torch.equal(tokens, expected)
        assert int(tokens.min()) >= 0


@pytest.mark.parametrize("sizes", SIZES[:2], ids=str)
def test_partials_and_merge_are_dispatched_with_their_geometry(sizes, contexts):
    _, _, config, runs = both(sizes, "fp16", 1, contexts()[0])
    assert len(runs) == cpu_vs_gpu.KERNELS
    partials, merge = runs
    assert partials.call.source.name == "sample_topk_topp_partials"
    assert merge.call.source.name == "sample_topk_topp_merge"
    slices = -(-sizes["V"] // config.slice)
    assert partials.grid == (32 * slices, sizes["B"], 1) and partials.group[0] == config.threads
    assert merge.grid == (config.merge_threads * sizes["B"], 1, 1)
    assert partials.traffic.buffers["x"].unique_read == 2 * sizes["B"] * sizes["V"]
    assert merge.traffic.buffers["x"].requested_read == 0  # the candidates suffice
    assert merge.traffic.buffers["token"].unique_written == 8 * sizes["B"]


def test_the_script_of_the_docs_runs(capsys):
    page = (ROOT / "docs" / "metal.md").read_text(encoding="utf-8")
    script = page.partition("## Sample on the CPU")[2].partition("```python\n")[2]
    exec(script.partition("```")[0], {})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "the same tokens" and len(lines) == 1 + cpu_vs_gpu.KERNELS
    assert lines[1].startswith("sample_topk_topp_partials (1024, 8, 1) (128, 1, 1)")
