"""Sample token after token with top-k and top-p; on a GPU a step is one CUDA graph.

    python examples/ops/sampler.py --tokens 32

The model is a table of 64 rows of logits, so that all that counts is the sampler. Without a GPU
the kernels are interpreted on the CPU, with a small vocabulary.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read by the import of the kernels

from workbench import ops


class Sampler:
    """A sampling step whose inputs and output stay in their places, as a CUDA graph needs it.

    A row's token depends on its logits and its seed alone, so each step takes another seed.
    """

    def __init__(self, table: torch.Tensor, batch: int, k: int, p: float, heat: float) -> None:
        device = table.device
        self.table = table
        self.token = torch.arange(batch, device=device)
        self.k = torch.full((batch,), k, dtype=torch.int32, device=device)
        self.p = torch.full((batch,), p, device=device)
        self.heat = torch.full((batch,), heat, device=device)
        self.seed = torch.arange(batch, device=device)

    def step(self) -> None:
        """Replace each token by one that follows it."""
        logits = self.table[self.token % len(self.table)]
        token = ops.sample_topk_topp(logits, self.k, self.p, self.heat, self.seed)
        self.token.copy_(token)
        self.seed.add_(len(self.seed))

    def capture(self) -> Callable[[], None]:
        """Return the step as a CUDA graph. The first step chooses the kernel and compiles it, which
        a capture cannot."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        replay: Callable[[], None] = graph.replay
        return replay


def tokens_of(count: int, vocabulary: int, batch: int, device: str) -> list[list[int]]:
    """Return `count` tokens of each row of a batch."""
    generator = torch.Generator(device).manual_seed(0)
    table = torch.randn(64, vocabulary, device=device, generator=generator)
    sampler = Sampler(table, batch, k=50, p=0.9, heat=0.8)
    step = sampler.capture() if device == "cuda" else sampler.step
    results = []
    for _ in range(count):
        step()
        results.append(sampler.token.tolist())
    return [list(row) for row in zip(*results, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=32)
    count = parser.parse_args().tokens
    gpu = torch.cuda.is_available()
    rows = tokens_of(count, *((128_256, 8, "cuda") if gpu else (128, 2, "cpu")))
    for row in rows:
        print(*row)


if __name__ == "__main__":
    main()
