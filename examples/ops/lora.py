"""Fine-tune a linear layer by LoRA: W is frozen, A and B learn, and the step is compiled.

    python examples/ops/lora.py --steps 20

It needs a GPU, or TRITON_INTERPRET=1 for a small layer on the CPU.
"""

from __future__ import annotations

import argparse

import torch

from workbench import ops


class LoraLinear(torch.nn.Module):  # type: ignore[misc]  # untyped, as all of torch is here
    """y = x W^T + alpha / r (x A^T) B^T in one kernel, with gradients for x, A and B."""

    def __init__(self, weight: torch.Tensor, rank: int, alpha: float) -> None:
        super().__init__()
        rows, columns = weight.shape
        like = {"device": weight.device, "dtype": weight.dtype}
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.a = torch.nn.Parameter(torch.randn(rank, columns, **like) * columns**-0.5)
        self.b = torch.nn.Parameter(torch.zeros(rows, rank, **like))
        self.scale = alpha / rank / 2  # the kernel's own factor is 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ops.lora(x, self.weight, self.a, self.b * self.scale)


def losses(steps: int, rows: int, width: int, rank: int, device: str, backend: str) -> list[float]:
    """Return the loss of each step of learning a random update of rank `rank`."""
    torch.manual_seed(0)
    weight = torch.randn(width, width, device=device) * width**-0.5
    update = torch.randn(width, rank, device=device) @ torch.randn(rank, width, device=device)
    target = weight + update * width**-1.0
    layer = LoraLinear(weight, rank, alpha=16.0)
    step = torch.compile(layer, fullgraph=True, backend=backend)
    optimizer = torch.optim.AdamW([layer.a, layer.b], lr=3e-2)
    results = []
    for _ in range(steps):
        x = torch.randn(rows, width, device=device)
        loss = (step(x) - x @ target.T).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        results.append(loss.item())
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    steps = parser.parse_args().steps
    if torch.cuda.is_available():
        results = losses(steps, 4096, 2048, 16, "cuda", "inductor")
    else:
        results = losses(steps, 32, 48, 4, "cpu", "aot_eager")
    print(f"loss {results[0]:.4f} at the first step, {results[-1]:.4f} at the last")


if __name__ == "__main__":
    main()
