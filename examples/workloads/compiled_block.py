"""Train a transformer block under torch.compile for some steps.

    python examples/workloads/compiled_block.py --steps 3

Inductor generates its Triton kernels on a GPU. Without one it generates C++, and there is nothing
to record.
"""

import argparse

import torch
import torch.nn.functional as F

import workbench
import workbench.workload


class TransformerBlock(torch.nn.Module):
    """Attention and a gated feed-forward layer, each after a norm."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.first, self.second = torch.nn.RMSNorm(width), torch.nn.RMSNorm(width)
        self.qkv = torch.nn.Linear(width, 3 * width, bias=False)
        self.outer = torch.nn.Linear(width, width, bias=False)
        self.up = torch.nn.Linear(width, 8 * width, bias=False)
        self.down = torch.nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        heads = self.qkv(self.first(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.outer(mixed.transpose(1, 2).flatten(-2))
        gate, value = self.up(self.second(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * value)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3)
    steps = parser.parse_args().steps
    gpu = torch.cuda.is_available()
    device = "cuda" if gpu else "cpu"
    batch, length, width, heads = (4, 2048, 2048, 16) if gpu else (1, 16, 64, 2)
    torch.manual_seed(0)
    with torch.device(device):
        block = TransformerBlock(width, heads)
    block = torch.compile(block.to(torch.bfloat16))
    optimizer = torch.optim.AdamW(block.parameters(), lr=1e-4)
    x = torch.randn(batch, length, width, device=device, dtype=torch.bfloat16)
    for _ in range(steps):
        loss = block(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        workbench.workload.output("loss", loss)
        workbench.step()


if __name__ == "__main__":
    main()
