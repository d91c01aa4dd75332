"""Train two kinds of layers of flash-linear-attention for some steps: gated linear attention and
the delta rule.

    python examples/workloads/fla_layers.py --steps 3

It needs fla-core, whose autotuners have up to 60 configs each. Without a GPU the layers are tiny
and stay on the CPU, so that their launches can be recorded.
"""

import argparse

import torch
import torch.nn.functional as F
from fla.ops.delta_rule import chunk_delta_rule
from fla.ops.gla import chunk_gla

import workbench
import workbench.workload


class Mixer(torch.nn.Module):
    """A layer that mixes tokens: projections, an operation of fla, and a residual."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.inner = torch.nn.Linear(width, 4 * width, bias=False)
        self.outer = torch.nn.Linear(width, width, bias=False)

    def forward(self, x):
        q, k, v, g = (t.unflatten(-1, (self.heads, -1)) for t in self.inner(x).chunk(4, -1))
        return x + self.outer(self.mix(q, k, v, g).flatten(-2))


class LinearAttention(Mixer):
    def mix(self, q, k, v, g):
        return chunk_gla(q, k, v, F.logsigmoid(g.float()) / 16)[0]


class DeltaRule(Mixer):
    def mix(self, q, k, v, g):
        return chunk_delta_rule(q, F.normalize(k, dim=-1), v, g.mean(-1).sigmoid())[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3)
    steps = parser.parse_args().steps
    gpu = torch.cuda.is_available()
    device = "cuda" if gpu else "cpu"
    batch, length, width, heads = (4, 4096, 2048, 16) if gpu else (1, 64, 64, 2)
    torch.manual_seed(0)
    with torch.device(device):
        layers = torch.nn.Sequential(LinearAttention(width, heads), DeltaRule(width, heads))
    layers = layers.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(layers.parameters(), lr=1e-4)
    x = torch.randn(batch, length, width, device=device, dtype=torch.bfloat16)
    for _ in range(steps):
        loss = layers(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        workbench.workload.output("loss", loss)
        workbench.step()


if __name__ == "__main__":
    main()
